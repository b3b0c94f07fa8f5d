/* model_layout.c - which of the layouts that a family's rules allow a checkpoint has; see model.h.
 *
 * A release, other releases of the family and what transformers' save_pretrained writes hold the same tensors under
 * different names, or an expert's matrices alone and those of all experts in one tensor.  Rules of a role that require the
 * same traits are alternatives, and so are the names of one rule, parted by '|'.  The first one of which the checkpoint has a
 * tensor in any layer counts in all of them: a checkpoint that mixes two is refused later, for the tensors that are missing
 * or left over.  Of a role that is nowhere the first alternative counts, which is the release's: messages name what that has. */
#include "model/model.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

void exf_tensor_name(char out[EXF_TENSOR_NAME_LEN], const exf_architecture *a, const char *pattern, int layer, int expert)
{
    size_t n = 0, most = EXF_TENSOR_NAME_LEN;
    for (const char *p = pattern; *p && n < most - 1;) {
        if (p[0] == '{' && p[2] == '}') {
            int len = p[1] == 'P' ? snprintf(out + n, most - n, "%s", a->prefix)
                                  : snprintf(out + n, most - n, "%d", p[1] == 'L' ? layer : expert);
            n += (size_t)len < most - n ? (size_t)len : most - n - 1;
            p += 3;
        } else {
            out[n++] = *p++;
        }
    }
    out[n] = 0;
}

/* Copies name number `which` of a rule; 0 if it has fewer. */
static int copy_pattern(char out[EXF_TENSOR_NAME_LEN], const exf_tensor_rule *r, int which)
{
    const char *begin = r->name;
    for (; which > 0 && begin; which--) begin = strchr(begin, '|') ? strchr(begin, '|') + 1 : NULL;
    if (begin) snprintf(out, EXF_TENSOR_NAME_LEN, "%.*s", (int)strcspn(begin, "|"), begin);
    return begin != NULL;
}

void exf_rule_pattern(char out[EXF_TENSOR_NAME_LEN], const exf_model *m, const exf_tensor_rule *r)
{
    int which = m->spelling[r - m->family->rules];
    copy_pattern(out, r, which == EXF_RULE_UNUSED ? 0 : which);
}

void exf_rule_name(char out[EXF_TENSOR_NAME_LEN], const exf_model *m, const exf_tensor_rule *r, int layer, int expert)
{
    char pattern[EXF_TENSOR_NAME_LEN];
    exf_rule_pattern(pattern, m, r);
    exf_tensor_name(out, &m->arch, pattern, layer, expert);
}

static int has_traits(const exf_architecture *a, const exf_tensor_rule *r, int layer)
{
    unsigned have = layer < 0 ? a->model_traits : a->traits[layer];
    return (layer < 0) == (r->where == EXF_IN_MODEL) && (have & r->when) == r->when;
}

int exf_rule_applies(const exf_model *m, const exf_tensor_rule *r, int layer)
{
    return m->spelling[r - m->family->rules] != EXF_RULE_UNUSED && has_traits(&m->arch, r, layer);
}

/* Returns 1 if the checkpoint has a tensor of that pattern where the rule requires one, or allows one. */
static int is_stored(const exf_model *m, const exf_tensor_rule *r, const char *pattern)
{
    char name[EXF_TENSOR_NAME_LEN];
    for (int l = -1; l < m->arch.n_layers; l++) {
        if (!has_traits(&m->arch, r, l) && !(l < 0 && r->how & EXF_MAY_BE_TIED)) continue;
        exf_tensor_name(name, &m->arch, pattern, l, 0);
        if (exf_weight_source_present(m->checkpoint, name)) return 1;
    }
    return 0;
}

/* Returns the number of a rule's first name that is stored, or EXF_RULE_UNUSED. */
static unsigned char find_spelling(const exf_model *m, const exf_tensor_rule *r)
{
    char pattern[EXF_TENSOR_NAME_LEN];
    for (int which = 0; copy_pattern(pattern, r, which); which++)
        if (is_stored(m, r, pattern)) return (unsigned char)which;
    return EXF_RULE_UNUSED;
}

static int are_alternatives(const exf_tensor_rule *a, const exf_tensor_rule *b)
{
    return a->role == b->role && a->when == b->when;
}

/* Sets the spelling of all alternatives of which `first` is the first. */
static void choose_among(exf_model *m, size_t first)
{
    const exf_tensor_rule *rules = m->family->rules;
    size_t chosen = m->family->n_rules;
    for (size_t i = first; i < m->family->n_rules; i++) {
        if (!are_alternatives(&rules[i], &rules[first])) continue;
        m->spelling[i] = chosen == m->family->n_rules ? find_spelling(m, &rules[i]) : EXF_RULE_UNUSED;
        if (m->spelling[i] != EXF_RULE_UNUSED) chosen = i;
    }
    for (size_t i = first; chosen == m->family->n_rules && i < m->family->n_rules; i++) {
        int packed = (rules[i].how & EXF_MXFP4) != 0; /* a config says whether the release's weights are */
        if (!are_alternatives(&rules[i], &rules[first]) || (packed && m->quantization.quantizer != EXF_QUANTIZER_MXFP4)) continue;
        m->spelling[i] = 0;
        chosen = i;
    }
}

static int is_first(const exf_family *f, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (are_alternatives(&f->rules[k], &f->rules[i])) return 0;
    return 1;
}

/* The first of the family's prefixes under which the checkpoint has layers, or else the release's. */
static const char *find_prefix(const exf_model *m)
{
    const char *const *prefixes = m->family->prefixes;
    for (size_t k = 0; k < EXF_PREFIXES && prefixes[k]; k++) {
        char layers[64];
        snprintf(layers, sizeof layers, "%slayers.", prefixes[k]);
        for (size_t i = 0; i < exf_checkpoint_count(m->checkpoint); i++)
            if (exf_starts_with(exf_checkpoint_at(m->checkpoint, i)->tensor->view.name, layers)) return prefixes[k];
    }
    return prefixes[0] ? prefixes[0] : "model.";
}

exf_code exf_model_choose_layout(exf_model *m, exf_err *err)
{
    exf_code rc;
    m->arch.prefix = find_prefix(m);
    EXF_TRY(exf_mem_new(&m->spelling, m->family->n_rules, 1, "layout", err));
    for (size_t i = 0; i < m->family->n_rules; i++)
        if (is_first(m->family, i)) choose_among(m, i);
out:
    return rc;
}

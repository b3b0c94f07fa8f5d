/* model.c - see model.h. */
#include "model/model.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = 160 };

/* Replaces {L} and {E} in a rule's pattern. */
static void expand(char out[NAME_MAX_LEN], const char *pattern, int layer, int expert)
{
    size_t n = 0;
    for (const char *p = pattern; *p && n < NAME_MAX_LEN - 12;) {
        if (p[0] == '{' && p[2] == '}') {
            n += (size_t)snprintf(out + n, NAME_MAX_LEN - n, "%d", p[1] == 'L' ? layer : expert);
            p += 3;
        } else {
            out[n++] = *p++;
        }
    }
    out[n] = 0;
}

static const exf_tensor_rule *rule_of(const exf_model *m, exf_role role)
{
    for (size_t i = 0; i < m->family->n_rules; i++)
        if (m->family->rules[i].role == role) return &m->family->rules[i];
    return NULL;
}

static int occurs_in_layer(const exf_model *m, const exf_tensor_rule *r, int layer)
{
    switch (r->where) {
    case EXF_EACH_LAYER: return 1;
    case EXF_DENSE_LAYER: return !m->arch.is_moe[layer];
    case EXF_MOE_LAYER:
    case EXF_EACH_EXPERT: return m->arch.is_moe[layer];
    default: return 0;
    }
}

static exf_code wrong_shape(const exf_model *m, const exf_tensor *t, const exf_stored *s, const int64_t *want, int rank, exf_err *err)
{
    char have_text[64], want_text[64];
    return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is %s, %s says %s", exf_st_path(s->file), t->name,
                    exf_shape_text(have_text, sizeof have_text, t->shape, t->rank), m->config_path,
                    exf_shape_text(want_text, sizeof want_text, want, rank));
}

/* The tensor exists with the shape and one of the dtypes that the config expects. */
static exf_code check_tensor(const exf_model *m, const exf_tensor_rule *r, int layer, int expert, exf_err *err)
{
    char name[NAME_MAX_LEN];
    expand(name, r->name, layer, expert);
    const exf_stored *s = exf_checkpoint_find(m->checkpoint, name);
    int64_t want[2] = {exf_dim_length(&m->arch, r->dims[0]), exf_dim_length(&m->arch, r->dims[1])};
    int rank = r->dims[1] == EXF_DIM_NONE ? 1 : 2;
    if (!s) {
        char want_text[64];
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" %s is missing from the checkpoint", m->config_path, name,
                        exf_shape_text(want_text, sizeof want_text, want, rank));
    }
    const exf_tensor *t = &s->tensor->view;
    if (t->rank != rank || t->shape[0] != want[0] || (rank == 2 && t->shape[1] != want[1])) return wrong_shape(m, t, s, want, rank, err);
    if (t->dtype != EXF_DT_BF16 && t->dtype != EXF_DT_F16 && t->dtype != EXF_DT_F32)
        return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is %s, expected BF16, F16 or F32", exf_st_path(s->file), name,
                        exf_dtype_name(t->dtype));
    return EXF_OK;
}

static exf_code check_rule(const exf_model *m, const exf_tensor_rule *r, size_t *n_expected, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (r->where == EXF_ONCE || r->where == EXF_UNLESS_TIED) {
        int optional = r->where == EXF_UNLESS_TIED && m->arch.tied_embeddings;
        if (optional && !exf_checkpoint_find(m->checkpoint, r->name)) return EXF_OK;
        ++*n_expected;
        return check_tensor(m, r, 0, 0, err);
    }
    for (int l = 0; rc == EXF_OK && l < m->arch.n_layers; l++) {
        int n = !occurs_in_layer(m, r, l) ? 0 : r->where == EXF_EACH_EXPERT ? m->arch.n_experts : 1;
        for (int e = 0; rc == EXF_OK && e < n; e++) rc = check_tensor(m, r, l, e, err);
        *n_expected += (size_t)n;
    }
    return rc;
}

/* Matches a tensor's name against a rule's pattern: {L} in range, {E} in range. */
static int explains(const exf_model *m, const exf_tensor_rule *r, const char *name)
{
    const char *p = r->name;
    int layer = -1;
    while (*p) {
        if (p[0] == '{' && p[2] == '}') {
            char *end;
            long v = strtol(name, &end, 10);
            if (*name < '0' || *name > '9' || (*name == '0' && end - name > 1)) return 0;
            if (p[1] == 'L' ? v >= m->arch.n_layers : v >= m->arch.n_experts) return 0;
            if (p[1] == 'L') layer = (int)v;
            name = end;
            p += 3;
        } else if (*p++ != *name++) {
            return 0;
        }
    }
    return *name == 0 && (layer < 0 || occurs_in_layer(m, r, layer));
}

static exf_code name_the_surplus(const exf_model *m, exf_err *err)
{
    for (size_t i = 0; i < exf_checkpoint_count(m->checkpoint); i++) {
        const exf_stored *s = exf_checkpoint_at(m->checkpoint, i);
        int known = 0;
        for (size_t k = 0; k < m->family->n_rules && !known; k++) known = explains(m, &m->family->rules[k], s->tensor->view.name);
        if (!known)
            return exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" is not one that %s expects of a %s", exf_st_path(s->file),
                            s->tensor->view.name, m->config_path, m->family->name);
    }
    return exf_fail(err, EXF_INTERNAL, "%s: tensor counts disagree", m->dir);
}

static exf_code check_tensors(const exf_model *m, exf_err *err)
{
    size_t n_expected = 0;
    for (size_t i = 0; i < m->family->n_rules; i++) {
        exf_code rc = check_rule(m, &m->family->rules[i], &n_expected, err);
        if (rc != EXF_OK) return rc;
    }
    return n_expected == exf_checkpoint_count(m->checkpoint) ? EXF_OK : name_the_surplus(m, err);
}

static exf_code unsupported(const char *config_path, const char *model_type, exf_err *err)
{
    exf_text known = {0};
    exf_code rc = exf_family_list(&known, err);
    if (rc == EXF_OK)
        rc = exf_fail(err, EXF_MODEL, "%s: model_type \"%s\" is not supported (supported: %s)", config_path, model_type, known.s);
    exf_text_free(&known);
    return rc;
}

static exf_code load_config(exf_model *m, exf_err *err)
{
    enum { CONFIG_LIMIT = 16 << 20 };
    exf_code rc;
    const char *model_type;
    EXF_TRY(exf_path_join(&m->config_path, m->dir, "config.json", err));
    EXF_TRY(exf_json_load(&m->config, m->config_path, CONFIG_LIMIT, err));
    EXF_TRY(exf_hash_file(m->config_path, m->config_sha256, err));
    if (exf_json_type(m->config) != EXF_JSON_OBJECT) {
        rc = exf_fail(err, EXF_FORMAT, "%s: is %s, expected an object", m->config_path, exf_json_type_name(m->config));
        goto out;
    }
    exf_config c = {m->config, m->config_path};
    EXF_TRY(exf_config_text_or(&c, "model_type", NULL, &model_type, err));
    m->family = model_type ? exf_family_find(model_type) : NULL;
    if (!m->family) {
        rc = unsupported(m->config_path, model_type ? model_type : "", err);
        goto out;
    }
    EXF_TRY(exf_config_must_be(&c, "quantization_config.quant_method", "none", err));
    EXF_TRY(m->family->configure(&c, &m->arch, err));
out:
    return rc;
}

exf_code exf_model_open(exf_model **out, const char *dir, exf_err *err)
{
    exf_code rc;
    exf_model *m = NULL;
    *out = NULL;
    EXF_TRY(exf_mem_new(&m, 1, sizeof *m, "model", err));
    EXF_TRY(exf_mem_strdup(&m->dir, dir, "model path", err));
    EXF_TRY(load_config(m, err));
    EXF_TRY(exf_checkpoint_open(&m->checkpoint, dir, err));
    EXF_TRY(check_tensors(m, err));
    EXF_TRY(exf_checkpoint_sha256(m->checkpoint, m->weights_sha256, err));
out:
    if (rc != EXF_OK)
        exf_model_close(m);
    else
        *out = m;
    return rc;
}

void exf_model_close(exf_model *m)
{
    if (!m) return;
    exf_checkpoint_close(m->checkpoint);
    exf_json_free(m->config);
    exf_mem_free(m->config_path);
    exf_mem_free(m->dir);
    exf_mem_free(m);
}

int exf_model_copies(const exf_model *m, exf_role role, int layer)
{
    const exf_tensor_rule *r = rule_of(m, role);
    if (!r || !occurs_in_layer(m, r, layer)) return 0;
    return r->where == EXF_EACH_EXPERT ? m->arch.n_experts : 1;
}

size_t exf_model_count(const exf_model *m, exf_role role)
{
    const exf_tensor_rule *r = rule_of(m, role);
    if (!r) return 0;
    size_t n = (size_t)exf_dim_length(&m->arch, r->dims[0]);
    return r->dims[1] == EXF_DIM_NONE ? n : n * (size_t)exf_dim_length(&m->arch, r->dims[1]);
}

exf_code exf_model_read(const exf_model *m, exf_role role, int layer, int expert, float *dst, exf_err *err)
{
    char name[NAME_MAX_LEN];
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    const exf_tensor_rule *r = rule_of(m, role);
    if (!r) return exf_fail(err, EXF_INTERNAL, "family %s has no tensor of role %d", m->family->name, (int)role);
    expand(name, r->name, layer, expert);
    const exf_stored *s = exf_checkpoint_find(m->checkpoint, name);
    if (!s) return exf_fail(err, EXF_INTERNAL, "%s: tensor \"%s\" vanished", m->dir, name);
    return exf_stored_read_f32(s, dst, err);
}

uint64_t exf_model_layer_bytes(const exf_model *m, int layer)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->family->n_rules; i++) {
        const exf_tensor_rule *r = &m->family->rules[i];
        int once = r->where == EXF_ONCE || (r->where == EXF_UNLESS_TIED && !m->arch.tied_embeddings);
        int n = layer < 0 ? once : !occurs_in_layer(m, r, layer) ? 0 : r->where == EXF_EACH_EXPERT ? m->arch.n_experts : 1;
        for (int e = 0; e < n; e++) {
            char name[NAME_MAX_LEN];
            expand(name, r->name, layer, e);
            const exf_stored *s = exf_checkpoint_find(m->checkpoint, name);
            bytes += s ? s->tensor->nbytes : 0;
        }
    }
    return bytes;
}

uint64_t exf_model_bytes(const exf_model *m)
{
    uint64_t bytes = 0;
    for (int l = -1; l < m->arch.n_layers; l++) bytes += exf_model_layer_bytes(m, l);
    return bytes;
}

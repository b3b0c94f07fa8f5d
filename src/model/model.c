/* model.c - finds and reads tensors by role, counts bytes; see model.h. */
#include "model/model.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

/* ---- rows of several roles in one tensor, group by group ---------------------------------------------
 *
 * Such a tensor is read in runs, as the matrices of experts are: as many rows as divide each of its parts, so that no run crosses
 * the end of a part.  The rows of the delta rule's q, k and v of 16 heads are 64 runs of 128 in Qwen3-Next. */

enum { PARTS = 4 };

typedef struct {
    exf_dim groups, part[PARTS]; /* groups; rows of each part in one group */
} row_groups;

static const row_groups layouts[EXF_ROWS_LAYOUTS] = {
    [EXF_ROWS_QKVZ] = {EXF_DIM_DELTA_GROUPS,
                       {EXF_DIM_DELTA_KEY, EXF_DIM_DELTA_KEY, EXF_DIM_DELTA_GROUP_VALUES, EXF_DIM_DELTA_GROUP_VALUES}},
    [EXF_ROWS_BA] = {EXF_DIM_DELTA_GROUPS, {EXF_DIM_DELTA_GROUP_HEADS, EXF_DIM_DELTA_GROUP_HEADS}},
};

static int is_own(const exf_tensor_rule *r, int part)
{
    return r->how >> 12 >> part & 1;
}

/* Rows of one group in all parts before `end`. */
static int64_t rows_before(const exf_architecture *a, const row_groups *g, int end)
{
    int64_t rows = 0;
    for (int i = 0; i < end && g->part[i] != EXF_DIM_NONE; i++) rows += a->dim[g->part[i]];
    return rows;
}

/* Returns the rows of one run. */
static int run_rows(const exf_architecture *a, const exf_tensor_rule *r)
{
    const row_groups *g = &layouts[EXF_ROW_LAYOUT(r->how)];
    int run = 0;
    for (int i = 0; i < PARTS; i++)
        for (int b = is_own(r, i) ? a->dim[g->part[i]] : 0; b;) { /* Euclid's greatest common divisor */
            int rest = run % b;
            run = b;
            b = rest;
        }
    return run;
}

/* Returns the first row of a run in the tensor. */
static int64_t run_row(const exf_architecture *a, const exf_tensor_rule *r, int run)
{
    const row_groups *g = &layouts[EXF_ROW_LAYOUT(r->how)];
    int64_t row = (int64_t)run * run_rows(a, r), groups = a->dim[g->groups];
    int i = 0;
    for (; !is_own(r, i) || row >= groups * a->dim[g->part[i]]; i++)
        if (is_own(r, i)) row -= groups * a->dim[g->part[i]];
    int64_t each = a->dim[g->part[i]];
    return row / each * rows_before(a, g, PARTS) + rows_before(a, g, i) + row % each;
}

int exf_rule_begins_tensor(const exf_tensor_rule *r)
{
    return !(r->how & (EXF_SECOND_HALF | EXF_ODD_ROWS)) && (!EXF_ROW_LAYOUT(r->how) || is_own(r, 0));
}

/* ---- rules ------------------------------------------------------------------------------------------ */

int exf_rule_shape(const exf_architecture *a, const exf_tensor_rule *r, int64_t shape[4])
{
    int rank = 0;
    if (r->where == EXF_IN_STACK) shape[rank++] = a->n_experts;
    for (int i = 0; i < 3 && r->dims[i] != EXF_DIM_NONE; i++) shape[rank++] = a->dim[r->dims[i]];
    if (r->how & (EXF_HALVES | EXF_INTERLEAVED)) shape[1] *= 2;
    if (r->how & EXF_MXFP4) {
        shape[rank - 1] /= EXF_FP4_BLOCK;
        shape[rank++] = EXF_FP4_BLOCK / 2;
    }
    if (r->how & EXF_TRANSPOSED) {
        int64_t rows = shape[1];
        shape[1] = shape[2];
        shape[2] = rows;
    }
    const row_groups *g = &layouts[EXF_ROW_LAYOUT(r->how)];
    if (EXF_ROW_LAYOUT(r->how)) shape[0] = a->dim[g->groups] * rows_before(a, g, PARTS);
    return rank;
}

const exf_tensor_rule *exf_model_rule(const exf_model *m, exf_role role, int layer)
{
    if ((int)role < EXF_W_FIRST_IN_LAYER) layer = -1;
    for (size_t i = 0; i < m->family->n_rules; i++)
        if (m->family->rules[i].role == role && exf_rule_applies(m, &m->family->rules[i], layer))
            return &m->family->rules[i];
    return NULL;
}

int exf_model_copies(const exf_model *m, exf_role role, int layer)
{
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    const exf_tensor_rule *r = exf_model_rule(m, role, layer);
    if (!r) return 0;
    if (EXF_ROW_LAYOUT(r->how)) return m->arch.dim[r->dims[0]] / run_rows(&m->arch, r);
    return r->where == EXF_IN_EXPERT || r->where == EXF_IN_STACK ? m->arch.n_experts : 1;
}

/* Rows and columns of one tensor or run of the role, a vector being one row per element. */
static void matrix_of(const exf_model *m, const exf_tensor_rule *r, size_t *rows, size_t *cols)
{
    *rows = (size_t)(EXF_ROW_LAYOUT(r->how) ? run_rows(&m->arch, r) : m->arch.dim[r->dims[0]]);
    *cols = 1;
    for (int i = 1; i < 3 && r->dims[i] != EXF_DIM_NONE; i++) *cols *= (size_t)m->arch.dim[r->dims[i]];
}

size_t exf_model_count(const exf_model *m, exf_role role, int layer)
{
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    const exf_tensor_rule *r = exf_model_rule(m, role, layer);
    size_t rows, cols;
    if (!r) return 0;
    matrix_of(m, r, &rows, &cols);
    return rows * cols;
}

exf_code exf_model_locate(const exf_model *m, exf_role role, int layer, int expert, exf_model_rows *out, exf_err *err)
{
    char name[EXF_TENSOR_NAME_LEN];
    int64_t shape[4];
    if (role == EXF_W_HEAD && m->arch.tied_embeddings) role = EXF_W_EMBED;
    const exf_tensor_rule *r = exf_model_rule(m, role, layer);
    if (!r) return exf_fail(err, EXF_INTERNAL, "family %s: layer %d has no tensor of role %d", m->family->name, layer, (int)role);
    exf_rule_name(name, m, r, layer, expert);
    int rank = exf_rule_shape(&m->arch, r, shape);
    matrix_of(m, r, &out->rows, &out->cols);
    /* The first row of an expert's part in a stack, or of a run. */
    int halves = r->how & EXF_HALVES && !(r->how & EXF_TRANSPOSED) ? 2 : 1;
    out->row = r->where != EXF_IN_STACK ? 0 : out->rows * (size_t)(halves * expert + (halves == 2 && r->how & EXF_SECOND_HALF));
    if (EXF_ROW_LAYOUT(r->how)) out->row = (size_t)run_row(&m->arch, r, expert);
    exf_code rc =
        exf_weight_source_find(&out->w, m->checkpoint, &m->quantization, m->config_path, name, shape, rank, r->how, err);
    out->w.identity = m->identity;
    int is_of_experts = r->role >= EXF_W_ROUTER && r->role <= EXF_W_SHARED_SWITCH;
    int part = r->role == EXF_W_EMBED ? EXF_PART_EMBEDDING
               : (int)r->role < EXF_W_FIRST_IN_LAYER ? EXF_PART_HEAD : EXF_PART_LAYERS + 2 * layer + !is_of_experts;
    out->w.place = (exf_weight_place){.part = part, .matrix = r->name, .copy = expert};
    if (exf_roles_read_together(r->how) == 1) {
        /* It is named as by the first of the rule's alternatives, so that another layout of the same bytes has the same place.
         * Where two roles' bytes are read together, both have the place of the tensor itself. */
        const exf_tensor_rule *first = m->family->rules;
        while (first->role != r->role || first->when != r->when) first++;
        out->w.place.matrix = first->name;
        out->w.place.half = !exf_rule_begins_tensor(first);
    }
    out->w.first_row = out->row;
    if (rc == EXF_OK && EXF_ROW_LAYOUT(r->how) && out->w.coding != EXF_CODED_PLAIN &&
        (out->rows % (size_t)out->w.block_rows || out->row % (size_t)out->w.block_rows))
        rc = exf_fail(err, EXF_MODEL, "%s: tensor \"%s\" has scales of %d rows, but groups of rows end every %zu", m->dir, name,
                      out->w.block_rows, out->rows);
    return rc;
}

exf_code exf_model_read(const exf_model *m, exf_role role, int layer, int expert, float *dst, exf_err *err)
{
    exf_model_rows at;
    exf_code rc = exf_model_locate(m, role, layer, expert, &at, err);
    return rc == EXF_OK ? exf_weight_source_read(&at.w, at.row, at.rows, at.cols, dst, err) : rc;
}

exf_code exf_model_layer_done(const exf_model *m, int layer, exf_err *err)
{
    int first = layer < 0 ? EXF_PART_EMBEDDING : EXF_PART_LAYERS + 2 * layer;
    exf_code rc = EXF_OK;
    if (!m->identity) return EXF_OK;
    for (int k = 0; k < 2; k++) EXF_TRY(exf_weight_identity_settle(m->identity, first + k, err));
    rc = exf_checkpoint_unchanged(m->checkpoint, err);
out:
    return rc;
}

/* ---- identity ------------------------------------------------------------------------- */

/* Hashes one tensor, or an expert's part of a stack, in pieces. */
static exf_code identify_rows(const exf_model_rows *at, exf_err *err)
{
    size_t piece = exf_weight_piece_rows(&at->w, at->cols);
    char *buffer = NULL;
    exf_raw_rows raw;
    exf_code rc;
    if (piece > at->rows) piece = at->rows;
    EXF_TRY(exf_mem_raw(&buffer, exf_weight_source_room(&at->w, at->row, piece, at->cols), 1, "weights", err));
    for (size_t row = 0; row < at->rows; row += piece) {
        size_t n = at->rows - row < piece ? at->rows - row : piece;
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_weight_source_raw(&at->w, at->row + row, n, at->cols, buffer, &raw, err));
    }
out:
    exf_mem_free(buffer);
    return rc;
}

exf_code exf_model_identify(const exf_model *m, exf_err *err)
{
    exf_model_rows at;
    exf_code rc = EXF_OK;
    for (int l = -1; l < m->arch.n_layers; l++) {
        int first = l < 0 ? 0 : EXF_W_FIRST_IN_LAYER, end = l < 0 ? EXF_W_FIRST_IN_LAYER : EXF_W_COUNT;
        for (int role = first; role < end; role++) {
            if (role == EXF_W_HEAD && m->arch.tied_embeddings) continue; /* it is the embedding, which was read */
            for (int e = 0; e < exf_model_copies(m, (exf_role)role, l); e++) {
                EXF_TRY(exf_model_locate(m, (exf_role)role, l, e, &at, err));
                EXF_TRY(identify_rows(&at, err));
            }
        }
        EXF_TRY(exf_model_layer_done(m, l, err));
    }
out:
    return rc;
}

/* ---- layouts -----------------------------------------------------------------------------------------
 *
 * A release, other releases of the family and what transformers' save_pretrained writes hold the same tensors under different
 * names, or an expert's matrices alone and those of all experts in one tensor.  Rules of a role that require the same traits are
 * alternatives, and so are the names of one rule, parted by '|'.  The first one of which the checkpoint has a tensor in any layer
 * counts in all of them: a checkpoint that mixes two is refused later, for the tensors that are missing or left over.  Of a role
 * that is nowhere the first alternative counts that the config's quantizer writes: messages name what it has. */

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

/* Returns the number of a rule's first name of which the checkpoint has a tensor where the rule requires one, or allows one; or
 * EXF_RULE_UNUSED.  *fits: 0 for a stack of another shape. */
static unsigned char find_spelling(const exf_model *m, const exf_tensor_rule *r, int *fits)
{
    char pattern[EXF_TENSOR_NAME_LEN], name[EXF_TENSOR_NAME_LEN];
    int64_t shape[4];
    *fits = 1;
    for (int which = 0; copy_pattern(pattern, r, which); which++)
        for (int l = -1; l < m->arch.n_layers; l++) {
            if (!has_traits(&m->arch, r, l) && !(l < 0 && r->how & EXF_MAY_BE_TIED)) continue;
            exf_tensor_name(name, &m->arch, pattern, l, 0);
            if (!exf_weight_source_present(m->checkpoint, name)) continue;
            const exf_stored_tensor *s = r->where == EXF_IN_STACK ? exf_checkpoint_find(m->checkpoint, name) : NULL;
            int rank = exf_rule_shape(&m->arch, r, shape);
            if (s) *fits = s->tensor->view.rank == rank && memcmp(s->tensor->view.shape, shape, (size_t)rank * sizeof *shape) == 0;
            return (unsigned char)which;
        }
    return EXF_RULE_UNUSED;
}

static int are_alternatives(const exf_tensor_rule *a, const exf_tensor_rule *b)
{
    return a->role == b->role && a->when == b->when;
}

/* Sets the spelling of all alternatives of which `first` is the first.  One that is stored in another shape counts if no other is
 * stored: its tensor is then refused. */
static void choose_among(exf_model *m, size_t first)
{
    const exf_tensor_rule *rules = m->family->rules;
    size_t chosen = m->family->n_rules;
    int fits = 0, found_fits = 0;
    for (size_t i = first; i < m->family->n_rules; i++) {
        if (!are_alternatives(&rules[i], &rules[first])) continue;
        unsigned char spelling = found_fits ? EXF_RULE_UNUSED : find_spelling(m, &rules[i], &fits);
        m->spelling[i] = EXF_RULE_UNUSED;
        if (spelling == EXF_RULE_UNUSED || (chosen < m->family->n_rules && !fits)) continue;
        if (chosen < m->family->n_rules) m->spelling[chosen] = EXF_RULE_UNUSED;
        m->spelling[i] = spelling;
        chosen = i;
        found_fits = fits;
    }
    /* Of what is nowhere: no packed tensor of which the config says nothing, and, if there is another, no stack of experts that the
     * config's quantizer codes one by one. */
    exf_quantizer quantizer = m->quantization.quantizer;
    int codes_matrices = quantizer != EXF_QUANTIZER_NONE && quantizer != EXF_QUANTIZER_MXFP4;
    for (int any = 0; any < 2; any++)
        for (size_t i = first; chosen == m->family->n_rules && i < m->family->n_rules; i++) {
            int known = !(rules[i].how & EXF_MXFP4) || quantizer == EXF_QUANTIZER_MXFP4;
            if (!are_alternatives(&rules[i], &rules[first]) || !known) continue;
            if (!any && codes_matrices && rules[i].where == EXF_IN_STACK) continue;
            m->spelling[i] = 0;
            chosen = i;
        }
}

/* What {P} may stand for in families that do not say: text models' own prefix, and that of the text model in a composite one. */
static const char *const usual_prefixes[EXF_PREFIXES] = {"model.", "model.language_model."};

/* Sets the first of the family's prefixes under which the checkpoint has layers; one without layers is refused later, one that has
 * them under no prefix that the family knows here. */
static exf_code choose_prefix(exf_model *m, exf_err *err)
{
    const char *const *prefixes = m->family->prefixes[0] ? m->family->prefixes : usual_prefixes;
    m->arch.prefix = prefixes[0];
    for (size_t k = 0; k < EXF_PREFIXES && prefixes[k]; k++) {
        char layers[64];
        snprintf(layers, sizeof layers, "%slayers.", prefixes[k]);
        for (size_t i = 0; i < m->checkpoint->n_stored; i++)
            if (exf_starts_with(m->checkpoint->stored[i].tensor->view.name, layers)) {
                m->arch.prefix = prefixes[k];
                return EXF_OK;
            }
    }
    for (size_t i = 0; i < m->checkpoint->n_stored; i++) {
        const exf_stored_tensor *s = &m->checkpoint->stored[i];
        const char *name = s->tensor->view.name, *at = exf_starts_with(name, "layers.") ? name : strstr(name, ".layers.");
        if (!at) continue;
        at += *at == '.';
        if (at[7] < '0' || at[7] > '9') continue;
        return exf_fail(err, EXF_MODEL,
                        "%s: tensor \"%s\" has the prefix \"%.*s\"; those of a %s have \"%s\"%s%s%s: rename the tensors, or save "
                        "the text model alone with transformers' save_pretrained()", exf_st_path(s->file), name, (int)(at - name),
                        name, m->family->name, prefixes[0], prefixes[1] ? " or \"" : "", prefixes[1] ? prefixes[1] : "",
                        prefixes[1] ? "\"" : "");
    }
    return EXF_OK;
}

exf_code exf_model_choose_layout(exf_model *m, exf_err *err)
{
    const exf_tensor_rule *rules = m->family->rules;
    exf_code rc;
    EXF_TRY(choose_prefix(m, err));
    EXF_TRY(exf_mem_new(&m->spelling, m->family->n_rules, 1, "layout", err));
    for (size_t i = 0; i < m->family->n_rules; i++) {
        size_t first = 0;
        while (!are_alternatives(&rules[first], &rules[i])) first++;
        if (first == i) choose_among(m, i);
    }
out:
    return rc;
}

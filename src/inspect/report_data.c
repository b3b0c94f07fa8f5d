/* report_data.c - what the report's script reads: one JSON object about all, and one
 * base64 text per layer and matrix, which is decoded when it is looked at. */
#include "inspect/report_internal.h"

#include "base/mem.h"
#include "format/json.h"
#include "inspect/figure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A matrix as the page's script reads it. */
typedef struct {
    const char *id, *name, *type;
    const float *value; /* [L, E, E]; NULL: tokens */
    exf_colour_map map;
    double low, high;
    int hide_self;
    double from, to; /* u8: what 0 and 254 stand for; 255 is NaN */
} matrix;

enum { MATRICES_MAX = 8, PAGE_MAX = 29000000 /* bytes of base64 */ };

/* ---- numbers as bytes ------------------------------------------------------------------------ */

/* Returns the nearest half-precision number, ties to even; NaN for NaN and what is too large. */
static uint16_t round_to_half(float value)
{
    uint32_t bits, sign, rest;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits >= 0x477ff000) return 0x7e00;
    if (bits < 0x38800000) { /* a subnormal half: units of 2^-24 */
        float size;
        memcpy(&size, &bits, sizeof size);
        return (uint16_t)(sign | (uint32_t)rintf(size * 0x1p24f));
    }
    rest = bits & 0x1fff;
    bits = (bits >> 13) - (112u << 10);
    if (rest > 0x1000 || (rest == 0x1000 && bits & 1)) bits++;
    return (uint16_t)(sign | bits);
}

static int is_type(const matrix *m, const char *type)
{
    return strcmp(m->type, type) == 0;
}

static size_t width_of(const matrix *m)
{
    if (is_type(m, "u8")) return 1;
    return is_type(m, "f32") || is_type(m, "u32") ? 4 : 2;
}

/* Writes the number at `at`, as its type says. */
static void pack_number(const exf_inspection *s, const matrix *m, size_t at, void *to)
{
    uint8_t tiny = 0;
    uint16_t small = 0;
    uint32_t wide = 0;
    if (!m->value) {
        small = (uint16_t)s->count[at];
        wide = s->count[at] > UINT32_MAX ? UINT32_MAX : (uint32_t)s->count[at];
    } else {
        size_t e = (size_t)s->shape.n_experts;
        int known = (exf_inspection_observed(s, at) || at / e % e == at % e) && m->value[at] < EXF_ERROR_UNKNOWN;
        float v = known ? m->value[at] : NAN;
        double t = m->to > m->from ? ((double)v - m->from) / (m->to - m->from) : 0; /* the nearest of 255 steps; 255 for NaN */
        tiny = isnan(v) ? 255 : (uint8_t)(t <= 0 ? 0 : t >= 1 ? 254 : (int)(254 * t + 0.5));
        small = round_to_half(v);
        memcpy(&wide, &v, sizeof wide);
    }
    memcpy(to, width_of(m) == 4 ? (void *)&wide : width_of(m) == 2 ? (void *)&small : (void *)&tiny, width_of(m));
}

/* ---- which matrices ---------------------------------------------------------------------------- */

static exf_code list_matrices(const exf_inspection *s, matrix *m, size_t *n, exf_err *err)
{
    static const char *const order[] = {"scalar", "loss", "similarity", "aligned"};
    size_t cells = (size_t)s->n_layers * (size_t)s->shape.n_experts * (size_t)s->shape.n_experts;
    exf_code rc = EXF_OK;
    double *scratch = NULL;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        const exf_figure *f = exf_figure_find(order[i]);
        if (!exf_figure_values(f, s)) continue;
        matrix *x = &m[(*n)++];
        *x = (matrix){.id = f->name,
                      .name = f->bar_label,
                      .type = i < 2 ? "f32" : "f16",
                      .value = exf_figure_values(f, s),
                      .map = f->map,
                      .hide_self = f->hide_self};
        EXF_TRY(exf_figure_range(f, s, 0, &x->low, &x->high, err));
    }
    if (s->std_error) { /* colours end at the 99th percentile of those that are known; 1 if none is */
        size_t known = 0;
        EXF_TRY(exf_mem_new(&scratch, cells, sizeof *scratch, "percentile", err));
        for (size_t i = 0; i < cells; i++)
            if (exf_inspection_observed(s, i) && s->std_error[i] < EXF_ERROR_UNKNOWN) scratch[known++] = (double)s->std_error[i];
        exf_sort(scratch, known);
        double high = exf_quantile(scratch, known, 0.99);
        m[(*n)++] = (matrix){.id = "error",
                             .name = "standard error of S",
                             .type = "f16",
                             .value = s->std_error,
                             .map = EXF_MAP_SEQUENTIAL,
                             .high = high > 0 ? high : 1,
                             .hide_self = 1};
    }
    uint64_t most = 0;
    for (size_t i = 0; i < cells; i++)
        if (s->count[i] > most) most = s->count[i];
    m[(*n)++] = (matrix){.id = "tokens",
                         .name = "tokens behind the pair",
                         .type = most > UINT16_MAX ? "u32" : "u16",
                         .map = EXF_MAP_SEQUENTIAL,
                         .high = (double)most,
                         .hide_self = 1};
out:
    exf_mem_free(scratch);
    return rc;
}

/* Finds the span of the values that are known, an expert with itself included. */
static void find_span(const exf_inspection *s, matrix *m)
{
    size_t e = (size_t)s->shape.n_experts;
    m->from = m->low;
    m->to = m->high;
    for (size_t i = 0; i < (size_t)s->n_layers * e * e; i++) {
        double v = (double)m->value[i];
        if (!exf_inspection_observed(s, i) || isnan(v) || v >= (double)EXF_ERROR_UNKNOWN) continue;
        if (v < m->from) m->from = v;
        if (v > m->to) m->to = v;
    }
}

/* ---- the object about all ------------------------------------------------------------------------ */

static void add_map(exf_jw *w, const char *key, exf_colour_map map)
{
    char hex[256 * 6 + 1];
    for (int i = 0; i < 256; i++) {
        uint8_t c[3];
        exf_colour_at(map, i, 256, c);
        snprintf(hex + 6 * i, 7, "%02x%02x%02x", c[0], c[1], c[2]);
    }
    exf_jw_text(w, key, hex);
}

static void add_matrix(exf_jw *w, const matrix *m)
{
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "id", m->id);
    exf_jw_text(w, "name", m->name);
    exf_jw_text(w, "type", m->type);
    exf_jw_text(w, "map", m->map == EXF_MAP_DIVERGING ? "diverging" : "sequential");
    exf_jw_real(w, "low", m->low);
    exf_jw_real(w, "high", m->high);
    if (is_type(m, "u8")) {
        exf_jw_real(w, "from", m->from);
        exf_jw_real(w, "to", m->to);
    }
    exf_jw_bool(w, "hideSelf", m->hide_self);
    exf_jw_bool(w, "log", !m->value);
    exf_jw_close(w);
}

static exf_code add_about(exf_report *r, const matrix *m, size_t n, exf_err *err)
{
    exf_jw w = {0};
    exf_text text = {0};
    exf_jw_open(&w, NULL, '{');
    exf_jw_int(&w, "experts", r->s->shape.n_experts);
    exf_jw_open(&w, "layers", '[');
    for (int l = 0; l < r->s->n_layers; l++) exf_jw_int(&w, NULL, r->s->layer_number[l]);
    exf_jw_close(&w);
    exf_jw_open(&w, "matrices", '[');
    for (size_t i = 0; i < n; i++) add_matrix(&w, &m[i]);
    exf_jw_close(&w);
    exf_pools_json(&w, r->s);
    exf_budgets_json(&w, r->s);
    add_map(&w, "sequential", EXF_MAP_SEQUENTIAL);
    add_map(&w, "diverging", EXF_MAP_DIVERGING);
    exf_jw_close(&w);
    exf_code rc = exf_jw_end(&w, &text, err);
    if (rc == EXF_OK) exf_report_addf(r, "<script type=\"application/json\" id=\"about\">%s</script>\n", text.s);
    exf_text_free(&text);
    return rc;
}

/* ---- base64 -------------------------------------------------------------------------------------- */

static exf_code add_blob(exf_report *r, const char *id, int layer, const void *bytes, size_t n, exf_err *err)
{
    exf_report_addf(r, "<script type=\"text/plain\" id=\"%s-%d\">", id, layer);
    exf_code rc = exf_base64_add(&r->text, bytes, n, err);
    exf_report_addf(r, "</script>\n");
    return rc == EXF_OK ? r->rc : rc;
}

static exf_code add_layer(exf_report *r, const matrix *m, size_t n, size_t l, char *packed, exf_err *err)
{
    const exf_inspection *s = r->s;
    size_t e = (size_t)s->shape.n_experts, cells = e * e;
    int number = s->layer_number[l];
    exf_code rc;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < cells; k++) pack_number(s, &m[i], l * cells + k, packed + k * width_of(&m[i]));
        EXF_TRY(add_blob(r, m[i].id, number, packed, cells * width_of(&m[i]), err));
    }
    EXF_TRY(add_blob(r, "norms", number, s->norms + l * e, e * sizeof *s->norms, err));
    for (size_t k = 0; k < e; k++) {
        uint32_t count = s->expert_count[l * e + k] > UINT32_MAX ? UINT32_MAX : (uint32_t)s->expert_count[l * e + k];
        memcpy(packed + k * sizeof count, &count, sizeof count);
    }
    rc = add_blob(r, "routed", number, packed, e * sizeof(uint32_t), err);
out:
    return rc;
}

exf_code exf_report_data(exf_report *r, exf_err *err)
{
    static const char *const coarser[] = {"f16", "u8"};
    matrix m[MATRICES_MAX];
    size_t n = 0, e = (size_t)r->s->shape.n_experts;
    char *packed = NULL;
    exf_code rc;
    EXF_TRY(list_matrices(r->s, m, &n, err));
    /* Models of very many experts have coarser matrices, so that the page stays one that a browser opens at once: half precision
     * for all, and if that is still too much, 255 steps. */
    for (size_t k = 0; k < 2; k++) {
        size_t width = 0;
        for (size_t i = 0; i < n; i++) width += width_of(&m[i]);
        if ((size_t)r->s->n_layers * e * e * width / 3 * 4 <= PAGE_MAX) break;
        for (size_t i = 0; i < n; i++) {
            if (!m[i].value) continue;
            m[i].type = coarser[k];
            find_span(r->s, &m[i]);
        }
    }
    EXF_TRY(exf_mem_new(&packed, e * e, sizeof(uint32_t), "numbers of the report", err));
    EXF_TRY(add_about(r, m, n, err));
    for (size_t l = 0; l < (size_t)r->s->n_layers; l++) EXF_TRY(add_layer(r, m, n, l, packed, err));
out:
    exf_mem_free(packed);
    return rc;
}

/* figure.c - see figure.h. */
#include "inspect/figure.h"

#include "base/mem.h"
#include "base/text.h"
#include "inspect/quantile.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(exf_inspection, field)

static const exf_figure figures[] = {
    {"norms", "tables, statistics or a capture", "Mean output norm ||E(x)|| of every expert", "", EXF_MAP_SEQUENTIAL, 0, AT(norms),
     1},
    {"similarity", "statistics, alone or beside the tables", "Raw similarity of experts' outputs, 1 - d/dmax", "raw similarity",
     EXF_MAP_SEQUENTIAL, 0, AT(similarity), 0},
    {"aligned", "statistics, alone or beside the tables", "Similarity after each pair's own scalar", "aligned similarity",
     EXF_MAP_SEQUENTIAL, 0, AT(aligned), 0},
    {"scalar", "tables", "Scalar S of every pair, E_source(x) ~ S E_target(x)", "scalar S", EXF_MAP_DIVERGING, 1, AT(coeff), 0},
    {"loss", "tables", "Loss of every pair, what S E_target(x) misses of E_source(x)", "relative loss", EXF_MAP_SEQUENTIAL, 1,
     AT(loss), 0},
};

const exf_figure *exf_figure_at(size_t i)
{
    return i < sizeof figures / sizeof *figures ? &figures[i] : NULL;
}

const exf_figure *exf_figure_find(const char *name)
{
    for (size_t i = 0; exf_figure_at(i); i++)
        if (strcmp(figures[i].name, name) == 0) return &figures[i];
    return NULL;
}

const float *exf_figure_values(const exf_figure *f, const exf_inspection *s)
{
    float *values;
    memcpy(&values, (const char *)s + f->field, sizeof values);
    return values;
}

int exf_figure_available(const exf_figure *f, const exf_inspection *s)
{
    return exf_figure_values(f, s) != NULL;
}

/* ---- colours ------------------------------------------------------------------------- */

/* The 99th percentile of |value| over observed pairs; 1 where there are none or all are 0. */
static exf_code largest_usual(const exf_inspection *s, const float *value, double *out, exf_err *err)
{
    size_t cells = (size_t)s->n_layers * (size_t)s->shape.n_experts * (size_t)s->shape.n_experts, n = 0;
    double *size = NULL;
    exf_code rc = exf_mem_new(&size, cells, sizeof *size, "percentile", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < cells; i++)
        if (exf_inspection_observed(s, i)) size[n++] = fabs((double)value[i]);
    exf_sort(size, n);
    *out = n ? exf_quantile(size, n, 0.99) : 1;
    if (!(*out > 0)) *out = 1;
    exf_mem_free(size);
    return EXF_OK;
}

exf_code exf_figure_range(const exf_figure *f, const exf_inspection *s, double *low, double *high, exf_err *err)
{
    *low = 0;
    *high = 1;
    if (f->map != EXF_MAP_DIVERGING) return EXF_OK;
    exf_code rc = largest_usual(s, exf_figure_values(f, s), high, err);
    *low = -*high;
    return rc;
}

/* ---- pictures -------------------------------------------------------------------------- */

static exf_code draw_bars(const exf_inspection *s, exf_sheet sheet, const float *value, exf_canvas *out, exf_err *err)
{
    size_t n = (size_t)s->n_layers * (size_t)s->shape.n_experts;
    float *known = NULL;
    exf_code rc = exf_mem_new(&known, n, sizeof *known, "norms", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) known[i] = isnan(value[i]) ? 0 : value[i];
    exf_bar_sheet bars = {.sheet = sheet, .value = known, .tokens = s->expert_count};
    bars.sheet.note = "orange: largest; blue: least; grey: never routed to; hatched: over three times all others; one axis a layer";
    rc = exf_draw_bars(&bars, out, err);
    exf_mem_free(known);
    return rc;
}

static exf_code draw_matrices(const exf_figure *f, const exf_inspection *s, exf_sheet sheet, const float *value, exf_canvas *out,
                              exf_err *err)
{
    size_t n = (size_t)s->n_layers * (size_t)s->shape.n_experts * (size_t)s->shape.n_experts, e = (size_t)s->shape.n_experts;
    exf_matrix_sheet m = {.sheet = sheet, .map = f->map, .hide_self = f->hide_self, .bar_label = f->bar_label};
    exf_text note = {0};
    float *seen = NULL;
    exf_code rc;
    EXF_TRY(exf_figure_range(f, s, &m.low, &m.high, err));
    EXF_TRY(exf_mem_new(&seen, n, sizeof *seen, "matrices", err));
    for (size_t i = 0; i < n; i++) seen[i] = exf_inspection_observed(s, i) || i / e % e == i % e ? value[i] : NAN;
    if (f->map == EXF_MAP_DIVERGING)
        EXF_TRY(exf_text_addf(&note, err, "colours end at +-%.3g, the 99th percentile of |S|; an expert with itself is left blank",
                              m.high));
    else
        EXF_TRY(exf_text_addf(
            &note, err, f->hide_self ? "colours end at 0 and 1; an expert with itself is left blank" : "colours end at 0 and 1"));
    m.sheet.note = note.s;
    m.value = seen;
    rc = exf_draw_matrices(&m, out, err);
out:
    exf_mem_free(seen);
    exf_text_free(&note);
    return rc;
}

exf_code exf_figure_draw(const exf_figure *f, const exf_inspection *s, exf_canvas *out, exf_err *err)
{
    const char *family = exf_provenance_get(&s->provenance, "model.family");
    exf_text title = {0};
    exf_code rc;
    memset(out, 0, sizeof *out);
    EXF_TRY(exf_text_addf(&title, err, "%s (%s, %d layer%s, %d experts)", f->title, family ? family : "model unknown", s->n_layers,
                          s->n_layers == 1 ? "" : "s", (int)s->shape.n_experts));
    exf_sheet sheet = {
        .title = title.s, .n_layers = s->n_layers, .n_experts = (int)s->shape.n_experts, .layer_number = s->layer_number};
    const float *value = exf_figure_values(f, s);
    rc = f->is_bars ? draw_bars(s, sheet, value, out, err) : draw_matrices(f, s, sheet, value, out, err);
out:
    exf_text_free(&title);
    return rc;
}

/* figure.c - the figures of an inspection: the ends of their colours, drawing them, and their numbers as files; see figure.h. */
#include "inspect/figure.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/npy.h"
#include "inspect/drawing.h"
#include "inspect/inspection.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(exf_inspection, field)

static const exf_figure figures[] = {
    {"norms", "tables, statistics or a capture", "Mean output norm ||E(x)|| of every expert", "mean output norm",
     EXF_MAP_SEQUENTIAL, 0, AT(norms), 1},
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

/* ---- colours ------------------------------------------------------------------------- */

/* Values lie together if all but a hundredth at each end are within less than this. */
static const double together = 0.4;

/* Makes the values that the figure shows of observed pairs, rising; for the diverging map, their sizes.  Caller frees. */
static exf_code sort_values(const exf_figure *f, const exf_inspection *s, double **out, size_t *n, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, cells = (size_t)s->n_layers * e * e;
    const float *value = exf_figure_values(f, s);
    exf_code rc = exf_mem_new(out, cells, sizeof **out, "percentile", err);
    if (rc != EXF_OK) return rc;
    *n = 0;
    for (size_t i = 0; i < cells; i++)
        if (exf_inspection_observed(s, i) && i / e % e != i % e)
            (*out)[(*n)++] = f->map == EXF_MAP_DIVERGING ? fabs((double)value[i]) : (double)value[i];
    exf_sort(*out, *n);
    return EXF_OK;
}

exf_code exf_figure_range(const exf_figure *f, const exf_inspection *s, int of_data, double *low, double *high, exf_err *err)
{
    double *sorted = NULL;
    size_t n;
    exf_code rc;
    EXF_TRY(sort_values(f, s, &sorted, &n, err));
    *low = n ? exf_quantile(sorted, n, 0.01) : 0;
    *high = n ? exf_quantile(sorted, n, 0.99) : 1;
    if (f->map == EXF_MAP_DIVERGING) { /* the 99th percentile of sizes, both ways, or 1 where there are none or all are 0 */
        if (!(*high > 0)) *high = 1;
        *low = -*high;
    } else if (*low < *high) { /* all but a hundredth of the values at each end */
        exf_axis_round_out(low, high);
    } else {
        *low -= 0.5;
        *high += 0.5;
    }
    if (!of_data && f->map != EXF_MAP_DIVERGING && (n == 0 || *high - *low >= together || sorted[0] == sorted[n - 1])) {
        *low = 0;
        *high = 1;
    }
out:
    exf_mem_free(sorted);
    return rc;
}

/* ---- pictures -------------------------------------------------------------------------- */

static exf_code draw_bars(const exf_figure *f, const exf_inspection *s, exf_sheet sheet, exf_drawing *d, exf_err *err)
{
    size_t n = (size_t)s->n_layers * (size_t)s->shape.n_experts;
    const float *value = exf_figure_values(f, s);
    float *known = NULL;
    exf_code rc = exf_mem_new(&known, n, sizeof *known, "norms", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) known[i] = isnan(value[i]) ? 0 : value[i];
    exf_bar_sheet bars = {.sheet = sheet, .value = known, .tokens = s->expert_count, .value_label = f->bar_label};
    bars.sheet.note = "orange: largest; blue: least; grey: never routed to; hatched: over three times all others; every layer "
                      "has an axis of its own";
    rc = exf_draw_bars(&bars, d, err);
    exf_mem_free(known);
    return rc;
}

static exf_code draw_matrices(const exf_figure *f, const exf_inspection *s, exf_sheet sheet, const exf_figure_ends *ends,
                              exf_drawing *d, exf_err *err)
{
    size_t n = (size_t)s->n_layers * (size_t)s->shape.n_experts * (size_t)s->shape.n_experts, e = (size_t)s->shape.n_experts;
    exf_matrix_sheet m = {.sheet = sheet, .map = f->map, .hide_self = f->hide_self, .bar_label = f->bar_label};
    const float *value = exf_figure_values(f, s);
    exf_text note = {0};
    float *seen = NULL;
    exf_code rc;
    m.low = ends->low;
    m.high = ends->high;
    if (ends->from != EXF_ENDS_GIVEN) EXF_TRY(exf_figure_range(f, s, ends->from == EXF_ENDS_DATA, &m.low, &m.high, err));
    EXF_TRY(exf_mem_new(&seen, n, sizeof *seen, "matrices", err));
    for (size_t i = 0; i < n; i++) seen[i] = exf_inspection_observed(s, i) || i / e % e == i % e ? value[i] : NAN;
    if (m.low == -m.high)
        exf_text_appendf(&note, "colours end at \302\261%.3g", m.high);
    else
        exf_text_appendf(&note, "colours end at %.4g and %.4g", m.low, m.high);
    if (ends->from == EXF_ENDS_DATA || (ends->from == EXF_ENDS_USUAL && !(m.low == 0 && m.high == 1)))
        exf_text_appendf(&note, ", %s", m.map == EXF_MAP_DIVERGING ? "the 99th percentile of |S|" : "around the values");
    if (m.hide_self) exf_text_appendf(&note, "; an expert with itself is left blank");
    EXF_TRY(exf_text_end(&note, err));
    m.sheet.note = note.s;
    m.value = seen;
    rc = exf_draw_matrices(&m, d, err);
out:
    exf_mem_free(seen);
    exf_text_free(&note);
    return rc;
}

exf_code exf_figure_draw(const exf_figure *f, const exf_inspection *s, const exf_figure_ends *ends, exf_drawing *d, exf_err *err)
{
    const char *family = exf_provenance_get(&s->provenance, "model.family");
    exf_text title = {0};
    exf_code rc;
    exf_text_appendf(&title, "%s (%s, %d layer%s, %d experts)", f->title, family ? family : "model unknown", s->n_layers,
                     s->n_layers == 1 ? "" : "s", (int)s->shape.n_experts);
    if (s->part) exf_text_appendf(&title, "; %s", s->part);
    EXF_TRY(exf_text_end(&title, err));
    exf_sheet sheet = {
        .title = title.s, .n_layers = s->n_layers, .n_experts = (int)s->shape.n_experts, .layer_number = s->layer_number};
    rc = f->is_bars ? draw_bars(f, s, sheet, d, err) : draw_matrices(f, s, sheet, ends, d, err);
out:
    exf_text_free(&title);
    return rc;
}

/* ---- the numbers of a figure as files ------------------------------------------------------------ */

enum { FLUSH = 1 << 16 };

static exf_code flush_text(exf_output_file *f, exf_text *text, exf_err *err)
{
    exf_code rc = exf_text_end(text, err);
    if (rc == EXF_OK) rc = exf_output_file_write(f, text->s, text->len, err);
    text->len = 0;
    return rc;
}

exf_code exf_figure_csv(const exf_figure *f, const exf_inspection *s, const char *target, int force, exf_err *err)
{
    size_t e = (size_t)s->shape.n_experts, n = (size_t)s->n_layers * e * (f->is_bars ? 1 : e);
    const float *value = exf_figure_values(f, s);
    exf_output_file *file = NULL;
    exf_text text = {0};
    exf_code rc;
    EXF_TRY(exf_output_file_begin(&file, target, force, err));
    exf_text_appendf(&text, f->is_bars ? "layer,expert,tokens,norm\n" : "layer,source,target,tokens,%s\n", f->name);
    for (size_t i = 0; i < n; i++) {
        int known = f->is_bars ? !isnan(value[i]) : exf_inspection_observed(s, i);
        if (!f->is_bars && i / e % e == i % e) continue;
        if (f->is_bars)
            exf_text_appendf(&text, "%d,%zu,%" PRIu64 ",", (int)s->layer_number[i / e], i % e, s->expert_count[i]);
        else
            exf_text_appendf(&text, "%d,%zu,%zu,%" PRIu64 ",", (int)s->layer_number[i / e / e], i / e % e, i % e, s->count[i]);
        if (known) exf_text_appendf(&text, "%.9g", (double)value[i]);
        exf_text_append(&text, "\n", 1);
        if (text.len > FLUSH) EXF_TRY(flush_text(file, &text, err));
    }
    EXF_TRY(flush_text(file, &text, err));
    rc = exf_output_file_commit(file, err);
    file = NULL;
out:
    exf_output_file_abort(file);
    exf_text_free(&text);
    return rc;
}

exf_code exf_figure_npy(const exf_figure *f, const exf_inspection *s, const char *target, int force, exf_err *err)
{
    int64_t l = s->n_layers, e = s->shape.n_experts;
    size_t n = (size_t)l * (size_t)e * (f->is_bars ? 1 : (size_t)e);
    const float *value = exf_figure_values(f, s);
    float *seen = NULL;
    exf_code rc = exf_mem_new(&seen, n, sizeof *seen, "numbers of a figure", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) {
        int known = f->is_bars || exf_inspection_observed(s, i) || (i / (size_t)e % (size_t)e == i % (size_t)e && !f->hide_self);
        seen[i] = known ? value[i] : NAN;
    }
    exf_tensor t = {.name = f->name, .dtype = EXF_DT_F32, .rank = f->is_bars ? 2 : 3, .shape = {l, e, e}, .data = seen};
    rc = exf_npy_write(target, force, &t, err);
    exf_mem_free(seen);
    return rc;
}

/* validation_chart.c - draws the frontiers of a validation, KL over cost, as a picture; see validation.h.
 *
 * The axis of KL is logarithmic, since budgets differ by factors.  The original, whose KL is 0, is left out, and so is what folds
 * both phases, which is on no frontier, and what its batches do not constrain. */
#include "validate/validation.h"

#include "base/mem.h"
#include "inspect/drawing.h"

#include <stdio.h>

enum { TAG_LEN = 4, LEGEND_LEN = EXF_VARIANT_NAME_LEN + 16, LABEL_LEN = 48 };

/* The memory of a chart. */
typedef struct {
    size_t n_panels;
    exf_chart_panel *panel;       /* [n_panels] */
    char (*label)[LABEL_LEN];     /* [n_panels] */
    exf_chart_point *points;      /* [n_panels, n_variants] */
    size_t *lines;                /* the same */
    char (*tag)[TAG_LEN], (*name)[LEGEND_LEN]; /* [n_variants] */
    const char **legend;
    size_t n_legend;
} chart_parts;

/* Fills a panel: k 0 is prefill, k - 1 else the number of a batch size.  Costs are in per cent of the original's. */
static void fill_panel(chart_parts *c, const exf_validate_report *r, size_t k)
{
    const exf_validation *v = r->of.v;
    exf_row_kind kind = k ? EXF_ROW_DECODE : EXF_ROW_PREFILL;
    int batch = k ? (int)k - 1 : 0;
    double whole = exf_original_cost(&r->of, kind, batch);
    exf_chart_point *point = c->points + k * v->n_variants;
    size_t *line = c->lines + k * v->n_variants, n = 0, n_line = exf_frontier_line(line, &r->of, r->row, kind, batch);
    while (n_line && !(v->variant[line[n_line - 1]].all.kl_mean > 0)) n_line--; /* has no place on the axis */
    for (size_t i = 1; i < v->n_variants; i++) {
        if (!r->row[i].competes || r->row[i].kind != kind || (k && v->variant[i].batch != batch)) continue;
        for (size_t at = 0; at < n_line; at++)
            if (line[at] == i) line[at] = n; /* the line counts points; those it already counts are below i */
        double error = exf_kl_difference(v, i, 0).half_width;
        point[n++] = (exf_chart_point){whole > 0 ? 100 * exf_row_cost(&r->row[i], kind) / whole : 100, v->variant[i].all.kl_mean,
                                       error > 0 ? error : 0, c->tag[i], r->row[i].on_frontier};
    }
    if (k) snprintf(c->label[k], LABEL_LEN, "expert bytes, batches of %d, %%", v->batch_size[batch].size);
    else snprintf(c->label[k], LABEL_LEN, "expert operations per token, %%");
    c->panel[k] = (exf_chart_panel){c->label[k], 100, point, n, line, n_line};
}

exf_code exf_frontier_draw(const exf_validate_report *r, exf_drawing *d, exf_err *err)
{
    const exf_validation *v = r->of.v;
    chart_parts c = {.n_panels = 1 + (size_t)v->n_batch_sizes};
    exf_code rc;
    EXF_TRY(exf_mem_new(&c.panel, c.n_panels, sizeof *c.panel, "frontier", err));
    EXF_TRY(exf_mem_new(&c.label, c.n_panels, sizeof *c.label, "frontier", err));
    EXF_TRY(exf_mem_new(&c.points, c.n_panels * v->n_variants, sizeof *c.points, "frontier", err));
    EXF_TRY(exf_mem_new(&c.lines, c.n_panels * v->n_variants, sizeof *c.lines, "frontier", err));
    EXF_TRY(exf_mem_new(&c.tag, v->n_variants, sizeof *c.tag, "frontier", err));
    EXF_TRY(exf_mem_new(&c.name, v->n_variants, sizeof *c.name, "frontier", err));
    EXF_TRY(exf_mem_new(&c.legend, v->n_variants, sizeof *c.legend, "frontier", err));
    for (size_t i = 1; i < v->n_variants; i++) { /* each row that is drawn has its letter: a to z, A to Z, a dot for all others */
        size_t n = c.n_legend;
        if (!r->row[i].competes || r->row[i].kind == EXF_ROW_BOTH) continue;
        snprintf(c.tag[i], TAG_LEN, "%c", n < 26 ? 'a' + (int)n : n < 52 ? 'A' + (int)n - 26 : '.');
        snprintf(c.name[i], LEGEND_LEN, "%s  %s", c.tag[i], v->variant[i].name);
        c.legend[c.n_legend++] = c.name[i];
    }
    for (size_t k = 0; k < c.n_panels; k++) fill_panel(&c, r, k);
    exf_chart chart = {.title = "KL over cost, prefill and decode",
                       .note = "bars: 95 % intervals; filled, and the line: the frontier, on which each row is better than all "
                               "cheaper ones beyond the noise of the paired difference",
                       .value_label = "mean KL from the original", .reference_label = "original", .panel = c.panel,
                       .n_panels = c.n_panels, .legend = c.legend, .n_legend = c.n_legend};
    rc = exf_draw_chart(&chart, d, err);
out:
    exf_mem_free(c.panel);
    exf_mem_free(c.label);
    exf_mem_free(c.points);
    exf_mem_free(c.lines);
    exf_mem_free(c.tag);
    exf_mem_free(c.name);
    exf_mem_free(c.legend);
    return rc;
}

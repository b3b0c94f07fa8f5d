/* validation_chart.c - draws the quality-cost frontier, for a terminal and as a picture; see validation.h.
 *
 * The axis of KL is logarithmic, since budgets differ by factors.  The original, whose KL is 0, is left out. */
#include "run/validation.h"

#include "base/mem.h"
#include "inspect/drawing.h"
#include "validate/frontier.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { COLUMNS = 64, ROWS = 18 };

typedef double (*cost_of)(const exf_variant_result *r);

static double per_token(const exf_variant_result *r)
{
    return r->experts_per_token;
}

static double per_batch(const exf_variant_result *r)
{
    return r->experts_per_batch;
}

/* Returns a..z, then A..Z; a dot for all others. */
static char letter(size_t i)
{
    return i == 0 ? '.' : i <= 26 ? (char)('a' + (int)i - 1) : i <= 52 ? (char)('A' + (int)i - 27) : '.';
}

typedef struct {
    double low, high;     /* log10 of KL */
    double cheap, costly; /* 0 to the original's cost */
} scale;

static scale scale_of(const exf_validation *v, cost_of cost)
{
    scale s = {INFINITY, -INFINITY, 0, cost(&v->variant[0])};
    for (size_t i = 1; i < v->n_variants; i++) {
        double kl = v->variant[i].all.kl_mean;
        if (!(kl > 0)) continue;
        s.low = fmin(s.low, log10(kl));
        s.high = fmax(s.high, log10(kl));
        s.costly = fmax(s.costly, cost(&v->variant[i]));
    }
    if (!(s.low <= s.high)) s.low = s.high = 0;
    double margin = s.high - s.low < 0.5 ? 0.25 : 0.06 * (s.high - s.low); /* so that no point lies on the frame */
    s.high += margin;
    s.low -= margin;
    return s;
}

/* Returns where a value lies between two, in [0, 1]; 0 is the least KL or cost. */
static double share(double x, double from, double to)
{
    double at = to > from ? (x - from) / (to - from) : 0;
    return at < 0 ? 0 : at > 1 ? 1 : at;
}

/* ---- terminal ------------------------------------------------------------------------ */

static void add_chart(const exf_validation *v, const unsigned char *on, cost_of cost, const char *title, exf_text *out)
{
    char grid[ROWS][COLUMNS + 1];
    scale s = scale_of(v, cost);
    for (int y = 0; y < ROWS; y++) {
        memset(grid[y], ' ', COLUMNS);
        grid[y][COLUMNS] = '\0';
    }
    for (int pass = 0; pass < 2; pass++) /* the frontier last, so that nothing covers it */
        for (size_t i = 1; i < v->n_variants; i++) {
            double kl = v->variant[i].all.kl_mean;
            if (!(kl > 0) || on[i] != pass) continue;
            int x = (int)lround(share(cost(&v->variant[i]), s.cheap, s.costly) * (COLUMNS - 1));
            int y = (int)lround((1 - share(log10(kl), s.low, s.high)) * (ROWS - 1));
            grid[y][x] = letter(i);
        }
    exf_text_appendf(out, "\nKL mean over %s\n", title);
    for (int y = 0; y < ROWS; y++) {
        double kl = pow(10, s.high - (s.high - s.low) * y / (ROWS - 1));
        if (y % 4 == 0 || y == ROWS - 1)
            exf_text_appendf(out, "%9.4f |%s\n", kl, grid[y]);
        else
            exf_text_appendf(out, "%9s |%s\n", "", grid[y]);
    }
    exf_text_appendf(out, "%9s +", "");
    for (int x = 0; x < COLUMNS; x++) exf_text_append(out, "-", 1);
    exf_text_appendf(out, "\n%9s  %-*.4g%*.4g\n", "", COLUMNS / 2, s.cheap, COLUMNS / 2, s.costly);
}

/* Returns 100 where the whole is 0: a run without decode steps has no experts per batch. */
static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 100;
}

exf_code exf_frontier_text(const exf_validation *v, const unsigned char *on, exf_text *out, exf_err *err)
{
    static const double limits[] = {0.03, 0.1, 0.3};
    const exf_variant_result *all = &v->variant[0];
    exf_text_appendf(out, "\nFrontier: no other variant is as cheap in both costs and better beyond the noise.\n"
                          "   %10s %10s %10s %10s  variant\n", "KL mean", "+- s.e.", "per token", "per batch");
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i];
        exf_text_appendf(out, " %c %10.5f %10.5f %10.3f %10.2f  %s%s\n", letter(i), r->all.kl_mean, r->all.kl_se,
                         r->experts_per_token, r->experts_per_batch, r->name, on[i] ? "  *" : "");
    }
    add_chart(v, on, per_token, "experts per token", out);
    add_chart(v, on, per_batch, "experts per decode batch", out);
    exf_text_appendf(out, "\nCheapest within a mean KL of\n");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const exf_variant_result *token = &v->variant[exf_frontier_cheapest(v, limits[i], 0)],
                                 *batch = &v->variant[exf_frontier_cheapest(v, limits[i], 1)];
        exf_text_appendf(out, "  %-5g %3.0f %% of the experts per token: %s;  %3.0f %% of those per batch: %s\n", limits[i],
                         percent(token->experts_per_token, all->experts_per_token), token->name,
                         percent(batch->experts_per_batch, all->experts_per_batch), batch->name);
    }
    return exf_text_end(out, err);
}

/* ---- picture ---------------------------------------------------------------------------- */

enum { TAG_LEN = 4, LEGEND_LEN = EXF_VARIANT_NAME_LEN + 16 };

/* The memory of a chart of n variants without the original. */
typedef struct {
    exf_chart_point *point[2]; /* [n] over experts per token, per batch */
    size_t *line[2];
    char (*tag)[TAG_LEN], (*name)[LEGEND_LEN];
    const char **legend;
} chart_parts;

static void free_parts(chart_parts *c)
{
    for (int k = 0; k < 2; k++) {
        exf_mem_free(c->point[k]);
        exf_mem_free(c->line[k]);
    }
    exf_mem_free(c->tag);
    exf_mem_free(c->name);
    exf_mem_free(c->legend);
}

/* Point i - 1 of the chart is variant i. */
exf_code exf_frontier_draw(const exf_validation *v, const unsigned char *on, exf_drawing *d, exf_err *err)
{
    static const char *const labels[2] = {"experts per token", "experts per decode batch"};
    static const cost_of costs[2] = {per_token, per_batch};
    size_t n = v->n_variants - 1;
    chart_parts c = {.tag = NULL};
    exf_chart_panel panel[2];
    exf_code rc;
    EXF_TRY(exf_mem_new(&c.tag, n, sizeof *c.tag, "frontier", err));
    EXF_TRY(exf_mem_new(&c.name, n, sizeof *c.name, "frontier", err));
    EXF_TRY(exf_mem_new(&c.legend, n, sizeof *c.legend, "frontier", err));
    for (size_t i = 0; i < n; i++) {
        snprintf(c.tag[i], TAG_LEN, "%c", letter(i + 1));
        snprintf(c.name[i], LEGEND_LEN, "%c  %s", letter(i + 1), v->variant[i + 1].name);
        c.legend[i] = c.name[i];
    }
    for (int k = 0; k < 2; k++) {
        EXF_TRY(exf_mem_new(&c.point[k], n, sizeof **c.point, "frontier", err));
        EXF_TRY(exf_mem_new(&c.line[k], n + 1, sizeof **c.line, "frontier", err));
        for (size_t i = 0; i < n; i++) {
            const exf_variant_result *r = &v->variant[i + 1];
            c.point[k][i] = (exf_chart_point){costs[k](r), r->all.kl_mean, r->all.kl_se, c.tag[i], on[i + 1]};
        }
        size_t length = exf_frontier_line(c.line[k], v, k);
        for (size_t i = 0; i < length; i++) c.line[k][i]--;
        panel[k] = (exf_chart_panel){labels[k], costs[k](&v->variant[0]), c.point[k], n, c.line[k], length};
    }
    exf_chart chart = {
        .title = "KL of every budget over its cost",
        .note = "bars: one standard error; filled: beaten by no variant in both costs and KL; line: what a higher cost buys beyond "
                "two standard errors",
        .value_label = "mean KL from the original", .reference_label = "original", .panel = panel, .n_panels = 2,
        .legend = c.legend, .n_legend = n};
    rc = exf_draw_chart(&chart, d, err);
out:
    free_parts(&c);
    return rc;
}

/* frontier_chart.c - see frontier_chart.h.
 *
 * KL is drawn on a logarithmic axis: budgets differ by factors.  The original, whose KL is
 * 0, has no place on it and is left out. */
#include "run/frontier_chart.h"

#include "base/mem.h"
#include "inspect/chart.h"

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

/* a..z, then A..Z; what is beyond shares a dot. */
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

/* Place of a value in [0, 1], 0 is the least KL or cost. */
static double share(double x, double from, double to)
{
    double at = to > from ? (x - from) / (to - from) : 0;
    return at < 0 ? 0 : at > 1 ? 1 : at;
}

/* ---- terminal ------------------------------------------------------------------------ */

static void plot(char grid[ROWS][COLUMNS + 1], const exf_validation *v, const unsigned char *on, cost_of cost, const scale *s)
{
    for (int pass = 0; pass < 2; pass++) /* the frontier last, so that nothing covers it */
        for (size_t i = 1; i < v->n_variants; i++) {
            double kl = v->variant[i].all.kl_mean;
            if (!(kl > 0) || on[i] != pass) continue;
            int x = (int)lround(share(cost(&v->variant[i]), s->cheap, s->costly) * (COLUMNS - 1));
            int y = (int)lround((1 - share(log10(kl), s->low, s->high)) * (ROWS - 1));
            grid[y][x] = letter(i);
        }
}

static exf_code add_chart(const exf_validation *v, const unsigned char *on, cost_of cost, const char *title, exf_text *out,
                          exf_err *err)
{
    char grid[ROWS][COLUMNS + 1];
    scale s = scale_of(v, cost);
    exf_code rc;
    for (int y = 0; y < ROWS; y++) {
        memset(grid[y], ' ', COLUMNS);
        grid[y][COLUMNS] = '\0';
    }
    plot(grid, v, on, cost, &s);
    EXF_TRY(exf_text_addf(out, err, "\nKL mean over %s\n", title));
    for (int y = 0; y < ROWS; y++) {
        double kl = pow(10, s.high - (s.high - s.low) * y / (ROWS - 1));
        if (y % 4 == 0 || y == ROWS - 1)
            EXF_TRY(exf_text_addf(out, err, "%9.4f |%s\n", kl, grid[y]));
        else
            EXF_TRY(exf_text_addf(out, err, "%9s |%s\n", "", grid[y]));
    }
    EXF_TRY(exf_text_addf(out, err, "%9s +", ""));
    for (int x = 0; x < COLUMNS; x++) EXF_TRY(exf_text_add(out, "-", 1, err));
    EXF_TRY(exf_text_addf(out, err, "\n%9s  %-*.4g%*.4g\n", "", COLUMNS / 2, s.cheap, COLUMNS / 2, s.costly));
out:
    return rc;
}

/* A run without decode steps has no experts per batch. */
static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 100;
}

/* Adds lines of advice: the cheapest variant within each limit of the mean KL. */
static exf_code add_advice(const exf_validation *v, exf_text *out, exf_err *err)
{
    static const double limits[] = {0.03, 0.1, 0.3};
    const exf_variant_result *all = &v->variant[0];
    exf_code rc = exf_text_addf(out, err, "\nCheapest within a mean KL of\n");
    for (size_t i = 0; rc == EXF_OK && i < sizeof limits / sizeof *limits; i++) {
        const exf_variant_result *token = &v->variant[exf_frontier_cheapest(v, limits[i], 0)],
                                 *batch = &v->variant[exf_frontier_cheapest(v, limits[i], 1)];
        rc = exf_text_addf(out, err, "  %-5g %3.0f %% of the experts per token: %s;  %3.0f %% of those per batch: %s\n", limits[i],
                           percent(token->experts_per_token, all->experts_per_token), token->name,
                           percent(batch->experts_per_batch, all->experts_per_batch), batch->name);
    }
    return rc;
}

exf_code exf_frontier_text(const exf_validation *v, const unsigned char *on, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "\nFrontier: no other variant is as cheap in both costs and better beyond the noise.\n"
                                    "   %10s %10s %10s %10s  variant\n", "KL mean", "+- s.e.", "per token", "per batch"));
    for (size_t i = 1; i < v->n_variants; i++)
        EXF_TRY(exf_text_addf(out, err, " %c %10.5f %10.5f %10.3f %10.2f  %s%s\n", letter(i), v->variant[i].all.kl_mean,
                              v->variant[i].all.kl_se, v->variant[i].experts_per_token, v->variant[i].experts_per_batch,
                              v->variant[i].name, on[i] ? "  *" : ""));
    EXF_TRY(add_chart(v, on, per_token, "experts per token", out, err));
    EXF_TRY(add_chart(v, on, per_batch, "experts per decode batch", out, err));
    EXF_TRY(add_advice(v, out, err));
out:
    return rc;
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

static exf_code new_parts(chart_parts *c, size_t n, exf_err *err)
{
    exf_code rc;
    for (int k = 0; k < 2; k++) {
        EXF_TRY(exf_mem_new(&c->point[k], n, sizeof **c->point, "frontier", err));
        EXF_TRY(exf_mem_new(&c->line[k], n + 1, sizeof **c->line, "frontier", err));
    }
    EXF_TRY(exf_mem_new(&c->tag, n, sizeof *c->tag, "frontier", err));
    EXF_TRY(exf_mem_new(&c->name, n, sizeof *c->name, "frontier", err));
    EXF_TRY(exf_mem_new(&c->legend, n, sizeof *c->legend, "frontier", err));
out:
    return rc;
}

/* Point i - 1 of the chart is variant i. */
static void fill_parts(chart_parts *c, const exf_validation *v, const unsigned char *on)
{
    static const cost_of costs[2] = {per_token, per_batch};
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i];
        snprintf(c->tag[i - 1], TAG_LEN, "%c", letter(i));
        snprintf(c->name[i - 1], LEGEND_LEN, "%c  %s", letter(i), r->name);
        c->legend[i - 1] = c->name[i - 1];
        for (int k = 0; k < 2; k++)
            c->point[k][i - 1] = (exf_chart_point){costs[k](r), r->all.kl_mean, r->all.kl_se, c->tag[i - 1], on[i]};
    }
}

exf_code exf_frontier_draw(const exf_validation *v, const unsigned char *on, exf_drawing *d, exf_err *err)
{
    static const char *const labels[2] = {"experts per token", "experts per decode batch"};
    size_t n = v->n_variants - 1;
    chart_parts c = {.tag = NULL};
    exf_chart_panel panel[2];
    exf_code rc;
    EXF_TRY(new_parts(&c, n, err));
    fill_parts(&c, v, on);
    for (int k = 0; k < 2; k++) {
        size_t length = exf_frontier_line(c.line[k], v, k);
        for (size_t i = 0; i < length; i++) c.line[k][i]--;
        double whole = k ? per_batch(&v->variant[0]) : per_token(&v->variant[0]);
        panel[k] = (exf_chart_panel){labels[k], whole, c.point[k], n, c.line[k], length};
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

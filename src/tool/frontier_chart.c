/* frontier_chart.c - see frontier_chart.h.
 *
 * KL is drawn on a logarithmic axis: budgets differ by factors.  The original, whose KL is
 * 0, has no place on it and is left out. */
#include "tool/frontier_chart.h"

#include <math.h>
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

/* What one may do at a given price. */
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
    EXF_TRY(exf_text_addf(out, err, "\nFrontier: no other variant is at least as good and as cheap in both costs.\n"
                                    "   %10s %10s %10s  variant\n", "KL mean", "per token", "per batch"));
    for (size_t i = 1; i < v->n_variants; i++)
        EXF_TRY(exf_text_addf(out, err, " %c %10.5f %10.3f %10.2f  %s%s\n", letter(i), v->variant[i].all.kl_mean,
                              v->variant[i].experts_per_token, v->variant[i].experts_per_batch, v->variant[i].name,
                              on[i] ? "  *" : ""));
    EXF_TRY(add_chart(v, on, per_token, "experts per token", out, err));
    EXF_TRY(add_chart(v, on, per_batch, "experts per decode batch", out, err));
    EXF_TRY(add_advice(v, out, err));
out:
    return rc;
}

/* ---- SVG -------------------------------------------------------------------------------- */

enum { PANEL_W = 460, PANEL_H = 320, LEFT = 64, TOP = 40, GAP = 90 };

static exf_code add_axes(const scale *s, int left, const char *title, exf_text *out, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(
        out, err,
        "<text x=\"%d\" y=\"24\" class=\"title\">KL mean over %s</text>\n"
        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"frame\"/>\n",
        left, title, left, TOP, PANEL_W, PANEL_H));
    for (int i = 0; i <= 4; i++) {
        double kl = pow(10, s->low + (s->high - s->low) * i / 4), cost = s->cheap + (s->costly - s->cheap) * i / 4;
        int y = TOP + PANEL_H - PANEL_H * i / 4, x = left + PANEL_W * i / 4;
        EXF_TRY(exf_text_addf(out, err,
                              "<path d=\"M%d %dh%d\" class=\"grid\"/><text x=\"%d\" y=\"%d\" class=\"end\">%.3g</text><text "
                              "x=\"%d\" y=\"%d\" class=\"mid\">%.3g</text>\n",
                              left, y, PANEL_W, left - 6, y + 4, kl, x, TOP + PANEL_H + 18, cost));
    }
out:
    return rc;
}

static exf_code add_panel(const exf_validation *v, const unsigned char *on, cost_of cost, int left, const char *title,
                          exf_text *out, exf_err *err)
{
    scale s = scale_of(v, cost);
    exf_code rc;
    EXF_TRY(add_axes(&s, left, title, out, err));
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i];
        if (!(r->all.kl_mean > 0)) continue;
        double x = left + share(cost(r), s.cheap, s.costly) * PANEL_W,
               y = TOP + (1 - share(log10(r->all.kl_mean), s.low, s.high)) * PANEL_H;
        EXF_TRY(exf_text_addf(
            out, err,
            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" class=\"%s\">"
            "<title>%s: KL %.5f, %.3f per token, %.2f per batch</title></circle>"
            "<text x=\"%.1f\" y=\"%.1f\" class=\"tag\">%c</text>\n",
            x, y, on[i] ? "on" : "off", r->name, r->all.kl_mean, r->experts_per_token, r->experts_per_batch, x + 7, y + 4,
            letter(i)));
    }
out:
    return rc;
}

exf_code exf_frontier_svg(const exf_validation *v, const unsigned char *on, exf_text *out, exf_err *err)
{
    int width = 2 * (LEFT + PANEL_W) + GAP, line = TOP + PANEL_H + 50, rows = (int)(v->n_variants + 2) / 3;
    exf_code rc;
    EXF_TRY(exf_text_addf(
        out, err,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n"
        "<style>.title{font-size:14px;font-weight:bold}.frame{fill:none;stroke:#888}.grid{stroke:#8884}"
        ".end{text-anchor:end}.mid{text-anchor:middle}"
        ".on{fill:#0a6ebd}.off{fill:none;stroke:#888}text{fill:#222}.tag{font-size:11px}"
        "@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#ddd}.on{fill:#5ab0f2}}</style>\n",
        width, line + 18 * rows + 10, width));
    EXF_TRY(add_panel(v, on, per_token, LEFT, "experts per token", out, err));
    EXF_TRY(add_panel(v, on, per_batch, LEFT + PANEL_W + GAP, "experts per decode batch", out, err));
    for (size_t i = 1; i < v->n_variants; i++)
        EXF_TRY(exf_text_addf(out, err, "<text x=\"%d\" y=\"%d\">%c  %s%s</text>\n", LEFT + (int)((i - 1) % 3) * 350,
                              line + 18 * (int)((i - 1) / 3), letter(i), v->variant[i].name, on[i] ? "  (frontier)" : ""));
    EXF_TRY(exf_text_addf(out, err, "</svg>\n"));
out:
    return rc;
}

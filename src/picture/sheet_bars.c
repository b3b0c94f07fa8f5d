/* sheet_bars.c - a bar per expert and a panel per layer; see sheet.h. */
#include "picture/sheet_internal.h"

#include <stdio.h>

enum { HEIGHT = 150, HEAD = 22, OUTLIER = 3, MARK = 4 };

static const char expert_text[] = "expert";

/* What stands out in one layer; -1: nobody. */
typedef struct {
    int least, most, outlier;
    double top; /* of the axis */
} extremes;

static int is_cold(const exf_bar_sheet *s, int layer, int e)
{
    return s->tokens[(size_t)layer * (size_t)s->sheet.n_experts + (size_t)e] == 0;
}

static double bar_value(const exf_bar_sheet *s, int layer, int e)
{
    return (double)s->value[(size_t)layer * (size_t)s->sheet.n_experts + (size_t)e];
}

static extremes find_extremes(const exf_bar_sheet *s, int layer)
{
    extremes x = {.least = -1, .most = -1, .outlier = -1};
    double second = 0;
    for (int e = 0; e < s->sheet.n_experts; e++) {
        double v = bar_value(s, layer, e);
        if (is_cold(s, layer, e)) continue;
        if (x.least < 0 || v < bar_value(s, layer, x.least)) x.least = e;
        if (x.most < 0 || v > bar_value(s, layer, x.most)) {
            if (x.most >= 0) second = bar_value(s, layer, x.most);
            x.most = e;
        } else if (v > second) {
            second = v;
        }
    }
    double largest = x.most < 0 ? 1 : bar_value(s, layer, x.most);
    if (second > 0 && largest > OUTLIER * second) x.outlier = x.most;
    x.top = x.outlier < 0 ? largest : second;
    if (!(x.top > 0)) x.top = 1;
    return x;
}

/* A triangle at the top of the panel and dots from it down to the bar. */
static void draw_mark(exf_canvas *c, int x, int top, int bar_top, int ink)
{
    for (int i = 0; i <= MARK; i++) exf_canvas_fill(c, x - i, top + 2 + MARK - i, 2 * i + 1, 1, ink);
    for (int y = top + 2 * MARK; y < bar_top; y += 4) exf_canvas_fill(c, x, y, 1, 2, ink);
}

static void draw_one_bar(exf_canvas *c, const exf_bar_sheet *s, const exf_panel_grid *g, int i, int e, const extremes *x)
{
    int ink = e == x->most ? EXF_INK_HIGH : e == x->least ? EXF_INK_LOW : is_cold(s, i, e) ? EXF_INK_GREY : EXF_INK_BAR;
    int room = g->panel_height - HEAD, height = e == x->outlier ? room : (int)(bar_value(s, i, e) / x->top * room + 0.5);
    int left = exf_panel_x(g, i) + e * g->cell, floor_y = exf_panel_y(g, i) + g->panel_height,
        width = g->cell > 3 ? g->cell - 1 : g->cell;
    if (height > room) height = room; /* a cold one's filled-in value may be above all */
    exf_canvas_fill(c, left, floor_y - height, width, height, ink);
    if (e == x->outlier)
        for (int y = 0; y < height; y += 4) exf_canvas_fill(c, left, floor_y - height + y, width, 2, EXF_INK_PAPER);
    if (e == x->most || e == x->least) draw_mark(c, left + width / 2, exf_panel_y(g, i), floor_y - height, ink);
}

static void draw_value_ticks(exf_canvas *c, const exf_panel_grid *g, int i, double top)
{
    double tick[EXF_TICKS_MAX];
    int digits, n = exf_ticks(0, top, 4, tick, &digits), x = exf_panel_x(g, i);
    for (int k = 0; k < n; k++) {
        char text[24];
        int y = exf_panel_y(g, i) + g->panel_height - (int)(tick[k] / top * (g->panel_height - HEAD) + 0.5);
        exf_number_text(text, sizeof text, tick[k], digits);
        exf_canvas_fill(c, x - 1 - TICK, y, TICK, 1, EXF_INK_TEXT);
        exf_canvas_text(c, x - TICK - 4 - exf_text_width(text, TEXT), y - LINE / 2 + 1, TEXT, EXF_INK_TEXT, text);
    }
}

/* "min 3: 0.41" and "max 7: 2.9" at the right of the label, one over the other. */
static void draw_label(exf_canvas *c, const exf_bar_sheet *s, const exf_panel_grid *g, int i, const extremes *x)
{
    char label[32], text[48];
    int right = exf_panel_x(g, i) + g->panel_width, y = exf_panel_y(g, i) - LINE - 6;
    snprintf(label, sizeof label, "layer %d", (int)s->sheet.layer_number[i]);
    exf_canvas_text(c, exf_panel_x(g, i), y, TEXT, EXF_INK_TEXT, label);
    if (x->most < 0) return;
    snprintf(text, sizeof text, "max %.3g at %d", bar_value(s, i, x->most), x->most);
    exf_canvas_text(c, right - exf_text_width(text, 1), y - 1, 1, EXF_INK_HIGH, text);
    snprintf(text, sizeof text, "min %.3g at %d", bar_value(s, i, x->least), x->least);
    exf_canvas_text(c, right - exf_text_width(text, 1), y + EXF_LETTER_HEIGHT, 1, EXF_INK_LOW, text);
}

static void draw_panel(exf_canvas *c, const exf_bar_sheet *s, const exf_panel_grid *g, int i)
{
    extremes x = find_extremes(s, i);
    for (int e = 0; e < s->sheet.n_experts; e++)
        if (e != x.least && e != x.most) draw_one_bar(c, s, g, i, e, &x);
    if (x.least >= 0) draw_one_bar(c, s, g, i, x.least, &x);
    if (x.most >= 0) draw_one_bar(c, s, g, i, x.most, &x);
    exf_canvas_frame(c, exf_panel_x(g, i), exf_panel_y(g, i), g->panel_width, g->panel_height, EXF_INK_SOFT);
    draw_label(c, s, g, i, &x);
    draw_value_ticks(c, g, i, x.top);
    if (exf_panel_is_lowest(g, i, s->sheet.n_layers)) exf_draw_expert_ticks(c, g, i, s->sheet.n_experts);
}

exf_code exf_draw_bars(const exf_bar_sheet *s, exf_canvas *out, exf_err *err)
{
    int e = s->sheet.n_experts, cell = e < PANEL_TARGET ? PANEL_TARGET / e : 1;
    exf_panel_grid g = {.cell = cell, .panel_width = e * cell, .panel_height = HEIGHT};
    g.left = MARGIN + 6 * GLYPH + TICK;
    exf_panel_grid_place(&g, &s->sheet, 6 * GLYPH + TICK + GAP, 2 * GAP + LINE);
    exf_code rc = exf_panel_grid_canvas(&g, &s->sheet, 0, 2 * LINE + TICK + GAP, out, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < s->sheet.n_layers; i++) draw_panel(out, s, &g, i);
    exf_canvas_text(out, (g.left + g.right - exf_text_width(expert_text, TEXT)) / 2, g.bottom + TICK + LINE + GAP, TEXT,
                    EXF_INK_TEXT, expert_text);
    return EXF_OK;
}

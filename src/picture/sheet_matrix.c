/* sheet_matrix.c - a matrix per layer, coloured; see sheet.h. */
#include "picture/sheet_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char grey_text[] = "no evidence", source_text[] = "source expert", target_text[] = "target expert";

static void draw_cells(exf_canvas *c, const exf_matrix_sheet *s, const exf_panel_grid *g, int i)
{
    int e = s->sheet.n_experts, x = exf_panel_x(g, i), y = exf_panel_y(g, i);
    const float *value = s->value + (size_t)i * (size_t)e * (size_t)e;
    for (int row = 0; row < e; row++)
        for (int column = 0; column < e; column++) {
            double v = (double)value[(size_t)row * (size_t)e + (size_t)column];
            int ink = isnan(v) ? EXF_INK_GREY : exf_colour_index(v, s->low, s->high);
            if (row == column && s->hide_self) ink = EXF_INK_PAPER;
            exf_canvas_fill(c, x + column * g->cell, y + row * g->cell, g->cell, g->cell, ink);
        }
    exf_canvas_frame(c, x, y, g->panel_width, g->panel_height, EXF_INK_SOFT);
}

/* Numbers of source experts left of a panel. */
static void draw_source_ticks(exf_canvas *c, const exf_panel_grid *g, int i, int n_experts)
{
    double tick[EXF_TICKS_MAX];
    int digits, n = exf_ticks(0, n_experts > 1 ? n_experts - 1 : 1, g->panel_height / (4 * GLYPH), tick, &digits);
    for (int k = 0; k < n; k++) {
        char text[16];
        if (rint(tick[k]) != tick[k]) continue;
        int x = exf_panel_x(g, i), y = exf_panel_y(g, i) + (int)tick[k] * g->cell + g->cell / 2;
        exf_number_text(text, sizeof text, tick[k], 0);
        exf_canvas_fill(c, x - 1 - TICK, y, TICK, 1, EXF_INK_TEXT);
        exf_canvas_text(c, x - TICK - 4 - exf_text_width(text, TEXT), y - LINE / 2 + 1, TEXT, EXF_INK_TEXT, text);
    }
}

static void draw_panel(exf_canvas *c, const exf_matrix_sheet *s, const exf_panel_grid *g, int i)
{
    char label[32];
    snprintf(label, sizeof label, "layer %d", (int)s->sheet.layer_number[i]);
    exf_canvas_text(c, exf_panel_x(g, i), exf_panel_y(g, i) - LINE - 4, TEXT, EXF_INK_TEXT, label);
    draw_cells(c, s, g, i);
    if (i % g->columns == 0) draw_source_ticks(c, g, i, s->sheet.n_experts);
    if (exf_panel_is_lowest(g, i, s->sheet.n_layers)) exf_draw_expert_ticks(c, g, i, s->sheet.n_experts);
}

/* Room for the bar, its numbers, its label, and the word under it. */
static int bar_room(void)
{
    int numbers = BAR_WIDTH + TICK + 7 * GLYPH + LINE + GAP, word = exf_text_width(grey_text, TEXT) + LINE + GAP;
    return 2 * GAP + (numbers > word ? numbers : word);
}

static void draw_colour_bar(exf_canvas *c, const exf_matrix_sheet *s, const exf_panel_grid *g)
{
    double tick[EXF_TICKS_MAX];
    int height = g->bottom - g->top - 2 * LINE, x = g->right + 2 * GAP, y = g->top, digits;
    if (height > 720) height = 720;
    for (int row = 0; row < height; row++)
        exf_canvas_fill(c, x, y + row, BAR_WIDTH, 1, exf_colour_index(1 - (double)row / (height - 1), 0, 1));
    exf_canvas_frame(c, x, y, BAR_WIDTH, height, EXF_INK_SOFT);
    int n = exf_ticks(s->low, s->high, height / (2 * LINE), tick, &digits);
    for (int i = 0; i < n; i++) {
        char text[24];
        int at = y + (int)((s->high - tick[i]) / (s->high - s->low) * (height - 1) + 0.5);
        exf_number_text(text, sizeof text, tick[i], digits);
        exf_canvas_fill(c, x + BAR_WIDTH + 1, at, TICK, 1, EXF_INK_TEXT);
        exf_canvas_text(c, x + BAR_WIDTH + TICK + 5, at - LINE / 2 + 1, TEXT, EXF_INK_TEXT, text);
    }
    exf_canvas_text_up(c, x + BAR_WIDTH + TICK + 7 * GLYPH, y + height / 2 + exf_text_width(s->bar_label, TEXT) / 2, TEXT,
                       EXF_INK_TEXT, s->bar_label);
    exf_canvas_fill(c, x, y + height + LINE, LINE, LINE, EXF_INK_GREY);
    exf_canvas_text(c, x + LINE + GAP, y + height + LINE, TEXT, EXF_INK_TEXT, grey_text);
}

static void draw_axis_names(exf_canvas *c, const exf_panel_grid *g)
{
    exf_canvas_text_up(c, MARGIN, (g->top + g->bottom) / 2 + exf_text_width(source_text, TEXT) / 2, TEXT, EXF_INK_TEXT,
                       source_text);
    exf_canvas_text(c, (g->left + g->right - exf_text_width(target_text, TEXT)) / 2, g->bottom + TICK + LINE + GAP, TEXT,
                    EXF_INK_TEXT, target_text);
}

exf_code exf_draw_matrices(const exf_matrix_sheet *s, exf_canvas *out, exf_err *err)
{
    int e = s->sheet.n_experts, cell = e < PANEL_TARGET ? PANEL_TARGET / e : 1;
    exf_panel_grid g = {.cell = cell, .panel_width = e * cell, .panel_height = e * cell};
    g.left = MARGIN + LINE + GAP + 4 * GLYPH + TICK;
    exf_panel_grid_place(&g, &s->sheet, 2 * GAP, 2 * GAP + LINE);
    exf_code rc = exf_panel_grid_canvas(&g, &s->sheet, bar_room(), 2 * LINE + TICK + GAP, out, err);
    if (rc != EXF_OK) return rc;
    exf_colour_load(out, s->map);
    for (int i = 0; i < s->sheet.n_layers; i++) draw_panel(out, s, &g, i);
    draw_axis_names(out, &g);
    draw_colour_bar(out, s, &g);
    return EXF_OK;
}

/* sheet_matrix.c - a matrix per layer, coloured; see sheet.h. */
#include "picture/sheet_internal.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>

static const char grey_text[] = "no evidence", source_text[] = "source expert", target_text[] = "target expert";
static const double bar_width = 9, bar_most = 220, swatch = 6;

/* ---- panels ---------------------------------------------------------------------------------- */

static void colour_cells(const exf_matrix_sheet *s, int layer, exf_ink *ink)
{
    size_t e = (size_t)s->sheet.n_experts;
    const float *value = s->value + (size_t)layer * e * e;
    for (size_t i = 0; i < e * e; i++) {
        ink[i] = isnan(value[i]) ? EXF_INK_GREY : exf_colour_of(s->map, (double)value[i], s->low, s->high);
        if (s->hide_self && i / e == i % e) ink[i] = EXF_INK_PAPER;
    }
}

/* Numbers of source experts left of a panel. */
static void draw_source_ticks(exf_drawing *d, exf_box panel, int n_experts)
{
    exf_ticks t;
    double share[EXF_TICKS_MAX], low = -0.5, high = n_experts - 0.5;
    exf_ticks_fit(&t, d, EXF_AXIS_WHOLE, low, high, panel.height, EXF_SHEET_TICK, 1);
    for (int i = 0; i < t.n; i++) share[i] = exf_axis_share(EXF_AXIS_WHOLE, t.at[i], low, high);
    exf_draw_left_ticks(d, panel, &t, share);
}

static void draw_panel(exf_drawing *d, const exf_matrix_sheet *s, const exf_panel_grid *g, int i, const exf_ink *ink)
{
    exf_box panel = exf_panel_box(g, i);
    int e = s->sheet.n_experts;
    exf_draw_layer_label(d, &s->sheet, panel, i, panel.width, 2.5);
    exf_draw_cells(d, panel, e, e, ink);
    exf_draw_frame(d, panel, EXF_INK_SOFT);
    if (i % g->columns == 0) draw_source_ticks(d, panel, e);
    if (exf_panel_is_lowest(g, i, s->sheet.n_layers)) exf_draw_expert_ticks(d, panel, e);
}

/* ---- around them ------------------------------------------------------------------------------- */

/* Room for the bar, its numbers, its label, and the word under it. */
static double bar_room(const exf_matrix_sheet *s, exf_drawing *d)
{
    exf_ticks t;
    exf_ticks_at(&t, EXF_AXIS_REAL, s->low, s->high, EXF_TICKS_MAX);
    double numbers = bar_width + EXF_SHEET_STROKE + 1.5 + exf_ticks_width(&t, d, EXF_SHEET_TICK) + 3 + EXF_SHEET_LABEL;
    double word = swatch + 3 + exf_text_width(d, EXF_SHEET_TICK, grey_text);
    return 2 * EXF_SHEET_GAP + fmax(numbers, word) + EXF_SHEET_MARGIN;
}

static void draw_bar_numbers(exf_drawing *d, const exf_matrix_sheet *s, exf_box bar)
{
    exf_ticks t;
    double right = bar.x + bar.width;
    exf_ticks_fit(&t, d, EXF_AXIS_REAL, s->low, s->high, bar.height, 1.6 * EXF_SHEET_TICK, 1);
    for (int i = 0; i < t.n; i++) {
        double y = bar.y + bar.height * (1 - exf_axis_share(EXF_AXIS_REAL, t.at[i], s->low, s->high));
        const double stroke[2][2] = {{right, y}, {right + EXF_SHEET_STROKE, y}};
        exf_draw_line(d, stroke, 2, 0, EXF_INK_TEXT);
        exf_draw_text(d, right + EXF_SHEET_STROKE + 1.5, y + 0.36 * EXF_SHEET_TICK, EXF_START, EXF_SHEET_TICK, EXF_INK_TEXT,
                      t.text[i]);
    }
    exf_draw_text_up(d, right + EXF_SHEET_STROKE + 4.5 + exf_ticks_width(&t, d, EXF_SHEET_TICK) + 0.75 * EXF_SHEET_LABEL,
                     bar.y + bar.height / 2, EXF_MIDDLE, EXF_SHEET_LABEL, EXF_INK_TEXT, s->bar_label);
}

static void draw_colour_bar(exf_drawing *d, const exf_matrix_sheet *s, const exf_panel_grid *g)
{
    exf_ink point[EXF_COLOUR_POINTS];
    exf_box bar = {g->right + 2 * EXF_SHEET_GAP, g->top, bar_width, fmin(g->bottom - g->top - 2 * EXF_SHEET_TICK, bar_most)};
    for (int i = 0; i < EXF_COLOUR_POINTS; i++) point[i] = exf_colour_of(s->map, i, 0, EXF_COLOUR_POINTS - 1);
    exf_draw_gradient(d, bar, point, EXF_COLOUR_POINTS);
    exf_draw_frame(d, bar, EXF_INK_SOFT);
    draw_bar_numbers(d, s, bar);
    exf_box grey = {bar.x, bar.y + bar.height + EXF_SHEET_TICK, swatch, swatch};
    exf_draw_fill(d, grey, EXF_INK_GREY);
    exf_draw_text(d, grey.x + swatch + 3, grey.y + swatch - 0.5, EXF_START, EXF_SHEET_TICK, EXF_INK_TEXT, grey_text);
}

static void draw_axis_names(exf_drawing *d, const exf_panel_grid *g)
{
    exf_draw_text_up(d, EXF_SHEET_MARGIN + 0.75 * EXF_SHEET_LABEL, (g->top + g->bottom) / 2, EXF_MIDDLE, EXF_SHEET_LABEL,
                     EXF_INK_TEXT, source_text);
    exf_draw_text(d, (g->left + g->right) / 2, g->page_height - EXF_SHEET_MARGIN, EXF_MIDDLE, EXF_SHEET_LABEL, EXF_INK_TEXT,
                  target_text);
}

static exf_panel_needs needs_of(const exf_matrix_sheet *s, exf_drawing *d)
{
    char widest[16];
    snprintf(widest, sizeof widest, "%d", s->sheet.n_experts);
    return (exf_panel_needs){
        .left = EXF_SHEET_MARGIN + EXF_SHEET_LABEL + 4 + exf_text_width(d, EXF_SHEET_TICK, widest) + EXF_SHEET_STROKE + 1.5,
        .right = bar_room(s, d),
        .bottom = EXF_SHEET_STROKE + EXF_SHEET_TICK + 4 + EXF_SHEET_LABEL + EXF_SHEET_MARGIN,
        .head = EXF_SHEET_LABEL + 2.5, .gap_x = EXF_SHEET_GAP, .lowest = 1, .highest = 1};
}

exf_code exf_draw_matrices(const exf_matrix_sheet *s, exf_drawing *d, exf_err *err)
{
    size_t e = (size_t)s->sheet.n_experts;
    exf_panel_needs needs = needs_of(s, d);
    exf_panel_grid g = {0};
    exf_ink *ink = NULL;
    exf_code rc;
    exf_panel_grid_place(&g, d, &s->sheet, &needs);
    EXF_TRY(exf_panel_grid_page(&g, &s->sheet, d, err));
    EXF_TRY(exf_mem_new(&ink, e * e, sizeof *ink, "cells of a picture", err));
    for (int i = 0; i < s->sheet.n_layers; i++) {
        colour_cells(s, i, ink);
        draw_panel(d, s, &g, i, ink);
    }
    draw_axis_names(d, &g);
    draw_colour_bar(d, s, &g);
out:
    exf_mem_free(ink);
    return rc;
}

/* drawing_sheet.c - all layers of a model on one page: a grid of panels, and the two kinds of sheets; see drawing.h. */
#include "inspect/drawing.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>

/* ---- the grid of panels; all lengths are points ---------------------------------------------------- */

#define LABEL 7.0 /* size of a layer's label and of an axis' name */
#define TICK 6.0  /* size of an axis' numbers */
#define MARGIN 8.0
#define GAP 5.0
#define STROKE 2.5 /* length of a tick's stroke */

/* The room that a kind of sheet needs around its panels, and the panels' shape: height by width. */
typedef struct {
    double left, right, bottom; /* of all panels */
    double head, gap_x;         /* above each, between two */
    double lowest, highest;     /* shape */
} panel_needs;

typedef struct {
    int columns, rows;
    double panel_width, panel_height;
    double left, top;         /* of the first panel */
    double step_x, step_y;    /* from panel to panel */
    double right, bottom;     /* just after the last panels */
    double page_width, page_height;
    double pixels_per_point;  /* in a PNG, where an expert is `pixels` wide */
    int pixels;
} panel_grid;

static const double page_width = 516, page_height = 460, pixels_per_inch = 300;

/* Makes the panels of `columns` as large as the page allows; returns how good that is: their width, less
 * where places stay empty. */
static double try_columns(panel_grid *g, int columns, int n, const panel_needs *need, double heading)
{
    int rows = (n + columns - 1) / columns;
    double across = (page_width - need->left - need->right - (columns - 1) * need->gap_x) / columns;
    double down = (page_height - heading - need->bottom - (rows - 1) * GAP) / rows - need->head;
    double width = fmin(across, down / need->lowest);
    if (width < 4) width = 4; /* a page that grows beyond the size meant */
    g->columns = columns;
    g->rows = rows;
    g->panel_width = width;
    g->panel_height = fmin(fmax(down, width * need->lowest), width * need->highest);
    return width * sqrt((double)n / (rows * columns));
}

static void choose_columns(panel_grid *g, int n, const panel_needs *need, double heading)
{
    panel_grid best = {0};
    double most = -1;
    for (int columns = 1; columns <= n; columns++) {
        double good = try_columns(g, columns, n, need, heading);
        if (good <= most) continue;
        most = good;
        best = *g;
    }
    *g = best;
}

/* Rounds a length up to whole pixels. */
static double snap(const panel_grid *g, double length)
{
    return ceil(length * g->pixels_per_point - 1e-6) / g->pixels_per_point;
}

/* Chooses columns and rows with the largest panels on a page of at most 516 x 460 points and cuts the page
 * to them.  Edges of panels lie on whole pixels. */
static void place_panels(panel_grid *g, exf_drawing *d, const exf_sheet *s, const panel_needs *need)
{
    choose_columns(g, s->n_layers, need, exf_draw_heading(d, page_width, s->title, s->note, 0));
    g->pixels = (int)ceil(g->panel_width * pixels_per_inch / 72 / s->n_experts - 1e-9);
    g->pixels_per_point = s->n_experts * g->pixels / g->panel_width;
    g->panel_height = snap(g, g->panel_height);
    g->step_x = snap(g, g->panel_width + need->gap_x);
    g->step_y = snap(g, g->panel_height + GAP + need->head);
    g->left = snap(g, need->left);
    g->right = g->left + (g->columns - 1) * g->step_x + g->panel_width;
    g->page_width = snap(g, g->right + need->right);
    g->top = snap(g, exf_draw_heading(d, g->page_width, s->title, s->note, 0) + need->head);
    g->bottom = g->top + (g->rows - 1) * g->step_y + g->panel_height;
    g->page_height = snap(g, g->bottom + need->bottom);
}

static exf_box panel_box(const panel_grid *g, int i)
{
    return (exf_box){g->left + i % g->columns * g->step_x, g->top + i / g->columns * g->step_y, g->panel_width, g->panel_height};
}

/* Writes "layer 7", or "7" where that is too wide for `room`, above the panel. */
static void draw_layer_label(exf_drawing *d, const exf_sheet *s, exf_box panel, int i, double room, double above)
{
    char label[32];
    snprintf(label, sizeof label, "layer %d", (int)s->layer_number[i]);
    const char *text = exf_text_width(d, LABEL, label) <= room ? label : label + 6;
    exf_draw_text(d, panel.x, panel.y - above, EXF_START, LABEL, EXF_INK_TEXT, text);
}

/* Draws ticks and numbers of experts under a panel. */
static void draw_expert_ticks(exf_drawing *d, exf_box panel, int n_experts)
{
    exf_ticks t;
    double low = -0.5, high = n_experts - 0.5, y = panel.y + panel.height;
    exf_ticks_fit(&t, d, EXF_AXIS_WHOLE, low, high, panel.width, TICK, 0);
    for (int i = 0; i < t.n; i++) {
        double x = panel.x + panel.width * exf_axis_share(EXF_AXIS_WHOLE, t.at[i], low, high);
        const double stroke[2][2] = {{x, y}, {x, y + STROKE}};
        exf_draw_line(d, stroke, 2, 0, EXF_INK_TEXT);
        exf_draw_text(d, x, y + STROKE + TICK, EXF_MIDDLE, TICK, EXF_INK_TEXT, t.text[i]);
    }
}

/* Draws ticks and numbers left of a panel; share of its height from the top is where each lies. */
static void draw_left_ticks(exf_drawing *d, exf_box panel, const exf_ticks *t, const double share[EXF_TICKS_MAX])
{
    for (int i = 0; i < t->n; i++) {
        double y = panel.y + share[i] * panel.height;
        const double stroke[2][2] = {{panel.x - STROKE, y}, {panel.x, y}};
        exf_draw_line(d, stroke, 2, 0, EXF_INK_TEXT);
        exf_draw_text(d, panel.x - STROKE - 1.5, y + 0.36 * TICK, EXF_END, TICK, EXF_INK_TEXT,
                      t->text[i]);
    }
}

/* ---- bars: a panel per layer, a bar per expert --------------------------------------------------- */

enum { OUTLIER = 3, EXTREME_TEXT = 40 };

static const char expert_text[] = "expert";
static const double small = 5.5, mark = 3;

/* The experts that stand out in one layer; -1: none. */
typedef struct {
    int least, most, outlier;
    double top; /* of the axis */
} extremes;

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
        if (s->tokens[(size_t)layer * (size_t)s->sheet.n_experts + (size_t)e] == 0) continue; /* cold */
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

static void draw_one_bar(exf_drawing *d, const exf_bar_sheet *s, const panel_grid *g, int i, int e, const extremes *x)
{
    int is_cold = s->tokens[(size_t)i * (size_t)s->sheet.n_experts + (size_t)e] == 0;
    exf_ink ink = e == x->most ? EXF_INK_HIGH : e == x->least ? EXF_INK_LOW : is_cold ? EXF_INK_GREY : EXF_INK_BAR;
    exf_box panel = panel_box(g, i);
    double room = panel.height - 2 * mark, cell = panel.width / s->sheet.n_experts;
    double height = e == x->outlier ? room : fmin(room, bar_value(s, i, e) / x->top * room); /* a cold one's may be above all */
    double width = g->pixels > 3 ? cell * (g->pixels - 1) / g->pixels : cell;
    exf_box bar = {panel.x + e * cell, panel.y + panel.height - height, width, height};
    exf_draw_fill(d, bar, ink);
    if (e == x->outlier)
        for (double y = 1; y < height; y += 2)
            exf_draw_fill(d, (exf_box){bar.x, bar.y + y, width, fmin(1, height - y)}, EXF_INK_PAPER);
    if (e != x->most && e != x->least) return;
    double tip = panel.y + 1 + mark, middle = bar.x + width / 2;
    exf_draw_pointer(d, middle, tip, mark, ink);
    if (bar.y > tip + 1) exf_draw_dashes(d, middle, tip + 1, middle, bar.y, 1, ink);
}

/* ---- heads: "layer 3", and the extremes beside or below it ----------------------------------------- */

/* How heads are written: all in one line, or below the layer in one line or two, there without words. */
typedef enum { ONE_LINE, TWO_LINES, THREE_LINES } head_form;

typedef struct {
    char most[EXTREME_TEXT], least[EXTREME_TEXT];
} extreme_texts;

/* Writes "9.12 at 14" of the largest and the least: three digits, but all of those before the point. */
static extreme_texts name_extremes(const exf_bar_sheet *s, int layer, const extremes *x, head_form form)
{
    extreme_texts t = {.most = ""};
    for (int k = 0; k < 2; k++) {
        char *text = k ? t.least : t.most;
        const char *word = form != ONE_LINE ? "" : k ? "min " : "max ";
        int e = k ? x->least : x->most;
        double v = e < 0 ? 0 : bar_value(s, layer, e);
        if (e < 0) continue;
        if (v >= 1 && v < 1e5)
            snprintf(text, EXTREME_TEXT, "%s%.*f at %d", word, v < 10 ? 2 : v < 100 ? 1 : 0, v, e);
        else
            snprintf(text, EXTREME_TEXT, "%s%.3g at %d", word, v, e);
    }
    return t;
}

static void draw_head(exf_drawing *d, const exf_bar_sheet *s, exf_box panel, int i, const extremes *x, head_form form)
{
    extreme_texts t = name_extremes(s, i, x, form);
    double line = 1.3 * small, right = panel.x + panel.width, y = panel.y - 2.5;
    draw_layer_label(d, &s->sheet, panel, i, panel.width, 2.5 + line * (int)form);
    if (form == ONE_LINE) {
        exf_draw_text(d, right, y, EXF_END, small, EXF_INK_HIGH, t.most);
        exf_draw_text(d, right - exf_text_width(d, small, t.most) - 5, y, EXF_END, small, EXF_INK_LOW, t.least);
    } else {
        exf_draw_text(d, panel.x, form == THREE_LINES ? y - line : y, EXF_START, small, EXF_INK_HIGH, t.most);
        exf_draw_text(d, form == THREE_LINES ? panel.x : right, y, form == THREE_LINES ? EXF_START : EXF_END, small, EXF_INK_LOW,
                      t.least);
    }
}

/* ---- the sheet ----------------------------------------------------------------------------------- */

static void draw_bars(exf_drawing *d, const exf_bar_sheet *s, const panel_grid *g, int i, head_form form)
{
    extremes x = find_extremes(s, i);
    exf_box panel = panel_box(g, i);
    exf_ticks t;
    double share[EXF_TICKS_MAX], room = panel.height - 2 * mark; /* what is above the bars is for marks */
    for (int e = 0; e < s->sheet.n_experts; e++)
        if (e != x.least && e != x.most) draw_one_bar(d, s, g, i, e, &x);
    if (x.least >= 0) draw_one_bar(d, s, g, i, x.least, &x);
    if (x.most >= 0 && x.most != x.least) draw_one_bar(d, s, g, i, x.most, &x);
    exf_draw_frame(d, panel, EXF_INK_SOFT);
    draw_head(d, s, panel, i, &x, form);
    exf_ticks_fit(&t, d, EXF_AXIS_REAL, 0, x.top, room, TICK, 1);
    for (int k = 0; k < t.n; k++) share[k] = 1 - t.at[k] / x.top * room / panel.height;
    draw_left_ticks(d, panel, &t, share);
    if (i + g->columns >= s->sheet.n_layers) draw_expert_ticks(d, panel, s->sheet.n_experts); /* no panel is below */
}

/* Places the panels with the first form of heads that fits above them. */
static head_form place_bars(panel_grid *g, const exf_bar_sheet *s, exf_drawing *d)
{
    double widest = 0; /* number at any layer's axis */
    for (int i = 0; i < s->sheet.n_layers; i++) {
        exf_ticks t;
        exf_ticks_at(&t, EXF_AXIS_REAL, 0, find_extremes(s, i).top, EXF_TICKS_MAX);
        widest = fmax(widest, exf_ticks_width(&t, d, TICK));
    }
    double number = widest + STROKE + 1.5;
    panel_needs needs = {.left = MARGIN + LABEL + 4 + number, .right = MARGIN + 2,
                             .bottom = STROKE + TICK + 4 + LABEL + MARGIN,
                             .gap_x = number + GAP, .lowest = 0.4, .highest = 0.75};
    for (head_form form = ONE_LINE;; form++) {
        double label = form == ONE_LINE ? exf_text_width(d, LABEL, "layer 000") + 5 : 0;
        int fits = 1;
        needs.head = LABEL + 2.5 + 1.3 * small * (int)form;
        place_panels(g, d, &s->sheet, &needs);
        for (int i = 0; i < s->sheet.n_layers && fits; i++) {
            extremes x = find_extremes(s, i);
            extreme_texts t = name_extremes(s, i, &x, form);
            fits = !(label + exf_text_width(d, small, t.most) + 5 + exf_text_width(d, small, t.least) > g->panel_width);
        }
        if (form == THREE_LINES || fits) return form;
    }
}

exf_code exf_draw_bars(const exf_bar_sheet *s, exf_drawing *d, exf_err *err)
{
    panel_grid g = {0};
    head_form form = place_bars(&g, s, d);
    exf_code rc = exf_drawing_page(d, g.page_width, g.page_height, g.pixels_per_point, s->sheet.title, err);
    if (rc != EXF_OK) return rc;
    exf_draw_heading(d, g.page_width, s->sheet.title, s->sheet.note, 1);
    for (int i = 0; i < s->sheet.n_layers; i++) draw_bars(d, s, &g, i, form);
    exf_draw_text(d, (g.left + g.right) / 2, g.page_height - MARGIN, EXF_MIDDLE, LABEL, EXF_INK_TEXT,
                  expert_text);
    exf_draw_text_up(d, MARGIN + 0.75 * LABEL, (g.top + g.bottom) / 2, EXF_MIDDLE, LABEL,
                     EXF_INK_TEXT, s->value_label);
    return EXF_OK;
}

/* ---- matrices: a panel per layer, coloured ------------------------------------------------------- */

static const char grey_text[] = "no evidence", source_text[] = "source expert", target_text[] = "target expert";
static const double bar_width = 9, bar_most = 220, swatch = 6;

static void draw_bar_numbers(exf_drawing *d, const exf_matrix_sheet *s, exf_box bar)
{
    exf_ticks t;
    double right = bar.x + bar.width;
    exf_ticks_fit(&t, d, EXF_AXIS_REAL, s->low, s->high, bar.height, 1.6 * TICK, 1);
    for (int i = 0; i < t.n; i++) {
        double y = bar.y + bar.height * (1 - exf_axis_share(EXF_AXIS_REAL, t.at[i], s->low, s->high));
        const double stroke[2][2] = {{right, y}, {right + STROKE, y}};
        exf_draw_line(d, stroke, 2, 0, EXF_INK_TEXT);
        exf_draw_text(d, right + STROKE + 1.5, y + 0.36 * TICK, EXF_START, TICK, EXF_INK_TEXT,
                      t.text[i]);
    }
    exf_draw_text_up(d, right + STROKE + 4.5 + exf_ticks_width(&t, d, TICK) + 0.75 * LABEL,
                     bar.y + bar.height / 2, EXF_MIDDLE, LABEL, EXF_INK_TEXT, s->bar_label);
}

static void draw_colour_bar(exf_drawing *d, const exf_matrix_sheet *s, const panel_grid *g)
{
    exf_ink point[EXF_COLOUR_POINTS];
    exf_box bar = {g->right + 2 * GAP, g->top, bar_width, fmin(g->bottom - g->top - 2 * TICK, bar_most)};
    for (int i = 0; i < EXF_COLOUR_POINTS; i++) point[i] = exf_colour_of(s->map, i, 0, EXF_COLOUR_POINTS - 1);
    exf_draw_gradient(d, bar, point, EXF_COLOUR_POINTS);
    exf_draw_frame(d, bar, EXF_INK_SOFT);
    draw_bar_numbers(d, s, bar);
    exf_box grey = {bar.x, bar.y + bar.height + TICK, swatch, swatch};
    exf_draw_fill(d, grey, EXF_INK_GREY);
    exf_draw_text(d, grey.x + swatch + 3, grey.y + swatch - 0.5, EXF_START, TICK, EXF_INK_TEXT, grey_text);
}

/* Draws layer i; ink [E, E] is scratch. */
static void draw_matrix(exf_drawing *d, const exf_matrix_sheet *s, const panel_grid *g, int i, exf_ink *ink)
{
    exf_box panel = panel_box(g, i);
    int n = s->sheet.n_experts;
    size_t e = (size_t)n;
    const float *value = s->value + (size_t)i * e * e;
    exf_ticks t;
    double share[EXF_TICKS_MAX], low = -0.5, high = n - 0.5;
    for (size_t k = 0; k < e * e; k++) {
        ink[k] = isnan(value[k]) ? EXF_INK_GREY : exf_colour_of(s->map, (double)value[k], s->low, s->high);
        if (s->hide_self && k / e == k % e) ink[k] = EXF_INK_PAPER;
    }
    draw_layer_label(d, &s->sheet, panel, i, panel.width, 2.5);
    exf_draw_cells(d, panel, n, n, ink);
    exf_draw_frame(d, panel, EXF_INK_SOFT);
    if (i % g->columns == 0) { /* the numbers of source experts */
        exf_ticks_fit(&t, d, EXF_AXIS_WHOLE, low, high, panel.height, TICK, 1);
        for (int k = 0; k < t.n; k++) share[k] = exf_axis_share(EXF_AXIS_WHOLE, t.at[k], low, high);
        draw_left_ticks(d, panel, &t, share);
    }
    if (i + g->columns >= s->sheet.n_layers) draw_expert_ticks(d, panel, n); /* no panel is below */
}

exf_code exf_draw_matrices(const exf_matrix_sheet *s, exf_drawing *d, exf_err *err)
{
    size_t e = (size_t)s->sheet.n_experts;
    panel_grid g = {0};
    exf_ink *ink = NULL;
    char widest[16];
    exf_ticks t;
    exf_code rc;
    snprintf(widest, sizeof widest, "%d", s->sheet.n_experts);
    exf_ticks_at(&t, EXF_AXIS_REAL, s->low, s->high, EXF_TICKS_MAX);
    double numbers = bar_width + STROKE + 1.5 + exf_ticks_width(&t, d, TICK) + 3 + LABEL;
    double word = swatch + 3 + exf_text_width(d, TICK, grey_text);
    panel_needs needs = {
        .left = MARGIN + LABEL + 4 + exf_text_width(d, TICK, widest) + STROKE + 1.5,
        .right = 2 * GAP + fmax(numbers, word) + MARGIN, /* the colour bar, its numbers, its label, and the word under it */
        .bottom = STROKE + TICK + 4 + LABEL + MARGIN,
        .head = LABEL + 2.5, .gap_x = GAP, .lowest = 1, .highest = 1};
    place_panels(&g, d, &s->sheet, &needs);
    EXF_TRY(exf_drawing_page(d, g.page_width, g.page_height, g.pixels_per_point, s->sheet.title, err));
    exf_draw_heading(d, g.page_width, s->sheet.title, s->sheet.note, 1);
    EXF_TRY(exf_mem_new(&ink, e * e, sizeof *ink, "cells of a picture", err));
    for (int i = 0; i < s->sheet.n_layers; i++) draw_matrix(d, s, &g, i, ink);
    exf_draw_text_up(d, MARGIN + 0.75 * LABEL, (g.top + g.bottom) / 2, EXF_MIDDLE, LABEL,
                     EXF_INK_TEXT, source_text);
    exf_draw_text(d, (g.left + g.right) / 2, g.page_height - MARGIN, EXF_MIDDLE, LABEL, EXF_INK_TEXT,
                  target_text);
    draw_colour_bar(d, s, &g);
out:
    exf_mem_free(ink);
    return rc;
}

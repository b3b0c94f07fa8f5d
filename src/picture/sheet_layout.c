/* sheet_layout.c - see sheet_internal.h. */
#include "picture/heading.h"
#include "picture/sheet_internal.h"

#include <math.h>
#include <stdio.h>

static const double page_width = 516, page_height = 460, pixels_per_inch = 300;

/* Makes the panels of `columns` as large as the page allows; returns how good that is: their width, less
 * where places stay empty. */
static double try_columns(exf_panel_grid *g, int columns, int n, const exf_panel_needs *need, double heading)
{
    int rows = (n + columns - 1) / columns;
    double across = (page_width - need->left - need->right - (columns - 1) * need->gap_x) / columns;
    double down = (page_height - heading - need->bottom - (rows - 1) * EXF_SHEET_GAP) / rows - need->head;
    double width = fmin(across, down / need->lowest);
    if (width < 4) width = 4; /* a page that grows beyond the size meant */
    g->columns = columns;
    g->rows = rows;
    g->panel_width = width;
    g->panel_height = fmin(fmax(down, width * need->lowest), width * need->highest);
    return width * sqrt((double)n / (rows * columns));
}

static void choose_columns(exf_panel_grid *g, int n, const exf_panel_needs *need, double heading)
{
    exf_panel_grid best = {0};
    double most = -1;
    for (int columns = 1; columns <= n; columns++) {
        double good = try_columns(g, columns, n, need, heading);
        if (good <= most) continue;
        most = good;
        best = *g;
    }
    *g = best;
}

static double snap(const exf_panel_grid *g, double length)
{
    return ceil(length * g->pixels_per_point - 1e-6) / g->pixels_per_point;
}

void exf_panel_grid_place(exf_panel_grid *g, exf_drawing *d, const exf_sheet *s, const exf_panel_needs *need)
{
    choose_columns(g, s->n_layers, need, exf_heading_height(d, page_width, s->title, s->note));
    g->pixels = (int)ceil(g->panel_width * pixels_per_inch / 72 / s->n_experts - 1e-9);
    g->pixels_per_point = s->n_experts * g->pixels / g->panel_width;
    g->panel_height = snap(g, g->panel_height);
    g->step_x = snap(g, g->panel_width + need->gap_x);
    g->step_y = snap(g, g->panel_height + EXF_SHEET_GAP + need->head);
    g->left = snap(g, need->left);
    g->right = g->left + (g->columns - 1) * g->step_x + g->panel_width;
    g->page_width = snap(g, g->right + need->right);
    g->top = snap(g, exf_heading_height(d, g->page_width, s->title, s->note) + need->head);
    g->bottom = g->top + (g->rows - 1) * g->step_y + g->panel_height;
    g->page_height = snap(g, g->bottom + need->bottom);
}

exf_code exf_panel_grid_page(const exf_panel_grid *g, const exf_sheet *s, exf_drawing *d, exf_err *err)
{
    exf_code rc = exf_drawing_page(d, g->page_width, g->page_height, g->pixels_per_point, s->title, err);
    if (rc == EXF_OK) exf_draw_heading(d, g->page_width, s->title, s->note);
    return rc;
}

exf_box exf_panel_box(const exf_panel_grid *g, int i)
{
    return (exf_box){g->left + i % g->columns * g->step_x, g->top + i / g->columns * g->step_y, g->panel_width, g->panel_height};
}

int exf_panel_is_lowest(const exf_panel_grid *g, int i, int n)
{
    return i + g->columns >= n;
}

void exf_draw_layer_label(exf_drawing *d, const exf_sheet *s, exf_box panel, int i, double room, double above)
{
    char label[32];
    snprintf(label, sizeof label, "layer %d", (int)s->layer_number[i]);
    const char *text = exf_text_width(d, EXF_SHEET_LABEL, label) <= room ? label : label + 6;
    exf_draw_text(d, panel.x, panel.y - above, EXF_START, EXF_SHEET_LABEL, EXF_INK_TEXT, text);
}

void exf_draw_expert_ticks(exf_drawing *d, exf_box panel, int n_experts)
{
    exf_ticks t;
    double low = -0.5, high = n_experts - 0.5, y = panel.y + panel.height;
    exf_ticks_fit(&t, d, EXF_AXIS_WHOLE, low, high, panel.width, EXF_SHEET_TICK, 0);
    for (int i = 0; i < t.n; i++) {
        double x = panel.x + panel.width * exf_axis_share(EXF_AXIS_WHOLE, t.at[i], low, high);
        const double stroke[2][2] = {{x, y}, {x, y + EXF_SHEET_STROKE}};
        exf_draw_line(d, stroke, 2, 0, EXF_INK_TEXT);
        exf_draw_text(d, x, y + EXF_SHEET_STROKE + EXF_SHEET_TICK, EXF_MIDDLE, EXF_SHEET_TICK, EXF_INK_TEXT, t.text[i]);
    }
}

void exf_draw_left_ticks(exf_drawing *d, exf_box panel, const exf_ticks *t, const double share[EXF_TICKS_MAX])
{
    for (int i = 0; i < t->n; i++) {
        double y = panel.y + share[i] * panel.height;
        const double stroke[2][2] = {{panel.x - EXF_SHEET_STROKE, y}, {panel.x, y}};
        exf_draw_line(d, stroke, 2, 0, EXF_INK_TEXT);
        exf_draw_text(d, panel.x - EXF_SHEET_STROKE - 1.5, y + 0.36 * EXF_SHEET_TICK, EXF_END, EXF_SHEET_TICK, EXF_INK_TEXT,
                      t->text[i]);
    }
}

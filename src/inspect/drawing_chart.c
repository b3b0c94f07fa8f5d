/* drawing_chart.c - panels of a quantity over its costs; see drawing.h. */
#include "inspect/drawing.h"

#include <math.h>

static const double page_width = 516, panel_height = 210, margin = 8, gap = 14, pixels_per_point = 300.0 / 72;
static const double label_size = 7, tick_size = 6, stroke = 2.5, radius = 1.8;

/* The panels' places, and the ends of their axes. */
typedef struct {
    exf_box panel;                   /* of the panel that is drawn */
    double cheap, costly, low, high; /* costs of this panel, values of all */
} frame;

/* Finds the ends of the axis of values: of all points with their error bars, but no bar below half its value. */
static void find_values(const exf_chart *c, frame *f)
{
    f->low = INFINITY;
    f->high = 0;
    for (size_t k = 0; k < c->n_panels; k++)
        for (size_t i = 0; i < c->panel[k].n; i++) {
            const exf_chart_point *p = &c->panel[k].point[i];
            if (!(p->value > 0)) continue;
            f->low = fmin(f->low, fmax(p->value - p->error, p->value / 2));
            f->high = fmax(f->high, p->value + p->error);
        }
    if (!(f->low <= f->high)) f->low = f->high = 1;
    double room = f->high / f->low < 2 ? 1.5 : pow(f->high / f->low, 0.06);
    f->low /= room;
    f->high *= room;
}

static double x_of(const frame *f, double cost)
{
    return f->panel.x + f->panel.width * exf_axis_share(EXF_AXIS_REAL, cost, f->cheap, f->costly);
}

static double y_of(const frame *f, double value)
{
    double share = exf_axis_share(EXF_AXIS_LOG, value, f->low, f->high);
    return f->panel.y + f->panel.height * (1 - (share < 0 ? 0 : share > 1 ? 1 : share));
}

static void draw_cost_axis(exf_drawing *d, const frame *f, const char *label)
{
    exf_ticks t;
    double bottom = f->panel.y + f->panel.height;
    exf_ticks_fit(&t, d, EXF_AXIS_REAL, f->cheap, f->costly, f->panel.width, 2 * tick_size, 0);
    for (int i = 0; i < t.n; i++) {
        double x = x_of(f, t.at[i]);
        const double down[2][2] = {{x, bottom}, {x, bottom + stroke}};
        exf_draw_line(d, down, 2, 0, EXF_INK_TEXT);
        exf_draw_text(d, x, bottom + stroke + tick_size, EXF_MIDDLE, tick_size, EXF_INK_TEXT, t.text[i]);
    }
    exf_draw_text(d, f->panel.x + f->panel.width / 2, bottom + stroke + tick_size + 4 + label_size, EXF_MIDDLE, label_size,
                  EXF_INK_TEXT, label);
}

/* ---- points ------------------------------------------------------------------------------------- */

/* Returns 1 if a tag in this box covers nothing. */
static int is_free(const exf_drawing *d, const frame *f, const exf_chart_panel *p, const exf_box *box)
{
    size_t n;
    const exf_box *text = exf_drawing_texts(d, &n);
    const exf_box *in = &f->panel;
    double at = x_of(f, p->reference);
    exf_box reference = {at - 0.5, in->y, 1, in->height};
    int is_inside = box->x >= in->x && box->y >= in->y && box->x + box->width <= in->x + in->width &&
                    box->y + box->height <= in->y + in->height;
    if (!is_inside || exf_boxes_meet(box, &reference)) return 0;
    for (size_t i = 0; i < p->n_line; i++) { /* the two parts of a step, as boxes of the line's width */
        const exf_chart_point *a = &p->point[p->line[i]], *b = i + 1 < p->n_line ? &p->point[p->line[i + 1]] : NULL;
        double y = y_of(f, a->value), x = x_of(f, a->cost), end = b ? x_of(f, b->cost) : in->x + in->width;
        exf_box level = {x, y - 0.6, end - x, 1.2}, down = {end - 0.6, y, 1.2, b ? y_of(f, b->value) - y : 0};
        if (exf_boxes_meet(box, &level) || exf_boxes_meet(box, &down)) return 0;
    }
    for (size_t i = 0; i < n; i++)
        if (exf_boxes_meet(box, &text[i])) return 0;
    for (size_t i = 0; i < p->n; i++) {
        if (!(p->point[i].value > 0)) continue;
        exf_box dot = {x_of(f, p->point[i].cost) - radius, y_of(f, p->point[i].value) - radius, 2 * radius, 2 * radius};
        if (exf_boxes_meet(box, &dot)) return 0;
    }
    return 1;
}

/* Draws the tag at the nearest place beside the point where it covers nothing, the right side first; a thin line leads to
 * one that is far.  A tag for which no place is left is not drawn: the legend has its numbers. */
static void draw_tag(exf_drawing *d, const frame *f, const exf_chart_panel *p, const exf_chart_point *point)
{
    enum { AROUND = 16 };
    static const double full_turn = 6.28318530717958647692, near = 5.5;
    double width = exf_text_width(d, tick_size, point->tag) + 1, height = 0.95 * tick_size;
    double x = x_of(f, point->cost), y = y_of(f, point->value);
    for (double away = near; away < 80; away += 2)
        for (int i = 0; i < AROUND; i++) {
            double turn = full_turn * (i % 2 ? -(i + 1) / 2 : i / 2) / AROUND;
            double at_x = x + away * cos(turn), at_y = y + away * sin(turn);
            exf_box box = {at_x - width / 2, at_y - height / 2, width, height};
            if (!is_free(d, f, p, &box)) continue;
            const double lead[2][2] = {{x, y}, {x + (away - 3.5) * cos(turn), y + (away - 3.5) * sin(turn)}};
            if (away > near + 4) exf_draw_line(d, lead, 2, 0.3, EXF_INK_SOFT);
            exf_draw_text(d, at_x, at_y + 0.36 * tick_size, EXF_MIDDLE, tick_size, point->filled ? EXF_INK_TEXT : EXF_INK_SOFT,
                          point->tag);
            return;
        }
}

static void draw_points(exf_drawing *d, const frame *f, const exf_chart_panel *p)
{
    for (int filled = 0; filled < 2; filled++) /* the filled ones last, so that nothing covers them */
        for (size_t i = 0; i < p->n; i++) {
            const exf_chart_point *point = &p->point[i];
            if (!(point->value > 0) || (point->filled != 0) != filled) continue;
            exf_ink ink = filled ? EXF_INK_LOW : EXF_INK_SOFT;
            double x = x_of(f, point->cost);
            const double bar[2][2] = {{x, y_of(f, point->value + point->error)}, {x, y_of(f, point->value - point->error)}};
            if (point->error > 0) exf_draw_line(d, bar, 2, 0.6, ink);
            for (int end = 0; point->error > 0 && end < 2; end++) {
                const double cap[2][2] = {{x - 1.5, bar[end][1]}, {x + 1.5, bar[end][1]}};
                exf_draw_line(d, cap, 2, 0.6, ink);
            }
            exf_draw_dot(d, x, y_of(f, point->value), radius, ink, filled);
        }
    for (size_t i = 0; i < p->n; i++)
        if (p->point[i].value > 0) draw_tag(d, f, p, &p->point[i]);
}

static void draw_panel(exf_drawing *d, frame *f, const exf_chart *c, size_t k)
{
    const exf_chart_panel *p = &c->panel[k];
    exf_ticks t;
    f->cheap = f->costly = p->reference;
    for (size_t i = 0; i < p->n; i++) {
        f->cheap = fmin(f->cheap, p->point[i].cost);
        f->costly = fmax(f->costly, p->point[i].cost);
    }
    double room = f->costly > f->cheap ? 0.06 * (f->costly - f->cheap) : 1;
    f->cheap = f->cheap > 0 ? fmax(0, f->cheap - room) : f->cheap - room;
    f->costly += room;
    exf_ticks_fit(&t, d, EXF_AXIS_LOG, f->low, f->high, f->panel.height, tick_size, 1);
    for (int i = 0; i < t.n; i++) { /* the axis of values, whose numbers the first panel has */
        double y = y_of(f, t.at[i]);
        const double across[2][2] = {{f->panel.x, y}, {f->panel.x + f->panel.width, y}};
        exf_draw_line(d, across, 2, 0, EXF_INK_FAINT);
        if (k == 0) exf_draw_text(d, f->panel.x - 3, y + 0.36 * tick_size, EXF_END, tick_size, EXF_INK_TEXT, t.text[i]);
    }
    draw_cost_axis(d, f, p->cost_label);
    double x = x_of(f, p->reference);
    exf_draw_dashes(d, x, f->panel.y, x, f->panel.y + f->panel.height, 2, EXF_INK_SOFT);
    exf_draw_text_up(d, x - 2, f->panel.y + 3, EXF_END, tick_size, EXF_INK_SOFT, c->reference_label);
    for (size_t i = 0; i < p->n_line; i++) { /* level from a point to the next one's cost, and from the last to the panel's edge */
        const exf_chart_point *a = &p->point[p->line[i]], *b = i + 1 < p->n_line ? &p->point[p->line[i + 1]] : NULL;
        double y = y_of(f, a->value), end = b ? x_of(f, b->cost) : f->panel.x + f->panel.width;
        const double step[3][2] = {{x_of(f, a->cost), y}, {end, y}, {end, b ? y_of(f, b->value) : y}};
        exf_draw_line(d, step, 3, 1.2, EXF_INK_BAR);
    }
    exf_draw_frame(d, f->panel, EXF_INK_SOFT);
    draw_points(d, f, p);
}

/* ---- legend and page ------------------------------------------------------------------------------ */

exf_code exf_draw_chart(const exf_chart *c, exf_drawing *d, exf_err *err)
{
    exf_ticks t;
    frame f;
    find_values(c, &f);
    exf_ticks_at(&t, EXF_AXIS_LOG, f.low, f.high, EXF_TICKS_MAX);
    double heading = exf_draw_heading(d, page_width, c->title, c->note, 0);
    double left = margin + label_size + 4 + exf_ticks_width(&t, d, tick_size) + 3, inner = page_width - left - margin;
    double below = heading + panel_height + stroke + tick_size + 4 + label_size + 6;
    double widest = 1; /* text of the legend */
    for (size_t i = 0; i < c->n_legend; i++) widest = fmax(widest, exf_text_width(d, tick_size, c->legend[i]));
    size_t fit = (size_t)(inner / (widest + gap)), columns = fit < 1 ? 1 : fit > 4 ? 4 : fit;
    size_t rows = (c->n_legend + columns - 1) / columns;
    exf_code rc = exf_drawing_page(d, page_width, below + (double)rows * 1.4 * tick_size + margin, pixels_per_point, c->title, err);
    if (rc != EXF_OK) return rc;
    exf_draw_heading(d, page_width, c->title, c->note, 1);
    exf_draw_text_up(d, margin + 0.75 * label_size, heading + panel_height / 2, EXF_MIDDLE, label_size, EXF_INK_TEXT,
                     c->value_label);
    double wide = (inner - gap * (double)(c->n_panels - 1)) / (double)c->n_panels;
    for (size_t k = 0; k < c->n_panels; k++) {
        f.panel = (exf_box){left + (double)k * (wide + gap), heading, wide, panel_height};
        draw_panel(d, &f, c, k);
    }
    for (size_t i = 0; i < c->n_legend; i++) /* in columns that are read downwards */
        exf_draw_text(d, left + (double)(i / rows) * inner / (double)columns, below + (double)(i % rows + 1) * 1.4 * tick_size,
                      EXF_START, tick_size, EXF_INK_TEXT, c->legend[i]);
    return EXF_OK;
}

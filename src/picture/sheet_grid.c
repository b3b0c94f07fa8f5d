/* sheet_grid.c - see sheet_internal.h. */
#include "picture/sheet_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A few stand in one row; more in a grid a bit wider than high with the fewest empty
 * places. */
static int columns_for(int n)
{
    enum { ONE_ROW = 4 };
    if (n <= ONE_ROW) return n;
    double side = sqrt((double)n);
    int best = 0, best_empty = 0;
    double best_off = 0;
    for (int c = (int)ceil(side); c <= (int)ceil(1.6 * side); c++) {
        int empty = (n + c - 1) / c * c - n;
        double off = fabs(c - 1.22 * side);
        if (best && (empty > best_empty || (empty == best_empty && off >= best_off))) continue;
        best = c;
        best_empty = empty;
        best_off = off;
    }
    return best;
}

void exf_panel_grid_place(exf_panel_grid *g, const exf_sheet *s, int gap_x, int gap_y)
{
    g->columns = columns_for(s->n_layers);
    g->rows = (s->n_layers + g->columns - 1) / g->columns;
    g->top = MARGIN + LINE + LINE / 2 + (s->note ? LINE + LINE / 2 : 0) + LINE + GAP;
    g->step_x = g->panel_width + gap_x;
    g->step_y = g->panel_height + gap_y;
    g->right = g->left + g->columns * g->step_x - gap_x;
    g->bottom = g->top + g->rows * g->step_y - gap_y;
}

exf_code exf_panel_grid_canvas(const exf_panel_grid *g, const exf_sheet *s, int right, int bottom, exf_canvas *out, exf_err *err)
{
    int width = g->right + right + MARGIN, title = exf_text_width(s->title, TEXT),
        note = s->note ? exf_text_width(s->note, TEXT) : 0;
    int text = 2 * MARGIN + (title > note ? title : note);
    exf_code rc = exf_canvas_new(out, width > text ? width : text, g->bottom + bottom + MARGIN, err);
    if (rc != EXF_OK) return rc;
    exf_canvas_text(out, MARGIN, MARGIN, TEXT, EXF_INK_TEXT, s->title);
    if (s->note) exf_canvas_text(out, MARGIN, MARGIN + LINE + LINE / 2, TEXT, EXF_INK_SOFT, s->note);
    return EXF_OK;
}

int exf_panel_x(const exf_panel_grid *g, int i)
{
    return g->left + i % g->columns * g->step_x;
}

int exf_panel_y(const exf_panel_grid *g, int i)
{
    return g->top + i / g->columns * g->step_y;
}

int exf_panel_is_lowest(const exf_panel_grid *g, int i, int n)
{
    return i + g->columns >= n;
}

void exf_draw_expert_ticks(exf_canvas *c, const exf_panel_grid *g, int i, int n_experts)
{
    double tick[EXF_TICKS_MAX];
    int digits, n = exf_ticks(0, n_experts > 1 ? n_experts - 1 : 1, g->panel_width / (4 * GLYPH), tick, &digits);
    int y = exf_panel_y(g, i) + g->panel_height;
    for (int k = 0; k < n; k++) {
        char text[16];
        if (rint(tick[k]) != tick[k]) continue;
        int x = exf_panel_x(g, i) + (int)tick[k] * g->cell + g->cell / 2;
        exf_number_text(text, sizeof text, tick[k], 0);
        exf_canvas_fill(c, x, y + 1, 1, TICK, EXF_INK_TEXT);
        exf_canvas_text(c, x - exf_text_width(text, TEXT) / 2 + TEXT / 2, y + TICK + 2, TEXT, EXF_INK_TEXT, text);
    }
}

void exf_number_text(char *buf, size_t n, double value, int digits)
{
    snprintf(buf, n, "%.*f", digits, value);
    if (buf[0] == '-' && strspn(buf + 1, "0.") == strlen(buf + 1)) memmove(buf, buf + 1, strlen(buf));
}

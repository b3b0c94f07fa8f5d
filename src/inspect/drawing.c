/* drawing.c - the shapes and the letters of a drawing, and the heading above a picture; see drawing.h. */
#include "inspect/drawing_internal.h"

#include "base/mem.h"
#include "inspect/drawing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double thin = 0.4;

enum { SHAPES_MOST = 32, IMAGE_DPI = 300, IMAGE_LEAST = 3 };

static void set_ink(cairo_t *c, exf_ink ink)
{
    cairo_set_source_rgb(c, (ink >> 16 & 255) / 255.0, (ink >> 8 & 255) / 255.0, (ink & 255) / 255.0);
}

void exf_draw_fill(exf_drawing *d, exf_box box, exf_ink ink)
{
    set_ink(d->page, ink);
    cairo_rectangle(d->page, box.x, box.y, box.width, box.height);
    cairo_fill(d->page);
}

void exf_draw_frame(exf_drawing *d, exf_box box, exf_ink ink)
{
    set_ink(d->page, ink);
    cairo_set_line_width(d->page, thin);
    cairo_rectangle(d->page, box.x - thin / 2, box.y - thin / 2, box.width + thin, box.height + thin);
    cairo_stroke(d->page);
}

void exf_draw_line(exf_drawing *d, const double (*xy)[2], size_t n, double width, exf_ink ink)
{
    set_ink(d->page, ink);
    cairo_set_line_width(d->page, width > 0 ? width : thin);
    cairo_new_path(d->page); /* a text leaves the current point at its end */
    for (size_t i = 0; i < n; i++) cairo_line_to(d->page, xy[i][0], xy[i][1]);
    cairo_stroke(d->page);
}

void exf_draw_dashes(exf_drawing *d, double x0, double y0, double x1, double y1, double dash, exf_ink ink)
{
    const double ends[2][2] = {{x0, y0}, {x1, y1}};
    cairo_set_dash(d->page, &dash, 1, 0);
    exf_draw_line(d, ends, 2, thin, ink);
    cairo_set_dash(d->page, NULL, 0, 0);
}

void exf_draw_dot(exf_drawing *d, double x, double y, double radius, exf_ink ink, int filled)
{
    static const double pi = 3.14159265358979323846;
    cairo_new_sub_path(d->page);
    cairo_arc(d->page, x, y, radius, 0, 2 * pi);
    cairo_close_path(d->page);
    set_ink(d->page, filled ? ink : EXF_INK_PAPER);
    cairo_fill_preserve(d->page);
    set_ink(d->page, ink);
    cairo_set_line_width(d->page, 2 * thin);
    cairo_stroke(d->page);
}

void exf_draw_pointer(exf_drawing *d, double x, double y, double size, exf_ink ink)
{
    set_ink(d->page, ink);
    cairo_move_to(d->page, x, y);
    cairo_line_to(d->page, x - size / 2, y - size);
    cairo_line_to(d->page, x + size / 2, y - size);
    cairo_close_path(d->page);
    cairo_fill(d->page);
}

void exf_draw_gradient(exf_drawing *d, exf_box box, const exf_ink *ink, int n)
{
    cairo_pattern_t *p = cairo_pattern_create_linear(0, box.y + box.height, 0, box.y);
    for (int i = 0; i < n; i++)
        cairo_pattern_add_color_stop_rgb(p, (double)i / (n - 1), (ink[i] >> 16 & 255) / 255.0, (ink[i] >> 8 & 255) / 255.0,
                                         (ink[i] & 255) / 255.0);
    cairo_set_source(d->page, p);
    cairo_rectangle(d->page, box.x, box.y, box.width, box.height);
    cairo_fill(d->page);
    cairo_pattern_destroy(p);
}

/* ---- cells --------------------------------------------------------------------------------- */

/* Makes an image in which a cell is a square of `times` pixels. */
static cairo_surface_t *make_image(int columns, int rows, int times, const exf_ink *ink)
{
    cairo_surface_t *s = cairo_image_surface_create(CAIRO_FORMAT_RGB24, columns * times, rows * times);
    if (cairo_surface_status(s) != CAIRO_STATUS_SUCCESS) return s;
    unsigned char *bytes = cairo_image_surface_get_data(s);
    int stride = cairo_image_surface_get_stride(s);
    for (int y = 0; y < rows * times; y++) {
        uint32_t *line = (uint32_t *)(void *)(bytes + (size_t)y * (size_t)stride);
        for (int x = 0; x < columns * times; x++) line[x] = ink[y / times * columns + x / times];
    }
    cairo_surface_mark_dirty(s);
    return s;
}

static void draw_cells_as_image(exf_drawing *d, exf_box box, int columns, int rows, const exf_ink *ink)
{
    int times = (int)ceil(box.width * IMAGE_DPI / 72 / columns);
    if (times < IMAGE_LEAST) times = IMAGE_LEAST;
    if (d->kind == EXF_DRAWING_PNG) times = 1;
    cairo_surface_t *s = make_image(columns, rows, times, ink);
    cairo_save(d->page);
    cairo_translate(d->page, box.x, box.y);
    cairo_scale(d->page, box.width / (columns * times), box.height / (rows * times));
    cairo_set_source_surface(d->page, s, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(d->page), CAIRO_FILTER_NEAREST);
    cairo_paint(d->page);
    cairo_restore(d->page);
    cairo_surface_destroy(s);
}

void exf_draw_cells(exf_drawing *d, exf_box box, int columns, int rows, const exf_ink *ink)
{
    double wide = box.width / columns, high = box.height / rows;
    if (columns > SHAPES_MOST || rows > SHAPES_MOST) {
        draw_cells_as_image(d, box, columns, rows, ink);
        return;
    }
    /* Each run of one colour is a box that reaches one cell further down and to the right, where the next cells cover it: no paper
     * shines through between smoothed edges. */
    for (int r = 0; r < rows; r++)
        for (int c = 0, end; c < columns; c = end) {
            exf_ink own = ink[r * columns + c];
            for (end = c + 1; end < columns && ink[r * columns + end] == own;) end++;
            int right = end < columns ? end + 1 : end, below = r + 1 < rows ? r + 2 : r + 1;
            exf_draw_fill(d, (exf_box){box.x + c * wide, box.y + r * high, (right - c) * wide, (below - r) * high}, own);
        }
}

/* ---- letters ----------------------------------------------------------------------------------- */

double exf_text_width(exf_drawing *d, double size, const char *text)
{
    cairo_text_extents_t e;
    cairo_set_font_size(d->measure, size);
    cairo_text_extents(d->measure, text, &e);
    return e.x_advance;
}

/* Records the box that a text covers. */
static void record_box(exf_drawing *d, exf_box box)
{
    if (d->rc != EXF_OK) return;
    d->rc = exf_mem_grow(&d->text, &d->room, d->n_texts + 1, sizeof *d->text, "texts of a picture", &d->err);
    if (d->rc == EXF_OK) d->text[d->n_texts++] = box;
}

static double offset_of(exf_anchor anchor, double width)
{
    return anchor == EXF_START ? 0 : anchor == EXF_MIDDLE ? -width / 2 : -width;
}

void exf_draw_text(exf_drawing *d, double x, double y, exf_anchor anchor, double size, exf_ink ink, const char *text)
{
    cairo_text_extents_t e;
    cairo_set_font_size(d->page, size);
    cairo_text_extents(d->page, text, &e);
    double left = x + offset_of(anchor, e.x_advance);
    set_ink(d->page, ink);
    cairo_move_to(d->page, left, y);
    cairo_show_text(d->page, text);
    record_box(d, (exf_box){left + e.x_bearing, y + e.y_bearing, e.width, e.height});
}

void exf_draw_text_up(exf_drawing *d, double x, double y, exf_anchor anchor, double size, exf_ink ink, const char *text)
{
    static const double quarter_turn = -1.57079632679489661923;
    cairo_text_extents_t e;
    cairo_set_font_size(d->page, size);
    cairo_text_extents(d->page, text, &e);
    double bottom = y - offset_of(anchor, e.x_advance);
    set_ink(d->page, ink);
    cairo_save(d->page);
    cairo_translate(d->page, x, bottom);
    cairo_rotate(d->page, quarter_turn);
    cairo_move_to(d->page, 0, 0);
    cairo_show_text(d->page, text);
    cairo_restore(d->page);
    record_box(d, (exf_box){x + e.y_bearing, bottom - e.x_bearing - e.width, e.height, e.width});
}

const exf_box *exf_drawing_texts(const exf_drawing *d, size_t *n)
{
    *n = d->n_texts;
    return d->text;
}

int exf_boxes_meet(const exf_box *a, const exf_box *b)
{
    return a->x < b->x + b->width && b->x < a->x + a->width && a->y < b->y + b->height && b->y < a->y + a->height;
}

/* ---- headings ---------------------------------------------------------------------------------- */

enum { LINE_MOST = 512 };

static const double margin = 8, title_size = 9, note_size = 6.5, leading = 1.35;

/* Returns how many bytes of the text fit into the width, up to a blank or the end; a word that is wider stays whole. */
static size_t fit_line(exf_drawing *d, double width, double size, const char *text)
{
    size_t fits = 0;
    for (size_t at = 0; at == 0 || text[at - 1];) {
        char line[LINE_MOST];
        size_t end = at + strcspn(text + at, " ");
        snprintf(line, sizeof line, "%.*s", (int)end, text);
        if (fits && exf_text_width(d, size, line) > width) break;
        fits = end;
        if (!text[end]) break;
        at = end + 1;
    }
    return fits;
}

/* Draws the lines of a text, unless they are only measured, and moves *y below them. */
static void add_lines(exf_drawing *d, double width, double size, exf_ink ink, const char *text, int draw, double *y)
{
    while (text && *text) {
        char line[LINE_MOST];
        size_t n = fit_line(d, width - 2 * margin, size, text);
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        *y += size * leading;
        if (draw) exf_draw_text(d, margin, *y - (leading - 1) * size, EXF_START, size, ink, line);
        text += n + (text[n] == ' ');
    }
}

double exf_draw_heading(exf_drawing *d, double width, const char *title, const char *note, int draw)
{
    double y = margin * 0.6;
    add_lines(d, width, title_size, EXF_INK_TEXT, title, draw, &y);
    add_lines(d, width, note_size, EXF_INK_SOFT, note, draw, &y);
    return y + 4;
}

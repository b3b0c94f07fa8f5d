/* drawing.c - the shapes, the letters and the file of a drawing, and how numbers become colours and places: two colour maps, round
 * numbers along an axis, and the heading above a picture; see drawing.h. */
#include "inspect/drawing_internal.h"

#include "base/mem.h"
#include "inspect/drawing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

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

/* Draws each run of one colour as a box that reaches one cell further down and to the right, where the next
 * cells cover it: no paper shines through between smoothed edges. */
static void draw_cells_as_shapes(exf_drawing *d, exf_box box, int columns, int rows, const exf_ink *ink)
{
    double wide = box.width / columns, high = box.height / rows;
    for (int r = 0; r < rows; r++)
        for (int c = 0, end; c < columns; c = end) {
            exf_ink own = ink[r * columns + c];
            for (end = c + 1; end < columns && ink[r * columns + end] == own;) end++;
            int right = end < columns ? end + 1 : end, below = r + 1 < rows ? r + 2 : r + 1;
            exf_draw_fill(d, (exf_box){box.x + c * wide, box.y + r * high, (right - c) * wide, (below - r) * high}, own);
        }
}

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
    if (columns > SHAPES_MOST || rows > SHAPES_MOST)
        draw_cells_as_image(d, box, columns, rows, ink);
    else
        draw_cells_as_shapes(d, box, columns, rows, ink);
}

/* ---- letters ----------------------------------------------------------------------------------- */

static const char family[] = "DejaVu Sans";

/* Sets the font and how it is drawn: the same outlines at every size, on every surface. */
static void set_font(cairo_t *c)
{
    cairo_font_options_t *o = cairo_font_options_create();
    cairo_font_options_set_antialias(o, CAIRO_ANTIALIAS_GRAY);
    cairo_font_options_set_hint_style(o, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(o, CAIRO_HINT_METRICS_OFF);
    cairo_set_font_options(c, o);
    cairo_font_options_destroy(o);
    cairo_select_font_face(c, family, CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
}

/* Asks Cairo which font it found: it takes strokes of its own if none is installed, and another font if ours is not. */
static exf_code check_font(cairo_t *c, exf_err *err)
{
    cairo_scaled_font_t *font = cairo_get_scaled_font(c);
    char found[64] = "none";
    if (cairo_scaled_font_get_type(font) == CAIRO_FONT_TYPE_FT) {
        FT_Face face = cairo_ft_scaled_font_lock_face(font);
        if (face && face->family_name) {
            strncpy(found, face->family_name, sizeof found - 1);
            found[sizeof found - 1] = '\0';
        }
        if (face) cairo_ft_scaled_font_unlock_face(font);
    }
    if (strcmp(found, family) == 0) return EXF_OK;
    return exf_fail(err, EXF_IO, "pictures are lettered in the font %s, which is not installed (found: %s); install it with: %s",
                    family, found, "apt-get install fonts-dejavu-core");
}

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

/* ---- colours ----------------------------------------------------------------------------------- */

enum { POINTS = EXF_COLOUR_POINTS };

static const uint8_t sequential[POINTS][3] = {
    {24, 13, 60},    {28, 19, 71},    {31, 26, 82},    {33, 32, 94},    {36, 39, 105},   {38, 47, 116},   {39, 55, 126},
    {39, 65, 133},   {38, 75, 138},   {35, 84, 142},   {30, 94, 144},   {25, 103, 146},  {19, 112, 147},  {13, 122, 148},
    {11, 131, 148},  {12, 139, 148},  {16, 148, 147},  {23, 157, 145},  {33, 165, 142},  {46, 173, 139},  {61, 181, 135},
    {79, 189, 132},  {98, 195, 127},  {118, 201, 120}, {137, 207, 113}, {156, 212, 106}, {174, 217, 100}, {192, 222, 97},
    {208, 228, 103}, {221, 233, 119}, {233, 238, 138}, {243, 243, 157}, {254, 247, 176},
};

static const uint8_t diverging[POINTS][3] = {
    {8, 51, 108},    {13, 63, 122},   {17, 75, 136},   {23, 88, 150},   {31, 101, 164},  {41, 114, 176},  {55, 127, 187},
    {71, 140, 195},  {88, 153, 203},  {106, 165, 209}, {124, 178, 216}, {143, 190, 222}, {161, 203, 229}, {180, 215, 236},
    {200, 227, 243}, {221, 238, 247}, {244, 243, 237}, {245, 229, 210}, {241, 214, 186}, {235, 199, 164}, {229, 184, 142},
    {223, 169, 122}, {217, 153, 103}, {211, 137, 86},  {204, 120, 71},  {196, 104, 57},  {186, 89, 44},   {173, 75, 33},
    {159, 62, 27},   {143, 52, 23},   {127, 42, 20},   {111, 33, 19},   {96, 24, 16},
};

void exf_colour_at(exf_colour_map map, int i, int n, uint8_t rgb[3])
{
    const uint8_t(*points)[3] = map == EXF_MAP_DIVERGING ? diverging : sequential;
    int at = i * (POINTS - 1), k = at / (n - 1), part = at % (n - 1);
    const uint8_t *a = points[k], *b = points[k + 1 < POINTS ? k + 1 : k];
    for (int channel = 0; channel < 3; channel++)
        rgb[channel] = (uint8_t)((a[channel] * (n - 1 - part) + b[channel] * part + (n - 1) / 2) / (n - 1));
}

exf_ink exf_colour_of(exf_colour_map map, double value, double low, double high)
{
    uint8_t rgb[3];
    double t = high > low ? (value - low) / (high - low) : 0.5;
    exf_colour_at(map, !(t > 0) ? 0 : t > 1 ? EXF_COLOURS - 1 : (int)(t * (EXF_COLOURS - 1) + 0.5), EXF_COLOURS, rgb);
    return (exf_ink)rgb[0] << 16 | (exf_ink)rgb[1] << 8 | rgb[2];
}

/* ---- axes -------------------------------------------------------------------------------------- */

static const double round_steps[] = {1, 2, 5, 10};

/* Writes a number with so many digits after the point, and never "-0". */
static void write_number(char text[EXF_TICK_TEXT], double value, int digits)
{
    snprintf(text, EXF_TICK_TEXT, "%.*f", digits, value);
    if (text[0] == '-' && strspn(text + 1, "0.") == strlen(text + 1)) memmove(text, text + 1, strlen(text));
}

/* Returns the least round step, at least `least`, that has at most max multiples in [low, high]. */
static double find_step(double low, double high, int max, double least)
{
    int power = (int)floor(log10((high - low) / max));
    for (;; power++)
        for (int i = 0; i < 3; i++) {
            double step = round_steps[i] * pow(10, power);
            if (step >= least && floor(high / step + 1e-9) - ceil(low / step - 1e-9) + 1 <= max) return step;
        }
}

/* Returns how many digits after the point tell multiples of a step apart. */
static int count_digits(double step)
{
    int digits = 0;
    while (digits < 9 && fabs(step * pow(10, digits) - rint(step * pow(10, digits))) > 1e-6) digits++;
    return digits;
}

static void add_multiple(exf_ticks *t, double times, double step, int digits)
{
    t->at[t->n] = times * step;
    write_number(t->text[t->n], t->at[t->n], digits);
    t->n++;
}

static void add_multiples(exf_ticks *t, double low, double high, double step)
{
    /* the epsilon keeps an end that is a round number itself */
    double first = ceil(low / step - 1e-9), last = floor(high / step + 1e-9);
    for (int digits = count_digits(step); t->n < EXF_TICKS_MAX && first + t->n <= last;)
        add_multiple(t, first + t->n, step, digits);
}

/* Adds the first and the last multiple of a power of ten, where no step has two that fit. */
static void add_two(exf_ticks *t, double low, double high)
{
    double step = pow(10, floor(log10(high - low))), first = ceil(low / step - 1e-9), last = floor(high / step + 1e-9);
    t->n = 0;
    if (first <= last) add_multiple(t, first, step, count_digits(step));
    if (first < last) add_multiple(t, last, step, count_digits(step));
}

/* Adds ticks at the first n of 1, 2, 5 times every `every`-th power of ten; returns 0 if there are more than max. */
static int add_powers(exf_ticks *t, double low, double high, int n, int every, int max)
{
    t->n = 0;
    for (int power = (int)floor(log10(low)); power <= (int)ceil(log10(high)); power++)
        for (int i = 0; i < n; i++) {
            double value = round_steps[i] * pow(10, power);
            if (power % every || value < low * (1 - 1e-9) || value > high * (1 + 1e-9)) continue;
            if (t->n == max) return 0;
            t->at[t->n] = value;
            snprintf(t->text[t->n++], EXF_TICK_TEXT, "%.4g", value);
        }
    return 1;
}

static void add_log_ticks(exf_ticks *t, double low, double high, int max)
{
    if (add_powers(t, low, high, 3, 1, max)) return;
    for (int every = 1; !add_powers(t, low, high, 1, every, max);) every++;
}

void exf_ticks_at(exf_ticks *t, exf_axis_kind kind, double low, double high, int max)
{
    t->n = 0;
    if (!(low < high) || !isfinite(low) || !isfinite(high) || (kind == EXF_AXIS_LOG && low <= 0)) return;
    if (max < 2) max = 2;
    if (max > EXF_TICKS_MAX) max = EXF_TICKS_MAX;
    if (kind == EXF_AXIS_LOG)
        add_log_ticks(t, low, high, max);
    else
        add_multiples(t, low, high, find_step(low, high, max, kind == EXF_AXIS_WHOLE ? 1 : 0));
}

double exf_ticks_width(const exf_ticks *t, exf_drawing *d, double size)
{
    double widest = 0;
    for (int i = 0; i < t->n; i++) widest = fmax(widest, exf_text_width(d, size, t->text[i]));
    return widest;
}

double exf_axis_share(exf_axis_kind kind, double value, double low, double high)
{
    if (kind == EXF_AXIS_LOG) return value > 0 ? log(value / low) / log(high / low) : -1;
    return (value - low) / (high - low);
}

/* Returns 1 if the numbers of the ticks keep apart on the axis. */
static int are_apart(const exf_ticks *t, exf_drawing *d, exf_axis_kind kind, double low, double high, double length, double size,
                     int up)
{
    for (int i = 1; i < t->n; i++) {
        double apart = length * (exf_axis_share(kind, t->at[i], low, high) - exf_axis_share(kind, t->at[i - 1], low, high));
        double need = up ? 1.6 * size
                         : (exf_text_width(d, size, t->text[i]) + exf_text_width(d, size, t->text[i - 1])) / 2 + 0.8 * size;
        if (apart < need) return 0;
    }
    return 1;
}

void exf_ticks_fit(exf_ticks *t, exf_drawing *d, exf_axis_kind kind, double low, double high, double length, double size, int up)
{
    for (int max = EXF_TICKS_MAX; max >= 2; max--) {
        exf_ticks_at(t, kind, low, high, max);
        if (t->n > 1 && are_apart(t, d, kind, low, high, length, size, up)) return;
    }
    if (t->n && kind != EXF_AXIS_LOG) add_two(t, low, high);
    if (t->n && !are_apart(t, d, kind, low, high, length, size, up)) t->n = 1; /* the first alone */
}

void exf_axis_round_out(double *low, double *high)
{
    if (!(*low < *high)) return;
    double step = find_step(*low, *high, 11, 0);
    *low = floor(*low / step + 1e-6) * step; /* values are floats */
    *high = ceil(*high / step - 1e-6) * step;
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

static double add_heading(exf_drawing *d, double width, const char *title, const char *note, int draw)
{
    double y = margin * 0.6;
    add_lines(d, width, title_size, EXF_INK_TEXT, title, draw, &y);
    add_lines(d, width, note_size, EXF_INK_SOFT, note, draw, &y);
    return y + 4;
}

double exf_heading_height(exf_drawing *d, double width, const char *title, const char *note)
{
    return add_heading(d, width, title, note, 0);
}

double exf_draw_heading(exf_drawing *d, double width, const char *title, const char *note)
{
    return add_heading(d, width, title, note, 1);
}

/* ---- the file: its suffix, its page, its note and its bytes ------------------------------------- */

enum { SIDE_MOST = 32000, PIXELS_MOST = 1 << 26 };

static const char *const suffixes[] = {[EXF_DRAWING_PNG] = ".png", [EXF_DRAWING_SVG] = ".svg", [EXF_DRAWING_PDF] = ".pdf"};

/* Returns the kind of drawing that a path names; -1: none. */
static int find_kind(const char *path)
{
    for (int i = 0; i < (int)(sizeof suffixes / sizeof *suffixes); i++)
        if (exf_ends_with(path, suffixes[i])) return i;
    return -1;
}

int exf_picture_is_named(const char *path)
{
    return find_kind(path) >= 0;
}

/* ---- the page --------------------------------------------------------------------------------- */

static cairo_status_t keep_bytes(void *drawing, const unsigned char *bytes, unsigned n)
{
    exf_drawing *d = drawing;
    if (d->rc == EXF_OK) {
        exf_text_append(&d->bytes, (const char *)bytes, n);
        d->rc = exf_text_end(&d->bytes, &d->err);
    }
    return d->rc == EXF_OK ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static exf_code check_status(const exf_drawing *d, cairo_status_t status, exf_err *err)
{
    if (status == CAIRO_STATUS_SUCCESS) return EXF_OK;
    return exf_fail(err, status == CAIRO_STATUS_NO_MEMORY ? EXF_NOSPACE : EXF_INTERNAL, "%s: cairo: %s",
                    exf_output_file_path(d->file), cairo_status_to_string(status));
}

/* Makes *out, which draws on the surface and owns it. */
static exf_code draw_on(const exf_drawing *d, cairo_surface_t *s, cairo_t **out, exf_err *err)
{
    *out = cairo_create(s);
    cairo_surface_destroy(s);
    set_font(*out);
    return check_status(d, cairo_status(*out), err);
}

exf_code exf_drawing_open(exf_drawing **out, const char *path, int force, exf_err *err)
{
    exf_drawing *d = NULL;
    int kind = find_kind(path);
    exf_code rc;
    *out = NULL;
    if (kind < 0) return exf_fail(err, EXF_USAGE, "%s: a picture's name ends in %s", path, EXF_PICTURE_SUFFIXES);
    EXF_TRY(exf_mem_new(&d, 1, sizeof *d, "picture", err));
    d->kind = (exf_drawing_kind)kind;
    EXF_TRY(exf_output_file_begin(&d->file, path, force, err));
    EXF_TRY(draw_on(d, cairo_image_surface_create(CAIRO_FORMAT_RGB24, 1, 1), &d->measure, err));
    EXF_TRY(check_font(d->measure, err));
    *out = d;
    return EXF_OK;
out:
    exf_drawing_abort(d);
    return rc;
}

static cairo_surface_t *make_svg_surface(exf_drawing *d)
{
    cairo_surface_t *s = cairo_svg_surface_create_for_stream(keep_bytes, d, d->extent.width, d->extent.height);
    cairo_svg_surface_set_document_unit(s, CAIRO_SVG_UNIT_PT);
    return s;
}

/* Makes a PDF of version 1.4, which every journal takes; without a date, so that two runs give the same file. */
static cairo_surface_t *make_pdf_surface(exf_drawing *d, const char *title)
{
    char keywords[256];
    cairo_surface_t *s = cairo_pdf_surface_create_for_stream(keep_bytes, d, d->extent.width, d->extent.height);
    cairo_pdf_surface_restrict_to_version(s, CAIRO_PDF_VERSION_1_4);
    cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_TITLE, title);
    cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_CREATOR, "ExFold");
    cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_CREATE_DATE, NULL);
    if (d->note) {
        snprintf(keywords, sizeof keywords, "%s: %s", d->note_key, d->note);
        cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_KEYWORDS, keywords);
    }
    return s;
}

/* Finds the size of the page in whole pixels, at least all of it. */
static exf_code find_png_size(const exf_drawing *d, double pixels_per_point, int *width, int *height, exf_err *err)
{
    double w = ceil(d->extent.width * pixels_per_point - 1e-6), h = ceil(d->extent.height * pixels_per_point - 1e-6);
    if (w > SIDE_MOST || h > SIDE_MOST || w * h > PIXELS_MOST)
        return exf_fail(err, EXF_MODEL,
                        "a picture of %.0f x %.0f pixels is more than the %d that fit; choose fewer layers, or .svg or .pdf", w, h,
                        PIXELS_MOST);
    *width = (int)w;
    *height = (int)h;
    return EXF_OK;
}

exf_code exf_drawing_page(exf_drawing *d, double width, double height, double pixels_per_point, const char *title, exf_err *err)
{
    int across = 0, down = 0;
    exf_code rc;
    d->extent = (exf_box){0, 0, width, height};
    if (d->kind == EXF_DRAWING_PNG) EXF_TRY(find_png_size(d, pixels_per_point, &across, &down, err));
    EXF_TRY(draw_on(d, d->kind == EXF_DRAWING_PNG   ? cairo_image_surface_create(CAIRO_FORMAT_RGB24, across, down)
                       : d->kind == EXF_DRAWING_SVG ? make_svg_surface(d)
                                                    : make_pdf_surface(d, title),
                    &d->page, err));
    set_ink(d->page, EXF_INK_PAPER);
    cairo_paint(d->page);
    if (d->kind == EXF_DRAWING_PNG) cairo_scale(d->page, pixels_per_point, pixels_per_point);
out:
    return rc;
}

/* ---- ids of an SVG ----------------------------------------------------------------------------- */

enum { NAME_MOST = 24 };

/* "surface123" of id="surface123" or #surface123. */
typedef struct {
    char name[NAME_MOST];
    size_t number;
} id;

typedef struct {
    id *list;
    size_t n, room;
} ids;

/* Returns the length of a name of letters, or letters and a dash, before a number; 0: none stands at s.  *len has
 * the whole length. */
static size_t find_name(const char *s, size_t *len)
{
    size_t word = strspn(s, "abcdefghijklmnopqrstuvwxyz-"), digits = strspn(s + word, "0123456789");
    *len = word + digits;
    int ends = s[*len] == '"' || s[*len] == ')';
    return digits && ends && *len < NAME_MOST ? word : 0;
}

static int begins_an_id(const char *text, const char *s)
{
    return s[-1] == '#' || (s - text >= 4 && memcmp(s - 4, "id=\"", 4) == 0);
}

/* Finds the number of an id, or gives it the next. */
static exf_code find_number(ids *all, const char *s, size_t len, size_t *number, exf_err *err)
{
    for (size_t i = all->n; i-- > 0;)
        if (strncmp(all->list[i].name, s, len) == 0 && !all->list[i].name[len]) {
            *number = all->list[i].number;
            return EXF_OK;
        }
    exf_code rc = exf_mem_grow(&all->list, &all->room, all->n + 1, sizeof *all->list, "ids of a picture", err);
    if (rc != EXF_OK) return rc;
    id *new = &all->list[all->n];
    memcpy(new->name, s, len);
    new->name[len] = '\0';
    *number = new->number = all->n++;
    return EXF_OK;
}

/* Renumbers ids in the order in which they first occur: Cairo numbers the surfaces of a process, so that a
 * second picture would differ from the same picture alone.  *out has the text to write. */
static exf_code renumber_ids(const exf_text *svg, exf_text *out, exf_err *err)
{
    ids all = {0};
    size_t from = 0, len, number;
    exf_code rc = EXF_OK;
    for (size_t at = 1; at < svg->len; at++) {
        const char *s = svg->s + at;
        if (!begins_an_id(svg->s, s)) continue;
        size_t word = find_name(s, &len);
        if (!word) continue;
        EXF_TRY(find_number(&all, s, len, &number, err));
        exf_text_append(out, svg->s + from, at + word - from);
        exf_text_appendf(out, "%zu", number);
        from = at + len;
    }
    exf_text_append(out, svg->s + from, svg->len - from);
    rc = exf_text_end(out, err);
out:
    exf_mem_free(all.list);
    return rc;
}

/* ---- the note -------------------------------------------------------------------------------- */

void exf_drawing_note(exf_drawing *d, const char *key, const char *value)
{
    d->note_key = key;
    d->note = value;
}

static void add_u32(exf_text *out, unsigned long v)
{
    const char bytes[4] = {(char)(v >> 24 & 0xff), (char)(v >> 16 & 0xff), (char)(v >> 8 & 0xff), (char)(v & 0xff)};
    exf_text_append(out, bytes, sizeof bytes);
}

/* Adds the note to a PNG as a tEXt chunk, before the last one: length, type, key, NUL, value, CRC of type and data. */
static exf_code note_png(const exf_drawing *d, exf_text *png, exf_err *err)
{
    enum { END_CHUNK = 12 }; /* bytes of a PNG's last chunk, IEND */
    char end[END_CHUNK];
    exf_text body = {0};
    exf_text_appendf(&body, "tEXt%s", d->note_key);
    exf_text_append(&body, "", 1);
    exf_text_appendf(&body, "%s", d->note);
    exf_code rc = exf_text_end(&body, err);
    if (rc == EXF_OK) {
        memcpy(end, png->s + png->len - END_CHUNK, END_CHUNK);
        png->len -= END_CHUNK;
        add_u32(png, body.len - 4);
        exf_text_append(png, body.s, body.len);
        add_u32(png, crc32(0, (const unsigned char *)body.s, (unsigned)body.len));
        exf_text_append(png, end, END_CHUNK);
        rc = exf_text_end(png, err);
    }
    exf_text_free(&body);
    return rc;
}

/* Adds the note to the bytes of an SVG or PNG; a PDF has it since its page began. */
static exf_code add_note(const exf_drawing *d, exf_text *bytes, exf_err *err)
{
    if (!d->note || d->kind == EXF_DRAWING_PDF) return EXF_OK;
    if (d->kind == EXF_DRAWING_PNG) return note_png(d, bytes, err);
    exf_text_appendf(bytes, "<!-- %s: %s -->\n", d->note_key, d->note);
    return exf_text_end(bytes, err);
}

/* ---- the bytes ---------------------------------------------------------------------------------- */

/* Ends the page, after which bytes are complete. */
static exf_code finish_page(exf_drawing *d, exf_err *err)
{
    cairo_surface_t *s = cairo_get_target(d->page);
    cairo_status_t status = cairo_status(d->page);
    if (status == CAIRO_STATUS_SUCCESS && d->kind == EXF_DRAWING_PNG) status = cairo_surface_write_to_png_stream(s, keep_bytes, d);
    cairo_surface_finish(s);
    if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_status(s);
    if (d->rc != EXF_OK) *err = d->err;
    return d->rc != EXF_OK ? d->rc : check_status(d, status, err);
}

exf_code exf_drawing_close(exf_drawing *d, exf_err *err)
{
    exf_text svg = {0};
    exf_code rc;
    EXF_TRY(finish_page(d, err));
    if (d->kind == EXF_DRAWING_SVG) EXF_TRY(renumber_ids(&d->bytes, &svg, err));
    exf_text *bytes = svg.s ? &svg : &d->bytes;
    EXF_TRY(add_note(d, bytes, err));
    EXF_TRY(exf_output_file_write(d->file, bytes->s, bytes->len, err));
    rc = exf_output_file_commit(d->file, err);
    d->file = NULL;
out:
    exf_text_free(&svg);
    exf_drawing_abort(d);
    return rc;
}

void exf_drawing_abort(exf_drawing *d)
{
    if (!d) return;
    if (d->page) {
        d->rc = d->rc == EXF_OK ? EXF_INTERNAL : d->rc; /* what Cairo still writes is dropped */
        cairo_destroy(d->page);
    }
    if (d->measure) cairo_destroy(d->measure);
    exf_output_file_abort(d->file);
    exf_text_free(&d->bytes);
    exf_mem_free(d->text);
    exf_mem_free(d);
}

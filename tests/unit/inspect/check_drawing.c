/* check_drawing.c - drawings, axes, sheets and charts: files of every suffix, texts that
 * do not overlap, panels that fill the page, colours of cells. */
#include "tests/support/scratch_fixtures.h"

#include "inspect/drawing_internal.h"

#include <cairo.h>
#include <math.h>
#include <stdlib.h>

static exf_err e; /* of the last call */

static exf_drawing *opened(const char *name)
{
    exf_drawing *d = NULL;
    ck_ok(exf_drawing_open(&d, exf_scratch(name), 1, &e), e);
    return d;
}

static size_t read_bytes(const char *name, char **bytes)
{
    size_t n;
    ck_ok(exf_file_slurp(exf_scratch(name), 1 << 28, bytes, &n, &e), e);
    return n;
}

/* A PNG that was written, as Cairo reads it. */
typedef struct {
    cairo_surface_t *surface;
    const unsigned char *row;
    int width, height, stride;
} image;

static image image_of(const char *name)
{
    cairo_surface_t *s = cairo_image_surface_create_from_png(exf_scratch(name));
    ck_assert_int_eq(cairo_surface_status(s), CAIRO_STATUS_SUCCESS);
    return (image){s, cairo_image_surface_get_data(s), cairo_image_surface_get_width(s), cairo_image_surface_get_height(s),
                   cairo_image_surface_get_stride(s)};
}

static uint32_t pixel_at(const image *i, int x, int y)
{
    return ((const uint32_t *)(const void *)(i->row + (size_t)y * (size_t)i->stride))[x] & 0xffffff;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* A page with a shape, a text, cells as shapes, cells as an image, a gradient. */
static void draw_page(exf_drawing *d)
{
    static const exf_ink colours[] = {0x102030, 0xf0e0d0, 0x00ff00, 0x0000ff};
    exf_ink many[40 * 40];
    for (int i = 0; i < 40 * 40; i++) many[i] = (exf_ink)i * 997 & 0xffffff;
    ck_ok(exf_drawing_page(d, 100, 80, 2, "a title", &e), e);
    exf_draw_cells(d, (exf_box){10, 10, 20, 20}, 2, 2, colours);
    exf_draw_cells(d, (exf_box){40, 10, 20, 20}, 40, 40, many);
    exf_draw_gradient(d, (exf_box){70, 10, 5, 20}, colours, 4);
    exf_draw_text(d, 50, 60, EXF_MIDDLE, 8, EXF_INK_TEXT, "E(x) \302\261 0.5");
    exf_draw_text_up(d, 95, 40, EXF_MIDDLE, 8, EXF_INK_TEXT, "upwards");
}

static void write_page(const char *name)
{
    exf_drawing *d = opened(name);
    draw_page(d);
    ck_ok(exf_drawing_close(d, &e), e);
}

START_TEST(equal_drawings_are_equal_files_without_a_date)
{
    static const struct {
        const char *first, *second, *begin;
    } kinds[] = {{"a.png", "b.png", "\211PNG\r\n"}, {"a.svg", "b.svg", "<?xml "}, {"a.pdf", "b.pdf", "%PDF-1.4"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *bytes;
        write_page(kinds[i].first);
        write_page(kinds[i].second); /* Cairo numbers the surfaces of a process on */
        ck_assert_msg(same_files(kinds[i].first, kinds[i].second), "%s and %s differ", kinds[i].first, kinds[i].second);
        size_t n = read_bytes(kinds[i].first, &bytes);
        ck_assert_mem_eq(bytes, kinds[i].begin, strlen(kinds[i].begin));
        for (size_t at = 0; at + 4 < n; at++) {
            ck_assert_msg(memcmp(bytes + at, "Date", 4) != 0, "%s names a date", kinds[i].first);
            ck_assert_msg(memcmp(bytes + at, "tIME", 4) != 0, "%s names a time", kinds[i].first);
        }
        exf_mem_free(bytes);
    }
    ck_assert_int_eq(files_left(), 6);
}
END_TEST

START_TEST(letters_are_outlines_in_svg_and_a_font_in_pdf)
{
    char *svg, *pdf, *found = NULL;
    write_page("a.svg");
    write_page("a.pdf");
    read_bytes("a.svg", &svg);
    ck_assert_ptr_null(strstr(svg, "<text"));
    ck_assert_ptr_null(strstr(svg, "font-family"));
    ck_assert_ptr_nonnull(strstr(svg, "glyph"));
    exf_mem_free(svg);
    size_t n = read_bytes("a.pdf", &pdf);
    for (size_t i = 0; i + 10 < n && !found; i++)
        if (memcmp(pdf + i, "/FontFile", 9) == 0) found = pdf + i;
    ck_assert_ptr_nonnull(found);
    exf_mem_free(pdf);
}
END_TEST

START_TEST(a_png_has_the_colours_and_the_size)
{
    write_page("a.png");
    image s = image_of("a.png");
    ck_assert(s.width == 200 && s.height == 160);
    ck_assert_uint_eq(pixel_at(&s, 0, 0), 0xffffff);
    /* cells of 20 x 20 pixels: whole ones, to the edge */
    static const exf_ink want[] = {0x102030, 0xf0e0d0, 0x00ff00, 0x0000ff};
    for (int y = 0; y < 40; y++)
        for (int x = 0; x < 40; x++) ck_assert_uint_eq(pixel_at(&s, 20 + x, 20 + y), want[y / 20 * 2 + x / 20]);
    for (int i = 0; i < 40 * 40; i++) /* an image of one pixel a cell */
        ck_assert_uint_eq(pixel_at(&s, 80 + i % 40, 20 + i / 40), (uint32_t)i * 997 & 0xffffff);
    cairo_surface_destroy(s.surface);
}
END_TEST

START_TEST(what_cannot_be_a_picture_is_refused)
{
    exf_drawing *d;
    static const char *const names[] = {"a.jpg", "a", "png", "a.PNG", "a.png.txt", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ck_assert(!exf_picture_is_named(names[i]));
        ck_fails(exf_drawing_open(&d, names[i], 1, &e), EXF_USAGE, e, "");
    }
    ck_assert(exf_picture_is_named("x/y.png") && exf_picture_is_named("y.svg") && exf_picture_is_named(".pdf"));
    write_page("a.svg");
    ck_fails(exf_drawing_open(&d, exf_scratch("a.svg"), 0, &e), EXF_IO, e, "a.svg");
    ck_fails(exf_drawing_open(&d, exf_scratch("none/a.svg"), 0, &e), EXF_IO, e, "none/a.svg");
    d = opened("b.png");
    ck_fails(exf_drawing_page(d, 1000, 900, 9, "t", &e), EXF_MODEL, e, "9000 8100");
    exf_drawing_abort(d);
    exf_drawing_abort(NULL);
    ck_assert_int_eq(files_left(), 1);
}
END_TEST

START_TEST(a_missing_font_is_named)
{
    FILE *f = fopen(exf_scratch("fonts.conf"), "w");
    fputs("<?xml version=\"1.0\"?><fontconfig><dir>/nonexistent</dir></fontconfig>", f);
    fclose(f);
    setenv("FONTCONFIG_FILE", exf_scratch("fonts.conf"), 1); /* each test is a process of its own */
    exf_drawing *d;
    ck_fails(exf_drawing_open(&d, exf_scratch("a.png"), 0, &e), EXF_IO, e, "apt-get fonts-dejavu-core");
    ck_assert_int_eq(files_left(), 1);
    unsetenv("FONTCONFIG_FILE");
}
END_TEST

/* ---- axes ---------------------------------------------------------------------------------------- */

START_TEST(ticks_are_round_and_inside)
{
    exf_ticks t;
    exf_ticks_at(&t, EXF_AXIS_REAL, 0, 1, 6);
    ck_assert_int_eq(t.n, 6);
    ck_assert_str_eq(t.text[5], "1.0");
    exf_ticks_at(&t, EXF_AXIS_REAL, 0, 127, 5);
    ck_assert_int_eq(t.n, 3);
    ck_assert_str_eq(t.text[2], "100");
    exf_ticks_at(&t, EXF_AXIS_REAL, -0.968, 0.968, 6);
    ck_assert_int_eq(t.n, 3);
    ck_assert_str_eq(t.text[1], "0.0");
    exf_ticks_at(&t, EXF_AXIS_WHOLE, -0.5, 2.5, 12);
    ck_assert_int_eq(t.n, 3); /* no half experts */
    ck_assert_str_eq(t.text[2], "2");
    exf_ticks_at(&t, EXF_AXIS_LOG, 0.03, 0.6, 12);
    static const char *const log_texts[] = {"0.05", "0.1", "0.2", "0.5"};
    ck_assert_int_eq(t.n, 4);
    for (int i = 0; i < 4; i++) ck_assert_str_eq(t.text[i], log_texts[i]);
    exf_ticks_at(&t, EXF_AXIS_LOG, 1e-9, 1e9, 12);
    ck_assert(t.n >= 2 && t.n <= 12);
    static const double none[][2] = {{1, 1}, {2, 1}, {0, (double)INFINITY}, {(double)NAN, 1}};
    for (int i = 0; i < 4; i++) {
        exf_ticks_at(&t, EXF_AXIS_REAL, none[i][0], none[i][1], 5);
        ck_assert_int_eq(t.n, 0);
    }
    for (double high = 1e-6; high < 1e9; high *= 3.7) {
        exf_ticks_at(&t, EXF_AXIS_REAL, 0, high, 5);
        ck_assert_msg(t.n >= 2 && t.n <= 5 && t.at[t.n - 1] <= high * (1 + 1e-9), "%d ticks to %g", t.n, high);
    }
}
END_TEST

START_TEST(numbers_of_an_axis_keep_apart)
{
    exf_drawing *d = opened("a.png");
    exf_ticks t;
    for (double length = 5; length < 400; length *= 1.3)
        for (double high = 0.013; high < 1e6; high *= 7.3) {
            exf_ticks_fit(&t, d, EXF_AXIS_REAL, 0, high, length, 6, 0);
            ck_assert(t.n >= 1);
            for (int i = 1; i < t.n; i++) {
                double apart = (t.at[i] - t.at[i - 1]) / high * length;
                double half = (exf_text_width(d, 6, t.text[i]) + exf_text_width(d, 6, t.text[i - 1])) / 2;
                ck_assert_msg(apart > half, "%s and %s are %g apart on %g points", t.text[i - 1], t.text[i], apart, length);
            }
        }
    exf_ticks_fit(&t, d, EXF_AXIS_REAL, 0, 4.5, 20, 6, 1); /* no step has two ticks here: 0 and 4 */
    ck_assert_int_eq(t.n, 2);
    ck_assert_str_eq(t.text[1], "4");
    exf_drawing_abort(d);
}
END_TEST

START_TEST(ranges_are_rounded_outwards)
{
    double low = 0.313, high = 0.587;
    exf_axis_round_out(&low, &high);
    ck_assert(low <= 0.313 && low > 0.28 && high >= 0.587 && high < 0.62);
    low = 0;
    high = 1;
    exf_axis_round_out(&low, &high);
    ck_assert(low == 0 && fabs(high - 1) < 1e-12);
}
END_TEST

/* ---- sheets ------------------------------------------------------------------------------------------ */

static int32_t layer_number[128];

static exf_sheet sheet_of(int n_layers, int n_experts)
{
    for (int i = 0; i < 128; i++) layer_number[i] = i;
    return (exf_sheet){"A title of a sheet that is neither long nor short", "and a note", n_layers, n_experts, layer_number};
}

/* No text of the page covers another or leaves the page. */
static void texts_are_apart(const exf_drawing *d, const char *what)
{
    size_t n;
    const exf_box *t = exf_drawing_texts(d, &n);
    exf_box page = d->extent;
    ck_assert_uint_gt(n, 0);
    for (size_t i = 0; i < n; i++) {
        ck_assert_msg(t[i].x >= 0 && t[i].y >= 0 && t[i].x + t[i].width <= page.width && t[i].y + t[i].height <= page.height,
                      "%s: text %zu at %g, %g leaves the page of %g x %g", what, i, t[i].x, t[i].y, page.width, page.height);
        for (size_t j = 0; j < i; j++)
            ck_assert_msg(!exf_boxes_meet(&t[i], &t[j]), "%s: texts %zu and %zu overlap at %g, %g", what, i, j, t[i].x, t[i].y);
    }
}

/* Draws both kinds of sheet; returns the page of the matrices. */
static exf_box draw_sheets(int n_layers, int n_experts)
{
    size_t e2 = (size_t)n_experts * (size_t)n_experts, l = (size_t)n_layers;
    float *value = calloc(l * e2, sizeof *value);
    uint64_t *tokens = calloc(l * (size_t)n_experts, sizeof *tokens);
    char what[64];
    for (size_t i = 0; i < l * e2; i++) value[i] = (float)(i * 7919 % 1013) / 100;
    for (size_t i = 0; i < l * (size_t)n_experts; i++) tokens[i] = i % 9 != 0;
    exf_matrix_sheet m = {
        .sheet = sheet_of(n_layers, n_experts), .value = value, .high = 10, .map = EXF_MAP_DIVERGING, .bar_label = "a label"};
    exf_bar_sheet b = {.sheet = m.sheet, .value = value, .tokens = tokens, .value_label = "norm"};
    exf_drawing *d = opened("m.pdf");
    ck_ok(exf_draw_matrices(&m, d, &e), e);
    snprintf(what, sizeof what, "matrices of %d layers of %d", n_layers, n_experts);
    texts_are_apart(d, what);
    exf_box page = d->extent;
    exf_drawing_abort(d);
    d = opened("b.pdf");
    ck_ok(exf_draw_bars(&b, d, &e), e);
    snprintf(what, sizeof what, "bars of %d layers of %d", n_layers, n_experts);
    texts_are_apart(d, what);
    exf_drawing_abort(d);
    free(value);
    free(tokens);
    return page;
}

START_TEST(texts_of_sheets_do_not_overlap)
{
    static const int sizes[][2] = {{1, 2}, {1, 16}, {2, 8}, {3, 4}, {4, 16}, {5, 60}, {7, 60}, {12, 64}, {24, 60}, {27, 64},
                                   {48, 128}, {94, 64}, {1, 256}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        exf_box page = draw_sheets(sizes[i][0], sizes[i][1]);
        ck_assert_msg(page.width <= 520 && page.height <= 500, "%d layers of %d: a page of %g x %g", sizes[i][0], sizes[i][1],
                      page.width, page.height);
    }
    ck_assert_int_eq(files_left(), 0);
}
END_TEST

/* ---- charts ------------------------------------------------------------------------------------------- */

START_TEST(texts_of_charts_do_not_overlap)
{
    enum { MOST = 60 };
    static exf_chart_point point[MOST];
    static char tag[MOST][4], name[MOST][32];
    static const char *legend[MOST];
    static const size_t line[] = {0, 1};
    for (int n = 0; n <= MOST; n += 12) {
        for (int i = 0; i < n; i++) { /* some on top of each other, some without a place */
            snprintf(tag[i], sizeof tag[i], "%c", 'a' + i % 26);
            snprintf(name[i], sizeof name[i], "%c  variant %d", 'a' + i % 26, i);
            legend[i] = name[i];
            point[i] = (exf_chart_point){1 + i / 3 % 7, i % 11 ? pow(10, -(i % 5) / 2.0) : 0, 0.01 * i, tag[i], i % 2};
        }
        exf_chart_panel panel[2] = {{"cost", 4, point, (size_t)n, line, n ? 2 : 0}, {"other cost", 16, point, (size_t)n, line, 0}};
        exf_chart c = {"title", "note", "value", "original", panel, 2, legend, (size_t)n};
        exf_drawing *d = opened("c.svg");
        ck_ok(exf_draw_chart(&c, d, &e), e);
        texts_are_apart(d, "chart");
        ck_ok(exf_drawing_close(d, &e), e);
        char *svg;
        read_bytes("c.svg", &svg);
        ck_assert_ptr_null(strstr(svg, "nan"));
        ck_assert_ptr_null(strstr(svg, "inf"));
        exf_mem_free(svg);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "drawing");
    tcase_add_checked_fixture(c, start_empty, NULL);
    tcase_add_test(c, a_missing_font_is_named);
    tcase_add_test(c, equal_drawings_are_equal_files_without_a_date);
    tcase_add_test(c, letters_are_outlines_in_svg_and_a_font_in_pdf);
    tcase_add_test(c, a_png_has_the_colours_and_the_size);
    tcase_add_test(c, what_cannot_be_a_picture_is_refused);
    tcase_add_test(c, ticks_are_round_and_inside);
    tcase_add_test(c, numbers_of_an_axis_keep_apart);
    tcase_add_test(c, ranges_are_rounded_outwards);
    tcase_add_test(c, texts_of_sheets_do_not_overlap);
    tcase_add_test(c, texts_of_charts_do_not_overlap);
}

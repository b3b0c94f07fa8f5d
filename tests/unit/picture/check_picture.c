/* check_picture.c - src/picture and the writers of src/format that pictures and
 * numbers go through: letters, colours, ticks, sheets; PNG, NPY, base64, JSON. */
#include "tests/support/scratch_fixtures.h"

#include "format/base64.h"
#include "format/json.h"
#include "format/json_write.h"
#include "format/npy.h"
#include "format/png.h"
#include "picture/sheet.h"

#include <math.h>
#include <png.h>
#include <stdlib.h>

static exf_err e; /* of the last call */

/* ---- canvas ---------------------------------------------------------------------- */

static exf_canvas canvas_of(int width, int height)
{
    exf_canvas c;
    ck_ok(exf_canvas_new(&c, width, height, &e), e);
    return c;
}

static int ink_at(const exf_canvas *c, int x, int y)
{
    return c->pixel[y * c->width + x];
}

static int count_ink(const exf_canvas *c, int ink)
{
    int n = 0;
    for (int i = 0; i < c->width * c->height; i++) n += c->pixel[i] == ink;
    return n;
}

START_TEST(rectangles_are_clipped)
{
    exf_canvas c = canvas_of(10, 8);
    exf_canvas_fill(&c, -3, -2, 5, 4, EXF_INK_TEXT);
    ck_assert_int_eq(count_ink(&c, EXF_INK_TEXT), 4);
    exf_canvas_fill(&c, 8, 6, 50, 50, EXF_INK_GREY);
    ck_assert_int_eq(count_ink(&c, EXF_INK_GREY), 4);
    exf_canvas_fill(&c, 20, 20, 3, 3, EXF_INK_LOW);
    exf_canvas_fill(&c, 3, 3, 0, 5, EXF_INK_LOW);
    exf_canvas_fill(&c, 3, 3, -2, 5, EXF_INK_LOW);
    ck_assert_int_eq(count_ink(&c, EXF_INK_LOW), 0);
    exf_canvas_frame(&c, 3, 3, 2, 2, EXF_INK_HIGH);
    ck_assert_int_eq(count_ink(&c, EXF_INK_HIGH), 12);
    ck_assert_int_eq(ink_at(&c, 3, 3), EXF_INK_PAPER);
    exf_canvas_free(&c);
    exf_canvas_free(&c);
}
END_TEST

START_TEST(a_canvas_has_a_size_that_fits)
{
    exf_canvas c;
    ck_fails(exf_canvas_new(&c, 0, 5, &e), EXF_MODEL, e, "0 x 5 pixels");
    ck_fails(exf_canvas_new(&c, 5, -1, &e), EXF_MODEL, e, "5 x -1 pixels");
    ck_fails(exf_canvas_new(&c, 1 << 14, (1 << 12) + 1, &e), EXF_MODEL, e, "fewer layers");
    exf_mem_fail_at(1);
    ck_fails(exf_canvas_new(&c, 5, 5, &e), EXF_NOSPACE, e, "picture");
    exf_mem_fail_at(0);
}
END_TEST

static uint64_t letter_bits(char c)
{
    uint64_t bits = 0;
    for (int row = 0; row < EXF_LETTER_HEIGHT; row++)
        for (int column = 0; column < EXF_LETTER_WIDTH; column++) bits = bits << 1 | (uint64_t)exf_letter_ink(c, column, row);
    return bits;
}

START_TEST(letters_are_all_there_and_differ)
{
    ck_assert_uint_eq(letter_bits(' '), 0);
    for (int a = 33; a < 127; a++) {
        ck_assert_uint_ne(letter_bits((char)a), 0);
        for (int b = 33; b < a; b++) ck_assert_msg(letter_bits((char)a) != letter_bits((char)b), "%c looks like %c", a, b);
        for (int row = 0; row < EXF_LETTER_HEIGHT; row++) {
            ck_assert_int_eq(exf_letter_ink((char)a, EXF_LETTER_WIDTH - 1, row), 0); /* letters do not touch */
            ck_assert_int_eq(exf_letter_ink((char)a, row % EXF_LETTER_WIDTH, 0), 0);
        }
    }
    ck_assert_uint_eq(letter_bits('\n'), letter_bits('?'));
    ck_assert_uint_eq(letter_bits((char)0xc3), letter_bits('?'));
    ck_assert_int_eq(exf_letter_ink('L', 0, 1), 1); /* the stem */
    ck_assert_int_eq(exf_letter_ink('L', 4, 1), 0);
    ck_assert_int_eq(exf_letter_ink('L', 4, 7), 1); /* the foot, on the line */
    ck_assert_int_eq(exf_letter_ink('L', 4, 8), 0);
}
END_TEST

START_TEST(text_runs_right_and_up)
{
    exf_canvas a = canvas_of(40, 20), b = canvas_of(20, 40);
    exf_canvas_text(&a, 3, 2, 2, EXF_INK_TEXT, "L+");
    exf_canvas_text_up(&b, 2, 36, 2, EXF_INK_TEXT, "L+");
    ck_assert_int_gt(count_ink(&a, EXF_INK_TEXT), 20);
    for (int y = 0; y < 18; y++)
        for (int x = 0; x < 36; x++) ck_assert_int_eq(ink_at(&a, x, y), ink_at(&b, y, 39 - x));
    ck_assert_int_eq(exf_text_width("L+", 2), 24);
    exf_canvas_free(&a);
    exf_canvas_free(&b);
}
END_TEST

/* ---- colours ---------------------------------------------------------------------- */

/* OKLab of an 8-bit sRGB colour. */
static void oklab(const uint8_t rgb[3], double lab[3])
{
    double c[3];
    for (int i = 0; i < 3; i++) {
        double v = rgb[i] / 255.0;
        c[i] = v <= 0.04045 ? v / 12.92 : pow((v + 0.055) / 1.055, 2.4);
    }
    double l = cbrt(0.4122214708 * c[0] + 0.5363325363 * c[1] + 0.0514459929 * c[2]);
    double m = cbrt(0.2119034982 * c[0] + 0.6806995451 * c[1] + 0.1073969566 * c[2]);
    double s = cbrt(0.0883024619 * c[0] + 0.2817188376 * c[1] + 0.6299787005 * c[2]);
    lab[0] = 0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s;
    lab[1] = 1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s;
    lab[2] = 0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s;
}

static void map_lab(exf_colour_map map, int i, int n, double lab[3])
{
    uint8_t rgb[3];
    exf_colour_at(map, i, n, rgb);
    oklab(rgb, lab);
}

/* Equal steps look equally different: each within 15 % of the mean. */
static void check_uniform(exf_colour_map map)
{
    enum { N = 17 };
    double step[N - 1], mean = 0, a[3], b[3];
    for (int i = 0; i < N - 1; i++) {
        map_lab(map, i, N, a);
        map_lab(map, i + 1, N, b);
        step[i] = sqrt((a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]) + (a[2] - b[2]) * (a[2] - b[2]));
        mean += step[i] / (N - 1);
    }
    for (int i = 0; i < N - 1; i++)
        ck_assert_msg(fabs(step[i] - mean) < 0.15 * mean, "step %d is %g, the mean %g", i, step[i], mean);
}

START_TEST(maps_are_perceptually_uniform)
{
    check_uniform(EXF_MAP_SEQUENTIAL);
    check_uniform(EXF_MAP_DIVERGING);
}
END_TEST

START_TEST(lightness_alone_tells_low_from_high)
{
    double a[3], b[3];
    for (int i = 1; i < 240; i++) {
        map_lab(EXF_MAP_SEQUENTIAL, i - 1, 240, a);
        map_lab(EXF_MAP_SEQUENTIAL, i, 240, b);
        ck_assert_double_gt(b[0], a[0] - 0.003); /* 8 bits */
    }
    for (int i = 0; i <= 64; i++) {
        map_lab(EXF_MAP_DIVERGING, i, 129, a);
        map_lab(EXF_MAP_DIVERGING, 128 - i, 129, b);
        ck_assert_msg(fabs(a[0] - b[0]) < 0.07, "lightness %g and %g at %d", a[0], b[0], i);
    }
}
END_TEST

START_TEST(values_find_their_colour)
{
    ck_assert_int_eq(exf_colour_index(0, 0, 1), EXF_INKS);
    ck_assert_int_eq(exf_colour_index(-7, 0, 1), EXF_INKS);
    ck_assert_int_eq(exf_colour_index(1, 0, 1), 255);
    ck_assert_int_eq(exf_colour_index(99, 0, 1), 255);
    ck_assert_int_eq(exf_colour_index((double)NAN, 0, 1), EXF_INKS);
    ck_assert_int_eq(exf_colour_index(3, 3, 3), (EXF_INKS + 255 + 1) / 2);
    for (int i = 1; i < 100; i++) ck_assert_int_ge(exf_colour_index(i / 100.0, 0, 1), exf_colour_index((i - 1) / 100.0, 0, 1));
}
END_TEST

START_TEST(ticks_are_round_and_inside)
{
    double t[EXF_TICKS_MAX];
    int digits;
    ck_assert_int_eq(exf_ticks(0, 1, 6, t, &digits), 6);
    ck_assert_int_eq(digits, 1);
    ck_assert_double_eq_tol(t[5], 1, 1e-12);
    ck_assert_int_eq(exf_ticks(0, 127, 5, t, &digits), 3);
    ck_assert_int_eq(digits, 0);
    ck_assert_double_eq(t[2], 100);
    ck_assert_int_eq(exf_ticks(-0.968, 0.968, 6, t, &digits), 3);
    ck_assert_double_eq(t[1], 0);
    ck_assert_int_eq(exf_ticks(1, 1, 5, t, &digits), 0);
    ck_assert_int_eq(exf_ticks(2, 1, 5, t, &digits), 0);
    ck_assert_int_eq(exf_ticks(0, (double)INFINITY, 5, t, &digits), 0);
    for (double high = 1e-6; high < 1e9; high *= 3.7) {
        int n = exf_ticks(0, high, 5, t, &digits);
        ck_assert_msg(n >= 2 && n <= 5 && t[n - 1] <= high * (1 + 1e-9), "%d ticks to %g", n, high);
    }
}
END_TEST

/* ---- sheets ------------------------------------------------------------------------- */

static int32_t layer_number[64];

static exf_sheet sheet_of(int n_layers, int n_experts)
{
    for (int i = 0; i < 64; i++) layer_number[i] = i;
    return (exf_sheet){"title", "note", n_layers, n_experts, layer_number};
}

/* Every pixel of the outermost `margin` is paper: nothing is cut off. */
static int margins_are_free(const exf_canvas *c, int margin)
{
    for (int y = 0; y < c->height; y++)
        for (int x = 0; x < c->width; x++)
            if ((x < margin || y < margin || x >= c->width - margin || y >= c->height - margin) && ink_at(c, x, y) != EXF_INK_PAPER)
                return 0;
    return 1;
}

START_TEST(cells_have_the_colour_of_their_value)
{
    static const float value[] = {5, NAN, 1, 0.5f};
    exf_matrix_sheet m = {
        .sheet = sheet_of(1, 2), .value = value, .low = 0, .high = 1, .map = EXF_MAP_SEQUENTIAL, .hide_self = 1, .bar_label = "x"};
    exf_canvas c;
    ck_ok(exf_draw_matrices(&m, &c, &e), e);
    /* the grey cell is 128 x 128, beside the swatch of 20 x 20 */
    ck_assert_int_eq(count_ink(&c, EXF_INK_GREY), 128 * 128 + 400);
    ck_assert_int_ge(count_ink(&c, 255), 128 * 128);
    ck_assert(margins_are_free(&c, 20));
    exf_canvas_free(&c);
    m.hide_self = 0;
    ck_ok(exf_draw_matrices(&m, &c, &e), e);
    ck_assert_int_ge(count_ink(&c, 255), 2 * 128 * 128);
    exf_canvas_free(&c);
}
END_TEST

START_TEST(forty_eight_layers_of_128_fit)
{
    enum { L = 48, E = 128 };
    float *value = calloc(L * E * E, sizeof *value);
    uint64_t *tokens = calloc(L * E, sizeof *tokens);
    for (int i = 0; i < L * E * E; i++) value[i] = (float)(i % 101) / 100;
    for (int i = 0; i < L * E; i++) tokens[i] = i % 9 != 0;
    exf_matrix_sheet m = {
        .sheet = sheet_of(L, E), .value = value, .low = 0, .high = 1, .map = EXF_MAP_DIVERGING, .bar_label = "some label"};
    exf_bar_sheet b = {.sheet = sheet_of(L, E), .value = value, .tokens = tokens};
    exf_canvas c;
    ck_ok(exf_draw_matrices(&m, &c, &e), e);
    ck_assert(margins_are_free(&c, 14));
    ck_assert_int_lt(c.width, 3000);
    ck_assert_int_lt(c.height, 2200);
    /* 8 x 6 panels, 28 free pixels between two in a row: the gap holds no cell */
    int cells = 0;
    for (int i = EXF_INKS; i < 256; i++) cells += count_ink(&c, i);
    ck_assert_int_ge(cells, L * 256 * 256);
    exf_canvas_free(&c);
    ck_ok(exf_draw_bars(&b, &c, &e), e);
    ck_assert(margins_are_free(&c, 14));
    exf_canvas_free(&c);
    free(value);
    free(tokens);
}
END_TEST

START_TEST(bars_mark_the_least_and_the_largest)
{
    static const float value[] = {4, 2, 8, 0, 3}, outlier[] = {4, 2, 80, 0, 3}, none[5] = {0};
    static const uint64_t tokens[] = {1, 1, 1, 0, 1}, cold[5] = {0};
    exf_bar_sheet b = {.sheet = sheet_of(1, 5), .value = value, .tokens = tokens};
    exf_canvas c;
    ck_ok(exf_draw_bars(&b, &c, &e), e);
    int high = count_ink(&c, EXF_INK_HIGH), low = count_ink(&c, EXF_INK_LOW), others = count_ink(&c, EXF_INK_BAR);
    ck_assert_int_ge(high, 50 * 128);
    ck_assert_int_lt(high, 50 * 128 + 300);
    ck_assert_int_ge(low, 50 * 32);
    ck_assert_int_lt(low, 50 * 32 + 400);
    ck_assert_int_eq(others, 50 * (64 + 48));
    exf_canvas_free(&c);
    b.value = outlier; /* 80 does not set the axis: 4 is as high as the room, and 80 is hatched */
    ck_ok(exf_draw_bars(&b, &c, &e), e);
    ck_assert_int_eq(count_ink(&c, EXF_INK_BAR), 50 * (128 + 96));
    ck_assert_int_lt(count_ink(&c, EXF_INK_HIGH), 50 * 64 + 400);
    exf_canvas_free(&c);
    b.value = none;
    b.tokens = cold; /* nobody to mark, nothing to divide by */
    ck_ok(exf_draw_bars(&b, &c, &e), e);
    ck_assert_int_eq(count_ink(&c, EXF_INK_HIGH) + count_ink(&c, EXF_INK_LOW), 0);
    exf_canvas_free(&c);
}
END_TEST

/* ---- PNG ------------------------------------------------------------------------------ */

START_TEST(a_png_comes_back_and_names_no_time)
{
    exf_canvas c = canvas_of(37, 11);
    exf_colour_load(&c, EXF_MAP_SEQUENTIAL);
    for (int i = 0; i < 37 * 11; i++) c.pixel[i] = (uint8_t)(i * 7);
    const uint8_t(*palette)[3] = (const uint8_t(*)[3])c.palette;
    ck_ok(exf_png_write(exf_scratch("a.png"), 0, c.pixel, 37, 11, palette, &e), e);
    ck_ok(exf_png_write(exf_scratch("b.png"), 0, c.pixel, 37, 11, palette, &e), e);
    ck_assert(same_files("a.png", "b.png"));
    ck_fails(exf_png_write(exf_scratch("a.png"), 0, c.pixel, 37, 11, palette, &e), EXF_IO, e, "a.png");
    ck_fails(exf_png_write(exf_scratch("none/a.png"), 0, c.pixel, 37, 11, palette, &e), EXF_IO, e, "none/a.png");
    ck_assert_int_eq(files_left(), 2);
    png_image image = {.version = PNG_IMAGE_VERSION};
    uint8_t back[37 * 11 * 3];
    ck_assert(png_image_begin_read_from_file(&image, exf_scratch("a.png")));
    image.format = PNG_FORMAT_RGB;
    ck_assert(image.width == 37 && image.height == 11 && png_image_finish_read(&image, NULL, back, 0, NULL));
    for (int i = 0; i < 37 * 11; i++) ck_assert_mem_eq(back + 3 * i, c.palette[c.pixel[i]], 3);
    char *bytes, *at;
    size_t n;
    ck_ok(exf_file_slurp(exf_scratch("a.png"), 1 << 20, &bytes, &n, &e), e);
    static const char *const chunks[] = {"IHDR", "PLTE", "IDAT", "IEND"};
    at = bytes + 8;
    for (int i = 0; i < 4; i++) {
        const uint8_t *len = (const uint8_t *)at;
        ck_assert_mem_eq(at + 4, chunks[i], 4);
        at += 12 + ((size_t)len[0] << 24 | (size_t)len[1] << 16 | (size_t)len[2] << 8 | len[3]);
    }
    ck_assert_ptr_eq(at, bytes + n);
    exf_mem_free(bytes);
    exf_canvas_free(&c);
}
END_TEST

/* ---- NPY, base64, JSON ------------------------------------------------------------------- */

START_TEST(npy_files_are_as_numpy_writes_them)
{
    static const float data[] = {1, 2, 3, 4, 5, 6};
    static const char want[] = "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    exf_tensor t = {.name = "x", .dtype = EXF_DT_F32, .rank = 2, .shape = {2, 3}, .data = data};
    char *bytes;
    size_t n;
    ck_ok(exf_npy_write(exf_scratch("x.npy"), 0, &t, &e), e);
    ck_ok(exf_file_slurp(exf_scratch("x.npy"), 1 << 20, &bytes, &n, &e), e);
    ck_assert_uint_eq(n, 128 + sizeof data);
    ck_assert_mem_eq(bytes, want, sizeof want - 1);
    ck_assert_int_eq(bytes[127], '\n');
    ck_assert_mem_eq(bytes + 128, data, sizeof data);
    exf_mem_free(bytes);
    t.rank = 1;
    ck_ok(exf_npy_write(exf_scratch("x.npy"), 1, &t, &e), e);
    ck_ok(exf_file_slurp(exf_scratch("x.npy"), 1 << 20, &bytes, &n, &e), e);
    ck_assert_ptr_nonnull(strstr(bytes + 10, "'shape': (2,), }"));
    exf_mem_free(bytes);
    t.dtype = EXF_DT_BF16;
    ck_fails(exf_npy_write(exf_scratch("y.npy"), 0, &t, &e), EXF_INTERNAL, e, "BF16");
    ck_assert(!exf_path_exists(exf_scratch("y.npy")));
}
END_TEST

START_TEST(base64_is_that_of_the_standard)
{
    static const char *const pairs[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        exf_text t = {0};
        ck_ok(exf_base64_add(&t, pairs[i][0], strlen(pairs[i][0]), &e), e);
        ck_assert_str_eq(t.s ? t.s : "", pairs[i][1]);
        exf_text_free(&t);
    }
    uint8_t many[10000];
    for (size_t i = 0; i < sizeof many; i++) many[i] = (uint8_t)(i * 31 >> 3);
    exf_text t = {0};
    ck_ok(exf_base64_add(&t, many, sizeof many, &e), e);
    ck_assert_uint_eq(t.len, (sizeof many + 2) / 3 * 4);
    exf_text_free(&t);
}
END_TEST

START_TEST(json_is_written_in_the_order_of_the_calls)
{
    exf_jw w = {0};
    exf_text t = {0};
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "b", "a \"quoted\" \n line, \xc3\xa9");
    exf_jw_open(&w, "a", '[');
    exf_jw_real(&w, NULL, 0.1);
    exf_jw_real(&w, NULL, (double)0.1f);
    exf_jw_real(&w, NULL, -1e300);
    exf_jw_real(&w, NULL, (double)NAN);
    exf_jw_int(&w, NULL, INT64_MIN);
    exf_jw_count(&w, NULL, UINT64_MAX);
    exf_jw_open(&w, NULL, '{');
    exf_jw_close(&w);
    exf_jw_close(&w);
    exf_jw_bool(&w, "yes", 1);
    exf_jw_text(&w, "none", NULL);
    exf_jw_close(&w);
    ck_ok(exf_jw_end(&w, &t, &e), e);
    ck_assert_str_eq(
        t.s,
        "{\"b\": \"a \\\"quoted\\\" \\n line, \xc3\xa9\", \"a\": [0.1, 0.10000000149011612, -1e+300, null, -9223372036854775808, "
        "18446744073709551615, {}], \"yes\": true, \"none\": null}\n");
    exf_text_free(&t);
}
END_TEST

START_TEST(json_that_is_not_whole_is_refused)
{
    exf_jw w = {0};
    exf_text t = {0};
    exf_jw_open(&w, NULL, '{');
    ck_fails(exf_jw_end(&w, &t, &e), EXF_INTERNAL, e, "still open");
    exf_jw_close(&w);
    ck_fails(exf_jw_end(&w, &t, &e), EXF_INTERNAL, e, "not open");
    exf_jw_text(&w, NULL, "\xff");
    ck_fails(exf_jw_end(&w, &t, &e), EXF_INTERNAL, e, "UTF-8");
    for (int i = 0; i <= EXF_JW_DEPTH; i++) exf_jw_open(&w, NULL, '[');
    ck_fails(exf_jw_end(&w, &t, &e), EXF_INTERNAL, e, "deeper");
    ck_assert_ptr_null(t.s);
}
END_TEST

START_TEST(reals_are_short_and_read_back)
{
    static const double values[] = {0, 1, -0.5, 0.1, 1.0 / 3, 1e30, 5e-324, 1.7976931348623157e308, 123456789.25};
    char buf[EXF_REAL_TEXT];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        ck_assert_double_eq(strtod(exf_real_text(buf, values[i]), NULL), values[i]);
    ck_assert_str_eq(exf_real_text(buf, 0.1), "0.1");
    ck_assert_str_eq(exf_real_text(buf, 1e30), "1e+30");
}
END_TEST

/* ---- allocations that fail ------------------------------------------------------------------ */

static exf_code write_all(exf_err *err)
{
    static const float value[] = {0, 0.5f, 1, 0.25f};
    exf_matrix_sheet m = {.sheet = sheet_of(1, 2), .value = value, .low = 0, .high = 1, .bar_label = "x"};
    exf_tensor t = {.name = "x", .dtype = EXF_DT_F32, .rank = 2, .shape = {2, 2}, .data = value};
    exf_canvas c = {0};
    exf_code rc;
    EXF_TRY(exf_draw_matrices(&m, &c, err));
    EXF_TRY(exf_png_write(exf_scratch("x.png"), 1, c.pixel, c.width, c.height, (const uint8_t(*)[3])c.palette, err));
    EXF_TRY(exf_npy_write(exf_scratch("x.npy"), 1, &t, err));
out:
    exf_canvas_free(&c);
    if (rc != EXF_OK) {
        remove(exf_scratch("x.png"));
        remove(exf_scratch("x.npy"));
    }
    return rc;
}

START_TEST(pictures_survive_every_failing_allocation)
{
    fail_each_allocation(write_all, files_left, 0);
    ck_assert_int_eq(files_left(), 2);
}
END_TEST

static exf_code write_json(exf_err *err)
{
    exf_jw w = {0};
    exf_text t = {0};
    exf_jw_open(&w, NULL, '{');
    for (int i = 0; i < 200; i++) exf_jw_text(&w, "a key", "a value that takes some room");
    exf_jw_close(&w);
    exf_code rc = exf_jw_end(&w, &t, err);
    exf_text_free(&t);
    return rc;
}

START_TEST(json_survives_every_failing_allocation)
{
    fail_each_allocation(write_json, files_left, 0);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("picture");
    TCase *c = tcase_create("picture");
    tcase_add_checked_fixture(c, start_empty, NULL);
    tcase_add_test(c, rectangles_are_clipped);
    tcase_add_test(c, a_canvas_has_a_size_that_fits);
    tcase_add_test(c, letters_are_all_there_and_differ);
    tcase_add_test(c, text_runs_right_and_up);
    tcase_add_test(c, maps_are_perceptually_uniform);
    tcase_add_test(c, lightness_alone_tells_low_from_high);
    tcase_add_test(c, values_find_their_colour);
    tcase_add_test(c, ticks_are_round_and_inside);
    tcase_add_test(c, cells_have_the_colour_of_their_value);
    tcase_add_test(c, forty_eight_layers_of_128_fit);
    tcase_add_test(c, bars_mark_the_least_and_the_largest);
    tcase_add_test(c, a_png_comes_back_and_names_no_time);
    tcase_add_test(c, npy_files_are_as_numpy_writes_them);
    tcase_add_test(c, base64_is_that_of_the_standard);
    tcase_add_test(c, json_is_written_in_the_order_of_the_calls);
    tcase_add_test(c, json_that_is_not_whole_is_refused);
    tcase_add_test(c, reals_are_short_and_read_back);
    tcase_add_test(c, pictures_survive_every_failing_allocation);
    tcase_add_test(c, json_survives_every_failing_allocation);
    suite_add_tcase(s, c);
    return s;
}

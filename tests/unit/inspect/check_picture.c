/* check_picture.c - the colours of pictures, and the writers of src/format that numbers of
 * pictures and reports go through: NPY, base64, JSON. */
#include "tests/support/scratch_fixtures.h"

#include "format/json.h"
#include "format/npy.h"
#include "inspect/drawing.h"

#include <math.h>
#include <stdlib.h>

static exf_err e; /* of the last call */

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
    uint8_t first[3], last[3];
    exf_colour_at(EXF_MAP_SEQUENTIAL, 0, 2, first);
    exf_colour_at(EXF_MAP_SEQUENTIAL, 1, 2, last);
    exf_ink low = (exf_ink)first[0] << 16 | (exf_ink)first[1] << 8 | first[2];
    exf_ink high = (exf_ink)last[0] << 16 | (exf_ink)last[1] << 8 | last[2];
    static const double at_low[] = {0, -7, (double)NAN}, at_high[] = {1, 99, (double)INFINITY};
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(exf_colour_of(EXF_MAP_SEQUENTIAL, at_low[i], 0, 1), low);
        ck_assert_uint_eq(exf_colour_of(EXF_MAP_SEQUENTIAL, at_high[i], 0, 1), high);
    }
    ck_assert_uint_eq(exf_colour_of(EXF_MAP_SEQUENTIAL, 3, 3, 3), exf_colour_of(EXF_MAP_SEQUENTIAL, 0.5, 0, 1));
    ck_assert_uint_ne(exf_colour_of(EXF_MAP_SEQUENTIAL, 0.5, 0, 1), exf_colour_of(EXF_MAP_DIVERGING, 0.5, 0, 1));
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
    ck_fails(exf_jw_end(&w, &t, &e), EXF_INTERNAL, e, "1 JSON");
    exf_jw_close(&w);
    ck_fails(exf_jw_end(&w, &t, &e), EXF_INTERNAL, e, "JSON");
    exf_jw_text(&w, NULL, "\xff");
    ck_fails(exf_jw_end(&w, &t, &e), EXF_USAGE, e, "UTF-8");
    for (int i = 0; i <= EXF_JW_DEPTH; i++) exf_jw_open(&w, NULL, '[');
    ck_fails(exf_jw_end(&w, &t, &e), EXF_INTERNAL, e, "JSON 16");
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

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "picture");
    tcase_add_checked_fixture(c, start_empty, NULL);
    tcase_add_test(c, maps_are_perceptually_uniform);
    tcase_add_test(c, lightness_alone_tells_low_from_high);
    tcase_add_test(c, values_find_their_colour);
    tcase_add_test(c, npy_files_are_as_numpy_writes_them);
    tcase_add_test(c, base64_is_that_of_the_standard);
    tcase_add_test(c, json_is_written_in_the_order_of_the_calls);
    tcase_add_test(c, json_that_is_not_whole_is_refused);
    tcase_add_test(c, reals_are_short_and_read_back);
}

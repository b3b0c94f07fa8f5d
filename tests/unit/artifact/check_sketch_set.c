/* check_sketch_set.c - sketches of documents are one set whatever they were put together by, and what files of them are refused. */
#include "tests/support/scratch_fixtures.h"

#include "artifact/sketch_set.h"
#include "base/mem.h"

#include <string.h>

enum { BYTES = EXF_SKETCH_BYTES, N = 6 };

static exf_err e; /* of the last call */

/* Fills n sketches with numbers from `first` on, each `step` more than the one before. */
static void fill(unsigned char (*sketch)[BYTES], size_t n, size_t first, int step)
{
    memset(sketch, 0, n * sizeof *sketch);
    for (size_t i = 0; i < n; i++) {
        size_t number = step < 0 ? first + n - 1 - i : first + i;
        for (int k = 0; k < 4; k++) sketch[i][k] = (unsigned char)(number >> (24 - 8 * k));
    }
}

static exf_code add(exf_sketch_set *s, unsigned char (*sketch)[BYTES], size_t n, exf_err *err)
{
    return exf_sketch_set_add(s, (const unsigned char (*)[BYTES])sketch, n, err);
}

/* Of more documents than fit, the least stay: in parts as at once. */
START_TEST(parts_add_up_to_one_set)
{
    enum { HALF = EXF_MOST_SKETCHES / 2 + 10 };
    unsigned char (*a)[BYTES] = NULL, (*b)[BYTES] = NULL;
    exf_sketch_set one = {0}, other = {0}, none = {0};
    ck_ok(exf_mem_new(&a, HALF, sizeof *a, "test", &e), e);
    ck_ok(exf_mem_new(&b, HALF, sizeof *b, "test", &e), e);
    fill(a, HALF, 0, 1);
    fill(b, HALF, HALF - 7, -1);
    ck_ok(add(&one, a, 0, &e), e);
    ck_assert(exf_sketch_set_same(&one, &none));
    ck_ok(add(&one, a, HALF, &e), e);
    ck_ok(add(&one, a, HALF, &e), e);
    ck_assert_uint_eq(one.n, HALF);
    ck_ok(add(&one, b, HALF, &e), e);
    ck_ok(add(&other, b, HALF, &e), e);
    ck_assert(!exf_sketch_set_same(&one, &other));
    ck_ok(add(&other, a, HALF, &e), e);
    ck_assert_uint_eq(one.n, EXF_MOST_SKETCHES);
    ck_assert(exf_sketch_set_same(&one, &other));
    ck_assert_uint_eq(one.sketch[HALF][2] << 8 | one.sketch[HALF][3], HALF);
    exf_sketch_set_free(&one);
    exf_sketch_set_free(&other);
    exf_mem_free(a);
    exf_mem_free(b);
}
END_TEST

/* Writes rows as they are, in a dataset of that width. */
static exf_code write_rows(const unsigned char *row, int64_t n, int64_t width, exf_err *err)
{
    const exf_tensor rows = {.name = "/document_sketches", .dtype = EXF_DT_U8, .rank = 2, .shape = {n, width}, .data = row};
    exf_h5 *h = NULL;
    exf_code rc;
    EXF_TRY(exf_h5_create(&h, exf_scratch("s.h5"), 1, NULL, err));
    if (row) EXF_TRY(exf_h5_write(h, &rows, err));
    rc = exf_h5_commit(h, err);
    h = NULL;
out:
    exf_h5_close(h);
    return rc;
}

static exf_code read_set(exf_sketch_set *s, exf_err *err)
{
    exf_h5 *h = NULL;
    exf_code rc = exf_h5_open(&h, exf_scratch("s.h5"), err);
    *s = (exf_sketch_set){0};
    if (rc == EXF_OK) rc = exf_sketch_set_read(s, h, err);
    exf_h5_close(h);
    return rc;
}

START_TEST(files_of_no_set_are_refused)
{
    unsigned char row[N][BYTES];
    exf_sketch_set s;
    ck_ok(write_rows(NULL, 0, 0, &e), e); /* of an earlier version */
    ck_ok(read_set(&s, &e), e);
    ck_assert_uint_eq(s.n, 0);
    fill(row, N, 5, -1);
    s = (exf_sketch_set){0};
    ck_ok(add(&s, row, N, &e), e);
    fill(row, N, 5, 1);
    ck_assert_mem_eq(s.sketch, row, sizeof row);
    exf_sketch_set_free(&s);
    ck_ok(write_rows(row[0], N, BYTES, &e), e);
    ck_ok(read_set(&s, &e), e);
    ck_assert_uint_eq(s.n, N);
    ck_assert_mem_eq(s.sketch, row, sizeof row);
    exf_sketch_set_free(&s);
    fill(row, N, 5, -1);
    ck_ok(write_rows(row[0], N, BYTES, &e), e);
    ck_fails(read_set(&s, &e), EXF_FORMAT, e, "/document_sketches[1] row 0");
    memset(row, 0, sizeof row);
    ck_ok(write_rows(row[0], 2, BYTES, &e), e);
    ck_fails(read_set(&s, &e), EXF_FORMAT, e, "/document_sketches[1] row 0");
    ck_ok(write_rows(row[0], N, BYTES / 2, &e), e);
    ck_fails(read_set(&s, &e), EXF_FORMAT, e, "/document_sketches 64 128");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, parts_add_up_to_one_set);
    tcase_add_test(t, files_of_no_set_are_refused);
}

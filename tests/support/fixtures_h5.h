/* fixtures_h5.h - what the tests of HDF5 files share. */
#ifndef EXF_TESTS_FIXTURES_H5_H
#define EXF_TESTS_FIXTURES_H5_H
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/h5.h"

#include <dirent.h>
#include <hdf5.h> /* to count what is left open, and to make foreign files */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline exf_h5 *create(const char *name)
{
    exf_err e;
    exf_h5 *h;
    ck_ok(exf_h5_create(&h, exf_scratch(name), 1, NULL, &e), e);
    return h;
}

static inline exf_h5 *reopen(exf_h5 *h, const char *name)
{
    exf_err e;
    ck_ok(exf_h5_commit(h, &e), e);
    ck_ok(exf_h5_open(&h, exf_scratch(name), &e), e);
    return h;
}

static inline exf_tensor tensor(const char *name, exf_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, const void *data)
{
    exf_tensor t = {.name = name, .dtype = dtype, .rank = rank, .shape = {a, b, c}, .data = data};
    return t;
}

static inline void put_floats(exf_h5 *h, const char *name, int64_t a, int64_t b, const float *v)
{
    exf_err e;
    exf_tensor t = tensor(name, EXF_DT_F32, 2, a, b, 0, v);
    ck_ok(exf_h5_write(h, &t, &e), e);
}

/* No temporary is left, and `files` files were made, which are removed for the next test. */
static inline void no_temporary_left(int files)
{
    char *dir;
    exf_err e;
    ck_ok(exf_path_dir(&dir, exf_scratch("x"), &e), e);
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *f; (f = readdir(d));) {
        ck_assert_msg(!strstr(f->d_name, ".partial"), "%s is left", f->d_name);
        n += unlink(exf_scratch(f->d_name)) == 0;
    }
    closedir(d);
    exf_mem_free(dir);
    ck_assert_int_eq(n, files);
}

/* Moreover no id of libhdf5 is open. */
static inline void nothing_left(int files)
{
    ck_assert_int_eq((int)H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL), 0);
    no_temporary_left(files);
}

/* What varies: nothing (0), or one thing each; returns with the file committed. */
static inline void write_sample(const char *name, int variant)
{
    exf_err e;
    enum { ROWS = 300, WIDE = 1000 };
    float *v = malloc(sizeof *v * ROWS * WIDE);
    for (int i = 0; i < ROWS * WIDE; i++) v[i] = (float)(i % 977) / 3;
    if (variant == 1) v[ROWS * WIDE - 1] = -1;
    exf_h5 *h = create(name);
    put_floats(h, variant == 2 ? "/layers/1/dut" : "/layers/1/dot", variant == 3 ? WIDE : ROWS, variant == 3 ? ROWS : WIDE, v);
    exf_tensor t = tensor("/layers/1/count", variant == 4 ? EXF_DT_I64 : EXF_DT_U64, 1, 100, 0, 0, v);
    ck_ok(exf_h5_write(h, &t, &e), e);
    t = tensor("/sums", EXF_DT_F64, 2, 50, 40, 0, NULL);
    ck_ok(exf_h5_define(h, &t, &e), e);
    ck_ok(exf_h5_write_rows(h, "/sums", 10, 30, v, &e), e);
    ck_ok(exf_h5_group(h, variant == 5 ? "/groups" : "/group", &e), e);
    for (int i = 0; i < 12; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        ck_ok(exf_h5_put_text(h, "/", key, variant == 6 && i == 7 ? "other" : "value", &e), e);
    }
    if (variant == 7)
        ck_ok(exf_h5_put_text(h, "/sums", "n", "0", &e), e);
    else
        ck_ok(exf_h5_put_i64(h, variant == 8 ? "/layers" : "/sums", "n", 0, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    free(v);
}
#endif

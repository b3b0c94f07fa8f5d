/* scratch_fixtures.h - what tests that write many files share: a scratch
 * directory that starts empty, files compared, allocations that fail in turn. */
#ifndef EXF_TESTS_SCRATCH_FIXTURES_H
#define EXF_TESTS_SCRATCH_FIXTURES_H
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file, or a directory of files. */
static inline void remove_scratch(const char *path)
{
    if (unlink(path) == 0) return;
    DIR *d = opendir(path);
    ck_assert_msg(d != NULL, "%s", path);
    for (struct dirent *f; (f = readdir(d));) unlinkat(dirfd(d), f->d_name, 0);
    closedir(d);
    rmdir(path);
}

/* Setup of every case: without forking, the files of the test before are there. */
static inline void start_empty(void)
{
    char *dir = NULL;
    exf_err e;
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    ck_ok(exf_path_dir(&dir, exf_scratch("x"), &e), e);
    DIR *d = opendir(dir);
    for (struct dirent *f; (f = readdir(d));)
        if (strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0) remove_scratch(exf_scratch(f->d_name));
    closedir(d);
    exf_mem_free(dir);
}

/* Files in the scratch directory, temporaries (which start with a dot) included. */
static inline int files_left(void)
{
    char *dir = NULL;
    exf_err e;
    int n = 0;
    ck_ok(exf_path_dir(&dir, exf_scratch("x"), &e), e);
    DIR *d = opendir(dir);
    for (struct dirent *f; (f = readdir(d));) n += strcmp(f->d_name, ".") != 0 && strcmp(f->d_name, "..") != 0;
    closedir(d);
    exf_mem_free(dir);
    return n;
}

static inline int same_files(const char *a, const char *b)
{
    exf_err e;
    char *x = NULL, *y = NULL;
    size_t n, m;
    ck_ok(exf_file_slurp(exf_scratch(a), 1 << 30, &x, &n, &e), e);
    ck_ok(exf_file_slurp(exf_scratch(b), 1 << 30, &y, &m, &e), e);
    int same = n == m && memcmp(x, y, n) == 0;
    exf_mem_free(x);
    exf_mem_free(y);
    return same;
}

/* Which allocation fails after the n-th: with EXF_TEST_THOROUGH=1 the next one; otherwise each of
 * the first 12 and then ever fewer, about fifty of a thousand. */
static inline size_t next_to_fail(size_t n)
{
    const char *thorough = getenv("EXF_TEST_THOROUGH");
    return thorough && strcmp(thorough, "1") == 0 ? n + 1 : n + 1 + n / 12;
}

/* Runs work with its first, second, ... allocation failing (next_to_fail) until none fails
 * any more.  Every refusal is EXF_NOSPACE and after it left() is `want`. */
static inline void fail_each_allocation(exf_code (*work)(exf_err *err), int (*left)(void), int want)
{
    size_t runs = 0;
    for (size_t n = 1;; n = next_to_fail(n), runs++) {
        exf_err e = {.code = EXF_OK};
        exf_mem_fail_at(n);
        exf_code rc = work(&e);
        size_t asked = exf_mem_fail_at(0);
        if (rc == EXF_OK) {
            ck_assert_uint_lt(asked, n);
            ck_assert_uint_gt(n, 3);
            if (runs < asked) printf("a sample: %zu of %zu allocations failed (EXF_TEST_THOROUGH=1: all of them)\n", runs, asked);
            return;
        }
        ck_assert_msg(rc == EXF_NOSPACE, "allocation %zu: %s: %s", n, exf_code_name(rc), e.msg);
        ck_assert_int_eq(left(), want);
    }
}
#endif

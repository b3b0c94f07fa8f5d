/* scratch_fixtures.h - what tests that write many files share: a scratch
 * directory that starts empty, files compared. */
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
#endif

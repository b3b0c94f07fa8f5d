/* fixtures.c - see fixtures.h. */
#include "tests/support/fixtures.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char scratch_dir[256];
static pid_t scratch_owner;

static void remove_scratch(void)
{
    if (getpid() != scratch_owner) return; /* Check forks; only the parent cleans */
    DIR *d = opendir(scratch_dir);
    char path[600];
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", scratch_dir, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(scratch_dir);
}

__attribute__((constructor)) static void make_scratch(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(scratch_dir, sizeof scratch_dir, "%s/exfold-check-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(scratch_dir)) perror(scratch_dir);
    scratch_owner = getpid();
    atexit(remove_scratch);
}

int exf_path_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

const char *exf_scratch(const char *name)
{
    static char slot[4][600];
    static int next;
    char *path = slot[next++ & 3];
    snprintf(path, sizeof slot[0], "%s/%s", scratch_dir, name);
    return path;
}

void exf_write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_msg(f != NULL, "cannot create %s", path);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

/* fixtures.c - see fixtures.h. */
#include "tests/support/fixtures.h"

#include "base/mem.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* 1 for a word of plain English, which says nothing of objects or values. */
static int is_plain_word(const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!islower((unsigned char)word[i])) return 0;
    return 1;
}

int exf_message_names(const char *msg, const char *named)
{
    static const char blanks[] = " \n", stops[] = ",;:.()";
    for (const char *word = named + strspn(named, blanks); *word; word += strspn(word, blanks)) {
        size_t len = strcspn(word, blanks), from = 0, to = len;
        while (from < to && strchr(stops, word[from])) from++;
        while (to > from && strchr(stops, word[to - 1])) to--;
        if (!is_plain_word(word + from, to - from)) {
            char object[1024];
            snprintf(object, sizeof object, "%.*s", (int)(to - from), word + from);
            const char *at = strstr(msg, object);
            if (!at) return 0;
            msg = at + (to - from);
        }
        word += len;
    }
    return 1;
}

void exf_record_message(const char *msg)
{
    const char *path = getenv("EXF_TEST_MESSAGES"), *at;
    if (!path) return;
    FILE *f = fopen(path, "a");
    ck_assert_msg(f != NULL, "%s", path);
    for (; (at = strstr(msg, scratch_dir)); msg = at + strlen(scratch_dir)) fprintf(f, "%.*sSCRATCH", (int)(at - msg), msg);
    fprintf(f, "%s\n", msg);
    fclose(f);
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

void *test_memory(size_t n, size_t size)
{
    void *p;
    exf_err err;
    ck_ok(exf_mem_new(&p, n, size, "test", &err), err);
    return p;
}

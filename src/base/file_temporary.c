/* file_temporary.c - see file.h. */
#define _DEFAULT_SOURCE /* getentropy */
#include "base/file.h"

#include "base/mem.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CLAIM ".exfold-"
#define TEMPORARY "exfold-temporary/1:"
enum { DIGITS = 12, TRIES = 8, CLAIM_NAME = 64 };

uint64_t exf_random_u64(void)
{
    static atomic_uint calls;
    uint64_t bits;
    struct timespec now = {0};
    if (getentropy(&bits, sizeof bits) == 0) return bits;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((uint64_t)getpid() << 40) ^ ((uint64_t)now.tv_sec << 30) ^ (uint64_t)now.tv_nsec ^ ((uint64_t)calls++ << 56);
}

int exf_temporary_is(const char *path, int fd)
{
    struct stat open_file, named;
    errno = 0;
    return fstat(fd, &open_file) == 0 && lstat(path, &named) == 0 && open_file.st_ino == named.st_ino &&
           open_file.st_dev == named.st_dev;
}

exf_code exf_temporary_check(const char *path, int fd, const char *target, const char *kind, exf_err *err)
{
    if (exf_temporary_is(path, fd)) return EXF_OK;
    if (errno) return exf_fail_errno(err, errno, "%s: cannot look up %s", target, path);
    return exf_fail(err, EXF_IO, "%s: %s was written for it and is another %s now", target, path, kind);
}

void exf_temporary_lock(int fd)
{
    (void)flock(fd, LOCK_EX | LOCK_NB);
}

/* ---- claims -------------------------------------------------------------------------------- */

/* The name of a claim: of a temporary itself (file 0) or of the file-th file of a folder. */
static void claim_name(char out[CLAIM_NAME], unsigned long long random, size_t file)
{
    if (file)
        snprintf(out, CLAIM_NAME, CLAIM "%0*llx-%zu", DIGITS, random, file);
    else
        snprintf(out, CLAIM_NAME, CLAIM "%0*llx", DIGITS, random);
}

/* Makes the link, unless the directory cannot be read, the name is taken, the text too long or the file system without links.
 * Returns 0 with errno where the system does not say what the directory is. */
static int claim(const char *directory, const char *name, const char *what)
{
    char text[PATH_MAX];
    struct stat st;
    int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return 1;
    if (fstat(dir, &st) != 0) {
        int why = errno;
        close(dir);
        errno = why;
        return 0;
    }
    int n = snprintf(text, sizeof text, TEMPORARY "%llu:%s", (unsigned long long)st.st_ino, what);
    if (n > 0 && n < (int)sizeof text && symlinkat(text, dir, name) != 0) errno = 0; /* no failure, see file.h */
    close(dir);
    return 1;
}

/* A claim that was read: text is what is claimed: a name, or the names of a folder and of a file in it. */
typedef struct {
    char name[CLAIM_NAME], *text;
    unsigned long long random;
} claimed;

typedef struct {
    claimed *item;
    size_t n, cap;
} claim_list;

/* Returns what stands after ".exfold-<random>" of a claim's name, or NULL if it is none. */
static const char *parse_name(const char *name, unsigned long long *random)
{
    if (!exf_starts_with(name, CLAIM) || strlen(name) >= CLAIM_NAME) return NULL;
    const char *digits = name + strlen(CLAIM);
    if (strspn(digits, "0123456789abcdef") != DIGITS) return NULL;
    *random = strtoull(digits, NULL, 16);
    digits += DIGITS;
    return *digits == 0 || (*digits == '-' && strspn(digits + 1, "0123456789") == strlen(digits + 1)) ? digits : NULL;
}

/* Returns 1 for ".NAME.<random>.partial", or with "/FILE" after it as the claim is of a temporary or of a file in it. */
static int is_name_of(const char *what, unsigned long long random, int in_folder)
{
    char end[CLAIM_NAME];
    const char *slash = strchr(what, '/');
    size_t n = slash ? (size_t)(slash - what) : strlen(what), m;
    snprintf(end, sizeof end, ".%0*llx.partial", DIGITS, random);
    m = strlen(end);
    if (what[0] != '.' || n <= m || memcmp(what + n - m, end, m) != 0 || (slash != NULL) != in_folder) return 0;
    return !slash || (slash[1] && !strchr(slash + 1, '/') && strcmp(slash + 1, ".") != 0 && strcmp(slash + 1, "..") != 0);
}

/* Reads a link as a claim that was made in this very directory; returns what it claims, in text, or NULL if it is none. */
static const char *read_link(int dir, uint64_t inode, const char *name, char text[PATH_MAX], unsigned long long *random)
{
    char *end;
    const char *rest = parse_name(name, random);
    ssize_t n = rest ? readlinkat(dir, name, text, PATH_MAX - 1) : -1;
    if (n <= 0) return NULL;
    text[n] = 0;
    if (!exf_starts_with(text, TEMPORARY)) return NULL;
    const char *number = text + strlen(TEMPORARY);
    if (strspn(number, "0123456789") == 0 || strtoull(number, &end, 10) != inode || *end++ != ':') return NULL;
    return is_name_of(end, *random, *rest == '-') ? end : NULL;
}

static int read_claim(int dir, uint64_t inode, const char *name, claimed *c, exf_err *err)
{
    char text[PATH_MAX];
    const char *what = read_link(dir, inode, name, text, &c->random);
    if (!what) return 0;
    memcpy(c->name, name, strlen(name) + 1); /* parse_name() has checked its length */
    return exf_mem_strdup(&c->text, what, "claims", err) == EXF_OK;
}

/* Removes the claim of a temporary, or of a file in it.  Another link of that name, which claim() found there, stays. */
static void withdraw(const char *directory, const char *name, const char *temporary)
{
    char text[PATH_MAX];
    unsigned long long random;
    struct stat st;
    size_t n = strlen(temporary);
    int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return;
    const char *what = fstat(dir, &st) == 0 ? read_link(dir, st.st_ino, name, text, &random) : NULL;
    if (what && strncmp(what, temporary, n) == 0 && (what[n] == 0 || what[n] == '/')) (void)unlinkat(dir, name, 0);
    close(dir);
}

/* Lists the claims of an open directory.  What cannot be read is not claimed. */
static void read_claims(int dir, claim_list *l)
{
    exf_err unused;
    struct stat st;
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* with a position of its own */
    DIR *d = copy >= 0 && fstat(dir, &st) == 0 ? fdopendir(copy) : NULL;
    if (!d && copy >= 0) close(copy);
    for (struct dirent *e; d && (e = readdir(d));) {
        claimed c = {.text = NULL};
        if (!read_claim(dir, st.st_ino, e->d_name, &c, &unused)) continue;
        if (exf_mem_grow(&l->item, &l->cap, l->n + 1, sizeof *l->item, "claims", &unused) != EXF_OK)
            exf_mem_free(c.text);
        else
            l->item[l->n++] = c;
    }
    if (d) closedir(d);
}

/* ---- what killed processes left ------------------------------------------------------------------ */

/* Withdraws the claims of a temporary that is gone. */
static void withdraw_all(int dir, const claim_list *l, unsigned long long random)
{
    for (int of_files = 1; of_files >= 0; of_files--) /* that of the folder last: it leads to the others */
        for (size_t i = 0; i < l->n; i++)
            if (l->item[i].random == random && !strchr(l->item[i].text, '/') == !of_files)
                (void)unlinkat(dir, l->item[i].name, 0);
}

/* Removes the claimed files of a folder.  Whatever else it holds keeps it from being removed. */
static void empty_folder(int folder, const claim_list *l, unsigned long long random)
{
    struct stat st;
    for (size_t i = 0; i < l->n; i++) {
        const char *slash = strchr(l->item[i].text, '/');
        if (l->item[i].random != random || !slash) continue;
        if (fstatat(folder, slash + 1, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) (void)unlinkat(folder, slash + 1, 0);
    }
}

static void remove_if_stale(int dir, const claim_list *l, const claimed *c)
{
    struct stat st;
    int fd = openat(dir, c->text, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), failed = 1;
    if (fd < 0) {
        if (errno == ENOENT) withdraw_all(dir, l, c->random);
        return;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0) {
        if (S_ISDIR(st.st_mode)) empty_folder(fd, l, c->random);
        if (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)) failed = unlinkat(dir, c->text, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
        if (!failed) withdraw_all(dir, l, c->random);
    }
    close(fd);
}

/* Claims of files whose folder's own claim is gone are withdrawn once the folder is. */
static void withdraw_orphan(int dir, const claimed *c)
{
    struct stat st;
    char *slash = strchr(c->text, '/');
    *slash = 0;
    if (fstatat(dir, c->text, &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT) (void)unlinkat(dir, c->name, 0);
    *slash = '/';
}

/* Removes what killed processes left in a directory; what cannot be removed stays. */
static void remove_stale(const char *directory)
{
    claim_list l = {0};
    int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return;
    read_claims(dir, &l);
    for (size_t i = 0; i < l.n; i++)
        if (!strchr(l.item[i].text, '/')) remove_if_stale(dir, &l, &l.item[i]);
    for (size_t i = 0; i < l.n; i++)
        if (strchr(l.item[i].text, '/')) withdraw_orphan(dir, &l.item[i]);
    for (size_t i = 0; i < l.n; i++) exf_mem_free(l.item[i].text);
    exf_mem_free(l.item);
    close(dir);
}

/* ---- making -------------------------------------------------------------------------------------- */

void exf_temporary_leave(exf_temporary *t)
{
    exf_mem_free(t->path);
    exf_mem_free(t->directory);
    *t = (exf_temporary){.path = NULL};
}

void exf_temporary_end(exf_temporary *t)
{
    char name[CLAIM_NAME];
    for (size_t i = t->n_files + 1; t->directory && i-- > 0;) {
        claim_name(name, t->random, i);
        withdraw(t->directory, name, exf_path_name(t->path));
    }
    exf_temporary_leave(t);
}

void exf_temporary_claim(exf_temporary *t, const char *name)
{
    char link[CLAIM_NAME], what[PATH_MAX];
    int n = snprintf(what, sizeof what, "%s/%s", exf_path_name(t->path), name);
    if (n < 0 || n >= (int)sizeof what) return;
    claim_name(link, t->random, ++t->n_files);
    (void)claim(t->directory, link, what);
}

static exf_code name_it(exf_temporary *t, const char *target, exf_err *err)
{
    exf_text name = {0};
    exf_code rc;
    t->random = exf_random_u64() & ((1ULL << 4 * DIGITS) - 1);
    EXF_TRY(exf_path_dir(&t->directory, target, err));
    exf_text_appendf(&name, ".%s.%0*llx.partial", exf_path_name(target), DIGITS, t->random);
    EXF_TRY(exf_text_end(&name, err));
    EXF_TRY(exf_path_join(&t->path, t->directory, name.s, err));
out:
    exf_text_free(&name);
    if (rc != EXF_OK) exf_temporary_leave(t);
    return rc;
}

enum { NOT_MADE = -1, NOT_KNOWN = -2 };

/* Makes and locks what t names and returns its descriptor; NOT_MADE: it cannot be made, or another process took it for a
 * leftover in the moment before it was locked (EEXIST: another name will do); NOT_KNOWN: it was made, but the system does not
 * say whether the name is still its own. */
static int make_and_lock(const exf_temporary *t, int is_folder)
{
    int fd = -1, why;
    if (!is_folder)
        fd = open(t->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    else if (mkdir(t->path, 0777) == 0 && (fd = open(t->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0) {
        why = errno;
        (void)rmdir(t->path);
        errno = why;
    }
    if (fd < 0) return NOT_MADE;
    int taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && exf_temporary_is(t->path, fd)) return fd;
    why = taken || errno == 0 || errno == ENOENT ? EEXIST : errno;
    close(fd);
    errno = why;
    return why == EEXIST ? NOT_MADE : NOT_KNOWN;
}

exf_code exf_temporary_make(exf_temporary *t, const char *target, int is_folder, int *fd, exf_err *err)
{
    char name[CLAIM_NAME];
    *t = (exf_temporary){.path = NULL};
    *fd = -1;
    for (int i = 0; i < TRIES; i++) {
        exf_code rc = name_it(t, target, err);
        if (rc != EXF_OK) return rc;
        if (i == 0) remove_stale(t->directory);
        claim_name(name, t->random, 0);
        *fd = claim(t->directory, name, exf_path_name(t->path)) ? make_and_lock(t, is_folder) : NOT_MADE;
        int why = errno;
        if (*fd >= 0) {
            (void)claim(t->directory, name, exf_path_name(t->path)); /* again, if it was found before the file was there */
            return EXF_OK;
        }
        if (*fd == NOT_KNOWN)
            exf_temporary_leave(t); /* with its claim, by which the next run removes it */
        else
            exf_temporary_end(t);
        *fd = -1;
        errno = why;
        if (why != EEXIST) break;
    }
    return exf_fail_errno(err, errno, "%s: cannot create", target);
}

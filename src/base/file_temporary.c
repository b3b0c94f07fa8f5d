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

/* ---- claims -------------------------------------------------------------------------------- */

/* The name of a claim: of a temporary itself (file 0) or of the file-th file of a folder. */
static void claim_name(char out[CLAIM_NAME], unsigned long long random, size_t file)
{
    int n = snprintf(out, CLAIM_NAME, CLAIM "%0*llx", DIGITS, random);
    if (file) snprintf(out + n, (size_t)(CLAIM_NAME - n), "-%zu", file);
}

/* Claims the temporary, or a file of the folder that it is.  No failure where the directory cannot be read, the name is taken, the
 * text too long or the file system without links. */
static void claim(const exf_temporary *t, size_t file, const char *name)
{
    char link[CLAIM_NAME], text[PATH_MAX];
    claim_name(link, t->random, file);
    int n = snprintf(text, sizeof text, TEMPORARY "%llu:%s%s%s", t->inode, exf_path_name(t->path), file ? "/" : "", name);
    if (n > 0 && n < (int)sizeof text) (void)!symlinkat(text, t->dir, link);
}

/* Reads a link as a claim that was made in this very directory: of ".NAME.<random>.partial", or with "/FILE" after it where the
 * link's name says that it is of a file.  Returns what it claims, in text, or NULL if it is none. */
static const char *read_link(int dir, unsigned long long inode, const char *name, char text[PATH_MAX])
{
    char front[CLAIM_NAME], end[CLAIM_NAME];
    if (!exf_starts_with(name, CLAIM) || strlen(name) >= CLAIM_NAME) return NULL;
    const char *digits = name + strlen(CLAIM), *number = digits + DIGITS;
    if (strspn(digits, "0123456789abcdef") != DIGITS) return NULL;
    if (*number && (*number != '-' || strspn(number + 1, "0123456789") != strlen(number + 1))) return NULL;
    ssize_t n = readlinkat(dir, name, text, PATH_MAX - 1);
    if (n <= 0) return NULL;
    text[n] = 0;
    snprintf(front, sizeof front, TEMPORARY "%llu:.", inode);
    snprintf(end, sizeof end, ".%.*s.partial", DIGITS, digits);
    if (!exf_starts_with(text, front)) return NULL;
    char *what = text + strlen(front) - 1, *slash = strchr(what, '/'); /* slash: before the name of a file */
    if ((slash != NULL) != (*number == '-')) return NULL;
    if (slash && (!slash[1] || strchr(slash + 1, '/') || strcmp(slash + 1, ".") == 0 || strcmp(slash + 1, "..") == 0)) return NULL;
    size_t length = slash ? (size_t)(slash - what) : strlen(what), m = strlen(end);
    return length > m && memcmp(what + length - m, end, m) == 0 ? what : NULL;
}

/* Removes the claims of a temporary, and of files in it.  Another link of such a name, which claim() found there, stays. */
static void withdraw(const exf_temporary *t)
{
    char name[CLAIM_NAME], text[PATH_MAX];
    const char *own = exf_path_name(t->path);
    size_t n = strlen(own);
    for (size_t i = t->n_files + 1; i-- > 0;) { /* that of the folder last: it leads to the others */
        claim_name(name, t->random, i);
        const char *what = read_link(t->dir, t->inode, name, text);
        if (what && strncmp(what, own, n) == 0 && (what[n] == 0 || what[n] == '/')) (void)unlinkat(t->dir, name, 0);
    }
}

/* ---- what killed processes left ------------------------------------------------------------------ */

/* A claim that was read; its text names what is claimed: a temporary, or a folder and a file in it. */
typedef struct {
    char name[CLAIM_NAME], *text;
} claimed;

typedef struct {
    claimed *item;
    size_t n, cap;
} claim_list;

/* Returns the name of a file in the temporary that c claims if b claims one; "" if b claims the temporary; else NULL. */
static const char *claimed_in(const claimed *c, const claimed *b)
{
    if (strncmp(c->name, b->name, strlen(CLAIM) + DIGITS) != 0) return NULL;
    const char *slash = strchr(b->text, '/');
    return slash ? slash + 1 : "";
}

/* Removes a temporary that nobody has locked, of a folder the claimed files first: whatever else it holds keeps it.  Withdraws its
 * claims once it is gone. */
static void remove_if_stale(int dir, const claim_list *l, const claimed *c)
{
    struct stat st;
    int fd = openat(dir, c->text, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), gone = fd < 0 && errno == ENOENT;
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode))) {
        int is_folder = S_ISDIR(st.st_mode);
        for (size_t i = 0; is_folder && i < l->n; i++) {
            const char *file = claimed_in(c, &l->item[i]);
            if (file && *file && fstatat(fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
                (void)unlinkat(fd, file, 0);
        }
        gone = unlinkat(dir, c->text, is_folder ? AT_REMOVEDIR : 0) == 0;
    }
    for (int of_files = 1; gone && of_files >= 0; of_files--) /* that of the folder last: it leads to the others */
        for (size_t i = 0; i < l->n; i++) {
            const char *file = claimed_in(c, &l->item[i]);
            if (file && !*file == !of_files) (void)unlinkat(dir, l->item[i].name, 0);
        }
    if (fd >= 0) close(fd);
}

/* Removes what killed processes left in a directory; what cannot be removed stays, and what cannot be read is not claimed. */
static void remove_stale(int dir, unsigned long long inode)
{
    exf_err unused;
    char text[PATH_MAX];
    struct stat st;
    claim_list l = {0};
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* with a position of its own */
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    if (!d && copy >= 0) close(copy);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *what = read_link(dir, inode, e->d_name, text);
        if (!what || exf_mem_grow(&l.item, &l.cap, l.n + 1, sizeof *l.item, "claims", &unused) != EXF_OK) continue;
        memcpy(l.item[l.n].name, e->d_name, strlen(e->d_name) + 1); /* read_link() has checked its length */
        if (exf_mem_strdup(&l.item[l.n].text, what, "claims", &unused) == EXF_OK) l.n++;
    }
    if (d) closedir(d);
    for (size_t i = 0; i < l.n; i++)
        if (!strchr(l.item[i].text, '/')) remove_if_stale(dir, &l, &l.item[i]);
    for (size_t i = 0; i < l.n; i++) { /* claims of files whose folder's own claim is gone go once the folder is gone */
        char *slash = strchr(l.item[i].text, '/');
        if (slash) *slash = 0;
        if (slash && fstatat(dir, l.item[i].text, &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
            (void)unlinkat(dir, l.item[i].name, 0);
        exf_mem_free(l.item[i].text);
    }
    exf_mem_free(l.item);
}

/* ---- making -------------------------------------------------------------------------------------- */

void exf_temporary_leave(exf_temporary *t)
{
    if (t->path && t->dir >= 0) close(t->dir);
    exf_mem_free(t->path);
    *t = (exf_temporary){.path = NULL};
}

void exf_temporary_end(exf_temporary *t)
{
    if (t->path) withdraw(t);
    exf_temporary_leave(t);
}

void exf_temporary_claim(exf_temporary *t, const char *name)
{
    claim(t, ++t->n_files, name);
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
    char *directory = NULL;
    struct stat st = {0};
    exf_text name = {0};
    int dir = -1, why = EEXIST;
    exf_code rc;
    *t = (exf_temporary){.path = NULL};
    *fd = -1;
    EXF_TRY(exf_path_dir(&directory, target, err));
    dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* where it cannot be read, nothing is claimed */
    if (dir >= 0 && fstat(dir, &st) != 0) {
        rc = exf_fail_errno(err, errno, "%s: cannot create", target);
        goto out;
    }
    if (dir >= 0) remove_stale(dir, st.st_ino);
    for (int i = 0; *fd < 0 && why == EEXIST && i < TRIES; i++) {
        unsigned long long random = exf_random_u64() & ((1ULL << 4 * DIGITS) - 1);
        name.len = 0;
        exf_text_appendf(&name, ".%s.%0*llx.partial", exf_path_name(target), DIGITS, random);
        EXF_TRY(exf_text_end(&name, err));
        *t = (exf_temporary){.dir = dir, .inode = st.st_ino, .random = random};
        EXF_TRY(exf_path_join(&t->path, directory, name.s, err));
        claim(t, 0, "");
        *fd = make_and_lock(t, is_folder);
        why = errno;
        if (*fd >= 0) {
            claim(t, 0, ""); /* again, if it was found before the file was there */
            break;
        }
        if (*fd == NOT_MADE) withdraw(t); /* else its claim stays, by which the next run removes it */
        exf_mem_free(t->path);
        t->path = NULL;
        *fd = -1;
    }
    if (*fd < 0) rc = exf_fail_errno(err, why, "%s: cannot create", target);
out:
    if (rc != EXF_OK && dir >= 0) close(dir);
    exf_text_free(&name);
    exf_mem_free(directory);
    return rc;
}

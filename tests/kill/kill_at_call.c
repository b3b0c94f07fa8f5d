/* kill_at_call.c - a library for LD_PRELOAD that kills the program with SIGKILL at its n-th call
 * that changes a file: EXF_KILL_AT=n.  EXF_KILL_COUNT=FILE: writes the number of such calls to FILE
 * when the program ends.  EXF_KILL_AFTER=FILE: calls count once FILE exists.  EXF_KILL_SIGNAL: another signal's
 * number.  EXF_KILL_COMMAND: instead of a signal, the shell runs this at the n-th call, and the program goes on: it
 * may change a file meanwhile.
 * EXF_KILL_TORN=1: as a power cut, with what was not synced torn (unsynced.h).
 *
 * Half of the kills fall before the call and half after it: odd n before, even n after. */
#define _GNU_SOURCE
#include "unsynced.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long calls;
static atomic_int dying; /* 1: bytes are being torn, and no other thread begins a call that changes a file */

static long kill_at(void)
{
    const char *n = getenv("EXF_KILL_AT");
    return n ? atol(n) : 0;
}

static void die(void)
{
    const char *number = getenv("EXF_KILL_SIGNAL"), *command = getenv("EXF_KILL_COMMAND");
    if (command) {
        unsetenv("LD_PRELOAD"); /* the command's own calls do not count */
        if (system(command) != 0) _exit(99);
        return;
    }
    const char *torn = getenv("EXF_KILL_TORN");
    if (torn && *torn) {
        dying = 1;
        unsynced_tear();
    }
    raise(number ? atoi(number) : SIGKILL);
}

/* Counts a call; 1: the program dies after it. */
static int count(void)
{
    const char *after = getenv("EXF_KILL_AFTER");
    while (dying) pause(); /* a thread whose fsync ended meanwhile would make a file that its torn bytes should name */
    if (after && access(after, F_OK) != 0) return 0;
    long n = ++calls, at = kill_at();
    if (n != at) return 0;
    if (at % 2) die();
    return at % 2 == 0;
}

/* EXF_FAIL_LSTAT=NAME: looking up whatever path ends in NAME, without following a link, fails as on a damaged disk. */
static int is_unreadable(const char *path)
{
    const char *name = getenv("EXF_FAIL_LSTAT");
    size_t n = name ? strlen(name) : 0, len = strlen(path);
    return n && n <= len && strcmp(path + len - n, name) == 0;
}

int lstat(const char *path, struct stat *st)
{
    static int (*next)(const char *, struct stat *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "lstat");
    if (is_unreadable(path)) return errno = EIO, -1;
    return next(path, st);
}

int fstatat(int dir, const char *path, struct stat *st, int flags)
{
    static int (*next)(int, const char *, struct stat *, int);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "fstatat");
    if (flags & AT_SYMLINK_NOFOLLOW && is_unreadable(path)) return errno = EIO, -1;
    return next(dir, path, st, flags);
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("EXF_KILL_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "%ld\n", (long)calls);
    fclose(f);
}

/* noted: what is remembered of the call, whose result is `result`. */
#define WRAP_NOTED(type, name, parameters, arguments, noted)      \
    type name parameters                                          \
    {                                                             \
        static type(*next) parameters;                            \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);     \
        int last = count();                                       \
        type result = next arguments;                             \
        noted;                                                    \
        if (last) die();                                          \
        return result;                                            \
    }
#define WRAP(type, name, parameters, arguments) WRAP_NOTED(type, name, parameters, arguments, (void)0)

WRAP_NOTED(ssize_t, write, (int fd, const void *bytes, size_t n), (fd, bytes, n), unsynced_write(fd, -1, result))
WRAP_NOTED(ssize_t, pwrite, (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at), unsynced_write(fd, at, result))
WRAP_NOTED(ssize_t, pwrite64, (int fd, const void *bytes, size_t n, off64_t at), (fd, bytes, n, at), unsynced_write(fd, at, result))
WRAP_NOTED(int, fsync, (int fd), (fd), unsynced_sync(fd))
WRAP(int, ftruncate, (int fd, off_t n), (fd, n))
WRAP(int, ftruncate64, (int fd, off64_t n), (fd, n))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
WRAP(int, link, (const char *from, const char *to), (from, to))
WRAP(int, symlinkat, (const char *text, int dir, const char *path), (text, dir, path))
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(int, unlink, (const char *path), (path))
WRAP(int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(int, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
WRAP(int, rmdir, (const char *path), (path))

/* open() counts if it may create a file. */
#define WRAP_OPEN(name, parameters, arguments)                    \
    int name parameters                                           \
    {                                                             \
        static int (*next) parameters;                            \
        mode_t mode = 0;                                          \
        va_list va;                                               \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);     \
        if (!(flags & O_CREAT)) return next arguments;            \
        va_start(va, flags);                                      \
        mode = va_arg(va, mode_t);                                \
        va_end(va);                                               \
        int last = count(), result = next arguments;              \
        if (last) die();                                          \
        return result;                                            \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))
WRAP_OPEN(openat64, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))

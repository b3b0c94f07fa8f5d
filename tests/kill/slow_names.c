/* slow_names.c - a library for LD_PRELOAD that makes a slow file system: it sleeps before the calls that give a file a
 * name or take one away.  EXF_SLOW_SEED=n chooses how long: before rename and link in all their forms up to
 * EXF_SLOW_MOST milliseconds (300), before every other such call, and before a lock, up to 10. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* Sleeps for up to so many milliseconds: the n-th call of two runs with one seed sleeps alike. */
static void rest(uint64_t most)
{
    static atomic_uint_fast64_t calls;
    uint64_t x = (number_of("EXF_SLOW_SEED", 1) + ++calls) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    uint64_t micros = (x >> 11) % (most * 1000 + 1);
    struct timespec left = {(time_t)(micros / 1000000), (long)(micros % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0) continue;
}

static uint64_t most(void)
{
    return number_of("EXF_SLOW_MOST", 300);
}

enum { SHORT = 10 };

#define WRAP(wait, name, parameters, arguments)                   \
    int name parameters                                           \
    {                                                             \
        static int(*next) parameters;                             \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);     \
        rest(wait);                                               \
        return next arguments;                                    \
    }

WRAP(most(), rename, (const char *from, const char *to), (from, to))
WRAP(most(), renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(most(), renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
WRAP(most(), link, (const char *from, const char *to), (from, to))
WRAP(most(), linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
WRAP(SHORT, unlink, (const char *path), (path))
WRAP(SHORT, unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
WRAP(SHORT, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(SHORT, rmdir, (const char *path), (path))
WRAP(SHORT, flock, (int fd, int how), (fd, how))

/* open() waits if it may create a file. */
#define WRAP_OPEN(name, parameters, arguments)                    \
    int name parameters                                           \
    {                                                             \
        static int(*next) parameters;                             \
        mode_t mode = 0;                                          \
        va_list va;                                               \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);     \
        if (!(flags & O_CREAT)) return next arguments;            \
        va_start(va, flags);                                      \
        mode = va_arg(va, mode_t);                                \
        va_end(va);                                               \
        rest(SHORT);                                              \
        return next arguments;                                    \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))
WRAP_OPEN(openat64, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))

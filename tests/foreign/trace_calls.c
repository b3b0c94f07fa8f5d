/* trace_calls.c - a library for LD_PRELOAD that writes down each call by which a program unlinks, renames, truncates or opens
 * for writing something that exists already, or changes its mode or time.
 *
 * EXF_TRACE=FILE, absolute: a line is appended for each call, before the call is made:
 *   CALL RESULT DEVICE:INODE PATH
 * RESULT is 0, or the errno that the call ended with; DEVICE:INODE and PATH are of what existed before the call; the path is
 * absolute where the kernel tells it, its bytes below 33 and above 126 are escaped as \ooo.  A process that loads the library
 * writes "start 0 - EXECUTABLE".
 * Calls:
 *   unlink   unlink, unlinkat, rmdir, remove
 *   rename   both names of rename, renameat, renameat2: what is moved, and what has the new name already
 *   truncate truncate, ftruncate, and what opens with O_TRUNC: open, openat, creat, fopen "w"
 *   write    opening for writing without truncating: O_WRONLY, O_RDWR, fopen "a", "r+"
 *   bytes    write, pwrite, on a file
 *   change   chmod, fchmod, fchmodat, utimensat, futimens
 * A call on a descriptor that the process opened for a file which it made is written down too: who reads the log asks whose
 * the inode is.
 *
 * EXF_TRACE_RANDOM=FILE: getentropy() gives the bytes of FILE, so that the random part of the programs' names (src/base/file.h) is
 * known beforehand. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* What a call is about, as it was before the call. */
typedef struct {
    const char *call; /* NULL: nothing was there, or it is no file */
    unsigned long long device, inode;
    char path[PATH_MAX];
} object;

/* ---- the log ------------------------------------------------------------------------------- */

/* The system calls are made without the library's own functions, which are wrapped below. */
static void append(const char *text, size_t n)
{
    const char *log = getenv("EXF_TRACE");
    if (!log || !*log) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || syscall(SYS_write, fd, text, n) != (long)n) {
        static const char message[] = "trace_calls: the log cannot be written\n";
        syscall(SYS_write, 2, message, sizeof message - 1);
        _exit(99);
    }
    syscall(SYS_close, fd);
}

static void write_line(const object *o, const char *call, const char *inode, int result)
{
    char line[4 * PATH_MAX + 128];
    int n = snprintf(line, 128, "%s %d %s ", call, result, inode);
    for (const unsigned char *p = (const unsigned char *)o->path; *p; p++)
        if (*p > 32 && *p < 127 && *p != '\\')
            line[n++] = (char)*p;
        else
            n += sprintf(line + n, "\\%03o", *p);
    line[n++] = '\n';
    append(line, (size_t)n);
}

/* Writes down a call that has ended; errno stays as it is. */
static void note(const object *o, int failed)
{
    char inode[64];
    int why = errno;
    if (!o->call) return;
    snprintf(inode, sizeof inode, "%llu:%llu", o->device, o->inode);
    write_line(o, o->call, inode, failed ? why : 0);
    errno = why;
}

__attribute__((constructor)) static void start(void)
{
    object o = {.call = "start"};
    ssize_t n = readlink("/proc/self/exe", o.path, sizeof o.path - 1);
    if (n > 0) write_line(&o, "start", "-", 0);
}

/* ---- what is there ------------------------------------------------------------------------- */

static void take(object *o, const char *call, const struct stat *st)
{
    if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode) && !S_ISLNK(st->st_mode) && !S_ISFIFO(st->st_mode)) return;
    o->call = call;
    o->device = st->st_dev;
    o->inode = st->st_ino;
}

/* Looks at a name; flags: AT_SYMLINK_NOFOLLOW where the call does not follow links either. */
static object named(const char *call, int dir, const char *path, int flags)
{
    object o = {.call = NULL};
    struct stat st;
    char of[64], base[PATH_MAX];
    int why = errno;
    if (path && fstatat(dir, path, &st, flags) == 0) {
        take(&o, call, &st);
        snprintf(of, sizeof of, dir == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dir);
        ssize_t n = *path == '/' ? 0 : readlink(of, base, sizeof base - 1);
        base[n > 0 ? n : 0] = 0;
        snprintf(o.path, sizeof o.path, "%.2000s%s%.2000s", base, n > 0 ? "/" : "", path);
    }
    errno = why;
    return o;
}

static object opened(const char *call, int fd)
{
    object o = {.call = NULL};
    struct stat st;
    char of[64];
    int why = errno;
    if (fstat(fd, &st) == 0) {
        take(&o, call, &st);
        snprintf(of, sizeof of, "/proc/self/fd/%d", fd);
        if (readlink(of, o.path, sizeof o.path - 1) < 0) o.path[0] = 0;
    }
    errno = why;
    return o;
}

/* What opening a name with these flags does to what has it. */
static object to_open(int dir, const char *path, int flags)
{
    if (flags & O_TRUNC) return named("truncate", dir, path, flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0);
    if ((flags & O_ACCMODE) == O_RDONLY || (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL) || (flags & O_PATH) == O_PATH)
        return (object){.call = NULL};
    return named("write", dir, path, flags & O_NOFOLLOW ? AT_SYMLINK_NOFOLLOW : 0);
}

/* ---- the calls ----------------------------------------------------------------------------- */

#define FIND(name)                                                \
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name)

#define WRAP(name, parameters, arguments, what)                   \
    int name parameters                                           \
    {                                                             \
        static int(*next) parameters;                             \
        FIND(name);                                               \
        object o = what;                                          \
        int result = next arguments;                              \
        note(&o, result < 0);                                     \
        return result;                                            \
    }

WRAP(unlink, (const char *path), (path), named("unlink", AT_FDCWD, path, AT_SYMLINK_NOFOLLOW))
WRAP(unlinkat, (int dir, const char *path, int flags), (dir, path, flags), named("unlink", dir, path, AT_SYMLINK_NOFOLLOW))
WRAP(rmdir, (const char *path), (path), named("unlink", AT_FDCWD, path, AT_SYMLINK_NOFOLLOW))
WRAP(remove, (const char *path), (path), named("unlink", AT_FDCWD, path, AT_SYMLINK_NOFOLLOW))
WRAP(truncate, (const char *path, off_t n), (path, n), named("truncate", AT_FDCWD, path, 0))
WRAP(truncate64, (const char *path, off64_t n), (path, n), named("truncate", AT_FDCWD, path, 0))
WRAP(ftruncate, (int fd, off_t n), (fd, n), opened("truncate", fd))
WRAP(ftruncate64, (int fd, off64_t n), (fd, n), opened("truncate", fd))
WRAP(chmod, (const char *path, mode_t mode), (path, mode), named("change", AT_FDCWD, path, 0))
WRAP(fchmod, (int fd, mode_t mode), (fd, mode), opened("change", fd))
WRAP(fchmodat, (int dir, const char *path, mode_t mode, int flags), (dir, path, mode, flags), named("change", dir, path, flags))
WRAP(utimensat, (int dir, const char *path, const struct timespec t[2], int flags), (dir, path, t, flags),
     path ? named("change", dir, path, flags) : opened("change", dir))
WRAP(futimens, (int fd, const struct timespec t[2]), (fd, t), opened("change", fd))

#define WRAP_BYTES(name, parameters, arguments)                   \
    ssize_t name parameters                                       \
    {                                                             \
        static ssize_t(*next) parameters;                         \
        FIND(name);                                               \
        ssize_t result = next arguments;                          \
        object o = opened("bytes", fd);                           \
        note(&o, result < 0);                                     \
        return result;                                            \
    }

WRAP_BYTES(write, (int fd, const void *bytes, size_t n), (fd, bytes, n))
WRAP_BYTES(pwrite, (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at))
WRAP_BYTES(pwrite64, (int fd, const void *bytes, size_t n, off64_t at), (fd, bytes, n, at))

#define WRAP_RENAME(name, parameters, arguments, from_dir, to_dir)                \
    int name parameters                                                           \
    {                                                                             \
        static int(*next) parameters;                                             \
        FIND(name);                                                               \
        object moved = named("rename", from_dir, from, AT_SYMLINK_NOFOLLOW);      \
        object replaced = named("rename", to_dir, to, AT_SYMLINK_NOFOLLOW);       \
        int result = next arguments;                                              \
        note(&moved, result < 0);                                                \
        note(&replaced, result < 0);                                             \
        return result;                                                            \
    }

WRAP_RENAME(rename, (const char *from, const char *to), (from, to), AT_FDCWD, AT_FDCWD)
WRAP_RENAME(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), a, b)
WRAP_RENAME(renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), a, b)

int getentropy(void *to, size_t n)
{
    static int (*next)(void *, size_t);
    const char *file = getenv("EXF_TRACE_RANDOM");
    FIND(getentropy);
    if (!file || !*file) return next(to, n);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDONLY | O_CLOEXEC);
    long got = fd >= 0 ? syscall(SYS_read, fd, to, n) : -1;
    if (fd >= 0) syscall(SYS_close, fd);
    return got == (long)n ? 0 : -1;
}

#define WRAP_OPEN(name, parameters, arguments, dir)                       \
    int name parameters                                                   \
    {                                                                     \
        static int(*next) parameters;                                     \
        mode_t mode = 0;                                                  \
        va_list va;                                                       \
        FIND(name);                                                       \
        if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {      \
            va_start(va, flags);                                          \
            mode = va_arg(va, mode_t);                                    \
            va_end(va);                                                   \
        }                                                                 \
        object o = to_open(dir, path, flags);                             \
        int result = next arguments;                                      \
        note(&o, result < 0);                                             \
        return result;                                                    \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
WRAP_OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode), at)
WRAP_OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode), at)

/* What the compiler calls in their place where _FORTIFY_SOURCE is set. */
#define WRAP_FORTIFIED(name, parameters, arguments, dir)                  \
    int name parameters;                                                  \
    int name parameters                                                   \
    {                                                                     \
        static int(*next) parameters;                                     \
        FIND(name);                                                       \
        object o = to_open(dir, path, flags);                             \
        int result = next arguments;                                      \
        note(&o, result < 0);                                             \
        return result;                                                    \
    }

WRAP_FORTIFIED(__open_2, (const char *path, int flags), (path, flags), AT_FDCWD)
WRAP_FORTIFIED(__open64_2, (const char *path, int flags), (path, flags), AT_FDCWD)
WRAP_FORTIFIED(__openat_2, (int at, const char *path, int flags), (at, path, flags), at)
WRAP_FORTIFIED(__openat64_2, (int at, const char *path, int flags), (at, path, flags), at)

WRAP(creat, (const char *path, mode_t mode), (path, mode), named("truncate", AT_FDCWD, path, 0))
WRAP(creat64, (const char *path, mode_t mode), (path, mode), named("truncate", AT_FDCWD, path, 0))

static int flags_of(const char *mode)
{
    int flags = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
    return flags | (*mode == 'w' && !strchr(mode, 'x') ? O_TRUNC : 0) | (strchr(mode, 'x') ? O_CREAT | O_EXCL : 0);
}

#define WRAP_FOPEN(name, parameters, arguments)                                               \
    FILE *name parameters                                                                     \
    {                                                                                         \
        static FILE *(*next) parameters;                                                      \
        FIND(name);                                                                           \
        object o = path ? to_open(AT_FDCWD, path, flags_of(mode)) : (object){.call = NULL};   \
        FILE *result = next arguments;                                                        \
        note(&o, !result);                                                                    \
        return result;                                                                        \
    }

WRAP_FOPEN(fopen, (const char *path, const char *mode), (path, mode))
WRAP_FOPEN(fopen64, (const char *path, const char *mode), (path, mode))
WRAP_FOPEN(freopen, (const char *path, const char *mode, FILE *f), (path, mode, f))
WRAP_FOPEN(freopen64, (const char *path, const char *mode, FILE *f), (path, mode, f))

/* file_read.c - reading with bounds, in one of two ways; see file.h. */
#if defined __linux__
#define _GNU_SOURCE /* O_DIRECT */
#endif
#include "base/file.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_LEN = 192 };

struct exf_file {
    int fd;
    uint64_t size;
    char state[STATE_LEN];
    char *path;
    exf_io io;
};

/* ---- opening ---------------------------------------------------------- */

/* Includes the time of the last change, which only the system sets: a writer can set the time of modification back. */
static void write_state(char out[STATE_LEN], const struct stat *st)
{
#if defined __APPLE__
    const struct timespec *modified = &st->st_mtimespec, *changed = &st->st_ctimespec;
#else
    const struct timespec *modified = &st->st_mtim, *changed = &st->st_ctim;
#endif
    snprintf(out, STATE_LEN, "inode %llu, %llu bytes, modified %lld.%09ld, changed %lld.%09ld", (unsigned long long)st->st_ino,
             (unsigned long long)st->st_size, (long long)modified->tv_sec, (long)modified->tv_nsec, (long long)changed->tv_sec,
             (long)changed->tv_nsec);
}

/* Makes a handle of a descriptor, which it takes over; of -1, where opening failed, the error that errno says.  A clone without
 * git-lfs has small text files in place of the large ones, which any reader would find corrupt and not say why. */
static exf_code make_handle(exf_file **out, int fd, const char *path, exf_err *err)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/";
    enum { LARGEST_POINTER = 1023 };
    char start[sizeof pointer - 1];
    exf_file *f = NULL;
    struct stat st;
    int why = errno;
    exf_code rc = exf_mem_new(&f, 1, sizeof *f, "file handle", err);
    *out = NULL;
    if (rc != EXF_OK) {
        if (fd >= 0) close(fd);
        return rc;
    }
    f->fd = fd;
    EXF_TRY(exf_mem_strdup(&f->path, path, "file path", err));
    if (f->fd < 0) {
        rc = exf_fail_errno(err, why, "%s: cannot open", path);
        goto out;
    }
    if (fstat(f->fd, &st) != 0)
        rc = exf_fail_errno(err, errno, "%s: cannot stat", path);
    else if (!S_ISREG(st.st_mode))
        rc = exf_fail(err, EXF_IO, "%s: is %s, expected a regular file", path,
                      S_ISDIR(st.st_mode) ? "a directory" : "a special file");
    else
        f->size = (uint64_t)st.st_size;
    if (rc != EXF_OK) goto out;
    write_state(f->state, &st);
    if (f->size <= LARGEST_POINTER && pread(f->fd, start, sizeof start, 0) == (ssize_t)sizeof start &&
        memcmp(start, pointer, sizeof start) == 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: is a git-lfs pointer; fetch the file with: git lfs pull", path);
out:
    if (rc != EXF_OK)
        exf_file_close(f);
    else
        *out = f;
    return rc;
}

enum { TO_READ = O_RDONLY | O_CLOEXEC | O_NONBLOCK }; /* a FIFO must be refused, not waited for */

exf_code exf_file_open(exf_file **out, const char *path, exf_err *err)
{
    return make_handle(out, open(path, TO_READ), path, err);
}

exf_code exf_file_open_in(exf_file **out, int directory, const char *name, const char *path, exf_err *err)
{
    return make_handle(out, openat(directory, name, TO_READ | O_NOFOLLOW), path, err);
}

/* ---- standard input ----------------------------------------------------- */

static const char input_name[] = "standard input";

/* Makes a file that only its descriptor leads to: one that never has a name or, where the file system has no such files, one
 * whose name is taken away at once. */
static exf_code make_nameless(int *fd, exf_err *err)
{
    const char *dir = getenv("TMPDIR");
    exf_text path = {0};
    exf_code rc = EXF_OK;
    if (!dir || !*dir) dir = "/tmp";
#ifdef O_TMPFILE
    if ((*fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) >= 0) return EXF_OK;
#endif
    exf_text_appendf(&path, "%s/exfold-input-XXXXXX", dir);
    EXF_TRY(exf_text_end(&path, err));
    if ((*fd = mkstemp(path.s)) < 0)
        rc = exf_fail_errno(err, errno, "%s: cannot make a file for what standard input brings; set TMPDIR", path.s);
    else if (!exf_temporary_is(path.s, *fd) || unlink(path.s) != 0)
        rc = exf_fail(err, EXF_IO, "%s: cannot take away its name, which standard input's bytes need not have", path.s);
out:
    exf_text_free(&path);
    return rc;
}

/* Copies all of standard input. */
static exf_code copy_input(int fd, exf_err *err)
{
    enum { PIECE = 1 << 16 };
    char *piece = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_raw(&piece, PIECE, 1, "standard input", err));
    for (;;) {
        EXF_TRY(exf_stop_check(err));
        ssize_t got = read(STDIN_FILENO, piece, PIECE);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) rc = exf_fail_errno(err, errno, "%s: cannot read", input_name);
        if (got <= 0) break;
        if (exf_write_all(fd, piece, (size_t)got, -1) != 0) {
            rc = exf_fail_errno(err, errno, "%s: cannot keep what it brings; set TMPDIR to a larger disk", input_name);
            break;
        }
    }
out:
    exf_mem_free(piece);
    return rc;
}

exf_code exf_file_open_input(exf_file **out, exf_err *err)
{
    static int kept = -1; /* the copy, once it is whole */
    struct stat st;
    int fd = -1;
    exf_code rc = EXF_OK;
    *out = NULL;
    if (isatty(STDIN_FILENO)) return exf_fail(err, EXF_USAGE, "%s: is a terminal; pipe a text into the program", input_name);
    if (kept < 0 && fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode) && lseek(STDIN_FILENO, 0, SEEK_CUR) == 0)
        return make_handle(out, fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3), input_name, err); /* a file, from its beginning */
    if (kept < 0) {
        EXF_TRY(make_nameless(&fd, err));
        EXF_TRY(copy_input(fd, err));
        kept = fd;
    }
    return make_handle(out, fcntl(kept, F_DUPFD_CLOEXEC, 3), input_name, err);
out:
    if (fd >= 0) close(fd);
    return rc;
}

/* ---- what is open --------------------------------------------------------- */

void exf_file_close(exf_file *f)
{
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    exf_mem_free(f->path);
    exf_mem_free(f);
}

uint64_t exf_file_size(const exf_file *f)
{
    return f->size;
}

const char *exf_file_path(const exf_file *f)
{
    return f->path;
}

const char *exf_file_state(const exf_file *f)
{
    return f->state;
}

exf_code exf_file_unchanged(const exf_file *f, exf_err *err)
{
    char now[STATE_LEN];
    struct stat st;
    if (stat(f->path, &st) != 0) return exf_fail_errno(err, errno, "%s: cannot stat the file that this run reads", f->path);
    write_state(now, &st);
    if (strcmp(now, f->state) == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: changed during the run: was %s, is %s; run again when it stays as it is", f->path,
                    f->state, now);
}

/* ---- how it is read ------------------------------------------------------ */

exf_code exf_file_use(exf_file *f, exf_io io, exf_err *err)
{
    if (io == f->io) return EXF_OK;
    if (f->io != EXF_IO_PREAD) return exf_fail(err, EXF_INTERNAL, "%s: how it is read was chosen before", f->path);
#ifdef O_DIRECT
    int flags = fcntl(f->fd, F_GETFL);
    if (flags >= 0 && fcntl(f->fd, F_SETFL, flags | O_DIRECT) == 0) {
        f->io = io;
        return EXF_OK;
    }
#endif
    return exf_fail(err, EXF_IO, "%s: its file system cannot be read directly (O_DIRECT): choose pread", f->path);
}

static exf_code cannot_read(const exf_file *f, int errnum, uint64_t at, exf_err *err)
{
    const char *hint = f->io == EXF_IO_DIRECT && errnum == EINVAL ? " directly: choose pread" : "";
    return exf_fail_errno(err, errnum, "%s: cannot read at byte %llu%s", f->path, (unsigned long long)at, hint);
}

static exf_code truncated(const exf_file *f, uint64_t end, size_t missing, exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: truncated: ends at byte %llu, %zu more expected", f->path, (unsigned long long)end,
                    missing);
}

/* ---- direct ------------------------------------------------------------------- */

static uint64_t aligned_down(uint64_t at)
{
    return at & ~(uint64_t)(EXF_FILE_ALIGN - 1);
}

/* Reads the whole blocks around bytes [offset, offset + n) into an aligned buffer; the last block may end with the file.
 * A short read is continued at its last whole block, since a direct read may start nowhere else. */
static exf_code read_blocks(const exf_file *f, uint64_t offset, size_t n, char *buffer, exf_err *err)
{
    uint64_t from = aligned_down(offset);
    size_t need = (size_t)(offset + n - from), span = (size_t)(aligned_down(offset + n + EXF_FILE_ALIGN - 1) - from), done = 0;
    while (done < need) {
        size_t start = (size_t)aligned_down(done);
        ssize_t got = pread(f->fd, buffer + start, span - start, (off_t)(from + start));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cannot_read(f, errno, from + start, err);
        if (start + (size_t)got <= done) return truncated(f, from + done, need - done, err);
        done = start + (size_t)got;
    }
    return EXF_OK;
}

/* Reads into aligned memory, a piece at a time, and copies from there. */
static exf_code read_bounced(const exf_file *f, uint64_t offset, char *buf, size_t n, exf_err *err)
{
    enum { PIECE = 1 << 20 };
    char *memory = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&memory, exf_file_aligned_size(n < PIECE ? n : PIECE) + EXF_FILE_ALIGN, 1, "direct reading", err));
    char *buffer = memory + (EXF_FILE_ALIGN - (uintptr_t)memory % EXF_FILE_ALIGN) % EXF_FILE_ALIGN;
    for (size_t at = 0; at < n; at += PIECE) {
        size_t some = n - at < PIECE ? n - at : PIECE;
        EXF_TRY(read_blocks(f, offset + at, some, buffer, err));
        memcpy(buf + at, buffer + (offset + at) % EXF_FILE_ALIGN, some);
    }
out:
    exf_mem_free(memory);
    return rc;
}

/* ---- any ---------------------------------------------------------------------------- */

exf_code exf_file_read(const exf_file *f, uint64_t offset, void *buf, size_t n, exf_err *err)
{
    if (f->io == EXF_IO_DIRECT) return read_bounced(f, offset, buf, n, err);
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(f->fd, (char *)buf + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cannot_read(f, errno, offset + done, err);
        if (got == 0) return truncated(f, offset + done, n - done, err);
        done += (size_t)got;
    }
    return EXF_OK;
}

exf_code exf_file_read_aligned(const exf_file *f, uint64_t offset, void *buffer, size_t n, const void **at, exf_err *err)
{
    *at = buffer;
    if (f->io != EXF_IO_DIRECT || (uintptr_t)buffer % EXF_FILE_ALIGN) return exf_file_read(f, offset, buffer, n, err);
    *at = (const char *)buffer + offset % EXF_FILE_ALIGN;
    return n ? read_blocks(f, offset, n, buffer, err) : EXF_OK;
}

int exf_file_begins(const char *path, void *bytes, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int has = fd >= 0 && pread(fd, bytes, n, 0) == (ssize_t)n;
    if (fd >= 0) close(fd);
    return has;
}

exf_code exf_file_read_all(const exf_file *f, uint64_t limit, char **out, size_t *len, exf_err *err)
{
    exf_code rc;
    *out = NULL;
    *len = 0;
    if (f->size > limit)
        return exf_fail(err, EXF_FORMAT, "%s: %llu bytes, at most %llu are accepted", f->path, (unsigned long long)f->size,
                        (unsigned long long)limit);
    EXF_TRY(exf_mem_new(out, (size_t)f->size + 1, 1, f->path, err));
    EXF_TRY(exf_file_read(f, 0, *out, (size_t)f->size, err));
    *len = (size_t)f->size;
    return EXF_OK;
out:
    exf_mem_free(*out);
    *out = NULL;
    return rc;
}

exf_code exf_file_slurp(const char *path, uint64_t limit, char **out, size_t *len, exf_err *err)
{
    exf_code rc;
    exf_file *f = NULL;
    *out = NULL;
    *len = 0;
    EXF_TRY(exf_file_open(&f, path, err));
    rc = exf_file_read_all(f, limit, out, len, err);
out:
    exf_file_close(f);
    return rc;
}

/* file.c - see file.h. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "base/file.h"

#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- writing -------------------------------------------------------- */

struct exf_output_file {
    int fd;
    int force, stays; /* stays: the temporary is kept for a run that goes on */
    char *target, *temporary;
    char *dir; /* NULL: the file has its final name: nothing is renamed or removed */
    exf_temporary made; /* the temporary, where this process made it for this output alone */
};

exf_code exf_output_check(const char *target, int force, exf_err *err)
{
    exf_path_kind kind;
    exf_code rc = exf_path_look_at(target, &kind, err);
    if (rc != EXF_OK || kind == EXF_PATH_NOTHING) return rc;
    if (kind == EXF_PATH_DIRECTORY) return exf_fail(err, EXF_IO, "%s: is a directory, expected a file or nothing", target);
    if (!force) return exf_fail(err, EXF_IO, "%s: exists already; --force replaces it", target);
    if (kind == EXF_PATH_FILE) return EXF_OK;
    return exf_fail(err, EXF_IO, "%s: is a symbolic link or a device, which nothing replaces; expected a file or nothing", target);
}

/* Syncs a directory where the system can.  It is no failure where it cannot: the rename is done and visible, but may be
 * lost in a power cut. */
void exf_sync_directory(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

/* Opens the temporary as the flags say, after checking the target.  temporary NULL: a new one. */
static exf_code begin_temporary(exf_output_file **out, const char *target, int force, const char *temporary, int flags,
                                exf_err *err)
{
    exf_code rc;
    exf_output_file *f = NULL;
    *out = NULL;
    EXF_TRY(exf_output_check(target, force, err));
    EXF_TRY(exf_mem_new(&f, 1, sizeof *f, "output handle", err));
    f->fd = -1;
    f->force = force;
    EXF_TRY(exf_mem_strdup(&f->target, target, "output path", err));
    EXF_TRY(exf_path_dir(&f->dir, target, err));
    if (!temporary) EXF_TRY(exf_temporary_make(&f->made, target, 0, &f->fd, err));
    EXF_TRY(exf_mem_strdup(&f->temporary, temporary ? temporary : f->made.path, "output path", err));
    if (!temporary) goto out;
    f->fd = open(f->temporary, O_RDWR | O_CLOEXEC | flags, 0666);
    if (f->fd < 0) rc = exf_fail_errno(err, errno, "%s: cannot create", temporary);
    if (f->fd >= 0) (void)flock(f->fd, LOCK_EX | LOCK_NB); /* where the file system has no locks it stays without */
out:
    if (rc == EXF_OK)
        *out = f;
    else
        exf_output_file_abort(f);
    return rc;
}

exf_code exf_output_file_begin(exf_output_file **out, const char *target, int force, exf_err *err)
{
    return begin_temporary(out, target, force, NULL, 0, err);
}

exf_code exf_output_file_begin_at(exf_output_file **out, const char *target, int force, const char *temporary, int goes_on,
                                  exf_err *err)
{
    exf_code rc = begin_temporary(out, target, force, temporary, goes_on ? O_NOFOLLOW : O_CREAT | O_EXCL | O_NOFOLLOW, err);
    if (rc != EXF_OK) return rc;
    (*out)->stays = 1;
    exf_sync_directory((*out)->dir);
    return EXF_OK;
}

exf_code exf_output_file_adopt(exf_output_file **out, int fd, const char *path, exf_err *err)
{
    exf_code rc = exf_mem_new(out, 1, sizeof **out, "output handle", err);
    if (rc != EXF_OK) {
        close(fd);
        return rc;
    }
    (*out)->fd = fd;
    EXF_TRY(exf_mem_strdup(&(*out)->target, path, "output path", err));
    EXF_TRY(exf_mem_strdup(&(*out)->temporary, path, "output path", err));
    return EXF_OK;
out:
    exf_output_file_abort(*out);
    *out = NULL;
    return rc;
}

const char *exf_output_file_path(const exf_output_file *f)
{
    return f->temporary;
}

int exf_write_all(int fd, const void *bytes, size_t n, int64_t offset)
{
    const char *p = bytes;
    for (size_t done = 0; done < n;) {
        ssize_t put = offset < 0 ? write(fd, p + done, n - done) : pwrite(fd, p + done, n - done, (off_t)offset + (off_t)done);
        if (put < 0 && errno == EINTR) continue;
        if (put == 0) errno = ENOSPC;
        if (put <= 0) return -1;
        done += (size_t)put;
    }
    return 0;
}

exf_code exf_output_file_write(exf_output_file *f, const void *bytes, size_t n, exf_err *err)
{
    return exf_write_all(f->fd, bytes, n, -1) == 0 ? EXF_OK : exf_fail_errno(err, errno, "%s: cannot write", f->target);
}

exf_code exf_output_file_patch(exf_output_file *f, uint64_t offset, const void *bytes, size_t n, exf_err *err)
{
    int failed = exf_write_all(f->fd, bytes, n, (int64_t)offset);
    return failed ? exf_fail_errno(err, errno, "%s: cannot write", f->target) : EXF_OK;
}

exf_code exf_output_file_read(const exf_output_file *f, uint64_t offset, void *buf, size_t n, exf_err *err)
{
    char *p = buf;
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(f->fd, p + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return exf_fail_errno(err, errno, "%s: cannot read back", f->target);
        if (got == 0)
            return exf_fail(err, EXF_FORMAT, "%s: cannot be read back: ends at byte %llu, %zu more expected", f->target,
                            (unsigned long long)(offset + done), n - done);
        done += (size_t)got;
    }
    return EXF_OK;
}

exf_code exf_output_file_resize(exf_output_file *f, uint64_t bytes, exf_err *err)
{
    if (ftruncate(f->fd, (off_t)bytes) == 0) return EXF_OK;
    return exf_fail_errno(err, errno, "%s: cannot be made %llu bytes long", f->target, (unsigned long long)bytes);
}

exf_code exf_output_file_size(const exf_output_file *f, uint64_t *bytes, exf_err *err)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0) return exf_fail_errno(err, errno, "%s: cannot stat", f->target);
    *bytes = (uint64_t)st.st_size;
    return EXF_OK;
}

exf_code exf_output_file_allocate(exf_output_file *f, uint64_t offset, uint64_t bytes, exf_err *err)
{
    int failed;
    do failed = posix_fallocate(f->fd, (off_t)offset, (off_t)bytes);
    while (failed == EINTR);
    if (failed == 0 || failed == EINVAL || failed == EOPNOTSUPP || failed == ENODEV) return EXF_OK;
    return exf_fail_errno(err, failed, "%s: cannot write", f->target);
}

exf_code exf_output_file_check_name(const exf_output_file *f, exf_err *err)
{
    return exf_temporary_check(f->temporary, f->fd, f->target, "file", err);
}

exf_code exf_output_file_sync(const exf_output_file *f, exf_err *err)
{
    return fsync(f->fd) == 0 ? EXF_OK : exf_fail_errno(err, errno, "%s: cannot sync", f->target);
}

/* link() fails where the target appeared meanwhile; rename() would replace it.  A temporary that stays is looked at by
 * the run that goes on, so it has one name at a time; its directory is locked. */
static exf_code put_in_place(const exf_output_file *f, exf_err *err)
{
    exf_code rc = exf_output_file_check_name(f, err);
    if (rc != EXF_OK) return rc;
    if (!f->force && !f->stays && link(f->temporary, f->target) == 0) {
        unlink(f->temporary);
        return EXF_OK;
    }
    rc = exf_output_check(f->target, f->force, err);
    if (rc != EXF_OK || rename(f->temporary, f->target) == 0) return rc;
    return exf_fail_errno(err, errno, "%s: cannot rename into place", f->target);
}

exf_code exf_output_file_commit(exf_output_file *f, exf_err *err)
{
    exf_code rc = exf_output_file_sync(f, err);
    if (rc == EXF_OK && f->dir) rc = put_in_place(f, err);
    if (rc == EXF_OK && f->dir) exf_sync_directory(f->dir);
    exf_output_file_abort(f); /* what is in place has another name by now */
    return rc;
}

/* Removes the temporary if this process made it and it still has its name.  The claim of one that cannot be removed, or of which
 * the system does not say what has its name, stays for the next writer. */
void exf_output_file_abort(exf_output_file *f)
{
    if (!f) return;
    int own = f->made.path && exf_temporary_is(f->made.path, f->fd);
    int unknown = f->made.path && !own && errno && errno != ENOENT;
    if (unknown || (own && unlink(f->made.path) != 0))
        exf_temporary_leave(&f->made);
    else
        exf_temporary_end(&f->made);
    if (f->fd >= 0) close(f->fd); /* last: the lock ends with it */
    exf_mem_free(f->target);
    exf_mem_free(f->temporary);
    exf_mem_free(f->dir);
    exf_mem_free(f);
}

exf_code exf_output_file_whole(const char *target, int force, const void *bytes, size_t n, exf_err *err)
{
    exf_output_file *f = NULL;
    exf_code rc = exf_output_file_begin(&f, target, force, err);
    if (rc == EXF_OK) rc = exf_output_file_write(f, bytes, n, err);
    if (rc == EXF_OK) return exf_output_file_commit(f, err);
    exf_output_file_abort(f);
    return rc;
}

exf_code exf_make_new_dirs(const char *path, size_t *n_made, exf_err *err)
{
    char *p = NULL, *parent = NULL;
    *n_made = 0;
    exf_code rc = exf_mem_strdup(&p, path, "path", err);
    if (rc != EXF_OK) return rc;
    for (char *s = p + 1;; s++) { /* makes one after the other, and syncs what each is in */
        char c = *s;
        if (c != '/' && c != 0) continue;
        *s = 0;
        if (mkdir(p, 0777) == 0) {
            ++*n_made;
            rc = exf_path_dir(&parent, p, err);
            if (rc == EXF_OK) exf_sync_directory(parent);
            exf_mem_free(parent);
        } else if (errno != EEXIST) {
            rc = exf_fail_errno(err, errno, "%s: cannot create directory", p);
        }
        if (rc != EXF_OK) break;
        *s = c;
        if (c == 0) break;
    }
    for (char *slash; rc != EXF_OK && *n_made && (slash = strrchr(p, '/')); --*n_made) {
        *slash = 0;
        (void)rmdir(p);
    }
    int is_directory = 0;
    if (rc == EXF_OK) rc = exf_path_is_directory(path, &is_directory, err);
    if (rc == EXF_OK && !is_directory)
        rc = exf_fail(err, EXF_IO, "%s: exists and is not a directory", path);
    exf_mem_free(p);
    return rc;
}

/* ---- paths ------------------------------------------------------------------------------------- */

exf_code exf_path_absolute(char **out, const char *path, exf_err *err)
{
    char here[PATH_MAX];
    if (path[0] == '/') return exf_mem_strdup(out, path, "path", err);
    if (!getcwd(here, sizeof here)) return exf_fail_errno(err, errno, "%s: the working directory has no path", path);
    while (exf_starts_with(path, "./")) path += 1 + strspn(path + 1, "/");
    return !*path || strcmp(path, ".") == 0 ? exf_mem_strdup(out, here, "path", err) : exf_path_join(out, here, path, err);
}

exf_code exf_path_beside_program(exf_text *out, int up, const char *rest, exf_err *err)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    for (int i = 0; i <= up; i++) {
        char *slash = strrchr(self, '/');
        if (!slash) return EXF_OK;
        *slash = 0;
    }
    exf_text_appendf(out, "%s/%s", self, rest);
    return exf_text_end(out, err);
}

const char *exf_script_command(char buf[EXF_SCRIPT_COMMAND], const char *name)
{
    static const char *const folders[] = {"share/exfold/scripts", "scripts"}; /* one above the program's, and two */
    char here[PATH_MAX], rest[128];
    exf_err ignored;
    snprintf(buf, EXF_SCRIPT_COMMAND, "python3 scripts/%s", name);
    for (int i = 0; i < 2; i++) {
        exf_text path = {0};
        snprintf(rest, sizeof rest, "%s/%s", folders[i], name);
        if (exf_path_beside_program(&path, i + 1, rest, &ignored) == EXF_OK && path.len && access(path.s, R_OK) == 0) {
            size_t n = getcwd(here, sizeof here) ? strlen(here) : 0;
            size_t skip = n && exf_starts_with(path.s, here) && path.s[n] == '/' ? n + 1 : 0;
            const char *quote = strpbrk(path.s, " \t\n'\"$`\\") ? "'" : "";
            snprintf(buf, EXF_SCRIPT_COMMAND, "python3 %s%s%s", quote, path.s + skip, quote);
            i = 2;
        }
        exf_text_free(&path);
    }
    return buf;
}

exf_code exf_path_real(char **out, const char *path, exf_err *err)
{
    char there[PATH_MAX], *parent = NULL, *real_parent = NULL;
    const char *slash = strrchr(path, '/');
    exf_code rc;
    *out = NULL;
    if (realpath(path, there)) return exf_mem_strdup(out, there, "path", err);
    if (errno != ENOENT || strcmp(path, ".") == 0 || strcmp(path, "/") == 0)
        return exf_fail_errno(err, errno, "%s: cannot resolve", path);
    EXF_TRY(exf_path_dir(&parent, path, err));
    EXF_TRY(exf_path_real(&real_parent, parent, err));
    EXF_TRY(exf_path_join(out, real_parent, slash ? slash + 1 : path, err));
out:
    exf_mem_free(parent);
    exf_mem_free(real_parent);
    return rc;
}

/* Returns EXF_OK if stat() or lstat() failed because nothing is there, else an error: nobody knows. */
static exf_code absent(const char *path, exf_err *err)
{
    if (errno == ENOENT || errno == ENOTDIR) return EXF_OK;
    return exf_fail_errno(err, errno, "%s: cannot look up", path);
}

static exf_path_kind kind_of(mode_t mode)
{
    return S_ISREG(mode) ? EXF_PATH_FILE : S_ISDIR(mode) ? EXF_PATH_DIRECTORY : EXF_PATH_OTHER;
}

exf_code exf_path_look_at(const char *path, exf_path_kind *kind, exf_err *err)
{
    struct stat st;
    *kind = EXF_PATH_NOTHING;
    if (lstat(path, &st) != 0) return absent(path, err);
    *kind = kind_of(st.st_mode);
    return EXF_OK;
}

exf_code exf_path_look_at_target(const char *path, exf_path_kind *kind, exf_err *err)
{
    struct stat st;
    *kind = EXF_PATH_NOTHING;
    if (stat(path, &st) != 0) return errno == ELOOP ? EXF_OK : absent(path, err); /* a link to itself leads nowhere */
    *kind = kind_of(st.st_mode);
    return EXF_OK;
}

exf_code exf_path_look(const char *path, int *found, exf_err *err)
{
    exf_path_kind kind;
    exf_code rc = exf_path_look_at(path, &kind, err);
    *found = kind != EXF_PATH_NOTHING;
    return rc;
}

exf_code exf_path_is_directory(const char *path, int *is, exf_err *err)
{
    struct stat st;
    int found = stat(path, &st) == 0;
    *is = found && S_ISDIR(st.st_mode);
    return found ? EXF_OK : absent(path, err);
}

/* ---- descriptors ------------------------------------------------------------------------------- */

exf_code exf_standard_descriptors(exf_err *err)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        /* The lowest free descriptor is taken: this one, since those below are open. */
        int got = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (got < 0) return exf_fail_errno(err, errno, "/dev/null: cannot open in place of the missing descriptor %d", fd);
    }
    return EXF_OK;
}

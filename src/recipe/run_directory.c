/* run_directory.c - makes, locks and unmakes the directory of a program's outputs, and announces what was written there; see
 * run_directory.h. */
#include "recipe/run_directory.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/h5.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the directory and its lock ------------------------------------------------------------------ */

exf_code exf_run_directory_name(exf_run_directory *d, const char *path, exf_err *err)
{
    exf_code rc;
    memset(d, 0, sizeof *d);
    EXF_TRY(exf_mem_strdup(&d->path, path, "output path", err));
    for (size_t n = strlen(d->path); n > 1 && d->path[n - 1] == '/'; n--) d->path[n - 1] = 0;
out:
    return rc;
}

static exf_run_directory *locked; /* those of this process; only its main thread opens and closes them */

static exf_code fail_busy(const char *path, const char *or_else, exf_err *err)
{
    return exf_fail(err, EXF_IO, "%s: another exfold program is writing there; wait for its end%s", path, or_else);
}

exf_code exf_run_directory_idle(const char *path, exf_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int busy = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return busy ? fail_busy(path, "", err) : EXF_OK;
}

/* Locks the directory that is open as fd, and owns fd from then on.  Two programs that wrote to one directory would leave a mix
 * of both.  The kernel releases the lock when the process ends.  On a file system without locks nothing is locked. */
static exf_code lock_directory(exf_run_directory *d, int fd, exf_err *err)
{
    struct stat want, have;
    const exf_run_directory *own = NULL; /* the process's own lock of it */
    exf_code rc = fstat(fd, &want) != 0 ? exf_fail_errno(err, errno, "%s: cannot look up", d->path) : EXF_OK;
    for (const exf_run_directory *o = locked; o && rc == EXF_OK; o = o->next) {
        if (fstat(o->lock, &have) != 0)
            rc = exf_fail_errno(err, errno, "%s: cannot look up", o->path);
        else if (have.st_dev == want.st_dev && have.st_ino == want.st_ino)
            own = o;
    }
    if (rc != EXF_OK) {
        close(fd);
        return rc;
    }
    if (own) {
        close(fd);
        fd = fcntl(own->lock, F_DUPFD_CLOEXEC, 0); /* the lock lasts until both are closed */
        if (fd < 0) return exf_fail_errno(err, errno, "%s: cannot open", d->path);
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return fail_busy(d->path, ", or name another directory", err);
    }
    d->lock = fd;
    d->next = locked;
    locked = d;
    return EXF_OK;
}

exf_code exf_run_directory_make(exf_run_directory *d, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_make_new_dirs(d->path, &d->n_made, err));
    if (d->lock) goto out;
    int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = fd < 0 ? exf_fail_errno(err, errno, "%s: cannot open", d->path) : lock_directory(d, fd, err);
out:
    return rc;
}

exf_code exf_run_directory_open(exf_run_directory *d, const char *path, exf_err *err)
{
    exf_code rc = exf_run_directory_name(d, path, err);
    return rc == EXF_OK ? exf_run_directory_make(d, err) : rc;
}

exf_code exf_run_directory_of_file(exf_run_directory *d, const char *file, exf_err *err)
{
    struct stat st;
    exf_code rc;
    memset(d, 0, sizeof *d);
    if (stat(file, &st) == 0 && !S_ISREG(st.st_mode)) return EXF_OK;
    EXF_TRY(exf_path_dir(&d->path, file, err));
    int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        rc = lock_directory(d, fd, err);
    else if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
        rc = exf_fail_errno(err, errno, "%s: cannot open", d->path);
out:
    return rc;
}

exf_code exf_run_outputs_check(const exf_run_directory *d, const char *const *path, size_t n, exf_err *err)
{
    char **dir = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&dir, n, sizeof *dir, "outputs", err));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        if (!path[i]) continue;
        EXF_TRY(exf_path_dir(&dir[i], path[i], err));
        if (strcmp(dir[i], d->path) != 0 && (stat(dir[i], &st) != 0 || !S_ISDIR(st.st_mode))) {
            rc = exf_fail(err, EXF_IO, "%s: cannot be created: there is no directory %s", path[i], dir[i]);
            goto out;
        }
        for (size_t k = 0; k < i; k++) { /* one file in one directory? */
            struct stat other;
            if (!path[k] || strcmp(exf_path_name(path[k]), exf_path_name(path[i])) != 0) continue;
            if (strcmp(dir[k], dir[i]) != 0 && (stat(dir[k], &other) != 0 || stat(dir[i], &st) != 0 || other.st_dev != st.st_dev ||
                                                other.st_ino != st.st_ino))
                continue;
            rc = strcmp(path[k], path[i]) == 0
                     ? exf_fail(err, EXF_USAGE, "%s: is named twice, for two outputs; give them two names", path[k])
                     : exf_fail(err, EXF_USAGE, "%s: is the same file as %s, another output; give them two names", path[k],
                                path[i]);
            goto out;
        }
    }
out:
    for (size_t i = 0; dir && i < n; i++) exf_mem_free(dir[i]);
    exf_mem_free(dir);
    return rc;
}

void exf_run_directory_close(exf_run_directory *d, int failed)
{
    for (size_t i = 0; failed && d->path && i < d->n_made && (rmdir(d->path) == 0 || errno == ENOENT || errno == ENAMETOOLONG);
         i++) {
        char *slash = strrchr(d->path, '/');
        if (!slash) break;
        *slash = 0;
    }
    exf_run_directory **at = &locked;
    while (d->lock && *at != d) at = &(*at)->next;
    if (d->lock) {
        *at = d->next;
        close(d->lock);
    }
    exf_mem_free(d->path);
    memset(d, 0, sizeof *d);
}

/* ---- what was written ---------------------------------------------------------------------------- */

exf_code exf_announce_known(const char *path, const char *word, const char *hex, exf_err *err)
{
    char size[16];
    exf_file *f = NULL;
    exf_code rc = exf_file_open(&f, path, err);
    if (rc != EXF_OK) return rc;
    printf("wrote ");
    exf_print_text(path, 0);
    printf("  %s", exf_human_bytes(size, sizeof size, (double)exf_file_size(f)));
    if (word && exf_log_verbose()) printf("  %s %s", word, hex);
    printf("\n");
    exf_file_close(f);
    return EXF_OK;
}

/* Announces a file, of the directory unless that is NULL. */
static exf_code announce_file(void *directory, const char *name, exf_err *err)
{
    char hex[EXF_SHA256_HEX] = "", *path = NULL;
    exf_h5 *h = NULL;
    exf_code rc;
    int is_artifact = exf_ends_with(name, ".h5");
    EXF_TRY(directory ? exf_path_join(&path, directory, name, err) : exf_mem_strdup(&path, name, "path", err));
    if (exf_log_verbose() && is_artifact) {
        EXF_TRY(exf_h5_open(&h, path, err));
        EXF_TRY(exf_h5_digest(h, hex, err));
    } else if (exf_log_verbose()) {
        EXF_TRY(exf_hash_file(path, hex, err));
    }
    rc = exf_announce_known(path, is_artifact ? "digest" : "sha256", hex, err);
out:
    exf_h5_close(h);
    exf_mem_free(path);
    return rc;
}

exf_code exf_announce(const char *path, exf_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return announce_file(NULL, path, err);
    return exf_each_file(path, announce_file, (void *)(uintptr_t)path, err);
}

exf_code exf_announce_short(const char *path, int on_stdout, exf_err *err)
{
    if (on_stdout) return exf_announce_known(path, NULL, NULL, err);
    exf_log_info("wrote %s", path);
    return EXF_OK;
}

exf_code exf_write_announced(const char *target, int force, const char *bytes, size_t n, exf_err *err)
{
    exf_code rc = exf_output_file_whole(target, force, bytes, n, err);
    return rc == EXF_OK ? exf_announce(target, err) : rc;
}

void exf_print_text(const char *text, int width)
{
    while (*text) {
        size_t n = exf_printable_bytes(text);
        if (n) fwrite(text, 1, n, stdout);
        else putchar('?');
        width -= n ? (int)n : 1;
        text += n ? n : 1;
    }
    if (width > 0) printf("%*s", width, "");
}

/* output_directory.c - see output_directory.h. */
#if defined __linux__
#define _GNU_SOURCE /* renameat2 */
#endif
#include "base/output_directory.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/temporary.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct exf_output_directory {
    int dir; /* the temporary, -1: not open */
    int fd;  /* the file being written, -1: none */
    int force;
    char *target, *temporary, *aside, *parent;
    char **name; /* of the files so far */
    size_t n, cap;
};

/* ---- names in a directory ---------------------------------------------------- */

typedef struct {
    char **name;
    size_t n, cap;
} name_list;

static void names_free(name_list *l)
{
    for (size_t i = 0; i < l->n; i++) exf_mem_free(l->name[i]);
    exf_mem_free(l->name);
}

static exf_code names_add(name_list *l, const char *name, exf_err *err)
{
    exf_code rc = exf_mem_grow(&l->name, &l->cap, l->n + 1, sizeof *l->name, "file names", err);
    if (rc == EXF_OK) rc = exf_mem_strdup(&l->name[l->n], name, "file names", err);
    if (rc == EXF_OK) l->n++;
    return rc;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static exf_code names_read(name_list *l, const char *path, exf_err *err)
{
    exf_code rc = EXF_OK;
    DIR *d = opendir(path);
    if (!d) return exf_fail_errno(err, errno, "%s: cannot list", path);
    for (struct dirent *e; rc == EXF_OK && (errno = 0, e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) rc = names_add(l, e->d_name, err);
    if (rc == EXF_OK && errno) rc = exf_fail_errno(err, errno, "%s: cannot list", path);
    closedir(d);
    if (l->n) qsort(l->name, l->n, sizeof *l->name, by_text);
    return rc;
}

exf_code exf_each_file(const char *path, exf_code (*visit)(void *self, const char *name, exf_err *err), void *self,
                                exf_err *err)
{
    name_list l = {0};
    exf_code rc = names_read(&l, path, err);
    for (size_t i = 0; rc == EXF_OK && i < l.n; i++) rc = visit(self, l.name[i], err);
    names_free(&l);
    return rc;
}

/* ---- what stands at the target --------------------------------------------- */

exf_code exf_output_directory_check(const char *target, int force, exf_err *err)
{
    exf_path_kind kind;
    exf_code rc = exf_path_look_at(target, &kind, err);
    if (rc != EXF_OK || kind == EXF_PATH_NOTHING) return rc;
    if (kind != EXF_PATH_DIRECTORY) return exf_fail(err, EXF_IO, "%s: exists and is not a folder", target);
    return force ? EXF_OK : exf_fail(err, EXF_IO, "%s: exists already; --force replaces it", target);
}

static const char *ending(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot : name;
}

/* Only what looks like an earlier output may be replaced. */
static exf_code check_old_file(const exf_output_directory *f, const char *name, exf_err *err)
{
    char *path = NULL;
    exf_path_kind kind = EXF_PATH_NOTHING;
    exf_code rc = exf_path_join(&path, f->target, name, err);
    if (rc == EXF_OK) rc = exf_path_look_at(path, &kind, err);
    exf_mem_free(path);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; kind == EXF_PATH_FILE && i < f->n; i++)
        if (strcmp(ending(f->name[i]), ending(name)) == 0) return EXF_OK;
    return exf_fail(err, EXF_IO, "%s: holds %s, which is none of the files that would replace it", f->target, name);
}

/* ---- writing ----------------------------------------------------------------- */

static void free_folder(exf_output_directory *f)
{
    for (size_t i = 0; i < f->n; i++) exf_mem_free(f->name[i]);
    exf_mem_free(f->name);
    exf_mem_free(f->target);
    exf_mem_free(f->temporary);
    exf_mem_free(f->aside);
    exf_mem_free(f->parent);
    exf_mem_free(f);
}

static exf_code name_folder(exf_output_directory *f, const char *target, exf_err *err)
{
    exf_code rc;
    exf_text aside = {0};
    const char *base = strrchr(target, '/') ? strrchr(target, '/') + 1 : target;
    EXF_TRY(exf_mem_strdup(&f->target, target, "output path", err));
    EXF_TRY(exf_path_dir(&f->parent, target, err));
    EXF_TRY(exf_temporary_name(&f->temporary, target, err));
    EXF_TRY(exf_text_addf(&aside, err, ".%s.%ld.old", base, (long)getpid()));
    EXF_TRY(exf_path_join(&f->aside, f->parent, aside.s, err));
out:
    exf_text_free(&aside);
    return rc;
}

exf_code exf_output_directory_begin(exf_output_directory **out, const char *target, int force, exf_err *err)
{
    exf_code rc;
    exf_output_directory *f = NULL;
    *out = NULL;
    EXF_TRY(exf_output_directory_check(target, force, err));
    EXF_TRY(exf_mem_new(&f, 1, sizeof *f, "output directory", err));
    f->dir = f->fd = -1;
    f->force = force;
    EXF_TRY(name_folder(f, target, err));
    EXF_TRY(exf_temporary_remove_stale(target, err));
    if (mkdir(f->temporary, 0777) != 0) {
        rc = exf_fail_errno(err, errno, "%s: cannot create", target);
        goto out;
    }
    f->dir = open(f->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->dir < 0) {
        rc = exf_fail_errno(err, errno, "%s: cannot open", target);
        rmdir(f->temporary);
        goto out;
    }
    exf_temporary_lock(f->dir);
out:
    if (rc == EXF_OK)
        *out = f;
    else if (f)
        free_folder(f);
    return rc;
}

static exf_code finish_file(exf_output_directory *f, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (f->fd < 0) return EXF_OK;
    const char *name = f->name[f->n - 1];
    if (fsync(f->fd) != 0) rc = exf_fail_errno(err, errno, "%s/%s: cannot sync", f->target, name);
    if (close(f->fd) != 0 && rc == EXF_OK) rc = exf_fail_errno(err, errno, "%s/%s: cannot close", f->target, name);
    f->fd = -1;
    return rc;
}

exf_code exf_output_directory_file(exf_output_directory *f, const char *name, exf_err *err)
{
    exf_code rc;
    EXF_TRY(finish_file(f, err));
    EXF_TRY(exf_mem_grow(&f->name, &f->cap, f->n + 1, sizeof *f->name, "file names", err));
    EXF_TRY(exf_mem_strdup(&f->name[f->n], name, "file names", err));
    f->fd = openat(f->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        rc = exf_fail_errno(err, errno, "%s/%s: cannot create", f->target, name);
        exf_mem_free(f->name[f->n]);
        goto out;
    }
    f->n++;
out:
    return rc;
}

exf_code exf_output_directory_write(exf_output_directory *f, const void *bytes, size_t n, exf_err *err)
{
    const char *p = bytes;
    if (f->fd < 0) return exf_fail(err, EXF_INTERNAL, "%s: %zu bytes for no file", f->target, n);
    for (size_t done = 0; done < n;) {
        ssize_t put = write(f->fd, p + done, n - done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return exf_fail_errno(err, put < 0 ? errno : ENOSPC, "%s/%s: cannot write", f->target, f->name[f->n - 1]);
        done += (size_t)put;
    }
    return EXF_OK;
}

/* Removes the old directory, which has another name now.  The new one stands: what is left of the old
 * one is no failure, but is said. */
static void remove_old(const exf_output_directory *f, const char *path, const name_list *old)
{
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; dir >= 0 && i < old->n; i++) unlinkat(dir, old->name[i], 0);
    if (dir >= 0) close(dir);
    if (rmdir(path) != 0)
        exf_log_warn("%s: the folder that %s replaces cannot be removed: %s", path, f->target, strerror(errno));
}

/* Exchanges the names of the new directory and the old one, so that the target is never absent.
 * Returns 0, or -1 where the system or its file system cannot. */
static int exchange(const exf_output_directory *f)
{
#if defined RENAME_EXCHANGE
    return renameat2(AT_FDCWD, f->temporary, AT_FDCWD, f->target, RENAME_EXCHANGE);
#else
    (void)f;
    return -1;
#endif
}

/* Puts the new directory in the old one's place, and removes that. */
static exf_code replace(exf_output_directory *f, exf_err *err)
{
    exf_code rc;
    name_list old = {0};
    EXF_TRY(names_read(&old, f->target, err));
    for (size_t i = 0; i < old.n; i++) EXF_TRY(check_old_file(f, old.name[i], err));
    if (exchange(f) == 0) {
        remove_old(f, f->temporary, &old);
    } else if (rename(f->target, f->aside) != 0) {
        rc = exf_fail_errno(err, errno, "%s: cannot move aside", f->target);
    } else if (rename(f->temporary, f->target) != 0) {
        rc = exf_fail_errno(err, errno, "%s: cannot rename into place", f->target);
        (void)rename(f->aside, f->target);
    } else {
        remove_old(f, f->aside, &old);
    }
out:
    names_free(&old);
    return rc;
}

static exf_code put_in_place(exf_output_directory *f, exf_err *err)
{
    exf_code rc = exf_output_directory_check(f->target, f->force, err);
    if (rc != EXF_OK) return rc;
    int found;
    rc = exf_path_look(f->target, &found, err);
    if (rc != EXF_OK) return rc;
    if (found) return replace(f, err);
    return rename(f->temporary, f->target) == 0 ? EXF_OK : exf_fail_errno(err, errno, "%s: cannot rename into place", f->target);
}

/* Best effort, as for files (file.c). */
static void sync_parent(const exf_output_directory *f)
{
    int fd = open(f->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

void exf_output_directory_abort(exf_output_directory *f)
{
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    for (size_t i = 0; i < f->n; i++) unlinkat(f->dir, f->name[i], 0);
    close(f->dir);
    rmdir(f->temporary);
    free_folder(f);
}

exf_code exf_output_directory_commit(exf_output_directory *f, exf_err *err)
{
    exf_code rc;
    EXF_TRY(finish_file(f, err));
    (void)fsync(f->dir);
    EXF_TRY(put_in_place(f, err));
    sync_parent(f);
    close(f->dir);
    free_folder(f);
    return rc;
out:
    exf_output_directory_abort(f);
    return rc;
}

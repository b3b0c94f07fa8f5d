/* file_directory.c - writes a directory of files at once; see file.h. */
#if defined __linux__
#define _GNU_SOURCE /* renameat2 */
#endif
#include "base/file.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    char **name;
    size_t n, cap;
} name_list;

struct exf_output_directory {
    int dir; /* the temporary, -1: not open */
    int fd;  /* the file being written, -1: none */
    int force;
    char *target, *aside, *parent;
    exf_temporary temporary;
    name_list files; /* so far */
    exf_hash *hash; /* of the file being written */
    exf_text list;  /* EXF_FOLDER_LIST, as far as the files are complete */
};

/* ---- names in a directory ---------------------------------------------------- */

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

#define LIST_TITLE "# exfold-folder/1: the files that were written together; --force replaces a folder of these alone\n"
enum { MAX_LIST = 16 << 20 };

/* Checks that a file has its line in the text of a list, which begins with the file's digest, and is unchanged. */
static exf_code check_old_file(const char *target, const char *name, const char *list, exf_err *err)
{
    char *path = NULL, hex[EXF_SHA256_HEX];
    const char *digest = NULL;
    size_t n = strlen(name), n_digits = EXF_SHA256_HEX - 1;
    exf_path_kind kind = EXF_PATH_NOTHING;
    exf_code rc;
    for (const char *line = list + strlen(LIST_TITLE), *end; !digest && (end = strchr(line, '\n')); line = end + 1)
        if ((size_t)(end - line) == n_digits + 2 + n && memcmp(line + n_digits + 2, name, n) == 0) digest = line;
    if (!digest)
        return exf_fail(err, EXF_IO, "%s: holds %s, which was not written with the folder's other files; move it away, or "
                        "the folder: nothing of it is replaced", target, name);
    EXF_TRY(exf_path_join(&path, target, name, err));
    EXF_TRY(exf_path_look_at(path, &kind, err));
    if (kind != EXF_PATH_FILE) {
        rc = exf_fail(err, EXF_IO, "%s: is no regular file any more; nothing of the folder is replaced", path);
        goto out;
    }
    EXF_TRY(exf_hash_file(path, hex, err));
    if (memcmp(hex, digest, strlen(hex)) != 0)
        rc = exf_fail(err, EXF_IO, "%s: has sha256 %.12s..., %s says %.12s...: it was changed since it was written; move it away, "
                      "or the folder: nothing of it is replaced", path, hex, EXF_FOLDER_LIST, digest);
out:
    exf_mem_free(path);
    return rc;
}

/* Checks that every file of an old folder is on its list, which this program wrote, and unchanged; an empty folder may be
 * replaced. */
static exf_code check_old(const char *target, const name_list *old, exf_err *err)
{
    char *path = NULL, *list = NULL;
    exf_path_kind kind;
    size_t n;
    exf_code rc;
    if (!old->n) return EXF_OK;
    EXF_TRY(exf_path_join(&path, target, EXF_FOLDER_LIST, err));
    EXF_TRY(exf_path_look_at(path, &kind, err));
    if (kind == EXF_PATH_FILE) EXF_TRY(exf_file_slurp(path, MAX_LIST, &list, &n, err));
    if (!list || !exf_starts_with(list, LIST_TITLE)) {
        rc = exf_fail(err, EXF_IO, "%s: holds no %s of this program, so nothing tells that the folder may be deleted; move it "
                      "away, or name another", target, EXF_FOLDER_LIST);
        goto out;
    }
    for (size_t i = 0; i < old->n; i++)
        if (strcmp(old->name[i], EXF_FOLDER_LIST) != 0) EXF_TRY(check_old_file(target, old->name[i], list, err));
out:
    exf_mem_free(path);
    exf_mem_free(list);
    return rc;
}

exf_code exf_output_directory_check(const char *target, int force, exf_err *err)
{
    exf_path_kind kind;
    name_list old = {0};
    exf_code rc = exf_path_look_at(target, &kind, err);
    if (rc != EXF_OK || kind == EXF_PATH_NOTHING) return rc;
    if (kind != EXF_PATH_DIRECTORY) return exf_fail(err, EXF_IO, "%s: exists and is not a folder", target);
    if (!force) return exf_fail(err, EXF_IO, "%s: exists already; --force replaces it", target);
    rc = names_read(&old, target, err);
    if (rc == EXF_OK) rc = check_old(target, &old, err);
    names_free(&old);
    return rc;
}

/* ---- writing ----------------------------------------------------------------- */

exf_code exf_output_directory_begin(exf_output_directory **out, const char *target, int force, exf_err *err)
{
    exf_code rc;
    exf_output_directory *f = NULL;
    *out = NULL;
    EXF_TRY(exf_output_directory_check(target, force, err));
    EXF_TRY(exf_mem_new(&f, 1, sizeof *f, "output directory", err));
    f->dir = f->fd = -1;
    f->force = force;
    EXF_TRY(exf_mem_strdup(&f->target, target, "output path", err));
    EXF_TRY(exf_path_dir(&f->parent, target, err));
    exf_text_appendf(&f->list, "%s", LIST_TITLE);
    EXF_TRY(exf_text_end(&f->list, err));
    EXF_TRY(exf_temporary_make(&f->temporary, target, 1, &f->dir, err));
out:
    if (rc == EXF_OK)
        *out = f;
    else
        exf_output_directory_abort(f);
    return rc;
}

/* Syncs and closes the file being written, and lists its digest. */
static exf_code finish_file(exf_output_directory *f, exf_err *err)
{
    char hex[EXF_SHA256_HEX];
    exf_code rc = EXF_OK;
    if (f->fd < 0) return EXF_OK;
    const char *name = f->files.name[f->files.n - 1];
    if (fsync(f->fd) != 0) rc = exf_fail_errno(err, errno, "%s/%s: cannot sync", f->target, name);
    if (close(f->fd) != 0 && rc == EXF_OK) rc = exf_fail_errno(err, errno, "%s/%s: cannot close", f->target, name);
    f->fd = -1;
    if (rc != EXF_OK) return rc;
    rc = exf_hash_end(f->hash, hex, err);
    f->hash = NULL;
    if (rc != EXF_OK) return rc;
    exf_text_appendf(&f->list, "%s  %s\n", hex, name);
    return exf_text_end(&f->list, err);
}

exf_code exf_output_directory_file(exf_output_directory *f, const char *name, exf_err *err)
{
    exf_code rc;
    EXF_TRY(finish_file(f, err));
    exf_hash_free(f->hash);
    f->hash = NULL;
    EXF_TRY(exf_hash_new(&f->hash, err));
    EXF_TRY(names_add(&f->files, name, err));
    exf_temporary_claim(&f->temporary, name);
    f->fd = openat(f->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        rc = exf_fail_errno(err, errno, "%s/%s: cannot create", f->target, name);
        exf_mem_free(f->files.name[--f->files.n]);
    }
out:
    return rc;
}

exf_code exf_output_directory_write(exf_output_directory *f, const void *bytes, size_t n, exf_err *err)
{
    if (f->fd < 0) return exf_fail(err, EXF_INTERNAL, "%s: %zu bytes for no file", f->target, n);
    if (exf_write_all(f->fd, bytes, n, -1) == 0) return exf_hash_add(f->hash, bytes, n, err);
    return exf_fail_errno(err, errno, "%s/%s: cannot write", f->target, f->files.name[f->files.n - 1]);
}

/* Removes the old directory, which has another name by now, and those of its files that were checked.  The new one is in
 * place, so a directory that cannot be removed is a warning and no failure. */
static void remove_old(const exf_output_directory *f, const char *path, const name_list *old)
{
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    for (size_t i = 0; dir >= 0 && i < old->n; i++) unlinkat(dir, old->name[i], 0);
    if (dir >= 0) close(dir);
    if (rmdir(path) != 0)
        exf_log_warn("%s: the folder that %s replaces cannot be removed: %s", path, f->target, strerror(errno));
}

/* Chooses a name beside the target, which must not exist: rename() would replace an empty folder. */
static exf_code name_aside(exf_output_directory *f, exf_err *err)
{
    exf_text aside = {0};
    int found;
    exf_code rc;
    exf_text_appendf(&aside, "%s.old", f->temporary.path);
    EXF_TRY(exf_text_end(&aside, err));
    EXF_TRY(exf_mem_strdup(&f->aside, aside.s, "output path", err));
    EXF_TRY(exf_path_look(f->aside, &found, err));
    if (found) rc = exf_fail(err, EXF_IO, "%s: exists, and %s was to be moved there", f->aside, f->target);
out:
    exf_text_free(&aside);
    return rc;
}

/* Puts the new directory in the old one's place, and removes that.  They exchange their names, so that the target is never absent;
 * where the system or its file system cannot, the old one is moved aside first. */
static exf_code replace(exf_output_directory *f, exf_err *err)
{
    exf_code rc;
    name_list old = {0};
    int exchanged = 0;
    EXF_TRY(names_read(&old, f->target, err));
    EXF_TRY(check_old(f->target, &old, err));
    EXF_TRY(name_aside(f, err));
    for (size_t i = 0; i < old.n; i++) { /* claims what the old one holds, which is about to have the temporary's name */
        size_t k = 0;
        while (k < f->files.n && strcmp(f->files.name[k], old.name[i]) != 0) k++;
        if (k == f->files.n) exf_temporary_claim(&f->temporary, old.name[i]);
    }
#if defined RENAME_EXCHANGE
    exchanged = renameat2(AT_FDCWD, f->temporary.path, AT_FDCWD, f->target, RENAME_EXCHANGE) == 0;
#endif
    if (exchanged) {
        remove_old(f, f->temporary.path, &old);
    } else if (rename(f->target, f->aside) != 0) {
        rc = exf_fail_errno(err, errno, "%s: cannot move aside", f->target);
    } else if (rename(f->temporary.path, f->target) != 0) {
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
    int found;
    exf_code rc = exf_path_look(f->target, &found, err);
    if (rc != EXF_OK) return rc;
    if (found && !f->force) return exf_output_directory_check(f->target, 0, err);
    rc = exf_temporary_check(f->temporary.path, f->dir, f->target, "folder", err);
    if (rc != EXF_OK) return rc;
    if (found) return replace(f, err);
    return rename(f->temporary.path, f->target) == 0 ? EXF_OK
                                                     : exf_fail_errno(err, errno, "%s: cannot rename into place", f->target);
}

/* Removes the temporary if it still has its name; the claims of what cannot be removed, or of which the system does not say what
 * has its name, stay for the next writer. */
void exf_output_directory_abort(exf_output_directory *f)
{
    if (!f) return;
    int own = f->temporary.path && exf_temporary_is(f->temporary.path, f->dir);
    int unknown = f->temporary.path && !own && errno && errno != ENOENT;
    if (f->fd >= 0) close(f->fd);
    for (size_t i = 0; own && i < f->files.n; i++) unlinkat(f->dir, f->files.name[i], 0);
    if (unknown || (own && rmdir(f->temporary.path) != 0))
        exf_temporary_leave(&f->temporary);
    else
        exf_temporary_end(&f->temporary);
    if (f->dir >= 0) close(f->dir); /* last: the lock ends with it */
    names_free(&f->files);
    exf_hash_free(f->hash);
    exf_text_free(&f->list);
    exf_mem_free(f->target);
    exf_mem_free(f->aside);
    exf_mem_free(f->parent);
    exf_mem_free(f);
}

exf_code exf_output_directory_commit(exf_output_directory *f, exf_err *err)
{
    exf_text list = {0};
    exf_code rc;
    EXF_TRY(finish_file(f, err));
    list = f->list;
    f->list = (exf_text){0};
    EXF_TRY(exf_output_directory_file(f, EXF_FOLDER_LIST, err));
    EXF_TRY(exf_output_directory_write(f, list.s, list.len, err));
    EXF_TRY(finish_file(f, err));
    (void)fsync(f->dir);
    EXF_TRY(put_in_place(f, err));
    exf_sync_directory(f->parent);
out:
    exf_text_free(&list);
    exf_output_directory_abort(f); /* what is in place has another name by now */
    return rc;
}

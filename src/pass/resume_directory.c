/* resume_directory.c - the directory of one resume point: proof of who made which file in it, and its lock.
 *
 * A run makes the directory, and in it the journal "exfold-resume-point": a line that says what it is, then one line
 * for each file that a run makes, written and synced before the file is made:
 *   file NAME        in the directory itself
 *   output NAME      in the run's output directory: an unfinished output, ".NAME.unfinished"
 * Only what the journal names is ever replaced or removed.  A symbolic link, a directory without a journal, or one that
 * holds a file that its journal does not name is refused by name (EXF_IO), and nothing in it is touched; an empty
 * directory of that name is taken.  The journal is locked (flock) from opening to closing, so that two runs never use
 * one point; where the file system has no locks, the directory stays without.  All files are reached by the
 * directory's descriptor. */
#include "pass/resume_directory.h"

#include "base/mem.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOURNAL "exfold-resume-point"
#define ADVICE "move it away, or name another runtime.checkpoint.directory"
static const char title[] = "exfold resume point 1: an exfold program made the files named here\n";
enum { MOST_BYTES = 64 << 20, TRIES = 100 }; /* of the journal; of opening a directory that others make and remove */

/* ---- the journal ---------------------------------------------------------------------------- */

static int has_line(const exf_resume_directory *d, const char *line)
{
    for (size_t i = 0; i < d->n_made; i++)
        if (strcmp(d->made[i], line) == 0) return 1;
    return 0;
}

/* Returns 1 if the journal names a file of the directory. */
static int is_named(exf_resume_directory *d, const char *name)
{
    char line[NAME_MAX + sizeof "file "];
    snprintf(line, sizeof line, "file %s", name);
    pthread_mutex_lock(&d->lock);
    int named = has_line(d, line);
    pthread_mutex_unlock(&d->lock);
    return named;
}

/* Returns the name that a line gives to a kind of file, or NULL. */
static const char *name_of(const char *line, const char *kind)
{
    size_t n = strlen(kind);
    return strncmp(line, kind, n) == 0 && line[n] == ' ' ? line + n + 1 : NULL;
}

static exf_code add_line(exf_resume_directory *d, const char *line, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_grow(&d->made, &d->capacity, d->n_made + 1, sizeof *d->made, "journal", err));
    EXF_TRY(exf_mem_strdup(&d->made[d->n_made], line, "journal", err));
    d->n_made++;
out:
    return rc;
}

static exf_code fail_journal(const exf_resume_directory *d, const char *what, exf_err *err)
{
    return exf_fail_errno(err, errno, "%s/" JOURNAL ": %s", d->path, what);
}

/* Writes text at the journal's end and syncs it; overwrites what a killed run left of a line. */
static exf_code append_text(exf_resume_directory *d, const char *text, exf_err *err)
{
    size_t n = strlen(text);
    if (ftruncate(d->journal, (off_t)d->end) != 0) return fail_journal(d, "cannot cut", err);
    if (exf_write_all(d->journal, text, n, d->end) != 0) return fail_journal(d, "cannot write", err);
    if (fsync(d->journal) != 0) return fail_journal(d, "cannot sync", err);
    d->end += (int64_t)n;
    return EXF_OK;
}

/* Enters a line if the journal does not have it; *was_there = 1 if it has. */
static exf_code enter_name(exf_resume_directory *d, const char *kind, const char *name, int *was_there, exf_err *err)
{
    exf_text line = {0};
    exf_text_appendf(&line, "%s %s\n", kind, name);
    exf_code rc = exf_text_end(&line, err);
    pthread_mutex_lock(&d->lock);
    if (rc == EXF_OK) {
        line.s[line.len - 1] = 0;
        *was_there = has_line(d, line.s);
        if (!*was_there) {
            rc = add_line(d, line.s, err);
            line.s[line.len - 1] = '\n';
            if (rc == EXF_OK && (rc = append_text(d, line.s, err)) != EXF_OK) exf_mem_free(d->made[--d->n_made]);
        }
    }
    pthread_mutex_unlock(&d->lock);
    exf_text_free(&line);
    return rc;
}

/* Reads the whole lines of the journal's text: the plain name of a file, or of an unfinished output.  A last line that is cut or
 * torn is ignored: its file was not made yet.  So is what a run leaves that is killed while it writes the title: a part of it, or
 * zeros. */
static exf_code parse_journal(exf_resume_directory *d, char *text, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    d->end = 0;
    if (n < sizeof title - 1 || memcmp(text, title, sizeof title - 1) != 0) {
        size_t torn = 0;
        while (torn < n && torn < sizeof title - 1 && (text[torn] == title[torn] || text[torn] == 0)) torn++;
        if (torn == n) return EXF_OK;
        return exf_fail(err, EXF_IO, "%s/" JOURNAL ": is not the journal of a resume point; " ADVICE, d->path);
    }
    d->end = (int64_t)sizeof title - 1;
    for (;;) {
        char *line = text + d->end, *newline = memchr(line, '\n', n - (size_t)d->end);
        if (!newline || memchr(line, 0, (size_t)(newline - line))) return EXF_OK;
        *newline = 0;
        const char *file = name_of(line, "file"), *output = name_of(line, "output"), *name = file ? file : output;
        int is_plain = name && *name && !strchr(name, '/');
        if (!is_plain || (file ? *name == '.' : *name != '.' || !exf_ends_with(name, ".unfinished")))
            return exf_fail(err, EXF_FORMAT, "%s/" JOURNAL ": byte %lld: no line of a resume point; " ADVICE, d->path,
                            (long long)d->end);
        EXF_TRY(add_line(d, line, err));
        d->end = newline + 1 - text;
    }
out:
    return rc;
}

static exf_code read_journal(exf_resume_directory *d, exf_err *err)
{
    struct stat st;
    char *text = NULL;
    exf_code rc;
    if (fstat(d->journal, &st) != 0) return fail_journal(d, "cannot stat", err);
    if (!S_ISREG(st.st_mode) || st.st_size > MOST_BYTES)
        return exf_fail(err, EXF_IO, "%s/" JOURNAL ": is not the journal of a resume point; " ADVICE, d->path);
    EXF_TRY(exf_mem_new(&text, (size_t)st.st_size + 1, 1, "journal", err));
    ssize_t n = pread(d->journal, text, (size_t)st.st_size, 0);
    if (n < 0)
        rc = fail_journal(d, "cannot read", err);
    else
        rc = parse_journal(d, text, (size_t)n, err);
out:
    exf_mem_free(text);
    return rc;
}

/* ---- opening -------------------------------------------------------------------------------- */

static void close_files(exf_resume_directory *d)
{
    for (size_t i = 0; i < d->n_made; i++) exf_mem_free(d->made[i]);
    d->n_made = 0;
    d->end = 0;
    if (d->journal >= 0) close(d->journal);
    if (d->fd >= 0) close(d->fd);
    d->fd = d->journal = -1;
}

/* Copies to name the first entry that is neither the journal nor named in it; "" if there is none. */
static exf_code find_stranger(exf_resume_directory *d, char name[NAME_MAX + 1], exf_err *err)
{
    int copy = openat(d->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy >= 0 ? fdopendir(copy) : NULL;
    *name = 0;
    if (!list) {
        exf_code rc = exf_fail_errno(err, errno, "%s: cannot list", d->path);
        if (copy >= 0) close(copy);
        return rc;
    }
    errno = 0;
    for (struct dirent *e; !*name && (e = readdir(list));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || strcmp(e->d_name, JOURNAL) == 0) continue;
        if (!is_named(d, e->d_name)) snprintf(name, NAME_MAX + 1, "%s", e->d_name);
    }
    exf_code rc = errno && !*name ? exf_fail_errno(err, errno, "%s: cannot list", d->path) : EXF_OK;
    closedir(list);
    return rc;
}

static exf_code refuse_strangers(exf_resume_directory *d, exf_err *err)
{
    char name[NAME_MAX + 1];
    exf_code rc = find_stranger(d, name, err);
    if (rc != EXF_OK || !*name) return rc;
    if (strcmp(name, "resume.json") == 0 && d->journal < 0)
        return exf_fail(err, EXF_VERSION, "%s: holds %s but no " JOURNAL ": an earlier version's resume point, which this one "
                        "cannot go on from; " ADVICE, d->path, name);
    return exf_fail(err, EXF_IO, "%s: holds %s, which no run made that keeps its resume point there; " ADVICE, d->path, name);
}

static exf_code fail_busy(const exf_resume_directory *d, exf_err *err)
{
    return exf_fail(err, EXF_IO, "%s: another exfold program uses this resume point; wait for its end", d->path);
}

/* FOLLOW: another process has it open and locked. */
typedef enum { OPEN, FOLLOW, MAKE } open_how;

/* Opens what is there: a point with its journal, which is locked and read, or nothing; or makes it and starts its journal, where
 * it is nothing or an empty directory.  *again = 1 if another run removed it meanwhile. */
static exf_code open_once(exf_resume_directory *d, open_how how, int *again, exf_err *err)
{
    struct stat st;
    size_t n_made;
    exf_code rc = EXF_OK;
    *again = 0;
    close_files(d);
    if (how == MAKE) EXF_TRY(exf_make_new_dirs(d->path, &n_made, err));
    d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (d->fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return exf_fail(err, EXF_IO, "%s: is no directory, but where this run keeps its resume point; " ADVICE, d->path);
    if (d->fd < 0 && errno != ENOENT) return exf_fail_errno(err, errno, "%s: cannot open", d->path);
    *again = d->fd < 0 && how == MAKE;
    if (d->fd < 0 || how == FOLLOW) return EXF_OK;
    if (how == MAKE) EXF_TRY(refuse_strangers(d, err)); /* before anything is put there */
    d->journal = openat(d->fd, JOURNAL, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (how == MAKE ? O_CREAT | O_EXCL : 0), 0666);
    if (d->journal < 0 && errno == ENOENT) {
        if (how == OPEN) EXF_TRY(refuse_strangers(d, err)); /* an empty directory is no point yet */
        close_files(d);
        *again = how == MAKE;
        return EXF_OK;
    }
    if (d->journal < 0 && how == OPEN) return exf_fail_errno(err, errno, "%s/" JOURNAL ": cannot open; " ADVICE, d->path);
    if (d->journal < 0) return errno == EEXIST ? fail_busy(d, err) : fail_journal(d, "cannot create", err);
    if (flock(d->journal, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return fail_busy(d, err);
    if (fstat(d->journal, &st) != 0) return fail_journal(d, "cannot stat", err);
    *again = st.st_nlink == 0; /* the run before removed it after this one had opened it */
    if (*again) return EXF_OK;
    if (how == OPEN) {
        EXF_TRY(read_journal(d, err));
        return refuse_strangers(d, err);
    }
    EXF_TRY(append_text(d, title, err));
    (void)fsync(d->fd); /* some file systems cannot sync a directory */
out:
    return rc;
}

static exf_code open_in_turn(exf_resume_directory *d, open_how how, exf_err *err)
{
    int again = 1;
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && again && i < TRIES; i++) rc = open_once(d, how, &again, err);
    return rc == EXF_OK && again ? fail_busy(d, err) : rc;
}

exf_code exf_resume_directory_open(exf_resume_directory *d, const char *path, const char *outputs, int is_not_writer, exf_err *err)
{
    exf_code rc;
    memset(d, 0, sizeof *d);
    d->fd = d->journal = -1;
    pthread_mutex_init(&d->lock, NULL);
    EXF_TRY(exf_mem_strdup(&d->path, path, "resume point", err));
    if (outputs) EXF_TRY(exf_mem_strdup(&d->outputs, outputs, "resume point", err));
    rc = open_in_turn(d, is_not_writer ? FOLLOW : OPEN, err);
out:
    return rc;
}

exf_code exf_resume_directory_make(exf_resume_directory *d, exf_err *err)
{
    if (d->journal >= 0) return d->end ? EXF_OK : append_text(d, title, err);
    exf_code rc = open_in_turn(d, MAKE, err);
    if (rc != EXF_OK) close_files(d);
    return rc;
}

void exf_resume_directory_close(exf_resume_directory *d)
{
    close_files(d);
    exf_mem_free(d->made);
    exf_mem_free(d->path);
    exf_mem_free(d->outputs);
    pthread_mutex_destroy(&d->lock);
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Enters a file's name, *ours = 1 if it was there.  Refuses one that a file has which no run of this point made: once the journal
 * had the name, a run would remove the file. */
static exf_code take_name(exf_resume_directory *d, const char *name, int *ours, exf_err *err)
{
    int found;
    exf_code rc = exf_resume_directory_look(d, name, &found, err);
    if (rc != EXF_OK) return rc;
    if (!found || is_named(d, name)) return enter_name(d, "file", name, ours, err);
    return exf_fail(err, EXF_IO, "%s/%s: is there, and no run of this resume point made it", d->path, name);
}

static exf_code remove_in(int directory, const char *directory_path, const char *name, exf_err *err)
{
    if (unlinkat(directory, name, 0) == 0 || errno == ENOENT) return EXF_OK;
    return exf_fail_errno(err, errno, "%s/%s: cannot remove", directory_path, name);
}

exf_code exf_resume_directory_create(exf_resume_directory *d, const char *name, exf_output_file **out, exf_err *err)
{
    char *path = NULL;
    int ours;
    exf_code rc;
    *out = NULL;
    EXF_TRY(take_name(d, name, &ours, err));
    if (ours) EXF_TRY(remove_in(d->fd, d->path, name, err));
    EXF_TRY(exf_path_join(&path, d->path, name, err));
    int fd = openat(d->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    rc = fd < 0 ? exf_fail_errno(err, errno, "%s: cannot create", path) : exf_output_file_adopt(out, fd, path, err);
out:
    exf_mem_free(path);
    return rc;
}

/* Removes the outputs that the journal names, or the one of that line. */
static exf_code remove_outputs(const exf_resume_directory *d, const char *only, exf_err *err)
{
    int fd = d->outputs ? open(d->outputs, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    exf_code rc = EXF_OK;
    for (size_t i = 0; fd >= 0 && rc == EXF_OK && i < d->n_made; i++) {
        const char *name = name_of(d->made[i], "output");
        if (name && (!only || strcmp(only, name) == 0)) rc = remove_in(fd, d->outputs, name, err);
    }
    if (fd >= 0) close(fd);
    return rc;
}

exf_code exf_resume_directory_claim(exf_resume_directory *d, const char *output, exf_err *err)
{
    char *path = NULL;
    int found;
    exf_code rc;
    EXF_TRY(remove_outputs(d, output, err));
    EXF_TRY(exf_path_join(&path, d->outputs, output, err));
    EXF_TRY(exf_path_look(path, &found, err));
    if (found) {
        rc = exf_fail(err, EXF_IO, "%s: is there, and the run with the resume point %s did not make it; move it away", path,
                      d->path);
        goto out;
    }
    EXF_TRY(enter_name(d, "output", output, &found, err));
out:
    exf_mem_free(path);
    return rc;
}

exf_code exf_resume_directory_look(const exf_resume_directory *d, const char *name, int *found, exf_err *err)
{
    struct stat st;
    *found = d->fd >= 0 && fstatat(d->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (*found || d->fd < 0 || errno == ENOENT) return EXF_OK;
    return exf_fail_errno(err, errno, "%s/%s: cannot look up", d->path, name);
}

exf_code exf_resume_directory_read(const exf_resume_directory *d, const char *name, exf_file **out, exf_err *err)
{
    char *path = NULL;
    int found;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_resume_directory_look(d, name, &found, err));
    EXF_TRY(exf_path_join(&path, d->path, name, err));
    if (found)
        rc = exf_file_open_in(out, d->fd, name, path, err);
    else
        rc = exf_fail(err, EXF_FORMAT, "%s: is missing from the resume point; --resume=never starts over", path);
out:
    exf_mem_free(path);
    return rc;
}

exf_code exf_resume_directory_replace(exf_resume_directory *d, const char *from, const char *to, exf_err *err)
{
    int ours;
    exf_code rc;
    EXF_TRY(take_name(d, to, &ours, err));
    (void)fsync(d->fd);
    if (renameat(d->fd, from, d->fd, to) != 0)
        rc = exf_fail_errno(err, errno, "%s/%s: cannot rename into place", d->path, to);
    else
        (void)fsync(d->fd);
out:
    return rc;
}

exf_code exf_resume_directory_drop(exf_resume_directory *d, const char *name, exf_err *err)
{
    return is_named(d, name) ? remove_in(d->fd, d->path, name, err) : EXF_OK;
}

exf_code exf_resume_directory_prune(const exf_resume_directory *d, int (*keep)(const void *self, const char *name),
                                    const void *self, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < d->n_made; i++) {
        const char *name = name_of(d->made[i], "file");
        if (name && !(keep && keep(self, name))) rc = remove_in(d->fd, d->path, name, err);
    }
    return rc;
}

exf_code exf_resume_directory_remove(exf_resume_directory *d, exf_err *err)
{
    char stranger[NAME_MAX + 1];
    exf_code rc;
    if (d->fd < 0) return EXF_OK;
    EXF_TRY(find_stranger(d, stranger, err));
    EXF_TRY(remove_outputs(d, NULL, err));
    EXF_TRY(exf_resume_directory_prune(d, NULL, NULL, err));
    EXF_TRY(remove_in(d->fd, d->path, JOURNAL, err));
    close(d->journal); /* a network file system keeps an open file's name in the directory */
    d->journal = -1;
    if (*stranger)
        rc = exf_fail(err, EXF_IO, "%s: holds %s, which this run did not make: the directory stays", d->path, stranger);
    else if (exf_temporary_is(d->path, d->fd) && rmdir(d->path) != 0 && errno != ENOENT && errno != ENOTEMPTY && errno != EEXIST)
        rc = exf_fail_errno(err, errno, "%s: cannot remove", d->path); /* not empty: another run took it meanwhile */
out:
    close_files(d);
    return rc;
}

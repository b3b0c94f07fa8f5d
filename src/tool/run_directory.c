/* run_directory.c - see run_directory.h. */
#include "tool/run_directory.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* How many of the path's directories do not exist yet. */
static exf_code count_missing(const char *path, size_t *n, exf_err *err)
{
    char *at = NULL, *up = NULL;
    exf_code rc = exf_mem_strdup(&at, path, "output path", err);
    for (*n = 0; rc == EXF_OK && !exf_path_exists(at); ++*n) {
        rc = exf_path_dir(&up, at, err);
        if (rc == EXF_OK && strcmp(up, at) == 0 && !exf_path_exists(at)) /* "." or "/", of which the system tells nothing */
            rc = exf_fail_errno(err, errno, "%s: cannot look for its directory", path);
        exf_mem_free(at);
        at = up;
    }
    exf_mem_free(at);
    return rc;
}

exf_code exf_run_directory_name(exf_run_directory *d, const char *path, exf_err *err)
{
    exf_code rc;
    memset(d, 0, sizeof *d);
    EXF_TRY(exf_mem_strdup(&d->path, path, "output path", err));
    for (size_t n = strlen(d->path); n > 1 && d->path[n - 1] == '/'; n--) d->path[n - 1] = 0;
out:
    return rc;
}

/* Two runs that wrote to one directory would leave a mix of both.  Where the file system has no
 * locks the directory stays without. */
static exf_code lock(exf_run_directory *d, exf_err *err)
{
    if (d->lock) return EXF_OK;
    d->lock = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->lock < 0) {
        d->lock = 0;
        return exf_fail_errno(err, errno, "%s: cannot open", d->path);
    }
    if (flock(d->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return EXF_OK;
    return exf_fail(err, EXF_IO, "%s: another exfold program is writing there; wait for its end, or name another --output",
                    d->path);
}

exf_code exf_run_directory_make(exf_run_directory *d, exf_err *err)
{
    exf_code rc;
    EXF_TRY(count_missing(d->path, &d->n_made, err));
    EXF_TRY(exf_make_dirs(d->path, err));
    EXF_TRY(lock(d, err));
out:
    return rc;
}

exf_code exf_run_directory_open(exf_run_directory *d, const char *path, exf_err *err)
{
    exf_code rc = exf_run_directory_name(d, path, err);
    return rc == EXF_OK ? exf_run_directory_make(d, err) : rc;
}

exf_code exf_run_directory_file(const exf_run_directory *d, const char *name, char **path, exf_err *err)
{
    return exf_path_join(path, d->path, name, err);
}

void exf_run_directory_close(exf_run_directory *d, int failed)
{
    for (size_t i = 0; failed && d->path && i < d->n_made && (rmdir(d->path) == 0 || errno == ENOENT || errno == ENAMETOOLONG);
         i++) {
        char *slash = strrchr(d->path, '/');
        if (!slash) break;
        *slash = 0;
    }
    if (d->lock) close(d->lock);
    exf_mem_free(d->path);
    memset(d, 0, sizeof *d);
}

/* run_directory.c - see run_directory.h. */
#include "recipe/run_directory.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

exf_code exf_run_directory_name(exf_run_directory *d, const char *path, exf_err *err)
{
    exf_code rc;
    memset(d, 0, sizeof *d);
    EXF_TRY(exf_mem_strdup(&d->path, path, "output path", err));
    for (size_t n = strlen(d->path); n > 1 && d->path[n - 1] == '/'; n--) d->path[n - 1] = 0;
out:
    return rc;
}

static exf_run_directory *locked; /* of this process, whose main thread alone opens and closes them */

/* Returns the process's own lock of the directory that is open as fd, or NULL. */
static const exf_run_directory *find_own(int fd)
{
    struct stat want, have;
    if (fstat(fd, &want) != 0) return NULL;
    for (const exf_run_directory *d = locked; d; d = d->next)
        if (fstat(d->lock, &have) == 0 && have.st_dev == want.st_dev && have.st_ino == want.st_ino) return d;
    return NULL;
}

/* Locks the directory that is open as fd, and takes fd.  Two programs that wrote to one directory would leave a mix of both.
 * The lock is the kernel's, and ends with the process.  Where the file system has no locks the directory stays without. */
static exf_code lock(exf_run_directory *d, int fd, exf_err *err)
{
    const exf_run_directory *own = find_own(fd);
    if (own) {
        close(fd);
        fd = fcntl(own->lock, F_DUPFD_CLOEXEC, 0); /* the lock lasts until both are closed */
        if (fd < 0) return exf_fail_errno(err, errno, "%s: cannot open", d->path);
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return exf_fail(err, EXF_IO, "%s: another exfold program is writing there; wait for its end, or name another directory",
                        d->path);
    }
    d->lock = fd;
    d->next = locked;
    locked = d;
    return EXF_OK;
}

static void unlock(exf_run_directory *d)
{
    exf_run_directory **at = &locked;
    if (!d->lock) return;
    while (*at != d) at = &(*at)->next;
    *at = d->next;
    close(d->lock);
}

exf_code exf_run_directory_make(exf_run_directory *d, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_make_new_dirs(d->path, &d->n_made, err));
    if (d->lock) goto out;
    int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = fd < 0 ? exf_fail_errno(err, errno, "%s: cannot open", d->path) : lock(d, fd, err);
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
        rc = lock(d, fd, err);
    else if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
        rc = exf_fail_errno(err, errno, "%s: cannot open", d->path);
out:
    return rc;
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
    unlock(d);
    exf_mem_free(d->path);
    memset(d, 0, sizeof *d);
}

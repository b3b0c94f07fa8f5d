/* path.c - see path.h. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "base/path.h"

#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

exf_code exf_path_join(char **out, const char *base, const char *rel, exf_err *err)
{
    if (rel[0] == '/' || strcmp(base, ".") == 0) return exf_mem_strdup(out, rel, "path", err);
    exf_text t = {0};
    exf_code rc = exf_text_addf(&t, err, "%s%s%s", base, exf_ends_with(base, "/") ? "" : "/", rel);
    *out = rc == EXF_OK ? t.s : NULL;
    return rc;
}

exf_code exf_path_absolute(char **out, const char *path, exf_err *err)
{
    char here[PATH_MAX];
    if (path[0] == '/') return exf_mem_strdup(out, path, "path", err);
    if (!getcwd(here, sizeof here)) return exf_fail_errno(err, errno, "%s: the working directory has no path", path);
    while (exf_starts_with(path, "./")) path += 1 + strspn(path + 1, "/");
    return !*path || strcmp(path, ".") == 0 ? exf_mem_strdup(out, here, "path", err) : exf_path_join(out, here, path, err);
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

exf_code exf_path_dir(char **out, const char *path, exf_err *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return exf_mem_strdup(out, ".", "path", err);
    return exf_mem_dup(out, path, slash == path ? 1 : (size_t)(slash - path), "path", err);
}

/* Returns EXF_OK if stat() or lstat() failed because nothing is there, else an error: nobody knows. */
static exf_code absent(const char *path, exf_err *err)
{
    if (errno == ENOENT || errno == ENOTDIR) return EXF_OK;
    return exf_fail_errno(err, errno, "%s: cannot look up", path);
}

exf_code exf_path_look_at(const char *path, exf_path_kind *kind, exf_err *err)
{
    struct stat st;
    *kind = EXF_PATH_NOTHING;
    if (lstat(path, &st) != 0) return absent(path, err);
    *kind = S_ISREG(st.st_mode) ? EXF_PATH_FILE : S_ISDIR(st.st_mode) ? EXF_PATH_DIRECTORY : EXF_PATH_OTHER;
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

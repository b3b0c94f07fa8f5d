/* path.c - see path.h. */
#include "base/path.h"

#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <limits.h>
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

exf_code exf_path_dir(char **out, const char *path, exf_err *err)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return exf_mem_strdup(out, ".", "path", err);
    return exf_mem_dup(out, path, slash == path ? 1 : (size_t)(slash - path), "path", err);
}

int exf_path_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

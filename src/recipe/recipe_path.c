/* recipe_path.c - see recipe_path.h. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "recipe/recipe_path.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The last name of a path, "" if that is no name of its own: "/", "a/..", "a/". */
static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ? "" : name;
}

/* A path that need not exist, from the root. */
static exf_code from_root(char **out, const char *path, exf_err *err)
{
    char here[PATH_MAX];
    if (*path == '/') return exf_mem_strdup(out, path, "path", err);
    if (!getcwd(here, sizeof here)) return exf_fail_errno(err, errno, "the working directory has no name");
    return exf_path_join(out, here, path, err);
}

/* *out: the path without links, NULL if nothing is there. */
static exf_code resolve(char **out, const char *path, exf_err *err)
{
    char *real = realpath(path, NULL);
    *out = NULL;
    exf_code rc = real ? exf_mem_strdup(out, real, "path", err) : EXF_OK;
    free(real);
    return rc;
}

/* An absolute path without links in front of the last name. */
static exf_code make_absolute(char **out, const char *path, exf_err *err)
{
    char *directory = NULL, *real = NULL;
    const char *name = last_name(path);
    exf_code rc;
    EXF_TRY(exf_path_dir(&directory, path, err));
    EXF_TRY(resolve(&real, *name ? directory : path, err));
    if (!real)
        rc = from_root(out, path, err);
    else
        rc = *name ? exf_path_join(out, strcmp(real, "/") == 0 ? "" : real, name, err) : exf_mem_strdup(out, real, "path", err);
out:
    exf_mem_free(directory);
    exf_mem_free(real);
    return rc;
}

/* The part of path below directory, "." for the directory itself; NULL: it lies elsewhere. */
static const char *below(const char *path, const char *directory)
{
    size_t n = strlen(directory);
    if (strncmp(path, directory, n) != 0) return NULL;
    if (!path[n]) return ".";
    return path[n] == '/' && path[n + 1] ? path + n + 1 : NULL;
}

exf_code exf_recipe_path(char **out, const char *path, const char *directory, exf_err *err)
{
    char *absolute = NULL, *real = NULL, *base = NULL;
    exf_code rc;
    EXF_TRY(resolve(&base, directory, err));
    EXF_TRY(resolve(&real, path, err));
    EXF_TRY(make_absolute(&absolute, path, err));
    const char *relative = !base ? NULL : real && strcmp(real, base) == 0 ? "." : below(absolute, base);
    rc = exf_mem_strdup(out, relative ? relative : absolute, "path", err);
out:
    exf_mem_free(absolute);
    exf_mem_free(real);
    exf_mem_free(base);
    return rc;
}

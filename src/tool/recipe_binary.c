/* recipe_binary.c - see recipe_binary.h. */
#include "tool/recipe_binary.h"

#include "artifact/artifact.h"
#include "base/file.h"

#include <string.h>

enum { HEAD = 9 };

static const struct {
    const char *kind, *takers;
} taken[] = {
    {"basis", "exfold-calibrate --basis"},
    {"capture", "exfold-accumulate"},
    {"statistics", "exfold-solve and exfold-merge"},
    {"tables", "exfold-export and exfold-validate --tables"},
};

/* The first bytes of a regular file; 0: it is none, or is shorter. */
static int read_head(const char *path, unsigned char head[HEAD])
{
    exf_err unused;
    exf_file *f = NULL;
    int is = exf_file_open(&f, path, &unused) == EXF_OK && exf_file_size(f) >= HEAD &&
             exf_file_read(f, 0, head, HEAD, &unused) == EXF_OK;
    exf_file_close(f);
    return is;
}

/* Returns the kind of an artifact, or NULL. */
static const char *kind_of(const char *path)
{
    exf_err unused;
    exf_h5 *h = NULL;
    const exf_artifact *kind = NULL;
    if (exf_artifact_open(&h, path, NULL, &kind, NULL, &unused) != EXF_OK) return NULL;
    exf_h5_close(h);
    return kind->kind;
}

static exf_code refuse_h5(const char *path, exf_err *err)
{
    const char *kind = kind_of(path);
    for (size_t i = 0; kind && i < sizeof taken / sizeof *taken; i++)
        if (strcmp(taken[i].kind, kind) == 0)
            return exf_fail(err, EXF_USAGE, "%s: holds %s, expected a recipe (YAML); %s and exfold-inspect take it", path, kind,
                            taken[i].takers);
    return exf_fail(err, EXF_USAGE, "%s: is an HDF5 file, expected a recipe (YAML)", path);
}

exf_code exf_recipe_not_binary(const char *path, exf_code rc, exf_err *err)
{
    unsigned char head[HEAD];
    if (rc != EXF_USAGE || !read_head(path, head)) return rc;
    if (memcmp(head, "\211HDF\r\n\032\n", 8) == 0) return refuse_h5(path, err);
    if (head[6] == 0 && head[7] == 0 && head[8] == '{') /* the length of a header, and its first letter */
        return exf_fail(err, EXF_USAGE, "%s: is a .safetensors file, expected a recipe (YAML); a model is given with --model DIR",
                        path);
    return rc;
}

/* recipe_text.c - the resolved recipe as YAML, with paths that stay true in the file's directory; see recipe.h. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "recipe/recipe.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/yaml.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- paths ------------------------------------------------------------------------------ */

/* Returns the last name of a path; "" if that is not a name of its own: "/", "a/..", "a/". */
static const char *last_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ? "" : name;
}

/* Makes a path absolute that need not exist. */
static exf_code from_root(char **out, const char *path, exf_err *err)
{
    char here[PATH_MAX];
    if (*path == '/') return exf_mem_strdup(out, path, "path", err);
    if (!getcwd(here, sizeof here)) return exf_fail_errno(err, errno, "the working directory has no name");
    return exf_path_join(out, here, path, err);
}

/* Sets *out to the path without links; NULL if nothing is there. */
static exf_code resolve(char **out, const char *path, exf_err *err)
{
    char *real = realpath(path, NULL);
    *out = NULL;
    exf_code rc = real ? exf_mem_strdup(out, real, "path", err) : EXF_OK;
    free(real);
    return rc;
}

/* Makes a path absolute and follows the links in front of its last name. */
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

/* Returns the part of path below directory; "." for the directory itself; NULL: it lies elsewhere. */
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

/* ---- keys and values -------------------------------------------------------------------- */

static exf_code add_path(const char *value, const char *directory, exf_text *out, exf_err *err)
{
    char *path = NULL;
    exf_code rc = exf_recipe_path(&path, value, directory, err);
    if (rc == EXF_OK) rc = exf_yaml_add_scalar(out, path, err);
    exf_mem_free(path);
    return rc;
}

/* Returns 1 for a key whose values are names, also where they look like numbers; clip and pools have numbers among theirs. */
static int is_names(const exf_opt *row)
{
    return row->type == EXF_OPT_TEXT || (row->type == EXF_OPT_TEXT_LIST && strcmp(exf_opt_placeholder(row), "NAMES") == 0);
}

static exf_code add_word(const exf_opt *row, const char *word, exf_text *out, exf_err *err)
{
    return is_names(row) ? exf_yaml_add_scalar(out, word, err) : exf_yaml_add_value(out, word, err);
}

/* Adds items that are joined by a character as a YAML list, each item quoted if it must be. */
static exf_code add_items(const exf_opt *row, const char *value, char joined_by, exf_text *out, exf_err *err)
{
    const char end[2] = {joined_by, 0};
    exf_code rc;
    char *word = NULL;
    exf_text_append(out, "[", 1);
    for (const char *p = value; *p;) {
        size_t n = strcspn(p, end);
        if (p != value) exf_text_append(out, ", ", joined_by == ',' ? 1 : 2);
        EXF_TRY(exf_mem_dup(&word, p, n, "recipe list", err));
        EXF_TRY(add_word(row, word, out, err));
        exf_mem_free(word);
        word = NULL;
        p += n + (p[n] == joined_by);
    }
    exf_text_append(out, "]", 1);
    rc = exf_text_end(out, err);
out:
    exf_mem_free(word);
    return rc;
}

exf_code exf_recipe_add_value(const exf_opt *row, const char *value, const char *directory, exf_text *out, exf_err *err)
{
    if (row->type == EXF_OPT_WORD_LIST && value[0] != '[') return add_items(row, value, ' ', out, err);
    if (row->type == EXF_OPT_TEXT_LIST && value[0] != '[') return add_items(row, value, ',', out, err);
    int is_list = row->type == EXF_OPT_TEXT_LIST || row->type == EXF_OPT_INT_LIST || row->type == EXF_OPT_WORD_LIST;
    if (!is_list && directory && exf_recipe_is_path(row->key)) return add_path(value, directory, out, err);
    if (!is_list) return add_word(row, value, out, err);
    exf_text_appendf(out, value[0] == '[' ? "%s" : "[%s]", value);
    return exf_text_end(out, err);
}

exf_code exf_recipe_text(const exf_recipe *r, const char *directory, exf_text *out, exf_err *err)
{
    char section[32] = "";
    exf_text value = {0};
    exf_code rc;
    size_t n_common, n_keys;
    exf_recipe_global_rows(&n_common);
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        const char *dot = strchr(rows[i].key, '.');
        size_t n = dot ? (size_t)(dot - rows[i].key) : 0;
        value.len = 0;
        EXF_TRY(exf_opts_value(r->opts, n_common + i, &value, err));
        if (!value.len) continue;
        if (dot && (strncmp(section, rows[i].key, n) != 0 || section[n])) {
            memcpy(section, rows[i].key, n);
            section[n] = 0;
            exf_text_appendf(out, "%s:\n", section);
        }
        exf_text_appendf(out, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : rows[i].key);
        EXF_TRY(exf_recipe_add_value(&rows[i], value.s, directory, out, err));
        exf_text_append(out, "\n", 1);
    }
    rc = exf_text_end(out, err);
out:
    exf_text_free(&value);
    return rc;
}

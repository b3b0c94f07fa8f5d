/* recipe_text.c - the resolved recipe as YAML, with paths that stay true in the file's directory; see recipe.h. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "recipe/recipe.h"

#include "artifact/provenance.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/yaml.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- paths ------------------------------------------------------------------------------ */

/* Sets *out to the path without links; NULL if nothing is there. */
static exf_code resolve(char **out, const char *path, exf_err *err)
{
    char *real = realpath(path, NULL);
    *out = NULL;
    exf_code rc = real ? exf_mem_strdup(out, real, "path", err) : EXF_OK;
    free(real);
    return rc;
}

/* Makes a path absolute, which need not exist, and follows the links in front of its last name; without those of that name where
 * it is none of its own: "/", "a/..", "a/". */
static exf_code make_absolute(char **out, const char *path, exf_err *err)
{
    char *directory = NULL, *real = NULL, here[PATH_MAX];
    const char *name = exf_path_name(path);
    int has_name = *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
    exf_code rc;
    EXF_TRY(exf_path_dir(&directory, path, err));
    EXF_TRY(resolve(&real, has_name ? directory : path, err));
    if (real)
        rc = has_name ? exf_path_join(out, strcmp(real, "/") == 0 ? "" : real, name, err) : exf_mem_strdup(out, real, "path", err);
    else if (*path == '/')
        rc = exf_mem_strdup(out, path, "path", err);
    else
        rc = getcwd(here, sizeof here) ? exf_path_join(out, here, path, err)
                                       : exf_fail_errno(err, errno, "the working directory has no name");
out:
    exf_mem_free(directory);
    exf_mem_free(real);
    return rc;
}

exf_code exf_recipe_path(char **out, const char *path, const char *directory, exf_err *err)
{
    char *absolute = NULL, *real = NULL, *base = NULL;
    exf_code rc;
    EXF_TRY(resolve(&base, directory, err));
    EXF_TRY(resolve(&real, path, err));
    EXF_TRY(make_absolute(&absolute, path, err));
    size_t n = base ? strlen(base) : 0;
    const char *relative = NULL;
    if (base && ((real && strcmp(real, base) == 0) || strcmp(absolute, base) == 0))
        relative = ".";
    else if (base && strncmp(absolute, base, n) == 0 && absolute[n] == '/' && absolute[n + 1])
        relative = absolute + n + 1;
    rc = exf_mem_strdup(out, relative ? relative : absolute, "path", err);
out:
    exf_mem_free(absolute);
    exf_mem_free(real);
    exf_mem_free(base);
    return rc;
}

/* Spells a path relative to a directory that exists: "../../models/one".  *out NULL: nothing is at the path. */
static exf_code relative_path(char **out, const char *path, const char *directory, exf_err *err)
{
    char *absolute = NULL, *base = NULL;
    exf_text text = {0};
    size_t same = 0;
    int found;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_path_look(path, &found, err));
    if (!found) goto out;
    EXF_TRY(resolve(&base, directory, err));
    EXF_TRY(make_absolute(&absolute, path, err));
    if (!base) goto out;
    for (size_t i = 0;; i++) { /* the names that both begin with, up to a slash or the end */
        int ends = !absolute[i] || absolute[i] == '/', base_ends = !base[i] || base[i] == '/';
        if (ends && base_ends) same = i;
        if (!absolute[i] || absolute[i] != base[i]) break;
    }
    for (const char *at = base + same; *at; at++)
        if (*at == '/' && at[1]) exf_text_appendf(&text, "%s..", text.len ? "/" : "");
    if (absolute[same] && absolute[same + 1]) exf_text_appendf(&text, "%s%s", text.len ? "/" : "", absolute + same + 1);
    EXF_TRY(exf_text_end(&text, err));
    rc = exf_mem_strdup(out, text.len ? text.s : ".", "path", err);
out:
    exf_mem_free(absolute);
    exf_mem_free(base);
    exf_text_free(&text);
    return rc;
}

/* ---- keys and values -------------------------------------------------------------------- */

/* Adds a word, as text where the key's values are names, also those that look like numbers; clip and pools have numbers among
 * theirs. */
static exf_code add_word(const exf_opt *row, const char *word, exf_text *out, exf_err *err)
{
    int is_name = row->type == EXF_OPT_TEXT || (row->type == EXF_OPT_TEXT_LIST && strcmp(exf_opt_placeholder(row), "NAMES") == 0);
    return is_name ? exf_yaml_add_scalar(out, word, err) : exf_yaml_add_value(out, word, err);
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
    if (!is_list && directory && exf_recipe_is_path(row->key)) {
        char *path = NULL;
        exf_code rc = exf_recipe_path(&path, value, directory, err);
        if (rc == EXF_OK) rc = exf_yaml_add_scalar(out, path, err);
        exf_mem_free(path);
        return rc;
    }
    if (!is_list) return add_word(row, value, out, err);
    exf_text_appendf(out, value[0] == '[' ? "%s" : "[%s]", value);
    return exf_text_end(out, err);
}

/* Spells a key's value as it is published; *out empty: it is left out. */
static exf_code publish_value(const exf_opt *row, const char *value, const char *directory, exf_text *out, exf_err *err)
{
    char *path = NULL;
    exf_code rc;
    if (!exf_recipe_is_path(row->key)) return exf_recipe_add_value(row, value, NULL, out, err);
    if (strcmp(row->key, "runtime.checkpoint.directory") == 0) return EXF_OK; /* a place of the run's machine */
    EXF_TRY(relative_path(&path, value, directory, err));
    if (path) rc = exf_yaml_add_scalar(out, path, err);
out:
    exf_mem_free(path);
    return rc;
}

/* Appends the recipe; left_out: NULL, or where keys are named that a published one lacks. */
static exf_code add_recipe(const exf_recipe *r, const char *directory, exf_text *left_out, exf_text *out, exf_err *err)
{
    char section[32] = "";
    exf_text value = {0}, spelled = {0};
    exf_code rc;
    size_t n_common, n_keys;
    exf_recipe_global_rows(&n_common);
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    for (size_t i = 0; i < n_keys; i++) {
        const char *dot = strchr(rows[i].key, '.');
        size_t n = dot ? (size_t)(dot - rows[i].key) : 0;
        value.len = spelled.len = 0;
        EXF_TRY(exf_opts_value(r->opts, n_common + i, &value, err));
        if (!value.len) continue;
        EXF_TRY(left_out ? publish_value(&rows[i], value.s, directory, &spelled, err)
                         : exf_recipe_add_value(&rows[i], value.s, directory, &spelled, err));
        if (left_out && !spelled.len) {
            exf_text_appendf(left_out, "%s%s", left_out->len ? ", " : "", rows[i].key);
            continue;
        }
        if (dot && (strncmp(section, rows[i].key, n) != 0 || section[n])) {
            memcpy(section, rows[i].key, n);
            section[n] = 0;
            exf_text_appendf(out, "%s:\n", section);
        }
        exf_text_appendf(out, "%s%s: %s\n", dot ? "  " : "", dot ? dot + 1 : rows[i].key, spelled.s);
    }
    rc = exf_text_end(out, err);
out:
    exf_text_free(&value);
    exf_text_free(&spelled);
    return rc;
}

exf_code exf_recipe_text(const exf_recipe *r, const char *directory, exf_text *out, exf_err *err)
{
    return add_recipe(r, directory, NULL, out, err);
}

/* ---- a recipe that is published ---------------------------------------------------------- */

exf_code exf_recipe_publish(const char *path, const char *directory, const char *made_from, exf_text *out, exf_text *left_out,
                            exf_err *err)
{
    exf_recipe r = {.recipe_file = path};
    exf_opt *rows = NULL;
    size_t n_common, n_keys;
    const exf_opt *common = exf_recipe_global_rows(&n_common), *keys = exf_recipe_key_rows(&n_keys);
    exf_code rc;
    EXF_TRY(exf_mem_new(&rows, n_common + n_keys, sizeof *rows, "options", err));
    memcpy(rows, common, n_common * sizeof *rows);
    memcpy(rows + n_common, keys, n_keys * sizeof *rows);
    EXF_TRY(exf_opts_new(&r.opts, rows, n_common + n_keys, &r, err));
    EXF_TRY(exf_recipe_read(&r, path, err));
    EXF_TRY(exf_opts_set(r.opts, EXF_OPT_BY_ARGV, "output.directory", directory, "the export", err));
    exf_text_appendf(out, "# Of the run that made the tables.  Paths are relative to this file.\n");
    if (*made_from) exf_text_appendf(out, "# %s: %s\n", EXF_MADE_FROM, made_from);
    rc = add_recipe(&r, directory, left_out, out, err);
    if (rc == EXF_OK) rc = exf_text_end(left_out, err);
out:
    exf_recipe_free(&r);
    exf_mem_free(rows);
    return rc;
}

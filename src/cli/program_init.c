/* program_init.c - exfold-calibrate --init: a commented recipe, made of the table of recipe keys, and its manifests; see
 * program.h. */
#include "cli/program.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/yaml.h"
#include "recipe/recipe.h"
#include "recipe/run_directory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* One file to be written beside the recipe; path NULL: none. */
typedef struct {
    char *path;
    exf_text text;
} written;

typedef struct {
    exf_recipe *recipe;
    const exf_released_model *released; /* NULL: a model that is not among them */
    exf_text head;                      /* of a released model: its recipe as the project has it */
    exf_text_inputs inputs;
    written file, manifest, validation;
    exf_run_directory dir; /* of all three */
} init;

/* ---- paths ---------------------------------------------------------------------------- */

/* Makes RECIPE<ending> of RECIPE.yaml.  Caller frees. */
static exf_code name_beside(const init *s, const char *ending, char **out, exf_err *err)
{
    const char *path = s->recipe->init_path, *name = exf_path_name(path), *dot = strrchr(name, '.');
    size_t n = dot && dot > name ? (size_t)(dot - path) : strlen(path);
    exf_text t = {0};
    exf_text_appendf(&t, "%.*s%s", (int)n, path, ending);
    *out = t.s;
    return exf_text_end(&t, err);
}

static exf_code name_files(init *s, exf_err *err)
{
    const exf_recipe *r = s->recipe;
    exf_code rc;
    EXF_TRY(exf_mem_strdup(&s->file.path, r->init_path, "path", err));
    EXF_TRY(exf_output_check(s->file.path, r->force, err));
    EXF_TRY(name_beside(s, "-manifest.yaml", &s->manifest.path, err));
    EXF_TRY(exf_output_check(s->manifest.path, r->force, err));
    if (r->texts.n) goto out;
    EXF_TRY(name_beside(s, "-validation-manifest.yaml", &s->validation.path, err));
    EXF_TRY(exf_output_check(s->validation.path, r->force, err));
out:
    return rc;
}

/* ---- the line of the schema -------------------------------------------------------------- */

/* Appends the line by which an editor finds the JSON Schema of a "recipe" or "manifest" that begins with it: that of
 * ../share/exfold/schema, seen from this program's file.  Where none lies there, or a blank would end its path, the line says
 * which command prints it. */
static exf_code append_schema(const char *kind, exf_text *out, exf_err *err)
{
    char rest[64];
    exf_text path = {0};
    snprintf(rest, sizeof rest, "share/exfold/schema/%s.json", kind);
    exf_code rc = exf_path_beside_program(&path, 1, rest, err);
    if (rc == EXF_OK && path.len && access(path.s, R_OK) == 0 && !path.s[strcspn(path.s, " \t\n\r")])
        exf_text_appendf(out, "# yaml-language-server: $schema=%s\n", path.s);
    else if (rc == EXF_OK)
        exf_text_appendf(out, "# exfold-inspect schema %s prints the JSON Schema of this file\n", kind);
    exf_text_free(&path);
    return rc == EXF_OK ? exf_text_end(out, err) : rc;
}

/* ---- manifests ------------------------------------------------------------------------- */

/* Appends the text with every `from` replaced. */
static exf_code add_replaced(exf_text *out, const char *text, const char *from, const char *to, exf_err *err)
{
    for (const char *at; (at = strstr(text, from)); text = at + strlen(from)) {
        exf_text_append(out, text, (size_t)(at - text));
        exf_text_appendf(out, "%s", to);
    }
    exf_text_appendf(out, "%s", text);
    return exf_text_end(out, err);
}

/* The manifest that the released model's recipe names under section.manifest, as it must be beside the
 * new recipe: the corpora go there too, and the commands in its comments name the new files. */
static exf_code copy_manifest(const init *s, const exf_yaml *recipe, const char *section, written *out, exf_err *err)
{
    static const char up[] = "../";
    const exf_yaml *node = exf_yaml_get(exf_yaml_get(recipe, section), "manifest");
    exf_text text[3] = {{0}};
    exf_code rc;
    if (!node || !node->text || !exf_starts_with(node->text, up))
        return exf_fail(err, EXF_INTERNAL, "%s: %s.manifest is no path from its folder", s->released->recipe, section);
    const char *name = node->text + strlen(up);
    EXF_TRY(exf_released_file(&text[0], name, err));
    EXF_TRY(append_schema("manifest", &out->text, err));
    EXF_TRY(add_replaced(&text[1], text[0].s, "../corpora/", "corpora/", err));
    EXF_TRY(add_replaced(&text[2], text[1].s, name, out->path, err));
    rc = add_replaced(&out->text, text[2].s, "models/MODEL", s->recipe->model_path, err);
out:
    for (int i = 0; i < 3; i++) exf_text_free(&text[i]);
    return rc;
}

static exf_code make_manifests(init *s, exf_err *err)
{
    exf_yaml *recipe = NULL;
    exf_code rc;
    if (s->recipe->texts.n) {
        EXF_TRY(exf_text_inputs_make(&s->inputs, s->recipe, s->manifest.path, err));
        EXF_TRY(append_schema("manifest", &s->manifest.text, err));
        exf_text_appendf(&s->manifest.text, "%s", s->inputs.manifest.s);
        rc = exf_text_end(&s->manifest.text, err);
    } else if (s->released) {
        EXF_TRY(exf_yaml_parse(&recipe, s->head.s, s->head.len, s->released->recipe, err));
        EXF_TRY(copy_manifest(s, recipe, "data", &s->manifest, err));
        EXF_TRY(copy_manifest(s, recipe, "validate", &s->validation, err));
    } else {
        rc = exf_fail(err, EXF_USAGE, "--init: %s is no released model whose data are known; name texts with --text FILE",
                      s->recipe->model_path);
    }
out:
    exf_yaml_free(recipe);
    return rc;
}

/* ---- settings ------------------------------------------------------------------------------ */

/* Paths that the recipe has to name; they are spelled when they are printed. */
static exf_code set_paths(init *s, exf_err *err)
{
    exf_recipe *r = s->recipe;
    exf_text out = {0};
    exf_code rc;
    EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, "data.manifest", exf_path_name(s->manifest.path), "--init", err));
    if (s->validation.path)
        EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, "validate.manifest", exf_path_name(s->validation.path), "--init", err));
    if (!r->output_directory) {
        exf_text_appendf(&out, "out/%s", *exf_path_name(r->model_path) ? exf_path_name(r->model_path) : "tables");
        EXF_TRY(exf_text_end(&out, err));
        EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, "output.directory", out.s, "--init", err));
    }
out:
    exf_text_free(&out);
    return rc;
}

/* ---- the recipe's text ----------------------------------------------------------------------- */

/* Appends the comment of the project's own recipe about the model, up to its commands, and the commands of this one. */
static void add_head(const init *s, exf_text *out)
{
    const char *name = exf_path_name(s->file.path), *line = s->head.len ? s->head.s : "";
    while (*line == '#' && !exf_starts_with(line, "# Plan it")) {
        size_t n = strcspn(line, "\n");
        exf_text_appendf(out, "%.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
    if (s->recipe->texts.n && s->released) exf_text_appendf(out, "# The texts are not the paper's but those of --text.\n#\n");
    exf_text_appendf(out, "# Written by exfold-calibrate %s --init.  Keys that are commented out have their defaults.\n",
                     exf_release());
    exf_text_appendf(out, "#   exfold-calibrate %s --dry-run    # the plan: time, memory, disk\n", name);
    exf_text_appendf(out, "#   exfold-calibrate %s\n#   exfold-validate %s%s\n", name, name,
                     s->validation.path ? "" : " --text HELD-OUT.txt");
}

/* Appends "  # help (range; default)" and "  key: value", which is commented out where it is the default. */
static exf_code add_key(const init *s, const exf_opt *row, const char *value, exf_text *out, exf_err *err)
{
    const char *dot = strchr(row->key, '.'), *indent = dot ? "  " : "";
    exf_opt no_flag = *row; /* so that the remarks do not name the key again */
    int is_choice = row->type == EXF_OPT_CHOICE && strchr(exf_opt_placeholder(row), '|');
    int is_spelled = strcmp(row->key, "model.path") == 0 || strcmp(row->key, "output.directory") == 0;
    char *path = NULL;
    exf_code rc;
    no_flag.flag = NULL;
    exf_text_appendf(out, "%s# %s%s", indent, is_choice ? exf_opt_placeholder(row) : "", is_choice ? ": " : "");
    EXF_TRY(exf_opt_remarks(&no_flag, out, err));
    exf_text_appendf(out, "\n%s%s%s: ", indent, exf_opts_given(s->recipe->opts, row->key, EXF_OPT_BY_RECIPE) ? "" : "#",
                     dot ? dot + 1 : row->key);
    if (!*value) {
        exf_text_appendf(out, "%s", exf_opt_placeholder(row));
    } else if (is_spelled && exf_opts_given(s->recipe->opts, row->key, EXF_OPT_BY_ARGV)) {
        EXF_TRY(strchr(s->recipe->init_path, '/') ? exf_path_absolute(&path, value, err)
                                                  : exf_mem_strdup(&path, value, "path", err));
        EXF_TRY(exf_yaml_add_scalar(out, path, err));
    } else {
        EXF_TRY(exf_recipe_add_value(row, value, NULL, out, err));
    }
    exf_text_append(out, "\n", 1);
out:
    exf_mem_free(path);
    return rc;
}

static exf_code add_keys(const init *s, exf_text *out, exf_err *err)
{
    size_t n_common, n_rows, n = 0;
    const char *section = "";
    exf_text value = {0};
    exf_code rc = EXF_OK;
    exf_recipe_global_rows(&n_common);
    const exf_opt *rows = exf_recipe_key_rows(&n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        const char *dot = strchr(rows[i].key, '.');
        if (!dot || !n || !(strncmp(rows[i].key, section, n) == 0 && rows[i].key[n] == '.')) {
            exf_text_append(out, "\n", 1);
            section = rows[i].key;
            n = dot ? (size_t)(dot - section) : 0;
            if (n) exf_text_appendf(out, "%.*s:\n", (int)n, section); /* bare where no key is given: one uncommented finds it */
        }
        value.len = 0;
        EXF_TRY(exf_opts_value(s->recipe->opts, n_common + i, &value, err));
        EXF_TRY(add_key(s, &rows[i], value.len ? value.s : "", out, err));
    }
    rc = exf_text_end(out, err);
out:
    exf_text_free(&value);
    return rc;
}

/* ---- the whole ----------------------------------------------------------------------------------- */

exf_code exf_init_recipe(exf_recipe *r, exf_err *err)
{
    init s = {.recipe = r};
    written *const files[] = {&s.manifest, &s.validation, &s.file};
    exf_code rc;
    if (r->recipe_file)
        return exf_fail(err, EXF_USAGE, "--init writes a recipe and reads none, %s was named too", r->recipe_file);
    if (r->dry_run) return exf_fail(err, EXF_USAGE, "--init writes files, --dry-run writes nothing: give one of them");
    if (!exf_ends_with(r->init_path, ".yaml") && !exf_ends_with(r->init_path, ".yml"))
        return exf_fail(err, EXF_USAGE, "--init %s: the name of a recipe ends in .yaml", r->init_path);
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_run_directory_of_file(&s.dir, r->init_path, err));
    EXF_TRY(exf_default_settings_set(r, &s.released, err));
    if (s.released) EXF_TRY(exf_released_file(&s.head, s.released->recipe, err));
    if (r->texts.n && !exf_opts_given(r->opts, "data.sequences", EXF_OPT_BY_ARGV)) r->sequences = 0;
    EXF_TRY(name_files(&s, err));
    EXF_TRY(make_manifests(&s, err));
    EXF_TRY(set_paths(&s, err));
    EXF_TRY(append_schema("recipe", &s.file.text, err));
    add_head(&s, &s.file.text);
    EXF_TRY(add_keys(&s, &s.file.text, err));
    for (int i = 0; i < 3; i++) {
        const written *w = files[i];
        if (!w->path) continue;
        EXF_TRY(exf_output_file_whole(w->path, r->force, w->text.s, w->text.len, err));
        EXF_TRY(exf_announce(w->path, err));
    }
out:
    for (int i = 0; i < 3; i++) {
        exf_mem_free(files[i]->path);
        exf_text_free(&files[i]->text);
    }
    exf_text_inputs_free(&s.inputs);
    exf_text_free(&s.head);
    exf_run_directory_close(&s.dir, 0);
    return rc;
}

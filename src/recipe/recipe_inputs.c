/* recipe_inputs.c - makes the corpus of --text, and lists the files that a recipe's run reads; see recipe.h. */
#include "recipe/recipe.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "capture/corpus.h"
#include "capture/manifest.h"
#include "format/yaml.h"
#include "model/checkpoint.h"
#include "recipe/run_directory.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the manifest of --text --------------------------------------------------------- */

static exf_code add_key(exf_text *out, const char *key, const char *value, exf_err *err)
{
    exf_text_appendf(out, "    %s: ", key);
    exf_code rc = exf_yaml_add_scalar(out, value, err);
    exf_text_append(out, "\n", 1);
    return rc;
}

static int has_control(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 0x7f) return 1;
    return 0;
}

/* Returns where the last name of a path begins, and in *n its length without its last ending. */
static const char *stem_of(const char *path, size_t *n)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    *n = dot && dot > name ? (size_t)(dot - name) : strlen(name);
    return name;
}

/* Adds the domain under which the file's sequences are reported: its name without the last ending.  A manifest refuses control
 * characters in it; without a domain it is "source-1". */
static exf_code add_domain(exf_text *out, const char *path, exf_err *err)
{
    char *stem = NULL;
    size_t n;
    const char *name = stem_of(path, &n);
    if (has_control(name)) return EXF_OK;
    exf_code rc = exf_mem_dup(&stem, name, n, "name of a domain", err);
    if (rc == EXF_OK) rc = add_key(out, "domain", stem, err);
    exf_mem_free(stem);
    return rc;
}

static exf_code add_source(exf_text *out, const char *path, const exf_recognised *is, exf_err *err)
{
    char digest[EXF_SHA256_HEX], *absolute = NULL;
    exf_code rc;
    EXF_TRY(exf_path_absolute(&absolute, path, err));
    EXF_TRY(exf_hash_file(path, digest, err));
    exf_text_appendf(out, "  - path: ");
    EXF_TRY(exf_yaml_add_scalar(out, absolute, err));
    exf_text_appendf(out, "\n    format: %s\n", exf_source_format_name(is->format));
    if (is->field.len) EXF_TRY(add_key(out, is->format == EXF_SOURCE_TOKENS ? "tensor" : "field", is->field.s, err));
    EXF_TRY(add_domain(out, path, err));
    EXF_TRY(add_key(out, "sha256", digest, err));
out:
    exf_mem_free(absolute);
    return rc;
}

/* ---- the files of --text -------------------------------------------------------------- */

/* Returns file i of --text, counting on through the arguments; NULL past the last. */
static const char *file_at(const exf_recipe *r, size_t i)
{
    if (i < r->texts.n) return r->texts.item[i];
    return i - r->texts.n < r->n_inputs ? r->inputs[i - r->texts.n] : NULL;
}

static exf_code refuse_file_twice(const exf_recipe *r, size_t i, exf_err *err)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(file_at(r, k), file_at(r, i)) == 0)
            return exf_fail(err, EXF_USAGE, "--text: %s is given twice; its tokens would count double", file_at(r, i));
    return EXF_OK;
}

/* Warns of files with one stem, which are one domain: their user may not have meant that. */
static void warn_of_shared_domain(const exf_recipe *r, size_t i)
{
    size_t n, k_n;
    const char *name = stem_of(file_at(r, i), &n);
    for (size_t k = 0; k < i; k++) {
        const char *other = stem_of(file_at(r, k), &k_n);
        if (n != k_n || strncmp(name, other, n) != 0) continue;
        exf_log_warn("--text: %s and %s are reported together, as domain %.*s", file_at(r, k), file_at(r, i), (int)n, name);
        return;
    }
}

static exf_code add_file(exf_text_inputs *t, const exf_recipe *r, const char *path, int *fields, exf_err *err)
{
    exf_recognised is = {.format = EXF_SOURCE_TEXT};
    exf_code rc;
    if (exf_utf8_valid(path, strlen(path)) < strlen(path))
        return exf_fail(err, EXF_USAGE, "--text: the name %s is not valid UTF-8, which a manifest cannot hold", path);
    EXF_TRY(exf_recognise(&is, path, r->text_field, err));
    exf_log_info("%s: %s", path, is.about.s);
    *fields += is.field.len > 0;
    EXF_TRY(add_source(&t->manifest, path, &is, err));
out:
    exf_recognised_free(&is);
    return rc;
}

exf_code exf_text_inputs_make(exf_text_inputs *t, const exf_recipe *r, const char *path, exf_err *err)
{
    exf_code rc;
    int fields = 0;
    memset(t, 0, sizeof *t);
    if (r->texts.n == 0) return EXF_OK;
    EXF_TRY(exf_path_absolute(&t->path, path, err));
    exf_text_appendf(&t->manifest, "# The files of --text.\nschema: exfold-manifest/1\nsources:\n");
    for (size_t i = 0; file_at(r, i); i++) {
        EXF_TRY(refuse_file_twice(r, i, err));
        EXF_TRY(add_file(t, r, file_at(r, i), &fields, err));
        warn_of_shared_domain(r, i);
    }
    EXF_TRY(exf_text_end(&t->manifest, err));
    if (r->text_field && !fields)
        rc = exf_fail(err, EXF_USAGE, "--text-field %s: plain text has no members or tensors to choose from", r->text_field);
out:
    return rc;
}

exf_code exf_text_inputs_use(const exf_text_inputs *t, exf_recipe *r, const char *key, exf_err *err)
{
    if (!t->path) return EXF_OK;
    r->manifest_text = t->manifest.s;
    return exf_opts_set(r->opts, EXF_OPT_BY_ARGV, key, t->path, "--text", err);
}

exf_code exf_text_inputs_write(const exf_text_inputs *t, const char *target, int force, exf_err *err)
{
    return t->path ? exf_write_announced(target, force, t->manifest.s, t->manifest.len, err) : EXF_OK;
}

void exf_text_inputs_free(exf_text_inputs *t)
{
    exf_text_free(&t->manifest);
    exf_mem_free(t->path);
    memset(t, 0, sizeof *t);
}

/* ---- the list of all files ------------------------------------------------------------- */

typedef struct {
    const char **role;
    char **path;
    size_t n, cap_roles, cap_paths;
} input_list;

static exf_code list_file(input_list *in, const char *role, const char *path, exf_err *err)
{
    exf_code rc;
    for (size_t i = 0; i < in->n; i++)
        if (strcmp(in->path[i], path) == 0 && strcmp(in->role[i], role) == 0) return EXF_OK;
    EXF_TRY(exf_mem_grow(&in->role, &in->cap_roles, in->n + 1, sizeof *in->role, "list of inputs", err));
    EXF_TRY(exf_mem_grow(&in->path, &in->cap_paths, in->n + 1, sizeof *in->path, "list of inputs", err));
    EXF_TRY(exf_mem_strdup(&in->path[in->n], path, "path", err));
    in->role[in->n++] = role;
out:
    return rc;
}

static exf_code list_file_in(input_list *in, const char *role, const char *dir, const char *name, exf_err *err)
{
    char *path = NULL;
    exf_code rc = exf_path_join(&path, dir, name, err);
    if (rc == EXF_OK) rc = list_file(in, role, path, err);
    exf_mem_free(path);
    return rc;
}

/* Lists a manifest and its sources; sets *text to 1 if one of them needs a tokenizer. */
static exf_code list_manifest(input_list *in, const char *path, const char *role, const char *source_role, int *text, exf_err *err)
{
    exf_manifest *m = NULL;
    exf_code rc;
    EXF_TRY(list_file(in, role, path, err));
    EXF_TRY(exf_manifest_load(&m, path, err));
    for (size_t i = 0; i < m->n; i++) {
        EXF_TRY(list_file(in, source_role, m->source[i].file, err));
        *text |= m->source[i].format != EXF_SOURCE_TOKENS;
    }
out:
    exf_manifest_free(m);
    return rc;
}

static exf_code list_model(input_list *in, const char *dir, int text, exf_err *err)
{
    exf_checkpoint *c = NULL;
    exf_code rc;
    EXF_TRY(list_file_in(in, "config", dir, "config.json", err));
    EXF_TRY(exf_checkpoint_open(&c, dir, err));
    for (size_t i = 0; i < exf_checkpoint_files(c); i++) EXF_TRY(list_file(in, "weights", exf_checkpoint_path(c, i), err));
    if (text) rc = list_file_in(in, "tokenizer", dir, "tokenizer.json", err);
out:
    exf_checkpoint_close(c);
    return rc;
}

/* Lists the model last, so that what is wrong with the data is found before its weights are read. */
static exf_code list_all(input_list *in, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    int text = 0;
    if (r->texts.n)
        return exf_fail(err, EXF_USAGE, "--list-inputs lists what a recipe reads: give the recipe that the run with --text wrote");
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_recipe_check_data(r, err));
    EXF_TRY(list_file(in, "recipe", r->recipe_file, err));
    EXF_TRY(list_manifest(in, r->manifest, "manifest", "source", &text, err));
    if (r->validate_manifest)
        EXF_TRY(list_manifest(in, r->validate_manifest, "validation-manifest", "validation-source", &text, err));
    rc = list_model(in, r->model_path, text, err);
out:
    return rc;
}

exf_code exf_inputs_text(const exf_recipe *r, exf_text *out, exf_err *err)
{
    input_list in = {.n = 0};
    char digest[EXF_SHA256_HEX];
    struct stat st;
    exf_eta work = {.kind = {{.prior = 1e-9}}}; /* one kind of work: a byte to hash */
    exf_code rc = list_all(&in, r, err);
    for (size_t i = 0; i < in.n; i++)
        if (stat(in.path[i], &st) == 0) work.kind[0].planned += (double)st.st_size;
    exf_progress_begin("hashing", 0, &work, 0);
    for (size_t i = 0; rc == EXF_OK && i < in.n; i++) {
        rc = exf_hash_file(in.path[i], digest, err);
        if (rc == EXF_OK) exf_text_appendf(out, "%s %s %s\n", in.role[i], digest, in.path[i]);
    }
    if (rc == EXF_OK) rc = exf_text_end(out, err);
    exf_progress_end();
    for (size_t i = 0; i < in.n; i++) exf_mem_free(in.path[i]);
    exf_mem_free(in.role);
    exf_mem_free(in.path);
    return rc;
}

exf_code exf_list_inputs(const exf_recipe *r, exf_err *err)
{
    exf_text text = {0};
    exf_code rc = exf_inputs_text(r, &text, err);
    if (rc == EXF_OK) fputs(text.s, stdout);
    exf_text_free(&text);
    return rc;
}

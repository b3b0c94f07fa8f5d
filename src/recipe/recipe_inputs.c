/* recipe_inputs.c - lists the files that a recipe's run reads; see recipe.h. */
#include "recipe/recipe.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/progress.h"
#include "capture/corpus.h"
#include "capture/manifest.h"
#include "model/checkpoint.h"

#include <string.h>
#include <sys/stat.h>

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

/* Lists a manifest and its sources; sets *text to 1 if one of them needs a tokenizer. */
static exf_code list_manifest(input_list *in, const char *path, const char *role, const char *source_role, int *text, exf_err *err)
{
    exf_manifest *m = NULL;
    exf_code rc;
    EXF_TRY(list_file(in, role, path, err));
    EXF_TRY(exf_manifest_load(&m, path, err));
    for (size_t i = 0; i < m->n; i++) {
        EXF_TRY(list_file(in, source_role, m->source[i].file, err));
        *text |= exf_source_is_text(m->source[i].format);
    }
out:
    exf_manifest_free(m);
    return rc;
}

static exf_code list_model(input_list *in, const char *dir, int text, exf_err *err)
{
    exf_checkpoint *c = NULL;
    char *config = NULL, *tokenizer = NULL, *tokenizer_config = NULL, *python = NULL;
    int found = 0;
    exf_code rc;
    EXF_TRY(exf_path_join(&config, dir, "config.json", err));
    EXF_TRY(list_file(in, "config", config, err));
    EXF_TRY(exf_checkpoint_open(&c, dir, err));
    for (size_t i = 0; i < c->n_files; i++) EXF_TRY(list_file(in, "weights", exf_st_path(c->file[i]), err));
    if (!text) goto out;
    EXF_TRY(exf_tokenizer_path(&tokenizer, dir, err));
    EXF_TRY(list_file(in, "tokenizer", tokenizer, err));
    EXF_TRY(exf_path_join(&tokenizer_config, dir, "tokenizer_config.json", err)); /* the beginning of a document, and of chats */
    EXF_TRY(exf_path_look(tokenizer_config, &found, err));
    if (found) EXF_TRY(list_file(in, "tokenizer-config", tokenizer_config, err));
    EXF_TRY(exf_tokenizer_python(&python, tokenizer, err)); /* the pattern of a tiktoken.model */
    if (python) rc = list_file(in, "tokenizer-python", python, err);
out:
    exf_checkpoint_close(c);
    exf_mem_free(config);
    exf_mem_free(tokenizer);
    exf_mem_free(tokenizer_config);
    exf_mem_free(python);
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
        rc = exf_source_hash(in.path[i], digest, err);
        if (rc == EXF_OK) exf_text_appendf(out, "%s %s %s\n", in.role[i], digest, in.path[i]);
    }
    if (rc == EXF_OK) rc = exf_text_end(out, err);
    exf_progress_end();
    for (size_t i = 0; i < in.n; i++) exf_mem_free(in.path[i]);
    exf_mem_free(in.role);
    exf_mem_free(in.path);
    return rc;
}

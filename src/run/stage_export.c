/* stage_export.c - tables in, files for runtimes out. */
#include "artifact/tables.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/output_directory.h"
#include "export/writer.h"
#include "fold/runtime.h"
#include "recipe/announce.h"
#include "run/derived_files.h"
#include "plan/plan.h"
#include "run/stage_internal.h"
#include "run/stage.h"
#include "validate/validate.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- every target ------------------------------------------------------------------- */

/* Something to do for each target, with its path. */
typedef exf_code (*step)(const exf_writer *w, const char *path, const exf_recipe *r, const exf_export *x, exf_err *err);

static exf_code each_target(step do_it, const exf_recipe *r, const exf_run_directory *dir, const exf_export *x, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < r->targets.n; i++) {
        const exf_writer *w;
        char *path = NULL;
        EXF_TRY(exf_writer_require(r->targets.item[i], &w, err));
        EXF_TRY(exf_run_directory_file(dir, w->file, &path, err));
        rc = do_it(w, path, r, x, err);
        exf_mem_free(path);
    }
out:
    return rc;
}

static exf_code check_path(const exf_writer *w, const char *path, const exf_recipe *r, const exf_export *x, exf_err *err)
{
    (void)x;
    return exf_writer_check_path(w, path, r->force, err);
}

/* Refuses what the target's readers refuse, and layers that they fold without evidence.  Arrays that any program reads are
 * folded where the recipe names a runtime that has no file of its own. */
static exf_code check_tables(const exf_writer *w, const char *path, const exf_recipe *r, const exf_export *x, exf_err *err)
{
    const exf_runtime *runtime;
    exf_code rc;
    EXF_TRY(exf_recipe_runtime(r, &runtime, err));
    EXF_TRY(exf_writer_check_export(w, x, path, err));
    int is_folded = w->of_plugin || (runtime && !runtime->target);
    if (!w->covers || !is_folded || r->unobserved_layers == EXF_UNOBSERVED_ACCEPT) return EXF_OK;
    rc = w->covers(x->tables, !runtime || runtime->folds_hashed, err);
    if (rc != EXF_OK) exf_err_prefix(err, "%s: ", path);
out:
    return rc;
}

static exf_code write_target(const exf_writer *w, const char *path, const exf_recipe *r, const exf_export *x, exf_err *err)
{
    exf_code rc = exf_writer_write(w, x, path, r->force, err);
    return rc == EXF_OK ? exf_announce(path, err) : rc;
}

/* Refuses targets without the one that the recipe's runtime loads. */
static exf_code check_runtime(const exf_recipe *r, exf_err *err)
{
    const exf_runtime *runtime;
    exf_code rc = exf_recipe_runtime(r, &runtime, err);
    int there = rc != EXF_OK || !runtime || !runtime->target;
    for (size_t i = 0; i < r->targets.n && !there; i++) there = strcmp(r->targets.item[i], runtime->target) == 0;
    if (there) return rc;
    return exf_recipe_blame(r,
                            exf_fail(err, EXF_USAGE, "output.targets: has not %s, which serve.runtime %s loads",
                                     runtime->target, runtime->name),
                            err);
}

exf_code exf_export_tables_check(const exf_recipe *r, const exf_run_directory *dir, exf_err *err)
{
    exf_code rc = check_runtime(r, err);
    return rc != EXF_OK ? rc : each_target(check_path, r, dir, NULL, err);
}

exf_code exf_export_model_check(const exf_recipe *r, const exf_model *model, exf_err *err)
{
    const exf_architecture *a = &model->arch;
    const exf_export_model m = {
        .family = model->family->name, .n_layers = a->n_layers, .n_experts = a->n_experts, .top_k = a->top_k};
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < r->targets.n; i++) {
        const exf_writer *w;
        rc = exf_writer_require(r->targets.item[i], &w, err);
        if (rc == EXF_OK) rc = exf_writer_check_model(w, &m, err);
    }
    return rc;
}

static void look_at_wants(const exf_recipe *r, int *vectors, int *model)
{
    *vectors = *model = 0;
    for (size_t i = 0; i < r->targets.n; i++) {
        const exf_writer *w = exf_writer_find(r->targets.item[i]);
        *vectors |= w && w->wants_vectors;
        *model |= w && w->wants_model;
    }
}

/* Opens the checkpoint that the tables are of, for the targets that want it. */
static exf_code open_model(exf_model **model, const exf_recipe *r, const exf_tables *t, const char *tables, exf_err *err)
{
    exf_code rc = exf_recipe_check_model(r, err);
    if (rc == EXF_OK) rc = exf_model_open(model, r->model_path, err);
    return rc == EXF_OK ? exf_validate_check_tables(t, tables, *model, err) : rc;
}

/* Refuses a disk without room for what the targets will write. */
static exf_code check_room(const exf_recipe *r, const exf_run_directory *dir, const exf_export *x, exf_err *err)
{
    exf_plan plan = {.output = dir->path};
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < r->targets.n; i++) {
        const exf_writer *w = exf_writer_find(r->targets.item[i]);
        uint64_t bytes = 0;
        if (w->bytes) rc = w->bytes(x, &bytes, err);
        plan.disk += bytes;
    }
    return rc == EXF_OK && plan.disk ? exf_plan_check_output(&plan, err) : rc;
}

static const char *given(const char *text)
{
    return text && *text ? text : NULL;
}

/* Finds validation.md beside the tables; *path NULL: there is none.  A run that has just made the tables leaves out a
 * validation of others, for it cannot be mended before. */
static exf_code find_validation(char **path, const char *tables, const char *digest, int fresh, exf_err *err)
{
    char *directory = NULL;
    int found;
    exf_code rc = exf_derived_check_validation(tables, digest, err);
    if (rc == EXF_MODEL && fresh) {
        exf_log_warn("%s", err->msg);
        return EXF_OK;
    }
    if (rc != EXF_OK) return rc;
    EXF_TRY(exf_path_dir(&directory, tables, err));
    EXF_TRY(exf_path_join(path, directory, "validation.md", err));
    EXF_TRY(exf_path_look(*path, &found, err));
    if (found) goto out;
    exf_mem_free(*path);
    *path = NULL;
out:
    exf_mem_free(directory);
    return rc;
}

/* Reads tables, with their vectors if a target wants them, and computes their digest. */
static exf_code read_tables(exf_solved *out, const char *tables, int vectors, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_tables_read(&out->tables, tables, err));
    if (vectors) EXF_TRY(exf_tables_read_vectors(&out->tables, tables, err));
    rc = exf_artifact_digest(tables, &exf_artifact_tables, out->digest, err);
out:
    return rc;
}

/* No target is written before all of them have accepted the tables. */
exf_code exf_export_tables(const exf_recipe *r, const exf_run_directory *dir, const char *tables, const exf_solved *made,
                           int has_recipe, exf_err *err)
{
    exf_solved read = {.tables = {.n_layers = 0}};
    const exf_solved *t = made ? made : &read;
    char *validation = NULL;
    exf_model *model = NULL;
    int vectors, wants_model;
    exf_code rc = EXF_OK;
    look_at_wants(r, &vectors, &wants_model);
    if (!made) EXF_TRY(read_tables(&read, tables, vectors, err));
    EXF_TRY(exf_tell_part(&t->tables, tables, err));
    if (wants_model) EXF_TRY(open_model(&model, r, &t->tables, tables, err));
    EXF_TRY(find_validation(&validation, tables, t->digest, made != NULL, err));
    exf_export x = {
        .tables = &t->tables,
        .digest = t->digest,
        .validation = validation,
        .has_recipe = has_recipe,
        .targets = (const char *const *)r->targets.item,
        .n_targets = r->targets.n,
        .base_model = given(r->base_model),
        .revision = given(r->revision),
        .datasets = (const char *const *)r->datasets.item,
        .n_datasets = r->datasets.n,
        .model = model,
        .keep = r->export_experts,
        .ranks = r->export_ranks,
    };
    EXF_TRY(each_target(check_tables, r, dir, &x, err));
    EXF_TRY(check_room(r, dir, &x, err));
    EXF_TRY(each_target(write_target, r, dir, &x, err));
out:
    exf_mem_free(validation);
    exf_model_close(model);
    exf_tables_free(&read.tables);
    return rc;
}

/* ---- the stage ------------------------------------------------------------------------ */

enum { MAX_RECIPE = 1 << 20 }; /* bytes */

static int has_card(const exf_recipe *r)
{
    const exf_writer *card = exf_writer_find("card");
    for (size_t i = 0; i < r->targets.n; i++)
        if (exf_writer_find(r->targets.item[i]) == card) return 1;
    return 0;
}

/* The recipe of the tables' run, which goes with a card if it stands beside the tables. */
typedef struct {
    char *from, *to; /* to: where it will stand; NULL: nothing is to be copied */
    int exists;       /* the output directory has it, or will */
} recipe_copy;

static int same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* 1 if the recipe at path is that of the tables' run; a recipe of an earlier program does not say. */
static exf_code is_recipe_of(const char *path, const char *tables, int *is, exf_err *err)
{
    char theirs[EXF_SHA256_HEX], ours[EXF_SHA256_HEX];
    exf_code rc;
    int found;
    *is = 0;
    EXF_TRY(exf_path_look(path, &found, err));
    if (!found) return EXF_OK;
    EXF_TRY(exf_made_from(path, theirs, err));
    if (*theirs) EXF_TRY(exf_artifact_digest(tables, &exf_artifact_tables, ours, err));
    *is = !*theirs || strcmp(theirs, ours) == 0;
    if (!*is) exf_log_warn("%s: is of a run that made other tables than %s; it is left out", path, tables);
out:
    return rc;
}

static exf_code plan_copy(recipe_copy *c, const exf_recipe *r, const exf_run_directory *dir, const char *tables, exf_err *err)
{
    char *directory = NULL, *to = NULL;
    exf_code rc;
    EXF_TRY(exf_path_dir(&directory, tables, err));
    EXF_TRY(exf_path_join(&c->from, directory, "exfold_recipe.yaml", err));
    EXF_TRY(exf_run_directory_file(dir, "exfold_recipe.yaml", &to, err));
    if (!has_card(r)) goto out;
    EXF_TRY(is_recipe_of(c->from, tables, &c->exists, err));
    if (!c->exists || same_file(c->from, to)) goto out;
    EXF_TRY(exf_output_check(to, r->force, err));
    c->to = to;
    to = NULL;
out:
    exf_mem_free(directory);
    exf_mem_free(to);
    return rc;
}

static exf_code copy_recipe(const recipe_copy *c, const exf_recipe *r, exf_err *err)
{
    char *text = NULL;
    exf_output_file *f = NULL;
    size_t n;
    exf_code rc = EXF_OK;
    if (!c->to) return rc;
    EXF_TRY(exf_file_slurp(c->from, MAX_RECIPE, &text, &n, err));
    EXF_TRY(exf_output_file_begin(&f, c->to, r->force, err));
    EXF_TRY(exf_output_file_write(f, text, n, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = exf_announce(c->to, err);
out:
    exf_output_file_abort(f);
    exf_mem_free(text);
    return rc;
}

exf_code exf_stage_export(exf_recipe *r, exf_err *err)
{
    exf_run_directory dir = {.path = NULL};
    recipe_copy copy = {.from = NULL};
    char *fallback = NULL;
    exf_code rc;
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_recipe_check_targets(r, err));
    EXF_TRY(exf_run_directory_open(&dir, r->output_directory, err));
    EXF_TRY(exf_run_directory_file(&dir, "tables.h5", &fallback, err));
    const char *tables = r->n_inputs ? r->inputs[0] : fallback;
    EXF_TRY(exf_export_tables_check(r, &dir, err));
    EXF_TRY(plan_copy(&copy, r, &dir, tables, err));
    EXF_TRY(exf_export_tables(r, &dir, tables, NULL, copy.exists, err));
    EXF_TRY(copy_recipe(&copy, r, err));
out:
    exf_mem_free(fallback);
    exf_mem_free(copy.from);
    exf_mem_free(copy.to);
    exf_run_directory_close(&dir, rc != EXF_OK);
    return rc;
}

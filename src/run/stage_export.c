/* stage_export.c - exfold-export: from tables to files for runtimes, after a calibration too; see stage.h.  No target is written
 * before all of them have accepted the tables. */
#include "run/stage.h"

#include "artifact/provenance.h"
#include "artifact/tables.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "capture/capture.h"
#include "export/writer.h"
#include "fold/runtime.h"
#include "run/plan.h"
#include "validate/validation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- every target ------------------------------------------------------------------- */

/* What is done for each target, with its path. */
typedef exf_code (*target_step)(const exf_writer *w, const char *path, const exf_recipe *r, const exf_export *x, exf_err *err);

static exf_code each_target(target_step step, const exf_recipe *r, const exf_run_directory *dir, const exf_export *x, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < r->targets.n; i++) {
        const exf_writer *w;
        char *path = NULL;
        EXF_TRY(exf_writer_require(r->targets.item[i], &w, err));
        EXF_TRY(exf_path_join(&path, dir->path, w->file, err));
        rc = step(w, path, r, x, err);
        exf_mem_free(path);
    }
out:
    return rc;
}

static exf_code check_path(const exf_writer *w, const char *path, const exf_recipe *r, const exf_export *x, exf_err *err)
{
    (void)x;
    return w->is_directory ? exf_output_directory_check(path, r->force, err) : exf_output_check(path, r->force, err);
}

/* Refuses tables that the target's readers refuse, or in which a layer that they fold has no observed pair.  Plugins fold; so
 * does the recipe's runtime if it has no target of its own and reads the arrays that any program reads. */
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
    char sha256[EXF_SHA256_HEX] = "";
    exf_export told = *x;
    told.sha256 = sha256;
    exf_code rc = w->write(&told, path, r->force, err);
    if (rc != EXF_OK) return rc;
    return sha256[0] ? exf_announce_known(path, "sha256", sha256, err) : exf_announce(path, err);
}

/* Refuses a runtime that does not serve the model, of that family and with so many experts per token, and then targets without
 * the one that it loads. */
static exf_code check_runtime(const exf_recipe *r, const char *family, int top_k, exf_err *err)
{
    const exf_runtime *runtime;
    const exf_architecture a = {.top_k = top_k};
    exf_code rc;
    EXF_TRY(exf_recipe_runtime(r, &runtime, err));
    if (runtime && family) EXF_TRY(exf_recipe_blame(r, exf_runtime_serves(runtime, family, &a, err), err));
    int is_loaded = !runtime || !runtime->target;
    for (size_t i = 0; i < r->targets.n && !is_loaded; i++) is_loaded = strcmp(r->targets.item[i], runtime->target) == 0;
    if (!is_loaded)
        rc = exf_recipe_refuse(r, err, "output.targets: has not %s, which serve.runtime %s loads", runtime->target, runtime->name);
out:
    return rc;
}

exf_code exf_export_tables_check(const exf_recipe *r, const exf_run_directory *dir, exf_err *err)
{
    return each_target(check_path, r, dir, NULL, err);
}

exf_code exf_export_model_check(const exf_recipe *r, const exf_model *model, exf_err *err)
{
    const exf_architecture *a = &model->arch;
    const exf_export_model m = {
        .family = model->family->name, .n_layers = a->n_layers, .n_experts = a->n_experts, .top_k = a->top_k};
    const exf_export_settings settings = {a->n_experts, a->top_k, r->export_experts, r->export_ranks, a};
    exf_code rc = check_runtime(r, m.family, a->top_k, err);
    for (size_t i = 0; rc == EXF_OK && i < r->targets.n; i++) {
        const exf_writer *w;
        rc = exf_writer_require(r->targets.item[i], &w, err);
        if (rc == EXF_OK) rc = exf_writer_check_model(w, &m, err);
        if (rc == EXF_OK) rc = exf_writer_check_settings(w, &settings, err);
    }
    return rc;
}

/* Refuses a disk that is too full for what the targets will write. */
static exf_code check_free_space(const exf_recipe *r, const exf_run_directory *dir, const exf_export *x, exf_err *err)
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

/* Finds validation.md beside the tables, and the facts of validation.json there: one that does not say that it is of these tables
 * is another's, and is not read.  *path NULL: there is none.  A run that has just made the tables (fresh) leaves out a
 * validation of others with a warning, since no validation of these could be made before. */
static exf_code find_validation(char **path, exf_provenance *facts, const char *tables, const char *digest, int fresh,
                                exf_err *err)
{
    char *directory = NULL, *json = NULL, hex[EXF_SHA256_HEX];
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
    if (!found) {
        exf_mem_free(*path);
        *path = NULL;
        goto out;
    }
    EXF_TRY(exf_path_join(&json, directory, "validation.json", err));
    EXF_TRY(exf_made_from(json, hex, err));
    if (strcmp(hex, digest) == 0) rc = exf_validation_facts_read(facts, json, err);
out:
    exf_mem_free(directory);
    exf_mem_free(json);
    return rc;
}

/* The targets that a card tells of: those of this export, and those of an earlier one whose files lie beside it. */
typedef struct {
    const char *directory, *digest; /* of the tables */
    const exf_writer **target;
    size_t n, cap;
} told_targets;

static exf_code add_target(told_targets *t, const exf_writer *w, exf_err *err)
{
    exf_code rc;
    for (size_t i = 0; i < t->n; i++)
        if (t->target[i] == w) return EXF_OK;
    EXF_TRY(exf_mem_grow(&t->target, &t->cap, t->n + 1, sizeof(const exf_writer *), "targets", err));
    t->target[t->n++] = w;
out:
    return rc;
}

/* Adds the target of a file that was made from the same tables. */
static exf_code add_beside(void *self, const exf_derived_file *f, exf_err *err)
{
    told_targets *t = self;
    const exf_writer *w = f->target ? exf_writer_find(f->target) : NULL;
    char *marked = NULL, hex[EXF_SHA256_HEX];
    exf_code rc;
    if (!w) return EXF_OK;
    EXF_TRY(exf_path_join(&marked, t->directory, f->marked, err));
    EXF_TRY(exf_made_from(marked, hex, err));
    if (strcmp(hex, t->digest) == 0) rc = add_target(t, w, err);
out:
    exf_mem_free(marked);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const exf_writer *const *)a)->name, (*(const exf_writer *const *)b)->name);
}

/* Lists them by name, so that a card does not depend on what was exported when. */
static exf_code list_targets(told_targets *t, const exf_recipe *r, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < r->targets.n; i++) EXF_TRY(add_target(t, exf_writer_find(r->targets.item[i]), err));
    EXF_TRY(exf_derived_each(t->directory, add_beside, t, err));
    if (t->n) qsort(t->target, t->n, sizeof(const exf_writer *), by_name);
out:
    return rc;
}

/* Reads the checkpoint's weights and compares them with the tables'; other: in which parts they differ, where they may. */
static exf_code check_weights(const exf_model *m, exf_text *other, const exf_recipe *r, const exf_tables *t, exf_err *err)
{
    exf_provenance own = {0};
    exf_code rc;
    EXF_TRY(exf_model_identify(m, err));
    if (r->accept != EXF_ACCEPT_OTHER_WEIGHTS) return EXF_OK;
    EXF_TRY(exf_capture_weights_facts(&own, m, err));
    EXF_TRY(exf_weights_facts_difference(other, &t->provenance, &own, err));
out:
    exf_provenance_free(&own);
    return rc;
}

exf_code exf_export_tables(const exf_recipe *r, const exf_run_directory *dir, const char *tables, const exf_solved *made,
                           int has_recipe, exf_err *err)
{
    exf_solved read = {.tables = {.n_layers = 0}};
    const exf_solved *t = made ? made : &read;
    char *validation = NULL;
    exf_provenance validated = {0};
    told_targets told = {dir->path, t->digest, NULL, 0, 0};
    exf_model *model = NULL; /* the checkpoint that the tables are of, for targets that want it */
    exf_text other = {0}; /* in which parts its weights differ from the tables', where they may */
    int wants_vectors = 0, wants_model = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < r->targets.n; i++) {
        const exf_writer *w = exf_writer_find(r->targets.item[i]);
        wants_vectors |= w && w->wants_vectors;
        wants_model |= w && w->wants_model;
    }
    if (made) {
        EXF_TRY(exf_tables_check(&made->tables, tables, err));
    } else {
        EXF_TRY(exf_tables_read(&read.tables, tables, err));
        EXF_TRY(exf_sums_check_version(&read.tables.provenance, tables, read.tables.shape.top_k, read.tables.shape.d_model, err));
        if (wants_vectors) EXF_TRY(exf_tables_read_vectors(&read.tables, tables, err));
        EXF_TRY(exf_coverage_gate(r, &read.tables, tables, err));
        EXF_TRY(exf_artifact_digest(tables, &exf_artifact_tables, read.digest, err));
    }
    EXF_TRY(check_runtime(r, exf_provenance_get(&t->tables.provenance, "model.family"), (int)t->tables.shape.top_k, err));
    EXF_TRY(exf_tell_part(&t->tables, tables, err));
    EXF_TRY(exf_mean_cosines_tell(&t->tables, tables, err));
    if (wants_model) {
        EXF_TRY(exf_recipe_check_model(r, err));
        EXF_TRY(exf_model_open(&model, r->model_path, err));
        EXF_TRY(exf_validate_check_tables(&t->tables, tables, model, r->accept == EXF_ACCEPT_OTHER_WEIGHTS, err));
    }
    EXF_TRY(list_targets(&told, r, err));
    EXF_TRY(find_validation(&validation, &validated, tables, t->digest, made != NULL, err));
    exf_export x = {
        .tables = &t->tables,
        .digest = t->digest,
        .validation = validation,
        .validated = validated.n ? &validated : NULL,
        .has_recipe = has_recipe,
        .targets = told.target,
        .n_targets = told.n,
        .base_model = r->base_model && *r->base_model ? r->base_model : NULL,
        .revision = r->revision && *r->revision ? r->revision : NULL,
        .datasets = (const char *const *)r->datasets.item,
        .n_datasets = r->datasets.n,
        .model = model,
        .keep = r->export_experts,
        .ranks = r->export_ranks,
        .bare_router = r->export_router,
        .by = (exf_pool_criterion)exf_name_place(exf_pool_criteria, EXF_POOL_CRITERIA, exf_export_criteria[r->export_by]),
    };
    EXF_TRY(each_target(check_tables, r, dir, &x, err));
    EXF_TRY(check_free_space(r, dir, &x, err));
    if (model && !made) EXF_TRY(check_weights(model, &other, r, &t->tables, err));
    x.other_weights = other.s;
    EXF_TRY(each_target(write_target, r, dir, &x, err));
out:
    exf_mem_free(validation);
    exf_provenance_free(&validated);
    exf_mem_free(told.target);
    exf_text_free(&other);
    exf_model_close(model);
    exf_tables_free(&read.tables);
    return rc;
}

/* ---- the stage ------------------------------------------------------------------------ */

/* The recipe of the tables' run, which goes with a card if it stands beside the tables. */
typedef struct {
    char *from, *to; /* to: NULL: it is not to be published */
    char tables[EXF_SHA256_HEX]; /* their digest, as it names it; "": it names none */
    int exists;      /* the output directory has it, or will */
} recipe_of_run;

/* Looks for the recipe where a target is a card.  One of other tables is left out; one of an earlier version does not name its
 * tables. */
static exf_code find_recipe(recipe_of_run *c, const exf_recipe *r, const exf_run_directory *dir, const char *tables, exf_err *err)
{
    const exf_writer *card = exf_writer_find("card");
    char *directory = NULL, *to = NULL, *theirs = c->tables, ours[EXF_SHA256_HEX];
    struct stat source, target;
    int has_card = 0, found;
    exf_code rc;
    for (size_t i = 0; i < r->targets.n; i++) has_card |= exf_writer_find(r->targets.item[i]) == card;
    if (!has_card) return EXF_OK;
    EXF_TRY(exf_path_dir(&directory, tables, err));
    EXF_TRY(exf_path_join(&c->from, directory, "exfold_recipe.yaml", err));
    EXF_TRY(exf_path_look(c->from, &found, err));
    if (!found) goto out;
    EXF_TRY(exf_made_from(c->from, theirs, err));
    if (*theirs) EXF_TRY(exf_artifact_digest(tables, &exf_artifact_tables, ours, err));
    if (*theirs && strcmp(theirs, ours) != 0) {
        exf_log_warn("%s: is of a run that made other tables than %s; it is left out", c->from, tables);
        goto out;
    }
    c->exists = 1;
    EXF_TRY(exf_path_join(&to, dir->path, "exfold_recipe.yaml", err));
    if (stat(c->from, &source) == 0 && stat(to, &target) == 0 && source.st_dev == target.st_dev && source.st_ino == target.st_ino)
        goto out; /* the same file */
    EXF_TRY(exf_output_check(to, r->force, err));
    c->to = to;
    to = NULL;
out:
    exf_mem_free(directory);
    exf_mem_free(to);
    return rc;
}

/* Writes the recipe with paths that are true where the export lies. */
static exf_code publish_recipe(const recipe_of_run *c, const exf_recipe *r, const exf_run_directory *dir, exf_err *err)
{
    exf_text text = {0}, left_out = {0};
    exf_code rc;
    if (!c->to) return EXF_OK;
    EXF_TRY(exf_recipe_publish(c->from, dir->path, c->tables, &text, &left_out, err));
    EXF_TRY(exf_write_announced(c->to, r->force, text.s, text.len, err));
    if (left_out.len) exf_log_warn("%s: names nothing that is here for %s; who runs it gives them", c->to, left_out.s);
out:
    exf_text_free(&text);
    exf_text_free(&left_out);
    return rc;
}

exf_code exf_stage_export(exf_recipe *r, exf_err *err)
{
    exf_run_directory dir = {.path = NULL};
    recipe_of_run copy = {.from = NULL};
    const exf_runtime *runtime;
    char *fallback = NULL;
    exf_code rc;
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_recipe_check_targets(r, err));
    EXF_TRY(exf_run_directory_open(&dir, r->output_directory, err));
    EXF_TRY(exf_path_join(&fallback, dir.path, "tables.h5", err));
    const char *tables = r->n_inputs ? r->inputs[0] : fallback;
    EXF_TRY(exf_export_tables_check(r, &dir, err));
    EXF_TRY(find_recipe(&copy, r, &dir, tables, err));
    EXF_TRY(exf_export_tables(r, &dir, tables, NULL, copy.exists, err));
    EXF_TRY(publish_recipe(&copy, r, &dir, err));
    fflush(stdout); /* what comes next is said after what was written: the public runtime that loads it */
    for (size_t i = 0; (runtime = exf_runtime_at(i)); i++)
        for (size_t k = 0; runtime->target && k < r->targets.n; k++)
            if (strcmp(r->targets.item[k], runtime->target) == 0)
                exf_log_info("next: %s (%s) loads %s; docs/serving.md has its command line", runtime->name, runtime->about,
                             exf_writer_find(runtime->target)->file);
out:
    exf_mem_free(fallback);
    exf_mem_free(copy.from);
    exf_mem_free(copy.to);
    exf_run_directory_close(&dir, rc != EXF_OK);
    return rc;
}

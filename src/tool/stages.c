/* stages.c - see stages.h. */
#include "tool/stages.h"

#include "accumulate/accumulate.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"
#include "capture/manifest_pin.h"
#include "export/export.h"
#include "tool/capture_output.h"
#include "tool/session.h"

#include <stdio.h>

exf_code exf_announce(const char *path, exf_err *err)
{
    char digest[EXF_SHA256_HEX], size[16];
    exf_file *f = NULL;
    exf_h5 *h = NULL;
    exf_code rc;
    EXF_TRY(exf_file_open(&f, path, err));
    if (exf_ends_with(path, ".h5")) {
        EXF_TRY(exf_h5_open(&h, path, err));
        EXF_TRY(exf_h5_digest(h, digest, err));
    } else {
        EXF_TRY(exf_hash_file(path, digest, err));
    }
    printf("wrote %s  %s  sha256 %s\n", path, exf_human_bytes(size, sizeof size, (double)exf_file_size(f)), digest);
out:
    exf_h5_close(h);
    exf_file_close(f);
    return rc;
}

/* ---- capture -------------------------------------------------------------------- */

typedef struct {
    const exf_recipe *recipe;
    const exf_session *session;
} forward_pass;

/* Logits need the layers behind the last one captured. */
static exf_code run_forward(void *self, const exf_observer *observer, exf_err *err)
{
    const forward_pass *p = self;
    return exf_session_forward(p->session, p->recipe, observer, p->recipe->logits ? 0 : p->session->layers.last + 1, err);
}

/* Refuses an output that exists before anything is planned or done. */
static exf_code check_capture_output(const exf_recipe *r, exf_err *err)
{
    exf_output_dir dir = {0};
    char *path = NULL;
    exf_code rc;
    if (r->export_path) return exf_output_check(r->export_path, r->force, err);
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_output_dir_name(&dir, r->output_directory, err));
    EXF_TRY(exf_output_dir_file(&dir, "capture.h5", &path, err));
    EXF_TRY(exf_output_check(path, r->force, err));
out:
    exf_mem_free(path);
    exf_output_dir_close(&dir, 0);
    return rc;
}

static exf_code pin_manifest(const exf_recipe *r, exf_err *err)
{
    int n;
    exf_code rc;
    if (r->dry_run) return exf_fail(err, EXF_USAGE, "--pin-manifest writes into the manifest, --dry-run writes nothing: give one of them");
    EXF_TRY(exf_recipe_check_data(r, err));
    EXF_TRY(exf_manifest_pin(r->manifest, &n, err));
    printf("pinned %d sources in %s\n", n, r->manifest);
out:
    return rc;
}

exf_code exf_stage_capture(exf_recipe *r, exf_err *err)
{
    exf_session s = {.model = NULL};
    forward_pass pass = {r, &s};
    exf_provenance p = {0};
    exf_code rc;
    if (r->pin_manifest) return pin_manifest(r, err);
    if (r->moe_inputs) return exf_stage_replay(r, err);
    if (r->logits && !r->export_path) return exf_fail(err, EXF_USAGE, "--logits goes with --export FILE: capture files hold no logits");
    EXF_TRY(check_capture_output(r, err));
    EXF_TRY(exf_session_open(&s, r, r->layers, err));
    exf_capture_job job = {r, s.model, &s.batch, &s.shape, &s.layers, run_forward, &pass};
    if (r->dry_run) {
        rc = exf_session_plan(&s, r, &(exf_demand){.lanes = 1, .head = r->logits}, exf_capture_output_bytes(&job), err);
        goto out;
    }
    EXF_TRY(exf_capture_provenance(&p, s.model, s.corpus, &s.request, s.backend, s.compute, r->layers, err));
    EXF_TRY(exf_capture_output_write(&job, &p, err));
out:
    exf_provenance_free(&p);
    exf_session_close(&s);
    return rc;
}

/* ---- accumulate, solve, export over files ------------------------------------------ */

/* The program's inputs, or NAME in the output directory when it has none. */
typedef struct {
    char *fallback;
    const char *const *path;
    size_t n;
} inputs;

static exf_code find_inputs(inputs *in, const exf_recipe *r, const exf_output_dir *dir, const char *name, exf_err *err)
{
    exf_code rc = exf_output_dir_file(dir, name, &in->fallback, err);
    in->path = r->n_inputs ? r->inputs : (const char *const *)&in->fallback;
    in->n = r->n_inputs ? r->n_inputs : 1;
    return rc;
}

static exf_code solve_file(const exf_recipe *r, const char *statistics, const char *target, exf_err *err)
{
    exf_solve_options o;
    exf_tables t = {0};
    exf_code rc;
    EXF_TRY(exf_recipe_solve_options(r, &o, err));
    EXF_TRY(exf_output_check(target, r->force, err));
    EXF_TRY(exf_solve(statistics, &o, &t, err));
    EXF_TRY(exf_tables_write(&t, target, r->force, err));
    EXF_TRY(exf_announce(target, err));
out:
    exf_tables_free(&t);
    return rc;
}

/* A stage from its inputs, or INPUT in the output directory, to OUTPUT there. */
static exf_code over_files(const exf_recipe *r, const char *input, const char *output,
                           exf_code (*step)(const exf_recipe *r, const inputs *in, const char *target, exf_err *err), exf_err *err)
{
    exf_output_dir dir = {0};
    inputs in = {0};
    char *target = NULL;
    exf_code rc;
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_output_dir_open(&dir, r->output_directory, err));
    EXF_TRY(find_inputs(&in, r, &dir, input, err));
    EXF_TRY(exf_output_dir_file(&dir, output, &target, err));
    EXF_TRY(step(r, &in, target, err));
out:
    exf_mem_free(in.fallback);
    exf_mem_free(target);
    exf_output_dir_close(&dir, rc != EXF_OK);
    return rc;
}

static exf_code accumulate_files(const exf_recipe *r, const inputs *in, const char *target, exf_err *err)
{
    exf_code rc = exf_accumulate_captures(in->path, in->n, target, r->force, (exf_weighting)r->weighting, err);
    return rc == EXF_OK ? exf_announce(target, err) : rc;
}

exf_code exf_stage_accumulate(exf_recipe *r, exf_err *err)
{
    return over_files(r, "capture.h5", "statistics.h5", accumulate_files, err);
}

static exf_code solve_first(const exf_recipe *r, const inputs *in, const char *target, exf_err *err)
{
    return solve_file(r, in->path[0], target, err);
}

exf_code exf_stage_solve(exf_recipe *r, exf_err *err)
{
    return over_files(r, "statistics.h5", "tables.h5", solve_first, err);
}

static exf_code export_one(const exf_recipe *r, const exf_output_dir *dir, const char *name, const exf_tables *t, exf_err *err)
{
    const exf_writer *w;
    char *path = NULL;
    exf_code rc;
    EXF_TRY(exf_writer_require(name, &w, err));
    EXF_TRY(exf_output_dir_file(dir, w->file, &path, err));
    EXF_TRY(w->write(t, path, r->force, err));
    EXF_TRY(exf_announce(path, err));
out:
    exf_mem_free(path);
    return rc;
}

static exf_code export_file(const exf_recipe *r, const exf_output_dir *dir, const char *tables, exf_err *err)
{
    exf_tables t;
    exf_code rc = exf_tables_read(&t, tables, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; rc == EXF_OK && i < r->targets.n; i++) rc = export_one(r, dir, r->targets.item[i], &t, err);
    exf_tables_free(&t);
    return rc;
}

exf_code exf_stage_export(exf_recipe *r, exf_err *err)
{
    exf_output_dir dir = {0};
    inputs in = {0};
    exf_code rc;
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_recipe_check_targets(r, err));
    EXF_TRY(exf_output_dir_open(&dir, r->output_directory, err));
    EXF_TRY(find_inputs(&in, r, &dir, "tables.h5", err));
    EXF_TRY(export_file(r, &dir, in.path[0], err));
out:
    exf_mem_free(in.fallback);
    exf_output_dir_close(&dir, rc != EXF_OK);
    return rc;
}

/* ---- calibrate ------------------------------------------------------------------------ */

typedef struct {
    exf_output_dir dir;
    char *statistics, *tables, *recipe;
} outputs;

/* Names the outputs and refuses, before any work, those that exist. */
static exf_code name_outputs(outputs *o, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_output_dir_name(&o->dir, r->output_directory, err));
    EXF_TRY(exf_output_dir_file(&o->dir, "statistics.h5", &o->statistics, err));
    EXF_TRY(exf_output_dir_file(&o->dir, "tables.h5", &o->tables, err));
    EXF_TRY(exf_output_dir_file(&o->dir, "exfold_recipe.yaml", &o->recipe, err));
    EXF_TRY(exf_output_check(o->statistics, r->force, err));
    EXF_TRY(exf_output_check(o->tables, r->force, err));
    EXF_TRY(exf_output_check(o->recipe, r->force, err));
    for (size_t i = 0; i < r->targets.n; i++) {
        const exf_writer *w;
        char *path = NULL;
        EXF_TRY(exf_writer_require(r->targets.item[i], &w, err));
        EXF_TRY(exf_output_dir_file(&o->dir, w->file, &path, err));
        rc = exf_output_check(path, r->force, err);
        exf_mem_free(path);
        if (rc != EXF_OK) goto out;
    }
out:
    return rc;
}

static void close_outputs(outputs *o, int failed)
{
    exf_mem_free(o->statistics);
    exf_mem_free(o->tables);
    exf_mem_free(o->recipe);
    exf_output_dir_close(&o->dir, failed);
}

static exf_code write_statistics(const exf_recipe *r, const exf_session *s, const char *target, exf_err *err)
{
    exf_accumulator *a = NULL;
    exf_provenance p = {0};
    exf_code rc;
    EXF_TRY(exf_capture_provenance(&p, s->model, s->corpus, &s->request, s->backend, s->compute, "all", err));
    EXF_TRY(exf_accumulator_new(&a, target, r->force, &s->shape, s->layers.number, s->layers.n, (exf_weighting)r->weighting, &p, err));
    EXF_TRY(exf_session_forward(s, r, exf_accumulator_observer(a), s->layers.last + 1, err));
    EXF_TRY(exf_accumulator_commit(a, err));
    EXF_TRY(exf_announce(target, err));
out:
    exf_accumulator_free(a);
    exf_provenance_free(&p);
    return rc;
}

static exf_code write_recipe(const exf_recipe *r, const char *target, exf_err *err)
{
    exf_text text = {0};
    exf_outfile *f = NULL;
    exf_code rc;
    EXF_TRY(exf_text_addf(&text, err, "# As resolved by exfold-calibrate %s.  Relative paths are relative to the recipe it came from.\n", exf_release()));
    EXF_TRY(exf_recipe_text(r, &text, err));
    EXF_TRY(exf_outfile_begin(&f, target, r->force, err));
    EXF_TRY(exf_outfile_write(f, text.s, text.len, err));
    rc = exf_outfile_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = exf_announce(target, err);
out:
    exf_outfile_abort(f);
    exf_text_free(&text);
    return rc;
}

static uint64_t calibrate_bytes(const exf_session *s)
{
    uint64_t e2 = (uint64_t)(s->shape.n_experts * s->shape.n_experts);
    return (uint64_t)s->layers.n * e2 * (5 * 32 + 8 + 2 * 24);
}

static exf_code calibrate(outputs *o, const exf_recipe *r, const exf_session *s, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_output_dir_make(&o->dir, err));
    EXF_TRY(write_statistics(r, s, o->statistics, err));
    EXF_TRY(solve_file(r, o->statistics, o->tables, err));
    EXF_TRY(export_file(r, &o->dir, o->tables, err));
    EXF_TRY(write_recipe(r, o->recipe, err));
out:
    return rc;
}

exf_code exf_stage_calibrate(exf_recipe *r, exf_err *err)
{
    exf_session s = {.model = NULL};
    exf_solve_options o;
    outputs out = {.statistics = NULL};
    exf_code rc;
    EXF_TRY(exf_recipe_solve_options(r, &o, err));
    EXF_TRY(exf_recipe_check_targets(r, err));
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_session_open(&s, r, "all", err));
    EXF_TRY(exf_recipe_check_pools(r, s.model->arch.n_experts, err));
    EXF_TRY(name_outputs(&out, r, err));
    rc = r->dry_run ? exf_session_plan(&s, r, &(exf_demand){.lanes = 1}, calibrate_bytes(&s), err) : calibrate(&out, r, &s, err);
out:
    close_outputs(&out, rc != EXF_OK);
    exf_session_close(&s);
    return rc;
}

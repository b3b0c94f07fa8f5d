/* stage_calibrate.c - the whole pipeline in one process; see stage.h. */
#include "recipe/announce.h"
#include "recipe/default_settings.h"
#include "run/stage_internal.h"
#include "recipe/run_directory.h"
#include "run/run_resume.h"
#include "run/run_shard.h"
#include "run/session.h"
#include "run/stage.h"
#include "recipe/text_inputs.h"

#include "accumulate/accumulate.h"
#include "artifact/made_from.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/version.h"

typedef struct {
    exf_run_directory dir;
    char *statistics, *tables, *recipe, *manifest;
    exf_text_inputs text; /* its manifest is one of the outputs */
    exf_provenance facts; /* of the capture stage */
    exf_resume *resume;
    exf_basis basis; /* of calibrate.basis */
    exf_overlapped_solve solving;
} outputs;

/* Opens the run's resume point: of the same model, data, options, program and device. */
static exf_code open_resume(outputs *o, exf_recipe *r, const exf_session *s, const exf_accumulate_options *options, exf_err *err)
{
    exf_provenance facts = {0};
    exf_code rc;
    EXF_TRY(exf_capture_provenance(&o->facts, s->model, s->corpus, &s->request, s->backend, s->compute, "all", err));
    EXF_TRY(exf_provenance_copy(&facts, &o->facts, err));
    EXF_TRY(exf_capture_file_facts(&facts, s->model, err));
    EXF_TRY(exf_accumulate_facts(&facts, options, err));
    if (options->basis) EXF_TRY(exf_provenance_add(&facts, err, EXF_BASIS_FACT, "%s", options->basis->digest));
    if (r->dry_run) goto out;
    if (exf_ranks_first(r->job)) EXF_TRY(exf_run_directory_make(&o->dir, err));
    EXF_TRY(exf_run_resume_open(&o->resume, r, &o->dir, &facts, r->basis_only ? "basis" : "calibrate", err));
out:
    exf_provenance_free(&facts);
    return rc;
}

/* Names the outputs and refuses, before any work, those that exist. */
static exf_code name_outputs(outputs *o, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    if (!exf_ranks_first(r->job)) return EXF_OK; /* rank 0 writes */
    EXF_TRY(exf_run_directory_file(&o->dir, r->basis_only ? "basis.h5" : "statistics.h5", &o->statistics, err));
    if (r->basis_only || r->n_shards) {
        rc = exf_output_check(o->statistics, r->force, err);
        goto out;
    }
    EXF_TRY(exf_run_directory_file(&o->dir, "tables.h5", &o->tables, err));
    EXF_TRY(exf_run_directory_file(&o->dir, "exfold_recipe.yaml", &o->recipe, err));
    EXF_TRY(exf_output_check(o->statistics, r->force, err));
    EXF_TRY(exf_output_check(o->tables, r->force, err));
    EXF_TRY(exf_output_check(o->recipe, r->force, err));
    if (o->text.path) EXF_TRY(exf_output_check(o->manifest, r->force, err));
    EXF_TRY(exf_export_tables_check(r, &o->dir, err));
out:
    return rc;
}

/* The corpus of --text, and settings where no recipe gives them. */
static exf_code take_texts(outputs *o, exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_default_settings(r, EXF_SETTINGS_OF_CALIBRATION, err));
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_name(&o->dir, r->output_directory, err));
    EXF_TRY(exf_run_directory_file(&o->dir, "manifest.yaml", &o->manifest, err));
    EXF_TRY(exf_text_inputs_make(&o->text, r, o->manifest, err));
    EXF_TRY(exf_text_inputs_use(&o->text, r, "data.manifest", err));
out:
    return rc;
}

static void close_outputs(outputs *o, int failed)
{
    exf_provenance_free(&o->facts);
    exf_text_inputs_free(&o->text);
    exf_mem_free(o->manifest);
    exf_mem_free(o->statistics);
    exf_mem_free(o->tables);
    exf_mem_free(o->recipe);
    exf_basis_close(&o->basis);
    exf_overlapped_solve_free(&o->solving);
    exf_run_directory_close(&o->dir, failed);
}

/* Runs the forward pass, and writes its statistics and solves them as layers are done. */
static exf_code write_statistics(const exf_recipe *r, const exf_session *s, outputs *out, exf_accumulate_options o,
                                 char digest[EXF_SHA256_HEX], exf_err *err)
{
    exf_accumulator *a = NULL;
    exf_sequence_list sequences = {.n = 0};
    exf_provenance late = {0};
    exf_facts_part part = {.path = r->manifest, .provenance = &out->facts, .sequences = &sequences};
    exf_accumulator_plan plan = {.target = out->statistics, .force = r->force, .shape = &s->shape, .layer_number = s->layers.number,
                                 .n_layers = s->layers.n, .parts = &part, .n_parts = 1, .options = &o, .resume = out->resume,
                                 .ranks = s->ranks, .first_row = s->first_row};
    exf_code rc;
    o.helpers = exf_forward_workers(&exf_backend_cpu, &s->part, (int)r->threads);
    EXF_TRY(exf_sequences_of_batch(&sequences, &s->batch, NULL, err));
    if (out->tables) EXF_TRY(exf_overlapped_solve_begin(&out->solving, r, &plan, err)); /* no basis or shard, and rank 0 */
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    EXF_TRY(exf_session_forward(s, r, exf_accumulator_observer(a), s->layers.last + 1, out->resume, err));
    EXF_TRY(exf_session_same_weights(s, err));
    EXF_TRY(exf_capture_weights_facts(&late, s->model, err));
    EXF_TRY(exf_accumulator_add_facts(a, &late, err));
    EXF_TRY(exf_accumulator_commit(a, digest, err));
    if (exf_ranks_first(s->ranks)) rc = exf_announce_digest(out->statistics, digest, err);
out:
    exf_accumulator_free(a);
    exf_sequence_list_free(&sequences);
    exf_provenance_free(&late);
    return rc;
}

static exf_code write_recipe(const exf_recipe *r, const char *directory, const char *target, const char *digest, exf_err *err)
{
    exf_text text = {0};
    exf_output_file *f = NULL;
    exf_code rc;
    EXF_TRY(exf_text_addf(&text, err,
                          "# As resolved by exfold-calibrate %s.  Relative paths are relative to this file.\n",
                          exf_release()));
    EXF_TRY(exf_text_addf(&text, err, "# %s: %s\n", EXF_MADE_FROM, digest));
    EXF_TRY(exf_recipe_text(r, directory, &text, err));
    EXF_TRY(exf_output_file_begin(&f, target, r->force, err));
    EXF_TRY(exf_output_file_write(f, text.s, text.len, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
    if (rc == EXF_OK) rc = exf_announce(target, err);
out:
    exf_output_file_abort(f);
    exf_text_free(&text);
    return rc;
}

/* Numbers that the recipe's projectors store for a pair with vectors. */
static uint64_t numbers_of_a_pair(const exf_session *s, const exf_recipe *r)
{
    uint64_t h = (uint64_t)s->shape.d_model, all = 0;
    for (size_t p = 0; p < r->projectors.n; p++)
        for (const exf_stored_array *a = exf_projector_find(r->projectors.item[p])->stored; a && a->name; a++) {
            if (a->shape == EXF_STORED_PAIRS) all += h;
            for (size_t i = 0; a->shape == EXF_STORED_RANKS && i < r->ranks.n; i++) all += h * (uint64_t)r->ranks.item[i];
        }
    return all;
}

/* Statistics, tables and one export. */
static uint64_t calibrate_bytes(const exf_session *s, const exf_recipe *r, const exf_accumulate_options *o)
{
    uint64_t l = (uint64_t)s->layers.n, e = (uint64_t)s->shape.n_experts, pairs = e * (e - 1);
    if (pairs > (uint64_t)r->vector_pairs) pairs = (uint64_t)r->vector_pairs;
    return l * (exf_accumulate_disk(&s->shape, o) + e * e * 2 * 28 + pairs * numbers_of_a_pair(s, r) * sizeof(float));
}

typedef struct {
    const exf_session *session;
    const exf_accumulate_options *options;
} sampled;

/* Runs a sample with an accumulator that writes no file. */
static exf_code run_sample(void *self, const exf_batch *batch, const exf_forward_options *options, exf_forward_report *report,
                           exf_err *err)
{
    const exf_session *s = ((sampled *)self)->session;
    exf_accumulator *a = NULL;
    exf_sequence_list sequences = {.n = 0};
    exf_facts_part part = {.sequences = &sequences};
    exf_run_shape shape = s->shape;
    exf_accumulator_plan plan = {.shape = &shape, .layer_number = s->layers.number, .n_layers = s->layers.n, .parts = &part,
                                 .n_parts = 1, .options = ((sampled *)self)->options};
    exf_lane lane;
    exf_code rc;
    shape.n_sequences = (int64_t)batch->n_sequences;
    shape.n_tokens = (int64_t)batch->n_tokens;
    EXF_TRY(exf_sequences_of_batch(&sequences, batch, NULL, err));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    lane = (exf_lane){.observer = exf_accumulator_observer(a)};
    rc = exf_forward(s->model, batch, &lane, 1, options, report, err);
out:
    exf_accumulator_free(a);
    exf_sequence_list_free(&sequences);
    return rc;
}

/* What a sample that writes no file does not tell of the run's time. */
static const char *not_counted(const exf_recipe *r)
{
    if (r->basis_only) return "writing the basis";
    return r->n_shards ? "writing statistics" : "writing statistics, solving, writing tables and exports";
}

static exf_code plan(const exf_session *s, const exf_recipe *r, const exf_accumulate_options *o, exf_err *err)
{
    exf_demand demand = {.lanes = 1, .common_input = o->common_input_tokens,
                         .sweeps = (o->diagonal || o->lowrank) && !o->basis_only ? 2 : 1,
                         .host_blocks = o->lowrank && !o->basis_only,
                          .observers = exf_accumulate_device_memory(s->backend, &s->shape, o)};
    int workers = exf_forward_workers(s->backend, &s->batch, (int)r->threads);
    uint64_t held = exf_accumulate_memory(&s->shape, o, workers) + exf_solver_memory(&s->shape, s->layers.n);
    sampled sample = {s, o};
    exf_session_request request = {.demand = &demand, .n_layers = s->layers.last + 1, .host = held,
                                   .reduced = exf_accumulate_disk(&s->shape, o) * (uint64_t)s->layers.n,
                                   .disk = calibrate_bytes(s, r, o),
                                   .records = (uint64_t)s->layers.n * exf_accumulate_disk(&s->shape, o),
                                   .not_counted = not_counted(r),
                                   .output = r->output_directory, .pass = run_sample,
                                   .self = &sample};
    return exf_session_plan(s, r, &request, err);
}

/* Writes the tables and all that is made from them. */
static exf_code write_tables(outputs *o, const exf_recipe *r, const char *statistics_digest, exf_err *err)
{
    exf_solved made = {.tables = {.n_layers = 0}};
    exf_code rc;
    EXF_TRY(exf_solve_file(r, o->statistics, statistics_digest, o->tables, 1, &o->solving, &made, err));
    EXF_TRY(exf_export_tables(r, &o->dir, o->tables, &made, 1, err));
    EXF_TRY(exf_text_inputs_write(&o->text, o->manifest, r->force, err));
    EXF_TRY(write_recipe(r, o->dir.path, o->recipe, made.digest, err));
    EXF_TRY(exf_coverage_gate(r, &made.worst, err));
out:
    exf_tables_free(&made.tables);
    return rc;
}

static exf_code calibrate(outputs *o, const exf_recipe *r, const exf_session *s, const exf_accumulate_options *options,
                          exf_err *err)
{
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(write_statistics(r, s, o, *options, digest, err));
    if (o->tables) rc = write_tables(o, r, digest, err); /* else they are solved from the statistics of all shards */
out:
    return rc;
}

exf_code exf_stage_calibrate(exf_recipe *r, exf_err *err)
{
    exf_session s = {.model = NULL};
    exf_accumulate_options o;
    outputs out = {.statistics = NULL};
    exf_code rc;
    EXF_TRY(exf_plan_check_json(r, err));
    EXF_TRY(exf_run_shard_begin(r, err));
    EXF_TRY(take_texts(&out, r, err));
    EXF_TRY(exf_recipe_accumulate_options(r, &o, err));
    EXF_TRY(exf_run_shard_check(r, &o, err));
    EXF_TRY(exf_recipe_open_basis(r, &out.basis, &o, err));
    EXF_TRY(exf_recipe_check_targets(r, err));
    EXF_TRY(exf_session_open(&s, r, "all", err));
    r->compute = s.compute == EXF_COMPUTE_BF16 ? EXF_COMPUTE_IS_BF16 : EXF_COMPUTE_IS_F32; /* for the resolved recipe */
    EXF_TRY(exf_recipe_check_pools(r, s.model->arch.n_experts, err));
    EXF_TRY(exf_export_model_check(r, s.model, err));
    EXF_TRY(open_resume(&out, r, &s, &o, err));
    EXF_TRY(name_outputs(&out, r, err));
    EXF_TRY(exf_session_deal(&s, r, NULL, err));
    if (!r->dry_run)
        rc = calibrate(&out, r, &s, &o, err);
    else if (exf_ranks_first(r->job))
        rc = plan(&s, r, &o, err);
out:
    (void)exf_ranks_fail(r->job, rc, err);
    rc = exf_run_resume_close(out.resume, rc, err);
    close_outputs(&out, rc != EXF_OK);
    exf_session_close(&s);
    return rc;
}

/* ---- overlapped solve -------------------------------------------------------------------------- */

static exf_code solve_layer(void *self, int i, const exf_layer_statistics *s, exf_err *err)
{
    exf_overlapped_solve *b = self;
    (void)err;
    if (b->why.code == EXF_OK) b->why.code = exf_solver_layer(b->solver, i, s, &b->why);
    return EXF_OK;
}

exf_code exf_overlapped_solve_begin(exf_overlapped_solve *b, const exf_recipe *r, exf_accumulator_plan *plan, exf_err *err)
{
    exf_solver_head head = {.path = plan->target, .shape = *plan->shape, .layer_number = plan->layer_number,
                            .n_layers = plan->n_layers, .by_sequence = 1, .has_energies = 1};
    exf_solve_options o;
    exf_code rc;
    *b = (exf_overlapped_solve){.solver = NULL};
    EXF_TRY(exf_recipe_solve_options(r, &o, err));
    if (exf_solver_reads_file(&o)) goto out;
    EXF_TRY(exf_solver_new(&b->solver, &head, &o, NULL, err));
    plan->consumer = (exf_layer_consumer){b, solve_layer};
out:
    return rc;
}

exf_code exf_overlapped_solve_end(exf_overlapped_solve *b, const char *statistics, const exf_solve_options *o, exf_tables *t,
                                  exf_err *err)
{
    exf_provenance facts = {0};
    exf_h5 *h = NULL;
    exf_code rc;
    if (b->why.code != EXF_OK) {
        *err = b->why;
        return b->why.code;
    }
    EXF_TRY(exf_artifact_open(&h, statistics, &exf_artifact_statistics, NULL, &facts, err));
    rc = exf_solver_end(b->solver, o, &facts, t, err);
out:
    exf_h5_close(h);
    exf_provenance_free(&facts);
    return rc;
}

void exf_overlapped_solve_free(exf_overlapped_solve *b)
{
    exf_solver_free(b->solver);
    b->solver = NULL;
}

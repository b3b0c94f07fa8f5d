/* stage_calibrate.c - exfold-calibrate: from recipe and model to statistics, tables and exports in one process; see stage.h. */
#include "run/stage.h"

#include "artifact/provenance.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "export/writer.h"
#include "recipe/recipe.h"
#include "run/session.h"

/* Everything that a calibration has, opened in this order. */
typedef struct {
    exf_run_directory dir;
    exf_text_inputs text;           /* of --text; its manifest is one of the outputs */
    exf_accumulate_options sums;    /* which sums are added up */
    exf_solve_options tables_by;    /* how tables are solved; borrows from the recipe */
    exf_session session;
    exf_provenance facts;           /* of what the session reads */
    exf_provenance settings;        /* by which tables are solved, kept with the statistics */
    exf_resume *resume;
    char *statistics, *tables, *recipe, *manifest; /* paths of the outputs; NULL: another rank's, or not made by this run */
    exf_demand demand;              /* what the pass requires */
    exf_solver *solving;            /* has the layers that are done; NULL: tables are solved from the file */
} calibration;

static void close_calibration(calibration *c, int failed)
{
    exf_provenance_free(&c->facts);
    exf_provenance_free(&c->settings);
    exf_text_inputs_free(&c->text);
    exf_mem_free(c->manifest);
    exf_mem_free(c->statistics);
    exf_mem_free(c->tables);
    exf_mem_free(c->recipe);
    exf_solver_free(c->solving);
    exf_run_directory_close(&c->dir, failed);
    exf_session_close(&c->session);
}

/* ---- the recipe --------------------------------------------------------------------------------- */

/* Names the output directory, that of the run's shard, and makes the corpus of --text; takes default settings where no recipe gives
 * them. */
static exf_code read_texts(calibration *c, exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_plan_check_json(r, err));
    EXF_TRY(exf_run_shard_begin(r, err));
    if (!r->ids_path) EXF_TRY(exf_default_settings(r, EXF_SETTINGS_OF_CALIBRATION, err));
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_name(&c->dir, r->output_directory, err));
    EXF_TRY(exf_path_join(&c->manifest, c->dir.path, "manifest.yaml", err));
    EXF_TRY(exf_session_check_piped(r, err));
    EXF_TRY(exf_text_inputs_make(&c->text, r, c->manifest, err));
    EXF_TRY(exf_text_inputs_use(&c->text, r, "data.manifest", err));
out:
    return rc;
}

/* Refuses a shard whose sums could not be added to the others': those for vectors or a norm head. */
static exf_code check_shard_sums(const exf_recipe *r, const exf_accumulate_options *o, exf_err *err)
{
    const char *of = o->lowrank     ? "calibrate.projectors: lowrank"
                     : o->diagonal  ? "calibrate.projectors: diagonal"
                     : o->norm_head ? "calibrate.norm_head"
                                    : NULL;
    if (!r->n_shards || !of) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "--shard: %s needs sums over what all of the data choose, so that those of shards do not add; "
                    "divide the data among ranks instead: mpirun -n %d exfold-calibrate RECIPE", of, r->n_shards);
}

/* ---- what the run will take ---------------------------------------------------------------------- */

/* Runs a sample with an accumulator that writes no file. */
static exf_code run_sample(void *self, const exf_batch *batch, const exf_forward_options *options, exf_forward_report *report,
                           exf_err *err)
{
    const calibration *c = self;
    const exf_session *s = &c->session;
    exf_accumulator *a = NULL;
    exf_sequence_list sequences = {.n = 0};
    exf_facts_part part = {.sequences = &sequences};
    exf_run_shape shape = s->shape;
    exf_accumulator_plan plan = {.shape = &shape, .layer_number = s->layers.number, .n_layers = s->layers.n, .parts = &part,
                                 .n_parts = 1, .options = &c->sums};
    exf_code rc;
    shape.n_sequences = (int64_t)batch->n_sequences;
    shape.n_tokens = (int64_t)batch->n_tokens;
    EXF_TRY(exf_sequences_of_batch(&sequences, batch, NULL, err));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    const exf_lane lane = {.observer = exf_accumulator_observer(a)};
    rc = exf_forward(s->model, batch, &lane, 1, options, report, err);
out:
    exf_accumulator_free(a);
    exf_sequence_list_free(&sequences);
    return rc;
}

/* Describes the run, of one process. */
static exf_plan plan_of(calibration *c, const exf_recipe *r)
{
    const exf_session *s = &c->session;
    const exf_accumulate_options *o = &c->sums;
    int workers = exf_forward_workers(s->backend, &s->batch, (int)r->threads), exports_vectors = 0;
    int saves = r->checkpoint_layers > 0 || r->checkpoint_seconds > 0, q = exf_head_directions(&s->shape, o);
    uint64_t l = (uint64_t)s->layers.n, sums = exf_accumulate_disk(&s->shape, o);
    uint64_t vectors = exf_accumulate_vectors_disk(&s->shape, o); /* of `sums` */
    exf_solver_bytes tables = exf_solver_bytes_of(&s->shape, s->layers.n, &c->tables_by, q, exf_vector_pairs(&s->shape, o));
    for (size_t i = 0; i < r->targets.n; i++) exports_vectors |= exf_writer_find(r->targets.item[i])->wants_vectors;
    c->demand = exf_accumulate_demand(s->backend, &s->shape, o);
    return (exf_plan){.demand = &c->demand, .n_layers = s->layers.last + 1,
                      .host = exf_accumulate_memory(&s->shape, o, workers, s->backend->gpu != NULL, 0) + tables.memory +
                              (saves ? vectors : 0), /* which the first point reads back */
                      .reduced = l * sums, .by_gpus = l * vectors, .records = l * sums,
                      .disk = l * sums + tables.file + tables.exported + (exports_vectors ? tables.vectors : 0),
                      .not_counted = r->n_shards ? "writing statistics" : "writing statistics, solving, writing tables and exports",
                      .output = r->output_directory, .pass = run_sample, .self = c};
}

/* ---- the outputs ------------------------------------------------------------------------------- */

/* Names the outputs, which rank 0 writes, and refuses, before any work, those that exist. */
static exf_code name_outputs(calibration *c, const exf_recipe *r, exf_err *err)
{
    exf_text recipe = {0};
    exf_code rc;
    if (!exf_ranks_first(r->job)) return EXF_OK;
    EXF_TRY(exf_path_join(&c->statistics, c->dir.path, "statistics.h5", err));
    if (r->n_shards) { /* tables are solved from the statistics of all shards */
        rc = exf_output_check(c->statistics, r->force, err);
        goto out;
    }
    EXF_TRY(exf_path_join(&c->tables, c->dir.path, "tables.h5", err));
    EXF_TRY(exf_path_join(&c->recipe, c->dir.path, "exfold_recipe.yaml", err));
    EXF_TRY(exf_output_check(c->statistics, r->force, err));
    EXF_TRY(exf_output_check(c->tables, r->force, err));
    EXF_TRY(exf_output_check(c->recipe, r->force, err));
    EXF_TRY(exf_recipe_text(r, c->dir.path, &recipe, err)); /* it cannot hold every name */
    if (c->text.path) EXF_TRY(exf_output_check(c->manifest, r->force, err));
    EXF_TRY(exf_export_tables_check(r, &c->dir, err));
out:
    exf_text_free(&recipe);
    return rc;
}

/* ---- the run ------------------------------------------------------------------------------------- */

/* Runs the forward pass, and writes its statistics and solves them as layers are done. */
static exf_code write_statistics(calibration *c, const exf_recipe *r, char digest[EXF_SHA256_HEX], exf_err *err)
{
    const exf_session *s = &c->session;
    exf_accumulator *a = NULL;
    exf_sequence_list sequences = {.n = 0};
    exf_provenance late = {0};
    exf_facts_part part = {.path = r->manifest, .provenance = &c->facts, .sequences = &sequences};
    exf_accumulate_options o = c->sums;
    o.settings = &c->settings;
    exf_accumulator_plan plan = {.target = c->statistics, .force = r->force, .shape = &s->shape, .layer_number = s->layers.number,
                                 .n_layers = s->layers.n, .parts = &part, .n_parts = 1, .options = &o, .resume = c->resume,
                                 .ranks = s->ranks, .own = {s->first_row, s->part.n_tokens}};
    exf_code rc;
    o.helpers = exf_forward_workers(&exf_backend_cpu, &s->part, (int)r->threads);
    EXF_TRY(exf_sequences_of_batch(&sequences, &s->batch, s->corpus, err));
    EXF_TRY(exf_solve_settings_keep(r, &c->settings, err));
    if (c->tables) EXF_TRY(exf_solve_beside(&c->solving, &c->tables_by, &plan, err));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    EXF_TRY(exf_session_forward(s, r, exf_accumulator_observer(a), s->layers.last + 1, c->resume, err));
    EXF_TRY(exf_session_same_weights(s, err));
    EXF_TRY(exf_capture_weights_facts(&late, s->model, err));
    EXF_TRY(exf_accumulator_add_facts(a, &late, err));
    EXF_TRY(exf_accumulator_commit(a, digest, err));
    if (exf_ranks_first(s->ranks)) rc = exf_announce_known(c->statistics, "digest", digest, err);
out:
    exf_accumulator_free(a);
    exf_sequence_list_free(&sequences);
    exf_provenance_free(&late);
    return rc;
}

static exf_code write_recipe(const calibration *c, const exf_recipe *r, const char *digest, exf_err *err)
{
    exf_text text = {0};
    exf_code rc;
    exf_text_appendf(&text, "# As resolved by exfold-calibrate %s.  Relative paths are relative to this file.\n", exf_release());
    exf_text_appendf(&text, "# %s: %s\n", EXF_MADE_FROM, digest);
    EXF_TRY(exf_recipe_text(r, c->dir.path, &text, err));
    EXF_TRY(exf_write_announced(c->recipe, r->force, text.s, text.len, err));
out:
    exf_text_free(&text);
    return rc;
}

/* Writes the tables and all that is made from them; of a text that is not enough no exports. */
static exf_code write_tables(calibration *c, const exf_recipe *r, const char *statistics_digest, exf_err *err)
{
    exf_solved made = {.tables = {.n_layers = 0}};
    exf_code rc;
    EXF_TRY(exf_solve_file(r, c->statistics, statistics_digest, c->tables, 1, c->solving, &made, err));
    if (made.lacks.code == EXF_OK) EXF_TRY(exf_export_tables(r, &c->dir, c->tables, &made, 1, err));
    if (c->text.path) EXF_TRY(exf_write_announced(c->manifest, r->force, c->text.manifest.s, c->text.manifest.len, err));
    EXF_TRY(write_recipe(c, r, made.digest, err));
    EXF_TRY(exf_coverage_conclude(&made, r, c->tables, err));
out:
    exf_tables_free(&made.tables);
    return rc;
}

exf_code exf_stage_calibrate(exf_recipe *r, exf_err *err)
{
    calibration c = {.statistics = NULL};
    exf_session *s = &c.session;
    const int is_first = exf_ranks_first(r->job);
    exf_plan plan;
    char digest[EXF_SHA256_HEX]; /* of the statistics */
    exf_code rc;
    EXF_TRY(read_texts(&c, r, err));
    if (r->ids_path) {
        rc = exf_session_write_ids(r, err);
        goto out;
    }
    EXF_TRY(exf_recipe_accumulate_options(r, &c.sums, err)); /* refuse settings that contradict each other, whatever the model */
    EXF_TRY(exf_recipe_solve_options(r, &c.tables_by, err));
    EXF_TRY(check_shard_sums(r, &c.sums, err));
    EXF_TRY(exf_recipe_check_targets(r, err));
    if (!r->n_shards) EXF_TRY(exf_recipe_check_measured(r, err));
    EXF_TRY(exf_session_open(s, r, "all", err));
    if (r->show_text) {
        rc = exf_session_show_text(s, r, err);
        goto out;
    }
    r->compute = s->compute == EXF_COMPUTE_BF16 ? EXF_COMPUTE_IS_BF16 : EXF_COMPUTE_IS_F32; /* for the resolved recipe */
    if (c.sums.bare_router && s->model->arch.router.renormalise) c.sums.bare_router = EXF_BARE_RENORMALISED;
    EXF_TRY(exf_recipe_check_shape(r, &s->shape, err)); /* refuse settings that the model cannot have, or no target holds */
    EXF_TRY(exf_export_model_check(r, s->model, err));
    plan = plan_of(&c, r);
    if (is_first) EXF_TRY(exf_plan_check_output(&plan, err));
    EXF_TRY(exf_session_facts(&c.facts, s, "all", err));
    if (is_first && !r->dry_run) EXF_TRY(exf_run_directory_make(&c.dir, err));
    if (!r->dry_run) {
        const exf_resume_of of = {.stage = "calibrate", .outputs = &c.facts, .model = s->model, .sums = &c.sums};
        EXF_TRY(exf_run_resume_open(&c.resume, r, &c.dir, &of, err));
    }
    EXF_TRY(name_outputs(&c, r, err));
    if (r->dry_run) {
        if (is_first) rc = exf_session_plan(s, r, &plan, err);
        goto out;
    }
    EXF_TRY(exf_session_deal(s, r, NULL, err));
    EXF_TRY(write_statistics(&c, r, digest, err));
    if (c.tables) EXF_TRY(write_tables(&c, r, digest, err));
out:
    (void)exf_ranks_fail(r->job, rc, err);
    rc = exf_run_resume_close(c.resume, rc, err);
    close_calibration(&c, rc != EXF_OK);
    return rc;
}

/* stage_calibrate.c - exfold-calibrate: from recipe and model to statistics, tables and exports in one process; see stage.h. */
#include "run/stage.h"

#include "artifact/provenance.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "export/writer.h"
#include "format/json.h"
#include "recipe/recipe.h"
#include "run/session.h"

#include <stdio.h>

/* Everything that a calibration has, opened in this order. */
typedef struct {
    exf_run_directory dir;
    exf_text_inputs text;           /* of --text; its manifest is one of the outputs */
    exf_accumulate_options options; /* of the sums */
    exf_session session;
    exf_provenance facts;           /* of what the session reads */
    exf_provenance settings;        /* by which tables are solved, kept with the statistics */
    exf_resume *resume;
    char *statistics, *tables, *recipe, *manifest; /* paths of the outputs; NULL: another rank's, or not made by this run */
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

/* ---- before the pass ------------------------------------------------------------------------ */

/* Makes the corpus of --text, and takes default settings where no recipe gives them. */
static exf_code take_texts(calibration *c, exf_recipe *r, exf_err *err)
{
    exf_code rc;
    if (!r->ids_path) EXF_TRY(exf_default_settings(r, EXF_SETTINGS_OF_CALIBRATION, err));
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_name(&c->dir, r->output_directory, err));
    EXF_TRY(exf_run_directory_file(&c->dir, "manifest.yaml", &c->manifest, err));
    EXF_TRY(exf_session_check_piped(r, err));
    EXF_TRY(exf_text_inputs_make(&c->text, r, c->manifest, err));
    EXF_TRY(exf_text_inputs_use(&c->text, r, "data.manifest", err));
out:
    return rc;
}

/* Reads how many tokens the model knows, which families write at the top of config.json or in text_config. */
static exf_code read_vocabulary(const char *model, int64_t *n, exf_err *err)
{
    exf_json *config = NULL;
    char *path = NULL;
    exf_code rc;
    EXF_TRY(exf_path_join(&path, model, "config.json", err));
    EXF_TRY(exf_json_load(&config, path, 64 << 20, err));
    const exf_json *size = exf_json_get(config, "vocab_size");
    if (!size) size = exf_json_get(exf_json_get(config, "text_config"), "vocab_size");
    *n = exf_json_int(size);
    if (*n < 1 || *n > INT32_MAX) rc = exf_fail(err, EXF_MODEL, "%s: names no vocab_size", path);
out:
    exf_json_free(config);
    exf_mem_free(path);
    return rc;
}

/* Writes the token ids of the text, as --ids asks; of the model only the tokenizer is read. */
static exf_code write_ids(const exf_recipe *r, exf_err *err)
{
    exf_provenance settings = {0};
    exf_corpus_request request = {.manifest = r->manifest, .sequences = r->sequences, .max_tokens = r->max_tokens,
                                  .min_tokens = r->min_tokens, .seed = (uint64_t)r->seed, .manifest_text = r->manifest_text,
                                  .bos = (exf_bos)r->bos};
    exf_run_directory dir = {0};
    exf_corpus *corpus = NULL;
    char *tokenizer = NULL;
    exf_code rc;
    if (!r->manifest) {
        rc = exf_fail(err, EXF_USAGE, "--ids: no text is named; give a recipe, or --model DIR --text FILE -o DIR");
        goto out;
    }
    EXF_TRY(exf_output_check(r->ids_path, r->force, err));
    EXF_TRY(read_vocabulary(r->model_path, &request.vocab, err));
    EXF_TRY(exf_tokenizer_path(&tokenizer, r->model_path, err));
    request.tokenizer = tokenizer;
    EXF_TRY(exf_corpus_load(&corpus, &request, err));
    EXF_TRY(exf_run_directory_of_file(&dir, r->ids_path, err));
    if (r->recipe_file) EXF_TRY(exf_solve_settings_keep(r, &settings, err));
    EXF_TRY(exf_capture_write_ids(r->ids_path, r->force, corpus, &request, &settings, err));
    EXF_TRY(exf_announce(r->ids_path, err));
out:
    exf_provenance_free(&settings);
    exf_corpus_free(corpus);
    exf_mem_free(tokenizer);
    exf_run_directory_close(&dir, rc != EXF_OK);
    return rc;
}

/* Prints the first samples of the text, as --show-text asks. */
static exf_code show_text(const exf_session *s, const exf_recipe *r, exf_err *err)
{
    exf_text text = {0};
    if (s->missing_data) return exf_fail(err, EXF_USAGE, "--show-text: %s is not there", s->missing_data);
    exf_code rc = exf_corpus_show(s->corpus, &s->request, r->show_text, &text, err);
    if (rc == EXF_OK && exf_ranks_first(r->job)) fputs(text.s, stdout);
    exf_text_free(&text);
    return rc;
}

/* Opens the run's resume point; a dry run has none. */
static exf_code open_point(calibration *c, exf_recipe *r, exf_err *err)
{
    const exf_resume_of of = {.stage = "calibrate", .outputs = &c->facts, .model = c->session.model,
                              .sums = &c->options};
    exf_code rc;
    EXF_TRY(exf_session_facts(&c->facts, &c->session, "all", err));
    if (r->dry_run) goto out;
    if (exf_ranks_first(r->job)) EXF_TRY(exf_run_directory_make(&c->dir, err));
    EXF_TRY(exf_run_resume_open(&c->resume, r, &c->dir, &of, err));
out:
    return rc;
}

/* Refuses, before any work, names that the resolved recipe cannot hold. */
static exf_code check_names(const calibration *c, const exf_recipe *r, exf_err *err)
{
    exf_text text = {0};
    exf_code rc = exf_recipe_text(r, c->dir.path, &text, err);
    exf_text_free(&text);
    return rc;
}

/* Names the outputs, which rank 0 writes, and refuses, before any work, those that exist. */
static exf_code name_outputs(calibration *c, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    if (!exf_ranks_first(r->job)) return EXF_OK;
    EXF_TRY(exf_run_directory_file(&c->dir, "statistics.h5", &c->statistics, err));
    if (r->n_shards) { /* tables are solved from the statistics of all shards */
        rc = exf_output_check(c->statistics, r->force, err);
        goto out;
    }
    EXF_TRY(exf_run_directory_file(&c->dir, "tables.h5", &c->tables, err));
    EXF_TRY(exf_run_directory_file(&c->dir, "exfold_recipe.yaml", &c->recipe, err));
    EXF_TRY(exf_output_check(c->statistics, r->force, err));
    EXF_TRY(exf_output_check(c->tables, r->force, err));
    EXF_TRY(exf_output_check(c->recipe, r->force, err));
    EXF_TRY(check_names(c, r, err));
    if (c->text.path) EXF_TRY(exf_output_check(c->manifest, r->force, err));
    EXF_TRY(exf_export_tables_check(r, &c->dir, err));
out:
    return rc;
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
                                 .n_parts = 1, .options = &c->options};
    exf_code rc;
    shape.n_sequences = (int64_t)batch->n_sequences;
    shape.n_tokens = (int64_t)batch->n_tokens;
    EXF_TRY(exf_sequences_of_batch(&sequences, batch, NULL, err));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    rc = exf_session_run(s, batch, exf_accumulator_observer(a), options, report, err);
out:
    exf_accumulator_free(a);
    exf_sequence_list_free(&sequences);
    return rc;
}

/* Returns the numbers that the recipe's projectors store for a pair with vectors. */
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

/* Returns 1 if one of the recipe's targets holds vectors as tables.h5 does. */
static int exports_vectors(const exf_recipe *r)
{
    int any = 0;
    for (size_t i = 0; i < r->targets.n; i++) any |= exf_writer_find(r->targets.item[i])->wants_vectors;
    return any;
}

static exf_demand demand_of(const calibration *c)
{
    const exf_accumulate_options *o = &c->options;
    int gpu = c->session.backend->gpu != NULL;
    return (exf_demand){.lanes = 1, .common_input = o->common_input_tokens, .logits = o->bare_router || (o->norm_head && !gpu),
                        .slot_logits = o->norm_head && gpu, .sweeps = exf_accumulate_sweeps(o),
                        .observers = exf_accumulate_device_memory(c->session.backend, &c->session.shape, o)};
}

/* Returns the bytes of vector sums that the first resume point reads back from the file. */
static uint64_t read_back(const exf_session *s, const exf_recipe *r, const exf_accumulate_options *o)
{
    return r->checkpoint_layers > 0 || r->checkpoint_seconds > 0 ? exf_accumulate_vectors_disk(&s->shape, o) : 0;
}

static exf_session_request request_of(calibration *c, const exf_recipe *r, const exf_demand *demand)
{
    const exf_session *s = &c->session;
    const exf_accumulate_options *o = &c->options;
    int workers = exf_forward_workers(s->backend, &s->batch, (int)r->threads);
    uint64_t l = (uint64_t)s->layers.n, e = (uint64_t)s->shape.n_experts, sums = exf_accumulate_disk(&s->shape, o);
    uint64_t vectors = exf_vector_pairs(&s->shape, o) * numbers_of_a_pair(s, r) * sizeof(float);
    int q = exf_norm_directions(o->norm_head, s->shape.d_model);
    return (exf_session_request){.demand = demand, .n_layers = s->layers.last + 1,
                                 .host = exf_accumulate_memory(&s->shape, o, workers, s->backend->gpu != NULL, s->ranks != NULL) +
                                         exf_solver_memory(&s->shape, s->layers.n, q) + l * vectors + read_back(s, r, o),
                                 .reduced = sums * l, .by_gpus = exf_accumulate_vectors_disk(&s->shape, o) * l, .records = l * sums,
                                 /* statistics, tables and one export */
                                 .disk = l * (sums + e * e * (2 * 28 + 16) + vectors * (uint64_t)(1 + exports_vectors(r))) +
                                         2 * exf_norm_head_bytes(&s->shape, s->layers.n, q),
                                 .not_counted = r->n_shards ? "writing statistics"
                                                            : "writing statistics, solving, writing tables and exports",
                                 .output = r->output_directory, .pass = run_sample, .self = c};
}

/* Checks, on the rank that writes the outputs, whether there is room for them. */
static exf_code check_room(calibration *c, const exf_recipe *r, exf_err *err)
{
    const exf_demand demand = demand_of(c);
    const exf_session_request request = request_of(c, r, &demand);
    return exf_ranks_first(r->job) ? exf_session_check_room(&request, err) : EXF_OK;
}

static exf_code plan_calibration(calibration *c, const exf_recipe *r, exf_err *err)
{
    const exf_demand demand = demand_of(c);
    const exf_session_request request = request_of(c, r, &demand);
    return exf_session_plan(&c->session, r, &request, err);
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
    exf_accumulate_options o = c->options;
    o.settings = &c->settings;
    exf_accumulator_plan plan = {.target = c->statistics, .force = r->force, .shape = &s->shape, .layer_number = s->layers.number,
                                 .n_layers = s->layers.n, .parts = &part, .n_parts = 1, .options = &o, .resume = c->resume,
                                 .ranks = s->ranks, .own = {s->first_row, s->part.n_tokens}};
    exf_code rc;
    o.helpers = exf_forward_workers(&exf_backend_cpu, &s->part, (int)r->threads);
    EXF_TRY(exf_sequences_of_batch(&sequences, &s->batch, s->corpus, err));
    EXF_TRY(exf_solve_settings_keep(r, &c->settings, err));
    if (c->tables) EXF_TRY(exf_solve_beside(&c->solving, r, &plan, err));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    EXF_TRY(exf_session_forward(s, r, exf_accumulator_observer(a), s->layers.last + 1, c->resume, err));
    EXF_TRY(exf_session_same_weights(s, err));
    EXF_TRY(exf_capture_weights_facts(&late, s->model, err));
    EXF_TRY(exf_accumulator_add_facts(a, &late, err));
    EXF_TRY(exf_accumulator_commit(a, digest, err));
    if (exf_ranks_first(s->ranks)) rc = exf_announce_digest(c->statistics, digest, err);
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
    EXF_TRY(exf_text_inputs_write(&c->text, c->manifest, r->force, err));
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
    char digest[EXF_SHA256_HEX]; /* of the statistics */
    exf_code rc;
    EXF_TRY(exf_plan_check_json(r, err));
    EXF_TRY(exf_run_shard_begin(r, err));
    EXF_TRY(take_texts(&c, r, err));
    if (r->ids_path) {
        rc = write_ids(r, err);
        goto out;
    }
    EXF_TRY(exf_recipe_accumulate_options(r, &c.options, err));
    EXF_TRY(exf_run_shard_check(r, &c.options, err));
    EXF_TRY(exf_recipe_check_targets(r, err));
    EXF_TRY(exf_session_open(s, r, "all", err));
    if (r->show_text) {
        rc = show_text(s, r, err);
        goto out;
    }
    r->compute = s->compute == EXF_COMPUTE_BF16 ? EXF_COMPUTE_IS_BF16 : EXF_COMPUTE_IS_F32; /* for the resolved recipe */
    EXF_TRY(exf_recipe_check_pairs(r, s->model->arch.top_k, err));
    EXF_TRY(exf_recipe_check_pools(r, s->model->arch.n_experts, err));
    EXF_TRY(exf_recipe_check_budgets(r, s->model->arch.n_experts, s->model->arch.top_k, err));
    c.options.bare_router += c.options.bare_router && s->model->arch.router.renormalise;
    if (!r->n_shards) EXF_TRY(exf_recipe_check_measured(r, err));
    EXF_TRY(exf_export_model_check(r, s->model, err));
    if (!r->dry_run) EXF_TRY(check_room(&c, r, err));
    EXF_TRY(open_point(&c, r, err));
    EXF_TRY(name_outputs(&c, r, err));
    EXF_TRY(exf_session_deal(s, r, NULL, err));
    if (r->dry_run) {
        if (exf_ranks_first(r->job)) rc = plan_calibration(&c, r, err);
        goto out;
    }
    EXF_TRY(write_statistics(&c, r, digest, err));
    if (c.tables) EXF_TRY(write_tables(&c, r, digest, err));
out:
    (void)exf_ranks_fail(r->job, rc, err);
    rc = exf_run_resume_close(c.resume, rc, err);
    close_calibration(&c, rc != EXF_OK);
    return rc;
}

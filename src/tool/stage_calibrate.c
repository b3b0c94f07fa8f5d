/* stage_calibrate.c - the whole pipeline in one process; see stage.h. */
#include "tool/stage.h"

#include "accumulate/accumulate.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/version.h"
#include "tool/announce.h"
#include "tool/run_directory.h"
#include "tool/session.h"
#include "tool/stage_internal.h"

typedef struct {
    exf_run_directory dir;
    char *statistics, *tables, *recipe;
} outputs;

/* Names the outputs and refuses, before any work, those that exist. */
static exf_code name_outputs(outputs *o, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_run_directory_name(&o->dir, r->output_directory, err));
    EXF_TRY(exf_run_directory_file(&o->dir, "statistics.h5", &o->statistics, err));
    EXF_TRY(exf_run_directory_file(&o->dir, "tables.h5", &o->tables, err));
    EXF_TRY(exf_run_directory_file(&o->dir, "exfold_recipe.yaml", &o->recipe, err));
    EXF_TRY(exf_output_check(o->statistics, r->force, err));
    EXF_TRY(exf_output_check(o->tables, r->force, err));
    EXF_TRY(exf_output_check(o->recipe, r->force, err));
    EXF_TRY(exf_export_tables_check(r, &o->dir, err));
out:
    return rc;
}

static void close_outputs(outputs *o, int failed)
{
    exf_mem_free(o->statistics);
    exf_mem_free(o->tables);
    exf_mem_free(o->recipe);
    exf_run_directory_close(&o->dir, failed);
}

static exf_code write_statistics(const exf_recipe *r, const exf_session *s, const char *target, exf_err *err)
{
    exf_accumulator *a = NULL;
    exf_accumulate_options o;
    exf_provenance p = {0};
    exf_sequence_list sequences = {.n = 0};
    exf_facts_part part = {.path = r->manifest, .provenance = &p, .sequences = &sequences};
    exf_accumulator_plan plan = {.target = target, .force = r->force, .shape = &s->shape, .layer_number = s->layers.number,
                                 .n_layers = s->layers.n, .parts = &part, .n_parts = 1, .options = &o};
    exf_code rc;
    EXF_TRY(exf_recipe_accumulate_options(r, &o, err));
    o.helpers = exf_forward_workers(&exf_backend_cpu, &s->batch, (int)r->threads);
    EXF_TRY(exf_capture_provenance(&p, s->model, s->corpus, &s->request, s->backend, s->compute, "all", err));
    EXF_TRY(exf_sequences_of_batch(&sequences, &s->batch, NULL, err));
    EXF_TRY(exf_accumulator_new(&a, &plan, err));
    EXF_TRY(exf_session_forward(s, r, exf_accumulator_observer(a), s->layers.last + 1, err));
    EXF_TRY(exf_accumulator_commit(a, err));
    EXF_TRY(exf_announce(target, err));
out:
    exf_accumulator_free(a);
    exf_provenance_free(&p);
    exf_sequence_list_free(&sequences);
    return rc;
}

static exf_code write_recipe(const exf_recipe *r, const char *target, exf_err *err)
{
    exf_text text = {0};
    exf_output_file *f = NULL;
    exf_code rc;
    EXF_TRY(exf_text_addf(&text, err,
                          "# As resolved by exfold-calibrate %s.  Relative paths are relative to the recipe it came from.\n",
                          exf_release()));
    EXF_TRY(exf_recipe_text(r, &text, err));
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

/* Statistics, tables and one export, before compression. */
static uint64_t calibrate_bytes(const exf_session *s, const exf_recipe *r, const exf_accumulate_options *o)
{
    uint64_t l = (uint64_t)s->layers.n, e = (uint64_t)s->shape.n_experts, pairs = e * (e - 1);
    if (pairs > (uint64_t)r->vector_pairs) pairs = (uint64_t)r->vector_pairs;
    return l * (exf_accumulate_disk(&s->shape, o) + e * e * 2 * 28 + pairs * numbers_of_a_pair(s, r) * sizeof(float));
}

/* Layers that route by token id say nothing of which experts are alike: the paper's
 * common-input calibration leaves them out. */
static void drop_hashed_layers(exf_session *s)
{
    exf_layer_choice kept = {.n = 0};
    for (int i = 0; i < s->layers.n; i++) {
        int l = s->layers.number[i];
        if (exf_model_copies(s->model, EXF_W_ROUTER_TABLE, l)) continue;
        kept.chosen[l] = 1;
        kept.number[kept.n++] = kept.last = l;
    }
    s->layers = kept;
}

static exf_code plan(const exf_session *s, const exf_recipe *r, const exf_accumulate_options *o, exf_err *err)
{
    exf_demand demand = {.lanes = 1, .common_input = o->common_input_tokens, .sweeps = o->diagonal || o->lowrank ? 2 : 1,
                         .host_blocks = o->lowrank,
                          .observers = exf_accumulate_device_memory(s->backend, &s->shape, o)};
    int workers = exf_forward_workers(s->backend, &s->batch, (int)r->threads);
    uint64_t held = exf_accumulate_memory(&s->shape, o, workers);
    return exf_session_plan(s, r, &demand, held, calibrate_bytes(s, r, o), err);
}

static exf_code calibrate(outputs *o, const exf_recipe *r, const exf_session *s, exf_err *err)
{
    exf_worst_coverage worst;
    exf_code rc;
    EXF_TRY(exf_run_directory_make(&o->dir, err));
    EXF_TRY(write_statistics(r, s, o->statistics, err));
    EXF_TRY(exf_solve_file(r, o->statistics, o->tables, &worst, err));
    EXF_TRY(exf_export_tables(r, &o->dir, o->tables, 1, err));
    EXF_TRY(write_recipe(r, o->recipe, err));
    EXF_TRY(exf_coverage_gate(r, &worst, err));
out:
    return rc;
}

exf_code exf_stage_calibrate(exf_recipe *r, exf_err *err)
{
    exf_session s = {.model = NULL};
    exf_accumulate_options o;
    outputs out = {.statistics = NULL};
    exf_code rc;
    EXF_TRY(exf_recipe_accumulate_options(r, &o, err));
    EXF_TRY(exf_recipe_check_targets(r, err));
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_session_open(&s, r, "all", err));
    if (o.common_input_tokens) drop_hashed_layers(&s);
    EXF_TRY(exf_recipe_check_pools(r, s.model->arch.n_experts, err));
    EXF_TRY(exf_export_model_check(r, s.model, err));
    EXF_TRY(name_outputs(&out, r, err));
    rc = r->dry_run ? plan(&s, r, &o, err) : calibrate(&out, r, &s, err);
out:
    close_outputs(&out, rc != EXF_OK);
    exf_session_close(&s);
    return rc;
}

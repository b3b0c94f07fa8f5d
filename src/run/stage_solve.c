/* stage_solve.c - the stages that read and write artifacts alone: accumulate (captures to statistics), merge (statistics to their
 * sum) and solve (statistics to tables).  A calibration solves here too, after the pass or while it runs; see stage.h. */
#include "run/stage.h"

#include "accumulate/accumulate.h"
#include "artifact/data.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "fold/variant.h"
#include "solve/solve.h"
#include "validate/validation.h"

#include <stdio.h>
#include <string.h>

/* ---- coverage: what the calibration did not see ------------------------------------------------- */

enum { NAMED = 8 }; /* experts that a layer's line names */

/* Reports a layer with cold experts or thin pairs in one line. */
static exf_code report_layer(const exf_tables *t, int l, const exf_layer_coverage *c, int64_t least, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts, named = 0;
    exf_text line = {0};
    if (!c->cold && !c->thin) return EXF_OK;
    exf_text_appendf(&line, "layer %d: %zu of %zu pairs observed", (int)t->layer_number[l], c->observed, c->pairs);
    if (c->thin) exf_text_appendf(&line, ", %zu left out with fewer than %lld tokens", c->thin, (long long)least);
    if (c->cold) exf_text_appendf(&line, "; %zu cold experts", c->cold);
    for (size_t i = 0; i < e && named <= NAMED; i++) {
        if (t->expert_count[(size_t)l * e + i] != 0) continue;
        if (named == NAMED)
            exf_text_appendf(&line, " ...");
        else
            exf_text_appendf(&line, "%s%zu", named ? " " : " (", i);
        named++;
    }
    if (named) exf_text_appendf(&line, ")");
    exf_code rc = exf_text_end(&line, err);
    if (rc == EXF_OK) exf_log_info("%s", line.s);
    exf_text_free(&line);
    return rc;
}

/* Reports a layer's thin pairs, a line for each source that has any. */
static exf_code report_thin_pairs(const exf_tables *t, int l, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_code rc = EXF_OK;
    for (size_t s = 0; rc == EXF_OK && s < e; s++) {
        exf_text line = {0};
        for (size_t k = 0; k < e; k++) {
            size_t at = ((size_t)l * e + s) * e + k;
            if (t->count[at] && t->loss[at] >= EXF_LOSS_NEVER)
                exf_text_appendf(&line, " %zu (%llu)", k, (unsigned long long)t->count[at]);
        }
        rc = exf_text_end(&line, err);
        if (rc == EXF_OK && line.s) exf_log_debug("layer %d: thin pairs of %zu with:%s", (int)t->layer_number[l], s, line.s);
        exf_text_free(&line);
    }
    return rc;
}

exf_code exf_coverage_gate(const exf_recipe *r, const exf_tables *t, const char *path, exf_err *err)
{
    int64_t tokens = r->coverage_tokens > r->min_pair_tokens ? r->coverage_tokens : r->min_pair_tokens;
    int one_half = exf_provenance_get(&t->provenance, EXF_HALVES_FACT) != NULL;
    const char *small = exf_provenance_get(&t->provenance, EXF_SMALL_FACT);
    exf_text why = {0};
    exf_code rc;
    EXF_TRY(exf_coverage_lacks(&why, t, one_half, (uint64_t)tokens, r->coverage_fail_below, err));
    if (why.len && r->accept != EXF_ACCEPT_SMALL_CALIBRATION)
        rc = exf_fail(err, EXF_THRESHOLD,
                      "%s: is of too little text to serve by (coverage.fail_below is %g): %s; exfold-export --accept "
                      "small-calibration takes it all the same", path, r->coverage_fail_below, why.s);
    else if (why.len || small)
        exf_log_warn("%s: small calibration: %s", path, why.len ? why.s : small);
out:
    exf_text_free(&why);
    return rc;
}

/* Says what validates tables whose model exfold-validate may not read, since another program ran it (docs/any-model.md). */
static void add_validation_in_vllm(exf_text *next, const exf_tables *t, const exf_recipe *r, const char *path)
{
    size_t stem = strlen(path) - (exf_ends_with(path, ".h5") ? strlen(".h5") : 0);
    exf_text exported = {0};
    exf_text_append(&exported, path, stem);
    exf_text_appendf(&exported, ".safetensors");
    exf_text_appendf(next, "what they are worth is told by other text in vLLM: python3 -m exfold_vllm.validate ");
    exf_text_append_word(next, r->model_path ? r->model_path : "DIR");
    exf_text_appendf(next, " IDS.safetensors P%d D%d --tables ", (int)(t->shape.top_k + 1) / 2, (int)t->shape.n_experts / 2);
    exf_text_append_word(next, exported.s ? exported.s : "");
    exf_text_appendf(next, " -o DIR --limit kl=0.05");
    if (exported.refused) next->refused = exported.refused;
    exf_text_free(&exported);
}

/* Names the command that comes next. */
static exf_code tell_next(const exf_tables *t, const exf_recipe *r, const char *path, exf_err *err)
{
    const char *program = exf_provenance_get(&t->provenance, "capture.program");
    exf_text next = {0};
    if (!exf_variant_folds((int)t->shape.n_experts, (int)t->shape.top_k)) {
        exf_text_appendf(&next, "no fold takes a model of %lld experts and %lld per token; look at the tables with: exfold-inspect "
                         "report ", (long long)t->shape.n_experts, (long long)t->shape.top_k);
        exf_text_append_word(&next, path);
        exf_text_appendf(&next, " -o report.html");
    } else if (program && strcmp(program, "exfold_record") == 0) {
        add_validation_in_vllm(&next, t, r, path);
    } else {
        exf_text_appendf(&next, "what they are worth is told by other text: exfold-validate --model ");
        exf_text_append_word(&next, r->model_path ? r->model_path : "DIR");
        exf_text_appendf(&next, " --tables ");
        exf_text_append_word(&next, path);
        exf_text_appendf(&next, " --text FILE --limit kl=0.05");
    }
    exf_code rc = exf_text_end(&next, err);
    if (rc == EXF_OK) exf_log_info("next: %s", next.s);
    exf_text_free(&next);
    return rc;
}

exf_code exf_coverage_conclude(const exf_solved *made, const exf_recipe *r, const char *path, exf_err *err)
{
    const exf_tables *t = &made->tables;
    const char *stable = exf_provenance_get(&t->provenance, EXF_STABLE_FACT);
    const char *cost = exf_provenance_get(&t->provenance, EXF_COST_FACT);
    double share, more;
    if (made->lacks.code != EXF_OK) {
        *err = made->lacks;
        return err->code;
    }
    fflush(stdout); /* the conclusion comes after what was written */
    if (!exf_provenance_get(&t->provenance, EXF_SMALL_FACT) && stable && exf_parse_f64(stable, &share) && cost &&
        exf_parse_f64(cost, &more))
        exf_log_info("the text is enough: targets that half of its %lld tokens chooses lose %.1f %% of the experts' output more "
                     "on the other half than its own (at most %.0f %%); both choose the same for %.1f %% of the traffic",
                     (long long)t->shape.n_tokens, 100 * more, 100 * EXF_CHOICE_COST, 100 * share);
    return tell_next(t, r, path, err);
}

exf_code exf_tell_part(const exf_tables *t, const char *path, exf_err *err)
{
    exf_facts_part file = {.path = path, .provenance = &t->provenance};
    exf_text part = {0};
    exf_code rc = exf_part_words(&part, &file, err);
    if (rc == EXF_OK && part.len) exf_log_warn("%s: is of a part: %s", path, part.s);
    exf_text_free(&part);
    return rc;
}

/* ---- solving while the pass runs ------------------------------------------------------------------ */

/* Solves a layer.  Where it cannot be solved the statistics are written all the same, from which exf_solve_file() solves and says
 * why. */
static exf_code solve_layer(void *self, int i, const exf_layer_statistics *s, exf_err *err)
{
    exf_solver **solver = self;
    if (!*solver || exf_solver_layer(*solver, i, s, err) == EXF_OK) return EXF_OK;
    exf_solver_free(*solver);
    *solver = NULL;
    err->code = EXF_OK;
    return EXF_OK;
}

exf_code exf_solve_beside(exf_solver **out, const exf_solve_options *o, exf_accumulator_plan *plan, exf_err *err)
{
    exf_solver_head head = {.path = plan->target, .shape = *plan->shape, .layer_number = plan->layer_number,
                            .n_layers = plan->n_layers,
                            .has = {[EXF_PART_SEQUENCES] = 1, [EXF_PART_ENERGIES] = 1, [EXF_PART_HALVES] = 1,
                                    [EXF_PART_COSINES] = 1},
                            .both_halves = exf_sequence_halves(plan->parts->sequences),
                            .norm_head = plan->options->norm_head > 0,
                            .vector_pairs = (int64_t)exf_vector_pairs(plan->shape, plan->options)};
    plan->consumer = (exf_layer_consumer){out, solve_layer};
    return exf_solver_new(out, &head, o, NULL, err);
}

/* Ends the tables that were solved while the pass ran; by now their statistics are written, and o has their digest. */
static exf_code end_tables(exf_solver *solver, const char *statistics, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_statistics_reader file = {0};
    exf_code rc;
    EXF_TRY(exf_statistics_open(&file, statistics, err));
    EXF_TRY(exf_solver_read_file(solver, &file, err));
    EXF_TRY(exf_solver_end(solver, o, &file.provenance, t, err));
    rc = exf_tables_take_sequences(t, &file.sequences, err);
out:
    exf_statistics_close(&file);
    return rc;
}

/* ---- statistics to tables ------------------------------------------------------------------------- */

/* Reads the digest of the tables at path; "" where there are none, or damaged ones, which it warns of. */
static exf_code read_old_digest(const char *path, char hex[EXF_SHA256_HEX], exf_err *err)
{
    int found;
    exf_code rc = exf_path_look(path, &found, err);
    hex[0] = 0;
    if (rc != EXF_OK || !found) return rc;
    rc = exf_artifact_digest(path, &exf_artifact_tables, hex, err);
    if (rc != EXF_FORMAT && rc != EXF_VERSION) return rc;
    exf_log_warn("%s; it is replaced, and what was made from it stays", err->msg);
    hex[0] = 0;
    return EXF_OK;
}

exf_code exf_solve_file(const exf_recipe *r, const char *statistics, const char *statistics_digest, const char *target, int exports,
                        exf_solver *solving, exf_solved *out, exf_err *err)
{
    exf_solve_options o;
    char old[EXF_SHA256_HEX], *directory = NULL;
    exf_sensitivities measured = {.kl = NULL};
    int from_file = r->sensitivities != NULL;
    exf_tables *t = &out->tables;
    exf_code rc;
    memset(t, 0, sizeof *t);
    EXF_TRY(exf_recipe_check_measured(r, err));
    EXF_TRY(exf_recipe_solve_options(r, &o, err));
    if (from_file)
        EXF_TRY(exf_sensitivities_read(&measured, r->sensitivities, exf_sensitivity_rules(&o), statistics, statistics_digest,
                                       r->accept == EXF_ACCEPT_OTHER_WEIGHTS, err));
    o.measured_kl = measured.kl;
    o.skipped_kl = measured.skipped_kl;
    o.statistics_digest = from_file ? measured.statistics_digest : statistics_digest;
    EXF_TRY(exf_output_check(target, r->force, err));
    EXF_TRY(solving ? end_tables(solving, statistics, &o, t, err) : exf_solve(statistics, &o, t, err));
    if (from_file) EXF_TRY(exf_sensitivities_record(&measured, t, err));
    for (int l = 0; l < t->n_layers; l++) {
        exf_layer_coverage c = exf_coverage_of(t, l, (uint64_t)r->coverage_tokens);
        EXF_TRY(report_layer(t, l, &c, r->min_pair_tokens, err));
        if (r->verbose) EXF_TRY(report_thin_pairs(t, l, err));
    }
    out->lacks = (exf_err){.code = EXF_OK};
    rc = exf_coverage_gate(r, t, target, err);
    if (rc != EXF_OK && rc != EXF_THRESHOLD) goto out;
    if (rc == EXF_THRESHOLD) { /* the tables are written all the same, and the caller fails after that */
        out->lacks = *err;
        *err = (exf_err){.code = EXF_OK};
    }
    EXF_TRY(read_old_digest(target, old, err));
    EXF_TRY(exf_tables_write(t, target, r->force, out->digest, err));
    EXF_TRY(exf_announce_digest(target, out->digest, err));
    EXF_TRY(exf_path_dir(&directory, target, err));
    EXF_TRY(exf_derived_drop(directory, old, out->digest, exports && out->lacks.code == EXF_OK ? &r->targets : NULL, err));
out:
    exf_mem_free(directory);
    exf_sensitivities_free(&measured);
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}

/* ---- the stages ------------------------------------------------------------------------------------- */

/* What a stage reads and writes in the output directory, which is locked. */
typedef struct {
    exf_run_directory dir;
    char *fallback, *target;
    const char *const *input; /* the program's inputs, or one in the output directory when it has none */
    size_t n_inputs;
} stage_files;

static exf_code open_files(stage_files *f, const exf_recipe *r, const char *input, const char *output, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_open(&f->dir, r->output_directory, err));
    EXF_TRY(exf_run_directory_file(&f->dir, input, &f->fallback, err));
    EXF_TRY(exf_run_directory_file(&f->dir, output, &f->target, err));
    f->input = r->n_inputs ? r->inputs : (const char *const *)&f->fallback;
    f->n_inputs = r->n_inputs ? r->n_inputs : 1;
out:
    return rc;
}

static void close_files(stage_files *f, int failed)
{
    exf_mem_free(f->fallback);
    exf_mem_free(f->target);
    exf_run_directory_close(&f->dir, failed);
}

exf_code exf_stage_accumulate(exf_recipe *r, exf_err *err)
{
    stage_files f = {.target = NULL};
    exf_provenance settings = {0};
    exf_accumulate_options o;
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(open_files(&f, r, "capture.h5", "statistics.h5", err));
    EXF_TRY(exf_recipe_accumulate_options(r, &o, err));
    o.helpers = (int)r->threads;
    if (r->recipe_file) EXF_TRY(exf_solve_settings_keep(r, &settings, err));
    o.settings = &settings;
    EXF_TRY(exf_accumulate_captures(f.input, f.n_inputs, f.target, r->force, &o, digest, err));
    EXF_TRY(exf_announce_digest(f.target, digest, err));
out:
    exf_provenance_free(&settings);
    close_files(&f, rc != EXF_OK);
    return rc;
}

exf_code exf_stage_merge(exf_recipe *r, exf_err *err)
{
    exf_run_directory dir = {0};
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    if (!r->export_path) return exf_fail(err, EXF_USAGE, "no file to write was named: give -o OUT.h5");
    EXF_TRY(exf_run_directory_of_file(&dir, r->export_path, err));
    EXF_TRY(exf_output_check(r->export_path, r->force, err));
    EXF_TRY(exf_merge_statistics(r->inputs, r->n_inputs, r->export_path, r->force, r->partial,
                                 r->accept == EXF_ACCEPT_OTHER_WEIGHTS, digest, err));
    EXF_TRY(exf_announce_digest(r->export_path, digest, err));
out:
    exf_run_directory_close(&dir, 0);
    return rc;
}

exf_code exf_stage_solve(exf_recipe *r, exf_err *err)
{
    stage_files f = {.target = NULL};
    exf_statistics_reader file = {0};
    exf_solved made = {.tables = {.n_layers = 0}};
    exf_code rc;
    EXF_TRY(open_files(&f, r, "statistics.h5", "tables.h5", err));
    if (!r->recipe_file) { /* the statistics keep settings */
        EXF_TRY(exf_statistics_open(&file, f.input[0], err));
        EXF_TRY(exf_solve_settings_take(r, &file.origin, f.input[0], err));
        exf_statistics_close(&file);
    }
    EXF_TRY(exf_solve_file(r, f.input[0], NULL, f.target, 0, NULL, &made, err));
    EXF_TRY(exf_coverage_conclude(&made, r, f.target, err));
out:
    exf_statistics_close(&file);
    exf_tables_free(&made.tables);
    close_files(&f, rc != EXF_OK);
    return rc;
}

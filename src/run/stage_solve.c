/* stage_solve.c - the stages that read and write artifacts alone: accumulate (captures to statistics), merge (statistics to their
 * sum) and solve (statistics to tables).  A calibration solves here too, after the pass or while it runs; see stage.h. */
#include "run/stage.h"

#include "accumulate/accumulate.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "solve/solve.h"
#include "validate/validation.h"

#include <string.h>

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
    EXF_TRY(exf_coverage_report(t, r, err));
    out->lacks = (exf_err){.code = EXF_OK};
    rc = exf_coverage_gate(r, t, target, err);
    if (rc != EXF_OK && rc != EXF_THRESHOLD) goto out;
    if (rc == EXF_THRESHOLD) { /* the tables are written all the same, and the caller fails after that */
        out->lacks = *err;
        *err = (exf_err){.code = EXF_OK};
    }
    EXF_TRY(read_old_digest(target, old, err));
    EXF_TRY(exf_tables_write(t, target, r->force, out->digest, err));
    EXF_TRY(exf_announce_known(target, "digest", out->digest, err));
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
    EXF_TRY(exf_path_join(&f->fallback, f->dir.path, input, err));
    EXF_TRY(exf_path_join(&f->target, f->dir.path, output, err));
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
    EXF_TRY(exf_announce_known(f.target, "digest", digest, err));
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
    EXF_TRY(exf_announce_known(r->export_path, "digest", digest, err));
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

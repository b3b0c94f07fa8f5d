/* stage.c - see stage.h. */
#include "run/stage.h"

#include "accumulate/accumulate.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/version.h"
#include "capture/manifest.h"
#include "ranks/ranks.h"
#include "run/capture_output.h"
#include "run/derived_files.h"
#include "recipe/announce.h"
#include "recipe/run_directory.h"
#include "run/run_resume.h"
#include "run/run_shard.h"
#include "run/sensitivities.h"
#include "run/session.h"
#include "run/stage_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- capture -------------------------------------------------------------------- */

typedef struct {
    const exf_recipe *recipe;
    const exf_session *session;
} forward_pass;

static exf_code drop_block(void *self, const exf_moe_block *b, exf_err *err)
{
    (void)self, (void)b, (void)err;
    return EXF_OK;
}

static exf_code drop_logits(void *self, const exf_logits_block *b, exf_err *err)
{
    (void)self, (void)b, (void)err;
    return EXF_OK;
}

/* Runs a sample of which nothing is written. */
static exf_code run_sample(void *self, const exf_batch *batch, const exf_forward_options *options, exf_forward_report *report,
                           exf_err *err)
{
    const forward_pass *p = self;
    exf_observer observer = {.block = drop_block, .logits = p->recipe->logits ? drop_logits : NULL};
    exf_lane lane = {.observer = &observer};
    return exf_forward(p->session->model, batch, &lane, 1, options, report, err);
}

static exf_code plan_capture(forward_pass *p, uint64_t disk, exf_err *err)
{
    const exf_recipe *r = p->recipe;
    const exf_session *s = p->session;
    exf_demand demand = {.lanes = 1, .head = r->logits, .host_blocks = 1};
    exf_session_request request = {.demand = &demand, .n_layers = r->logits ? s->model->arch.n_layers : s->layers.last + 1,
                                   .disk = disk, .no_resume = r->export_path != NULL,
                                   .output = r->export_path ? r->export_path : r->output_directory,
                                   .is_file = r->export_path != NULL, .not_counted = "writing the outputs",
                                   .pass = run_sample, .self = p};
    return exf_session_plan(s, r, &request, err);
}

/* Logits need the layers after the last one captured. */
static exf_code run_forward(void *self, const exf_observer *observer, exf_resume *resume, exf_err *err)
{
    const forward_pass *p = self;
    return exf_session_forward(p->session, p->recipe, observer, p->recipe->logits ? 0 : p->session->layers.last + 1, resume,
                               err);
}

/* Refuses an output that exists before anything is planned or done.  One that stands beside a resume point is looked at
 * with it (capture_output.c). */
static exf_code check_capture_output(const exf_recipe *r, exf_err *err)
{
    exf_run_directory dir = {0};
    char *path = NULL;
    int found;
    exf_code rc;
    if (r->export_path) return exf_output_check(r->export_path, r->force, err);
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_name(&dir, r->output_directory, err));
    EXF_TRY(exf_run_directory_file(&dir, "capture.h5", &path, err));
    EXF_TRY(exf_run_resume_look(r, &dir, "capture", &found, err));
    if (!found || r->dry_run) EXF_TRY(exf_output_check(path, r->force, err));
out:
    exf_mem_free(path);
    exf_run_directory_close(&dir, 0);
    return rc;
}

static exf_code pin_manifest(const exf_recipe *r, exf_err *err)
{
    exf_run_directory dir = {0};
    int n;
    exf_code rc;
    if (r->dry_run)
        return exf_fail(err, EXF_USAGE, "--pin-manifest writes into the manifest, --dry-run writes nothing: give one of them");
    EXF_TRY(exf_recipe_check_data(r, err));
    EXF_TRY(exf_run_directory_of_file(&dir, r->manifest, err));
    EXF_TRY(exf_manifest_pin(r->manifest, &n, err));
    printf("pinned %d sources in %s\n", n, r->manifest);
out:
    exf_run_directory_close(&dir, 0);
    return rc;
}

static exf_code refuse_options(const exf_recipe *r, exf_err *err)
{
    if (r->logits && !r->export_path && !r->moe_inputs)
        return exf_fail(err, EXF_USAGE, "--logits goes with --export FILE: capture files hold no logits");
    if (r->resume == EXF_RESUME_REQUIRE && (r->export_path || r->moe_inputs))
        return exf_fail(err, EXF_USAGE, "--resume=require: a run with %s saves no resume point",
                        r->export_path ? "--export" : "--moe-inputs");
    return EXF_OK;
}

/* The facts of the run's resume point: those of its output, and the state of the model's files. */
static exf_code facts_of_point(exf_provenance *facts, const exf_provenance *p, const exf_model *m, exf_err *err)
{
    exf_code rc = exf_provenance_copy(facts, p, err);
    return rc == EXF_OK ? exf_capture_file_facts(facts, m, err) : rc;
}

exf_code exf_stage_capture(exf_recipe *r, exf_err *err)
{
    exf_session s = {.model = NULL};
    forward_pass pass = {r, &s};
    exf_provenance p = {0}, facts = {0};
    exf_code rc;
    if (r->pin_manifest) return exf_ranks_first(r->job) ? pin_manifest(r, err) : EXF_OK;
    if ((rc = exf_run_shard_of_rank(r, err)) != EXF_OK) return rc;
    if ((rc = exf_plan_check_json(r, err)) != EXF_OK || (rc = refuse_options(r, err)) != EXF_OK) return rc;
    if (r->moe_inputs && r->shard_text)
        return exf_fail(err, EXF_USAGE, "--shard divides the recipe's corpus, which --moe-inputs stands for: give one of them");
    if (r->moe_inputs) return exf_stage_replay(r, err);
    EXF_TRY(exf_run_shard_begin(r, err));
    EXF_TRY(check_capture_output(r, err));
    EXF_TRY(exf_session_open(&s, r, r->layers, err));
    exf_capture_job job = {r, s.model, &s.batch, &s.shape, &s.layers, run_forward, &pass, &facts};
    if (r->dry_run) {
        if (exf_ranks_first(r->job)) rc = plan_capture(&pass, exf_capture_output_bytes(&job), err);
        goto out;
    }
    EXF_TRY(exf_session_share(&s, r, err));
    EXF_TRY(exf_capture_provenance(&p, s.model, s.corpus, &s.request, s.backend, s.compute, r->layers, err));
    EXF_TRY(facts_of_point(&facts, &p, s.model, err));
    EXF_TRY(exf_capture_output_write(&job, &p, err));
out:
    exf_provenance_free(&p);
    exf_provenance_free(&facts);
    exf_session_close(&s);
    return rc;
}

/* ---- accumulate and solve over files ------------------------------------------ */

/* The program's inputs, or NAME in the output directory when it has none. */
typedef struct {
    char *fallback;
    const char *const *path;
    size_t n;
} inputs;

static exf_code find_inputs(inputs *in, const exf_recipe *r, const exf_run_directory *dir, const char *name, exf_err *err)
{
    exf_code rc = exf_run_directory_file(dir, name, &in->fallback, err);
    in->path = r->n_inputs ? r->inputs : (const char *const *)&in->fallback;
    in->n = r->n_inputs ? r->n_inputs : 1;
    return rc;
}

/* The digest of the tables at path; "" where there are none, or damaged ones, which is said. */
static exf_code digest_before(const char *path, char hex[EXF_SHA256_HEX], exf_err *err)
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
                        exf_overlapped_solve *solving, exf_solved *out, exf_err *err)
{
    exf_solve_options o;
    char old[EXF_SHA256_HEX], *directory = NULL;
    exf_sensitivities measured = {.kl = NULL};
    exf_tables *t = &out->tables;
    exf_code rc;
    memset(t, 0, sizeof *t);
    EXF_TRY(exf_recipe_solve_options(r, &o, err));
    if (r->sensitivities) EXF_TRY(exf_sensitivities_read(&measured, r->sensitivities, statistics, statistics_digest, err));
    o.measured_kl = measured.kl;
    o.statistics_digest = measured.kl ? measured.statistics_digest : statistics_digest;
    EXF_TRY(exf_output_check(target, r->force, err));
    rc = solving && solving->solver ? exf_overlapped_solve_end(solving, statistics, &o, t, err) : exf_solve(statistics, &o, t, err);
    if (rc != EXF_OK) goto out;
    if (measured.kl) EXF_TRY(exf_sensitivities_record(&measured, t, err));
    EXF_TRY(exf_coverage_report(t, r, &out->worst, err));
    EXF_TRY(digest_before(target, old, err));
    EXF_TRY(exf_tables_write(t, target, r->force, err));
    EXF_TRY(exf_artifact_digest(target, &exf_artifact_tables, out->digest, err));
    EXF_TRY(exf_announce_digest(target, out->digest, err));
    EXF_TRY(exf_path_dir(&directory, target, err));
    EXF_TRY(exf_derived_drop(directory, old, out->digest, exports ? &r->targets : NULL, err));
out:
    exf_mem_free(directory);
    exf_sensitivities_free(&measured);
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}

/* A stage from its inputs, or INPUT in the output directory, to OUTPUT there. */
static exf_code over_files(const exf_recipe *r, const char *input, const char *output,
                           exf_code (*step)(const exf_recipe *r, const inputs *in, const char *target, exf_err *err), exf_err *err)
{
    exf_run_directory dir = {0};
    inputs in = {0};
    char *target = NULL;
    exf_code rc;
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_open(&dir, r->output_directory, err));
    EXF_TRY(find_inputs(&in, r, &dir, input, err));
    EXF_TRY(exf_run_directory_file(&dir, output, &target, err));
    EXF_TRY(step(r, &in, target, err));
out:
    exf_mem_free(in.fallback);
    exf_mem_free(target);
    exf_run_directory_close(&dir, rc != EXF_OK);
    return rc;
}

static exf_code accumulate_files(const exf_recipe *r, const inputs *in, const char *target, exf_err *err)
{
    exf_accumulate_options o;
    exf_basis basis = {.h = NULL};
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_recipe_accumulate_options(r, &o, err));
    EXF_TRY(exf_recipe_open_basis(r, &basis, &o, err));
    o.helpers = (int)r->threads;
    EXF_TRY(exf_accumulate_captures(in->path, in->n, target, r->force, &o, digest, err));
    EXF_TRY(exf_announce_digest(target, digest, err));
out:
    exf_basis_close(&basis);
    return rc;
}

exf_code exf_stage_accumulate(exf_recipe *r, exf_err *err)
{
    return over_files(r, "capture.h5", r->basis_only ? "basis.h5" : "statistics.h5", accumulate_files, err);
}

exf_code exf_stage_merge(exf_recipe *r, exf_err *err)
{
    exf_run_directory dir = {0};
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    if (!r->export_path) return exf_fail(err, EXF_USAGE, "no file to write was named: give -o OUT.h5");
    EXF_TRY(exf_run_directory_of_file(&dir, r->export_path, err));
    EXF_TRY(exf_output_check(r->export_path, r->force, err));
    EXF_TRY(exf_merge_statistics(r->inputs, r->n_inputs, r->export_path, r->force, r->partial, digest, err));
    EXF_TRY(exf_announce_digest(r->export_path, digest, err));
out:
    exf_run_directory_close(&dir, 0);
    return rc;
}

static exf_code solve_first(const exf_recipe *r, const inputs *in, const char *target, exf_err *err)
{
    exf_solved made;
    exf_code rc = exf_solve_file(r, in->path[0], NULL, target, 0, NULL, &made, err);
    if (rc != EXF_OK) return rc;
    exf_tables_free(&made.tables);
    return exf_coverage_gate(r, &made.worst, err);
}

exf_code exf_stage_solve(exf_recipe *r, exf_err *err)
{
    return over_files(r, "statistics.h5", "tables.h5", solve_first, err);
}

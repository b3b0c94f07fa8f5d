/* stage_capture.c - exfold-capture: the expert outputs of a forward pass to capture.h5 in the
 * output directory or to one --export file. */
#include "run/stage.h"

#include "base/file.h"
#include "base/mem.h"
#include "capture/capture.h"
#include "capture/manifest.h"
#include "ranks/ranks.h"
#include "run/session.h"

#include <stdio.h>

/* ---- before the pass ------------------------------------------------------------------- */

/* Writes the SHA-256 of the sources into the manifest (--pin-manifest). */
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

/* Refuses an output that exists, unless there is a resume point, whose run made it (open_point()): then *goes_on is 1. */
static exf_code check_output(const exf_recipe *r, int *goes_on, exf_err *err)
{
    exf_run_directory dir = {0};
    char *path = NULL;
    exf_code rc;
    if (r->export_path) return exf_output_check(r->export_path, r->force, err);
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_name(&dir, r->output_directory, err));
    EXF_TRY(exf_path_join(&path, dir.path, "capture.h5", err));
    EXF_TRY(exf_run_resume_look(r, &dir, "capture", goes_on, err));
    if (!*goes_on || r->dry_run) EXF_TRY(exf_output_check(path, r->force, err));
out:
    exf_mem_free(path);
    exf_run_directory_close(&dir, 0);
    return rc;
}

/* ---- what the run will take ------------------------------------------------------------- */

typedef struct {
    const exf_session *session;
    const exf_recipe *recipe;
} capture;

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

/* Runs a sample with an observer that asks for the same blocks as the run's, and drops them. */
static exf_code run_sample(void *self, const exf_batch *batch, const exf_forward_options *options, exf_forward_report *report,
                           exf_err *err)
{
    const capture *c = self;
    const exf_observer observer = {.block = drop_block, .logits = c->recipe->logits ? drop_logits : NULL};
    const exf_lane lane = {.observer = &observer};
    return exf_forward(c->session->model, batch, &lane, 1, options, report, err);
}

/* Describes the run; logits need the layers after the last one captured. */
static exf_plan plan_of(const exf_session *s, const exf_recipe *r, const exf_demand *demand)
{
    uint64_t t = (uint64_t)s->shape.n_tokens, k = (uint64_t)s->shape.top_k, h = (uint64_t)s->shape.d_model;
    uint64_t row = 8 * k + 4 * k * h + (r->export_path ? 12 * h : 0); /* bytes of a token in a layer */
    uint64_t logits = r->logits ? 4 * t * (uint64_t)s->model->arch.vocab : 0;
    return (exf_plan){.demand = demand, .n_layers = r->logits ? s->model->arch.n_layers : s->layers.last + 1,
                      .disk = t * row * (uint64_t)s->layers.n + logits, .no_resume = r->export_path != NULL,
                      .output = r->export_path ? r->export_path : r->output_directory, .is_file = r->export_path != NULL,
                      .not_counted = "writing the outputs", .pass = run_sample};
}

/* ---- the outputs --------------------------------------------------------------------------- */

static exf_code write_export(exf_session *s, const exf_recipe *r, const exf_provenance *facts, exf_err *err)
{
    exf_exporter *x = NULL;
    exf_run_directory dir = {0};
    exf_code rc;
    EXF_TRY(exf_run_directory_of_file(&dir, r->export_path, err));
    EXF_TRY(exf_exporter_new(&x, r->export_path, r->force, s->model, &s->batch, &s->layers, r->logits, facts, err));
    EXF_TRY(exf_session_forward(s, r, exf_exporter_observer(x), r->logits ? 0 : s->layers.last + 1, NULL, err));
    EXF_TRY(exf_exporter_commit(x, err));
    EXF_TRY(exf_announce(r->export_path, err));
out:
    exf_exporter_free(x);
    exf_run_directory_close(&dir, 0);
    return rc;
}

/* Opens the resume point of a run that writes path.  A run that goes on has an unfinished file; without one it was complete, and
 * was killed before it removed its point, which is removed now. */
static exf_code open_point(exf_resume **resume, const exf_session *s, exf_recipe *r, const exf_run_directory *dir, const char *path,
                           const exf_provenance *facts, exf_err *err)
{
    const exf_resume_of of = {.stage = "capture", .outputs = facts, .model = s->model};
    char *unfinished = NULL;
    int force = r->force, found, complete = 0;
    exf_code rc;
    EXF_TRY(exf_run_resume_open(resume, r, dir, &of, err));
    if (!exf_resume_start(*resume)->layers_done) goto out;
    EXF_TRY(exf_recorder_unfinished(&unfinished, path, err));
    EXF_TRY(exf_path_look(unfinished, &found, err));
    if (found) goto out;
    EXF_TRY(exf_path_look(path, &complete, err));
    if (!complete) {
        rc = exf_fail(err, EXF_FORMAT, "%s: is missing, which the resume point of %s goes on with; --resume=never starts over",
                      unfinished, r->output_directory);
        goto out;
    }
    EXF_TRY(exf_resume_remove(*resume, err));
    exf_resume_free(*resume);
    *resume = NULL;
    r->force = force;
    EXF_TRY(exf_run_resume_open(resume, r, dir, &of, err));
out:
    exf_mem_free(unfinished);
    return rc;
}

/* After a failure nothing is left but a resume point, and the unfinished file that goes with it. */
static exf_code write_capture(exf_session *s, exf_recipe *r, const exf_provenance *facts, exf_err *err)
{
    exf_recorder *rec = NULL;
    exf_run_directory dir = {0};
    char *path = NULL;
    exf_sequence_list sequences = {.n = 0};
    exf_provenance late = {0};
    exf_resume *resume = NULL;
    exf_code rc;
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_sequences_of_batch(&sequences, &s->batch, s->corpus, err));
    EXF_TRY(exf_run_directory_open(&dir, r->output_directory, err));
    EXF_TRY(exf_path_join(&path, dir.path, "capture.h5", err));
    EXF_TRY(open_point(&resume, s, r, &dir, path, facts, err));
    EXF_TRY(exf_recorder_new(&rec, path, r->force, &s->shape, &s->layers, &sequences, facts, resume, err));
    EXF_TRY(exf_session_forward(s, r, exf_recorder_observer(rec), s->layers.last + 1, resume, err));
    EXF_TRY(exf_capture_weights_facts(&late, s->model, err));
    EXF_TRY(exf_recorder_commit(rec, &late, err));
    EXF_TRY(exf_announce(path, err));
out:
    exf_recorder_free(rec);
    rc = exf_run_resume_close(resume, rc, err);
    exf_provenance_free(&late);
    exf_sequence_list_free(&sequences);
    exf_mem_free(path);
    exf_run_directory_close(&dir, rc != EXF_OK);
    return rc;
}

exf_code exf_stage_capture(exf_recipe *r, exf_err *err)
{
    exf_session s = {.model = NULL};
    const exf_demand demand = {.lanes = 1, .head = r->logits, .host_blocks = 1};
    exf_plan plan;
    int goes_on = 0;
    exf_provenance facts = {0};
    exf_code rc;
    if (r->pin_manifest) return exf_ranks_first(r->job) ? pin_manifest(r, err) : EXF_OK;
    EXF_TRY(exf_run_shard_of_rank(r, err));
    EXF_TRY(exf_plan_check_json(r, err));
    if (r->logits && !r->export_path)
        return exf_fail(err, EXF_USAGE, "--logits goes with --export FILE: capture files hold no logits");
    if (r->resume == EXF_RESUME_REQUIRE && r->export_path)
        return exf_fail(err, EXF_USAGE, "--resume=require: a run with --export saves no resume point");
    EXF_TRY(exf_run_shard_begin(r, err));
    EXF_TRY(check_output(r, &goes_on, err));
    EXF_TRY(exf_session_open(&s, r, r->layers, err));
    plan = plan_of(&s, r, &demand);
    plan.self = &(capture){&s, r};
    if (r->dry_run) {
        if (exf_ranks_first(r->job)) rc = exf_session_plan(&s, r, &plan, err);
        goto out;
    }
    if (!goes_on) EXF_TRY(exf_plan_check_output(&plan, err)); /* else some of the outputs are there already */
    EXF_TRY(exf_session_share(&s, r, err));
    EXF_TRY(exf_session_facts(&facts, &s, r->layers, err));
    rc = r->export_path ? write_export(&s, r, &facts, err) : write_capture(&s, r, &facts, err);
out:
    exf_provenance_free(&facts);
    exf_session_close(&s);
    return rc;
}

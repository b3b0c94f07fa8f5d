/* stage_replay.c - the capture stage on recorded hidden states; see stage.h. */
#include "run/stage.h"

#include "base/log.h"
#include "capture/capture.h"
#include "pass/forward.h"
#include "run/capture_output.h"
#include "run/session.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    const exf_recipe *r;
    exf_model *model;
    exf_moe_inputs *inputs;
    exf_layer_choice layers;
    exf_run_shape shape;
    const exf_backend *backend;
    exf_compute compute;
} replay_session;

static exf_code open_session(replay_session *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    s->r = r;
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_choose_backend(&s->backend, &s->compute, r, err));
    EXF_TRY(exf_model_open_part(&s->model, r->model_path, EXF_MODEL_EXPERTS, err));
    EXF_TRY(exf_choose_io(s->model, r, err));
    exf_report_model(s->model);
    EXF_TRY(exf_moe_inputs_open(&s->inputs, r->moe_inputs, s->model, r->layers, &s->layers, err));
    const exf_batch *b = exf_moe_inputs_batch(s->inputs);
    const exf_architecture *a = &s->model->arch;
    s->shape = (exf_run_shape){a->n_experts, a->top_k, a->d_model, (int64_t)b->n_sequences, (int64_t)b->n_tokens};
    exf_log_info("recorded: %zu tokens in %zu sequences, %d of %d MoE layers", b->n_tokens, b->n_sequences, s->layers.n,
                 a->n_moe_layers);
out:
    return rc;
}

static exf_forward_options options_of(const replay_session *s)
{
    const exf_recipe *r = s->r;
    return (exf_forward_options){.backend = s->backend, .compute = s->compute, .threads = (int)r->threads,
                                 .readers = (int)r->readers,
                                 .max_device_memory = r->max_gpu_memory};
}

static exf_code run(void *self, const exf_observer *observer, exf_resume *resume, exf_err *err)
{
    (void)resume;
    const replay_session *s = self;
    exf_forward_report report;
    exf_forward_options options = options_of(s);
    const exf_batch *b = exf_moe_inputs_batch(s->inputs);
    exf_code rc = exf_replay(s->model, b, exf_moe_inputs_recorded(s->inputs), observer, &options, &report, err);
    if (rc == EXF_OK) exf_report_times(s->r, b->n_tokens, &report);
    return rc;
}

/* An observer that reads blocks in host memory, as the outputs of a replay do. */
static exf_code reads_blocks(void *self, const exf_moe_block *b, exf_err *err)
{
    (void)self;
    (void)b;
    (void)err;
    return EXF_OK;
}

/* Replays the first rows of the first layer. */
static exf_code run_sample(void *self, const exf_batch *batch, const exf_forward_options *options, exf_forward_report *report,
                           exf_err *err)
{
    const replay_session *s = self;
    exf_recorded first = *exf_moe_inputs_recorded(s->inputs);
    exf_observer observer = {.block = reads_blocks};
    memset(first.has_input, 0, sizeof first.has_input);
    first.has_input[s->layers.number[0]] = 1;
    return exf_replay(s->model, batch, &first, &observer, options, report, err);
}

static exf_code plan(replay_session *s, uint64_t disk, exf_err *err)
{
    const exf_batch *b = exf_moe_inputs_batch(s->inputs);
    const exf_recorded *recorded = exf_moe_inputs_recorded(s->inputs);
    exf_observer observer = {.block = reads_blocks};
    char note[64];
    exf_plan p = {.model = s->model, .batch = b, .options = options_of(s),
                  .workers = exf_replay_workers(s->backend, b, (int)s->r->threads),
                  .flops = exf_replay_flops(&s->model->arch, b, s->layers.n),
                  .work = exf_work_of_replay(s->model, b, recorded->has_input), .disk = disk,
                  .output = s->r->export_path ? s->r->export_path : s->r->output_directory,
                  .is_file = s->r->export_path != NULL, .note = note, .not_counted = "writing the outputs"};
    exf_code rc;
    snprintf(note, sizeof note, ", %d layers recorded", s->layers.n);
    for (int i = 0; i < s->layers.n; i++) p.weight_bytes += exf_model_layer_bytes(s->model, s->layers.number[i]);
    EXF_TRY(exf_plan_check_output(&p, err));
    EXF_TRY(exf_replay_memory(&p.held, &p.options, s->model, b, recorded, &observer, err));
    EXF_TRY(exf_plan_measure(&p, run_sample, s, err));
    rc = exf_plan_tell(&p, s->r, err);
out:
    return rc;
}

exf_code exf_stage_replay(exf_recipe *r, exf_err *err)
{
    replay_session s = {.model = NULL};
    exf_provenance p = {0};
    exf_code rc;
    if (r->logits) return exf_fail(err, EXF_USAGE, "--logits needs a whole forward pass: it does not go with --moe-inputs");
    EXF_TRY(open_session(&s, r, err));
    exf_capture_job job = {r, s.model, exf_moe_inputs_batch(s.inputs), &s.shape, &s.layers, run, &s, NULL};
    if (r->dry_run) {
        rc = plan(&s, exf_capture_output_bytes(&job), err);
        goto out;
    }
    EXF_TRY(exf_moe_inputs_provenance(&p, s.inputs, s.backend, s.compute, r->layers, err));
    rc = exf_capture_output_write(&job, &p, err);
out:
    exf_provenance_free(&p);
    exf_moe_inputs_free(s.inputs);
    exf_model_close(s.model);
    return rc;
}

/* stage_replay.c - the capture stage on recorded hidden states; see stage.h. */
#include "tool/stage.h"

#include "base/log.h"
#include "capture/moe_inputs.h"
#include "kernels/linear/gemm_rate.h"
#include "tool/capture_output.h"
#include "tool/session.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    const exf_recipe *r;
    exf_model *model;
    exf_moe_inputs *inputs;
    exf_layer_choice layers;
    exf_run_shape shape;
} replay_session;

static exf_code open_session(replay_session *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    s->r = r;
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_model_open_part(&s->model, r->model_path, EXF_MODEL_EXPERTS, err));
    EXF_TRY(exf_choose_io(s->model, r, err));
    exf_report_model(s->model);
    EXF_TRY(exf_moe_inputs_open(&s->inputs, r->moe_inputs, s->model, r->layers, &s->layers, err));
    const exf_batch *b = exf_moe_inputs_batch(s->inputs);
    const exf_architecture *a = &s->model->arch;
    s->shape = (exf_run_shape){a->n_experts, a->top_k, a->d_model, (int64_t)b->n_sequences, (int64_t)b->n_tokens};
    exf_log_info("recorded: %zu tokens in %zu sequences, %d of %d MoE layers", b->n_tokens, b->n_sequences, s->layers.n, a->n_moe_layers);
out:
    return rc;
}

static exf_code run(void *self, const exf_observer *observer, exf_err *err)
{
    const replay_session *s = self;
    exf_forward_report report;
    const exf_batch *b = exf_moe_inputs_batch(s->inputs);
    exf_code rc = exf_replay(s->model, b, exf_moe_inputs_recorded(s->inputs), observer, (int)s->r->threads, &report, err);
    if (rc == EXF_OK) exf_report_times(s->r, b->n_tokens, &report);
    return rc;
}

static exf_code plan(const replay_session *s, uint64_t disk, exf_err *err)
{
    char text[16];
    const exf_batch *b = exf_moe_inputs_batch(s->inputs);
    int workers = exf_replay_workers(b, (int)s->r->threads);
    double flops = exf_replay_flops(&s->model->arch, b, s->layers.n), rate = 0;
    uint64_t bytes = 0;
    exf_code rc = exf_gemm_rate(&exf_backend_cpu, EXF_COMPUTE_F32, &rate, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < s->layers.n; i++) bytes += exf_model_layer_bytes(s->model, s->layers.number[i]);
    printf("tokens     %zu in %zu sequences of at most %d, %d layers recorded\n", b->n_tokens, b->n_sequences, b->max_tokens, s->layers.n);
    printf("weights    %s (%" PRIu64 " bytes) of routers and experts, each byte read once\n", exf_human_bytes(text, sizeof text, (double)bytes), bytes);
    printf("compute    %.3g GFLOP on %d threads of %.0f GFLOP/s (measured now)\n", flops / 1e9, workers, rate / 1e9);
    printf("time       at least %s\n", exf_human_seconds(text, sizeof text, flops / (rate * workers)));
    printf("RAM        about %s\n", exf_human_bytes(text, sizeof text, (double)(exf_replay_memory(s->model, b, (int)s->r->threads) + exf_peak_rss())));
    printf("GPU        none: backend cpu\n");
    printf("disk       about %s\n", exf_human_bytes(text, sizeof text, (double)disk));
    return EXF_OK;
}

exf_code exf_stage_replay(exf_recipe *r, exf_err *err)
{
    replay_session s = {.model = NULL};
    exf_provenance p = {0};
    exf_code rc;
    if (r->backend == EXF_BACKEND_CUDA || r->compute != EXF_COMPUTE_F32)
        return exf_fail(err, EXF_DEVICE, "--moe-inputs: recorded hidden states are replayed on the cpu in f32 only");
    if (r->logits) return exf_fail(err, EXF_USAGE, "--logits needs a whole forward pass: it does not go with --moe-inputs");
    EXF_TRY(open_session(&s, r, err));
    exf_capture_job job = {r, s.model, exf_moe_inputs_batch(s.inputs), &s.shape, &s.layers, run, &s};
    if (r->dry_run) {
        rc = plan(&s, exf_capture_output_bytes(&job), err);
        goto out;
    }
    EXF_TRY(exf_moe_inputs_provenance(&p, s.inputs, r->layers, err));
    rc = exf_capture_output_write(&job, &p, err);
out:
    exf_provenance_free(&p);
    exf_moe_inputs_free(s.inputs);
    exf_model_close(s.model);
    return rc;
}

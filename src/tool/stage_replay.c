/* stage_replay.c - the capture stage on recorded hidden states; see stage.h. */
#include "tool/stage.h"

#include "base/log.h"
#include "capture/moe_inputs.h"
#include "forward/replay.h"
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

static exf_code run(void *self, const exf_observer *observer, exf_err *err)
{
    const replay_session *s = self;
    exf_forward_report report;
    exf_forward_options options = options_of(s);
    const exf_batch *b = exf_moe_inputs_batch(s->inputs);
    exf_code rc = exf_replay(s->model, b, exf_moe_inputs_recorded(s->inputs), observer, &options, &report, err);
    if (rc == EXF_OK) exf_report_times(s->r, b->n_tokens, &report);
    return rc;
}

static void print_memory(const replay_session *s, const exf_forward_footprint *held)
{
    char text[16];
    printf("RAM        about %s\n", exf_human_bytes(text, sizeof text, (double)(held->host + exf_peak_rss())));
    if (!s->backend->gpu)
        printf("GPU        none: backend %s\n", s->backend->name);
    else
        printf("GPU        about %s on %s\n", exf_human_bytes(text, sizeof text, (double)held->device), s->backend->device());
}

/* An observer that reads blocks in host memory, as the outputs of a replay do. */
static exf_code reads_blocks(void *self, const exf_moe_block *b, exf_err *err)
{
    (void)self;
    (void)b;
    (void)err;
    return EXF_OK;
}

static exf_code plan(const replay_session *s, uint64_t disk, exf_err *err)
{
    char text[16];
    const exf_batch *b = exf_moe_inputs_batch(s->inputs);
    exf_forward_options options = options_of(s);
    exf_forward_footprint held;
    exf_observer observer = {.block = reads_blocks};
    int workers = exf_replay_workers(s->backend, b, (int)s->r->threads);
    double flops = exf_replay_flops(&s->model->arch, b, s->layers.n), rate = 0;
    uint64_t bytes = 0;
    exf_code rc;
    EXF_TRY(exf_replay_memory(&held, &options, s->model, b, exf_moe_inputs_recorded(s->inputs), &observer, err));
    EXF_TRY(exf_gemm_rate(s->backend, s->compute, &rate, err));
    for (int i = 0; i < s->layers.n; i++) bytes += exf_model_layer_bytes(s->model, s->layers.number[i]);
    printf("tokens     %zu in %zu sequences of at most %d, %d layers recorded\n", b->n_tokens, b->n_sequences, b->max_tokens,
           s->layers.n);
    printf("weights    %s (%" PRIu64 " bytes) of routers and experts, each byte read once\n",
           exf_human_bytes(text, sizeof text, (double)bytes), bytes);
    printf("compute    %.3g GFLOP on %d %s of %.0f GFLOP/s (measured now)\n", flops / 1e9, workers,
           !s->backend->gpu ? "threads" : "GPU", rate / 1e9);
    printf("time       at least %s\n", exf_human_seconds(text, sizeof text, flops / (rate * workers)));
    print_memory(s, &held);
    printf("disk       about %s\n", exf_human_bytes(text, sizeof text, (double)disk));
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
    exf_capture_job job = {r, s.model, exf_moe_inputs_batch(s.inputs), &s.shape, &s.layers, run, &s};
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

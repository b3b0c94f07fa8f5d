/* session.c - see session.h. */
#include "tool/session.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/linear/gemm_rate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void report_corpus(const exf_corpus *c)
{
    for (size_t i = 0; i < c->n_domains; i++) {
        const exf_domain *d = &c->domains[i];
        exf_log_info("domain %s: %" PRIu64 " sequences, %" PRIu64 " tokens kept; %" PRIu64 " sequences, %" PRIu64 " tokens dropped",
                     d->name, d->sequences_kept, d->tokens_kept, d->sequences_dropped, d->tokens_dropped);
    }
    if (c->n_domains && c->n_unpinned)
        exf_log_warn("%d of %zu sources have no sha256: the run cannot be told from one on changed data", c->n_unpinned,
                     c->n_sources);
}

void exf_report_model(const exf_model *m)
{
    char bytes[16];
    const exf_architecture *a = &m->arch;
    exf_log_info("model %s: %d layers (%d MoE), %d experts, top-%d, hidden %d, %s of weights", m->family->name, a->n_layers,
                 a->n_moe_layers, a->n_experts, a->top_k, a->d_model,
                 exf_human_bytes(bytes, sizeof bytes, (double)exf_model_bytes(m)));
}

exf_code exf_choose_backend(const exf_backend **backend, exf_compute *compute, const exf_recipe *r, exf_err *err)
{
    exf_err why_not = {.code = EXF_OK};
    const exf_backend *b = r->backend == EXF_BACKEND_CPU ? &exf_backend_cpu : exf_backend_cuda(&why_not);
    *compute = (exf_compute)r->compute;
    if (!b && r->backend == EXF_BACKEND_CUDA) return exf_fail(err, EXF_DEVICE, "runtime.backend: cuda: %s", why_not.msg);
    *backend = b = b ? b : &exf_backend_cpu;
    if (*compute == EXF_COMPUTE_BF16 && b == &exf_backend_cpu)
        return exf_fail(err, EXF_DEVICE, "runtime.compute: bf16: the cpu backend computes in f32 only");
    exf_log_info("backend: %s (%s)%s%s", b->name, b->device(), why_not.code == EXF_OK ? "" : "; ", why_not.msg);
    return EXF_OK;
}

exf_code exf_choose_io(exf_model *m, const exf_recipe *r, exf_err *err)
{
    exf_code rc = exf_checkpoint_use(m->checkpoint, (exf_io)r->io, err);
    if (rc != EXF_OK) exf_err_prefix(err, "runtime.io: ");
    return rc;
}

static exf_code open_model(exf_session *s, const exf_recipe *r, exf_err *err)
{
    int config_only = r->dry_run && !exf_checkpoint_present(r->model_path);
    exf_code rc;
    EXF_TRY(exf_model_open_part(&s->model, r->model_path, config_only ? EXF_MODEL_CONFIG : EXF_MODEL_ALL, err));
    EXF_TRY(exf_choose_io(s->model, r, err));
    exf_report_model(s->model);
out:
    return rc;
}

static exf_code load_corpus(exf_session *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_path_join(&s->tokenizer_path, r->model_path, "tokenizer.json", err));
    s->request = (exf_corpus_request){r->manifest,       r->sequences,         r->max_tokens,    r->min_tokens,
                                      (uint64_t)r->seed, s->model->arch.vocab, s->tokenizer_path};
    EXF_TRY(r->dry_run ? exf_corpus_plan(&s->corpus, &s->request, &s->missing_data, err)
                       : exf_corpus_load(&s->corpus, &s->request, err));
    report_corpus(s->corpus);
out:
    return rc;
}

exf_code exf_session_open(exf_session *s, const exf_recipe *r, const char *layers, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_recipe_check_data(r, err));
    EXF_TRY(exf_choose_backend(&s->backend, &s->compute, r, err));
    EXF_TRY(open_model(s, r, err));
    EXF_TRY(exf_layer_choice_parse(&s->layers, layers, &s->model->arch, err));
    EXF_TRY(load_corpus(s, r, err));
    EXF_TRY(exf_batch_of_corpus(&s->batch, s->corpus, err));
    exf_run_shape_of(&s->shape, s->model, s->corpus);
out:
    return rc;
}

void exf_session_close(exf_session *s)
{
    exf_mem_free((void *)(uintptr_t)s->batch.span);
    exf_corpus_free(s->corpus);
    exf_model_close(s->model);
    exf_mem_free(s->tokenizer_path);
    exf_mem_free(s->missing_data);
    memset(s, 0, sizeof *s);
}

static void print_gpu(const exf_session *s, const exf_forward_footprint *held)
{
    char b[16];
    printf("GPU        about %s on %s; hidden states in ", exf_human_bytes(b, sizeof b, (double)held->device),
           s->backend->device());
    if (held->window)
        printf("pinned RAM, at most %zu tokens of them on the GPU\n", held->window);
    else
        printf("its memory\n");
}

exf_code exf_session_plan(const exf_session *s, const exf_recipe *r, const exf_demand *d, uint64_t host, uint64_t disk,
                          exf_err *err)
{
    char a[16], b[16], c[16];
    double flops = exf_forward_demand_flops(&s->model->arch, &s->batch, d), rate = 0;
    exf_forward_options options = exf_session_options(s, r, 0);
    exf_forward_footprint held;
    exf_code rc;
    EXF_TRY(exf_forward_memory(&held, &options, s->model, &s->batch, d, err));
    EXF_TRY(exf_gemm_rate(s->backend, s->compute, &rate, err));
    int workers = exf_forward_workers(s->backend, &s->batch, (int)r->threads);
    uint64_t bytes = exf_model_bytes(s->model);
    printf("tokens     %" PRIu64 " in %zu sequences of at most %d", s->corpus->n_tokens, s->corpus->n_sequences,
           (int)s->corpus->max_tokens);
    if (s->missing_data) printf(", assumed: %s is not there", s->missing_data);
    printf("\n");
    printf("weights    %s (%" PRIu64 " bytes), each byte read once", exf_human_bytes(a, sizeof a, (double)bytes), bytes);
    if (held.reads > 1) printf(", but routed experts %d times: a layer's do not fit the GPU at once", held.reads);
    printf("%s\n", s->model->part == EXF_MODEL_CONFIG ? "; counted from config.json: no weights are there" : "");
    printf("compute    %.3g GFLOP on %d %s of %.0f GFLOP/s (measured now)\n", flops / 1e9, workers,
           !s->backend->gpu ? "threads" : "GPU", rate / 1e9);
    printf("time       at least %s\n", exf_human_seconds(b, sizeof b, flops / (rate * workers)));
    printf("RAM        about %s\n", exf_human_bytes(b, sizeof b, (double)(exf_peak_rss() + host + held.host)));
    if (!s->backend->gpu)
        printf("GPU        none: backend %s\n", s->backend->name);
    else
        print_gpu(s, &held);
    printf("disk       about %s\n", exf_human_bytes(c, sizeof c, (double)disk));
out:
    return rc;
}

void exf_report_times(const exf_recipe *r, uint64_t n_tokens, const exf_forward_report *t)
{
    double work = t->mixer + t->router + t->experts + t->observe + t->head;
    double all = t->read + t->embed + work / t->workers;
    char peak[16], bytes[16];
    if (r->progress == EXF_PROGRESS_JSON) {
        exf_log_event("{\"event\":\"forward\",\"tokens\":%" PRIu64
                      ",\"seconds\":%.4f,\"workers\":%d,\"read\":%.4f,\"embed\":%.4f,\"mixer\":%.4f,"
                      "\"router\":%.4f,\"experts\":%.4f,\"observe\":%.4f,\"head\":%.4f,\"weight_bytes\":%" PRIu64
                      ",\"peak_rss_bytes\":%" PRIu64 "}",
                      n_tokens, t->wall, t->workers, t->read, t->embed, t->mixer / t->workers, t->router / t->workers,
                      t->experts / t->workers, t->observe / t->workers, t->head / t->workers, t->weight_bytes, exf_peak_rss());
        return;
    }
    if (all <= 0) return;
    exf_log_info("forward: %" PRIu64 " tokens in %.2f s, %.0f tokens/s on %d threads; %s read; peak memory %s", n_tokens, t->wall,
                 (double)n_tokens / t->wall, t->workers, exf_human_bytes(bytes, sizeof bytes, (double)t->weight_bytes),
                 exf_human_bytes(peak, sizeof peak, (double)exf_peak_rss()));
    exf_log_info("share: read %.0f %%, mixer %.0f %%, router %.0f %%, experts %.0f %%, observe %.0f %%, head %.0f %%",
                 100 * (t->read + t->embed) / all, 100 * t->mixer / t->workers / all, 100 * t->router / t->workers / all,
                 100 * t->experts / t->workers / all, 100 * t->observe / t->workers / all, 100 * t->head / t->workers / all);
}

exf_forward_options exf_session_options(const exf_session *s, const exf_recipe *r, int n_layers)
{
    return (exf_forward_options){.backend = s->backend, .compute = s->compute, .threads = (int)r->threads, .n_layers = n_layers,
                                 .readers = (int)r->readers, .mixer_queues = (int)r->streams,
                                 .max_device_memory = r->max_gpu_memory};
}

exf_code exf_session_forward(const exf_session *s, const exf_recipe *r, const exf_observer *observer, int n_layers, exf_err *err)
{
    exf_forward_options options = exf_session_options(s, r, n_layers);
    exf_forward_report report;
    exf_lane lane = {.observer = observer};
    exf_code rc = exf_forward(s->model, &s->batch, &lane, 1, &options, &report, err);
    if (rc == EXF_OK) exf_report_times(r, s->corpus->n_tokens, &report);
    return rc;
}

/* session.c - see session.h. */
#include "kernels/backend.h"
#include "base/thread_pool.h"
#include "run/run_shard.h"
#include "run/session.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "pass/forward.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const exf_backend *backend;
    exf_compute compute;
    exf_background opening;
} exf_device_warm_up;

/* Starts the thread, on a backend with a GPU.  A failure is left to the pass, which opens queues of its own. */
void exf_device_warm_up_start(exf_device_warm_up *w, const exf_backend *b, exf_compute compute);
/* Waits for the thread. */
void exf_device_warm_up_wait(exf_device_warm_up *w);

static void report_corpus(const exf_corpus *c, const char *manifest)
{
    for (size_t i = 0; i < c->n_domains; i++) {
        const exf_domain *d = &c->domains[i];
        exf_log_info("domain %s: %" PRIu64 " sequences, %" PRIu64 " tokens kept; %" PRIu64 " sequences, %" PRIu64 " tokens dropped",
                     d->name, d->sequences_kept, d->tokens_kept, d->sequences_dropped, d->tokens_dropped);
    }
    if (c->n_domains && c->n_unpinned)
        exf_log_warn("%s: no sha256 pins %d of %zu sources (%s), so that a change of these files goes unnoticed; "
                     "--pin-manifest writes it",
                     manifest, c->n_unpinned, c->n_sources, c->unpinned);
}

void exf_report_model(const exf_model *m)
{
    char bytes[16];
    const exf_architecture *a = &m->arch;
    exf_log_info("model %s: %d layers (%d MoE), %d experts, top-%d, hidden %d, %s of weights", m->family->name, a->n_layers,
                 a->n_moe_layers, a->n_experts, a->top_k, a->d_model,
                 exf_human_bytes(bytes, sizeof bytes, (double)exf_model_bytes(m)));
}

/* bf16 if the backend has it, unless f32 is asked for; that bf16 is asked for in vain is an error. */
static exf_code choose_compute(exf_compute *compute, const exf_backend *b, const exf_recipe *r, exf_err *err)
{
    int has_bf16 = b->gpu && b->gpu->has_bf16();
    *compute = has_bf16 && r->compute != EXF_COMPUTE_IS_F32 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32;
    if (has_bf16 || r->compute != EXF_COMPUTE_IS_BF16) return EXF_OK;
    (void)exf_fail(err, EXF_DEVICE, "runtime.compute: bf16: the %s backend computes in f32 only", b->name);
    return exf_recipe_blame(r, EXF_DEVICE, err);
}

exf_code exf_choose_backend(const exf_backend **backend, exf_compute *compute, const exf_recipe *r, exf_err *err)
{
    exf_err why_not = {.code = EXF_OK};
    exf_code rc;
    const exf_backend *b = r->backend == EXF_BACKEND_CPU ? &exf_backend_cpu : exf_backend_cuda(&why_not);
    if (!b && r->backend == EXF_BACKEND_CUDA)
        return exf_recipe_blame(r, exf_fail(err, EXF_DEVICE, "runtime.backend: cuda: %s", why_not.msg), err);
    *backend = b = b ? b : &exf_backend_cpu;
    rc = choose_compute(compute, b, r, err);
    if (rc != EXF_OK) return rc;
    exf_log_info("backend: %s (%s), computes in %s%s%s", b->name, b->device(), exf_compute_name(*compute),
                 why_not.code == EXF_OK ? "" : "; ", why_not.msg);
    return EXF_OK;
}

exf_code exf_choose_io(exf_model *m, const exf_recipe *r, exf_err *err)
{
    exf_code rc = exf_checkpoint_use(m->checkpoint, (exf_io)r->io, err);
    if (rc != EXF_OK) exf_err_prefix(err, "runtime.io: ");
    return exf_recipe_blame(r, rc, err);
}

/* A recipe that names its model on a hub says how its directory comes to be. */
static exf_code check_model_is_there(const exf_recipe *r, exf_err *err)
{
    int found;
    if (!r->base_model || exf_opts_given(r->opts, "model.path", EXF_OPT_BY_ARGV)) return EXF_OK;
    exf_code rc = exf_path_look(r->model_path, &found, err);
    if (rc != EXF_OK || found) return rc;
    return exf_fail(err, EXF_IO, "%s: no such directory; download the model with: hf download %s --local-dir %s", r->model_path,
                    r->base_model, r->model_path);
}

static exf_code open_model(exf_session *s, const exf_recipe *r, exf_err *err)
{
    int config_only = r->dry_run && !exf_checkpoint_present(r->model_path);
    exf_code rc;
    EXF_TRY(check_model_is_there(r, err));
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
                                      (uint64_t)r->seed, s->model->arch.vocab, s->tokenizer_path, r->manifest_text};
    EXF_TRY(r->dry_run ? exf_corpus_plan(&s->corpus, &s->request, &s->missing_data, err)
                       : exf_corpus_load(&s->corpus, &s->request, err));
    report_corpus(s->corpus, r->manifest);
out:
    return rc;
}

/* Opens the model and loads the text, while the GPU gets ready. */
static exf_code open_inputs(exf_session *s, const exf_recipe *r, const char *layers, exf_err *err)
{
    exf_device_warm_up device;
    exf_code rc;
    exf_device_warm_up_start(&device, s->backend, s->compute);
    EXF_TRY(open_model(s, r, err));
    EXF_TRY(exf_layer_choice_parse(&s->layers, layers, &s->model->arch, err));
    EXF_TRY(load_corpus(s, r, err));
out:
    exf_device_warm_up_wait(&device);
    return rc;
}

exf_code exf_session_open(exf_session *s, const exf_recipe *r, const char *layers, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_recipe_check_data(r, err));
    EXF_TRY(exf_choose_backend(&s->backend, &s->compute, r, err));
    EXF_TRY(open_inputs(s, r, layers, err));
    EXF_TRY(exf_run_shard_take(s->corpus, r, err));
    EXF_TRY(exf_batch_of_corpus(&s->batch, s->corpus, err));
    exf_run_shape_of(&s->shape, s->model, s->corpus);
    s->part = s->batch;
    EXF_TRY(exf_session_agree(s, r, err));
out:
    return rc;
}

void exf_session_close(exf_session *s)
{
    exf_mem_free((void *)(uintptr_t)s->batch.span);
    exf_session_unshare(s);
    exf_mem_free(s->part_span);
    exf_corpus_free(s->corpus);
    exf_model_close(s->model);
    exf_mem_free(s->tokenizer_path);
    exf_mem_free(s->missing_data);
    memset(s, 0, sizeof *s);
}

/* Two points at once, while the second is written, and the records of all layers. */
static uint64_t resume_bytes(const exf_session *s, const exf_recipe *r, const exf_session_request *request)
{
    if (request->no_resume || (r->checkpoint_layers == 0 && r->checkpoint_seconds <= 0)) return 0;
    return 2 * exf_pass_saved_bytes(&s->model->arch, &s->batch, (size_t)request->demand->lanes) + request->records;
}

exf_code exf_session_plan(const exf_session *s, const exf_recipe *r, const exf_session_request *request, exf_err *err)
{
    const exf_demand *d = request->demand;
    char note[512] = "";
    exf_plan p = {.model = s->model, .batch = &s->batch, .options = exf_session_options(s, r, 0),
                  .workers = exf_forward_workers(s->backend, &s->batch, (int)r->threads),
                  .flops = exf_forward_demand_flops(&s->model->arch, &s->batch, d),
                  .work = exf_work_of_pass(s->model, &s->batch, d, 0, request->n_layers),
                  .weight_bytes = exf_model_bytes(s->model), .host = request->host, .disk = request->disk,
                  .reduced = request->reduced,
                  .resume = resume_bytes(s, r, request),
                  .output = request->output, .is_file = request->is_file, .note = note,
                  .not_counted = request->not_counted};
    double begun = exf_log_elapsed();
    exf_code rc;
    if (s->missing_data) snprintf(note, sizeof note, ", assumed: %s is not there", s->missing_data);
    EXF_TRY(exf_plan_check_output(&p, err));
    EXF_TRY(exf_forward_memory(&p.held, &p.options, s->model, &s->batch, d, err));
    EXF_TRY(exf_plan_measure(&p, request->pass, request->self, err));
    if (p.measured) p.part.start = begun;
    if (p.measured) p.seconds += begun;
    rc = exf_plan_tell(&p, r, err);
out:
    return rc;
}

static void report_event(uint64_t n_tokens, const exf_forward_report *t, double other)
{
    double n = t->workers;
    exf_log_event("{\"event\":\"forward\",\"tokens\":%" PRIu64 ",\"seconds\":%.4f,\"workers\":%d,\"read\":%.4f,\"embed\":%.4f,"
                  "\"mixer\":%.4f,\"router\":%.4f,\"experts\":%.4f,\"observe\":%.4f,\"head\":%.4f,\"other\":%.4f,"
                  "\"weight_bytes\":%" PRIu64 ",\"peak_rss_bytes\":%" PRIu64 ",\"elapsed_seconds\":%.3f}",
                  n_tokens, t->wall, t->workers, t->read, t->embed, t->mixer / n, t->router / n, t->experts / n, t->observe / n,
                  t->head / n, other, t->weight_bytes, exf_peak_rss(), exf_log_elapsed());
}

/* Shares are of the wall time: on a GPU of what its own clock measured, so that no part has the seconds in which
 * the host waited; `other` is opening, closing, and waiting of the slowest thread or between the two clocks. */
static void report_shares(const exf_forward_report *t, double other)
{
    double n = t->workers, percent = 100 / t->wall;
    exf_log_info("share: read %.0f %%, %s %.0f %%, router %.0f %%, experts %.0f %%, observe %.0f %%, head %.0f %%, other %.0f %%",
                 percent * (t->read + t->embed), t->on_gpu ? "mixer (and its router)" : "mixer", percent * t->mixer / n,
                 percent * t->router / n, percent * t->experts / n, percent * t->observe / n, percent * t->head / n,
                 percent * other);
}

void exf_report_times(const exf_recipe *r, uint64_t n_tokens, const exf_forward_report *t)
{
    double parts = t->mixer + t->router + t->experts + t->observe + t->head;
    double other = t->wall - t->read - t->embed - parts / t->workers;
    char peak[16], bytes[16];
    if (other < 0) other = 0;
    if (r->progress == EXF_PROGRESS_JSON) {
        report_event(n_tokens, t, other);
        return;
    }
    if (t->wall <= 0) return;
    exf_log_info("forward: %" PRIu64 " tokens in %.2f s, %.0f tokens/s on %d threads; %s read; peak memory %s", n_tokens, t->wall,
                 (double)n_tokens / t->wall, t->workers, exf_human_bytes(bytes, sizeof bytes, (double)t->weight_bytes),
                 exf_human_bytes(peak, sizeof peak, (double)exf_peak_rss()));
    report_shares(t, other);
}

exf_forward_options exf_session_options(const exf_session *s, const exf_recipe *r, int n_layers)
{
    return (exf_forward_options){.backend = s->backend, .compute = s->compute, .threads = (int)r->threads, .n_layers = n_layers,
                                 .readers = (int)r->readers, .mixer_queues = (int)r->streams,
                                 .max_device_memory = r->max_gpu_memory, .ranks = s->ranks, .first_row = s->first_row,
                                 .run_tokens = s->batch.n_tokens, .shared_chunks = s->shared};
}

exf_code exf_session_forward(const exf_session *s, const exf_recipe *r, const exf_observer *observer, int n_layers,
                             struct exf_resume *resume, exf_err *err)
{
    exf_forward_options options = exf_session_options(s, r, n_layers);
    options.resume = resume;
    exf_forward_report report;
    exf_lane lane = {.observer = observer};
    exf_code rc = exf_forward(s->model, &s->part, &lane, 1, &options, &report, err);
    if (rc != EXF_OK) return rc;
    exf_report_times(r, s->corpus->n_tokens, &report);
    return exf_session_tell_bytes(r->job, report.own_bytes, err);
}

/* ---- device warm up ---------------------------------------------------------------------------- */

static exf_code open_queue(void *self, exf_err *err)
{
    const exf_device_warm_up *w = self;
    exf_queue *q = NULL;
    exf_code rc = w->backend->open(&q, w->compute, err);
    if (rc == EXF_OK) w->backend->close(q);
    return rc;
}

void exf_device_warm_up_start(exf_device_warm_up *w, const exf_backend *b, exf_compute compute)
{
    exf_err left_to_the_pass;
    *w = (exf_device_warm_up){.backend = b, .compute = compute};
    if (b->gpu && exf_background_start(&w->opening, open_queue, w, &left_to_the_pass) != EXF_OK) left_to_the_pass.code = EXF_OK;
}

void exf_device_warm_up_wait(exf_device_warm_up *w)
{
    exf_background_end(&w->opening);
}

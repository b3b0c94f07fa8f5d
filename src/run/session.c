/* session.c - opens what a run reads, runs or plans its pass, and reports both; see session.h. */
#include "run/session.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/text.h"
#include "pass/forward.h"
#include "weights/shared_chunks.h"

#include <inttypes.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------ */

static exf_code choose_backend(exf_session *s, const exf_recipe *r, exf_err *err)
{
    exf_err why_not = {.code = EXF_OK};
    const exf_backend *b = r->backend == EXF_BACKEND_CPU ? &exf_backend_cpu : exf_backend_cuda(&why_not);
    if (!b && r->backend == EXF_BACKEND_CUDA)
        return exf_recipe_blame(r, exf_fail(err, EXF_DEVICE, "runtime.backend: cuda: %s", why_not.msg), err);
    s->backend = b = b ? b : &exf_backend_cpu;
    int has_bf16 = b->gpu && b->gpu->has_bf16();
    s->compute = has_bf16 && r->compute != EXF_COMPUTE_IS_F32 ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32;
    if (!has_bf16 && r->compute == EXF_COMPUTE_IS_BF16) {
        (void)exf_fail(err, EXF_DEVICE, "runtime.compute: bf16: the %s backend computes in f32 only", b->name);
        return exf_recipe_blame(r, EXF_DEVICE, err);
    }
    exf_code rc = EXF_OK;
    if (b->gpu) /* a CPU can but be left alone */
        rc = b->gpu->choose_tensor_cores((exf_tensor_cores)r->tensor_cores, err);
    else if (r->tensor_cores != EXF_TENSOR_CORES_AUTO)
        rc = exf_fail(err, EXF_DEVICE, "%s: the %s backend has no tensor cores",
                      r->tensor_cores == EXF_TENSOR_CORES_MMA ? "mma" : "wgmma", b->name);
    if (rc != EXF_OK) {
        exf_err_prefix(err, "runtime.tensor_cores: ");
        return exf_recipe_blame(r, rc, err);
    }
    exf_log_info("backend: %s (%s), computes in %s%s%s", b->name, b->device(), exf_compute_name(s->compute),
                 why_not.code == EXF_OK ? "" : "; ", why_not.msg);
    return EXF_OK;
}

/* Initialises a GPU.  Starting its driver takes longer than opening a large model's headers, and its first products take as long
 * as loading two layers.  A failure is left to choose_backend() and to the pass, which opens queues of its own. */
static exf_code warm_up_gpu(void *self, exf_err *err)
{
    exf_queue *q = NULL;
    const exf_backend *b = exf_backend_cuda(err);
    (void)self;
    if (!b) return err->code;
    exf_code rc = b->open(&q, EXF_COMPUTE_F32, err);
    if (rc != EXF_OK) return rc;
    b->gpu->warm_up_products(q);
    rc = b->finish(q, err);
    b->close(q);
    return rc;
}

/* Opens the checkpoint.  If it is missing and the recipe names the model on a hub, the error says how to download it. */
static exf_code open_model(exf_session *s, const exf_recipe *r, exf_err *err)
{
    exf_model_part part = EXF_MODEL_ALL;
    char bytes[16];
    int found = 1;
    exf_code rc;
    if (r->base_model && !exf_opts_given(r->opts, "model.path", EXF_OPT_BY_ARGV))
        EXF_TRY(exf_path_look(r->model_path, &found, err));
    if (!found)
        return exf_fail(err, EXF_IO, "%s: no such directory; download the model with: hf download %s --local-dir %s",
                        r->model_path, r->base_model, r->model_path);
    if (r->dry_run && !exf_checkpoint_present(r->model_path)) part = EXF_MODEL_CONFIG;
    EXF_TRY(exf_model_open_part(&s->model, r->model_path, part, err));
    rc = exf_checkpoint_use(s->model->checkpoint, (exf_io)r->io, err);
    if (rc != EXF_OK) exf_err_prefix(err, "runtime.io: ");
    EXF_TRY(exf_recipe_blame(r, rc, err));
    const exf_architecture *a = &s->model->arch;
    exf_log_info("model %s: %d layers (%d MoE), %d experts, top-%d, hidden %d, %s of weights", s->model->family->name, a->n_layers,
                 a->n_moe_layers, a->n_experts, a->top_k, a->d_model,
                 exf_human_bytes(bytes, sizeof bytes, (double)exf_model_bytes(s->model)));
out:
    return rc;
}

/* Says what each domain has; of many what all have together. */
static void report_domains(const exf_corpus *c)
{
    enum { MOST = 12 };
    exf_domain all = {.sequences_kept = 0};
    for (size_t i = 0; i < c->n_domains; i++) {
        const exf_domain *d = &c->domains[i];
        if (c->n_domains <= MOST)
            exf_log_info("domain %s: %" PRIu64 " sequences, %" PRIu64 " tokens kept; %" PRIu64 " sequences, %" PRIu64
                         " tokens dropped",
                         d->name, d->sequences_kept, d->tokens_kept, d->sequences_dropped, d->tokens_dropped);
        all.sequences_kept += d->sequences_kept;
        all.tokens_kept += d->tokens_kept;
        all.sequences_dropped += d->sequences_dropped;
        all.tokens_dropped += d->tokens_dropped;
    }
    if (c->n_domains > MOST)
        exf_log_info("%zu domains: %" PRIu64 " sequences, %" PRIu64 " tokens kept; %" PRIu64 " sequences, %" PRIu64
                     " tokens dropped",
                     c->n_domains, all.sequences_kept, all.tokens_kept, all.sequences_dropped, all.tokens_dropped);
}

/* Loads the corpus of the manifest, or the shard of it that the run is over. */
static exf_code open_corpus(exf_session *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_tokenizer_path(&s->tokenizer_path, r->model_path, err));
    s->request = (exf_corpus_request){r->manifest,       r->sequences,         r->max_tokens,    r->min_tokens,
                                      (uint64_t)r->seed, s->model->arch.vocab, s->tokenizer_path, r->manifest_text,
                                      (exf_bos)r->bos};
    EXF_TRY(r->dry_run ? exf_corpus_plan(&s->corpus, &s->request, &s->missing_data, err)
                       : exf_corpus_load(&s->corpus, &s->request, err));
    const exf_corpus *c = s->corpus;
    report_domains(c);
    if (c->n_domains && c->n_unpinned)
        exf_log_warn("%s: no sha256 pins %d of %zu sources (%s), so that a change of these files goes unnoticed; pin "
                     "them with: exfold-capture %s --set data.manifest=%s --pin-manifest",
                     r->manifest, c->n_unpinned, c->n_sources, c->unpinned, r->recipe_file ? r->recipe_file : "RECIPE",
                     r->manifest);
    EXF_TRY(exf_run_shard_take(s->corpus, r, err));
    EXF_TRY(exf_batch_of_corpus(&s->batch, s->corpus, err));
    exf_run_shape_of(&s->shape, s->model, s->corpus);
out:
    return rc;
}

exf_code exf_session_check_piped(const exf_recipe *r, exf_err *err)
{
    int ranks = exf_ranks_place(r->job).size;
    if (ranks < 2 || !exf_text_inputs_piped(r)) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "--text -: %d ranks would need what is piped, and one has it; name a file that all can read",
                    ranks);
}

exf_code exf_session_open(exf_session *s, exf_recipe *r, const char *layers, exf_err *err)
{
    exf_err ignored;
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_recipe_check_data(r, err));
    if (r->backend != EXF_BACKEND_CPU && exf_background_start(&s->warm_up, warm_up_gpu, s, &ignored) != EXF_OK)
        ignored.code = EXF_OK;
    EXF_TRY(open_model(s, r, err));
    EXF_TRY(choose_backend(s, r, err));
    EXF_TRY(exf_layer_choice_parse(&s->layers, layers, &s->model->arch, err));
    EXF_TRY(exf_recipe_fit_positions(r, s->model->arch.positions, err));
    EXF_TRY(open_corpus(s, r, err));
    EXF_TRY(exf_session_agree(s, r, err));
    s->part = s->batch;
out:
    return rc;
}

void exf_session_close(exf_session *s)
{
    exf_background_end(&s->warm_up);
    exf_mem_free((void *)(uintptr_t)s->batch.span);
    exf_shared_chunks_close(s->shared);
    if (s->shares) exf_ranks_window_free(&s->window, s->shares);
    exf_mem_free(s->part_span);
    exf_corpus_free(s->corpus);
    exf_model_close(s->model);
    exf_mem_free(s->tokenizer_path);
    exf_mem_free(s->missing_data);
    memset(s, 0, sizeof *s);
}

exf_code exf_session_facts(exf_provenance *p, const exf_session *s, const char *layers, exf_err *err)
{
    return exf_capture_provenance(p, s->model, s->corpus, &s->request, s->backend, s->compute, layers, err);
}

/* ---- the pass ------------------------------------------------------------------------------- */

exf_forward_options exf_session_options(const exf_session *s, const exf_recipe *r, int n_layers)
{
    return (exf_forward_options){.backend = s->backend, .compute = s->compute, .threads = (int)r->threads, .n_layers = n_layers,
                                 .readers = (int)r->readers, .mixer_queues = (int)r->streams,
                                 .max_device_memory = r->max_gpu_memory, .ranks = s->ranks, .first_row = s->first_row,
                                 .run_tokens = s->batch.n_tokens, .shared_chunks = s->shared};
}

exf_code exf_session_forward(const exf_session *s, const exf_recipe *r, const exf_observer *observer, int n_layers,
                             exf_resume *resume, exf_err *err)
{
    exf_forward_options options = exf_session_options(s, r, n_layers);
    exf_forward_report report;
    const exf_lane lane = {.observer = observer};
    options.resume = resume;
    exf_code rc = exf_forward(s->model, &s->part, &lane, 1, &options, &report, err);
    if (rc != EXF_OK) return rc;
    exf_report_times(r, s->batch.n_tokens, &report);
    return exf_session_tell_bytes(r->job, report.own_bytes, err);
}

/* Reports the kinds of work as shares of the wall time.  On a GPU its own clock measures them, so that none includes the time in
 * which the host waited.  `rewrite` is what variants make of routes, `open` opening and closing; `waiting` is what is left: of
 * threads for the slowest, or between the two clocks, and saving. */
void exf_report_times(const exf_recipe *r, uint64_t n_tokens, const exf_forward_report *t)
{
    double n = t->workers;
    double ends = t->open + t->close;
    double waiting = t->wall - t->read - t->embed - ends -
                   (t->mixer + t->router + t->rewrite + t->experts + t->observe + t->head) / n;
    char peak[16], bytes[16];
    if (waiting < 0) waiting = 0;
    if (r->progress == EXF_PROGRESS_JSON) {
        exf_log_event("{\"event\":\"forward\",\"tokens\":%" PRIu64 ",\"seconds\":%.4f,\"workers\":%d,\"read\":%.4f,\"embed\":%.4f,"
                      "\"mixer\":%.4f,\"router\":%.4f,\"rewrite\":%.4f,\"experts\":%.4f,\"observe\":%.4f,"
                      "\"head\":%.4f,\"open\":%.4f,\"waiting\":%.4f,"
                      "\"weight_bytes\":%" PRIu64 ",\"peak_rss_bytes\":%" PRIu64 ",\"elapsed_seconds\":%.3f}",
                      n_tokens, t->wall, t->workers, t->read, t->embed, t->mixer / n, t->router / n, t->rewrite / n, t->experts / n,
                      t->observe / n, t->head / n, ends, waiting, t->weight_bytes, exf_peak_rss(), exf_log_elapsed());
        return;
    }
    if (t->wall <= 0) return;
    double percent = 100 / t->wall;
    exf_log_info("forward: %" PRIu64 " tokens in %.2f s, %.0f tokens/s on %d threads; %s read; peak memory %s", n_tokens, t->wall,
                 (double)n_tokens / t->wall, t->workers, exf_human_bytes(bytes, sizeof bytes, (double)t->weight_bytes),
                 exf_human_bytes(peak, sizeof peak, (double)exf_peak_rss()));
    exf_log_info("share: read %.0f %%, %s %.0f %%, router %.0f %%, rewrite %.0f %%, experts %.0f %%, observe %.0f %%, "
                 "head %.0f %%, open and close %.0f %%, waiting %.0f %%",
                 percent * (t->read + t->embed), t->on_gpu ? "mixer (and its router)" : "mixer", percent * t->mixer / n,
                 percent * t->router / n, percent * t->rewrite / n, percent * t->experts / n, percent * t->observe / n,
                 percent * t->head / n, percent * ends, percent * waiting);
}

/* ---- the plan of a dry run -------------------------------------------------------------------- */

exf_code exf_session_plan(const exf_session *s, const exf_recipe *r, exf_plan *p, exf_err *err)
{
    double begun = exf_log_elapsed();
    exf_code rc;
    p->model = s->model;
    p->batch = &s->batch;
    p->missing = s->missing_data;
    p->options = exf_session_options(s, r, 0);
    p->statistics = p->reduced;
    p->workers = exf_forward_workers(s->backend, &s->batch, (int)r->threads);
    p->flops = exf_forward_demand_flops(&s->model->arch, &s->batch, p->demand);
    p->work = exf_work_of_pass(s->model, &s->batch, p->demand, 0, p->n_layers);
    p->weight_bytes = exf_model_bytes(s->model);
    if (!p->no_resume && (r->checkpoint_layers != 0 || r->checkpoint_seconds > 0)) /* the first goes after the second is written */
        p->resume = 2 * exf_pass_saved_bytes(&s->model->arch, &s->batch, (size_t)p->demand->lanes) + p->records;
    EXF_TRY(exf_plan_check_output(p, err));
    EXF_TRY(exf_forward_memory(&p->held, &p->options, s->model, &s->batch, p->demand, err));
    EXF_TRY(exf_plan_measure(p, p->pass, p->self, err));
    if (p->measured) p->part.start = begun;
    if (p->measured) p->seconds += begun;
    exf_plan_add_pilot(p);
    rc = exf_plan_tell(p, r, err);
out:
    return rc;
}

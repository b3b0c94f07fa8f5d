/* plan_measure.c - how long a run takes, measured on a sample of it, and predicted for several ranks and nodes; see plan.h. */
#include "plan/plan.h"

#include "base/log.h"
#include "base/mem.h"
#include "kernels/backend.h"
#include "pass/batch.h"
#include "pass/forward.h"
#include "ranks/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the sample ----------------------------------------------------------------------------- */

/* A pass over fewer tokens. */
typedef struct {
    exf_batch batch;
    int32_t *ids;
    exf_span *span;
} plan_sample;

static void free_sample(plan_sample *s)
{
    exf_mem_free(s->ids);
    exf_mem_free(s->span);
    memset(s, 0, sizeof *s);
}

/* Operations of a layer that one thread of a CPU is given, and tokens that a GPU is given: some tenths of a second. */
static const double cpu_flops = 1e10;
enum { GPU_TOKENS = 65536, LEAST_TOKENS = 64 };

/* Takes evenly spaced sequences of the batch, equally many for each worker, the long ones cut, so many that a layer of the run
 * takes some tenths of a second.  Where the tokens are not known it makes some up. */
static exf_code make_sample(plan_sample *s, const exf_plan *p, exf_err *err)
{
    double layer_flops = p->flops / (double)p->batch->n_tokens / p->model->arch.n_layers;
    const exf_batch *b = p->batch;
    size_t workers = (size_t)p->workers, each = b->n_tokens / b->n_sequences, vocab = (size_t)p->model->arch.vocab;
    double wanted = p->options.backend->gpu ? GPU_TOKENS : cpu_flops / layer_flops * (double)workers;
    size_t tokens = wanted < (double)b->n_tokens ? (size_t)wanted : b->n_tokens;
    if (tokens < LEAST_TOKENS * workers) tokens = LEAST_TOKENS * workers;
    size_t n = (tokens + each - 1) / (each ? each : 1);
    n = (n + workers - 1) / workers * workers;
    if (n > b->n_sequences) n = b->n_sequences;
    size_t most = tokens / n + 1;
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_mem_new(&s->span, n, sizeof *s->span, "sample of the run", err));
    EXF_TRY(exf_mem_new(&s->ids, n * (size_t)b->max_tokens, sizeof *s->ids, "sample of the run", err));
    s->batch = (exf_batch){.ids = s->ids, .span = s->span};
    for (size_t i = 0; i < n; i++) {
        const exf_span *from = &b->span[i * b->n_sequences / n];
        int n_tokens = (size_t)from->n_tokens < most ? from->n_tokens : (int)most;
        s->span[s->batch.n_sequences++] = (exf_span){s->batch.n_tokens, n_tokens};
        for (size_t t = from->offset; t < from->offset + (size_t)n_tokens; t++)
            s->ids[s->batch.n_tokens++] = b->ids ? b->ids[t] : (int32_t)((from->offset + (t - from->offset) * 127) % vocab);
        if (n_tokens > s->batch.max_tokens) s->batch.max_tokens = n_tokens;
    }
out:
    if (rc != EXF_OK) free_sample(s);
    return rc;
}

/* ---- its seconds ------------------------------------------------------------------------------ */

/* Returns the work of the whole run with the seconds that the sample took of each kind. */
static exf_eta rates_of(const exf_plan *p, const exf_forward_report *sample)
{
    exf_eta whole = p->work;
    for (int k = 0; k < EXF_ETA_KINDS; k++) {
        whole.kind[k].done = sample->work.kind[k].done;
        whole.kind[k].spent = sample->work.kind[k].spent > 0 ? sample->work.kind[k].spent : 0;
    }
    return whole;
}

/* Returns the seconds of all kinds of work but one. */
static double seconds_without(const exf_eta *whole, int kind)
{
    exf_eta rest = *whole;
    rest.kind[kind].planned = 0;
    return exf_eta_whole(&rest);
}

/* Returns the seconds of a CPU run, which reads weights between its layers. */
static double cpu_seconds(exf_plan *p, const exf_forward_report *sample)
{
    exf_eta whole = rates_of(p, sample);
    double all = exf_eta_whole(&whole);
    p->part.weights = all - seconds_without(&whole, EXF_WORK_READ);
    p->part.ends = all - seconds_without(&whole, EXF_WORK_REST);
    p->part.tokens = all - p->part.weights - p->part.ends;
    return all;
}

/* Returns the seconds of a GPU run, which reads weights while it computes, but for those it begins with.
 * The first pass of a process loads kernels and finds no weights in the page cache.  So the second shows how fast the GPU
 * computes, the first, by the clocks of its readers, how fast weights are read, and the difference of both is needed once. */
static double gpu_seconds(exf_plan *p, const exf_forward_report *first, const exf_forward_report *second)
{
    exf_eta whole = rates_of(p, second);
    double sampled = first->work.kind[EXF_WORK_READ].done, computing;
    p->part.once = whole.kind[EXF_WORK_READ].spent + (first->wall > second->wall ? first->wall - second->wall : 0);
    p->part.weights = sampled > 0 && first->readers
                          ? p->work.kind[EXF_WORK_READ].planned / sampled * first->reading / first->readers : 0;
    whole.kind[EXF_WORK_READ].planned = 0;
    computing = exf_eta_whole(&whole);
    p->part.tokens = seconds_without(&whole, EXF_WORK_REST);
    p->part.ends = computing - p->part.tokens;
    return p->part.once + (computing > p->part.weights ? computing : p->part.weights);
}

exf_code exf_plan_measure(exf_plan *p, exf_plan_pass pass, void *self, exf_err *err)
{
    plan_sample sample = {.ids = NULL};
    exf_forward_options options = p->options;
    exf_forward_report first, second;
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE); /* of the machine's memory */
    exf_code rc;
    EXF_TRY(exf_gemm_rate(options.backend, (exf_compute)options.compute, &p->rate, err));
    p->seconds = p->flops / (p->rate * p->workers);
    if (!pass || p->model->part == EXF_MODEL_CONFIG) goto out;
    if (pages > 0 && size > 0 && (double)(p->held.host + p->host) >= (double)pages * (double)size) {
        exf_log_warn("the run needs more memory than this machine has: its time is not measured");
        goto out;
    }
    options.n_layers = exf_work_sample_layers(&p->model->arch);
    options.sample = 1;
    EXF_TRY(make_sample(&sample, p, err));
    EXF_TRY(pass(self, &sample.batch, &options, &first, err));
    if (options.backend->gpu) {
        EXF_TRY(pass(self, &sample.batch, &options, &second, err));
        p->seconds = gpu_seconds(p, &first, &second);
    } else {
        p->seconds = cpu_seconds(p, &first);
    }
    p->measured = 1;
out:
    p->process = exf_peak_rss();
    free_sample(&sample);
    return rc;
}

/* ---- several ranks and nodes --------------------------------------------------------------------- */

/* Bytes a second of an all-reduce of integers between two ranks of a node: 8 MB in 3.3 ms. */
static const double rate_in_node = 2.4e9, usual_network = 12.5e9;
/* Seconds by which ranks start later than one process. */
static const double start_of_mpi = 0.7;

static int parse_rate(const char *text, double *out)
{
    static const char suffix[] = "KMGT";
    char *end;
    double factor = 1;
    *out = strtod(text, &end);
    const char *at = *end ? strchr(suffix, *end) : NULL;
    for (const char *s = suffix; at && s <= at; s++) factor *= 1000;
    if (end == text || (*end && (!at || end[1])) || !(*out > 0) || !isfinite(*out)) return 0;
    *out *= factor;
    return 1;
}

exf_code exf_scale_rates_parse(exf_scale_rates *out, const exf_text_list *text, exf_err *err)
{
    const struct {
        const char *name;
        double *rate;
    } known[] = {{"compute=", &out->compute}, {"read=", &out->read}, {"copy=", &out->copy}, {"network=", &out->network}};
    enum { N_KNOWN = sizeof known / sizeof *known };
    *out = (exf_scale_rates){.compute = 0};
    for (size_t i = 0, k; i < text->n; i++) {
        const char *item = text->item[i];
        for (k = 0; k < N_KNOWN; k++)
            if (exf_starts_with(item, known[k].name) && parse_rate(item + strlen(known[k].name), known[k].rate)) break;
        if (k == N_KNOWN)
            return exf_fail(err, EXF_USAGE,
                            "--rates: \"%s\" is none of compute=X, read=X, copy=X, network=X with X such as 12.5G", item);
    }
    return EXF_OK;
}

exf_code exf_scale_check(const exf_recipe *r, exf_err *err)
{
    const char *given = r->plan_ranks ? "--ranks" : r->plan_nodes ? "--nodes" : r->plan_rates.n ? "--rates" : NULL;
    int64_t nodes = r->plan_nodes ? r->plan_nodes : 1;
    exf_scale_rates rates;
    if (!given) return EXF_OK;
    if (!r->dry_run)
        return exf_fail(err, EXF_USAGE, "%s: is of the prediction of --dry-run; ranks are started by mpirun or srun", given);
    if (!r->plan_ranks) return exf_fail(err, EXF_USAGE, "%s: of how many ranks? give --ranks too", given);
    if (r->plan_ranks % nodes)
        return exf_fail(err, EXF_USAGE, "--ranks: %lld ranks do not divide into %lld nodes", (long long)r->plan_ranks,
                        (long long)nodes);
    return exf_scale_rates_parse(&rates, &r->plan_rates, err);
}

/* Finds the largest part of all tokens that a rank is dealt. */
static exf_code find_most_tokens(exf_scale *s, const exf_batch *batch, exf_err *err)
{
    size_t n = (size_t)s->ranks, *first = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&first, n + 1, sizeof *first, "ranks", err));
    rc = exf_deal(first, batch, NULL, n, err);
    if (rc == EXF_USAGE) exf_err_prefix(err, "--ranks %d: ", s->ranks);
    for (size_t i = 0; rc == EXF_OK && i < n; i++) {
        double tokens = 0;
        for (size_t k = first[i]; k < first[i + 1]; k++) tokens += batch->span[k].n_tokens;
        s->most_tokens = fmax(s->most_tokens, tokens / (double)batch->n_tokens);
    }
out:
    exf_mem_free(first);
    return rc;
}

exf_code exf_scale_predict(exf_scale *out, const exf_plan *p, const exf_recipe *r, exf_err *err)
{
    int layers = p->model->arch.n_layers > 0 ? p->model->arch.n_layers : 1;
    exf_scale_rates *rates = &out->rates;
    double bytes = (double)p->weight_bytes, n;
    exf_code rc;
    *out = (exf_scale){.ranks = (int)r->plan_ranks, .nodes = r->plan_nodes ? (int)r->plan_nodes : 1};
    n = out->nodes;
    EXF_TRY(exf_scale_rates_parse(rates, &r->plan_rates, err));
    out->assumed_network = rates->network == 0;
    if (out->assumed_network) rates->network = usual_network;
    EXF_TRY(find_most_tokens(out, p->batch, err));
    int on_gpu = p->options.backend->gpu != NULL || rates->compute > 0;
    out->start = p->part.start + (p->measured && out->ranks > 1 && !r->job ? start_of_mpi : 0);
    out->once = p->part.once;
    out->ends = p->part.ends;
    /* A rank of a CPU has its share of the node's cores; the plan was measured on all of them, or on the share of a dry run
     * that mpirun started. */
    double shares = r->job ? exf_ranks_place(r->job).local_size : 1;
    double all = rates->compute > 0 ? p->flops / rates->compute : p->measured ? p->part.tokens : p->seconds;
    out->tokens = all * out->most_tokens * (on_gpu ? 1 : (double)out->ranks / n / shares);
    out->weights = rates->read > 0 ? bytes / rates->read : p->part.weights;
    if (rates->copy > 0) out->weights = fmax(out->weights, bytes / rates->copy);
    out->sums = (double)p->reduced *
                (ceil(log2((double)(out->ranks / out->nodes))) / rate_in_node + 2 * (n - 1) / n / rates->network);
    out->seconds = out->start + out->once + fmax(out->tokens, fmax(on_gpu ? out->weights : 0, out->sums)) +
                   (on_gpu ? 0 : out->weights) + out->ends + out->sums / layers;
out:
    return rc;
}

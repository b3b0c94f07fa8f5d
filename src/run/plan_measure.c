/* plan_measure.c - how long a run takes, measured on a sample of it, and predicted for several ranks and nodes; see plan.h. */
#include "run/plan.h"

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

/* Operations of a layer that one thread of a CPU is given, and tokens that a GPU is given at first: some tenths of a second. */
static const double cpu_flops = 1e10;
enum { GPU_TOKENS = 65536, LEAST_TOKENS = 64 };
/* Seconds that the last pass of a GPU's sample takes, about: after some tenths the clock falls to what the power allows. */
static const double sustained = 1.5;

/* Takes evenly spaced sequences of the batch, of about `wanted` tokens, equally many for each worker, the long ones cut, but to no
 * less than a block of experts: their matrices are read once for each block, so that shorter ones cost more a token.  Where the
 * tokens are not known it makes some up. */
static exf_code make_sample(plan_sample *s, const exf_plan *p, double wanted, exf_err *err)
{
    const exf_batch *b = p->batch;
    size_t workers = (size_t)p->workers, each = b->n_tokens / b->n_sequences, vocab = (size_t)p->model->arch.vocab;
    size_t tokens = wanted < (double)b->n_tokens ? (size_t)wanted : b->n_tokens;
    if (tokens < LEAST_TOKENS * workers) tokens = LEAST_TOKENS * workers;
    size_t n = (tokens + each - 1) / (each ? each : 1);
    n = (n + workers - 1) / workers * workers;
    if (n > b->n_sequences) n = b->n_sequences;
    size_t most = tokens / n + 1 > EXF_MOE_BLOCK ? tokens / n + 1 : EXF_MOE_BLOCK;
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

/* Measures passes on a GPU, which reads weights while it computes, but for those it begins with: two of few tokens, and one that
 * takes as long as its clock needs.  The first pass of a process loads kernels and finds no weights in the page cache: by the
 * clocks of its readers it shows how fast weights are read, and the difference of the second, of the same tokens, is needed once.
 * The longest shows how fast the GPU computes. */
static exf_code measure_gpu(exf_plan *p, const exf_forward_options *options, exf_plan_pass pass, void *self, exf_err *err)
{
    plan_sample few = {.ids = NULL}, many = {.ids = NULL};
    exf_forward_report first, second, longest;
    double tokens;
    exf_code rc;
    EXF_TRY(make_sample(&few, p, GPU_TOKENS, err));
    EXF_TRY(pass(self, &few.batch, options, &first, err));
    EXF_TRY(pass(self, &few.batch, options, &second, err));
    longest = second;
    tokens = (double)few.batch.n_tokens * sustained / second.wall;
    if (tokens > (double)few.batch.n_tokens && few.batch.n_tokens < p->batch->n_tokens) {
        EXF_TRY(make_sample(&many, p, tokens, err));
        EXF_TRY(pass(self, &many.batch, options, &longest, err));
    }
    exf_eta whole = rates_of(p, &longest);
    double sampled = first.work.kind[EXF_WORK_READ].done, computing;
    p->part.once = second.work.kind[EXF_WORK_READ].spent + (first.wall > second.wall ? first.wall - second.wall : 0);
    p->part.weights = sampled > 0 && first.readers
                          ? p->work.kind[EXF_WORK_READ].planned / sampled * first.reading / first.readers : 0;
    whole.kind[EXF_WORK_READ].planned = 0;
    computing = exf_eta_whole(&whole);
    p->part.tokens = seconds_without(&whole, EXF_WORK_REST);
    p->part.ends = computing - p->part.tokens;
    p->seconds = p->part.once + (computing > p->part.weights ? computing : p->part.weights);
out:
    free_sample(&few);
    free_sample(&many);
    return rc;
}

exf_code exf_plan_measure(exf_plan *p, exf_plan_pass pass, void *self, exf_err *err)
{
    plan_sample sample = {.ids = NULL};
    exf_forward_options options = p->options;
    exf_forward_report report;
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
    if (options.backend->gpu) {
        EXF_TRY(measure_gpu(p, &options, pass, self, err));
    } else {
        double layer_flops = p->flops / (double)p->batch->n_tokens / p->model->arch.n_layers;
        EXF_TRY(make_sample(&sample, p, cpu_flops / layer_flops * (double)p->workers, err));
        EXF_TRY(pass(self, &sample.batch, &options, &report, err));
        exf_eta whole = rates_of(p, &report); /* a CPU reads weights between layers */
        p->seconds = exf_eta_whole(&whole);
        p->part.weights = p->seconds - seconds_without(&whole, EXF_WORK_READ);
        p->part.ends = p->seconds - seconds_without(&whole, EXF_WORK_REST);
        p->part.tokens = p->seconds - p->part.weights - p->part.ends;
    }
    p->measured = 1;
out:
    p->process = exf_peak_rss();
    free_sample(&sample);
    return rc;
}

void exf_plan_add_pilot(exf_plan *p)
{
    if (!p->pilot.sequences || !p->measured) return;
    p->part.pilot = p->pilot.share * p->part.tokens + p->part.weights + p->part.ends;
    p->seconds += p->part.pilot;
}

/* ---- several ranks and nodes --------------------------------------------------------------------- */

/* Bytes a second at which slices of sums go between ranks of a node and are added: 285 MB in 0.10 s by two ranks, 0.16 by four. */
static const double rate_in_node = 2.8e9, usual_network = 12.5e9;
/* Bytes a second at which one process writes statistics to a RAM disk: 281 MB a layer in 0.22 s. */
static const double usual_write = 1.25e9;
/* What runs beside the tokens' work needs the host's memory too: the shorter of both takes so much of its time from the longer. */
static const double disturbance = 0.3;
/* Seconds that mpirun takes to start and to end (1.0 and 0.3 to 0.5 where a node has 64 processors), that ranks take to join, and
 * that each further GPU of a node takes to open. */
static const double launching = 1.5, joining = 0.4, next_gpu = 0.18;

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
    } known[] = {{"compute=", &out->compute}, {"read=", &out->read}, {"copy=", &out->copy}, {"network=", &out->network},
                 {"write=", &out->write}};
    enum { N_KNOWN = sizeof known / sizeof *known };
    *out = (exf_scale_rates){.compute = 0};
    for (size_t i = 0, k; i < text->n; i++) {
        const char *item = text->item[i];
        for (k = 0; k < N_KNOWN && !exf_starts_with(item, known[k].name);) k++;
        if (k < N_KNOWN && *known[k].rate > 0)
            return exf_fail(err, EXF_USAGE, "--rates: %.*s is given twice", (int)strlen(known[k].name) - 1, known[k].name);
        if (k == N_KNOWN || !parse_rate(item + strlen(known[k].name), known[k].rate))
            return exf_fail(err, EXF_USAGE,
                            "--rates: \"%s\" is none of compute=X, read=X, copy=X, network=X, write=X with X such as 12.5G", item);
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
static exf_code find_most_tokens(exf_scale *s, const exf_batch *batch, const size_t *group_of, exf_err *err)
{
    size_t n = (size_t)s->ranks, *first = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&first, n + 1, sizeof *first, "ranks", err));
    rc = exf_deal(first, batch, group_of, n, err);
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
    double bytes = (double)p->weight_bytes, n, of_node, reduced, work, beside;
    exf_code rc;
    *out = (exf_scale){.ranks = (int)r->plan_ranks, .nodes = r->plan_nodes ? (int)r->plan_nodes : 1, .once = p->part.once,
                       .start = p->part.start, .ends = p->part.ends};
    n = out->nodes;
    of_node = out->ranks / out->nodes;
    EXF_TRY(exf_scale_rates_parse(rates, &r->plan_rates, err));
    out->assumed_network = rates->network == 0;
    if (out->assumed_network) rates->network = usual_network;
    out->assumed_write = rates->write == 0;
    if (out->assumed_write) rates->write = usual_write;
    EXF_TRY(find_most_tokens(out, p->batch, p->group_of, err));
    int on_gpu = p->options.backend->gpu != NULL || rates->compute > 0;
    if (p->measured && out->ranks > 1) out->start += launching;
    if (p->measured && out->ranks > 1 && !r->job) out->start += joining + (on_gpu ? next_gpu * (of_node - 1) : 0);
    /* A rank of a CPU has its share of the node's cores; the plan was measured on all of them, or on the share of a dry run
     * that mpirun started. */
    double shares = r->job ? exf_ranks_place(r->job).local_size : 1;
    double all = rates->compute > 0 ? p->flops / rates->compute : p->measured ? p->part.tokens : p->seconds;
    out->tokens = all * out->most_tokens * (on_gpu ? 1 : (double)out->ranks / n / shares);
    out->weights = rates->read > 0 ? bytes / rates->read : p->part.weights;
    if (rates->copy > 0) out->weights = fmax(out->weights, bytes / rates->copy);
    reduced = (double)(p->reduced - (on_gpu && n == 1 ? p->by_gpus : 0));
    out->sums = 2 * reduced * ((of_node - 1) / of_node / rate_in_node + (n - 1) / n / rates->network);
    out->statistics = (double)p->statistics / rates->write;
    out->files = (double)(p->disk - p->statistics) / rates->write;
    work = fmax(out->tokens, out->weights);
    beside = fmax(out->sums, out->statistics);
    out->seconds = out->start + out->once + out->ends + out->files +
                   (on_gpu ? fmax(work, beside) + disturbance * fmin(work, beside) + (out->sums + out->statistics) / layers
                           : fmax(out->tokens, out->sums) + out->sums / layers + out->weights + out->statistics);
out:
    return rc;
}

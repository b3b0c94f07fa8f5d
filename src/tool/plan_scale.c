/* plan_scale.c - predicts the time of a run on several ranks and nodes; see plan.h. */
#include "tool/plan.h"

#include "base/mem.h"
#include "hooks/deal.h"
#include "kernels/backend.h"
#include "ranks/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes a second of an all-reduce of integers between two ranks of a node: 8 MB in 3.3 ms. */
static const double rate_in_node = 2.4e9, usual_network = 12.5e9;
/* Seconds by which ranks start later than one process. */
static const double start_of_mpi = 0.7;

/* ---- what is asked for ---------------------------------------------------------------------- */

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

static exf_code parse_one(exf_scale_rates *r, const char *item, exf_err *err)
{
    const struct {
        const char *name;
        double *rate;
    } known[] = {{"compute=", &r->compute}, {"read=", &r->read}, {"copy=", &r->copy}, {"network=", &r->network}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (exf_starts_with(item, known[i].name) && parse_rate(item + strlen(known[i].name), known[i].rate)) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "--rates: \"%s\" is none of compute=X, read=X, copy=X, network=X with X such as 12.5G", item);
}

exf_code exf_scale_rates_parse(exf_scale_rates *out, const exf_text_list *text, exf_err *err)
{
    exf_code rc = EXF_OK;
    *out = (exf_scale_rates){.compute = 0};
    for (size_t i = 0; rc == EXF_OK && i < text->n; i++) rc = parse_one(out, text->item[i], err);
    return rc;
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

/* ---- prediction ------------------------------------------------------------------------------ */

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

/* A rank of a CPU has its share of the node's cores; the plan was measured on all of them, or on the share of a dry run
 * that mpirun started. */
static double seconds_of_tokens(const exf_scale *s, const exf_plan *p, const exf_ranks *job, int on_gpu)
{
    double shares = job ? exf_ranks_place(job).local_size : 1;
    double all = s->rates.compute > 0 ? p->flops / s->rates.compute : p->measured ? p->part.tokens : p->seconds;
    return all * s->most_tokens * (on_gpu ? 1 : (double)s->ranks / s->nodes / shares);
}

static double seconds_of_weights(const exf_scale *s, const exf_plan *p)
{
    double bytes = (double)p->weight_bytes, seconds = p->part.weights;
    if (s->rates.read > 0) seconds = bytes / s->rates.read;
    if (s->rates.copy > 0) seconds = fmax(seconds, bytes / s->rates.copy);
    return seconds;
}

static double seconds_of_sums(const exf_scale *s, const exf_plan *p)
{
    double bytes = (double)p->reduced, n = s->nodes, steps = ceil(log2((double)(s->ranks / s->nodes)));
    return bytes * (steps / rate_in_node + 2 * (n - 1) / n / s->rates.network);
}

exf_code exf_scale_predict(exf_scale *out, const exf_plan *p, const exf_recipe *r, exf_err *err)
{
    int layers = p->model->arch.n_layers > 0 ? p->model->arch.n_layers : 1;
    exf_code rc;
    *out = (exf_scale){.ranks = (int)r->plan_ranks, .nodes = r->plan_nodes ? (int)r->plan_nodes : 1};
    EXF_TRY(exf_scale_rates_parse(&out->rates, &r->plan_rates, err));
    out->assumed_network = out->rates.network == 0;
    if (out->assumed_network) out->rates.network = usual_network;
    EXF_TRY(find_most_tokens(out, p->batch, err));
    int on_gpu = p->options.backend->gpu != NULL || out->rates.compute > 0;
    out->start = p->part.start + (p->measured && out->ranks > 1 && !r->job ? start_of_mpi : 0);
    out->once = p->part.once;
    out->ends = p->part.ends;
    out->tokens = seconds_of_tokens(out, p, r->job, on_gpu);
    out->weights = seconds_of_weights(out, p);
    out->sums = seconds_of_sums(out, p);
    out->seconds = out->start + out->once + fmax(out->tokens, fmax(on_gpu ? out->weights : 0, out->sums)) +
                   (on_gpu ? 0 : out->weights) + out->ends + out->sums / layers;
out:
    return rc;
}

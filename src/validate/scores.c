/* scores.c - what is measured of a lane against the first: the scores of every next token, and the error of every layer's
 * output. */
#include "validate/scores.h"

#include "base/mem.h"
#include "kernels/statistics/divergence.h"
#include "ranks/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    float *nll, *kl;     /* [T] */
    unsigned char *same; /* [T] */
    int is_pinned;       /* 1: these arrays are parts of the device's pinned memory */
    struct exf_scores *all;
    size_t number;
} lane_scores;

/* A worker's copy of the first lane's block of logits. */
typedef struct {
    float *log_p, *p; /* [rows, vocab] */
    int *top;         /* [rows] */
} worker_block;

/* The same in device memory.  All lanes' arrays are then in pinned memory, to which the device writes. */
typedef struct {
    const exf_backend *b; /* NULL: the pass does not run on a device */
    float *log_p;         /* [rows, vocab] */
    int32_t *top;         /* [rows] */
    void *pinned;
} device_block;

struct exf_scores {
    const exf_batch *batch;
    lane_scores *lane;
    size_t n_lanes;
    worker_block *worker;
    device_block device;
    int n_workers, vocab;
};

exf_code exf_scores_new(exf_scores **out, const exf_batch *batch, size_t n_lanes, int vocab, exf_err *err)
{
    exf_code rc;
    exf_scores *s = NULL;
    *out = NULL;
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "scores", err));
    s->batch = batch;
    s->vocab = vocab;
    EXF_TRY(exf_mem_new(&s->lane, n_lanes, sizeof *s->lane, "scores", err));
    s->n_lanes = n_lanes;
    for (size_t i = 0; i < n_lanes; i++) {
        lane_scores *l = &s->lane[i];
        l->all = s;
        l->number = i;
        EXF_TRY(exf_mem_new(&l->nll, batch->n_tokens, sizeof *l->nll, "scores", err));
        EXF_TRY(exf_mem_new(&l->kl, batch->n_tokens, sizeof *l->kl, "scores", err));
        EXF_TRY(exf_mem_new(&l->same, batch->n_tokens, sizeof *l->same, "scores", err));
    }
out:
    if (rc != EXF_OK)
        exf_scores_free(s);
    else
        *out = s;
    return rc;
}

static void free_arrays(const lane_scores *l)
{
    if (l->is_pinned) return;
    exf_mem_free(l->nll);
    exf_mem_free(l->kl);
    exf_mem_free(l->same);
}

void exf_scores_free(exf_scores *s)
{
    if (!s) return;
    for (size_t i = 0; s->lane && i < s->n_lanes; i++) free_arrays(&s->lane[i]);
    for (int i = 0; s->worker && i < s->n_workers; i++) {
        exf_mem_free(s->worker[i].log_p);
        exf_mem_free(s->worker[i].p);
        exf_mem_free(s->worker[i].top);
    }
    if (s->device.b) {
        s->device.b->free(s->device.log_p);
        s->device.b->free(s->device.top);
        if (s->device.pinned) s->device.b->gpu->free_staging(s->device.pinned);
    }
    exf_mem_free(s->lane);
    exf_mem_free(s->worker);
    exf_mem_free(s);
}

void *exf_scores_lane(exf_scores *s, size_t lane)
{
    return &s->lane[lane];
}

/* Allocates the block in device memory, and moves all lanes' arrays, which are zero, to pinned memory. */
static exf_code open_device(exf_scores *s, const exf_backend *b, exf_err *err)
{
    device_block *d = &s->device;
    size_t n = s->batch->n_tokens, cells, bytes, rows = (size_t)exf_head_rows(b);
    exf_code rc;
    d->b = b;
    EXF_TRY(exf_mem_mul(&cells, rows, (size_t)s->vocab, "log-probabilities", err));
    EXF_TRY(b->alloc(&d->log_p, cells, sizeof(float), "log-probabilities", err));
    EXF_TRY(b->alloc(&d->top, rows, sizeof *d->top, "scores", err));
    EXF_TRY(exf_mem_mul(&bytes, n, 2 * sizeof(float) + 1, "scores", err));
    EXF_TRY(exf_mem_mul(&bytes, bytes, s->n_lanes, "scores", err));
    EXF_TRY(b->gpu->alloc_staging(&d->pinned, bytes, "scores", err));
    float *numbers = d->pinned;
    unsigned char *same = (unsigned char *)(numbers + 2 * s->n_lanes * n);
    for (size_t i = 0; i < s->n_lanes; i++) {
        lane_scores *l = &s->lane[i];
        free_arrays(l);
        l->nll = numbers + 2 * i * n;
        l->kl = l->nll + n;
        l->same = same + i * n;
        l->is_pinned = 1;
    }
out:
    return rc;
}

exf_code exf_scores_begin(exf_scores *s, int n_workers, const exf_backend *gpu, exf_err *err)
{
    exf_code rc;
    size_t n, rows = (size_t)exf_head_rows(&exf_backend_cpu);
    EXF_TRY(exf_mem_new(&s->worker, (size_t)n_workers, sizeof *s->worker, "scores", err));
    s->n_workers = n_workers;
    EXF_TRY(exf_mem_mul(&n, rows, (size_t)s->vocab, "log-probabilities", err));
    for (int i = 0; i < n_workers; i++) { /* not zeroed: a pass on a device never touches these pages */
        EXF_TRY(exf_mem_raw(&s->worker[i].log_p, n, sizeof(float), "log-probabilities", err));
        EXF_TRY(exf_mem_raw(&s->worker[i].p, n, sizeof(float), "log-probabilities", err));
        EXF_TRY(exf_mem_raw(&s->worker[i].top, rows, sizeof(int), "log-probabilities", err));
    }
    if (gpu) EXF_TRY(open_device(s, gpu, err));
out:
    return rc;
}

/* Scores row i of a block of logits, of token `row`, whose next token is `next`. */
static void score_row(lane_scores *l, worker_block *w, int i, const float *logits, size_t row, int32_t next)
{
    int n = l->all->vocab, top;
    float *log_p = w->log_p + (size_t)i * (size_t)n, *p = w->p + (size_t)i * (size_t)n;
    if (l->number == 0) {
        exf_log_softmax_cpu(log_p, p, logits, n, &w->top[i]);
        l->nll[row] = -log_p[next];
        l->same[row] = 1;
        return;
    }
    double log_sum, kl = exf_divergence_cpu(log_p, p, logits, n, &log_sum, &top);
    l->nll[row] = (float)(log_sum - (double)logits[next]);
    l->kl[row] = (float)(kl > 0 ? kl : kl <= 0 ? 0 : kl); /* rounding may fall below 0; NaN stays */
    l->same[row] = top == w->top[i];
}

exf_code exf_scores_logits(void *lane, const exf_logits_block *b, exf_err *err)
{
    lane_scores *l = lane;
    const exf_batch *batch = l->all->batch;
    const device_block *d = &l->all->device;
    size_t end = batch->span[b->sequence].offset + (size_t)batch->span[b->sequence].n_tokens, left = end - 1 - b->row;
    int n = left < (size_t)b->n_tokens ? (int)left : b->n_tokens; /* the sequence's last row has no next token */
    (void)err;
    if (b->q) {
        exf_score_call c = {.logits = b->logits, .next = b->next, .n_rows = n, .n = b->vocab, .first = l->number == 0,
                            .log_p = d->log_p, .top = d->top, .nll = l->nll + b->row, .kl = l->kl + b->row,
                            .same = l->same + b->row};
        d->b->gpu->score_rows(b->q, &c);
        return EXF_OK;
    }
    for (int i = 0; i < n; i++)
        score_row(l, &l->all->worker[b->worker], i, b->logits + (size_t)i * (size_t)b->vocab, b->row + (size_t)i,
                  batch->ids[b->row + (size_t)i + 1]);
    return EXF_OK;
}

/* ---- of several ranks ------------------------------------------------------------------ */

enum { ARRAYS = 3 };

/* Replaces a lane's arrays, on rank 0, by those of all ranks. */
static exf_code gather_lane(lane_scores *l, size_t n, exf_ranks *ranks, exf_err *err)
{
    exf_ranks_gathered g[ARRAYS] = {{.data = NULL}};
    exf_code rc;
    EXF_TRY(exf_ranks_gather(ranks, l->nll, n * sizeof *l->nll, &g[0], err));
    EXF_TRY(exf_ranks_gather(ranks, l->kl, n * sizeof *l->kl, &g[1], err));
    EXF_TRY(exf_ranks_gather(ranks, l->same, n * sizeof *l->same, &g[2], err));
    if (!exf_ranks_first(ranks)) goto out;
    free_arrays(l);
    l->nll = (void *)g[0].data;
    l->kl = (void *)g[1].data;
    l->same = (void *)g[2].data;
    l->is_pinned = 0;
    for (int i = 0; i < ARRAYS; i++) g[i].data = NULL;
out:
    for (int i = 0; i < ARRAYS; i++) exf_ranks_gathered_free(&g[i]);
    return rc;
}

exf_code exf_scores_gather(exf_scores *s, exf_ranks *ranks, const exf_batch *whole, exf_err *err)
{
    size_t n = s->batch->n_tokens;
    exf_code rc = EXF_OK;
    if (!ranks) return EXF_OK;
    for (size_t i = 0; i < s->n_lanes; i++) EXF_TRY(gather_lane(&s->lane[i], n, ranks, err));
    if (exf_ranks_first(ranks)) s->batch = whole;
out:
    return rc;
}

/* ---- sums -------------------------------------------------------------------------- */

static int rising(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns the nearest-rank quantile: the least value that at least a share q of all values do not exceed. */
static double find_quantile(const float *sorted, uint64_t n, double q)
{
    double rank = ceil(q * (double)n);
    return (double)sorted[rank < 1 ? 0 : (uint64_t)rank - 1];
}

typedef struct {
    double nll, kl;
    uint64_t n, same;
    float *kls;
} totals;

static exf_code add_sequence(totals *t, const lane_scores *l, size_t sequence, exf_err *err)
{
    const exf_span *span = &l->all->batch->span[sequence];
    for (int i = 0; i + 1 < span->n_tokens; i++) {
        size_t row = span->offset + (size_t)i;
        if (!isfinite(l->nll[row]) || !isfinite(l->kl[row]))
            return exf_fail(err, EXF_NUMERIC,
                            "sequence %zu at position %d: the next token's negative log-likelihood is %g and its KL %g", sequence,
                            i, (double)l->nll[row], (double)l->kl[row]);
        t->nll += (double)l->nll[row];
        t->kl += (double)l->kl[row];
        t->same += l->same[row];
        t->kls[t->n++] = l->kl[row];
    }
    return EXF_OK;
}

exf_code exf_scores_sum(const exf_scores *s, size_t lane, const int32_t *group, int which, exf_quality *out, exf_err *err)
{
    totals t = {.n = 0};
    exf_code rc;
    memset(out, 0, sizeof *out);
    EXF_TRY(exf_mem_new(&t.kls, s->batch->n_tokens, sizeof *t.kls, "sorted scores", err));
    for (size_t i = 0; i < s->batch->n_sequences; i++)
        if (!group || which < 0 || group[i] == which) EXF_TRY(add_sequence(&t, &s->lane[lane], i, err));
    double n = (double)t.n;
    qsort(t.kls, t.n, sizeof *t.kls, rising);
    if (t.n)
        *out = (exf_quality){
            .tokens = t.n, .ppl = exp(t.nll / n), .kl_mean = t.kl / n, .ppl_se = NAN, .kl_se = NAN,
            .kl_median = find_quantile(t.kls, t.n, 0.5), .kl_p90 = find_quantile(t.kls, t.n, 0.9),
            .kl_p99 = find_quantile(t.kls, t.n, 0.99), .kl_p999 = find_quantile(t.kls, t.n, 0.999),
            .kl_max = find_quantile(t.kls, t.n, 1), .top1 = (double)t.same / n,
        };
    if (!isfinite(out->ppl))
        rc = exf_fail(err, EXF_NUMERIC,
                      "the mean negative log-likelihood of the next token is %g: no perplexity can be told of that",
                      t.nll / n);
out:
    exf_mem_free(t.kls);
    return rc;
}

void exf_scores_cluster_sums(const exf_scores *s, size_t lane, const size_t *cluster_of, double *nll, double *kl)
{
    const lane_scores *l = &s->lane[lane];
    for (size_t i = 0; i < s->batch->n_sequences; i++) {
        const exf_span *span = &s->batch->span[i];
        for (size_t row = span->offset; row + 1 < span->offset + (size_t)span->n_tokens; row++) {
            nll[cluster_of[i]] += (double)l->nll[row];
            kl[cluster_of[i]] += (double)l->kl[row];
        }
    }
}

uint64_t exf_scores_memory(const exf_batch *batch, size_t n_lanes, int vocab, int n_workers)
{
    return (uint64_t)n_lanes * batch->n_tokens * 9u +
           (uint64_t)n_workers * 2u * (uint64_t)exf_head_rows(&exf_backend_cpu) * (uint64_t)vocab * sizeof(float);
}

/* ---- errors of layers ---------------------------------------------------------------------- */

exf_code exf_layer_errors_begin(exf_layer_errors *e, int n_layers, int n_workers, const exf_backend *gpu, exf_err *err)
{
    exf_code rc;
    size_t n = (size_t)n_layers * (size_t)n_workers;
    *e = (exf_layer_errors){.n_layers = n_layers, .n_workers = n_workers, .device = gpu};
    EXF_TRY(exf_mem_new(&e->error_sq, n, sizeof *e->error_sq, "layer errors", err));
    EXF_TRY(exf_mem_new(&e->norm_sq, n, sizeof *e->norm_sq, "layer errors", err));
    if (gpu) EXF_TRY(gpu->alloc(&e->sums, 1, sizeof *e->sums, "layer errors", err));
    if (gpu) EXF_TRY(gpu->gpu->alloc_staging((void *)&e->fetched, sizeof *e->fetched, "layer errors", err));
out:
    return rc;
}

exf_code exf_layer_errors_add(exf_layer_errors *e, const exf_probe_block *b, exf_err *err)
{
    size_t at = (size_t)b->worker * (size_t)e->n_layers + (size_t)b->moe_index;
    if (b->q) {
        if (!e->q) e->device->zero(b->q, e->sums, sizeof *e->sums);
        e->q = b->q;
        e->device->gpu->output_errors(b->q, e->sums, b->original, b->rewritten, b->n_tokens, b->d_model);
        return EXF_OK;
    }
    for (int t = 0; t < b->n_tokens; t++) {
        const float *y = b->original + (size_t)t * (size_t)b->d_model, *z = b->rewritten + (size_t)t * (size_t)b->d_model;
        double error_sq = 0, norm_sq = 0;
        for (int i = 0; i < b->d_model; i++) {
            double d = (double)z[i] - (double)y[i];
            error_sq += d * d;
            norm_sq += (double)y[i] * (double)y[i];
        }
        if (!exf_exact_fits(error_sq) || !exf_exact_fits(norm_sq))
            return exf_fail(
                err, EXF_NUMERIC,
                "layer %d, sequence %zu, position %d: squared output %g, squared error %g, outside the range of the sums", b->layer,
                b->sequence, b->position + t, norm_sq, error_sq);
        exf_exact_add(&e->error_sq[at], error_sq);
        exf_exact_add(&e->norm_sq[at], norm_sq);
    }
    return EXF_OK;
}

exf_code exf_layer_errors_at(exf_layer_errors *e, const exf_moment *m, exf_err *err)
{
    if (e->q && m->at == EXF_AT_LAYER_END) e->device->gpu->carry(e->q, e->fetched, e->sums, sizeof *e->sums);
    if (!e->q || m->at != EXF_AT_LAYER_DONE) return EXF_OK;
    exf_output_errors sums = *e->fetched;
    e->q = NULL;
    if (sums.out_of_range)
        return exf_fail(err, EXF_NUMERIC,
                        "layer %d: the squared outputs or errors of %llu tokens are outside the range of the sums", m->layer,
                        (unsigned long long)sums.out_of_range);
    exf_output_errors_read(&sums, &e->error_sq[m->moe_index], &e->norm_sq[m->moe_index]);
    return EXF_OK;
}

/* Adds up a MoE layer's sums over all workers. */
static void merge_workers(const exf_layer_errors *e, int moe_index, exf_exact *error_sq, exf_exact *norm_sq)
{
    *error_sq = *norm_sq = (exf_exact){{0, 0, 0}};
    for (int w = 0; w < e->n_workers; w++) {
        exf_exact_merge(error_sq, &e->error_sq[w * e->n_layers + moe_index]);
        exf_exact_merge(norm_sq, &e->norm_sq[w * e->n_layers + moe_index]);
    }
}

void exf_layer_errors_sums(const exf_layer_errors *e, int n, exf_exact *error_sq, exf_exact *norm_sq)
{
    for (int l = 0; l < n; l++) merge_workers(e, l, &error_sq[l], &norm_sq[l]);
}

void exf_layer_errors_set(exf_layer_errors *e, int n, const exf_exact *error_sq, const exf_exact *norm_sq)
{
    for (int w = 0; w < e->n_workers; w++) /* the first worker has them, the others nothing */
        for (int l = 0; l < n; l++) {
            e->error_sq[w * e->n_layers + l] = w ? (exf_exact){{0, 0, 0}} : error_sq[l];
            e->norm_sq[w * e->n_layers + l] = w ? (exf_exact){{0, 0, 0}} : norm_sq[l];
        }
}

double exf_layer_errors_value(const exf_layer_errors *e, int moe_index)
{
    exf_exact error_sq, norm_sq;
    merge_workers(e, moe_index, &error_sq, &norm_sq);
    double norm = exf_exact_value(&norm_sq);
    return norm > 0 ? sqrt(exf_exact_value(&error_sq) / norm) : 0;
}

void exf_layer_errors_free(exf_layer_errors *e)
{
    if (e->device) e->device->free(e->sums);
    if (e->device) e->device->gpu->free_staging(e->fetched);
    exf_mem_free(e->error_sq);
    exf_mem_free(e->norm_sq);
    memset(e, 0, sizeof *e);
}

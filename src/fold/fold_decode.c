/* fold_decode.c - applies D and sere to decode positions, step by step. */
#include "fold/fold_rewriter_internal.h"

#include "base/thread_pool.h"
#include "kernels/fold/fold_cpu.h"

#include <string.h>

/* A value below every similarity; similarities are in [-1, 1]. */
static const float nothing = -2.0f;

/* Marks the experts of the first S slots of every row; routes are sorted by falling weight. */
static void mark_primary(unsigned char *primary, const exf_fold_routes *io, int n_experts, int s)
{
    const int32_t *ids = io->ids;
    memset(primary, 0, (size_t)n_experts);
    for (int row = 0; row < io->rows; row++)
        for (int k = 0; k < s && k < io->width; k++)
            if (ids[row * io->width + k] >= 0) primary[ids[row * io->width + k]] = 1;
}

/* Returns the primary expert most similar to e, ties to the lower number; -1 if none is marked. */
static int most_similar(const unsigned char *primary, const float *similarity, int n_experts, float *how)
{
    int best = -1;
    *how = nothing;
    for (int t = 0; t < n_experts; t++)
        if (primary[t] && similarity[t] > *how) {
            best = t;
            *how = similarity[t];
        }
    return best;
}

/* Re-routes the tokens of every expert that is not primary to the most similar primary one, if their
 * similarity is above rho. */
static void reroute(const exf_fold_rewriter *f, const exf_fold_routes *io, int index)
{
    int n_experts = (int)f->t->shape.n_experts, done[EXF_FOLD_MAX_E];
    unsigned char primary[EXF_FOLD_MAX_E];
    int32_t *ids = io->ids;
    const float *similarity = f->t->similarity + (size_t)index * (size_t)n_experts * (size_t)n_experts;
    mark_primary(primary, io, n_experts, f->v->decode_options.pool);
    for (int e = 0; e < n_experts; e++) done[e] = -1;
    for (int i = 0; i < io->rows * io->width; i++) {
        int e = ids[i];
        if (e < 0 || primary[e]) continue;
        if (done[e] < 0) {
            float how;
            int to = most_similar(primary, similarity + (size_t)e * (size_t)n_experts, n_experts, &how);
            done[e] = to >= 0 && (double)how > f->v->rho ? to : e;
        }
        ids[i] = done[e];
    }
}

/* A thread's scratch for one decode step. */
typedef struct {
    const exf_fold_rewriter *f;
    const exf_routes *routes;
    exf_fold_tables tables;
    int index;
    int16_t target[EXF_FOLD_MAX_E]; /* of a static pool with joint weights */
} decode_job;

static exf_fold_status fold_step(const decode_job *j, const exf_fold_routes *io, size_t first, int worker)
{
    const exf_fold_rewriter *f = j->f;
    const exf_fold_tables *t = &j->tables;
    size_t e = (size_t)f->t->shape.n_experts, at = (size_t)j->index * e;
    if (f->v->by_router) return exf_fold_by_router(f, j->routes, io, f->schedule->row + first, t, j->index, worker);
    if (f->v->decode == EXF_DECODE_SERE) {
        reroute(f, io, j->index);
        return EXF_FOLD_OK;
    }
    if (f->pool && f->v->decode_projector->apply == EXF_APPLY_JOINTLY) {
        exf_fold_join_rows(io, j->target, t, exf_fold_ridge(f->v->decode_options.ridge));
        return EXF_FOLD_OK;
    }
    if (f->v->decode_projector->apply == EXF_APPLY_JOINTLY) return exf_fold_decode_joint_cpu(io, t, &f->v->decode_options);
    if (f->v->decode == EXF_DECODE_DYNAMIC) return exf_fold_decode_cpu(io, t, &f->v->decode_options);
    return exf_fold_decode_static_cpu(io, f->pool->target_ids + at, f->pool->target_scale + at, (int)e);
}

/* Drops routes outside a static pool: they get the pool's targets with weight 0. */
static void drop_outside(const exf_fold_rewriter *f, const exf_fold_routes *io, const int32_t *before)
{
    const int32_t *ids = io->ids;
    float *w = io->weights;
    if (f->v->decode != EXF_DECODE_STATIC || !f->v->decode_options.drop) return;
    for (int i = 0; i < io->rows * io->width; i++)
        if (ids[i] != before[i]) w[i] = 0;
}

static exf_fold_status rewrite_step(const decode_job *j, size_t step, int worker)
{
    const exf_fold_rewriter *f = j->f;
    const exf_routes *r = j->routes;
    const exf_decode_schedule *s = f->schedule;
    size_t k = (size_t)r->top_k, from = s->first[step], n = s->first[step + 1] - from;
    int32_t *ids = f->ids + from * k, *before = f->ids + (s->first[s->n_steps] + from) * k;
    float *weights = f->weights + from * k;
    exf_fold_routes io = {.ids = ids, .weights = weights, .rows = (int)n, .width = r->top_k};
    for (size_t i = 0; i < n; i++) {
        memcpy(ids + i * k, r->ids + s->row[from + i] * k, k * sizeof *ids);
        memcpy(weights + i * k, r->weights + s->row[from + i] * k, k * sizeof *weights);
    }
    memcpy(before, ids, n * k * sizeof *ids);
    exf_fold_status status = fold_step(j, &io, from, worker);
    drop_outside(f, &io, before);
    for (size_t i = 0; status == EXF_FOLD_OK && i < n; i++) {
        memcpy(r->ids + s->row[from + i] * k, ids + i * k, k * sizeof *ids);
        memcpy(r->weights + s->row[from + i] * k, weights + i * k, k * sizeof *weights);
    }
    return status;
}

enum { STEPS = 16 }; /* steps that a thread takes at a time, since a step is short */

static exf_code rewrite_steps(void *self, size_t i, int worker, exf_err *err)
{
    const decode_job *j = self;
    size_t step = i * STEPS, n = j->f->schedule->n_steps, end = n - step < STEPS ? n : step + STEPS;
    exf_fold_status status = EXF_FOLD_OK;
    for (; status == EXF_FOLD_OK && step < end; step++) status = rewrite_step(j, step, worker);
    return exf_fold_failed(j->f, status, EXF_FOLD_PHASE_DECODE, err);
}

exf_code exf_fold_decode_routes(const exf_fold_rewriter *f, const exf_routes *r, int index, exf_err *err)
{
    decode_job j = {f, r, exf_fold_rewriter_tables(f, index, f->decode_coeff, f->decode_loss), index, {0}};
    if (f->pool && f->v->decode_projector->apply == EXF_APPLY_JOINTLY) exf_fold_static_targets(f, &j.tables, index, j.target);
    return exf_parallel_for((f->schedule->n_steps + STEPS - 1) / STEPS, f->schedule->threads, rewrite_steps, &j, err);
}

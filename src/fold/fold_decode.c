/* fold_decode.c - folds at decode positions: the schedule of steps, and D and sere applied step by step. */
#include "fold/fold_rewriter_internal.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "kernels/fold/fold_cpu.h"
#include "kernels/moe/moe.h"

#include <omp.h>
#include <string.h>

/* ---- the schedule ---------------------------------------------------------------------------- */

int exf_decode_schedule_prefill(const exf_decode_schedule *s, int n)
{
    return s->prefill_tokens == 0 || s->prefill_tokens > n ? n : s->prefill_tokens;
}

/* Adds steps and rows of the batch of sequences [from, to); only counts them while s->row is NULL. */
static void add_batch(exf_decode_schedule *s, size_t from, size_t to, size_t *rows)
{
    int longest = 0;
    for (size_t i = from; i < to; i++)
        if (s->batch->span[i].n_tokens > longest) longest = s->batch->span[i].n_tokens;
    for (int q = s->prefill_tokens; q < longest; q++) {
        if (s->first) s->first[s->n_steps] = *rows;
        s->n_steps++;
        for (size_t i = from; i < to; i++) {
            if (q >= s->batch->span[i].n_tokens) continue;
            if (s->row) s->row[*rows] = s->batch->span[i].offset + (size_t)q;
            ++*rows;
        }
    }
    s->n_batches++;
    if ((int)(to - from) > s->widest) s->widest = (int)(to - from);
}

/* Adds the steps of all batches; returns the number of their rows. */
static size_t walk_batches(exf_decode_schedule *s)
{
    size_t rows = 0, n = s->batch->n_sequences;
    s->n_batches = s->n_steps = 0;
    s->widest = 0;
    for (size_t from = 0, to; from < n; from = to) {
        to = n - from > (size_t)s->size ? from + (size_t)s->size : n;
        add_batch(s, from, to, &rows);
    }
    return rows;
}

exf_code exf_decode_schedule_new(exf_decode_schedule *s, const exf_batch *batch, int size, int prefill_tokens, int threads,
                                 exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    s->batch = batch;
    s->size = size;
    s->prefill_tokens = prefill_tokens;
    s->threads = threads;
    size_t rows = walk_batches(s);
    EXF_TRY(exf_mem_new(&s->first, s->n_steps + 1, sizeof *s->first, "decode steps", err));
    EXF_TRY(exf_mem_new(&s->row, rows, sizeof *s->row, "decode steps", err));
    s->first[s->n_steps] = rows;
    walk_batches(s);
out:
    if (rc != EXF_OK) exf_decode_schedule_free(s);
    return rc;
}

void exf_decode_schedule_mark(const exf_decode_schedule *s, unsigned char *mark)
{
    for (size_t i = 0; i < s->batch->n_sequences; i++) {
        const exf_span *span = &s->batch->span[i];
        memset(mark + span->offset, 1, (size_t)exf_decode_schedule_prefill(s, span->n_tokens));
    }
}

void exf_decode_schedule_free(exf_decode_schedule *s)
{
    exf_mem_free(s->first);
    exf_mem_free(s->row);
    memset(s, 0, sizeof *s);
}

/* ---- targets ---------------------------------------------------------------------------------- */

/* A value below every similarity; similarities are in [-1, 1]. */
static const float below_all = -2.0f;

/* Re-routes slots after a token's first S, which are primary since routes are sorted by falling weight: where their expert is not
 * primary of another token, to the most similar primary expert, ties to the lower number; with a threshold rho above 0 only where
 * their similarity is at least rho. */
static void reroute_tokens(const exf_fold_rewriter *f, const exf_fold_routes *io, int index)
{
    int n_experts = (int)f->t->shape.n_experts, done[EXF_FOLD_MAX_E];
    unsigned char primary[EXF_FOLD_MAX_E] = {0};
    int32_t *ids = io->ids;
    const float *similarity = f->t->similarity + (size_t)index * (size_t)n_experts * (size_t)n_experts, rho = (float)f->v->rho;
    for (int row = 0; row < io->rows; row++)
        for (int k = 0; k < f->v->decode_options.pool && k < io->width; k++)
            if (ids[row * io->width + k] >= 0) primary[ids[row * io->width + k]] = 1;
    for (int e = 0; e < n_experts; e++) done[e] = -1;
    for (int i = 0; i < io->rows * io->width; i++) {
        int e = ids[i], to = -1;
        if (e < 0 || primary[e]) continue;
        const float *mine = similarity + (size_t)e * (size_t)n_experts;
        for (int t = 0; done[e] < 0 && t < n_experts; t++)
            if (primary[t] && mine[t] > (to < 0 ? below_all : mine[to])) to = t;
        if (done[e] < 0) done[e] = to < 0 || (rho > 0 && mine[to] < rho) ? e : to;
        ids[i] = done[e];
    }
}

/* Fills the router's scores of a step: choice [rows, E] and gate [rows, E]. */
static exf_fold_scores fill_scores(const exf_fold_rewriter *f, const exf_routes *r, int rows, const size_t *row, int worker)
{
    size_t e = (size_t)r->n_experts, room = (size_t)f->schedule->widest * e;
    float *choice = f->scores + 2 * (size_t)worker * room, *gate = choice + room;
    double score[EXF_FOLD_MAX_E];
    for (int i = 0; i < rows; i++) {
        exf_router_scores_cpu(score, r->logits + row[i] * e, f->a->router.score, r->n_experts);
        for (size_t j = 0; j < e; j++) {
            gate[(size_t)i * e + j] = (float)score[j];
            choice[(size_t)i * e + j] = (float)(r->bias ? score[j] + (double)r->bias[j] : score[j]);
        }
    }
    return (exf_fold_scores){.choice = choice, .gate = gate, .type = EXF_FOLD_F32};
}

exf_fold_stand_in_options exf_fold_stand_ins_of(const exf_fold_rewriter *f)
{
    const exf_fold_decode_options *d = &f->v->decode_options;
    exf_fold_stand_in_weights weights = f->v->stand_in_weights;
    if (weights == EXF_FOLD_STAND_INS_ROUTE && !f->a->router.renormalise) weights = EXF_FOLD_STAND_INS_GATE;
    return (exf_fold_stand_in_options){.pool = d->pool, .importance = d->importance, .weights = weights, .ridge = d->ridge};
}

exf_fold_decode_options exf_fold_decode_options_of(const exf_fold_rewriter *f, const int32_t *members)
{
    exf_fold_decode_options o = f->v->decode_options;
    if (!members) return o;
    o.size = EXF_FOLD_SIZED(exf_fold_decode_options); /* members are of options with a size, whose numbers have no defaults */
    o.max_loss = exf_fold_max_loss(o.max_loss);
    o.ridge = exf_fold_ridge(o.ridge);
    o.members = members;
    return o;
}

/* Returns the static pool's experts of a layer; NULL: each step has its own. */
static const int32_t *members_of(const exf_fold_rewriter *f, int index)
{
    return f->pool ? f->pool->members + (size_t)index * (size_t)f->pool->size : NULL;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* What the steps of a layer share. */
typedef struct {
    const exf_fold_rewriter *f;
    const exf_routes *routes;
    exf_fold_tables tables;
    int index;
} decode_job;

/* The streams of these draws begin after those of random prefill folds, which are the layers' numbers. */
enum { DECODE_STREAM = EXF_MAX_LAYERS };

/* Gives each route outside the pool to a member drawn by (seed, layer, slot of the run), with that pair's scalar; weight 0 where
 * the pair has none.  The first row of `io` is row `first` of the schedule. */
static exf_fold_status fold_at_random(const decode_job *j, const exf_fold_routes *io, size_t first)
{
    const exf_fold_rewriter *f = j->f;
    const exf_decode_schedule *s = f->schedule;
    int32_t *ids = io->ids;
    float *w = io->weights;
    exf_fold_decode_options o;
    int32_t member[EXF_FOLD_MAX_E];
    unsigned char inside[EXF_FOLD_MAX_E] = {0};
    exf_fold_pool pool;
    exf_fold_status status = exf_fold_check_decode(&o, io, &j->tables, &f->v->decode_options, 0);
    if (status != EXF_FOLD_OK || (!f->pool && !exf_fold_choose_pool(&pool, io, &j->tables, &o))) return status;
    for (int i = 0; i < o.pool; i++) {
        member[i] = f->pool ? f->pool->members[(size_t)j->index * (size_t)o.pool + (size_t)i] : pool.expert[i];
        inside[member[i]] = 1;
    }
    for (int i = 0; i < io->rows * io->width; i++) {
        if (ids[i] < 0 || inside[ids[i]]) continue;
        size_t slot = (s->first_row + s->row[first + (size_t)(i / io->width)]) * (size_t)io->width + (size_t)(i % io->width);
        uint64_t stream = DECODE_STREAM + (uint64_t)j->routes->layer;
        int32_t to = member[exf_rng_below((uint64_t)o.pool, (uint64_t)f->v->decode_seed, stream, slot)];
        size_t cell = (size_t)ids[i] * (size_t)j->tables.n_experts + (size_t)to;
        w[i] = j->tables.loss[cell] < EXF_LOSS_NEVER ? w[i] * j->tables.coeff[cell] : 0.0f;
        ids[i] = to;
    }
    return EXF_FOLD_OK;
}

exf_steps_form exf_fold_decode_form_of(const exf_variant *v)
{
    if (v->by_router) return EXF_STEPS_BY_ROUTER;
    if (v->decode_projector->apply == EXF_APPLY_JOINTLY) return EXF_STEPS_JOINED;
    return v->decode == EXF_DECODE_STATIC ? EXF_STEPS_REMAPPED : EXF_STEPS_BY_PAIR;
}

/* Folds the rows of a step, the first of which is row `first` of the schedule. */
static exf_fold_status fold_step(const decode_job *j, const exf_fold_routes *io, size_t first, int worker)
{
    const exf_fold_rewriter *f = j->f;
    const exf_fold_tables *t = &j->tables;
    exf_fold_decode_options o = exf_fold_decode_options_of(f, members_of(f, j->index));
    exf_fold_stand_in_options stand_ins = exf_fold_stand_ins_of(f);
    exf_fold_scores scores;
    size_t e = (size_t)f->t->shape.n_experts, at = (size_t)j->index * e;
    if (f->v->outside == EXF_OUTSIDE_RANDOM) return fold_at_random(j, io, first);
    if (f->v->decode == EXF_DECODE_SERE) {
        reroute_tokens(f, io, j->index);
        return EXF_FOLD_OK;
    }
    switch (exf_fold_decode_form_of(f->v)) {
    case EXF_STEPS_BY_ROUTER:
        scores = fill_scores(f, j->routes, io->rows, f->schedule->row + first, worker);
        return exf_fold_decode_stand_ins_cpu(io, &scores, o.members, t, &stand_ins);
    case EXF_STEPS_JOINED: return exf_fold_decode_joint_cpu(io, t, &o);
    case EXF_STEPS_REMAPPED:
        return exf_fold_decode_static_cpu(io, f->pool->target_ids + at, f->pool->target_scale + at, (int)e);
    case EXF_STEPS_BY_PAIR: break;
    }
    return exf_fold_decode_cpu(io, t, &o);
}

/* Multiplies a token's kept weights w [K] so that they have the sum of all, before [K]; where none is kept they stay. */
static void renormalise(float *w, const float *before, const int32_t *ids, size_t k)
{
    float all = 0, kept = 0;
    for (size_t i = 0; i < k; i++) {
        all += ids[i] >= 0 ? before[i] : 0;
        kept += ids[i] >= 0 ? w[i] : 0;
    }
    for (size_t i = 0; kept > 0 && i < k; i++) w[i] *= all / kept;
}

static exf_fold_status rewrite_step(const decode_job *j, size_t step, int worker)
{
    const exf_fold_rewriter *f = j->f;
    const exf_routes *r = j->routes;
    const exf_decode_schedule *s = f->schedule;
    size_t k = (size_t)r->top_k, from = s->first[step], n = s->first[step + 1] - from;
    int32_t *ids = f->ids + from * k, *before = f->ids + (s->first[s->n_steps] + from) * k;
    float *weights = f->weights + from * k;
    float *norms = f->step_norms ? f->step_norms + from * k : NULL;
    exf_fold_routes io = {.ids = ids, .weights = weights, .rows = (int)n, .width = r->top_k, .norms = norms};
    for (size_t i = 0; i < n; i++) {
        if (norms) exf_fold_norms_of(f, s->row[from + i], r->ids + s->row[from + i] * k, norms + i * k, k);
        memcpy(ids + i * k, r->ids + s->row[from + i] * k, k * sizeof *ids);
        memcpy(weights + i * k, r->weights + s->row[from + i] * k, k * sizeof *weights);
    }
    memcpy(before, ids, n * k * sizeof *ids);
    exf_fold_status status = fold_step(j, &io, from, worker);
    for (size_t i = 0; f->v->decode == EXF_DECODE_STATIC && f->v->decode_options.drop && i < n * k; i++)
        if (ids[i] != before[i]) weights[i] = 0; /* outside a static pool: the pool's targets, with weight 0 */
    for (size_t i = 0; status == EXF_FOLD_OK && i < n; i++) {
        size_t at = s->row[from + i] * k;
        if (f->v->outside == EXF_OUTSIDE_RENORMALISED) renormalise(weights + i * k, r->weights + at, ids + i * k, k);
        memcpy(r->ids + at, ids + i * k, k * sizeof *ids);
        memcpy(r->weights + at, weights + i * k, k * sizeof *weights);
    }
    return status;
}

enum { STEPS = 16 }; /* steps that a thread takes at a time, since a step is short */

exf_code exf_fold_decode_routes(const exf_fold_rewriter *f, const exf_routes *r, int index, exf_err *err)
{
    decode_job j = {f, r, exf_fold_rewriter_tables(f, index, f->decode_coeff, f->decode_loss), index};
    size_t n = (f->schedule->n_steps + STEPS - 1) / STEPS;
    exf_loop loop = EXF_LOOP;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, f->schedule->threads))
    for (size_t i = 0; i < n; i++) {
        exf_err e;
        exf_fold_status status = EXF_FOLD_OK;
        if (!exf_loop_takes(&loop, i)) continue;
        for (size_t step = i * STEPS; status == EXF_FOLD_OK && step < (i + 1) * STEPS && step < f->schedule->n_steps; step++)
            status = rewrite_step(&j, step, omp_get_thread_num());
        if (exf_fold_failed(f, status, EXF_FOLD_PHASE_DECODE, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    return exf_loop_end(&loop, err);
}

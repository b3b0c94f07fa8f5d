/* route_fold_cuda.cu - folds and counts the routes of a run; see route_fold.h.
 *
 * Prefill: the kernel of exfold/fold.h writes [rows, K] to the workspace, and a thread a slot puts them in place.  Decode:
 * a thread a slot gathers the steps' rows, so that every step is contiguous; a block a step folds; a thread a row puts it back.
 *
 * Bytes of a prefill row: 8 K read, written, read and written; of a decode row 8 K six times.  16,384 rows of 8 are 4 or
 * 6 MB, 2 us at 4.2 TB/s; a step's block takes some microseconds of latency. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/fold/fold_cuda.cuh"
#include "kernels/fold/route_fold.h"

enum { THREADS = 256, MOST_STEPS = 65535 };

/* Returns routes of so many rows in the workspace; a tile has `tile` rows of K slots. */
static exf_fold_routes room_for(void *workspace, size_t tile, int top_k, size_t rows)
{
    exf_fold_routes r = {};
    r.ids = workspace;
    r.weights = (int32_t *)workspace + tile * (size_t)top_k;
    r.rows = (int)rows;
    r.width = top_k;
    return r;
}

/* ---- prefill ---------------------------------------------------------------------------------------- */

/* Puts the folded rows that are prefill in place of the routes; a slot without an expert weighs nothing. */
static __global__ void __launch_bounds__(THREADS)
    put_back(int32_t *ids, float *weights, const exf_fold_routes from, const unsigned char *prefill)
{
    size_t slot = (size_t)blockIdx.x * THREADS + threadIdx.x, row = slot / (unsigned)from.width;
    if (row >= (size_t)from.rows || (prefill && !prefill[row])) return;
    int id = ((const int32_t *)from.ids)[slot];
    ids[slot] = id;
    weights[slot] = id >= 0 ? ((const float *)from.weights)[slot] : 0.0f;
}

/* A row's routes by falling rank, equal ones in the order of slots; the first n have an expert. */
struct ranked_row {
    int n, id[EXF_FOLD_MAX_K];
    int32_t key[EXF_FOLD_MAX_K];
    float w[EXF_FOLD_MAX_K];
};

/* norms: of the row's routes; NULL: their experts' mean norms. */
static __device__ void rank_row(ranked_row *r, const int32_t *ids, const float *weights, const float *norms, int top_k,
                                const exf_fold_tables &t, exf_fold_rank rank)
{
    r->n = 0;
    for (int k = 0; k < top_k; k++) {
        int id = ids[k] >= 0 && ids[k] < t.n_experts ? ids[k] : -1, at = k;
        float w = weights[k], h = id < 0 || rank == EXF_FOLD_BY_SCORE ? 0.0f : norms ? norms[k] : t.norms[id];
        int32_t mine = id < 0 ? EXF_FOLD_NO_RANK : exf_fold_rank_key(rank, w, h);
        for (; at > 0 && mine > r->key[at - 1]; at--) {
            r->key[at] = r->key[at - 1];
            r->id[at] = r->id[at - 1];
            r->w[at] = r->w[at - 1];
        }
        r->key[at] = mine;
        r->id[at] = id;
        r->w[at] = w;
        r->n += id >= 0;
    }
}

/* Keeps routes of a row in each thread. */
static __global__ void __launch_bounds__(THREADS) keep_routes(const exf_run_routes routes, const exf_prefill_call c)
{
    size_t row = (size_t)blockIdx.x * THREADS + threadIdx.x, at = row * (size_t)routes.top_k;
    if (row >= routes.n_tokens || (c.prefill && !c.prefill[row])) return;
    ranked_row r;
    rank_row(&r, routes.ids + at, routes.weights + at, routes.norms ? routes.norms + at : nullptr, routes.top_k, c.tables,
             c.options.rank);
    int above = c.form == EXF_PREFILL_ABOVE, kept = min(r.n, c.keep);
    float factor = 1; /* of the kept weights, from sums in order of rank */
    if (!above) {
        float sum = 0, rest = 0;
        for (int i = 0; i < r.n; i++) sum = exf_addf(sum, r.w[i]);
        for (int i = 0; i < kept; i++) rest = exf_addf(rest, r.w[i]);
        factor = c.renorms && rest > 0 ? exf_divf(sum, rest) : 1.0f;
    }
    double all = 0;
    for (int i = 0; above && i < r.n; i++) all = exf_addd(all, (double)r.w[i]);
    for (int i = 0; i < routes.top_k; i++) {
        int runs = i < kept || (above && i < r.n && exf_fold_reaches(c.factor, (double)r.w[i], c.tau, all));
        routes.ids[at + (size_t)i] = runs ? r.id[i] : -1;
        routes.weights[at + (size_t)i] = runs ? exf_mulf(r.w[i], factor) : 0.0f;
    }
}

exf_fold_status exf_prefill_routes_cuda(exf_queue *q, const exf_run_routes *r, const exf_prefill_call *c)
{
    size_t k = (size_t)r->top_k, tile = exf_route_tile(r->n_tokens, c->widest, 0);
    if (c->form == EXF_PREFILL_KEPT || c->form == EXF_PREFILL_ABOVE) {
        if (r->top_k > EXF_FOLD_MAX_K) return EXF_FOLD_UNSUPPORTED;
        if (r->n_tokens)
            EXF_LAUNCH(q, "keep routes", keep_routes, exf_blocks(r->n_tokens, THREADS), THREADS, 0, *r, *c);
        return EXF_FOLD_OK;
    }
    for (size_t at = 0; at < r->n_tokens && q->err.code == EXF_OK; at += tile) {
        size_t rows = r->n_tokens - at < tile ? r->n_tokens - at : tile;
        exf_fold_routes in = {}, out = room_for(c->workspace, tile, r->top_k, rows);
        in.ids = r->ids + at * k;
        in.weights = r->weights + at * k;
        in.norms = r->norms ? r->norms + at * k : NULL;
        in.rows = (int)rows;
        in.width = r->top_k;
        exf_fold_status status =
            c->form == EXF_PREFILL_BY_BUDGET ? exf_fold_prefill_budget_cuda(&in, &out, NULL, &c->tables, &c->budget, q->stream)
            : c->form == EXF_PREFILL_JOINED  ? exf_fold_prefill_joint_cuda(&in, &out, &c->tables, &c->options, q->stream)
                                             : exf_fold_prefill_cuda(&in, &out, &c->tables, &c->options, q->stream);
        if (status != EXF_FOLD_OK) return status; /* the arguments are refused at the first tile or at none */
        EXF_LAUNCH(q, "put back routes", put_back, exf_blocks(rows * k, THREADS), THREADS, 0, r->ids + at * k, r->weights + at * k,
                   out, c->prefill ? c->prefill + at : NULL);
    }
    return EXF_FOLD_OK;
}

/* ---- decode ----------------------------------------------------------------------------------------- */

/* Returns the norm of slot k of a row: of the router's route to the same expert, which has moved where prefill was folded. */
static __device__ float norm_of(const exf_run_routes &of, size_t row, int k)
{
    size_t first = row * (size_t)of.top_k;
    if (!of.routed) return of.norms[first + (size_t)k];
    int slot = 0;
    while (slot + 1 < of.top_k && of.routed[first + (size_t)slot] != of.ids[first + (size_t)k]) slot++;
    return of.norms[first + (size_t)slot];
}

/* Copies the slots of row row[i] of the run to row i of `to`, with their norms where it has room for them. */
static __global__ void __launch_bounds__(THREADS)
    gather(const exf_fold_routes to, float *norms, const exf_run_routes of, const size_t *row)
{
    size_t slot = (size_t)blockIdx.x * THREADS + threadIdx.x, i = slot / (unsigned)to.width;
    if (i >= (size_t)to.rows) return;
    size_t from = row[i] * (size_t)to.width + slot % (unsigned)to.width;
    ((int32_t *)to.ids)[slot] = of.ids[from];
    ((float *)to.weights)[slot] = of.weights[from];
    if (norms) norms[slot] = norm_of(of, row[i], (int)(slot % (unsigned)to.width));
}

/* Puts row i of `from` back to row row[i] of the run. */
static __global__ void __launch_bounds__(THREADS)
    scatter(int32_t *ids, float *weights, const exf_fold_routes from, const size_t *row, int drops, int renorms)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    int k = from.width;
    if (i >= (size_t)from.rows) return;
    const int32_t *id = (const int32_t *)from.ids + i * (size_t)k;
    float *w = (float *)from.weights + i * (size_t)k, *to = weights + row[i] * (size_t)k, factor = 1;
    int32_t *to_id = ids + row[i] * (size_t)k;
    for (int s = 0; drops && s < k; s++)
        if (id[s] != to_id[s]) w[s] = 0;
    if (renorms) { /* w gets the sum of the row's weights, sums in order of slots */
        float all = 0, kept = 0;
        for (int s = 0; s < k; s++) {
            all = exf_addf(all, id[s] >= 0 ? to[s] : 0.0f);
            kept = exf_addf(kept, id[s] >= 0 ? w[s] : 0.0f);
        }
        factor = kept > 0 ? exf_divf(all, kept) : 1.0f;
    }
    for (int s = 0; s < k; s++) {
        to_id[s] = id[s];
        to[s] = renorms ? exf_mulf(w[s], factor) : w[s];
    }
}

/* Puts the router's choice among the pool in place of routes outside of it, after it has filled `scores`, [2, rows, E]. */
static exf_fold_status fold_by_router(exf_queue *q, const exf_fold_routes *io, const exf_fold_batches *b, const exf_steps_call *c,
                                      int n, float *scores)
{
    size_t rows = (size_t)io->rows;
    exf_fold_routes widest = *io;
    exf_fold_scores s = {};
    float *gate = c->bias ? scores + rows * (size_t)c->tables.n_experts : NULL;
    exf_router_scores_cuda(q, scores, gate, c->logits, c->steps.row + b->base, rows, c->score, c->bias, c->tables.n_experts);
    s.choice = scores;
    s.gate = gate;
    if (c->members) return exf_fold_decode_stand_ins_cuda(io, &s, c->members, &c->tables, &c->stand_ins, q->stream);
    widest.rows = c->steps.widest;
    return exf_fold_decode_stand_ins_batches_cuda(&widest, &s, b, n, &c->tables, &c->stand_ins, q->stream);
}

/* Folds n steps from step `at` on, whose rows are gathered in io; scores: room for those of the rows. */
static exf_fold_status fold_steps(exf_queue *q, const exf_fold_routes *io, const exf_steps_call *c, size_t at, int n, float *scores)
{
    exf_fold_routes widest = *io;
    exf_fold_batches b = {c->steps.first + at, c->steps.first_on_host[at]};
    if (c->form == EXF_STEPS_BY_ROUTER) return fold_by_router(q, io, &b, c, n, scores);
    if (c->form == EXF_STEPS_REMAPPED)
        return exf_fold_decode_static_cuda(io, c->target_ids, c->target_scale, c->tables.n_experts, q->stream);
    widest.rows = c->steps.widest;
    if (c->form == EXF_STEPS_JOINED)
        return exf_fold_decode_joint_batches_cuda(&widest, &b, n, &c->tables, &c->options, q->stream);
    return exf_fold_decode_batches_cuda(&widest, &b, n, &c->tables, &c->options, q->stream);
}

exf_fold_status exf_step_routes_cuda(exf_queue *q, const exf_run_routes *r, const exf_steps_call *c)
{
    const exf_route_steps *s = &c->steps;
    size_t tile = exf_route_tile(r->n_tokens, s->widest, c->form == EXF_STEPS_BY_ROUTER ? c->tables.n_experts : 0);
    for (size_t at = 0, end; at < s->n_steps && q->err.code == EXF_OK; at = end) {
        size_t first = s->first_on_host[at];
        end = at; /* the steps of a tile: at least one, since a tile has room for the widest */
        while (end < s->n_steps && end - at < MOST_STEPS && s->first_on_host[end + 1] - first <= tile) end++;
        size_t rows = s->first_on_host[end] - first;
        exf_fold_routes io = room_for(c->workspace, tile, r->top_k, rows);
        float *norms = r->norms ? (float *)io.weights + tile * (size_t)r->top_k : NULL;
        if (!rows) continue;
        io.norms = norms;
        EXF_LAUNCH(q, "gather routes", gather, exf_blocks(rows * (size_t)r->top_k, THREADS), THREADS, 0, io, norms, *r,
                   s->row + first);
        exf_fold_status status = fold_steps(q, &io, c, at, (int)(end - at), (float *)io.weights + 2 * tile * (size_t)r->top_k);
        if (status != EXF_FOLD_OK) return status;
        EXF_LAUNCH(q, "scatter routes", scatter, exf_blocks(rows, THREADS), THREADS, 0, r->ids, r->weights, io, s->row + first,
                   c->drops, c->renorms);
    }
    return EXF_FOLD_OK;
}

/* ---- what runs -------------------------------------------------------------------------------------- */

/* Adds a thread's number to *count, once a block. */
static __device__ void add_to_count(unsigned long long *count, unsigned mine)
{
    __shared__ unsigned sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    if (mine) atomicAdd(&sum, mine);
    __syncthreads();
    if (threadIdx.x == 0 && sum) atomicAdd(count, (unsigned long long)sum);
}

static __global__ void __launch_bounds__(THREADS)
    count_row_experts(unsigned long long *count, const int32_t *ids, size_t n_tokens, int k)
{
    size_t row = (size_t)blockIdx.x * THREADS + threadIdx.x;
    unsigned mine = 0;
    for (int i = 0; row < n_tokens && i < k; i++) {
        int32_t id = ids[row * (size_t)k + i];
        int fresh = id >= 0;
        for (int j = 0; j < i; j++) fresh &= ids[row * (size_t)k + j] != id;
        mine += fresh;
    }
    add_to_count(count, mine);
}

/* A block a step; its experts are bits in shared memory. */
static __global__ void __launch_bounds__(THREADS)
    count_step_experts(unsigned long long *count, const int32_t *ids, const size_t *first, const size_t *row, int k, int n_experts)
{
    extern __shared__ unsigned seen[];
    size_t from = first[blockIdx.x], slots = (first[blockIdx.x + 1] - from) * (size_t)k;
    int words = (n_experts + 31) / 32;
    unsigned mine = 0;
    for (int i = threadIdx.x; i < words; i += THREADS) seen[i] = 0;
    __syncthreads();
    for (size_t i = threadIdx.x; i < slots; i += THREADS) {
        int32_t id = ids[row[from + i / (unsigned)k] * (size_t)k + i % (unsigned)k];
        if (id >= 0 && id < n_experts) atomicOr(&seen[id / 32], 1u << id % 32);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < words; i += THREADS) mine += __popc(seen[i]);
    add_to_count(count, mine);
}

static __global__ void __launch_bounds__(THREADS) count_slots(unsigned long long *count, const int32_t *ids, size_t n)
{
    unsigned mine = 0;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) mine += ids[i] >= 0;
    add_to_count(count, mine);
}

void exf_count_row_experts_cuda(exf_queue *q, uint64_t *count, const exf_run_routes *r)
{
    if (r->n_tokens)
        EXF_LAUNCH(q, "count experts", count_row_experts, exf_blocks(r->n_tokens, THREADS), THREADS, 0,
                   reinterpret_cast<unsigned long long *>(count), r->ids, r->n_tokens, r->top_k);
}

void exf_count_step_experts_cuda(exf_queue *q, uint64_t *count, const exf_run_routes *r, const exf_route_steps *s, int n_experts)
{
    size_t bytes = (size_t)(n_experts + 31) / 32 * sizeof(unsigned);
    if (s->n_steps)
        EXF_LAUNCH(q, "count experts", count_step_experts, (unsigned)s->n_steps, THREADS, bytes,
                   reinterpret_cast<unsigned long long *>(count), r->ids, s->first, s->row, r->top_k, n_experts);
}

void exf_count_slots_cuda(exf_queue *q, uint64_t *count, const int32_t *ids, size_t n)
{
    unsigned blocks = exf_blocks(n, THREADS * 8);
    if (n)
        EXF_LAUNCH(q, "count slots", count_slots, blocks < 1024 ? blocks : 1024, THREADS, 0,
                   reinterpret_cast<unsigned long long *>(count), ids, n);
}

/* ---- small copies ----------------------------------------------------------------------------------- */

template <class T> static __global__ void __launch_bounds__(THREADS) carry(T *to, const T *from, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) to[i] = from[i];
}

void exf_carry_cuda(exf_queue *q, void *to, const void *from, size_t bytes)
{
    enum { BLOCKS = 64 };
    size_t both = (size_t)to | (size_t)from | bytes, unit = both % 16 == 0 ? 16 : both % 4 == 0 ? 4 : 1;
    unsigned blocks = exf_blocks(bytes / unit, THREADS);
    blocks = blocks < BLOCKS ? blocks : BLOCKS;
    if (!bytes) return;
    if (unit == 16)
        EXF_LAUNCH(q, "carry", carry<uint4>, blocks, THREADS, 0, (uint4 *)to, (const uint4 *)from, bytes / 16);
    else if (unit == 4)
        EXF_LAUNCH(q, "carry", carry<uint32_t>, blocks, THREADS, 0, (uint32_t *)to, (const uint32_t *)from, bytes / 4);
    else
        EXF_LAUNCH(q, "carry", carry<unsigned char>, blocks, THREADS, 0, (unsigned char *)to, (const unsigned char *)from, bytes);
}

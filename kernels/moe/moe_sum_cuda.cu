/* moe_sum_cuda.cu - the sum of a block's outputs, and outputs of old routes; see moe.h.
 *
 * Sum: a block a token; a thread sums eight columns at a time where rows allow 16-byte loads, else one.  Bytes of a token:
 * K H outputs read, H of hidden read and written; K 8, H 2048, bf16 and 4096 tokens are 134 + 67 MB, 0.048 ms at 4.2 TB/s. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/moe/moe.h"

enum { THREADS = 256 };

/* Loads eight consecutive numbers of a matrix from element `at` on (a multiple of 8). */
static __device__ inline void load_eight(float (&v)[8], const exf_matrix &m, size_t at)
{
    if (m.number == EXF_NUMBER_BF16)
        exf_load8(v, static_cast<const uint16_t *>(m.p) + at);
    else
        exf_load8(v, static_cast<const float *>(m.p) + at);
}

/* Adds w * v to sum; each product and each sum is rounded. */
static __device__ inline void add_scaled(float (&sum)[8], float w, const float (&v)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = __fadd_rn(sum[i], __fmul_rn(w, v[i]));
}

/* The matrix and slot of a slot's term; false: it has none. */
static __device__ inline bool find_term(const exf_moe_sum_call &c, exf_matrix *m, size_t *slot)
{
    if (c.ids && c.ids[*slot] < 0) return false;
    int32_t from = c.source ? c.source[*slot] : (int32_t)*slot;
    *m = from == EXF_SOURCE_OTHER ? c.other : c.outputs;
    if (from >= 0) *slot = (size_t)from;
    return from != EXF_SOURCE_NONE;
}

/* Notes a hidden state that is not finite. */
static __device__ inline void watch(const exf_moe_sum_call &c, float v, size_t at)
{
    if (c.least && exf_not_finite(__float_as_uint(v)))
        atomicMin(reinterpret_cast<unsigned long long *>(c.least), (unsigned long long)c.base + at);
}

static __global__ void sum_eights(exf_moe_sum_call c)
{
    size_t t = blockIdx.x, row = t * c.d_model;
    float v[8];
    for (int i = threadIdx.x * 8; i < c.d_model; i += blockDim.x * 8) {
        float sum[8] = {};
        size_t to = row + i;
        if (c.start) exf_load8(sum, c.start + to);
        for (int k = 0; c.outputs.p && k < c.top_k; k++) {
            size_t own = t * c.top_k + k, slot = own;
            exf_matrix m;
            if (!find_term(c, &m, &slot)) continue;
            load_eight(v, m, slot * c.d_model + i);
            add_scaled(sum, c.weights ? c.weights[own] : 1.0f, v);
        }
        if (c.routed) exf_store8(c.routed + to, sum);
        if (c.shared.p) {
            load_eight(v, c.shared, to);
            add_scaled(sum, c.shared_weights ? c.shared_weights[t] : 1.0f, v);
        }
        if (c.block) exf_store8(c.block + to, sum);
        if (c.hidden) {
            exf_load8(v, c.hidden + to);
            add_scaled(v, 1.0f, sum);
            exf_store8(c.hidden + to, v);
#pragma unroll
            for (int k = 0; k < 8; k++) watch(c, v[k], to + k);
        }
    }
}

static __device__ inline float load_one(const exf_matrix &m, size_t at)
{
    return m.number == EXF_NUMBER_BF16 ? exf_widen(static_cast<const uint16_t *>(m.p)[at]) : static_cast<const float *>(m.p)[at];
}

static __global__ void sum_ones(exf_moe_sum_call c)
{
    size_t t = blockIdx.x, row = t * c.d_model;
    for (int i = threadIdx.x; i < c.d_model; i += blockDim.x) {
        size_t to = row + i;
        float sum = c.start ? c.start[to] : 0.0f;
        for (int k = 0; c.outputs.p && k < c.top_k; k++) {
            size_t own = t * c.top_k + k, slot = own;
            exf_matrix m;
            if (!find_term(c, &m, &slot)) continue;
            sum = __fadd_rn(sum, __fmul_rn(c.weights ? c.weights[own] : 1.0f, load_one(m, slot * c.d_model + i)));
        }
        if (c.routed) c.routed[to] = sum;
        if (c.shared.p) sum = __fadd_rn(sum, __fmul_rn(c.shared_weights ? c.shared_weights[t] : 1.0f, load_one(c.shared, to)));
        if (c.block) c.block[to] = sum;
        if (!c.hidden) continue;
        float v = __fadd_rn(c.hidden[to], sum);
        c.hidden[to] = v;
        watch(c, v, to);
    }
}

/* Returns true if every array's rows begin at multiples of 16 bytes. */
static bool aligned(const exf_moe_sum_call *c)
{
    uintptr_t all = (uintptr_t)c->start | (uintptr_t)c->outputs.p | (uintptr_t)c->other.p | (uintptr_t)c->shared.p |
                    (uintptr_t)c->routed | (uintptr_t)c->block | (uintptr_t)c->hidden;
    return c->d_model % 8 == 0 && (all & 15) == 0;
}

void exf_moe_sum_cuda(exf_queue *q, const exf_moe_sum_call *c)
{
    int columns = aligned(c) ? c->d_model / 8 : c->d_model, threads = columns < THREADS ? (columns + 31) / 32 * 32 : THREADS;
    if (c->n_tokens == 0 || (!c->routed && !c->block && !c->hidden)) return;
    if (aligned(c))
        EXF_LAUNCH(q, "moe_sum", sum_eights, c->n_tokens, threads, 0, *c);
    else
        EXF_LAUNCH(q, "moe_sum", sum_ones, c->n_tokens, threads, 0, *c);
}

/* ---- outputs of old routes: a thread finds a slot's source; where rows are wanted, a block per slot then copies or
 * zeroes one: each row read and written once --------------------------------------------------- */

static __global__ void find_sources(exf_reuse_call c)
{
    int slot = blockIdx.x * blockDim.x + threadIdx.x, base = slot - slot % c.top_k;
    if (slot >= c.n_tokens * c.top_k) return;
    int32_t id = c.wanted[slot];
    int source = id < 0 ? EXF_SOURCE_NONE : EXF_SOURCE_OTHER;
    for (int k = c.top_k - 1; id >= 0 && k >= 0; k--)
        if (c.ran[base + k] == id) source = base + k;
    c.source[slot] = source;
    c.missing[slot] = source == EXF_SOURCE_OTHER ? id : -1;
}

template <typename word> static __global__ void copy_rows(exf_reuse_call c, int words)
{
    int slot = blockIdx.x, source = c.source[slot];
    if (source == EXF_SOURCE_OTHER) return;
    word *to = static_cast<word *>(const_cast<void *>(c.to.p)) + (size_t)slot * words;
    const word *from = static_cast<const word *>(c.from.p) + (size_t)(source < 0 ? 0 : source) * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = source < 0 ? word{} : from[i];
}

static unsigned threads_of(int words)
{
    return words < 256 ? (words + 31) / 32 * 32 : 256;
}

void exf_reuse_outputs_cuda(exf_queue *q, const exf_reuse_call *c)
{
    size_t row = (size_t)c->d_model * exf_number_bytes(c->to.number);
    int slots = c->n_tokens * c->top_k;
    if (slots == 0) return;
    EXF_LAUNCH(q, "reuse_outputs", find_sources, exf_blocks((size_t)slots, 256), 256, 0, *c);
    if (!c->to.p) return;
    if (row % 16 == 0 && (((uintptr_t)c->to.p | (uintptr_t)c->from.p) & 15) == 0)
        EXF_LAUNCH(q, "reuse_outputs", copy_rows<uint4>, slots, threads_of((int)(row / 16)), 0, *c, (int)(row / 16));
    else
        EXF_LAUNCH(q, "reuse_outputs", copy_rows<uint16_t>, slots, threads_of((int)(row / 2)), 0, *c, (int)(row / 2));
}

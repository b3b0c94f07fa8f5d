/* moe_sum_cuda.cu - see moe_sum.h.  A block per token; a thread sums eight columns at a
 * time where rows allow 16-byte loads, else one. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/moe/moe_sum.h"

enum { THREADS = 256 };

static __device__ inline float bf16_value(uint32_t bits)
{
    return __uint_as_float(bits << 16);
}

/* Loads eight consecutive numbers of a matrix from element `at` on (a multiple of 8). */
static __device__ inline void load_eight(float (&v)[8], const exf_matrix &m, size_t at)
{
    if (m.number == EXF_NUMBER_BF16) {
        uint4 u = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(m.p) + at);
        uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = bf16_value(w[i] & 0xffffu);
            v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
        }
        return;
    }
    const float4 *p = reinterpret_cast<const float4 *>(static_cast<const float *>(m.p) + at);
    float4 a = p[0], b = p[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

static __device__ inline void load_eight(float (&v)[8], const float *p, size_t at)
{
    exf_matrix m = {p, EXF_NUMBER_F32};
    load_eight(v, m, at);
}

static __device__ inline void store_eight(float *p, size_t at, const float (&v)[8])
{
    float4 *to = reinterpret_cast<float4 *>(p + at);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
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
    int32_t from = c.source ? c.source[*slot] : (int32_t)*slot;
    *m = from == EXF_SOURCE_OTHER ? c.other : c.outputs;
    if (from >= 0) *slot = (size_t)from;
    return from != EXF_SOURCE_NONE;
}

static __global__ void sum_eights(exf_moe_sum_call c)
{
    size_t t = blockIdx.x, row = t * c.d_model;
    float v[8];
    for (int i = threadIdx.x * 8; i < c.d_model; i += blockDim.x * 8) {
        float sum[8] = {};
        size_t to = row + i;
        if (c.start) load_eight(sum, c.start, to);
        for (int k = 0; c.outputs.p && k < c.top_k; k++) {
            size_t own = t * c.top_k + k, slot = own;
            exf_matrix m;
            if (!find_term(c, &m, &slot)) continue;
            load_eight(v, m, slot * c.d_model + i);
            add_scaled(sum, c.weights ? c.weights[own] : 1.0f, v);
        }
        if (c.routed) store_eight(c.routed, to, sum);
        if (c.shared.p) {
            load_eight(v, c.shared, to);
            add_scaled(sum, c.shared_weights ? c.shared_weights[t] : 1.0f, v);
        }
        if (c.block) store_eight(c.block, to, sum);
        if (c.hidden) {
            load_eight(v, c.hidden, to);
            add_scaled(v, 1.0f, sum);
            store_eight(c.hidden, to, v);
        }
    }
}

static __device__ inline float load_one(const exf_matrix &m, size_t at)
{
    return m.number == EXF_NUMBER_BF16 ? bf16_value(static_cast<const uint16_t *>(m.p)[at]) : static_cast<const float *>(m.p)[at];
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
        if (c.hidden) c.hidden[to] = __fadd_rn(c.hidden[to], sum);
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
    if (c->n_tokens == 0) return;
    if (aligned(c))
        EXF_LAUNCH(q, "moe_sum", sum_eights, c->n_tokens, threads, 0, *c);
    else
        EXF_LAUNCH(q, "moe_sum", sum_ones, c->n_tokens, threads, 0, *c);
}

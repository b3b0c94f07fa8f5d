/* moe_experts_cuda.cu - the routed experts: slots sorted by expert, then the kernels that multiply; see moe.h.
 *
 * Sorting is four small launches over T K ids; 16384 tokens of K 8 are 0.5 MB read twice and written once, 0.4 us at
 * 4.2 TB/s: launches take longer.  Clearing writes the outputs of empty slots alone. */
#include "kernels/device/hopper.cuh"
#include "kernels/moe/moe_internal.cuh"
#include "kernels/rows/rows.h"

/* ---- slots by expert: a stable counting sort; no step depends on which block is faster ----------- */

static int chunks_of(int n_slots)
{
    return (n_slots + EXF_BUCKET_CHUNK - 1) / EXF_BUCKET_CHUNK;
}

/* Returns the number within the call of the expert with this id, or -1. */
static __device__ int expert_of(int32_t id, int first, int n_experts)
{
    return id >= first && id - first < n_experts ? id - first : -1;
}

/* Counts the slots of each expert in a chunk into counts[chunk, e]. */
static __global__ void count_slots(int32_t *counts, const int32_t *ids, int n_slots, int n_experts, int first)
{
    extern __shared__ int32_t tally[];
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x) tally[e] = 0;
    __syncthreads();
    int at = blockIdx.x * EXF_BUCKET_CHUNK, end = min(at + EXF_BUCKET_CHUNK, n_slots);
    for (int i = at + threadIdx.x; i < end; i += blockDim.x) {
        int e = expert_of(ids[i], first, n_experts);
        if (e >= 0) atomicAdd(&tally[e], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < n_experts; e += blockDim.x) counts[(size_t)blockIdx.x * n_experts + e] = tally[e];
}

/* Replaces counts by the offset of each chunk's slots within the expert's rows; sets first[e + 1] to
 * the expert's rows and tile[e + 1] to its tiles. */
static __global__ void total_slots(exf_buckets b, int n_chunks, int n_experts)
{
    enum { AT_ONCE = 16 }; /* loads on their way */
    int e = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    if (e >= n_experts) return;
    for (int c = 0; c < n_chunks; c += AT_ONCE) {
        int count[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) count[i] = c + i < n_chunks ? b.counts[(size_t)(c + i) * n_experts + e] : 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (c + i < n_chunks) b.counts[(size_t)(c + i) * n_experts + e] = sum;
            sum += count[i];
        }
    }
    b.first[e + 1] = sum;
    b.tile[e + 1] = (sum + EXF_TILE_ROWS - 1) / EXF_TILE_ROWS;
}

/* Replaces a [1 .. n] by its inclusive sums and sets a[0] = 0; one warp. */
static __device__ void scan(int32_t *a, int n, int lane)
{
    int before = 0;
    for (int at = 1; at <= n; at += 32) {
        int v = at + lane <= n ? a[at + lane] : 0;
        for (int step = 1; step < 32; step <<= 1) {
            int other = __shfl_up_sync(0xffffffffu, v, step);
            if (lane >= step) v += other;
        }
        if (at + lane <= n) a[at + lane] = before + v;
        before += __shfl_sync(0xffffffffu, v, 31);
    }
    if (lane == 0) a[0] = 0;
}

static __global__ void scan_both(exf_buckets b, int n_experts)
{
    scan(threadIdx.x < 32 ? b.first : b.tile, n_experts, threadIdx.x & 31);
}

/* Writes the slots of a chunk to their places in order, a warp per chunk. */
static __global__ void place_slots(exf_buckets b, const int32_t *ids, int n_slots, int n_experts, int first)
{
    extern __shared__ int32_t next[];
    int lane = threadIdx.x, at = blockIdx.x * EXF_BUCKET_CHUNK, end = min(at + EXF_BUCKET_CHUNK, n_slots);
    for (int e = lane; e < n_experts; e += 32) next[e] = b.first[e] + b.counts[(size_t)blockIdx.x * n_experts + e];
    __syncwarp();
    for (int i = at + lane; i - lane < end; i += 32) {
        int id = i < end ? expert_of(ids[i], first, n_experts) : -1;
        unsigned same = __match_any_sync(0xffffffffu, id);
        int rank = __popc(same & ((1u << lane) - 1));
        if (id >= 0) b.slot[next[id] + rank] = i;
        __syncwarp();
        if (id >= 0 && rank == 0) next[id] += __popc(same);
        __syncwarp();
    }
}

/* ---- the operation ---------------------------------------------------------------------------- */

/* Limits: experts whose bounds fit into shared memory, and slots that an int can count. */
enum { MOST_EXPERTS = 12288, MOST_SLOTS = 1 << 30 };

static size_t rows_of(const exf_expert_shape *s)
{
    return (size_t)s->n_tokens * (size_t)s->top_k;
}

static size_t align_256(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* Returns true if tensor cores can run a call of this shape with bfloat16 matrices. */
static bool fits_tensor_cores(const exf_expert_shape *s)
{
    return exf_uses_tensor_cores(0) && s->d_model % 8 == 0 && s->d_expert % 8 == 0 && s->n_experts <= EXF_TENSOR_CORE_EXPERTS;
}

/* Bytes of the workspace's parts: split float32 inputs, results of the SwiGLU, buckets. */
typedef struct {
    size_t x, act, buckets;
} parts;

static parts parts_of(const exf_expert_shape *s, exf_number x)
{
    size_t rows = rows_of(s), inputs = (size_t)s->n_tokens * (size_t)s->d_model, act = rows * (size_t)s->d_expert;
    size_t experts = (size_t)s->n_experts, buckets = 2 * (experts + 1) + rows + (size_t)chunks_of((int)rows) * experts;
    bool split = x == EXF_NUMBER_F32 && fits_tensor_cores(s);
    return {align_256(split ? 2 * EXF_SPLIT_TERMS * inputs : 0),
            align_256(act * (split ? 2 * EXF_SPLIT_TERMS : exf_number_bytes(x))),
            align_256(4 * buckets)};
}

size_t exf_experts_workspace_cuda(const exf_expert_shape *s, exf_number x)
{
    parts p = parts_of(s, x);
    return p.x + p.act + p.buckets;
}

/* Zeroes the outputs of slots without an expert: a warp looks at 32 slots, and then clears those; width in units of 2 bytes. */
static __global__ void clear_unused(uint16_t *out, const int32_t *ids, size_t n_slots, size_t width)
{
    size_t own = blockIdx.x * (size_t)blockDim.x + threadIdx.x, first = own - threadIdx.x % 32;
    unsigned empty = __ballot_sync(0xffffffffu, own < n_slots && ids[own] < 0);
    for (; empty; empty &= empty - 1) {
        size_t slot = first + (size_t)(__ffs((int)empty) - 1);
        for (size_t i = threadIdx.x & 31; i < width; i += 32) out[slot * width + i] = 0;
    }
}

static void use_tensor_cores(exf_queue *q, void *out, exf_matrix x, const exf_expert_matrices *m, const exf_expert_shape *s,
                             char *workspace, const parts *p, const exf_buckets *b)
{
    uint16_t *terms = reinterpret_cast<uint16_t *>(workspace), *act = reinterpret_cast<uint16_t *>(workspace + p->x);
    int planes = x.number == EXF_NUMBER_F32 ? EXF_SPLIT_TERMS : 1;
    const uint16_t *in = static_cast<const uint16_t *>(x.p);
    if (planes > 1) {
        exf_split_rows_cuda(q, terms, (size_t)s->n_tokens * (size_t)s->d_model, static_cast<const float *>(x.p), s->d_model,
                            s->n_tokens, s->d_model);
        in = terms;
    }
    if (exf_uses_wgmma()) {
        exf_grouped_swiglu_cuda(q, act, in, planes, m, b, s);
        exf_grouped_down_cuda(q, out, act, planes, m, b, s);
    } else {
        exf_grouped_swiglu_mma_cuda(q, act, in, planes, m, b, s);
        exf_grouped_down_mma_cuda(q, out, act, planes, m, b, s);
    }
}

void exf_experts_cuda(exf_queue *q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m,
                      const exf_expert_shape *s, void *workspace)
{
    size_t rows = rows_of(s), width = (size_t)s->d_model * exf_number_bytes(outputs.number) / 2;
    size_t tallies = (size_t)s->n_experts * sizeof(int32_t);
    int n_slots = (int)rows, chunks = chunks_of(n_slots);
    char *memory = static_cast<char *>(workspace);
    void *out = const_cast<void *>(outputs.p);
    parts p = parts_of(s, x.number);
    exf_buckets b;
    b.first = reinterpret_cast<int32_t *>(memory + p.x + p.act);
    b.tile = b.first + s->n_experts + 1;
    b.slot = b.tile + s->n_experts + 1;
    b.counts = b.slot + n_slots;
    if (rows == 0 || q->err.code != EXF_OK) return;
    if (outputs.number != x.number || m->up.number != m->gate.number || m->down.number != m->gate.number)
        exf_fail(&q->err, EXF_INTERNAL, "experts: matrices of different numbers, or outputs of another than x");
    else if (s->n_experts > MOST_EXPERTS || rows >= MOST_SLOTS)
        exf_fail(&q->err, EXF_INTERNAL, "experts: %d experts and %zu slots in one call", s->n_experts, rows);
    if (q->err.code != EXF_OK) return;
    EXF_LAUNCH(q, "bucket: count", count_slots, chunks, 256, tallies, b.counts, ids, n_slots, s->n_experts, s->first);
    EXF_LAUNCH(q, "bucket: total", total_slots, exf_blocks((size_t)s->n_experts, 32), 32, 0, b, chunks, s->n_experts);
    EXF_LAUNCH(q, "bucket: scan", scan_both, 1, 64, 0, b, s->n_experts);
    EXF_LAUNCH(q, "bucket: place", place_slots, chunks, 32, tallies, b, ids, n_slots, s->n_experts, s->first);
    if (!s->keep)
        EXF_LAUNCH(q, "experts: clear", clear_unused, exf_blocks(rows, 256), 256, 0, static_cast<uint16_t *>(out), ids, rows,
                   width);
    /* Kernels on tensor cores know no biases and the plain SwiGLU alone. */
    if (m->gate.number == EXF_NUMBER_BF16 && fits_tensor_cores(s) && !m->gate_bias && !m->up_bias && !m->down_bias &&
        s->slope == 0 && !s->gelu) {
        use_tensor_cores(q, out, x, m, s, memory, &p, &b);
    } else {
        exf_grouped_swiglu_any_cuda(q, memory + p.x, x, m, &b, s);
        exf_grouped_down_any_cuda(q, outputs, memory + p.x, m, &b, s);
    }
}

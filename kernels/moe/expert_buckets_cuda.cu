/* expert_buckets_cuda.cu - sorts slots by expert on the device: a stable counting sort;
 * see expert_products_internal.cuh.  No step depends on which block is faster. */
#include "kernels/moe/expert_products_internal.cuh"

static int chunks_of(int n_slots)
{
    return (n_slots + EXF_BUCKET_CHUNK - 1) / EXF_BUCKET_CHUNK;
}

size_t exf_bucket_ints(int n_slots, int n_experts)
{
    return 2 * ((size_t)n_experts + 1) + (size_t)n_slots + (size_t)chunks_of(n_slots) * (size_t)n_experts;
}

exf_buckets exf_bucket_carve(int32_t *memory, int n_slots, int n_experts)
{
    exf_buckets b;
    b.first = memory;
    b.tile = b.first + n_experts + 1;
    b.slot = b.tile + n_experts + 1;
    b.counts = b.slot + n_slots;
    return b;
}

/* Returns the number within the call of the expert with this id, or -1. */
static __device__ int expert_of(int32_t id, int first, int n_experts)
{
    return id >= first && id - first < n_experts ? id - first : -1;
}

/* Counts the slots of each expert in a chunk into counts[chunk, e]. */
static __global__ void count(int32_t *counts, const int32_t *ids, int n_slots, int n_experts, int first)
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
static __global__ void total(exf_buckets b, int n_chunks, int n_experts)
{
    int e = blockIdx.x * blockDim.x + threadIdx.x, sum = 0;
    if (e >= n_experts) return;
    for (int c = 0; c < n_chunks; c++) {
        int32_t *n = &b.counts[(size_t)c * n_experts + e];
        int count = *n;
        *n = sum;
        sum += count;
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
static __global__ void place(exf_buckets b, const int32_t *ids, int n_slots, int n_experts, int first)
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

void exf_bucket_cuda(exf_queue *q, const exf_buckets *b, const int32_t *ids, int n_slots, int n_experts, int first)
{
    int chunks = chunks_of(n_slots);
    size_t bytes = (size_t)n_experts * sizeof(int32_t);
    if (n_slots == 0) return;
    EXF_LAUNCH(q, "bucket: count", count, chunks, 256, bytes, b->counts, ids, n_slots, n_experts, first);
    EXF_LAUNCH(q, "bucket: total", total, exf_blocks((size_t)n_experts, 32), 32, 0, *b, chunks, n_experts);
    EXF_LAUNCH(q, "bucket: scan", scan_both, 1, 64, 0, *b, n_experts);
    EXF_LAUNCH(q, "bucket: place", place, chunks, 32, bytes, *b, ids, n_slots, n_experts, first);
}

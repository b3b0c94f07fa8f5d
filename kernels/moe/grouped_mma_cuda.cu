/* grouped_mma_cuda.cu - products of all experts in one launch on the tensor cores of any GPU since compute capability 8.0
 * (mma.sync); see moe_internal.cuh.
 *
 * Two blocks of four warps share a multiprocessor; a block loops over tiles of 128 rows x 128 columns (64 gate and the same
 * 64 up columns if a SwiGLU follows), a warp multiplies 64 x 64 of it.  All threads fill a ring of stages of 32 of the inner
 * axis (cp.async), tokens' rows from the unsorted input.  A tile's first stages are fetched before the results of the tile
 * before are stored.  An element's sum runs over the inner axis in order, whatever tile it is in; planes as in
 * grouped_gemm_cuda.cu.
 *
 *   step                s              s + 1
 *   wait, barrier       stage s        stage s + 1       (its loads have arrived; all have read stage s - 1)
 *   fetch               s + S - 1      s + S             (into the stage read a step before; S stages)
 *   multiply            stage s        stage s + 1
 *
 * Cost: 6 H I FLOP a slot; H 2048, I 768 and 32,768 slots are 309 GFLOP, 0.99 ms at an A100's 312 TFLOP/s.  A warp reads 4 KB
 * of shared memory for 16 of the inner axis, 65,536 products: 16 a byte, so 128 bytes a clock allow 2048 a clock, twice what
 * an A100 multiplies.  Bytes from the cache: 512 for 16,384 products, 32 a byte, 4.9 TB/s at the A100's rate; the matrices once
 * from memory, 6 E H I bytes.  Shared memory: a stage is
 * 16 KB, three of them a block where a multiprocessor has 100 KB (compute capability 8.6, 8.9, 12.0), else four.  Registers:
 * 128 sums a thread, at most 255. */
#include "kernels/device/tensor_cores.cuh"
#include "kernels/moe/grouped_tiles.cuh"
#include "kernels/moe/moe_internal.cuh"
#include "kernels/rows/rows.h"

enum { ROWS = EXF_TILE_ROWS, COLUMNS = 128, HALF = COLUMNS / 2, DEPTH = 32, THREADS = 128, BLOCKS = 2 };
enum { OPERAND_BYTES = ROWS * DEPTH * 2, STAGE_BYTES = 2 * OPERAND_BYTES, FEW_STAGES = 3, MANY_STAGES = 4 };
/* Shared memory that a block may have where a multiprocessor has room for two blocks of MANY_STAGES. */
enum { LARGE_SHARED = 160 << 10 };

struct mma_work : exf_grouped_work {
    const uint16_t *w[2]; /* matrices: gate and up, or down */
};

typedef exf_tile_place place;

#ifdef EXF_MMA
/* A row of a stage has 64 bytes, four chunks of 16, permuted so that the eight rows of a matrix that ldmatrix reads meet all
 * banks: two rows fill 128 bytes, so the permutation changes every second row and repeats after eight. */
static __device__ inline uint32_t stage_at(int row, int chunk)
{
    return (uint32_t)row * 64 + (uint32_t)((chunk ^ (row >> 1 & 3)) << 4);
}

/* What a thread fetches: chunk i % 4 of rows i / 4 + 32 j of either operand, and the next step. */
typedef struct {
    const uint16_t *a[4], *b[4];
    exf_walk next;
} fetcher;

/* Rows after the expert's last are the last again, columns after the last likewise; their results are not stored.  With a
 * SwiGLU, rows of the second operand are 32 gate columns, the same 32 up columns, and again. */
template <bool SWIGLU, int PLANES> static __device__ inline void open_tile(fetcher *f, const mma_work &w, const place &p)
{
    int i = threadIdx.x, chunk = i % 4 * 8;
    size_t matrix = (size_t)p.e * w.width * w.depth;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int row = min(p.row + i / 4 + 32 * j, p.end - 1);
        int column = SWIGLU ? p.column * HALF + j / 2 * 32 + i / 4 : p.column * COLUMNS + j * 32 + i / 4;
        f->a[j] = w.x + (size_t)(SWIGLU ? w.slot[row] / w.top_k : row) * w.depth + chunk;
        f->b[j] = w.w[SWIGLU ? j % 2 : 0] + matrix + (size_t)min(column, w.width - 1) * w.depth + chunk;
    }
    f->next = exf_walk_of(PLANES);
}

/* Fetches the next step into a stage; without one it commits nothing. */
static __device__ inline void fetch(fetcher *f, const mma_work &w, uint32_t stage)
{
    if (exf_walk_goes_on(f->next)) {
        uint32_t to = stage + stage_at(threadIdx.x / 4, threadIdx.x % 4);
        size_t k = (size_t)f->next.k, from = f->next.plane * w.x_apart + k;
        bool inside = f->next.k + (int)(threadIdx.x % 4) * 8 < w.depth;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            exf_load16(to + stage_at(32 * j, 0), f->a[j] + from, inside);
            exf_load16(to + OPERAND_BYTES + stage_at(32 * j, 0), f->b[j] + k, inside);
        }
        exf_walk_step(&f->next, DEPTH, w.depth);
    }
    exf_loads_commit();
}

template <int STAGES> static __device__ inline void fetch_first(fetcher *f, const mma_work &w, uint32_t ring)
{
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(f, w, ring + s * STAGE_BYTES);
}

/* Adds a stage's products.  a, b: where this lane's rows of ldmatrix start; 16 rows further are 1024 bytes, the second 16 of
 * the inner axis is two chunks further, of which the permutation changes bit 5 alone. */
static __device__ __forceinline__ void multiply_stage(float (&d)[4][32], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
        uint32_t x[4][4], y[4];
#pragma unroll
        for (int m = 0; m < 4; m++) exf_ldmatrix(x[m], (a ^ 32 * k) + m * 1024);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            exf_ldmatrix(y, (b ^ 32 * k) + n * 1024);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                exf_mma_bf16(&d[m][8 * n], x[m], y[0], y[1]);
                exf_mma_bf16(&d[m][8 * n + 4], x[m], y[2], y[3]);
            }
        }
    }
}

/* Computes a tile; its first stages are being fetched already: d[m][4 n ..] of this warp's rows 16 m and columns 8 n on. */
template <int PLANES, int STAGES>
static __device__ __forceinline__ void multiply_tile(float (&d)[4][32], fetcher *f, const mma_work &w, uint32_t ring)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, steps = PLANES * ((w.depth + DEPTH - 1) / DEPTH);
    /* ldmatrix: of A the lanes name rows 0 to 15 at k 0, then at k 8; of B rows 0 to 7 at k 0 and 8, then rows 8 to 15. */
    uint32_t a = stage_at(warp / 2 * 64 + lane % 16, lane / 16);
    uint32_t b = OPERAND_BYTES + stage_at(warp % 2 * 64 + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int i = 0; i < 32; i++) d[m][i] = 0;
    for (int s = 0, stage = 0, ahead = STAGES - 1; s < steps; s++) {
        exf_loads_wait<STAGES - 2>();
        __syncthreads();
        fetch(f, w, ring + ahead * STAGE_BYTES);
        multiply_stage(d, ring + stage * STAGE_BYTES + a, ring + stage * STAGE_BYTES + b);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        ahead = ahead + 1 < STAGES ? ahead + 1 : 0;
    }
}

template <bool SWIGLU, int PLANES>
static __device__ __forceinline__ void store_tile(const float (&d)[4][32], const mma_work &w, const place &p)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4, right = warp % 2;
#pragma unroll
    for (int m = 0; m < 4; m++) {
        int row = p.row + warp / 2 * 64 + m * 16 + lane / 4;
        if (SWIGLU)
            exf_store_gated<PLANES, 4>(d[m], w, row, p.end, p.column * HALF + right * 32, q);
        else if (PLANES == 1)
            exf_store_rounded<8>(d[m], w, row, p.end, p.column * COLUMNS + right * 64, q);
        else
            exf_store_full<8>(d[m], w, row, p.end, p.column * COLUMNS + right * 64, q);
    }
}
#endif

template <bool SWIGLU, int PLANES, int STAGES> static __global__ void __launch_bounds__(THREADS, BLOCKS) grouped_mma(mma_work w)
{
#ifdef EXF_MMA
    extern __shared__ __align__(128) char memory[];
    uint32_t ring = exf_shared(memory);
    int n_tiles = w.tile[w.n_experts] * w.column_tiles, at = blockIdx.x;
    place p = {0, 0, 0, 0};
    fetcher f;
    float d[4][32];
    if (at >= n_tiles) return;
    exf_find_place(&p, w.first, w.tile, at, w.column_tiles);
    open_tile<SWIGLU, PLANES>(&f, w, p);
    fetch_first<STAGES>(&f, w, ring);
    while (at < n_tiles) {
        multiply_tile<PLANES, STAGES>(d, &f, w, ring);
        place done = p;
        at += gridDim.x;
        __syncthreads(); /* all have read the ring */
        if (at < n_tiles) {
            exf_find_place(&p, w.first, w.tile, at, w.column_tiles);
            open_tile<SWIGLU, PLANES>(&f, w, p);
            fetch_first<STAGES>(&f, w, ring);
        }
        store_tile<SWIGLU, PLANES>(d, w, done);
    }
#endif
}

template <bool SWIGLU, int PLANES, int STAGES> static void launch_stages(exf_queue *q, const mma_work &w)
{
    int bytes = STAGES * STAGE_BYTES;
    auto kernel = grouped_mma<SWIGLU, PLANES, STAGES>;
    if (q->err.code != EXF_OK ||
        !exf_cuda_note(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "experts"))
        return;
    EXF_LAUNCH(q, "experts", kernel, BLOCKS * q->multiprocessors, THREADS, bytes, w);
}

template <bool SWIGLU> static void launch(exf_queue *q, const mma_work &w, int planes)
{
    bool many = exf_most_shared_bytes() >= LARGE_SHARED;
    if (planes == 1)
        many ? launch_stages<SWIGLU, 1, MANY_STAGES>(q, w) : launch_stages<SWIGLU, 1, FEW_STAGES>(q, w);
    else
        many ? launch_stages<SWIGLU, EXF_SPLIT_TERMS, MANY_STAGES>(q, w) : launch_stages<SWIGLU, EXF_SPLIT_TERMS, FEW_STAGES>(q, w);
}

void exf_grouped_swiglu_mma_cuda(exf_queue *q, uint16_t *act, const uint16_t *x, int planes, const exf_expert_matrices *m,
                                 const exf_buckets *b, const exf_expert_shape *s)
{
    size_t tokens = (size_t)s->n_tokens * (size_t)s->d_model, acts = (size_t)s->n_tokens * (size_t)s->top_k * (size_t)s->d_expert;
    mma_work w;
    static_cast<exf_grouped_work &>(w) = {b->first, b->tile, b->slot, s->n_experts, s->d_model, s->d_expert,
                                          (s->d_expert + HALF - 1) / HALF, s->limit, act, x, s->top_k, tokens, acts};
    w.w[0] = static_cast<const uint16_t *>(m->gate.p);
    w.w[1] = static_cast<const uint16_t *>(m->up.p);
    launch<true>(q, w, planes);
}

void exf_grouped_down_mma_cuda(exf_queue *q, void *out, const uint16_t *act, int planes, const exf_expert_matrices *m,
                               const exf_buckets *b, const exf_expert_shape *s)
{
    size_t acts = (size_t)s->n_tokens * (size_t)s->top_k * (size_t)s->d_expert;
    mma_work w;
    static_cast<exf_grouped_work &>(w) = {b->first, b->tile, b->slot, s->n_experts, s->d_expert, s->d_model,
                                          (s->d_model + COLUMNS - 1) / COLUMNS, 0, out, act, s->top_k, acts, 0};
    w.w[0] = w.w[1] = static_cast<const uint16_t *>(m->down.p);
    launch<false>(q, w, planes);
}

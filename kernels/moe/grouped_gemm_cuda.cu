/* grouped_gemm_cuda.cu - products of all experts in one launch; see moe_internal.cuh.
 *
 * A block per multiprocessor loops over tiles of 128 rows x 256 columns (128 gate and
 * the same 128 up columns if a SwiGLU follows).  One warpgroup fills a ring of
 * shared-memory stages: matrices by bulk tensor copies, tokens' rows by copies of 16 bytes
 * from the unsorted input; two warpgroups multiply 64 rows each.
 * Tiles of one expert are neighbours in time, so its matrix is read from memory once.
 * An element's sum runs over the inner axis in order, whatever tile it is in.
 *
 * Activations of three planes (rows.h) are multiplied plane after plane, the smallest
 * terms first, by the same matrix and into the same sums: three times the steps.
 *
 * Cost: 6 H I FLOP a slot; H 2048, I 768 and 32,768 slots (4096 tokens of K 8) are 309 GFLOP, 0.39 ms at 794 TFLOP/s bf16;
 * measured 0.46 (664 TFLOP/s), E 128, four such sequences a launch.  Bytes: the matrices once, 6 E H I (1.2 GB, 0.29
 * ms at 4.2 TB/s, for the four sequences together), and of a tile of 128 rows H or I inputs per tile of columns, from the
 * cache after the first.  Shared memory 4 stages of 48 KB; registers 56 a producing thread, 224 a multiplying one. */
#include "kernels/device/hopper.cuh"
#include "kernels/moe/grouped_tiles.cuh"
#include "kernels/moe/moe_internal.cuh"
#include "kernels/rows/rows.h"

enum { ROWS = EXF_TILE_ROWS, COLUMNS = 256, DEPTH = 64, STAGES = 4, PANEL = 128, WARPGROUP = 128, THREADS = 3 * WARPGROUP };
/* PANEL: columns that one tensor copy brings, half of a tile's.  Registers of a thread that fills the ring, that multiplies. */
enum { PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = 224 };
/* Arrivals that make a stage full: every thread of the warpgroup for its rows, and one for the bytes of the matrices; or, of
 * sorted rows, that one alone.  Arrivals that make it empty: one of each multiplying warpgroup. */
enum { PRODUCER_ARRIVALS = WARPGROUP + 1, SORTED_ARRIVALS = 1, CONSUMER_ARRIVALS = 2 };
enum { A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2, STAGE_BYTES = A_BYTES + B_BYTES };

typedef exf_grouped_work work;
typedef exf_tile_place place;

#ifdef EXF_HOPPER
/* Stores a thread's sums: d[4 j ..] has columns 8 j + 2 q + {0, 1} of rows r and r + 8. */
template <bool SWIGLU, int PLANES>
static __device__ inline void store_tile(const float (&d)[128], const work &w, const place &p, int r, int q)
{
    if (SWIGLU)
        exf_store_gated<PLANES, PANEL / 8>(d, w, p.row + r, p.end, p.column * PANEL, q);
    else if (PLANES == 1)
        exf_store_rounded<COLUMNS / 8>(d, w, p.row + r, p.end, p.column * COLUMNS, q);
    else
        exf_store_full<COLUMNS / 8>(d, w, p.row + r, p.end, p.column * COLUMNS, q);
}

/* A stage of the ring, and the parity of its round. */
typedef struct {
    int stage;
    uint32_t phase;
} turn;

static __device__ inline void advance(turn *t)
{
    if (++t->stage < STAGES) return;
    t->stage = 0;
    t->phase ^= 1;
}

/* Fills the ring on one thread, stage after stage: sorted rows and the expert's matrix. */
template <int PLANES>
static __device__ void feed_sorted(const CUtensorMap *x, const CUtensorMap *w0, const work &w, uint32_t ring, uint32_t full,
                                   uint32_t empty, const int32_t *first, const int32_t *tile)
{
    place p = {0, 0, 0, 0};
    turn t = {0, 0};
    int n_tiles = tile[w.n_experts] * w.column_tiles;
    for (int at = blockIdx.x; at < n_tiles; at += gridDim.x) {
        exf_find_place(&p, first, tile, at, w.column_tiles);
        for (exf_walk s = exf_walk_of(PLANES); exf_walk_goes_on(s); exf_walk_step(&s, DEPTH, w.depth), advance(&t)) {
            uint32_t a = ring + t.stage * STAGE_BYTES, b = a + A_BYTES, arrived = full + 8 * t.stage;
            int k = s.k;
            exf_barrier_wait(empty + 8 * t.stage, t.phase ^ 1);
            exf_barrier_expect(arrived, STAGE_BYTES);
            exf_tensor_load(a, x, arrived, k, p.row, s.plane);
            exf_tensor_load(b, w0, arrived, k, p.column * COLUMNS, p.e);
            exf_tensor_load(b + B_BYTES / 2, w0, arrived, k, p.column * COLUMNS + PANEL, p.e);
        }
    }
}

/* Fills the ring on a warpgroup: all threads load their 16 bytes of eight tokens' rows (cp.async), thread 0 the expert's
 * matrices (tensor copies).  A thread signals a step's rows LAG steps later, when they have arrived, so that it always has
 * loads of LAG more steps on their way:
 *
 *   step                     s         s + 1     s + 2     s + 3
 *   wait until empty         stage 0   stage 1   stage 2   stage 3   (read by both multiplying warpgroups a round before)
 *   thread 0: matrices to    stage 0   stage 1   stage 2   stage 3   (their bytes count on its barrier)
 *   all: rows to             stage 0   stage 1   stage 2   stage 3   (one commit group a step)
 *   rows arrived, signalled  -         -         stage 0   stage 1   (wait_group<LAG>: all groups but the last LAG)
 *   multiplying              -         -         stage 0   stage 1
 *
 * `told` is the stage to signal next, `unsignalled` how many steps it lags; the last LAG are signalled after the loop. */
template <int PLANES>
static __device__ void feed_tokens(const CUtensorMap *w0, const CUtensorMap *w1, const work &w, uint32_t ring, uint32_t full,
                                   uint32_t empty, const int32_t *first, const int32_t *tile)
{
    enum { LAG = 2, ROWS_APART = 16 * 128 }; /* bytes between two of a thread's rows */
    place p = {0, 0, 0, 0};
    turn t = {0, 0}, told = {0, 0};
    const uint16_t *from[8];
    int n_tiles = tile[w.n_experts] * w.column_tiles, i = threadIdx.x, unsignalled = 0;
    uint32_t mine = exf_panel_at(i / 8, i % 8);
    for (int at = blockIdx.x; at < n_tiles; at += gridDim.x) {
        exf_find_place(&p, first, tile, at, w.column_tiles);
        /* The thread has 16 bytes of rows i / 8 + 16 j; eight threads share a row of 128 bytes.  Rows after the expert's last are
         * the last again; their results are not stored. */
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int row = min(p.row + i / 8 + 16 * j, p.end - 1);
            from[j] = w.x + (size_t)(w.slot[row] / w.top_k) * w.depth + i % 8 * 8;
        }
        for (exf_walk s = exf_walk_of(PLANES); exf_walk_goes_on(s); exf_walk_step(&s, DEPTH, w.depth), advance(&t)) {
            uint32_t a = ring + t.stage * STAGE_BYTES, b = a + A_BYTES, arrived = full + 8 * t.stage;
            int k = s.k;
            size_t at_plane = s.plane * w.x_apart + k;
            exf_barrier_wait(empty + 8 * t.stage, t.phase ^ 1);
            if (i == 0) {
                exf_barrier_expect(arrived, B_BYTES);
                exf_tensor_load(b, w0, arrived, k, p.column * PANEL, p.e);
                exf_tensor_load(b + B_BYTES / 2, w1, arrived, k, p.column * PANEL, p.e);
            }
#pragma unroll
            for (int j = 0; j < 8; j++) exf_load16(a + mine + j * ROWS_APART, from[j] + at_plane, k + i % 8 * 8 < w.depth);
            exf_loads_commit();
            if (unsignalled < LAG) {
                unsignalled++;
                continue;
            }
            exf_loads_wait<LAG>();
            exf_proxy_fence();
            exf_barrier_arrive(full + 8 * told.stage);
            advance(&told);
        }
    }
    exf_loads_wait<0>();
    exf_proxy_fence();
    for (; unsignalled > 0; unsignalled--, advance(&told)) exf_barrier_arrive(full + 8 * told.stage);
}

template <bool SWIGLU, int PLANES>
static __device__ void multiply(const work &w, uint32_t ring, uint32_t full, uint32_t empty, const int32_t *first,
                                const int32_t *tile, int group)
{
    place p = {0, 0, 0, 0};
    turn t = {0, 0};
    int n_tiles = tile[w.n_experts] * w.column_tiles, lane = threadIdx.x & 31, leader = (threadIdx.x & 127) == 0;
    int r = group * 64 + ((threadIdx.x >> 5) & 3) * 16 + lane / 4;
    float d[128];
    for (int at = blockIdx.x; at < n_tiles; at += gridDim.x) {
        exf_find_place(&p, first, tile, at, w.column_tiles);
        int last = -1, steps = PLANES * ((w.depth + DEPTH - 1) / DEPTH);
        for (int s = 0; s < steps; s++, advance(&t)) {
            uint32_t a = ring + t.stage * STAGE_BYTES;
            exf_barrier_wait(full + 8 * t.stage, t.phase);
            uint64_t da = exf_operand(a + group * (A_BYTES / 2), 16), db = exf_operand(a + A_BYTES, 16);
            exf_wgmma_begin();
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++) exf_wgmma<COLUMNS, EXF_BFLOAT16>::ss(d, da + 2 * i, db + 2 * i, s > 0 || i > 0);
            exf_wgmma_commit();
            exf_wgmma_wait<1>();
            if (last >= 0 && leader) exf_barrier_arrive(empty + 8 * last);
            last = t.stage;
        }
        exf_wgmma_wait<0>();
        if (leader) exf_barrier_arrive(empty + 8 * last);
        store_tile<SWIGLU, PLANES>(d, w, p, r, lane & 3);
    }
}
#endif

template <bool SWIGLU, int PLANES>
static __global__ void __launch_bounds__(THREADS, 1)
    grouped(const __grid_constant__ CUtensorMap w0, const __grid_constant__ CUtensorMap w1, work w)
{
#ifdef EXF_HOPPER
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[2 * STAGES];
    uint32_t gap = (1024 - (exf_shared(memory) & 1023)) % 1024, ring = exf_shared(memory) + gap, full = exf_shared(barriers),
             empty = full + 8 * STAGES;
    int32_t *first = reinterpret_cast<int32_t *>(memory + gap + STAGES * STAGE_BYTES), *tile = first + w.n_experts + 1;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            exf_barrier_init(full + 8 * i, SWIGLU ? PRODUCER_ARRIVALS : SORTED_ARRIVALS);
            exf_barrier_init(empty + 8 * i, CONSUMER_ARRIVALS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int e = threadIdx.x; e <= w.n_experts; e += THREADS) {
        first[e] = w.first[e];
        tile[e] = w.tile[e];
    }
    __syncthreads();
    if (threadIdx.x < WARPGROUP) {
        exf_registers_lower<PRODUCER_REGISTERS>();
        if (SWIGLU)
            feed_tokens<PLANES>(&w0, &w1, w, ring, full, empty, first, tile);
        else if (threadIdx.x == 0)
            feed_sorted<PLANES>(&w1, &w0, w, ring, full, empty, first, tile);
    } else {
        exf_registers_raise<CONSUMER_REGISTERS>();
        multiply<SWIGLU, PLANES>(w, ring, full, empty, first, tile, threadIdx.x / WARPGROUP - 1);
    }
#endif
}

static size_t shared_bytes(int n_experts)
{
    return 1024 + STAGES * STAGE_BYTES + 2 * ((size_t)n_experts + 1) * sizeof(int32_t);
}

/* Launches the kernel on maps: gate and up, or down and the sorted rows it multiplies. */
template <bool SWIGLU, int PLANES> static void launch(exf_queue *q, const CUtensorMap &w0, const CUtensorMap &w1, const work &w)
{
    size_t bytes = shared_bytes(w.n_experts);
    auto kernel = grouped<SWIGLU, PLANES>;
    int most = (int)shared_bytes(EXF_TENSOR_CORE_EXPERTS); /* whatever other threads launch meanwhile */
    if (!exf_cuda_note(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), "experts")) return;
    EXF_LAUNCH(q, "experts", kernel, q->multiprocessors, THREADS, bytes, w0, w1, w);
}

void exf_grouped_swiglu_cuda(exf_queue *q, uint16_t *act, const uint16_t *x, int planes, const exf_expert_matrices *m,
                             const exf_buckets *b, const exf_expert_shape *s)
{
    size_t h = (size_t)s->d_model, i = (size_t)s->d_expert, e = (size_t)s->n_experts, t = (size_t)s->n_tokens, k = (size_t)s->top_k;
    CUtensorMap gate, up;
    work w = {b->first, b->tile, b->slot, s->n_experts, s->d_model, s->d_expert, (s->d_expert + PANEL - 1) / PANEL,
              s->limit, act,     x,       s->top_k,     t * h,      t * k * i};
    if (!exf_tensor_map(q, &gate, m->gate.p, h, i, e, PANEL) || !exf_tensor_map(q, &up, m->up.p, h, i, e, PANEL)) return;
    if (planes == 1)
        launch<true, 1>(q, gate, up, w);
    else
        launch<true, EXF_SPLIT_TERMS>(q, gate, up, w);
}

void exf_grouped_down_cuda(exf_queue *q, void *out, const uint16_t *act, int planes, const exf_expert_matrices *m,
                           const exf_buckets *b, const exf_expert_shape *s)
{
    size_t h = (size_t)s->d_model, i = (size_t)s->d_expert, rows = (size_t)s->n_tokens * (size_t)s->top_k;
    CUtensorMap sorted, down;
    work w = {b->first, b->tile, b->slot, s->n_experts, s->d_expert, s->d_model, (s->d_model + COLUMNS - 1) / COLUMNS,
              0,        out,     nullptr, s->top_k,     0,           0};
    if (!exf_tensor_map(q, &sorted, act, i, rows, (size_t)planes, ROWS) ||
        !exf_tensor_map(q, &down, m->down.p, i, h, (size_t)s->n_experts, PANEL))
        return;
    if (planes == 1)
        launch<false, 1>(q, down, sorted, w);
    else
        launch<false, EXF_SPLIT_TERMS>(q, down, sorted, w);
}

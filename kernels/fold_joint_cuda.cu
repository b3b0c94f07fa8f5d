/* fold_joint_cuda.cu - see exfold/fold.h.  Every block of a cluster sees the whole batch
 * and comes to the same pool; the rows' systems are shared out among the blocks, a
 * sub-warp each.  None writes before all have read.  (The prefill form is in
 * fold_prefill_cuda.cu.) */
#include "kernels/fold_cuda.cuh"

enum { THREADS = 512, HELD = 4, CLUSTER = 8 };

/* A cluster's barrier in two halves; a grid of one block has __syncthreads() instead. */
static __device__ void all_have_read(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

static __device__ void wait_for_readers(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* The row's slots, one in each lane: remapped ones take their target and all are weighed anew. */
template <int W>
static __device__ void join_row(const exf_fold_routes &io, const exf_fold_lane &s, int64_t row, const int16_t *target, int moved,
                                const exf_fold_tables &t, double rho)
{
    exf_fold_system<W> system = {};
    unsigned movers = exf_fold_vote<W>(s.mask, moved), used = exf_fold_vote<W>(s.mask, s.id >= 0);
    int id = moved ? target[s.id] : s.id;
    if (movers == 0) return;
#pragma unroll
    for (int j = 0; j < W; j++) { /* the kept slots' own terms cancel */
        if (!(movers >> j & 1)) continue;
        int old = __shfl_sync(s.mask, s.id, j, W);
        float w = __shfl_sync(s.mask, s.w, j, W);
        if (id >= 0) system.right = exf_addd(system.right, exf_muld(exf_fold_gram(&t, id, old), w));
    }
    int solved = exf_fold_solve(&system, t, id, used, s.lane, s.mask, rho);
    if (s.id < 0) return;
    double w = moved ? 0 : s.w;
    if (moved) exf_fold_set_id(&io, row * io.width + s.lane, id);
    if (moved || solved) exf_fold_set_weight(&io, row * io.width + s.lane, (float)(solved ? exf_addd(w, system.right) : w));
}

template <int W, int H>
static __global__ void __launch_bounds__(THREADS)
    decode_joint(const exf_fold_routes io, const exf_fold_tables t, const exf_fold_decode_options o)
{
    __shared__ exf_fold_block_pool pool;
    __shared__ int16_t target[EXF_FOLD_MAX_E];
    exf_fold_slots<THREADS, H> slots;
    int n_union = exf_fold_block_choose(&pool, &slots, io, t, o);
    if (n_union == 0) return; /* in every block alike */
    all_have_read();
    exf_fold_find_targets<THREADS>(
        &pool, n_union, o.pool, t.cosine, t.n_experts, [](float c) { return c != c ? 0.0f : -fabsf(c); },
        [&](int source, int to) { target[source] = (int16_t)to; });
    __syncthreads();
    wait_for_readers();
    for (int row = (blockIdx.x * THREADS + threadIdx.x) / W; row < io.rows; row += gridDim.x * THREADS / W) {
        exf_fold_lane s = exf_fold_read_lane<W>(io, row, t.n_experts);
        join_row<W>(io, s, row, target, s.id >= 0 && pool.position[s.id] >= o.pool, t, o.ridge);
    }
}

/* Blocks that may work on one batch: a cluster where the code that will run knows its barrier. */
static unsigned blocks_for(const void *kernel, int rows, int lanes)
{
    cudaFuncAttributes code;
    int device = 0, clusters = 0;
    if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess || cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device) != cudaSuccess) {
        cudaGetLastError();
        return 1;
    }
    unsigned blocks = 1;
    while (blocks < CLUSTER && blocks * THREADS / (unsigned)lanes < (unsigned)rows) blocks *= 2;
    return clusters && code.ptxVersion >= 90 ? blocks : 1;
}

exf_fold_status exf_fold_decode_joint_cuda(const exf_fold_routes *io, const exf_fold_tables *t, const exf_fold_decode_options *o,
                                           void *stream)
{
    typedef void (*kernel)(exf_fold_routes, exf_fold_tables, exf_fold_decode_options);
    static const kernel held[2] = {decode_joint<8, HELD>, decode_joint<16, HELD>},
                        large[2] = {decode_joint<8, 0>, decode_joint<16, 0>};
    exf_fold_status status = exf_fold_check_decode(io, t, o, 1);
    int slots = status == EXF_FOLD_OK ? io->rows * io->width : 0;
    if (slots == 0 || slots <= o->pool) return status;
    kernel k = (slots <= HELD * THREADS ? held : large)[io->width > 8];
    unsigned blocks = blocks_for((const void *)k, io->rows, io->width > 8 ? 16 : 8);
    return exf_fold_launch(k, blocks, THREADS, blocks, stream, *io, *t, *o);
}

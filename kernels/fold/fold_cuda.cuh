/* fold_cuda.cuh - shared by the CUDA kernels of exfold/fold.h: number types as compile-time
 * constants, kernel launches, clusters of blocks. */
#ifndef EXF_KERNELS_FOLD_CUDA_CUH
#define EXF_KERNELS_FOLD_CUDA_CUH
#include "kernels/fold/fold_arguments.h"

#include <cuda_runtime.h>

/* Makes a pair of types constants of the copy that a kernel works on, so that the accessors of
 * fold_internal.h compile without branches.  There is one kernel per pair. */
template <exf_fold_int I, exf_fold_real R> __device__ inline exf_fold_routes exf_fold_typed(exf_fold_routes r)
{
    r.id_type = I;
    r.weight_type = R;
    return r;
}

#define EXF_FOLD_BY_TYPE(kernel, ...)                                                                                      \
    {                                                                                                                      \
        {kernel<EXF_FOLD_I32, EXF_FOLD_F32, ##__VA_ARGS__>, kernel<EXF_FOLD_I32, EXF_FOLD_BF16, ##__VA_ARGS__>,            \
         kernel<EXF_FOLD_I32, EXF_FOLD_F16, ##__VA_ARGS__>},                                                               \
        {kernel<EXF_FOLD_I64, EXF_FOLD_F32, ##__VA_ARGS__>, kernel<EXF_FOLD_I64, EXF_FOLD_BF16, ##__VA_ARGS__>,            \
         kernel<EXF_FOLD_I64, EXF_FOLD_F16, ##__VA_ARGS__>},                                                               \
    }

/* Returns yes ? *p : otherwise, for a table that nothing writes.  In assembly, because a compiler
 * makes branches of many such loads instead of starting them together, and computes each address
 * anew. */
__device__ __forceinline__ float exf_fold_load_if(const float *p, int yes, float otherwise)
{
    float v;
    asm volatile("{\n\t"
                 ".reg .pred yes;\n\t"
                 "setp.ne.s32 yes, %2, 0;\n\t"
                 "mov.f32 %0, %3;\n\t"
                 "@yes ld.global.nc.f32 %0, [%1];\n\t"
                 "}"
                 : "=f"(v)
                 : "l"(p), "r"(yes), "f"(otherwise));
    return v;
}

/* Batches that lie one after the other in routes: batch y has rows [first[y], first[y + 1]), less `base`.  Grid row y works on
 * it.  first NULL: the routes are one batch. */
struct exf_fold_batches {
    const size_t *first;
    size_t base;
};

/* Returns the routes of this grid row's batch. */
__device__ inline exf_fold_routes exf_fold_batch(exf_fold_routes r, const exf_fold_batches &b)
{
    if (!b.first) return r;
    size_t from = b.first[blockIdx.y], slot = (from - b.base) * r.width;
    r.ids = (char *)r.ids + slot * (r.id_type == EXF_FOLD_I32 ? 4 : 8);
    r.weights = (char *)r.weights + slot * (r.weight_type == EXF_FOLD_F32 ? 4 : 2);
    if (r.norms) r.norms += slot;
    r.rows = (int)(b.first[blockIdx.y + 1] - from);
    return r;
}

/* Fold n batches by the kernels of exf_fold_decode, exf_fold_decode_joint and exf_fold_decode_stand_ins (a pool by batch)
 * that need no cluster, a block a batch.  io->rows is the most rows of a batch; n is at most 65535. */
exf_fold_status exf_fold_decode_batches_cuda(const exf_fold_routes *io, const exf_fold_batches *b, int n, const exf_fold_tables *t,
                                             const exf_fold_decode_options *o, void *stream);
exf_fold_status exf_fold_decode_joint_batches_cuda(const exf_fold_routes *io, const exf_fold_batches *b, int n,
                                                   const exf_fold_tables *t, const exf_fold_decode_options *o, void *stream);
exf_fold_status exf_fold_decode_stand_ins_batches_cuda(const exf_fold_routes *io, const exf_fold_scores *s,
                                                       const exf_fold_batches *b, int n, const exf_fold_tables *t,
                                                       const exf_fold_stand_in_options *o, void *stream);

/* Launches blocks in clusters of `cluster`; clears CUDA's last error if the launch is refused. */
template <class... Parameters, class... Arguments>
static exf_fold_status exf_fold_launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, unsigned cluster,
                                       void *stream, Arguments... arguments)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute size = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = (cudaStream_t)stream;
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = cluster;
    size.val.clusterDim.y = size.val.clusterDim.z = 1;
    config.attrs = &size;
    config.numAttrs = cluster > 1;
    if (cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess) return EXF_FOLD_OK;
    cudaGetLastError();
    return EXF_FOLD_DEVICE;
}

/* Returns 1 if the code of this kernel for the present device has the cluster's barrier. */
static inline int exf_fold_has_clusters(const void *kernel)
{
    cudaFuncAttributes code;
    int device = 0, clusters = 0;
    if (cudaFuncGetAttributes(&code, kernel) == cudaSuccess && cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device) == cudaSuccess)
        return clusters && code.ptxVersion >= 90;
    cudaGetLastError();
    return 0;
}

/* The cluster's barrier in two halves, for every thread of its blocks.  Without clusters the grid is
 * one block, and __syncthreads() suffices.  Arriving publishes no writes to other blocks: it is for
 * a thread that has only read. */
__device__ inline void exf_fold_cluster_arrive_reader(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

__device__ inline void exf_fold_cluster_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/* A barrier in shared memory at which a block awaits integers that the blocks of its cluster store into one another's shared
 * memory.  No fence and no barrier of all threads is needed: each store counts itself where it arrives.  CLUSTERED 0: the kernel
 * is launched without clusters, where such a store is no legal instruction; the block's own barrier takes its place. */
typedef uint64_t exf_fold_mbarrier;

/* Awaits n integers; every thread calls it before the cluster's barrier. */
template <int CLUSTERED> __device__ inline void exf_fold_mbarrier_init(exf_fold_mbarrier *b, int n)
{
#if __CUDA_ARCH__ >= 900
    unsigned own = (unsigned)__cvta_generic_to_shared(b);
    if (!CLUSTERED || threadIdx.x != 0) return;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(own) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(own), "r"(4 * n) : "memory");
#endif
}

/* Stores v, which is the same in each lane of the warp, to *p, the same variable in each of the cluster's blocks. */
template <int CLUSTERED> __device__ inline void exf_fold_store_async(exf_fold_mbarrier *b, int *p, int v)
{
    unsigned block = threadIdx.x % 32;
    if (block >= (CLUSTERED ? gridDim.x : 1)) return;
    if (!CLUSTERED) {
        *p = v;
        return;
    }
#if __CUDA_ARCH__ >= 900
    unsigned to, counter;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"((unsigned)__cvta_generic_to_shared(p)), "r"(block));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(counter)
                 : "r"((unsigned)__cvta_generic_to_shared(b)), "r"(block));
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(v), "r"(counter)
                 : "memory");
#endif
}

/* Ends the stores; every thread calls it after its warp's last one. */
template <int CLUSTERED> __device__ inline void exf_fold_end_stores(void)
{
    if (!CLUSTERED) __syncthreads();
}

/* Waits until all has come; every lane of the warp calls it, and may do so again.  The vote shows the compiler that the lanes go
 * on together. */
template <int CLUSTERED> __device__ inline void exf_fold_mbarrier_wait(exf_fold_mbarrier *b)
{
#if __CUDA_ARCH__ >= 900
    int come = !CLUSTERED;
    while (!__all_sync(0xffffffffu, come)) {
        asm volatile("{\n\t"
                     ".reg .pred come;\n\t"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 come, [%1], 0;\n\t"
                     "selp.s32 %0, 1, 0, come;\n\t"
                     "}"
                     : "=r"(come)
                     : "r"((unsigned)__cvta_generic_to_shared(b))
                     : "memory");
    }
#endif
}
#endif

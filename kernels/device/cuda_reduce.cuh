/* cuda_reduce.cuh - sums and maxima over the threads of a block, in a fixed order:
 * equal inputs give equal bits.  blockDim.x is a multiple of 32, at most 1024;
 * every thread calls and every thread gets the result. */
#ifndef EXF_KERNELS_CUDA_REDUCE_CUH
#define EXF_KERNELS_CUDA_REDUCE_CUH

template <class T> __device__ inline T exf_warp_sum(T v)
{
    for (int step = 16; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

template <class T> __device__ inline T exf_warp_max(T v)
{
    for (int step = 16; step > 0; step >>= 1) {
        T other = __shfl_xor_sync(0xffffffffu, v, step);
        v = other > v ? other : v;
    }
    return v;
}

template <class T> __device__ inline T exf_block_sum(T v)
{
    __shared__ T part[32];
    __syncthreads(); /* an earlier call's readers are done */
    v = exf_warp_sum(v);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    T total = 0;
    for (unsigned i = 0; i < blockDim.x >> 5; i++) total += part[i];
    return total;
}

template <class T> __device__ inline T exf_block_max(T v)
{
    __shared__ T part[32];
    __syncthreads();
    v = exf_warp_max(v);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    T most = part[0];
    for (unsigned i = 1; i < blockDim.x >> 5; i++) most = part[i] > most ? part[i] : most;
    return most;
}
#endif

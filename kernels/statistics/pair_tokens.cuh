/* pair_tokens.cuh - what the sums of pairs with vectors share: the weight of a slot, and the tokens that chose both experts of a
 * pair.  A Call has top_k, d_model, n_tokens, ids, weights and weighting, as exf_diagonal_call. */
#ifndef EXF_KERNELS_PAIR_TOKENS_CUH
#define EXF_KERNELS_PAIR_TOKENS_CUH
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/layer_sums_internal.cuh"

/* Returns the weight of a slot as a source, to every lane of the warp, which all call for the same slot. */
template <class T, class Call> static __device__ inline double weight_of_slot(const T *outputs, const Call &c, size_t slot)
{
    double sq = 0;
    if (c.weighting == EXF_WEIGHT_ROUTER) return (double)c.weights[slot];
    if (c.weighting != EXF_WEIGHT_SOURCE_NORM) return 1;
    for (int at = (threadIdx.x & 31) * EXF_STEP; at < c.d_model; at += 32 * EXF_STEP) {
        float v[EXF_STEP];
        exf_load_step(v, outputs + slot * c.d_model, at, c.d_model);
#pragma unroll
        for (int i = 0; i < EXF_STEP; i++) sq += (double)v[i] * (double)v[i];
    }
    return sqrt(exf_warp_sum(sq));
}

/* Finds which of tokens [at, at + THREADS) chose both experts, in order; returns how many.  All THREADS threads of the block call,
 * and all have read what `found`, in shared or global memory, had before. */
template <int THREADS, class Call>
static __device__ inline int find_tokens(exf_pair_slots *found, const Call &c, int at, int source, int target)
{
    __shared__ int before[THREADS / 32];
    int t = at + (int)threadIdx.x, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, all = 0, first = 0;
    exf_pair_slots mine = {-1, -1};
    for (int k = 0; t < c.n_tokens && k < c.top_k; k++) {
        int id = c.ids[t * c.top_k + k];
        if (id == source) mine.source = t * c.top_k + k;
        if (id == target) mine.target = t * c.top_k + k;
    }
    bool both = mine.source >= 0 && mine.target >= 0;
    unsigned votes = __ballot_sync(0xffffffffu, both);
    __syncthreads(); /* all threads have read the tokens found before */
    if (lane == 0) before[warp] = __popc(votes);
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) {
        first += w < warp ? before[w] : 0;
        all += before[w];
    }
    if (both) found[first + __popc(votes & ((1u << lane) - 1))] = mine;
    __syncthreads();
    return all;
}
#endif

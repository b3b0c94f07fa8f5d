/* bench_fold.cu - what scripts/bench_fold.py measures exfold/fold.h against and cannot write
 * in Triton: the published plugins' way with one block and one thread per token, as plain
 * as they are, and a kernel that does nothing. */
#include <cub/block/block_radix_sort.cuh>
#include <cuda_runtime.h>
#include <stdint.h>

static __global__ void nothing()
{
}

/* A thread per token: rank by weight, fold each omitted route into the nearest kept one. */
template <int K>
static __global__ void peer_prefill(const float *weights, const int *ids, const float *coeff, const float *loss, float *out_weights,
                                    int *out_ids, int n, int n_experts, int keep)
{
    int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= n) return;
    float w[K];
    int id[K];
    for (int k = 0; k < K; k++) {
        float mine = weights[token * K + k];
        int at = k, expert = ids[token * K + k];
        for (; at > 0 && w[at - 1] < mine; at--) {
            w[at] = w[at - 1];
            id[at] = id[at - 1];
        }
        w[at] = mine;
        id[at] = expert;
    }
    for (int s = keep; s < K; s++) {
        float least = 1e30f;
        int to = 0;
        for (int i = 0; i < keep; i++) {
            float l = loss[id[s] * n_experts + id[i]];
            if (l < least) {
                least = l;
                to = i;
            }
        }
        w[to] += least < 1e30f ? w[s] * coeff[id[s] * n_experts + id[to]] : 0;
    }
    for (int i = 0; i < keep; i++) {
        out_weights[token * keep + i] = w[i];
        out_ids[token * keep + i] = id[i];
    }
}

/* One block: importance by float atomics, a radix sort, one thread per expert looks for its target. */
template <int E>
static __global__ void peer_decode(const float *coeff, const float *loss, const float *norms, const float *weights, const int *ids,
                                   float *out_weights, int *out_ids, int n, int pool)
{
    typedef cub::BlockRadixSort<float, E, 1, int> sorter;
    __shared__ typename sorter::TempStorage room;
    __shared__ float importance[E], scale[E];
    __shared__ int kept[E], in_pool[E], target[E];
    int e = threadIdx.x;
    importance[e] = 0;
    in_pool[e] = 0;
    __syncthreads();
    for (int i = e; i < n; i += E) atomicAdd(&importance[ids[i]], weights[i] * norms[ids[i]]);
    __syncthreads();
    float key[1] = {importance[e]};
    int expert[1] = {e};
    sorter(room).SortDescending(key, expert);
    kept[e] = expert[0];
    if (e < pool && key[0] > 0) in_pool[expert[0]] = 1;
    __syncthreads();
    target[e] = e;
    scale[e] = 1;
    if (!in_pool[e] && importance[e] > 0) {
        float least = 1e30f;
        int to = kept[0];
        for (int j = 0; j < pool; j++) {
            float l = loss[e * E + kept[j]];
            if (in_pool[kept[j]] && l < least) {
                least = l;
                to = kept[j];
            }
        }
        target[e] = to;
        scale[e] = least < 1e30f ? coeff[e * E + to] : 0;
    }
    __syncthreads();
    for (int i = e; i < n; i += E) {
        out_ids[i] = target[ids[i]];
        out_weights[i] = weights[i] * scale[ids[i]];
    }
}

extern "C" {
void bench_nothing(int blocks, int threads, void *stream)
{
    nothing<<<blocks, threads, 0, (cudaStream_t)stream>>>();
}

void bench_peer_prefill(const float *w, const int *ids, const float *coeff, const float *loss, float *out_w, int *out_ids, int n,
                        int n_experts, int keep, void *stream)
{
    peer_prefill<8><<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>(w, ids, coeff, loss, out_w, out_ids, n, n_experts, keep);
}

void bench_peer_decode(const float *w, const int *ids, const float *coeff, const float *loss, const float *norms, float *out_w,
                       int *out_ids, int n, int n_experts, int pool, void *stream)
{
    if (n_experts == 128)
        peer_decode<128><<<1, 128, 0, (cudaStream_t)stream>>>(coeff, loss, norms, w, ids, out_w, out_ids, n, pool);
    if (n_experts == 256)
        peer_decode<256><<<1, 256, 0, (cudaStream_t)stream>>>(coeff, loss, norms, w, ids, out_w, out_ids, n, pool);
}
}

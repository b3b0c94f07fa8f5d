/* route_weights.h - the weights of the experts that a router chose for a token, in the order of the reference; see moe.h.  The CPU
 * and the GPU compute them by this code. */
#ifndef EXF_KERNELS_ROUTE_WEIGHTS_H
#define EXF_KERNELS_ROUTE_WEIGHTS_H
#include "kernels/moe/moe.h"

#ifdef __CUDACC__
#define EXF_ROUTE_INLINE static __device__ inline
#else
#define EXF_ROUTE_INLINE static inline
#endif

/* Returns how often slots [k, K) name slot k's expert; 0 if it is one of the n routes already. */
EXF_ROUTE_INLINE int exf_times_named(const int32_t *ids, int n, int k, int top_k)
{
    int32_t id = ids[k];
    int times = 0;
    for (int i = 0; i < n; i++)
        if (ids[i] == id) return 0;
    for (int i = k; i < top_k; i++) times += ids[i] == id;
    return times;
}

/* Computes the weights of the chosen, and sorts all slots by falling weight (stable). */
EXF_ROUTE_INLINE void exf_weigh_routes(int32_t *ids, float *weights, const double *score, const exf_router_rules *r)
{
    double sum = 0;
    int n = 0; /* routes so far: ids [n] by falling weight; from k on they are as they were chosen */
    for (int k = 0; k < r->top_k; k++) sum += score[ids[k]];
    for (int k = 0; k < r->top_k; k++) {
        int32_t id = ids[k];
        int times = r->table ? exf_times_named(ids, n, k, r->top_k) : 1;
        if (times == 0) continue;
        double w = score[id] * r->scaling;
        if (r->renormalise) w = score[id] / (sum + r->epsilon) * r->scaling;
        w *= times;
        if (r->expert_scale) w *= (double)r->expert_scale[id];
        int at = n++;
        for (; at > 0 && (float)w > weights[at - 1]; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = (float)w;
    }
    for (; n < r->top_k; n++) {
        ids[n] = -1;
        weights[n] = 0;
    }
}
#endif

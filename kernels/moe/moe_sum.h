/* moe_sum.h - what a MoE block adds to the residual stream, and the routed output alone:
 *
 *   routed[t] = start[t] + sum over k in order of weights[t, k] * outputs[t, k]
 *   block[t]  = routed[t] + shared_weights[t] * shared[t]
 *   hidden[t] = hidden[t] + block[t]
 *
 * Every product and sum is one float32 rounding, so CPU and GPU give equal bits for
 * equal inputs. */
#ifndef EXF_KERNELS_MOE_SUM_H
#define EXF_KERNELS_MOE_SUM_H
#include "kernels/linear/matrix.h"

#include <stdint.h>

enum { EXF_SOURCE_OTHER = -1, EXF_SOURCE_NONE = -2 };

/* Arrays lie in the backend's memory; start, hidden, routed and block are float32 [T, H]. */
typedef struct {
    int n_tokens, top_k, d_model;
    const float *start;          /* NULL: 0.  May be routed itself. */
    exf_matrix outputs;          /* [T, K, H]; p NULL: no term */
    const int32_t *source;       /* [T, K] the slot of outputs that a slot's term is read from, EXF_SOURCE_OTHER: the
                                  * same slot of `other`, EXF_SOURCE_NONE: no term; NULL: its own slot of outputs */
    exf_matrix other;            /* [T, K, H] of the number type of outputs */
    const float *weights;        /* [T, K]; NULL: all are 1 */
    exf_matrix shared;           /* [T, H]; p NULL: no term */
    const float *shared_weights; /* [T]; NULL: all are 1 */
    float *routed, *block;       /* NULL: not wanted */
    float *hidden;               /* NULL: not wanted */
} exf_moe_sum_call;

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif
void exf_moe_sum_cpu(const exf_moe_sum_call *c); /* matrices are float32 */
void exf_moe_sum_cuda(struct exf_queue *q, const exf_moe_sum_call *c);
#ifdef __cplusplus
}
#endif
#endif

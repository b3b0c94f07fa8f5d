/* swiglu.h - g <- silu(g) * u, element-wise over n floats; silu(x) = x / (1 + e^-x).
 * With limit > 0, g is first cut at limit and u at +-limit. */
#ifndef EXF_KERNELS_SWIGLU_H
#define EXF_KERNELS_SWIGLU_H
#include <stddef.h>

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

void exf_swiglu_cpu(float *g, const float *u, size_t n, float limit);
void exf_swiglu_cuda(struct exf_queue *q, float *g, const float *u, size_t n, float limit);
#ifdef __cplusplus
}
#endif
#endif

/* swiglu.h - g <- silu(g) * u, element-wise over n floats; silu(x) = x / (1 + e^-x). */
#ifndef EXF_KERNELS_SWIGLU_H
#define EXF_KERNELS_SWIGLU_H
#include <stddef.h>
void exf_swiglu_cpu(float *g, const float *u, size_t n);
#endif

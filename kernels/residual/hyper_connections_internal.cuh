/* hyper_connections_internal.cuh - computes the coefficients of hyper-connections on tensor cores; see
 * hyper_connections.h. */
#ifndef EXF_KERNELS_HYPER_CONNECTIONS_INTERNAL_CUH
#define EXF_KERNELS_HYPER_CONNECTIONS_INTERNAL_CUH
#include "kernels/device/cuda_queue.cuh"
#include "kernels/residual/hyper_connections.h"

/* 1 if this device and shape are supported: u can hold a token's pre, and x consists of
 * groups of 16 floats on 16-byte boundaries. */
int exf_hyper_mix_fits(const float *x, const exf_hyper_shape *s);
/* mixing [T, n_mix]: pre, and with n_mix > S post and C; u [T, H] from pre.  mixing NULL:
 * only u is wanted, and n_mix is S. */
void exf_hyper_mix(exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s, int n_mix);
#endif

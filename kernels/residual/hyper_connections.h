/* hyper_connections.h - hyper-connections read and update the S residual streams x [S, H] of
 * a token through coefficients that are computed from x itself.
 *
 *   mix  = fn x / sqrt(mean(x^2) + norm_eps)    x as one row of S H
 *   u    = sum_j pre_j x_j                      the site's input
 *   x'_k = post_k v + sum_j C[j][k] x_j         v = the site's output
 *
 * Sums over S H are taken in double, row by row, so that a token's coefficients
 * have the same bits in whatever block of tokens they are computed.  The CUDA backend
 * adds 256 products of a row in float32 before it goes on in double: |error| of a dot
 * product <= 2^-16 sum |fn x|, the bits again independent of the block. */
#ifndef EXF_KERNELS_HYPER_CONNECTIONS_H
#define EXF_KERNELS_HYPER_CONNECTIONS_H
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXF_HYPER_STREAMS_MAX = 16 };

/* mix [(2 + S) S] of a token becomes pre [S] = sigmoid(mix scale[0] + base) + eps, post [S] = 2 sigmoid(mix scale[1] + base), and
 * C [S, S] = Sinkhorn(mix scale[2] + base), which makes it nearly doubly stochastic, in double:
 *   C = softmax of each row + eps;  columns;  then (iterations - 1) times: rows, columns
 * where "rows" divides each row by (its sum + eps), "columns" each column. */
void exf_hyper_coefficients_cpu(double *mix, const float *base, const float *scale, int streams, int iterations, double eps);

typedef struct {
    int n_tokens, streams, width; /* width = H */
    int iterations;
    double eps, norm_eps;
    const float *fn, *base, *scale; /* the site's weights */
} exf_hyper_shape;

/* mixing [T, (2 + S) S] = pre, post, C of every token of x [T, S, H]; u [T, H]. */
typedef void exf_hyper_pre_op(exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s);
exf_hyper_pre_op exf_hyper_pre_cpu, exf_hyper_pre_cuda;
/* u alone, with the same bits, from the mixing that exf_hyper_pre_* made of the same x and s. */
typedef void exf_hyper_input_op(exf_queue *q, float *u, const float *mixing, const float *x, const exf_hyper_shape *s);
exf_hyper_input_op exf_hyper_input_cpu, exf_hyper_input_cuda;
/* x [T, S, H] updated with v [T, H]; fn, base, scale are not used. */
typedef void exf_hyper_post_op(exf_queue *q, float *x, const float *v, const float *mixing, const exf_hyper_shape *s);
exf_hyper_post_op exf_hyper_post_cpu, exf_hyper_post_cuda;
/* u [T, H] from pre alone: fn [S, S H], base [S], scale [1]. */
typedef void exf_hyper_head_op(exf_queue *q, float *u, const float *x, const exf_hyper_shape *s);
exf_hyper_head_op exf_hyper_head_cpu, exf_hyper_head_cuda;

#ifdef __cplusplus
}
#endif
#endif

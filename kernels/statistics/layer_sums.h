/* layer_sums.h - adds up the sums of one layer's routed expert outputs: pair sums and expert
 * sums, the sufficient statistics of the tables (method, section 1; paper, appendix "shared
 * scalar").
 *
 * For every token and every ordered pair s != t of its top-K, with source output
 * u = E_s(x), target output v = E_t(x), both unweighted, and weight
 * w = ||u|| (source_norm), 1 (none) or the router's weight of s (router):
 *
 *   pair sums [E, E], row s, column t         expert sums [E]
 *     dot        w <v,u>                        norm_sum          ||E_e(x)||
 *     target_sq  w ||v||^2                      sq_sum            ||E_e(x)||^2
 *     source_sq  w ||u||^2                      route_weight_sum  w_e
 *     dot0       <u,v>                          contribution_sum  w_e ||E_e(x)||
 *     sq0        ||u||^2                        norm_count        1
 *     count      1
 *
 * Products are double (eight lanes, fixed order over H); sums are exact
 * (base/exact.h), so they do not depend on the order of tokens. */
#ifndef EXF_KERNELS_LAYER_SUMS_H
#define EXF_KERNELS_LAYER_SUMS_H
#include "base/err.h"
#include "base/exact.h"
#include "kernels/linear/matrix.h"

#include <stddef.h>
#include <stdint.h>

typedef enum { EXF_WEIGHT_SOURCE_NORM, EXF_WEIGHT_NONE, EXF_WEIGHT_ROUTER } exf_weighting;

/* The arrays of one layer's sums; each zeroed or holding earlier sums. */
typedef struct {
    exf_exact *dot, *target_sq, *source_sq, *dot0, *sq0; /* [E, E] */
    uint64_t *count;                                     /* [E, E] */
    exf_exact *norm_sum, *sq_sum, *route_weight_sum, *contribution_sum; /* [E] */
    uint64_t *norm_count;                                /* [E] */
} exf_layer_sums;

/* Adds n_tokens tokens: outputs [T, K, H], ids [T, K] (distinct within a token),
 * weights [T, K].  EXF_NUMERIC naming the token and expert when a product is not
 * finite or leaves the range of exf_exact; the sums are then undefined.
 * scratch: K*K doubles. */
exf_code exf_layer_sums_add_cpu(const exf_layer_sums *m, int n_experts, int top_k, int d_model, int n_tokens, const float *outputs,
                             const int32_t *ids, const float *weights, exf_weighting weighting, double *scratch, exf_err *err) EXF_CHECKED;

/* Adds only the expert sums, for tokens whose pair sums come from common input. */
exf_code exf_layer_sums_add_experts_cpu(const exf_layer_sums *m, int top_k, int d_model, int n_tokens, const float *outputs, const int32_t *ids,
                                     const float *weights, exf_err *err) EXF_CHECKED;

/* Tokens of a sequence whose terms are added in double before they are added exactly. */
enum { EXF_COMMON_INPUT_UNIT = 8 };

/* Adds only the pair sums, of common input: outputs [T, E, H] of all experts, every
 * ordered pair s != t.  A token's products are one symmetric matrix product in double
 * (dot = (W U) V'), its pairs' terms are added up over the call in order of tokens, in
 * double, and that total is added exactly: equal calls give equal bits in any order.
 * EXF_WEIGHT_ROUTER is EXF_INTERNAL, for the router weighs its choices only.
 * scratch: exf_layer_sums_common_input_scratch() doubles. */
exf_code exf_layer_sums_add_common_input_cpu(const exf_layer_sums *m, int n_experts, int d_model, int n_tokens, const float *outputs, exf_weighting weighting,
                                    double *scratch, exf_err *err) EXF_CHECKED;
size_t exf_layer_sums_common_input_scratch(int n_experts, int d_model);

/* ---- outputs in device memory ------------------------------------------------
 * The same sums, kept in device memory and copied to the host once per layer.  An inner product is
 * added up in float32 over runs of 64 elements and in double from there on: <u,v> is
 * within 2^-18 ||u|| ||v|| of the exact one (and far nearer where signs mix), norms
 * and weights follow from it.
 * Terms are then rounded to the grid of exf_exact and added as integers, so the
 * sums depend on no order, no split and no number of queues. */
typedef struct {
    int n_experts, top_k, d_model, n_tokens;
    exf_matrix outputs;  /* [T, K, H] */
    const int32_t *ids;   /* [T, K] */
    const float *weights; /* [T, K] */
    exf_weighting weighting;
    int experts_only;     /* 1: the expert sums alone */
    int64_t row;          /* of the first token, for messages */
} exf_layer_sums_call;

/* Common input on a device: first the Gram matrices C[s, t] = <u_s, u_t> of all tokens in
 * one call, then sums over some of these tokens.  A product accumulates in float32 over H:
 * within H 2^-24 ||u|| ||v|| of the exact one.  A token's bits do not depend on where in
 * the call it is nor on what is beside it, but they may on how many products the call
 * makes: callers keep to one number and pay for what they do not use.
 * The sums are those of exf_layer_sums_add_common_input_cpu: norms and weights from the diagonal of
 * C, terms in double in order of tokens over EXF_COMMON_INPUT_UNIT of them, counted from the
 * call's first, each unit's total added exactly.  A norm above 2^20 is out of range. */
typedef struct {
    int n_experts, d_model;
    int n_products;     /* tokens for which outputs has memory, used or not */
    exf_matrix outputs; /* [n_products, E, H] */
    void *gram_matrices; /* gram_matrices_bytes() of device memory; read by exf_common_input_call */
} exf_gram_call;

typedef struct {
    const exf_gram_call *of;
    int first, n_tokens;  /* the call's tokens [first, first + n_tokens) */
    exf_weighting weighting; /* not the router's */
    const int32_t *row;   /* on the device: row_offset + row[i] is token first + i's, for messages */
    int64_t row_offset;
} exf_common_input_call;

/* Tokens of one call that fill a device, at most 32 MB of products; a multiple of the unit. */
static inline int exf_gram_tokens(int n_experts)
{
    int64_t most = ((int64_t)8 << 20) / ((int64_t)n_experts * n_experts) / EXF_COMMON_INPUT_UNIT * EXF_COMMON_INPUT_UNIT;
    return most < EXF_COMMON_INPUT_UNIT ? EXF_COMMON_INPUT_UNIT : most > 128 ? 128 : (int)most;
}

/* Sums over sequences, for a jackknife: with a = scale times a sequence's own dot and
 * b = scale times its own target_sq, each rounded once to double. */
typedef struct {
    exf_exact *aa, *ab, *bb; /* [E, E] */
    uint64_t *sequences;     /* [E, E] that observed the pair */
} exf_sequence_sums;

/* Bytes of host memory that layer_sums_take (backend.h) needs. */
static inline size_t exf_layer_sums_host_bytes(int n_experts)
{
    size_t e = (size_t)n_experts;
    return (8 * e * e + 4 * e) * sizeof(exf_exact) + (2 * e * e + e) * sizeof(uint64_t);
}
#endif

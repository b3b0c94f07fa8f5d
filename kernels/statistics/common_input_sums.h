/* common_input_sums.h - adds up pair sums of common input: of tokens on which all E experts of a
 * layer ran, every ordered pair of them.  The sums are those of layer_sums.h. */
#ifndef EXF_KERNELS_COMMON_INPUT_SUMS_H
#define EXF_KERNELS_COMMON_INPUT_SUMS_H
#include "kernels/statistics/layer_sums.h"

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

/* Tokens of a sequence whose terms are added in double before they are added exactly. */
enum { EXF_COMMON_INPUT_UNIT = 8 };

/* Adds only the pair sums, of common input: outputs [T, E, H] of all experts, every
 * ordered pair s != t.  A token's products are one symmetric matrix product in double
 * (dot = (W U) V'), its pairs' terms are added up over the call in order of tokens, in
 * double, and that total is added exactly: equal calls give equal bits in any order.
 * EXF_WEIGHT_ROUTER is EXF_INTERNAL, for the router weighs its choices only.
 * scratch: exf_layer_sums_common_input_scratch() doubles. */
exf_code exf_layer_sums_add_common_input_cpu(const exf_layer_sums *m, int n_experts, int d_model, int n_tokens,
                                             const float *outputs, exf_weighting weighting, double *scratch,
                                             exf_err *err) EXF_CHECKED;
size_t exf_layer_sums_common_input_scratch(int n_experts, int d_model);

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

/* Bytes of gram_matrices. */
size_t exf_gram_matrices_bytes_cuda(int n_experts, int n_products);
void exf_gram_matrices_cuda(struct exf_queue *q, const exf_gram_call *c);
/* Must not run while another queue adds to the same sums (exf_layer_sums_bytes_cuda). */
void exf_layer_sums_add_common_input_cuda(struct exf_queue *q, void *sums, const exf_common_input_call *c);
#ifdef __cplusplus
}
#endif
#endif

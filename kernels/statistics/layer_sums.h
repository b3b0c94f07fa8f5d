/* layer_sums.h - adds up the sums of one layer's routed expert outputs: pair sums and expert
 * sums, the sufficient statistics of the tables (docs/method.md, section 1; paper, appendix "shared
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
 *     sq0        ||u||^2                        energy_sum        (w_e ||E_e(x)||)^2
 *     count      1                              norm_count        1
 *
 * and of the layer empty_slots, 1 for each slot without an expert.
 *
 * Products are double (eight lanes, fixed order over H); sums are exact
 * (base/exact.h), so they do not depend on the order of tokens. */
#ifndef EXF_KERNELS_LAYER_SUMS_H
#define EXF_KERNELS_LAYER_SUMS_H
#include "base/err.h"
#include "base/exact.h"
#include "kernels/linear/matrix.h"
#include "kernels/statistics/sums_fault.h"

#include <stddef.h>
#include <stdint.h>

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { EXF_WEIGHT_SOURCE_NORM, EXF_WEIGHT_NONE, EXF_WEIGHT_ROUTER } exf_weighting;

/* The arrays of one layer's sums; each zeroed or holding earlier sums. */
typedef struct {
    exf_exact *dot, *target_sq, *source_sq, *dot0, *sq0; /* [E, E] */
    uint64_t *count;                                     /* [E, E] */
    exf_exact *norm_sum, *sq_sum, *route_weight_sum, *contribution_sum, *energy_sum; /* [E] */
    uint64_t *norm_count;                                /* [E] */
    uint64_t *empty_slots;                               /* [1] */
} exf_layer_sums;

/* Adds n_tokens tokens: outputs [T, K, H], ids [T, K] (distinct within a token; -1: the slot is empty, and only
 * counted as such), weights [T, K].  EXF_NUMERIC naming token and expert when a product is not
 * finite or leaves the range of exf_exact; the sums are then undefined.
 * scratch: K*K doubles. */
exf_code exf_layer_sums_add_cpu(const exf_layer_sums *m, int n_experts, int top_k, int d_model, int n_tokens, const float *outputs,
                                const int32_t *ids, const float *weights, exf_weighting weighting, double *scratch,
                                exf_err *err) EXF_CHECKED;

/* Adds only the expert sums, for tokens whose pair sums come from common input. */
exf_code exf_layer_sums_add_experts_cpu(const exf_layer_sums *m, int top_k, int d_model, int n_tokens, const float *outputs,
                                        const int32_t *ids, const float *weights, exf_err *err) EXF_CHECKED;

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
    const int32_t *ids;   /* [T, K]; -1: an empty slot */
    const float *weights; /* [T, K] */
    exf_weighting weighting;
    int experts_only;     /* 1: the expert sums alone */
    int64_t row;          /* of the first token, for messages */
} exf_layer_sums_call;

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
    return (8 * e * e + 5 * e) * sizeof(exf_exact) + (2 * e * e + e) * sizeof(uint64_t);
}

/* Bytes of GPU memory for the sums of a layer; zero them before the first call. */
size_t exf_layer_sums_bytes_cuda(int n_experts);
void exf_layer_sums_add_cuda(struct exf_queue *q, void *sums, const exf_layer_sums_call *c);
/* Waits, adds the sums to `to` and, where not NULL, `over`, and zeroes them; host: exf_layer_sums_host_bytes().  EXF_NUMERIC,
 * naming experts, where a term was out of range; *place then says where. */
exf_code exf_layer_sums_take_cuda(struct exf_queue *q, void *sums, const exf_layer_sums *to, const exf_sequence_sums *over,
                                  int n_experts, void *host, exf_sums_place *place, exf_err *err) EXF_CHECKED;
/* Ends a sequence: the tokens added since the last call (or the last take) are one. */
void exf_layer_sums_close_sequence_cuda(struct exf_queue *q, void *sums, int n_experts, double scale, uint64_t sequence);
#ifdef __cplusplus
}
#endif
#endif

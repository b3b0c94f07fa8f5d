/* correction.h - adds the part of omitted experts' outputs that a diagonal or low-rank projector
 * restores, which no router weight can express (docs/method.md, section 2):
 *
 *   routed[t] += w (M v),   M v = S v + d * v + (v Q) C
 *
 * for every omitted route (source s, weight w) of token t; v is the output of the kept expert
 * that the route goes to.  A pair without vectors has M = S alone; one that has them leaves S out
 * unless `scalar` is 1; d, or Q and C, may be absent.
 *
 * A token's routes are ranked, and an omitted route's target chosen, as exfold/fold.h says of
 * prefill.  The kept routes stand in the token's first slots in the order of rank, and run with
 * their own weights; a token that still runs an expert in the slot after the kept ones was not
 * rewritten and has nothing omitted.
 *
 * Float32, added in order of rank: first S v, then d * v, then the columns of Q in order, each
 * product and sum rounded by itself, so CPU and CUDA agree bit for bit where rank is 0.  v Q is
 * summed in double on the CPU; on a device in double over sums of eight float32 products, so z
 * differs by at most 2^-20 sum |v| |q| before it is rounded to float32. */
#ifndef EXF_KERNELS_CORRECTION_H
#define EXF_KERNELS_CORRECTION_H
#include "exfold/fold.h"
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One layer's tables; E = n_experts. */
typedef struct {
    int n_experts;
    const float *coeff, *loss; /* [E, E] S, and the losses by which targets are chosen */
    const float *norms;        /* [E] may be NULL with EXF_FOLD_BY_SCORE */
    const int32_t *pair;       /* [E, E] number of a pair among those with vectors; -1: it has none */
    int32_t first;             /* number of the pair that the arrays begin with */
    const float *diagonal;     /* [P, H] d, or NULL */
    const float *basis;        /* [R, H] the columns of Q as rows, or NULL */
    const float *c;            /* [P, R, H] or NULL */
    int rank;                  /* R; 0 without basis and c */
    int scalar;                /* 1: a pair with vectors has S too */
} exf_correction_tables;

typedef struct {
    int n_tokens, top_k, d_model; /* T, K <= 16, H */
    exf_matrix outputs;           /* [T, K, H] unweighted; float32 on the CPU */
    const int32_t *router_ids;    /* [T, K] as the router chose */
    const float *router_weights;  /* [T, K] */
    const int32_t *topk_ids;      /* [T, K] after rewriting */
    const unsigned char *prefill; /* [T] 0: the token is left alone; NULL: all are prefill */
    exf_fold_rank by;
    int keep;                     /* P */
    float max_loss;               /* the limit itself: EXF_FOLD_NEVER, none */
    void *workspace;              /* exf_correction_workspace() bytes of the device's memory; the CPU needs none */
} exf_correction_call;

/* Bytes: a plan of 16 per route and its R products z. */
static inline size_t exf_correction_workspace(int n_tokens, int top_k, int rank)
{
    return (size_t)n_tokens * (size_t)top_k * (16 + (size_t)rank * sizeof(float));
}

/* routed [T, H] float32 */
void exf_correct_routes_cpu(float *routed, const exf_correction_tables *t, const exf_correction_call *c);
void exf_correct_routes_cuda(exf_queue *q, float *routed, const exf_correction_tables *t, const exf_correction_call *c);

#ifdef __cplusplus
}
#endif
#endif

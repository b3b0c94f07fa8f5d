/* router.h - the router chooses each token's K experts and their weights from logits.
 *
 *   score   = softmax(z) over all E, sigmoid(z), or sqrt(softplus(z)); in double
 *   choice  = score + bias; with groups, the choices outside the best top_groups
 *             of n_groups groups become the lowest number, a group being as good as its largest
 *             choice (max) or the sum of its two largest (top2_sum): a choice below 0, which a negative
 *             bias makes, still comes before them.  A bias of -infinity: the expert does not exist and
 *             is never chosen while K others are
 *   ids     = the K largest choices, ties to the lower expert number;
 *             or, where there is a table, table[token]
 *   weights = score[ids], divided by (their sum + epsilon) when renormalise,
 *             times scaling
 * An expert that a table names n times for a token is one route: its score counts n times in the sum, its weight is n
 * times that of one (in double, then rounded), and the n - 1 slots that are left are empty: id -1, weight 0.
 * logits [T, E]; ids [T, K] and weights [T, K] sorted by falling weight, empty slots last. */
#ifndef EXF_KERNELS_ROUTER_H
#define EXF_KERNELS_ROUTER_H
#include <stdint.h>

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { EXF_ROUTER_SOFTMAX, EXF_ROUTER_SIGMOID, EXF_ROUTER_SQRT_SOFTPLUS } exf_router_score;

typedef struct {
    exf_router_score score;
    int n_experts, top_k;
    int n_groups, top_groups, group_top2; /* n_groups 1: no groups */
    int renormalise;
    double epsilon, scaling;
    const float *bias;     /* [E], or NULL */
    const float *table;    /* [vocab, K] expert numbers, or NULL */
} exf_router_rules;

/* Fills score [E] of a token from its logits [E]. */
void exf_router_scores_cpu(double *score, const float *logits, exf_router_score kind, int n_experts);
/* Doubles of scratch. */
int exf_router_scratch(int n_experts);
/* tokens [T]: ids of the tokens, needed with a table. */
void exf_router_cpu(int32_t *ids, float *weights, const float *logits, const int32_t *tokens, int n_tokens,
                    const exf_router_rules *r, double *scratch);
void exf_router_cuda(struct exf_queue *q, int32_t *ids, float *weights, const float *logits, const int32_t *tokens, int n_tokens,
                     const exf_router_rules *r, double *scratch);
#ifdef __cplusplus
}
#endif
#endif

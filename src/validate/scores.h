/* scores.h - scores the next-token distribution, and the layers' outputs, of each lane of a pass against the first lane's.
 *
 * Observers read logits as they are computed and keep three numbers a token, never the
 * logits: the negative log-likelihood of the next token, KL(first || lane), and whether
 * both have the same likeliest token.  The last position of a sequence has no next token
 * and no scores.  Memory: per worker, 2 rows of the vocabulary for each row of a block of
 * logits; per lane, 9 bytes a token.  On a device the logits are scored by kernels
 * (kernels/statistics/divergence.h), with one row of the vocabulary for each row of a block. */
#ifndef EXF_VALIDATE_SCORES_H
#define EXF_VALIDATE_SCORES_H
#include "base/exact.h"
#include "kernels/backend.h"
#include "pass/forward.h"
#include "pass/hooks.h"
#include "ranks/ranks.h"

/* Quality of one lane over its scored tokens. */
typedef struct {
    uint64_t tokens;
    double ppl, kl_mean;   /* exp of the mean nll; the mean */
    double ppl_se, kl_se;  /* their standard errors by clusters, which exf_validate() sets; NaN: not known */
    double kl_median, kl_p90, kl_p99, kl_p999, kl_max; /* nearest-rank quantiles */
    double top1; /* share of tokens with the same likeliest next token */
} exf_quality;

typedef struct exf_scores exf_scores;

exf_code exf_scores_new(exf_scores **out, const exf_batch *batch, size_t n_lanes, int vocab, exf_err *err) EXF_CHECKED;
/* Implement a lane's observer: `begin` (gpu NULL: the pass does not run on one), and `logits` with exf_scores_lane() as `self`; of
 * logits in GPU memory the scores are there when b->q is done. */
void *exf_scores_lane(exf_scores *s, size_t lane);
exf_code exf_scores_begin(exf_scores *s, int n_workers, const exf_backend *gpu, exf_err *err) EXF_CHECKED;
exf_code exf_scores_logits(void *lane, const exf_logits_block *b, exf_err *err) EXF_CHECKED;
/* Gives rank 0 the scores of all ranks, each of which scored a part of `whole`, in order: there they are of all of it. */
exf_code exf_scores_gather(exf_scores *s, exf_ranks *ranks, const exf_batch *whole, exf_err *err) EXF_CHECKED;
/* Sums a lane's scores over the sequences with group[i] == which, or over all if which is -1
 * or group is NULL.  EXF_NUMERIC if a score, or the perplexity, is not finite. */
exf_code exf_scores_sum(const exf_scores *s, size_t lane, const int32_t *group, int which, exf_quality *out,
                        exf_err *err) EXF_CHECKED;
/* Adds up a lane's negative log-likelihoods and KLs over each cluster's scored tokens: cluster_of [n_sequences], nll and kl
 * [n_clusters].  What is not finite exf_scores_sum() refuses. */
void exf_scores_cluster_sums(const exf_scores *s, size_t lane, const size_t *cluster_of, double *nll, double *kl);
void exf_scores_free(exf_scores *s); /* NULL is allowed */
/* Returns the bytes that scores will hold. */
uint64_t exf_scores_memory(const exf_batch *batch, size_t n_lanes, int vocab, int n_workers);

/* ---- errors of layers ---------------------------------------------------------------------- */

/* Each layer's error of a lane's routed output against the first lane's, both on the first lane's hidden states:
 * ||y^ - y|| / ||y|| over all tokens (Frobenius).  Sums are exact, so the result does not depend on threads. */
typedef struct {
    exf_exact *error_sq, *norm_sq; /* [workers, n_layers] */
    int n_workers, n_layers;
    const exf_backend *device;     /* set in a pass on a GPU */
    exf_output_errors *sums;       /* sums of the present layer, in GPU memory */
    exf_output_errors *fetched;    /* the same in staging memory */
    exf_queue *q;                  /* queue that added to the sums; NULL: none yet */
} exf_layer_errors;

exf_code exf_layer_errors_begin(exf_layer_errors *e, int n_layers, int n_workers, const exf_backend *gpu, exf_err *err) EXF_CHECKED;
exf_code exf_layer_errors_add(exf_layer_errors *e, const exf_probe_block *b, exf_err *err) EXF_CHECKED; /* in host or GPU memory */
/* Has a layer's sums in GPU memory copied to the host when the lane has run the layer, and reads them when all lanes have. */
exf_code exf_layer_errors_at(exf_layer_errors *e, const exf_moment *m, exf_err *err) EXF_CHECKED;
/* Add up the sums of the first n MoE layers over all workers; set them, for layers that a resumed pass does not run, or to
 * those of all ranks. */
void exf_layer_errors_sums(const exf_layer_errors *e, int n, exf_exact *error_sq, exf_exact *norm_sq);
void exf_layer_errors_set(exf_layer_errors *e, int n, const exf_exact *error_sq, const exf_exact *norm_sq);
/* Returns the error of a MoE layer by its number among MoE layers; 0 if the original's output is 0. */
double exf_layer_errors_value(const exf_layer_errors *e, int moe_index);
void exf_layer_errors_free(exf_layer_errors *e);
#endif

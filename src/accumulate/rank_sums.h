/* rank_sums.h - adds the sums of a layer up over the ranks of a job (ranks/ranks.h), on rank 0.
 *
 * All sums are integers, so that the number of ranks changes no bit.  A layer's scalar sums travel beside the next
 * layer's work; with vector sums, which travel there too (rank_sums.h), between the sweeps, with what the second
 * sweep needs. */
#ifndef EXF_ACCUMULATE_RANK_SUMS_H
#define EXF_ACCUMULATE_RANK_SUMS_H
#include "accumulate/sampler.h"
#include "artifact/statistics.h"
#include "base/thread_pool.h"
#include "ranks/ranks.h"

/* Scalar sums on their way. */
/* Adds a layer's vector sums up on rank 0 beside the next layer's first sweep.
 *
 * They may be gigabytes, so nothing is copied but a piece at a time: the sums that are on their way are the layer's own,
 * and must have arrived before the next layer makes its own, after its first sweep. */

typedef struct {
    exf_ranks *ranks;      /* NULL: one process, and nothing is ever on its way */
    exf_ranks_sums *sums;  /* NULL: none */
    int layer;             /* whose they are */
} exf_rank_sums;

/* Starts adding up own, which can be used again at once. */
exf_code exf_rank_sums_start(exf_rank_sums *p, int layer, const exf_layer_statistics *own, exf_err *err) EXF_CHECKED;
/* Returns 1 if sums are on their way. */
int exf_rank_sums_pending(const exf_rank_sums *p);
/* Waits for them; on rank 0 total has those of p->layer. */
exf_code exf_rank_sums_finish(exf_rank_sums *p, const exf_layer_statistics *total, exf_err *err) EXF_CHECKED;
/* Adds up at once: rank 0's s becomes the total. */
exf_code exf_rank_sums_now(exf_ranks *ranks, const exf_layer_statistics *s, exf_err *err) EXF_CHECKED;

/* Gives rank 0 the samples of all ranks; each had zeroed those that are not its own. */
exf_code exf_rank_samples(exf_ranks *ranks, const exf_sampler *s, int d_model, exf_err *err) EXF_CHECKED;
/* Gives all ranks what rank 0 chose for the second sweep: makes v there, zeroed sums of these pairs.
 * choice: 1 if v has a choice alone (exf_vector_sums_new_choice()). */
exf_code exf_rank_choice(exf_ranks *ranks, exf_vector_sums *v, int diagonal, int choice, exf_err *err) EXF_CHECKED;

typedef struct {
    exf_ranks *ranks;
    exf_vector_sums sums;             /* of a layer, on their way; on rank 0 they become the total */
    const exf_layer_statistics *layer_sums; /* borrowed: of whose stream energy rank 0's becomes the total, too */
    int layer, pending;               /* pending 0: nothing is on its way */
    exf_background adding;
} exf_rank_vectors;

/* Starts adding up v, which p owns from now on, and the energy of s' residual stream; s stays untouched until finish. */
exf_code exf_rank_vectors_start(exf_rank_vectors *p, int layer, const exf_vector_sums *v, const exf_layer_statistics *s,
                                exf_err *err) EXF_CHECKED;
/* Waits for them; EXF_OK if nothing is pending.  The sums stay in p. */
exf_code exf_rank_vectors_wait(exf_rank_vectors *p, exf_err *err) EXF_CHECKED;
/* Frees the sums; waits for those that are still on their way. */
void exf_rank_vectors_drop(exf_rank_vectors *p);
#endif

/* rank_vectors.h - adds a layer's vector sums up on rank 0 beside the next layer's first sweep.
 *
 * They may be gigabytes, so nothing is copied but a piece at a time: the sums that are on their way are the layer's own,
 * and must have arrived before the next layer makes its own, after its first sweep. */
#ifndef EXF_ACCUMULATE_RANK_VECTORS_H
#define EXF_ACCUMULATE_RANK_VECTORS_H
#include "artifact/statistics.h"
#include "base/thread_pool.h"
#include "ranks/ranks.h"

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

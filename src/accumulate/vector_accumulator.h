/* vector_accumulator.h - adds up the vector sums of a layer (vector_sums.h) in two sweeps: the first
 * chooses pairs and samples for the basis, the second adds.
 *
 * The unit of work is a block of the forward pass (at most EXF_MOE_BLOCK tokens of one
 * sequence, always the same split): within it a pair's terms, in order of tokens, are
 * one product in double on one thread, and that total is added on a grid or exactly, so
 * neither threads nor the order of blocks matter. */
#ifndef EXF_ACCUMULATE_VECTOR_ACCUMULATOR_H
#define EXF_ACCUMULATE_VECTOR_ACCUMULATOR_H
#include "accumulate/accumulate_options.h"
#include "accumulate/sampler.h"
#include "artifact/statistics.h"
#include "pass/forward.h"
#include "kernels/backend.h"
#include "ranks/ranks.h"

typedef struct exf_vector_accumulator exf_vector_accumulator;

/* Returns the most pairs of a layer that have vectors. */
uint64_t exf_vector_pairs(const exf_run_shape *shape, const exf_accumulate_options *o);

/* Makes an accumulator; borrows options and sequences. */
exf_code exf_vector_accumulator_new(exf_vector_accumulator **out, const exf_run_shape *shape, const exf_accumulate_options *o,
                                const exf_sequence_list *sequences, int n_workers, exf_err *err) EXF_CHECKED;
/* Makes it one of several ranks', whose rows begin at first_row of the whole run: pairs and basis are rank 0's for
 * all, and prepare is collective; the sums are this rank's own. */
void exf_vector_accumulator_share(exf_vector_accumulator *m, exf_ranks *ranks, size_t first_row);
void exf_vector_accumulator_free(exf_vector_accumulator *m); /* NULL is allowed */

/* Prepares a pass on a device: the device takes samples and adds diagonal sums, so that blocks are
 * copied to the host only for the second sweep of low-rank sums. */
exf_code exf_vector_accumulator_open_device(exf_vector_accumulator *m, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Returns the bytes of device memory that the accumulator takes. */
uint64_t exf_vector_accumulator_device_bytes(const exf_run_shape *shape, const exf_accumulate_options *o);

/* Called before the first sweep of a layer. */
exf_code exf_vector_accumulator_begin(exf_vector_accumulator *m, int layer, exf_err *err) EXF_CHECKED;
/* Takes samples from a block of the first sweep; concurrent. */
void exf_vector_accumulator_sample(const exf_vector_accumulator *m, const exf_moe_block *b);
exf_code exf_vector_accumulator_sample_device(exf_vector_accumulator *m, const exf_device_block *b, exf_err *err) EXF_CHECKED;
/* Called between the sweeps; s has all of the layer's sums. */
exf_code exf_vector_accumulator_prepare(exf_vector_accumulator *m, const exf_layer_statistics *s, int layer,
                                        exf_err *err) EXF_CHECKED;
/* Adds a block of the second sweep; concurrent for different workers. */
exf_code exf_vector_accumulator_add(exf_vector_accumulator *m, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
void exf_vector_accumulator_add_device(exf_vector_accumulator *m, const exf_device_block *b);
/* Called after the second sweep: copies sums on a device to the host. */
exf_code exf_vector_accumulator_end(exf_vector_accumulator *m, exf_err *err) EXF_CHECKED;
/* Returns the layer's sums, which the caller owns from now on. */
exf_vector_sums exf_vector_accumulator_give(exf_vector_accumulator *m);
/* Returns the layer's sums; valid until the next layer begins. */
const exf_vector_sums *exf_vector_accumulator_sums(const exf_vector_accumulator *m);
#endif

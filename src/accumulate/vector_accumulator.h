/* vector_accumulator.h - the second look at a layer: which pairs carry vectors, the basis,
 * and the sums of vector_sums.h.
 *
 * The unit of work is a block of the forward (at most EXF_MOE_BLOCK tokens of one
 * sequence, always the same split): within it a pair's terms, in order of tokens, are
 * one product in double on one thread, and that total is added on a grid or exactly, so
 * neither threads nor the order of blocks matter. */
#ifndef EXF_ACCUMULATE_VECTOR_ACCUMULATOR_H
#define EXF_ACCUMULATE_VECTOR_ACCUMULATOR_H
#include "accumulate/accumulate_options.h"
#include "accumulate/sampler.h"
#include "artifact/statistics.h"
#include "forward/forward.h"
#include "kernels/backend.h"

typedef struct exf_vector_accumulator exf_vector_accumulator;

/* Pairs of a layer that carry vectors, at most. */
uint64_t exf_vector_pairs(const exf_run_shape *shape, const exf_accumulate_options *o);

/* Borrows options and sequences. */
exf_code exf_vector_accumulator_new(exf_vector_accumulator **out, const exf_run_shape *shape, const exf_accumulate_options *o,
                                const exf_sequence_list *sequences, int n_workers, exf_err *err) EXF_CHECKED;
void exf_vector_accumulator_free(exf_vector_accumulator *m); /* NULL is allowed */

/* Where the pass runs on a device: samples are taken there, and diagonal sums kept there, so
 * that no block need be shown on the host but for the second sweep of low-rank sums. */
exf_code exf_vector_accumulator_open_device(exf_vector_accumulator *m, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Bytes of the device's memory that this takes. */
uint64_t exf_vector_accumulator_device_bytes(const exf_run_shape *shape, const exf_accumulate_options *o);

/* Before the first sweep of a layer. */
exf_code exf_vector_accumulator_begin(exf_vector_accumulator *m, int layer, exf_err *err) EXF_CHECKED;
/* A block of the first sweep; concurrent. */
void exf_vector_accumulator_sample(const exf_vector_accumulator *m, const exf_moe_block *b);
exf_code exf_vector_accumulator_sample_device(exf_vector_accumulator *m, const exf_device_block *b, exf_err *err) EXF_CHECKED;
/* Between the sweeps: s holds all of the layer's sums. */
exf_code exf_vector_accumulator_prepare(exf_vector_accumulator *m, const exf_layer_statistics *s, int layer,
                                        exf_err *err) EXF_CHECKED;
/* A block of the second sweep; concurrent for different workers. */
exf_code exf_vector_accumulator_add(exf_vector_accumulator *m, const exf_moe_block *b, exf_err *err) EXF_CHECKED;
void exf_vector_accumulator_add_device(exf_vector_accumulator *m, const exf_device_block *b);
/* After it: brings home what is on a device. */
exf_code exf_vector_accumulator_end(exf_vector_accumulator *m, exf_err *err) EXF_CHECKED;
/* Valid until the next layer begins. */
const exf_vector_sums *exf_vector_accumulator_sums(const exf_vector_accumulator *m);
#endif

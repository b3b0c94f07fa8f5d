/* sampler.h - a sampler chooses the tokens of a layer from which the low-rank basis is made, and
 * keeps their outputs.
 *
 * A candidate is a token's slot a (the source) with another slot b of that token (the
 * target); those of the smallest keys are taken (smallest_keys.h). */
#ifndef EXF_ACCUMULATE_SAMPLER_H
#define EXF_ACCUMULATE_SAMPLER_H
#include "accumulate/smallest_keys.h"
#include "pass/forward.h"

typedef struct {
    exf_smallest_keys keys;   /* the chosen, whose order is that of samples */
    size_t n;                 /* chosen in this layer */
    int32_t *slot;            /* [n, 2] slots a, b */
    float *source, *target;   /* [n, H] outputs u, v */
    int32_t *pair;            /* [n, 2] experts */
    size_t first_row;         /* row in the whole run of the first row that blocks count from: of a rank's part */
} exf_sampler;

/* Allocates memory for `samples` samples of width d_model. */
exf_code exf_sampler_new(exf_sampler *s, size_t samples, int d_model, exf_err *err) EXF_CHECKED;
void exf_sampler_free(exf_sampler *s);
/* Chooses the samples of one layer. */
exf_code exf_sampler_choose(exf_sampler *s, const exf_sequence_list *sequences, int top_k, int layer, uint64_t seed,
                            exf_err *err) EXF_CHECKED;
/* Zeroes all samples, for a rank that keeps only some. */
void exf_sampler_clear(const exf_sampler *s, int d_model);
/* Copies the chosen samples of a block; blocks may come from several threads. */
void exf_sampler_keep(const exf_sampler *s, const exf_moe_block *b);
#endif

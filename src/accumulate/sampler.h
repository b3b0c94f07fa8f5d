/* sampler.h - a sampler chooses the tokens of a layer from which the low-rank basis is made, and
 * keeps their outputs.
 *
 * A candidate is a token's slot a (the source) with another slot b of that token (the
 * target).  Those of the smallest keys are taken, a key being a pure function of the
 * sequence's own digest, the layer, the position and the slot: the choice and its order
 * do not depend on threads, on how the data is cut into files, or on their order. */
#ifndef EXF_ACCUMULATE_SAMPLER_H
#define EXF_ACCUMULATE_SAMPLER_H
#include "artifact/sequences.h"
#include "forward/forward.h"

typedef struct {
    uint64_t key;
    size_t row; /* row of the token in the whole run */
    int32_t slot, other;
} exf_candidate;

typedef struct {
    size_t n;                 /* chosen in this layer */
    exf_candidate *chosen;    /* [n] by rising key: the order of samples */
    size_t *by_row;           /* [n] their indices by row and slot */
    float *source, *target;   /* [n, H] outputs u, v, in order of samples */
    int32_t *pair;            /* [n, 2] experts */
    size_t cap;               /* samples that fit */
    size_t first_row;         /* row in the whole run of the first row that blocks count from: of a rank's part */
} exf_sampler;

/* Allocates memory for `samples` samples of width d_model. */
exf_code exf_sampler_new(exf_sampler *s, size_t samples, int d_model, exf_err *err) EXF_CHECKED;
void exf_sampler_free(exf_sampler *s);
/* Chooses the samples of one layer. */
exf_code exf_sampler_choose(exf_sampler *s, const exf_sequence_list *sequences, int top_k, int layer, uint64_t seed,
                            exf_err *err) EXF_CHECKED;
/* Returns the index in by_row of the first sample at or behind `row` of the whole run. */
size_t exf_sampler_first(const exf_sampler *s, size_t row);
/* Zeroes all samples, for a rank that keeps only some. */
void exf_sampler_clear(const exf_sampler *s, int d_model);
/* Copies the chosen samples of a block; blocks may come from several threads. */
void exf_sampler_keep(const exf_sampler *s, const exf_moe_block *b);
#endif

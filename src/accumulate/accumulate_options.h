/* accumulate_options.h - says which sums of a layer are added up. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_OPTIONS_H
#define EXF_ACCUMULATE_ACCUMULATE_OPTIONS_H
#include "artifact/artifact_basis.h"
#include "kernels/statistics/layer_sums.h"

typedef struct {
    exf_weighting weighting;
    int common_input_tokens; /* above 0: pairs are those of common input, on so many tokens of each sequence */
    int diagonal, lowrank; /* 1: their moments are added up, in a second sweep of every layer */
    int64_t vector_pairs;  /* ordered pairs per layer that have moments: those of largest source_sq */
    int64_t samples;       /* residuals per layer from which the basis of lowrank is made */
    uint64_t seed;         /* seed of the choice of samples, and of the search for the basis */
    exf_scalar_rule rule;  /* rule of the scalar whose residuals are sampled */
    int basis_only;        /* 1: what vector sums are added up over is the result, and no sums */
    const exf_basis *basis; /* borrowed; what vector sums are added up over (artifact/artifact_basis.h); NULL: made by the run */
    int64_t route_sample;  /* tokens of a layer whose routes are kept for budgets per token; 0: none */
    int partial;           /* 1: of captures, shards may be missing (artifact/shards.h) */
    int helpers;           /* host threads for vector sums where one worker shows all blocks; 0 is 1; changes no bit */
} exf_accumulate_options;
#endif

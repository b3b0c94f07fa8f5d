/* accumulate_options.h - which sums are kept of a layer. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_OPTIONS_H
#define EXF_ACCUMULATE_ACCUMULATE_OPTIONS_H
#include "kernels/statistics/layer_sums.h"
#include "kernels/statistics/pair_scalar.h"

typedef struct {
    exf_weighting weighting;
    int common_input_tokens; /* above 0: pairs are those of common input, of so many tokens of each sequence */
    int diagonal, lowrank; /* whether their moments are kept, in a second look at every layer */
    int64_t vector_pairs;  /* directed pairs a layer that have them, those of largest source_sq */
    int64_t samples;       /* residuals a layer from which the basis of lowrank is made */
    uint64_t seed;         /* of that choice, and of the search for the basis */
    exf_scalar_rule rule;  /* of the scalar whose residuals they are */
    int helpers;           /* host threads for vector sums where one worker shows all blocks; 0 is 1; changes no bit */
} exf_accumulate_options;
#endif

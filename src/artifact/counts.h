/* counts.h - the rules that the counts of a layer obey, in statistics and in tables.
 *
 * A token has K slots, each with an expert of its own or empty (only a hash layer that names an expert twice for a token
 * leaves slots empty: kernels/moe/moe.h).  So of T tokens, whatever the shard, the merge and the number of runs:
 *   an expert has at most T tokens, all experts together T K less the empty slots;
 *   pairs are mirrored, and an expert has no pair with itself.
 * Of co-routed pairs a pair has at most the tokens of the rarer of its experts, and as a token that chose s has all its
 * other routes in pairs with s, the pairs of s have (K - 1) times its tokens; with empty slots less, in the layer by 1 to
 * K - 1 for each of them.
 * Of common input all pairs of all experts have the same tokens: min(length, observer_tokens) of each sequence. */
#ifndef EXF_ARTIFACT_COUNTS_H
#define EXF_ARTIFACT_COUNTS_H
#include "artifact/artifact.h"
#include "artifact/sequences.h"

/* Tokens that every pair has. */
typedef struct {
    uint64_t least, most; /* 0, 0: pairs are co-routed */
} exf_common_tokens;

typedef struct {
    const char *path; /* of the file, for messages, as are the next three */
    int layer;        /* the model's number */
    const char *pairs, *experts; /* the arrays' names up to a cell's index: "/layers/5/count[", "/count[1, " */
    const exf_run_shape *run;
    exf_common_tokens common;
    const uint64_t *count;        /* [E, E] */
    const uint64_t *expert_count; /* [E] */
    uint64_t empty_slots;
} exf_layer_counts;

/* Refuses counts that cannot be: EXF_FORMAT naming file, layer, array and the two values that disagree. */
exf_code exf_counts_check(const exf_layer_counts *c, exf_err *err) EXF_CHECKED;

/* Finds how many tokens of common input a run had: exactly, where its sequences are known.  EXF_FORMAT if the fact
 * accumulate.observer_tokens is no number. */
exf_code exf_common_tokens_of(exf_common_tokens *out, const exf_run_shape *run, const exf_sequence_list *sequences,
                              const exf_provenance *p, const char *path, exf_err *err) EXF_CHECKED;
#endif

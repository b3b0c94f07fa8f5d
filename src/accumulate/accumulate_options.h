/* accumulate_options.h - which sums of a layer are added up: what goes together, the facts that it makes, and what it takes. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_OPTIONS_H
#define EXF_ACCUMULATE_ACCUMULATE_OPTIONS_H
#include "accumulate/statistics.h"
#include "artifact/data.h"
#include "kernels/statistics/layer_sums.h"

/* Whether routes are observed that the bare router would choose, as REAP's code makes them; their weights may be renormalised. */
typedef enum { EXF_BARE_NONE, EXF_BARE_PLAIN, EXF_BARE_RENORMALISED } exf_bare_router;

/* Which sums of a layer are added up. */
typedef struct {
    exf_weighting weighting;
    int common_input_tokens; /* above 0: pairs are those of common input, on so many tokens of each sequence */
    exf_bare_router bare_router; /* of common input */
    int diagonal, lowrank; /* 1: their moments are added up, in a second sweep of every layer */
    int64_t vector_pairs;  /* ordered pairs per layer that have moments: those of largest source_sq */
    int rank;              /* columns of the basis of lowrank, the largest rank that is to be solved; 0: EXF_BASIS_RANK */
    int64_t samples;       /* residuals per layer from which the basis of lowrank is made */
    uint64_t seed;         /* seed of the choice of samples, and of the search for the basis */
    exf_scalar_rule rule;  /* rule of the scalar whose residuals are sampled */
    int norm_head;         /* directions of the norm head, found before a layer's experts run; 0: none */
    int64_t route_sample;  /* tokens of a layer whose routes are kept for budgets per token; 0: none */
    int partial;           /* 1: of captures, shards may be missing (artifact/data.h) */
    int cross_check;       /* 1: a GPU's sums of a few tokens of each layer are made again on the CPU (cross_check.h) */
    const exf_provenance *settings; /* borrowed; by what tables are to be solved, kept in /origin (EXF_SETTING); NULL: not known */
    int helpers;           /* host threads for vector sums where one worker shows all blocks; 0 is 1; changes no bit */
} exf_accumulate_options;

/* Refuses options that cannot be combined: EXF_USAGE in terms of recipe keys. */
exf_code exf_accumulate_check(const exf_accumulate_options *o, exf_err *err) EXF_CHECKED;
/* Adds the facts of the accumulate stage to those of the capture stage. */
exf_code exf_accumulate_facts(exf_provenance *p, const exf_accumulate_options *o, int64_t top_k, int64_t d_model,
                              exf_err *err) EXF_CHECKED;
/* Returns the columns of the basis of lowrank, never more than the model's width; 0 without lowrank. */
int exf_vector_rank(const exf_run_shape *shape, const exf_accumulate_options *o);
/* Returns the most pairs of a layer that have vectors. */
uint64_t exf_vector_pairs(const exf_run_shape *shape, const exf_accumulate_options *o);
/* Return the bytes that one layer's statistics take on disk, those of its vector sums alone, and what one layer takes in memory
 * while it is observed; has_ranks: on rank 0 of several, which takes most. */
uint64_t exf_accumulate_disk(const exf_run_shape *shape, const exf_accumulate_options *o);
uint64_t exf_accumulate_vectors_disk(const exf_run_shape *shape, const exf_accumulate_options *o);
uint64_t exf_accumulate_memory(const exf_run_shape *shape, const exf_accumulate_options *o, int n_workers, int on_device,
                               int has_ranks);

/* Returns 1 if there are vector sums, which take a second sweep of each layer. */
int exf_wants_vectors(const exf_accumulate_options *o);
/* Returns the directions of the norm head that a run of this shape has. */
int exf_head_directions(const exf_run_shape *shape, const exf_accumulate_options *o);

enum { EXF_MOST_WAITING = 2 };
/* Returns how many finished layers wait where a pass runs on a device or on several ranks. */
static inline int exf_waiting_layers(const exf_accumulate_options *o, int has_ranks)
{
    return has_ranks || !exf_wants_vectors(o) ? EXF_MOST_WAITING : 1;
}
#endif

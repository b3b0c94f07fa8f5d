/* cross_check.h - the cross-check of a pass on a GPU: what the GPU adds to a layer's sums for a few tokens is made again on the
 * CPU, from the same outputs, and compared.
 *
 * A wrong kernel, a bad card and flaky memory give tables that look like any others; here they stop the run before it writes
 * tables.  In each layer at most eight tokens in a row are checked, which depend on the layer and the number of tokens alone;
 * of common input, eight tokens of eight experts as well.  The GPU copies these tokens' outputs, ids and weights to the host, and
 * the cells of their pairs before and after their terms are added (exf_cells_call of kernels/statistics/layer_sums.h): since sums
 * are exact, the difference is what was added.  The CPU's reference (exf_layer_sums_add_cpu) adds the same terms on a thread of
 * its own while the next layer runs.  Nothing of it changes a bit of the sums.
 *
 * Bound: an inner product of the GPU is within 2^-18 ||u|| ||v||, and a weight may be as far off as what it multiplies, so sums
 * agree within 2^-17 of their size (of dot and dot0: of the squares that bound them); of common input within 2^-17 + 2^-23 H.
 * Beside that, a term may be off by a unit of exf_exact, and in common input by what is too small for float32 (cell_floor() has
 * the derivation): outputs near 1e-22 have squares of which float32 has two bits.  Of routed tokens the GPU makes those in
 * double. */
#ifndef EXF_ACCUMULATE_CROSS_CHECK_H
#define EXF_ACCUMULATE_CROSS_CHECK_H
#include "accumulate/statistics.h"
#include "base/worker.h"
#include "kernels/backend.h"
#include "pass/hooks.h"

/* Returns the arrays of a layer's statistics as the kernels take them. */
static inline exf_layer_sums exf_layer_sums_of(const exf_layer_statistics *s)
{
    return (exf_layer_sums){s->dot, s->target_sq, s->source_sq, s->dot0, s->sq0, s->cosine_sum, s->count,
                            s->norm_sum, s->sq_sum, s->route_weight_sum, s->contribution_sum, s->energy_sum, s->norm_count,
                            s->empty_slots};
}

/* Returns the arrays of sums over sequences and of a half. */
static inline exf_sequence_sums exf_sequence_sums_of(const exf_layer_statistics *s)
{
    return (exf_sequence_sums){s->seq_aa, s->seq_ab, s->seq_bb, s->sequences, s->half_dot, s->half_target_sq, s->half_source_sq,
                               s->half_count};
}

enum { EXF_CHECKED_TOKENS = 8, EXF_CHECKED_EXPERTS = 8 };

/* Tokens whose terms are checked, in host memory that the GPU copies them to. */
typedef struct {
    int n_tokens, width; /* width: experts of a token */
    int common_input;    /* 1: all tokens have the same experts, and no weights */
    exf_matrix outputs;  /* [n_tokens, width, H] */
    const int32_t *device_ids; /* where the GPU has them */
    int32_t *ids;        /* [n_tokens, width]; of common input [width] */
    float *weights;      /* [n_tokens, width] */
    double *added;       /* [rows, width, width, EXF_CELL_VALUES]; rows: n_tokens, of common input 1 */
    size_t sequence;     /* of the first token, for messages */
    int position;        /* of the first token in its sequence; of common input -1: its tokens are spread over the sequence */
} exf_checked_part;

/* The parts of one layer; one without tokens is not checked. */
typedef struct {
    struct exf_cross_check *of;
    int number; /* the model's */
    exf_checked_part routed, common;
    exf_job job;
} exf_checked_layer;

typedef struct exf_cross_check {
    const exf_backend *b; /* NULL: nothing is checked */
    int n_experts, top_k, d_model;
    exf_weighting weighting;
    int experts_only;     /* 1: of routed tokens the experts' own sums alone, since pairs are those of common input */
    char *staging;        /* parts of both layers, pinned */
    uint64_t *before;     /* in device memory */
    double *added;        /* in device memory */
    int32_t *experts;     /* [E] in device memory: 0, 1, ...; NULL without common input */
    exf_checked_layer layer[2]; /* one is checked while the GPU fills the other */
    int turn;
    exf_worker worker;
} exf_cross_check;

/* Bytes of GPU memory that open takes. */
uint64_t exf_cross_check_bytes(int n_experts, int top_k, int common_input);
exf_code exf_cross_check_open(exf_cross_check *check, const exf_backend *b, int n_experts, int top_k, int d_model, int common_input,
                              exf_weighting weighting, exf_err *err) EXF_CHECKED;

/* Returns how many of a block's n tokens from `at` on are added by one call: those of a checked part, which *part then is, or
 * those before the next one, and *part is NULL. */
int exf_cross_check_next(exf_cross_check *check, const exf_moe_block *b, size_t at, int n, exf_checked_part **part);
/* Returns the part in which the first tokens of part i of common input are checked, or NULL: they are not. */
exf_checked_part *exf_cross_check_next_common(exf_cross_check *check, const exf_common_input_block *b, int i);
/* Queue what is copied before and after the terms of a checked part are added to `sums`. */
void exf_cross_check_before(exf_cross_check *check, exf_checked_part *p, exf_queue *q, const void *sums,
                            const exf_layer_sums_call *c);
void exf_cross_check_before_common(exf_cross_check *check, exf_checked_part *p, exf_queue *q, const void *sums,
                                   const exf_common_input_call *c);
void exf_cross_check_after(exf_cross_check *check, exf_checked_part *p, exf_queue *q, const void *sums);

/* Begins to check the layer's parts, whose copies are complete.  EXF_DEVICE: a layer before failed. */
exf_code exf_cross_check_layer(exf_cross_check *check, int layer, exf_err *err) EXF_CHECKED;
/* Waits until all layers are checked.  EXF_DEVICE names layer, tokens, experts, sum and both values. */
exf_code exf_cross_check_finish(exf_cross_check *check, exf_err *err) EXF_CHECKED;
void exf_cross_check_close(exf_cross_check *check); /* accepts zeroed memory */
#endif

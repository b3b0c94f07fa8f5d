/* experts_layer.h - what the files of the feed-forward half (experts.h) share: a layer's state, the arrays of a call, products. */
#ifndef EXF_PASS_EXPERTS_LAYER_H
#define EXF_PASS_EXPERTS_LAYER_H
#include "base/parallel.h"
#include "model/model.h"
#include "pass/hooks.h"
#include "pass/mixer.h"
#include "pass/residual.h"
#include "pass/route.h"
#include "pass/workspace.h"

/* ---- the arrays of one call, T tokens, in the backend's memory ------------------- */

/* Arrays that a pass needs from a block besides the updated hidden states. */
typedef struct {
    int routed; /* 1: the routed output alone (corrections, probes, blocks shown in host memory) */
    int block;  /* 1: the block output alone */
    int input;  /* 1: the normed hidden states in float32, even if experts read bfloat16 */
    int probes; /* 1: outputs of other lanes' routes */
    int shown;  /* 1: expert outputs in float32 for observers in host memory, where experts give bfloat16 */
} exf_moe_needs;

/* Arrays of a block.  Number type N is the queue's: float32 or bfloat16. */
typedef struct {
    float *u;              /* [T, H]; used with several residual streams, and with residual.normed */
    float *input;          /* [T, H] normed hidden states; see exf_moe_needs */
    exf_matrix x;          /* [T, H] of N: operand of the products; equals input in float32 */
    exf_matrix outputs;    /* [T, K, H] of N */
    exf_matrix shared;     /* [T, H] of N: the shared experts' output, or the dense network's */
    float *shared_weights; /* [T] used if a layer switches its shared expert by token */
    float *routed, *block; /* [T, H] */
    exf_matrix probe_outputs; /* [T, K, H] of N */
    float *probe_routed;   /* [T, H] */
    int32_t *probe_ids;    /* [T, K] experts that a probe has to compute */
    int32_t *probe_source; /* [T, K] where the outputs of a probe's slots are (moe.h) */
    int32_t *only;         /* [T] zeros: the ids of an only expert */
    float *shown_outputs;  /* [min(T, EXF_MOE_BLOCK), K, H] */
    void *experts;         /* workspace of the experts operation */
} exf_moe_arrays;

/* Returns the number type that products of this compute mode read. */
exf_number exf_moe_number(exf_compute compute);
/* Returns the writable start of a carved matrix. */
static inline void *exf_moe_data(exf_matrix m)
{
    return (void *)(uintptr_t)m.p;
}
/* Takes a matrix of so many elements from an arena. */
exf_matrix exf_take_matrix(exf_arena *arena, size_t elements, exf_number number);
/* Returns the shape of n tokens on E experts of which each token runs K. */
exf_expert_shape exf_expert_shape_of(const exf_architecture *a, int n_tokens, int n_experts, int top_k, int width);

/* Takes the arrays of n_tokens from the arena (counts with arena->base NULL). */
void exf_moe_carve(exf_moe_arrays *m, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                   int n_tokens, const exf_moe_needs *needs);

/* ---- a layer ------------------------------------------------------------------- */

/* Tokens [row, row + n) of the run under some routes; `sequence` is the sequence of the first token. */
typedef struct {
    const exf_route_set *routes, *router_routes;
    size_t sequence, row;
    int n, worker;
} exf_moe_view;

/* A probe of another lane: the first lane's routes as that lane rewrote them, and the observer of the result. */
typedef struct {
    const exf_lane *lane;
    const exf_route_set *routes;        /* n = 0: this lane does not probe */
    const exf_route_set *router_routes; /* routes as the router made them for this lane */
} exf_moe_probe;

/* Loads the next part of a layer's experts into the weights (weights/weight_loader.h). */
typedef struct {
    void *self;
    exf_code (*next)(void *self, exf_err *err);
    int part_experts; /* experts of a part; 0: all of a layer's experts are loaded */
    const double *waited; /* seconds that next() waited so far */
} exf_expert_parts;

typedef struct exf_moe_layer {
    const exf_model *model;
    const exf_batch *batch;
    const int32_t *tokens;   /* the batch's ids in the backend's memory; NULL: unknown */
    const exf_layer_weights *weights;
    exf_expert_parts parts;
    exf_workspace *space;    /* [n_workers] */
    int n_workers;
    exf_moe_needs needs;     /* which arrays a block has */
    int block_tokens;        /* the most tokens of a call on a GPU */
    int timed;               /* 1: wait for the GPU after each part, so that times are true */
    uint64_t *slots_run;  /* in GPU memory, used on a GPU: slots of rewritten routes that ran an expert so far */
    uint64_t *not_finite; /* in GPU memory, used on a GPU: least index of a hidden state that is not finite, or all ones */

    const exf_lane *lane;
    const exf_moe_probe *probes; /* [n_probes] lanes that compare themselves with this one */
    size_t n_probes;
    exf_route_set *routes;              /* routes by which experts run */
    const exf_route_set *router_routes; /* routes before rewriting; may be `routes` */
    const float *router_logits;         /* [T of the run, E] in host memory; NULL: nothing reads them */
    float *slot_logits;                 /* [T of the run, K] in GPU memory, less their token's mean; NULL: nothing reads them */
    float *mixing;                      /* [T of the run, exf_residual_mixing()] of this site, which the router's half leaves for
                                         * the block's; NULL with one residual stream */
    int layer, moe_index;    /* moe_index -1: dense */
    int work, common_work;   /* kinds of work of a block's tokens and of common input (forward.h), for a GPU's clock */
    int sweep, last;         /* number of the sweep; 1: this sweep is the last and updates the hidden states */

    exf_sequence_group group;         /* the sequences that are computed at present */
    float *rows;             /* [group.n_rows, streams, H] their hidden states, in the backend's memory */
} exf_moe_layer;

/* Returns the hidden states from a row of the run on; the row belongs to the layer's group. */
float *exf_moe_rows(const exf_moe_layer *l, size_t row);
/* Returns the mixing coefficients from a row of the run on; NULL with one residual stream. */
float *exf_moe_mixing(const exf_moe_layer *l, size_t row);
/* Waits for the queue if the pass is timed. */
exf_code exf_moe_wait_if_timed(const exf_moe_layer *l, exf_workspace *w, exf_err *err) EXF_CHECKED;
/* Returns EXF_NUMERIC naming the sequence and position of a row whose result is not finite. */
exf_code exf_moe_not_finite(const exf_moe_layer *l, size_t row, exf_err *err);
/* Called after all groups of the last sweep: EXF_NUMERIC if hidden states of the run are not finite (on the CPU
 * exf_moe_run() has reported it). */
exf_code exf_moe_check_finite(const exf_moe_layer *l, exf_err *err) EXF_CHECKED;

/* ---- products ------------------------------------------------------------------ */

/* Returns the matrices and biases of the routed experts that are loaded. */
exf_expert_matrices exf_routed_matrices(const exf_layer_weights *lw);
/* Runs the routed experts of n tokens into m->outputs (or other outputs of the same shape) by ids [n, K]; keep: slots without
 * an expert stay as they are. */
exf_code exf_moe_run_experts(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, exf_matrix outputs,
                             const int32_t *ids, int n, int keep, exf_err *err) EXF_CHECKED;
/* Returns 1 if the layer has shared experts, or is dense. */
int exf_moe_has_shared(const exf_moe_layer *l);
/* Runs the SwiGLU network of a dense layer, or the shared experts of an MoE layer as one, into m->shared.  hidden: the n rows
 * that shared experts with a norm of their own read. */
void exf_moe_run_shared(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, const float *hidden, int n);
/* Ends a block of an architecture with residual.normed from m->routed, summed, and m->shared: m->block, and in the last sweep
 * hidden. */
void exf_moe_sum_normed(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, float *hidden, int n);
#endif

/* moe_layer.h - the feed-forward half of one decoder layer for one lane: the MoE block,
 * or the dense feed-forward network of a layer without experts.
 *
 *   x      = norm(hidden)                        or recorded hidden states
 *   routed = sum of weight * expert(x)           by the lane's routes
 *   routed += correction                         of the lane's rewriter
 *   block  = routed + shared experts(x)
 *   hidden = hidden + block                      (several residual streams: hyper-connections)
 *
 * One implementation serves every caller: calibration, all lanes of a validation with
 * their probes, common input, recorded hidden states; float32 and bfloat16.  The engines
 * (moe_engine.h) differ only in how they cut the tokens of a run into calls. */
#ifndef EXF_PASS_MOE_LAYER_H
#define EXF_PASS_MOE_LAYER_H
#include "base/thread_pool.h"
#include "pass/lane.h"
#include "pass/residual.h"
#include "pass/moe_arrays.h"
#include "pass/recorded.h"
#include "pass/routes.h"
#include "pass/workspace.h"
#include "weights/layer_weights.h"

struct exf_moe_layer;

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

/* An engine cuts the tokens of a run into calls of the block; see moe_engine.h. */
typedef struct {
    const char *name;
    /* Runs one sweep over the layer's group. */
    exf_code (*run)(struct exf_moe_layer *l, exf_err *err);
    /* Runs all experts on the group's tokens that the lane's observer asks for. */
    exf_code (*common_input)(struct exf_moe_layer *l, exf_err *err);
    /* Looks for hidden states of a block that are not finite: EXF_NUMERIC now, or later in check. */
    exf_code (*watch)(const struct exf_moe_layer *l, exf_workspace *w, const exf_moe_view *v, const float *rows, exf_err *err);
    /* Called after all groups: EXF_NUMERIC if hidden states of the run are not finite. */
    exf_code (*check)(const struct exf_moe_layer *l, exf_err *err);
} exf_moe_engine;

typedef struct exf_moe_layer {
    const exf_moe_engine *engine;
    const exf_model *model;
    const exf_batch *batch;
    const int32_t *tokens;   /* the batch's ids in the backend's memory; NULL: unknown */
    const exf_layer_weights *weights;
    exf_expert_parts parts;
    exf_workspace *space;    /* [n_workers] */
    int n_workers;
    exf_moe_needs needs;     /* which arrays a block has */
    int block_tokens;        /* the most tokens of a call */
    int timed;               /* 1: wait for the GPU after each part, so that times are true */
    uint64_t *not_finite; /* in GPU memory, used by the GPU engine: least index of a hidden state that is not finite, or all ones */

    const exf_lane *lane;
    const exf_moe_probe *probes; /* [n_probes] lanes that compare themselves with this one */
    size_t n_probes;
    exf_route_set *routes;              /* routes by which experts run */
    const exf_route_set *router_routes; /* routes before rewriting; may be `routes` */
    const exf_recorded *recorded;       /* not NULL: the normed hidden states come from a recording */
    exf_recorded_stage *stage;          /* sends them, on a GPU */
    int layer, moe_index;    /* moe_index -1: dense */
    int work, common_work;   /* kinds of work of a block's tokens and of common input (progress.h), for a GPU's clock */
    int sweep, last;         /* number of the sweep; 1: this sweep is the last and updates the hidden states */

    exf_sequence_group group;         /* the sequences that are computed at present */
    float *rows;             /* [group.n_rows, streams, H] their hidden states, in the backend's memory; NULL with `recorded` */
} exf_moe_layer;

/* Runs the block on rows [row, row + n) of the run on a worker; `sequence` is the sequence of the first row. */
exf_code exf_moe_block_run(const exf_moe_layer *l, int worker, size_t sequence, size_t row, int n, exf_err *err) EXF_CHECKED;

/* Returns the floats of a row that the block updates or, with recorded hidden states, only computes. */
size_t exf_moe_row_width(const exf_moe_layer *l);
/* Returns the hidden states from a row of the run on; the row belongs to the layer's group. */
float *exf_moe_rows(const exf_moe_layer *l, size_t row);
/* Waits for the queue if the pass is timed. */
exf_code exf_moe_wait_if_timed(const exf_moe_layer *l, exf_workspace *w, exf_err *err) EXF_CHECKED;

/* Returns 1 if some part of the layer reads the lane's routes in host memory. */
int exf_moe_wants_host_routes(const exf_moe_layer *l);

/* Returns the hyper-connection weights of one site of a layer (pass/residual.h). */
static inline exf_residual_site exf_residual_site_of(const exf_layer_weights *lw, exf_role fn, exf_role base, exf_role scale)
{
    return (exf_residual_site){lw->w[fn], lw->w[base], lw->w[scale]};
}

/* Runs the routed experts of n tokens into m->outputs (or other outputs of the same shape) by ids [n, K]. */
exf_code exf_moe_run_experts(const exf_moe_layer *l, exf_workspace *w, const exf_moe_arrays *m, exf_matrix outputs,
                             const int32_t *ids, int n, int keep, exf_err *err) EXF_CHECKED;

/* Return how many blocks of EXF_MOE_BLOCK tokens a sequence, or a batch, has. */
size_t exf_moe_blocks_of(const exf_span *span);
size_t exf_moe_blocks(const exf_batch *batch);
/* Returns the row after the last token of a call that begins at `row`, in sequence `sequence`, and takes at most `most` of
 * the rows before `end`.  Unless `most` is less than a block, calls end between blocks, so that the blocks which
 * observers see in host memory do not depend on `most` or on the sequences before. */
size_t exf_moe_call_end(const exf_batch *batch, size_t sequence, size_t row, size_t end, size_t most);
/* Calls fn(l, sequence, worker) for every sequence of the layer's group, on its workers. */
exf_code exf_moe_each_sequence(exf_moe_layer *l, exf_parallel_fn fn, exf_err *err) EXF_CHECKED;
/* Returns EXF_NUMERIC naming the sequence and position of a row whose result is not finite. */
exf_code exf_moe_not_finite(const exf_moe_layer *l, size_t row, exf_err *err);
#endif

/* layer_step.h - one layer for all lanes.
 *
 * A layer is two sweeps over the sequences: mixer and router first, so that a
 * rewriter sees the routes of the whole run (a decode batch spans sequences),
 * then the experts (expert_step.h).  Where nobody asks for that, both are done for
 * one group of sequences before the next (hidden.h): what comes from afar comes once. */
#ifndef EXF_FORWARD_LAYER_STEP_H
#define EXF_FORWARD_LAYER_STEP_H
#include "forward/each.h"
#include "forward/forward.h"
#include "forward/hidden.h"
#include "weights/layer_weights.h"
#include "mixers/rope_tables.h"
#include "mixers/residual.h"
#include "forward/routes.h"
#include "weights/weight_loader.h"
#include "forward/workspace.h"

/* Room for all experts of a run of tokens on a device (device_experts.h). */
typedef struct {
    int tokens;          /* most at a time; 0: none of this */
    int part_experts;    /* a layer's experts that are there at a time; 0: all */
    double waited;       /* seconds for parts of them, in this layer */
    char *memory;
    size_t bytes;        /* of memory */
    uint64_t *not_finite; /* index of the first hidden state that is not finite, or all ones */
} exf_device_experts;

/* What a pass holds from start to end. */
typedef struct {
    const exf_model *model;
    const exf_batch *batch;
    const exf_backend *b;
    exf_compute compute;
    const exf_lane *lanes;
    size_t n_lanes;
    exf_forward_report *report;
    int n_workers;
    exf_demand demand;             /* what the lanes ask of a workspace */
    exf_layer_weights weights_now; /* of the layer under way */
    exf_weight_loader *loader;     /* where they come from, where memory is not the host's */
    exf_device_experts device;     /* all experts of many tokens at once; zero where that cannot be */
    int timed;
    const exf_forward_options *options;
    int n_layers;                  /* that will be run */
    int reads;                     /* how often a layer's routed experts are read */
    exf_rope_tables rope_tables;
    exf_hidden hidden;             /* of all lanes */
    int joined;                    /* 1: no lane has met its router yet, the first one's hidden states are everyone's */
    exf_route_set routes;          /* of the lane under way */
    exf_route_set router_routes;            /* the same as the router made them; where a rewriter or a probe needs that */
    exf_route_set first;           /* the first lane's as the router made them; with probes or several lanes */
    exf_route_set *probe;          /* [lane] what a probing lane makes of `first`; the others are zero */
    exf_route_set *probe_router_routes;     /* [lane] `first` as its retained experts would have it; where the lane corrects, else zero */
    float *mask_device, *mask;      /* [2, E] of a lane with retained experts: 0 or -infinity, and the router's bias plus that */
    int32_t *tokens_device;         /* the batch's tokens in b's memory; on a device a 0 behind them */
    exf_workspace *space;          /* [n_spaces] one for every worker; on a device one for every queue that mixes */
    int n_spaces;
} exf_pass;

/* One layer of one lane, as the sweeps see it. */
typedef struct {
    exf_pass *p;
    size_t lane;
    exf_sequence_group group;             /* of the sequences under way */
    float *rows;                 /* [group.n_rows, streams, H] their hidden states, in the backend's memory */
    exf_route_set *routes;       /* where the router writes, what the experts follow */
    const exf_route_set *router_routes;   /* routes before rewriting */
    const float *mask;           /* exf_pass.mask_device or NULL */
    int layer, moe_index;        /* -1: dense */
    int sweep, last;             /* of the experts; the last one moves the hidden states on */
} exf_step;

/* A layer's weights, or the head's, into weights_now; with a stream, the next in its order. */
exf_code exf_pass_weights(exf_pass *p, int layer, exf_err *err) EXF_CHECKED;
/* Every lane's hidden states through the layer whose weights are loaded. */
exf_code exf_layer_step(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err) EXF_CHECKED;

/* Waits for all queues; what failed on any of them is told here. */
exf_code exf_finish_queues(const exf_pass *p, exf_err *err) EXF_CHECKED;
/* A device's queue runs on by itself unless someone asked how long its parts take. */
exf_code exf_wait_if_timed(const exf_step *s, exf_workspace *w, exf_err *err) EXF_CHECKED;

/* fn for every group of the step's lane, one after the other, s->group and s->rows being set. */
typedef exf_code (*exf_sequence_group_fn)(exf_step *s, exf_err *err);
exf_code exf_each_group(exf_step *s, exf_hidden_use use, exf_sequence_group_fn fn, exf_err *err) EXF_CHECKED;
/* fn for every sequence of the group, on the pass's workers; self is s. */
exf_code exf_each_sequence(exf_step *s, exf_each_fn fn, exf_err *err) EXF_CHECKED;
/* The hidden states from a row of the run on that lies in the group. */
float *exf_step_rows(const exf_step *s, size_t row);

/* Floats of a token's hidden state. */
size_t exf_row_width(const exf_architecture *a);
/* rows [n, H] normed by weight into out. */
void exf_norm_rows(exf_workspace *w, float *out, const float *rows, const float *weight, int n, const exf_architecture *a);
exf_residual_site exf_site_of(const exf_layer_weights *lw, exf_role fn, exf_role base, exf_role scale);
#endif

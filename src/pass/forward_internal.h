/* forward_internal.h - the state of a forward pass from start to end, and of one layer and lane in it; what the files of a
 * pass call of each other. */
#ifndef EXF_PASS_FORWARD_INTERNAL_H
#define EXF_PASS_FORWARD_INTERNAL_H
#include "pass/experts.h"
#include "pass/forward.h"
#include "pass/hidden.h"
#include "pass/resume.h"
#include "weights/weight_loader.h"

typedef struct {
    const exf_model *model;
    const exf_batch *batch;
    const exf_backend *b;
    exf_compute compute;
    const exf_forward_options *options;
    const exf_lane *lanes;
    size_t n_lanes;
    exf_demand demand;             /* the resources that the lanes require */
    exf_forward_report *report;
    int n_workers, n_layers;       /* number of layers that run */

    exf_layer_weights weights_now; /* weights of the present layer */
    exf_weight_loader *loader;     /* reads the next layer's weights beside this one's work; NULL on the CPU */
    exf_host_loader *host_loader;  /* on the CPU; else NULL */
    exf_expert_parts parts;        /* loads a layer's experts in parts where the GPU cannot hold them all */
    double parts_waited;           /* seconds spent waiting for parts */
    int reads;                     /* times that a layer's routed experts are read */

    exf_rope_tables rope_tables;
    exf_hidden hidden;             /* hidden states of all lanes */
    float *mixing;                 /* [T, exf_residual_mixing()] of the site after the mixer (experts.h); NULL with one stream */
    int joined;                    /* 1: no router has run yet, so all lanes share the first lane's hidden states */

    exf_route_set routes;          /* routes of the present lane */
    exf_route_set router_routes;   /* routes before rewriting; used if a rewriter corrects */
    exf_route_set first;           /* routes of the first lane as its router chose them; used with several lanes */
    exf_route_set *probe_routes;   /* [lane] the first lane's routes, rewritten by a probing lane; others zero */
    exf_route_set *probe_router_routes; /* [lane] `first` as that lane's own router would choose; if it prunes and corrects */
    exf_moe_probe *probes;         /* [n_lanes] views of the two above, for the MoE block */
    float *mask_device, *mask;     /* [2, E] of a lane with retained experts: 0 or -infinity, and the router's bias plus that */
    float *logits[2];              /* [T, E] of the router, the first lane's and the present lane's; where demand.logits says so */
    float *bias;                   /* [E] the router's bias, fetched from a GPU; used with them */
    float *logits_device[2];        /* the same in GPU memory, where demand.device_logits says so */
    float *slot_logits;            /* [T, K] on a GPU, less their token's mean; where demand.slot_logits says so */
    int32_t *tokens_device;        /* the batch's token ids in the backend's memory, on a GPU with a 0 after them; NULL: unknown */

    exf_workspace *space;          /* [n_spaces] one per worker; on a GPU one per CUDA stream of the mixers */
    int n_spaces;
    exf_stage_clock *clock;        /* of the first space's queue; NULL on the CPU, and if the pass is timed */
    exf_moe_needs needs;           /* of the MoE block */
    int block_tokens;              /* the most tokens of a call of the MoE block */
    uint64_t *not_finite;          /* used on a GPU only; see exf_moe_layer */
    uint64_t *slots_run;           /* the same */
} exf_pass;

/* One layer of one lane. */
typedef struct {
    exf_pass *p;
    size_t lane;
    const float *mask;   /* p->mask_device, or NULL */
    float *logits;       /* the router's, in host memory; NULL: nothing reads them */
    float *logits_device; /* the same in GPU memory */
    int joined;          /* 1: the first lane's routes are those of all lanes */
    int group_by_group;  /* 1: both halves of the layer run for one group of sequences before the next */
    int is_probe;        /* 1: routes are made for a probe by another lane's router */
    const exf_observer *inputs; /* is shown what the router reads; NULL: nobody is */
    exf_moe_layer moe;   /* its second half; also the layer's numbers, its group of sequences and their hidden states */
} exf_step;

/* ---- state.c: what all files of a pass ask of it -------------------------------------------------------- */

/* Returns the backend of a pass with these options. */
const exf_backend *exf_backend_of(const exf_forward_options *o);
/* Returns the number of layers that the pass's resume point has done; 0 if it has none. */
int exf_pass_layers_done(const exf_forward_options *o);
/* Returns the tokens of the whole run; the pass may run a part of them. */
size_t exf_pass_run_tokens(const exf_pass *p);
/* Says which kind of work (forward.h) the host's threads begin; on a GPU the kinds that it computes are credited
 * by its own clock. */
void exf_pass_turn(const exf_pass *p, int kind);
/* Waits for all queues and reports a failure on any of them. */
exf_code exf_pass_finish(const exf_pass *p, exf_err *err) EXF_CHECKED;
/* Goes over the groups of the lane in order: sets s->moe.group and s->moe.rows to the next one, or returns 0 after the last.
 * *n: groups so far, 0 before the first.  A loop that is left early leaves its group to exf_hidden_close(). */
int exf_next_group(exf_step *s, exf_hidden_use use, size_t *n);

/* ---- work.c: what the lanes require, and how much work that is ---------------------------------------- */

/* Returns 1 for a rewriter that changes routes in GPU memory. */
int exf_rewrites_on_device(const exf_rewriter *r, const struct exf_backend *b);
/* Returns the number of route sets that a pass holds for such lanes. */
size_t exf_demand_route_sets(const exf_demand *d);
/* Returns 1 for a probing lane whose retained experts make router routes of their own, which its correction reads. */
int exf_lane_keeps_router_routes(const exf_lane *lane);

/* ---- footprint.c: what a workspace holds ------------------------------------------------------------ */

/* Arrays of the first half of a layer, T tokens.  The mixer's own arrays follow them in the arena. */
typedef struct {
    float *u, *mixing; /* [T, H] and [T, exf_residual_mixing()]; used with several residual streams */
    float *normed;     /* [T, H] */
    float *squares;    /* [T] of the router's input; see exf_input_block */
    float *mixed;      /* [T, H] the mixer's output */
    float *logits;     /* [T, E] the router's logits */
} exf_mixer_arrays;
void exf_mixer_carve(exf_mixer_arrays *s, exf_arena *arena, const exf_architecture *a, int n_tokens);

/* Arrays of the head for exf_head_rows() rows at a time. */
typedef struct {
    float *u, *normed, *logits;
} exf_head_arrays;
void exf_head_carve(exf_head_arrays *s, exf_arena *arena, const exf_backend *b, const exf_architecture *a);

/* Returns which arrays a MoE block needs for lanes of this demand. */
exf_moe_needs exf_moe_needs_of(const exf_backend *b, const exf_architecture *a, const exf_demand *d);
/* Return the floats of an arena for mixers alone, and for the whole pass: mixers on the longest sequence, MoE
 * blocks of block_tokens tokens, common input, the head. */
size_t exf_mixing_floats(const exf_backend *b, const exf_architecture *a, int max_tokens);
size_t exf_workspace_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens, int block_tokens,
                            const exf_demand *d);
/* Returns the floats of the host copy that observers read at a time; 0 if nothing is copied. */
size_t exf_mirror_floats(const exf_backend *b, const exf_architecture *a, int block_tokens, const exf_demand *d);
/* Returns the tokens of a MoE block on the CPU. */
int exf_host_block(int max_tokens);

/* ---- footprint.c: what a pass holds ---------------------------------------------------------------- */

/* A plan for little GPU memory has fewer CUDA streams for the mixers, fewer tokens through the experts at a time, hidden
 * states in pinned host memory, or one weight slot instead of two (reading then waits for computing).  If a single layer is
 * too large, its experts are loaded in parts, which every block of tokens reads anew. */
typedef struct {
    exf_weight_loader_options loader;
    exf_moe_needs needs;
    int n_queues;        /* workspaces: one per worker; on a GPU, one per CUDA stream of the mixers */
    int block_tokens;    /* the most tokens through the experts at a time */
    int reads;           /* times that routed experts are read: more than 1 only if they are loaded in parts */
    size_t window;       /* tokens whose hidden states are in GPU memory at a time; 0: all (hidden.h) */
    size_t floats;       /* of a worker's arena */
    size_t mirror;       /* floats of a worker's host copy */
    uint64_t bytes;      /* GPU memory, including observers' memory for the statistics of one layer; 0 on the CPU */
    uint64_t host_bytes; /* on a GPU pinned memory and routes; on the CPU everything */
} exf_pass_plan;

/* Makes the fastest plan of a pass over n_layers layers within the options' max_device_memory, or within the GPU's free memory
 * less a reserve.  EXF_NOSPACE names the least memory that suffices if no plan fits. */
exf_code exf_pass_plan_make(exf_pass_plan *plan, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                            const exf_demand *d, int n_layers, exf_err *err) EXF_CHECKED;

/* ---- read.c: weights and embeddings ------------------------------------------------------------------ */

/* Starts reading weights, in the order of the pass; the other function ends it and fills the report. */
exf_code exf_pass_open_weights(exf_pass *p, const exf_pass_plan *plan, exf_err *err) EXF_CHECKED;
void exf_pass_close_weights(exf_pass *p);
/* Loads a layer's weights, or those of EXF_LAYER_HEAD, into weights_now. */
exf_code exf_pass_weights(exf_pass *p, int layer, exf_err *err) EXF_CHECKED;
/* Returns the seconds for which the pass has waited for other ranks' reading, on the CPU. */
double exf_pass_waited(const exf_pass *p);
/* Fills the first lane's hidden states with the embeddings of the tokens; the other lanes copy them at the first router. */
exf_code exf_pass_embed(exf_pass *p, exf_err *err) EXF_CHECKED;

/* ---- mix.c: the first half of a layer ----------------------------------------------------------------- */

/* Run mixer and router over the step's group (a dense layer has no router), or the router alone: h = residual(h, mixer(norm(h))),
 * then routes = router(norm(h)), sequence by sequence. */
exf_code exf_mix_group(exf_step *s, exf_err *err) EXF_CHECKED;
exf_code exf_route_group(exf_step *s, exf_err *err) EXF_CHECKED;

/* ---- rewrite.c: rewriters, between the two halves ----------------------------------------------------- */

/* Sets s->mask for a lane whose rewriter retains only some experts; sets NULL otherwise. */
exf_code exf_mask_load(exf_step *s, const exf_rewriter *r, exf_err *err) EXF_CHECKED;
/* Rewrites the step's routes with its lane's rewriter; router_routes keeps the router's routes if a
 * correction reads them. */
exf_code exf_routes_rewrite(exf_step *s, exf_err *err) EXF_CHECKED;
/* Fills the routes of every probing lane from the first lane's.  If the lanes are joined, also
 * copies the hidden states to every other lane, since lanes differ from this layer on. */
exf_code exf_first_lane_share(exf_step *s, int joined, exf_err *err) EXF_CHECKED;

/* ---- layer.c: one layer of all lanes, and the head ----------------------------------------------------- */

/* Runs every lane's hidden states through the layer whose weights are loaded. */
exf_code exf_layer_step(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err) EXF_CHECKED;
/* Computes the final norm and the logits of every lane whose observer reads logits.  The logits of the same rows are shown
 * lane after lane on the same worker, so that observers can compare them without storing them. */
exf_code exf_head_step(exf_pass *p, exf_err *err) EXF_CHECKED;

/* ---- save.c: resume points ------------------------------------------------------------------------------ */

/* Fills the hidden states of all lanes from the resume point, in place of exf_pass_embed(). */
exf_code exf_pass_restore(exf_pass *p, exf_err *err) EXF_CHECKED;
/* Saves the pass after `done` layers if a save is due or a stop was requested; after a requested
 * stop returns EXF_STOPPED.  All queues are finished. */
exf_code exf_pass_save(exf_pass *p, int done, exf_err *err) EXF_CHECKED;
/* Returns this process's vote after `done` layers: 0 go on, 1 save, 1 + a signal's number save and stop.  With ranks it is cast a
 * layer ahead. */
int exf_pass_vote(const exf_pass *p, int done);
/* Adds all ranks' floating-point operations up, on rank 0. */
exf_code exf_pass_sum_flops(struct exf_ranks *ranks, double *flops, exf_err *err) EXF_CHECKED;
#endif

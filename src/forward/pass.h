/* pass.h - the state of a forward pass from start to end, and of one layer and lane in it. */
#ifndef EXF_FORWARD_PASS_H
#define EXF_FORWARD_PASS_H
#include "forward/demand.h"
#include "forward/forward_options.h"
#include "forward/hidden.h"
#include "forward/work.h"
#include "mixers/rope_tables.h"
#include "moe/moe_engine.h"
#include "weights/host_loader.h"
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
    int joined;                    /* 1: no router has run yet, so all lanes share the first lane's hidden states */

    exf_route_set routes;          /* routes of the present lane */
    exf_route_set router_routes;   /* routes before rewriting; used if a rewriter corrects */
    exf_route_set first;           /* routes of the first lane as its router chose them; used with several lanes */
    exf_route_set *probe_routes;   /* [lane] the first lane's routes, rewritten by a probing lane; others zero */
    exf_route_set *probe_router_routes; /* [lane] `first` as that lane's own router would choose; if it prunes and corrects */
    exf_moe_probe *probes;         /* [n_lanes] views of the two above, for the MoE block */
    float *mask_device, *mask;     /* [2, E] of a lane with retained experts: 0 or -infinity, and the router's bias plus that */
    float *logits[2];              /* [T, E] of the router, the first lane's and the present lane's; where demand.logits says so */
    float *bias;                   /* [E] the router's bias in host memory; used with them */
    int32_t *tokens_device;        /* the batch's token ids in the backend's memory; on a GPU one 0 follows them */

    exf_workspace *space;          /* [n_spaces] one per worker; on a GPU one per CUDA stream of the mixers */
    int n_spaces;
    exf_stage_clock *clock;        /* of the first space's queue; NULL on the CPU, and if the pass is timed */
    int block_tokens;              /* the most tokens of a call of the MoE block */
    uint64_t *not_finite;          /* used on a GPU only; see exf_moe_layer */
} exf_pass;

/* One layer of one lane. */
typedef struct {
    exf_pass *p;
    size_t lane;
    const float *mask;   /* p->mask_device, or NULL */
    float *logits;       /* the router's, in host memory; NULL: nothing reads them */
    int unsent;          /* 1: the routes in host memory are newer than those in the backend's */
    exf_moe_layer moe;   /* its second half; also the layer's numbers, its group of sequences and their hidden states */
} exf_step;

/* Allocates everything and starts reading weights. exf_pass_close() accepts a pass whose opening failed. */
exf_code exf_pass_open(exf_pass *p, exf_err *err) EXF_CHECKED;
void exf_pass_close(exf_pass *p);
/* Loads a layer's weights, or those of EXF_LAYER_HEAD, into weights_now. */
exf_code exf_pass_weights(exf_pass *p, int layer, exf_err *err) EXF_CHECKED;
/* Returns the seconds for which the pass has waited for other ranks' reading, on the CPU. */
double exf_pass_waited(const exf_pass *p);
/* Waits for all queues and reports a failure on any of them. */
exf_code exf_pass_finish(const exf_pass *p, exf_err *err) EXF_CHECKED;
/* Fills the first lane's hidden states with the embeddings of the tokens. */
exf_code exf_pass_embed(exf_pass *p, exf_err *err) EXF_CHECKED;

/* Says which kind of work (work.h) the host's threads begin; on a GPU the kinds that it computes are credited
 * by its own clock. */
void exf_pass_turn(const exf_pass *p, int kind);

exf_step exf_step_of(exf_pass *p, size_t lane, int layer, int moe_index);
/* Calls fn for every group of the lane in order, with s->moe.group and s->moe.rows set. */
typedef exf_code (*exf_sequence_group_fn)(exf_step *s, exf_err *err);
exf_code exf_each_group(exf_step *s, exf_hidden_use use, exf_sequence_group_fn fn, exf_err *err) EXF_CHECKED;
#endif

/* pass.h - the state of a forward pass from start to end, and of one layer and lane in it. */
#ifndef EXF_PASS_PASS_H
#define EXF_PASS_PASS_H
#include "pass/demand.h"
#include "pass/hidden.h"
#include "pass/work.h"
#include "pass/mixer.h"
#include "pass/moe_engine.h"
#include "pass/resume.h"
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

/* Runs one layer for all lanes.
 *
 * A layer has two halves: mixer and router (pass.h) over all sequences, so that a
 * rewriter sees the routes of the whole run (a decode batch spans sequences), then the
 * experts (moe_layer.h).  If no rewriter or observer needs all routes at once, both halves of
 * one group of sequences run before the next group (hidden.h), so that hidden states kept
 * in host memory cross the bus once. */

/* Runs every lane's hidden states through the layer whose weights are loaded. */
exf_code exf_layer_step(exf_pass *p, int layer, int moe_index, exf_progress *progress, exf_err *err) EXF_CHECKED;

/* Runs the first half of a layer: h = residual(h, mixer(norm(h))), then
 * routes = router(norm(h)), sequence by sequence. */

/* Run mixer and router over the step's group (a dense layer has no router), or the router alone. */
exf_code exf_mix_group(exf_step *s, exf_err *err) EXF_CHECKED;
exf_code exf_route_group(exf_step *s, exf_err *err) EXF_CHECKED;

/* Applies rewriters between the two halves of a layer: the lane's rewriter changes
 * the routes of the whole run, and other lanes' rewriters change copies of them for probes. */

/* Sets s->mask for a lane whose rewriter retains only some experts; sets NULL otherwise. */
exf_code exf_mask_load(exf_step *s, const exf_rewriter *r, exf_err *err) EXF_CHECKED;
/* Rewrites the step's routes with its lane's rewriter; router_routes keeps the router's routes if a
 * correction reads them. */
exf_code exf_routes_rewrite(exf_step *s, exf_err *err) EXF_CHECKED;
/* Fills the routes of every probing lane from the first lane's.  If the lanes are joined, also
 * copies the hidden states to every other lane, since lanes differ from this layer on. */
exf_code exf_first_lane_share(exf_step *s, int joined, exf_err *err) EXF_CHECKED;

/* Computes the final norm and the logits of every lane whose observer reads logits.
 * The logits of the same rows are shown lane after lane on the same worker, so that observers
 * can compare them without storing them. */

exf_code exf_head_step(exf_pass *p, exf_err *err) EXF_CHECKED;

/* Moves the hidden states of a pass to the file of a resume point, and back.
 *
 * The file has the run's rows, lane after lane, each lane from a multiple of EXF_RESUME_CHUNK on.  A rank has some
 * rows of each lane: it writes the chunks that are its own, and gives the bytes of chunks that it shares with its
 * neighbours to rank 0, which writes those.  So the file does not show how many ranks there were. */

/* Return the tokens of the whole run, of which the pass may be a part, and the bytes of the file. */
size_t exf_pass_run_tokens(const exf_pass *p);
uint64_t exf_pass_file_bytes(const exf_pass *p);
/* Writes all rows of this pass to the file that was begun or joined; collective. */
exf_code exf_pass_hidden_put(exf_pass *p, exf_err *err) EXF_CHECKED;
/* Reads them back from the open file. */
exf_code exf_pass_hidden_get(exf_pass *p, const exf_file *file, exf_err *err) EXF_CHECKED;
#endif

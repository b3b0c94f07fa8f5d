/* layer_step.h - one layer, or the head, for all sequences of one lane. */
#ifndef EXF_FORWARD_LAYER_STEP_H
#define EXF_FORWARD_LAYER_STEP_H
#include "forward/forward.h"
#include "forward/layer_weights.h"
#include "forward/positions.h"
#include "forward/workspace.h"

/* What a pass holds from start to end. */
typedef struct {
    const exf_model *model;
    const exf_batch *batch;
    const exf_backend *b;
    exf_compute compute;
    exf_forward_report *report;
    int n_workers, with_head;
    exf_layer_weights weights_now; /* of the layer under way */
    exf_positions positions;
    float **hidden;                /* [lane][T, streams, H] */
    int32_t *ids;                  /* [T, K] routes of the lane under way, host */
    float *weights;
    int32_t *ids_there, *tokens_there; /* the same and the batch's tokens in b's memory; */
    float *weights_there;              /* the host's own where that is b's memory */
    exf_workspace *space;          /* [worker] */
} exf_pass;

/* hidden [T, H] through the layer whose weights are loaded; moe_index -1: dense. */
exf_code exf_layer_step(exf_pass *p, const exf_lane *lane, float *hidden, int layer, int moe_index, exf_progress *progress,
                        exf_err *err) EXF_CHECKED;
/* Final norm and logits of every lane that has an observer for them. */
exf_code exf_head_step(exf_pass *p, const exf_lane *lanes, size_t n_lanes, exf_err *err) EXF_CHECKED;
#endif

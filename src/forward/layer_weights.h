/* layer_weights.h - one decoder layer's tensors in a backend's memory, float32. */
#ifndef EXF_FORWARD_LAYER_WEIGHTS_H
#define EXF_FORWARD_LAYER_WEIGHTS_H
#include "kernels/backend.h"
#include "model/model.h"

typedef struct {
    float *w[EXF_W_COUNT]; /* by role; experts' stacked [E, ...]; NULL where the layer has none */
    size_t room[EXF_W_COUNT]; /* floats allocated behind w */
    float *held[EXF_W_COUNT]; /* the allocations, kept from layer to layer */
    const exf_backend *b;
    exf_queue *q;
    float *staging;           /* host memory for one tensor, where the backend's is elsewhere */
    size_t staging_room;
} exf_layer_weights;

/* Reads a layer over what was there; layer -1: the head's tensors (all outside
 * layers but the embedding).  Zero-initialise, then set b and q, before the first. */
exf_code exf_layer_weights_read(exf_layer_weights *lw, const exf_model *m, int layer, exf_err *err) EXF_CHECKED;
void exf_layer_weights_free(exf_layer_weights *lw);
/* Floats that the largest layer needs. */
size_t exf_layer_weights_size(const exf_model *m);
#endif

/* layer_weights.h - one decoder layer's tensors in memory, float32. */
#ifndef EXF_FORWARD_LAYER_WEIGHTS_H
#define EXF_FORWARD_LAYER_WEIGHTS_H
#include "model/model.h"

typedef struct {
    float *w[EXF_W_COUNT]; /* by role; experts' stacked [E, ...]; NULL where the layer has none */
    size_t room[EXF_W_COUNT]; /* floats allocated behind w */
    float *held[EXF_W_COUNT]; /* the allocations, kept from layer to layer */
} exf_layer_weights;

/* Reads a layer over what was there.  Zero-initialise before the first. */
exf_code exf_layer_weights_read(exf_layer_weights *lw, const exf_model *m, int layer, exf_err *err) EXF_CHECKED;
void exf_layer_weights_free(exf_layer_weights *lw);
/* Floats that the largest layer needs. */
size_t exf_layer_weights_size(const exf_model *m);
#endif

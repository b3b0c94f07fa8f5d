/* recorded.h - access to normed hidden states, and optionally routes, that another program recorded. */
#ifndef EXF_MOE_RECORDED_H
#define EXF_MOE_RECORDED_H
#include "base/err.h"
#include "model/model.h"

/* Rows are numbered over the whole batch; the functions are called from several threads. */
typedef struct {
    unsigned char has_input[EXF_MAX_LAYERS];  /* by the model's layer number; 1: the layer is replayed */
    unsigned char has_routes[EXF_MAX_LAYERS]; /* 1: routes are recorded; 0: the router runs */
    void *self;
    /* Reads rows [row, row + n) of the input of router and experts of a layer: dst [n, H], finite. */
    exf_code (*input)(void *self, int layer, size_t row, size_t n, float *dst, exf_err *err);
    /* Reads recorded routes: ids [n, K], distinct in [0, E) or -1, and weights [n, K]. */
    exf_code (*routes)(void *self, int layer, size_t row, size_t n, int32_t *ids, float *weights, exf_err *err);
} exf_recorded;
#endif

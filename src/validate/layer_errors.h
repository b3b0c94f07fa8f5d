/* layer_errors.h - computes each layer's error of a lane's routed output against the first
 * lane's, both on the first lane's hidden states: ||y^ - y|| / ||y|| over all tokens
 * (Frobenius).  Sums are exact, so the result does not depend on threads. */
#ifndef EXF_VALIDATE_LAYER_ERRORS_H
#define EXF_VALIDATE_LAYER_ERRORS_H
#include "base/exact.h"
#include "pass/observer.h"
#include "kernels/backend.h"
#include "ranks/ranks.h"

typedef struct {
    exf_exact *error_sq, *norm_sq; /* [workers, n_layers] */
    int n_workers, n_layers;
    const exf_backend *device;     /* set in a pass on a GPU */
    exf_output_errors *sums;       /* sums of the present layer, in GPU memory */
    exf_queue *q;                  /* queue that added to the sums; NULL: none yet */
} exf_layer_errors;

exf_code exf_layer_errors_begin(exf_layer_errors *e, int n_layers, int n_workers, exf_err *err) EXF_CHECKED;
exf_code exf_layer_errors_add(exf_layer_errors *e, const exf_probe_block *b, exf_err *err) EXF_CHECKED;
/* The same for outputs in GPU memory: device_open is called once, device_add for each block,
 * device_end after each layer to copy its sums to the host. */
exf_code exf_layer_errors_device_open(exf_layer_errors *e, const exf_backend *b, exf_err *err) EXF_CHECKED;
exf_code exf_layer_errors_device_add(exf_layer_errors *e, const exf_device_probe *b, exf_err *err) EXF_CHECKED;
exf_code exf_layer_errors_device_end(exf_layer_errors *e, int layer, int moe_index, exf_err *err) EXF_CHECKED;
/* Add up the sums of the first n MoE layers over all workers; set them, for layers that a resumed pass does not run. */
void exf_layer_errors_sums(const exf_layer_errors *e, int n, exf_exact *error_sq, exf_exact *norm_sq);
void exf_layer_errors_set(exf_layer_errors *e, int n, const exf_exact *error_sq, const exf_exact *norm_sq);
/* Adds all ranks' sums up, on rank 0. */
exf_code exf_layer_errors_share(exf_layer_errors *e, exf_ranks *ranks, exf_err *err) EXF_CHECKED;
/* Returns the error of a MoE layer by its number among MoE layers; 0 if the original's output is 0. */
double exf_layer_errors_value(const exf_layer_errors *e, int moe_index);
void exf_layer_errors_free(exf_layer_errors *e);
#endif

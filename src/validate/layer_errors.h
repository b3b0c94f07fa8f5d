/* layer_errors.h - computes each layer's error of a lane's routed output against the first
 * lane's, both on the first lane's hidden states: ||y^ - y|| / ||y|| over all tokens
 * (Frobenius).  Sums are exact, so the result does not depend on threads. */
#ifndef EXF_VALIDATE_LAYER_ERRORS_H
#define EXF_VALIDATE_LAYER_ERRORS_H
#include "base/exact.h"
#include "forward/forward.h"

typedef struct {
    exf_exact *error_sq, *norm_sq; /* [workers, n_layers] */
    int n_workers, n_layers;
} exf_layer_errors;

exf_code exf_layer_errors_begin(exf_layer_errors *e, int n_layers, int n_workers, exf_err *err) EXF_CHECKED;
exf_code exf_layer_errors_add(exf_layer_errors *e, const exf_probe_block *b, exf_err *err) EXF_CHECKED;
/* The error of an MoE layer, by its number among MoE layers; 0 if the original output is 0. */
double exf_layer_errors_value(const exf_layer_errors *e, int moe_index);
void exf_layer_errors_free(exf_layer_errors *e);
#endif

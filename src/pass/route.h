/* route.h - which experts each token goes to, and with what weight: the router, and the routes of a whole run in host memory
 * and in the backend's. */
#ifndef EXF_PASS_ROUTE_H
#define EXF_PASS_ROUTE_H
#include "kernels/backend.h"
#include "pass/workspace.h"
#include "weights/weight_plan.h"

/* Computes ids and weights [T, K] from the normed input [T, H]; all arrays are in ws's memory.
 * logits [T, E] is scratch.  tokens [T] are read only in a hash layer (EXF_W_ROUTER_TABLE).
 * mask is NULL or [2, E]: row 0 is added to every row of logits, row 1 replaces the router's
 * bias (-infinity: the expert cannot be chosen).  A bfloat16 input is [T, 2 H] in two parts
 * (rows.h) and is multiplied with lw->router_split, nearly as precise as float32. */
void exf_routing_run(exf_workspace *ws, int32_t *ids, float *weights, exf_matrix input, const int32_t *tokens, int n_tokens,
                     const exf_architecture *a, const exf_layer_weights *lw, const float *mask, float *logits);

/* T tokens, K slots each; -1: the slot runs no expert. */
typedef struct {
    int32_t *ids;          /* [T, K] in host memory, staging memory on a GPU; as new as ids_device only after a fetch */
    float *weights;        /* [T, K] */
    int32_t *ids_device;   /* [T, K] in the backend's memory; equals ids if that is host memory */
    float *weights_device;
    size_t n;              /* T * K */
    const exf_backend *b;
} exf_route_set;

exf_code exf_route_set_new(exf_route_set *r, const exf_backend *b, size_t n_tokens, int top_k, exf_err *err) EXF_CHECKED;
void exf_route_set_free(exf_route_set *r); /* a zeroed set is allowed */
/* Returns the bytes of a set in the backend's memory; a copy in host memory, if it is separate, has as many. */
uint64_t exf_route_set_bytes(size_t n_tokens, int top_k);
/* Copies slots [first, first + n) from the backend's memory to the host; waits. */
exf_code exf_route_set_fetch(exf_route_set *r, size_t first, size_t n, exf_queue *q, exf_err *err) EXF_CHECKED;
/* Queues the copy of slots [first, first + n) from the host to the backend's memory, past larger copies; the host's stay as they
 * are until the queue was waited for. */
void exf_route_set_send(exf_route_set *r, size_t first, size_t n, exf_queue *q);
/* Queues to = from in the backend's memory alone. */
void exf_route_set_copy(exf_route_set *to, const exf_route_set *from, exf_queue *q);
#endif

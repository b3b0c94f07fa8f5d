/* routes.h - the routes of a whole run, as ordinary memory and in a backend's. */
#ifndef EXF_FORWARD_ROUTES_H
#define EXF_FORWARD_ROUTES_H
#include "kernels/backend.h"

typedef struct {
    int32_t *ids;         /* [T, K] host */
    float *weights;       /* [T, K] host */
    int32_t *ids_device;   /* the same in the backend's memory; the host's own where that is it */
    float *weights_device;
    size_t n; /* T * K */
    const exf_backend *b;
} exf_route_set;

exf_code exf_route_set_new(exf_route_set *r, const exf_backend *b, size_t n_tokens, int top_k, exf_err *err) EXF_CHECKED;
void exf_route_set_free(exf_route_set *r); /* what is zero is fine */
/* The backend's ids and weights of slots [first, first + n) to the host; the host's, all of
 * them, to the backend. */
exf_code exf_route_set_fetch(exf_route_set *r, size_t first, size_t n, exf_queue *q, exf_err *err) EXF_CHECKED;
exf_code exf_route_set_send(exf_route_set *r, exf_queue *q, exf_err *err) EXF_CHECKED;
/* to = from, on the host; then sent. */
exf_code exf_route_set_copy(exf_route_set *to, const exf_route_set *from, exf_queue *q, exf_err *err) EXF_CHECKED;
#endif

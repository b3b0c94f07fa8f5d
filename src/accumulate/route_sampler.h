/* route_sampler.h - a route sampler chooses tokens of a layer, those of the smallest keys (smallest_keys.h), and
 * keeps their routes as the router made them (artifact/route_sample.h).  The keys depend on no seed. */
#ifndef EXF_ACCUMULATE_ROUTE_SAMPLER_H
#define EXF_ACCUMULATE_ROUTE_SAMPLER_H
#include "accumulate/smallest_keys.h"
#include "artifact/route_sample.h"
#include "pass/observer.h"
#include "kernels/backend.h"

typedef struct {
    exf_route_sample sample; /* of the present layer, filled block by block */
    exf_smallest_keys keys;  /* the chosen tokens, in the sample's order */
    size_t first_row;        /* row in the whole run of the first row that blocks count from: of a rank's part */
    int shared;              /* 1: other ranks keep the others; what is not kept is 0 */
    const exf_backend *b;    /* a device's; NULL: blocks come in host memory */
    int32_t *slot, *ids;     /* [cap], [cap, K] in device memory */
    float *weights;          /* [cap, K] in device memory */
    int32_t *slot_host, *ids_host;
    float *weights_host;
    size_t first, end;       /* tokens [first, end) of keys.by_row are in device memory and not fetched yet */
    struct exf_queue *q;     /* on which they were gathered */
} exf_route_sampler;

/* Returns how many of n_tokens tokens are kept where `wanted` are to be. */
size_t exf_route_sampler_tokens(int64_t wanted, int64_t n_tokens);
exf_code exf_route_sampler_new(exf_route_sampler *s, size_t tokens, int top_k, exf_err *err) EXF_CHECKED;
void exf_route_sampler_free(exf_route_sampler *s); /* accepts zeroed memory */
/* Makes it one of several ranks', whose rows begin at first_row of the whole run. */
void exf_route_sampler_share(exf_route_sampler *s, size_t first_row);
/* Chooses the tokens of a layer. */
exf_code exf_route_sampler_choose(exf_route_sampler *s, const exf_sequence_list *sequences, int layer, exf_err *err) EXF_CHECKED;
/* Keeps the chosen tokens of a block; blocks may come from several threads. */
void exf_route_sampler_keep(exf_route_sampler *s, const exf_moe_block *b);

uint64_t exf_route_sampler_device_bytes(size_t tokens, int top_k);
exf_code exf_route_sampler_open_device(exf_route_sampler *s, const exf_backend *b, exf_err *err) EXF_CHECKED;
/* Gathers the chosen tokens of a block in device memory, on its queue; blocks come in order of rows. */
void exf_route_sampler_keep_device(exf_route_sampler *s, const exf_device_block *b);
/* Fetches what was gathered of a layer; waits for the queue. */
exf_code exf_route_sampler_take_device(exf_route_sampler *s, exf_err *err) EXF_CHECKED;
#endif

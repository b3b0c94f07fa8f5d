/* lane.h - hook 1, a rewriter of routes, and a lane: a rewriter with the observer of what it does. */
#ifndef EXF_PASS_LANE_H
#define EXF_PASS_LANE_H
#include "base/err.h"
#include "pass/batch.h"
#include "pass/observer.h"

/* Hook 1, between the router and the experts of a MoE layer: a rewriter
 * decides which experts run for each token and with what weight.
 *
 * A rewriter is called once per layer with the routes of the whole run, since a decode
 * batch spans sequences.  It keeps no state between layers: equal routes give equal
 * results, because a layer's routes may be rewritten twice (see exf_routes.probe). */

struct exf_backend; /* kernels/backend.h */

/* Routes of all tokens of the run in one MoE layer of one lane, in host memory. */
typedef struct {
    int layer, moe_index; /* the model's layer number; its number among the MoE layers */
    const exf_batch *batch;
    int n_experts, top_k;
    int probe;      /* 1: these are the first lane's routes, rewritten for a probe (observer.h) */
    int by_token;   /* 1: the layer routes by token id (a hash layer), not by a score */
    int32_t *ids;   /* [T, K]; -1: the slot runs no expert.  An id may repeat in a row. */
    float *weights; /* [T, K] */
    const float *logits; /* [T, E] of the router, for a rewriter that wants them; else NULL */
    const float *bias;   /* [E] that the router adds to its scores when it chooses; NULL: none, or no logits */
} exf_routes;

/* A rewriter may leave any function NULL. */
typedef struct {
    void *self;
    int wants_logits; /* 1: `rewrite` reads the router's logits */
    /* Experts that the router may choose in this layer, [E] of 0 or 1; NULL: all. */
    const unsigned char *(*retained_experts)(void *self, int moe_index);
    exf_code (*rewrite)(void *self, exf_routes *routes, exf_err *err);
    /* Adds to the routed output [T, H] of a block what router weights cannot express (diagonal and
     * low-rank projectors).  Called concurrently.  A rewriter that corrects has both functions: `correct`
     * runs where arrays are host memory, `device_correct` on a GPU, queued on b->q. */
    exf_code (*correct)(void *self, const exf_moe_block *b, float *routed, exf_err *err);
    exf_code (*device_correct)(void *self, const exf_device_block *b, float *routed, exf_err *err);
    /* Called once before the first layer of a pass on a GPU. */
    exf_code (*device_open)(void *self, const struct exf_backend *b, exf_err *err);
    uint64_t device_bytes; /* the most that the rewriter holds in GPU memory */
} exf_rewriter;

typedef struct {
    const exf_rewriter *rewriter; /* NULL: routes stay as the router made them */
    const exf_observer *observer; /* NULL: nothing is observed */
} exf_lane;
#endif

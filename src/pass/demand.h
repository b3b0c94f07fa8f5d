/* demand.h - a demand lists what the lanes of a pass require, so that memory can be planned. */
#ifndef EXF_PASS_DEMAND_H
#define EXF_PASS_DEMAND_H
#include "pass/lane.h"

/* Requirements of the lanes; a plan states them before the lanes exist. */
typedef struct {
    size_t lanes;
    size_t probes;   /* lanes that compare their routed outputs with the first lane's */
    size_t pruned;   /* number of probing lanes that both prune experts and correct routed outputs */
    int logits;      /* arrays of router logits [T, E] in host memory: 2 with several lanes of which one wants them */
    int corrects;    /* 1: a rewriter corrects routed outputs */
    int head;        /* 1: logits are observed */
    int scored;      /* 1: logits are scored on the GPU, which keeps the first lane's logits for comparison */
    int common_input;      /* tokens of each sequence on which all experts run */
    int sweeps;      /* times that a layer's experts run; 0 means 1 */
    int host_blocks; /* 1: an observer reads blocks in host memory, also in a pass on a GPU */
    uint64_t observers; /* bytes of GPU memory that observers and rewriters hold */
} exf_demand;
struct exf_backend;
exf_demand exf_demand_of(const exf_lane *lanes, size_t n_lanes, const struct exf_backend *b);

/* Returns the number of route sets that a pass holds for such lanes. */
size_t exf_demand_route_sets(const exf_demand *d);
/* Returns the bytes of router logits that a pass holds in host memory. */
uint64_t exf_demand_logits_bytes(const exf_demand *d, size_t n_tokens, int n_experts);
/* Returns 1 for a probing lane whose retained experts make router routes of their own, which its correction reads. */
int exf_lane_keeps_router_routes(const exf_lane *lane);
#endif

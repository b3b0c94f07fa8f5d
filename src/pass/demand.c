/* demand.c - see demand.h. */
#include "pass/demand.h"

#include "kernels/backend.h"

int exf_lane_keeps_router_routes(const exf_lane *lane)
{
    return lane->observer && lane->observer->probe && lane->rewriter && lane->rewriter->retained_experts && lane->rewriter->correct;
}

/* Returns 1 for an observer that reads blocks in host memory even if the pass runs on a GPU. */
static int reads_host_blocks(const exf_observer *o)
{
    int sweeps = o->sweeps > 1 ? o->sweeps : 1;
    return o->block && (!o->device_block || o->device_sweeps < sweeps);
}

exf_demand exf_demand_of(const exf_lane *lanes, size_t n_lanes, const struct exf_backend *b)
{
    exf_demand d = {.lanes = n_lanes};
    for (size_t i = 0; i < n_lanes; i++) {
        const exf_observer *o = lanes[i].observer;
        const exf_rewriter *r = lanes[i].rewriter;
        d.corrects |= r && r->correct;
        if (r) d.observers += r->device_bytes;
        if (r && r->wants_logits) d.logits = n_lanes > 1 ? 2 : 1;
        if (!o) continue;
        d.head |= o->logits != NULL;
        d.scored |= o->device_logits != NULL;
        if (b->gpu && o->device_bytes) d.observers += o->device_bytes(o->self, b);
        d.host_blocks |= reads_host_blocks(o);
        d.probes += i > 0 && o->probe;
        d.pruned += i > 0 && exf_lane_keeps_router_routes(&lanes[i]);
        if (o->common_input && o->common_input_tokens > d.common_input) d.common_input = o->common_input_tokens;
        if (o->sweeps > d.sweeps) d.sweeps = o->sweeps;
    }
    return d;
}

size_t exf_demand_route_sets(const exf_demand *d)
{
    return 1 + d->probes + d->pruned + (d->lanes > 1) + (d->corrects != 0);
}

uint64_t exf_demand_logits_bytes(const exf_demand *d, size_t n_tokens, int n_experts)
{
    return (uint64_t)d->logits * n_tokens * (uint64_t)n_experts * sizeof(float);
}

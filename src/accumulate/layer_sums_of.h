/* layer_sums_of.h - returns the arrays of a layer's statistics as the kernels take them (kernels/statistics/layer_sums.h). */
#ifndef EXF_ACCUMULATE_LAYER_SUMS_OF_H
#define EXF_ACCUMULATE_LAYER_SUMS_OF_H
#include "artifact/statistics.h"
#include "kernels/statistics/layer_sums.h"

static inline exf_layer_sums exf_layer_sums_of(const exf_layer_statistics *s)
{
    return (exf_layer_sums){s->dot, s->target_sq, s->source_sq, s->dot0, s->sq0, s->count,
                            s->norm_sum, s->sq_sum, s->route_weight_sum, s->contribution_sum, s->energy_sum, s->norm_count,
                            s->empty_slots};
}
#endif

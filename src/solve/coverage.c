/* coverage.c - see coverage.h. */
#include "solve/coverage.h"

exf_layer_coverage exf_coverage_of(const exf_tables *t, int l)
{
    size_t e = (size_t)t->shape.n_experts, base = (size_t)l * e * e;
    exf_layer_coverage c = {.pairs = e * (e - 1)};
    for (size_t i = 0; i < e * e; i++) {
        int observed = t->loss[base + i] < EXF_LOSS_NEVER;
        c.observed += (size_t)observed;
        c.thin += !observed && t->count[base + i] > 0;
    }
    for (size_t i = 0; i < e; i++) c.cold += t->expert_count[(size_t)l * e + i] == 0;
    return c;
}

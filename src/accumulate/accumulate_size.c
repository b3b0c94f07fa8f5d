/* accumulate_size.c - computes the sizes of statistics for a plan; see accumulate.h. */
#include "accumulate/accumulate.h"
#include "accumulate/basis.h"
#include "accumulate/device_sums.h"
#include "accumulate/route_sampler.h"
#include "accumulate/vector_accumulator.h"

static uint64_t rank_of(const exf_run_shape *s)
{
    return (uint64_t)exf_basis_rank((int)s->d_model);
}

static uint64_t vector_bytes(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t p = exf_vector_pairs(s, o), h = (uint64_t)s->d_model, r = rank_of(s), bytes = 0;
    if (o->basis_only) return p * (2 + EXF_N_GRIDS) * sizeof(int32_t) + (o->lowrank ? h * r * sizeof(double) : 0);
    if (o->diagonal) bytes += p * 2 * h * sizeof(exf_exact);
    if (o->lowrank) bytes += p * (r * r + 2 * r * h) * sizeof(int64_t) + h * r * sizeof(double);
    return bytes;
}

static uint64_t sample_bytes(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t each = sizeof(uint64_t) + (uint64_t)s->top_k * (sizeof(int32_t) + sizeof(float));
    return exf_route_sampler_tokens(o->route_sample, s->n_tokens) * each;
}

uint64_t exf_accumulate_disk(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t e2 = (uint64_t)(s->n_experts * s->n_experts);
    if (o->basis_only) return vector_bytes(s, o);
    return e2 * (8 * (sizeof(double) + sizeof(exf_exact)) + 2 * sizeof(uint64_t)) + sample_bytes(s, o) + vector_bytes(s, o);
}

uint64_t exf_accumulate_memory(const exf_run_shape *s, const exf_accumulate_options *o, int n_workers)
{
    uint64_t e = (uint64_t)s->n_experts, h = (uint64_t)s->d_model, candidates = (uint64_t)(s->n_tokens * s->top_k);
    uint64_t each = e * e * (10 * sizeof(exf_exact) + 3 * sizeof(uint64_t)), samples = (uint64_t)o->samples;
    if (o->common_input_tokens) each += exf_layer_sums_common_input_scratch((int)e, (int)h) * sizeof(double);
    uint64_t rooms = n_workers == 1 && o->helpers > 1 ? (uint64_t)o->helpers : (uint64_t)n_workers;
    uint64_t all = (uint64_t)n_workers * each + 3 * sample_bytes(s, o) + vector_bytes(s, o);
    if ((o->diagonal || o->lowrank) && !o->basis_only) all += rooms * 2 * (uint64_t)EXF_MOE_BLOCK * h * sizeof(double);
    if (o->lowrank && !o->basis)
        all += (samples < candidates ? samples : candidates) * 2 * h * sizeof(float) +
               exf_basis_bytes((int)rank_of(s), (int)h, (int)rooms);
    return all;
}

uint64_t exf_accumulate_device_memory(const exf_backend *b, const exf_run_shape *s, const exf_accumulate_options *o)
{
    if (!b->gpu) return 0;
    return exf_device_sums_bytes(b, (int)s->n_experts, o->common_input_tokens > 0) + exf_vector_accumulator_device_bytes(s, o) +
           exf_route_sampler_device_bytes(exf_route_sampler_tokens(o->route_sample, s->n_tokens), (int)s->top_k) +
           sizeof(exf_output_errors);
}

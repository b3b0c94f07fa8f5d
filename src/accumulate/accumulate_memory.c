/* accumulate_memory.c - what the sums of an accumulation take on disk and in memory. */
#include "accumulate/accumulate_internal.h"

uint64_t exf_accumulate_vectors_disk(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t p = exf_vector_pairs(s, o), h = (uint64_t)s->d_model, r = (uint64_t)exf_vector_rank(s, o), bytes = 0;
    if (o->basis_only) return p * (2 + EXF_N_GRIDS) * sizeof(int32_t) + (o->lowrank ? h * r * sizeof(double) : 0);
    if (o->diagonal) bytes += p * 2 * h * sizeof(exf_exact);
    if (o->lowrank) bytes += p * (r * r + 2 * r * h) * sizeof(int64_t) + h * r * sizeof(double);
    return bytes;
}

static uint64_t norm_bytes(const exf_run_shape *s, const exf_accumulate_options *o)
{
    int q = exf_head_directions(s, o);
    return o->basis_only ? (uint64_t)s->d_model * (uint64_t)q * sizeof(double)
                         : exf_norm_sums_bytes(s->n_experts, s->d_model, q);
}

/* Returns the directions that each token of the route sample has. */
static int sampled_directions(const exf_run_shape *s, const exf_accumulate_options *o)
{
    return o->basis_only ? 0 : exf_head_directions(s, o);
}

static uint64_t sample_bytes(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t k = (uint64_t)s->top_k, q = (uint64_t)sampled_directions(s, o);
    uint64_t each = sizeof(uint64_t) + k * (sizeof(int32_t) + sizeof(float)) + (q ? (q + 1 + k) * sizeof(float) : 0);
    return exf_route_sampler_tokens(o->route_sample, s->n_tokens) * each;
}

uint64_t exf_accumulate_disk(const exf_run_shape *s, const exf_accumulate_options *o)
{
    if (o->basis_only) return exf_accumulate_vectors_disk(s, o) + norm_bytes(s, o);
    return exf_layer_statistics_disk((int)s->n_experts) + sample_bytes(s, o) + exf_accumulate_vectors_disk(s, o) + norm_bytes(s, o);
}

uint64_t exf_accumulate_memory(const exf_run_shape *s, const exf_accumulate_options *o, int n_workers, int on_device,
                               int has_ranks)
{
    uint64_t e = (uint64_t)s->n_experts, h = (uint64_t)s->d_model, candidates = (uint64_t)(s->n_tokens * s->top_k);
    uint64_t sums = exf_layer_statistics_bytes((int)e), samples = (uint64_t)o->samples;
    uint64_t each = sums + exf_sequence_tracker_bytes((int)e);
    uint64_t waiting = on_device || has_ranks ? (uint64_t)exf_waiting_layers(o, has_ranks) : 1;
    if (o->common_input_tokens) each += exf_layer_sums_common_input_scratch((int)e, (int)h) * sizeof(double);
    uint64_t buffers = n_workers == 1 && o->helpers > 1 ? (uint64_t)o->helpers : (uint64_t)n_workers;
    uint64_t all = (uint64_t)n_workers * each + (2 + waiting) * sample_bytes(s, o) + exf_accumulate_vectors_disk(s, o);
    if (on_device || has_ranks) all += waiting * sums;
    if (on_device && has_ranks) all += exf_accumulate_vectors_disk(s, o);
    if (exf_wants_vectors(o) && !o->basis_only) all += buffers * 2 * (uint64_t)EXF_MOE_BLOCK * h * sizeof(double);
    if (o->lowrank && !o->basis)
        all += (samples < candidates ? samples : candidates) * 2 * h * sizeof(float) +
               exf_basis_bytes(exf_vector_rank(s, o), (int)h, (int)buffers);
    if (o->norm_head && !o->basis)
        all += exf_norm_sampler_bytes(s) + exf_basis_bytes(exf_head_directions(s, o), (int)h, (int)buffers);
    return all + ((uint64_t)n_workers + waiting) * exf_norm_sums_bytes(s->n_experts, s->d_model, exf_head_directions(s, o));
}

uint64_t exf_accumulate_device_memory(const exf_backend *b, const exf_run_shape *s, const exf_accumulate_options *o)
{
    if (!b->gpu) return 0;
    return exf_stream_device_bytes() + exf_pairs_device_bytes(b, s, o) + exf_norms_device_bytes(s, o) +
           exf_routes_device_bytes(s, o) + (exf_wants_vectors(o) ? exf_vectors_device_bytes(s, o) : 0);
}

/* accumulate_options.c - the options of an accumulation: which of them go together, the facts that they make, how many of
 * each they ask for, and what their sums take. */
#include "accumulate/accumulate_internal.h"

int exf_wants_vectors(const exf_accumulate_options *o)
{
    return o->diagonal || o->lowrank;
}

exf_code exf_accumulate_check(const exf_accumulate_options *o, exf_err *err)
{
    if (o->common_input_tokens && o->weighting == EXF_WEIGHT_ROUTER)
        return exf_fail(err, EXF_USAGE,
                        "calibrate.weighting: router weighs chosen experts only, calibrate.pairs: common_input observes all");
    if (o->bare_router && !o->common_input_tokens)
        return exf_fail(err, EXF_USAGE, "calibrate.bare_router: its experts are not those that the model ran; it needs "
                        "calibrate.pairs: common_input, where all run");
    if (o->common_input_tokens && exf_wants_vectors(o))
        return exf_fail(err, EXF_USAGE, "calibrate.projectors: %s needs calibrate.pairs: corouted",
                        o->diagonal ? "diagonal" : "lowrank");
    return EXF_OK;
}

exf_code exf_accumulate_facts(exf_provenance *p, const exf_accumulate_options *o, int64_t top_k, int64_t d_model, exf_err *err)
{
    const char *weighting = o->weighting == EXF_WEIGHT_SOURCE_NORM ? "source_norm"
                            : o->weighting == EXF_WEIGHT_ROUTER    ? "router"
                                                                   : "none";
    exf_code rc;
    EXF_TRY(exf_provenance_add(p, err, "accumulate.program", "exfold-accumulate"));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.pairs", "%s", o->common_input_tokens ? "common_input" : "corouted"));
    EXF_TRY(exf_provenance_add(p, err, EXF_ACCUMULATE_NUMBERS_FACT, "%d", exf_sums_version(p, top_k, d_model)));
    if (o->cross_check && exf_is_by_gpu(p))
        EXF_TRY(exf_provenance_add(p, err, EXF_CROSS_CHECK_FACT, "%d", EXF_CHECKED_TOKENS));
    if (o->common_input_tokens) EXF_TRY(exf_provenance_add(p, err, "accumulate.observer_tokens", "%d", o->common_input_tokens));
    if (o->bare_router)
        EXF_TRY(exf_provenance_add(p, err, "accumulate.bare_router", "%s",
                                   o->bare_router == EXF_BARE_PLAIN ? "plain" : "renormalised"));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.weighting", "%s", weighting));
    if (o->route_sample)
        EXF_TRY(exf_provenance_add(p, err, "accumulate.route_sample", "%lld", (long long)o->route_sample));
    if (o->norm_head) EXF_TRY(exf_provenance_add(p, err, EXF_NORM_HEAD_FACT, "%d", o->norm_head));
    if (!exf_wants_vectors(o)) goto out;
    EXF_TRY(exf_provenance_add(p, err, "accumulate.vectors", "%s%s%s", o->diagonal ? "diagonal" : "",
                               o->diagonal && o->lowrank ? "," : "", o->lowrank ? "lowrank" : ""));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.vector_pairs", "%lld", (long long)o->vector_pairs));
    if (!o->lowrank) goto out;
    if (o->rank) EXF_TRY(exf_provenance_add(p, err, EXF_RANK_FACT, "%d", o->rank));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.samples", "%lld", (long long)o->samples));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.seed", "%llu", (unsigned long long)o->seed));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.ridge", "%.17g", o->rule.ridge));
    if (o->rule.clip)
        EXF_TRY(exf_provenance_add(p, err, "accumulate.clip", "%.17g,%.17g", o->rule.clip_min, o->rule.clip_max));
    else
        EXF_TRY(exf_provenance_add(p, err, "accumulate.clip", "none"));
out:
    return rc;
}

/* ---- how much they ask for ----------------------------------------------------------------------------- */

int exf_head_directions(const exf_run_shape *s, const exf_accumulate_options *o)
{
    return (int)(o->norm_head < s->d_model ? o->norm_head : s->d_model);
}

int exf_vector_rank(const exf_run_shape *shape, const exf_accumulate_options *o)
{
    int most = exf_basis_rank((int)shape->d_model);
    return !o->lowrank ? 0 : o->rank && o->rank < most ? o->rank : most;
}

uint64_t exf_vector_pairs(const exf_run_shape *shape, const exf_accumulate_options *o)
{
    uint64_t all = (uint64_t)(shape->n_experts * (shape->n_experts - 1)), wanted = (uint64_t)o->vector_pairs;
    return all < wanted ? all : wanted;
}

/* ---- what they take on disk and in memory ------------------------------------------------------------------ */

uint64_t exf_accumulate_vectors_disk(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t p = exf_vector_pairs(s, o), h = (uint64_t)s->d_model, r = (uint64_t)exf_vector_rank(s, o), bytes = 0;
    if (o->diagonal) bytes += p * 2 * h * sizeof(exf_exact);
    if (o->lowrank) bytes += p * (r * r + 2 * r * h) * sizeof(int64_t) + h * r * sizeof(double);
    return bytes;
}

static uint64_t norm_bytes(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t e = (uint64_t)s->n_experts, h = (uint64_t)s->d_model;
    int q = exf_head_directions(s, o);
    return !q ? 0 : h * (uint64_t)q * sizeof(double) + e * (exf_norm_products(q) + exf_norm_features(q) + 1) * sizeof(exf_exact);
}

static uint64_t sample_bytes(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t k = (uint64_t)s->top_k, q = (uint64_t)exf_head_directions(s, o);
    uint64_t each = sizeof(uint64_t) + k * (sizeof(int32_t) + sizeof(float)) + (q ? (q + 1 + k) * sizeof(float) : 0);
    return exf_route_sampler_tokens(o->route_sample, s->n_tokens) * each;
}

uint64_t exf_accumulate_disk(const exf_run_shape *s, const exf_accumulate_options *o)
{
    size_t bytes = exf_layer_statistics_bytes((int)s->n_experts);
    for (const exf_layer_array *a = exf_layer_arrays; a < exf_layer_arrays + EXF_N_LAYER_ARRAYS; a++)
        if (a->rounded) bytes += exf_layer_array_count(a, (int)s->n_experts) * sizeof(double);
    return bytes + sample_bytes(s, o) + exf_accumulate_vectors_disk(s, o) + norm_bytes(s, o);
}

uint64_t exf_accumulate_memory(const exf_run_shape *s, const exf_accumulate_options *o, int n_workers, int on_device,
                               int has_ranks)
{
    uint64_t e = (uint64_t)s->n_experts, h = (uint64_t)s->d_model, candidates = (uint64_t)(s->n_tokens * s->top_k);
    uint64_t sums = exf_layer_statistics_bytes((int)e), samples = (uint64_t)o->samples;
    uint64_t each = sums + e * e * (2 * sizeof(exf_exact) + sizeof(uint64_t)) /* before a sequence */;
    uint64_t waiting = on_device || has_ranks ? (uint64_t)exf_waiting_layers(o, has_ranks) : 1;
    if (o->common_input_tokens) each += exf_layer_sums_common_input_scratch((int)e, (int)h) * sizeof(double);
    uint64_t buffers = n_workers == 1 && o->helpers > 1 ? (uint64_t)o->helpers : (uint64_t)n_workers;
    uint64_t all = (uint64_t)n_workers * each + (2 + waiting) * sample_bytes(s, o) + exf_accumulate_vectors_disk(s, o);
    if (on_device || has_ranks) all += waiting * sums;
    if (on_device && has_ranks) all += exf_accumulate_vectors_disk(s, o);
    if (exf_wants_vectors(o)) all += buffers * 2 * (uint64_t)EXF_MOE_BLOCK * h * sizeof(double);
    if (o->lowrank)
        all += (samples < candidates ? samples : candidates) * 2 * h * sizeof(float) +
               exf_basis_bytes(exf_vector_rank(s, o), (int)h, (int)buffers);
    if (o->norm_head)
        all += exf_norm_sampler_bytes(s) + exf_basis_bytes(exf_head_directions(s, o), (int)h, (int)buffers);
    return all + ((uint64_t)n_workers + waiting) * norm_bytes(s, o);
}

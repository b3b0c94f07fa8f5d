/* accumulate_options.c - the options of an accumulation: which go together, what facts they are, what they cost. */
#include "accumulate/accumulate_internal.h"

#include "accumulate/basis.h"
#include "base/version.h"

exf_code exf_accumulate_check(const exf_accumulate_options *o, exf_err *err)
{
    if (o->common_input_tokens && o->weighting == EXF_WEIGHT_ROUTER)
        return exf_fail(err, EXF_USAGE,
                        "calibrate.weighting: router weighs chosen experts only, calibrate.pairs: common_input observes all");
    if (o->common_input_tokens && (o->diagonal || o->lowrank))
        return exf_fail(err, EXF_USAGE, "calibrate.projectors: %s needs calibrate.pairs: corouted",
                        o->diagonal ? "diagonal" : "lowrank");
    if (o->basis_only && o->partial)
        return exf_fail(err, EXF_USAGE,
                        "--basis-only: a basis is made from all of the data, --partial takes a part: give one of them");
    if (o->basis_only && !o->diagonal && !o->lowrank)
        return exf_fail(err, EXF_USAGE, "calibrate.projectors: none of them needs a basis; name diagonal or lowrank");
    return EXF_OK;
}

/* ---- facts ------------------------------------------------------------------------------------------ */

static const char *weighting_name(exf_weighting w)
{
    return w == EXF_WEIGHT_SOURCE_NORM ? "source_norm" : w == EXF_WEIGHT_ROUTER ? "router" : "none";
}

static exf_code add_vector_facts(exf_provenance *p, const exf_accumulate_options *o, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!o->diagonal && !o->lowrank) return EXF_OK;
    EXF_TRY(exf_provenance_add(p, err, "accumulate.vectors", "%s%s%s", o->diagonal ? "diagonal" : "",
                               o->diagonal && o->lowrank ? "," : "", o->lowrank ? "lowrank" : ""));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.vector_pairs", "%lld", (long long)o->vector_pairs));
    if (!o->lowrank) goto out;
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

exf_code exf_accumulate_facts(exf_provenance *p, const exf_accumulate_options *o, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_provenance_add(p, err, "accumulate.program", "exfold-accumulate"));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.pairs", "%s", o->common_input_tokens ? "common_input" : "corouted"));
    if (o->common_input_tokens) EXF_TRY(exf_provenance_add(p, err, "accumulate.observer_tokens", "%d", o->common_input_tokens));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.weighting", "%s", weighting_name(o->weighting)));
    if (o->route_sample && !o->basis_only)
        EXF_TRY(exf_provenance_add(p, err, "accumulate.route_sample", "%lld", (long long)o->route_sample));
    EXF_TRY(add_vector_facts(p, o, err));
out:
    return rc;
}

/* ---- sizes ------------------------------------------------------------------------------------------ */

static uint64_t vector_bytes(const exf_run_shape *s, const exf_accumulate_options *o)
{
    uint64_t p = exf_vector_pairs(s, o), h = (uint64_t)s->d_model, r = (uint64_t)exf_basis_rank((int)s->d_model), bytes = 0;
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
    uint64_t buffers = n_workers == 1 && o->helpers > 1 ? (uint64_t)o->helpers : (uint64_t)n_workers;
    uint64_t all = (uint64_t)n_workers * each + 3 * sample_bytes(s, o) + vector_bytes(s, o);
    if ((o->diagonal || o->lowrank) && !o->basis_only) all += buffers * 2 * (uint64_t)EXF_MOE_BLOCK * h * sizeof(double);
    if (o->lowrank && !o->basis)
        all += (samples < candidates ? samples : candidates) * 2 * h * sizeof(float) +
               exf_basis_bytes(exf_basis_rank((int)h), (int)h, (int)buffers);
    return all;
}

uint64_t exf_accumulate_device_memory(const exf_backend *b, const exf_run_shape *s, const exf_accumulate_options *o)
{
    if (!b->gpu) return 0;
    return exf_device_sums_bytes(b, (int)s->n_experts, o->common_input_tokens > 0) + exf_vector_accumulator_device_bytes(s, o) +
           exf_route_sampler_device_bytes(exf_route_sampler_tokens(o->route_sample, s->n_tokens), (int)s->top_k) +
           sizeof(exf_output_errors);
}

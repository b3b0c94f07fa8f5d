/* accumulate_options.c - the options of an accumulation: which of them go together, the facts that they make, and how many of
 * each they ask for. */
#include "accumulate/accumulate_internal.h"

int exf_wants_vectors(const exf_accumulate_options *o)
{
    return o->diagonal || o->lowrank;
}

int exf_wants_basis(const exf_accumulate_options *o)
{
    return exf_wants_vectors(o) || o->norm_head;
}

int exf_accumulate_sweeps(const exf_accumulate_options *o)
{
    return o->basis_only ? 1 : 1 + exf_wants_vectors(o);
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
    if (o->basis_only && o->partial)
        return exf_fail(err, EXF_USAGE,
                        "--basis-only: a basis is made from all of the data, --partial takes a part: give one of them");
    if (o->basis_only && !exf_wants_basis(o))
        return exf_fail(err, EXF_USAGE, "calibrate.projectors: none of them needs a basis; name diagonal or lowrank, or set "
                        "calibrate.norm_head");
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
        EXF_TRY(exf_provenance_add(p, err, "accumulate.bare_router", "%s", o->bare_router > 1 ? "renormalised" : "plain"));
    EXF_TRY(exf_provenance_add(p, err, "accumulate.weighting", "%s", weighting));
    if (o->route_sample && !o->basis_only)
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
    return exf_norm_directions(o->norm_head, s->d_model);
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

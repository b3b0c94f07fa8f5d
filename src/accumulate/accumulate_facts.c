/* accumulate_facts.c - which options go together, and the facts of the accumulate stage; see accumulate.h. */
#include "accumulate/accumulate.h"

#include "base/version.h"

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

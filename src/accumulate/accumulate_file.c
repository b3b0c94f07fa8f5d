/* accumulate_file.c - the statistics file around its layers; see accumulate.h. */
#include "accumulate/accumulate.h"
#include "accumulate/accumulate_internal.h"
#include "accumulate/basis.h"
#include "accumulate/device_sums.h"
#include "accumulate/sampler.h"
#include "accumulate/vector_accumulator.h"

#include "artifact/provenance.h"
#include "base/version.h"

/* Refuses a basis of another run; weights that are not known yet are compared after the pass. */
static exf_code check_basis(const exf_accumulator *a, const exf_provenance *own, const exf_sequence_list *sorted, exf_err *err)
{
    const exf_basis *b = a->options.basis;
    exf_code rc = exf_basis_check(b, own, a->layer_number, a->n_layers, sorted, err);
    if (rc != EXF_OK || !exf_provenance_get(own, "model.weights_digest")) return rc;
    return exf_weights_facts_same(&b->provenance, exf_h5_path(b->h), own, a->target, err);
}

exf_code exf_accumulator_start_file(exf_accumulator *a, const exf_accumulator_plan *plan, exf_err *err)
{
    exf_code rc;
    exf_provenance own = {0}, origin = {0};
    exf_sequence_list sorted = {.n = 0};
    EXF_TRY(exf_sequence_list_sorted(&sorted, &a->sequences, err));
    EXF_TRY(exf_facts_join(&own, &origin, plan->parts, plan->n_parts, &sorted, err));
    EXF_TRY(exf_accumulate_facts(&own, &a->options, err));
    exf_statistics_header head = {.shape = a->shape, .layer_number = a->layer_number, .n_layers = a->n_layers,
                                .common_input = a->options.common_input_tokens > 0, .sequences = &sorted, .provenance = &own,
                                .origin = &origin, .is_basis = a->options.basis_only};
    if (a->options.basis) EXF_TRY(check_basis(a, &own, &sorted, err));
    EXF_TRY(exf_statistics_start(&a->writer, plan->target, plan->force, &head, err));
out:
    exf_provenance_free(&own);
    exf_provenance_free(&origin);
    exf_sequence_list_free(&sorted);
    return rc;
}

exf_code exf_accumulator_add_facts(exf_accumulator *a, const exf_provenance *p, exf_err *err)
{
    exf_code rc = exf_accumulator_settle(a, err);
    if (rc != EXF_OK || !a->writes) return rc;
    if (a->options.basis)
        rc = exf_weights_facts_same(&a->options.basis->provenance, exf_h5_path(a->options.basis->h), p, a->target, err);
    return rc == EXF_OK ? exf_statistics_add_facts(&a->writer, p, err) : rc;
}

/* Adds the fact of what vector sums were added up over. */
static exf_code add_basis_fact(exf_accumulator *a, exf_err *err)
{
    char digest[EXF_SHA256_HEX];
    exf_provenance p = {0};
    exf_hash *h = a->basis_hash;
    exf_code rc;
    if (!h) return EXF_OK;
    a->basis_hash = NULL;
    EXF_TRY(exf_hash_end(h, digest, err));
    EXF_TRY(exf_provenance_add(&p, err, EXF_BASIS_FACT, "%s", digest));
    EXF_TRY(exf_statistics_add_facts(&a->writer, &p, err));
out:
    exf_provenance_free(&p);
    return rc;
}

exf_code exf_accumulator_commit(exf_accumulator *a, char digest[EXF_SHA256_HEX], exf_err *err)
{
    exf_code rc = exf_accumulator_settle(a, err);
    if (rc != EXF_OK || !a->writes) return rc;
    rc = add_basis_fact(a, err);
    return rc == EXF_OK ? exf_statistics_commit(&a->writer, digest, err) : rc;
}

/* ---- accumulate facts -------------------------------------------------------------------------- */

/* Which options go together, and the facts of the accumulate stage; see accumulate.h. */

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

/* ---- accumulate size --------------------------------------------------------------------------- */

/* Computes the sizes of statistics for a plan; see accumulate.h. */

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

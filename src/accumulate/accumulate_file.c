/* accumulate_file.c - the statistics file around its layers; see accumulate.h. */
#include "accumulate/accumulate_internal.h"

#include "artifact/provenance.h"

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

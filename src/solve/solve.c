/* solve.c - see solve.h. */
#include "solve/solve.h"

#include "artifact/shards.h"
#include "base/stop.h"

#include <string.h>

static exf_code take_layers(exf_statistics_reader *r, const exf_solve_options *o, exf_solver *solver, exf_err *err)
{
    exf_layer_statistics s;
    exf_vector_sums vectors = {.n_pairs = 0};
    exf_code rc = exf_layer_statistics_new(&s, (int)r->shape.n_experts, err);
    if (rc != EXF_OK) return rc;
    s.vectors = &vectors;
    for (int l = 0; l < r->n_layers; l++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_statistics_get(r, l, &s, err));
        exf_vector_sums_free(&vectors);
        if (exf_solver_wants_vectors(o)) EXF_TRY(exf_statistics_get_vectors(r, l, &vectors, err));
        EXF_TRY(exf_solver_layer(solver, l, &s, err));
    }
out:
    exf_vector_sums_free(&vectors);
    exf_layer_statistics_free(&s);
    return rc;
}

exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_solve_options with = *o;
    exf_solver *solver = NULL;
    exf_text part = {0};
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    memset(t, 0, sizeof *t);
    EXF_TRY(exf_solve_check(o, err));
    EXF_TRY(exf_statistics_open(&r, statistics_path, err));
    exf_facts_part file = {.path = statistics_path, .provenance = &r.provenance, .origin = &r.origin};
    EXF_TRY(exf_shards_check(&file, 1, o->partial, err));
    if (!o->statistics_digest) EXF_TRY(exf_h5_digest(r.h, digest, err));
    if (!o->statistics_digest) with.statistics_digest = digest;
    exf_solver_head head = {.path = statistics_path, .shape = r.shape, .layer_number = r.layer_number, .n_layers = r.n_layers,
                            .by_sequence = r.sequences.length != NULL, .has_energies = r.has_energies};
    EXF_TRY(exf_solver_new(&solver, &head, &with, &r, err));
    EXF_TRY(take_layers(&r, &with, solver, err));
    EXF_TRY(exf_solver_end(solver, &with, &r.provenance, t, err));
    EXF_TRY(exf_part_words(&part, &file, err));
    if (part.len) EXF_TRY(exf_provenance_add(&t->provenance, err, EXF_PART_FACT, "%s", part.s));
out:
    if (rc != EXF_OK) exf_tables_free(t);
    exf_text_free(&part);
    exf_solver_free(solver);
    exf_statistics_close(&r);
    return rc;
}

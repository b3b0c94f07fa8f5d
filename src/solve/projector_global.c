/* projector_global.c - one scalar for the whole model (solve_internal.h).  It needs the sums of
 * all layers, so the statistics are read twice. */
#include "solve/solve_internal.h"

static exf_code sum_layers(exf_statistics_reader *r, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_shared_scalar *out;
    exf_shared_sums sums = {.dot = {{0}}};
    exf_layer_statistics s;
    exf_code rc = exf_layer_statistics_new(&s, (int)r->shape.n_experts, err);
    if (rc != EXF_OK) return rc;
    for (int l = 0; l < r->n_layers; l++) {
        EXF_TRY(exf_statistics_get(r, l, &s, err));
        exf_shared_add(&sums, &s, o);
    }
    EXF_TRY(exf_tables_add_shared(t, "global", &out, err));
    for (int l = 0; l < r->n_layers; l++) out->scalar[l] = (float)exf_shared_value(&sums, o);
out:
    exf_layer_statistics_free(&s);
    return rc;
}

/* Solves the layer's losses with the stored float32 scalar, by which runtimes multiply. */
static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    return exf_shared_fill("global", (double)exf_shared_find(t, "global")->scalar[l], s, o, l, t, err);
}

const exf_projector exf_projector_global = {
    .name = "global", .words = "one scalar for the model", .place = 30,
    .apply = EXF_APPLY_SHARED, .reads_file = 1, .begin = sum_layers, .layer = solve_layer};

/* projector_layer.c - one scalar per layer (solve_internal.h). */
#include "solve/solve_internal.h"

static exf_code add_scalars(exf_statistics_reader *r, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_shared_scalar *s;
    (void)r;
    (void)o;
    return exf_tables_add_shared(t, "layer", &s, err);
}

static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    exf_shared_sums sums = {.dot = {{0}}};
    exf_shared_add(&sums, s, o);
    return exf_shared_fill("layer", exf_shared_value(&sums, o), s, o, l, t, err);
}

const exf_projector exf_projector_layer = {
    .name = "layer", .words = "one scalar per layer", .place = 20,
    .apply = EXF_APPLY_SHARED, .begin = add_scalars, .layer = solve_layer};

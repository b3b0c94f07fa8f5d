/* projector.c - the table of projectors, made from the files in this folder. */
#include "artifact/projector.h"

#include "base/drawer.h"
#include "projector/solving.h"

#define X(name) extern const exf_projector exf_projector_##name;
#include "gen/projector.inc"
#undef X

EXF_DRAWER_BEGIN
#define X(name) &exf_projector_##name,
#include "gen/projector.inc"
#undef X
EXF_DRAWER_END(projector)
EXF_DRAWER_FIND(projector)

static int is_solved(const void *entry)
{
    return ((const exf_projector *)entry)->layer != NULL;
}

exf_code exf_projector_require(const char *name, const exf_projector **out, exf_err *err)
{
    const exf_drawer solved = {drawer.entry, drawer.n, is_solved};
    const void *entry;
    exf_code rc = exf_drawer_require(&entry, &solved, "calibrate.projectors", name, err);
    *out = entry;
    return rc;
}

const exf_projector *exf_projector_after(int place)
{
    const exf_projector *next = NULL, *p;
    for (size_t i = 0; (p = exf_projector_at(i)); i++)
        if (p->place > place && (!next || p->place < next->place)) next = p;
    return next;
}

int exf_solve_observed(const exf_layer_statistics *s, const exf_solve_options *o, size_t i)
{
    return s->count[i] > 0 && s->count[i] >= o->min_pair_tokens;
}

double exf_solve_loss(double scalar, double dot, double target_sq, double source_sq)
{
    double residual = source_sq - 2 * scalar * dot + scalar * scalar * target_sq;
    return source_sq > 0 && residual > 0 ? residual / source_sq : 0;
}

/* projector.c - the table of projectors, made from the files in this directory; see artifact/projector.h. */
#include "solve/solve_internal.h"

#include "base/registry.h"

#define X(name) extern const exf_projector exf_projector_##name;
#include "gen/projector.inc"
#undef X

EXF_REGISTRY_BEGIN
#define X(name) &exf_projector_##name,
#include "gen/projector.inc"
#undef X
EXF_REGISTRY_END(projector)
EXF_REGISTRY_FIND(projector)

static int is_solved(const void *entry)
{
    return ((const exf_projector *)entry)->layer != NULL;
}

exf_code exf_projector_require(const char *name, const exf_projector **out, exf_err *err)
{
    const exf_registry solved = {registry.entry, registry.n, is_solved};
    const void *entry;
    exf_code rc = exf_registry_require(&entry, &solved, "calibrate.projectors", name, err);
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

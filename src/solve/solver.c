/* solver.c - the table of projectors, made from the files in this directory. */
#include "solve/solve.h"

#include "base/text.h"

#include <string.h>

#define X(name) extern const exf_solver exf_solver_##name;
#include "gen/solver.inc"
#undef X

static const exf_solver *const solvers[] = {
#define X(name) &exf_solver_##name,
#include "gen/solver.inc"
#undef X
};

const exf_solver *exf_solver_at(size_t i)
{
    return i < sizeof solvers / sizeof solvers[0] ? solvers[i] : NULL;
}

const exf_solver *exf_solver_find(const char *name)
{
    for (size_t i = 0; exf_solver_at(i); i++)
        if (strcmp(solvers[i]->name, name) == 0) return solvers[i];
    return NULL;
}

exf_code exf_solve_check(const exf_solve_options *o, exf_err *err)
{
    exf_text known = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && exf_solver_at(i); i++) rc = exf_text_addf(&known, err, "%s%s", i ? ", " : "", solvers[i]->name);
    for (size_t i = 0; rc == EXF_OK && i < o->n_projectors; i++)
        if (!exf_solver_find(o->projectors[i]))
            rc = exf_fail(err, EXF_USAGE, "calibrate.projectors: \"%s\" is not known (known: %s)", o->projectors[i], known.s);
    for (size_t i = 0; rc == EXF_OK && i < o->n_ranks; i++)
        if (o->ranks[i] < 1 || o->ranks[i] > 32)
            rc = exf_fail(err, EXF_USAGE, "calibrate.ranks: %lld, expected 1 to 32, the columns of a basis", (long long)o->ranks[i]);
    exf_text_free(&known);
    return rc;
}

/* solve_beside.c - see solve_beside.h. */
#include "tool/solve_beside.h"

exf_code exf_solve_beside_begin(exf_solve_beside *b, const exf_recipe *r, const exf_solver_head *head, exf_err *err)
{
    exf_solve_options o;
    exf_code rc;
    *b = (exf_solve_beside){.solver = NULL};
    EXF_TRY(exf_recipe_solve_options(r, &o, err));
    if (!exf_solver_reads_file(&o)) rc = exf_solver_new(&b->solver, head, &o, NULL, err);
out:
    return rc;
}

static exf_code take(void *self, int i, const exf_layer_statistics *s, exf_err *err)
{
    exf_solve_beside *b = self;
    (void)err;
    if (b->why.code == EXF_OK) b->why.code = exf_solver_take(b->solver, i, s, &b->why);
    return EXF_OK;
}

exf_layer_taker exf_solve_beside_taker(exf_solve_beside *b)
{
    return (exf_layer_taker){b, b->solver ? take : NULL};
}

exf_code exf_solve_beside_end(exf_solve_beside *b, const char *statistics, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_provenance facts = {0};
    exf_h5 *h = NULL;
    exf_code rc;
    if (b->why.code != EXF_OK) {
        *err = b->why;
        return b->why.code;
    }
    EXF_TRY(exf_artifact_open(&h, statistics, &exf_artifact_statistics, NULL, &facts, err));
    rc = exf_solver_end(b->solver, o, &facts, t, err);
out:
    exf_h5_close(h);
    exf_provenance_free(&facts);
    return rc;
}

void exf_solve_beside_free(exf_solve_beside *b)
{
    exf_solver_free(b->solver);
    b->solver = NULL;
}

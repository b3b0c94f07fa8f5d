/* overlapped_solve.c - see overlapped_solve.h. */
#include "tool/overlapped_solve.h"

static exf_code solve_layer(void *self, int i, const exf_layer_statistics *s, exf_err *err)
{
    exf_overlapped_solve *b = self;
    (void)err;
    if (b->why.code == EXF_OK) b->why.code = exf_solver_layer(b->solver, i, s, &b->why);
    return EXF_OK;
}

exf_code exf_overlapped_solve_begin(exf_overlapped_solve *b, const exf_recipe *r, exf_accumulator_plan *plan, exf_err *err)
{
    exf_solver_head head = {.path = plan->target, .shape = *plan->shape, .layer_number = plan->layer_number,
                            .n_layers = plan->n_layers, .by_sequence = 1, .has_energies = 1};
    exf_solve_options o;
    exf_code rc;
    *b = (exf_overlapped_solve){.solver = NULL};
    EXF_TRY(exf_recipe_solve_options(r, &o, err));
    if (exf_solver_reads_file(&o)) goto out;
    EXF_TRY(exf_solver_new(&b->solver, &head, &o, NULL, err));
    plan->consumer = (exf_layer_consumer){b, solve_layer};
out:
    return rc;
}

exf_code exf_overlapped_solve_end(exf_overlapped_solve *b, const char *statistics, const exf_solve_options *o, exf_tables *t,
                                  exf_err *err)
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

void exf_overlapped_solve_free(exf_overlapped_solve *b)
{
    exf_solver_free(b->solver);
    b->solver = NULL;
}

/* shared.c - see shared.h. */
#include "solve/shared.h"

#include <math.h>
#include <string.h>

void exf_shared_add(exf_shared_sums *sums, const exf_layer_statistics *s, const exf_solve_options *o)
{
    size_t e = (size_t)s->n_experts;
    for (size_t i = 0; i < e * e; i++)
        if (exf_solve_observed(s, o, i)) {
            exf_exact_merge(&sums->dot, &s->dot[i]);
            exf_exact_merge(&sums->target_sq, &s->target_sq[i]);
        }
}

double exf_shared_value(const exf_shared_sums *sums, const exf_solve_options *o)
{
    exf_scalar_rule unclipped = {.ridge = o->rule.ridge};
    return exf_pair_scalar(&unclipped, exf_exact_value(&sums->dot), exf_exact_value(&sums->target_sq));
}

exf_shared_scalar *exf_shared_find(const exf_tables *t, const char *name)
{
    for (int i = 0; i < t->n_shared; i++)
        if (strcmp(t->shared[i].name, name) == 0) return &t->shared[i];
    return NULL;
}

exf_code exf_shared_fill(const char *name, double scalar, const exf_layer_statistics *s, const exf_solve_options *o, int l,
                         exf_tables *t, exf_err *err)
{
    const exf_shared_scalar *out = exf_shared_find(t, name);
    size_t e = (size_t)s->n_experts;
    if (!out) return exf_fail(err, EXF_INTERNAL, "there is no room for the scalars shared by %s", name);
    out->scalar[l] = (float)scalar;
    if (!isfinite(out->scalar[l]))
        return exf_fail(err, EXF_NUMERIC, "layer %d: the scalar shared by %s is %g, no finite float32", (int)t->layer_number[l],
                        name, scalar);
    for (size_t i = 0; i < e * e; i++) {
        float *loss = &out->loss[(size_t)l * e * e + i];
        *loss = EXF_LOSS_NEVER;
        if (!exf_solve_observed(s, o, i)) continue;
        *loss = (float)exf_solve_loss(scalar, exf_exact_value(&s->dot[i]), exf_exact_value(&s->target_sq[i]),
                                      exf_exact_value(&s->source_sq[i]));
        if (!isfinite(*loss))
            return exf_fail(err, EXF_NUMERIC, "layer %d, pair %zu -> %zu: the loss under the scalar shared by %s is %g",
                            (int)t->layer_number[l], i / e, i % e, name, (double)*loss);
    }
    return EXF_OK;
}

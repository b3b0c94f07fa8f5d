/* projector_pair.c - one scalar per ordered pair (docs/method.md, section 2; paper,
 * "pairwise scalar"):
 *
 *   S[s,t] = clip(dot / (target_sq + lambda))            (kernels/statistics/layer_sums.h)
 *   L[s,t] = max(0, source_sq - 2 S dot + S^2 target_sq) / source_sq
 *
 * with the clipped S; S = 1 and L = never on the diagonal; an unobserved pair gets
 * S = 0 and L = never.  It is always solved: all other projectors fall back on it. */
#include "solve/solve_internal.h"

#include <math.h>

static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts, base = (size_t)l * e * e;
    for (size_t i = 0; i < e * e; i++) {
        size_t at = base + i;
        t->count[at] = s->count[i];
        t->coeff[at] = i % e == i / e ? 1.0f : 0.0f;
        t->loss[at] = EXF_LOSS_NEVER;
        if (!exf_solve_observed(s, o, i)) continue;
        double dot = exf_exact_value(&s->dot[i]), target_sq = exf_exact_value(&s->target_sq[i]);
        double c = exf_pair_scalar(&o->rule, dot, target_sq);
        t->coeff[at] = (float)c;
        t->loss[at] = (float)exf_solve_loss(c, dot, target_sq, exf_exact_value(&s->source_sq[i]));
        if (!isfinite(t->coeff[at]) || !isfinite(t->loss[at]))
            return exf_fail(err, EXF_NUMERIC, "layer %d, pair %zu -> %zu: scalar %g and loss %g are no finite float32",
                            (int)t->layer_number[l], i / e, i % e, c, (double)t->loss[at]);
    }
    return EXF_OK;
}

const exf_projector exf_projector_pair = {.name = "pair", .words = "one scalar per pair",
                                        .place = 10, .apply = EXF_APPLY_PAIR, .layer = solve_layer};

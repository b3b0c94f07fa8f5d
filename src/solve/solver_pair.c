/* solver_pair.c - one scalar per ordered pair (method, section 2; paper,
 * "pairwise scalar"):
 *
 *   S[s,t] = clip(dot / (target_sq + lambda))
 *   L[s,t] = max(0, source_sq - 2 S dot + S^2 target_sq) / source_sq
 *
 * with the clipped S; S = 1 and L = never on the diagonal; a pair without a
 * single token gets S = 0 and L = never. */
#include "solve/solve.h"

#include <math.h>

static double clipped(double s, const exf_solve_options *o)
{
    if (!o->clip) return s;
    return s < o->clip_min ? o->clip_min : s > o->clip_max ? o->clip_max : s;
}

/* A source whose output was 0 on every token loses nothing wherever it goes. */
static double relative_loss(double s, double dot, double target_sq, double source_sq)
{
    double residual = source_sq - 2 * s * dot + s * s * target_sq;
    return source_sq > 0 && residual > 0 ? residual / source_sq : 0;
}

static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts, base = (size_t)l * e * e;
    for (size_t i = 0; i < e * e; i++) {
        size_t at = base + i;
        t->count[at] = s->count[i];
        t->coeff[at] = i % e == i / e ? 1.0f : 0.0f;
        t->loss[at] = EXF_LOSS_NEVER;
        if (s->count[i] == 0) continue;
        double dot = exf_exact_value(&s->dot[i]), target_sq = exf_exact_value(&s->target_sq[i]);
        double divisor = target_sq + o->ridge;
        double c = divisor > 0 ? clipped(dot / divisor, o) : 0;
        t->coeff[at] = (float)c;
        t->loss[at] = (float)relative_loss(c, dot, target_sq, exf_exact_value(&s->source_sq[i]));
        if (!isfinite(t->coeff[at]) || !isfinite(t->loss[at]))
            return exf_fail(err, EXF_NUMERIC, "layer %d, pair %zu -> %zu: scalar %g and loss %g are no finite float32", (int)t->layer_number[l],
                            i / e, i % e, c, (double)t->loss[at]);
    }
    return EXF_OK;
}

const exf_solver exf_solver_pair = {.name = "pair", .layer = solve_layer};

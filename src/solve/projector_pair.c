/* projector_pair.c - one scalar per ordered pair (docs/method.md, section 2; paper,
 * "pairwise scalar"):
 *
 *   S[s,t] = clip(dot / (target_sq + lambda))            (kernels/statistics/layer_sums.h)
 *   L[s,t] = max(0, source_sq - 2 S dot + S^2 target_sq) / source_sq
 *
 * with the clipped S; S = 1 and L = never on the diagonal; an unobserved pair gets
 * S = 0 and L = never.  It is always solved: all other projectors fall back on it.  The same is solved from the sums of each half
 * of the data alone, where they are known. */
#include "solve/solve_internal.h"

#include <math.h>

/* The sums of a pair, of the whole data or of one half. */
typedef struct {
    exf_exact dot, target_sq, source_sq;
    uint64_t count;
} pair_sums;

/* Takes the part from the whole; sums without a token are 0 on both sides. */
static exf_exact rest_of(const exf_exact *whole, const exf_exact *part)
{
    exf_exact rest = *part;
    exf_exact_negate(&rest);
    (void)exf_exact_merge(&rest, whole);
    return rest;
}

static pair_sums sums_of_half(const exf_layer_statistics *s, int half, size_t i)
{
    if (half) return (pair_sums){s->half_dot[i], s->half_target_sq[i], s->half_source_sq[i], s->half_count[i]};
    return (pair_sums){rest_of(&s->dot[i], &s->half_dot[i]), rest_of(&s->target_sq[i], &s->half_target_sq[i]),
                       rest_of(&s->source_sq[i], &s->half_source_sq[i]), s->count[i] - s->half_count[i]};
}

/* Solves pair i of a layer, of experts i / e and i % e. */
static exf_code solve_pair(const pair_sums *p, const exf_solve_options *o, int layer, size_t i, size_t e, float *scalar,
                           float *loss, exf_err *err)
{
    *scalar = i % e == i / e ? 1.0f : 0.0f;
    *loss = EXF_LOSS_NEVER;
    if (p->count == 0 || p->count < o->min_pair_tokens) return EXF_OK;
    double dot = exf_exact_value(&p->dot), target_sq = exf_exact_value(&p->target_sq);
    double c = exf_pair_scalar(&o->rule, dot, target_sq);
    *scalar = (float)c;
    *loss = (float)exf_solve_loss(c, dot, target_sq, exf_exact_value(&p->source_sq));
    if (isfinite(*scalar) && isfinite(*loss)) return EXF_OK;
    return exf_fail(err, EXF_NUMERIC, "layer %d, pair %zu -> %zu: scalar %g and loss %g are no finite float32", layer, i / e, i % e,
                    c, (double)*loss);
}

static exf_code solve_layer(const exf_layer_statistics *s, const exf_solve_options *o, int l, exf_tables *t, exf_err *err)
{
    size_t e = (size_t)s->n_experts, base = (size_t)l * e * e;
    int layer = (int)t->layer_number[l];
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < e * e; i++) {
        pair_sums all = {s->dot[i], s->target_sq[i], s->source_sq[i], s->count[i]};
        t->count[base + i] = s->count[i];
        EXF_TRY(solve_pair(&all, o, layer, i, e, &t->coeff[base + i], &t->loss[base + i], err));
        for (int half = 0; t->half_loss[0] && half < 2; half++) {
            pair_sums part = sums_of_half(s, half, i);
            EXF_TRY(solve_pair(&part, o, layer, i, e, &t->half_scalar[half][base + i], &t->half_loss[half][base + i], err));
        }
    }
out:
    return rc;
}

const exf_projector exf_projector_pair = {EXF_PROJECTOR_PAIR, .layer = solve_layer};

/* geometry.c - see geometry.h. */
#include "inspect/geometry.h"

#include "artifact/tables.h"

#include <math.h>

typedef struct {
    double n, dot, source_sq, target_sq;
} pair;

static pair sums_of(const exf_layer_statistics *s, size_t source, size_t target)
{
    size_t e = (size_t)s->n_experts, at = source * e + target, mirror = target * e + source;
    return (pair){(double)s->count[at], exf_exact_value(&s->dot0[at]), exf_exact_value(&s->sq0[at]),
                  exf_exact_value(&s->sq0[mirror])};
}

static double raw_distance(const pair *p)
{
    double sq = p->source_sq - 2 * p->dot + p->target_sq;
    return sq > 0 ? sqrt(sq / p->n) : 0;
}

/* Returns the norm of what is left of a when one scalar times b explains it as well as can be. */
static double rest(double a_sq, double b_sq, double dot, double n)
{
    double sq = b_sq > 0 ? a_sq - dot * dot / b_sq : a_sq;
    return sq > 0 ? sqrt(sq / n) : 0;
}

static double aligned_distance(const pair *p)
{
    double mean = (rest(p->source_sq, p->target_sq, p->dot, p->n) + rest(p->target_sq, p->source_sq, p->dot, p->n)) / 2;
    double raw = raw_distance(p); /* the minimum is never above, but for the last bit */
    return mean < raw ? mean : raw;
}

static int observed(const exf_layer_statistics *s, const float *loss, size_t at)
{
    return s->count[at] > 0 && (!loss || loss[at] < EXF_LOSS_NEVER);
}

void exf_geometry(const exf_layer_statistics *s, const float *loss, float *raw, float *aligned)
{
    size_t e = (size_t)s->n_experts;
    double farthest = 0;
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < a; b++) {
            pair p = sums_of(s, a, b);
            if (observed(s, loss, a * e + b) && raw_distance(&p) > farthest) farthest = raw_distance(&p);
        }
    for (size_t a = 0; a < e; a++) {
        raw[a * e + a] = aligned[a * e + a] = 1;
        for (size_t b = 0; b < a; b++) {
            pair p = sums_of(s, a, b);
            int seen = observed(s, loss, a * e + b);
            double scale = farthest > 0 ? 1 / farthest : 0;
            raw[a * e + b] = raw[b * e + a] = seen ? (float)(1 - raw_distance(&p) * scale) : NAN;
            aligned[a * e + b] = aligned[b * e + a] = seen ? (float)(1 - aligned_distance(&p) * scale) : NAN;
        }
    }
}

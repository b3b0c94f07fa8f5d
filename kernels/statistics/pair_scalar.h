/* pair_scalar.h - computes a pair's scalar in closed form (docs/method.md, section 2; paper, eq. "shared scalar"):
 *
 *   S = clip(dot / (target_sq + lambda)), 0 where there is nothing to divide by
 *
 * It is a kernel because both the second sweep of accumulate and solve use it. */
#ifndef EXF_KERNELS_PAIR_SCALAR_H
#define EXF_KERNELS_PAIR_SCALAR_H

typedef struct {
    double ridge; /* lambda >= 0 */
    int clip;     /* 0: not clipped, the limits mean nothing */
    double clip_min, clip_max;
} exf_scalar_rule;

static inline double exf_pair_scalar(const exf_scalar_rule *r, double dot, double target_sq)
{
    double divisor = target_sq + r->ridge, s = divisor > 0 ? dot / divisor : 0;
    if (!r->clip) return s;
    return s < r->clip_min ? r->clip_min : s > r->clip_max ? r->clip_max : s;
}
#endif

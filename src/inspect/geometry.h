/* geometry.h - computes the similarity of two experts' outputs, raw and after the pair's best
 * scalar (docs/method.md, section 5; paper, "Full-Layer Expert Geometry").
 *
 * With u, v the outputs of s and t on the n tokens that were routed to both,
 *   d[s,t] = sqrt(sum ||u - v||^2 / n),          raw     = 1 - d[s,t] / dmax
 *   a[s,t] = sqrt(min_S sum ||u - S v||^2 / n),  aligned = 1 - (a[s,t] + a[t,s]) / 2 dmax
 * and dmax the layer's largest d.  Unweighted sums dot0 and sq0, in double; aligned is
 * never below raw. */
#ifndef EXF_INSPECT_GEOMETRY_H
#define EXF_INSPECT_GEOMETRY_H
#include "artifact/statistics.h"

/* Both [E, E], symmetric; 1 on the diagonal, NaN where the pair was never observed.  loss:
 * the layer's [E, E] of the tables, which may ask for more tokens of a pair than one; NULL:
 * one is enough. */
void exf_geometry(const exf_layer_statistics *s, const float *loss, float *raw, float *aligned);
#endif

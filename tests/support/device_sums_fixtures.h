/* device_sums_fixtures.h - a layer's sums as a device has them against the CPU's. */
#ifndef EXF_TESTS_DEVICE_SUMS_FIXTURES_H
#define EXF_TESTS_DEVICE_SUMS_FIXTURES_H
#include "tests/support/layer_sums_fixtures.h"

#include <math.h>
#include <string.h>

/* Counts are equal; sums to the bit with bound 0, else within it; cosines within the larger of bound and cosine_bound, a token. */
static inline void compare_sums(const exf_layer_statistics *a, const exf_layer_statistics *b, double bound, double cosine_bound,
                                const char *what)
{
    size_t pairs = (size_t)(a->n_experts * a->n_experts), experts = (size_t)a->n_experts;
#define PAIR(name) {a->name, b->name, #name, pairs},
#define EXPERT(name) {a->name, b->name, #name, experts},
    const struct { const exf_exact *a, *b; const char *name; size_t n; } all[] = {
        PAIR(dot) PAIR(target_sq) PAIR(source_sq) PAIR(dot0) PAIR(sq0) PAIR(cosine_sum)
        EXPERT(norm_sum) EXPERT(sq_sum) EXPERT(route_weight_sum) EXPERT(contribution_sum) EXPERT(energy_sum)};
#undef PAIR
#undef EXPERT
    ck_assert_msg(memcmp(a->count, b->count, pairs * 8) == 0 && memcmp(a->norm_count, b->norm_count, experts * 8) == 0 &&
                      *a->empty_slots == *b->empty_slots,
                  "%s: counts differ", what);
    for (size_t s = 0; s < sizeof all / sizeof *all; s++)
        for (size_t i = 0; i < all[s].n; i++) {
            double x = exf_exact_value(&all[s].a[i]), y = exf_exact_value(&all[s].b[i]);
            /* an inner product may be far below the norms that bound its error */
            size_t mirrored = s < 6 ? i % experts * experts + i / experts : 0;
            double scale = s == 0 ? exf_exact_value(&a->target_sq[i]) + exf_exact_value(&a->source_sq[i])
                                  : s == 3 ? exf_exact_value(&a->sq0[i]) + exf_exact_value(&a->sq0[mirrored])
                                  : s == 5 ? (double)a->count[i] : 0;
            int same = memcmp(&all[s].a[i], &all[s].b[i], sizeof(exf_exact)) == 0;
            double within = s == 5 ? fmax(bound, cosine_bound) : bound;
            ck_assert_msg(within > 0 ? fabs(x - y) <= within * (scale + fabs(x)) : same, "%s: %s[%zu]: cpu %.17g, cuda %.17g", what,
                          all[s].name, i, x, y);
        }
}
#endif

/* best_pools.h - of variants that differ in the criterion of their static pool alone, finds the best. */
#ifndef EXF_VALIDATE_BEST_POOLS_H
#define EXF_VALIDATE_BEST_POOLS_H
#include "validate/validate.h"

/* Writes to best [n_variants] the numbers of the variants with static pools that have the least KL among at least
 * two that differ from them in `by` alone, in the order of the variants; ties to the earlier.  Returns how many. */
size_t exf_best_pools(size_t *best, const exf_validation *v);
/* Returns 1 if the two variants differ in nothing but the criterion of their static pool. */
int exf_same_but_pool(const exf_variant_result *a, const exf_variant_result *b);
/* Returns the criterion of a variant's static pool; "" if it has none. */
const char *exf_pool_criterion_of(const exf_variant_result *r);
#endif

/* frontier.h - judges a validation: makes variants over a grid of P and D, and marks those that no other variant beats in cost and
 * KL at once, the noise of the KL considered. */
#ifndef EXF_VALIDATE_FRONTIER_H
#define EXF_VALIDATE_FRONTIER_H
#include "fold/runtime.h"
#include "validate/validate.h"

/* Lists P = 1..K-1 and D = E/8, E/4, 3E/8, E/2, 3E/4 (those from K on), each with pair scalars and,
 * if the tables have the arrays for it, with joint weights, and D with stand-ins by the router; the budgets
 * per token of the tables; their static pools where a size has several criteria; and combinations of middle
 * budgets.  Of these a runtime (NULL: none) leaves out what it does not run.  The caller frees *out. */
exf_code exf_frontier_variants(exf_variant **out, size_t *n, const exf_architecture *a, const exf_tables *t,
                               const exf_runtime *runtime, exf_err *err) EXF_CHECKED;
/* Sets on[i] = 1 if no other variant beats variant i: none that has at most its experts per token and per batch
 * and a KL that is lower beyond the noise, which is two standard errors of the difference.  Where KLs have
 * no noise, as low a KL at a lower cost beats too. */
void exf_frontier_mark(unsigned char *on, const exf_validation *v);
/* Writes the variants that are worth their experts per token, or per batch, by rising cost to line [n_variants]
 * and returns how many: the cheapest one, then each time the cheapest of those whose KL is lower beyond the
 * noise.  A KL of 0 is left out: it has no place on a logarithmic axis. */
size_t exf_frontier_line(size_t *line, const exf_validation *v, int per_batch);
/* Returns the variant of least experts per token, or per batch, among those of KL at most `limit`,
 * ties to the lower KL; 0, the original, if none is cheaper. */
size_t exf_frontier_cheapest(const exf_validation *v, double limit, int per_batch);

/* Of variants that differ in the criterion of their static pool alone, finds the best. */

/* Writes to best [n_variants] the numbers of the variants with static pools that have the least KL among at least
 * two that differ from them in `by` alone, in the order of the variants; ties to the earlier.  Returns how many. */
size_t exf_best_pools(size_t *best, const exf_validation *v);
/* Returns 1 if the two variants differ in nothing but the criterion of their static pool. */
int exf_same_but_pool(const exf_variant_result *a, const exf_variant_result *b);
/* Returns the criterion of a variant's static pool; "" if it has none. */
const char *exf_pool_criterion_of(const exf_variant_result *r);

#endif

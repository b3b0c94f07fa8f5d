/* frontier.h - finds the quality-cost frontier: makes variants over a grid of P and D, and marks those
 * that no other variant beats in cost and KL at once. */
#ifndef EXF_VALIDATE_FRONTIER_H
#define EXF_VALIDATE_FRONTIER_H
#include "validate/validate.h"

/* Lists P = 1..K-1 and D = E/8, E/4, 3E/8, E/2, 3E/4 (those from K on), each with pair scalars and,
 * if the tables have the arrays for it, with joint weights; and combinations of middle budgets.  The
 * caller frees *out. */
exf_code exf_frontier_variants(exf_variant **out, size_t *n, const exf_architecture *a, const exf_tables *t,
                               exf_err *err) EXF_CHECKED;
/* Sets on[i] = 1 if no other variant has KL, experts per token and experts per batch all at most i's
 * and one of them below. */
void exf_frontier_mark(unsigned char *on, const exf_validation *v);
/* Returns the variant of least experts per token, or per batch, among those of KL at most `limit`,
 * ties to the lower KL; 0, the original, if none is cheaper. */
size_t exf_frontier_cheapest(const exf_validation *v, double limit, int per_batch);
#endif

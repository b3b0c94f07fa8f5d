/* uncertainty.h - differences of two variants of a validation, with their noise.
 *
 * Both scored the same tokens, and what is hard for one is hard for the other: the sums over clusters of one less those of the
 * other have a mostly much smaller error than either's (cluster_mean.h).  This paired difference is what decides. */
#ifndef EXF_VALIDATE_UNCERTAINTY_H
#define EXF_VALIDATE_UNCERTAINTY_H
#include "validate/cluster_mean.h"
#include "validate/validate.h"

/* Return the mean by token of variant i's KL, or negative log-likelihood, minus variant j's.  The latter is the difference of the
 * logarithms of their perplexities. */
exf_difference exf_kl_difference(const exf_validation *v, size_t i, size_t j);
exf_difference exf_log_ppl_difference(const exf_validation *v, size_t i, size_t j);
/* Returns 1 if the interval does not hold 0; 0 where nothing is known. */
int exf_beyond_noise(const exf_difference *d);
#endif

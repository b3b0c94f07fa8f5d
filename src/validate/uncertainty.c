/* uncertainty.c - paired differences of variants; see uncertainty.h. */
#include "validate/uncertainty.h"

#include <math.h>

exf_difference exf_kl_difference(const exf_validation *v, size_t i, size_t j)
{
    return exf_cluster_mean(&(exf_cluster_sums){
        .sum = v->variant[i].kl, .less = v->variant[j].kl, .tokens = v->cluster_tokens, .n = v->n_clusters});
}

exf_difference exf_log_ppl_difference(const exf_validation *v, size_t i, size_t j)
{
    return exf_cluster_mean(&(exf_cluster_sums){
        .sum = v->variant[i].nll, .less = v->variant[j].nll, .tokens = v->cluster_tokens, .n = v->n_clusters});
}

int exf_beyond_noise(const exf_difference *d)
{
    return fabs(d->mean) > d->half_width;
}

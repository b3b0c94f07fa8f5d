/* validate_clusters.c - what a validation takes as independent of one another, and what follows from it: standard errors, and the
 * noise of paired differences; see validate.h. */
#include "validate/validate.h"

#include "base/mem.h"

#include <math.h>

/* ---- clusters ------------------------------------------------------------------------------------- */

exf_code exf_find_clusters(exf_validation *out, const exf_batch *whole, const int64_t *document, const int32_t *domain_of,
                           size_t *cluster_of, exf_err *err)
{
    size_t n = whole->n_sequences;
    exf_code rc;
    out->clusters_are_documents = document && n && document[n - 1] != document[0];
    for (size_t i = 0; i < n; i++) {
        out->n_clusters += i == 0 || !out->clusters_are_documents || document[i] != document[i - 1];
        cluster_of[i] = out->n_clusters - 1;
    }
    EXF_TRY(exf_mem_new(&out->cluster_tokens, out->n_clusters, sizeof *out->cluster_tokens, "results", err));
    EXF_TRY(exf_mem_new(&out->cluster_domain, out->n_clusters, sizeof *out->cluster_domain, "results", err));
    for (size_t i = 0; i < n; i++) {
        out->cluster_tokens[cluster_of[i]] += (uint64_t)whole->span[i].n_tokens - 1;
        out->cluster_domain[cluster_of[i]] = domain_of[i];
    }
out:
    return rc;
}

/* ---- standard errors ------------------------------------------------------------------------------ */

/* A perplexity is e^m of the mean negative log-likelihood m, and its error e^m times that of m. */
static void set_errors(exf_quality *q, const exf_validation *v, const exf_variant_result *r, const int32_t *group, int which)
{
    exf_cluster_sums nll = {.sum = r->nll, .tokens = v->cluster_tokens, .group = group, .which = which, .n = v->n_clusters};
    exf_cluster_sums kl = nll;
    kl.sum = r->kl;
    q->ppl_se = q->ppl * exf_cluster_mean(&nll).se;
    q->kl_se = exf_cluster_mean(&kl).se;
}

void exf_set_standard_errors(const exf_validation *v, exf_variant_result *r)
{
    set_errors(&r->all, v, r, NULL, 0);
    for (size_t d = 0; d < v->n_domains; d++) set_errors(&r->domain[d], v, r, v->cluster_domain, (int)d);
}

/* ---- paired differences --------------------------------------------------------------------------- */

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

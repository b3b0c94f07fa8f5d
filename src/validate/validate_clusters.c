/* validate_clusters.c - what a validation takes as independent of one another, and what follows from it: standard errors, and the
 * noise of paired differences; see validate.h. */
#include "validate/validate.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

/* ---- clusters ------------------------------------------------------------------------------------- */

/* A sequence by its document. */
typedef struct {
    int64_t document;
    int32_t domain;
    size_t sequence;
} member;

static int by_document(const void *a, const void *b)
{
    const member *x = a, *y = b;
    if (x->document != y->document) return x->document < y->document ? -1 : 1;
    if (x->domain != y->domain) return x->domain < y->domain ? -1 : 1;
    return (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

/* Sets cluster_of [n] to the first sequence of each sequence's document. */
static exf_code find_first(size_t *cluster_of, const exf_validate_job *job, size_t n, exf_err *err)
{
    member *all = NULL;
    exf_code rc = exf_mem_new(&all, n, sizeof *all, "clusters", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) all[i] = (member){job->document_of[i], job->domain_of[i], i};
    qsort(all, n, sizeof *all, by_document);
    for (size_t i = 0; i < n; i++) {
        int goes_on = i && all[i].document == all[i - 1].document && all[i].domain == all[i - 1].domain;
        cluster_of[all[i].sequence] = goes_on ? cluster_of[all[i - 1].sequence] : all[i].sequence;
    }
    exf_mem_free(all);
    return EXF_OK;
}

/* Returns 1 where documents are known, and the text is not one alone: of that its sequences are taken. */
static int by_documents(const exf_validate_job *job, size_t n)
{
    size_t i = 1;
    if (!job->document_of) return 0;
    while (i < n && job->document_of[i] == job->document_of[0]) i++;
    return i < n || job->near_copies > 0;
}

exf_code exf_find_clusters(exf_validation *out, const exf_validate_job *job, size_t *cluster_of, exf_err *err)
{
    const exf_batch *whole = job->whole ? job->whole : job->batch;
    size_t n = whole->n_sequences;
    exf_code rc;
    for (size_t i = 0; i < n; i++) cluster_of[i] = i;
    out->near_copies = job->near_copies;
    out->clusters_are_documents = by_documents(job, n);
    if (out->clusters_are_documents) EXF_TRY(find_first(cluster_of, job, n, err));
    for (size_t i = 0; i < n; i++) cluster_of[i] = cluster_of[i] == i ? out->n_clusters++ : cluster_of[cluster_of[i]];
    EXF_TRY(exf_mem_new(&out->cluster_tokens, out->n_clusters, sizeof *out->cluster_tokens, "results", err));
    EXF_TRY(exf_mem_new(&out->cluster_domain, out->n_clusters, sizeof *out->cluster_domain, "results", err));
    for (size_t i = 0; i < n; i++) {
        out->cluster_tokens[cluster_of[i]] += (uint64_t)whole->span[i].n_tokens - 1;
        out->cluster_domain[cluster_of[i]] = job->domain_of[i];
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

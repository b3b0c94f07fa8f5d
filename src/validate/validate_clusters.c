/* validate_clusters.c - what a validation takes as independent of one another, and what follows from it: standard errors, and the
 * noise of paired differences; which rows its decode batches constrain as those of serving would; see validate.h. */
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

exf_code exf_find_clusters(exf_validation *out, const exf_validate_job *job, size_t *cluster_of, exf_err *err)
{
    const exf_batch *whole = job->whole ? job->whole : job->batch;
    size_t n = whole->n_sequences, alike = 1; /* sequences at the beginning that are of one document */
    exf_code rc;
    for (size_t i = 0; i < n; i++) cluster_of[i] = i;
    while (job->document_of && alike < n && job->document_of[alike] == job->document_of[0]) alike++;
    out->near_copies = job->near_copies;
    out->clusters_are_documents = job->document_of && (alike < n || job->near_copies > 0);
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
void exf_set_standard_errors(const exf_validation *v, exf_variant_result *r)
{
    for (int d = -1; d < (int)v->n_domains; d++) { /* -1: all tokens */
        exf_quality *q = d < 0 ? &r->all : &r->domain[d];
        exf_cluster_sums sums = {.sum = r->nll, .tokens = v->cluster_tokens, .group = d < 0 ? NULL : v->cluster_domain, .which = d,
                                 .n = v->n_clusters};
        q->ppl_se = q->ppl * exf_cluster_mean(&sums).se;
        sums.sum = r->kl;
        q->kl_se = exf_cluster_mean(&sums).se;
    }
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

/* ---- decode batches: whether they constrain, and where they end -------------------------------------- */

exf_constraint exf_constraint_of(const exf_variant *v, const exf_batch_size *b)
{
    if (v->decode != EXF_DECODE_DYNAMIC && v->decode != EXF_DECODE_SERE) return EXF_CONSTRAINED;
    if (b->experts <= v->decode_options.pool) return EXF_FEW_EXPERTS;
    return 4 * b->width < 3 * b->size ? EXF_SHORT_BATCHES : EXF_CONSTRAINED;
}

void exf_constraint_advice(exf_text *out, const exf_validation *v, const exf_variant_result *r)
{
    const exf_batch_size *b = &v->batch_size[r->batch];
    int is_short = 4 * b->width < 3 * b->size;
    if (r->constraint == EXF_CONSTRAINED) return;
    exf_text_appendf(out, "the original runs %.1f experts in decode batches of %d that are %.1f sequences wide", b->experts,
                     b->size, b->width);
    if (is_short)
        exf_text_appendf(out, "; give more sequences (%d and up, of like lengths), or --set validate.decode_batch=%d", b->size,
                         b->width < 2 ? 1 : (int)b->width);
    else
        exf_text_appendf(out, ", no more than its pool; validate a smaller D, or raise validate.decode_batch as it is served");
}

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void exf_batches_group(size_t *group_of, size_t n, const int64_t *size, size_t n_sizes)
{
    int64_t all = 1;
    for (size_t i = 0; i < n_sizes; i++) {
        all = all / greatest_divisor(all, size[i]) * size[i];
        if ((uint64_t)all >= n) all = n ? (int64_t)n : 1; /* one group */
    }
    for (size_t i = 0; i < n; i++) group_of[i] = i / (size_t)all;
}

/* validate.h - runs the original model and every variant in one pass over the weights and
 * compares them.
 *
 * The first lane is the original model; each variant is a lane with its rewriter, scored
 * against the first lane (scores.h). */
#ifndef EXF_VALIDATE_VALIDATE_H
#define EXF_VALIDATE_VALIDATE_H
#include "base/text.h"
#include "fold/fold_rewriter.h"
#include "pass/forward.h"
#include "validate/cluster_mean.h"
#include "validate/scores.h"

typedef struct {
    int layer;             /* the model's number */
    double output_error;   /* ||y^ - y|| / ||y|| of the routed output on the original's hidden states */
    double experts_per_token, experts_per_batch; /* executed experts, distinct experts: averages */
} exf_layer_result;

/* What a lane is for. */
typedef enum {
    EXF_LANE_ORIGINAL,
    EXF_LANE_ASKED,
    EXF_LANE_BASELINE, /* what tables are measured against; runs beside those that were asked for */
    EXF_LANE_HALF      /* by the tables of one half of the calibration */
} exf_lane_role;

/* Why a decode fold's figures say nothing about serving. */
typedef enum {
    EXF_CONSTRAINED,  /* they do */
    EXF_FEW_EXPERTS,  /* the original's batches run no more than D experts */
    EXF_SHORT_BATCHES /* batches are narrower than was asked for */
} exf_constraint;

/* Decode batches of one size. */
typedef struct {
    int size;       /* sequences side by side that were asked for */
    double width;   /* those that a decode token has: the sum of squares of steps' widths over the sum of widths */
    double experts; /* distinct experts of a step of the original, mean over MoE layers */
    double *layer_experts; /* [n_layers] the same of each; NULL: not counted */
} exf_batch_size;

typedef struct {
    char name[EXF_VARIANT_NAME_LEN];
    exf_lane_role role;
    int batch;                 /* index in exf_validation.batch_size of the batches that it decodes in; 0 if it folds no decode */
    exf_constraint constraint; /* CONSTRAINED if it folds no decode */
    double *nll, *kl;          /* [n_clusters] sums over the cluster's scored tokens */
    exf_quality all;
    exf_quality *domain;       /* [n_domains] */
    exf_layer_result *layer; /* [n_layers] MoE layers */
    double output_error;     /* root of the mean square over layers */
    double experts_per_token, experts_per_batch; /* mean over layers */
} exf_variant_result;

typedef struct {
    exf_variant_result *variant; /* the first is "original" */
    size_t n_variants, n_domains;
    int n_layers;
    exf_batch_size *batch_size; /* [n_batch_sizes] */
    int n_batch_sizes;
    size_t n_clusters;        /* tokens of a cluster are taken as dependent, clusters as independent (cluster_mean.h) */
    uint64_t near_copies;       /* documents that are near copies of others: groups of them are a cluster each */
    int clusters_are_documents; /* 0: clusters are sequences, since documents are not known or the run has one alone */
    uint64_t *cluster_tokens; /* [n_clusters] scored tokens */
    int32_t *cluster_domain;  /* [n_clusters] */
    exf_forward_report report;
    double one_flops;  /* floating-point operations of one forward pass; report.flops has those of all lanes */
} exf_validation;

/* A lane beside the original. */
typedef struct {
    exf_variant variant;
    exf_lane_role role;
    int batch;                /* index of the schedule that it decodes by, and is counted by; 0 if it folds no decode */
    const exf_tables *tables;
} exf_validate_lane;

typedef struct {
    const exf_model *model;
    const exf_batch *batch;   /* of several ranks (forward.ranks) this one's part of `whole`, which ends between decode batches */
    const exf_batch *whole;   /* NULL: the batch */
    const int32_t *domain_of; /* [n_sequences] of the whole */
    size_t n_domains;
    const int64_t *document_of; /* [n_sequences] of the whole: near copies have one number; NULL: documents are not known */
    uint64_t near_copies;       /* documents that are near copies of others (exf_corpus) */
    const exf_decode_schedule *schedule; /* [n_schedules] of decode batches of each size */
    int n_schedules;
    const exf_validate_lane *lanes;
    size_t n_lanes;
    int no_layer_errors; /* 1: runs no probes, and every output_error is 0 */
    exf_forward_options forward;
} exf_validate_job;

/* Runs the validation.  With ranks it is collective; only rank 0 has results, and out->n_variants is 0 on the others. */
exf_code exf_validate(exf_validation *out, const exf_validate_job *job, exf_err *err) EXF_CHECKED;
void exf_validation_free(exf_validation *v);
/* Computes the requirements of a validation on its forward pass, for a plan; refuses variants for which the tables
 * lack something. */
exf_code exf_validate_demand(exf_demand *d, const exf_validate_job *job, exf_err *err) EXF_CHECKED;
/* Runs the pass of a validation and scores it, for what the report says of its speed; the numbers are dropped. */
exf_code exf_validate_sample(const exf_validate_job *job, exf_forward_report *report, exf_err *err) EXF_CHECKED;
/* Returns the bytes that a validation holds beside the pass. */
uint64_t exf_validate_memory(const exf_validate_job *job, int n_workers);

/* ---- clusters (validate_clusters.c) ------------------------------------------------------------------ */

/* Finds the clusters: the documents of job->document_of, parted by domain, or the sequences where it is NULL or has one number
 * alone that is no group of near copies.  Fills the members of *out that are about them, and cluster_of [n_sequences], in order of
 * first appearance. */
exf_code exf_find_clusters(exf_validation *out, const exf_validate_job *job, size_t *cluster_of, exf_err *err) EXF_CHECKED;
/* Sets the standard errors of a result, of all tokens and by domain, from its sums over clusters. */
void exf_set_standard_errors(const exf_validation *v, exf_variant_result *r);

/* Variants scored the same tokens, and what is hard for one is hard for the other: the sums over clusters of one less those of the
 * other have a mostly much smaller error than either's (cluster_mean.h).  This paired difference is what decides. */

/* Return the mean by token of variant i's KL, or negative log-likelihood, minus variant j's.  The latter is the difference of the
 * logarithms of their perplexities. */
exf_difference exf_kl_difference(const exf_validation *v, size_t i, size_t j);
exf_difference exf_log_ppl_difference(const exf_validation *v, size_t i, size_t j);
/* Returns 1 if the interval does not hold 0; 0 where nothing is known. */
int exf_beyond_noise(const exf_difference *d);

/* ---- decode batches (validate_clusters.c) ------------------------------------------------------------------
 *
 * A pool of D is a budget of a batch.  Where the original's batches run no more than D experts anyhow, or fewer sequences stand
 * side by side than was asked for, a small KL says nothing of a batch as it is served. */

/* Returns whether decode batches constrain a variant: a dynamic pool, and sere, only if the original's run more experts than
 * its D and their width is at least 3/4 of the size; any other always. */
exf_constraint exf_constraint_of(const exf_variant *v, const exf_batch_size *b);
/* Appends the figures by which a result is not constrained, and what to do: "the original runs 6.7 experts in decode ...". */
void exf_constraint_advice(exf_text *out, const exf_validation *v, const exf_variant_result *r);
/* Fills group_of [n] with numbers that rise where batches of all sizes end, so that parts of a run have whole batches. */
void exf_batches_group(size_t *group_of, size_t n, const int64_t *size, size_t n_sizes);
#endif

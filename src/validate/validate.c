/* validate.c - runs the original and all variants as lanes of one pass: their observers, the record by which the pass can be
 * resumed, and the results. */
#include "validate/validate.h"

#include "artifact/provenance.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/backend.h"
#include "pass/resume.h"
#include "ranks/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct run;

/* A lane with its observers. */
typedef struct {
    struct run *run;
    exf_fold_rewriter *rewriter;
    exf_observer observer;
    exf_layer_errors errors; /* not of the first lane */
    exf_scores *scores;
    void *score_lane;
    int is_first, n_layers;
} observed_lane;

typedef struct run {
    const exf_validate_job *job;
    observed_lane *lane;
    exf_lane *lanes;
    size_t n;
    exf_scores *scores;
} run;

/* ---- what the lanes have counted so far ------------------------------------------------ */

#define RECORD "lanes"
enum { N_ARRAYS = 4 };

/* The numbers of all lanes in the first n MoE layers: the record lanes-<l> of the run's resume point, l the last layer done,
 * with error_sq and norm_sq U64 [lanes, n, 3], exact sums (scores.h), and the members of exf_expert_usage: usage U64 [lanes, n, 4]
 * by each lane's own decode batches, and original U64 [sizes, n, 4], the original's by those of every size. */
typedef struct {
    int n;
    exf_exact *error_sq, *norm_sq; /* [lanes, n] */
    exf_expert_usage *usage;       /* [lanes, n] */
    exf_expert_usage *original;    /* [sizes, n] */
    exf_tensor array[N_ARRAYS];
} record;

static exf_code new_record(record *k, const run *r, int n, exf_err *err)
{
    exf_code rc;
    size_t all;
    int64_t lanes = (int64_t)r->n, sizes = r->job->n_schedules;
    *k = (record){.n = n};
    EXF_TRY(exf_mem_mul(&all, r->n, (size_t)n, "lanes", err));
    EXF_TRY(exf_mem_new(&k->error_sq, all, sizeof *k->error_sq, "lanes", err));
    EXF_TRY(exf_mem_new(&k->norm_sq, all, sizeof *k->norm_sq, "lanes", err));
    EXF_TRY(exf_mem_new(&k->usage, all, sizeof *k->usage, "lanes", err));
    EXF_TRY(exf_mem_new(&k->original, (size_t)(sizes * n), sizeof *k->original, "lanes", err));
    k->array[0] = (exf_tensor){.name = "error_sq", .dtype = EXF_DT_U64, .rank = 3, .shape = {lanes, n, 3}, .data = k->error_sq};
    k->array[1] = (exf_tensor){.name = "norm_sq", .dtype = EXF_DT_U64, .rank = 3, .shape = {lanes, n, 3}, .data = k->norm_sq};
    k->array[2] = (exf_tensor){.name = "usage", .dtype = EXF_DT_U64, .rank = 3, .shape = {lanes, n, 4}, .data = k->usage};
    k->array[3] =
        (exf_tensor){.name = "original", .dtype = EXF_DT_U64, .rank = 3, .shape = {sizes, n, 4}, .data = k->original};
out:
    return rc;
}

static void free_record(record *k)
{
    exf_mem_free(k->error_sq);
    exf_mem_free(k->norm_sq);
    exf_mem_free(k->usage);
    exf_mem_free(k->original);
}

/* Returns how many of the first `done` layers are MoE layers. */
static int count_moe_layers(const run *r, int done)
{
    int n = 0;
    for (int l = 0; l < done; l++) n += r->job->model->arch.is_moe[l];
    return n;
}

/* Returns what the original has counted by the batches of size i. */
static const exf_expert_usage *original_usage(const run *r, int i)
{
    return exf_fold_rewriter_usage(r->lane[0].rewriter) + i * r->job->model->arch.n_moe_layers;
}

/* Makes the record of all lanes; on rank 0 that of all ranks. */
static exf_code collect_record(record *k, const run *r, int n, exf_err *err)
{
    exf_code rc;
    EXF_TRY(new_record(k, r, n, err));
    for (int i = 0; i < r->job->n_schedules; i++)
        memcpy(&k->original[i * n], original_usage(r, i), (size_t)n * sizeof *k->original);
    for (size_t i = 0; i < r->n; i++) {
        size_t at = i * (size_t)n;
        memcpy(&k->usage[at], exf_fold_rewriter_usage(r->lane[i].rewriter), (size_t)n * sizeof *k->usage);
        if (i) exf_layer_errors_sums(&r->lane[i].errors, n, &k->error_sq[at], &k->norm_sq[at]);
    }
    enum { WORDS = sizeof *k->usage / sizeof(uint64_t) };
    size_t all = r->n * (size_t)n, sizes = (size_t)(r->job->n_schedules * n);
    exf_ranks_array list[] = {{k->error_sq, all, EXF_RANKS_EXACT}, {k->norm_sq, all, EXF_RANKS_EXACT},
                              {k->usage, all * WORDS, EXF_RANKS_U64}, {k->original, sizes * WORDS, EXF_RANKS_U64}};
    rc = exf_ranks_sum(r->job->forward.ranks, list, sizeof list / sizeof *list, err);
out:
    return rc;
}

/* Sets the counts and errors of all lanes to those of the record. */
static void apply_record(run *r, const record *k)
{
    for (int i = 0; i < r->job->n_schedules; i++)
        exf_fold_rewriter_set_usage(r->lane[0].rewriter, i, &k->original[i * k->n], k->n);
    for (size_t i = 0; i < r->n; i++) {
        size_t at = i * (size_t)k->n;
        if (i) exf_fold_rewriter_set_usage(r->lane[i].rewriter, 0, &k->usage[at], k->n);
        if (i) exf_layer_errors_set(&r->lane[i].errors, k->n, &k->error_sq[at], &k->norm_sq[at]);
    }
}

/* Writes the record to the resume point: the observer's `settle`. */
static exf_code write_record(void *self, int done, exf_err *err)
{
    const run *r = ((observed_lane *)self)->run;
    record k;
    exf_code rc;
    EXF_TRY(collect_record(&k, r, count_moe_layers(r, done), err));
    EXF_TRY(exf_resume_put(r->job->forward.resume, RECORD, done - 1, k.array, N_ARRAYS, err));
out:
    free_record(&k);
    return rc;
}

/* Reads the record of the layers that the resume point has done. */
static exf_code read_record(run *r, exf_err *err)
{
    exf_resume *resume = r->job->forward.resume;
    int done = resume ? exf_resume_start(resume)->layers_done : 0;
    exf_st_file *f = NULL;
    record k;
    exf_code rc;
    if (!done || !exf_ranks_first(r->job->forward.ranks)) return EXF_OK; /* the record has all ranks' */
    EXF_TRY(new_record(&k, r, count_moe_layers(r, done), err));
    EXF_TRY(exf_resume_get(resume, RECORD, done - 1, &f, err));
    EXF_TRY(exf_resume_read(f, &k.array[0], k.error_sq, err));
    EXF_TRY(exf_resume_read(f, &k.array[1], k.norm_sq, err));
    EXF_TRY(exf_resume_read(f, &k.array[2], k.usage, err));
    EXF_TRY(exf_resume_read(f, &k.array[3], k.original, err));
    apply_record(r, &k);
out:
    exf_st_close(f);
    free_record(&k);
    return rc;
}

/* ---- observing ------------------------------------------------------------------------ */

static exf_code begin_lane(void *self, int n_workers, const exf_backend *gpu, exf_err *err)
{
    observed_lane *w = self;
    exf_code rc;
    if (w->is_first) return exf_scores_begin(w->scores, n_workers, gpu, err);
    EXF_TRY(exf_layer_errors_begin(&w->errors, w->n_layers, n_workers, gpu, err));
    if (w == &w->run->lane[w->run->n - 1]) EXF_TRY(read_record(w->run, err)); /* all lanes have begun */
out:
    return rc;
}

static exf_code add_probe(void *self, const exf_probe_block *b, exf_err *err)
{
    return exf_layer_errors_add(&((observed_lane *)self)->errors, b, err);
}

static exf_code score_logits(void *self, const exf_logits_block *b, exf_err *err)
{
    return exf_scores_logits(((observed_lane *)self)->score_lane, b, err);
}

static exf_code read_errors(void *self, const exf_moment *m, exf_err *err)
{
    return exf_layer_errors_at(&((observed_lane *)self)->errors, m, err);
}

static exf_code open_lane(run *r, size_t i, exf_err *err)
{
    const exf_validate_job *job = r->job;
    observed_lane *w = &r->lane[i];
    exf_code rc;
    w->run = r;
    w->is_first = i == 0;
    w->n_layers = job->model->arch.n_moe_layers;
    w->scores = r->scores;
    w->score_lane = exf_scores_lane(r->scores, i);
    int probes = i > 0 && !job->no_layer_errors;
    w->observer = (exf_observer){.self = w, .reads_device = 1, .begin = begin_lane, .at = read_errors,
                                 .probe = probes ? add_probe : NULL, .logits = score_logits, .settle = i ? NULL : write_record};
    const exf_validate_lane *lane = i ? &job->lanes[i - 1] : NULL;
    EXF_TRY(exf_fold_rewriter_new(&w->rewriter, lane ? &lane->variant : NULL, lane ? lane->tables : NULL, &job->model->arch,
                                  &job->schedule[lane ? lane->batch : 0], err));
    if (!lane) EXF_TRY(exf_fold_rewriter_count(w->rewriter, job->schedule, job->n_schedules, err));
    r->lanes[i] = (exf_lane){.rewriter = exf_fold_rewriter_callbacks(w->rewriter), .observer = &w->observer};
out:
    return rc;
}

static exf_code open_run(run *r, exf_err *err)
{
    exf_code rc;
    r->n = r->job->n_lanes + 1;
    EXF_TRY(exf_mem_new(&r->lane, r->n, sizeof *r->lane, "lanes", err));
    EXF_TRY(exf_mem_new(&r->lanes, r->n, sizeof *r->lanes, "lanes", err));
    EXF_TRY(exf_scores_new(&r->scores, r->job->batch, r->n, r->job->model->arch.vocab, err));
    for (size_t i = 0; i < r->n; i++) EXF_TRY(open_lane(r, i, err));
out:
    return rc;
}

static void close_run(run *r)
{
    for (size_t i = 0; r->lane && i < r->n; i++) {
        exf_fold_rewriter_free(r->lane[i].rewriter);
        exf_layer_errors_free(&r->lane[i].errors);
    }
    exf_scores_free(r->scores);
    exf_mem_free(r->lane);
    exf_mem_free(r->lanes);
}

/* ---- results -------------------------------------------------------------------------- */

static void sum_layers(exf_variant_result *v, const observed_lane *w, const exf_architecture *a)
{
    const exf_expert_usage *c = exf_fold_rewriter_usage(w->rewriter);
    double square = 0;
    int n = 0;
    for (int l = 0; l < a->n_layers; l++) {
        if (!a->is_moe[l]) continue;
        exf_layer_result *r = &v->layer[n];
        r->layer = l;
        r->output_error = w->is_first ? 0 : exf_layer_errors_value(&w->errors, n);
        r->experts_per_token = c[n].tokens ? (double)c[n].executed / (double)c[n].tokens : 0;
        r->experts_per_batch = c[n].steps ? (double)c[n].distinct / (double)c[n].steps : 0;
        square += r->output_error * r->output_error;
        v->experts_per_token += r->experts_per_token / w->n_layers;
        v->experts_per_batch += r->experts_per_batch / w->n_layers;
        n++;
    }
    v->output_error = sqrt(square / w->n_layers);
}

/* Returns the batch of all ranks. */
static const exf_batch *whole_batch(const exf_validate_job *job)
{
    return job->whole ? job->whole : job->batch;
}

static exf_code sum_lane(exf_variant_result *v, const run *r, size_t i, size_t n_clusters, const size_t *cluster_of, exf_err *err)
{
    const exf_validate_job *job = r->job;
    exf_code rc;
    const exf_validate_lane *lane = i ? &job->lanes[i - 1] : NULL;
    snprintf(v->name, sizeof v->name, "%s", lane ? lane->variant.name : "original");
    v->role = lane ? lane->role : EXF_LANE_ORIGINAL;
    v->batch = lane ? lane->batch : 0;
    EXF_TRY(exf_mem_new(&v->nll, n_clusters, sizeof *v->nll, "results", err));
    EXF_TRY(exf_mem_new(&v->kl, n_clusters, sizeof *v->kl, "results", err));
    exf_scores_cluster_sums(r->scores, i, cluster_of, v->nll, v->kl);
    EXF_TRY(exf_mem_new(&v->domain, job->n_domains, sizeof *v->domain, "results", err));
    EXF_TRY(exf_mem_new(&v->layer, (size_t)r->lane[i].n_layers, sizeof *v->layer, "results", err));
    EXF_TRY(exf_scores_sum(r->scores, i, NULL, -1, &v->all, err));
    for (size_t d = 0; d < job->n_domains; d++) EXF_TRY(exf_scores_sum(r->scores, i, job->domain_of, (int)d, &v->domain[d], err));
    sum_layers(v, &r->lane[i], &job->model->arch);
out:
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "%s: ", v->name);
    return rc;
}

/* Sums of the widths of all decode steps of a schedule, and of their squares. */
typedef struct {
    uint64_t sum, squares;
} step_widths;

/* Gives rank 0 what the ranks have counted and scored, and the widths [n_schedules] of all their steps; widths are 0 at first. */
static exf_code share_results(run *r, step_widths *widths, exf_err *err)
{
    const exf_validate_job *job = r->job;
    exf_ranks *ranks = job->forward.ranks;
    record k = {.n = 0};
    exf_code rc;
    for (int i = 0; i < job->n_schedules; i++) {
        const exf_decode_schedule *s = &job->schedule[i];
        for (size_t step = 0; step < s->n_steps; step++) {
            uint64_t width = s->first[step + 1] - s->first[step];
            widths[i].sum += width;
            widths[i].squares += width * width;
        }
    }
    if (!ranks) return EXF_OK;
    exf_ranks_array both = {widths, (size_t)job->n_schedules * sizeof *widths / sizeof(uint64_t), EXF_RANKS_U64};
    EXF_TRY(exf_ranks_sum(ranks, &both, 1, err));
    EXF_TRY(exf_scores_gather(r->scores, ranks, job->whole, err));
    EXF_TRY(collect_record(&k, r, job->model->arch.n_moe_layers, err));
    if (exf_ranks_first(ranks)) apply_record(r, &k);
out:
    free_record(&k);
    return rc;
}

/* Fills the figures of the decode batches of each size, and what they say of the lanes. */
static exf_code judge_batches(exf_validation *out, const run *r, const step_widths *widths, exf_err *err)
{
    const exf_validate_job *job = r->job;
    int n_layers = job->model->arch.n_moe_layers;
    exf_code rc;
    EXF_TRY(exf_mem_new(&out->batch_size, (size_t)job->n_schedules, sizeof *out->batch_size, "results", err));
    out->n_batch_sizes = job->n_schedules;
    for (int i = 0; i < job->n_schedules; i++) {
        exf_batch_size *b = &out->batch_size[i];
        const exf_expert_usage *c = original_usage(r, i);
        b->size = job->schedule[i].size;
        b->width = widths[i].sum ? (double)widths[i].squares / (double)widths[i].sum : 0;
        EXF_TRY(exf_mem_new(&b->layer_experts, (size_t)n_layers, sizeof *b->layer_experts, "results", err));
        for (int l = 0; l < n_layers; l++) {
            b->layer_experts[l] = c[l].steps ? (double)c[l].distinct / (double)c[l].steps : 0;
            b->experts += b->layer_experts[l] / n_layers;
        }
    }
    for (size_t i = 1; i < out->n_variants; i++)
        out->variant[i].constraint = exf_constraint_of(&job->lanes[i - 1].variant, &out->batch_size[out->variant[i].batch]);
out:
    return rc;
}

/* Fills the results of rank 0, which has all ranks' counts and scores. */
static exf_code sum_results(exf_validation *out, const run *r, const step_widths *widths, exf_err *err)
{
    const exf_validate_job *job = r->job;
    size_t *cluster_of = NULL;
    exf_code rc;
    out->one_flops = exf_forward_flops(&job->model->arch, whole_batch(job), 1);
    out->n_layers = job->model->arch.n_moe_layers;
    out->n_domains = job->n_domains;
    EXF_TRY(exf_mem_new(&cluster_of, whole_batch(job)->n_sequences, sizeof *cluster_of, "clusters", err));
    EXF_TRY(exf_find_clusters(out, job, cluster_of, err));
    EXF_TRY(exf_mem_new(&out->variant, r->n, sizeof *out->variant, "results", err));
    out->n_variants = r->n;
    for (size_t i = 0; i < r->n; i++) {
        EXF_TRY(sum_lane(&out->variant[i], r, i, out->n_clusters, cluster_of, err));
        exf_set_standard_errors(out, &out->variant[i]);
    }
    EXF_TRY(judge_batches(out, r, widths, err));
out:
    exf_mem_free(cluster_of);
    return rc;
}

exf_code exf_validate(exf_validation *out, const exf_validate_job *job, exf_err *err)
{
    exf_code rc;
    step_widths *widths = NULL;
    run r = {.job = job};
    memset(out, 0, sizeof *out);
    EXF_TRY(exf_mem_new(&widths, (size_t)job->n_schedules, sizeof *widths, "results", err));
    EXF_TRY(open_run(&r, err));
    EXF_TRY(exf_forward(job->model, job->batch, r.lanes, r.n, &job->forward, &out->report, err));
    for (size_t i = 0; i < r.n; i++) EXF_TRY(exf_fold_rewriter_check(r.lane[i].rewriter, err));
    EXF_TRY(share_results(&r, widths, err));
    if (exf_ranks_first(job->forward.ranks)) EXF_TRY(sum_results(out, &r, widths, err));
out:
    exf_mem_free(widths);
    close_run(&r);
    if (rc != EXF_OK) exf_validation_free(out);
    return rc;
}

void exf_validation_free(exf_validation *v)
{
    for (size_t i = 0; v->variant && i < v->n_variants; i++) {
        exf_mem_free(v->variant[i].domain);
        exf_mem_free(v->variant[i].layer);
        exf_mem_free(v->variant[i].nll);
        exf_mem_free(v->variant[i].kl);
    }
    exf_mem_free(v->variant);
    for (int i = 0; v->batch_size && i < v->n_batch_sizes; i++) exf_mem_free(v->batch_size[i].layer_experts);
    exf_mem_free(v->batch_size);
    exf_mem_free(v->cluster_tokens);
    exf_mem_free(v->cluster_domain);
    memset(v, 0, sizeof *v);
}

/* ---- before the pass ------------------------------------------------------------------- */

exf_code exf_validate_demand(exf_demand *d, const exf_validate_job *job, exf_err *err)
{
    run r = {.job = job};
    exf_code rc = open_run(&r, err);
    if (rc == EXF_OK) *d = exf_demand_of(r.lanes, r.n, job->forward.backend ? job->forward.backend : &exf_backend_cpu);
    close_run(&r);
    return rc;
}

exf_code exf_validate_sample(const exf_validate_job *job, exf_forward_report *report, exf_err *err)
{
    run r = {.job = job};
    exf_code rc = open_run(&r, err);
    if (rc == EXF_OK) rc = exf_forward(job->model, job->batch, r.lanes, r.n, &job->forward, report, err);
    close_run(&r);
    return rc;
}

uint64_t exf_validate_memory(const exf_validate_job *job, int n_workers)
{
    size_t folders = 0;
    for (size_t i = 0; i < job->n_lanes; i++) {
        const exf_decode_schedule *s = &job->schedule[job->lanes[i].batch];
        exf_decode_kind kind = job->lanes[i].variant.decode;
        if (kind != EXF_DECODE_NONE && kind != EXF_DECODE_REAP)
            folders += s->first[s->n_steps] * (size_t)job->model->arch.top_k * 12u;
    }
    uint64_t sums = (uint64_t)whole_batch(job)->n_sequences * (job->n_lanes + 1) * 2 * sizeof(double);
    return folders + sums + exf_scores_memory(job->batch, job->n_lanes + 1, job->model->arch.vocab, n_workers);
}

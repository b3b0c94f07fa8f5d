/* tables_norms.c - the norm head of tables (tables.h), which predicts the norm of an expert's output on a token before the expert
 * runs; since version 5, all of them or none:
 *   /norm_head/basis            F32 [L, H, q]      principal directions V of a layer's inputs
 *   /norm_head/theta            F32 [L, E, q + 4]  log ||u|| is about theta' phi, with the features phi of tables.h
 *   /norm_head/explained        F32 [L, E]         share of the variance of log norms about log rms that an expert's theta explains
 *   /norm_head/error            F32 [L, E]         its standard error
 *   /norm_head/layer_explained  F32 [L]            the same of a layer's experts together
 *   /norm_head/layer_error      F32 [L]
 * An expert with fewer than four tokens for each feature, and one of which theta would explain less than nothing, has the theta
 * that predicts its rms: [log rms, 0, ...]; explained and error are then 0. */
#include "artifact/tables.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_LEN = 64, TOKENS_OF_A_FEATURE = 4 };

static const double least_rms = 1e-10, tolerance = 1e-5;

/* ---- features ------------------------------------------------------------------------- */

static const double least_weight = 1e-6, least_norm = 1e-10;

double exf_norm_logit_mean(const float *logits, int n_experts)
{
    double sum = 0;
    for (int e = 0; e < n_experts; e++) sum += (double)logits[e];
    return sum / n_experts;
}

void exf_norm_features_of(double *phi, const double *projected, int q, double logit_above_mean, double weight, double norm)
{
    phi[0] = 1;
    memcpy(phi + 1, projected, (size_t)q * sizeof *phi);
    phi[q + 1] = logit_above_mean;
    phi[q + 2] = log(weight > least_weight ? weight : least_weight);
    phi[q + 3] = log(norm > least_norm ? norm : least_norm);
}

float exf_norm_predicted(const float *theta, const double *phi, int q)
{
    double sum = 0;
    for (size_t i = 0; i < exf_norm_features(q); i++) sum += (double)theta[i] * phi[i];
    return (float)exp(sum);
}

/* ---- heads ---------------------------------------------------------------------------- */

uint64_t exf_norm_head_tokens(int q)
{
    return TOKENS_OF_A_FEATURE * exf_norm_features(q);
}

double exf_norm_head_mean(const exf_tables *t, size_t at)
{
    double rms = (double)t->rms[at];
    return log(rms > least_rms ? rms : least_rms);
}

/* ---- in memory ---------------------------------------------------------------------- */

exf_tensor exf_norm_head_tensor(const exf_tables *t, int i)
{
    static const char *const names[EXF_NORM_HEAD_PARTS] = {"basis", "theta", "explained", "error", "layer_explained",
                                                           "layer_error"};
    const exf_norm_head *n = &t->norm_head;
    int64_t l = t->n_layers, e = t->shape.n_experts, features = (int64_t)exf_norm_features(n->q);
    exf_tensor all[EXF_NORM_HEAD_PARTS] = {
        {.rank = 3, .shape = {l, t->shape.d_model, n->q}, .data = n->basis},
        {.rank = 3, .shape = {l, e, features}, .data = n->theta},
        {.rank = 2, .shape = {l, e}, .data = n->explained},
        {.rank = 2, .shape = {l, e}, .data = n->error},
        {.rank = 1, .shape = {l}, .data = n->layer_explained},
        {.rank = 1, .shape = {l}, .data = n->layer_error}};
    all[i].name = names[i];
    all[i].dtype = EXF_DT_F32;
    return all[i];
}

uint64_t exf_norm_head_bytes(const exf_run_shape *shape, int n_layers, int q)
{
    uint64_t e = (uint64_t)shape->n_experts;
    if (!q) return 0;
    return (uint64_t)n_layers * ((uint64_t)shape->d_model * (uint64_t)q + e * (exf_norm_features(q) + 2) + 2) * sizeof(float);
}

exf_code exf_norm_head_new(exf_tables *t, int q, exf_err *err)
{
    exf_norm_head *n = &t->norm_head;
    size_t l = (size_t)t->n_layers, e = (size_t)t->shape.n_experts;
    exf_code rc;
    n->q = q;
    EXF_TRY(exf_mem_new(&n->basis, l * (size_t)t->shape.d_model * (size_t)q, sizeof *n->basis, "norm head", err));
    EXF_TRY(exf_mem_new(&n->theta, l * e * exf_norm_features(q), sizeof *n->theta, "norm head", err));
    EXF_TRY(exf_mem_new(&n->explained, l * e, sizeof *n->explained, "norm head", err));
    EXF_TRY(exf_mem_new(&n->error, l * e, sizeof *n->error, "norm head", err));
    EXF_TRY(exf_mem_new(&n->layer_explained, l, sizeof *n->layer_explained, "norm head", err));
    EXF_TRY(exf_mem_new(&n->layer_error, l, sizeof *n->layer_error, "norm head", err));
out:
    return rc;
}

void exf_norm_head_free(exf_norm_head *n)
{
    exf_mem_free(n->basis);
    exf_mem_free(n->theta);
    exf_mem_free(n->explained);
    exf_mem_free(n->error);
    exf_mem_free(n->layer_explained);
    exf_mem_free(n->layer_error);
    memset(n, 0, sizeof *n);
}

/* ---- in files ------------------------------------------------------------------------ */

/* Writes the part's path and gives the tensor that name. */
static exf_tensor part_of(const exf_tables *t, int i, char path[PATH_LEN])
{
    exf_tensor x = exf_norm_head_tensor(t, i);
    snprintf(path, PATH_LEN, "/norm_head/%s", x.name);
    x.name = path;
    return x;
}

exf_code exf_norm_head_write(const exf_tables *t, exf_h5 *h, exf_err *err)
{
    char path[PATH_LEN];
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && t->norm_head.q && i < EXF_NORM_HEAD_PARTS; i++) {
        exf_tensor x = part_of(t, i, path);
        rc = exf_h5_write(h, &x, err);
    }
    return rc;
}

exf_code exf_norm_head_read(exf_tables *t, exf_h5 *h, exf_err *err)
{
    exf_tensor basis;
    char path[PATH_LEN];
    exf_code rc;
    EXF_TRY(exf_h5_describe(h, "/norm_head/basis", &basis, err));
    if (basis.rank != 3 || basis.shape[2] < 1 || basis.shape[2] > EXF_NORM_MOST || basis.shape[2] > t->shape.d_model)
        return exf_fail(err, EXF_FORMAT, "%s: /norm_head/basis has %lld directions, expected 1 to %d, and no more than the model's "
                        "%lld columns", exf_h5_path(h), basis.rank == 3 ? (long long)basis.shape[2] : 0, EXF_NORM_MOST,
                        (long long)t->shape.d_model);
    exf_tables like = *t;
    like.norm_head = (exf_norm_head){.q = (int)basis.shape[2]};
    for (int i = 0; i < EXF_NORM_HEAD_PARTS; i++) { /* before memory is taken for a head of q directions */
        exf_tensor x = part_of(&like, i, path);
        EXF_TRY(exf_h5_expect(h, &x, err));
    }
    EXF_TRY(exf_norm_head_new(t, (int)basis.shape[2], err));
    for (int i = 0; i < EXF_NORM_HEAD_PARTS; i++) {
        exf_tensor x = part_of(t, i, path);
        void *data = (void *)(uintptr_t)x.data;
        x.data = NULL;
        EXF_TRY(exf_h5_read(h, &x, data, err));
    }
out:
    return rc;
}

/* ---- rules --------------------------------------------------------------------------- */

/* Checks that all numbers of part i lie in [low, high], which NaN does not. */
static exf_code check_range(const exf_tables *t, int i, float low, float high, const char *expected, const char *path, exf_err *err)
{
    exf_tensor x = exf_norm_head_tensor(t, i);
    const float *data = x.data;
    size_t n = 1;
    for (int k = 0; k < x.rank; k++) n *= (size_t)x.shape[k];
    for (size_t k = 0; k < n; k++)
        if (!(data[k] >= low && data[k] <= high))
            return exf_fail(err, EXF_FORMAT, "%s: /norm_head/%s: element %zu is %g, expected %s", path, x.name, k, (double)data[k],
                            expected);
    return EXF_OK;
}

/* Checks that an expert with too few tokens has the theta of its rms. */
static exf_code check_fallback(const exf_tables *t, size_t at, const char *path, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts, n = exf_norm_features(t->norm_head.q);
    const float *theta = t->norm_head.theta + at * n;
    uint64_t least = exf_norm_head_tokens(t->norm_head.q);
    if (t->expert_count[at] >= least) return EXF_OK;
    for (size_t i = 0; i < n; i++) {
        double expected = i ? 0 : exf_norm_head_mean(t, at);
        if (fabs((double)theta[i] - expected) <= tolerance * fabs(expected)) continue;
        return exf_fail(err, EXF_FORMAT, "%s: /norm_head/theta[%zu, %zu, %zu] is %g, expected %g: the expert has %llu tokens, "
                        "fewer than %llu, and goes by its rms", path, at / e, at % e, i, (double)theta[i], expected,
                        (unsigned long long)t->expert_count[at], (unsigned long long)least);
    }
    if (t->norm_head.explained[at] != 0 || t->norm_head.error[at] != 0)
        return exf_fail(err, EXF_FORMAT, "%s: /norm_head/explained[%zu, %zu] is %g with the error %g, expected 0: the expert has "
                        "%llu tokens, fewer than %llu", path, at / e, at % e, (double)t->norm_head.explained[at],
                        (double)t->norm_head.error[at], (unsigned long long)t->expert_count[at], (unsigned long long)least);
    return EXF_OK;
}

exf_code exf_norm_head_check(const exf_tables *t, const char *path, exf_err *err)
{
    static const struct {
        float low, high;
        const char *expected;
    } rule[EXF_NORM_HEAD_PARTS] = {{-1.0001f, 1.0001f, "a coordinate of a unit vector"}, {-1e30f, 1e30f, "a finite number"},
                                   {0, 1, "a share"}, {0, 1, "an error of a share"},
                                   {0, 1, "a share"}, {0, 1, "an error of a share"}};
    exf_code rc = EXF_OK;
    if (!t->norm_head.q) return EXF_OK;
    if (!t->rms)
        return exf_fail(err, EXF_FORMAT, "%s: has /norm_head without /rms, by which experts go that it does not know", path);
    for (int i = 0; i < EXF_NORM_HEAD_PARTS; i++)
        EXF_TRY(check_range(t, i, rule[i].low, rule[i].high, rule[i].expected, path, err));
    for (size_t at = 0; at < (size_t)t->n_layers * (size_t)t->shape.n_experts; at++) EXF_TRY(check_fallback(t, at, path, err));
out:
    return rc;
}

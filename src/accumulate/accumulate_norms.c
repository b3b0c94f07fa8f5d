/* accumulate_norms.c - adds up the sums of a layer's norm head (artifact/norm_sums.h) in two sweeps.
 *
 * The first sweep keeps the inputs of a sample of tokens.  Between the sweeps their principal directions are found, or taken from
 * a file.  The last sweep adds up, slot by slot, in host memory: a pass on a GPU copies its blocks there. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/simd.h"

#include <math.h>
#include <string.h>

enum { SAMPLED = 8192, STREAM = 3 }; /* tokens at most; of random numbers: residuals have 0 and 1, routes 2 */

static size_t sampled_tokens(const exf_run_shape *shape)
{
    return shape->n_tokens < SAMPLED ? (size_t)shape->n_tokens : SAMPLED;
}

uint64_t exf_norm_sampler_bytes(const exf_run_shape *shape)
{
    return (uint64_t)sampled_tokens(shape) * (uint64_t)shape->d_model * sizeof(float);
}

exf_code exf_norm_sampler_new(exf_norm_sampler *s, const exf_run_shape *shape, size_t first_row, exf_err *err)
{
    exf_code rc;
    size_t floats;
    *s = (exf_norm_sampler){.first_row = first_row, .d_model = (int)shape->d_model};
    EXF_TRY(exf_smallest_keys_new(&s->keys, sampled_tokens(shape), err));
    EXF_TRY(exf_mem_mul(&floats, s->keys.cap, (size_t)shape->d_model, "inputs of experts", err));
    EXF_TRY(exf_mem_new(&s->input, floats, sizeof *s->input, "inputs of experts", err));
    EXF_TRY(exf_mem_new(&s->basis, (size_t)shape->d_model * EXF_NORM_MOST, sizeof *s->basis, "norm head", err));
out:
    return rc;
}

void exf_norm_sampler_free(exf_norm_sampler *s)
{
    if (s->b) s->b->gpu->free_staging(s->staged);
    exf_smallest_keys_free(&s->keys);
    exf_mem_free(s->input);
    exf_mem_free(s->basis);
    memset(s, 0, sizeof *s);
}

exf_code exf_norm_sampler_open_device(exf_norm_sampler *s, const exf_backend *b, exf_err *err)
{
    exf_code rc = b->gpu->alloc_staging((void *)&s->staged, s->keys.cap * (size_t)s->d_model * sizeof *s->staged,
                                        "inputs of experts", err);
    if (rc == EXF_OK) s->b = b;
    return rc;
}

exf_code exf_norm_sampler_begin(exf_norm_sampler *s, const exf_sequence_list *sequences, int layer, exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = 1, .layer = layer, .stream = STREAM};
    size_t floats = s->keys.cap * (size_t)s->d_model;
    s->q = NULL;
    memset(s->input, 0, floats * sizeof *s->input); /* of other ranks' tokens: they add theirs */
    if (s->staged) memset(s->staged, 0, floats * sizeof *s->staged);
    return exf_smallest_keys_choose(&s->keys, &rule, err);
}

/* ---- the first sweep ----------------------------------------------------------------------- */

void exf_norm_sampler_keep(const exf_norm_sampler *s, const exf_moe_block *b)
{
    size_t h = (size_t)s->d_model, first = s->first_row + b->row;
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->keys.n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        memcpy(s->input + i * h, b->moe_input + (row - first) * h, h * sizeof *s->input);
    }
}

void exf_norm_sampler_keep_device(exf_norm_sampler *s, const exf_device_block *b)
{
    size_t h = (size_t)s->d_model, first = s->first_row + b->row;
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->keys.n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        s->b->gpu->carry(b->q, s->staged + i * h, b->moe_input + (row - first) * h, h * sizeof *s->staged);
        s->q = b->q;
    }
}

/* ---- between the sweeps --------------------------------------------------------------------- */

exf_code exf_norm_sampler_find(exf_norm_sampler *s, exf_norm_sums *to, int layer, exf_ranks *ranks, int helpers, exf_err *err)
{
    size_t floats = s->keys.n * (size_t)s->d_model;
    const exf_ranks_array inputs = {s->input, floats * sizeof *s->input, EXF_RANKS_BITS};
    exf_code rc = EXF_OK;
    if (s->q) EXF_TRY(s->b->finish(s->q, err));
    if (s->q) memcpy(s->input, s->staged, floats * sizeof *s->input);
    if (ranks) EXF_TRY(exf_ranks_sum(ranks, &inputs, 1, err));
    if (!ranks || exf_ranks_first(ranks))
        EXF_TRY(exf_basis_find(s->basis, to->q, s->input, s->keys.n, s->d_model, 0, 0, (uint64_t)layer, helpers, err));
    if (ranks) EXF_TRY(exf_ranks_broadcast(ranks, s->basis, (size_t)s->d_model * (size_t)to->q * sizeof *s->basis, err));
    exf_norm_sums_set_basis(to, s->basis);
out:
    return rc;
}

/* ---- the last sweep -------------------------------------------------------------------------- */

/* Computes V'x in fixed order. */
static void project(double *to, const float *x, const double *basis, int h, int q)
{
    memset(to, 0, (size_t)q * sizeof *to);
    for (int i = 0; i < h; i++) {
        const double *row = basis + (size_t)i * (size_t)q;
        for (int k = 0; k < q; k++) to[k] += (double)x[i] * row[k];
    }
}

static double mean_of(const float *logits, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)logits[i];
    return sum / n;
}

/* Adds one slot of an expert. */
static void add_slot(const exf_norm_sums *to, size_t expert, const double *phi, double y)
{
    size_t n = exf_norm_features(to->q);
    exf_exact *pp = to->pp + expert * exf_norm_products(to->q), *py = to->py + expert * n;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k <= i; k++) exf_exact_add(pp++, phi[i] * phi[k]);
        exf_exact_add(&py[i], phi[i] * y);
    }
    exf_exact_add(&to->yy[expert], y * y);
}

/* Refuses features whose products leave the range of a sum. */
static exf_code check_features(const double *phi, size_t n, int token, exf_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs(phi[i]) < 0x1p31))
            return exf_fail(err, EXF_NUMERIC, "token %d: feature %zu of the norm head is %g, outside the range of the sums", token,
                            i, phi[i]);
    return EXF_OK;
}

exf_code exf_norm_sums_add(const exf_norm_sums *to, const double *basis, const exf_moe_block *b, exf_err *err)
{
    enum { MOST = EXF_NORM_MOST + EXF_NORM_BESIDE };
    double projected[EXF_NORM_MOST], phi[MOST];
    size_t h = (size_t)b->d_model, e = (size_t)b->n_experts;
    for (int t = 0; t < b->n_tokens; t++) {
        const float *x = b->moe_input + (size_t)t * h, *z = b->router_logits + (size_t)t * e;
        double norm = sqrt(exf_dot(x, x, b->d_model)), mean = mean_of(z, b->n_experts);
        project(projected, x, basis, b->d_model, to->q);
        for (int k = 0; k < b->top_k; k++) {
            size_t slot = (size_t)t * (size_t)b->top_k + (size_t)k;
            int id = b->topk_ids[slot];
            if (id < 0) continue;
            const float *u = b->expert_outputs + slot * h;
            double sq = exf_dot(u, u, b->d_model), y = 0.5 * log(sq > 1e-20 ? sq : 1e-20);
            exf_norm_features_of(phi, projected, to->q, (double)z[id] - mean, (double)b->topk_weights[slot], norm);
            exf_code rc = check_features(phi, exf_norm_features(to->q), t, err);
            if (rc != EXF_OK) return rc;
            add_slot(to, (size_t)id, phi, y);
        }
    }
    return EXF_OK;
}

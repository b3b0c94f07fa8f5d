/* layer_errors.c - see layer_errors.h. */
#include "validate/layer_errors.h"

#include "base/mem.h"
#include "ranks/ranks.h"

#include <math.h>
#include <string.h>

exf_code exf_layer_errors_begin(exf_layer_errors *e, int n_layers, int n_workers, exf_err *err)
{
    exf_code rc;
    size_t n = (size_t)n_layers * (size_t)n_workers;
    *e = (exf_layer_errors){.n_layers = n_layers, .n_workers = n_workers};
    EXF_TRY(exf_mem_new(&e->error_sq, n, sizeof *e->error_sq, "layer errors", err));
    EXF_TRY(exf_mem_new(&e->norm_sq, n, sizeof *e->norm_sq, "layer errors", err));
out:
    return rc;
}

static void token_squares(const float *y, const float *z, int n, double *error_sq, double *norm_sq)
{
    *error_sq = *norm_sq = 0;
    for (int i = 0; i < n; i++) {
        double d = (double)z[i] - (double)y[i];
        *error_sq += d * d;
        *norm_sq += (double)y[i] * (double)y[i];
    }
}

exf_code exf_layer_errors_add(exf_layer_errors *e, const exf_probe_block *b, exf_err *err)
{
    size_t at = (size_t)b->worker * (size_t)e->n_layers + (size_t)b->moe_index, h = (size_t)b->d_model;
    for (int t = 0; t < b->n_tokens; t++) {
        double error_sq, norm_sq;
        token_squares(b->original + (size_t)t * h, b->rewritten + (size_t)t * h, b->d_model, &error_sq, &norm_sq);
        if (!exf_exact_fits(error_sq) || !exf_exact_fits(norm_sq))
            return exf_fail(
                err, EXF_NUMERIC,
                "layer %d, sequence %zu, position %d: squared output %g, squared error %g, outside the range of the sums", b->layer,
                b->sequence, b->position + t, norm_sq, error_sq);
        exf_exact_add(&e->error_sq[at], error_sq);
        exf_exact_add(&e->norm_sq[at], norm_sq);
    }
    return EXF_OK;
}

exf_code exf_layer_errors_device_open(exf_layer_errors *e, const exf_backend *b, exf_err *err)
{
    e->device = b;
    return b->alloc(&e->sums, 1, sizeof *e->sums, "layer errors", err);
}

exf_code exf_layer_errors_device_add(exf_layer_errors *e, const exf_device_probe *b, exf_err *err)
{
    (void)err;
    if (!e->q) e->device->zero(b->q, e->sums, sizeof *e->sums);
    e->q = b->q;
    e->device->gpu->output_errors(b->q, e->sums, b->original, b->rewritten, b->n_tokens, b->d_model);
    return EXF_OK;
}

exf_code exf_layer_errors_device_end(exf_layer_errors *e, int layer, int moe_index, exf_err *err)
{
    exf_output_errors sums;
    if (!e->q) return EXF_OK;
    exf_code rc = e->device->download(e->q, &sums, e->sums, sizeof sums, err);
    if (rc != EXF_OK) return rc;
    e->q = NULL;
    if (sums.out_of_range)
        return exf_fail(err, EXF_NUMERIC,
                        "layer %d: the squared outputs or errors of %llu tokens are outside the range of the sums", layer,
                        (unsigned long long)sums.out_of_range);
    exf_output_errors_read(&sums, &e->error_sq[moe_index], &e->norm_sq[moe_index]);
    return EXF_OK;
}

/* Adds up a MoE layer's sums over all workers. */
static void merge_workers(const exf_layer_errors *e, int moe_index, exf_exact *error_sq, exf_exact *norm_sq)
{
    exf_exact error = {{0, 0, 0}}, norm = error; /* the results may be the first worker's own sums */
    for (int w = 0; w < e->n_workers; w++) {
        exf_exact_merge(&error, &e->error_sq[w * e->n_layers + moe_index]);
        exf_exact_merge(&norm, &e->norm_sq[w * e->n_layers + moe_index]);
    }
    *error_sq = error;
    *norm_sq = norm;
}

void exf_layer_errors_sums(const exf_layer_errors *e, int n, exf_exact *error_sq, exf_exact *norm_sq)
{
    for (int l = 0; l < n; l++) merge_workers(e, l, &error_sq[l], &norm_sq[l]);
}

void exf_layer_errors_set(exf_layer_errors *e, int n, const exf_exact *error_sq, const exf_exact *norm_sq)
{
    memcpy(e->error_sq, error_sq, (size_t)n * sizeof *error_sq);
    memcpy(e->norm_sq, norm_sq, (size_t)n * sizeof *norm_sq);
}

exf_code exf_layer_errors_share(exf_layer_errors *e, exf_ranks *ranks, exf_err *err)
{
    size_t n = (size_t)e->n_layers, others = n * (size_t)(e->n_workers - 1);
    if (!ranks) return EXF_OK;
    exf_layer_errors_sums(e, e->n_layers, e->error_sq, e->norm_sq); /* to the first worker's, layer by layer */
    memset(e->error_sq + n, 0, others * sizeof *e->error_sq);
    memset(e->norm_sq + n, 0, others * sizeof *e->norm_sq);
    exf_ranks_array list[] = {{e->error_sq, n, EXF_RANKS_EXACT}, {e->norm_sq, n, EXF_RANKS_EXACT}};
    return exf_ranks_sum(ranks, list, 2, err);
}

double exf_layer_errors_value(const exf_layer_errors *e, int moe_index)
{
    exf_exact error_sq, norm_sq;
    merge_workers(e, moe_index, &error_sq, &norm_sq);
    double norm = exf_exact_value(&norm_sq);
    return norm > 0 ? sqrt(exf_exact_value(&error_sq) / norm) : 0;
}

void exf_layer_errors_free(exf_layer_errors *e)
{
    if (e->device) e->device->free(e->sums);
    exf_mem_free(e->error_sq);
    exf_mem_free(e->norm_sq);
    memset(e, 0, sizeof *e);
}

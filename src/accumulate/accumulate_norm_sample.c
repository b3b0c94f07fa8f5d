/* accumulate_norm_sample.c - the inputs of a sample of a layer's tokens, and their principal directions: what the sums of a norm
 * head are over (artifact/norm_sums.h). */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "base/parallel.h"
#include "base/tensor.h"

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
    void *device_arrays[] = {s->rows, s->row, s->scalar, s->part, s->product, s->gram, s->sum};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    if (s->b) s->b->gpu->free_staging(s->staged);
    exf_mem_free(s->row_host);
    exf_smallest_keys_free(&s->keys);
    exf_mem_free(s->input);
    exf_mem_free(s->basis);
    memset(s, 0, sizeof *s);
}

uint64_t exf_norm_sampler_device_bytes(const exf_run_shape *shape)
{
    uint64_t n = sampled_tokens(shape), h = (uint64_t)shape->d_model;
    return n * (h * sizeof(float) + sizeof(int32_t) + sizeof(double)) + EXF_RESIDUAL_ROWS * h * sizeof(float) +
           h * h * (sizeof(float) + sizeof(double)) + h * sizeof(double);
}

exf_code exf_norm_sampler_open_device(exf_norm_sampler *s, const exf_backend *b, exf_err *err)
{
    size_t n = s->keys.cap, h = (size_t)s->d_model, rows = n * h * sizeof(float), moments = h * h * sizeof(double);
    exf_code rc;
    s->b = b;
    EXF_TRY(b->alloc(&s->rows, n * h, sizeof *s->rows, "inputs of experts", err));
    EXF_TRY(b->alloc(&s->row, n, sizeof *s->row, "inputs of experts", err));
    EXF_TRY(b->alloc(&s->scalar, n, sizeof *s->scalar, "inputs of experts", err));
    EXF_TRY(b->alloc(&s->part, EXF_RESIDUAL_ROWS * h, sizeof *s->part, "inputs of experts", err));
    EXF_TRY(b->alloc(&s->product, h * h, sizeof *s->product, "inputs of experts", err));
    EXF_TRY(b->alloc(&s->gram, h * h, sizeof *s->gram, "inputs of experts", err));
    EXF_TRY(b->alloc(&s->sum, h, sizeof *s->sum, "inputs of experts", err));
    EXF_TRY(b->gpu->alloc_staging((void *)&s->staged, rows > moments ? rows : moments, "inputs of experts", err));
    EXF_TRY(exf_mem_new(&s->row_host, n, sizeof *s->row_host, "inputs of experts", err));
out:
    return rc;
}

exf_code exf_norm_sampler_begin(exf_norm_sampler *s, const exf_sequence_list *sequences, int layer, exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = 1, .layer = layer, .stream = STREAM};
    s->first = s->end = 0;
    memset(s->input, 0, s->keys.cap * (size_t)s->d_model * sizeof *s->input); /* of other ranks' tokens: they add theirs */
    return exf_smallest_keys_choose(&s->keys, &rule, err);
}

/* ---- before the experts ---------------------------------------------------------------------- */

void exf_norm_sampler_keep(const exf_norm_sampler *s, const exf_input_block *b)
{
    size_t h = (size_t)s->d_model, first = s->first_row + b->row;
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->keys.n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        memcpy(s->input + i * h, b->moe_input + (row - first) * h, h * sizeof *s->input);
    }
}

/* Each token has a place of its own in row_host, which copies still read when this returns.  gather_rows() copies bits: an input
 * in two parts is as wide as one of float32. */
void exf_norm_sampler_keep_device(exf_norm_sampler *s, const exf_device_input *b)
{
    size_t h = (size_t)s->d_model, row = s->first_row + b->row, first = exf_smallest_keys_first(&s->keys, row);
    size_t end = exf_smallest_keys_first(&s->keys, row + (size_t)b->n_tokens), n = end - first;
    s->split = b->split;
    if (n == 0) return;
    for (size_t at = first; at < end; at++) s->row_host[at] = (int32_t)(s->keys.chosen[s->keys.by_row[at]].row - row);
    s->b->upload(b->q, s->row + first, s->row_host + first, n * sizeof *s->row);
    s->b->gather_rows(b->q, s->rows + first * h, b->input, s->row + first, (int)n, (int)h);
    if (s->end == 0 || first < s->first) s->first = first;
    if (end > s->end) s->end = end;
}

static inline float widened(uint16_t half)
{
    union { uint32_t u; float f; } v = {(uint32_t)half << 16};
    return v.f;
}

/* Copies the gathered rows to s->input; of two parts their sum. */
static exf_code fetch_rows(exf_norm_sampler *s, exf_queue *q, int helpers, exf_err *err)
{
    size_t h = (size_t)s->d_model, n = s->end - s->first;
    exf_code rc;
    s->b->copy(q, s->staged, s->rows + s->first * h, n * h * sizeof *s->rows);
    EXF_TRY(s->b->finish(q, err));
#pragma omp parallel for schedule(static) num_threads(exf_team(n, helpers))
    for (size_t k = 0; k < n; k++) {
        const uint16_t *parts = (const uint16_t *)(const void *)(s->staged + k * h);
        float *to = s->input + s->keys.by_row[s->first + k] * h;
        if (!s->split) memcpy(to, s->staged + k * h, h * sizeof *to);
        for (size_t i = 0; s->split && i < h; i++) to[i] = widened(parts[i]) + widened(parts[h + i]);
    }
out:
    return rc;
}

/* ---- the directions -------------------------------------------------------------------------- */

/* Finds them from moments that the device computes, of the rows by rising key. */
static exf_code find_on_device(exf_norm_sampler *s, int directions, int layer, exf_queue *q, int helpers, exf_err *err)
{
    size_t h = (size_t)s->d_model, n = s->keys.n;
    double *gram = (double *)(void *)s->staged;
    exf_residual_call c = {.source = {s->rows, EXF_NUMBER_F32}, .target = {s->rows, EXF_NUMBER_F32}, .place = s->row,
                           .scalar = s->scalar, .n = (int)n, .d_model = s->d_model, .rows = s->part, .product = s->product,
                           .gram = s->gram, .sum = s->sum};
    exf_code rc;
    for (size_t i = 0; i < n; i++) s->row_host[i] = (int32_t)i;
    s->b->upload(q, s->rows, s->input, n * h * sizeof *s->rows);
    s->b->upload(q, s->row, s->row_host, n * sizeof *s->row);
    s->b->zero(q, s->scalar, n * sizeof *s->scalar); /* a residual is then the row itself */
    s->b->gpu->residual_moments(q, &c);
    s->b->copy(q, gram, s->gram, h * h * sizeof *gram);
    EXF_TRY(s->b->finish(q, err));
    rc = exf_basis_of_moments(s->basis, directions, gram, NULL, n, s->d_model, 0, (uint64_t)layer, helpers, err);
out:
    return rc;
}

exf_code exf_norm_sampler_find(exf_norm_sampler *s, exf_norm_sums *to, int layer, exf_ranks *ranks, exf_queue *q, int helpers,
                               exf_err *err)
{
    size_t floats = s->keys.n * (size_t)s->d_model, n = (size_t)s->d_model * (size_t)to->q;
    const exf_ranks_array inputs = {s->input, floats * sizeof *s->input, EXF_RANKS_BITS};
    exf_code rc = EXF_OK;
    if (q) EXF_TRY(fetch_rows(s, q, helpers, err));
    if (ranks) EXF_TRY(exf_ranks_sum(ranks, &inputs, 1, err));
    if (!ranks || exf_ranks_first(ranks)) {
        if (q)
            EXF_TRY(find_on_device(s, to->q, layer, q, helpers, err));
        else
            EXF_TRY(exf_basis_find(s->basis, to->q, s->input, s->keys.n, s->d_model, 0, 0, (uint64_t)layer, helpers, err));
        for (size_t i = 0; i < n; i++) s->basis[i] = (double)(float)s->basis[i]; /* as tables hold them */
    }
    if (ranks) EXF_TRY(exf_ranks_broadcast(ranks, s->basis, n * sizeof *s->basis, err));
    exf_norm_sums_set_basis(to, s->basis);
out:
    return rc;
}

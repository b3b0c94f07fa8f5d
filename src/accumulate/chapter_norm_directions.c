/* chapter_norm_directions.c - the inputs of a sample of a layer's tokens, and their principal directions: what the sums of a norm
 * head are over (accumulate/norm_sums.h). */
#include "accumulate/chapter.h"

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

exf_code exf_norm_sampler_new(exf_norm_sampler *s, const exf_run_shape *shape, int directions, exf_run_rows own,
                              exf_err *err)
{
    exf_code rc;
    *s = (exf_norm_sampler){.own = own, .d_model = (int)shape->d_model, .directions = directions};
    EXF_TRY(exf_smallest_keys_new(&s->keys, sampled_tokens(shape), err));
    EXF_TRY(exf_mem_new(&s->basis, (size_t)shape->d_model * (size_t)directions, sizeof *s->basis, "norm head", err));
out:
    return rc;
}

void exf_norm_sampler_free(exf_norm_sampler *s)
{
    if (s->b) s->b->free(s->rows);
    if (s->b) s->b->free(s->row);
    exf_device_gatherer_free(&s->gatherer);
    exf_device_basis_free(&s->search);
    exf_mem_free(s->row_host);
    exf_smallest_keys_free(&s->keys);
    exf_mem_free(s->input);
    exf_mem_free(s->basis);
    memset(s, 0, sizeof *s);
}

uint64_t exf_norm_sampler_device_bytes(const exf_run_shape *shape, int directions)
{
    uint64_t n = sampled_tokens(shape), h = (uint64_t)shape->d_model;
    return n * (h * sizeof(float) + sizeof(int32_t)) + exf_device_basis_bytes((int)h, directions);
}

exf_code exf_norm_sampler_open_device(exf_norm_sampler *s, exf_ranks *ranks, const exf_backend *b, exf_err *err)
{
    size_t n = s->keys.cap, h = (size_t)s->d_model;
    exf_code rc;
    s->b = b;
    EXF_TRY(b->alloc(&s->rows, n * h, sizeof *s->rows, "inputs of experts", err));
    EXF_TRY(b->alloc(&s->row, n, sizeof *s->row, "inputs of experts", err));
    EXF_TRY(exf_mem_new(&s->row_host, n, sizeof *s->row_host, "inputs of experts", err));
    EXF_TRY(exf_device_gatherer_open(&s->gatherer, ranks, b, err));
    rc = exf_device_basis_open(&s->search, b, s->d_model, s->directions, 0, err);
out:
    return rc;
}

exf_code exf_norm_sampler_begin(exf_norm_sampler *s, const exf_sequence_list *sequences, int layer, int next, exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = 1, .layer = layer, .stream = STREAM};
    size_t floats = s->keys.cap * (size_t)s->d_model;
    exf_code rc = EXF_OK;
    s->first = s->end = 0;
    if (!s->input && !s->b) EXF_TRY(exf_mem_new(&s->input, floats, sizeof *s->input, "inputs of experts", err));
    rc = exf_smallest_keys_choose(&s->keys, &rule, next, err);
out:
    return rc;
}

/* ---- before the experts ---------------------------------------------------------------------- */

void exf_norm_sampler_keep(const exf_norm_sampler *s, const exf_input_block *b)
{
    size_t h = (size_t)s->d_model, first = s->own.first + b->row;
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->keys.n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        memcpy(s->input + i * h, b->moe_input + (row - first) * h, h * sizeof *s->input);
    }
}

/* Each token has a place of its own in row_host, which copies still read when this returns.  gather_rows() copies bits: an input
 * in two parts is as wide as one of float32. */
void exf_norm_sampler_keep_device(exf_norm_sampler *s, const exf_input_block *b)
{
    size_t h = (size_t)s->d_model, row = s->own.first + b->row, first = exf_smallest_keys_first(&s->keys, row);
    size_t end = exf_smallest_keys_first(&s->keys, row + (size_t)b->n_tokens), n = end - first;
    s->split = b->split;
    if (n == 0) return;
    for (size_t at = first; at < end; at++) s->row_host[at] = (int32_t)(s->keys.chosen[s->keys.by_row[at]].row - row);
    s->b->upload(b->q, s->row + first, s->row_host + first, n * sizeof *s->row);
    s->b->gather_rows(b->q, s->rows + first * h, b->moe_input, s->row + first, (int)n, (int)h);
    if (s->end == 0 || first < s->first) s->first = first;
    if (end > s->end) s->end = end;
}

/* ---- the directions -------------------------------------------------------------------------- */

exf_code exf_norm_sampler_find(exf_norm_sampler *s, exf_norm_sums *to, int layer, exf_ranks *ranks, exf_queue *q, int helpers,
                               exf_err *err)
{
    size_t n = s->keys.n, elements = (size_t)s->d_model * (size_t)to->q, bytes = (size_t)s->d_model * sizeof(float);
    int is_first = !ranks || exf_ranks_first(ranks);
    exf_residual_call c = {.source = {s->rows, s->split ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, .parts = s->split ? 2 : 1,
                           .place = s->row, .n = (int)n};
    exf_code rc;
    EXF_TRY(q ? exf_device_gather(&s->gatherer, q, s->first, s->end, n, s->rows, bytes, err)
              : exf_gather_samples(ranks, &s->keys, s->own, s->input, bytes, err));
    if (is_first && q) { /* of the rows by rising key */
        for (size_t at = 0; at < n; at++) s->row_host[s->keys.by_row[at]] = (int32_t)at;
        s->b->upload(q, s->row, s->row_host, n * sizeof *s->row);
        EXF_TRY(exf_device_basis_find(&s->search, s->basis, q, c, n, 0, err));
    } else if (is_first) {
        EXF_TRY(exf_basis_find(s->basis, to->q, s->input, n, s->d_model, 0, 0, (uint64_t)layer, helpers, err));
    }
    for (size_t i = 0; is_first && i < elements; i++) s->basis[i] = (double)(float)s->basis[i]; /* as tables hold them */
    if (ranks) EXF_TRY(exf_ranks_broadcast(ranks, s->basis, elements * sizeof *s->basis, err));
    exf_norm_sums_set_basis(to, s->basis);
out:
    return rc;
}

/* chapter_pairs.c - the sums of pairs of co-routed experts, and each expert's own (kernels/statistics/layer_sums.h). */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- in GPU memory: no expert output is copied to the host ------------------------------------------ */

static size_t gram_bytes(const exf_backend *b, int n_experts)
{
    return b->gpu->gram_matrices_bytes(n_experts, exf_gram_tokens(n_experts));
}

exf_code exf_device_sums_open(exf_device_sums *s, const exf_backend *b, int n_experts, exf_weighting weighting,
                              const exf_sequence_list *sequences, size_t first_sequence, int common_input, exf_err *err)
{
    exf_code rc;
    *s = (exf_device_sums){
        .b = b, .n_experts = n_experts, .weighting = weighting, .sequences = sequences->length ? sequences : NULL,
        .first_sequence = first_sequence, .common_input = common_input};
    EXF_TRY(b->alloc(&s->sums, b->gpu->layer_sums_bytes(n_experts), 1, "statistics", err));
    if (common_input) EXF_TRY(b->alloc(&s->gram_matrices, gram_bytes(b, n_experts), 1, "products of common input", err));
out:
    return rc;
}

exf_code exf_device_sums_pin(exf_device_sums *s, int i, exf_layer_statistics *to, exf_err *err)
{
    exf_code rc = s->b->gpu->alloc_staging(&s->pinned[i], exf_layer_statistics_bytes(s->n_experts), "statistics", err);
    if (rc == EXF_OK) exf_layer_statistics_move(to, s->pinned[i]);
    return rc;
}

/* Queues the terms of tokens [at, at + n) of the block; those that the host checks in a call of their own. */
static void add_tokens(exf_device_sums *s, const exf_moe_block *b, size_t at, int n)
{
    exf_layer_sums_call c = {.n_experts = b->n_experts, .top_k = b->top_k, .d_model = b->d_model, .weighting = s->weighting,
                             .experts_only = s->common_input};
    for (; n > 0; at += (size_t)c.n_tokens, n -= c.n_tokens) {
        size_t slot = at * (size_t)b->top_k;
        exf_checked_part *part;
        c.n_tokens = exf_cross_check_next(&s->check, b, at, n, &part);
        c.outputs = exf_matrix_at(exf_outputs_of(b), slot * (size_t)b->d_model);
        c.ids = b->topk_ids + slot;
        c.weights = b->topk_weights + slot;
        c.sq = s->sq ? s->sq + slot : NULL;
        c.row = (int64_t)(b->row + at);
        if (part) exf_cross_check_before(&s->check, part, b->q, s->sums, &c);
        s->b->gpu->layer_sums_add(b->q, s->sums, &c);
        if (part) exf_cross_check_after(&s->check, part, b->q, s->sums);
    }
}

void exf_device_sums_add(exf_device_sums *s, const exf_moe_block *b)
{
    s->q = b->q;
    s->batch = b->batch;
    if (!s->sequences || s->common_input) {
        add_tokens(s, b, 0, b->n_tokens);
        return;
    }
    if (b->row != s->next_row) s->out_of_order = 1;
    s->next_row = b->row + (size_t)b->n_tokens;
    for (size_t at = 0, n = (size_t)b->n_tokens; at < n;) {
        size_t sequence = exf_sequence_of(b->batch, 0, b->row + at);
        const exf_span *span = &b->batch->span[sequence];
        size_t left = span->offset + (size_t)span->n_tokens - b->row - at, part = left < n - at ? left : n - at;
        exf_device_sums_enter_sequence(s, b->q, sequence);
        add_tokens(s, b, at, (int)part);
        if (part == left) exf_device_sums_close_sequence(s, b->q, sequence);
        at += part;
    }
}

exf_code exf_device_sums_take(exf_device_sums *s, const exf_layer_statistics *to, int layer, exf_err *err)
{
    exf_layer_sums m = exf_layer_sums_of(to);
    exf_sequence_sums over = exf_sequence_sums_of(to);
    exf_sums_place bad = {-1, -1};
    exf_code rc = EXF_OK;
    if (s->out_of_order)
        return exf_fail(err, EXF_INTERNAL, "layer %d: blocks came in another order than their rows, by which sequences are told",
                        layer);
    s->next_row = 0;
    if (s->q && s->in_half) s->b->gpu->layer_sums_turn_half(s->q, s->sums, s->n_experts, 1);
    s->in_half = 0;
    if (s->q) rc = s->b->gpu->layer_sums_take(s->q, s->sums, &m, s->sequences ? &over : NULL, s->n_experts, &bad, err);
    if (bad.row >= 0) exf_fault_prefix_row(err, s->batch, (size_t)bad.row, EXF_MOE_BLOCK, 1);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, ", layer);
    if (rc == EXF_OK && s->q) rc = exf_cross_check_layer(&s->check, layer, err);
    s->q = NULL;
    return rc;
}

void exf_device_sums_free(exf_device_sums *s)
{
    exf_cross_check_close(&s->check);
    if (s->b) s->b->free(s->sums);
    if (s->b) s->b->free(s->gram_matrices);
    for (int i = 0; s->b && i < EXF_PINNED_SETS; i++) s->b->gpu->free_staging(s->pinned[i]);
    memset(s, 0, sizeof *s);
}

/* ---- where a fault is ----------------------------------------------------------------------------- */

void exf_fault_prefix_row(exf_err *err, const exf_batch *batch, size_t row, int block, int token)
{
    if (!batch || batch->n_sequences == 0) {
        exf_err_prefix(err, "token %zu of the run: ", row);
        return;
    }
    size_t sequence = exf_sequence_of(batch, 0, row), position = row - batch->span[sequence].offset;
    size_t in_block = position % (size_t)block;
    if (token) exf_err_prefix(err, "token %zu: ", in_block);
    exf_err_prefix(err, "sequence %zu, block at position %zu: ", sequence, position - in_block);
}

/* ---- what cannot be ---------------------------------------------------------------------------------- */

enum { PATH_LEN = 96 };

/* By the rules of artifact/data.h. */
exf_code exf_pairs_check_layer(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err)
{
    const exf_statistics_reader *r = read->r;
    int layer = read->layer;
    char pairs[PATH_LEN], experts[PATH_LEN];
    snprintf(pairs, sizeof pairs, "/layers/%d/count[", layer);
    snprintf(experts, sizeof experts, "/layers/%d/norm_count[", layer);
    exf_layer_counts c = {.path = exf_h5_path(r->h), .layer = layer, .pairs = pairs, .experts = experts, .run = &r->shape,
                          .common = r->common, .count = s->count, .expert_count = s->norm_count, .empty_slots = *s->empty_slots};
    return exf_counts_check(&c, err);
}

/* ---- the chapter ------------------------------------------------------------------------------------ */

uint64_t exf_pairs_device_bytes(const exf_backend *b, const exf_run_shape *s, const exf_accumulate_options *o)
{
    int e = (int)s->n_experts, common_input = o->common_input_tokens > 0;
    return b->gpu->layer_sums_bytes(e) + (common_input ? gram_bytes(b, e) : 0) +
           (o->cross_check ? exf_cross_check_bytes(e, (int)s->top_k, common_input) : 0);
}

/* Of common input pairs are another chapter's. */
exf_code exf_pairs_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    const exf_layer_statistics *s = &a->sums[b->worker];
    exf_layer_sums m = exf_layer_sums_of(s);
    exf_code rc = EXF_OK;
    if (b->q) {
        a->device.sq = a->device_norms.sq; /* the norm head reads these squared norms */
        exf_device_sums_add(&a->device, b);
        return EXF_OK;
    }
    if (a->options.common_input_tokens)
        return exf_layer_sums_add_experts_cpu(&m, b->top_k, b->d_model, b->n_tokens, b->expert_outputs, b->topk_ids,
                                              b->topk_weights, err);
    EXF_TRY(exf_sequences_enter_block(a, b, err));
    rc = exf_layer_sums_add_cpu(&m, s->n_experts, b->top_k, b->d_model, b->n_tokens, b->expert_outputs, b->grams,
                                b->topk_ids, b->topk_weights, a->options.weighting,
                                a->scratch + (size_t)b->worker * a->scratch_each, err);
out:
    return rc;
}

/* device_sums.c - what a pass on a GPU adds up in device memory; see device_sums.h. */
#include "accumulate/device_sums.h"

#include "base/mem.h"

#include <string.h>

/* ---- layer sums --------------------------------------------------------------------------------- */

static size_t gram_bytes(const exf_backend *b, int n_experts)
{
    return b->gpu->gram_matrices_bytes(n_experts, exf_gram_tokens(n_experts));
}

uint64_t exf_device_sums_bytes(const exf_backend *b, int n_experts, int common_input)
{
    return b->gpu->layer_sums_bytes(n_experts) + (common_input ? gram_bytes(b, n_experts) : 0);
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

exf_code exf_device_sums_check(exf_device_sums *s, int top_k, int d_model, exf_err *err)
{
    return exf_cross_check_open(&s->check, s->b, s->n_experts, top_k, d_model, s->common_input, s->weighting, err);
}

exf_code exf_device_sums_pin(exf_device_sums *s, int i, exf_layer_statistics *to, exf_err *err)
{
    exf_code rc = s->b->gpu->alloc_staging(&s->pinned[i], exf_layer_statistics_bytes(s->n_experts), "statistics", err);
    if (rc == EXF_OK) exf_layer_statistics_move(to, s->pinned[i]);
    return rc;
}

/* Queues the terms of tokens [at, at + n) of the block; part: the checked one that they are, or NULL. */
static void add_tokens(exf_device_sums *s, const exf_moe_block *b, size_t at, int n, exf_checked_part *part)
{
    size_t slot = at * (size_t)b->top_k;
    exf_matrix outputs = {b->expert_outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32};
    exf_layer_sums_call c = {.n_experts = b->n_experts, .top_k = b->top_k, .d_model = b->d_model, .n_tokens = n,
                          .outputs = exf_matrix_at(outputs, slot * (size_t)b->d_model), .ids = b->topk_ids + slot,
                          .weights = b->topk_weights + slot, .weighting = s->weighting, .experts_only = s->common_input,
                          .sq = s->sq ? s->sq + slot : NULL, .row = (int64_t)(b->row + at)};
    if (part) exf_cross_check_before(&s->check, part, b->q, s->sums, &c);
    s->b->gpu->layer_sums_add(b->q, s->sums, &c);
    if (part) exf_cross_check_after(&s->check, part, b->q, s->sums);
}

static void add_part(exf_device_sums *s, const exf_moe_block *b, size_t at, int n)
{
    while (n > 0) {
        exf_checked_part *part;
        int now = exf_cross_check_next(&s->check, b, at, n, &part);
        add_tokens(s, b, at, now, part);
        at += (size_t)now;
        n -= now;
    }
}

/* Queues what ends or begins a run of sequences of one half, before terms of a sequence. */
static void enter_sequence(exf_device_sums *s, exf_queue *q, size_t sequence)
{
    int in_half = exf_sequence_half(s->sequences, s->first_sequence + sequence);
    if (in_half != s->in_half) s->b->gpu->layer_sums_turn_half(q, s->sums, s->n_experts, s->in_half);
    s->in_half = in_half;
}

void exf_device_sums_add(exf_device_sums *s, const exf_moe_block *b)
{
    s->q = b->q;
    s->batch = b->batch;
    if (!s->sequences || s->common_input) {
        add_part(s, b, 0, b->n_tokens);
        return;
    }
    if (b->row != s->next_row) s->out_of_order = 1;
    s->next_row = b->row + (size_t)b->n_tokens;
    for (size_t at = 0, n = (size_t)b->n_tokens; at < n;) {
        size_t sequence = exf_sequence_of(b->batch, 0, b->row + at);
        const exf_span *span = &b->batch->span[sequence];
        size_t left = span->offset + (size_t)span->n_tokens - b->row - at, part = left < n - at ? left : n - at;
        enter_sequence(s, b->q, sequence);
        add_part(s, b, at, (int)part);
        if (part == left) s->b->gpu->layer_sums_close_sequence(b->q, s->sums, s->n_experts, EXF_SEQUENCE_SCALE, sequence);
        at += part;
    }
}

/* Queues the terms of part i of common input; where the CPU checks its first unit, a call of its own adds that unit, which
 * changes no bit. */
static void add_common(exf_device_sums *s, const exf_common_input_block *b, int i, exf_common_input_call c)
{
    exf_checked_part *part = exf_cross_check_next_common(&s->check, b, i);
    exf_common_input_call unit = c;
    if (part) {
        unit.n_tokens = part->n_tokens;
        exf_cross_check_before_common(&s->check, part, b->q, s->sums, &unit);
        s->b->gpu->layer_sums_add_common_input(b->q, s->sums, &unit);
        exf_cross_check_after(&s->check, part, b->q, s->sums);
        c.first += unit.n_tokens;
        c.n_tokens -= unit.n_tokens;
        c.row += unit.n_tokens;
    }
    if (c.n_tokens) s->b->gpu->layer_sums_add_common_input(b->q, s->sums, &c);
}

void exf_device_sums_add_common_input(exf_device_sums *s, const exf_common_input_block *b)
{
    exf_gram_call g = {.n_experts = b->n_experts, .d_model = b->d_model, .n_products = b->n_tokens,
                        .outputs = {b->outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, .gram_matrices = s->gram_matrices};
    s->q = b->q;
    s->b->gpu->gram_matrices(b->q, &g);
    for (int i = 0; i < b->n_parts; i++) {
        const exf_common_input_part *p = &b->part[i];
        exf_common_input_call c = {.of = &g, .first = p->first, .n_tokens = p->n_tokens, .weighting = s->weighting,
                                   .row = b->device_row + p->first,
                             .row_offset = (int64_t)b->row_offset};
        if (s->sequences) enter_sequence(s, b->q, p->sequence);
        add_common(s, b, i, c);
        if (p->ends && s->sequences)
            s->b->gpu->layer_sums_close_sequence(b->q, s->sums, s->n_experts, EXF_SEQUENCE_SCALE, p->sequence);
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

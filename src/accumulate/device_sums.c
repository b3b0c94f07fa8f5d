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
    EXF_TRY(b->gpu->alloc_staging(&s->host, exf_layer_sums_host_bytes(n_experts), "statistics", err));
    if (common_input) EXF_TRY(b->alloc(&s->gram_matrices, gram_bytes(b, n_experts), 1, "products of common input", err));
out:
    return rc;
}

/* Queues the terms of tokens [at, at + n) of the block. */
static void add_part(const exf_device_sums *s, const exf_device_block *b, size_t at, int n)
{
    size_t slot = at * (size_t)b->top_k;
    exf_matrix outputs = {b->expert_outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32};
    exf_layer_sums_call c = {.n_experts = b->n_experts, .top_k = b->top_k, .d_model = b->d_model, .n_tokens = n,
                          .outputs = exf_matrix_at(outputs, slot * (size_t)b->d_model), .ids = b->topk_ids + slot,
                          .weights = b->topk_weights + slot, .weighting = s->weighting, .experts_only = s->common_input,
                          .row = (int64_t)(b->row + at)};
    s->b->gpu->layer_sums_add(b->q, s->sums, &c);
}

/* Queues what ends or begins a run of sequences of one half, before terms of a sequence. */
static void enter_sequence(exf_device_sums *s, exf_queue *q, size_t sequence)
{
    int in_half = exf_sequence_half(s->sequences, s->first_sequence + sequence);
    if (in_half != s->in_half) s->b->gpu->layer_sums_turn_half(q, s->sums, s->n_experts, s->in_half);
    s->in_half = in_half;
}

void exf_device_sums_add(exf_device_sums *s, const exf_device_block *b)
{
    s->q = b->q;
    s->batch = b->batch;
    if (!s->sequences || s->common_input) {
        add_part(s, b, 0, b->n_tokens);
        return;
    }
    if (b->row == 0) s->sequence = 0;
    for (size_t at = 0, n = (size_t)b->n_tokens; at < n;) {
        const exf_span *span = &b->batch->span[s->sequence];
        size_t left = span->offset + (size_t)span->n_tokens - b->row - at, part = left < n - at ? left : n - at;
        enter_sequence(s, b->q, s->sequence);
        add_part(s, b, at, (int)part);
        if (part == left) s->b->gpu->layer_sums_close_sequence(b->q, s->sums, s->n_experts, EXF_SEQUENCE_SCALE, s->sequence++);
        at += part;
    }
}

void exf_device_sums_add_common_input(exf_device_sums *s, const exf_device_common_input *b)
{
    exf_gram_call g = {.n_experts = b->n_experts, .d_model = b->d_model, .n_products = b->n_tokens,
                        .outputs = {b->outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, .gram_matrices = s->gram_matrices};
    s->q = b->q;
    s->b->gpu->gram_matrices(b->q, &g);
    for (int i = 0; i < b->n_parts; i++) {
        const exf_common_input_part *p = &b->part[i];
        exf_common_input_call c = {.of = &g, .first = p->first, .n_tokens = p->n_tokens, .weighting = s->weighting,
                                   .row = b->row + p->first,
                             .row_offset = (int64_t)b->row_offset};
        if (s->sequences) enter_sequence(s, b->q, p->sequence);
        s->b->gpu->layer_sums_add_common_input(b->q, s->sums, &c);
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
    if (s->q && s->in_half) s->b->gpu->layer_sums_turn_half(s->q, s->sums, s->n_experts, 1);
    s->in_half = 0;
    if (s->q) rc = s->b->gpu->layer_sums_take(s->q, s->sums, &m, s->sequences ? &over : NULL, s->n_experts, s->host, &bad, err);
    if (bad.row >= 0) exf_fault_prefix_row(err, s->batch, (size_t)bad.row, EXF_MOE_BLOCK, 1);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, ", layer);
    s->q = NULL;
    return rc;
}

void exf_device_sums_free(exf_device_sums *s)
{
    if (s->b) s->b->free(s->sums);
    if (s->b) s->b->free(s->gram_matrices);
    if (s->b) s->b->gpu->free_staging(s->host);
    memset(s, 0, sizeof *s);
}

/* ---- where a fault is ----------------------------------------------------------------------------- */

/* Returns the sequence of a row: the last one that begins at or before it. */
static size_t sequence_of(const exf_batch *batch, size_t row)
{
    size_t lo = 0, hi = batch->n_sequences;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (batch->span[mid].offset <= row) lo = mid;
        else hi = mid;
    }
    return lo;
}

void exf_fault_prefix_row(exf_err *err, const exf_batch *batch, size_t row, int block, int token)
{
    if (!batch || batch->n_sequences == 0) {
        exf_err_prefix(err, "token %zu of the run: ", row);
        return;
    }
    size_t sequence = sequence_of(batch, row), position = row - batch->span[sequence].offset, in_block = position % (size_t)block;
    if (token) exf_err_prefix(err, "token %zu: ", in_block);
    exf_err_prefix(err, "sequence %zu, block at position %zu: ", sequence, position - in_block);
}

/* ---- diagonal sums ------------------------------------------------------------------------------- */

uint64_t exf_device_diagonal_bytes(uint64_t pairs, int top_k, int d_model)
{
    uint64_t h = (uint64_t)d_model;
    return pairs * (2 * h * (sizeof(exf_exact) + sizeof(double)) + 2 * sizeof(int32_t)) +
           (uint64_t)EXF_MOE_BLOCK * (uint64_t)top_k * sizeof(double) + sizeof(exf_sums_fault);
}

exf_code exf_device_diagonal_open(exf_device_diagonal *s, const exf_backend *b, size_t pairs, int top_k, int d_model,
                                  exf_weighting weighting, exf_err *err)
{
    size_t n = pairs * (size_t)d_model;
    exf_code rc;
    *s = (exf_device_diagonal){.b = b, .d_model = d_model, .weighting = weighting, .pairs = pairs};
    EXF_TRY(b->alloc(&s->to.vu, n, sizeof *s->to.vu, "diagonal sums", err));
    EXF_TRY(b->alloc(&s->to.vv, n, sizeof *s->to.vv, "diagonal sums", err));
    EXF_TRY(b->alloc(&s->to.open, 2 * n, sizeof *s->to.open, "diagonal sums", err));
    EXF_TRY(b->alloc(&s->to.bad, 1, sizeof *s->to.bad, "diagonal sums", err));
    EXF_TRY(b->alloc(&s->pair, pairs, 2 * sizeof *s->pair, "diagonal sums", err));
    EXF_TRY(b->alloc(&s->root, (size_t)EXF_MOE_BLOCK * (size_t)top_k, sizeof *s->root, "diagonal sums", err));
    EXF_TRY(b->gpu->alloc_staging(&s->host, 2 * n * sizeof *s->host, "diagonal sums", err));
    s->to.pair = s->pair;
out:
    return rc;
}

void exf_device_diagonal_free(exf_device_diagonal *s)
{
    void *device_arrays[] = {s->to.vu, s->to.vv, s->to.open, s->to.bad, s->pair, s->root};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    if (s->b) s->b->gpu->free_staging(s->host);
    memset(s, 0, sizeof *s);
}

void exf_device_diagonal_begin(exf_device_diagonal *s, const exf_vector_sums *sums)
{
    s->to.n_pairs = (int)sums->n_pairs;
    s->pair_host = sums->pair;
    s->q = NULL;
}

/* Adds tokens [at, at + n) of the block, all of one unit; begins, ends: they are the unit's first, last. */
static void add_to_diagonal(const exf_device_diagonal *s, const exf_device_block *b, size_t at, int n, int begins, int ends)
{
    size_t slot = at * (size_t)b->top_k;
    exf_matrix outputs = {b->expert_outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32};
    exf_diagonal_call c = {.top_k = b->top_k, .d_model = b->d_model, .n_tokens = n,
                           .outputs = exf_matrix_at(outputs, slot * (size_t)b->d_model),
                           .ids = b->topk_ids + slot, .weights = b->topk_weights + slot, .weighting = s->weighting, .root = s->root,
                           .begins = begins, .ends = ends, .row = (int64_t)(b->row + at)};
    s->b->gpu->diagonal_add(b->q, &s->to, &c);
}

void exf_device_diagonal_add(exf_device_diagonal *s, const exf_device_block *b)
{
    if (s->to.n_pairs == 0) return;
    if (!s->q) { /* the layer's first block */
        size_t pairs = (size_t)s->to.n_pairs, bytes = pairs * (size_t)s->d_model * sizeof(exf_exact);
        s->b->upload(b->q, s->pair, s->pair_host, pairs * 2 * sizeof *s->pair);
        s->b->zero(b->q, s->to.vu, bytes);
        s->b->zero(b->q, s->to.vv, bytes);
        s->b->zero(b->q, s->to.bad, sizeof *s->to.bad);
        s->q = b->q;
        s->sequence = 0;
    }
    s->batch = b->batch;
    for (size_t at = 0, end = (size_t)b->n_tokens, n; at < end; at += n) {
        const exf_span *span = &b->batch->span[s->sequence];
        size_t position = b->row + at - span->offset, length = (size_t)span->n_tokens, into = position % EXF_MOE_BLOCK;
        size_t left = length - position < EXF_MOE_BLOCK - into ? length - position : EXF_MOE_BLOCK - into; /* rows in the unit */
        n = left < end - at ? left : end - at;
        add_to_diagonal(s, b, at, (int)n, into == 0, n == left);
        if (position + n == length) s->sequence++;
    }
}

exf_code exf_device_diagonal_take(exf_device_diagonal *s, exf_vector_sums *sums, exf_err *err)
{
    size_t n = (size_t)s->to.n_pairs * (size_t)s->d_model, bytes = n * sizeof(exf_exact);
    exf_sums_fault bad = {0};
    exf_code rc = EXF_OK;
    if (sums->n_pairs) {
        sums->borrowed = 1;
        sums->vu = s->host;
        sums->vv = s->host + n;
    }
    if (!s->q) {
        memset(s->host, 0, 2 * bytes); /* no block came */
        return EXF_OK;
    }
    EXF_TRY(s->b->download(s->q, &bad, s->to.bad, sizeof bad, err));
    if (bad.place) {
        const int32_t *pair = sums->pair + 2 * (size_t)bad.a;
        rc = exf_vector_fault(err, pair[0], pair[1], bad.x);
        exf_fault_prefix_row(err, s->batch, (size_t)~bad.place, EXF_MOE_BLOCK, 0);
        goto out;
    }
    EXF_TRY(s->b->download(s->q, sums->vu, s->to.vu, bytes, err));
    rc = s->b->download(s->q, sums->vv, s->to.vv, bytes, err);
out:
    s->q = NULL;
    return rc;
}

/* ---- samples of the low-rank basis ------------------------------------------------------------------- */

static const size_t batch_bytes = (size_t)16 << 20; /* bytes of rows fetched at a time */

static size_t slots_at_once(int d_model)
{
    size_t most = batch_bytes / ((size_t)d_model * sizeof(float)) / 2 * 2;
    return most < 2 ? 2 : most > 4096 ? 4096 : most;
}

uint64_t exf_device_samples_bytes(int d_model)
{
    return slots_at_once(d_model) * (2 * (uint64_t)d_model * sizeof(float) + 2 * sizeof(int32_t));
}

exf_code exf_device_samples_open(exf_device_samples *s, const exf_backend *b, int d_model, exf_err *err)
{
    size_t n = slots_at_once(d_model), h = (size_t)d_model;
    exf_code rc;
    *s = (exf_device_samples){.b = b, .d_model = d_model, .cap = (int)n};
    EXF_TRY(b->alloc(&s->slot, n, sizeof *s->slot, "samples", err));
    EXF_TRY(b->alloc(&s->ids, n, sizeof *s->ids, "samples", err));
    EXF_TRY(b->alloc(&s->raw, n * h, sizeof *s->raw, "samples", err));
    EXF_TRY(b->alloc(&s->rows, n * h, sizeof *s->rows, "samples", err));
    EXF_TRY(exf_mem_new(&s->slot_host, n, sizeof *s->slot_host, "samples", err));
    EXF_TRY(exf_mem_new(&s->ids_host, n, sizeof *s->ids_host, "samples", err));
    EXF_TRY(exf_mem_new(&s->rows_host, n * h, sizeof *s->rows_host, "samples", err));
    EXF_TRY(exf_mem_new(&s->sample, n / 2, sizeof *s->sample, "samples", err));
out:
    return rc;
}

void exf_device_samples_free(exf_device_samples *s)
{
    void *device_arrays[] = {s->slot, s->ids, s->raw, s->rows},
         *host_arrays[] = {s->slot_host, s->ids_host, s->rows_host, s->sample};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    for (size_t i = 0; i < sizeof host_arrays / sizeof *host_arrays; i++) exf_mem_free(host_arrays[i]);
    memset(s, 0, sizeof *s);
}

/* Copies the n slots' rows and experts to the host. gather_rows() copies bits, so ids pass as floats. */
static exf_code fetch_rows(const exf_device_samples *s, const exf_device_block *b, int n, exf_err *err)
{
    const exf_backend *k = s->b;
    size_t count = (size_t)n, h = (size_t)s->d_model;
    exf_code rc;
    k->upload(b->q, s->slot, s->slot_host, count * sizeof *s->slot);
    k->gather_rows(b->q, (float *)(void *)s->ids, (const float *)(const void *)b->topk_ids, s->slot, n, 1);
    if (b->rounded) { /* two bfloat16 per float; rounded outputs have even width (moe.h) */
        k->gather_rows(b->q, s->raw, b->expert_outputs, s->slot, n, s->d_model / 2);
        k->gpu->widen(b->q, s->rows, (const uint16_t *)(const void *)s->raw, count * h);
    } else {
        k->gather_rows(b->q, s->rows, b->expert_outputs, s->slot, n, s->d_model);
    }
    EXF_TRY(k->download(b->q, s->ids_host, s->ids, count * sizeof *s->ids, err));
    rc = k->download(b->q, s->rows_host, s->rows, count * h * sizeof *s->rows, err);
out:
    return rc;
}

static exf_code keep_samples(const exf_device_samples *s, const exf_sampler *to, const exf_device_block *b, int n, exf_err *err)
{
    size_t h = (size_t)s->d_model;
    exf_code rc = fetch_rows(s, b, 2 * n, err);
    for (int k = 0; rc == EXF_OK && k < n; k++) {
        size_t i = s->sample[k];
        memcpy(to->source + i * h, s->rows_host + (size_t)(2 * k) * h, h * sizeof *to->source);
        memcpy(to->target + i * h, s->rows_host + (size_t)(2 * k + 1) * h, h * sizeof *to->target);
        memcpy(to->pair + 2 * i, s->ids_host + 2 * k, 2 * sizeof *to->pair);
    }
    return rc;
}

exf_code exf_device_samples_keep(exf_device_samples *s, const exf_sampler *to, const exf_device_block *b, exf_err *err)
{
    int n = 0;
    size_t first = to->first_row + b->row;
    for (size_t at = exf_smallest_keys_first(&to->keys, first); at < to->n; at++) {
        size_t i = to->keys.by_row[at], row = to->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        int32_t slot = (int32_t)((row - first) * (size_t)b->top_k);
        s->sample[n] = i;
        s->slot_host[2 * n] = slot + to->slot[2 * i];
        s->slot_host[2 * n + 1] = slot + to->slot[2 * i + 1];
        if (2 * ++n < s->cap) continue;
        exf_code rc = keep_samples(s, to, b, n, err);
        if (rc != EXF_OK) return rc;
        n = 0;
    }
    return n ? keep_samples(s, to, b, n, err) : EXF_OK;
}

/* accumulate_record_rows.c - the rows of a recording: each is checked, noted, so that none counts twice, and shown to its layer's
 * sums. */
#include "accumulate/accumulate_record_internal.h"

#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 32 }; /* that are widened from bfloat16 */

int exf_recorded_status(exf_code rc, const exf_err *err, char *message, size_t size)
{
    if (rc != EXF_OK && message && size) snprintf(message, size, "%s", err->msg);
    return (int)rc;
}

static int by_number(const void *a, const void *b)
{
    int32_t x = ((const recorded_layer *)a)->number, y = ((const recorded_layer *)b)->number;
    return (x > y) - (x < y);
}

/* Refuses a row that cannot be, before anything is added. */
static exf_code check_row(const exf_record *r, const recorded_layer *l, const exf_record_block *b, int i, exf_err *err)
{
    const recorded_part *p = &r->part[r->n_parts];
    int k = (int)r->shape.top_k, sequence = b->sequence[i], position = b->position[i];
    const int32_t *ids = b->ids + (size_t)i * (size_t)k;
    if (sequence < 0 || (size_t)sequence >= p->sequences.n)
        return exf_fail(err, EXF_USAGE, "row %d is of sequence %d, the part has %zu", i, sequence, p->sequences.n);
    if (position < 0 || position >= p->sequences.length[sequence])
        return exf_fail(err, EXF_USAGE, "row %d is of token %d of sequence %d, which has %d", i, position, sequence,
                        (int)p->sequences.length[sequence]);
    if (l->seen[r->first[sequence] + (size_t)position])
        return exf_fail(err, EXF_USAGE, "token %d of sequence %d was added before", position, sequence);
    for (int s = 0; s < k; s++) {
        int again = 0;
        for (int t = 0; t < s; t++) again |= ids[s] >= 0 && ids[t] == ids[s];
        if (ids[s] < -1 || ids[s] >= r->shape.n_experts || again)
            return exf_fail(err, EXF_USAGE, "token %d of sequence %d: expert %d %s", position, sequence, (int)ids[s],
                            again ? "is named twice" : "is none of the layer's");
        if (!isfinite(b->weights[(size_t)i * (size_t)k + (size_t)s]))
            return exf_fail(err, EXF_NUMERIC, "token %d of sequence %d: the weight of expert %d is not finite", position, sequence,
                            (int)ids[s]);
    }
    return EXF_OK;
}

/* Checks all rows and notes them; of a block that is refused nothing is noted. */
static exf_code note_rows(const exf_record *r, recorded_layer *l, const exf_record_block *b, exf_err *err)
{
    exf_code rc = EXF_OK;
    int n = 0;
    for (; rc == EXF_OK && n < b->n; n += rc == EXF_OK) {
        rc = check_row(r, l, b, n, err);
        if (rc == EXF_OK) l->seen[r->first[b->sequence[n]] + (size_t)b->position[n]] = 1;
    }
    if (rc == EXF_OK) l->missing -= (uint64_t)b->n;
    while (rc != EXF_OK && n--) l->seen[r->first[b->sequence[n]] + (size_t)b->position[n]] = 0;
    return rc;
}

/* Shows rows [at, at + n), which follow each other in one sequence, to the layer's sums; grams: the inner products of all rows, or
 * NULL; wide: memory for n rows of outputs in float32. */
static exf_code show_rows(const exf_record *r, const recorded_layer *l, const exf_record_block *b, const double *grams, int at,
                          int n, float *wide, exf_err *err)
{
    const exf_observer *o = exf_accumulator_observer(l->sums);
    size_t k = (size_t)r->shape.top_k, slot = (size_t)at * k, each = k * (size_t)r->shape.d_model;
    size_t sequence = (size_t)b->sequence[at];
    const float *outputs = grams ? NULL : wide;
    if (b->is_bf16 && !grams) {
        const uint16_t *from = (const uint16_t *)b->outputs + (size_t)at * each;
        for (size_t i = 0; i < (size_t)n * each; i++) {
            uint32_t bits = (uint32_t)from[i] << 16;
            memcpy(&wide[i], &bits, sizeof bits);
        }
    } else if (!grams) {
        outputs = (const float *)b->outputs + (size_t)at * each;
    }
    exf_moe_block block = {.layer = l->number, .row = r->first[sequence] + (size_t)b->position[at], .sequence = sequence,
                           .position = b->position[at], .n_tokens = n, .n_experts = (int)r->shape.n_experts, .top_k = (int)k,
                           .d_model = (int)r->shape.d_model, .router_ids = b->ids + slot, .router_weights = b->weights + slot,
                           .topk_ids = b->ids + slot, .topk_weights = b->weights + slot, .expert_outputs = outputs,
                           .grams = grams ? grams + slot * k : NULL, .stream_sq = b->stream_sq ? b->stream_sq + at : NULL};
    exf_code rc = o->block(o->self, &block, err);
    if (rc != EXF_OK) exf_err_prefix(err, "sequence %zu, tokens from %d on: ", sequence, b->position[at]);
    return rc;
}

static exf_code add_rows(const exf_record *r, recorded_layer *l, const exf_record_block *b, const double *grams, exf_err *err)
{
    float *wide = NULL;
    exf_code rc;
    if (l->failed.code != EXF_OK) {
        *err = l->failed;
        return err->code;
    }
    if (b->is_bf16 && !grams)
        EXF_TRY(exf_mem_raw(&wide, (size_t)(ROWS_AT_ONCE * r->shape.top_k * r->shape.d_model), sizeof *wide, "outputs", err));
    EXF_TRY(note_rows(r, l, b, err));
    for (int at = 0, n; rc == EXF_OK && at < b->n; at += n) {
        for (n = 1; n < ROWS_AT_ONCE && at + n < b->n; n++) /* that follow each other in one sequence */
            if (b->sequence[at + n] != b->sequence[at] || b->position[at + n] != b->position[at] + n) break;
        rc = show_rows(r, l, b, grams, at, n, wide, err);
    }
    if (rc != EXF_OK) l->failed = *err;
out:
    exf_mem_free(wide);
    return rc;
}

int exf_record_reads_cuda(void)
{
    return exf_built_with_cuda();
}

/* Rows that lay in CUDA memory. */
typedef struct {
    int32_t *ids;
    float *weights;
    double *stream_sq, *grams; /* grams NULL: the block is in host memory */
} fetched_rows;

/* Fetches a block's rows from CUDA memory, the inner products in place of the outputs, and points *b to them. */
static exf_code fetch_rows(const exf_record *r, exf_record_block *b, fetched_rows *f, exf_err *err)
{
    size_t n = (size_t)b->n, k = (size_t)r->shape.top_k;
    exf_grams_call c = {.top_k = (int)k, .d_model = (int)r->shape.d_model, .n_tokens = b->n,
                        .outputs = {b->outputs, b->is_bf16 ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, .ids = b->ids,
                        .weights = b->weights, .stream_sq = b->stream_sq, .stream = b->stream};
    exf_code rc;
    EXF_TRY(exf_mem_raw(&f->ids, n * k, sizeof *f->ids, "rows", err));
    EXF_TRY(exf_mem_raw(&f->weights, n * k, sizeof *f->weights, "rows", err));
    EXF_TRY(exf_mem_raw(&f->stream_sq, n, sizeof *f->stream_sq, "rows", err));
    EXF_TRY(exf_mem_raw(&f->grams, n * k * k, sizeof *f->grams, "inner products", err));
    c.grams = f->grams;
    b->ids = c.host_ids = f->ids;
    b->weights = c.host_weights = f->weights;
    c.host_stream_sq = f->stream_sq;
    if (b->stream_sq) b->stream_sq = f->stream_sq;
    rc = exf_layer_sums_grams_cuda(&c, err);
out:
    return rc;
}

int exf_record_add(exf_record *r, const exf_record_block *given, char *message, size_t size)
{
    exf_err e;
    exf_err *err = &e;
    fetched_rows fetched = {.ids = NULL};
    exf_code rc = EXF_OK;
    if (given->size != sizeof *given) {
        rc = exf_fail(err, EXF_USAGE, "exf_record_block has %zu bytes, this library expects %zu: build both of one header",
                      given->size, sizeof *given);
        return exf_recorded_status(rc, err, message, size);
    }
    exf_record_block b = *given; /* fetched rows take the place of its own */
    recorded_layer key = {.number = b.layer}, *l = bsearch(&key, r->layer, (size_t)r->n_layers, sizeof *l, by_number);
    if (!r->under_way)
        rc = exf_fail(err, EXF_USAGE, "rows of layer %d come between parts; begin one first", (int)b.layer);
    else if (!l)
        rc = exf_fail(err, EXF_USAGE, "layer %d is none of the recorded ones", (int)b.layer);
    if (rc != EXF_OK) return exf_recorded_status(rc, err, message, size);
    if (b.is_cuda) rc = fetch_rows(r, &b, &fetched, err);
    if (rc == EXF_OK) {
        pthread_mutex_lock(&l->lock);
        rc = add_rows(r, l, &b, fetched.grams, err);
        pthread_mutex_unlock(&l->lock);
    }
    exf_mem_free(fetched.ids);
    exf_mem_free(fetched.weights);
    exf_mem_free(fetched.stream_sq);
    exf_mem_free(fetched.grams);
    if (rc != EXF_OK) exf_err_prefix(err, "layer %d: ", (int)b.layer);
    return exf_recorded_status(rc, err, message, size);
}

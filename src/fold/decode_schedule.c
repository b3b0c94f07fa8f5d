/* decode_schedule.c - see decode_schedule.h. */
#include "fold/decode_schedule.h"

#include "base/mem.h"

#include <string.h>

int exf_decode_schedule_prefill(const exf_decode_schedule *s, int n)
{
    return s->prefill_tokens == 0 || s->prefill_tokens > n ? n : s->prefill_tokens;
}

/* Returns the index after the last sequence of the batch that starts at `from`, and its longest sequence. */
static size_t end_of(const exf_batch *batch, const size_t *batch_of, size_t from, int *longest)
{
    size_t to = from;
    *longest = 0;
    for (; to < batch->n_sequences && batch_of[to] == batch_of[from]; to++)
        if (batch->span[to].n_tokens > *longest) *longest = batch->span[to].n_tokens;
    return to;
}

/* Adds steps and rows of one batch; only counts if s->row is NULL. */
static void add_batch(exf_decode_schedule *s, size_t from, size_t to, int longest, size_t *rows)
{
    for (int q = s->prefill_tokens; q < longest; q++) {
        if (s->first) s->first[s->n_steps] = *rows;
        s->n_steps++;
        for (size_t i = from; i < to; i++) {
            if (q >= s->batch->span[i].n_tokens) continue;
            if (s->row) s->row[*rows] = s->batch->span[i].offset + (size_t)q;
            ++*rows;
        }
    }
    s->n_batches++;
    if ((int)(to - from) > s->widest) s->widest = (int)(to - from);
}

static size_t walk(exf_decode_schedule *s, const size_t *batch_of)
{
    size_t rows = 0;
    s->n_batches = s->n_steps = 0;
    s->widest = 0;
    for (size_t from = 0, to; from < s->batch->n_sequences; from = to) {
        int longest;
        to = end_of(s->batch, batch_of, from, &longest);
        add_batch(s, from, to, longest, &rows);
    }
    return rows;
}

exf_code exf_decode_schedule_new(exf_decode_schedule *s, const exf_batch *batch, const size_t *batch_of, int prefill_tokens,
                                 int threads, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    s->batch = batch;
    s->prefill_tokens = prefill_tokens;
    s->threads = threads;
    size_t rows = walk(s, batch_of);
    EXF_TRY(exf_mem_new(&s->first, s->n_steps + 1, sizeof *s->first, "decode steps", err));
    EXF_TRY(exf_mem_new(&s->row, rows, sizeof *s->row, "decode steps", err));
    s->first[s->n_steps] = rows;
    walk(s, batch_of);
out:
    if (rc != EXF_OK) exf_decode_schedule_free(s);
    return rc;
}

void exf_decode_schedule_free(exf_decode_schedule *s)
{
    exf_mem_free(s->first);
    exf_mem_free(s->row);
    memset(s, 0, sizeof *s);
}

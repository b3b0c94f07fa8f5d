/* recorded_stage.c - see recorded_stage.h. */
#include "moe/recorded_stage.h"

#include "base/thread_pool.h"

#include <string.h>

enum { ROWS = 512 }; /* rows that a thread reads at a time */

uint64_t exf_recorded_stage_bytes(size_t rows, size_t width)
{
    return 2 * (uint64_t)rows * width * sizeof(float);
}

exf_code exf_recorded_stage_open(exf_recorded_stage *s, const exf_backend *b, exf_compute compute, size_t rows, size_t width,
                                 int threads, exf_err *err)
{
    exf_code rc;
    *s = (exf_recorded_stage){.b = b, .width = width, .threads = threads > 0 ? threads : exf_default_threads()};
    EXF_TRY(b->open(&s->q, compute, err));
    for (int i = 0; i < 2; i++) {
        EXF_TRY(b->gpu->alloc_staging(&s->host[i], rows * width * sizeof(float), "recorded hidden states", err));
        EXF_TRY(b->alloc(&s->device[i], rows * width, sizeof(float), "recorded hidden states", err));
    }
out:
    return rc;
}

void exf_recorded_stage_close(exf_recorded_stage *s)
{
    if (!s->b) return;
    s->b->close(s->q); /* waits for its uploads */
    for (int i = 0; i < 2; i++) {
        s->b->gpu->free_staging(s->host[i]);
        s->b->free(s->device[i]);
    }
    memset(s, 0, sizeof *s);
}

/* Rows of one block, read in parts. */
typedef struct {
    const exf_recorded *r;
    int layer;
    size_t row, n, width;
    float *to;
} reading;

static exf_code read_part(void *self, size_t i, int worker, exf_err *err)
{
    const reading *k = self;
    size_t at = i * ROWS, n = k->n - at < ROWS ? k->n - at : ROWS;
    (void)worker;
    return k->r->input(k->r->self, k->layer, k->row + at, n, k->to + at * k->width, err);
}

exf_code exf_recorded_stage_send(exf_recorded_stage *s, const exf_recorded *r, int layer, size_t row, size_t n, exf_queue *q,
                                 float **out, exf_err *err)
{
    size_t buffer = s->n_blocks++ % 2;
    reading k = {r, layer, row, n, s->width, s->host[buffer]};
    exf_code rc;
    EXF_TRY(s->b->finish(s->q, err)); /* the upload before the last has left this buffer */
    EXF_TRY(exf_parallel_for((n + ROWS - 1) / ROWS, s->threads, read_part, &k, err));
    s->b->upload(s->q, s->device[buffer], s->host[buffer], n * s->width * sizeof(float));
    s->b->gpu->wait_for(q, s->q);
    s->b->gpu->wait_for(s->q, q); /* the next upload waits for work queued so far, which read the other buffer */
    *out = s->device[buffer];
out:
    return rc;
}

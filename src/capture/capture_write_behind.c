/* capture_write_behind.c - see capture_write_behind.h. */
#include "capture/capture_write_behind.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>

enum { N_SLOTS = 2 };

typedef struct {
    int layer;
    int64_t row, n;
    int32_t *ids;
    float *weights, *outputs;
    double *stream_sq;
} slot;

struct exf_capture_write_behind {
    exf_capture_file *file;
    int64_t rows;
    slot slots[N_SLOTS];    /* a ring */
    size_t filled, written; /* blocks so far; filled - written <= N_SLOTS */
    pthread_mutex_t lock, filling; /* filling: a slot is filled by one caller at a time */
    pthread_cond_t moved;
    pthread_t thread;
    int started, quit;
    exf_err err; /* the first failure: nothing is written after it */
};

/* With the lock held, which it gives up while it writes. */
static void write_next(exf_capture_write_behind *w)
{
    const slot *s = &w->slots[w->written % N_SLOTS];
    exf_err err = {.code = EXF_OK};
    pthread_mutex_unlock(&w->lock);
    exf_code rc = exf_capture_put(w->file, s->layer, s->row, s->n, s->ids, s->weights, s->outputs, &err);
    if (rc == EXF_OK && w->file->has_stream) rc = exf_capture_put_stream(w->file, s->layer, s->row, s->n, s->stream_sq, &err);
    pthread_mutex_lock(&w->lock);
    if (rc != EXF_OK) w->err = err;
    w->written++;
    pthread_cond_broadcast(&w->moved);
}

static void *write_blocks(void *self)
{
    exf_capture_write_behind *w = self;
    pthread_mutex_lock(&w->lock);
    while (!w->quit && w->err.code == EXF_OK) {
        if (w->written < w->filled)
            write_next(w);
        else
            pthread_cond_wait(&w->moved, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

exf_code exf_capture_write_behind_new(exf_capture_write_behind **out, exf_capture_file *file, int64_t rows, exf_err *err)
{
    exf_capture_write_behind *w = NULL;
    size_t slots = (size_t)(rows * file->shape.top_k);
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&w, 1, sizeof *w, "captured blocks", err));
    w->file = file;
    w->rows = rows;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->filling, NULL);
    pthread_cond_init(&w->moved, NULL);
    for (int i = 0; i < N_SLOTS; i++) {
        EXF_TRY(exf_mem_raw(&w->slots[i].ids, slots, sizeof(int32_t), "captured blocks", err));
        EXF_TRY(exf_mem_raw(&w->slots[i].stream_sq, (size_t)rows, sizeof(double), "captured blocks", err));
        EXF_TRY(exf_mem_raw(&w->slots[i].weights, slots, sizeof(float), "captured blocks", err));
        EXF_TRY(exf_mem_raw(&w->slots[i].outputs, slots * (size_t)file->shape.d_model, sizeof(float), "captured blocks", err));
    }
    w->started = pthread_create(&w->thread, NULL, write_blocks, w) == 0;
    if (!w->started) rc = exf_fail(err, EXF_NOSPACE, "capture: a writing thread could not be started");
out:
    if (rc != EXF_OK)
        exf_capture_write_behind_free(w);
    else
        *out = w;
    return rc;
}

/* Waits until at most so many blocks are unwritten, or writing has failed. */
static exf_code wait_for_room(exf_capture_write_behind *w, size_t most_unwritten, exf_err *err)
{
    pthread_mutex_lock(&w->lock);
    while (w->filled - w->written > most_unwritten && w->err.code == EXF_OK) pthread_cond_wait(&w->moved, &w->lock);
    exf_code rc = w->err.code;
    if (rc != EXF_OK) *err = w->err;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static void fill(exf_capture_write_behind *w, int layer, int64_t row, int64_t n, const int32_t *ids, const float *weights,
                 const float *outputs, const double *stream_sq)
{
    slot *s = &w->slots[w->filled % N_SLOTS];
    size_t slots = (size_t)(n * w->file->shape.top_k);
    s->layer = layer;
    s->row = row;
    s->n = n;
    memcpy(s->ids, ids, slots * sizeof *ids);
    memcpy(s->weights, weights, slots * sizeof *weights);
    if (w->file->has_stream) memcpy(s->stream_sq, stream_sq, (size_t)n * sizeof *stream_sq);
    memcpy(s->outputs, outputs, slots * (size_t)w->file->shape.d_model * sizeof *outputs);
    pthread_mutex_lock(&w->lock);
    w->filled++;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
}

exf_code exf_capture_write_behind_put(exf_capture_write_behind *w, int layer, int64_t row, int64_t n, const int32_t *ids,
                                      const float *weights, const float *outputs, const double *stream_sq, exf_err *err)
{
    if (n > w->rows)
        return exf_fail(err, EXF_INTERNAL, "capture: a block of %lld rows, expected at most %lld", (long long)n,
                        (long long)w->rows);
    pthread_mutex_lock(&w->filling);
    exf_code rc = wait_for_room(w, N_SLOTS - 1, err);
    if (rc == EXF_OK) fill(w, layer, row, n, ids, weights, outputs, stream_sq);
    pthread_mutex_unlock(&w->filling);
    return rc;
}

exf_code exf_capture_write_behind_finish(exf_capture_write_behind *w, exf_err *err)
{
    return wait_for_room(w, 0, err);
}

void exf_capture_write_behind_free(exf_capture_write_behind *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->quit = 1;
    pthread_cond_broadcast(&w->moved);
    pthread_mutex_unlock(&w->lock);
    if (w->started) pthread_join(w->thread, NULL);
    for (int i = 0; i < N_SLOTS; i++) {
        exf_mem_free(w->slots[i].ids);
        exf_mem_free(w->slots[i].weights);
        exf_mem_free(w->slots[i].stream_sq);
        exf_mem_free(w->slots[i].outputs);
    }
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->filling);
    pthread_cond_destroy(&w->moved);
    exf_mem_free(w);
}

/* weight_loader.c - the loader of a device; see weight_loader.h.
 *
 *   readers   read chunks, each to pinned memory that no copy reads, load after load (weight_plan.h) as far as areas are free
 *   sender    copies them to the device in the order in which they were read, four at a time, and finishes a load after its
 *             last chunk
 *
 * A chunk that is copied as stored is read in slices, so that what a reader writes is still in its core's cache when the next
 * slice overwrites it; whole chunks of 4 MB went to memory and back, so that readers had three quarters of that rate.
 * Readers run at a lower priority than the threads that launch kernels, copy, and write statistics, which need a core at once and
 * for a short time.
 * Four copies of a slice keep the bus busy.  More would delay the pass: its own small copies to the device wait for all
 * that were queued before them. */
#include "weights/weight_loader_internal.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"

/* Returns the number of readers; two processors are left to the thread that launches kernels and to what else the host does. */
static int readers_of(const exf_weight_loader_options *o)
{
    int n = o->n_readers > 0 ? o->n_readers : exf_default_threads() - 2;
    return n < 1 ? 1 : n > MOST_READERS ? MOST_READERS : n;
}

/* ---- readers ------------------------------------------------------------------------------------------ */

/* Reads a chunk into a buffer. */
static exf_code read_chunk(exf_weight_reader *r, exf_chunk_buffer *to, exf_err *err)
{
    exf_weight_loader *s = r->s;
    const exf_weight_chunk *p = &exf_plan_of(s, to->load)->chunk[to->number];
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    to->slice = 0;
    to->n = exf_chunk_stored_bytes(p, EXF_STORED_CODES);
    to->last = 1;
    rc = exf_chunk_fetch(s->shared, p, s->number[to->load] + to->number, &to->memory, s->most_host, &to->bytes, err);
    r->times.bytes += to->bytes.bytes;
    if (rc == EXF_OK && !p->raw)
        rc = exf_weight_source_decode(&p->at.w, &to->bytes.rows, p->at.row + p->row, p->n_rows, p->at.cols, exf_values_of(to, p),
                                      err);
    r->times.reading += exf_clock() - start;
out:
    return rc;
}

/* Returns a buffer of the reader's own that is free, or NULL. */
static exf_chunk_buffer *free_buffer(exf_weight_reader *r)
{
    for (int i = 0; i < READER_BUFFERS; i++)
        if (!r->buffers[i].full) return &r->buffers[i];
    return NULL;
}

/* Hands a buffer to the sender.  Called with the lock held. */
static void send(exf_weight_loader *s, exf_chunk_buffer *b)
{
    s->read.list[(s->read.first + s->read.n++) % (sizeof s->read.list / sizeof *s->read.list)] = b;
    pthread_cond_signal(&s->filled);
}

/* Reads a chunk slice by slice, from the buffer *b on; sends all slices but the last, and leaves that one in *b.  NULL in *b: the
 * loader is to be closed.  Called with the lock held, which it releases while it reads. */
static exf_code read_slices(exf_weight_reader *r, const exf_weight_chunk *p, exf_chunk_buffer **b, exf_err *err)
{
    exf_weight_loader *s = r->s;
    exf_piece_hash hash = exf_weight_source_piece(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols);
    exf_chunk_buffer *to = *b;
    exf_code rc = EXF_OK;
    to->slice = 0;
    for (;;) {
        pthread_mutex_unlock(&s->lock);
        double start = exf_clock();
        size_t left = exf_chunk_stored_bytes(p, EXF_STORED_CODES) - to->slice;
        to->n = left < EXF_SLICE_BYTES ? left : EXF_SLICE_BYTES;
        to->last = to->n == left;
        to->bytes = (exf_fetched_chunk){.bytes = to->n};
        rc = exf_stop_check(err);
        if (rc == EXF_OK) {
            rc = exf_weight_source_slice(&p->at.w, &hash, to->slice, to->n, to->memory, &to->bytes.rows.of[EXF_STORED_CODES], err);
            r->times.bytes += to->n;
            r->times.reading += exf_clock() - start;
        }
        pthread_mutex_lock(&s->lock);
        if (rc != EXF_OK || to->last) break;
        size_t load = to->load, number = to->number, next = to->slice + to->n;
        send(s, to);
        to = NULL;
        while (!s->quit && !(to = free_buffer(r))) pthread_cond_wait(&r->work, &s->lock);
        if (!to) break;
        *to = (exf_chunk_buffer){.owner = r, .memory = to->memory, .full = 1, .load = load, .number = number, .slice = next};
    }
    *b = to;
    return exf_piece_hash_end(&hash, to ? rc : EXF_INTERNAL, err); /* a piece that was left has no digest */
}

/* Reads the chunk that was taken to buffer `to`, and hands it to the sender; after a failure, its own or of a chunk before it,
 * there is nothing to send. */
static void read_taken(exf_weight_reader *r, exf_chunk_buffer *to)
{
    exf_weight_loader *s = r->s;
    const exf_weight_chunk *p = &exf_plan_of(s, to->load)->chunk[to->number];
    exf_err err = {.code = EXF_OK};
    size_t load = to->load, number = to->number;
    int skip = exf_weight_loader_failed_before(s, load, number);
    exf_code rc = EXF_OK;
    if (!skip && !s->shared && exf_chunk_copied_as_stored(p)) {
        rc = read_slices(r, p, &to, &err);
    } else if (!skip) {
        pthread_mutex_unlock(&s->lock);
        rc = read_chunk(r, to, &err);
        pthread_mutex_lock(&s->lock);
    }
    if (!to) return;
    if (rc == EXF_OK && !skip) {
        send(s, to);
        return;
    }
    if (rc != EXF_OK) exf_weight_loader_note_failure(s, load, number, &err);
    to->full = 0;
    if (--s->left[load] > 0) return;
    s->ready[load] = 1;
    pthread_cond_signal(&s->done);
}

static void *read_chunks(void *self)
{
    exf_weight_reader *r = self;
    exf_weight_loader *s = r->s;
    exf_err err = {.code = EXF_OK};
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < READER_BUFFERS; i++) { /* each reader pins its own, since that takes milliseconds */
        r->buffers[i].owner = r;
        rc = s->b->gpu->alloc_staging((void *)&r->buffers[i].memory, s->most_host, "weight chunks", &err);
    }
    exf_lower_priority(); /* the threads that launch kernels and that write statistics go first */
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) {
        exf_weight_loader_note_failure(s, 0, 0, &err);
        s->lost = 1;
        pthread_cond_signal(&s->done);
    }
    while (rc == EXF_OK && !s->quit) {
        exf_chunk_buffer *to = free_buffer(r);
        while (to && s->taking < s->open_loads && s->taken == exf_plan_of(s, s->taking)->n) {
            s->taking++;
            s->taken = 0;
        }
        if (!to || s->taking == s->open_loads) {
            pthread_cond_wait(&r->work, &s->lock);
            continue;
        }
        to->full = 1;
        to->load = s->taking;
        to->number = s->taken++;
        read_taken(r, to);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- loads ------------------------------------------------------------------------------------------- */

/* Permits filling of `load` and, if the load after it has another area, of that load too. */
static void open_loads(exf_weight_loader *s, size_t load)
{
    pthread_mutex_lock(&s->lock);
    s->open_loads = load + 1;
    if (load + 1 < s->schedule.n && s->schedule.load[load + 1].early) s->open_loads++;
    for (int i = 0; i < s->n_readers; i++) pthread_cond_signal(&s->readers[i].work);
    pthread_mutex_unlock(&s->lock);
}

exf_code exf_weight_loader_next(exf_weight_loader *s, exf_layer_weights *lw, exf_err *err)
{
    size_t load = s->load++;
    exf_code rc = EXF_OK;
    if (load >= s->schedule.n) return exf_fail(err, EXF_INTERNAL, "weights: asked for %zu parts of %zu", load + 1, s->schedule.n);
    open_loads(s, load); /* the areas of earlier loads are free */
    pthread_mutex_lock(&s->lock);
    while (!s->ready[load] && !s->lost) pthread_cond_wait(&s->done, &s->lock);
    if (exf_weight_loader_failed_before(s, load + 1, 0)) {
        *err = s->err;
        rc = err->code;
    }
    pthread_mutex_unlock(&s->lock);
    if (rc == EXF_OK) exf_weight_plan_point(lw, exf_plan_of(s, load), exf_area_of(s, load));
    return rc;
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

size_t exf_weight_loader_device_bytes(const exf_model *m)
{
    size_t room, device;
    exf_weight_most_bytes(m, &room, &device);
    return SENDER_COPIES * device;
}

uint64_t exf_weight_loader_host_bytes(const exf_model *m, const exf_weight_loader_options *o)
{
    size_t room, device;
    exf_weight_most_bytes(m, &room, &device);
    return (uint64_t)readers_of(o) * READER_BUFFERS * room;
}

exf_code exf_weight_loader_open(exf_weight_loader **out, const exf_model *m, const exf_backend *b, exf_compute compute,
                                const exf_weight_loader_options *o, exf_err *err)
{
    exf_weight_loader *s = NULL;
    int first = o->part_experts ? 1 : 0; /* area of the slots; those of parts come after that of other tensors */
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "weight loader", err));
    s->model = m;
    s->b = b;
    s->compute = compute;
    s->o = *o;
    s->n_readers = readers_of(o);
    pthread_mutex_init(&s->lock, NULL);
    for (int i = 0; i < s->n_readers; i++) pthread_cond_init(&s->readers[i].work, NULL);
    pthread_cond_init(&s->filled, NULL);
    pthread_cond_init(&s->done, NULL);
    EXF_TRY(exf_weight_schedule_make(&s->schedule, m, compute, o, err));
    exf_weight_schedule_most(&s->schedule, &s->most_host, &s->most_device);
    EXF_TRY(exf_mem_new(&s->left, s->schedule.n, sizeof *s->left, "weight loads", err));
    EXF_TRY(exf_mem_new(&s->ready, s->schedule.n, 1, "weight loads", err));
    EXF_TRY(exf_mem_new(&s->number, s->schedule.n, sizeof *s->number, "weight loads", err));
    for (size_t t = 0; t < s->schedule.n; t++) {
        s->left[t] = exf_plan_of(s, t)->n;
        s->ready[t] = s->left[t] == 0;
    }
    if (first) EXF_TRY(b->alloc(&s->area[0], exf_weight_loader_base_bytes(m, compute, o), 1, "layer weights", err));
    for (int i = 0; i < o->n_slots; i++)
        EXF_TRY(b->alloc(&s->area[first + i], exf_weight_loader_slot_bytes(m, compute, o), 1, "layer weights", err));
    if (o->shared) { /* numbers the chunks, which the ranks of a node share if all have the same */
        uint64_t number;
        int same;
        EXF_TRY(exf_shared_chunks_begin(o->shared, &s->schedule, &number, &same, err));
        s->shared = same ? o->shared : NULL;
        for (size_t t = 0; same && t < s->schedule.n; number += exf_plan_of(s, t++)->n) s->number[t] = number;
    }
    for (int i = 0; i < SENDER_COPIES; i++) {
        EXF_TRY(s->b->open(&s->copies[i].q, s->compute, err));
        EXF_TRY(s->b->alloc(&s->copies[i].device, s->most_device, 1, "weight chunks", err));
        EXF_TRY(s->b->alloc(&s->copies[i].bad, 1, sizeof *s->copies[i].bad, "weight chunks", err));
    }
    int started = 1;
    for (int i = 0; i < s->n_readers && started; i++) {
        exf_weight_reader *r = &s->readers[i];
        r->s = s;
        started = r->started = pthread_create(&r->thread, NULL, read_chunks, r) == 0;
    }
    if (started) started = s->sender_started = pthread_create(&s->sender, NULL, exf_weight_loader_send, s) == 0;
    if (!started) EXF_TRY(exf_fail(err, EXF_NOSPACE, "weights: a thread that reads them could not be started"));
    open_loads(s, 0);
out:
    if (rc != EXF_OK)
        exf_weight_loader_close(s, NULL);
    else
        *out = s;
    return rc;
}

void exf_weight_loader_close(exf_weight_loader *s, exf_weight_loader_times *times)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->quit = 1;
    for (int i = 0; i < s->n_readers; i++) pthread_cond_signal(&s->readers[i].work);
    pthread_cond_signal(&s->filled);
    pthread_mutex_unlock(&s->lock);
    if (s->sender_started) pthread_join(s->sender, NULL);
    if (times) times->sending += s->sending;
    for (int i = 0; i < s->n_readers; i++) {
        exf_weight_reader *r = &s->readers[i];
        if (r->started) pthread_join(r->thread, NULL);
        for (int k = 0; k < READER_BUFFERS; k++) s->b->gpu->free_staging(r->buffers[k].memory);
        if (!times) continue;
        times->reading += r->times.reading;
        times->bytes += r->times.bytes;
        times->readers++;
    }
    for (int i = 0; i < SENDER_COPIES; i++) {
        if (!s->copies[i].q) continue;
        s->b->close(s->copies[i].q);
        s->b->free(s->copies[i].device);
        s->b->free(s->copies[i].bad);
    }
    for (int i = 0; i < EXF_WEIGHT_AREAS; i++) s->b->free(s->area[i]);
    exf_weight_schedule_free(&s->schedule);
    exf_mem_free(s->left);
    exf_mem_free(s->ready);
    exf_mem_free(s->number);
    pthread_mutex_destroy(&s->lock);
    for (int i = 0; i < s->n_readers; i++) pthread_cond_destroy(&s->readers[i].work);
    pthread_cond_destroy(&s->filled);
    pthread_cond_destroy(&s->done);
    exf_mem_free(s);
}

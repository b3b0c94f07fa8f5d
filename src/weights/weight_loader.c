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
#include "weights/weight_loader.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <pthread.h>
#include <string.h>

enum { MOST_READERS = 16, READER_BUFFERS = 2, SENDER_COPIES = 4 };

/* Pinned memory of a reader, and the chunk that is in it: its tensors, then float32 that the host made of them; or a slice of
 * the bytes of a chunk that is copied as stored. */
typedef struct {
    struct weight_reader *owner;
    char *memory;
    int full;            /* 1: it is read to, or waits for its copy */
    size_t load, number;
    exf_fetched_chunk bytes;
    size_t slice, n;     /* copied as stored: the first byte in the chunk, and how many */
    int last;            /* 1: with this copy the chunk is loaded */
} chunk_buffer;

typedef struct weight_reader {
    struct exf_weight_loader *s;
    pthread_t thread;
    int started;
    pthread_cond_t work; /* a buffer is free, or there are chunks to read */
    chunk_buffer buffers[READER_BUFFERS];
    exf_weight_loader_times times;
} weight_reader;

/* One of the sender's copies. */
typedef struct {
    exf_queue *q;
    chunk_buffer *from; /* NULL: nothing is being copied */
    char *device; /* device memory for chunks that are dequantized there */
    int *bad;     /* in device memory: a value is not finite, or beyond bfloat16 */
} chunk_copy;

/* A first-in, first-out list of buffers. */
typedef struct {
    chunk_buffer *list[MOST_READERS * READER_BUFFERS];
    size_t first, n;
} buffer_queue;

struct exf_weight_loader {
    const exf_model *model;
    const exf_backend *b;
    exf_compute compute;
    exf_weight_loader_options o;
    void *area[EXF_WEIGHT_AREAS];
    exf_weight_schedule schedule; /* made when the loader opens: looking up names takes milliseconds */
    size_t load;            /* the load that the next call of next() returns */
    size_t most_host, most_device; /* bytes of a buffer, and of the largest chunk dequantized on the device */
    weight_reader readers[MOST_READERS];
    int n_readers;
    pthread_t sender;
    int sender_started;
    chunk_copy copies[SENDER_COPIES];
    double sending;            /* seconds for which the sender has waited for copies */
    pthread_mutex_t lock;
    pthread_cond_t filled, done; /* waited for by the sender, exf_weight_loader_next() */
    buffer_queue read;         /* chunks that were read and are not being copied yet */
    size_t taking;             /* load whose chunks are being taken */
    size_t open_loads;         /* loads below this number may be filled */
    size_t taken;              /* chunks of `taking` */
    size_t *left;              /* [loads.n] chunks that are not loaded yet */
    unsigned char *ready;      /* [loads.n] */
    uint64_t *number;          /* [loads.n] of each load's first chunk, where chunks are shared */
    exf_shared_chunks *shared; /* NULL: they are not */
    int quit, lost;            /* lost: a reader failed to open, err says why */
    exf_err err;               /* error of the first load's lowest chunk that failed */
    size_t err_load, err_chunk;
};

/* Looks up the plan of a load, and the device memory that it goes to. */
static const exf_weight_plan *plan_of(const exf_weight_loader *s, size_t load)
{
    return &s->schedule.plan[s->schedule.load[load].plan];
}

static char *area_of(const exf_weight_loader *s, size_t load)
{
    return s->area[s->schedule.load[load].area];
}

/* Returns the number of readers; two processors are left to the thread that launches kernels and to what else the host does. */
static int readers_of(const exf_weight_loader_options *o)
{
    int n = o->n_readers > 0 ? o->n_readers : exf_default_threads() - 2;
    return n < 1 ? 1 : n > MOST_READERS ? MOST_READERS : n;
}

/* ---- what both kinds of threads need ------------------------------------------------------------------ */

/* Returns 1 if a chunk before this one has failed.  Called with the lock held. */
static int failed_before(const exf_weight_loader *s, size_t load, size_t chunk)
{
    return s->err.code != EXF_OK && (s->err_load < load || (s->err_load == load && s->err_chunk < chunk));
}

/* Keeps the error of the lowest chunk, so that the message does not depend on which thread was faster.  The lock is held. */
static void note_failure(exf_weight_loader *s, size_t load, size_t chunk, const exf_err *err)
{
    if (failed_before(s, load, chunk)) return;
    s->err = *err;
    s->err_load = load;
    s->err_chunk = chunk;
}

/* Returns where in a buffer the float32 are that the host made of a chunk. */
static float *values_of(const chunk_buffer *from, const exf_weight_chunk *p)
{
    return (float *)(void *)(from->memory + exf_chunk_room(p));
}

/* ---- readers ------------------------------------------------------------------------------------------ */

/* Takes the next chunk in order; returns 0 if the caller must wait. */
static int take_chunk(exf_weight_loader *s, size_t *load, size_t *chunk)
{
    while (s->taking < s->open_loads && s->taken == plan_of(s, s->taking)->n) {
        s->taking++;
        s->taken = 0;
    }
    if (s->taking == s->open_loads) return 0;
    *load = s->taking;
    *chunk = s->taken++;
    return 1;
}

/* Reads a chunk into a buffer. */
static exf_code read_chunk(weight_reader *r, chunk_buffer *to, exf_err *err)
{
    exf_weight_loader *s = r->s;
    const exf_weight_chunk *p = &plan_of(s, to->load)->chunk[to->number];
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    to->slice = 0;
    to->n = exf_chunk_stored_bytes(p, EXF_STORED_CODES);
    to->last = 1;
    rc = exf_chunk_fetch(s->shared, p, s->number[to->load] + to->number, &to->memory, s->most_host, &to->bytes, err);
    r->times.bytes += to->bytes.bytes;
    if (rc == EXF_OK && !p->raw) rc = exf_chunk_decode(p, &to->bytes.rows, values_of(to, p), err);
    r->times.reading += exf_clock() - start;
out:
    return rc;
}

/* Returns a buffer of the reader's own that is free, or NULL. */
static chunk_buffer *free_buffer(weight_reader *r)
{
    for (int i = 0; i < READER_BUFFERS; i++)
        if (!r->buffers[i].full) return &r->buffers[i];
    return NULL;
}

/* Waits until a buffer is free; returns NULL if the loader is to be closed.  Called with the lock held. */
static chunk_buffer *wait_for_buffer(weight_reader *r)
{
    chunk_buffer *b = NULL;
    while (!r->s->quit && !(b = free_buffer(r))) pthread_cond_wait(&r->work, &r->s->lock);
    return b;
}

/* Hands a buffer to the sender.  Called with the lock held. */
static void send(exf_weight_loader *s, chunk_buffer *b)
{
    s->read.list[(s->read.first + s->read.n++) % (sizeof s->read.list / sizeof *s->read.list)] = b;
    pthread_cond_signal(&s->filled);
}

/* Reads the slice of a chunk that begins at to->slice. */
static exf_code read_slice(weight_reader *r, const exf_weight_chunk *p, chunk_buffer *to, exf_piece_hash *hash,
                           exf_err *err)
{
    double start = exf_clock();
    size_t left = exf_chunk_stored_bytes(p, EXF_STORED_CODES) - to->slice;
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    to->n = left < EXF_SLICE_BYTES ? left : EXF_SLICE_BYTES;
    to->last = to->n == left;
    to->bytes = (exf_fetched_chunk){.bytes = to->n};
    rc = exf_weight_source_slice(&p->at.w, hash, to->slice, to->n, to->memory, &to->bytes.rows.of[EXF_STORED_CODES], err);
    r->times.bytes += to->n;
    r->times.reading += exf_clock() - start;
out:
    return rc;
}

/* Reads a chunk slice by slice, from the buffer *b on; sends all slices but the last, and leaves that one in *b.  NULL in *b: the
 * loader is to be closed.  Called with the lock held, which it releases while it reads. */
static exf_code read_slices(weight_reader *r, const exf_weight_chunk *p, chunk_buffer **b, exf_err *err)
{
    exf_weight_loader *s = r->s;
    exf_piece_hash hash = exf_weight_source_piece(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols);
    chunk_buffer *to = *b;
    exf_code rc = EXF_OK;
    to->slice = 0;
    for (;;) {
        pthread_mutex_unlock(&s->lock);
        rc = read_slice(r, p, to, &hash, err);
        pthread_mutex_lock(&s->lock);
        if (rc != EXF_OK || to->last) break;
        size_t load = to->load, number = to->number, next = to->slice + to->n;
        send(s, to);
        if (!(to = wait_for_buffer(r))) break;
        *to = (chunk_buffer){.owner = r, .memory = to->memory, .full = 1, .load = load, .number = number, .slice = next};
    }
    *b = to;
    return exf_piece_hash_end(&hash, to ? rc : EXF_INTERNAL, err); /* a piece that was left has no digest */
}

/* Pins the reader's buffers: each reader its own, since that takes milliseconds. */
static exf_code pin_buffers(weight_reader *r, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; i < READER_BUFFERS; i++) {
        r->buffers[i].owner = r;
        EXF_TRY(r->s->b->gpu->alloc_staging((void *)&r->buffers[i].memory, r->s->most_host, "weight chunks", err));
    }
out:
    return rc;
}

/* Reads the chunk that was taken to buffer `to`, and hands it to the sender; after a failure, its own or of a chunk before it,
 * there is nothing to send. */
static void read_taken(weight_reader *r, chunk_buffer *to)
{
    exf_weight_loader *s = r->s;
    const exf_weight_chunk *p = &plan_of(s, to->load)->chunk[to->number];
    exf_err err = {.code = EXF_OK};
    size_t load = to->load, number = to->number;
    int skip = failed_before(s, load, number);
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
    if (rc != EXF_OK) note_failure(s, load, number, &err);
    to->full = 0;
    if (--s->left[load] > 0) return;
    s->ready[load] = 1;
    pthread_cond_signal(&s->done);
}

static void *read_chunks(void *self)
{
    weight_reader *r = self;
    exf_weight_loader *s = r->s;
    exf_err err = {.code = EXF_OK};
    exf_code rc = pin_buffers(r, &err);
    size_t load, chunk;
    exf_lower_priority(); /* the threads that launch kernels and that write statistics go first */
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) {
        note_failure(s, 0, 0, &err);
        s->lost = 1;
        pthread_cond_signal(&s->done);
    }
    while (rc == EXF_OK && !s->quit) {
        chunk_buffer *to = free_buffer(r);
        if (!to || !take_chunk(s, &load, &chunk)) {
            pthread_cond_wait(&r->work, &s->lock);
            continue;
        }
        to->full = 1;
        to->load = load;
        to->number = chunk;
        read_taken(r, to);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the sender: one chunk -------------------------------------------------------------------------------------- */

/* Describes a chunk whose tensors are in device memory. */
static exf_device_coded_rows coded_rows(const exf_weight_chunk *p, const char *device)
{
    const exf_weight_source *w = &p->at.w;
    static const exf_device_coding coding[] = {
        [EXF_CODED_PLAIN] = EXF_DEVICE_CODED_PLAIN, [EXF_CODED_FP8] = EXF_DEVICE_CODED_FP8,
        [EXF_CODED_FP4] = EXF_DEVICE_CODED_FP4,     [EXF_CODED_INT4] = EXF_DEVICE_CODED_INT4,
        [EXF_CODED_GPTQ] = EXF_DEVICE_CODED_GPTQ,   [EXF_CODED_AWQ] = EXF_DEVICE_CODED_AWQ};
    const void *at[EXF_STORED_KINDS];
    for (int kind = 0; kind < EXF_STORED_KINDS; kind++)
        at[kind] = w->of[kind] ? device + exf_device_offset(p, (exf_stored_kind)kind) : NULL;
    return (exf_device_coded_rows){.coding = coding[w->coding], .dtype = exf_weight_source_dtype(w),
                                   .scale_dtype = w->scale_dtype, .codes = at[EXF_STORED_CODES], .scales = at[EXF_STORED_SCALES],
                                   .rows = p->n_rows, .cols = p->at.cols, .block_rows = (size_t)w->block_rows,
                                   .block_cols = (size_t)w->block_cols, .zeros = at[EXF_STORED_ZEROS], .zero_add = w->zero_add,
                                   .zero_carries = w->zero_carries,
                                   .groups = at[EXF_STORED_GROUPS], .factor = at[EXF_STORED_FACTOR], .divides = w->divides};
}

#define BEYOND "is beyond bfloat16"

/* Finds the bad value by dequantizing on the host, since the device only reports that there is one. */
static exf_code name_bad_weight(const exf_weight_loader *s, const exf_weight_chunk *p, int layer, exf_err *err)
{
    float *values = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&values, p->at.rows * p->at.cols, sizeof *values, "weights", err));
    EXF_TRY(exf_model_read(s->model, p->role, layer < 0 ? -1 : layer, p->expert, values, err));
    rc = exf_fail(err, EXF_NUMERIC, "layer %d: a weight of \"%s\" " BEYOND, layer, p->at.w.of[EXF_STORED_CODES]->tensor->view.name);
out:
    exf_mem_free(values);
    return rc;
}

/* Returns 1 for a chunk that the host decodes and the device rounds. */
static int is_rounded(const exf_weight_chunk *p)
{
    return !p->raw && p->number == EXF_NUMBER_BF16;
}

/* Returns 1 for a chunk whose values are checked with the whole part: what dequantizes the others has looked at them. */
static int is_checked_later(const exf_weight_chunk *p)
{
    return is_rounded(p) || exf_chunk_copied_as_stored(p);
}

/* Queues the copy of a chunk: to its place, or by way of device memory where the device dequantizes it. */
static void queue_copy(const exf_weight_loader *s, chunk_copy *c)
{
    const exf_backend *b = s->b;
    const exf_weight_chunk *p = &plan_of(s, c->from->load)->chunk[c->from->number];
    const exf_raw_rows *raw = &c->from->bytes.rows;
    char *to = area_of(s, c->from->load) + p->to;
    if (is_rounded(p)) {
        int cols = (int)p->at.cols;
        b->upload(c->q, c->device, values_of(c->from, p), p->n_rows * p->at.cols * sizeof(float));
        b->gpu->round_rows(c->q, (uint16_t *)(void *)to, cols, (const float *)(const void *)c->device, cols, (int)p->n_rows, cols);
    } else if (!p->raw) {
        b->upload(c->q, to, values_of(c->from, p), p->n_rows * p->at.cols * sizeof(float));
    } else if (exf_chunk_copied_as_stored(p)) {
        b->upload(c->q, to + c->from->slice, raw->of[EXF_STORED_CODES], c->from->n);
    } else {
        exf_device_coded_rows rows = coded_rows(p, c->device);
        for (int kind = 0; kind < EXF_STORED_KINDS; kind++)
            if (raw->of[kind])
                b->upload(c->q, c->device + exf_device_offset(p, (exf_stored_kind)kind), raw->of[kind],
                          exf_chunk_stored_bytes(p, (exf_stored_kind)kind));
        b->gpu->dequantize(c->q, to, p->number, &rows, c->bad);
    }
}

/* Waits for a copy. */
static exf_code finish_copy(exf_weight_loader *s, const chunk_copy *c, exf_err *err)
{
    const exf_weight_plan *plan = plan_of(s, c->from->load);
    const exf_weight_chunk *p = &plan->chunk[c->from->number];
    double start = exf_clock();
    int bad = 0;
    exf_code rc;
    if (!p->raw || exf_chunk_copied_as_stored(p))
        EXF_TRY(s->b->finish(c->q, err));
    else
        EXF_TRY(s->b->download(c->q, &bad, c->bad, sizeof bad, err));
    if (bad) rc = name_bad_weight(s, p, plan->of.layer, err);
    exf_chunk_done(s->shared, &c->from->bytes);
out:
    s->sending += exf_clock() - start;
    return rc;
}

/* ---- a whole load ------------------------------------------------------------------------------------ */

/* Checks all values of a part that were copied as stored, or rounded. */
static exf_code check_values(const exf_weight_loader *s, const chunk_copy *c, const exf_weight_plan *p, const char *slot,
                             exf_err *err)
{
    const exf_backend *b = s->b;
    unsigned char checked[EXF_W_COUNT] = {0};
    int bad = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < p->n; i++) checked[p->chunk[i].role] |= (unsigned char)is_checked_later(&p->chunk[i]);
    for (int role = 0; role < EXF_W_COUNT; role++) {
        size_t n = checked[role] ? exf_weight_plan_elements(s->model, (exf_role)role, &p->of) : 0;
        b->gpu->check_bf16(c->q, (const uint16_t *)(const void *)(slot + p->first[role]), n, c->bad);
    }
    EXF_TRY(b->download(c->q, &bad, c->bad, sizeof bad, err));
    for (size_t i = 0; bad && i < p->n; i++)
        if (is_checked_later(&p->chunk[i])) {
            rc = name_bad_weight(s, &p->chunk[i], p->of.layer, err);
            if (rc != EXF_NUMERIC || !strstr(err->msg, BEYOND) || i + 1 == p->n) break;
        }
out:
    return rc;
}

/* Writes the router's matrix twice side by side, [E, 2 H]. */
static exf_code split_router(const exf_weight_loader *s, const chunk_copy *c, const exf_weight_plan *p, char *slot,
                             exf_err *err)
{
    const exf_architecture *a = &s->model->arch;
    const exf_backend *b = s->b;
    uint16_t *split = (uint16_t *)(void *)(slot + p->split);
    const float *router = (const float *)(const void *)(slot + p->first[EXF_W_ROUTER]);
    if (!p->split) return EXF_OK;
    for (int half = 0; half < 2; half++)
        b->gpu->round_rows(c->q, split + half * a->d_model, 2 * a->d_model, router, a->d_model, a->n_experts, a->d_model);
    return b->finish(c->q, err);
}

/* ---- the sender --------------------------------------------------------------------------------------- */

/* Gives a buffer back and, after its load's last chunk, finishes the load.  Called with the lock held; releases it while it
 * works. */
static void settle_chunk(exf_weight_loader *s, chunk_copy *c, chunk_buffer *from, exf_code rc, exf_err *err)
{
    size_t load = from->load;
    const exf_weight_plan *plan = plan_of(s, load);
    if (rc != EXF_OK) note_failure(s, load, from->number, err);
    from->full = 0;
    pthread_cond_signal(&from->owner->work);
    if (!from->last || --s->left[load] > 0) return;
    int skip = failed_before(s, load, plan->n);
    pthread_mutex_unlock(&s->lock);
    rc = skip ? EXF_OK : check_values(s, c, plan, area_of(s, load), err);
    if (rc == EXF_OK && !skip) rc = split_router(s, c, plan, area_of(s, load), err);
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) note_failure(s, load, plan->n, err);
    s->ready[load] = 1;
    pthread_cond_signal(&s->done);
}

/* Waits for the copy, if there is one.  Called with the lock held; releases it while it waits. */
static void settle_copy(exf_weight_loader *s, chunk_copy *c)
{
    exf_err err = {.code = EXF_OK};
    chunk_buffer *from = c->from;
    if (!from) return;
    pthread_mutex_unlock(&s->lock);
    exf_code rc = finish_copy(s, c, &err);
    pthread_mutex_lock(&s->lock);
    c->from = NULL;
    settle_chunk(s, c, from, rc, &err);
}

static void *send_chunks(void *self)
{
    exf_weight_loader *s = self;
    int turn = 0; /* the copy that was queued first */
    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        chunk_copy *c = &s->copies[turn];
        if (!s->read.n && !c->from) {
            int others = 0;
            for (int i = 0; i < SENDER_COPIES; i++) others |= s->copies[i].from != NULL;
            if (!others) pthread_cond_wait(&s->filled, &s->lock);
            turn = others ? (turn + 1) % SENDER_COPIES : turn;
            continue;
        }
        settle_copy(s, c);
        if (s->read.n) {
            c->from = s->read.list[s->read.first];
            s->read.first = (s->read.first + 1) % (sizeof s->read.list / sizeof *s->read.list);
            s->read.n--;
            pthread_mutex_unlock(&s->lock);
            queue_copy(s, c);
            pthread_mutex_lock(&s->lock);
        }
        turn = (turn + 1) % SENDER_COPIES;
    }
    for (int i = 0; i < SENDER_COPIES; i++) settle_copy(s, &s->copies[i]);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- loads ------------------------------------------------------------------------------------------- */

static void wake_readers(exf_weight_loader *s)
{
    for (int i = 0; i < s->n_readers; i++) pthread_cond_signal(&s->readers[i].work);
}

/* Permits filling of `load` and, if the load after it has another area, of that load too. */
static void open_loads(exf_weight_loader *s, size_t load)
{
    pthread_mutex_lock(&s->lock);
    s->open_loads = load + 1;
    if (load + 1 < s->schedule.n && s->schedule.load[load + 1].early) s->open_loads++;
    wake_readers(s);
    pthread_mutex_unlock(&s->lock);
}

static exf_code wait_load(exf_weight_loader *s, size_t load, exf_err *err)
{
    exf_code rc = EXF_OK;
    pthread_mutex_lock(&s->lock);
    while (!s->ready[load] && !s->lost) pthread_cond_wait(&s->done, &s->lock);
    if (failed_before(s, load + 1, 0)) {
        *err = s->err;
        rc = err->code;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

exf_code exf_weight_loader_next(exf_weight_loader *s, exf_layer_weights *lw, exf_err *err)
{
    size_t load = s->load++;
    exf_code rc;
    if (load >= s->schedule.n) return exf_fail(err, EXF_INTERNAL, "weights: asked for %zu parts of %zu", load + 1, s->schedule.n);
    open_loads(s, load); /* the areas of earlier loads are free */
    EXF_TRY(wait_load(s, load, err));
    exf_weight_plan_point(lw, plan_of(s, load), area_of(s, load));
out:
    return rc;
}

/* ---- opening and closing ---------------------------------------------------------------------------- */

size_t exf_weight_loader_device_bytes(const exf_model *m)
{
    return SENDER_COPIES * exf_weight_most_device(m);
}

uint64_t exf_weight_loader_host_bytes(const exf_model *m, const exf_weight_loader_options *o)
{
    return (uint64_t)readers_of(o) * READER_BUFFERS * exf_weight_most_room(m);
}

/* Numbers the chunks, which the ranks of a node share if all have the same. */
static exf_code share_chunks(exf_weight_loader *s, exf_err *err)
{
    uint64_t number;
    int same;
    exf_code rc = exf_shared_chunks_begin(s->o.shared, &s->schedule, &number, &same, err);
    if (rc != EXF_OK || !same) return rc;
    s->shared = s->o.shared;
    for (size_t t = 0; t < s->schedule.n; number += plan_of(s, t++)->n) s->number[t] = number;
    return EXF_OK;
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
        s->left[t] = plan_of(s, t)->n;
        s->ready[t] = s->left[t] == 0;
    }
    if (first) EXF_TRY(b->alloc(&s->area[0], exf_weight_loader_base_bytes(m, compute, o), 1, "layer weights", err));
    for (int i = 0; i < o->n_slots; i++)
        EXF_TRY(b->alloc(&s->area[first + i], exf_weight_loader_slot_bytes(m, compute, o), 1, "layer weights", err));
    if (o->shared) EXF_TRY(share_chunks(s, err));
    for (int i = 0; i < SENDER_COPIES; i++) {
        EXF_TRY(s->b->open(&s->copies[i].q, s->compute, err));
        EXF_TRY(s->b->alloc(&s->copies[i].device, s->most_device, 1, "weight chunks", err));
        EXF_TRY(s->b->alloc(&s->copies[i].bad, 1, sizeof *s->copies[i].bad, "weight chunks", err));
    }
    int started = 1;
    for (int i = 0; i < s->n_readers && started; i++) {
        weight_reader *r = &s->readers[i];
        r->s = s;
        started = r->started = pthread_create(&r->thread, NULL, read_chunks, r) == 0;
    }
    if (started) started = s->sender_started = pthread_create(&s->sender, NULL, send_chunks, s) == 0;
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
    wake_readers(s);
    pthread_cond_signal(&s->filled);
    pthread_mutex_unlock(&s->lock);
    if (s->sender_started) pthread_join(s->sender, NULL);
    if (times) times->sending += s->sending;
    for (int i = 0; i < s->n_readers; i++) {
        weight_reader *r = &s->readers[i];
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

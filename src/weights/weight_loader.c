/* weight_loader.c - the loader of a device; see weight_loader.h.
 *
 * A reader reads a chunk into one half of its pinned memory while the GPU copies the one before from the other half: several
 * readers keep both the file system and the bus busy without any CUDA event.  Readers take chunks load after load
 * (weight_plan.h) as far as areas are free; the reader that finishes a load's last chunk also finishes the load. */
#include "weights/weight_loader.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <pthread.h>
#include <string.h>

enum { MOST_READERS = 16, ALIGN = 256 };

/* A chunk that a reader's queue copies. */
typedef struct {
    int is_queued; /* 0: there is none */
    size_t load, number;
    exf_fetched_chunk bytes;
} copied_chunk;

typedef struct {
    struct exf_weight_loader *s;
    pthread_t thread;
    int started;
    exf_queue *q;
    char *host;   /* pinned memory, two halves; in each: codes, then scales, then float32 that the host made of them */
    int half;     /* the half that is read into next */
    copied_chunk copy; /* from the other half */
    char *device; /* device memory for chunks that are dequantized there */
    int *bad;     /* in device memory: a value is not finite, or beyond bfloat16 */
    exf_weight_loader_times times;
} reader;

struct exf_weight_loader {
    const exf_model *model;
    const exf_backend *b;
    exf_compute compute;
    exf_weight_loader_options o;
    void *area[EXF_WEIGHT_AREAS];
    exf_weight_schedule schedule; /* made when the loader opens: looking up names takes milliseconds */
    size_t load;            /* the load that the next call of next() returns */
    size_t most_host, most_device; /* bytes of half a reader's pinned memory, and of the largest chunk dequantized on the device */
    reader readers[MOST_READERS];
    int n_readers;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* readers wait for work, exf_weight_loader_next() for done */
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

/* Returns the number of readers; two processors are left to the thread that launches kernels and to what else the host does. */
static int readers_of(const exf_weight_loader_options *o)
{
    int n = o->n_readers > 0 ? o->n_readers : exf_default_threads() - 2;
    return n < 1 ? 1 : n > MOST_READERS ? MOST_READERS : n;
}

static const exf_weight_plan *plan_of(const exf_weight_loader *s, size_t load)
{
    return &s->schedule.plan[s->schedule.load[load].plan];
}

static char *area_of(const exf_weight_loader *s, size_t load)
{
    return s->area[s->schedule.load[load].area];
}

/* ---- one chunk -------------------------------------------------------------------------------------- */

static exf_device_coded_rows coded_rows(const exf_weight_chunk *p, const char *codes, const char *scales)
{
    const exf_weight_source *w = &p->at.w;
    static const exf_device_coding coding[] = {[EXF_CODED_PLAIN] = EXF_DEVICE_CODED_PLAIN, [EXF_CODED_FP8] = EXF_DEVICE_CODED_FP8,
                                               [EXF_CODED_FP4] = EXF_DEVICE_CODED_FP4};
    return (exf_device_coded_rows){.coding = coding[w->coding], .dtype = w->stored->tensor->view.dtype,
                             .scale_dtype = w->scale ? w->scale->tensor->view.dtype : EXF_DT_F32, .codes = codes, .scales = scales,
                             .rows = p->n_rows, .cols = p->at.cols, .block_rows = (size_t)w->block_rows,
                             .block_cols = (size_t)w->block_cols};
}

#define BEYOND "is beyond bfloat16"

/* Finds the bad value by dequantizing on the host, since the device only reports that there is one. */
static exf_code name_bad_weight(const exf_weight_loader *s, const exf_weight_chunk *p, int layer, exf_err *err)
{
    float *values = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&values, p->at.rows * p->at.cols, sizeof *values, "weights", err));
    EXF_TRY(exf_model_read(s->model, p->role, layer < 0 ? -1 : layer, p->expert, values, err));
    rc = exf_fail(err, EXF_NUMERIC, "layer %d: a weight of \"%s\" " BEYOND, layer, p->at.w.stored->tensor->view.name);
out:
    exf_mem_free(values);
    return rc;
}

/* Returns 1 for a chunk whose bytes go to their place as they are; they are checked later, with the whole part. */
static int is_copied_as_stored(const exf_weight_chunk *p)
{
    const exf_weight_source *w = &p->at.w;
    return p->raw && w->coding == EXF_CODED_PLAIN && w->stored->tensor->view.dtype == EXF_DT_BF16 && p->number == EXF_NUMBER_BF16;
}

/* Queues the copy of a chunk's stored bytes: directly to their place, or by way of the reader's device memory. */
static void queue_raw(reader *r, const exf_weight_chunk *p, const exf_raw_rows *raw, char *to)
{
    const exf_backend *b = r->s->b;
    size_t codes = exf_chunk_code_bytes(p), scales = exf_chunk_scale_bytes(p);
    char *scales_at = r->device + ((codes + ALIGN - 1) & ~(size_t)(ALIGN - 1));
    if (is_copied_as_stored(p)) {
        b->upload(r->q, to, raw->codes, codes);
        return;
    }
    exf_device_coded_rows rows = coded_rows(p, r->device, scales_at);
    b->upload(r->q, r->device, raw->codes, codes);
    if (scales) b->upload(r->q, scales_at, raw->scales, scales);
    b->gpu->dequantize(r->q, to, p->number, &rows, r->bad);
}

/* Queues the copy of a chunk that the host makes float32 of, after the bytes in this half of the pinned memory. */
static exf_code queue_decoded(reader *r, const exf_weight_chunk *p, const exf_raw_rows *raw, char *half, char *to, exf_err *err)
{
    float *values = (float *)(void *)(half + exf_floats_offset(exf_chunk_code_bytes(p), exf_chunk_scale_bytes(p)));
    exf_code rc = exf_chunk_decode(p, raw, values, err);
    if (rc == EXF_OK) r->s->b->upload(r->q, to, values, p->n_rows * p->at.cols * sizeof *values);
    return rc;
}

/* Waits for the queued copy. */
static exf_code finish_copy(reader *r, exf_err *err)
{
    exf_weight_loader *s = r->s;
    const exf_weight_plan *plan = plan_of(s, r->copy.load);
    const exf_weight_chunk *p = &plan->chunk[r->copy.number];
    double start = exf_clock();
    int bad = 0;
    exf_code rc;
    if (!p->raw || is_copied_as_stored(p))
        EXF_TRY(s->b->finish(r->q, err));
    else
        EXF_TRY(s->b->download(r->q, &bad, r->bad, sizeof bad, err));
    if (bad) rc = name_bad_weight(s, p, plan->of.layer, err);
    exf_chunk_done(s->shared, &r->copy.bytes);
out:
    r->times.sending += exf_clock() - start;
    return rc;
}

/* ---- a whole load ------------------------------------------------------------------------------------ */

/* Checks all values of a part that were copied as stored. */
static exf_code check_values(reader *r, const exf_weight_plan *p, const char *slot, exf_err *err)
{
    const exf_backend *b = r->s->b;
    int bad = 0;
    exf_code rc = EXF_OK;
    for (int role = 0; role < EXF_W_COUNT; role++) {
        int stored = p->present[role] && p->number[role] == EXF_NUMBER_BF16;
        size_t n = stored ? exf_weight_plan_elements(r->s->model, (exf_role)role, &p->of) : 0;
        b->gpu->check_bf16(r->q, (const uint16_t *)(const void *)(slot + p->first[role]), n, r->bad);
    }
    EXF_TRY(b->download(r->q, &bad, r->bad, sizeof bad, err));
    for (size_t i = 0; bad && i < p->n; i++)
        if (p->chunk[i].raw) {
            rc = name_bad_weight(r->s, &p->chunk[i], p->of.layer, err);
            if (rc != EXF_NUMERIC || !strstr(err->msg, BEYOND) || i + 1 == p->n) break;
        }
out:
    return rc;
}

/* Writes the router's matrix twice side by side, [E, 2 H]. */
static exf_code split_router(reader *r, const exf_weight_plan *p, char *slot, exf_err *err)
{
    const exf_architecture *a = &r->s->model->arch;
    const exf_backend *b = r->s->b;
    uint16_t *split = (uint16_t *)(void *)(slot + p->split);
    const float *router = (const float *)(const void *)(slot + p->first[EXF_W_ROUTER]);
    if (!p->split) return EXF_OK;
    for (int half = 0; half < 2; half++)
        b->gpu->round_rows(r->q, split + half * a->d_model, 2 * a->d_model, router, a->d_model, a->n_experts, a->d_model);
    return b->finish(r->q, err);
}

/* ---- readers ------------------------------------------------------------------------------------------ */

static int failed_before(const exf_weight_loader *s, size_t load, size_t chunk)
{
    return s->err.code != EXF_OK && (s->err_load < load || (s->err_load == load && s->err_chunk < chunk));
}

/* Keeps the error of the lowest chunk, so that the message does not depend on which reader was faster. */
static void note_failure(exf_weight_loader *s, size_t load, size_t chunk, const exf_err *err)
{
    if (failed_before(s, load, chunk)) return;
    s->err = *err;
    s->err_load = load;
    s->err_chunk = chunk;
}

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

/* Notes that a chunk is loaded, or why not, and finishes its load if it was the last one. */
static void settle_chunk(reader *r, size_t load, size_t chunk, exf_code rc, exf_err *err)
{
    exf_weight_loader *s = r->s;
    const exf_weight_plan *plan = plan_of(s, load);
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) note_failure(s, load, chunk, err);
    int is_last = --s->left[load] == 0, skip = failed_before(s, load, plan->n);
    pthread_mutex_unlock(&s->lock);
    if (!is_last) return;
    rc = skip ? EXF_OK : check_values(r, plan, area_of(s, load), err);
    if (rc == EXF_OK && !skip) rc = split_router(r, plan, area_of(s, load), err);
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) note_failure(s, load, plan->n, err);
    s->ready[load] = 1;
    pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
}

static void settle_copy(reader *r)
{
    exf_err err = {.code = EXF_OK};
    if (!r->copy.is_queued) return;
    r->copy.is_queued = 0;
    exf_code rc = finish_copy(r, &err);
    settle_chunk(r, r->copy.load, r->copy.number, rc, &err);
}

/* Reads a chunk while the one before is copied, waits for that copy, and queues the chunk's own.  skip: a chunk before it
 * has failed. */
static void load_chunk(reader *r, size_t load, size_t i, int skip)
{
    exf_weight_loader *s = r->s;
    const exf_weight_chunk *p = &plan_of(s, load)->chunk[i];
    char *to = area_of(s, load) + p->to, *half = r->host + (r->half ? s->most_host : 0);
    exf_err err = {.code = EXF_OK};
    exf_fetched_chunk c;
    exf_code rc;
    if (s->shared) settle_copy(r); /* the ring may wait for the slot that this copy reads */
    if (skip) {
        settle_copy(r);
        settle_chunk(r, load, i, EXF_OK, &err);
        return;
    }
    double start = exf_clock();
    EXF_TRY(exf_stop_check(&err));
    rc = exf_chunk_fetch(s->shared, p, s->number[load] + i, &half, s->most_host, &c, &err);
    r->times.bytes += c.bytes;
    r->times.reading += exf_clock() - start;
    if (rc != EXF_OK) goto out;
    settle_copy(r);
    if (p->raw)
        queue_raw(r, p, &c.rows, to);
    else
        EXF_TRY(queue_decoded(r, p, &c.rows, half, to, &err));
    r->copy = (copied_chunk){1, load, i, c};
    r->half = !r->half;
out:
    if (rc == EXF_OK) return;
    settle_copy(r);
    settle_chunk(r, load, i, rc, &err);
}

/* The thread of a reader.  Pinning memory takes milliseconds, so each reader pins its own. */
static void *read_chunks(void *self)
{
    reader *r = self;
    exf_weight_loader *s = r->s;
    exf_err err = {.code = EXF_OK};
    exf_code rc = s->b->gpu->alloc_staging((void *)&r->host, 2 * s->most_host, "weight chunks", &err);
    size_t load, chunk;
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) {
        note_failure(s, 0, 0, &err);
        s->lost = 1;
        pthread_cond_signal(&s->done);
    }
    while (rc == EXF_OK && !s->quit) {
        int takes = take_chunk(s, &load, &chunk), skip = takes && failed_before(s, load, chunk);
        if (!takes && !r->copy.is_queued) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        if (takes)
            load_chunk(r, load, chunk, skip);
        else
            settle_copy(r);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    settle_copy(r);
    s->b->gpu->free_staging(r->host);
    r->host = NULL;
    return NULL;
}

/* Permits filling of `load` and, if the load after it has another area, of that load too. */
static void open_loads(exf_weight_loader *s, size_t load)
{
    pthread_mutex_lock(&s->lock);
    s->open_loads = load + 1;
    if (load + 1 < s->schedule.n && s->schedule.load[load + 1].early) s->open_loads++;
    pthread_cond_broadcast(&s->work);
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

size_t exf_weight_loader_reader_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o)
{
    (void)m;
    (void)compute;
    return (size_t)readers_of(o) * (EXF_WEIGHT_CHUNK_BYTES + EXF_WEIGHT_CHUNK_BYTES / 8 + 2 * ALIGN); /* a chunk, its scales */
}

uint64_t exf_weight_loader_host_bytes(const exf_weight_loader_options *o)
{
    return (uint64_t)readers_of(o) * 2 *
           (exf_scales_offset(EXF_WEIGHT_CHUNK_BYTES) + exf_file_aligned_size(EXF_WEIGHT_CHUNK_BYTES / 8));
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

static exf_code open_reader(exf_weight_loader *s, reader *r, exf_err *err)
{
    exf_code rc;
    r->s = s;
    EXF_TRY(s->b->open(&r->q, s->compute, err));
    EXF_TRY(s->b->alloc(&r->device, s->most_device, 1, "weight chunks", err));
    EXF_TRY(s->b->alloc(&r->bad, 1, sizeof *r->bad, "weight chunks", err));
    r->started = pthread_create(&r->thread, NULL, read_chunks, r) == 0;
    if (!r->started) rc = exf_fail(err, EXF_NOSPACE, "weights: a reader thread could not be started");
out:
    return rc;
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
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->done, NULL);
    EXF_TRY(exf_weight_schedule_make(&s->schedule, m, compute, o, err));
    exf_weight_schedule_most(&s->schedule, &s->most_host, &s->most_device);
    s->most_host = exf_file_aligned_size(s->most_host); /* each half begins where direct reading may */
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
    for (int i = 0; i < s->n_readers; i++) EXF_TRY(open_reader(s, &s->readers[i], err));
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
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_readers; i++) {
        reader *r = &s->readers[i];
        if (r->started) pthread_join(r->thread, NULL);
        if (times) {
            times->reading += r->times.reading;
            times->sending += r->times.sending;
            times->bytes += r->times.bytes;
            times->readers++;
        }
        if (!r->q) continue;
        s->b->close(r->q);
        s->b->free(r->device);
        s->b->free(r->bad);
    }
    for (int i = 0; i < EXF_WEIGHT_AREAS; i++) s->b->free(s->area[i]);
    exf_weight_schedule_free(&s->schedule);
    exf_mem_free(s->left);
    exf_mem_free(s->ready);
    exf_mem_free(s->number);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    exf_mem_free(s);
}

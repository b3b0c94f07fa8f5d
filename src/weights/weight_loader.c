/* weight_loader.c - see weight_loader.h.
 *
 * A reader (weight_reader.h) waits for the copy of its chunk before it takes the next.
 * Several readers keep both the file system and the bus busy without any CUDA event.
 *
 * Readers take chunks load after load (weight_plan.h) as far as areas are free; the
 * reader that finishes a load's last chunk also calls exf_weight_reader_end(). */
#include "weights/weight_loader.h"

#include "base/mem.h"
#include "base/thread_pool.h"

#include <pthread.h>

enum { MOST_READERS = 16, ALIGN = 256 };

typedef struct {
    struct exf_weight_loader *s;
    pthread_t thread;
    int started;
    exf_weight_reader of;
} reader;

struct exf_weight_loader {
    const exf_model *model;
    const exf_backend *b;
    exf_compute compute;
    exf_weight_loader_options o;
    void *area[EXF_WEIGHT_AREAS];
    exf_weight_schedule schedule; /* made when the loader opens: looking up names takes milliseconds */
    size_t load;            /* the load that the next call of next() returns */
    size_t most_host;       /* bytes of the largest chunk in pinned memory */
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

static int readers_of(const exf_weight_loader_options *o)
{
    int n = o->n_readers > 0 ? o->n_readers : exf_default_threads();
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

/* ---- readers ------------------------------------------------------------------- */

static int failed_before(const exf_weight_loader *s, size_t load, size_t chunk)
{
    return s->err.code != EXF_OK && (s->err_load < load || (s->err_load == load && s->err_chunk < chunk));
}

/* Keeps the error of the lowest chunk, so that the message does not depend on which reader was faster. */
static void note(exf_weight_loader *s, size_t load, size_t chunk, const exf_err *err)
{
    if (failed_before(s, load, chunk)) return;
    s->err = *err;
    s->err_load = load;
    s->err_chunk = chunk;
}

/* Takes the next chunk in order; returns 0 if the caller must wait. */
static int take(exf_weight_loader *s, size_t *load, size_t *chunk)
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

/* Loads one chunk.  Called with the lock held; releases it while it loads. */
static void serve(reader *r, size_t load, size_t chunk)
{
    exf_weight_loader *s = r->s;
    exf_err err = {.code = EXF_OK};
    size_t n = plan_of(s, load)->n;
    int skip = failed_before(s, load, chunk);
    pthread_mutex_unlock(&s->lock);
    exf_code rc = EXF_OK;
    if (!skip) rc = exf_weight_reader_send(&r->of, plan_of(s, load), chunk, s->number[load] + chunk, area_of(s, load), &err);
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) note(s, load, chunk, &err);
    if (--s->left[load] > 0) return;
    skip = failed_before(s, load, n);
    pthread_mutex_unlock(&s->lock);
    rc = skip ? EXF_OK : exf_weight_reader_end(&r->of, plan_of(s, load), area_of(s, load), &err);
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) note(s, load, n, &err);
    s->ready[load] = 1;
    pthread_cond_signal(&s->done);
}

/* The thread of a reader.  Pinning memory takes milliseconds, so each reader pins its own. */
static void *read_pieces(void *self)
{
    reader *r = self;
    exf_weight_loader *s = r->s;
    exf_err err = {.code = EXF_OK};
    exf_code rc = exf_weight_reader_pin(&r->of, s->most_host, &err);
    size_t load, chunk;
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) {
        note(s, 0, 0, &err);
        s->lost = 1;
        pthread_cond_signal(&s->done);
    }
    while (rc == EXF_OK && !s->quit) {
        if (take(s, &load, &chunk))
            serve(r, load, chunk);
        else
            pthread_cond_wait(&s->work, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    exf_weight_reader_unpin(&r->of);
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

/* ---- opening and closing ----------------------------------------------------------- */

size_t exf_weight_loader_reader_bytes(const exf_model *m, exf_compute compute, const exf_weight_loader_options *o)
{
    (void)m;
    (void)compute;
    return (size_t)readers_of(o) * (EXF_WEIGHT_CHUNK_BYTES + EXF_WEIGHT_CHUNK_BYTES / 8 + 2 * ALIGN); /* a chunk, its scales */
}

uint64_t exf_weight_loader_host_bytes(const exf_weight_loader_options *o)
{
    return (uint64_t)readers_of(o) *
           (exf_scales_offset(EXF_WEIGHT_CHUNK_BYTES) + exf_file_aligned_size(EXF_WEIGHT_CHUNK_BYTES / 8));
}

static exf_code alloc_areas(exf_weight_loader *s, exf_err *err)
{
    exf_code rc = EXF_OK;
    int first = s->o.part_experts ? 1 : 0;
    size_t slot = exf_weight_loader_slot_bytes(s->model, s->compute, &s->o);
    if (first)
        EXF_TRY(s->b->alloc(&s->area[0], exf_weight_loader_base_bytes(s->model, s->compute, &s->o), 1, "layer weights", err));
    for (int i = 0; i < s->o.n_slots; i++) EXF_TRY(s->b->alloc(&s->area[first + i], slot, 1, "layer weights", err));
out:
    return rc;
}

static exf_code count_pieces(exf_weight_loader *s, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_new(&s->left, s->schedule.n, sizeof *s->left, "weight loads", err));
    EXF_TRY(exf_mem_new(&s->ready, s->schedule.n, 1, "weight loads", err));
    EXF_TRY(exf_mem_new(&s->number, s->schedule.n, sizeof *s->number, "weight loads", err));
    for (size_t t = 0; t < s->schedule.n; t++) {
        s->left[t] = plan_of(s, t)->n;
        s->ready[t] = s->left[t] == 0;
    }
out:
    return rc;
}

/* Numbers the chunks, which the ranks of a node share if all have the same. */
static exf_code share_chunks(exf_weight_loader *s, exf_err *err)
{
    char digest[EXF_SHA256_HEX];
    uint64_t number;
    size_t n;
    int same;
    exf_code rc = EXF_OK;
    if (!s->o.shared) return EXF_OK;
    EXF_TRY(exf_weight_schedule_digest(&s->schedule, digest, &n, err));
    EXF_TRY(exf_shared_chunks_begin(s->o.shared, digest, n, &number, &same, err));
    if (!same) goto out;
    s->shared = s->o.shared;
    for (size_t t = 0; t < s->schedule.n; number += plan_of(s, t++)->n) s->number[t] = number;
out:
    return rc;
}

static exf_code open_reader(exf_weight_loader *s, reader *r, size_t device, exf_err *err)
{
    exf_code rc;
    r->s = s;
    EXF_TRY(exf_weight_reader_open(&r->of, s->model, s->b, s->compute, device, err));
    r->of.shared = s->shared;
    if (pthread_create(&r->thread, NULL, read_pieces, r) != 0) {
        rc = exf_fail(err, EXF_NOSPACE, "weights: a reader thread could not be started");
        goto out;
    }
    r->started = 1;
out:
    return rc;
}

exf_code exf_weight_loader_open(exf_weight_loader **out, const exf_model *m, const exf_backend *b, exf_compute compute,
                                const exf_weight_loader_options *o, exf_err *err)
{
    exf_weight_loader *s = NULL;
    size_t device;
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
    exf_weight_schedule_most(&s->schedule, &s->most_host, &device);
    EXF_TRY(count_pieces(s, err));
    EXF_TRY(alloc_areas(s, err));
    EXF_TRY(share_chunks(s, err));
    for (int i = 0; i < s->n_readers; i++) EXF_TRY(open_reader(s, &s->readers[i], device, err));
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
            times->reading += r->of.times.reading;
            times->sending += r->of.times.sending;
            times->bytes += r->of.times.bytes;
            times->readers++;
        }
        exf_weight_reader_close(&r->of);
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

/* weight_stream.c - see weight_stream.h.
 *
 * A reader has a queue, pinned memory for one piece and, for what is decoded there,
 * the device's; it waits for its piece to cross before it takes the next.  Several
 * of them keep both the file system and the bus busy without any event. */
#include "forward/weight_stream.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/stop.h"
#include "forward/weight_turns.h"

#include <omp.h>
#include <pthread.h>
#include <string.h>

enum { MOST_READERS = 8, ALIGN = 256 };

typedef struct {
    struct exf_weight_stream *s;
    pthread_t thread;
    int started;
    exf_queue *q;
    char *host;   /* pinned: room for codes, then for scales */
    char *device; /* codes, then scales, where a piece is decoded there */
    int *bad;
    exf_stream_times times;
} reader;

struct exf_weight_stream {
    const exf_model *model;
    const exf_backend *b;
    exf_compute compute;
    exf_stream_options o;
    void *area[EXF_WEIGHT_AREAS];
    exf_weight_turns turns; /* made at once: looking up names takes milliseconds */
    size_t turn;            /* the next to be asked for */
    reader readers[MOST_READERS];
    int n_readers;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* readers wait for work, next() for done */
    exf_weight_plan *now;      /* whose pieces are being taken; NULL: none */
    char *to;                  /* its area */
    size_t taken, finished;
    int quit;
    exf_err err;               /* of the lowest piece that failed */
    size_t err_piece;
};

static int readers_of(const exf_stream_options *o)
{
    int n = o->n_readers > 0 ? o->n_readers : omp_get_max_threads();
    return n < 1 ? 1 : n > MOST_READERS ? MOST_READERS : n;
}

/* ---- one piece ----------------------------------------------------------------- */

static exf_packed_rows packed_of(const exf_piece *p, const char *codes, const char *scales)
{
    const exf_weight_source *w = &p->at.w;
    static const exf_packing packing[] = {[EXF_CODED_PLAIN] = EXF_PACKED_PLAIN, [EXF_CODED_FP8] = EXF_PACKED_FP8, [EXF_CODED_FP4] = EXF_PACKED_FP4};
    return (exf_packed_rows){.packing = packing[w->coding], .dtype = w->stored->tensor->view.dtype,
                             .scale_dtype = w->scale ? w->scale->tensor->view.dtype : EXF_DT_F32, .codes = codes, .scales = scales,
                             .rows = p->n_rows, .cols = p->at.cols, .block_rows = (size_t)w->block_rows, .block_cols = (size_t)w->block_cols};
}

#define BEYOND "is beyond bfloat16"

/* The message is the host's: it finds what the device only noticed. */
static exf_code blame(const exf_weight_stream *s, const exf_piece *p, int layer, exf_err *err)
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

/* As stored: BF16 for BF16 straight into place, all else by way of the reader's room there. */
static exf_code send_raw(reader *r, const exf_piece *p, char *to, exf_err *err)
{
    const exf_backend *b = r->s->b;
    const exf_weight_source *w = &p->at.w;
    size_t codes = exf_weight_source_code_bytes(w, p->n_rows, p->at.cols), scales = exf_weight_source_scale_bytes(w, p->n_rows, p->at.cols);
    size_t behind = (codes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    double start = exf_clock();
    int bad = 0;
    exf_raw_rows here;
    exf_code rc;
    EXF_TRY(exf_weight_source_raw(w, p->at.row + p->row, p->n_rows, p->at.cols, r->host, r->host + exf_scales_room(codes), &here, err));
    double read = exf_clock();
    if (w->coding == EXF_CODED_PLAIN && w->stored->tensor->view.dtype == EXF_DT_BF16 && p->number == EXF_NUMBER_BF16) {
        b->upload(r->q, to, here.codes, codes); /* checked with the whole layer, by next() */
        EXF_TRY(b->finish(r->q, err));
    } else {
        exf_packed_rows rows = packed_of(p, r->device, r->device + behind);
        b->upload(r->q, r->device, here.codes, codes);
        if (scales) b->upload(r->q, r->device + behind, here.scales, scales);
        b->unpack(r->q, to, p->number, &rows, r->bad);
        EXF_TRY(b->download(r->q, &bad, r->bad, sizeof bad, err));
    }
    r->times.reading += read - start;
    r->times.sending += exf_clock() - read;
    r->times.bytes += codes + scales;
    if (bad) rc = blame(r->s, p, r->s->now->of.layer, err);
out:
    return rc;
}

static exf_code send_decoded(reader *r, const exf_piece *p, char *to, int layer, exf_err *err)
{
    const exf_backend *b = r->s->b;
    double start = exf_clock();
    exf_code rc;
    EXF_TRY(exf_model_read(r->s->model, p->role, layer < 0 ? -1 : layer, p->expert, (float *)(void *)r->host, err));
    r->times.reading += exf_clock() - start;
    r->times.bytes += exf_weight_source_bytes(&p->at.w);
    b->upload(r->q, to, r->host, p->n_rows * p->at.cols * sizeof(float));
    rc = b->finish(r->q, err);
out:
    return rc;
}

static exf_code send_piece(reader *r, const exf_weight_plan *plan, size_t i, char *slot, exf_err *err)
{
    const exf_piece *p = &plan->piece[i];
    exf_code rc = exf_stop_check(err);
    if (rc != EXF_OK) return rc;
    return p->raw ? send_raw(r, p, slot + p->to, err) : send_decoded(r, p, slot + p->to, plan->of.layer, err);
}

/* ---- readers ------------------------------------------------------------------- */

/* A message does not depend on which reader was faster. */
static void note(exf_weight_stream *s, size_t piece, const exf_err *err)
{
    if (s->err.code != EXF_OK && s->err_piece < piece) return;
    s->err = *err;
    s->err_piece = piece;
}

static void *read_pieces(void *self)
{
    reader *r = self;
    exf_weight_stream *s = r->s;
    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        if (!s->now || s->taken == s->now->n) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        size_t i = s->taken++;
        exf_err err = {.code = EXF_OK};
        int skip = s->err.code != EXF_OK && s->err_piece < i;
        pthread_mutex_unlock(&s->lock);
        exf_code rc = skip ? EXF_OK : send_piece(r, s->now, i, s->to, &err);
        pthread_mutex_lock(&s->lock);
        if (rc != EXF_OK) note(s, i, &err);
        if (++s->finished == s->now->n) pthread_cond_signal(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void start_turn(exf_weight_stream *s, const exf_weight_turn *t)
{
    pthread_mutex_lock(&s->lock);
    s->now = &s->turns.plan[t->plan];
    s->to = s->area[t->area];
    s->taken = s->finished = 0;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

static exf_code wait_turn(exf_weight_stream *s, exf_err *err)
{
    pthread_mutex_lock(&s->lock);
    while (s->finished < s->now->n) pthread_cond_wait(&s->done, &s->lock);
    if (s->err.code != EXF_OK) *err = s->err;
    exf_code rc = s->err.code;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* What crossed as it was stored: a first reader that has nothing to do looks at it all. */
static exf_code check_turn(exf_weight_stream *s, const exf_weight_plan *p, const char *slot, exf_err *err)
{
    reader *r = &s->readers[0];
    int bad = 0;
    exf_code rc = EXF_OK;
    for (int role = 0; role < EXF_W_COUNT; role++) {
        size_t n = p->there[role] && p->number[role] == EXF_NUMBER_BF16 ? exf_weight_plan_elements(s->model, (exf_role)role, &p->of) : 0;
        s->b->check_bf16(r->q, (const uint16_t *)(const void *)(slot + p->first[role]), n, r->bad);
    }
    EXF_TRY(s->b->download(r->q, &bad, r->bad, sizeof bad, err));
    for (size_t i = 0; bad && i < p->n; i++)
        if (p->piece[i].raw) {
            rc = blame(s, &p->piece[i], p->of.layer, err);
            if (rc != EXF_NUMERIC || !strstr(err->msg, BEYOND) || i + 1 == p->n) break;
        }
out:
    return rc;
}

/* The router's matrix twice, [E, 2 H]. */
static exf_code split_router(exf_weight_stream *s, exf_layer_weights *lw, const exf_weight_plan *p, char *slot, exf_err *err)
{
    const exf_architecture *a = &s->model->arch;
    exf_queue *q = s->readers[0].q;
    if (p->of.choice == EXF_SOME_EXPERTS) return EXF_OK;
    lw->router_split = p->split ? (uint16_t *)(void *)(slot + p->split) : NULL;
    if (!p->split) return EXF_OK;
    for (int half = 0; half < 2; half++)
        s->b->round_rows(q, lw->router_split + half * a->d_model, 2 * a->d_model, lw->w[EXF_W_ROUTER], a->d_model, a->n_experts, a->d_model);
    return s->b->finish(q, err);
}

static void point_at(exf_layer_weights *lw, const exf_weight_plan *p, char *slot)
{
    if (p->of.choice != EXF_SOME_EXPERTS) {
        memset(lw->w, 0, sizeof lw->w);
        memset(lw->w16, 0, sizeof lw->w16);
    }
    for (int role = 0; role < EXF_W_COUNT; role++) {
        void *at = slot + p->first[role];
        if (!p->there[role]) continue;
        if (p->number[role] == EXF_NUMBER_BF16)
            lw->w16[role] = at;
        else
            lw->w[role] = at;
    }
}

exf_code exf_weight_stream_next(exf_weight_stream *s, exf_layer_weights *lw, exf_err *err)
{
    size_t turn = s->turn++;
    exf_code rc;
    if (turn >= s->turns.n) return exf_fail(err, EXF_INTERNAL, "weights: asked for %zu parts of %zu", turn + 1, s->turns.n);
    const exf_weight_turn *t = &s->turns.turn[turn];
    const exf_weight_plan *plan = &s->turns.plan[t->plan];
    if (turn > 0 && !t->early) start_turn(s, t);
    EXF_TRY(wait_turn(s, err));
    point_at(lw, plan, s->area[t->area]);
    EXF_TRY(check_turn(s, plan, s->area[t->area], err));
    EXF_TRY(split_router(s, lw, plan, s->area[t->area], err));
    if (turn + 1 < s->turns.n && t[1].early) start_turn(s, t + 1);
out:
    return rc;
}

/* ---- opening and closing ----------------------------------------------------------- */

size_t exf_stream_reader_bytes(const exf_model *m, exf_compute compute, const exf_stream_options *o)
{
    (void)m;
    (void)compute;
    return (size_t)readers_of(o) * (EXF_PIECE_BYTES + EXF_PIECE_BYTES / 8 + 2 * ALIGN); /* a piece and its scales */
}

uint64_t exf_stream_host_bytes(const exf_stream_options *o)
{
    return (uint64_t)readers_of(o) * (exf_scales_room(EXF_PIECE_BYTES) + exf_file_room(EXF_PIECE_BYTES / 8));
}

static exf_code alloc_areas(exf_weight_stream *s, exf_err *err)
{
    exf_code rc = EXF_OK;
    int first = s->o.part_experts ? 1 : 0;
    size_t slot = exf_stream_slot_bytes(s->model, s->compute, &s->o);
    if (first) EXF_TRY(s->b->alloc(&s->area[0], exf_stream_base_bytes(s->model, s->compute, &s->o), 1, "layer weights", err));
    for (int i = 0; i < s->o.n_slots; i++) EXF_TRY(s->b->alloc(&s->area[first + i], slot, 1, "layer weights", err));
out:
    return rc;
}

static exf_code open_reader(exf_weight_stream *s, reader *r, size_t host, size_t device, exf_err *err)
{
    exf_code rc;
    r->s = s;
    EXF_TRY(s->b->open(&r->q, s->compute, err));
    EXF_TRY(s->b->alloc_staging((void *)&r->host, host, "weight pieces", err));
    EXF_TRY(s->b->alloc(&r->device, device, 1, "weight pieces", err));
    EXF_TRY(s->b->alloc(&r->bad, 1, sizeof *r->bad, "weight pieces", err));
    if (pthread_create(&r->thread, NULL, read_pieces, r) != 0) {
        rc = exf_fail(err, EXF_NOSPACE, "weights: a reader thread could not be started");
        goto out;
    }
    r->started = 1;
out:
    return rc;
}

exf_code exf_weight_stream_open(exf_weight_stream **out, const exf_model *m, const exf_backend *b, exf_compute compute,
                                const exf_stream_options *o, exf_err *err)
{
    exf_weight_stream *s = NULL;
    size_t host, device;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "weight stream", err));
    s->model = m;
    s->b = b;
    s->compute = compute;
    s->o = *o;
    s->n_readers = readers_of(o);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->done, NULL);
    EXF_TRY(exf_weight_turns_make(&s->turns, m, compute, o, err));
    exf_weight_turns_most(&s->turns, &host, &device);
    EXF_TRY(alloc_areas(s, err));
    for (int i = 0; i < s->n_readers; i++) EXF_TRY(open_reader(s, &s->readers[i], host, device, err));
    start_turn(s, &s->turns.turn[0]);
out:
    if (rc != EXF_OK)
        exf_weight_stream_close(s, NULL);
    else
        *out = s;
    return rc;
}

static void close_reader(reader *r)
{
    if (r->started) pthread_join(r->thread, NULL);
    if (!r->s) return;
    r->s->b->close(r->q);
    r->s->b->free_staging(r->host);
    r->s->b->free(r->device);
    r->s->b->free(r->bad);
}

void exf_weight_stream_close(exf_weight_stream *s, exf_stream_times *times)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->quit = 1;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_readers; i++) {
        reader *r = &s->readers[i];
        close_reader(r);
        if (!times) continue;
        times->reading += r->times.reading;
        times->sending += r->times.sending;
        times->bytes += r->times.bytes;
    }
    for (int i = 0; i < EXF_WEIGHT_AREAS; i++) s->b->free(s->area[i]);
    exf_weight_turns_free(&s->turns);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    exf_mem_free(s);
}

/* weight_stream.c - see weight_stream.h.
 *
 * A reader has a queue, pinned memory for one piece and, for what is decoded there,
 * the device's; it waits for its piece to cross before it takes the next.  Several
 * of them keep both the file system and the bus busy without any event.
 *
 * A turn is one part of the model: the embedding, a layer, the head.  Pieces are taken
 * turn after turn as far as slots are free; whoever finishes a turn's last piece also
 * does what needs the whole turn. */
#include "forward/weight_stream.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/stop.h"
#include "forward/weight_plan.h"

#include <omp.h>
#include <pthread.h>
#include <string.h>

enum { MOST_READERS = 8, ALIGN = 256 };

typedef struct {
    struct exf_weight_stream *s;
    pthread_t thread;
    int started;
    exf_queue *q;
    char *host;   /* pinned: codes, then scales; the reader's own thread makes it and gives it back */
    char *device; /* the same, where a piece is decoded there */
    int *bad;
    exf_stream_times times;
} reader;

struct exf_weight_stream {
    const exf_model *model;
    const exf_backend *b;
    exf_compute compute;
    exf_stream_options o;
    void *slot[2];
    exf_weight_plan *plan; /* [n_turns] made at once: looking up names takes milliseconds */
    int turn;    /* that next() will be asked for, counted from the embedding */
    int n_turns;
    size_t most_host; /* bytes of the largest piece in pinned memory */
    reader readers[MOST_READERS];
    int n_readers;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* readers wait for work, next() for done */
    int taking;                /* turn whose pieces are being taken */
    int open_turns;            /* turns below this one have a slot */
    size_t taken;              /* pieces of `taking` */
    size_t *left;              /* [n_turns] pieces not yet there */
    unsigned char *ready;      /* [n_turns] */
    int quit;
    exf_err err;               /* of the first turn's lowest piece that failed, or of a reader that could not open */
    int err_turn;
    size_t err_piece;
};

static int turns_of(const exf_stream_options *o)
{
    return 1 + o->n_layers + (o->head != 0);
}

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
static exf_code send_raw(reader *r, const exf_piece *p, char *to, int layer, exf_err *err)
{
    const exf_backend *b = r->s->b;
    const exf_weight_source *w = &p->at.w;
    size_t codes = exf_weight_source_code_bytes(w, p->n_rows, p->at.cols), scales = exf_weight_source_scale_bytes(w, p->n_rows, p->at.cols);
    size_t behind = (codes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    double start = exf_clock();
    int bad = 0;
    exf_code rc;
    EXF_TRY(exf_weight_source_raw(w, p->at.row + p->row, p->n_rows, p->at.cols, r->host, r->host + behind, err));
    double read = exf_clock();
    if (w->coding == EXF_CODED_PLAIN && w->stored->tensor->view.dtype == EXF_DT_BF16 && p->number == EXF_NUMBER_BF16) {
        b->upload(r->q, to, r->host, codes); /* checked with the whole layer, by next() */
        EXF_TRY(b->finish(r->q, err));
    } else {
        exf_packed_rows rows = packed_of(p, r->device, r->device + behind);
        b->upload(r->q, r->device, r->host, scales ? behind + scales : codes);
        b->unpack(r->q, to, p->number, &rows, r->bad);
        EXF_TRY(b->download(r->q, &bad, r->bad, sizeof bad, err));
    }
    r->times.reading += read - start;
    r->times.sending += exf_clock() - read;
    r->times.bytes += codes + scales;
    if (bad) rc = blame(r->s, p, layer, err);
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
    return p->raw ? send_raw(r, p, slot + p->to, plan->layer, err) : send_decoded(r, p, slot + p->to, plan->layer, err);
}

/* ---- a whole turn --------------------------------------------------------------- */

static char *slot_of(const exf_weight_stream *s, int turn)
{
    return s->slot[turn % s->o.n_slots];
}

/* What crossed as it was stored is looked at all at once. */
static exf_code check_turn(reader *r, const exf_weight_plan *p, const char *slot, exf_err *err)
{
    const exf_weight_stream *s = r->s;
    int bad = 0;
    exf_code rc = EXF_OK;
    for (int role = 0; role < EXF_W_COUNT; role++) {
        size_t n = p->there[role] && p->number[role] == EXF_NUMBER_BF16 ? exf_weight_plan_elements(s->model, (exf_role)role, p->layer) : 0;
        s->b->check_bf16(r->q, (const uint16_t *)(const void *)(slot + p->first[role]), n, r->bad);
    }
    EXF_TRY(s->b->download(r->q, &bad, r->bad, sizeof bad, err));
    for (size_t i = 0; bad && i < p->n; i++)
        if (p->piece[i].raw) {
            rc = blame(s, &p->piece[i], p->layer, err);
            if (rc != EXF_NUMERIC || !strstr(err->msg, BEYOND) || i + 1 == p->n) break;
        }
out:
    return rc;
}

/* The router's matrix twice, [E, 2 H]. */
static exf_code split_router(reader *r, const exf_weight_plan *p, char *slot, exf_err *err)
{
    const exf_architecture *a = &r->s->model->arch;
    uint16_t *split = (uint16_t *)(void *)(slot + p->split);
    const float *router = (const float *)(const void *)(slot + p->first[EXF_W_ROUTER]);
    if (!p->split) return EXF_OK;
    for (int half = 0; half < 2; half++)
        r->s->b->round_rows(r->q, split + half * a->d_model, 2 * a->d_model, router, a->d_model, a->n_experts, a->d_model);
    return r->s->b->finish(r->q, err);
}

static exf_code end_turn(reader *r, int turn, exf_err *err)
{
    const exf_weight_plan *p = &r->s->plan[turn];
    exf_code rc = check_turn(r, p, slot_of(r->s, turn), err);
    return rc == EXF_OK ? split_router(r, p, slot_of(r->s, turn), err) : rc;
}

/* ---- readers ------------------------------------------------------------------- */

static int failed_before(const exf_weight_stream *s, int turn, size_t piece)
{
    return s->err.code != EXF_OK && (s->err_turn < turn || (s->err_turn == turn && s->err_piece < piece));
}

/* A message does not depend on which reader was faster. */
static void note(exf_weight_stream *s, int turn, size_t piece, const exf_err *err)
{
    if (failed_before(s, turn, piece)) return;
    s->err = *err;
    s->err_turn = turn;
    s->err_piece = piece;
}

/* The next piece in order; 0: to be waited for. */
static int take(exf_weight_stream *s, int *turn, size_t *piece)
{
    while (s->taking < s->open_turns && s->taken == s->plan[s->taking].n) {
        s->taking++;
        s->taken = 0;
    }
    if (s->taking == s->open_turns) return 0;
    *turn = s->taking;
    *piece = s->taken++;
    return 1;
}

/* With the lock held, which it gives up while it works. */
static void serve(reader *r, int turn, size_t piece)
{
    exf_weight_stream *s = r->s;
    exf_err err = {.code = EXF_OK};
    int skip = failed_before(s, turn, piece);
    pthread_mutex_unlock(&s->lock);
    exf_code rc = skip ? EXF_OK : send_piece(r, &s->plan[turn], piece, slot_of(s, turn), &err);
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) note(s, turn, piece, &err);
    if (--s->left[turn] > 0) return;
    size_t n = s->plan[turn].n;
    skip = failed_before(s, turn, n);
    pthread_mutex_unlock(&s->lock);
    rc = skip ? EXF_OK : end_turn(r, turn, &err);
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) note(s, turn, n, &err);
    s->ready[turn] = 1;
    pthread_cond_signal(&s->done);
}

/* Pinning memory takes milliseconds, so that readers do it side by side. */
static void *read_pieces(void *self)
{
    reader *r = self;
    exf_weight_stream *s = r->s;
    exf_err err = {.code = EXF_OK};
    exf_code rc = s->b->alloc_staging((void *)&r->host, s->most_host, "weight pieces", &err);
    int turn;
    size_t piece;
    pthread_mutex_lock(&s->lock);
    if (rc != EXF_OK) {
        note(s, -1, 0, &err);
        pthread_cond_signal(&s->done);
    }
    while (rc == EXF_OK && !s->quit) {
        if (take(s, &turn, &piece))
            serve(r, turn, piece);
        else
            pthread_cond_wait(&s->work, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    s->b->free_staging(r->host);
    return NULL;
}

static void open_turns(exf_weight_stream *s, int n)
{
    pthread_mutex_lock(&s->lock);
    s->open_turns = n < s->n_turns ? n : s->n_turns;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

static exf_code wait_turn(exf_weight_stream *s, int turn, exf_err *err)
{
    exf_code rc = EXF_OK;
    pthread_mutex_lock(&s->lock);
    while (!s->ready[turn] && !failed_before(s, 0, 0)) pthread_cond_wait(&s->done, &s->lock);
    if (failed_before(s, turn + 1, 0)) {
        *err = s->err;
        rc = err->code;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static void point_at(exf_layer_weights *lw, const exf_weight_plan *p, char *slot)
{
    memset(lw->w, 0, sizeof lw->w);
    memset(lw->w16, 0, sizeof lw->w16);
    for (int role = 0; role < EXF_W_COUNT; role++) {
        void *at = slot + p->first[role];
        if (!p->there[role]) continue;
        if (p->number[role] == EXF_NUMBER_BF16)
            lw->w16[role] = at;
        else
            lw->w[role] = at;
    }
    lw->router_split = p->split ? (uint16_t *)(void *)(slot + p->split) : NULL;
}

exf_code exf_weight_stream_next(exf_weight_stream *s, exf_layer_weights *lw, exf_err *err)
{
    int turn = s->turn++;
    exf_code rc;
    if (turn >= s->n_turns) return exf_fail(err, EXF_INTERNAL, "weights: asked for %d parts of %d", turn + 1, s->n_turns);
    open_turns(s, turn + s->o.n_slots); /* the slot of the turn before is free */
    EXF_TRY(wait_turn(s, turn, err));
    point_at(lw, &s->plan[turn], slot_of(s, turn));
out:
    return rc;
}

/* ---- opening and closing ----------------------------------------------------------- */

static int some_layer(const exf_stream_options *o, int turn)
{
    return turn == 0 ? EXF_LAYER_EMBED : turn <= o->n_layers ? turn - 1 : EXF_LAYER_HEAD;
}

size_t exf_stream_slot_bytes(const exf_model *m, exf_compute compute, const exf_stream_options *o)
{
    size_t most = 0;
    for (int t = 0; t < turns_of(o); t++) {
        size_t bytes = exf_weight_plan_bytes(m, compute, some_layer(o, t));
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t exf_stream_reader_bytes(const exf_model *m, exf_compute compute, const exf_stream_options *o)
{
    (void)m;
    (void)compute;
    return (size_t)readers_of(o) * (EXF_PIECE_BYTES + EXF_PIECE_BYTES / 8 + 2 * ALIGN); /* a piece and its scales */
}

static exf_code make_plans(exf_weight_stream *s, size_t *device, exf_err *err)
{
    exf_code rc;
    s->most_host = *device = ALIGN;
    EXF_TRY(exf_mem_new(&s->plan, (size_t)s->n_turns, sizeof *s->plan, "weight plans", err));
    EXF_TRY(exf_mem_new(&s->left, (size_t)s->n_turns, sizeof *s->left, "weight plans", err));
    EXF_TRY(exf_mem_new(&s->ready, (size_t)s->n_turns, 1, "weight plans", err));
    for (int t = 0; t < s->n_turns; t++) {
        EXF_TRY(exf_weight_plan_make(&s->plan[t], s->model, s->compute, some_layer(&s->o, t), err));
        s->left[t] = s->plan[t].n;
        s->ready[t] = s->plan[t].n == 0;
        s->most_host = s->plan[t].most_host > s->most_host ? s->plan[t].most_host : s->most_host;
        *device = s->plan[t].most_device > *device ? s->plan[t].most_device : *device;
    }
out:
    return rc;
}

static exf_code open_reader(exf_weight_stream *s, reader *r, size_t device, exf_err *err)
{
    exf_code rc;
    r->s = s;
    EXF_TRY(s->b->open(&r->q, s->compute, err));
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
    size_t device, slot = exf_stream_slot_bytes(m, compute, o);
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "weight stream", err));
    s->model = m;
    s->b = b;
    s->compute = compute;
    s->o = *o;
    s->n_turns = turns_of(o);
    s->n_readers = readers_of(o);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->done, NULL);
    EXF_TRY(make_plans(s, &device, err));
    for (int i = 0; i < o->n_slots; i++) EXF_TRY(b->alloc(&s->slot[i], slot, 1, "layer weights", err));
    for (int i = 0; i < s->n_readers; i++) EXF_TRY(open_reader(s, &s->readers[i], device, err));
    open_turns(s, s->o.n_slots);
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
    for (int i = 0; i < 2; i++) s->b->free(s->slot[i]);
    for (int t = 0; s->plan && t < s->n_turns; t++) exf_weight_plan_free(&s->plan[t]);
    exf_mem_free(s->plan);
    exf_mem_free(s->left);
    exf_mem_free(s->ready);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->done);
    exf_mem_free(s);
}

/* weight_loader_host.c - the loader of a pass on the CPU; see weight_loader.h. */
#include "weights/weight_loader.h"

#include "base/mem.h"
#include "base/parallel.h"

#include <omp.h>
#include <stdatomic.h>

enum { MOST_THREADS = 8 };

struct exf_host_loader {
    const exf_model *model;
    exf_shared_chunks *shared; /* NULL: this rank reads for itself */
    exf_weight_schedule schedule;
    size_t load;               /* the next one */
    uint64_t number;           /* of its first chunk, where chunks are shared */
    char *staging[MOST_THREADS]; /* for chunks that are not */
    size_t staging_bytes;
    double waited;             /* by the thread that asked for the load */
    _Atomic uint64_t bytes;
};

exf_code exf_host_loader_open(exf_host_loader **out, const exf_model *m, const exf_weight_loader_options *o, exf_err *err)
{
    exf_weight_loader_options whole = {.n_slots = 1, .first_layer = o->first_layer, .n_layers = o->n_layers, .head = o->head};
    exf_host_loader *s = NULL;
    size_t device;
    int same = 0;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "weight loader", err));
    s->model = m;
    EXF_TRY(exf_weight_schedule_make(&s->schedule, m, EXF_COMPUTE_F32, &whole, err));
    exf_weight_schedule_most(&s->schedule, &s->staging_bytes, &device);
    if (o->shared) EXF_TRY(exf_shared_chunks_begin(o->shared, &s->schedule, &s->number, &same, err));
    s->shared = same ? o->shared : NULL;
    *out = s;
out:
    if (rc != EXF_OK) exf_host_loader_close(s);
    return rc;
}

void exf_host_loader_close(exf_host_loader *s)
{
    if (!s) return;
    for (int i = 0; i < MOST_THREADS; i++) exf_mem_free(s->staging[i]);
    exf_weight_schedule_free(&s->schedule);
    exf_mem_free(s);
}

double exf_host_loader_waited(const exf_host_loader *s)
{
    return s->waited;
}

uint64_t exf_host_loader_bytes(const exf_host_loader *s)
{
    return atomic_load(&s->bytes);
}

/* One load, whose chunks several threads work on. */
typedef struct {
    exf_host_loader *s;
    const exf_weight_plan *plan;
    float *const *to; /* [EXF_W_COUNT] where each role's tensors go, one after the other */
} host_load;

static exf_code load_chunk(const host_load *l, size_t i, int worker, exf_err *err)
{
    exf_host_loader *s = l->s;
    const exf_weight_chunk *p = &l->plan->chunk[i];
    float *to = l->to[p->role] + ((size_t)p->expert * p->at.rows + p->row) * p->at.cols;
    exf_fetched_chunk c;
    exf_code rc = exf_chunk_fetch(s->shared, p, s->number + i, &s->staging[worker], s->staging_bytes, &c, err);
    if (rc == EXF_OK) rc = exf_weight_source_decode(&p->at.w, &c.rows, p->at.row + p->row, p->n_rows, p->at.cols, to, err);
    if (rc == EXF_OK) exf_chunk_done(s->shared, &c);
    if (worker == 0) s->waited += c.waited;
    atomic_fetch_add(&s->bytes, c.bytes);
    return rc;
}

/* Points lw->w[role] at memory for so many floats; 0: the layer has none. */
static exf_code alloc_role(exf_layer_weights *lw, exf_role role, size_t floats, exf_err *err)
{
    exf_code rc = EXF_OK;
    lw->w[role] = NULL;
    if (floats > lw->capacity[role]) {
        lw->b->free(lw->held[role]);
        lw->held[role] = NULL;
        lw->capacity[role] = 0;
        EXF_TRY(lw->b->alloc(&lw->held[role], floats, sizeof(float), "layer weights", err));
        lw->capacity[role] = floats;
    }
    if (floats) lw->w[role] = lw->held[role];
out:
    return rc;
}

/* lw: of a layer, for which memory is taken; else NULL. */
static exf_code load_next(exf_host_loader *s, float *const *to, exf_layer_weights *lw, int n_threads, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
    exf_code rc;
    if (s->load >= s->schedule.n)
        return exf_fail(err, EXF_INTERNAL, "weights: asked for %zu parts of %zu", s->load + 1, s->schedule.n);
    host_load l = {s, &s->schedule.plan[s->schedule.load[s->load].plan], to};
    size_t n = l.plan->n;
    for (int role = 0; lw && role < EXF_W_COUNT; role++) {
        size_t floats = l.plan->present[role] ? exf_weight_plan_elements(s->model, (exf_role)role, &l.plan->of) : 0;
        EXF_TRY(alloc_role(lw, (exf_role)role, floats, err));
    }
    if (n_threads < 1) n_threads = exf_default_threads();
    if (n_threads > MOST_THREADS) n_threads = MOST_THREADS;
    /* Threads take chunks in rising order, as all members do that share them. */
#pragma omp parallel for schedule(monotonic : dynamic) num_threads(exf_team(n, n_threads))
    for (size_t i = 0; i < n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && load_chunk(&l, i, omp_get_thread_num(), &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    s->number += n;
    s->load++;
    rc = exf_loop_end(&loop, err);
out:
    return rc;
}

exf_code exf_host_loader_embedding(exf_host_loader *s, float *table, int n_threads, exf_err *err)
{
    float *to[EXF_W_COUNT] = {[EXF_W_EMBED] = table};
    return load_next(s, to, NULL, n_threads, err);
}

exf_code exf_host_loader_layer(exf_host_loader *s, exf_layer_weights *lw, int n_threads, exf_err *err)
{
    return load_next(s, lw->w, lw, n_threads, err);
}

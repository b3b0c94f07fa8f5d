/* device_common_input.c - see device_common_input.h. */
#include "forward/device_common_input.h"

#include "base/mem.h"
#include "base/stop.h"
#include "forward/each.h"

enum { MOST_CHUNKS = 16 };

/* In the device's memory, of N places. */
typedef struct {
    uint16_t *outputs; /* [N, E, H] */
    void *space;       /* the products' */
    float *hidden;     /* [N, streams, H] */
    float *u, *mixing; /* with several streams: [N, H], [N, mixing] */
    uint16_t *x;       /* [N, H] normed, rounded */
    int32_t *row;      /* [N] of each place's token in the group */
    int32_t *ids;      /* [N, E] every expert, in order */
} room;

static exf_expert_shape shape_of(const exf_architecture *a, int n_tokens)
{
    return (exf_expert_shape){.n_tokens = n_tokens, .n_experts = a->n_experts, .top_k = a->n_experts, .d_model = a->d_model,
                              .d_expert = a->d_expert, .limit = (float)a->swiglu_limit};
}

static size_t floats_of(size_t bytes)
{
    return (bytes + sizeof(float) - 1) / sizeof(float);
}

/* Outputs first: a chunk's then lie as well aligned in small memory as in large, and a
 * library's products may depend on that. */
static void carve(room *m, exf_arena *arena, const exf_backend *b, const exf_architecture *a, int n_places)
{
    size_t n = (size_t)n_places, h = (size_t)a->d_model, e = (size_t)a->n_experts;
    exf_expert_shape shape = shape_of(a, n_places);
    m->outputs = (uint16_t *)exf_arena_take(arena, floats_of(n * e * h * sizeof *m->outputs));
    m->space = exf_arena_take(arena, floats_of(b->experts_workspace(&shape)));
    m->hidden = exf_arena_take(arena, n * exf_row_width(a));
    m->u = exf_arena_take(arena, a->residual.streams > 1 ? n * h : 0);
    m->mixing = exf_arena_take(arena, n * (size_t)exf_residual_mixing(a));
    m->x = (uint16_t *)exf_arena_take(arena, floats_of(n * h * sizeof *m->x));
    m->row = (int32_t *)exf_arena_take(arena, n);
    m->ids = (int32_t *)exf_arena_take(arena, n * e);
}

size_t exf_device_common_input_bytes(const exf_backend *b, const exf_architecture *a, int n_chunks)
{
    room m;
    exf_arena arena = {NULL, 0};
    carve(&m, &arena, b, a, n_chunks * exf_gram_tokens(a->n_experts));
    return arena.used * sizeof(float);
}

int exf_device_common_input_serve(const exf_step *s)
{
    return s->p->device.tokens > 0 && s->p->lanes[s->lane].observer->device_common_input;
}

/* ---- a piece: as many chunks as there is room for ------------------------------------------ */

typedef struct {
    const exf_step *s;
    room m;
    int chunk, n_chunks;          /* places of a chunk; chunks there is room for */
    int32_t *row;                 /* [n_chunks * chunk] of the group, of the places in use, or left over */
    exf_common_input_part *part;        /* [n_chunks * chunk] of the chunks, one after the other */
    int parts_to[MOST_CHUNKS];    /* of each chunk: where its parts end */
    int n, n_parts;               /* places in use; parts */
} piece;

static void compute(const piece *p, exf_workspace *w)
{
    const exf_step *s = p->s;
    const exf_architecture *a = &s->p->model->arch;
    const exf_layer_weights *lw = &s->p->weights_now;
    exf_expert_shape shape = shape_of(a, p->n);
    exf_expert_matrices matrices = {lw->w16[EXF_W_EXPERT_GATE], lw->w16[EXF_W_EXPERT_UP], lw->w16[EXF_W_EXPERT_DOWN]};
    exf_residual_site site = exf_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    w->b->upload(w->q, p->m.row, p->row, (size_t)p->n * sizeof *p->row);
    w->b->gather_rows(w->q, p->m.hidden, s->rows, p->m.row, p->n, (int)exf_row_width(a));
    const float *u = exf_residual_read(w->b, w->q, a, &site, p->m.hidden, p->n, p->m.u, p->m.mixing);
    w->b->rmsnorm_rounded(w->q, p->m.x, NULL, u, lw->w[EXF_W_FFN_NORM], p->n, a->d_model, a->norm_eps);
    w->b->experts(w->q, p->m.outputs, p->m.x, p->m.ids, &matrices, &shape, p->m.space);
    w->times.flops += 6.0 * p->n * a->n_experts * a->d_model * a->d_expert;
}

static exf_code show(const piece *p, exf_workspace *w, exf_err *err)
{
    const exf_step *s = p->s;
    const exf_observer *o = s->p->lanes[s->lane].observer;
    const exf_architecture *a = &s->p->model->arch;
    exf_code rc = EXF_OK;
    for (int c = 0, from = 0; rc == EXF_OK && c * p->chunk < p->n; from = p->parts_to[c++]) {
        size_t place = (size_t)c * (size_t)p->chunk;
        exf_device_common_input b = {.layer = s->layer, .moe_index = s->moe_index, .n_experts = a->n_experts, .d_model = a->d_model, .q = w->q,
                               .outputs = p->m.outputs + place * (size_t)a->n_experts * (size_t)a->d_model, .rounded = 1, .n_tokens = p->chunk,
                               .part = p->part + from, .n_parts = p->parts_to[c] - from, .row = p->m.row + place, .row_offset = s->group.row};
        rc = o->device_common_input(o->self, &b, err);
    }
    return rc;
}

static exf_code run_piece(piece *p, exf_err *err)
{
    exf_workspace *w = &p->s->p->space[0];
    double start = exf_clock(), ran;
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    compute(p, w);
    EXF_TRY(exf_wait_if_timed(p->s, w, err));
    ran = exf_clock();
    w->times.experts += ran - start;
    EXF_TRY(show(p, w, err));
    rc = exf_wait_if_timed(p->s, w, err);
    w->times.observe += exf_clock() - ran;
    p->n = p->n_parts = 0;
out:
    return rc;
}

/* ---- filling it ---------------------------------------------------------------------------- */

/* Places that are left over have a token that is there anyway. */
static void leave_chunk(piece *p)
{
    for (; p->n % p->chunk; p->n++) p->row[p->n] = p->row[p->n - 1];
}

static void place_part(piece *p, size_t sequence, int n, int ends)
{
    int first = p->n % p->chunk;
    exf_common_input_part *last = p->n_parts ? &p->part[p->n_parts - 1] : NULL;
    if (first && last->sequence == sequence)
        last->n_tokens += n;
    else
        p->part[p->n_parts++] = (exf_common_input_part){.sequence = sequence, .first = first, .n_tokens = n};
    p->part[p->n_parts - 1].ends = ends;
    p->parts_to[p->n / p->chunk] = p->n_parts;
}

/* A unit: the i-th of the sequence's tokens and n - 1 behind it. */
static exf_code place_unit(piece *p, size_t sequence, int i, int n, int ends, exf_err *err)
{
    const exf_batch *batch = p->s->p->batch;
    if (p->n % p->chunk + n > p->chunk) leave_chunk(p);
    if (p->n == p->n_chunks * p->chunk) {
        exf_code rc = run_piece(p, err);
        if (rc != EXF_OK) return rc;
    }
    place_part(p, sequence, n, ends);
    for (int k = 0; k < n; k++) p->row[p->n++] = (int32_t)(batch->span[sequence].offset - p->s->group.row + (size_t)exf_common_input_position(p->s, sequence, i + k));
    return EXF_OK;
}

static exf_code send_ids(const piece *p, exf_err *err)
{
    exf_workspace *w = &p->s->p->space[0];
    size_t e = (size_t)p->s->p->model->arch.n_experts, n = (size_t)(p->n_chunks * p->chunk) * e;
    int32_t *ids;
    exf_code rc = exf_mem_new(&ids, n, sizeof *ids, "common input", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(i % e);
    w->b->upload(w->q, p->m.ids, ids, n * sizeof *ids);
    rc = w->b->finish(w->q, err);
    exf_mem_free(ids);
    return rc;
}

static exf_code open_piece(piece *p, const exf_step *s, exf_err *err)
{
    const exf_pass *pass = s->p;
    const exf_architecture *a = &pass->model->arch;
    exf_code rc;
    *p = (piece){.s = s, .chunk = exf_gram_tokens(a->n_experts), .n_chunks = 1};
    while (p->n_chunks < MOST_CHUNKS && exf_device_common_input_bytes(pass->b, a, p->n_chunks + 1) <= pass->device.bytes) p->n_chunks++;
    size_t places = (size_t)(p->n_chunks * p->chunk);
    exf_arena arena = {(float *)(void *)pass->device.memory, 0};
    carve(&p->m, &arena, pass->b, a, (int)places);
    EXF_TRY(exf_mem_new(&p->row, places, sizeof *p->row, "common input", err));
    EXF_TRY(exf_mem_new(&p->part, places, sizeof *p->part, "common input", err));
    rc = send_ids(p, err);
out:
    return rc;
}

exf_code exf_device_common_input_run(exf_step *s, exf_err *err)
{
    piece p;
    exf_code rc;
    EXF_TRY(open_piece(&p, s, err));
    for (size_t i = s->group.first; i < s->group.first + s->group.n; i++)
        for (int at = 0, n, all = exf_common_input_tokens(s, i); at < all; at += n) {
            n = all - at < EXF_COMMON_INPUT_UNIT ? all - at : EXF_COMMON_INPUT_UNIT;
            EXF_TRY(place_unit(&p, i, at, n, at + n == all, err));
        }
    if (p.n) rc = run_piece(&p, err);
out:
    exf_mem_free(p.row);
    exf_mem_free(p.part);
    return rc;
}

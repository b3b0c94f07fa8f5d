/* experts_common_input.c - runs all experts on the same tokens of each sequence, as many as the lane's observer asks for.
 *
 * Of a sequence of T tokens the n at positions (2 i + 1) T / (2 n) are taken, or all of them if T <= n.  How a layer routes
 * does not matter: hash layers are no exception. */
#include "pass/experts.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <omp.h>
#include <string.h>

/* ---- which tokens, and their arrays ------------------------------------------------------------ */

int exf_common_input_tokens(const exf_moe_layer *l, size_t sequence)
{
    int n = l->batch->span[sequence].n_tokens, wanted = l->lane->observer->common_input_tokens;
    return n < wanted ? n : wanted;
}

int exf_common_input_position(const exf_moe_layer *l, size_t sequence, int i)
{
    int n = l->batch->span[sequence].n_tokens, wanted = l->lane->observer->common_input_tokens;
    return n <= wanted ? i : (int)(((int64_t)2 * i + 1) * n / ((int64_t)2 * wanted));
}

/* Takes `outputs` from the arena first: a matrix library's results may depend on alignment, which is
 * then the same for every arena size. */
void exf_common_carve(exf_common_arrays *c, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                      int n_tokens)
{
    size_t n = (size_t)n_tokens, h = (size_t)a->d_model, e = (size_t)a->n_experts;
    exf_number number = exf_moe_number(compute);
    exf_expert_shape shape = exf_expert_shape_of(a, n_tokens, a->n_experts, a->n_experts, a->d_expert);
    c->outputs = exf_take_matrix(arena, n * e * h, number);
    c->experts = exf_take_bytes(arena, b->experts_workspace(&shape, number));
    c->hidden = exf_arena_take(arena, n * exf_row_width(a));
    c->u = exf_arena_take(arena, a->residual.streams > 1 ? n * h : 0);
    c->mixing = exf_arena_take(arena, n * (size_t)exf_residual_mixing(a));
    c->input = number == EXF_NUMBER_F32 ? exf_arena_take(arena, n * h) : NULL;
    c->x = number == EXF_NUMBER_F32 ? exf_f32(c->input) : exf_take_matrix(arena, n * h, number);
    c->row = exf_take_bytes(arena, n * sizeof *c->row);
    c->ids = exf_take_bytes(arena, n * e * sizeof *c->ids);
}

/* Computes c->outputs of the first n tokens, whose rows in the group are in c->row; c->ids is filled already. */
static void compute_outputs(const exf_moe_layer *l, exf_workspace *w, const exf_common_arrays *c, int n)
{
    const exf_architecture *a = &l->model->arch;
    const exf_layer_weights *lw = l->weights;
    const float *norm = lw->w[EXF_W_FFN_NORM];
    exf_expert_shape shape = exf_expert_shape_of(a, n, a->n_experts, a->n_experts, a->d_expert);
    exf_expert_matrices m = exf_routed_matrices(lw);
    exf_residual_site site = exf_residual_site_of(lw, EXF_W_FFN_MIX, EXF_W_FFN_MIX_BASE, EXF_W_FFN_MIX_SCALE);
    w->b->gather_rows(w->q, c->hidden, l->rows, c->row, n, (int)exf_row_width(a));
    const float *u = exf_residual_read(w->b, w->q, a, &site, c->hidden, n, c->u, c->mixing);
    if (c->x.number == EXF_NUMBER_BF16)
        w->b->gpu->rmsnorm_rounded(w->q, exf_moe_data(c->x), NULL, u, norm, n, a->d_model, a->norm_eps);
    else
        w->b->rmsnorm(w->q, c->input, a->d_model, u, a->d_model, norm, n, a->d_model, a->norm_eps);
    w->b->experts(w->q, c->outputs, c->x, c->ids, &m, &shape, c->experts);
    w->times.flops += 6.0 * n * a->n_experts * a->d_model * a->d_expert;
}

size_t exf_common_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a)
{
    exf_arena arena = {NULL, 0};
    exf_common_arrays c;
    exf_common_carve(&c, &arena, b, compute, a, b->gpu ? exf_gram_tokens(a->n_experts) : EXF_COMMON_INPUT_UNIT);
    return arena.used;
}

/* ---- on the CPU: a worker takes a sequence, EXF_COMMON_INPUT_UNIT of its tokens at a time ------ */

static exf_code show_on_host(const exf_moe_layer *l, size_t sequence, const size_t *row, int n, const float *outputs, int worker,
                             exf_err *err)
{
    const exf_observer *o = l->lane->observer;
    const exf_architecture *a = &l->model->arch;
    size_t k = (size_t)a->top_k;
    int32_t ids[EXF_COMMON_INPUT_UNIT * EXF_MAX_TOP_K];
    float weights[EXF_COMMON_INPUT_UNIT * EXF_MAX_TOP_K];
    exf_common_input_block b = {.layer = l->layer, .moe_index = l->moe_index, .sequence = sequence, .n_tokens = n,
                                .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model, .worker = worker,
                                .row = row, .router_ids = ids, .router_weights = weights, .router_logits = l->router_logits,
                                .outputs = outputs};
    for (int i = 0; i < n; i++) {
        memcpy(ids + (size_t)i * k, l->router_routes->ids + row[i] * k, k * sizeof *ids);
        memcpy(weights + (size_t)i * k, l->router_routes->weights + row[i] * k, k * sizeof *weights);
    }
    exf_code rc = o->common_input(o->self, &b, err);
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, sequence %zu, common input: ", l->layer, sequence);
    return rc;
}

static exf_code run_rows(const exf_moe_layer *l, size_t sequence, const size_t *row, int n, int worker, exf_err *err)
{
    exf_workspace *w = &l->space[worker];
    int n_experts = l->model->arch.n_experts;
    exf_arena arena = {w->floats, 0};
    exf_common_arrays c;
    double start = exf_clock();
    exf_common_carve(&c, &arena, w->b, w->compute, &l->model->arch, n);
    for (int i = 0; i < n; i++) c.row[i] = (int32_t)(row[i] - l->group.row);
    for (int i = 0; i < n * n_experts; i++) c.ids[i] = i % n_experts;
    compute_outputs(l, w, &c, n);
    double ran = exf_clock();
    exf_code rc = show_on_host(l, sequence, row, n, c.outputs.p, worker, err);
    exf_progress_add(n);
    w->times.experts += ran - start;
    w->times.observe += exf_clock() - ran;
    return rc;
}

static exf_code run_sequence(const exf_moe_layer *l, size_t sequence, int worker, exf_err *err)
{
    const exf_span *span = &l->batch->span[sequence];
    int n = exf_common_input_tokens(l, sequence);
    size_t row[EXF_COMMON_INPUT_UNIT];
    exf_code rc = EXF_OK;
    for (int at = 0; rc == EXF_OK && at < n; at += EXF_COMMON_INPUT_UNIT) {
        int rows = n - at < EXF_COMMON_INPUT_UNIT ? n - at : EXF_COMMON_INPUT_UNIT;
        for (int i = 0; i < rows; i++) row[i] = span->offset + (size_t)exf_common_input_position(l, sequence, at + i);
        rc = run_rows(l, sequence, row, rows, worker, err);
    }
    return rc;
}

/* ---- on a GPU ---------------------------------------------------------------------------------- */

/* A chunk has exf_gram_tokens() places, one for each token, and observers are shown a chunk at a time; as many sequences as
 * fit in memory share the chunks.  Units of EXF_COMMON_INPUT_UNIT tokens of a sequence are never cut, so the end of a chunk
 * may stay unused.  No result depends on how sequences share chunks or on how many chunks fit. */
enum { MOST_CHUNKS = 16 };

typedef struct {
    const exf_moe_layer *layer;
    exf_workspace *w;
    exf_common_arrays arrays;
    int chunk, n_chunks;       /* places per chunk; chunks that fit into the workspace */
    int32_t *row;              /* [n_chunks * chunk] the row in the group of each place; unused places repeat the row before */
    exf_common_input_part *part; /* [n_chunks * chunk] parts of all chunks, chunk after chunk */
    int parts_to[MOST_CHUNKS]; /* [chunk] end of the chunk's entries in part */
    int n, n_parts;            /* places filled; parts */
} filling;

static exf_code show_on_gpu(const filling *f, exf_err *err)
{
    const exf_moe_layer *l = f->layer;
    const exf_observer *o = l->lane->observer;
    const exf_architecture *a = &l->model->arch;
    exf_code rc = EXF_OK;
    for (int c = 0, from = 0; rc == EXF_OK && c * f->chunk < f->n; from = f->parts_to[c++]) {
        size_t place = (size_t)c * (size_t)f->chunk;
        exf_matrix outputs = exf_matrix_at(f->arrays.outputs, place * (size_t)a->n_experts * (size_t)a->d_model);
        exf_common_input_block b = {.q = f->w->q, .layer = l->layer, .moe_index = l->moe_index, .n_tokens = f->chunk,
                                    .n_experts = a->n_experts, .top_k = a->top_k, .d_model = a->d_model, .outputs = outputs.p,
                                    .rounded = outputs.number == EXF_NUMBER_BF16, .router_logits = l->router_logits,
                                    .part = f->part + from, .n_parts = f->parts_to[c] - from,
                                    .device_row = f->arrays.row + place, .row_offset = l->group.row};
        rc = o->common_input(o->self, &b, err);
    }
    return rc;
}

/* Runs all experts on the filled places, shows the chunks to the observer and empties them. */
static exf_code run_filled(filling *f, exf_err *err)
{
    exf_workspace *w = f->w;
    double start = exf_clock(), ran;
    exf_code rc;
    EXF_TRY(exf_stop_check(err));
    w->b->upload(w->q, f->arrays.row, f->row, (size_t)f->n * sizeof *f->row);
    exf_stage_begin(w->clock, w->q);
    compute_outputs(f->layer, w, &f->arrays, f->n);
    exf_stage_end(w->clock, w->q, &w->times.experts, f->layer->common_work, f->n);
    EXF_TRY(exf_moe_wait_if_timed(f->layer, w, err));
    ran = exf_clock();
    exf_add_time(w, &w->times.experts, ran - start);
    exf_stage_begin(w->clock, w->q);
    EXF_TRY(show_on_gpu(f, err));
    exf_stage_end(w->clock, w->q, &w->times.observe, f->layer->common_work, 0);
    rc = exf_moe_wait_if_timed(f->layer, w, err);
    exf_add_time(w, &w->times.observe, exf_clock() - ran);
    f->n = f->n_parts = 0;
out:
    return rc;
}

/* Fills n places with a unit: the sequence's common-input tokens i .. i + n - 1; ends: it has no others. */
static exf_code place_unit(filling *f, size_t sequence, int i, int n, int ends, exf_err *err)
{
    const exf_moe_layer *l = f->layer;
    size_t begin = l->batch->span[sequence].offset - l->group.row;
    if (f->n % f->chunk + n > f->chunk) /* the rest of the chunk repeats its last token; no part names it, so it is never read */
        for (; f->n % f->chunk; f->n++) f->row[f->n] = f->row[f->n - 1];
    if (f->n == f->n_chunks * f->chunk) {
        exf_code rc = run_filled(f, err);
        if (rc != EXF_OK) return rc;
    }
    int first = f->n % f->chunk;
    if (first && f->part[f->n_parts - 1].sequence == sequence)
        f->part[f->n_parts - 1].n_tokens += n;
    else
        f->part[f->n_parts++] = (exf_common_input_part){.sequence = sequence, .first = first, .n_tokens = n};
    f->part[f->n_parts - 1].ends = ends;
    f->parts_to[f->n / f->chunk] = f->n_parts;
    for (int k = 0; k < n; k++) f->row[f->n++] = (int32_t)(begin + (size_t)exf_common_input_position(l, sequence, i + k));
    return EXF_OK;
}

/* Takes as many chunks as fit into the workspace, at least one (exf_common_floats), and uploads every place's expert ids: all
 * experts in order. */
static exf_code open_filling(filling *f, const exf_moe_layer *l, exf_err *err)
{
    const exf_architecture *a = &l->model->arch;
    exf_workspace *w = &l->space[0];
    exf_arena counted = {NULL, 0}, arena = {w->floats, 0};
    size_t e = (size_t)a->n_experts;
    int32_t *ids = NULL;
    exf_code rc;
    *f = (filling){.layer = l, .w = w, .chunk = exf_gram_tokens(a->n_experts), .n_chunks = 1};
    for (; f->n_chunks < MOST_CHUNKS; f->n_chunks++, counted.used = 0) {
        exf_common_carve(&f->arrays, &counted, w->b, w->compute, a, (f->n_chunks + 1) * f->chunk);
        if (counted.used > w->capacity) break;
    }
    size_t places = (size_t)(f->n_chunks * f->chunk);
    exf_common_carve(&f->arrays, &arena, w->b, w->compute, a, (int)places);
    EXF_TRY(exf_mem_new(&f->row, places, sizeof *f->row, "common input", err));
    EXF_TRY(exf_mem_new(&f->part, places, sizeof *f->part, "common input", err));
    EXF_TRY(exf_mem_new(&ids, places * e, sizeof *ids, "common input", err));
    for (size_t i = 0; i < places * e; i++) ids[i] = (int32_t)(i % e);
    w->b->upload(w->q, f->arrays.ids, ids, places * e * sizeof *ids);
    rc = w->b->finish(w->q, err);
out:
    exf_mem_free(ids);
    return rc;
}

/* ---- on either ----------------------------------------------------------------------------------- */

exf_code exf_common_input(exf_moe_layer *l, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
    filling f;
    exf_code rc;
    if (!l->space[0].b->gpu) {
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(l->group.n, l->n_workers))
        for (size_t i = 0; i < l->group.n; i++) {
            exf_err e;
            if (exf_loop_takes(&loop, i) && run_sequence(l, l->group.first + i, omp_get_thread_num(), &e) != EXF_OK)
                exf_loop_fail(&loop, i, &e);
        }
        return exf_loop_end(&loop, err);
    }
    EXF_TRY(open_filling(&f, l, err));
    for (size_t i = l->group.first; i < l->group.first + l->group.n; i++)
        for (int at = 0, n, all = exf_common_input_tokens(l, i); at < all; at += n) {
            n = all - at < EXF_COMMON_INPUT_UNIT ? all - at : EXF_COMMON_INPUT_UNIT;
            EXF_TRY(place_unit(&f, i, at, n, at + n == all, err));
        }
    if (f.n) rc = run_filled(&f, err);
out:
    exf_mem_free(f.row);
    exf_mem_free(f.part);
    return rc;
}

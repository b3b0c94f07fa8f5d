/* common_input_gpu.c - runs common input on a GPU: all experts on many tokens at once, of as
 * many sequences as fit in memory.
 *
 * A chunk has exf_gram_tokens() places, one for each token, and observers are shown a chunk at
 * a time.  Units of EXF_COMMON_INPUT_UNIT tokens of a sequence are never cut, so the end of a
 * chunk may stay unused.  Neither how sequences share chunks nor how many chunks fit changes
 * a bit. */
#include "base/log.h"
#include "base/mem.h"
#include "base/stop.h"
#include "moe/common_input.h"

enum { MOST_CHUNKS = 16 };

typedef struct {
    const exf_moe_layer *layer;
    exf_workspace *w;
    exf_common_arrays arrays;
    int chunk, n_chunks;       /* places per chunk; chunks that fit into the workspace */
    int32_t *row;              /* [n_chunks * chunk] the row in the group of each place; unused places repeat the row before */
    exf_common_input_part *part;     /* [n_chunks * chunk] parts of all chunks, chunk after chunk */
    int parts_to[MOST_CHUNKS]; /* [chunk] end of the chunk's entries in part */
    int n, n_parts;            /* places filled; parts */
} filling;

static exf_code show(const filling *f, exf_err *err)
{
    const exf_moe_layer *l = f->layer;
    const exf_observer *o = l->lane->observer;
    const exf_architecture *a = &l->model->arch;
    exf_code rc = EXF_OK;
    for (int c = 0, from = 0; rc == EXF_OK && c * f->chunk < f->n; from = f->parts_to[c++]) {
        size_t place = (size_t)c * (size_t)f->chunk;
        exf_matrix outputs = exf_matrix_at(f->arrays.outputs, place * (size_t)a->n_experts * (size_t)a->d_model);
        exf_device_common_input b = {.layer = l->layer, .moe_index = l->moe_index, .n_experts = a->n_experts, .d_model = a->d_model,
                                     .q = f->w->q,
                               .outputs = outputs.p, .rounded = outputs.number == EXF_NUMBER_BF16, .n_tokens = f->chunk,
                               .part = f->part + from, .n_parts = f->parts_to[c] - from, .row = f->arrays.row + place,
                               .row_offset = l->group.row};
        rc = o->device_common_input(o->self, &b, err);
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
    exf_common_compute(f->layer, w, &f->arrays, f->n);
    exf_stage_end(w->clock, w->q, &w->times.experts, f->layer->common_work, f->n);
    EXF_TRY(exf_moe_wait_if_timed(f->layer, w, err));
    ran = exf_clock();
    exf_add_time(w, &w->times.experts, ran - start);
    exf_stage_begin(w->clock, w->q);
    EXF_TRY(show(f, err));
    exf_stage_end(w->clock, w->q, &w->times.observe, f->layer->common_work, 0);
    rc = exf_moe_wait_if_timed(f->layer, w, err);
    exf_add_time(w, &w->times.observe, exf_clock() - ran);
    f->n = f->n_parts = 0;
out:
    return rc;
}

/* Fills the rest of the chunk with its last token.  No part names these places, so their outputs are never read. */
static void leave_chunk(filling *f)
{
    for (; f->n % f->chunk; f->n++) f->row[f->n] = f->row[f->n - 1];
}

/* Records that the next n places belong to the sequence. */
static void note_part(filling *f, size_t sequence, int n, int ends)
{
    int first = f->n % f->chunk;
    exf_common_input_part *last = f->n_parts ? &f->part[f->n_parts - 1] : NULL;
    if (first && last->sequence == sequence)
        last->n_tokens += n;
    else
        f->part[f->n_parts++] = (exf_common_input_part){.sequence = sequence, .first = first, .n_tokens = n};
    f->part[f->n_parts - 1].ends = ends;
    f->parts_to[f->n / f->chunk] = f->n_parts;
}

/* Fills n places with a unit: the sequence's common-input tokens i .. i + n - 1. */
static exf_code place_unit(filling *f, size_t sequence, int i, int n, int ends, exf_err *err)
{
    const exf_moe_layer *l = f->layer;
    size_t begin = l->batch->span[sequence].offset - l->group.row;
    if (f->n % f->chunk + n > f->chunk) leave_chunk(f);
    if (f->n == f->n_chunks * f->chunk) {
        exf_code rc = run_filled(f, err);
        if (rc != EXF_OK) return rc;
    }
    note_part(f, sequence, n, ends);
    for (int k = 0; k < n; k++) f->row[f->n++] = (int32_t)(begin + (size_t)exf_common_input_position(l, sequence, i + k));
    return EXF_OK;
}

/* Uploads every token's expert ids: all experts in order. */
static exf_code send_ids(const filling *f, exf_err *err)
{
    size_t e = (size_t)f->layer->model->arch.n_experts, n = (size_t)(f->n_chunks * f->chunk) * e;
    int32_t *ids;
    exf_code rc = exf_mem_new(&ids, n, sizeof *ids, "common input", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(i % e);
    f->w->b->upload(f->w->q, f->arrays.ids, ids, n * sizeof *ids);
    rc = f->w->b->finish(f->w->q, err);
    exf_mem_free(ids);
    return rc;
}

/* Returns how many chunks fit into the workspace, at least one (exf_common_floats). */
static int chunks_that_fit(const filling *f)
{
    exf_common_arrays c;
    int n = 1;
    for (; n < MOST_CHUNKS; n++) {
        exf_arena arena = {NULL, 0};
        exf_common_carve(&c, &arena, f->w->b, f->w->compute, &f->layer->model->arch, (n + 1) * f->chunk);
        if (arena.used > f->w->capacity) break;
    }
    return n;
}

static exf_code open_filling(filling *f, const exf_moe_layer *l, exf_err *err)
{
    const exf_architecture *a = &l->model->arch;
    exf_code rc;
    *f = (filling){.layer = l, .w = &l->space[0], .chunk = exf_gram_tokens(a->n_experts)};
    f->n_chunks = chunks_that_fit(f);
    size_t places = (size_t)(f->n_chunks * f->chunk);
    exf_arena arena = {f->w->floats, 0};
    exf_common_carve(&f->arrays, &arena, f->w->b, f->w->compute, a, (int)places);
    EXF_TRY(exf_mem_new(&f->row, places, sizeof *f->row, "common input", err));
    EXF_TRY(exf_mem_new(&f->part, places, sizeof *f->part, "common input", err));
    rc = send_ids(f, err);
out:
    return rc;
}

exf_code exf_common_input_gpu(exf_moe_layer *l, exf_err *err)
{
    filling f;
    exf_code rc;
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

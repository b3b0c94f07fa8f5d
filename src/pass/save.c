/* save.c - saves a pass after a layer to its resume point (resume.h), and restores it.
 *
 * The file of hidden states has the run's rows, lane after lane, each lane from a multiple of EXF_RESUME_CHUNK on.  A rank has some
 * rows of each lane: it writes the chunks that are its own, and gives the bytes of chunks that it shares with its neighbours to
 * rank 0, which writes those.  So the file does not show how many ranks there were. */
#include "pass/forward_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/text.h"
#include "ranks/ranks.h"

#include <stdio.h>
#include <string.h>

uint64_t exf_pass_saved_bytes(const exf_architecture *a, const exf_batch *batch, size_t n_lanes)
{
    return (uint64_t)batch->n_tokens * exf_row_width(a) * sizeof(float) * n_lanes;
}

/* ---- the record of the weights ------------------------------------------------------------------- */

#define NAME "weights"
enum { MOST_BYTES = 1 << 20 };

/* Writes the digests of the weights that were read, after `done` layers. */
static exf_code put_weights_record(const exf_model *m, exf_resume *r, int done, exf_err *err)
{
    exf_text list = {0}, by_place = {0};
    exf_code rc;
    EXF_TRY(exf_weight_identity_list(m->identity, 0, &list, err));
    EXF_TRY(exf_weight_identity_list(m->identity, 1, &by_place, err));
    int64_t n = (int64_t)list.len, k = (int64_t)by_place.len;
    exf_tensor t[] = {{.name = "parts", .dtype = EXF_DT_U8, .rank = 1, .shape = {n}, .data = list.s},
                      {.name = "parts_by_place", .dtype = EXF_DT_U8, .rank = 1, .shape = {k}, .data = by_place.s}};
    EXF_TRY(exf_resume_put(r, NAME, done - 1, t, 2, err));
out:
    exf_text_free(&list);
    exf_text_free(&by_place);
    return rc;
}

/* Reads a list of the record. */
static exf_code read_list(char **list, const exf_st_file *f, const char *name, exf_err *err)
{
    const exf_st_tensor *t = exf_st_find(f, name);
    exf_tensor expected = {.name = name, .dtype = EXF_DT_U8, .rank = 1, .shape = {t ? (int64_t)t->nbytes : 0}};
    if (t && t->nbytes > MOST_BYTES) expected.shape[0] = MOST_BYTES; /* no list is so long: refused below */
    exf_code rc = exf_mem_new(list, (size_t)expected.shape[0] + 1, 1, "weight identity", err);
    return rc == EXF_OK ? exf_resume_read(f, &expected, *list, err) : rc;
}

/* Restores them from the point that was opened. */
static exf_code get_weights_record(const exf_model *m, const exf_resume *r, exf_err *err)
{
    exf_st_file *f = NULL;
    char *list = NULL, *by_place = NULL;
    exf_code rc;
    EXF_TRY(exf_resume_get(r, NAME, exf_resume_start(r)->layers_done - 1, &f, err));
    EXF_TRY(read_list(&list, f, "parts", err));
    EXF_TRY(read_list(&by_place, f, "parts_by_place", err));
    EXF_TRY(exf_weight_identity_restore(m->identity, list, by_place, exf_st_path(f), err));
out:
    exf_st_close(f);
    exf_mem_free(list);
    exf_mem_free(by_place);
    return rc;
}

/* Hidden states in GPU memory pass through a buffer of staged_bytes. */
static const uint64_t chunk = EXF_RESUME_CHUNK, staged_bytes = (uint64_t)64 * EXF_RESUME_CHUNK;

/* ---- hidden states: where they lie ------------------------------------------------------------------------- */

static uint64_t bytes_of(const exf_pass *p, size_t rows)
{
    return (uint64_t)rows * exf_row_width(&p->model->arch) * sizeof(float);
}

/* Lanes whose hidden states differ: one while the lanes are joined. */
static size_t distinct_lanes(const exf_pass *p)
{
    return p->joined ? 1 : p->n_lanes;
}

static uint64_t round_up(uint64_t at)
{
    return (at + chunk - 1) / chunk * chunk;
}

static uint64_t lane_stride(const exf_pass *p)
{
    return round_up(bytes_of(p, exf_pass_run_tokens(p)));
}

/* Returns the bytes of the file. */
static uint64_t file_bytes(const exf_pass *p)
{
    return lane_stride(p) * (distinct_lanes(p) - 1) + bytes_of(p, exf_pass_run_tokens(p));
}

/* The rows of this pass in one lane, as a range of the file. */
typedef struct {
    uint64_t begin, end;        /* of the rows */
    uint64_t own_begin, own_end; /* whole chunks among them; own_begin >= own_end: none */
    uint64_t lane_end;          /* of the lane's last row */
    char *rows;
} lane_range;

static lane_range range_of(const exf_pass *p, size_t lane)
{
    uint64_t start = lane * lane_stride(p);
    lane_range k = {.begin = start + bytes_of(p, p->options->first_row), .rows = (char *)p->hidden.lane[lane],
                    .lane_end = start + bytes_of(p, exf_pass_run_tokens(p))};
    k.end = k.begin + bytes_of(p, p->batch->n_tokens);
    k.own_begin = round_up(k.begin);
    k.own_end = k.end == k.lane_end ? k.end : k.end / chunk * chunk;
    return k;
}

/* ---- moving ------------------------------------------------------------------------------------- */

/* One direction of a move; its buffers are move_rows()'s. */
typedef struct {
    exf_pass *p;
    const exf_file *file; /* NULL: rows are written */
    char *staging;        /* pinned; NULL: on the host */
    char *whole;          /* [chunk] of a chunk that is shared */
    exf_text *edges;      /* bytes of such chunks, for rank 0 */
} mover;

/* A part of a chunk that other ranks have rows of, too. */
typedef struct {
    uint64_t offset, n;
} edge;

/* Moves [from, to) of the file: whole chunks, or an edge.  Of an edge the whole chunk is read, which has one SHA-256. */
static exf_code move_part(const mover *m, const lane_range *k, uint64_t from, uint64_t to, int is_edge, exf_err *err)
{
    const exf_backend *b = m->p->b;
    exf_queue *q = m->p->space[0].q;
    exf_resume *r = m->p->options->resume;
    uint64_t start = from / chunk * chunk, left = k->lane_end - start;
    size_t n = (size_t)(to - from), n_read = is_edge ? (size_t)(left < chunk ? left : chunk) : n;
    char *rows = k->rows + (from - k->begin), *bytes = m->staging ? m->staging : rows;
    edge e = {from, n};
    exf_code rc = EXF_OK;
    if (!m->file) {
        if (m->staging) EXF_TRY(b->download(q, bytes, rows, n, err));
        if (!is_edge) return exf_resume_hidden_put(r, from, bytes, n, exf_default_threads(), err);
        exf_text_append(m->edges, (const char *)&e, sizeof e);
        exf_text_append(m->edges, bytes, n);
        return EXF_OK;
    }
    EXF_TRY(exf_stop_check(err));
    if (is_edge) bytes = m->whole;
    EXF_TRY(exf_resume_hidden_get(r, m->file, start, bytes, n_read, exf_default_threads(), err));
    bytes += from - start;
    if (m->staging) {
        b->upload(q, rows, bytes, n);
        rc = b->finish(q, err);
    } else if (is_edge) {
        memcpy(rows, bytes, n);
    }
out:
    return rc;
}

static exf_code move_lane(const mover *m, size_t lane, exf_err *err)
{
    lane_range k = range_of(m->p, lane);
    uint64_t step = m->staging ? staged_bytes : k.end - k.begin;
    uint64_t head = k.own_begin < k.end ? k.own_begin : k.end, tail = k.own_end > head ? k.own_end : head;
    exf_code rc = EXF_OK;
    if (k.begin < head) EXF_TRY(move_part(m, &k, k.begin, head, 1, err));
    for (uint64_t at = head; at < tail; at += step) EXF_TRY(move_part(m, &k, at, tail - at < step ? tail : at + step, 0, err));
    if (tail < k.end) EXF_TRY(move_part(m, &k, tail, k.end, 1, err));
out:
    return rc;
}

/* ---- chunks of several ranks, which rank 0 writes --------------------------------------------------------------------- */

/* Of a lane, what a rank tells rank 0: the first of its whole chunks, how many they are, their digests, and then its edges. */
typedef struct {
    uint64_t first, n;
} own_chunks;

/* Takes the ranks' digests, puts their edges, which come in the order of the file, together to chunks and writes these. */
static exf_code write_edges(const exf_pass *p, const exf_ranks_gathered *g, char *whole, exf_err *err)
{
    uint64_t start = 0, filled = 0;
    own_chunks own;
    exf_code rc = EXF_OK;
    for (int i = 0; i < g->size; i++) {
        const char *at = g->data + g->offset[i], *end = g->data + g->offset[i + 1];
        memcpy(&own, at, sizeof own);
        at += sizeof own;
        for (uint64_t c = 0; c < own.n; c++, at += EXF_SHA256_HEX)
            memcpy(exf_resume_hidden_digest(p->options->resume, (size_t)(own.first + c)), at, EXF_SHA256_HEX);
        while (at < end) {
            edge e;
            memcpy(&e, at, sizeof e);
            if (filled && (filled == chunk || e.offset != start + filled)) {
                EXF_TRY(exf_resume_hidden_put(p->options->resume, start, whole, (size_t)filled, 1, err));
                filled = 0;
            }
            if (!filled) start = e.offset;
            memcpy(whole + filled, at + sizeof e, (size_t)e.n);
            filled += e.n;
            at += sizeof e + e.n;
        }
    }
    if (filled) rc = exf_resume_hidden_put(p->options->resume, start, whole, (size_t)filled, 1, err);
out:
    return rc;
}

/* Sends rank 0 this rank's digests of a lane, and the edges that rank 0 writes. */
static exf_code share_lane(const mover *m, size_t lane, exf_err *err)
{
    lane_range k = range_of(m->p, lane);
    own_chunks own = {k.own_begin / chunk, k.own_end > k.own_begin ? (k.own_end - k.own_begin + chunk - 1) / chunk : 0};
    exf_ranks_gathered g = {.data = NULL};
    exf_text told = {0};
    exf_code rc;
    EXF_TRY(exf_text_end(m->edges, err));
    exf_text_append(&told, (const char *)&own, sizeof own);
    for (uint64_t i = 0; i < own.n; i++)
        exf_text_append(&told, exf_resume_hidden_digest(m->p->options->resume, (size_t)(own.first + i)), EXF_SHA256_HEX);
    exf_text_append(&told, m->edges->s ? m->edges->s : "", m->edges->len);
    EXF_TRY(exf_text_end(&told, err));
    EXF_TRY(exf_ranks_gather(m->p->options->ranks, told.s, told.len, &g, err));
    rc = write_edges(m->p, &g, m->whole, err);
out:
    exf_text_free(&told);
    exf_ranks_gathered_free(&g);
    return rc;
}

/* ---- both directions ------------------------------------------------------------------------------- */

/* Moves the rows of all lanes from the file, or to the one that was begun or joined if `file` is NULL; collective. */
static exf_code move_rows(exf_pass *p, const exf_file *file, exf_err *err)
{
    exf_text edges = {0};
    mover m = {.p = p, .file = file, .edges = &edges};
    exf_code rc;
    EXF_TRY(exf_mem_raw(&m.whole, (size_t)chunk, 1, "resume point", err));
    if (p->b->gpu && !p->hidden.host_resident)
        EXF_TRY(p->b->gpu->alloc_staging((void **)&m.staging, (size_t)staged_bytes, "resume point", err));
    for (size_t i = 0; i < distinct_lanes(p); i++) {
        edges.len = 0;
        EXF_TRY(move_lane(&m, i, err));
        if (!file && p->options->ranks) EXF_TRY(share_lane(&m, i, err));
    }
out:
    if (m.staging) p->b->gpu->free_staging(m.staging);
    exf_mem_free(m.whole);
    exf_text_free(&edges);
    return rc;
}

/* ---- saving and restoring --------------------------------------------------------------------- */

exf_code exf_pass_restore(exf_pass *p, exf_err *err)
{
    exf_file *file = NULL;
    double start = exf_clock();
    exf_code rc;
    const exf_resume_progress *was = exf_resume_start(p->options->resume);
    p->joined = was->joined;
    p->report->weight_bytes = was->weight_bytes;
    p->report->flops = exf_ranks_first(p->options->ranks) ? was->flops : 0; /* ranks are added up */
    EXF_TRY(get_weights_record(p->model, p->options->resume, err));
    EXF_TRY(exf_resume_hidden_open(p->options->resume, file_bytes(p), &file, err));
    EXF_TRY(move_rows(p, file, err));
out:
    exf_file_close(file);
    p->report->read += exf_clock() - start;
    return rc;
}

exf_code exf_pass_sum_flops(exf_ranks *ranks, double *flops, exf_err *err)
{
    exf_ranks_gathered g;
    if (!ranks) return EXF_OK;
    exf_code rc = exf_ranks_gather(ranks, flops, sizeof *flops, &g, err);
    if (rc != EXF_OK) return rc;
    for (int i = 1; i < g.size; i++) {
        double other;
        memcpy(&other, g.data + g.offset[i], sizeof other);
        *flops += other;
    }
    exf_ranks_gathered_free(&g);
    return EXF_OK;
}

/* Saves the pass.  Rank 0 begins the file of hidden states and the others join it; rank 0 makes the point when all bytes are
 * on the disk. */
static exf_code save_pass(exf_pass *p, int done, exf_err *err)
{
    exf_resume_progress now = {done, p->joined, p->report->weight_bytes, p->report->flops};
    exf_resume *r = p->options->resume;
    exf_ranks *ranks = p->options->ranks;
    int first = exf_ranks_first(ranks);
    char path[4096] = "";
    exf_code rc;
    if (first) EXF_TRY(exf_resume_hidden_begin(r, done, file_bytes(p), err));
    if (first && ranks) snprintf(path, sizeof path, "%s", exf_resume_hidden_path(r));
    if (ranks) EXF_TRY(exf_ranks_broadcast(ranks, path, sizeof path, err));
    if (!first) EXF_TRY(exf_resume_hidden_join(r, file_bytes(p), path, err));
    EXF_TRY(put_weights_record(p->model, r, done, err));
    for (size_t i = 0; i < p->n_lanes; i++) { /* completes what observers write beside the pass: the point names it */
        const exf_observer *o = exf_lane_observer(&p->lanes[i]);
        if (o->settle) EXF_TRY(o->settle(o->self, done, err));
    }
    EXF_TRY(exf_hidden_settle(&p->hidden, err));
    EXF_TRY(move_rows(p, NULL, err));
    for (int i = 0; i < p->n_spaces; i++) now.flops += p->space[i].times.flops;
    EXF_TRY(exf_pass_sum_flops(ranks, &now.flops, err));
    if (!first) EXF_TRY(exf_resume_hidden_leave(r, err));
    EXF_TRY(exf_ranks_barrier(ranks, err));
    if (first) EXF_TRY(exf_resume_save(r, &now, err));
out:
    return rc;
}

/* ---- when ---------------------------------------------------------------------------------------- */

int exf_pass_vote(const exf_pass *p, int done)
{
    int stop = exf_stop_requested();
    if (stop) return 1 + stop;
    return exf_ranks_first(p->options->ranks) && exf_resume_due(p->options->resume, done, file_bytes(p));
}

exf_code exf_pass_save(exf_pass *p, int done, exf_err *err)
{
    exf_ranks *ranks = p->options->ranks;
    int what = 0;
    exf_code rc = EXF_OK;
    if (!p->options->resume || !exf_resume_saves(p->options->resume)) return EXF_OK;
    if (done == p->n_layers && !p->demand.head) return EXF_OK;
    if (ranks) /* the votes were cast a layer ago, so that no rank waits for the slowest */
        EXF_TRY(exf_ranks_vote_finish(ranks, &what, err));
    else
        what = exf_pass_vote(p, done);
    if (what) EXF_TRY(save_pass(p, done, err));
    if (what <= 1) {
        if (ranks) rc = exf_ranks_vote_start(ranks, exf_pass_vote(p, done + 1), err);
        goto out;
    }
    if (exf_ranks_first(ranks)) EXF_TRY(exf_resume_wait(p->options->resume, err));
    EXF_TRY(exf_ranks_barrier(ranks, err)); /* the point is made before any rank ends */
    rc = exf_fail(err, EXF_STOPPED, "stopped by signal %d after layer %d of %d; the same command goes on from there", what - 1,
                  done, p->n_layers);
out:
    return rc;
}

/* save_hidden.c - moves the hidden states of a pass to the file of a resume point, and back.
 *
 * The file has the run's rows, lane after lane, each lane from a multiple of EXF_RESUME_CHUNK on.  A rank has some
 * rows of each lane: it writes the chunks that are its own, and gives the bytes of chunks that it shares with its
 * neighbours to rank 0, which writes those.  So the file does not show how many ranks there were. */
#include "pass/forward_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/text.h"
#include "ranks/ranks.h"

#include <string.h>

/* Hidden states in GPU memory pass through a buffer of staged_bytes. */
static const uint64_t chunk = EXF_RESUME_CHUNK, staged_bytes = (uint64_t)64 * EXF_RESUME_CHUNK;

/* ---- where things lie ------------------------------------------------------------------------- */

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

uint64_t exf_pass_file_bytes(const exf_pass *p)
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

static exf_code fetch_rows(const mover *m, const char *at, size_t n, const char **bytes, exf_err *err)
{
    *bytes = m->staging ? m->staging : at;
    return m->staging ? m->p->b->download(m->p->space[0].q, m->staging, at, n, err) : EXF_OK;
}

static exf_code send_rows(const mover *m, char *at, const char *bytes, size_t n, exf_err *err)
{
    if (!m->staging) {
        memcpy(at, bytes, n);
        return EXF_OK;
    }
    m->p->b->upload(m->p->space[0].q, at, bytes, n);
    return m->p->b->finish(m->p->space[0].q, err);
}

/* Moves whole chunks, n bytes at `offset` of the file. */
static exf_code move_own(const mover *m, uint64_t offset, char *at, size_t n, exf_err *err)
{
    exf_resume *r = m->p->options->resume;
    const char *bytes;
    exf_code rc;
    if (!m->file) {
        EXF_TRY(fetch_rows(m, at, n, &bytes, err));
        return exf_resume_hidden_put(r, offset, bytes, n, exf_default_threads(), err);
    }
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_resume_hidden_get(r, m->file, offset, m->staging ? m->staging : at, n, exf_default_threads(), err));
    if (m->staging) EXF_TRY(send_rows(m, at, m->staging, n, err));
out:
    return rc;
}

/* A part of a chunk that other ranks have rows of, too. */
typedef struct {
    uint64_t offset, n;
} edge;

/* Moves [from, to) of the file, within one chunk. */
static exf_code move_edge(const mover *m, const lane_range *k, uint64_t from, uint64_t to, exf_err *err)
{
    edge e = {from, to - from};
    uint64_t start = from / chunk * chunk, left = k->lane_end - start;
    char *at = k->rows + (from - k->begin);
    const char *bytes;
    exf_code rc;
    if (!m->file) {
        EXF_TRY(fetch_rows(m, at, (size_t)e.n, &bytes, err));
        exf_text_append(m->edges, (const char *)&e, sizeof e);
        exf_text_append(m->edges, bytes, (size_t)e.n);
        return EXF_OK;
    }
    EXF_TRY(exf_resume_hidden_get(m->p->options->resume, m->file, start, m->whole, (size_t)(left < chunk ? left : chunk), 1, err));
    rc = send_rows(m, at, m->whole + (from - start), (size_t)e.n, err);
out:
    return rc;
}

static exf_code move_lane(const mover *m, size_t lane, exf_err *err)
{
    lane_range k = range_of(m->p, lane);
    uint64_t step = m->staging ? staged_bytes : k.end - k.begin;
    uint64_t head = k.own_begin < k.end ? k.own_begin : k.end, tail = k.own_end > head ? k.own_end : head;
    exf_code rc = EXF_OK;
    if (k.begin < head) EXF_TRY(move_edge(m, &k, k.begin, head, err));
    for (uint64_t at = head; at < tail; at += step)
        EXF_TRY(move_own(m, at, k.rows + (at - k.begin), (size_t)(tail - at < step ? tail - at : step), err));
    if (tail < k.end) EXF_TRY(move_edge(m, &k, tail, k.end, err));
out:
    return rc;
}

/* ---- chunks of several ranks, which rank 0 writes --------------------------------------------------------------------- */

/* Adds this rank's digests of its whole chunks of a lane: first chunk, number, digests. */
static void add_digests(const exf_pass *p, size_t lane, exf_text *out)
{
    lane_range k = range_of(p, lane);
    uint64_t first = k.own_begin / chunk, n = k.own_end > k.own_begin ? (k.own_end - k.own_begin + chunk - 1) / chunk : 0;
    uint64_t head[2] = {first, n};
    exf_text_append(out, (const char *)head, sizeof head);
    for (uint64_t i = 0; i < n; i++)
        exf_text_append(out, exf_resume_hidden_digest(p->options->resume, (size_t)(first + i)), EXF_SHA256_HEX);
}

/* Takes a rank's digests, and returns where its edges begin. */
static const char *take_digests(const exf_pass *p, const char *at)
{
    uint64_t head[2];
    memcpy(head, at, sizeof head);
    at += sizeof head;
    for (uint64_t i = 0; i < head[1]; i++, at += EXF_SHA256_HEX)
        memcpy(exf_resume_hidden_digest(p->options->resume, (size_t)(head[0] + i)), at, EXF_SHA256_HEX);
    return at;
}

/* Puts the ranks' edges, which come in the order of the file, together to chunks and writes these. */
static exf_code write_edges(const exf_pass *p, const exf_ranks_gathered *g, char *whole, exf_err *err)
{
    uint64_t start = 0, filled = 0;
    exf_code rc = EXF_OK;
    for (int i = 0; i < g->size; i++) {
        const char *at = take_digests(p, g->data + g->offset[i]), *end = g->data + g->offset[i + 1];
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
    exf_ranks_gathered g = {.data = NULL};
    exf_text own = {0};
    exf_code rc;
    EXF_TRY(exf_text_end(m->edges, err));
    add_digests(m->p, lane, &own);
    exf_text_append(&own, m->edges->s ? m->edges->s : "", m->edges->len);
    EXF_TRY(exf_text_end(&own, err));
    EXF_TRY(exf_ranks_gather(m->p->options->ranks, own.s, own.len, &g, err));
    rc = write_edges(m->p, &g, m->whole, err);
out:
    exf_text_free(&own);
    exf_ranks_gathered_free(&g);
    return rc;
}

/* ---- both directions ------------------------------------------------------------------------------- */

/* Moves the rows of all lanes from the file, or to it if `file` is NULL. */
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

exf_code exf_pass_hidden_put(exf_pass *p, exf_err *err)
{
    return move_rows(p, NULL, err);
}

exf_code exf_pass_hidden_get(exf_pass *p, const exf_file *file, exf_err *err)
{
    return move_rows(p, file, err);
}

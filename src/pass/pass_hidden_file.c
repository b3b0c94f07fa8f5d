/* pass_hidden_file.c - see pass.h. */
#include "pass/pass.h"

#include "base/mem.h"
#include "base/stop.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "pass/residual.h"
#include "ranks/ranks.h"

#include <string.h>

/* Hidden states in GPU memory pass through a buffer of so many chunks. */
enum { STAGED_CHUNKS = 64 };
static const uint64_t chunk = EXF_RESUME_CHUNK, staged_bytes = (uint64_t)STAGED_CHUNKS * EXF_RESUME_CHUNK;

/* ---- where things lie ------------------------------------------------------------------------- */

size_t exf_pass_run_tokens(const exf_pass *p)
{
    return p->options->run_tokens ? p->options->run_tokens : p->batch->n_tokens;
}

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

/* Returns 1 if the hidden states lie where the CPU can read and write them. */
static int on_host(const exf_pass *p)
{
    return !p->b->gpu || p->hidden.host_resident;
}

/* ---- moving ------------------------------------------------------------------------------------- */

/* One direction of a move; the buffers are of exf_pass_hidden_put() or _get(). */
typedef struct {
    exf_pass *p;
    const exf_file *file; /* NULL: rows are written */
    char *staging;        /* pinned; NULL: on the host */
    char *whole;          /* [chunk] of a chunk that is shared */
    exf_text *edges;      /* bytes of such chunks, for rank 0 */
} mover;

static exf_code fetch(const mover *m, const char *at, size_t n, const char **bytes, exf_err *err)
{
    *bytes = m->staging ? m->staging : at;
    return m->staging ? m->p->b->download(m->p->space[0].q, m->staging, at, n, err) : EXF_OK;
}

static exf_code send(const mover *m, char *at, const char *bytes, size_t n, exf_err *err)
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
        EXF_TRY(fetch(m, at, n, &bytes, err));
        return exf_resume_hidden_put(r, offset, bytes, n, exf_default_threads(), err);
    }
    EXF_TRY(exf_stop_check(err));
    EXF_TRY(exf_resume_hidden_get(r, m->file, offset, m->staging ? m->staging : at, n, exf_default_threads(), err));
    if (m->staging) EXF_TRY(send(m, at, m->staging, n, err));
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
        EXF_TRY(fetch(m, at, (size_t)e.n, &bytes, err));
        EXF_TRY(exf_text_add(m->edges, (const char *)&e, sizeof e, err));
        return exf_text_add(m->edges, bytes, (size_t)e.n, err);
    }
    EXF_TRY(exf_resume_hidden_get(m->p->options->resume, m->file, start, m->whole, (size_t)(left < chunk ? left : chunk), 1, err));
    rc = send(m, at, m->whole + (from - start), (size_t)e.n, err);
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

static exf_code open_mover(mover *m, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_raw(&m->whole, (size_t)chunk, 1, "resume point", err));
    if (!on_host(m->p)) EXF_TRY(m->p->b->gpu->alloc_staging((void **)&m->staging, (size_t)staged_bytes, "resume point", err));
out:
    return rc;
}

static void close_mover(mover *m)
{
    if (m->staging) m->p->b->gpu->free_staging(m->staging);
    exf_mem_free(m->whole);
}

/* ---- what rank 0 writes for all ---------------------------------------------------------------------- */

/* Adds this rank's digests of its whole chunks of a lane: first chunk, number, digests. */
static exf_code add_digests(const exf_pass *p, size_t lane, exf_text *out, exf_err *err)
{
    lane_range k = range_of(p, lane);
    uint64_t first = k.own_begin / chunk, n = k.own_end > k.own_begin ? (k.own_end - k.own_begin + chunk - 1) / chunk : 0;
    uint64_t head[2] = {first, n};
    exf_code rc = exf_text_add(out, (const char *)head, sizeof head, err);
    for (uint64_t i = 0; rc == EXF_OK && i < n; i++)
        rc = exf_text_add(out, exf_resume_hidden_digest(p->options->resume, (size_t)(first + i)), EXF_SHA256_HEX, err);
    return rc;
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
            if (filled && e.offset != start + filled) {
                EXF_TRY(exf_resume_hidden_put(p->options->resume, start, whole, (size_t)filled, 1, err));
                filled = 0;
            }
            if (!filled) start = e.offset;
            memcpy(whole + filled, at + sizeof e, (size_t)e.n);
            filled += e.n;
            at += sizeof e + e.n;
            if (filled < chunk) continue;
            EXF_TRY(exf_resume_hidden_put(p->options->resume, start, whole, (size_t)filled, 1, err));
            filled = 0;
        }
    }
    if (filled) rc = exf_resume_hidden_put(p->options->resume, start, whole, (size_t)filled, 1, err);
out:
    return rc;
}

static exf_code share_lane(const mover *m, size_t lane, exf_err *err)
{
    exf_ranks *ranks = m->p->options->ranks;
    exf_ranks_gathered g = {.data = NULL};
    exf_text own = {0};
    exf_code rc;
    if (!ranks) return EXF_OK;
    EXF_TRY(add_digests(m->p, lane, &own, err));
    EXF_TRY(exf_text_add(&own, m->edges->s ? m->edges->s : "", m->edges->len, err));
    EXF_TRY(exf_ranks_gather(ranks, own.s, own.len, &g, err));
    rc = write_edges(m->p, &g, m->whole, err);
out:
    exf_text_free(&own);
    exf_ranks_gathered_free(&g);
    return rc;
}

exf_code exf_pass_hidden_put(exf_pass *p, exf_err *err)
{
    exf_text edges = {0};
    mover m = {.p = p, .edges = &edges};
    exf_code rc;
    EXF_TRY(open_mover(&m, err));
    for (size_t i = 0; i < distinct_lanes(p); i++) {
        edges.len = 0;
        EXF_TRY(move_lane(&m, i, err));
        EXF_TRY(share_lane(&m, i, err));
    }
out:
    close_mover(&m);
    exf_text_free(&edges);
    return rc;
}

exf_code exf_pass_hidden_get(exf_pass *p, const exf_file *file, exf_err *err)
{
    mover m = {.p = p, .file = file};
    exf_code rc;
    EXF_TRY(open_mover(&m, err));
    for (size_t i = 0; i < distinct_lanes(p); i++) EXF_TRY(move_lane(&m, i, err));
out:
    close_mover(&m);
    return rc;
}

/* ranks_mpi_sums.c - waiting for MPI, messages and barriers, sums over ranks, votes, bytes that go from rank to rank, and
 * agreement; see ranks.h. */
#include "ranks/ranks_internal.h"

#if EXF_HAVE_MPI
#include "base/log.h"
#include "base/mem.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

exf_code exf_mpi_ok(int status, const char *what, exf_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;
    if (status == MPI_SUCCESS) return EXF_OK;
    MPI_Error_string(status, text, &n);
    return exf_fail(err, EXF_IO, "MPI cannot do %s: %s", what, text);
}

/* Seconds of waiting without a pause, and tests after which pauses, of 50 us or so at first, become longer. */
static const double eager = 0.02;
enum { EAGER_TURNS = 20000 };

/* Waits for n requests.  MPI moves data in small pieces, and only while a rank tests: a large message at 7 GB/s without pauses, at
 * 1.5 with them.  counts: 1 adds the time spent waiting to r->waited, on threads of the run's work; 0 on those that run while it
 * computes. */
static exf_code wait_for(exf_ranks *r, MPI_Request *q, int n, int counts, const char *what, exf_err *err)
{
    double began = exf_clock();
    for (int turn = 0;; turn++) {
        int done = 0;
        exf_code rc;
        pthread_mutex_lock(&r->lock);
        rc = exf_mpi_ok(MPI_Testall(n, q, &done, MPI_STATUSES_IGNORE), what, err);
        if (rc == EXF_OK && !done) {
            exf_mpi_listen(r);
            rc = exf_mpi_follow(r, err);
        }
        if (done && counts) r->waited += exf_clock() - began;
        pthread_mutex_unlock(&r->lock);
        if (rc != EXF_OK || done) return rc;
        if (exf_clock() - began < eager)
            sched_yield();
        else
            exf_mpi_pause(turn < EAGER_TURNS ? 1000 : 50000);
    }
}

/* Waits for n requests and sets them to MPI_REQUEST_NULL; returns another rank's failure instead if there is one. */
static exf_code wait_all(exf_ranks *r, MPI_Request *q, int n, const char *what, exf_err *err)
{
    return wait_for(r, q, n, 1, what, err);
}

/* Starts to send n bytes to another rank, or to receive them from it; the caller waits for *q. */
static exf_code start_message(exf_ranks *r, MPI_Comm comm, int sends, void *bytes, size_t n, int other, MPI_Request *q,
                              const char *what, exf_err *err)
{
    enum { TAG = 1 }; /* of all messages: those between two ranks come in the order in which they were started */
    pthread_mutex_lock(&r->lock);
    int status = sends ? MPI_Isend(bytes, (int)n, MPI_BYTE, other, TAG, comm, q)
                       : MPI_Irecv(bytes, (int)n, MPI_BYTE, other, TAG, comm, q);
    pthread_mutex_unlock(&r->lock);
    return exf_mpi_ok(status, what, err);
}

exf_code exf_mpi_barrier(exf_ranks *r, MPI_Comm comm, const char *what, exf_err *err)
{
    MPI_Request q;
    pthread_mutex_lock(&r->lock);
    int status = MPI_Ibarrier(comm, &q);
    pthread_mutex_unlock(&r->lock);
    exf_code rc = exf_mpi_ok(status, what, err);
    return rc == EXF_OK ? wait_all(r, &q, 1, what, err) : rc;
}

/* ---- sums ----------------------------------------------------------------------------------------
 * An MPI_Ireduce moves 32 KB at a test, and took a second for 64 MB.  So sums are made of messages: each rank adds up a slice of
 * every piece for all, and rank 0 gathers the slices. */

enum { PIECE = 1 << 23 }; /* bytes */

static size_t element_bytes(exf_ranks_kind kind)
{
    return kind == EXF_RANKS_EXACT ? sizeof(exf_exact) : kind == EXF_RANKS_U64 ? sizeof(uint64_t) : 1;
}

/* A piece of an array that is being summed, and its slices.  Messages are of copies, since MPI may still read and write them after
 * a failure, when the caller frees what it had; they then stay until the process ends. */
typedef struct {
    exf_ranks *r;
    MPI_Comm comm;
    int counts;      /* of wait_for() */
    exf_ranks_kind kind;
    size_t n;        /* elements */
    char *copy;      /* of the piece, then the sums */
    char *others;    /* [ranks - 1] slices that came */
    MPI_Request *q;  /* [2 ranks] */
} summed_piece;

static size_t slice_start(const summed_piece *p, int rank)
{
    return p->n * (size_t)rank / (size_t)p->r->place.size * element_bytes(p->kind);
}

/* Adds n bytes of elements to `to`; returns 1 if an exact sum left its range. */
static int add_elements(exf_ranks_kind kind, char *to, const char *from, size_t n)
{
    int wrapped = 0;
    uint64_t *sum = (void *)to;
    const uint64_t *x = (const void *)from;
    exf_exact *exact = (void *)to;
    const exf_exact *term = (const void *)from;
    if (kind == EXF_RANKS_EXACT)
        for (size_t i = 0; i < n / sizeof *term; i++) wrapped |= exf_exact_merge(exact + i, term + i);
    else if (kind == EXF_RANKS_U64)
        for (size_t i = 0; i < n / sizeof *x; i++) sum[i] += x[i];
    else
        for (size_t i = 0; i < n; i++) to[i] |= from[i];
    return wrapped;
}

/* Gives every rank the slice that is its own, of all ranks, and adds it up. */
static exf_code add_own_slice(const summed_piece *p, exf_err *err)
{
    int own = p->r->place.rank, size = p->r->place.size, used = 0;
    size_t start = slice_start(p, own), n = slice_start(p, own + 1) - start;
    exf_code rc;
    for (int i = 0; i < size; i++) {
        size_t there = slice_start(p, i), m = slice_start(p, i + 1) - there;
        if (i == own) continue;
        EXF_TRY(start_message(p->r, p->comm, 0, p->others + (size_t)(i - (i > own)) * n, n, i, p->q + used++, "a sum", err));
        EXF_TRY(start_message(p->r, p->comm, 1, p->copy + there, m, i, p->q + used++, "a sum", err));
    }
    EXF_TRY(wait_for(p->r, p->q, used, p->counts, "a sum", err));
    for (int i = 0; rc == EXF_OK && i < size - 1; i++)
        if (add_elements(p->kind, p->copy + start, p->others + (size_t)i * n, n))
            rc = exf_fail(err, EXF_NUMERIC, "the sums of ranks %d and %d are more together than a sum holds", own, i + (i >= own));
out:
    return rc;
}

/* Gathers the slices on rank 0. */
static exf_code gather_slices(const summed_piece *p, exf_err *err)
{
    int own = p->r->place.rank, size = p->r->place.size, used = 0;
    exf_code rc = EXF_OK;
    for (int i = own ? own : 1; i < (own ? own + 1 : size); i++) {
        size_t there = slice_start(p, i), n = slice_start(p, i + 1) - there;
        EXF_TRY(start_message(p->r, p->comm, own > 0, p->copy + there, n, own ? 0 : i, p->q + used++, "a sum", err));
    }
    rc = wait_for(p->r, p->q, used, p->counts, "a sum", err);
out:
    return rc;
}

/* Adds up a piece at a time, so that copies stay small. */
static exf_code sum_pieces(exf_ranks *r, int beside, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    summed_piece p = {.r = r, .counts = !beside};
    exf_code rc = EXF_OK;
    if (!r || r->place.size == 1) return EXF_OK;
    size_t ranks = (size_t)r->place.size;
    p.comm = beside ? r->beside : r->sums;
    EXF_TRY(exf_mem_raw(&p.copy, PIECE, 1, "sums of ranks", err));
    EXF_TRY(exf_mem_raw(&p.others, PIECE / ranks + sizeof(exf_exact), ranks - 1, "sums of ranks", err));
    EXF_TRY(exf_mem_new(&p.q, 2 * ranks, sizeof *p.q, "sums of ranks", err));
    for (size_t i = 0; i < n; i++) {
        size_t each = element_bytes(arrays[i].kind), most = PIECE / each;
        for (size_t k = 0; k < arrays[i].n; k += most) {
            char *data = (char *)arrays[i].data + k * each;
            p.kind = arrays[i].kind;
            p.n = arrays[i].n - k < most ? arrays[i].n - k : most;
            memcpy(p.copy, data, p.n * each);
            EXF_TRY(add_own_slice(&p, err));
            EXF_TRY(gather_slices(&p, err));
            if (!r->place.rank) memcpy(data, p.copy, p.n * each);
        }
    }
    exf_mem_free(p.copy);
    exf_mem_free(p.others);
    exf_mem_free(p.q);
out:
    return rc;
}

exf_code exf_ranks_sum(exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    return sum_pieces(r, 0, arrays, n, err);
}

exf_code exf_ranks_sum_beside(exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    return sum_pieces(r, 1, arrays, n, err);
}
/* ---- votes -------------------------------------------------------------------------------------- */

static int vote_alone;

exf_code exf_ranks_vote_start(exf_ranks *r, int value, exf_err *err)
{
    if (!r) {
        vote_alone = value;
        return EXF_OK;
    }
    pthread_mutex_lock(&r->lock);
    r->vote[0] = value;
    int status = MPI_Iallreduce(&r->vote[0], &r->vote[1], 1, MPI_INT, MPI_MAX, r->votes, &r->voting);
    pthread_mutex_unlock(&r->lock);
    return exf_mpi_ok(status, "a vote", err);
}

exf_code exf_ranks_vote_finish(exf_ranks *r, int *largest, exf_err *err)
{
    *largest = vote_alone;
    if (!r) return EXF_OK;
    exf_code rc = wait_all(r, &r->voting, 1, "a vote", err);
    *largest = r->vote[1];
    return rc;
}

/* ---- bytes -------------------------------------------------------------------------------------- */

exf_code exf_ranks_barrier(exf_ranks *r, exf_err *err)
{
    return r ? exf_mpi_barrier(r, r->world, "a barrier", err) : EXF_OK;
}

enum { MOST_BYTES = 1 << 28 };

/* After a failure MPI goes on with what was started, while callers free their memory: what is sent and received are copies, which
 * then stay until the process ends. */
exf_code exf_ranks_broadcast(exf_ranks *r, void *bytes, size_t n, exf_err *err)
{
    char *copy = NULL;
    exf_code rc;
    if (!r) return EXF_OK;
    EXF_TRY(exf_mem_raw(&copy, n, 1, "a broadcast", err));
    if (!r->place.rank && n) memcpy(copy, bytes, n);
    for (size_t at = 0; at < n; at += MOST_BYTES) {
        MPI_Request q;
        int piece = (int)(n - at < MOST_BYTES ? n - at : MOST_BYTES);
        pthread_mutex_lock(&r->lock);
        int status = MPI_Ibcast(copy + at, piece, MPI_BYTE, 0, r->world, &q);
        pthread_mutex_unlock(&r->lock);
        EXF_TRY(exf_mpi_ok(status, "a broadcast", err));
        EXF_TRY(wait_all(r, &q, 1, "a broadcast", err));
    }
    if (r->place.rank && n) memcpy(bytes, copy, n);
    exf_mem_free(copy);
out:
    return rc;
}

/* Gives rank 0 every rank's number of bytes. */
static exf_code gather_sizes(exf_ranks *r, uint64_t own, exf_ranks_gathered *out, exf_err *err)
{
    size_t n = (size_t)r->place.size;
    uint64_t *sizes = NULL; /* [ranks], then this rank's */
    MPI_Request q;
    exf_code rc;
    EXF_TRY(exf_mem_new(&sizes, n + 1, sizeof *sizes, "gathered bytes", err));
    sizes[n] = own;
    pthread_mutex_lock(&r->lock);
    int status = MPI_Igather(&sizes[n], 1, MPI_UINT64_T, sizes, 1, MPI_UINT64_T, 0, r->world, &q);
    pthread_mutex_unlock(&r->lock);
    EXF_TRY(exf_mpi_ok(status, "a gathering", err));
    EXF_TRY(wait_all(r, &q, 1, "a gathering", err));
    if (!r->place.rank) {
        EXF_TRY(exf_mem_new(&out->offset, n + 1, sizeof *out->offset, "gathered bytes", err));
        for (size_t i = 0; i < n; i++) out->offset[i + 1] = out->offset[i] + (size_t)sizes[i];
        EXF_TRY(exf_mem_raw(&out->data, out->offset[n], 1, "gathered bytes", err));
        out->size = r->place.size;
    }
    exf_mem_free(sizes);
out:
    return rc;
}

static size_t calls_of(size_t n)
{
    return (n + MOST_BYTES - 1) / MOST_BYTES;
}

/* Starts to move bytes to rank 0, or on rank 0 from another, in calls of at most MOST_BYTES, whose requests follow q[*used - 1]. */
static exf_code start_moving(exf_ranks *r, char *bytes, size_t n, int other, MPI_Request *q, int *used, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t at = 0; at < n; at += MOST_BYTES) {
        size_t m = n - at < MOST_BYTES ? n - at : MOST_BYTES;
        EXF_TRY(start_message(r, r->world, r->place.rank > 0, bytes + at, m, other, q + *used, "a gathering", err));
        ++*used;
    }
out:
    return rc;
}

/* The part of an array that a rank gives. */
typedef struct {
    uint64_t offset, n;
} part_of_array;

/* Moves each rank's part to its place in rank 0's array; parts [ranks] are known to rank 0 alone. */
static exf_code move_parts(exf_ranks *r, const void *own, size_t n, const part_of_array *parts, char *all, exf_err *err)
{
    size_t calls = r->place.rank ? calls_of(n) : 0;
    MPI_Request *q = NULL;
    int used = 0;
    exf_code rc;
    for (int i = 1; !r->place.rank && i < r->place.size; i++) calls += calls_of((size_t)parts[i].n);
    EXF_TRY(exf_mem_new(&q, calls, sizeof *q, "gathered bytes", err));
    if (r->place.rank) EXF_TRY(start_moving(r, (char *)(uintptr_t)own, n, 0, q, &used, err));
    for (int i = 1; !r->place.rank && i < r->place.size; i++)
        EXF_TRY(start_moving(r, all + parts[i].offset, (size_t)parts[i].n, i, q, &used, err));
    rc = wait_all(r, q, used, "a gathering", err);
out:
    if (rc == EXF_OK) exf_mem_free(q); /* after a failure MPI may still write to them */
    return rc;
}

exf_code exf_ranks_gather(exf_ranks *r, const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err)
{
    part_of_array *parts = NULL;
    char *copy = NULL;
    exf_code rc;
    if (!r) return exf_one_gather(bytes, n, out, err);
    *out = (exf_ranks_gathered){.data = NULL};
    EXF_TRY(gather_sizes(r, n, out, err));
    if (r->place.rank) EXF_TRY(exf_mem_raw(&copy, n, 1, "gathered bytes", err));
    if (n) memcpy(r->place.rank ? copy : out->data, bytes, n);
    EXF_TRY(exf_mem_new(&parts, (size_t)out->size, sizeof *parts, "gathered bytes", err));
    for (int i = 0; i < out->size; i++) parts[i] = (part_of_array){out->offset[i], out->offset[i + 1] - out->offset[i]};
    EXF_TRY(move_parts(r, copy, n, parts, out->data, err));
    exf_mem_free(copy);
out:
    exf_mem_free(parts);
    if (rc != EXF_OK) *out = (exf_ranks_gathered){.data = NULL};
    return rc;
}

exf_code exf_ranks_gather_parts(exf_ranks *r, const void *own, size_t n, size_t offset, void *all, exf_err *err)
{
    const part_of_array part = {offset, n};
    exf_ranks_gathered g;
    exf_code rc;
    if ((!r || !r->place.rank) && n && (const char *)own != (char *)all + offset) memcpy((char *)all + offset, own, n);
    if (!r) return EXF_OK;
    EXF_TRY(exf_ranks_gather(r, &part, sizeof part, &g, err));
    rc = move_parts(r, own, n, (const void *)g.data, all, err);
    exf_ranks_gathered_free(&g);
out:
    return rc;
}

/* ---- agreement ------------------------------------------------------------------------------------ */

exf_code exf_ranks_agree(exf_ranks *r, exf_code rc, exf_err *err)
{
    exf_note own = {.code = (int32_t)rc, .layer = -1}, all = {.code = EXF_OK};
    exf_ranks_gathered g;
    if (!r) return rc;
    own.rank = r->place.rank;
    if (rc != EXF_OK) snprintf(own.msg, sizeof own.msg, "%s", err->msg);
    EXF_TRY(exf_ranks_gather(r, &own, sizeof own, &g, err));
    for (int i = g.size - 1; i >= 0; i--) {
        const exf_note *one = (const void *)(g.data + g.offset[i]);
        if (one->code) all = *one;
    }
    exf_ranks_gathered_free(&g);
    EXF_TRY(exf_ranks_broadcast(r, &all, sizeof all, err));
    rc = exf_mpi_failure(r, &all, err);
out:
    return rc;
}

exf_code exf_ranks_same(exf_ranks *r, const char *text, exf_err *err)
{
    exf_ranks_gathered g;
    char has[2][EXF_ONE_EXCERPT]; /* where the first rank that differs from rank 0 does so first */
    exf_code rc;
    if (!r) return EXF_OK;
    EXF_TRY(exf_ranks_gather(r, text, strlen(text) + 1, &g, err));
    for (int i = 1; rc == EXF_OK && i < g.size; i++) {
        if (strcmp(g.data, g.data + g.offset[i]) == 0) continue;
        exf_one_difference(g.data, g.data + g.offset[i], has[0], has[1]);
        rc = exf_fail(err, EXF_MODEL, "ranks of a job must agree: rank 0 on %s has \"%s\", rank %d on %s has \"%s\"",
                      r->all[0].host, has[0], i, r->all[i].host, has[1]);
    }
    exf_ranks_gathered_free(&g);
    rc = exf_ranks_agree(r, rc, err);
out:
    return rc;
}
#endif

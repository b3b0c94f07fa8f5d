/* ranks_mpi_sums.c - sums, votes, bytes and memory that ranks share; see ranks.h. */
#include "ranks/ranks_internal.h"

#if EXF_HAVE_MPI
#include "base/log.h"
#include "base/mem.h"

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

/* Tests after which pauses become longer. */
enum { EAGER_TURNS = 20000 };

/* Waits for n requests.  MPI moves data in small pieces, 32 KB of a reduction, and only while a rank tests: with a millisecond
 * between two tests a sum of some hundred megabytes took seconds.  counts: 1 adds the time spent waiting to r->waited, on threads
 * of the run's work; 0 on those that run while it computes. */
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
        exf_mpi_pause(turn < EAGER_TURNS ? 1000 : 50000);
    }
}

exf_code exf_mpi_wait(exf_ranks *r, MPI_Request *q, int n, const char *what, exf_err *err)
{
    return wait_for(r, q, n, 1, what, err);
}

/* ---- sums -------------------------------------------------------------------------------------- */

enum { MOST_ELEMENTS = 1 << 24, PIECE = 1 << 26 }; /* elements of one MPI call; bytes of one copy */

struct exf_ranks_sums {
    exf_ranks *r;
    int beside; /* 1: of exf_ranks_sum_beside() */
    char *copy; /* of all arrays, one after the other */
    MPI_Request *request;
    int n_requests;
};

static size_t element_bytes(exf_ranks_kind kind)
{
    return kind == EXF_RANKS_EXACT ? sizeof(exf_exact) : kind == EXF_RANKS_U64 ? sizeof(uint64_t) : 1;
}

static size_t bytes_of(const exf_ranks_array *a, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++) all += a[i].n * element_bytes(a[i].kind);
    return all;
}

static int start_reduction(const exf_ranks_sums *s, void *at, size_t n, exf_ranks_kind kind, MPI_Request *q)
{
    const exf_ranks *r = s->r;
    MPI_Datatype type = kind == EXF_RANKS_EXACT ? r->exact : kind == EXF_RANKS_U64 ? MPI_UINT64_T : MPI_BYTE;
    MPI_Op op = kind == EXF_RANKS_EXACT ? r->add_exact : kind == EXF_RANKS_U64 ? MPI_SUM : MPI_BOR;
    int root = r->place.rank == 0;
    return MPI_Ireduce(root ? MPI_IN_PLACE : at, root ? at : NULL, (int)n, type, op, 0, s->beside ? r->beside : r->sums, q);
}

static exf_code start_reductions(exf_ranks_sums *s, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    char *at = s->copy;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) {
        size_t each = element_bytes(arrays[i].kind);
        if (arrays[i].n) memcpy(at, arrays[i].data, arrays[i].n * each);
        for (size_t k = 0; k < arrays[i].n; k += MOST_ELEMENTS) {
            size_t m = arrays[i].n - k < MOST_ELEMENTS ? arrays[i].n - k : MOST_ELEMENTS;
            pthread_mutex_lock(&s->r->lock);
            int status = start_reduction(s, at + k * each, m, arrays[i].kind, &s->request[s->n_requests++]);
            pthread_mutex_unlock(&s->r->lock);
            EXF_TRY(exf_mpi_ok(status, "a sum", err));
        }
        at += arrays[i].n * each;
    }
out:
    return rc;
}

static exf_code start_sum(exf_ranks_sums **out, exf_ranks *r, int beside, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    exf_ranks_sums *s = NULL;
    size_t calls = 0;
    exf_code rc;
    *out = NULL;
    if (!r) return EXF_OK;
    for (size_t i = 0; i < n; i++) calls += arrays[i].n / MOST_ELEMENTS + 1;
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "sums of ranks", err));
    s->r = r;
    s->beside = beside;
    EXF_TRY(exf_mem_raw(&s->copy, bytes_of(arrays, n), 1, "sums of ranks", err));
    EXF_TRY(exf_mem_new(&s->request, calls, sizeof *s->request, "sums of ranks", err));
    EXF_TRY(start_reductions(s, arrays, n, err));
    *out = s;
out:
    if (rc != EXF_OK && s && !s->n_requests) {
        exf_mem_free(s->copy);
        exf_mem_free(s->request);
        exf_mem_free(s);
    }
    return rc;
}

exf_code exf_ranks_sum_start(exf_ranks_sums **out, exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    return start_sum(out, r, 0, arrays, n, err);
}

/* A sum that failed keeps its copy until the process ends: MPI may still write to it. */
exf_code exf_ranks_sum_finish(exf_ranks_sums *s, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    exf_code rc;
    if (!s) return EXF_OK;
    rc = wait_for(s->r, s->request, s->n_requests, !s->beside, "a sum", err);
    if (rc != EXF_OK) return rc;
    const char *at = s->copy;
    for (size_t i = 0; s->r->place.rank == 0 && i < n; i++) {
        size_t bytes = arrays[i].n * element_bytes(arrays[i].kind);
        if (bytes) memcpy(arrays[i].data, at, bytes);
        at += bytes;
    }
    exf_mem_free(s->copy);
    exf_mem_free(s->request);
    exf_mem_free(s);
    return EXF_OK;
}

/* Adds up a piece at a time, so that the copy stays small. */
static exf_code sum_pieces(exf_ranks *r, int beside, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; r && i < n; i++) {
        size_t each = element_bytes(arrays[i].kind), most = PIECE / each;
        for (size_t k = 0; k < arrays[i].n; k += most) {
            size_t m = arrays[i].n - k < most ? arrays[i].n - k : most;
            exf_ranks_array piece = {(char *)arrays[i].data + k * each, m, arrays[i].kind};
            exf_ranks_sums *s;
            EXF_TRY(start_sum(&s, r, beside, &piece, 1, err));
            EXF_TRY(exf_ranks_sum_finish(s, &piece, 1, err));
        }
    }
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
    exf_code rc = exf_mpi_wait(r, &r->voting, 1, "a vote", err);
    *largest = r->vote[1];
    return rc;
}

/* ---- bytes -------------------------------------------------------------------------------------- */

exf_code exf_ranks_barrier(exf_ranks *r, exf_err *err)
{
    MPI_Request q;
    if (!r) return EXF_OK;
    pthread_mutex_lock(&r->lock);
    int status = MPI_Ibarrier(r->world, &q);
    pthread_mutex_unlock(&r->lock);
    exf_code rc = exf_mpi_ok(status, "a barrier", err);
    return rc == EXF_OK ? exf_mpi_wait(r, &q, 1, "a barrier", err) : rc;
}

enum { MOST_BYTES = 1 << 28 };

exf_code exf_ranks_broadcast(exf_ranks *r, void *bytes, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t at = 0; r && at < n; at += MOST_BYTES) {
        MPI_Request q;
        int piece = (int)(n - at < MOST_BYTES ? n - at : MOST_BYTES);
        pthread_mutex_lock(&r->lock);
        int status = MPI_Ibcast((char *)bytes + at, piece, MPI_BYTE, 0, r->world, &q);
        pthread_mutex_unlock(&r->lock);
        EXF_TRY(exf_mpi_ok(status, "a broadcast", err));
        EXF_TRY(exf_mpi_wait(r, &q, 1, "a broadcast", err));
    }
out:
    return rc;
}

/* Gives rank 0 every rank's number of bytes. */
static exf_code gather_sizes(exf_ranks *r, uint64_t own, exf_ranks_gathered *out, exf_err *err)
{
    uint64_t *sizes = NULL;
    MPI_Request q;
    exf_code rc;
    EXF_TRY(exf_mem_new(&sizes, (size_t)r->place.size, sizeof *sizes, "gathered bytes", err));
    pthread_mutex_lock(&r->lock);
    int status = MPI_Igather(&own, 1, MPI_UINT64_T, sizes, 1, MPI_UINT64_T, 0, r->world, &q);
    pthread_mutex_unlock(&r->lock);
    EXF_TRY(exf_mpi_ok(status, "a gathering", err));
    EXF_TRY(exf_mpi_wait(r, &q, 1, "a gathering", err));
    if (r->place.rank) goto out;
    EXF_TRY(exf_mem_new(&out->offset, (size_t)r->place.size + 1, sizeof *out->offset, "gathered bytes", err));
    for (int i = 0; i < r->place.size; i++) out->offset[i + 1] = out->offset[i] + (size_t)sizes[i];
    EXF_TRY(exf_mem_raw(&out->data, out->offset[r->place.size], 1, "gathered bytes", err));
    out->size = r->place.size;
out:
    exf_mem_free(sizes);
    return rc;
}

enum { TAG_BYTES = 1 };

/* Moves bytes to or from a rank, in calls of at most MOST_BYTES. */
static exf_code move_bytes(exf_ranks *r, char *bytes, size_t n, int other, int sends, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t at = 0; at < n; at += MOST_BYTES) {
        MPI_Request q;
        int m = (int)(n - at < MOST_BYTES ? n - at : MOST_BYTES);
        pthread_mutex_lock(&r->lock);
        int status = sends ? MPI_Isend(bytes + at, m, MPI_BYTE, other, TAG_BYTES, r->world, &q)
                           : MPI_Irecv(bytes + at, m, MPI_BYTE, other, TAG_BYTES, r->world, &q);
        pthread_mutex_unlock(&r->lock);
        EXF_TRY(exf_mpi_ok(status, "a gathering", err));
        EXF_TRY(exf_mpi_wait(r, &q, 1, "a gathering", err));
    }
out:
    return rc;
}

exf_code exf_ranks_gather(exf_ranks *r, const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err)
{
    exf_code rc;
    if (!r) return exf_one_gather(bytes, n, out, err);
    *out = (exf_ranks_gathered){.data = NULL};
    EXF_TRY(gather_sizes(r, n, out, err));
    if (r->place.rank) return move_bytes(r, (char *)(uintptr_t)bytes, n, 0, 1, err);
    if (n) memcpy(out->data, bytes, n);
    for (int i = 1; i < r->place.size; i++)
        EXF_TRY(move_bytes(r, out->data + out->offset[i], out->offset[i + 1] - out->offset[i], i, 0, err));
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

/* Names what a rank and rank 0 have where they differ first. */
static exf_code refuse_difference(const exf_ranks *r, int rank, const char *first, const char *other, exf_err *err)
{
    char has[2][EXF_ONE_EXCERPT];
    exf_one_difference(first, other, has[0], has[1]);
    return exf_fail(err, EXF_MODEL, "ranks of a job must agree: rank 0 on %s has \"%s\", rank %d on %s has \"%s\"", r->all[0].host,
                    has[0], rank, r->all[rank].host, has[1]);
}

/* Finds the first rank whose text is not rank 0's. */
static exf_code compare_texts(const exf_ranks *r, const exf_ranks_gathered *g, exf_err *err)
{
    for (int i = 1; i < g->size; i++)
        if (strcmp(g->data, g->data + g->offset[i]) != 0) return refuse_difference(r, i, g->data, g->data + g->offset[i], err);
    return EXF_OK;
}

exf_code exf_ranks_same(exf_ranks *r, const char *text, exf_err *err)
{
    exf_ranks_gathered g;
    exf_code rc;
    if (!r) return EXF_OK;
    EXF_TRY(exf_ranks_gather(r, text, strlen(text) + 1, &g, err));
    rc = compare_texts(r, &g, err);
    exf_ranks_gathered_free(&g);
    rc = exf_ranks_agree(r, rc, err);
out:
    return rc;
}
#endif

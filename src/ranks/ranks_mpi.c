/* ranks_mpi.c - joins and leaves a job of MPI ranks, and memory that those of a node share; see ranks.h. */
#include "ranks/ranks_internal.h"

#if EXF_HAVE_MPI
#include "base/mem.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int joined; /* 1: MPI runs, and exf_ranks_abort() has something to end */

int exf_ranks_built(void)
{
    return 1;
}

/* ---- places --------------------------------------------------------------------------------- */

/* Fills the place but for the node's number. */
static exf_code find_place(exf_ranks *r, exf_err *err)
{
    exf_place *p = &r->place;
    MPI_Comm lowest; /* ranks of all nodes; MPI_COMM_NULL for the others */
    exf_code rc;
    *p = exf_one_place();
    EXF_TRY(exf_mpi_ok(MPI_Comm_rank(r->world, &p->rank), "counting ranks", err));
    EXF_TRY(exf_mpi_ok(MPI_Comm_size(r->world, &p->size), "counting ranks", err));
    EXF_TRY(exf_mpi_ok(MPI_Comm_split_type(r->world, MPI_COMM_TYPE_SHARED, p->rank, MPI_INFO_NULL, &r->node), "finding a node",
                       err));
    EXF_TRY(exf_mpi_ok(MPI_Comm_rank(r->node, &p->local_rank), "counting the ranks of a node", err));
    EXF_TRY(exf_mpi_ok(MPI_Comm_size(r->node, &p->local_size), "counting the ranks of a node", err));
    EXF_TRY(exf_mpi_ok(MPI_Comm_split(r->world, p->local_rank ? MPI_UNDEFINED : 0, p->rank, &lowest), "counting nodes", err));
    if (!p->local_rank) {
        MPI_Comm_rank(lowest, &p->node);
        MPI_Comm_size(lowest, &p->n_nodes);
        MPI_Comm_free(&lowest);
    }
    int node[2] = {p->node, p->n_nodes};
    EXF_TRY(exf_mpi_ok(MPI_Bcast(node, 2, MPI_INT, 0, r->node), "numbering nodes", err));
    p->node = node[0];
    p->n_nodes = node[1];
out:
    return rc;
}

static exf_code share_places(exf_ranks *r, exf_err *err)
{
    size_t n = (size_t)r->place.size;
    exf_code rc;
    EXF_TRY(exf_mem_new(&r->all, n, sizeof *r->all, "ranks", err));
    EXF_TRY(exf_mem_new(&r->watched, n, 1, "ranks", err));
    EXF_TRY(exf_mem_new(&r->ended, n, 1, "ranks", err));
    EXF_TRY(exf_mem_new(&r->done, n, sizeof *r->done, "ranks", err));
    EXF_TRY(exf_mem_new(&r->seconds, n, sizeof *r->seconds, "ranks", err));
    EXF_TRY(exf_mpi_ok(MPI_Allgather(&r->place, (int)sizeof r->place, MPI_BYTE, r->all, (int)sizeof r->place, MPI_BYTE, r->world),
                       "telling places", err));
    for (size_t i = 0; i < n; i++) {
        r->done[i] = -1;
        r->watched[i] = r->all[i].node == r->place.node && (int)i != r->place.rank && kill((pid_t)r->all[i].pid, 0) == 0;
    }
out:
    return rc;
}

exf_place exf_ranks_place(const exf_ranks *r)
{
    return r ? r->place : exf_one_place();
}

exf_place exf_ranks_place_of(const exf_ranks *r, int rank)
{
    return r ? r->all[rank] : exf_one_place();
}

/* ---- joining and leaving ---------------------------------------------------------------------- */

static void free_ranks(exf_ranks *r)
{
    pthread_mutex_destroy(&r->lock);
    exf_mem_free(r->all);
    exf_mem_free(r->watched);
    exf_mem_free(r->ended);
    exf_mem_free(r->done);
    exf_mem_free(r->seconds);
    while (r->sent) {
        exf_note_sent *s = r->sent;
        r->sent = s->next;
        exf_mem_free(s);
    }
    exf_mem_free(r);
}

/* More than the ranks that MPI has were started: each would be a job of its own. */
static exf_code check_size(const exf_ranks *r, exf_err *err)
{
    int started = exf_ranks_started();
    if (r->place.size >= started || r->place.size > 1) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "started as %d processes, but MPI sees 1, so that each would do the whole run; with srun, "
                    "give the --mpi that this MPI was built for (srun --mpi=list), or use mpirun of the same MPI", started);
}

exf_code exf_ranks_open(exf_ranks **out, exf_err *err)
{
    exf_ranks *r = NULL;
    int level;
    exf_code rc;
    *out = NULL;
    if (!exf_ranks_started()) return EXF_OK;
    EXF_TRY(exf_mem_new(&r, 1, sizeof *r, "ranks", err));
    pthread_mutex_init(&r->lock, NULL);
    r->layer = -1;
    r->voting = MPI_REQUEST_NULL;
    EXF_TRY(exf_mpi_ok(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "starting", err));
    joined = 1;
    if (level < MPI_THREAD_SERIALIZED) {
        rc = exf_fail(err, EXF_USAGE, "this MPI was built without threads (MPI_THREAD_SERIALIZED)");
        goto out;
    }
    EXF_TRY(exf_mpi_ok(MPI_Comm_dup(MPI_COMM_WORLD, &r->world), "opening the job", err));
    MPI_Comm_set_errhandler(r->world, MPI_ERRORS_RETURN);
    EXF_TRY(exf_mpi_ok(MPI_Comm_dup(r->world, &r->sums), "opening the job", err));
    EXF_TRY(exf_mpi_ok(MPI_Comm_dup(r->world, &r->beside), "opening the job", err));
    EXF_TRY(exf_mpi_ok(MPI_Comm_dup(r->world, &r->votes), "opening the job", err));
    EXF_TRY(exf_mpi_ok(MPI_Comm_dup(r->world, &r->notes), "opening the job", err));
    EXF_TRY(find_place(r, err));
    EXF_TRY(check_size(r, err));
    EXF_TRY(share_places(r, err));
    EXF_TRY(exf_mpi_watch(r, err));
    *out = r;
out:
    if (rc != EXF_OK && r) free_ranks(r);
    return rc;
}

/* ---- leaving ---------------------------------------------------------------------------------- */

/* Waits until every living rank but this one has ended its work. */
static void wait_for_ends(exf_ranks *r)
{
    for (;;) {
        int n = 0;
        pthread_mutex_lock(&r->lock);
        exf_mpi_listen(r);
        for (int i = 0; i < r->place.size; i++)
            n += r->ended[i] || i == r->place.rank || (r->failure.died && r->failure.rank == i);
        pthread_mutex_unlock(&r->lock);
        if (n == r->place.size) return;
        exf_mpi_pause(1000000);
    }
}

/* The rank that speaks returns the failure of the lowest of all. */
static exf_code leave_failed(exf_ranks *r, int *speaks, exf_err *err)
{
    *speaks = exf_mpi_speaker(r) == r->place.rank;
    if (*speaks) {
        wait_for_ends(r);
        *speaks = !r->told;
        return exf_mpi_failure(r, r->own.code ? &r->own : r->lowest.code ? &r->lowest : &r->failure, err);
    }
    pthread_mutex_lock(&r->lock);
    exf_mpi_note(r, exf_mpi_speaker(r), EXF_NOTE_END, &r->own);
    pthread_mutex_unlock(&r->lock);
    return exf_mpi_failure(r, &r->failure, err); /* r stays: its watch sends the note, and MPI may still write to it */
}

exf_code exf_ranks_close(exf_ranks *r, exf_code rc, int *speaks, exf_err *err)
{
    exf_err waited = {.code = EXF_OK};
    *speaks = 1;
    if (!r) return rc;
    if (rc == EXF_OK && exf_ranks_barrier(r, &waited) == EXF_OK) {
        *speaks = r->place.rank == 0;
        exf_mpi_unwatch(r);
        rc = exf_mpi_ok(MPI_Finalize(), "ending the job", err);
        joined = 0;
        free_ranks(r);
        return rc;
    }
    if (rc != EXF_OK) (void)exf_ranks_fail(r, rc, err);
    return leave_failed(r, speaks, err);
}

void exf_ranks_abort(exf_code rc)
{
    int rank = 0;
    if (!joined) return;
    fflush(NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int turn = 0; rank && turn < 300; turn++) exf_mpi_pause(100000000); /* rank 0 ends all; half a minute at most */
    MPI_Abort(MPI_COMM_WORLD, (int)rc);
}

/* ---- memory of a node --------------------------------------------------------------------------- */

exf_code exf_ranks_node_barrier(exf_ranks *r, exf_err *err)
{
    return r ? exf_mpi_barrier(r, r->node, "a barrier of the node", err) : EXF_OK;
}

/* The lowest rank of the node allocates all of it; the others ask where it lies. */
static exf_code allocate_window(exf_ranks_window *w, exf_ranks *r, size_t bytes, MPI_Win *win, exf_err *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    MPI_Aint size, own = r->place.local_rank ? 0 : (MPI_Aint)(bytes + page);
    int unit;
    char *at;
    exf_code rc;
    EXF_TRY(exf_mpi_ok(MPI_Win_allocate_shared(own, 1, MPI_INFO_NULL, r->node, &at, win), "memory of the node", err));
    EXF_TRY(exf_mpi_ok(MPI_Win_shared_query(*win, 0, &size, &unit, &at), "memory of the node", err));
    EXF_TRY(exf_mpi_ok(MPI_Win_lock_all(MPI_MODE_NOCHECK, *win), "memory of the node", err));
    w->at = at + (page - (uintptr_t)at % page) % page;
    w->bytes = bytes;
out:
    return rc;
}

/* Barriers that see failures stand before and after the calls that cannot be interrupted. */
exf_code exf_ranks_window_new(exf_ranks_window *w, exf_ranks *r, size_t bytes, exf_err *err)
{
    MPI_Win win = MPI_WIN_NULL;
    exf_code rc;
    *w = (exf_ranks_window){.at = NULL};
    if (!r) return exf_one_window(w, bytes, err);
    EXF_TRY(exf_ranks_node_barrier(r, err));
    pthread_mutex_lock(&r->lock);
    rc = allocate_window(w, r, bytes, &win, err);
    pthread_mutex_unlock(&r->lock);
    if (rc != EXF_OK) exf_err_prefix(err, "%zu bytes: ", bytes);
    if (rc != EXF_OK) goto out;
    memcpy(&w->handle, &win, sizeof win < sizeof w->handle ? sizeof win : sizeof w->handle);
    if (!r->place.local_rank) memset(w->at, 0, bytes);
    EXF_TRY(exf_ranks_node_barrier(r, err));
out:
    return rc;
}

void exf_ranks_window_free(exf_ranks_window *w, exf_ranks *r)
{
    MPI_Win win = MPI_WIN_NULL;
    exf_err unused;
    if (!r) {
        exf_one_window_free(w);
        return;
    }
    if (!w->at || exf_ranks_node_barrier(r, &unused) != EXF_OK) return;
    memcpy(&win, &w->handle, sizeof win < sizeof w->handle ? sizeof win : sizeof w->handle);
    pthread_mutex_lock(&r->lock);
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    pthread_mutex_unlock(&r->lock);
    *w = (exf_ranks_window){.at = NULL};
}
#endif

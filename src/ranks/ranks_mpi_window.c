/* ranks_mpi_window.c - memory that the ranks of a node share; see ranks.h. */
#include "ranks/ranks_mpi_internal.h"

#if EXF_HAVE_MPI
#include <string.h>
#include <unistd.h>

exf_code exf_ranks_node_barrier(exf_ranks *r, exf_err *err)
{
    MPI_Request q;
    if (!r) return EXF_OK;
    pthread_mutex_lock(&r->lock);
    int status = MPI_Ibarrier(r->node, &q);
    pthread_mutex_unlock(&r->lock);
    exf_code rc = exf_mpi_ok(status, "a barrier of the node", err);
    return rc == EXF_OK ? exf_mpi_wait(r, &q, 1, "a barrier of the node", err) : rc;
}

/* The lowest rank of the node allocates all of it; the others ask where it lies. */
static exf_code allocate(exf_ranks_window *w, exf_ranks *r, size_t bytes, MPI_Win *win, exf_err *err)
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
    rc = allocate(w, r, bytes, &win, err);
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

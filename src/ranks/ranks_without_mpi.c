/* ranks_without_mpi.c - ranks.h in a program that was built without MPI: the only handle is NULL. */
#include "ranks/ranks_one.h"

#if !EXF_HAVE_MPI

int exf_ranks_built(void)
{
    return 0;
}

exf_code exf_ranks_open(exf_ranks **out, exf_err *err)
{
    int n = exf_ranks_started();
    *out = NULL;
    if (n < 2) return EXF_OK;
    return exf_fail(err, EXF_USAGE, "started as %d ranks, but this program was built without MPI: each would do the whole run; "
                    "start one process, or build with MPI=1", n);
}

void exf_ranks_on_death(exf_ranks *r, void (*say)(const exf_err *err))
{
    (void)r, (void)say;
}

exf_code exf_ranks_close(exf_ranks *r, exf_code rc, int *speaks, exf_err *err)
{
    (void)r, (void)err;
    *speaks = 1;
    return rc;
}

void exf_ranks_abort(exf_code rc)
{
    (void)rc;
}

exf_place exf_ranks_place(const exf_ranks *r)
{
    (void)r;
    return exf_one_place();
}

exf_place exf_ranks_place_of(const exf_ranks *r, int rank)
{
    (void)rank;
    return exf_ranks_place(r);
}

exf_code exf_ranks_fail(exf_ranks *r, exf_code rc, const exf_err *err)
{
    (void)r, (void)err;
    return rc;
}

exf_code exf_ranks_check(exf_ranks *r, exf_err *err)
{
    (void)r, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_agree(exf_ranks *r, exf_code rc, exf_err *err)
{
    (void)r, (void)err;
    return rc;
}

void exf_ranks_layer(exf_ranks *r, int layer, double seconds)
{
    (void)r, (void)layer, (void)seconds;
}

void exf_ranks_straggler(exf_ranks *r, char text[EXF_STRAGGLER_TEXT])
{
    (void)r;
    text[0] = 0;
}

exf_code exf_ranks_sum(exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    (void)r, (void)arrays, (void)n, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_sum_beside(exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    return exf_ranks_sum(r, arrays, n, err);
}

exf_code exf_ranks_sum_start(exf_ranks_sums **out, exf_ranks *r, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    (void)r, (void)arrays, (void)n, (void)err;
    *out = NULL;
    return EXF_OK;
}

exf_code exf_ranks_sum_finish(exf_ranks_sums *s, const exf_ranks_array *arrays, size_t n, exf_err *err)
{
    (void)s, (void)arrays, (void)n, (void)err;
    return EXF_OK;
}

static int vote;

exf_code exf_ranks_vote_start(exf_ranks *r, int value, exf_err *err)
{
    (void)r, (void)err;
    vote = value;
    return EXF_OK;
}

exf_code exf_ranks_vote_finish(exf_ranks *r, int *largest, exf_err *err)
{
    (void)r, (void)err;
    *largest = vote;
    return EXF_OK;
}

exf_code exf_ranks_barrier(exf_ranks *r, exf_err *err)
{
    (void)r, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_broadcast(exf_ranks *r, void *bytes, size_t n, exf_err *err)
{
    (void)r, (void)bytes, (void)n, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_gather(exf_ranks *r, const void *bytes, size_t n, exf_ranks_gathered *out, exf_err *err)
{
    (void)r;
    return exf_one_gather(bytes, n, out, err);
}

exf_code exf_ranks_same(exf_ranks *r, const char *text, exf_err *err)
{
    (void)r, (void)text, (void)err;
    return EXF_OK;
}

exf_code exf_ranks_window_new(exf_ranks_window *w, exf_ranks *r, size_t bytes, exf_err *err)
{
    (void)r;
    return exf_one_window(w, bytes, err);
}

void exf_ranks_window_free(exf_ranks_window *w, exf_ranks *r)
{
    (void)r;
    exf_one_window_free(w);
}

exf_code exf_ranks_node_barrier(exf_ranks *r, exf_err *err)
{
    (void)r, (void)err;
    return EXF_OK;
}
#endif

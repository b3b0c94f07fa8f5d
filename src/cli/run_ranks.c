/* run_ranks.c - see run_ranks.h. */
#include "cli/run_ranks.h"

#include "base/log.h"
#include "base/text.h"
#include "base/thread_pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ranks that may run on the same processors share them; those that were bound to processors of their own keep them. */
static void share_processors(const exf_ranks *r)
{
    exf_place own = exf_ranks_place(r);
    int sharing = 0;
    for (int i = 0; i < own.size; i++) {
        exf_place p = exf_ranks_place_of(r, i);
        sharing += p.node == own.node && p.processors == own.processors;
    }
    exf_share_processors(sharing);
}

/* Warns of a rank that Open MPI has bound to less than its share of the node: one core, where it starts one or two ranks. */
static void tell_binding(const exf_ranks *r)
{
    exf_place p = exf_ranks_place(r);
    int own = exf_processors_of(0), share = exf_processors_of(getppid()) / p.local_size;
    if (!exf_ranks_first(r) || !getenv("OMPI_COMM_WORLD_SIZE") || own >= share) return;
    exf_log_warn("mpirun bound rank %d on %s to %d of the %d processors that are its share; start with mpirun --bind-to none",
                 p.rank, p.host, own, share);
}

/* Leaves one GPU visible, before CUDA looks: that of the local rank among CUDA_VISIBLE_DEVICES or, where that is not
 * set, all.  CUDA takes 0.3 s more to start, and 0.15 s to end, for each further GPU that a process sees.  A list of one is
 * the batch system's choice. */
static exf_code choose_gpu(const exf_ranks *r, exf_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    exf_place p = exf_ranks_place(r);
    exf_text one = {0};
    exf_code rc;
    int n = 1;
    if (visible && !strchr(visible, ',')) return EXF_OK;
    for (const char *c = visible; c && *c; c++) n += *c == ',';
    if (visible && p.local_rank >= n)
        return exf_fail(err, EXF_USAGE, "%d ranks on %s for %d GPUs (CUDA_VISIBLE_DEVICES=%s); start one rank a GPU",
                        p.local_size, p.host, n, visible);
    for (int i = 0; visible && i < p.local_rank; i++) visible = strchr(visible, ',') + 1;
    EXF_TRY(visible ? exf_text_add(&one, visible, strcspn(visible, ","), err) : exf_text_addf(&one, err, "%d", p.local_rank));
    if (setenv("CUDA_VISIBLE_DEVICES", one.s, 1) != 0) rc = exf_fail_errno(err, errno, "cannot set CUDA_VISIBLE_DEVICES");
out:
    exf_text_free(&one);
    return rc;
}

static void tell_death(const exf_err *err)
{
    exf_log_error(err);
}

exf_code exf_run_ranks_open(exf_ranks **out, const exf_program *p, exf_err *err)
{
    int n = exf_ranks_started();
    exf_code rc;
    *out = NULL;
    if (n > 1 && !p->takes_ranks)
        return exf_fail(err, EXF_USAGE, "started as %d ranks, but %s runs as one process: each would do the whole work", n,
                        p->name);
    if (!p->takes_ranks) return EXF_OK;
    EXF_TRY(exf_ranks_open(out, err));
    if (!*out) return choose_gpu(NULL, err);
    exf_ranks_on_death(*out, tell_death);
    if (!exf_ranks_first(*out) && !freopen("/dev/null", "w", stdout)) {
        rc = exf_fail_errno(err, errno, "/dev/null");
        goto out;
    }
    share_processors(*out);
    tell_binding(*out);
    EXF_TRY(choose_gpu(*out, err));
out:
    return rc;
}

int exf_run_ranks_end(exf_ranks *ranks, exf_code rc, exf_err *err)
{
    int speaks;
    rc = exf_ranks_close(ranks, rc, &speaks, err);
    if (rc == EXF_OK) return EXF_OK;
    err->code = rc;
    if (speaks) exf_log_error(err);
    exf_ranks_abort(rc);
    return (int)rc;
}

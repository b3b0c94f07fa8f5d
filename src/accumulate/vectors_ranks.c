/* vectors_ranks.c - the vector sums of ranks whose GPUs are on one host: rank 0's GPU reads those of the others.
 *
 * Over MPI a layer of 1024 pairs of rank 8, 275 MB, takes 0.1 to 0.3 s of the host's memory; GPUs add it up in milliseconds. */
#include "accumulate/vectors.h"

#include "base/log.h"
#include "base/mem.h"

#include <string.h>

void exf_device_vectors_list(exf_summed out[EXF_VECTOR_ARRAYS], const exf_device_vectors *s, size_t pairs)
{
    size_t h = (size_t)s->d_model, r = (size_t)s->rank;
    const exf_summed all[EXF_VECTOR_ARRAYS] = {{s->diagonal.vu, pairs * h, sizeof(exf_exact)},
                                           {s->diagonal.vv, pairs * h, sizeof(exf_exact)},
                                           {s->lowrank.zz, pairs * r * r, sizeof(int64_t)},
                                           {s->lowrank.zu, pairs * r * h, sizeof(int64_t)},
                                           {s->lowrank.zv, pairs * r * h, sizeof(int64_t)}};
    memcpy(out, all, sizeof all);
}

/* What a rank tells rank 0 of its sums. */
typedef struct {
    exf_memory_handle handle[EXF_VECTOR_ARRAYS];
    int is_shared;
} shared_sums;

void exf_device_vectors_close_peers(exf_device_vectors *s)
{
    int n = s->peer ? exf_ranks_place(s->ranks).size * EXF_VECTOR_ARRAYS : 0;
    for (int i = 0; i < n; i++) s->b->gpu->close_memory(s->peer[i]);
    exf_mem_free(s->peer);
    s->peer = NULL;
}

/* Opens all other ranks' sums. */
static exf_code open_peers(exf_device_vectors *s, const exf_ranks_gathered *all, exf_err *err)
{
    exf_summed sums[EXF_VECTOR_ARRAYS];
    exf_code rc;
    exf_device_vectors_list(sums, s, s->pairs);
    EXF_TRY(exf_mem_new(&s->peer, (size_t)all->size * EXF_VECTOR_ARRAYS, sizeof *s->peer, "sums of ranks", err));
    for (int r = 1; r < all->size; r++) {
        shared_sums told;
        memcpy(&told, all->data + all->offset[r], sizeof told);
        if (!told.is_shared) return exf_fail(err, EXF_DEVICE, "rank %d cannot share its GPU's memory", r);
        for (int i = 0; i < EXF_VECTOR_ARRAYS; i++)
            if (sums[i].from) EXF_TRY(s->b->gpu->open_memory(&s->peer[r * EXF_VECTOR_ARRAYS + i], &told.handle[i], err));
    }
out:
    return rc;
}

exf_code exf_device_vectors_share(exf_device_vectors *s, exf_ranks *ranks, exf_err *err)
{
    exf_summed sums[EXF_VECTOR_ARRAYS];
    shared_sums own = {.is_shared = 1};
    exf_ranks_gathered all = {.data = NULL};
    exf_err why;
    int is_shared = 1;
    exf_code rc;
    if (!ranks || exf_ranks_place(ranks).n_nodes > 1) return EXF_OK;
    s->ranks = ranks;
    exf_device_vectors_list(sums, s, s->pairs);
    for (int i = 0; i < EXF_VECTOR_ARRAYS; i++)
        if (sums[i].from && s->b->gpu->share_memory(&own.handle[i], sums[i].from, &why) != EXF_OK) own.is_shared = 0;
    EXF_TRY(exf_ranks_gather(ranks, &own, sizeof own, &all, err));
    if (exf_ranks_first(ranks)) is_shared = own.is_shared && open_peers(s, &all, &why) == EXF_OK;
    if (exf_ranks_first(ranks) && !is_shared) exf_log_debug("sums of ranks go over MPI: %s", why.msg);
    rc = exf_ranks_broadcast(ranks, &is_shared, sizeof is_shared, err);
out:
    if (rc != EXF_OK || !is_shared) {
        exf_device_vectors_close_peers(s);
        s->ranks = NULL;
    }
    exf_ranks_gathered_free(&all);
    return rc;
}

exf_code exf_device_vectors_release(exf_device_vectors *s, exf_err *err)
{
    if (s->is_last) exf_device_vectors_close_peers(s);
    return exf_ranks_barrier(s->ranks, err);
}

/* Refuses sum number `at`, which wrapped when a rank's was added to it, in the words of a merge of files. */
static exf_code refuse_sum(const exf_device_vectors *s, const exf_summed *to, const void *peer, size_t at, int rank, exf_err *err)
{
    exf_exact sum = {{0, 0, 0}}, term = {{0, 0, 0}}, before;
    int is_exact = to->size == sizeof sum;
    exf_code rc;
    EXF_TRY(s->b->download(s->q, &sum, (const char *)to->from + at * to->size, to->size, err));
    EXF_TRY(s->b->download(s->q, &term, (const char *)peer + at * to->size, to->size, err));
    before = term;
    exf_exact_negate(&before);
    (void)exf_exact_merge(&before, &sum);
    rc = exf_fail(err, EXF_NUMERIC,
                  "rank %d: vector sums of %.17g and %.17g in the ranks before are more together than a sum holds", rank,
                  is_exact ? exf_exact_value(&term) : (double)(int64_t)term.limb[0],
                  is_exact ? exf_exact_value(&before) : (double)(int64_t)before.limb[0]);
out:
    return rc;
}

exf_code exf_device_vectors_add_peer(const exf_device_vectors *s, size_t pairs, int rank, void *const peer[EXF_VECTOR_ARRAYS],
                                     exf_err *err)
{
    exf_summed sums[EXF_VECTOR_ARRAYS];
    uint64_t wrapped[EXF_VECTOR_ARRAYS];
    exf_code rc;
    exf_device_vectors_list(sums, s, pairs);
    s->b->zero(s->q, s->wrapped, sizeof wrapped);
    for (int i = 0; i < EXF_VECTOR_ARRAYS; i++) {
        if (!sums[i].from) continue;
        if (sums[i].size == sizeof(exf_exact))
            s->b->gpu->add_exact(s->q, sums[i].from, peer[i], sums[i].n, s->wrapped + i);
        else
            s->b->gpu->add_integers(s->q, sums[i].from, peer[i], sums[i].n, s->wrapped + i);
    }
    EXF_TRY(s->b->download(s->q, wrapped, s->wrapped, sizeof wrapped, err));
    for (int i = 0; rc == EXF_OK && i < EXF_VECTOR_ARRAYS; i++)
        if (wrapped[i]) rc = refuse_sum(s, &sums[i], peer[i], (size_t)~wrapped[i], rank, err);
out:
    return rc;
}

exf_code exf_device_vectors_add_peers(exf_device_vectors *s, size_t pairs, exf_err *err)
{
    exf_code rc;
    EXF_TRY(s->b->finish(s->q, err));
    EXF_TRY(exf_ranks_barrier(s->ranks, err));
    for (int r = 1; s->peer && r < exf_ranks_place(s->ranks).size; r++)
        EXF_TRY(exf_device_vectors_add_peer(s, pairs, r, s->peer + r * EXF_VECTOR_ARRAYS, err));
    rc = exf_device_vectors_release(s, err);
out:
    return rc;
}

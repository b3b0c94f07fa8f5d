/* device_vectors.c - the sums of pairs with vectors in device memory; see device_vectors.h. */
#include "accumulate/device_vectors.h"

#include "accumulate/device_sums.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* Tokens whose low-rank terms are listed at a time: at most 64 MiB of lists, and 8192. */
static size_t tokens_at_once(size_t pairs)
{
    size_t most = ((size_t)64 << 20) / sizeof(exf_pair_slots) / (pairs ? pairs : 1);
    return most > 8192 ? 8192 : most < 64 ? 64 : most;
}

/* Lists the arrays with their sizes: into s, or, with s NULL, their bytes alone. */
static exf_code allocate_arrays(exf_device_vectors *s, uint64_t *bytes, size_t p, size_t k, size_t h, int diagonal, size_t r,
                                exf_err *err)
{
    exf_device_vectors none = {.b = NULL}, *o = s ? s : &none;
    size_t t = tokens_at_once(p), d = diagonal ? p * h : 0, z = r ? p * r : 0, scratch = r ? t * k : 0;
    const struct {
        void *out;
        size_t n, size;
    } all[] = {{&o->pair, p, 2 * sizeof *o->pair},
               {&o->wrapped, EXF_VECTOR_ARRAYS, sizeof *o->wrapped},
               {&o->diagonal.vu, d, sizeof(exf_exact)},
               {&o->diagonal.vv, d, sizeof(exf_exact)},
               {&o->diagonal.open, 2 * d, sizeof(double)},
               {&o->diagonal.bad, diagonal ? 1 : 0, sizeof(exf_sums_fault)},
               {&o->root, diagonal ? EXF_MOE_BLOCK * k : 0, sizeof(double)},
               {&o->grid, r ? p : 0, EXF_N_GRIDS * sizeof *o->grid},
               {&o->basis, h * r, sizeof(double)},
               {&o->lowrank.zz, z, r * sizeof(int64_t)},
               {&o->lowrank.zu, z, h * sizeof(int64_t)},
               {&o->lowrank.zv, z, h * sizeof(int64_t)},
               {&o->lowrank.slots, r ? p * t : 0, sizeof(exf_pair_slots)},
               {&o->lowrank.found, r ? p : 0, sizeof(int32_t)},
               {&o->lowrank.weight, scratch, sizeof(double)},
               {&o->lowrank.z, scratch, r * sizeof(double)},
               {&o->lowrank.bad, r ? 1 : 0, sizeof(exf_sums_fault)}};
    exf_code rc = EXF_OK;
    *bytes = 0;
    for (size_t i = 0; rc == EXF_OK && i < sizeof all / sizeof *all; i++) {
        *bytes += (uint64_t)all[i].n * all[i].size;
        if (s && all[i].n) rc = s->b->alloc(all[i].out, all[i].n, all[i].size, "vector sums", err);
    }
    o->lowrank.tokens = (int)t;
    return rc;
}

uint64_t exf_device_vectors_bytes(uint64_t pairs, int top_k, int d_model, int diagonal, int rank)
{
    uint64_t bytes;
    exf_err none;
    exf_code rc = allocate_arrays(NULL, &bytes, (size_t)pairs, (size_t)top_k, (size_t)d_model, diagonal, (size_t)rank, &none);
    return rc == EXF_OK ? bytes : 0;
}

/* An array of sums in device memory, and how many it has of some pairs; from NULL: it is not wanted. */
typedef struct {
    void *from;
    size_t n, size;
} summed;

static void list_sums(summed out[EXF_VECTOR_ARRAYS], const exf_device_vectors *s, size_t pairs)
{
    size_t h = (size_t)s->d_model, r = (size_t)s->rank;
    const summed all[EXF_VECTOR_ARRAYS] = {{s->diagonal.vu, pairs * h, sizeof(exf_exact)},
                                           {s->diagonal.vv, pairs * h, sizeof(exf_exact)},
                                           {s->lowrank.zz, pairs * r * r, sizeof(int64_t)},
                                           {s->lowrank.zu, pairs * r * h, sizeof(int64_t)},
                                           {s->lowrank.zv, pairs * r * h, sizeof(int64_t)}};
    memcpy(out, all, sizeof all);
}

/* Bytes of the sums that cross, of n pairs. */
static size_t sums_bytes(const exf_device_vectors *s, size_t n)
{
    summed all[EXF_VECTOR_ARRAYS];
    size_t bytes = 0;
    list_sums(all, s, n);
    for (int i = 0; i < EXF_VECTOR_ARRAYS; i++) bytes += all[i].from ? all[i].n * all[i].size : 0;
    return bytes;
}

/* ---- ranks on one host ------------------------------------------------------------------------------
 * Over MPI a layer of 1024 pairs of rank 8, 275 MB, takes 0.1 to 0.3 s of the host's memory; GPUs add it up in milliseconds. */

/* What a rank tells rank 0 of its sums. */
typedef struct {
    exf_memory_handle handle[EXF_VECTOR_ARRAYS];
    int is_shared;
} shared_sums;

static void close_peers(exf_device_vectors *s)
{
    int n = s->peer ? exf_ranks_place(s->ranks).size * EXF_VECTOR_ARRAYS : 0;
    for (int i = 0; i < n; i++) s->b->gpu->close_memory(s->peer[i]);
    exf_mem_free(s->peer);
    s->peer = NULL;
}

/* Opens all other ranks' sums. */
static exf_code open_peers(exf_device_vectors *s, const exf_ranks_gathered *all, exf_err *err)
{
    summed sums[EXF_VECTOR_ARRAYS];
    exf_code rc;
    list_sums(sums, s, s->pairs);
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

/* Lets the GPUs of the ranks share their sums, if all can; else these go by way of MPI. */
static exf_code share_sums(exf_device_vectors *s, exf_ranks *ranks, exf_err *err)
{
    summed sums[EXF_VECTOR_ARRAYS];
    shared_sums own = {.is_shared = 1};
    exf_ranks_gathered all = {.data = NULL};
    exf_err why;
    int is_shared = 1;
    exf_code rc;
    if (!ranks || exf_ranks_place(ranks).n_nodes > 1) return EXF_OK;
    s->ranks = ranks;
    list_sums(sums, s, s->pairs);
    for (int i = 0; i < EXF_VECTOR_ARRAYS; i++)
        if (sums[i].from && s->b->gpu->share_memory(&own.handle[i], sums[i].from, &why) != EXF_OK) own.is_shared = 0;
    EXF_TRY(exf_ranks_gather(ranks, &own, sizeof own, &all, err));
    if (exf_ranks_first(ranks)) is_shared = own.is_shared && open_peers(s, &all, &why) == EXF_OK;
    if (exf_ranks_first(ranks) && !is_shared) exf_log_debug("sums of ranks go over MPI: %s", why.msg);
    rc = exf_ranks_broadcast(ranks, &is_shared, sizeof is_shared, err);
out:
    if (rc != EXF_OK || !is_shared) {
        close_peers(s);
        s->ranks = NULL;
    }
    exf_ranks_gathered_free(&all);
    return rc;
}

exf_code exf_device_vectors_open(exf_device_vectors *s, const exf_backend *b, size_t pairs, int top_k, int d_model, int diagonal,
                                 int rank, exf_weighting weighting, exf_ranks *ranks, exf_err *err)
{
    uint64_t bytes;
    exf_code rc;
    int n_staging; /* buffers of host memory that this process lends sums from */
    *s = (exf_device_vectors){.b = b, .d_model = d_model, .rank = rank, .weighting = weighting, .pairs = pairs};
    EXF_TRY(allocate_arrays(s, &bytes, pairs, (size_t)top_k, (size_t)d_model, diagonal, (size_t)rank, err));
    EXF_TRY(share_sums(s, ranks, err));
    n_staging = !exf_ranks_first(ranks) ? !s->ranks : ranks ? 2 : 1;
    for (int i = 0; i < n_staging; i++) EXF_TRY(b->gpu->alloc_staging(&s->host[i], sums_bytes(s, pairs) + 1, "vector sums", err));
    s->diagonal.pair = s->lowrank.pair = s->pair;
    s->lowrank.grid = s->grid;
    s->lowrank.basis = s->basis;
    s->lowrank.rank = rank;
out:
    return rc;
}

void exf_device_vectors_free(exf_device_vectors *s)
{
    void *all[] = {s->pair, s->grid, s->basis, s->root, s->diagonal.vu, s->diagonal.vv, s->diagonal.open, s->diagonal.bad,
                   s->lowrank.zz, s->lowrank.zu, s->lowrank.zv, s->lowrank.slots, s->lowrank.found, s->lowrank.weight, s->lowrank.z,
                   s->lowrank.bad, s->wrapped};
    close_peers(s);
    for (size_t i = 0; s->b && i < sizeof all / sizeof *all; i++) s->b->free(all[i]);
    for (int i = 0; s->b && i < 2; i++) s->b->gpu->free_staging(s->host[i]);
    memset(s, 0, sizeof *s);
}

void exf_device_vectors_begin(exf_device_vectors *s, const exf_vector_sums *sums, int is_last)
{
    s->of = sums;
    s->is_last = is_last;
    s->diagonal.n_pairs = s->lowrank.n_pairs = (int)sums->n_pairs;
    s->q = NULL;
}

/* ---- a block's terms ----------------------------------------------------------------------------- */

/* Queues what comes before the layer's first block. */
static void send_choice(exf_device_vectors *s, exf_queue *q)
{
    const exf_vector_sums *v = s->of;
    const exf_backend *b = s->b;
    size_t p = (size_t)v->n_pairs, h = (size_t)s->d_model, r = (size_t)s->rank;
    s->q = q;
    b->upload(q, s->pair, v->pair, p * 2 * sizeof *v->pair);
    if (s->diagonal.vu) {
        b->zero(q, s->diagonal.vu, p * h * sizeof(exf_exact));
        b->zero(q, s->diagonal.vv, p * h * sizeof(exf_exact));
        b->zero(q, s->diagonal.bad, sizeof *s->diagonal.bad);
    }
    if (!r) return;
    b->upload(q, s->grid, v->grid, p * EXF_N_GRIDS * sizeof *v->grid);
    b->upload(q, s->basis, v->basis, h * r * sizeof *v->basis);
    b->zero(q, s->lowrank.zz, p * r * r * sizeof(int64_t));
    b->zero(q, s->lowrank.zu, p * r * h * sizeof(int64_t));
    b->zero(q, s->lowrank.zv, p * r * h * sizeof(int64_t));
    b->zero(q, s->lowrank.bad, sizeof *s->lowrank.bad);
}

static exf_matrix outputs_of(const exf_moe_block *b)
{
    return (exf_matrix){b->expert_outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32};
}

/* Adds tokens [at, at + n) of the block, all of one unit; begins, ends: they are the unit's first, last. */
static void add_to_diagonal(const exf_device_vectors *s, const exf_moe_block *b, size_t at, int n, int begins, int ends)
{
    size_t slot = at * (size_t)b->top_k;
    exf_diagonal_call c = {.top_k = b->top_k, .d_model = b->d_model, .n_tokens = n,
                           .outputs = exf_matrix_at(outputs_of(b), slot * (size_t)b->d_model),
                           .ids = b->topk_ids + slot, .weights = b->topk_weights + slot, .weighting = s->weighting, .root = s->root,
                           .begins = begins, .ends = ends, .row = (int64_t)(b->row + at)};
    s->b->gpu->diagonal_add(b->q, &s->diagonal, &c);
}

/* Adds the block's diagonal terms, unit by unit. */
static void add_units(exf_device_vectors *s, const exf_moe_block *b)
{
    for (size_t at = 0, end = (size_t)b->n_tokens, n; at < end; at += n) {
        const exf_span *span = &b->batch->span[exf_sequence_of(b->batch, 0, b->row + at)];
        size_t position = b->row + at - span->offset, length = (size_t)span->n_tokens, into = position % EXF_MOE_BLOCK;
        size_t left = length - position < EXF_MOE_BLOCK - into ? length - position : EXF_MOE_BLOCK - into; /* rows in the unit */
        n = left < end - at ? left : end - at;
        add_to_diagonal(s, b, at, (int)n, into == 0, n == left);
    }
}

void exf_device_vectors_add(exf_device_vectors *s, const exf_moe_block *b)
{
    if (s->of->n_pairs == 0) return;
    if (!s->q) send_choice(s, b->q);
    s->batch = b->batch;
    if (s->diagonal.vu) add_units(s, b);
    if (!s->rank) return;
    exf_lowrank_call c = {.top_k = b->top_k, .d_model = b->d_model, .n_tokens = b->n_tokens, .outputs = outputs_of(b),
                          .ids = b->topk_ids, .weights = b->topk_weights, .weighting = s->weighting, .row = (int64_t)b->row};
    s->b->gpu->lowrank_add(b->q, &s->lowrank, &c);
}

/* ---- the layer's sums ------------------------------------------------------------------------------ */

/* Returns the failure that the device noted, if there is one. */
static exf_code look_for_fault(const exf_device_vectors *s, exf_err *err)
{
    exf_sums_fault bad = {0};
    exf_code rc = EXF_OK;
    if (s->diagonal.vu) EXF_TRY(s->b->download(s->q, &bad, s->diagonal.bad, sizeof bad, err));
    if (bad.place) {
        const int32_t *pair = s->of->pair + 2 * (size_t)bad.a;
        rc = exf_vector_fault(err, pair[0], pair[1], bad.x);
        exf_fault_prefix_row(err, s->batch, (size_t)~bad.place, EXF_MOE_BLOCK, 0);
        goto out;
    }
    if (s->rank) EXF_TRY(s->b->download(s->q, &bad, s->lowrank.bad, sizeof bad, err));
    if (bad.place) {
        rc = exf_root_fault(err, bad.x);
        exf_fault_prefix_row(err, s->batch, (size_t)~bad.place, EXF_MOE_BLOCK, 1);
    }
out:
    return rc;
}

/* Waits until rank 0 needs this layer's sums no longer: the next layer's go to the same memory, and after the last one it is freed,
 * which nobody may have open then. */
static exf_code release_sums(exf_device_vectors *s, exf_err *err)
{
    if (s->is_last) close_peers(s);
    return exf_ranks_barrier(s->ranks, err);
}

/* Refuses sum number `at`, which wrapped when a rank's was added to it, in the words of a merge of files. */
static exf_code refuse_sum(const exf_device_vectors *s, const summed *to, const void *peer, size_t at, int rank, exf_err *err)
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
    summed sums[EXF_VECTOR_ARRAYS];
    uint64_t wrapped[EXF_VECTOR_ARRAYS];
    exf_code rc;
    list_sums(sums, s, pairs);
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

/* Adds the sums of all GPUs up on rank 0's, when all are complete. */
static exf_code add_peers(exf_device_vectors *s, size_t pairs, exf_err *err)
{
    exf_code rc;
    EXF_TRY(s->b->finish(s->q, err));
    EXF_TRY(exf_ranks_barrier(s->ranks, err));
    for (int r = 1; s->peer && r < exf_ranks_place(s->ranks).size; r++)
        EXF_TRY(exf_device_vectors_add_peer(s, pairs, r, s->peer + r * EXF_VECTOR_ARRAYS, err));
    rc = release_sums(s, err);
out:
    return rc;
}

/* Queues the copies of the sums to staging memory, where this process has any. */
static void fetch_sums(exf_device_vectors *s, exf_vector_sums *sums)
{
    void *to[EXF_VECTOR_ARRAYS] = {&sums->vu, &sums->vv, &sums->zz, &sums->zu, &sums->zv};
    summed all[EXF_VECTOR_ARRAYS];
    char *at = s->host[s->turn];
    list_sums(all, s, (size_t)sums->n_pairs);
    if (!s->q) memset(at, 0, sums_bytes(s, (size_t)sums->n_pairs)); /* no block came */
    for (int i = 0; i < EXF_VECTOR_ARRAYS; i++) {
        size_t bytes = all[i].n * all[i].size;
        if (!all[i].from) continue;
        memcpy(to[i], &at, sizeof at);
        if (s->q) s->b->copy(s->q, at, all[i].from, bytes);
        at += bytes;
    }
    if (s->host[1]) s->turn ^= 1;
}

exf_code exf_device_vectors_take(exf_device_vectors *s, exf_vector_sums *sums, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (sums->n_pairs == 0) return s->ranks ? release_sums(s, err) : EXF_OK;
    sums->borrowed = 1;
    if (s->ranks && !s->q) return exf_fail(err, EXF_INTERNAL, "a rank has no block of a layer with vector sums");
    if (s->ranks) EXF_TRY(add_peers(s, (size_t)sums->n_pairs, err));
    if (s->host[0]) fetch_sums(s, sums);
    if (!s->q) return EXF_OK;
    EXF_TRY(s->b->finish(s->q, err));
    rc = look_for_fault(s, err);
out:
    s->q = NULL;
    return rc;
}

/* vectors_terms.c - adds up the vector sums of chosen pairs (accumulate/vector_sums.h), block by block. */
#include "accumulate/vectors.h"

#include "base/mem.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/simd.h"

#include <math.h>
#include <string.h>

/* ---- in host memory ---------------------------------------------------------------------------------
 * The unit of work is a block of the forward pass (at most EXF_MOE_BLOCK tokens of one sequence, always the same split): within it
 * a pair's terms, in order of tokens, are one product in double on one thread, and that total is added on a grid or exactly, so
 * that neither threads nor the order of blocks matter. */

struct exf_pair_entry {
    int32_t token, source, target; /* source, target: slots */
};

/* Sorts by counting: two passes over all slot pairs, in order of token. */
exf_code exf_pair_block_sort(exf_pair_block *s, const exf_moe_block *b, const int32_t *index, exf_weighting weighting,
                             int64_t n_pairs, exf_err *err)
{
    int k = b->top_k;
    size_t slots = (size_t)b->n_tokens * (size_t)k;
    const float *outputs = b->expert_outputs;
    exf_code rc;
    EXF_TRY(exf_mem_grow(&s->entry, &s->cap_entry, slots * (size_t)k, sizeof *s->entry, "vector sums", err));
    EXF_TRY(exf_mem_grow(&s->first, &s->cap_first, (size_t)n_pairs + 1, sizeof *s->first, "vector sums", err));
    EXF_TRY(exf_mem_grow(&s->weight, &s->cap_weight, slots, sizeof *s->weight, "vector sums", err));
    memset(s->first, 0, ((size_t)n_pairs + 1) * sizeof *s->first);
    for (int pass = 0; pass < 2; pass++) {
        for (int t = 0; t < b->n_tokens; t++) {
            const int32_t *id = b->topk_ids + (size_t)t * (size_t)k;
            for (int a = 0; a < k; a++)
                for (int c = 0; c < k; c++) {
                    int is_pair = a != c && id[a] >= 0 && id[c] >= 0;
                    int32_t p = is_pair ? index[(size_t)id[a] * (size_t)b->n_experts + (size_t)id[c]] : -1;
                    if (p < 0) continue;
                    if (pass == 0)
                        s->first[p + 1]++;
                    else
                        s->entry[s->first[p]++] = (struct exf_pair_entry){t, a, c};
                }
        }
        for (int64_t p = 0; pass == 0 && p < n_pairs; p++) s->first[p + 1] += s->first[p];
    }
    for (int64_t p = n_pairs; p > 0; p--) s->first[p] = s->first[p - 1]; /* the second pass moved each start to the next pair's */
    s->first[0] = 0;
    for (size_t i = 0; i < slots; i++) {
        const float *u = outputs + i * (size_t)b->d_model;
        double norm = weighting == EXF_WEIGHT_SOURCE_NORM ? sqrt(exf_dot(u, u, b->d_model)) : 1;
        s->weight[i] = weighting == EXF_WEIGHT_ROUTER ? (double)b->topk_weights[i] : norm;
        if (s->weight[i] >= 0) continue;
        rc = exf_root_fault(err, s->weight[i]);
        exf_err_prefix(err, "token %zu: ", i / (size_t)k);
        goto out;
    }
out:
    return rc;
}

/* Loads the pair's rows, times the root of their weight. */
static void load_rows(const exf_pair_block *s, exf_pair_buffers *m, const exf_moe_block *b, int64_t p, int n)
{
    size_t h = (size_t)b->d_model, k = (size_t)b->top_k;
    const float *outputs = b->expert_outputs;
    for (int i = 0; i < n; i++) {
        const struct exf_pair_entry *e = &s->entry[s->first[p] + i];
        size_t slot = (size_t)e->token * k;
        const float *u = outputs + (slot + (size_t)e->source) * h, *v = outputs + (slot + (size_t)e->target) * h;
        double root = sqrt(s->weight[slot + (size_t)e->source]);
        for (size_t j = 0; j < h; j++) {
            m->u[(size_t)i * h + j] = root * (double)u[j];
            m->v[(size_t)i * h + j] = root * (double)v[j];
        }
    }
}

static exf_code add_exact(exf_exact *sum, const double *x, size_t n, const int32_t *pair, exf_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (!exf_exact_fits(x[i])) return exf_vector_fault(err, pair[0], pair[1], x[i]);
    for (size_t i = 0; i < n; i++) exf_exact_add(&sum[i], x[i]);
    return EXF_OK;
}

static exf_code add_diagonal(exf_pair_buffers *m, int n, size_t h, int64_t p, const exf_vector_sums *sums, pthread_mutex_t *lock,
                             exf_err *err)
{
    double *vu = m->total, *vv = m->total + h;
    exf_code rc;
    memset(m->total, 0, 2 * h * sizeof *m->total);
    for (int i = 0; i < n; i++)
        for (size_t j = 0; j < h; j++) {
            double v = m->v[(size_t)i * h + j];
            vu[j] += v * m->u[(size_t)i * h + j];
            vv[j] += v * v;
        }
    pthread_mutex_lock(lock);
    rc = add_exact(sums->vu + (size_t)p * h, vu, h, sums->pair + 2 * p, err);
    if (rc == EXF_OK) rc = add_exact(sums->vv + (size_t)p * h, vv, h, sums->pair + 2 * p, err);
    pthread_mutex_unlock(lock);
    return rc;
}

/* Adds z' x, [R, width], on the pair's grid. */
static void add_product(exf_pair_buffers *m, int n, const double *x, int width, int64_t *sum, int r, int grid,
                        pthread_mutex_t *lock)
{
    exf_linalg_xtw(m->total, width, m->z, r, x, width, r, width, n, 1, 0);
    pthread_mutex_lock(lock);
    exf_grid_add(sum, m->total, (size_t)r * (size_t)width, grid);
    pthread_mutex_unlock(lock);
}

exf_code exf_pair_block_add(const exf_pair_block *s, exf_pair_buffers *m, const exf_moe_block *b, int64_t p,
                            const exf_vector_sums *sums, pthread_mutex_t *lock, exf_err *err)
{
    int n = (int)(s->first[p + 1] - s->first[p]), r = sums->rank, h = b->d_model;
    size_t at = (size_t)p * (size_t)r, rows = (size_t)n * (size_t)h, most = (size_t)(r > 2 ? r : 2) * (size_t)(h > r ? h : r);
    exf_code rc = EXF_OK;
    if (n == 0) return EXF_OK;
    EXF_TRY(exf_mem_grow(&m->u, &m->cap_u, rows, sizeof *m->u, "vector sums", err));
    EXF_TRY(exf_mem_grow(&m->v, &m->cap_v, rows, sizeof *m->v, "vector sums", err));
    EXF_TRY(exf_mem_grow(&m->z, &m->cap_z, (size_t)n * (size_t)r + 1, sizeof *m->z, "vector sums", err));
    EXF_TRY(exf_mem_grow(&m->total, &m->cap_total, most, sizeof *m->total, "vector sums", err));
    load_rows(s, m, b, p, n);
    if (sums->vu) EXF_TRY(add_diagonal(m, n, (size_t)h, p, sums, lock, err));
    if (!r) goto out;
    const int32_t *grid = sums->grid + EXF_N_GRIDS * p;
    exf_linalg_xw(m->z, r, m->v, h, sums->basis, r, n, r, h, 1, 0);
    add_product(m, n, m->z, r, sums->zz + at * (size_t)r, r, grid[EXF_GRID_ZV], lock);
    add_product(m, n, m->u, h, sums->zu + at * (size_t)h, r, grid[EXF_GRID_ZU], lock);
    add_product(m, n, m->v, h, sums->zv + at * (size_t)h, r, grid[EXF_GRID_ZV], lock);
out:
    return rc;
}

/* ---- in GPU memory ----------------------------------------------------------------------------------
 * Only what the file holds crosses to the host, once a layer. */

/* Lists the arrays with their sizes: into s, or, with s NULL, their bytes alone.  Low-rank terms are listed of t tokens at a
 * time. */
static exf_code allocate_arrays(exf_device_vectors *s, uint64_t *bytes, size_t p, size_t k, size_t h, int diagonal, size_t r,
                                exf_err *err)
{
    exf_device_vectors none = {.b = NULL}, *o = s ? s : &none;
    size_t most = ((size_t)64 << 20) / sizeof(exf_pair_slots) / (p ? p : 1); /* bytes of lists */
    size_t t = most > 8192 ? 8192 : most < 64 ? 64 : most, d = diagonal ? p * h : 0, z = r ? p * r : 0, scratch = r ? t * k : 0;
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

/* Bytes of the sums that cross, of n pairs. */
static size_t sums_bytes(const exf_device_vectors *s, size_t n)
{
    exf_summed all[EXF_VECTOR_ARRAYS];
    size_t bytes = 0;
    exf_device_vectors_list(all, s, n);
    for (int i = 0; i < EXF_VECTOR_ARRAYS; i++) bytes += all[i].from ? all[i].n * all[i].size : 0;
    return bytes;
}

exf_code exf_device_vectors_open(exf_device_vectors *s, const exf_backend *b, size_t pairs, int top_k, int d_model, int diagonal,
                                 int rank, exf_weighting weighting, exf_ranks *ranks, exf_err *err)
{
    uint64_t bytes;
    exf_code rc;
    int n_staging; /* buffers of host memory that this process lends sums from */
    *s = (exf_device_vectors){.b = b, .d_model = d_model, .rank = rank, .weighting = weighting, .pairs = pairs};
    EXF_TRY(allocate_arrays(s, &bytes, pairs, (size_t)top_k, (size_t)d_model, diagonal, (size_t)rank, err));
    EXF_TRY(exf_device_vectors_share(s, ranks, err));
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
    exf_device_vectors_close_peers(s);
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

/* Adds the block's diagonal terms, unit by unit. */
static void add_units(exf_device_vectors *s, const exf_moe_block *b)
{
    exf_diagonal_call c = {.top_k = b->top_k, .d_model = b->d_model, .weighting = s->weighting, .root = s->root};
    for (size_t at = 0, end = (size_t)b->n_tokens; at < end; at += (size_t)c.n_tokens) {
        const exf_span *span = &b->batch->span[exf_sequence_of(b->batch, 0, b->row + at)];
        size_t position = b->row + at - span->offset, length = (size_t)span->n_tokens, into = position % EXF_MOE_BLOCK;
        size_t left = length - position < EXF_MOE_BLOCK - into ? length - position : EXF_MOE_BLOCK - into; /* rows in the unit */
        size_t slot = at * (size_t)b->top_k;
        c.n_tokens = (int)(left < end - at ? left : end - at);
        c.outputs = exf_matrix_at(exf_outputs_of(b), slot * (size_t)b->d_model);
        c.ids = b->topk_ids + slot;
        c.weights = b->topk_weights + slot;
        c.begins = into == 0;
        c.ends = (size_t)c.n_tokens == left;
        c.row = (int64_t)(b->row + at);
        s->b->gpu->diagonal_add(b->q, &s->diagonal, &c);
    }
}

void exf_device_vectors_add(exf_device_vectors *s, const exf_moe_block *b)
{
    if (s->of->n_pairs == 0) return;
    if (!s->q) send_choice(s, b->q);
    s->batch = b->batch;
    if (s->diagonal.vu) add_units(s, b);
    if (!s->rank) return;
    exf_lowrank_call c = {.top_k = b->top_k, .d_model = b->d_model, .n_tokens = b->n_tokens, .outputs = exf_outputs_of(b),
                          .ids = b->topk_ids, .weights = b->topk_weights, .weighting = s->weighting, .row = (int64_t)b->row};
    s->b->gpu->lowrank_add(b->q, &s->lowrank, &c);
}

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

/* Queues the copies of the sums to staging memory, where this process has any. */
static void fetch_sums(exf_device_vectors *s, exf_vector_sums *sums)
{
    void *to[EXF_VECTOR_ARRAYS] = {&sums->vu, &sums->vv, &sums->zz, &sums->zu, &sums->zv};
    exf_summed all[EXF_VECTOR_ARRAYS];
    char *at = s->host[s->turn];
    exf_device_vectors_list(all, s, (size_t)sums->n_pairs);
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
    if (sums->n_pairs == 0) return s->ranks ? exf_device_vectors_release(s, err) : EXF_OK;
    sums->borrowed = 1;
    if (s->ranks && !s->q) return exf_fail(err, EXF_INTERNAL, "a rank has no block of a layer with vector sums");
    if (s->ranks) EXF_TRY(exf_device_vectors_add_peers(s, (size_t)sums->n_pairs, err));
    if (s->host[0]) fetch_sums(s, sums);
    if (!s->q) return EXF_OK;
    EXF_TRY(s->b->finish(s->q, err));
    rc = look_for_fault(s, err);
out:
    s->q = NULL;
    return rc;
}

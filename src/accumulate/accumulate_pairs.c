/* accumulate_pairs.c - one block's terms of a pair's vector sums.
 *
 * The unit of work is a block of the forward pass (at most EXF_MOE_BLOCK tokens of one sequence, always the same split):
 * within it a pair's terms, in order of tokens, are one product in double on one thread, and that total is added on a grid
 * or exactly, so that neither threads nor the order of blocks matter. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/simd.h"
#include "kernels/statistics/layer_sums.h"

#include <math.h>
#include <string.h>

struct exf_pair_entry {
    int32_t token, source, target; /* source, target: slots */
};

void exf_pair_block_free(exf_pair_block *s)
{
    exf_mem_free(s->entry);
    exf_mem_free(s->first);
    exf_mem_free(s->weight);
    memset(s, 0, sizeof *s);
}

void exf_pair_buffers_free(exf_pair_buffers *m)
{
    exf_mem_free(m->u);
    exf_mem_free(m->v);
    exf_mem_free(m->z);
    exf_mem_free(m->total);
    memset(m, 0, sizeof *m);
}

static double weight_of(const float *output, int h, exf_weighting weighting, float route_weight)
{
    switch (weighting) {
    case EXF_WEIGHT_SOURCE_NORM: return sqrt(exf_dot(output, output, h));
    case EXF_WEIGHT_ROUTER: return (double)route_weight;
    case EXF_WEIGHT_NONE: break;
    }
    return 1;
}

/* Grows the buffers to n tokens of a pair. */
static exf_code grow_buffers(exf_pair_buffers *m, size_t n, size_t h, size_t r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_grow(&m->u, &m->cap_u, n * h, sizeof *m->u, "vector sums", err));
    EXF_TRY(exf_mem_grow(&m->v, &m->cap_v, n * h, sizeof *m->v, "vector sums", err));
    EXF_TRY(exf_mem_grow(&m->z, &m->cap_z, n * r + 1, sizeof *m->z, "vector sums", err));
    EXF_TRY(exf_mem_grow(&m->total, &m->cap_total, (r > 2 ? r : 2) * (h > r ? h : r), sizeof *m->total, "vector sums", err));
out:
    return rc;
}

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
        s->weight[i] = weight_of(outputs + i * (size_t)b->d_model, b->d_model, weighting, b->topk_weights[i]);
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
    size_t at = (size_t)p * (size_t)r;
    exf_code rc = EXF_OK;
    if (n == 0) return EXF_OK;
    EXF_TRY(grow_buffers(m, (size_t)n, (size_t)h, (size_t)r, err));
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

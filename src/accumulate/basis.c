/* basis.c - see basis.h. */
#include "accumulate/basis.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "kernels/rows/simd.h"
#include "kernels/linear/linear.h"
#include "kernels/statistics/layer_sums.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

/* SPARE: directions beyond those wanted.  TURNS: subspace iterations.  ROWS: rows converted to
 * double at a time.  PARTS: parts of the rows that are added up separately, the same for any number
 * of threads. */
enum { SPARE = 16, TURNS = 6, ROWS = 512, PARTS = 16 };

typedef struct {
    const float *x;
    size_t n;
    int d, k, n_helpers;
    double *mean;  /* [d] */
    double *rows;  /* [n_helpers, ROWS, d] centred */
    double *image; /* [n_helpers, ROWS, k] */
    double *g;     /* [d, k] the subspace */
    double *next;  /* [PARTS, d, k] */
} search;

static exf_code open_search(search *s, exf_err *err)
{
    exf_code rc;
    size_t d = (size_t)s->d, k = (size_t)s->k, helpers = (size_t)s->n_helpers;
    EXF_TRY(exf_mem_new(&s->mean, d, sizeof *s->mean, "basis", err));
    EXF_TRY(exf_mem_new(&s->rows, helpers * ROWS * d, sizeof *s->rows, "basis", err));
    EXF_TRY(exf_mem_new(&s->image, helpers * ROWS * k, sizeof *s->image, "basis", err));
    EXF_TRY(exf_mem_new(&s->g, d * k, sizeof *s->g, "basis", err));
    EXF_TRY(exf_mem_new(&s->next, PARTS * d * k, sizeof *s->next, "basis", err));
out:
    return rc;
}

static void close_search(search *s)
{
    exf_mem_free(s->mean);
    exf_mem_free(s->rows);
    exf_mem_free(s->image);
    exf_mem_free(s->g);
    exf_mem_free(s->next);
}

static void find_mean(search *s)
{
    size_t d = (size_t)s->d;
    for (size_t i = 0; i < s->n; i++)
        for (size_t j = 0; j < d; j++) s->mean[j] += (double)s->x[i * d + j];
    for (size_t j = 0; s->n && j < d; j++) s->mean[j] /= (double)s->n;
}

/* Loads rows from `at` on, less the mean, and their image under g, into a helper's buffers; returns how many. */
static int load_rows(const search *s, size_t at, size_t end, double *rows, double *image)
{
    size_t d = (size_t)s->d, m = end - at < ROWS ? end - at : ROWS;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < d; j++) rows[i * d + j] = (double)s->x[(at + i) * d + j] - s->mean[j];
    exf_linalg_xw(image, s->k, rows, s->d, s->g, s->k, (int)m, s->k, s->d, 1, 0);
    return (int)m;
}

/* Adds a part's rows in order: next += X' (X g), or with of_images next += (X g)' (X g). */
typedef struct {
    const search *s;
    int of_images;
} job;

static exf_code add_part(void *self, size_t part, int helper, exf_err *err)
{
    const job *j = self;
    const search *s = j->s;
    size_t d = (size_t)s->d, k = (size_t)s->k, from = part * s->n / PARTS, end = (part + 1) * s->n / PARTS;
    double *rows = s->rows + (size_t)helper * ROWS * d, *image = s->image + (size_t)helper * ROWS * k,
           *next = s->next + part * d * k;
    (void)err;
    memset(next, 0, d * k * sizeof *next);
    for (size_t at = from; at < end; at += ROWS) {
        int m = load_rows(s, at, end, rows, image);
        if (j->of_images)
            exf_linalg_xtw(next, s->k, image, s->k, image, s->k, s->k, s->k, m, 1, 1);
        else
            exf_linalg_xtw(next, s->k, rows, s->d, image, s->k, s->d, s->k, m, 1, 1);
    }
    return EXF_OK;
}

/* Adds the parts' sums, in order, into sum [cells]. */
static exf_code add_parts(search *s, int of_images, double *sum, size_t cells, exf_err *err)
{
    job j = {s, of_images};
    exf_code rc = exf_parallel_for(PARTS, s->n_helpers, add_part, &j, err);
    memset(sum, 0, cells * sizeof *sum);
    for (size_t p = 0; rc == EXF_OK && p < PARTS; p++)
        for (size_t i = 0; i < cells; i++) sum[i] += s->next[p * (size_t)s->d * (size_t)s->k + i];
    return rc;
}

/* Replaces g by orth(X' X g): one subspace iteration. */
static exf_code turn(search *s, exf_err *err)
{
    exf_code rc = add_parts(s, 0, s->g, (size_t)s->d * (size_t)s->k, err);
    return rc == EXF_OK ? exf_linalg_orthonormalize(s->g, s->d, s->k, err) : rc;
}

/* Writes the directions of g to q by falling singular value. */
static exf_code order(search *s, double *q, int r, exf_err *err)
{
    double *gram = NULL, *value = NULL;
    int k = s->k;
    exf_code rc;
    EXF_TRY(exf_mem_new(&gram, (size_t)k * (size_t)k, sizeof *gram, "basis", err));
    EXF_TRY(exf_mem_new(&value, (size_t)k, sizeof *value, "basis", err));
    EXF_TRY(add_parts(s, 1, gram, (size_t)k * (size_t)k, err));
    EXF_TRY(exf_linalg_eigen(gram, value, k, err));
    exf_linalg_xw(q, r, s->g, k, gram, k, s->d, r, k, 1, 0);
out:
    exf_mem_free(gram);
    exf_mem_free(value);
    return rc;
}

static void fix_signs(double *q, int d, int r)
{
    for (int c = 0; c < r; c++) {
        int largest = 0;
        for (int i = 1; i < d; i++)
            if (fabs(q[(size_t)i * (size_t)r + (size_t)c]) > fabs(q[(size_t)largest * (size_t)r + (size_t)c])) largest = i;
        if (q[(size_t)largest * (size_t)r + (size_t)c] < 0)
            for (int i = 0; i < d; i++) q[(size_t)i * (size_t)r + (size_t)c] *= -1;
    }
}

static int columns_of(int r, int d)
{
    return r + SPARE < d ? r + SPARE : d;
}

static int at_once(int helpers)
{
    return helpers < PARTS ? helpers : PARTS;
}

uint64_t exf_basis_bytes(int r, int d, int helpers)
{
    uint64_t k = (uint64_t)columns_of(r, d), n = (uint64_t)at_once(helpers), width = (uint64_t)d;
    return sizeof(double) * (width + n * ROWS * (width + k) + (1 + PARTS) * width * k);
}

exf_code exf_basis_find(double *q, int r, const float *x, size_t n, int d, uint64_t seed, uint64_t stream, int helpers,
                        exf_err *err)
{
    search s = {.x = x, .n = n, .d = d, .k = columns_of(r, d), .n_helpers = at_once(helpers)};
    exf_code rc;
    EXF_TRY(open_search(&s, err));
    find_mean(&s);
    for (size_t i = 0; i < (size_t)d * (size_t)s.k; i++) s.g[i] = (double)exf_rng_below(1u << 20, seed, stream, i) / (1u << 19) - 1;
    EXF_TRY(exf_linalg_orthonormalize(s.g, d, s.k, err));
    for (int i = 0; n && i < TURNS; i++) EXF_TRY(turn(&s, err));
    EXF_TRY(order(&s, q, r, err));
    fix_signs(q, d, r);
out:
    close_search(&s);
    return rc;
}

/* ---- pair block -------------------------------------------------------------------------------- */

enum { N_LOCKS = 64 };

struct exf_pair_locks {
    pthread_mutex_t lock[N_LOCKS];
};

exf_code exf_pair_locks_new(exf_pair_locks **out, exf_err *err)
{
    exf_code rc = exf_mem_new(out, 1, sizeof **out, "locks", err);
    for (int i = 0; rc == EXF_OK && i < N_LOCKS; i++) pthread_mutex_init(&(*out)->lock[i], NULL);
    return rc;
}

void exf_pair_locks_free(exf_pair_locks *l)
{
    for (int i = 0; l && i < N_LOCKS; i++) pthread_mutex_destroy(&l->lock[i]);
    exf_mem_free(l);
}

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
static exf_code make_room(exf_pair_buffers *m, size_t n, size_t h, size_t r, exf_err *err)
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
                        s->entry[s->first[p]++] = (exf_pair_entry){t, a, c};
                }
        }
        for (int64_t p = 0; pass == 0 && p < n_pairs; p++) s->first[p + 1] += s->first[p];
    }
    for (int64_t p = n_pairs; p > 0; p--) s->first[p] = s->first[p - 1]; /* the second pass moved each start to the next pair's */
    s->first[0] = 0;
    for (size_t i = 0; i < slots; i++) {
        s->weight[i] = weight_of(b->expert_outputs + i * (size_t)b->d_model, b->d_model, weighting, b->topk_weights[i]);
        if (!(s->weight[i] >= 0))
            return exf_fail(err, EXF_NUMERIC, "token %zu: a weight of %g has no root, which vector sums need", i / (size_t)k,
                            s->weight[i]);
    }
out:
    return rc;
}

/* Loads the pair's rows, times the root of their weight. */
static void load(const exf_pair_block *s, exf_pair_buffers *m, const exf_moe_block *b, int64_t p, int n)
{
    size_t h = (size_t)b->d_model, k = (size_t)b->top_k;
    for (int i = 0; i < n; i++) {
        const exf_pair_entry *e = &s->entry[s->first[p] + i];
        size_t slot = (size_t)e->token * k;
        const float *u = b->expert_outputs + (slot + (size_t)e->source) * h,
                    *v = b->expert_outputs + (slot + (size_t)e->target) * h;
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
                            const exf_vector_sums *sums, exf_pair_locks *locks, exf_err *err)
{
    int n = (int)(s->first[p + 1] - s->first[p]), r = sums->rank, h = b->d_model;
    size_t at = (size_t)p * (size_t)r;
    pthread_mutex_t *lock = &locks->lock[p % N_LOCKS];
    exf_code rc = EXF_OK;
    if (n == 0) return EXF_OK;
    EXF_TRY(make_room(m, (size_t)n, (size_t)h, (size_t)r, err));
    load(s, m, b, p, n);
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

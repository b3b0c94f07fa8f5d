/* accumulate_basis.c - the principal directions of rows, such as a layer's sampled residuals: their leading right singular
 * vectors, by randomised subspace iteration (Halko, Martinsson, Tropp: Finding structure with randomness, SIAM Review 53, 2011,
 * algorithm 4.4, on the side of the rows' space, with a Rayleigh-Ritz step). */
#include "accumulate/accumulate_basis.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "kernels/linear/linear.h"
#include "kernels/statistics/layer_sums.h"

#include <omp.h>
#include <math.h>
#include <string.h>

enum {
    EXTRA = 16,     /* columns beyond those wanted */
    ROWS = 512,     /* converted to double at a time */
    PARTS = 16,     /* of the rows, added up separately: the same for any number of threads */
    ITERATIONS = 6  /* of the subspace */
};

typedef struct {
    const float *x;
    size_t n;
    int d, k, n_helpers;
    double *mean;  /* [d] 0 if rows are not centred */
    double *rows;  /* [n_helpers, ROWS, d] less the mean */
    double *image; /* [n_helpers, ROWS, k] */
    double *g;     /* [d, k] the subspace */
    double *next;  /* [PARTS, d, k] */
} search;

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
static void add_part(const search *s, int of_images, size_t part, int helper)
{
    size_t d = (size_t)s->d, k = (size_t)s->k, from = part * s->n / PARTS, end = (part + 1) * s->n / PARTS;
    double *rows = s->rows + (size_t)helper * ROWS * d, *image = s->image + (size_t)helper * ROWS * k,
           *next = s->next + part * d * k;
    memset(next, 0, d * k * sizeof *next);
    for (size_t at = from; at < end; at += ROWS) {
        int m = load_rows(s, at, end, rows, image);
        if (of_images)
            exf_linalg_xtw(next, s->k, image, s->k, image, s->k, s->k, s->k, m, 1, 1);
        else
            exf_linalg_xtw(next, s->k, rows, s->d, image, s->k, s->d, s->k, m, 1, 1);
    }
}

/* Adds the parts' sums, in order, into sum [cells]. */
static exf_code add_parts(search *s, int of_images, double *sum, size_t cells, exf_err *err)
{
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(PARTS, s->n_helpers))
    for (size_t p = 0; p < PARTS; p++) add_part(s, of_images, p, omp_get_thread_num());
    memset(sum, 0, cells * sizeof *sum);
    for (size_t p = 0; p < PARTS; p++)
        for (size_t i = 0; i < cells; i++) sum[i] += s->next[p * (size_t)s->d * (size_t)s->k + i];
    return exf_stop_check(err);
}

/* Writes the directions of g to q by falling singular value. */
static exf_code order_columns(search *s, double *q, int r, exf_err *err)
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

/* Returns the columns of the subspace in which r directions of d are searched. */
static int columns_for(int r, int d)
{
    return r + EXTRA < d ? r + EXTRA : d;
}

/* Fills the columns that the search starts from. */
static void start_columns(double *g, int d, int k, uint64_t seed, uint64_t stream)
{
    for (size_t i = 0; i < (size_t)d * (size_t)k; i++) g[i] = (double)exf_rng_below(1u << 20, seed, stream, i) / (1u << 19) - 1;
}

/* Makes the largest element of each column of q [d, r], the first of equals, positive.  Walks along rows, as q lies in memory: up
 * to SIGNED columns at a time. */
static void choose_signs(double *q, int r, int d)
{
    enum { SIGNED = 64 };
    for (int from = 0; from < r; from += SIGNED) {
        double largest[SIGNED] = {0};
        int n = r - from < SIGNED ? r - from : SIGNED;
        for (double *row = q + from; row < q + (size_t)d * (size_t)r; row += r)
            for (int c = 0; c < n; c++) largest[c] = fabs(row[c]) > fabs(largest[c]) ? row[c] : largest[c];
        for (int c = 0; c < n; c++) largest[c] = largest[c] < 0 ? -1 : 1;
        for (double *row = q + from; row < q + (size_t)d * (size_t)r; row += r)
            for (int c = 0; c < n; c++) row[c] *= largest[c];
    }
}

uint64_t exf_basis_bytes(int r, int d, int helpers)
{
    uint64_t k = (uint64_t)columns_for(r, d), n = (uint64_t)(helpers < PARTS ? helpers : PARTS), width = (uint64_t)d;
    return sizeof(double) * (width + n * ROWS * (width + k) + (1 + PARTS) * width * k);
}

exf_code exf_basis_find(double *q, int r, const float *x, size_t n, int d, int centred, uint64_t seed, uint64_t stream,
                        int helpers, exf_err *err)
{
    search s = {.x = x, .n = n, .d = d, .k = columns_for(r, d), .n_helpers = helpers < PARTS ? helpers : PARTS};
    exf_code rc;
    size_t width = (size_t)d, columns = (size_t)s.k, at_once = (size_t)s.n_helpers * ROWS;
    EXF_TRY(exf_mem_new(&s.mean, width, sizeof *s.mean, "basis", err));
    EXF_TRY(exf_mem_new(&s.rows, at_once * width, sizeof *s.rows, "basis", err));
    EXF_TRY(exf_mem_new(&s.image, at_once * columns, sizeof *s.image, "basis", err));
    EXF_TRY(exf_mem_new(&s.g, width * columns, sizeof *s.g, "basis", err));
    EXF_TRY(exf_mem_new(&s.next, PARTS * width * columns, sizeof *s.next, "basis", err));
    for (size_t i = 0; centred && i < n; i++)
        for (size_t j = 0; j < width; j++) s.mean[j] += (double)x[i * width + j];
    for (size_t j = 0; n && j < width; j++) s.mean[j] /= (double)n;
    start_columns(s.g, d, s.k, seed, stream);
    EXF_TRY(exf_linalg_orthonormalize(s.g, d, s.k, err));
    for (int i = 0; n && i < ITERATIONS; i++) { /* g becomes orth(X' X g) */
        EXF_TRY(add_parts(&s, 0, s.g, width * columns, err));
        EXF_TRY(exf_linalg_orthonormalize(s.g, d, s.k, err));
    }
    EXF_TRY(order_columns(&s, q, r, err));
    choose_signs(q, r, d);
out:
    exf_mem_free(s.mean);
    exf_mem_free(s.rows);
    exf_mem_free(s.image);
    exf_mem_free(s.g);
    exf_mem_free(s.next);
    return rc;
}

/* ---- of rows in GPU memory --------------------------------------------------------------------------- */

/* Lists the arrays with their sizes: into s, or, with s NULL, their bytes alone. */
static exf_code allocate_arrays(exf_device_basis *s, uint64_t *bytes, size_t h, size_t k, exf_err *err)
{
    exf_device_basis none = {.b = NULL}, *o = s ? s : &none;
    const struct {
        void *out;
        size_t n, size;
    } all[] = {{&o->rows, EXF_RESIDUAL_ROWS * h, sizeof *o->rows},
               {&o->product, h * h, sizeof *o->product},
               {&o->gram, h * h, sizeof *o->gram},
               {&o->sum, h, sizeof *o->sum},
               {&o->start, h * k, sizeof *o->start},
               {&o->subspace, h * k, sizeof *o->subspace},
               {&o->image, h * k, sizeof *o->image},
               {&o->small, k * k, sizeof *o->small},
               {&o->factor, k * k, sizeof *o->factor},
               {&o->ridge, 1, sizeof *o->ridge}};
    exf_code rc = EXF_OK;
    *bytes = 0;
    for (size_t i = 0; rc == EXF_OK && i < sizeof all / sizeof *all; i++) {
        *bytes += (uint64_t)all[i].n * all[i].size;
        if (s) rc = s->b->alloc(all[i].out, all[i].n, all[i].size, "basis", err);
    }
    return rc;
}

uint64_t exf_device_basis_bytes(int d_model, int directions)
{
    uint64_t bytes = 0;
    exf_err none;
    exf_code rc = allocate_arrays(NULL, &bytes, (size_t)d_model, (size_t)columns_for(directions, d_model), &none);
    return rc == EXF_OK ? bytes : 0;
}

exf_code exf_device_basis_open(exf_device_basis *s, const exf_backend *b, int d_model, int directions, uint64_t seed, exf_err *err)
{
    size_t h = (size_t)d_model, k = (size_t)columns_for(directions, d_model);
    uint64_t bytes;
    exf_code rc;
    *s = (exf_device_basis){.b = b, .d_model = d_model, .directions = directions, .columns = (int)k, .seed = seed};
    EXF_TRY(allocate_arrays(s, &bytes, h, k, err));
    EXF_TRY(b->gpu->alloc_staging((void *)&s->host, (k * k + h * k) * sizeof *s->host, "basis", err));
out:
    return rc;
}

void exf_device_basis_free(exf_device_basis *s)
{
    void *all[] = {s->rows, s->product, s->gram, s->sum, s->start, s->subspace, s->image, s->small, s->factor, s->ridge};
    for (size_t i = 0; s->b && i < sizeof all / sizeof *all; i++) s->b->free(all[i]);
    if (s->b) s->b->gpu->free_staging(s->host);
    memset(s, 0, sizeof *s);
}

/* Sends the columns that every search starts from, once. */
static void send_start(exf_device_basis *s, exf_queue *q)
{
    size_t n = (size_t)s->d_model * (size_t)s->columns, k = (size_t)s->columns;
    double *host = s->host + k * k;
    if (s->started) return;
    start_columns(host, s->d_model, s->columns, s->seed, 0);
    s->b->upload(q, s->start, host, n * sizeof *host);
    s->started = 1;
}

/* Rotates the subspace to eigenvectors: those of `small`, which the host finds. */
static exf_code rotate(exf_device_basis *s, double *basis, exf_queue *q, const exf_subspace_call *c, exf_err *err)
{
    size_t h = (size_t)s->d_model, k = (size_t)s->columns, r = (size_t)s->directions;
    double *small = s->host, *to = s->host + k * k, *value = NULL;
    exf_code rc;
    s->b->copy(q, small, s->small, k * k * sizeof *small);
    EXF_TRY(s->b->finish(q, err));
    for (size_t i = 0; i < k * k; i++)
        if (!isfinite(small[i])) {
            rc = exf_fail(err, EXF_NUMERIC, "the second moments of the rows that a basis is made from are not finite");
            goto out;
        }
    EXF_TRY(exf_mem_new(&value, k, sizeof *value, "basis", err));
    EXF_TRY(exf_linalg_eigen(small, value, s->columns, err));
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < r; j++) to[i * r + j] = small[i * k + j];
    s->b->copy(q, s->factor, to, k * r * sizeof *to);
    s->b->gpu->subspace_rotate(q, c, s->factor, s->directions);
    s->b->copy(q, to, s->image, h * r * sizeof *to);
    EXF_TRY(s->b->finish(q, err));
    memcpy(basis, to, h * r * sizeof *to);
    choose_signs(basis, s->directions, s->d_model);
out:
    exf_mem_free(value);
    return rc;
}

exf_code exf_device_basis_find(exf_device_basis *s, double *basis, exf_queue *q, exf_residual_call c, size_t n, int about_mean,
                               exf_err *err)
{
    exf_subspace_call to = {.d_model = s->d_model, .columns = s->columns, .n = (int64_t)n, .gram = s->gram,
                            .sum = about_mean ? s->sum : NULL, .start = s->start, .subspace = s->subspace, .image = s->image,
                            .small = s->small, .factor = s->factor, .ridge = s->ridge};
    c.d_model = s->d_model;
    c.rows = s->rows;
    c.product = s->product;
    c.gram = s->gram;
    c.sum = to.sum ? s->sum : NULL;
    send_start(s, q);
    s->b->gpu->residual_moments(q, &c);
    s->b->gpu->subspace_iterate(q, &to, ITERATIONS);
    return rotate(s, basis, q, &to, err);
}

/* accumulate_basis.c - the low-rank basis of a layer: the leading right singular vectors of its sampled residuals, by
 * randomised subspace iteration (Halko, Martinsson, Tropp: Finding structure with randomness, SIAM Review 53, 2011,
 * algorithm 4.4, on the side of the rows' space, with a Rayleigh-Ritz step). */
#include "accumulate/accumulate_internal.h"

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
    PARTS = 16      /* of the rows, added up separately: the same for any number of threads */
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

int exf_basis_columns(int r, int d)
{
    return r + EXTRA < d ? r + EXTRA : d;
}

void exf_basis_start(double *g, int d, int k, uint64_t seed, uint64_t stream)
{
    for (size_t i = 0; i < (size_t)d * (size_t)k; i++) g[i] = (double)exf_rng_below(1u << 20, seed, stream, i) / (1u << 19) - 1;
}

/* Walks along rows, as q lies in memory: up to SIGNED columns at a time. */
void exf_basis_choose_signs(double *q, int r, int d)
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
    uint64_t k = (uint64_t)exf_basis_columns(r, d), n = (uint64_t)(helpers < PARTS ? helpers : PARTS), width = (uint64_t)d;
    return sizeof(double) * (width + n * ROWS * (width + k) + (1 + PARTS) * width * k);
}

exf_code exf_basis_find(double *q, int r, const float *x, size_t n, int d, int centred, uint64_t seed, uint64_t stream,
                        int helpers, exf_err *err)
{
    search s = {.x = x, .n = n, .d = d, .k = exf_basis_columns(r, d), .n_helpers = helpers < PARTS ? helpers : PARTS};
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
    exf_basis_start(s.g, d, s.k, seed, stream);
    EXF_TRY(exf_linalg_orthonormalize(s.g, d, s.k, err));
    for (int i = 0; n && i < EXF_BASIS_ITERATIONS; i++) { /* g becomes orth(X' X g) */
        EXF_TRY(add_parts(&s, 0, s.g, width * columns, err));
        EXF_TRY(exf_linalg_orthonormalize(s.g, d, s.k, err));
    }
    EXF_TRY(order_columns(&s, q, r, err));
    exf_basis_choose_signs(q, r, d);
out:
    exf_mem_free(s.mean);
    exf_mem_free(s.rows);
    exf_mem_free(s.image);
    exf_mem_free(s.g);
    exf_mem_free(s.next);
    return rc;
}

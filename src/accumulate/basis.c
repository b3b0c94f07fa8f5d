/* basis.c - see basis.h. */
#include "accumulate/basis.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/linalg.h"

#include <math.h>
#include <string.h>

/* Directions beyond those wanted, how often the subspace is turned towards the leading
 * ones, and rows that are widened at a time. */
enum { SPARE = 16, TURNS = 6, ROWS = 512 };

typedef struct {
    const float *x;
    size_t n;
    int d, k;
    double *mean;  /* [d] */
    double *rows;  /* [ROWS, d] centred */
    double *image; /* [ROWS, k] */
    double *g;     /* [d, k] the subspace */
    double *next;  /* [d, k] */
} search;

static exf_code open_search(search *s, exf_err *err)
{
    exf_code rc;
    size_t d = (size_t)s->d, k = (size_t)s->k;
    EXF_TRY(exf_mem_new(&s->mean, d, sizeof *s->mean, "basis", err));
    EXF_TRY(exf_mem_new(&s->rows, ROWS * d, sizeof *s->rows, "basis", err));
    EXF_TRY(exf_mem_new(&s->image, ROWS * k, sizeof *s->image, "basis", err));
    EXF_TRY(exf_mem_new(&s->g, d * k, sizeof *s->g, "basis", err));
    EXF_TRY(exf_mem_new(&s->next, d * k, sizeof *s->next, "basis", err));
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

/* Rows [at, at + m) less the mean, and their image under g. */
static int load_rows(search *s, size_t at)
{
    size_t d = (size_t)s->d, m = s->n - at < ROWS ? s->n - at : ROWS;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < d; j++) s->rows[i * d + j] = (double)s->x[(at + i) * d + j] - s->mean[j];
    exf_linalg_xw(s->image, s->k, s->rows, s->d, s->g, s->k, (int)m, s->k, s->d, 1, 0);
    return (int)m;
}

/* g = orth(X' X g). */
static exf_code turn(search *s, exf_err *err)
{
    size_t cells = (size_t)s->d * (size_t)s->k;
    memset(s->next, 0, cells * sizeof *s->next);
    for (size_t at = 0; at < s->n; at += ROWS) {
        int m = load_rows(s, at);
        exf_linalg_xtw(s->next, s->k, s->rows, s->d, s->image, s->k, s->d, s->k, m, 1, 1);
    }
    memcpy(s->g, s->next, cells * sizeof *s->g);
    return exf_linalg_orthonormalize(s->g, s->d, s->k, err);
}

/* The directions of g by falling singular value into q. */
static exf_code order(search *s, double *q, int r, exf_err *err)
{
    double *gram = NULL, *value = NULL;
    int k = s->k;
    exf_code rc;
    EXF_TRY(exf_mem_new(&gram, (size_t)k * (size_t)k, sizeof *gram, "basis", err));
    EXF_TRY(exf_mem_new(&value, (size_t)k, sizeof *value, "basis", err));
    for (size_t at = 0; at < s->n; at += ROWS) {
        int m = load_rows(s, at);
        exf_linalg_xtw(gram, k, s->image, k, s->image, k, k, k, m, 1, 1);
    }
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

exf_code exf_basis_find(double *q, int r, const float *x, size_t n, int d, uint64_t seed, uint64_t stream, exf_err *err)
{
    search s = {.x = x, .n = n, .d = d, .k = r + SPARE < d ? r + SPARE : d};
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

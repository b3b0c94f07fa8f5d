/* symmetric_cpu.c - eigenvalues of symmetric matrices, and a solve, with equal bits on every machine; see symmetric.h. */
#include "kernels/linear/symmetric.h"

#include "base/mem.h"
#include "kernels/rows/simd.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- vectors of doubles ---------------------------------------------------------------------- */

/* Returns <a,b>, in eight lanes of fixed order. */
EXF_SIMD_INLINE double dot(const double *a, const double *b, int n)
{
    double lane[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) lane[j] += a[i + j] * b[i + j];
    for (int j = 0; i + j < n; j++) lane[j] += a[i + j] * b[i + j];
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* a += factor b */
EXF_SIMD_INLINE void add_scaled(double *restrict a, double factor, const double *restrict b, int n)
{
    for (int i = 0; i < n; i++) a[i] += factor * b[i];
}

/* (a, b) := (c a + s b, c b - s a) */
EXF_SIMD_CLONES static void rotate(double *restrict a, double *restrict b, double c, double s, int n)
{
    for (int i = 0; i < n; i++) {
        double x = a[i], y = b[i];
        a[i] = c * x + s * y;
        b[i] = c * y - s * x;
    }
}

/* ---- to a tridiagonal matrix ------------------------------------------------------------------- */

/* A = Q T Q', Q = H_0 .. H_{n-3}, H_k = I - beta_k v_k v_k'.  Row k of a keeps v_k from column k + 1 on. */
typedef struct {
    int n;
    double *a;      /* [n, n] spent */
    double *beta;   /* [n] 0: H_k is I */
    double *d, *e;  /* [n] T's diagonal; e[k]: beside it, of k and k + 1 */
    double *p;      /* [n] work */
} tridiagonal;

/* Makes row k + 1 .. of the remaining matrix, of which x [m] is the first column, one of a single entry: v in place of x. */
static double reflect(double *x, int m, double *beta)
{
    double tail = m > 1 ? dot(x + 1, x + 1, m - 1) : 0, first = x[0];
    *beta = 0;
    if (tail == 0) return first;
    double norm = sqrt(first * first + tail), to = first > 0 ? -norm : norm;
    x[0] = first - to;
    *beta = 2 / (x[0] * x[0] + tail);
    return to;
}

/* Applies H_k from both sides to the rest of the matrix: A -= v w' + w v'. */
EXF_SIMD_CLONES static void apply_reflection(tridiagonal *t, int k)
{
    int n = t->n, m = n - k - 1;
    double *v = t->a + (size_t)k * (size_t)n + k + 1, *w = t->p, beta = t->beta[k];
    double *rest = t->a + (size_t)(k + 1) * (size_t)n + k + 1;
    for (int i = 0; i < m; i++) w[i] = beta * dot(rest + (size_t)i * (size_t)n, v, m);
    add_scaled(w, -0.5 * beta * dot(w, v, m), v, m);
    for (int i = 0; i < m; i++) {
        double *row = rest + (size_t)i * (size_t)n, vi = v[i], wi = w[i];
        for (int j = 0; j < m; j++) row[j] -= vi * w[j] + wi * v[j];
    }
}

/* z := Q', its rows of unit length. */
EXF_SIMD_CLONES static void accumulate(double *z, const tridiagonal *t)
{
    int n = t->n;
    memset(z, 0, (size_t)n * (size_t)n * sizeof *z);
    for (int i = 0; i < n; i++) z[(size_t)i * (size_t)n + (size_t)i] = 1;
    for (int k = n - 2; k >= 0; k--) {
        const double *v = t->a + (size_t)k * (size_t)n + k + 1;
        if (t->beta[k] == 0) continue;
        for (int i = k + 1; i < n; i++) {
            double *row = z + (size_t)i * (size_t)n + k + 1;
            add_scaled(row, -t->beta[k] * dot(row, v, n - k - 1), v, n - k - 1);
        }
    }
}

/* ---- its eigenvalues ----------------------------------------------------------------------------- */

/* Returns sqrt(a^2 + b^2), scaled so that neither square overflows. */
static double length(double a, double b)
{
    double x = fabs(a), y = fabs(b), large = x > y ? x : y, small = x > y ? y : x, r = large > 0 ? small / large : 0;
    return large * sqrt(1 + r * r);
}

/* One implicit QL sweep of rows l .. m; z NULL: no vectors. */
static void sweep(tridiagonal *t, int l, int m, double *z)
{
    double *d = t->d, *e = t->e, g = (d[l + 1] - d[l]) / (2 * e[l]), r = length(g, 1), s = 1, c = 1, p = 0;
    size_t n = (size_t)t->n;
    g = d[m] - d[l] + e[l] / (g + (g < 0 ? -r : r));
    for (int i = m - 1; i >= l; i--) {
        double f = s * e[i], b = c * e[i];
        r = length(f, g);
        e[i + 1] = r;
        if (r == 0) { /* split: begin anew */
            d[i + 1] -= p;
            e[m] = 0;
            return;
        }
        s = f / r;
        c = g / r;
        g = d[i + 1] - p;
        r = (d[i] - g) * s + 2 * c * b;
        p = s * r;
        d[i + 1] = g + p;
        g = c * r - b;
        if (z) rotate(z + (size_t)(i + 1) * n, z + (size_t)i * n, c, s, t->n);
    }
    d[l] -= p;
    e[l] = g;
    e[m] = 0;
}

/* d becomes the eigenvalues, in no order; the rows of z, if any, their vectors. */
static exf_code find_eigenvalues(tridiagonal *t, double *z, exf_err *err)
{
    enum { MOST_SWEEPS = 60 };
    for (int l = 0; l < t->n; l++)
        for (int tries = 0;; tries++) {
            int m = l;
            while (m + 1 < t->n && !(fabs(t->e[m]) <= DBL_EPSILON * (fabs(t->d[m]) + fabs(t->d[m + 1])))) m++;
            if (m == l) break;
            if (tries == MOST_SWEEPS)
                return exf_fail(err, EXF_INTERNAL, "the eigenvalues of a symmetric matrix of %d rows do not converge", t->n);
            sweep(t, l, m, z);
        }
    return EXF_OK;
}

static double least_of(const double *v, int n)
{
    double least = v[0];
    for (int i = 1; i < n; i++) least = v[i] < least ? v[i] : least;
    return least;
}

static void free_tridiagonal(tridiagonal *t)
{
    exf_mem_free(t->a);
    exf_mem_free(t->beta);
    exf_mem_free(t->d);
    exf_mem_free(t->e);
    exf_mem_free(t->p);
}

static exf_code begin(tridiagonal *t, const double *a, int n, exf_err *err)
{
    size_t rows = (size_t)n;
    exf_code rc;
    *t = (tridiagonal){.n = n};
    for (size_t i = 0; i < rows * rows; i++)
        if (!isfinite(a[i]))
            return exf_fail(err, EXF_NUMERIC, "row %zu, column %zu of a symmetric matrix is %g, expected a finite number", i / rows,
                            i % rows, a[i]);
    EXF_TRY(exf_mem_new(&t->a, rows * rows, sizeof *t->a, "eigenvalues", err));
    memcpy(t->a, a, rows * rows * sizeof *a);
    EXF_TRY(exf_mem_new(&t->beta, rows, sizeof *t->beta, "eigenvalues", err));
    EXF_TRY(exf_mem_new(&t->d, rows, sizeof *t->d, "eigenvalues", err));
    EXF_TRY(exf_mem_new(&t->e, rows, sizeof *t->e, "eigenvalues", err));
    EXF_TRY(exf_mem_new(&t->p, rows, sizeof *t->p, "eigenvalues", err));
    for (int k = 0; k < n; k++) {
        double *row = t->a + (size_t)k * rows;
        t->d[k] = row[k];
        if (k + 1 < n) t->e[k] = reflect(row + k + 1, n - k - 1, &t->beta[k]);
        if (k + 1 < n && t->beta[k] != 0) apply_reflection(t, k);
    }
out:
    if (rc != EXF_OK) free_tridiagonal(t);
    return rc;
}

exf_code exf_symmetric_least(double *value, const double *a, int n, exf_err *err)
{
    tridiagonal t;
    exf_code rc = begin(&t, a, n, err);
    if (rc != EXF_OK) return rc;
    rc = find_eigenvalues(&t, NULL, err);
    *value = least_of(t.d, n);
    free_tridiagonal(&t);
    return rc;
}

/* a += (to - d) v v' of each eigenvalue d below `to`; both triangles get the same bits. */
EXF_SIMD_CLONES static void raise_all(double *a, const double *d, const double *z, int n, double to)
{
    for (int k = 0; k < n; k++) {
        const double *v = z + (size_t)k * (size_t)n;
        if (d[k] < to)
            for (int i = 0; i < n; i++) add_scaled(a + (size_t)i * (size_t)n, (to - d[k]) * v[i], v, i + 1);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) a[(size_t)j * (size_t)n + (size_t)i] = a[(size_t)i * (size_t)n + (size_t)j];
}

exf_code exf_symmetric_raise(double *a, int n, double least, double *before, exf_err *err)
{
    size_t rows = (size_t)n;
    double *z = NULL, *d = NULL, *e = NULL;
    tridiagonal t;
    exf_code rc = begin(&t, a, n, err);
    if (rc != EXF_OK) return rc;
    EXF_TRY(exf_mem_new(&d, rows, sizeof *d, "eigenvalues", err));
    EXF_TRY(exf_mem_new(&e, rows, sizeof *e, "eigenvalues", err));
    memcpy(d, t.d, rows * sizeof *d);
    memcpy(e, t.e, rows * sizeof *e);
    EXF_TRY(find_eigenvalues(&t, NULL, err)); /* without vectors first: most matrices need none */
    *before = least_of(t.d, n);
    if (*before >= least) goto out;
    EXF_TRY(exf_mem_new(&z, rows * rows, sizeof *z, "eigenvectors", err));
    accumulate(z, &t);
    memcpy(t.d, d, rows * sizeof *d);
    memcpy(t.e, e, rows * sizeof *e);
    EXF_TRY(find_eigenvalues(&t, z, err));
    raise_all(a, t.d, z, n, least);
out:
    free_tridiagonal(&t);
    exf_mem_free(z);
    exf_mem_free(d);
    exf_mem_free(e);
    return rc;
}

/* ---- a solve ------------------------------------------------------------------------------------ */

EXF_SIMD_CLONES exf_code exf_symmetric_solve(double *a, double *b, int n, exf_err *err)
{
    size_t rows = (size_t)n;
    for (int i = 0; i < n; i++) { /* L L', row by row */
        double *row = a + (size_t)i * rows;
        for (int j = 0; j < i; j++) row[j] = (row[j] - dot(row, a + (size_t)j * rows, j)) / a[(size_t)j * rows + (size_t)j];
        double pivot = row[i] - dot(row, row, i);
        if (!(pivot > 0) || !isfinite(pivot))
            return exf_fail(err, EXF_NUMERIC, "a symmetric system of %d rows is not positive definite: pivot %d is %g", n, i,
                            pivot);
        row[i] = sqrt(pivot);
        b[i] = (b[i] - dot(row, b, i)) / row[i];
    }
    for (int i = n - 1; i >= 0; i--) {
        b[i] /= a[(size_t)i * rows + (size_t)i];
        for (int j = 0; j < i; j++) b[j] -= a[(size_t)i * rows + (size_t)j] * b[i];
    }
    return EXF_OK;
}

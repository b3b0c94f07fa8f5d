/* accumulate_basis.h - the principal directions of rows: what low-rank sums are over, and the directions of a norm head.  Rows lie
 * in host memory, or in GPU memory, of which nothing but small matrices and the basis itself crosses to the host. */
#ifndef EXF_ACCUMULATE_ACCUMULATE_BASIS_H
#define EXF_ACCUMULATE_ACCUMULATE_BASIS_H
#include "kernels/backend.h"

/* ---- of rows in host memory ---------------------------------------------------------------------------- */

/* Computes q [d, r], r <= d: orthonormal columns, by falling singular value, of the rows x [n, d],
 * less their mean if `centred`; each column's largest element (the first of equals) is positive.
 * Columns beyond the rank of x complete the others.  Computes in double over fixed parts of
 * the rows in order: equal x gives equal bits for any number of helping threads (at least 1). */
exf_code exf_basis_find(double *q, int r, const float *x, size_t n, int d, int centred, uint64_t seed, uint64_t stream,
                        int helpers, exf_err *err) EXF_CHECKED;
/* Returns the bytes of working memory of exf_basis_find(). */
uint64_t exf_basis_bytes(int r, int d, int helpers);
/* ---- of rows in GPU memory ----------------------------------------------------------------------------- */

typedef struct {
    const exf_backend *b;
    int d_model, directions, columns; /* H, r, and k of the subspace: r and some more */
    uint64_t seed;                    /* of the columns that the search starts from */
    int started;                      /* 1: `start` has been sent */
    float *rows, *product;            /* all arrays but host in device memory: scratch of the moments */
    double *gram, *sum;               /* [H, H], [H] */
    double *start, *subspace, *image; /* [H, k] */
    double *small, *factor;           /* [k, k] */
    double *ridge;
    double *host;                     /* staging memory: [k, k] and [H, k] */
} exf_device_basis;

uint64_t exf_device_basis_bytes(int d_model, int directions); /* bytes of device memory */
exf_code exf_device_basis_open(exf_device_basis *s, const exf_backend *b, int d_model, int directions, uint64_t seed,
                               exf_err *err) EXF_CHECKED;
/* Computes basis [H, r] of the rows that c names, as exf_basis_find() does within the rounding of the moments; waits.  Of c the
 * source, target, parts, place, scalar and n are set.  n: rows that are not left out; about_mean: less their mean. */
exf_code exf_device_basis_find(exf_device_basis *s, double *basis, exf_queue *q, exf_residual_call c, size_t n, int about_mean,
                               exf_err *err) EXF_CHECKED;
void exf_device_basis_free(exf_device_basis *s); /* accepts zeroed memory */
#endif

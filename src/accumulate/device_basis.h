/* device_basis.h - the leading eigenvectors of the second moments of rows in device memory: what low-rank sums are over, and the
 * directions of a norm head.  Nothing but small matrices and the basis itself crosses to the host. */
#ifndef EXF_ACCUMULATE_DEVICE_BASIS_H
#define EXF_ACCUMULATE_DEVICE_BASIS_H
#include "kernels/backend.h"

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

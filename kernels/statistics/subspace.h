/* subspace.h - the leading eigenvectors of second moments on a device, by subspace iteration: what a low-rank basis and the
 * directions of a norm head are (docs/method.md, sections 1 and 13).
 *
 * All products are in double.  Columns are made orthonormal by Cholesky factors of their products (Fukaya, Kannan, Nakatsukasa,
 * Yamamoto, Yanagisawa: Shifted Cholesky QR, SIAM J. Sci. Comput. 42, 2020): nothing but products of matrices and one small
 * factorisation, and no number leaves the device until the end.  Equal moments give equal bits on one kind of device. */
#ifndef EXF_KERNELS_SUBSPACE_H
#define EXF_KERNELS_SUBSPACE_H
#include "kernels/operation.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All arrays are in device memory. */
typedef struct {
    int d_model, columns;     /* H; k <= H */
    int64_t n;                /* rows of which the moments are */
    double *gram;             /* [H, H] sum of x'x; overwritten */
    const double *sum;        /* [H] sum of x, where the moments are to be about the mean; NULL: as they are */
    const double *start;      /* [H, k] any columns that are independent */
    double *subspace, *image; /* [H, k] */
    double *small, *factor;   /* [k, k] */
    double *ridge;            /* [1] scratch: what is added to the diagonal */
} exf_subspace_call;

/* Makes `subspace` orthonormal columns whose span is that of gram^iterations start, and `small` their subspace' gram subspace,
 * whose eigenvectors are the rotation to the eigenvectors of gram.  gram gets a multiple of the identity, 1e-12 of its mean
 * diagonal, which changes no eigenvector: where the rows are fewer than k, other columns complete theirs. */
void exf_subspace_iterate_cuda(exf_queue *q, const exf_subspace_call *c, int iterations);
/* Makes image [H, r] = subspace rotation; rotation [k, r] may be `factor`. */
void exf_subspace_rotate_cuda(exf_queue *q, const exf_subspace_call *c, const double *rotation, int r);

#ifdef __cplusplus
}
#endif
#endif

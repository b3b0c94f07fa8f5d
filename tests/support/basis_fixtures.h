/* basis_fixtures.h - how much of rows a basis holds. */
#ifndef EXF_TESTS_BASIS_FIXTURES_H
#define EXF_TESTS_BASIS_FIXTURES_H
#include <math.h>
#include <stddef.h>

/* Returns the energy of rows x [n, d], less their mean, within the columns of q [d, r]. */
static inline double energy_in(const double *q, const float *x, size_t n, int d, int r)
{
    double all = 0;
    for (int c = 0; c < r; c++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < n; i++) {
            double dot = 0;
            for (int k = 0; k < d; k++) dot += (double)x[i * (size_t)d + (size_t)k] * q[k * r + c];
            sum += dot;
            squares += dot * dot;
        }
        all += squares - (n ? sum * sum / (double)n : 0);
    }
    return all;
}

/* Returns the largest distance of q'q [r, r] from the identity. */
static inline double distance_from_orthonormal(const double *q, int d, int r)
{
    double most = 0;
    for (int a = 0; a < r; a++)
        for (int b = 0; b < r; b++) {
            double dot = 0;
            for (int k = 0; k < d; k++) dot += q[k * r + a] * q[k * r + b];
            most = fmax(most, fabs(dot - (a == b)));
        }
    return most;
}
#endif

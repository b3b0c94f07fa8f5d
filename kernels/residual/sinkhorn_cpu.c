/* sinkhorn_cpu.c - see sinkhorn.h. */
#include "kernels/residual/sinkhorn.h"

#include <math.h>

static void softmax_row(double *row, int n, double eps)
{
    double top = row[0], sum = 0;
    for (int k = 1; k < n; k++) top = row[k] > top ? row[k] : top;
    for (int k = 0; k < n; k++) sum += row[k] = exp(row[k] - top);
    for (int k = 0; k < n; k++) row[k] = row[k] / sum + eps;
}

/* Divides n lines by (their sum + eps); lines are `line` apart, a line's elements `step`. */
static void normalise(double *c, int n, int line, int step, double eps)
{
    for (int i = 0; i < n; i++) {
        double sum = eps;
        for (int k = 0; k < n; k++) sum += c[i * line + k * step];
        for (int k = 0; k < n; k++) c[i * line + k * step] /= sum;
    }
}

void exf_sinkhorn_cpu(double *c, int n, int iterations, double eps)
{
    for (int j = 0; j < n; j++) softmax_row(c + j * n, n, eps);
    normalise(c, n, 1, n, eps);
    for (int i = 1; i < iterations; i++) {
        normalise(c, n, n, 1, eps);
        normalise(c, n, 1, n, eps);
    }
}

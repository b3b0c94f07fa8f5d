/* divergence_cpu.c - see divergence.h. */
#include "kernels/statistics/divergence.h"

#include "kernels/rows/simd.h"

#include <math.h>

/* ---- logits ------------------------------------------------------------------------------- */

enum { LANES = 8 };

static double sum_lanes(const double *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

EXF_SIMD_INLINE float largest(const float *x, int n)
{
    float lane[LANES];
    int i = 0;
    for (int j = 0; j < LANES; j++) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 0; i + j < n; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 1; j < LANES; j++) lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    return lane[0];
}

/* Returns log sum_i e^(x_i), and the index of the largest in *top. */
EXF_SIMD_CLONES static double log_sum_exp(const float *x, int n, int *top)
{
    double lane[LANES] = {0};
    float most = largest(x, n);
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += (double)exf_expf(x[i + j] - most);
    for (int j = 0; i + j < n; j++) lane[j] += (double)exf_expf(x[i + j] - most);
    for (*top = 0; *top + 1 < n && x[*top] != most;) ++*top;
    return (double)most + log(sum_lanes(lane));
}

EXF_SIMD_CLONES static void fill_probabilities(float *log_p, float *p, const float *x, int n, float log_sum)
{
    for (int i = 0; i < n; i++) log_p[i] = x[i] - log_sum;
    for (int i = 0; i < n; i++) p[i] = exf_expf(log_p[i]);
}

EXF_SIMD_CLONES static double expected_gap(const float *log_p, const float *p, const float *x, int n, float log_sum)
{
    double lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += (double)(p[i + j] * (log_p[i + j] - (x[i + j] - log_sum)));
    for (int j = 0; i + j < n; j++) lane[j] += (double)(p[i + j] * (log_p[i + j] - (x[i + j] - log_sum)));
    return sum_lanes(lane);
}

void exf_log_softmax_cpu(float *log_p, float *p, const float *logits, int n, int *top)
{
    double log_sum = log_sum_exp(logits, n, top);
    fill_probabilities(log_p, p, logits, n, (float)log_sum);
}

double exf_divergence_cpu(const float *log_p, const float *p, const float *logits, int n, double *log_sum, int *top)
{
    *log_sum = log_sum_exp(logits, n, top);
    return expected_gap(log_p, p, logits, n, (float)*log_sum);
}

/* ---- outputs ------------------------------------------------------------------------------ */

/* Carries the six digits into a 192-bit integer. */
static exf_exact carry_digits(const unsigned long long *digit)
{
    exf_exact out = {{0, 0, 0}};
    int64_t carry = 0;
    for (int i = 0; i < 6; i++) {
        int64_t v = (int64_t)digit[i] + carry;
        uint64_t low = (uint64_t)v & 0xffffffffu;
        out.limb[i / 2] |= low << 32 * (i & 1);
        carry = (v - (int64_t)low) / 4294967296;
    }
    return out;
}

void exf_output_errors_read(const exf_output_errors *sums, exf_exact *error_sq, exf_exact *norm_sq)
{
    exf_exact error = carry_digits(sums->digit[0]), norm = carry_digits(sums->digit[1]);
    exf_exact_merge(error_sq, &error);
    exf_exact_merge(norm_sq, &norm);
}

void exf_row_energies_read(const exf_row_energies *sums, exf_exact *norm_sq, exf_exact *inverse_sq)
{
    exf_exact norm = carry_digits(sums->digit[0]), inverse = carry_digits(sums->digit[1]);
    exf_exact_merge(norm_sq, &norm);
    exf_exact_merge(inverse_sq, &inverse);
}

EXF_SIMD_CLONES double exf_row_energy(const float *row, int n)
{
    return exf_dot(row, row, n);
}

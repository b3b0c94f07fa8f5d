/* naive.c - see naive.h. */
#include "tests/support/naive.h"

#include "base/hash.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"

#include <math.h>

float *naive_floats(size_t n)
{
    return test_memory(n, sizeof(float));
}

double *naive_doubles(size_t n)
{
    return test_memory(n, sizeof(double));
}

float naive_number(uint64_t stream, uint64_t i)
{
    return (float)((double)(int64_t)exf_rng_u64(20, stream, i) * 0x1p-63);
}

float *naive_numbers(size_t n, uint64_t stream, float scale)
{
    float *x = naive_floats(n);
    for (size_t i = 0; i < n; i++) x[i] = scale * naive_number(stream, i);
    return x;
}

double *naive_widened(const float *x, size_t n)
{
    double *y = naive_doubles(n);
    for (size_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

void naive_linear(double *y, const double *x, int ld, const float *w, int rows, int n, int k)
{
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int i = 0; i < k; i++) sum += x[r * (ld ? ld : k) + i] * (double)w[j * k + i];
            y[r * n + j] = sum;
        }
}

void naive_rmsnorm(double *x, int ld, const float *w, int rows, int n, double eps)
{
    for (int r = 0; r < rows; r++) {
        double squares = 0;
        for (int i = 0; i < n; i++) squares += x[r * ld + i] * x[r * ld + i];
        for (int i = 0; i < n; i++) x[r * ld + i] *= (double)w[i] / sqrt(squares / n + eps);
    }
}

double naive_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void naive_rotate(double *x, const exf_rope_shape *s, const float *cosine, const float *sine)
{
    for (int t = 0; t < s->n_tokens; t++)
        for (int h = 0; h < s->n_heads; h++)
            for (int i = 0; i < s->d / 2; i++) {
                double *head = x + t * s->ld + h * s->head_dim + s->offset;
                double *a = s->interleaved ? head + 2 * i : head + i, *b = s->interleaved ? head + 2 * i + 1 : head + i + s->d / 2;
                double co = (double)cosine[t * s->step * (s->d / 2) + i], si = (double)sine[t * s->step * (s->d / 2) + i];
                double u = *a, v = *b;
                *a = s->inverse ? u * co + v * si : u * co - v * si;
                *b = s->inverse ? v * co - u * si : v * co + u * si;
            }
}

static double score(const double *q, const double *k, int d)
{
    double sum = 0;
    for (int i = 0; i < d; i++) sum += q[i] * k[i];
    return sum;
}

void naive_attention(double *out, const double *q, const double *k, const double *v, const exf_attention_shape *s)
{
    double *p = naive_doubles((size_t)s->n_tokens);
    for (int h = 0; h < s->n_heads; h++)
        for (int t = 0, of = h * s->n_kv / s->n_heads; t < s->n_tokens; t++) {
            double top = s->sinks ? (double)s->sinks[h] : -INFINITY, *o = out + t * s->ldo + h * s->dv;
            int from = s->window && t + 1 > s->window ? t + 1 - s->window : 0;
            for (int j = from; j <= t; j++) {
                p[j] = (double)s->scale * score(q + t * s->ldq + h * s->d, k + j * s->ldk + of * s->d, s->d);
                if (s->chosen && !s->chosen[t * s->n_tokens + j]) p[j] = -INFINITY;
                top = fmax(top, p[j]);
            }
            double sum = s->sinks ? exp((double)s->sinks[h] - top) : 0;
            for (int j = from; j <= t; j++) sum += p[j] = exp(p[j] - top);
            for (int i = 0; i < s->dv; i++) o[i] = 0;
            for (int j = from; j <= t; j++)
                for (int i = 0; i < s->dv; i++) o[i] += p[j] / sum * v[j * s->ldv + of * s->dv + i];
        }
    exf_mem_free(p);
}

double naive_distance(const float *a, const double *b, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

void naive_solve(naive_square a, double *x, int n)
{
    for (int c = 0; c < n; c++) {
        int pivot = c;
        for (int r = c + 1; r < n; r++)
            if (fabs(a[r][c]) > fabs(a[pivot][c])) pivot = r;
        for (int k = 0; k < n; k++) {
            double swap = a[c][k];
            a[c][k] = a[pivot][k];
            a[pivot][k] = swap;
        }
        double swap = x[c];
        x[c] = x[pivot];
        x[pivot] = swap;
        for (int r = 0; r < n; r++) {
            double f = r == c ? 0 : a[r][c] / a[c][c];
            for (int k = c; k < n; k++) a[r][k] -= f * a[c][k];
            x[r] -= f * x[c];
        }
    }
    for (int c = 0; c < n; c++) x[c] /= a[c][c];
}

/* Returns 1 if every pivot of g + ridge I, in order, is above 2^-7 of its own diagonal. */
static int is_safe(naive_square g, int n, double ridge)
{
    naive_square a;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) a[i][j] = g[i][j] + (i == j ? ridge : 0);
    for (int c = 0; c < n; c++) {
        if (a[c][c] <= (g[c][c] + ridge) / 128) return 0;
        for (int r = c + 1; r < n; r++)
            for (int k = n - 1; k >= c; k--) a[r][k] -= a[r][c] / a[c][c] * a[c][k];
    }
    return 1;
}

static double mean_diagonal(naive_square g, int n)
{
    double mean = 0;
    for (int i = 0; i < n; i++) mean += g[i][i] / n;
    return mean;
}

double naive_raised(double rho, naive_square g, int n)
{
    double mean = mean_diagonal(g, n);
    while (mean > 0 && !is_safe(g, n, rho * mean)) rho = rho < 1e-3 ? 1e-3 : 2 * rho;
    return rho;
}

void naive_solve_raised(double *x, naive_square g, int n, double rho)
{
    double ridge = naive_raised(rho, g, n) * mean_diagonal(g, n);
    for (int i = 0; i < n; i++) g[i][i] += ridge;
    naive_solve(g, x, n);
}

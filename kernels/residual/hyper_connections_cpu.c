/* hyper_connections_cpu.c - see hyper_connections.h. */
#include "kernels/residual/hyper_connections.h"

#include "kernels/rows/simd.h"

#include <math.h>
#include <stddef.h>

/* Tokens that are mixed at a time: fn is too large for the nearest cache, and is read once for all of them. */
enum { AT_ONCE = 8 };

/* mix [n_tokens, n_mix] from x [n_tokens, n] and fn [n_mix, n]. */
EXF_SIMD_CLONES static void mix_tokens(double *mix, const float *x, int n_tokens, int n, const float *fn, int n_mix,
                                       double norm_eps)
{
    for (int i = 0; i < n_mix; i++)
        for (int t = 0; t < n_tokens; t++) mix[t * n_mix + i] = exf_dot(fn + (size_t)i * (size_t)n, x + (size_t)t * (size_t)n, n);
    for (int t = 0; t < n_tokens; t++) {
        const float *row = x + (size_t)t * (size_t)n;
        double r = 1 / sqrt(exf_dot(row, row, n) / n + norm_eps);
        for (int i = 0; i < n_mix; i++) mix[t * n_mix + i] *= r;
    }
}

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* mix [S] becomes pre. */
static void make_pre(double *mix, const float *base, const float *scale, int streams, double eps)
{
    for (int j = 0; j < streams; j++) mix[j] = sigmoid(mix[j] * (double)scale[0] + (double)base[j]) + eps;
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

void exf_hyper_coefficients_cpu(double *mix, const float *base, const float *scale, int streams, int iterations, double eps)
{
    int s = streams;
    double *c = mix + 2 * s;
    make_pre(mix, base, scale, s, eps);
    for (int j = s; j < 2 * s; j++) mix[j] = 2 * sigmoid(mix[j] * (double)scale[1] + (double)base[j]);
    for (int j = 2 * s; j < (2 + s) * s; j++) mix[j] = mix[j] * (double)scale[2] + (double)base[j];
    for (int j = 0; j < s; j++) {
        double *row = c + j * s, top = row[0], sum = 0;
        for (int k = 1; k < s; k++) top = row[k] > top ? row[k] : top;
        for (int k = 0; k < s; k++) sum += row[k] = exp(row[k] - top);
        for (int k = 0; k < s; k++) row[k] = row[k] / sum + eps;
    }
    normalise(c, s, 1, s, eps);
    for (int i = 1; i < iterations; i++) {
        normalise(c, s, s, 1, eps);
        normalise(c, s, 1, s, eps);
    }
}

EXF_SIMD_CLONES static void gather_streams(float *u, const float *x, const float *pre, int streams, int width)
{
    memset(u, 0, (size_t)width * sizeof *u);
    for (int j = 0; j < streams; j++) {
        const float *row = x + (size_t)j * (size_t)width;
        float weight = pre[j];
        for (int i = 0; i < width; i++) u[i] += weight * row[i];
    }
}

enum { PIECE = 64 }; /* elements of every stream held aside at a time */

/* n elements, at most PIECE, of every stream; x and v point at the first. */
static inline void scatter_piece(float *x, const float *v, const float *post, const float *c, int streams, int width, int n)
{
    float old[EXF_HYPER_STREAMS_MAX][PIECE];
    for (int j = 0; j < streams; j++) memcpy(old[j], x + (size_t)j * (size_t)width, (size_t)n * sizeof *x);
    for (int k = 0; k < streams; k++) {
        float *row = x + (size_t)k * (size_t)width, weight = post[k];
        for (int i = 0; i < n; i++) row[i] = weight * v[i];
        for (int j = 0; j < streams; j++) {
            weight = c[j * streams + k]; /* transposed: the first index is summed */
            for (int i = 0; i < n; i++) row[i] += weight * old[j][i];
        }
    }
}

/* In place; S at most EXF_HYPER_STREAMS_MAX. */
EXF_SIMD_CLONES static void scatter_streams(float *x, const float *v, const float *post, const float *c, int streams, int width)
{
    for (int at = 0; at < width; at += PIECE)
        scatter_piece(x + at, v + at, post, c, streams, width, width - at < PIECE ? width - at : PIECE);
}

enum { MIXING_MAX = (2 + EXF_HYPER_STREAMS_MAX) * EXF_HYPER_STREAMS_MAX };

/* mixing NULL is the head's collapse, which needs pre alone. */
static void open_streams(float *u, float *mixing, const float *x, const exf_hyper_shape *s)
{
    double mix[AT_ONCE * MIXING_MAX];
    float row[MIXING_MAX];
    int n = mixing ? (2 + s->streams) * s->streams : s->streams, width = s->streams * s->width;
    for (int t = 0; t < s->n_tokens; t++, u += s->width, x += width) {
        double *own = mix + t % AT_ONCE * n;
        if (t % AT_ONCE == 0)
            mix_tokens(mix, x, s->n_tokens - t < AT_ONCE ? s->n_tokens - t : AT_ONCE, width, s->fn, n, s->norm_eps);
        if (mixing)
            exf_hyper_coefficients_cpu(own, s->base, s->scale, s->streams, s->iterations, s->eps);
        else
            make_pre(own, s->base, s->scale, s->streams, s->eps);
        for (int i = 0; i < n; i++) row[i] = (float)own[i];
        if (mixing) memcpy(mixing + (size_t)t * (size_t)n, row, (size_t)n * sizeof *row);
        gather_streams(u, x, row, s->streams, s->width);
    }
}

void exf_hyper_pre_cpu(exf_queue *q, float *u, float *mixing, const float *x, const exf_hyper_shape *s)
{
    (void)q;
    open_streams(u, mixing, x, s);
}

void exf_hyper_input_cpu(exf_queue *q, float *u, const float *mixing, const float *x, const exf_hyper_shape *s)
{
    (void)q;
    size_t h = (size_t)s->width, n = (size_t)((2 + s->streams) * s->streams);
    for (size_t t = 0; t < (size_t)s->n_tokens; t++)
        gather_streams(u + t * h, x + t * (size_t)s->streams * h, mixing + t * n, s->streams, s->width);
}

void exf_hyper_head_cpu(exf_queue *q, float *u, const float *x, const exf_hyper_shape *s)
{
    (void)q;
    open_streams(u, NULL, x, s);
}

void exf_hyper_post_cpu(exf_queue *q, float *x, const float *v, const float *mixing, const exf_hyper_shape *s)
{
    (void)q;
    size_t h = (size_t)s->width, n = (size_t)((2 + s->streams) * s->streams);
    for (size_t t = 0; t < (size_t)s->n_tokens; t++) {
        const float *post = mixing + t * n + s->streams, *c = post + s->streams;
        scatter_streams(x + t * (size_t)s->streams * h, v + t * h, post, c, s->streams, s->width);
    }
}

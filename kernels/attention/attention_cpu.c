/* attention_cpu.c - see attention.h. */
#include "kernels/attention/attention.h"

#include "kernels/linear/linear.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/simd.h"

#include <math.h>

/* ---- attention: blocks of query rows, scores by GEMM ------------------------------------------ */

size_t exf_attention_workspace_cpu(const exf_attention_shape *s)
{
    return (size_t)EXF_ATTENTION_ROWS * (size_t)s->n_tokens;
}

/* Rows of scores: row i is token first + i, column j key begin + j. */
typedef struct {
    int n_rows, n_keys, first, begin, window;
    const float *sink; /* of the head, or NULL */
    const unsigned char *chosen; /* of the first row's first key, or NULL */
    int n_tokens;                /* from a row of chosen to the next */
} score_rows;

/* Computes the softmax of rows over the keys that they see; the rest becomes 0. */
EXF_SIMD_CLONES static void softmax_rows(float *scores, const score_rows *s)
{
    for (int i = 0; i < s->n_rows; i++) {
        float *row = scores + (size_t)i * (size_t)s->n_keys;
        int end = s->first + i + 1 - s->begin, from = s->window && end > s->window ? end - s->window : 0;
        const unsigned char *chosen = s->chosen ? s->chosen + (size_t)i * (size_t)s->n_tokens : NULL;
        for (int j = from; chosen && j < end; j++) row[j] = chosen[j] ? row[j] : -INFINITY;
        float top = s->sink ? *s->sink : row[from];
        for (int j = from; j < end; j++) top = row[j] > top ? row[j] : top;
        for (int j = from; j < end; j++) row[j] = exf_expf(row[j] - top);
        double sum = s->sink ? (double)exf_expf(*s->sink - top) : 0;
        for (int j = from; j < end; j++) sum += (double)row[j];
        float inverse = (float)(1.0 / sum);
        for (int j = 0; j < from; j++) row[j] = 0;
        for (int j = from; j < end; j++) row[j] *= inverse;
        for (int j = end; j < s->n_keys; j++) row[j] = 0;
    }
}

void exf_attention_cpu(exf_queue *q, void *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                       float *workspace)
{
    int group = s->n_heads / s->n_kv;
    for (int h = 0; h < s->n_heads; h++) {
        const float *qh = query + (size_t)h * (size_t)s->d, *kh = k + (size_t)(h / group) * (size_t)s->d;
        const float *vh = v + (size_t)(h / group) * (size_t)s->dv;
        float *oh = (float *)out + (size_t)h * (size_t)s->dv;
        for (int first = 0; first < s->n_tokens; first += EXF_ATTENTION_ROWS) {
            int n_rows = s->n_tokens - first < EXF_ATTENTION_ROWS ? s->n_tokens - first : EXF_ATTENTION_ROWS;
            int begin = s->window && first + 1 > s->window ? first + 1 - s->window : 0, n_keys = first + n_rows - begin;
            score_rows rows = {n_rows, n_keys, first, begin, s->window, s->sinks ? s->sinks + h : NULL,
                               s->chosen ? s->chosen + (size_t)first * (size_t)s->n_tokens + begin : NULL, s->n_tokens};
            exf_gemm_xwt_cpu(q, workspace, n_keys, exf_f32(qh + (size_t)first * (size_t)s->ldq), s->ldq,
                             exf_f32(kh + (size_t)begin * (size_t)s->ldk), s->ldk, n_rows, n_keys, s->d, s->scale, 0);
            softmax_rows(workspace, &rows);
            exf_gemm_xw_cpu(q, oh + (size_t)first * (size_t)s->ldo, s->ldo, workspace, n_keys,
                            vh + (size_t)begin * (size_t)s->ldv, s->ldv, n_rows, s->dv, n_keys, 1, 0);
        }
    }
}

/* ---- rotation --------------------------------------------------------------------------------- */

static double frequency(int i, int d, double theta)
{
    return pow(theta, -2.0 * i / d);
}

void exf_rope_frequencies(float *inv_freq, int d, double theta)
{
    for (int i = 0; i < d / 2; i++) inv_freq[i] = (float)frequency(i, d, theta);
}

/* Returns the dimension whose wave turns n times within the original length. */
static double turning_dimension(double n, int d, double theta, double original_length)
{
    const double two_pi = 6.283185307179586;
    return d * log(original_length / (two_pi * n)) / (2 * log(theta));
}

void exf_rope_yarn_frequencies(float *inv_freq, int d, double theta, const exf_yarn *y)
{
    double low = turning_dimension(y->beta_fast, d, theta, y->original_length);
    double high = turning_dimension(y->beta_slow, d, theta, y->original_length);
    if (y->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low < 0 ? 0 : low;
    high = high > d - 1 ? d - 1 : high;
    if (low == high) high += 0.001;
    for (int i = 0; i < d / 2; i++) {
        double f = frequency(i, d, theta), ramp = (i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        inv_freq[i] = (float)(f / y->factor * ramp + f * (1 - ramp));
    }
}

void exf_rope_table(float *cosine, float *sine, const float *inv_freq, int d, int n_positions, double amplitude)
{
    int half = d / 2;
    for (int t = 0; t < n_positions; t++)
        for (int i = 0; i < half; i++) {
            float angle = (float)t * inv_freq[i];
            cosine[(size_t)t * (size_t)half + (size_t)i] = (float)(cos((double)angle) * amplitude);
            sine[(size_t)t * (size_t)half + (size_t)i] = (float)(sin((double)angle) * amplitude);
        }
}

/* Rotates the pairs of a head; partners are `far` floats apart, pairs `next` floats. */
static inline void rotate(float *x, int half, int far, int next, float sign, const float *c, const float *s)
{
    for (int i = 0; i < half; i++) {
        float a = x[i * next], b = x[i * next + far], sine = sign * s[i];
        x[i * next] = a * c[i] - b * sine;
        x[i * next + far] = b * c[i] + a * sine;
    }
}

EXF_SIMD_CLONES void exf_rope_apply_cpu(exf_queue *q, float *x, const exf_rope_shape *s, const float *cosine, const float *sine)
{
    int half = s->d / 2;
    float sign = s->inverse ? -1.0f : 1.0f;
    for (int t = 0; t < s->n_tokens; t++) {
        size_t at = (size_t)t * (size_t)s->step * (size_t)half;
        float *row = x + (size_t)t * (size_t)s->ld;
        if (s->normed) exf_rmsnorm_cpu(q, row, s->head_dim, row, s->head_dim, s->norm, s->n_heads, s->normed, s->eps);
        for (int h = 0; h < s->n_heads; h++) {
            float *head = row + (size_t)h * (size_t)s->head_dim + s->offset;
            if (s->interleaved)
                rotate(head, half, 1, 2, sign, cosine + at, sine + at);
            else
                rotate(head, half, half, 1, sign, cosine + at, sine + at);
        }
    }
}

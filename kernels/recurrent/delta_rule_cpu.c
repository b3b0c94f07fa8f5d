/* delta_rule_cpu.c - see delta_rule.h. */
#include "kernels/recurrent/delta_rule.h"

#include "kernels/rows/simd.h"

#include <math.h>

/* ---- convolution ------------------------------------------------------------------------- */

/* Channels go in blocks of one size, so that inner loops have a known length. */
enum { CHANNELS = 32 };

static inline size_t padded_channels(int channels)
{
    return ((size_t)channels + CHANNELS - 1) / CHANNELS * CHANNELS;
}

size_t exf_causal_conv_workspace_cpu(int channels, int width)
{
    return padded_channels(channels) * (size_t)width;
}

/* sum += tap * x on n channels. */
EXF_SIMD_INLINE void add_tap(float *restrict sum, const float *restrict tap, const float *restrict x, int n)
{
    if (n == CHANNELS)
        for (int c = 0; c < CHANNELS; c++) sum[c] += tap[c] * x[c];
    else
        for (int c = 0; c < n; c++) sum[c] += tap[c] * x[c];
}

EXF_SIMD_CLONES void exf_causal_conv_silu_cpu(exf_queue *q, float *x, int ldx, const float *w, int n_tokens, int channels,
                                              int width, float *workspace)
{
    (void)q;
    size_t ld = padded_channels(channels);
    memset(workspace, 0, ld * (size_t)width * sizeof *workspace); /* taps [width, padded channels], 0 after the last channel */
    for (size_t c = 0; c < (size_t)channels; c++)
        for (size_t j = 0; j < (size_t)width; j++) workspace[j * ld + c] = w[c * (size_t)width + j];
    for (int t = n_tokens - 1; t >= 0; t--) { /* from last to first: a row is unchanged when a later token needs it */
        float *row = x + (size_t)t * (size_t)ldx;
        int past = t < width - 1 ? t : width - 1; /* tokens before this one that the window holds */
        for (int first = 0; first < channels; first += CHANNELS) {
            int n = channels - first < CHANNELS ? channels - first : CHANNELS;
            float sum[CHANNELS] = {0};
            for (int back = past; back >= 0; back--)
                add_tap(sum, workspace + (size_t)(width - 1 - back) * ld + first, row + first - (size_t)back * (size_t)ldx, n);
            for (int c = 0; c < CHANNELS; c++) sum[c] = sum[c] / (1.0f + exf_expf(-sum[c]));
            memcpy(row + first, sum, (size_t)n * sizeof *row);
        }
    }
}

/* ---- gates and norms ---------------------------------------------------------------------- */

void exf_delta_gates_cpu(exf_queue *q, float *a, float *b, const float *a_log, const float *dt_bias, int n_tokens, int n_heads)
{
    (void)q;
    for (int h = 0; h < n_heads; h++) {
        double rate = -exp((double)a_log[h]);
        for (size_t i = (size_t)h; i < (size_t)n_tokens * (size_t)n_heads; i += (size_t)n_heads) {
            double x = (double)a[i] + (double)dt_bias[h];
            a[i] = (float)exp(rate * (x > 20 ? x : log1p(exp(x))));
            b[i] = (float)(1 / (1 + exp(-(double)b[i])));
        }
    }
}

EXF_SIMD_CLONES void exf_l2norm_heads_cpu(exf_queue *q, float *x, int ldx, int n_tokens, int n_heads, int d, double eps,
                                          double scale)
{
    (void)q;
    for (int t = 0; t < n_tokens; t++)
        for (int h = 0; h < n_heads; h++) {
            float *head = x + (size_t)t * (size_t)ldx + (size_t)h * (size_t)d;
            float factor = (float)(scale / sqrt(exf_dot(head, head, d) + eps));
            for (int i = 0; i < d; i++) head[i] *= factor;
        }
}

/* ---- the rule -------------------------------------------------------------------------------
 * The columns of a state do not depend on each other: a block of them goes through the whole sequence while it stays in the
 * first cache.  Blocks have one size, the last one filled up with zeros, so that every inner loop has a known length. */
enum { LANES = 64, ROWS = 4 };

/* Rows of a state, filled up with zeros to a multiple of ROWS. */
static int padded_rows(int key_dim)
{
    return (key_dim + ROWS - 1) / ROWS * ROWS;
}

size_t exf_delta_rule_workspace_cpu(const exf_delta_shape *s)
{
    return (size_t)padded_rows(s->key_dim) * ((size_t)LANES + 2 * (size_t)s->n_tokens);
}

/* qk [T, 2, padded]: q and k of one head, dense, since each column block reads them again. */
static void pack_qk(float *qk, const float *q, const float *k, const exf_delta_shape *s)
{
    size_t n = (size_t)s->key_dim, ld = (size_t)padded_rows(s->key_dim);
    memset(qk, 0, (size_t)s->n_tokens * 2 * ld * sizeof *qk);
    for (size_t t = 0; t < (size_t)s->n_tokens; t++) {
        memcpy(qk + 2 * t * ld, q + t * (size_t)s->ldq, n * sizeof *qk);
        memcpy(qk + (2 * t + 1) * ld, k + t * (size_t)s->ldk, n * sizeof *qk);
    }
}

/* sum += ROWS rows of state, each times its k, in order of row. */
EXF_SIMD_INLINE void read_rows(float *restrict sum, const float *restrict state, const float *k)
{
    for (int j = 0; j < LANES; j++) {
        float y = sum[j];
        y += state[j] * k[0];
        y += state[LANES + j] * k[1];
        y += state[2 * LANES + j] * k[2];
        y += state[3 * LANES + j] * k[3];
        sum[j] = y;
    }
}

/* state <- decay state + k d^T on ROWS rows, and sum += the new rows times q. */
EXF_SIMD_INLINE void write_rows(float *restrict sum, float *restrict state, const float *restrict d, float decay, const float *k,
                              const float *q)
{
    for (int j = 0; j < LANES; j++) {
        float a = decay * state[j] + k[0] * d[j], b = decay * state[LANES + j] + k[1] * d[j];
        float c = decay * state[2 * LANES + j] + k[2] * d[j], e = decay * state[3 * LANES + j] + k[3] * d[j];
        state[j] = a;
        state[LANES + j] = b;
        state[2 * LANES + j] = c;
        state[3 * LANES + j] = e;
        sum[j] = (((sum[j] + a * q[0]) + b * q[1]) + c * q[2]) + e * q[3];
    }
}

/* One token on a block of columns: state [n_rows, LANES], n_rows a multiple of
 * ROWS; x is v before and o after. */
EXF_SIMD_INLINE void step(float *state, float *x, const float *q, const float *k, float decay, float beta, int n_rows)
{
    float known[LANES] = {0}, d[LANES];
    for (int i = 0; i < n_rows; i += ROWS) read_rows(known, state + i * LANES, k + i);
    for (int j = 0; j < LANES; j++) d[j] = beta * (x[j] - decay * known[j]);
    memset(x, 0, sizeof d);
    for (int i = 0; i < n_rows; i += ROWS) write_rows(x, state + i * LANES, d, decay, k + i, q + i);
}

/* n columns of one value head from the first token to the last. */
EXF_SIMD_CLONES static void run_columns(float *out, const float *qk, const float *v, const float *decay, const float *beta, int n,
                                 const exf_delta_shape *s, float *state)
{
    int n_rows = padded_rows(s->key_dim);
    memset(state, 0, (size_t)n_rows * LANES * sizeof *state);
    for (size_t t = 0; t < (size_t)s->n_tokens; t++) {
        const float *q = qk + 2 * t * (size_t)n_rows;
        size_t gate = t * (size_t)s->n_value_heads;
        float x[LANES] = {0};
        memcpy(x, v + t * (size_t)s->ldv, (size_t)n * sizeof *x);
        step(state, x, q, q + n_rows, decay[gate], beta[gate], n_rows);
        memcpy(out + t * (size_t)s->ldo, x, (size_t)n * sizeof *x);
    }
}

void exf_delta_rule_cpu(exf_queue *q, float *out, const float *query, const float *k, const float *v, const float *decay,
                        const float *beta, const exf_delta_shape *s, float *workspace)
{
    (void)q;
    int group = s->n_value_heads / s->n_key_heads;
    float *qk = workspace + (size_t)padded_rows(s->key_dim) * LANES;
    for (int h = 0; h < s->n_value_heads; h++) {
        size_t key = (size_t)(h / group) * (size_t)s->key_dim, value = (size_t)h * (size_t)s->value_dim;
        if (h % group == 0) pack_qk(qk, query + key, k + key, s);
        for (int first = 0; first < s->value_dim; first += LANES) {
            int n = s->value_dim - first < LANES ? s->value_dim - first : LANES;
            size_t at = value + (size_t)first;
            run_columns(out + at, qk, v + at, decay + h, beta + h, n, s, workspace);
        }
    }
}

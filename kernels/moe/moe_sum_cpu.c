/* moe_sum_cpu.c - see moe_sum.h. */
#include "kernels/moe/moe_sum.h"

#include "kernels/rows/simd.h"

/* Sums of a run of columns that stays in the nearest cache. */
enum { COLUMNS = 1024 };

EXF_SIMD_INLINE void add_scaled(float *y, float w, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] += w * x[i];
}

EXF_SIMD_INLINE void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static const float *row_of(exf_matrix m, size_t row, size_t width)
{
    return (const float *)m.p + row * width;
}

/* The row of a slot's term, or NULL. */
static const float *term_of(const exf_moe_sum_call *c, size_t slot, size_t h)
{
    int32_t from = c->source ? c->source[slot] : (int32_t)slot;
    if (from == EXF_SOURCE_NONE) return NULL;
    return from == EXF_SOURCE_OTHER ? row_of(c->other, slot, h) : row_of(c->outputs, (size_t)from, h);
}

/* Columns [at, at + n) of one token. */
EXF_SIMD_INLINE void sum_columns(const exf_moe_sum_call *c, size_t t, size_t at, size_t n)
{
    size_t h = (size_t)c->d_model, top_k = (size_t)c->top_k, to = t * h + at;
    float sum[COLUMNS] = {0};
    if (c->start) memcpy(sum, c->start + to, n * sizeof *sum);
    for (size_t k = 0; c->outputs.p && k < top_k; k++) {
        const float *term = term_of(c, t * top_k + k, h);
        if (term) add_scaled(sum, c->weights ? c->weights[t * top_k + k] : 1.0f, term + at, n);
    }
    if (c->routed) memcpy(c->routed + to, sum, n * sizeof *sum);
    if (c->shared.p) add_scaled(sum, c->shared_weights ? c->shared_weights[t] : 1.0f, row_of(c->shared, t, h) + at, n);
    if (c->block) memcpy(c->block + to, sum, n * sizeof *sum);
    if (c->hidden) add(c->hidden + to, sum, n);
}

EXF_SIMD_CLONES void exf_moe_sum_cpu(const exf_moe_sum_call *c)
{
    size_t h = (size_t)c->d_model;
    for (size_t t = 0; t < (size_t)c->n_tokens; t++)
        for (size_t at = 0; at < h; at += COLUMNS) sum_columns(c, t, at, h - at < COLUMNS ? h - at : COLUMNS);
}

/* moe_cpu.c - the routed experts, the sum of their outputs, and outputs that are run once for two sets of routes; see
 * moe.h.  The router is in moe_router_cpu.c. */
#include "kernels/moe/moe.h"

#include "kernels/linear/linear.h"
#include "kernels/rows/rows.h"
#include "kernels/rows/simd.h"

#include <string.h>

/* ---- experts: one set of products each, in the order of tokens ----------------------------- */

enum { LINE = 64 }; /* bytes of a cache line */

/* Scratch memory of one call, N = T K slots. */
typedef struct {
    float *gathered;  /* [N, H] one expert's tokens, then its outputs */
    float *gate, *up; /* [N, I] */
    int32_t *first;   /* [E + 1] slots [first[e], first[e + 1]) of the lists below are expert e's */
    int32_t *slot;    /* [N] slot numbers, by expert, in order of tokens */
    int32_t *row;     /* [N] the token of each of these slots */
} scratch;

static void *take_bytes(char **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + LINE - 1) / LINE * LINE;
    return p;
}

/* Carves the scratch arrays from memory; returns the bytes they take. */
static size_t carve_scratch(scratch *c, char *memory, const exf_expert_shape *s)
{
    char *at = memory;
    size_t n = (size_t)s->n_tokens * (size_t)s->top_k;
    c->gathered = take_bytes(&at, n * (size_t)s->d_model * sizeof *c->gathered);
    c->gate = take_bytes(&at, n * (size_t)s->d_expert * sizeof *c->gate);
    c->up = take_bytes(&at, n * (size_t)s->d_expert * sizeof *c->up);
    c->first = take_bytes(&at, ((size_t)s->n_experts + 1) * sizeof *c->first);
    c->slot = take_bytes(&at, n * sizeof *c->slot);
    c->row = take_bytes(&at, n * sizeof *c->row);
    return (size_t)(at - memory);
}

size_t exf_experts_workspace_cpu(const exf_expert_shape *s, exf_number x)
{
    (void)x;
    static char origin[1];
    scratch c;
    return carve_scratch(&c, origin, s);
}

/* Returns the number within the call of the expert with this id, or -1. */
static int expert_of(const exf_expert_shape *s, int32_t id)
{
    return id >= s->first && id - s->first < s->n_experts ? id - s->first : -1;
}

/* Sorts the slots by expert, in order of tokens (a counting sort). */
static void sort_slots(const scratch *c, const int32_t *ids, const exf_expert_shape *s)
{
    int n_slots = s->n_tokens * s->top_k;
    memset(c->first, 0, ((size_t)s->n_experts + 1) * sizeof *c->first);
    for (int i = 0; i < n_slots; i++)
        if (expert_of(s, ids[i]) >= 0) c->first[expert_of(s, ids[i]) + 1]++;
    for (int e = 0; e < s->n_experts; e++) c->first[e + 1] += c->first[e];
    for (int i = 0; i < n_slots; i++) {
        int e = expert_of(s, ids[i]);
        if (e < 0) continue;
        int at = c->first[e]++;
        c->slot[at] = i;
        c->row[at] = i / s->top_k;
    }
    for (int e = s->n_experts; e > 0; e--) c->first[e] = c->first[e - 1]; /* each start had moved to the next one's */
    c->first[0] = 0;
}

static exf_matrix matrix_of(exf_matrix m, size_t expert, const exf_expert_shape *s)
{
    return exf_matrix_at(m, expert * (size_t)s->d_model * (size_t)s->d_expert);
}

/* Adds an expert's bias, if there are biases, to n rows. */
static void add_bias(exf_queue *q, float *y, const float *bias, size_t expert, int n, int width)
{
    if (bias) exf_add_bias_cpu(q, y, bias + expert * (size_t)width, n, width);
}

/* Runs one expert on the tokens of its slots. */
static void run_expert(exf_queue *q, float *outputs, const float *x, int e, const scratch *c, const exf_expert_matrices *m,
                       const exf_expert_shape *s)
{
    int from = c->first[e], n = c->first[e + 1] - from, h = s->d_model, width = s->d_expert;
    size_t expert = (size_t)e, elements = (size_t)n * (size_t)width;
    if (n == 0) return;
    exf_gather_rows_cpu(q, c->gathered, x, c->row + from, n, h);
    exf_gemm_xwt_cpu(q, c->gate, width, exf_f32(c->gathered), h, matrix_of(m->gate, expert, s), h, n, width, h, 1, 0);
    exf_gemm_xwt_cpu(q, c->up, width, exf_f32(c->gathered), h, matrix_of(m->up, expert, s), h, n, width, h, 1, 0);
    add_bias(q, c->gate, m->gate_bias, expert, n, width);
    add_bias(q, c->up, m->up_bias, expert, n, width);
    if (s->gelu)
        exf_geglu_cpu(c->gate, c->up, elements);
    else if (s->slope != 0)
        exf_swiglu_scaled_cpu(c->gate, c->up, elements, &(exf_swiglu_form){s->limit, s->slope, s->shift});
    else
        exf_swiglu_cpu(q, c->gate, c->up, elements, s->limit);
    exf_gemm_xwt_cpu(q, c->gathered, h, exf_f32(c->gate), width, matrix_of(m->down, expert, s), width, n, h, width, 1, 0);
    add_bias(q, c->gathered, m->down_bias, expert, n, h);
    exf_scatter_rows_cpu(outputs, c->gathered, c->slot + from, n, h);
}

void exf_experts_cpu(exf_queue *q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m,
                     const exf_expert_shape *s, void *workspace)
{
    float *out = (float *)(uintptr_t)outputs.p;
    size_t h = (size_t)s->d_model, n_slots = (size_t)s->n_tokens * (size_t)s->top_k;
    scratch c;
    carve_scratch(&c, workspace, s);
    sort_slots(&c, ids, s);
    for (size_t i = 0; !s->keep && i < n_slots; i++) /* slots without an expert */
        if (ids[i] < 0) memset(out + i * h, 0, h * sizeof *out);
    for (int e = 0; e < s->n_experts; e++) run_expert(q, out, x.p, e, &c, m, s);
}

/* ---- sums --------------------------------------------------------------------------------- */

/* Columns that are summed at a time: their sums stay in the first-level cache. */
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

/* Columns [at, at + n) of one token. */
EXF_SIMD_INLINE void sum_columns(const exf_moe_sum_call *c, size_t t, size_t at, size_t n)
{
    size_t h = (size_t)c->d_model, top_k = (size_t)c->top_k, to = t * h + at;
    float sum[COLUMNS] = {0};
    if (c->start) memcpy(sum, c->start + to, n * sizeof *sum);
    for (size_t k = 0; c->outputs.p && k < top_k; k++) {
        size_t slot = t * top_k + k;
        int32_t from = c->source ? c->source[slot] : (int32_t)slot;
        if (from == EXF_SOURCE_NONE || (c->ids && c->ids[slot] < 0)) continue;
        const float *term = from == EXF_SOURCE_OTHER ? row_of(c->other, slot, h) : row_of(c->outputs, (size_t)from, h);
        add_scaled(sum, c->weights ? c->weights[slot] : 1.0f, term + at, n);
    }
    if (c->routed) memcpy(c->routed + to, sum, n * sizeof *sum);
    if (c->shared.p) add_scaled(sum, c->shared_weights ? c->shared_weights[t] : 1.0f, row_of(c->shared, t, h) + at, n);
    if (c->block) memcpy(c->block + to, sum, n * sizeof *sum);
    if (c->hidden) add(c->hidden + to, sum, n);
}

EXF_SIMD_CLONES void exf_moe_sum_cpu(exf_queue *q, const exf_moe_sum_call *c)
{
    (void)q;
    size_t h = (size_t)c->d_model;
    for (size_t t = 0; t < (size_t)c->n_tokens; t++)
        for (size_t at = 0; at < h; at += COLUMNS) sum_columns(c, t, at, h - at < COLUMNS ? h - at : COLUMNS);
}

/* ---- outputs of old routes ------------------------------------------------------------------ */

void exf_reuse_outputs_cpu(exf_queue *q, const exf_reuse_call *c)
{
    (void)q;
    size_t row = (size_t)c->d_model * exf_number_bytes(c->to.number);
    for (int i = 0; i < c->n_tokens * c->top_k; i++) {
        int first = i - i % c->top_k, source = c->wanted[i] < 0 ? EXF_SOURCE_NONE : EXF_SOURCE_OTHER;
        for (int k = first; source == EXF_SOURCE_OTHER && k < first + c->top_k; k++)
            if (c->ran[k] == c->wanted[i]) source = k;
        c->source[i] = source;
        c->missing[i] = source == EXF_SOURCE_OTHER ? c->wanted[i] : -1;
        char *to = c->to.p ? (char *)(uintptr_t)c->to.p + (size_t)i * row : NULL;
        if (to && source == EXF_SOURCE_NONE) memset(to, 0, row);
        if (to && source >= 0) memcpy(to, (const char *)c->from.p + (size_t)source * row, row);
    }
}

/* check_moe_block.c - the parts of the MoE block on the CPU: experts, the weighted sum,
 * outputs that routes share, and the exact sums of output errors. */
#include "base/mem.h"
#include "kernels/moe/moe.h"
#include "kernels/rows/rows.h"
#include "kernels/statistics/divergence.h"
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include <math.h>
#include <string.h>

static void *fresh(size_t n, size_t size)
{
    exf_err e;
    void *p;
    ck_ok(exf_mem_new(&p, n, size, "test", &e), e);
    return p;
}

/* ---- experts ------------------------------------------------------------------------ */

/* Operands of one call and its outputs. */
typedef struct {
    exf_expert_shape s;
    float *x, *gate, *up, *down, *outputs, *before; /* before: outputs as they were */
    float *gate_bias, *up_bias, *down_bias; /* NULL: none */
    int32_t *ids;
    size_t slots;
} block;

enum { RANDOM_IDS, ONE_EXPERT, SOME_EMPTY, ALL_EMPTY, ID_KINDS };

static int32_t id_of(int kind, const exf_expert_shape *s, size_t slot)
{
    int32_t any = (int32_t)((naive_number(9, slot) + 1) * 0.5f * (float)s->n_experts) % s->n_experts;
    if (kind == ONE_EXPERT) return s->n_experts - 1;
    if (kind == ALL_EMPTY || (kind == SOME_EMPTY && slot % 3 == 1)) return -1;
    return any;
}

static block make_block(exf_expert_shape s, int ids)
{
    size_t t = (size_t)s.n_tokens, h = (size_t)s.d_model, w = (size_t)s.n_experts * h * (size_t)s.d_expert;
    block b = {.s = s, .slots = t * (size_t)s.top_k};
    b.x = naive_numbers(t * h, 1, 2);
    b.gate = naive_numbers(w, 2, 1);
    b.up = naive_numbers(w, 3, 1);
    b.down = naive_numbers(w, 4, 1);
    b.outputs = naive_numbers(b.slots * h, 5, 1);
    b.before = naive_numbers(b.slots * h, 5, 1);
    b.ids = fresh(b.slots, sizeof *b.ids);
    for (size_t i = 0; i < b.slots; i++) b.ids[i] = id_of(ids, &s, i);
    return b;
}

static void free_block(block *b)
{
    void *all[] = {b->x, b->gate, b->up, b->down, b->outputs, b->before, b->gate_bias, b->up_bias, b->down_bias, b->ids};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
}

/* Integers so small that every product and sum is exact; gates are at least 32, where silu is the identity in float32. */
static void make_small_integers(block *b)
{
    size_t h = (size_t)b->s.d_model, w = (size_t)b->s.n_experts * h * (size_t)b->s.d_expert;
    ck_assert_uint_le(h, 33);
    for (size_t i = 0; i < (size_t)b->s.n_tokens * h; i++) b->x[i] = i % h ? roundf(b->x[i] * 0.5f) : 8;
    for (size_t i = 0; i < w; i++) {
        b->gate[i] = i % h ? roundf(b->gate[i]) : 8;
        b->up[i] = roundf(b->up[i]);
        b->down[i] = roundf(b->down[i]);
    }
}

/* Runs the experts of s on b's tokens; the matrices begin at expert s->first. */
static void run(block *b, const exf_expert_shape *s, const int32_t *ids)
{
    size_t at = (size_t)s->first * (size_t)s->d_model * (size_t)s->d_expert;
    exf_expert_matrices m = {.gate = exf_f32(b->gate + at), .up = exf_f32(b->up + at), .down = exf_f32(b->down + at)};
    if (b->gate_bias) m.gate_bias = b->gate_bias + s->first * s->d_expert;
    if (b->up_bias) m.up_bias = b->up_bias + s->first * s->d_expert;
    if (b->down_bias) m.down_bias = b->down_bias + s->first * s->d_model;
    void *space = fresh(exf_experts_workspace_cpu(s, EXF_NUMBER_F32), 1);
    exf_experts_cpu(NULL, exf_f32(b->outputs), exf_f32(b->x), ids, &m, s, space);
    exf_mem_free(space);
}

/* y [n] = w [n, k] x, and what a float32 accumulation may be off at most: k roundings of sums
 * below `size` = sum of |w||x|, and the operand's own error passed on. */
static void linear(double *y, double *off, const double *x, const double *x_off, const float *w, int n, int k)
{
    for (int i = 0; i < n; i++) {
        double sum = 0, size = 0, passed = 0;
        for (int j = 0; j < k; j++) {
            double v = (double)w[i * k + j];
            sum += v * x[j];
            size += fabs(v * x[j]);
            passed += fabs(v) * x_off[j];
        }
        y[i] = sum;
        off[i] = passed + (k + 1) * 0x1p-24 * (size + passed);
    }
}

/* Adds an expert's bias, if there is one, with the rounding of a sum. */
static void naive_bias(double *y, double *off, const float *bias, size_t expert, int n)
{
    for (int i = 0; bias && i < n; i++) {
        y[i] += (double)bias[expert * (size_t)n + (size_t)i];
        off[i] += 0x1p-24 * (fabs(y[i]) + off[i]);
    }
}

/* One slot by the formula of moe.h in double, and its bound. */
static void naive_expert(double *out, double *off, const block *b, size_t token, size_t expert)
{
    int h = b->s.d_model, width = b->s.d_expert;
    size_t at = expert * (size_t)h * (size_t)width;
    double limit = (double)b->s.limit, *x = naive_widened(b->x + token * (size_t)h, (size_t)h),
           *zero = naive_doubles((size_t)h + 1);
    double *g = naive_doubles((size_t)width), *u = naive_doubles((size_t)width), *g_off = naive_doubles((size_t)width),
           *u_off = naive_doubles((size_t)width);
    linear(g, g_off, x, zero, b->gate + at, width, h);
    linear(u, u_off, x, zero, b->up + at, width, h);
    naive_bias(g, g_off, b->gate_bias, expert, width);
    naive_bias(u, u_off, b->up_bias, expert, width);
    double slope = b->s.slope != 0 ? (double)b->s.slope : 1, shift = b->s.slope != 0 ? (double)b->s.shift : 0;
    for (int i = 0; i < width; i++) {
        if (limit > 0) {
            g[i] = fmin(g[i], limit);
            u[i] = fmax(-limit, fmin(u[i], limit));
        }
        double inner = 0.79788456080286536 * (g[i] + 0.044715 * pow(g[i], 3));
        double silu = b->s.gelu ? g[i] / 2 * (1 + tanh(inner)) : g[i] * naive_sigmoid(slope * g[i]);
        double value = silu * (u[i] + shift), size = fabs(u[i] + shift) + u_off[i];
        double exponent = slope == 1 ? 0 : 0x1p-24 * fabs(slope * g[i] * silu) * size; /* slope g is rounded */
        if (b->s.gelu) exponent = 6 * 0x1p-24 * fabs(g[i]) * size; /* 1 + tanh is off by the rounding of numbers near 1 */
        u_off[i] += shift == 0 ? 0 : 0x1p-24 * size;
        g_off[i] = 1.14 * g_off[i] * size + fabs(silu) * u_off[i] + 8 * 0x1p-24 * fabs(value) + exponent; /* |gelu'| < 1.14 */
        g[i] = value;
    }
    linear(out, off, g, g_off, b->down + at, h, width);
    naive_bias(out, off, b->down_bias, expert, h);
    double *all[] = {x, zero, g, u, g_off, u_off};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
}

/* Slots of the call's experts hold the reference within its bound (or exactly), empty ones 0 or
 * what they held, all others what they held. */
static void assert_outputs(const block *b, const exf_expert_shape *s, int exact)
{
    size_t h = (size_t)s->d_model;
    double *want = naive_doubles(h), *off = naive_doubles(h);
    for (size_t slot = 0; slot < b->slots; slot++) {
        const float *got = b->outputs + slot * h, *before = b->before + slot * h;
        int32_t id = b->ids[slot];
        int mine = id >= s->first && id < s->first + s->n_experts;
        if (mine) naive_expert(want, off, b, slot / (size_t)s->top_k, (size_t)id);
        for (size_t i = 0; i < h; i++) {
            double right = mine ? want[i] : id < 0 && !s->keep ? 0 : (double)before[i], allowed = mine && !exact ? off[i] : 0;
            ck_assert_msg(fabs((double)got[i] - right) <= allowed,
                          "slot %zu, expert %d, column %zu: %.9g, expected %.9g within %.1e", slot, (int)id, i, (double)got[i],
                          right, allowed);
        }
    }
    exf_mem_free(want);
    exf_mem_free(off);
}

static const exf_expert_shape shapes[] = {
    {.n_tokens = 0, .n_experts = 4, .top_k = 2, .d_model = 8, .d_expert = 8},
    {.n_tokens = 1, .n_experts = 1, .top_k = 1, .d_model = 1, .d_expert = 1},
    {.n_tokens = 1, .n_experts = 4, .top_k = 2, .d_model = 7, .d_expert = 5},
    {.n_tokens = 5, .n_experts = 1, .top_k = 1, .d_model = 9, .d_expert = 3},
    {.n_tokens = 17, .n_experts = 8, .top_k = 3, .d_model = 33, .d_expert = 31},
    {.n_tokens = 6, .n_experts = 3, .top_k = 3, .d_model = 16, .d_expert = 8},
    {.n_tokens = 41, .n_experts = 5, .top_k = 1, .d_model = 24, .d_expert = 40},
};

START_TEST(experts_of_small_integers_are_exact)
{
    for (int kind = 0; kind < ID_KINDS; kind++)
        for (int keep = 0; keep < 2; keep++) {
            block b = make_block(shapes[_i], kind);
            b.s.keep = keep;
            make_small_integers(&b);
            run(&b, &b.s, b.ids);
            assert_outputs(&b, &b.s, 1);
            free_block(&b);
        }
}
END_TEST

START_TEST(experts_of_reals_are_near)
{
    for (int kind = 0; kind < ID_KINDS; kind++)
        for (int limited = 0; limited < 2; limited++) {
            block b = make_block(shapes[_i], kind);
            b.s.limit = limited ? 0.75f : 0;
            run(&b, &b.s, b.ids);
            assert_outputs(&b, &b.s, 0);
            free_block(&b);
        }
}
END_TEST

/* Biases, each alone and all, under the scaled SwiGLU and the plain one. */
START_TEST(experts_with_biases_are_near)
{
    size_t e = (size_t)shapes[_i].n_experts, h = (size_t)shapes[_i].d_model, w = (size_t)shapes[_i].d_expert;
    for (int scaled = 0; scaled < 3; scaled++)
        for (int which = 0; which < 8; which++) {
            block b = make_block(shapes[_i], SOME_EMPTY);
            if (which & 1) b.gate_bias = naive_numbers(e * w, 6, 1);
            if (which & 2) b.up_bias = naive_numbers(e * w, 7, 1);
            if (which & 4) b.down_bias = naive_numbers(e * h, 8, 1);
            b.s.slope = scaled ? 1.702f : 0;
            b.s.shift = scaled ? 1 : 0;
            b.s.limit = scaled == 2 ? 0.75f : 0;
            run(&b, &b.s, b.ids);
            assert_outputs(&b, &b.s, 0);
            free_block(&b);
        }
}
END_TEST

START_TEST(experts_with_gelu_are_near)
{
    block b = make_block(shapes[_i], SOME_EMPTY);
    b.s.gelu = 1;
    run(&b, &b.s, b.ids);
    assert_outputs(&b, &b.s, 0);
    free_block(&b);
}
END_TEST

START_TEST(wide_experts_are_near)
{
    exf_expert_shape s = {.n_tokens = 70, .n_experts = 3, .top_k = 2, .d_model = 257, .d_expert = 130};
    block b = make_block(s, SOME_EMPTY);
    run(&b, &b.s, b.ids);
    assert_outputs(&b, &b.s, 0);
    free_block(&b);
}
END_TEST

/* Each part fills the slots of its experts and leaves the others; all parts give the bits of the whole. */
START_TEST(parts_of_the_experts_are_the_whole)
{
    for (int step = 1; step <= 3; step++) {
        block whole = make_block(shapes[4], SOME_EMPTY), parts = make_block(shapes[4], SOME_EMPTY);
        run(&whole, &whole.s, whole.ids);
        for (int first = 0; first < whole.s.n_experts; first += step) {
            exf_expert_shape s = parts.s;
            s.first = first;
            s.n_experts = whole.s.n_experts - first < step ? whole.s.n_experts - first : step;
            s.keep = first > 0;
            memcpy(parts.before, parts.outputs, parts.slots * (size_t)s.d_model * sizeof(float));
            run(&parts, &s, parts.ids);
            assert_outputs(&parts, &s, 0);
        }
        ck_assert_mem_eq(parts.outputs, whole.outputs, whole.slots * (size_t)whole.s.d_model * sizeof(float));
        free_block(&whole);
        free_block(&parts);
    }
}
END_TEST

/* Routes that name one expert several times in a row run it for each slot. */
START_TEST(an_expert_may_repeat_in_a_row)
{
    exf_expert_shape s = {.n_tokens = 4, .n_experts = 3, .top_k = 4, .d_model = 12, .d_expert = 10};
    static const int32_t ids[] = {2, 2, 0, 2, 1, 1, 1, 1, -1, 0, -1, 0, 0, 1, 2, 0};
    block b = make_block(s, RANDOM_IDS);
    memcpy(b.ids, ids, sizeof ids);
    run(&b, &s, b.ids);
    assert_outputs(&b, &s, 0);
    free_block(&b);
}
END_TEST

START_TEST(switch_weights_are_sigmoids)
{
    static const int widths[] = {1, 2, 7, 64, 1025};
    for (int i = 0; i < COUNT(widths); i++)
        for (int rows = 0; rows < 4; rows++) {
            int n = widths[i];
            float *x = naive_numbers((size_t)(rows * n), 11, 6), *w = naive_numbers((size_t)n, 12, 6), out[4] = {7, 7, 7, 7};
            exf_switch_weights_cpu(NULL, out, x, w, rows, n);
            for (int r = 0; r < rows; r++) {
                double dot = 0;
                for (int k = 0; k < n; k++) dot += (double)x[r * n + k] * (double)w[k];
                double want = naive_sigmoid(dot);
                ck_assert_msg(fabs((double)out[r] - want) <= 0x1.1p-24 * want + 0x1p-149, "row %d of %d: %.9g, expected %.9g", r, n,
                              (double)out[r], want);
            }
            ck_assert_float_eq(out[rows], 7);
            exf_mem_free(x);
            exf_mem_free(w);
        }
}
END_TEST

/* ---- the weighted sum ------------------------------------------------------------------- */

/* Bits of a combination; START_IS_ROUTED: start is the array that routed is written to. */
enum { START = 1, START_IS_ROUTED = 2, OUTPUTS = 4, WEIGHTS = 8, SHARED = 16, SHARED_WEIGHTS = 32, ROUTED = 64, BLOCK = 128,
      HIDDEN = 256, SOME = 512, COMBINATIONS = 1024 };
enum { SUM_TOKENS = 3, SUM_K = 3 };

/* The formulas of moe.h, element by element; arrays that are NULL in c are not written. */
static void naive_sum(const exf_moe_sum_call *c)
{
    const float *outputs = c->outputs.p, *shared = c->shared.p;
    for (int t = 0; t < c->n_tokens; t++)
        for (int i = 0; i < c->d_model; i++) {
            int at = t * c->d_model + i;
            float sum = c->start ? c->start[at] : 0;
            for (int k = 0; outputs && k < c->top_k; k++) {
                if (c->ids && c->ids[t * c->top_k + k] < 0) continue;
                float product = (c->weights ? c->weights[t * c->top_k + k] : 1) * outputs[(t * c->top_k + k) * c->d_model + i];
                sum = sum + product;
            }
            if (c->routed) c->routed[at] = sum;
            if (shared) {
                float product = (c->shared_weights ? c->shared_weights[t] : 1) * shared[at];
                sum = sum + product;
            }
            if (c->block) c->block[at] = sum;
            if (c->hidden) c->hidden[at] = c->hidden[at] + sum;
        }
}

static int32_t some_ids[SUM_TOKENS * SUM_K]; /* every third slot has no expert */

/* A call of this combination whose results lie in `results` [3, T, H]: routed, block, hidden. */
static exf_moe_sum_call sum_call(int which, int h, float *results, float *const *in)
{
    size_t n = (size_t)(SUM_TOKENS * h);
    exf_moe_sum_call c = {.n_tokens = SUM_TOKENS, .top_k = SUM_K, .d_model = h};
    if (which & START) c.start = which & START_IS_ROUTED ? results : in[0];
    if (which & OUTPUTS) c.outputs = exf_f32(in[1]);
    if (which & WEIGHTS) c.weights = in[2];
    if (which & SOME) c.ids = some_ids;
    if (which & SHARED) c.shared = exf_f32(in[3]);
    if (which & SHARED_WEIGHTS) c.shared_weights = in[4];
    if (which & ROUTED) c.routed = results;
    if (which & BLOCK) c.block = results + n;
    if (which & HIDDEN) c.hidden = results + 2 * n;
    return c;
}

static const int sum_widths[] = {1, 7, 64, 1023, 1024, 1025, 2051};

START_TEST(sums_are_plain_floats)
{
    int h = sum_widths[_i];
    size_t n = (size_t)(SUM_TOKENS * h);
    float *in[] = {naive_numbers(n, 21, 3), naive_numbers(n * SUM_K, 22, 2), naive_numbers(SUM_TOKENS * SUM_K, 23, 1),
                   naive_numbers(n, 24, 2), naive_numbers(SUM_TOKENS, 25, 1)};
    for (int i = 0; i < SUM_TOKENS * SUM_K; i++) some_ids[i] = i % 3 ? i : -1;
    for (int which = 0; which < COMBINATIONS; which++) {
        if (which & START_IS_ROUTED && !(which & START && which & ROUTED)) continue;
        float *got = naive_numbers(3 * n, 26, 3), *want = naive_numbers(3 * n, 26, 3);
        exf_moe_sum_call c = sum_call(which, h, got, in), same = sum_call(which, h, want, in);
        exf_moe_sum_cpu(NULL, &c);
        naive_sum(&same);
        ck_assert_msg(memcmp(got, want, 3 * n * sizeof *got) == 0, "d_model %d, combination %#x", h, (unsigned)which);
        exf_mem_free(got);
        exf_mem_free(want);
    }
    for (int i = 0; i < COUNT(in); i++) exf_mem_free(in[i]);
}
END_TEST

START_TEST(a_sum_of_no_tokens_writes_nothing)
{
    float x = 3;
    exf_moe_sum_call c = {
        .n_tokens = 0, .top_k = 2, .d_model = 1, .start = &x, .outputs = exf_f32(&x), .routed = &x, .block = &x, .hidden = &x};
    exf_moe_sum_cpu(NULL, &c);
    ck_assert_float_eq(x, 3);
}
END_TEST

/* ---- outputs that routes share -------------------------------------------------------------- */

/* Rows of new outputs are told apart by their first number: slot s of `from` holds 10 + s, of `to` -1. */
START_TEST(worked_example_of_reuse)
{
    enum { T = 3, K = 3, H = 2 };
    static const int32_t ran[T * K] = {5, 5, 2, /**/ 0, -1, 4, /**/ 1, 2, 3},
                                 wanted[T * K] = {2, 5, 7, /**/ -1, 0, 1, /**/ 3, 3, 9};
    static const int32_t want_missing[T * K] = {-1, -1, 7, -1, -1, 1, -1, -1, 9};
    static const int32_t want_source[T * K] = {2, 0, EXF_SOURCE_OTHER, EXF_SOURCE_NONE, 3, EXF_SOURCE_OTHER,
                                               8, 8, EXF_SOURCE_OTHER};
    static const float want[T * K] = {12, 10, -1, 0, 13,
                                      -1, 18, 18, -1}; /* the first of two slots of expert 5; nothing of other tokens */
    float from[T * K * H], to[T * K * H];
    int32_t missing[T * K], source[T * K];
    for (int i = 0; i < T * K * H; i++) {
        from[i] = 10 + (float)(i / H);
        to[i] = -1;
    }
    exf_reuse_call c = {T, K, H, exf_f32(to), exf_f32(from), wanted, ran, source, missing};
    exf_reuse_outputs_cpu(NULL, &c);
    ck_assert_mem_eq(missing, want_missing, sizeof missing);
    ck_assert_mem_eq(source, want_source, sizeof source);
    for (int i = 0; i < T * K * H; i++)
        ck_assert_msg(to[i] == want[i / H], "slot %d: %g, expected %g", i / H, (double)to[i], (double)want[i / H]);
}
END_TEST

/* Rows of either number type and of odd lengths, byte by byte. */
START_TEST(reuse_moves_whole_rows)
{
    static const int widths[] = {1, 3, 8, 129};
    enum { T = 29, K = 4 };
    exf_number number = _i ? EXF_NUMBER_BF16 : EXF_NUMBER_F32;
    for (int w = 0; w < COUNT(widths); w++) {
        size_t row = (size_t)widths[w] * exf_number_bytes(number), bytes = row * T * K;
        unsigned char *from = fresh(bytes, 1), *to = fresh(bytes, 1), *zero = fresh(row, 1), *mark = fresh(row, 1);
        int32_t ran[T * K], wanted[T * K], missing[T * K], source[T * K];
        for (size_t i = 0; i < bytes; i++) from[i] = (unsigned char)(i / row * 31 + i % row * 7 + 1);
        memset(to, 0xa5, bytes);
        memset(mark, 0xa5, row);
        for (int i = 0; i < T * K; i++) {
            ran[i] = (int32_t)(naive_number(31, (uint64_t)i) * 3.5f + 2.5f) - 1;
            wanted[i] = (int32_t)(naive_number(32, (uint64_t)i) * 3.5f + 2.5f) - 1;
        }
        exf_reuse_call c = {T, K, widths[w], {to, number}, {from, number}, wanted, ran, source, missing};
        exf_reuse_outputs_cpu(NULL, &c);
        for (int i = 0; i < T * K; i++) {
            int at = i / K * K, end = at + K;
            while (at < end && ran[at] != wanted[i]) at++;
            int none = wanted[i] < 0, found = !none && at < end;
            ck_assert_mem_eq(to + (size_t)i * row, found ? from + (size_t)at * row : none ? zero : mark, row);
            ck_assert_int_eq(missing[i], none || found ? -1 : wanted[i]);
        }
        void *all[] = {from, to, zero, mark};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
    }
}
END_TEST

/* Reused outputs and computed missing ones are together the outputs of the new routes. */
START_TEST(reuse_and_the_rest_are_the_new_routes)
{
    block ran = make_block(shapes[4], SOME_EMPTY), rest = make_block(shapes[4], RANDOM_IDS),
          whole = make_block(shapes[4], RANDOM_IDS);
    size_t bytes = whole.slots * (size_t)whole.s.d_model * sizeof(float);
    int32_t *missing = fresh(whole.slots, sizeof *missing), *source = fresh(whole.slots, sizeof *source);
    block *all[] = {&ran, &rest, &whole};
    for (int i = 0; i < 3; i++) make_small_integers(all[i]);
    for (size_t i = 0; i < whole.slots; i++) /* other experts in every second slot, and some empty ones */
        whole.ids[i] = rest.ids[i] = i % 7 == 3 ? -1 : i % 2 ? (ran.ids[i] + 3) % whole.s.n_experts : ran.ids[i];
    run(&ran, &ran.s, ran.ids);
    run(&whole, &whole.s, whole.ids);
    exf_reuse_call c = {whole.s.n_tokens, whole.s.top_k, whole.s.d_model, {NULL, EXF_NUMBER_F32}, exf_f32(ran.outputs), rest.ids,
                        ran.ids,          source,        missing};
    exf_reuse_outputs_cpu(NULL, &c);
    rest.s.keep = 1;
    run(&rest, &rest.s, missing);
    float *sum = fresh((size_t)whole.s.n_tokens * (size_t)whole.s.d_model, sizeof *sum),
    *want = fresh((size_t)whole.s.n_tokens * (size_t)whole.s.d_model, sizeof *want);
    exf_moe_sum_call by_source = {.n_tokens = whole.s.n_tokens, .top_k = whole.s.top_k, .d_model = whole.s.d_model,
                                  .outputs = exf_f32(ran.outputs), .source = source, .other = exf_f32(rest.outputs), .routed = sum};
    exf_moe_sum_call plain = {.n_tokens = whole.s.n_tokens, .top_k = whole.s.top_k, .d_model = whole.s.d_model,
                              .outputs = exf_f32(whole.outputs),
                              .routed = want};
    exf_moe_sum_cpu(NULL, &by_source);
    exf_moe_sum_cpu(NULL, &plain);
    ck_assert_mem_eq(sum, want, (size_t)whole.s.n_tokens * (size_t)whole.s.d_model * sizeof *sum);
    c.to = exf_f32(rest.outputs);
    exf_reuse_outputs_cpu(NULL, &c);
    ck_assert_mem_eq(rest.outputs, whole.outputs, bytes);
    void *more[] = {sum, want, source};
    for (int i = 0; i < 3; i++) exf_mem_free(more[i]);
    exf_mem_free(missing);
    for (int i = 0; i < 3; i++) free_block(all[i]);
}
END_TEST

/* ---- sums of output errors ------------------------------------------------------------------- */

/* Digits as a GPU leaves them: not carried, of either sign.  The sums are those of doubles that say the same. */
START_TEST(digits_are_carried)
{
    static const long long digits[][6] = {
        {0}, {1}, {-1}, {5, -3, 0, 7}, {1LL << 45, (1LL << 44) + 3, (1LL << 50) - 1, 1LL << 40, 12345},
        {-(1LL << 45), 1LL << 12, -(1LL << 44), 5},
        {(1LL << 32) - 1, (1LL << 32) - 1, (1LL << 32) - 1, (1LL << 32) - 1, 0},
        {1LL << 32, (1LL << 32) - 1, (1LL << 32) - 1, (1LL << 32) - 1, (1LL << 31) - 2}, {0, 0, 0, 0, 0, 3}, {1, 0, 0, 0, 0, -2},
    };
    const long long *d = digits[_i];
    for (int other = 0; other < COUNT(digits); other++) {
        exf_output_errors sums = {.out_of_range = 0};
        exf_exact error = exf_exact_from(1.5), norm = exf_exact_from(-2.25), want[2] = {error, norm};
        for (int i = 0; i < 6; i++) {
            long long pair[2] = {d[i], digits[other][i]};
            for (int s = 0; s < 2; s++) {
                sums.digit[s][i] = (unsigned long long)pair[s];
                if (i < 5)
                    exf_exact_add(&want[s], ldexp((double)pair[s], 32 * i - 96));
                else
                    want[s].limb[2] += (uint64_t)pair[s] << 32; /* 2^64 on, which no double may add */
            }
        }
        exf_output_errors_read(&sums, &error, &norm);
        ck_assert_mem_eq(&error, &want[0], sizeof error);
        ck_assert_mem_eq(&norm, &want[1], sizeof norm);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, experts_of_small_integers_are_exact, 0, COUNT(shapes));
    tcase_add_loop_test(t, experts_of_reals_are_near, 0, COUNT(shapes));
    tcase_add_loop_test(t, experts_with_biases_are_near, 0, COUNT(shapes));
    tcase_add_loop_test(t, experts_with_gelu_are_near, 0, COUNT(shapes));
    tcase_add_test(t, wide_experts_are_near);
    tcase_add_test(t, parts_of_the_experts_are_the_whole);
    tcase_add_test(t, an_expert_may_repeat_in_a_row);
    tcase_add_test(t, switch_weights_are_sigmoids);
    tcase_add_loop_test(t, sums_are_plain_floats, 0, COUNT(sum_widths));
    tcase_add_test(t, a_sum_of_no_tokens_writes_nothing);
    tcase_add_test(t, worked_example_of_reuse);
    tcase_add_loop_test(t, reuse_moves_whole_rows, 0, 2);
    tcase_add_test(t, reuse_and_the_rest_are_the_new_routes);
    tcase_add_loop_test(t, digits_are_carried, 0, 10);
}

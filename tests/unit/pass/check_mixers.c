/* check_mixers.c - whole mixers against plain double versions, in shapes that no
 * golden has, and what a mixer promises about its scratch and its operations. */
#include "base/mem.h"
#include "pass/mixer.h"
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include <math.h>
#include <string.h>

enum { H = 20, MAX_TOKENS = 140 };
static const int lengths[] = {1, 2, 9, MAX_TOKENS};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

typedef struct {
    exf_architecture a;
    exf_rope_tables rope_tables;
    float *w[EXF_W_COUNT];
    double n_weights; /* elements of the matrices */
    float *input, *out;
    double *want;
    int n_tokens;
} bench;

static void add_weight(bench *b, exf_role role, int rows, int cols)
{
    size_t n = (size_t)rows * (size_t)cols;
    b->w[role] = naive_numbers(n, 100 + (uint64_t)role, cols > 1 ? 2.0f / sqrtf((float)cols) : 1.5f);
    if (cols > 1) b->n_weights += (double)n;
}

static void open_bench(bench *b, int n_tokens)
{
    exf_err err;
    ck_ok(exf_rope_tables_new(&b->rope_tables, &exf_backend_cpu, NULL, &b->a, n_tokens, &err), err);
    b->a.d_model = H;
    b->a.norm_eps = 1e-5;
    b->n_tokens = n_tokens;
    b->input = naive_numbers((size_t)(n_tokens * H), 50, 1);
    b->out = naive_floats((size_t)(n_tokens * H));
    b->want = naive_doubles((size_t)(n_tokens * H));
}

static void close_bench(bench *b)
{
    exf_rope_tables_free(&b->rope_tables, &exf_backend_cpu);
    for (int i = 0; i < EXF_W_COUNT; i++) exf_mem_free(b->w[i]);
    exf_mem_free(b->input);
    exf_mem_free(b->out);
    exf_mem_free(b->want);
}

/* Runs the mixer as the forward does: first to count, then with as much and a guard after. */
static void run_mixer(bench *b, const exf_mixer *m)
{
    enum { GUARD = 16 };
    exf_arena arena = {NULL, 0};
    exf_mixer_call c = {.out = b->out, .input = b->input, .n_tokens = b->n_tokens, .a = &b->a, .w = b->w,
                        .rope_tables = &b->rope_tables, .arena = &arena, .b = &exf_backend_cpu};
    m->run(&c);
    size_t counted = arena.used;
    for (int i = 0; i < b->n_tokens * H; i++) ck_assert_float_eq(b->out[i], 0);
    float *scratch = naive_numbers(counted + GUARD, 51, 1e9f); /* what is left from an earlier layer must not matter */
    arena = (exf_arena){scratch, 0};
    m->run(&c);
    ck_assert_uint_eq(arena.used, counted);
    for (size_t i = counted; i < counted + GUARD; i++) ck_assert_float_eq(scratch[i], 1e9f * naive_number(51, i));
    exf_mem_free(scratch);
}

static void assert_near(const bench *b, const char *name)
{
    double d = naive_distance(b->out, b->want, (size_t)(b->n_tokens * H));
    ck_assert_msg(d < 2e-6, "%s of %d tokens is %.2e off", name, b->n_tokens, d);
}

static exf_rope_shape rotary(const bench *b, int n_heads, int width, int offset)
{
    const exf_rope_spec *r = &b->a.rope[EXF_ROPE_MAIN];
    return (exf_rope_shape){.n_tokens = b->n_tokens, .n_heads = n_heads, .head_dim = width, .ld = n_heads * width, .d = r->dim,
                            .offset = offset, .step = 1, .interleaved = r->interleaved};
}

static void rotate(const bench *b, double *x, int n_heads, int width, int offset)
{
    exf_rope_shape s = rotary(b, n_heads, width, offset);
    naive_rotate(x, &s, b->rope_tables.cosine[EXF_ROPE_MAIN], b->rope_tables.sine[EXF_ROPE_MAIN]);
}

/* ---- grouped-query attention ----------------------------------------------------- */

enum { HEADS = 6, KV = 2, D = 10 };

/* How q and k are normed. */
enum { NOT_NORMED, HEADS_NORMED, ROWS_NORMED };

static void open_attention(bench *b, int n_tokens, int gated, int biased, int normed)
{
    memset(b, 0, sizeof *b);
    b->a.attention = (exf_attention_spec){.n_heads = HEADS, .n_kv_heads = KV, .head_dim = D, .gated = gated};
    b->a.rope[EXF_ROPE_MAIN] = (exf_rope_spec){.dim = 4, .theta = 100};
    open_bench(b, n_tokens);
    int q = HEADS * D * (gated ? 2 : 1);
    add_weight(b, EXF_W_Q, q, H);
    add_weight(b, EXF_W_K, KV * D, H);
    add_weight(b, EXF_W_V, KV * D, H);
    add_weight(b, EXF_W_O, H, HEADS * D);
    if (biased) {
        add_weight(b, EXF_W_Q_BIAS, q, 1);
        add_weight(b, EXF_W_K_BIAS, KV * D, 1);
        add_weight(b, EXF_W_V_BIAS, KV * D, 1);
        add_weight(b, EXF_W_O_BIAS, H, 1);
    }
    if (normed) {
        add_weight(b, EXF_W_Q_NORM, normed == ROWS_NORMED ? q : D, 1);
        add_weight(b, EXF_W_K_NORM, normed == ROWS_NORMED ? KV * D : D, 1);
        b->a.traits[0] = normed == ROWS_NORMED ? EXF_T_QK_NORM_ROW : EXF_T_QK_NORM;
    }
}

/* [T, n] = x w^T + bias. */
static double *projected(const bench *b, const double *x, exf_role w, exf_role bias, int n)
{
    double *y = naive_doubles((size_t)(b->n_tokens * n));
    naive_linear(y, x, 0, b->w[w], b->n_tokens, n, H);
    if (b->w[bias])
        for (int i = 0; i < b->n_tokens * n; i++) y[i] += (double)b->w[bias][i % n];
    return y;
}

/* Norms x, n_heads heads `stride` apart, as the layer says. */
static void naive_qk_norm(const bench *b, double *x, exf_role norm, int n_heads, int stride)
{
    int t = b->n_tokens, whole = (b->a.traits[0] & EXF_T_QK_NORM_ROW) != 0;
    if (b->w[norm] && whole) naive_rmsnorm(x, n_heads * D, b->w[norm], t, n_heads * D, 1e-5);
    if (b->w[norm] && !whole) naive_rmsnorm(x, stride, b->w[norm], t * n_heads, D, 1e-5);
}

static void naive_cut(const bench *b, double *x, int n)
{
    for (int i = 0; b->a.attention.clip > 0 && i < n; i++) x[i] = fmax(-b->a.attention.clip, fmin(b->a.attention.clip, x[i]));
}

static void naive_attention_mixer(bench *b)
{
    int t = b->n_tokens, gated = b->a.attention.gated, stride = gated ? 2 * D : D;
    double *x = naive_widened(b->input, (size_t)(t * H)), *q = projected(b, x, EXF_W_Q, EXF_W_Q_BIAS, HEADS * stride);
    double *k = projected(b, x, EXF_W_K, EXF_W_K_BIAS, KV * D), *v = projected(b, x, EXF_W_V, EXF_W_V_BIAS, KV * D);
    double *packed = naive_doubles((size_t)(t * HEADS * D)), *heads = naive_doubles((size_t)(t * HEADS * D));
    naive_qk_norm(b, q, EXF_W_Q_NORM, HEADS, stride);
    naive_qk_norm(b, k, EXF_W_K_NORM, KV, D);
    naive_cut(b, q, t * HEADS * stride);
    naive_cut(b, k, t * KV * D);
    naive_cut(b, v, t * KV * D);
    rotate(b, q, HEADS, stride, 0);
    rotate(b, k, KV, D, 0);
    for (int i = 0; i < t * HEADS * D; i++) packed[i] = q[i / D * stride + i % D];
    exf_attention_shape s = {.n_tokens = t, .n_heads = HEADS, .n_kv = KV, .d = D, .dv = D, .ldq = HEADS * D, .ldk = KV * D,
                             .ldv = KV * D, .ldo = HEADS * D, .scale = (float)sqrt(0.1), .window = b->a.attention.window[0],
                             .sinks = b->w[EXF_W_HEAD_SINK]};
    naive_attention(heads, packed, k, v, &s);
    for (int i = 0; gated && i < t * HEADS * D; i++) heads[i] *= naive_sigmoid(q[i / D * stride + D + i % D]);
    naive_linear(b->want, heads, 0, b->w[EXF_W_O], t, H, HEADS * D);
    for (int i = 0; b->w[EXF_W_O_BIAS] && i < t * H; i++) b->want[i] += (double)b->w[EXF_W_O_BIAS][i % H];
    double *all[] = {x, q, k, v, packed, heads};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
}

START_TEST(attention_is_the_formula)
{
    bench b;
    open_attention(&b, lengths[_i / 8], _i & 1, _i >> 1 & 1, _i >> 2 & 1);
    run_mixer(&b, exf_mixer_of(EXF_MIXER_ATTENTION));
    naive_attention_mixer(&b);
    assert_near(&b, "attention");
    close_bench(&b);
}
END_TEST

START_TEST(whole_rows_are_normed)
{
    bench b;
    open_attention(&b, lengths[_i / 2], 0, _i & 1, ROWS_NORMED);
    run_mixer(&b, exf_mixer_of(EXF_MIXER_ATTENTION));
    naive_attention_mixer(&b);
    assert_near(&b, "attention with whole rows normed");
    close_bench(&b);
}
END_TEST

/* A window, sinks, or both. */
START_TEST(windows_and_sinks_are_the_layers)
{
    bench b;
    open_attention(&b, lengths[_i / 4], 0, 1, NOT_NORMED);
    if (_i & 1) b.a.attention.window[0] = 5;
    if (_i & 2) add_weight(&b, EXF_W_HEAD_SINK, HEADS, 1);
    run_mixer(&b, exf_mixer_of(EXF_MIXER_ATTENTION));
    naive_attention_mixer(&b);
    assert_near(&b, "attention with windows and sinks");
    double cut = _i & 1 && b.n_tokens > 5 ? 5 * b.n_tokens - 10 : b.n_tokens * (b.n_tokens + 1) / 2;
    ck_assert_double_eq(exf_mixer_attention.flops(&b.a, 0, b.n_tokens), 2 * b.n_tokens * b.n_weights + 4 * HEADS * D * cut);
    close_bench(&b);
}
END_TEST

/* 0.3 is within q and k, normed or not, and within v. */
START_TEST(q_k_and_v_are_cut)
{
    bench b;
    open_attention(&b, lengths[_i / 2], 0, 1, _i & 1 ? ROWS_NORMED : NOT_NORMED);
    naive_attention_mixer(&b);
    double *whole = naive_doubles((size_t)(b.n_tokens * H));
    memcpy(whole, b.want, (size_t)(b.n_tokens * H) * sizeof *whole);
    b.a.attention.clip = 0.3;
    run_mixer(&b, exf_mixer_of(EXF_MIXER_ATTENTION));
    naive_attention_mixer(&b);
    assert_near(&b, "attention with q, k and v cut");
    double off = 0;
    for (int i = 0; i < b.n_tokens * H; i++) off = fmax(off, fabs(b.want[i] - whole[i]));
    ck_assert_msg(off > 1e-2, "the cut changes nothing");
    exf_mem_free(whole);
    close_bench(&b);
}
END_TEST

/* ---- latent attention ----------------------------------------------------------------- */

/* All widths differ, so that none can stand in for another. */
enum { NOPE = 7, ROPE = 6, V = 5, RANK = 11, Q_RANK = 9, MLA_HEADS = 3, DK = NOPE + ROPE, KV_A = RANK + ROPE, KV_B = NOPE + V };

static void open_mla(bench *b, int n_tokens, int q_rank)
{
    memset(b, 0, sizeof *b);
    b->a.mla = (exf_mla_spec){.n_heads = MLA_HEADS, .q_rank = q_rank, .kv_rank = RANK, .nope_dim = NOPE, .rope_dim = ROPE,
                              .v_dim = V,
                              .score_scale = 0.7};
    b->a.rope[EXF_ROPE_MAIN] = (exf_rope_spec){.dim = ROPE, .theta = 100, .interleaved = 1};
    open_bench(b, n_tokens);
    if (q_rank) {
        add_weight(b, EXF_W_Q_A, q_rank, H);
        add_weight(b, EXF_W_Q_A_NORM, q_rank, 1);
        add_weight(b, EXF_W_Q_B, MLA_HEADS * DK, q_rank);
    } else {
        add_weight(b, EXF_W_Q, MLA_HEADS * DK, H);
    }
    add_weight(b, EXF_W_KV_A, KV_A, H);
    add_weight(b, EXF_W_KV_A_NORM, RANK, 1);
    add_weight(b, EXF_W_KV_B, MLA_HEADS * KV_B, RANK);
    add_weight(b, EXF_W_O, H, MLA_HEADS * V);
}

static double *naive_queries(const bench *b, const double *x)
{
    int t = b->n_tokens, rank = b->a.mla.q_rank;
    double *q = naive_doubles((size_t)(t * MLA_HEADS * DK)), *low = naive_doubles((size_t)(t * Q_RANK));
    if (rank) {
        naive_linear(low, x, 0, b->w[EXF_W_Q_A], t, rank, H);
        naive_rmsnorm(low, rank, b->w[EXF_W_Q_A_NORM], t, rank, 1e-5);
        naive_linear(q, low, 0, b->w[EXF_W_Q_B], t, MLA_HEADS * DK, rank);
    } else {
        naive_linear(q, x, 0, b->w[EXF_W_Q], t, MLA_HEADS * DK, H);
    }
    rotate(b, q, MLA_HEADS, DK, NOPE);
    exf_mem_free(low);
    return q;
}

/* Keys [T, heads, nope | rope] and values [T, heads, v], all of them at once. */
static void naive_keys(const bench *b, const double *x, double *k, double *v)
{
    int t = b->n_tokens;
    double *latent = naive_doubles((size_t)(t * KV_A)), *both = naive_doubles((size_t)(t * MLA_HEADS * KV_B));
    naive_linear(latent, x, 0, b->w[EXF_W_KV_A], t, KV_A, H);
    naive_rmsnorm(latent, KV_A, b->w[EXF_W_KV_A_NORM], t, RANK, 1e-5);
    rotate(b, latent, 1, KV_A, RANK);
    naive_linear(both, latent, KV_A, b->w[EXF_W_KV_B], t, MLA_HEADS * KV_B, RANK);
    for (int r = 0; r < t * MLA_HEADS; r++) {
        for (int i = 0; i < NOPE; i++) k[r * DK + i] = both[r * KV_B + i];
        for (int i = 0; i < ROPE; i++) k[r * DK + NOPE + i] = latent[r / MLA_HEADS * KV_A + RANK + i];
        for (int i = 0; i < V; i++) v[r * V + i] = both[r * KV_B + NOPE + i];
    }
    exf_mem_free(latent);
    exf_mem_free(both);
}

static void naive_mla(bench *b)
{
    int t = b->n_tokens;
    double *x = naive_widened(b->input, (size_t)(t * H)), *q = naive_queries(b, x),
           *k = naive_doubles((size_t)(t * MLA_HEADS * DK));
    double *v = naive_doubles((size_t)(t * MLA_HEADS * V)), *heads = naive_doubles((size_t)(t * MLA_HEADS * V));
    naive_keys(b, x, k, v);
    exf_attention_shape s = {.n_tokens = t, .n_heads = MLA_HEADS, .n_kv = MLA_HEADS, .d = DK, .dv = V, .ldq = MLA_HEADS * DK,
                             .ldk = MLA_HEADS * DK, .ldv = MLA_HEADS * V, .ldo = MLA_HEADS * V, .scale = 0.7f};
    naive_attention(heads, q, k, v, &s);
    naive_linear(b->want, heads, 0, b->w[EXF_W_O], t, H, MLA_HEADS * V);
    double *all[] = {x, q, k, v, heads};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) exf_mem_free(all[i]);
}

START_TEST(latent_attention_is_the_formula)
{
    bench b;
    open_mla(&b, lengths[_i / 2], _i % 2 ? Q_RANK : 0);
    run_mixer(&b, exf_mixer_of(EXF_MIXER_MLA));
    naive_mla(&b);
    assert_near(&b, "latent attention");
    close_bench(&b);
}
END_TEST

/* ---- operations -------------------------------------------------------------------------- */

/* Two per weight and token, and two per float of a key and of a value for each pair of tokens that see each other. */
static void assert_flops(bench *b, exf_mixer_kind kind, int floats_per_pair)
{
    double t = b->n_tokens, want = 2 * t * b->n_weights + 2 * floats_per_pair * t * (t + 1) / 2;
    ck_assert_double_eq_tol(exf_mixer_of(kind)->flops(&b->a, 0, t), want, 1e-6 * want);
    close_bench(b);
}

START_TEST(operations_are_counted)
{
    bench b;
    open_attention(&b, lengths[_i], 0, 0, 0);
    assert_flops(&b, EXF_MIXER_ATTENTION, HEADS * 2 * D);
    open_attention(&b, lengths[_i], 1, 0, 0);
    assert_flops(&b, EXF_MIXER_ATTENTION, HEADS * 2 * D);
    open_mla(&b, lengths[_i], 0);
    assert_flops(&b, EXF_MIXER_MLA, MLA_HEADS * (DK + V));
    open_mla(&b, lengths[_i], Q_RANK);
    assert_flops(&b, EXF_MIXER_MLA, MLA_HEADS * (DK + V));
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, attention_is_the_formula, 0, 8 * N_LENGTHS);
    tcase_add_loop_test(t, whole_rows_are_normed, 0, 2 * N_LENGTHS);
    tcase_add_loop_test(t, windows_and_sinks_are_the_layers, 0, 4 * N_LENGTHS);
    tcase_add_loop_test(t, q_k_and_v_are_cut, 0, 2 * N_LENGTHS);
    tcase_add_loop_test(t, latent_attention_is_the_formula, 0, 2 * N_LENGTHS);
    tcase_add_loop_test(t, operations_are_counted, 0, N_LENGTHS);
}

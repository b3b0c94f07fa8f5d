/* check_cuda_recurrent_shapes.c - the causal convolution, gates, norms and the delta rule on the GPU against the CPU's, at every
 * shape and alignment that their kernels choose by: the rule exact where products are, within bounds else; and what is no
 * number stays. */
#include "tests/support/pairwise.h"

#include "base/mem.h"
#include "tests/support/pair_fixtures.h" /* after pairwise.h: its pair is called p */

#include <math.h>

/* ---- the convolution --------------------------------------------------------------------------- */

enum { C_TOKENS, C_CHANNELS, C_WIDTH, C_GAP, C_AT, C_DIMENSIONS };
static const dimension c_dimensions[] = {{"tokens", 1, 1100}, {"channels", 1, 520}, {"width", 1, 6}, {"gap", 0, 5}, {"at", 0, 4}};

static const boundary c_boundaries[] = {
    {"recurrent/causal_conv_cuda.cu", "BATCH", C_TOKENS, 8},
    {"recurrent/causal_conv_cuda.cu", "SHORTEST", C_TOKENS, 16},
    {"recurrent/causal_conv_cuda.cu", "SHORTEST", C_TOKENS, 32},
    {"recurrent/causal_conv_cuda.cu", "SEGMENTS", C_TOKENS, 64 * 16},
    {"recurrent/causal_conv_cuda.cu", "SEGMENTS", C_TOKENS, 64 * 17},
    {"recurrent/causal_conv_cuda.cu", "channels % 4", C_CHANNELS, 4},
    {"recurrent/causal_conv_cuda.cu", "THREADS", C_CHANNELS, 128},
    {"recurrent/causal_conv_cuda.cu", "THREADS", C_CHANNELS, 4 * 128},
    {"recurrent/causal_conv_cuda.cu", "THREADS", C_CHANNELS, 4 * 128 + 4},
    {"recurrent/causal_conv_cuda.cu", "WIDTH", C_WIDTH, 4},
    {"recurrent/causal_conv_cuda.cu", "width == 2", C_WIDTH, 2},
    {"device/cuda_queue.cuh", "ld % 4", C_GAP, 4},
    {"device/cuda_queue.cuh", "% 16", C_AT, 4},
};

static pairwise convolutions;

/* n numbers on both sides: eighths in [-1, 1], so that sums of products are exact. */
static pair_array eighths(size_t n, uint64_t seed)
{
    float *x;
    exf_err err;
    ck_ok(exf_mem_new(&x, n, sizeof *x, "test", &err), err);
    for (size_t i = 0; i < n; i++) x[i] = ((float)exf_rng_below(17, seed, 3, i) - 8) / 8;
    pair_array a = pair_of(&p, x, n);
    exf_mem_free(x);
    return a;
}

START_TEST(convolution_is_near)
{
    const shape *s0 = &convolutions.shapes[_i];
    int t = s0->at[C_TOKENS], n = s0->at[C_CHANNELS], w = s0->at[C_WIDTH], ld = n + s0->at[C_GAP], at = s0->at[C_AT];
    pair_array x = eighths((size_t)(t * ld + at + 8), 1), taps = eighths((size_t)(n * w), 2);
    pair_array space = pair_reals(&p, larger(p.b[0]->causal_conv_workspace(n, w), p.b[1]->causal_conv_workspace(n, w)), 4, 1e30f);
    ON_BOTH(p, B->causal_conv_silu(Q, x.f[s] + at, ld, taps.f[s], t, n, w, space.f[s]));
    pair_near(&x, 1e-6, pairwise_label("causal_conv", c_dimensions, C_DIMENSIONS, s0));
    pair_free(&x);
    pair_free(&taps);
    pair_free(&space);
}
END_TEST

/* ---- gates and norms ------------------------------------------------------------------------------ */

enum { G_TOKENS, G_HEADS, G_DIM, G_GAP, G_AT, G_DIMENSIONS };
static const dimension g_dimensions[] = {{"tokens", 1, 300}, {"heads", 1, 9}, {"width", 1, 260}, {"gap", 0, 5}, {"at", 0, 4}};

static const boundary g_boundaries[] = {
    {"recurrent/delta_rule_cuda.cu", "exf_blocks(total, 8)", G_TOKENS, 8},
    {"recurrent/delta_rule_cuda.cu", "exf_blocks(total, 256)", G_TOKENS, 256},
    {"recurrent/delta_rule_cuda.cu", "exf_blocks(total, 8)", G_HEADS, 8},
    {"recurrent/delta_rule_cuda.cu", "d % 4", G_DIM, 4},
    {"recurrent/delta_rule_cuda.cu", "c += 32", G_DIM, 32},
    {"recurrent/delta_rule_cuda.cu", "d <= 128", G_DIM, 128},
    {"recurrent/delta_rule_cuda.cu", "d <= 128", G_DIM, 132},
    {"device/cuda_queue.cuh", "ld % 4", G_GAP, 4},
    {"device/cuda_queue.cuh", "% 16", G_AT, 4},
};

static pairwise gates;

START_TEST(gates_and_norms_are_near)
{
    const shape *s0 = &gates.shapes[_i];
    int t = s0->at[G_TOKENS], heads = s0->at[G_HEADS], d = s0->at[G_DIM], ld = heads * d + s0->at[G_GAP], at = s0->at[G_AT];
    pair_array x = pair_reals(&p, (size_t)(t * ld + at + 8), 1, 3), a = pair_reals(&p, (size_t)(t * heads + at + 8), 2, 3),
               b = pair_reals(&p, (size_t)(t * heads + at + 8), 3, 3);
    pair_array a_log = pair_reals(&p, (size_t)heads, 4, 2), bias = pair_reals(&p, (size_t)heads, 5, 1);
    ON_BOTH(p, B->l2norm_heads(Q, x.f[s] + at, ld, t, heads, d, 1e-6, 0.25));
    pair_near(&x, 2e-7, pairwise_label("l2norm_heads", g_dimensions, G_DIMENSIONS, s0));
    ON_BOTH(p, B->delta_gates(Q, a.f[s] + at, b.f[s] + at, a_log.f[s], bias.f[s], t, heads));
    pair_near(&a, 1e-7, pairwise_label("decay", g_dimensions, G_DIMENSIONS, s0));
    pair_near(&b, 1e-7, pairwise_label("beta", g_dimensions, G_DIMENSIONS, s0));
    pair_array *all[] = {&x, &a, &b, &a_log, &bias};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}
END_TEST

/* ---- the rule -------------------------------------------------------------------------------------- */

enum { TOKENS, KEY_HEADS, GROUP, KEY_DIM, VALUE_DIM, GAP, AT, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 320},      {"key heads", 1, 3}, {"group", 1, 3}, {"key width", 1, 161},
                                       {"value width", 1, 288}, {"gap", 0, 5},       {"at", 0, 4}};

static const boundary boundaries[] = {
    {"recurrent/delta_prepare.cu", "HALF", TOKENS, 32},
    {"recurrent/delta_rule_internal.cuh", "EXF_DELTA_CHUNK", TOKENS, 64},
    {"recurrent/delta_chunks.cu", "C", TOKENS, 64},
    {"recurrent/delta_halves.cu", "C", TOKENS, 2 * 64}, /* two chunks are under way */
    {"recurrent/delta_prepare.cu", "C", TOKENS, 3 * 64},
    {"recurrent/delta_rule_cuda.cu", "s.n_value_heads / s.n_key_heads", GROUP, 2},
    {"recurrent/delta_prepare.cu", "p.dk == 64", KEY_DIM, 64},
    {"recurrent/delta_rule_internal.cuh", "EXF_DELTA_MOST_KEY", KEY_DIM, 128},
    {"recurrent/delta_chunks.cu", "s->key_dim % 4", KEY_DIM, 124},
    {"recurrent/delta_rule_cuda.cu", "threads, 2 * (size_t)s->key_dim", KEY_DIM, 160}, /* token by token */
    {"recurrent/delta_halves.cu", "c + 4 <= p.s.value_dim", VALUE_DIM, 4},
    {"recurrent/delta_rule_internal.cuh", "EXF_DELTA_COLUMNS", VALUE_DIM, 32},
    {"recurrent/delta_chunks.cu", "COLUMNS", VALUE_DIM, 32},
    {"recurrent/delta_halves.cu", "COLUMNS", VALUE_DIM, 32},
    {"recurrent/delta_prepare.cu", "PIECE", VALUE_DIM, 128},
    {"recurrent/delta_chunks.cu", "THREADS", VALUE_DIM, 256 - 64}, /* U's columns, where W has 64 */
    {"recurrent/delta_prepare.cu", "PIECE", VALUE_DIM, 256},
    {"device/cuda_queue.cuh", "ld % 4", GAP, 4},
    {"device/cuda_queue.cuh", "% 16", AT, 4},
};

/* The CPU takes some milliseconds at most. */
static int is_valid(const shape *s)
{
    return s->at[TOKENS] * s->at[KEY_HEADS] * s->at[GROUP] * s->at[KEY_DIM] / 16 * s->at[VALUE_DIM] < 1 << 18;
}

static pairwise rules;

typedef struct {
    exf_delta_shape shape;
    int at;
    pair_array q, k, v, decay, beta, out, space;
} rule;

static rule rule_of(const shape *s)
{
    int dk = s->at[KEY_HEADS] * s->at[KEY_DIM], heads = s->at[KEY_HEADS] * s->at[GROUP], dv = heads * s->at[VALUE_DIM],
        gap = s->at[GAP];
    return (rule){.shape = {s->at[TOKENS], s->at[KEY_HEADS], heads, s->at[KEY_DIM], s->at[VALUE_DIM], dk + gap, dk + gap, dv + gap,
                            dv + gap},
                  .at = s->at[AT]};
}

/* Floats of rows ld apart, with what stands before and after them. */
static size_t room_of(const rule *r, int ld)
{
    return (size_t)(r->shape.n_tokens * ld + r->at + 8);
}

/* Outputs are 0 before, on both sides; the CPU's are made. */
static void make_outputs(rule *r)
{
    const exf_delta_shape *d = &r->shape;
    int at = r->at;
    float *zeros;
    exf_err err;
    ck_ok(exf_mem_new(&zeros, room_of(r, d->ldo), sizeof *zeros, "test", &err), err);
    r->out = pair_of(&p, zeros, room_of(r, d->ldo));
    r->space = pair_reals(&p, larger(p.b[0]->delta_rule_workspace(d), p.b[1]->delta_rule_workspace(d)), 10, 1e30f);
    p.b[0]->delta_rule(p.q[0], r->out.f[0] + at, r->q.f[0] + at, r->k.f[0] + at, r->v.f[0] + at, r->decay.f[0], r->beta.f[0], d,
                       r->space.f[0]);
    exf_mem_free(zeros);
}

static void run(rule *r, exf_compute compute)
{
    int at = r->at;
    pair_compute(&p, compute);
    p.b[1]->zero(p.q[1], r->out.f[1], r->out.n * 4);
    p.b[1]->delta_rule(p.q[1], r->out.f[1] + at, r->q.f[1] + at, r->k.f[1] + at, r->v.f[1] + at, r->decay.f[1], r->beta.f[1],
                       &r->shape, r->space.f[1]);
}

static void free_rule(rule *r)
{
    pair_array *all[] = {&r->q, &r->k, &r->v, &r->decay, &r->beta, &r->out, &r->space};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}

/* As a layer has them: normalised q and k, gates; rate: a_log of the decay. */
static void make_reals(rule *r, float rate)
{
    exf_delta_shape d = r->shape;
    size_t n = (size_t)(d.n_tokens * d.n_value_heads);
    r->q = pair_reals(&p, room_of(r, d.ldq), 1, 1);
    r->k = pair_reals(&p, room_of(r, d.ldk), 2, 1);
    r->v = pair_reals(&p, room_of(r, d.ldv), 3, 1);
    r->decay = pair_reals(&p, n, 4, 3);
    r->beta = pair_reals(&p, n, 5, 3);
    pair_array a_log = pair_reals(&p, (size_t)d.n_value_heads, 6, rate), bias = pair_reals(&p, (size_t)d.n_value_heads, 7, 1);
    int at = r->at;
    ON_BOTH(p, B->delta_gates(Q, r->decay.f[s], r->beta.f[s], a_log.f[s], bias.f[s], d.n_tokens, d.n_value_heads));
    ON_BOTH(p, B->l2norm_heads(Q, r->q.f[s] + at, d.ldq, d.n_tokens, d.n_key_heads, d.key_dim, 1e-6, 1 / sqrt(d.key_dim)));
    ON_BOTH(p, B->l2norm_heads(Q, r->k.f[s] + at, d.ldk, d.n_tokens, d.n_key_heads, d.key_dim, 1e-6, 1));
    pair_free(&a_log);
    pair_free(&bias);
}

/* Keys are unit vectors in turn and nothing decays: a state's row is what was last written to it, and sums are of integers. */
static void make_integers(rule *r)
{
    exf_delta_shape d = r->shape;
    size_t n = (size_t)(d.n_tokens * d.n_value_heads);
    float *keys, *ones;
    exf_err err;
    ck_ok(exf_mem_new(&keys, room_of(r, d.ldk), sizeof *keys, "test", &err), err);
    ck_ok(exf_mem_new(&ones, n, sizeof *ones, "test", &err), err);
    for (size_t i = 0; i < n; i++) ones[i] = 1;
    for (int t = 0; t < d.n_tokens; t++)
        for (int h = 0; h < d.n_key_heads; h++) keys[r->at + t * d.ldk + h * d.key_dim + (t * 11 + h) % d.key_dim] = 1;
    r->q = pair_integers(&p, room_of(r, d.ldq), 1);
    r->k = pair_of(&p, keys, room_of(r, d.ldk));
    r->v = pair_integers(&p, room_of(r, d.ldv), 3);
    r->decay = pair_of(&p, ones, n);
    r->beta = pair_of(&p, ones, n);
    exf_mem_free(keys);
    exf_mem_free(ones);
}

START_TEST(rule_is_exact_on_integers)
{
    rule r = rule_of(&rules.shapes[_i]);
    make_integers(&r);
    make_outputs(&r);
    for (int rounded = 0; rounded < 2; rounded++) {
        run(&r, rounded ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
        pair_equal(&r.out, pairwise_label(rounded ? "bf16" : "f32", dimensions, DIMENSIONS, &rules.shapes[_i]));
    }
    free_rule(&r);
}
END_TEST

/* ||cuda - cpu|| of the outputs is small beside ||cpu||, or where keys and queries happen to meet at right angles, beside what
 * that is where they do not. */
static void outputs_are_near(const pair_array *out, const exf_delta_shape *d, double bound, const char *what)
{
    double by = pair_distance(out), size = 0,
           usual = 0.25 / d->key_dim * sqrt((double)d->n_tokens * d->n_value_heads * d->value_dim);
    for (size_t i = 0; i < out->n; i++) size += (double)out->f[0][i] * (double)out->f[0][i];
    size = sqrt(size);
    ck_assert_msg(by * size <= bound * (size + usual), "%s: distance %.2e of %.2e", what, by * size, size);
}

START_TEST(rule_is_near)
{
    rule r = rule_of(&rules.shapes[_i]);
    make_reals(&r, 0.5f);
    make_outputs(&r);
    for (int rounded = 0; rounded < 2; rounded++) {
        run(&r, rounded ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
        outputs_are_near(&r.out, &r.shape, rounded ? 2e-3 : 1e-5,
                         pairwise_label(rounded ? "bf16" : "f32", dimensions, DIMENSIONS, &rules.shapes[_i]));
    }
    free_rule(&r);
}
END_TEST

/* Decays of all sizes, near 1, and mostly 0. */
START_TEST(rule_is_near_whatever_the_decay)
{
    static const float rates[] = {0.5f, -4, 6};
    static const shape some[] = {{{2, 2, 2, 16, 16, 0, 0}},    {{65, 1, 4, 128, 128, 4, 0}}, {{130, 2, 2, 24, 31, 0, 0}},
                                 {{300, 1, 2, 128, 100, 0, 0}}, {{200, 1, 2, 160, 64, 0, 0}}, {{700, 1, 2, 128, 128, 0, 0}}};
    for (int i = 0; i < COUNT(some); i++) {
        rule r = rule_of(&some[i]);
        make_reals(&r, rates[_i]);
        make_outputs(&r);
        for (int rounded = 0; rounded < 2; rounded++) {
            run(&r, rounded ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
            outputs_are_near(&r.out, &r.shape, rounded ? 2e-3 : 1e-5, pairwise_name(dimensions, DIMENSIONS, &some[i]));
        }
        free_rule(&r);
    }
}
END_TEST

/* ---- what is no number stays ------------------------------------------------------------------------- */

/* Spoilt is an element of token 70 of 130: of q, k, v, decay or beta of head 1, by the NaN that a GPU makes or that a CPU makes;
 * in chunks, or (keys of 160) token by token. */
enum { SPOILT = 5 };

/* Sets element i of the device's side. */
static void spoil(pair_array *a, size_t i, uint32_t bits)
{
    exf_err err;
    p.b[1]->upload(p.q[1], a->i[1] + i, &bits, sizeof bits);
    ck_ok(p.b[1]->finish(p.q[1], &err), err);
}

START_TEST(what_is_no_number_stays)
{
    enum { T = 130, AT_TOKEN = 70, HEAD = 1 };
    static const uint32_t nans[] = {0x7fffffff, 0x7fc00000, 0xffc00000};
    int key_dim = _i / SPOILT % 2 ? 160 : 128, rounded = _i / SPOILT / 2;
    shape s0 = {{T, 2, 1, key_dim, 40, 0, 0}};
    for (int n = 0; n < COUNT(nans); n++) {
        rule r = rule_of(&s0);
        exf_err err;
        make_reals(&r, 0.5f);
        make_outputs(&r);
        pair_array *of[SPOILT] = {&r.q, &r.k, &r.v, &r.decay, &r.beta};
        int width = _i % SPOILT < 2 ? key_dim : _i % SPOILT == 2 ? 40 : 1; /* of a head */
        spoil(of[_i % SPOILT], (size_t)((AT_TOKEN * 2 + HEAD) * width + width / 2), nans[n]);
        run(&r, rounded ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
        float *got;
        ck_ok(exf_mem_new(&got, r.out.n, sizeof *got, "test", &err), err);
        ck_ok(p.b[1]->download(p.q[1], got, r.out.f[1], r.out.n * 4, &err), err);
        int step = _i % SPOILT == 0 ? T : T - 1 - AT_TOKEN; /* of q the outputs of its token alone, else also the last's */
        for (int t = AT_TOKEN; t < T; t += step)
            ck_assert_msg(!isfinite(got[(t * 2 + HEAD) * 40 + 20]), "case %d, NaN %08x: token %d has %g", _i, (unsigned)nans[n], t,
                          (double)got[(t * 2 + HEAD) * 40 + 20]);
        ck_assert(isfinite(got[(AT_TOKEN * 2 + 1 - HEAD) * 40 + 20]) && isfinite(got[20])); /* the other head, and tokens before */
        exf_mem_free(got);
        free_rule(&r);
    }
}
END_TEST

/* ---- convolution, norms and rule in one ----------------------------------------------------------------- */

enum { L_TOKENS, L_KEY_HEADS, L_GROUP, L_KEY_DIM, L_VALUE_DIM, L_GAP, L_WIDTH, L_AT, L_DIMENSIONS };
static const dimension l_dimensions[] = {{"tokens", 1, 1090},    {"key heads", 1, 3}, {"group", 1, 3}, {"key width", 24, 129},
                                         {"value width", 24, 320}, {"gap", 0, 5},     {"width", 1, 5}, {"at", 0, 4}};

static const boundary l_boundaries[] = {
    {"recurrent/causal_conv_cuda.cu", "BATCH", L_TOKENS, 8},
    {"recurrent/causal_conv_cuda.cu", "SHORTEST", L_TOKENS, 16},
    {"recurrent/delta_rule_internal.cuh", "EXF_DELTA_CHUNK", L_TOKENS, 64},
    {"recurrent/causal_conv_cuda.cu", "SEGMENTS", L_TOKENS, 64 * 16},
    {"recurrent/causal_conv_cuda.cu", "DK", L_KEY_DIM, 64},
    {"recurrent/causal_conv_cuda.cu", "s->key_dim == 128", L_KEY_DIM, 128},
    {"recurrent/causal_conv_cuda.cu", "s->value_dim % EXF_DELTA_COLUMNS", L_VALUE_DIM, 32},
    {"recurrent/causal_conv_cuda.cu", "THREADS", L_VALUE_DIM, 256}, /* 512 channels with keys of 128 */
    {"recurrent/causal_conv_cuda.cu", "channels / 4, THREADS", L_VALUE_DIM, 288},
    {"recurrent/causal_conv_cuda.cu", "width == 4", L_WIDTH, 4},
    {"device/cuda_queue.cuh", "ld % 4", L_GAP, 4},
    {"device/cuda_queue.cuh", "% 16", L_AT, 4},
};

static int is_layer(const shape *s)
{
    return s->at[L_TOKENS] * s->at[L_KEY_HEADS] * s->at[L_GROUP] * s->at[L_KEY_DIM] / 16 * s->at[L_VALUE_DIM] < 1 << 19;
}

static pairwise layers;

START_TEST(layer_is_near)
{
    const int *a = layers.shapes[_i].at;
    int t = a[L_TOKENS], heads = a[L_KEY_HEADS] * a[L_GROUP], dk = a[L_KEY_HEADS] * a[L_KEY_DIM], dv = heads * a[L_VALUE_DIM],
        n = 2 * dk + dv, ld = n + a[L_GAP], w = a[L_WIDTH], at = a[L_AT];
    exf_delta_shape of = {t, a[L_KEY_HEADS], heads, a[L_KEY_DIM], a[L_VALUE_DIM], ld, ld, ld, dv};
    size_t n_gates = (size_t)(t * heads), room[2];
    room[0] = larger(p.b[0]->causal_conv_workspace(n, w), p.b[0]->delta_rule_workspace(&of));
    room[1] = p.b[1]->gpu->conv_delta_rule_workspace(&of, w);
    for (int rounded = 0; rounded < 2; rounded++) {
        pair_array x = pair_reals(&p, (size_t)(t * ld + at), 1, 2), taps = pair_reals(&p, (size_t)(n * w), 2, 1),
                   decay = pair_reals(&p, n_gates, 3, 3), beta = pair_reals(&p, n_gates, 4, 3),
                   out = pair_reals(&p, (size_t)(t * dv), 5, 1),
                   a_log = pair_reals(&p, (size_t)heads, 6, 0.5f), bias = pair_reals(&p, (size_t)heads, 7, 1),
                   space = pair_reals(&p, larger(room[0], room[1]), 8, 1e30f);
        float *q = x.f[0] + at;
        pair_compute(&p, rounded ? EXF_COMPUTE_BF16 : EXF_COMPUTE_F32);
        ON_BOTH(p, B->delta_gates(Q, decay.f[s], beta.f[s], a_log.f[s], bias.f[s], t, heads));
        p.b[0]->causal_conv_silu(p.q[0], q, ld, taps.f[0], t, n, w, space.f[0]);
        p.b[0]->l2norm_heads(p.q[0], q, ld, t, of.n_key_heads, of.key_dim, 1e-6, 1 / sqrt(of.key_dim));
        p.b[0]->l2norm_heads(p.q[0], q + dk, ld, t, of.n_key_heads, of.key_dim, 1e-6, 1);
        p.b[0]->delta_rule(p.q[0], out.f[0], q, q + dk, q + 2 * dk, decay.f[0], beta.f[0], &of, space.f[0]);
        p.b[1]->gpu->conv_delta_rule(p.q[1], out.f[1], x.f[1] + at, taps.f[1], w, decay.f[1], beta.f[1], &of, 1e-6, space.f[1]);
        outputs_are_near(&out, &of, rounded ? 2e-3 : 1e-5,
                         pairwise_label(rounded ? "bf16" : "f32", l_dimensions, L_DIMENSIONS, &layers.shapes[_i]));
        pair_array *all[] = {&x, &taps, &decay, &beta, &out, &a_log, &bias, &space};
        for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&convolutions, "convolution", c_boundaries, COUNT(c_boundaries), c_dimensions, C_DIMENSIONS, NULL);
    pairwise_shapes(&gates, "gates and norms", g_boundaries, COUNT(g_boundaries), g_dimensions, G_DIMENSIONS, NULL);
    pairwise_shapes(&rules, "delta rule", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    pairwise_shapes(&layers, "convolution and rule", l_boundaries, COUNT(l_boundaries), l_dimensions, L_DIMENSIONS, is_layer);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, convolution_is_near, 0, convolutions.n_shapes);
    tcase_add_loop_test(t, gates_and_norms_are_near, 0, gates.n_shapes);
    tcase_add_loop_test(t, rule_is_exact_on_integers, 0, rules.n_shapes);
    tcase_add_loop_test(t, rule_is_near, 0, rules.n_shapes);
    tcase_add_loop_test(t, rule_is_near_whatever_the_decay, 0, 3);
    tcase_add_loop_test(t, layer_is_near, 0, layers.n_shapes);
    tcase_add_loop_test(t, what_is_no_number_stays, 0, 4 * SPOILT);
}

/* check_mixer_compressed.c - the whole compressed mixer against a naive double
 * version, for lengths around the window, the ratios and the block of queries. */
#include "tests/support/fixtures.h"

#include "base/hash.h"
#include "base/mem.h"
#include "pass/mixer.h"

#include <math.h>
#include <string.h>

enum {
    H = 12, HEADS = 4, D = 10, ROPE = 4, Q_RANK = 6, GROUPS = 2, O_RANK = 3, WINDOW = 5, INDEX_HEADS = 8, INDEX_D = 6, TOP_K = 3,
    LONG = 7, MOST = 131, ENTRIES = MOST / 4
};
static const int ratios[] = {0, 4, LONG}; /* by layer */
static const double eps = 1e-6, theta[EXF_ROPES] = {10000, 160000};

typedef struct {
    exf_architecture a;
    exf_rope_tables rope_tables;
    float *w[EXF_W_COUNT], *x;
} mixer_case;

static float *noise(size_t n, double scale, uint64_t stream)
{
    float *x;
    exf_err err;
    ck_ok(exf_mem_new(&x, n, sizeof *x, "noise", &err), err);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * (double)(int64_t)exf_rng_u64(11, stream, i) * 0x1p-63);
    return x;
}

static void give(mixer_case *c, exf_role role, int rows, int cols)
{
    c->w[role] = noise((size_t)rows * (size_t)cols, cols > 1 ? 1.7 / sqrt(cols) : 1, (uint64_t)role);
}

static void give_weights(mixer_case *c, int ratio)
{
    int wide = ratio == 4 ? 2 : 1;
    give(c, EXF_W_Q_A, Q_RANK, H);
    give(c, EXF_W_Q_A_NORM, Q_RANK, 1);
    give(c, EXF_W_Q_B, HEADS * D, Q_RANK);
    give(c, EXF_W_KV, D, H);
    give(c, EXF_W_KV_NORM, D, 1);
    give(c, EXF_W_SINK, HEADS, 1);
    give(c, EXF_W_O_A, GROUPS * O_RANK, HEADS * D / GROUPS);
    give(c, EXF_W_O_B, H, GROUPS * O_RANK);
    if (!ratio) return;
    give(c, EXF_W_COMPRESS_KV, wide * D, H);
    give(c, EXF_W_COMPRESS_GATE, wide * D, H);
    give(c, EXF_W_COMPRESS_APE, ratio, wide * D);
    give(c, EXF_W_COMPRESS_NORM, D, 1);
    if (ratio != 4) return;
    give(c, EXF_W_INDEX_Q, INDEX_HEADS * INDEX_D, Q_RANK);
    give(c, EXF_W_INDEX_WEIGHTS, INDEX_HEADS, H);
    give(c, EXF_W_INDEX_KV, 2 * INDEX_D, H);
    give(c, EXF_W_INDEX_GATE, 2 * INDEX_D, H);
    give(c, EXF_W_INDEX_APE, 4, 2 * INDEX_D);
    give(c, EXF_W_INDEX_NORM, INDEX_D, 1);
}

static void open_case(mixer_case *c, int layer)
{
    exf_err err;
    memset(c, 0, sizeof *c);
    c->a.n_layers = 3;
    c->a.d_model = H;
    c->a.norm_eps = eps;
    for (int i = 0; i < EXF_ROPES; i++) c->a.rope[i] = (exf_rope_spec){.dim = ROPE, .interleaved = 1, .theta = theta[i]};
    c->a.compressed = (exf_compressed_spec){.n_heads = HEADS, .head_dim = D, .rope_dim = ROPE, .q_rank = Q_RANK, .o_groups = GROUPS,
                                            .o_rank = O_RANK, .window = WINDOW, .index_heads = INDEX_HEADS, .index_dim = INDEX_D,
                                            .index_topk = TOP_K};
    memcpy(c->a.compressed.ratio, ratios, sizeof ratios);
    c->a.traits[1] = EXF_T_RATIO_SHORT;
    c->a.traits[2] = EXF_T_RATIO_LONG;
    ck_ok(exf_rope_tables_new(&c->rope_tables, &exf_backend_cpu, NULL, &c->a, MOST, &err), err);
    give_weights(c, ratios[layer]);
    c->x = noise(MOST * H, 2, 1000);
}

static void close_case(mixer_case *c)
{
    for (int i = 0; i < EXF_W_COUNT; i++) exf_mem_free(c->w[i]);
    exf_mem_free(c->x);
    exf_rope_tables_free(&c->rope_tables, &exf_backend_cpu);
}

/* Counts first, as a workspace does, then runs in exactly that much. */
static float *run_mixer(const mixer_case *c, int layer, int t)
{
    exf_err err;
    exf_arena count = {NULL, 0};
    exf_mixer_call call = {.n_tokens = t, .layer = layer, .a = &c->a, .arena = &count, .b = &exf_backend_cpu};
    exf_mixer_compressed.run(&call);
    exf_arena arena = {NULL, 0};
    ck_ok(exf_mem_new(&arena.base, count.used, sizeof(float), "arena", &err), err);
    memset(arena.base, 0xff, count.used * sizeof(float)); /* NaN: nothing may be read before it is written */
    call.out = noise((size_t)t * H, 1, 0);
    call.input = c->x;
    call.w = c->w;
    call.rope_tables = &c->rope_tables;
    call.arena = &arena;
    exf_mixer_compressed.run(&call);
    ck_assert_uint_eq(arena.used, count.used);
    exf_mem_free(arena.base);
    return call.out;
}

/* ---- the naive version, one token at a time --------------------------------- */

static void linear(double *y, const double *x, const float *w, int n_out, int n_in)
{
    for (int o = 0; o < n_out; o++) {
        y[o] = 0;
        for (int i = 0; i < n_in; i++) y[o] += (double)w[o * n_in + i] * x[i];
    }
}

static void norm(double *x, int n, const float *w)
{
    double square = 0;
    for (int i = 0; i < n; i++) square += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] *= (w ? (double)w[i] : 1) / sqrt(square / n + eps);
}

/* The last ROPE of d floats by position (negative: back). */
static void rotation(double *x, int d, int layer, int position)
{
    for (int i = 0; i < ROPE / 2; i++) {
        double angle = position * pow(theta[ratios[layer] ? EXF_ROPE_COMPRESSED : EXF_ROPE_MAIN], -2.0 * i / ROPE);
        double *a = x + d - ROPE + 2 * i, *b = a + 1, first = *a;
        *a = first * cos(angle) - *b * sin(angle);
        *b = *b * cos(angle) + first * sin(angle);
    }
}

static void token_input(double *x, const mixer_case *c, int t)
{
    for (int i = 0; i < H; i++) x[i] = (double)c->x[t * H + i];
}

/* One slot's logit and value in channel ch. */
static void slot(const mixer_case *c, const exf_role *r, int width, int ratio, int t, int ch, double *logit, double *value)
{
    double x[H];
    token_input(x, c, t);
    linear(value, x, c->w[r[0]] + ch * H, 1, H);
    linear(logit, x, c->w[r[1]] + ch * H, 1, H);
    *logit += (double)c->w[r[2]][t % ratio * width + ch];
}

/* Entry w of a compressor with roles kv, gate, ape, norm. */
static void entry(double *out, const mixer_case *c, const exf_role *r, int layer, int w, int d)
{
    int ratio = ratios[layer], overlap = ratio == 4, width = overlap ? 2 * d : d;
    for (int ch = 0; ch < d; ch++) {
        double sum = 0, total = 0, logit, value;
        for (int t = (w - overlap) * ratio; t < (w + 1) * ratio; t++) {
            if (t < 0) continue;
            slot(c, r, width, ratio, t, overlap && t >= w * ratio ? d + ch : ch, &logit, &value);
            sum += exp(logit);
            total += exp(logit) * value;
        }
        out[ch] = total / sum;
    }
    norm(out, d, c->w[r[3]]);
    rotation(out, d, layer, w * ratio);
}

typedef struct {
    double token[MOST][D], entry[ENTRIES][D], index[ENTRIES][INDEX_D];
} keys;

static void make_keys(keys *k, const mixer_case *c, int layer, int n)
{
    static const exf_role main_part[] = {EXF_W_COMPRESS_KV, EXF_W_COMPRESS_GATE, EXF_W_COMPRESS_APE, EXF_W_COMPRESS_NORM};
    static const exf_role index_part[] = {EXF_W_INDEX_KV, EXF_W_INDEX_GATE, EXF_W_INDEX_APE, EXF_W_INDEX_NORM};
    for (int t = 0; t < n; t++) {
        double x[H];
        token_input(x, c, t);
        linear(k->token[t], x, c->w[EXF_W_KV], D, H);
        norm(k->token[t], D, c->w[EXF_W_KV_NORM]);
        rotation(k->token[t], D, layer, t);
    }
    for (int w = 0; ratios[layer] && w < n / ratios[layer]; w++) {
        entry(k->entry[w], c, main_part, layer, w, D);
        if (ratios[layer] == 4) entry(k->index[w], c, index_part, layer, w, INDEX_D);
    }
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* The TOP_K best of the entries that t sees; the seed gives no ties. */
static void choose(int *chosen, const mixer_case *c, const keys *k, const double *q_rank, int layer, int t)
{
    double x[H], weight[INDEX_HEADS], q[INDEX_HEADS * INDEX_D], score[ENTRIES];
    int visible = ratios[layer] ? (t + 1) / ratios[layer] : 0;
    for (int w = 0; w < visible; w++) chosen[w] = 1;
    if (ratios[layer] != 4) return;
    token_input(x, c, t);
    linear(weight, x, c->w[EXF_W_INDEX_WEIGHTS], INDEX_HEADS, H);
    linear(q, q_rank, c->w[EXF_W_INDEX_Q], INDEX_HEADS * INDEX_D, Q_RANK);
    for (int h = 0; h < INDEX_HEADS; h++) rotation(q + h * INDEX_D, INDEX_D, layer, t);
    for (int w = 0; w < visible; w++) {
        score[w] = 0;
        for (int h = 0; h < INDEX_HEADS; h++) score[w] += weight[h] * fmax(0, dot(q + h * INDEX_D, k->index[w], INDEX_D));
    }
    for (int w = 0; w < visible; w++) {
        int better = 0;
        for (int v = 0; v < visible; v++) better += score[v] > score[w];
        chosen[w] = better < TOP_K;
    }
}

static void attend(double *out, const double *q, const keys *k, const int *chosen, int visible, int t, double sink)
{
    double sum = exp(sink), scale = 1 / sqrt((double)D);
    memset(out, 0, D * sizeof *out);
    for (int j = -visible; j <= t; j++) {
        const double *key = j < 0 ? k->entry[j + visible] : k->token[j];
        if (j < 0 ? !chosen[j + visible] : j <= t - WINDOW) continue;
        double e = exp(scale * dot(q, key, D));
        sum += e;
        for (int i = 0; i < D; i++) out[i] += e * key[i];
    }
    for (int i = 0; i < D; i++) out[i] /= sum;
}

static void naive_row(double *out, const mixer_case *c, const keys *k, int layer, int t)
{
    double x[H], q_rank[Q_RANK], q[HEADS * D], heads[HEADS * D], low[GROUPS * O_RANK];
    int chosen[ENTRIES], part = HEADS * D / GROUPS;
    token_input(x, c, t);
    linear(q_rank, x, c->w[EXF_W_Q_A], Q_RANK, H);
    norm(q_rank, Q_RANK, c->w[EXF_W_Q_A_NORM]);
    linear(q, q_rank, c->w[EXF_W_Q_B], HEADS * D, Q_RANK);
    choose(chosen, c, k, q_rank, layer, t);
    for (int h = 0; h < HEADS; h++) {
        norm(q + h * D, D, NULL);
        rotation(q + h * D, D, layer, t);
        attend(heads + h * D, q + h * D, k, chosen, ratios[layer] ? (t + 1) / ratios[layer] : 0, t, (double)c->w[EXF_W_SINK][h]);
        rotation(heads + h * D, D, layer, -t);
    }
    for (int g = 0; g < GROUPS; g++) linear(low + g * O_RANK, heads + g * part, c->w[EXF_W_O_A] + g * O_RANK * part, O_RANK, part);
    linear(out, low, c->w[EXF_W_O_B], H, GROUPS * O_RANK);
}

static const int lengths[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 21, 28, 127, 128, 129, 131};

START_TEST(mixer_matches_naive)
{
    static keys k;
    mixer_case c;
    open_case(&c, _i);
    make_keys(&k, &c, _i, MOST);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        float *out = run_mixer(&c, _i, lengths[i]);
        for (int t = 0; t < lengths[i]; t++) {
            double want[H];
            naive_row(want, &c, &k, _i, t);
            for (int j = 0; j < H; j++)
                ck_assert_msg(fabs((double)out[t * H + j] - want[j]) < 1e-5, "ratio %d, length %d, row %d: %g, expected %g",
                              ratios[_i], lengths[i], t, (double)out[t * H + j], want[j]);
        }
        exf_mem_free(out);
    }
    close_case(&c);
}
END_TEST

/* The count that a plan is made with grows with the length and never needs weights. */
START_TEST(longer_sequences_never_take_less)
{
    mixer_case c;
    size_t before = 0;
    open_case(&c, _i);
    for (int t = 1; t <= MOST; t++) {
        exf_arena count = {NULL, 0};
        exf_mixer_call call = {.n_tokens = t, .layer = _i, .a = &c.a, .arena = &count, .b = &exf_backend_cpu};
        exf_mixer_compressed.run(&call);
        ck_assert_uint_ge(count.used, before);
        ck_assert(exf_mixer_compressed.flops(&c.a, _i, t) > 0);
        before = count.used;
    }
    close_case(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, mixer_matches_naive, 0, 3);
    tcase_add_loop_test(t, longer_sequences_never_take_less, 0, 3);
}

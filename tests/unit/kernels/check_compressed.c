/* check_compressed.c - the kernels of compressed attention against naive double
 * versions: pooling, choosing, attending. */
#include "tests/support/fixtures.h"

#include "base/hash.h"
#include "base/mem.h"
#include "kernels/attention/compressed.h"

#include <math.h>
#include <string.h>

static float *noise(size_t n, double scale, uint64_t stream)
{
    float *x;
    exf_err err;
    ck_ok(exf_mem_new(&x, n, sizeof *x, "noise", &err), err);
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * (double)(int64_t)exf_rng_u64(7, stream, i) * 0x1p-63);
    return x;
}

/* ---- compressor ------------------------------------------------------------ */

static const exf_compressor_shape pools[] = {
    {.n_entries = 1, .ratio = 4, .d = 3, .overlap = 1},   {.n_entries = 5, .ratio = 4, .d = 70, .overlap = 1},
    {.n_entries = 2, .ratio = 1, .d = 64, .overlap = 1},  {.n_entries = 1, .ratio = 128, .d = 65, .overlap = 0},
    {.n_entries = 3, .ratio = 7, .d = 5, .overlap = 0},   {.n_entries = 0, .ratio = 4, .d = 8, .overlap = 1},
};

/* Slot i of entry w: its token, or -1 where there is none, and its channel. */
static int slot_token(const exf_compressor_shape *s, int w, int i)
{
    return s->overlap ? (w - 1) * s->ratio + i : w * s->ratio + i;
}

static double naive_pool(const exf_compressor_shape *s, const float *kv, const float *gate, const float *ape, int w, int c)
{
    int width = s->overlap ? 2 * s->d : s->d, slots = s->overlap ? 2 * s->ratio : s->ratio;
    double sum = 0, total = 0;
    for (int i = 0; i < slots; i++) {
        int token = slot_token(s, w, i), channel = s->overlap && i >= s->ratio ? s->d + c : c;
        if (token < 0) continue;
        double e = exp((double)gate[token * width + channel] + (double)ape[token % s->ratio * width + channel]);
        sum += e;
        total += e * (double)kv[token * width + channel];
    }
    return total / sum;
}

START_TEST(entries_match_naive)
{
    const exf_compressor_shape *s = &pools[_i];
    size_t width = (size_t)(s->overlap ? 2 * s->d : s->d), n = (size_t)(s->n_entries * s->ratio) * width;
    float *kv = noise(n, 2, 0), *gate = noise(n, 5, 1), *ape = noise((size_t)s->ratio * width, 3, 2);
    float *out = noise((size_t)(s->n_entries * s->d), 1, 3);
    exf_compressor_cpu(NULL, out, kv, gate, ape, s);
    for (int w = 0; w < s->n_entries; w++)
        for (int c = 0; c < s->d; c++)
            ck_assert_double_eq_tol((double)out[w * s->d + c], naive_pool(s, kv, gate, ape, w, c), 2e-6);
    exf_mem_free(kv);
    exf_mem_free(gate);
    exf_mem_free(ape);
    exf_mem_free(out);
}
END_TEST

/* ---- indexer ----------------------------------------------------------------- */

enum { INDEX_T = 57, INDEX_HEADS = 3, INDEX_D = 6, INDEX_RATIO = 4, INDEX_N = INDEX_T / INDEX_RATIO };

static double naive_score(const float *q, const float *weights, const float *keys, int t, int w)
{
    double score = 0;
    for (int h = 0; h < INDEX_HEADS; h++) {
        double dot = 0;
        for (int i = 0; i < INDEX_D; i++) dot += (double)q[(t * INDEX_HEADS + h) * INDEX_D + i] * (double)keys[w * INDEX_D + i];
        score += (double)weights[t * INDEX_HEADS + h] * (dot > 0 ? dot : 0);
    }
    return score;
}

/* One query's choice: as many as asked for, none better left out, nothing invisible. */
static void check_choice(const unsigned char *chosen, int n_shown, const double *score, int visible, int top_k)
{
    int count = 0;
    double worst_in = INFINITY, best_out = -INFINITY;
    for (int w = 0; w < n_shown; w++) {
        count += chosen[w];
        if (chosen[w]) ck_assert_int_lt(w, visible);
        if (w < visible && chosen[w] && score[w] < worst_in) worst_in = score[w];
        if (w < visible && !chosen[w] && score[w] > best_out) best_out = score[w];
    }
    ck_assert_int_eq(count, visible < top_k ? visible : top_k);
    ck_assert_msg(worst_in >= best_out - 1e-5, "chose %g, left %g", worst_in, best_out);
}

/* ld 0: rows have no bytes between them. */
static void check_choices(int top_k, int block, int ld)
{
    float *q = noise(INDEX_T * INDEX_HEADS * INDEX_D, 1, 4), *weights = noise(INDEX_T * INDEX_HEADS, 1, 5);
    float *keys = noise(INDEX_N * INDEX_D, 1, 6), *work = noise(exf_indexer_workspace_cpu(block, INDEX_N), 1, 7);
    unsigned char chosen[INDEX_T * INDEX_N];
    for (int first = 0; first < INDEX_T; first += block) {
        int n = INDEX_T - first < block ? INDEX_T - first : block, shown = (first + n) / INDEX_RATIO;
        exf_indexer_shape s = {.first = first, .n_rows = n, .n_heads = INDEX_HEADS, .d = INDEX_D, .ratio = INDEX_RATIO,
                               .top_k = top_k,
                               .n_entries = INDEX_N, .ld = ld};
        if (shown == 0) continue;
        exf_indexer_cpu(NULL, chosen, q + first * INDEX_HEADS * INDEX_D, weights + first * INDEX_HEADS, keys, &s, work);
        for (int i = 0; i < n; i++) {
            double score[INDEX_N];
            for (int w = 0; w < INDEX_N; w++) score[w] = naive_score(q, weights, keys, first + i, w);
            check_choice(chosen + i * (ld ? ld : shown), shown, score, (first + i + 1) / INDEX_RATIO, top_k);
        }
    }
    exf_mem_free(q);
    exf_mem_free(weights);
    exf_mem_free(keys);
    exf_mem_free(work);
}

START_TEST(choices_are_the_best)
{
    static const int top_k[] = {1, 2, 6, INDEX_N - 1, INDEX_N, 100};
    for (size_t i = 0; i < sizeof top_k / sizeof *top_k; i++) {
        check_choices(top_k[i], INDEX_T, 0);
        check_choices(top_k[i], 10, 0);
        check_choices(top_k[i], 10, INDEX_N);
        check_choices(top_k[i], 1, 0);
    }
}
END_TEST

/* Scores by themselves: one head, one dimension, key = score; the query sees n of n_entries. */
static void choose_by(unsigned char *chosen, const float *score, int n, int n_entries, int top_k)
{
    float q = 1, weight = 1, *work = noise(exf_indexer_workspace_cpu(1, n_entries), 1, 7);
    exf_indexer_shape s = {.first = n - 1, .n_rows = 1, .n_heads = 1, .d = 1, .ratio = 1, .top_k = top_k, .n_entries = n_entries};
    exf_indexer_cpu(NULL, chosen, &q, &weight, score, &s, work);
    exf_mem_free(work);
}

START_TEST(choices_survive_ties_and_overflow)
{
    enum { N = 40, K = 6 };
    float flat[N] = {0}, mixed[N];
    unsigned char chosen[N];
    int count = 0;
    choose_by(chosen, flat, N, N, K);
    for (int i = 0; i < N; i++) count += chosen[i];
    ck_assert_int_eq(count, K);
    for (int i = 0; i < N; i++) mixed[i] = i % 3 == 0 ? INFINITY : i % 3 == 1 ? NAN : (float)i;
    choose_by(chosen, mixed, N, N, K); /* no promise which; only that it stays within its arrays */
    for (int i = 0; i < N; i++) ck_assert_int_le(chosen[i], 1);
}
END_TEST

/* Zeros tied at the cut, as std::nth_element of libstdc++ leaves them; entries that
 * the query does not see move the tie, and never come in. */
START_TEST(ties_fall_as_in_the_reference)
{
    static const float score[12] = {0, 3, 0, 0, 4, 0, 0, 5, 0, 0, 2, 0};
    static const unsigned char of_12[12] = {1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 1, 0}, of_18[12] = {0, 1, 0, 0, 1, 0, 0, 1, 1, 0, 1, 1};
    unsigned char chosen[12];
    choose_by(chosen, score, 12, 12, 6);
    ck_assert_mem_eq(chosen, of_12, 12);
    choose_by(chosen, score, 12, 18, 6);
    ck_assert_mem_eq(chosen, of_18, 12);
}
END_TEST

/* ---- attention ------------------------------------------------------------------ */

enum { HEADS = 3, D = 10 };

typedef struct {
    int window, ratio, choose;
} reach_case;
static const reach_case reaches[] = {{5, 0, 0}, {5, 4, 0}, {5, 4, 1}, {1, 7, 0}, {16, 3, 1}, {128, 4, 0}};
static const int lengths[] = {1, 3, 4, 5, 6, 7, 8, 13, 14, 16, 21, 33};

typedef struct {
    const reach_case *r;
    int t;
    float *q, *tokens, *entries, *sink, *out;
    unsigned char *chosen; /* [t, t / ratio] */
} attention_case;

static int is_chosen(const attention_case *c, int t, int w)
{
    return !c->r->choose || exf_rng_below(2, 9, (uint64_t)t, (uint64_t)w);
}

static void naive_attention(double *out, const attention_case *c, int t, int h)
{
    const float *q = c->q + (t * HEADS + h) * D;
    double sum = exp((double)c->sink[h]), scale = 1 / sqrt((double)D);
    int n_entries = c->r->ratio ? (t + 1) / c->r->ratio : 0, first = t - c->r->window + 1;
    memset(out, 0, D * sizeof *out);
    for (int j = (first > 0 ? first : 0) - n_entries; j <= t; j++) { /* entries, then tokens */
        int oldest = first > 0 ? first : 0, w = j - oldest + n_entries;
        const float *key = j < oldest ? c->entries + w * D : c->tokens + j * D;
        double dot = 0;
        if (j < oldest && !is_chosen(c, t, w)) continue;
        for (int i = 0; i < D; i++) dot += (double)q[i] * (double)key[i];
        sum += exp(scale * dot);
        for (int i = 0; i < D; i++) out[i] += exp(scale * dot) * (double)key[i];
    }
    for (int i = 0; i < D; i++) out[i] /= sum;
}

static void attend_in_blocks(const attention_case *c, int block)
{
    float *work = noise(exf_compressed_attention_workspace_cpu(1, block, c->t, c->r->window, c->r->ratio), 1, 0);
    unsigned char chosen[64 * 64];
    for (int first = 0; first < c->t; first += block) {
        int n = c->t - first < block ? c->t - first : block, shown = c->r->ratio ? (first + n) / c->r->ratio : 0;
        size_t at = (size_t)(first * HEADS * D);
        for (int i = 0; i < n; i++)
            for (int w = 0; w < shown; w++) chosen[i * shown + w] = (unsigned char)is_chosen(c, first + i, w);
        exf_compressed_keys keys = {c->tokens, c->entries, c->r->choose ? chosen : NULL, c->sink};
        exf_compressed_attention_shape s = {.first = first, .n_rows = n, .n_heads = HEADS, .d = D, .window = c->r->window,
                                            .ratio = c->r->ratio,
                                            .scale = (float)(1 / sqrt((double)D))};
        memcpy(c->out + at, c->q + at, (size_t)(n * HEADS * D) * sizeof(float));
        exf_compressed_attention_cpu(NULL, c->out + at, c->out + at, &keys, &s, work); /* over the queries themselves */
    }
    exf_mem_free(work);
}

static void check_attention(const attention_case *c, int block)
{
    attend_in_blocks(c, block);
    for (int t = 0; t < c->t; t++)
        for (int h = 0; h < HEADS; h++) {
            double want[D];
            naive_attention(want, c, t, h);
            for (int i = 0; i < D; i++) ck_assert_double_eq_tol((double)c->out[(t * HEADS + h) * D + i], want[i], 3e-6);
        }
}

START_TEST(attention_matches_naive)
{
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t t = (size_t)lengths[i];
        attention_case c = {.r = &reaches[_i], .t = lengths[i], .q = noise(t * HEADS * D, 3, 10), .tokens = noise(t * D, 2, 11),
                            .entries = noise(t * D, 2, 12), .sink = noise(HEADS, 2, 13), .out = noise(t * HEADS * D, 1, 14)};
        check_attention(&c, lengths[i]);
        check_attention(&c, 4);
        check_attention(&c, 1);
        exf_mem_free(c.q);
        exf_mem_free(c.tokens);
        exf_mem_free(c.entries);
        exf_mem_free(c.sink);
        exf_mem_free(c.out);
    }
}
END_TEST

/* A sink far above every score leaves nothing; far below, it is as if there were none. */
START_TEST(sinks_drain_the_sum_only)
{
    float q[2] = {1, 0}, tokens[2] = {2, 3}, sink[1] = {80}, out[2], work[8];
    exf_compressed_keys keys = {tokens, NULL, NULL, sink};
    exf_compressed_attention_shape s = {.n_rows = 1, .n_heads = 1, .d = 2, .window = 4, .scale = 1};
    exf_compressed_attention_cpu(NULL, out, q, &keys, &s, work);
    ck_assert(fabsf(out[0]) < 1e-20f && fabsf(out[1]) < 1e-20f);
    sink[0] = -80;
    exf_compressed_attention_cpu(NULL, out, q, &keys, &s, work);
    ck_assert(out[0] == 2 && out[1] == 3);
    sink[0] = 2; /* the only score: half goes each way */
    exf_compressed_attention_cpu(NULL, out, q, &keys, &s, work);
    ck_assert(out[0] == 1 && out[1] == 1.5f);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, entries_match_naive, 0, sizeof pools / sizeof *pools);
    tcase_add_test(t, choices_are_the_best);
    tcase_add_test(t, choices_survive_ties_and_overflow);
    tcase_add_test(t, ties_fall_as_in_the_reference);
    tcase_add_loop_test(t, attention_matches_naive, 0, sizeof reaches / sizeof *reaches);
    tcase_add_test(t, sinks_drain_the_sum_only);
}

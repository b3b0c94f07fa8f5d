/* check_scores.c - validate/scores and validate/layer_errors: logits in, the numbers of a
 * validation out, against plain double computations. */
#include "tests/support/fake_device.h"
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"

#include "base/mem.h"
#include "validate/scores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { V = 11, LANES = 3, SEQUENCES = 5, TOKENS = 1 + 2 + 3 + 300 + 7 };
static const int lengths[SEQUENCES] = {1, 2, 3, 300, 7};

typedef struct {
    exf_span span[SEQUENCES];
    int32_t ids[TOKENS];
    exf_batch batch;
    float *logits[LANES]; /* [T, V] */
} sample;

static void open_sample(sample *s)
{
    size_t at = 0;
    for (int i = 0; i < SEQUENCES; at += (size_t)lengths[i++]) s->span[i] = (exf_span){at, lengths[i]};
    for (int i = 0; i < TOKENS; i++) s->ids[i] = (int32_t)((naive_number(1, (uint64_t)i) + 1) / 2 * V) % V;
    s->batch = (exf_batch){s->ids, s->span, SEQUENCES, TOKENS, 300};
    for (int l = 0; l < LANES; l++) s->logits[l] = naive_numbers(TOKENS * V, 10 + (uint64_t)l, l == 2 ? 0.5f : 4);
    for (int i = 0; i < TOKENS * V; i++) s->logits[2][i] += s->logits[0][i]; /* near the first, the other is not */
}

static void close_sample(sample *s)
{
    for (int l = 0; l < LANES; l++) exf_mem_free(s->logits[l]);
}

/* Feeds all lanes as the head does: blocks of rows, lane by lane, sequences on any worker. */
static void feed(exf_scores *s, const sample *x, int n_workers, int rows, const exf_backend *gpu)
{
    exf_err e;
    ck_ok(exf_scores_begin(s, n_workers, gpu, &e), e);
    for (int i = SEQUENCES - 1; i >= 0; i--)
        for (int at = 0; at < lengths[i]; at += rows)
            for (int l = 0; l < LANES; l++) {
                size_t row = x->span[i].offset + (size_t)at;
                exf_logits_block b = {.sequence = (size_t)i, .row = row, .position = at,
                                      .n_tokens = lengths[i] - at < rows ? lengths[i] - at : rows, .vocab = V,
                                      .worker = i % n_workers, .logits = x->logits[l] + row * V};
                ck_ok(exf_scores_logits(exf_scores_lane(s, (size_t)l), &b, &e), e);
            }
}

static exf_scores *scored(const sample *x, int n_workers, int rows)
{
    exf_err e;
    exf_scores *s;
    ck_ok(exf_scores_new(&s, &x->batch, LANES, V, &e), e);
    feed(s, x, n_workers, rows, NULL);
    return s;
}

/* ---- plainly ---------------------------------------------------------------------------- */

static int top_of(const float *x)
{
    int top = 0;
    for (int i = 1; i < V; i++) top = x[i] > x[top] ? i : top;
    return top;
}

static double log_p(const float *x, int i)
{
    double sum = 0;
    for (int j = 0; j < V; j++) sum += exp((double)x[j]);
    return (double)x[i] - log(sum);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The least value that at least a share q of the n do not exceed, by counting. */
static double nearest_rank(const double *x, int n, double q)
{
    for (int i = 0; i < n; i++)
        if (i + 1 >= q * n - 1e-9) return x[i];
    return x[n - 1];
}

static exf_quality naive_quality(const sample *x, int lane, const int32_t *group, int which)
{
    static double nll[TOKENS], kl[TOKENS];
    int n = 0, same = 0;
    double mean = 0, kl_mean = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int i = 0; i + 1 < lengths[s]; i++) {
            size_t row = x->span[s].offset + (size_t)i;
            const float *p = x->logits[0] + row * V, *q = x->logits[lane] + row * V;
            if (group && which >= 0 && group[s] != which) continue;
            nll[n] = -log_p(q, x->ids[row + 1]);
            kl[n] = 0;
            for (int v = 0; v < V; v++) kl[n] += exp(log_p(p, v)) * (log_p(p, v) - log_p(q, v));
            same += top_of(p) == top_of(q);
            mean += nll[n];
            kl_mean += kl[n++];
        }
    qsort(kl, (size_t)n, sizeof *kl, ascending);
    return (exf_quality){.tokens = (uint64_t)n, .ppl = exp(mean / n), .kl_mean = kl_mean / n,
                         .kl_median = nearest_rank(kl, n, 0.5),
                         .kl_p90 = nearest_rank(kl, n, 0.9), .kl_p99 = nearest_rank(kl, n, 0.99),
                         .kl_p999 = nearest_rank(kl, n, 0.999), .kl_max = kl[n - 1], .top1 = (double)same / n};
}

static void assert_near(double got, double want, const char *what, int lane, int which)
{
    ck_assert_msg(fabs(got - want) <= 2e-5 * fabs(want) + 1e-6, "lane %d, group %d: %s is %.9g, expected %.9g", lane, which, what,
                  got, want);
}

static void assert_quality(const exf_quality *q, const exf_quality *want, int lane, int which)
{
    ck_assert_uint_eq(q->tokens, want->tokens);
    assert_near(q->ppl, want->ppl, "ppl", lane, which);
    ck_assert(isnan(q->ppl_se) && isnan(q->kl_se)); /* exf_validate() has them */
    assert_near(q->kl_mean, want->kl_mean, "mean KL", lane, which);
    assert_near(q->kl_median, want->kl_median, "median KL", lane, which);
    assert_near(q->kl_p90, want->kl_p90, "90 % KL", lane, which);
    assert_near(q->kl_p99, want->kl_p99, "99 % KL", lane, which);
    assert_near(q->kl_p999, want->kl_p999, "99.9 % KL", lane, which);
    assert_near(q->kl_max, want->kl_max, "largest KL", lane, which);
    ck_assert(q->top1 == want->top1);
}

/* ---- scores --------------------------------------------------------------------------------- */

START_TEST(scores_are_the_formulas)
{
    static const int32_t groups[SEQUENCES] = {2, 1, 0, 0, 1}; /* group 2 has one token, which has no next one */
    exf_err e;
    sample x;
    open_sample(&x);
    exf_scores *s = scored(&x, 1, 128);
    for (int lane = 0; lane < LANES; lane++)
        for (int which = -1; which < 2; which++) {
            exf_quality got, want = naive_quality(&x, lane, groups, which);
            ck_ok(exf_scores_sum(s, (size_t)lane, groups, which, &got, &e), e);
            assert_quality(&got, &want, lane, which);
        }
    exf_quality all, nobody, again;
    ck_ok(exf_scores_sum(s, 1, groups, -1, &all, &e), e);
    ck_ok(exf_scores_sum(s, 1, NULL, 7, &again, &e), e); /* no groups: all */
    ck_assert_mem_eq(&all, &again, sizeof all);
    ck_assert_uint_eq(all.tokens, TOKENS - SEQUENCES);
    for (int which = 2; which < 4; which++) {
        ck_ok(exf_scores_sum(s, 1, groups, which, &nobody, &e), e);
        ck_assert(nobody.tokens == 0 && nobody.ppl == 0 && nobody.kl_max == 0 && nobody.top1 == 0);
    }
    exf_scores_free(s);
    close_sample(&x);
}
END_TEST

/* Sums over clusters are those of the sequences that exf_scores_sum() takes as groups. */
START_TEST(clusters_add_up)
{
    static const size_t cluster_of[SEQUENCES] = {0, 0, 1, 1, 2};
    static const int32_t groups[SEQUENCES] = {0, 0, 1, 1, 2};
    exf_err e;
    exf_quality q;
    sample x;
    open_sample(&x);
    exf_scores *s = scored(&x, 1, 128);
    for (size_t lane = 0; lane < LANES; lane++) {
        double nll[3] = {0}, kl[3] = {0};
        exf_scores_cluster_sums(s, lane, cluster_of, nll, kl);
        for (int c = 0; c < 3; c++) {
            ck_ok(exf_scores_sum(s, lane, groups, c, &q, &e), e);
            ck_assert(fabs(exp(nll[c] / (double)q.tokens) - q.ppl) <= 1e-12 * q.ppl);
            ck_assert(fabs(kl[c] / (double)q.tokens - q.kl_mean) <= 1e-12);
        }
    }
    exf_scores_free(s);
    close_sample(&x);
}
END_TEST

START_TEST(the_first_lane_is_no_way_from_itself)
{
    exf_err e;
    exf_quality q;
    sample x;
    open_sample(&x);
    memcpy(x.logits[1], x.logits[0], TOKENS * V * sizeof(float));
    exf_scores *s = scored(&x, 2, 64);
    exf_quality first;
    ck_ok(exf_scores_sum(s, 0, NULL, -1, &first, &e), e);
    ck_ok(exf_scores_sum(s, 1, NULL, -1, &q, &e), e);
    ck_assert(first.kl_max == 0 && first.top1 == 1);
    ck_assert(q.kl_max == 0 && q.kl_mean == 0 && q.top1 == 1);
    ck_assert(fabs(q.ppl - first.ppl) <= 1e-6 * first.ppl);
    exf_scores_free(s);
    close_sample(&x);
}
END_TEST

START_TEST(workers_and_blocks_change_no_bit)
{
    exf_err e;
    sample x;
    open_sample(&x);
    exf_scores *a = scored(&x, 1, 128), *b = scored(&x, 3, 17);
    for (size_t lane = 0; lane < LANES; lane++) {
        exf_quality p, q;
        ck_ok(exf_scores_sum(a, lane, NULL, -1, &p, &e), e);
        ck_ok(exf_scores_sum(b, lane, NULL, -1, &q, &e), e);
        ck_assert_mem_eq(&p, &q, sizeof p);
    }
    exf_scores_free(a);
    exf_scores_free(b);
    close_sample(&x);
}
END_TEST

/* Nearest rank on known values: 1 to n in the last token of sequences of two. */
START_TEST(quantiles_by_nearest_rank)
{
    enum { N = 1000 };
    static exf_span span[N];
    static int32_t ids[2 * N];
    static const struct { int n; double median, p90, p99, p999;
    } cases[] = {
        {1, 1, 1, 1, 1},    {2, 1, 2, 2, 2},     {3, 2, 3, 3, 3},        {4, 2, 4, 4, 4},
        {10, 5, 9, 10, 10}, {11, 6, 10, 11, 11}, {100, 50, 90, 99, 100}, {1000, 500, 900, 990, 999},
    };
    exf_err e;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int n = cases[c].n;
        exf_scores *s;
        exf_quality q;
        for (int i = 0; i < n; i++) span[i] = (exf_span){2 * (size_t)i, 2};
        exf_batch batch = {ids, span, (size_t)n, 2 * (size_t)n, 2};
        ck_ok(exf_scores_new(&s, &batch, 2, 2, &e), e);
        ck_ok(exf_scores_begin(s, 1, NULL, &e), e);
        for (int i = 0; i < n; i++) {
            float one[4] = {60, 0, 0, 0},
                  other[4] = {0, (float)((i * 7 + 3) % n + 1), 0, 0}; /* KL is the gap where e^-gap is nothing */
            exf_logits_block b = {.sequence = (size_t)i, .row = 2 * (size_t)i, .n_tokens = 2, .vocab = 2, .logits = one};
            ck_ok(exf_scores_logits(exf_scores_lane(s, 0), &b, &e), e);
            b.logits = other;
            ck_ok(exf_scores_logits(exf_scores_lane(s, 1), &b, &e), e);
        }
        ck_ok(exf_scores_sum(s, 1, NULL, -1, &q, &e), e);
        const double want[] = {cases[c].median, cases[c].p90, cases[c].p99, cases[c].p999, n};
        const double got[] = {q.kl_median, q.kl_p90, q.kl_p99, q.kl_p999, q.kl_max};
        for (int i = 0; i < 5; i++) /* log(1 + e^k) of the value k */
            ck_assert_msg(fabs(got[i] - (want[i] + log1p(exp(-want[i])))) <= 1e-5 * want[i], "n %d: quantile %d is %g, expected %g",
                          n, i, got[i], want[i]);
        exf_scores_free(s);
    }
}
END_TEST

static void refused(int lane, size_t row, float value, const char *says)
{
    exf_err e;
    exf_quality q;
    sample x;
    open_sample(&x);
    x.logits[lane][row * V + 4] = value;
    exf_scores *s = scored(&x, 2, 128);
    for (size_t l = 0; l < LANES; l++) {
        exf_code rc = exf_scores_sum(s, l, NULL, -1, &q, &e);
        if (rc != EXF_OK) ck_fails(rc, EXF_NUMERIC, e, says);
        ck_assert_msg((rc != EXF_OK) == (lane == 0 || (int)l == lane), "lane %zu beside a bad lane %d: %s", l, lane,
                      exf_code_name(rc));
    }
    exf_scores_free(s);
    close_sample(&x);
}

START_TEST(what_is_not_finite_is_refused_with_its_place)
{
    refused(1, 1, NAN, "sequence 1 at position 0");
    refused(2, 6 + 123, NAN, "sequence 3 at position 123");
    refused(2, 6 + 123, INFINITY, "sequence 3 at position 123");
    refused(0, 306 + 5, NAN, "sequence 4 at position 5");
}
END_TEST

/* e^x of a mean beyond 709 is no number, and JSON has no infinity. */
START_TEST(perplexities_beyond_a_double_are_refused)
{
    exf_err e;
    exf_quality q;
    sample x;
    open_sample(&x);
    for (int i = 0; i < TOKENS * V; i++) x.logits[1][i] = i % V == 3 ? 1e4f : 0; /* certain, and mostly wrong */
    exf_scores *s = scored(&x, 1, 128);
    ck_fails(exf_scores_sum(s, 1, NULL, -1, &q, &e), EXF_NUMERIC, e, "log-likelihood 9188.31");
    ck_ok(exf_scores_sum(s, 2, NULL, -1, &q, &e), e);
    exf_scores_free(s);
    close_sample(&x);
}
END_TEST

/* The last position has no next token, so nobody asks for its logits. */
START_TEST(last_positions_have_no_scores)
{
    exf_err e;
    exf_quality before, after;
    sample x;
    open_sample(&x);
    exf_scores *s = scored(&x, 1, 128);
    ck_ok(exf_scores_sum(s, 1, NULL, -1, &before, &e), e);
    exf_scores_free(s);
    for (int i = 0; i < SEQUENCES; i++) x.logits[1][(x.span[i].offset + (size_t)lengths[i] - 1) * V] = NAN;
    s = scored(&x, 1, 128);
    ck_ok(exf_scores_sum(s, 1, NULL, -1, &after, &e), e);
    ck_assert_mem_eq(&before, &after, sizeof before);
    exf_scores_free(s);
    close_sample(&x);
}
END_TEST

START_TEST(memory_is_told)
{
    exf_batch b = {.n_tokens = 1000};
    ck_assert_uint_eq(exf_scores_memory(&b, 3, 50, 2), 3 * 1000 * 9 + 2 * 2 * 128 * 50 * 4);
}
END_TEST

/* ---- errors of layers -------------------------------------------------------------------------- */

enum { LAYERS = 3, H = 6, ROWS = 90 };

static void feed_errors(exf_layer_errors *s, const float *y, const float *z, int n_workers, int rows)
{
    exf_err e;
    ck_ok(exf_layer_errors_begin(s, LAYERS, n_workers, NULL, &e), e);
    for (int l = 0; l < LAYERS - 1; l++) /* the last layer is silent */
        for (int at = 0, turn = 0; at < ROWS; at += rows, turn++) {
            int n = ROWS - at < rows ? ROWS - at : rows;
            const exf_probe_block b = {.layer = l + 2, .moe_index = l, .sequence = 1, .row = (size_t)at, .position = at,
                                       .n_tokens = n, .d_model = H,
                                       .worker = turn % n_workers, .original = y + (size_t)(l * ROWS + at) * H,
                                       .rewritten = z + (size_t)(l * ROWS + at) * H};
            ck_ok(exf_layer_errors_add(s, &b, &e), e);
        }
}

START_TEST(errors_are_exact_and_do_not_depend_on_workers)
{
    float *y = naive_numbers(LAYERS * ROWS * H, 51, 3), *z = naive_numbers(LAYERS * ROWS * H, 52, 3);
    exf_layer_errors a, b, c;
    feed_errors(&a, y, z, 1, ROWS);
    feed_errors(&b, y, z, 2, 7);
    feed_errors(&c, y, z, 5, 1);
    for (int l = 0; l < LAYERS; l++) {
        double error = 0, norm = 0;
        for (int i = l * ROWS * H; i < (l + 1) * ROWS * H; i++) {
            error += ((double)z[i] - (double)y[i]) * ((double)z[i] - (double)y[i]);
            norm += (double)y[i] * (double)y[i];
        }
        double want = l < LAYERS - 1 ? sqrt(error / norm) : 0, got = exf_layer_errors_value(&a, l);
        ck_assert_msg(fabs(got - want) <= 1e-14 * want, "layer %d: %.17g, expected %.17g", l, got, want);
        ck_assert(got == exf_layer_errors_value(&b, l) && got == exf_layer_errors_value(&c, l));
    }
    exf_layer_errors_free(&a);
    exf_layer_errors_free(&b);
    exf_layer_errors_free(&c);
    exf_layer_errors_free(&c);
    exf_mem_free(y);
    exf_mem_free(z);
}
END_TEST

START_TEST(errors_of_special_rows)
{
    static const float same[H] = {1, 2, 3, 4, 5, 6}, none[H] = {0}, twice[H] = {2, 4, 6, 8, 10, 12};
    static const struct { const float *y, *z; double want; } cases[] = {{same, same, 0}, {same, none, 1}, {same, twice, 1},
                                                                        {none, none, 0}, {none, same, 0}};
    exf_err e;
    for (int i = 0; i < 5; i++) {
        exf_layer_errors s;
        ck_ok(exf_layer_errors_begin(&s, 1, 1, NULL, &e), e);
        exf_probe_block b = {.n_tokens = 1, .d_model = H, .original = cases[i].y, .rewritten = cases[i].z};
        ck_ok(exf_layer_errors_add(&s, &b, &e), e);
        ck_assert(exf_layer_errors_value(&s, 0) == cases[i].want);
        exf_layer_errors_free(&s);
    }
}
END_TEST

START_TEST(outputs_beyond_the_sums_are_refused)
{
    static const float bad[] = {NAN, INFINITY, 1e18f};
    exf_err e;
    for (int i = 0; i < 3; i++)
        for (int original = 0; original < 2; original++) {
            float y[2 * H] = {1}, z[2 * H] = {1};
            exf_layer_errors s;
            (original ? y : z)[H + 3] = bad[i];
            ck_ok(exf_layer_errors_begin(&s, 1, 1, NULL, &e), e);
            exf_probe_block b = {
                .layer = 7, .sequence = 4, .position = 30, .n_tokens = 2, .d_model = H, .original = y, .rewritten = z};
            ck_fails(exf_layer_errors_add(&s, &b, &e), EXF_NUMERIC, e, "7 4 31");
            exf_layer_errors_free(&s);
        }
}
END_TEST

/* On a device all lanes' scores lie in memory of its own, and are freed there. */
START_TEST(scores_of_a_device_are_the_same)
{
    sample x;
    exf_err e;
    exf_scores *s, *own;
    open_sample(&x);
    own = scored(&x, 2, 64);
    ck_ok(exf_scores_new(&s, &x.batch, LANES, V, &e), e);
    feed(s, &x, 2, 64, fake_device(1 << 24));
    for (size_t l = 0; l < LANES; l++) {
        exf_quality there, here;
        memset(&there, 0, sizeof there);
        memset(&here, 0, sizeof here);
        ck_ok(exf_scores_sum(s, l, NULL, -1, &there, &e), e);
        ck_ok(exf_scores_sum(own, l, NULL, -1, &here, &e), e);
        ck_assert(memcmp(&there, &here, sizeof here) == 0);
    }
    exf_scores_free(s);
    exf_scores_free(own);
    close_sample(&x);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, scores_are_the_formulas);
    tcase_add_test(t, scores_of_a_device_are_the_same);
    tcase_add_test(t, clusters_add_up);
    tcase_add_test(t, the_first_lane_is_no_way_from_itself);
    tcase_add_test(t, workers_and_blocks_change_no_bit);
    tcase_add_test(t, quantiles_by_nearest_rank);
    tcase_add_test(t, what_is_not_finite_is_refused_with_its_place);
    tcase_add_test(t, perplexities_beyond_a_double_are_refused);
    tcase_add_test(t, last_positions_have_no_scores);
    tcase_add_test(t, memory_is_told);
    tcase_add_test(t, errors_are_exact_and_do_not_depend_on_workers);
    tcase_add_test(t, errors_of_special_rows);
    tcase_add_test(t, outputs_beyond_the_sums_are_refused);
}

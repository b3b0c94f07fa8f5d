/* check_cuda_scores.c - rows of logits on the GPU that are equal or are no numbers, and the scores of a whole pass against the
 * CPU's pass.  check_cuda_scores_shapes.c has rows of all widths. */
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"
#include "tests/support/pair_fixtures.h"

#include "base/mem.h"
#include "kernels/statistics/divergence.h"
#include "validate/scores.h"

#include <math.h>
#include <string.h>

enum { ROWS = 9 };

static const int widths[] = {1, 2, 7, 31, 512, 513, 1000, 4099, 151936};
enum { WIDTHS = sizeof widths / sizeof *widths };

/* ---- the operation ------------------------------------------------------------------------ */

typedef struct {
    float nll[ROWS], kl[ROWS];
    unsigned char same[ROWS];
} scored;

/* Rows of `other` held against rows of `first`, or `first` alone where other is NULL. */
static scored score(const float *first, const float *other, const int32_t *next, int n)
{
    const exf_backend *b = p.b[1];
    exf_queue *q = p.q[1];
    exf_err e;
    size_t bytes = (size_t)ROWS * (size_t)n * sizeof(float);
    float *logits, *log_p, *out;
    int32_t *on_device;
    scored s;
    ck_ok(b->alloc(&logits, bytes, 1, "test", &e), e);
    ck_ok(b->alloc(&log_p, bytes, 1, "test", &e), e);
    ck_ok(b->alloc(&out, 1, sizeof s, "test", &e), e);
    ck_ok(b->alloc(&on_device, 2 * ROWS, sizeof *on_device, "test", &e), e);
    b->upload(q, on_device, next, ROWS * sizeof *next);
    for (int round = 0; round < (other ? 2 : 1); round++) {
        exf_score_call c = {.logits = logits, .next = on_device, .n_rows = ROWS, .n = n, .first = round == 0, .log_p = log_p,
                            .top = on_device + ROWS, .nll = out, .kl = out + ROWS, .same = (unsigned char *)(out + 2 * ROWS)};
        b->upload(q, logits, round ? other : first, bytes);
        b->gpu->score_rows(q, &c);
    }
    ck_ok(b->download(q, &s, out, sizeof s, &e), e);
    b->free(logits);
    b->free(log_p);
    b->free(out);
    b->free(on_device);
    return s;
}

static void tokens(int32_t next[ROWS], int n)
{
    for (int i = 0; i < ROWS; i++) next[i] = (int32_t)((int64_t)n * i / ROWS);
}

/* A row against itself is at distance 0 exactly; equal logits are a fair choice, and of
 * equal ones the first is the top. */
START_TEST(equal_rows_are_at_no_distance)
{
    int n = widths[_i];
    pair_array a = pair_reals(&p, (size_t)ROWS * (size_t)n, 3, 20), flat = pair_reals(&p, (size_t)ROWS * (size_t)n, 4, 0);
    int32_t next[ROWS];
    tokens(next, n);
    scored same = score(a.f[0], a.f[0], next, n), even = score(flat.f[0], flat.f[0], next, n);
    for (int r = 0; r < ROWS; r++) {
        ck_assert(same.kl[r] == 0 && same.same[r] == 1 && even.kl[r] == 0 && even.same[r] == 1);
        ck_assert_float_eq_tol(even.nll[r], logf((float)n), 1e-6f);
    }
    pair_array late = pair_reals(&p, (size_t)ROWS * (size_t)n, 4, 0); /* the last is the largest, alone */
    for (int r = 0; r < ROWS; r++) late.f[0][(size_t)(r + 1) * (size_t)n - 1] = 1;
    scored moved = score(flat.f[0], late.f[0], next, n);
    for (int r = 0; r < ROWS; r++) ck_assert_int_eq(moved.same[r], n == 1);
    pair_free(&a);
    pair_free(&flat);
    pair_free(&late);
}
END_TEST

START_TEST(what_is_no_number_stays_none)
{
    enum { N = 700 };
    pair_array a = pair_reals(&p, ROWS * N, 5, 3);
    int32_t next[ROWS];
    tokens(next, N);
    a.f[0][3 * N + 600] = NAN;
    for (int i = 0; i < N; i++) a.f[0][4 * N + i] = -INFINITY;
    a.f[0][5 * N + 1] = -INFINITY; /* is a probability of 0 */
    for (int i = 0; i < N; i += 2) a.f[0][6 * N + i] = -INFINITY;
    scored s = score(a.f[0], NULL, next, N);
    for (int r = 0; r < ROWS; r++) ck_assert_int_eq(isnan(s.nll[r]) != 0, r == 3 || r == 4);
    pair_free(&a);
}
END_TEST

/* ---- a pass --------------------------------------------------------------------------------- */

/* Drops the last slot of every token, so that lanes differ. */
static exf_code drop_last(void *self, exf_routes *r, exf_err *err)
{
    (void)self;
    (void)err;
    for (size_t t = 0; t < r->batch->n_tokens; t++) {
        r->ids[(t + 1) * (size_t)r->top_k - 1] = -1;
        r->weights[(t + 1) * (size_t)r->top_k - 1] = 0;
    }
    return EXF_OK;
}

static exf_code begin(void *self, int n_workers, const exf_backend *gpu, exf_err *err)
{
    return exf_scores_begin(self, n_workers, gpu, err);
}

static exf_code first_logits(void *self, const exf_logits_block *b, exf_err *err)
{
    return exf_scores_logits(exf_scores_lane(self, 0), b, err);
}

static exf_code second_logits(void *self, const exf_logits_block *b, exf_err *err)
{
    return exf_scores_logits(exf_scores_lane(self, 1), b, err);
}

/* Quality of both lanes. */
static void run(exf_quality out[2], const golden_case *c, const exf_backend *b)
{
    exf_err e;
    exf_scores *s;
    exf_forward_report report;
    exf_forward_options o = {.backend = b, .threads = 1};
    exf_rewriter drops = {.rewrite = drop_last};
    ck_ok(exf_scores_new(&s, &c->batch, 2, c->model->arch.vocab, &e), e);
    exf_observer first = {.self = s, .reads_device = 1, .begin = begin, .logits = first_logits};
    exf_observer second = {.self = s, .reads_device = 1, .logits = second_logits};
    exf_lane lanes[2] = {{.observer = &first}, {.rewriter = &drops, .observer = &second}};
    ck_ok(exf_forward(c->model, &c->batch, lanes, 2, &o, &report, &e), e);
    for (size_t l = 0; l < 2; l++) ck_ok(exf_scores_sum(s, l, NULL, -1, &out[l], &e), e);
    exf_scores_free(s);
}

START_TEST(a_pass_is_scored_as_on_the_cpu)
{
    golden_case c;
    exf_quality cpu[2], gpu[2], again[2];
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    golden_open(&c, golden_families[_i]);
    run(cpu, &c, &exf_backend_cpu);
    run(gpu, &c, p.b[1]);
    run(again, &c, p.b[1]);
    ck_assert_msg(memcmp(gpu, again, sizeof gpu) == 0, "%s: a second run has other scores", golden_families[_i]);
    ck_assert(cpu[1].kl_mean > 0);
    for (int l = 0; l < 2; l++) {
        ck_assert_uint_eq(gpu[l].tokens, cpu[l].tokens);
        ck_assert_double_eq_tol(gpu[l].ppl, cpu[l].ppl, 1e-3 * cpu[l].ppl);
        ck_assert_double_eq_tol(gpu[l].kl_mean, cpu[l].kl_mean, 1e-2 * cpu[l].kl_mean + 1e-12); /* the first lane's is 0 */
        ck_assert_double_eq_tol(gpu[l].kl_max, cpu[l].kl_max, 2e-2 * cpu[l].kl_max + 1e-12);
        ck_assert_double_eq_tol(gpu[l].top1, cpu[l].top1, 1.5 / (double)cpu[l].tokens);
    }
    golden_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, equal_rows_are_at_no_distance, 0, WIDTHS);
    tcase_add_test(t, what_is_no_number_stays_none);
    tcase_add_loop_test(t, a_pass_is_scored_as_on_the_cpu, 0, golden_n_families());
}

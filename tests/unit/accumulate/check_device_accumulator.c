/* check_device_accumulator.c - an accumulator in a pass on a GPU: its chapters are shown blocks in GPU memory, and give the sums of
 * a pass on the CPU.  The fake device computes by the CPU's functions; of a layer it gives dot, count and norm_sum. */
#include "accumulate/accumulate.h"
#include "tests/support/fake_device.h"
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { LAYERS = 8 };

static exf_err e;

/* The sums of all layers, as the consumer got them. */
typedef struct {
    exf_layer_statistics layer[LAYERS];
    int n;
} taken;

static exf_code take(void *self, int i, const exf_layer_statistics *s, exf_err *err)
{
    taken *t = self;
    exf_layer_statistics *to = &t->layer[i];
    exf_code rc;
    ck_assert_int_eq(i, t->n++);
    EXF_TRY(exf_layer_statistics_new(to, s->n_experts, err));
    if (s->routes.n) EXF_TRY(exf_route_sample_new(&to->routes, s->routes.n, s->routes.top_k, err));
    rc = exf_layer_statistics_merge(to, s, err);
out:
    return rc;
}

static void accumulate(taken *t, const golden_case *c, const exf_backend *b, const exf_accumulate_options *o)
{
    const exf_architecture *a = &c->model->arch;
    exf_run_shape shape = {a->n_experts, a->top_k, a->d_model, (int64_t)c->batch.n_sequences, (int64_t)c->batch.n_tokens};
    exf_sequence_list sequences;
    exf_provenance p = {0};
    exf_facts_part part = {.path = "run", .provenance = &p, .sequences = &sequences};
    int32_t numbers[LAYERS];
    exf_accumulator_plan plan = {.target = exf_scratch("s.h5"), .force = 1, .shape = &shape, .layer_number = numbers,
                                 .parts = &part, .n_parts = 1, .options = o, .consumer = {t, take}};
    exf_forward_options options = {.backend = b, .threads = 1};
    exf_forward_report report;
    exf_accumulator *x;
    for (int l = 0; l < a->n_layers; l++)
        if (a->is_moe[l]) numbers[plan.n_layers++] = l;
    ck_assert_int_le(plan.n_layers, LAYERS);
    ck_ok(exf_sequence_list_new(&sequences, c->batch.n_sequences, &e), e);
    for (size_t i = 0; i < sequences.n; i++) {
        const exf_span *span = &c->batch.span[i];
        sequences.length[i] = span->n_tokens;
        ck_ok(exf_sequence_sha256(sequences.sha256[i], c->batch.ids + span->offset, span->n_tokens, &e), e);
    }
    *t = (taken){.n = 0};
    ck_ok(exf_accumulator_new(&x, &plan, &e), e);
    exf_lane lane = {.observer = exf_accumulator_observer(x)};
    ck_ok(exf_forward(c->model, &c->batch, &lane, 1, &options, &report, &e), e);
    ck_ok(exf_accumulator_commit(x, NULL, &e), e);
    exf_accumulator_free(x);
    ck_assert_int_eq(t->n, plan.n_layers);
    exf_sequence_list_free(&sequences);
    exf_provenance_free(&p);
}

static void assert_same(const taken *cpu, const taken *gpu, const golden_case *c, const char *family)
{
    for (int l = 0; l < cpu->n; l++) {
        const exf_layer_statistics *a = &cpu->layer[l], *b = &gpu->layer[l];
        size_t experts = (size_t)a->n_experts, slots = a->routes.n * (size_t)a->routes.top_k;
        ck_assert_msg(memcmp(a->count, b->count, experts * experts * sizeof *a->count) == 0, "%s: layer %d: counts", family, l);
        for (size_t i = 0; i < experts; i++) {
            double x = exf_exact_value(&a->norm_sum[i]), y = exf_exact_value(&b->norm_sum[i]);
            ck_assert_msg(fabs(x - y) <= 1e-4 * fabs(x), "%s: layer %d, expert %zu: %g and %g", family, l, i, x, y);
            ck_assert_uint_eq(a->bare_count[i], b->bare_count[i]);
        }
        ck_assert_uint_eq(*a->stream_count, *b->stream_count);
        ck_assert_double_le(fabs(exf_exact_value(a->stream_sq) / exf_exact_value(b->stream_sq) - 1), 1e-4);
        ck_assert_uint_eq(*a->stream_first_count, c->batch.n_sequences);
        ck_assert_uint_eq(*b->stream_first_count, c->batch.n_sequences);
        ck_assert_double_le(fabs(exf_exact_value(a->stream_first_sq) / exf_exact_value(b->stream_first_sq) - 1), 1e-4);
        ck_assert_double_lt(exf_exact_value(a->stream_first_sq), exf_exact_value(a->stream_sq));
        ck_assert_uint_eq(a->routes.n, b->routes.n);
        ck_assert(!slots || memcmp(a->routes.ids, b->routes.ids, slots * sizeof *a->routes.ids) == 0);
        ck_assert(!slots || memcmp(a->routes.key, b->routes.key, a->routes.n * sizeof *a->routes.key) == 0);
    }
}

START_TEST(a_pass_on_a_gpu_gives_the_same_sums)
{
    static const exf_accumulate_options options[] = {
        {.weighting = EXF_WEIGHT_SOURCE_NORM, .route_sample = 9},
        {.weighting = EXF_WEIGHT_ROUTER, .cross_check = 1},
        {.weighting = EXF_WEIGHT_SOURCE_NORM, .common_input_tokens = 5, .cross_check = 1},
        {.weighting = EXF_WEIGHT_NONE, .common_input_tokens = 7, .bare_router = EXF_BARE_RENORMALISED, .route_sample = 1000}};
    static const char *const families[] = {"qwen3_moe", "deepseek_v4", "gpt_oss"};
    golden_case c;
    taken cpu, gpu;
    uint64_t before, after, peak;
    const exf_backend *b = fake_device((uint64_t)1 << 40);
    const char *family = families[_i / 4];
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    golden_open(&c, family);
    b->gpu->memory(&before, &peak);
    accumulate(&cpu, &c, &exf_backend_cpu, &options[_i % 4]);
    accumulate(&gpu, &c, b, &options[_i % 4]);
    b->gpu->memory(&after, &peak);
    ck_assert_uint_eq(before, after);
    assert_same(&cpu, &gpu, &c, family);
    for (int l = 0; l < cpu.n; l++) {
        exf_layer_statistics_free(&cpu.layer[l]);
        exf_layer_statistics_free(&gpu.layer[l]);
    }
    golden_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, a_pass_on_a_gpu_gives_the_same_sums, 0, 12);
}

/* check_golden.c - every family's forward against the reference's float32 answers
 * (tests/golden/<family>), and the forward's promises about order and threads. */
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* No token's logits are farther from the reference's than `limit`, relative to their norm. */
static void check_tokens(const golden_case *c, const golden_seen *s, double limit)
{
    size_t n, vocab = (size_t)s->vocab;
    float *want = golden_tensor(c->answers, "logits", &n);
    for (size_t t = 0; t < s->n_rows; t++) {
        double d = golden_distance(s->logits + t * vocab, want + t * vocab, vocab);
        ck_assert_msg(d <= limit, "%s: the logits of token %zu are %.2e from the golden", c->family, t, d);
    }
    exf_mem_free(want);
}

START_TEST(forward_matches_the_reference)
{
    golden_case c;
    golden_seen s;
    golden_open(&c, golden_families[_i]);
    golden_forward(&s, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 2);
    golden_compare(&c, &s, 1e-4, 1e-6f); /* float32 against float32 */
    check_tokens(&c, &s, 2e-5); /* most are within 4e-6 */
    golden_free(&s);
    golden_close(&c);
}
END_TEST

static void assert_same_rows(const float *a, const float *b, size_t n_rows, size_t width, const char *what)
{
    ck_assert_msg(memcmp(a, b, n_rows * width * sizeof(float)) == 0, "%s differ", what);
}

/* The same tokens in other company: bits must not change. */
START_TEST(bits_depend_on_nothing_but_the_sequence)
{
    golden_case c;
    golden_seen all, one;
    golden_open(&c, golden_families[_i]);
    golden_forward(&all, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 2);
    size_t vocab = (size_t)c.model->arch.vocab;
    for (size_t i = 0; i < c.batch.n_sequences; i++) {
        exf_span span = {0, c.span[i].n_tokens};
        exf_batch alone = {c.ids + c.span[i].offset, &span, 1, (size_t)span.n_tokens, span.n_tokens};
        golden_forward(&one, c.model, &alone, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
        assert_same_rows(one.logits, all.logits + c.span[i].offset * vocab, (size_t)span.n_tokens, vocab,
                         "logits alone and in company");
        golden_free(&one);
    }
    golden_free(&all);
    golden_close(&c);
}
END_TEST

/* Causality: a prefix gives what the whole sequence gave there, up to rounding;
 * lengths 1, 2, 7 and a batch of unequal lengths. */
START_TEST(prefixes_of_any_length_agree)
{
    static const int lengths[] = {1, 2, 7, 17};
    golden_case c;
    golden_seen all, cut;
    golden_open(&c, golden_families[_i]);
    golden_forward(&all, c.model, &c.batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    exf_span span[4];
    int32_t ids[64];
    size_t n = 0, vocab = (size_t)c.model->arch.vocab;
    for (int i = 0; i < 4; i++) {
        span[i] = (exf_span){n, lengths[i]};
        memcpy(ids + n, c.ids, (size_t)lengths[i] * sizeof *ids);
        n += (size_t)lengths[i];
    }
    exf_batch batch = {ids, span, 4, n, 17};
    golden_forward(&cut, c.model, &batch, &exf_backend_cpu, EXF_COMPUTE_F32, 2);
    for (int i = 0; i < 4; i++) {
        double d = golden_distance(cut.logits + span[i].offset * vocab, all.logits, (size_t)lengths[i] * vocab);
        ck_assert_msg(d < 5e-5, /* 3.4e-6 with the kernels of OpenBLAS for Haswell */
                      "%s: a prefix of %d tokens is %.1e off", golden_families[_i], lengths[i], d);
    }
    golden_free(&all);
    golden_free(&cut);
    golden_close(&c);
}
END_TEST

/* Rewriting: dropped slots run nothing, and a repeated expert counts twice. */
static exf_code halve(void *self, exf_routes *r, exf_err *err)
{
    (void)self;
    (void)err;
    for (size_t i = 0; i < r->batch->n_tokens * (size_t)r->top_k; i += (size_t)r->top_k) {
        r->ids[i + 1] = r->ids[i];
        for (int k = 2; k < r->top_k; k++) r->ids[i + (size_t)k] = -1;
    }
    return EXF_OK;
}

static exf_code check_halved(void *self, const exf_moe_block *b, exf_err *err)
{
    size_t h = (size_t)b->d_model;
    int *seen = self;
    (void)err;
    for (int t = 0; t < b->n_tokens; t++) {
        const float *o = (const float *)b->expert_outputs + (size_t)t * (size_t)b->top_k * h,
                    *w = b->topk_weights + (size_t)t * (size_t)b->top_k;
        for (size_t j = 0; j < h; j++) {
            ck_assert(o[j] == o[h + j]);
            ck_assert(o[2 * h + j] == 0);
            ck_assert(fabsf(b->routed_output[(size_t)t * h + j] - (w[0] + w[1]) * o[j]) <= 1e-5f * (1 + fabsf(o[j])));
        }
    }
    *seen = 1;
    return EXF_OK;
}

START_TEST(rewriters_steer_the_experts)
{
    golden_case c;
    int seen = 0;
    exf_err err = {.code = EXF_OK};
    golden_open(&c, "qwen3_moe");
    exf_rewriter rewriter = {.rewrite = halve};
    exf_observer observer = {.self = &seen, .block = check_halved};
    exf_lane lanes[2] = {{&rewriter, &observer}, {NULL, NULL}};
    exf_forward_options options = {.threads = 1, .n_layers = 1};
    exf_forward_report report;
    ck_ok(exf_forward(c.model, &c.batch, lanes, 2, &options, &report, &err), err);
    ck_assert_int_eq(seen, 1);
    golden_close(&c);
}
END_TEST

/* Layers that share the choice of an earlier indexer are computed where all tokens are chosen. */
START_TEST(shared_choices_are_for_short_sequences)
{
    exf_err err;
    golden_case c;
    golden_seen seen;
    golden_open(&c, "glm_moe_dsa");
    exf_observer observer = golden_observer(&seen, c.model, c.batch.n_tokens);
    exf_lane lane = {.observer = &observer};
    exf_forward_options options = {.backend = &exf_backend_cpu, .compute = EXF_COMPUTE_F32, .threads = 1};
    exf_forward_report report;
    c.model->arch.mla.index_shared = 1;
    ck_fails(exf_forward(c.model, &c.batch, &lane, 1, &options, &report, &err), EXF_MODEL, err, "\"index_topk\" 12 48 max_tokens");
    golden_free(&seen);
    golden_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, forward_matches_the_reference, 0, golden_n_families());
    tcase_add_loop_test(t, bits_depend_on_nothing_but_the_sequence, 0, golden_n_families());
    tcase_add_loop_test(t, prefixes_of_any_length_agree, 0, golden_n_families());
    tcase_add_test(t, shared_choices_are_for_short_sequences);
    tcase_add_test(t, rewriters_steer_the_experts);
}

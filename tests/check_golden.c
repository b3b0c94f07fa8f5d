/* check_golden.c - every family's forward against the reference's float32 answers
 * (tests/golden/<family>), and the forward's promises about order and threads. */
#include "tests/fixtures.h"
#include "tests/golden_run.h"

#include "base/mem.h"

#include <stdio.h>
#include <math.h>
#include <string.h>

/* A family is added here and as a folder. */
static const char *const families[] = {"qwen3_moe"};
enum { N_FAMILIES = sizeof families / sizeof *families };

static const double tolerance = 1e-4; /* relative Frobenius, float32 against float32 */

typedef struct {
    exf_model *model;
    exf_st_file *golden;
    int32_t *ids;
    exf_span span[16];
    exf_batch batch;
} golden_case;

static void open_case(golden_case *c, const char *family)
{
    char path[256];
    exf_err err;
    size_t n;
    snprintf(path, sizeof path, "tests/golden/%s", family);
    ck_ok(exf_model_open(&c->model, path, &err), err);
    snprintf(path, sizeof path, "tests/golden/%s/golden.safetensors", family);
    ck_ok(exf_st_open(&c->golden, path, &err), err);
    const exf_st_tensor *ids = exf_st_find(c->golden, "input_ids");
    c->ids = golden_tensor(c->golden, "input_ids", &n);
    size_t rows = (size_t)ids->view.shape[0], length = (size_t)ids->view.shape[1];
    for (size_t i = 0; i < rows; i++) c->span[i] = (exf_span){i * length, (int)length};
    c->batch = (exf_batch){c->ids, c->span, rows, n, (int)length};
}

static void close_case(golden_case *c)
{
    exf_model_close(c->model);
    exf_st_close(c->golden);
    exf_mem_free(c->ids);
}

static void compare(const golden_case *c, const char *family, const char *name, const float *seen, double limit)
{
    size_t n;
    float *want = golden_tensor(c->golden, name, &n);
    double d = golden_distance(seen, want, n);
    ck_assert_msg(d <= limit, "%s: %s is %.2e from the golden, %.0f %% of the allowed %.0e", family, name, d, 100 * d / limit, limit);
    exf_mem_free(want);
}

/* Equal ids, but for neighbours whose weights differ by less than 1e-6. */
static void compare_ids(const golden_case *c, const char *family, int layer, const golden_seen *s)
{
    char name[64];
    size_t n;
    snprintf(name, sizeof name, "layers.%d.topk_ids", layer);
    int32_t *want = golden_tensor(c->golden, name, &n);
    snprintf(name, sizeof name, "layers.%d.topk_weights", layer);
    float *weight = golden_tensor(c->golden, name, &n);
    for (size_t i = 0; i < n; i++)
        if (s->ids[layer][i] != want[i])
            ck_assert_msg(fabsf(s->weights[layer][i] - weight[i]) < 1e-6f, "%s: layer %d, slot %zu: expert %d, expected %d", family, layer, i,
                          (int)s->ids[layer][i], (int)want[i]);
    exf_mem_free(want);
    exf_mem_free(weight);
}

START_TEST(forward_matches_the_reference)
{
    const char *family = families[_i];
    golden_case c;
    golden_seen s;
    open_case(&c, family);
    golden_forward(&s, c.model, &c.batch, 2);
    for (int l = 0; l < c.model->arch.n_layers; l++) {
        const struct { const char *part; const float *seen; } parts[] = {
            {"moe_input", s.moe_input[l]}, {"topk_weights", s.weights[l]}, {"expert_outputs", s.expert_outputs[l]},
            {"routed_output", s.routed[l]}, {"block_output", s.block[l]},
        };
        if (!c.model->arch.is_moe[l]) continue;
        compare_ids(&c, family, l, &s);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d.%s", l, parts[i].part);
            compare(&c, family, name, parts[i].seen, tolerance);
        }
    }
    compare(&c, family, "logits", s.logits, tolerance);
    golden_free(&s);
    close_case(&c);
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
    open_case(&c, families[_i]);
    golden_forward(&all, c.model, &c.batch, 2);
    size_t vocab = (size_t)c.model->arch.vocab;
    for (size_t i = 0; i < c.batch.n_sequences; i++) {
        exf_span span = {0, c.span[i].n_tokens};
        exf_batch alone = {c.ids + c.span[i].offset, &span, 1, (size_t)span.n_tokens, span.n_tokens};
        golden_forward(&one, c.model, &alone, 1);
        assert_same_rows(one.logits, all.logits + c.span[i].offset * vocab, (size_t)span.n_tokens, vocab, "logits alone and in company");
        golden_free(&one);
    }
    golden_free(&all);
    close_case(&c);
}
END_TEST

/* Causality: a prefix gives what the whole sequence gave there, up to rounding;
 * lengths 1, 2, 7 and a batch of unequal lengths. */
START_TEST(prefixes_of_any_length_agree)
{
    static const int lengths[] = {1, 2, 7, 17};
    golden_case c;
    golden_seen all, cut;
    open_case(&c, families[_i]);
    golden_forward(&all, c.model, &c.batch, 1);
    exf_span span[4];
    int32_t ids[64];
    size_t n = 0, vocab = (size_t)c.model->arch.vocab;
    for (int i = 0; i < 4; i++) {
        span[i] = (exf_span){n, lengths[i]};
        memcpy(ids + n, c.ids, (size_t)lengths[i] * sizeof *ids);
        n += (size_t)lengths[i];
    }
    exf_batch batch = {ids, span, 4, n, 17};
    golden_forward(&cut, c.model, &batch, 2);
    for (int i = 0; i < 4; i++) {
        double d = golden_distance(cut.logits + span[i].offset * vocab, all.logits, (size_t)lengths[i] * vocab);
        ck_assert_msg(d < 1e-5, "%s: a prefix of %d tokens is %.1e off", families[_i], lengths[i], d);
    }
    golden_free(&all);
    golden_free(&cut);
    close_case(&c);
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
        const float *o = b->expert_outputs + (size_t)t * (size_t)b->top_k * h, *w = b->topk_weights + (size_t)t * (size_t)b->top_k;
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
    open_case(&c, "qwen3_moe");
    exf_rewriter rewriter = {.rewrite = halve};
    exf_observer observer = {.self = &seen, .block = check_halved};
    exf_lane lanes[2] = {{&rewriter, &observer}, {NULL, NULL}};
    exf_forward_options options = {.threads = 1, .n_layers = 1};
    exf_forward_report report;
    ck_ok(exf_forward(c.model, &c.batch, lanes, 2, &options, &report, &err), err);
    ck_assert_int_eq(seen, 1);
    close_case(&c);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("golden");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, forward_matches_the_reference, 0, N_FAMILIES);
    tcase_add_loop_test(t, bits_depend_on_nothing_but_the_sequence, 0, N_FAMILIES);
    tcase_add_loop_test(t, prefixes_of_any_length_agree, 0, N_FAMILIES);
    tcase_add_test(t, rewriters_steer_the_experts);
    suite_add_tcase(s, t);
    return s;
}

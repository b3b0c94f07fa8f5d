/* check_pruned.c - what the targets for pruned models share: the order of experts, the new config. */
#include "tests/support/export_fixtures.h"

#include "export/writer_internal.h"

enum { SIX = 6 };

static exf_err e; /* of the last call */

/* One layer of six experts with these scores, top-2. */
static exf_code score_tables(exf_tables *t, const float *score, exf_err *err)
{
    static const exf_run_shape shape = {.n_experts = SIX, .top_k = 2, .d_model = H, .n_sequences = 1, .n_tokens = 9};
    static const int32_t number = 4;
    exf_code rc;
    EXF_TRY(exf_tables_new(t, &shape, &number, 1, NULL, 0, err));
    EXF_TRY(exf_mem_new(&t->contribution, SIX, sizeof *t->contribution, "sample", err));
    memcpy(t->contribution, score, SIX * sizeof *score);
out:
    return rc;
}

static void ck_order(const float *score, int64_t ranks, const int32_t *expected)
{
    exf_tables t = {.n_layers = 0};
    int32_t *order = NULL;
    ck_ok(score_tables(&t, score, &e), e);
    const exf_export x = {.tables = &t, .ranks = ranks, .by = EXF_POOL_BY_REAP};
    ck_ok(exf_expert_order_allows(&x, &e), e);
    ck_ok(exf_expert_order_make(&order, &x, &e), e);
    for (int i = 0; i < SIX; i++) ck_assert_int_eq(order[i], expected[i]);
    exf_mem_free(order);
    exf_tables_free(&t);
}

START_TEST(experts_are_ordered_by_score)
{
    ck_order((const float[]){1, 5, 3, 0, 5, 0}, 1, (const int32_t[]){1, 4, 2, 0, 3, 5}); /* ties to the lower number */
}
END_TEST

START_TEST(ranks_take_turns)
{
    const float score[] = {9, 8, 7, 1, 2, 3};
    ck_order(score, 2, (const int32_t[]){0, 5, 1, 4, 2, 3});
    ck_order(score, 3, (const int32_t[]){0, 2, 5, 1, 4, 3});
    ck_order(score, 6, (const int32_t[]){0, 1, 2, 5, 4, 3});
}
END_TEST

static void ck_refused(int64_t keep, int64_t ranks, const char *what)
{
    const exf_export_settings s = {.n_experts = SIX, .top_k = 2, .keep = keep, .ranks = ranks};
    ck_assert_int_eq(exf_expert_order_asks_keep(&s, &e), EXF_USAGE);
    ck_assert_msg(strstr(e.msg, what) != NULL, "%s", e.msg);
}

START_TEST(numbers_that_cannot_be_kept_are_refused)
{
    const exf_export_settings good = {.n_experts = SIX, .top_k = 2, .keep = 4, .ranks = 2};
    ck_refused(0, 0, "export.experts is missing");
    ck_refused(1, 0, "expected 2 (experts per token) to 5");
    ck_refused(6, 0, "expected 2 (experts per token) to 5");
    ck_refused(3, 2, "no multiple of export.expert_parallel, 2");
    ck_refused(4, 4, "a number that divides 6 experts");
    ck_ok(exf_expert_order_asks_keep(&good, &e), e);
}
END_TEST

START_TEST(tables_without_scores_are_refused)
{
    const float score[SIX] = {0};
    exf_tables t = {.n_layers = 0};
    ck_ok(score_tables(&t, score, &e), e);
    exf_mem_free(t.contribution);
    t.contribution = NULL;
    ck_assert_int_eq(exf_expert_order_allows(&(exf_export){.tables = &t, .by = EXF_POOL_BY_REAP}, &e), EXF_USAGE);
    ck_assert_msg(strstr(e.msg, "hold no contribution") != NULL, "%s", e.msg);
    exf_tables_free(&t);
}
END_TEST

static void ck_config(const char *config, int keeps_prediction, const char *expected)
{
    exf_text out = {0};
    ck_ok(exf_pruned_config(&out, config, strlen(config), 16, 11, keeps_prediction, "config.json", &e), e);
    ck_assert_str_eq(out.s, expected);
    exf_text_free(&out);
}

START_TEST(numbers_of_experts_change_and_nothing_else)
{
    ck_config("{\"num_experts\" : 16, \"a\": 16,\n \"x\\\"num_experts\": 16, \"t\": {\"n_routed_experts\":16}}", 1,
              "{\"num_experts\" : 11, \"a\": 16,\n \"x\\\"num_experts\": 16, \"t\": {\"n_routed_experts\":11}}");
    ck_config("{\"e\": 1e-6, \"s\": \"num_experts\", \"num_local_experts\": 16, \"n_shared_experts\": 16, \"num_experts\": 160}", 1,
              "{\"e\": 1e-6, \"s\": \"num_experts\", \"num_local_experts\": 11, \"n_shared_experts\": 16, \"num_experts\": 160}");
    ck_config("{\"num_experts\": 16, \"num_nextn_predict_layers\": 1}", 1,
              "{\"num_experts\": 11, \"num_nextn_predict_layers\": 1}");
    ck_config("{\"num_experts\": 16, \"num_nextn_predict_layers\": 1}", 0,
              "{\"num_experts\": 11, \"num_nextn_predict_layers\": 0}");
}
END_TEST

START_TEST(a_config_without_the_number_is_refused)
{
    exf_text out = {0};
    static const char *const configs[] = {"{\"num_experts\": 8}", "{}", "{\"num_experts\"", "\"num_experts", ""};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        ck_assert_int_eq(exf_pruned_config(&out, configs[i], strlen(configs[i]), 16, 11, 1, "config.json", &e), EXF_MODEL);
    ck_assert_str_eq(e.msg, "config.json: no num_experts, n_routed_experts, num_local_experts or moe_num_experts is 16");
    exf_text_free(&out);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "pruned");
    tcase_add_test(t, experts_are_ordered_by_score);
    tcase_add_test(t, ranks_take_turns);
    tcase_add_test(t, numbers_that_cannot_be_kept_are_refused);
    tcase_add_test(t, tables_without_scores_are_refused);
    tcase_add_test(t, numbers_of_experts_change_and_nothing_else);
    tcase_add_test(t, a_config_without_the_number_is_refused);
}

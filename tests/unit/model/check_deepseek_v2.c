/* check_deepseek_v2.c - what a DeepSeek-V2 config.json means, and what is refused. */
#include "base/mem.h"
#include "model/family.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* V2-Lite's sizes, without the fields that the tests set. */
static const char sizes[] =
    "{\"hidden_size\": 2048, \"num_hidden_layers\": 27, \"vocab_size\": 102400, \"rms_norm_eps\": 1e-6, \"hidden_act\": \"silu\","
    " \"n_routed_experts\": 64, \"num_experts_per_tok\": 6, \"moe_intermediate_size\": 1408, \"intermediate_size\": 10944,"
    " \"num_attention_heads\": 16, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"v_head_dim\": 128,"
    " \"first_k_dense_replace\": 1, \"n_shared_experts\": 2";
#define ROPE ", \"qk_rope_head_dim\": 64"
#define GROUPS ", \"topk_method\": \"group_limited_greedy\""

/* Configures from those sizes and more fields. */
static exf_code configure(exf_architecture *a, const char *more, exf_err *err)
{
    char text[2048];
    exf_json *doc;
    const char *low_rank = strstr(more, "q_lora_rank") ? "" : ", \"q_lora_rank\": null";
    int n = snprintf(text, sizeof text, "%s%s%s}", sizes, low_rank, more);
    ck_assert_int_lt(n, (int)sizeof text);
    memset(a, 0, sizeof *a);
    exf_code rc = exf_json_parse(&doc, text, (size_t)n, "config.json", err);
    if (rc != EXF_OK) return rc;
    exf_config c = {doc, "config.json"};
    rc = exf_family_find("deepseek_v2")->configure(&c, a, err);
    if (rc == EXF_OK) exf_architecture_finish(a);
    exf_json_free(doc);
    return rc;
}

/* ---- the scale on scores ---------------------------------------------------- */

#define YARN(factor, mscales) \
    ROPE ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": " factor ", \"original_max_position_embeddings\": 4096" mscales "}"
static const struct {
    const char *model, *more;
    double scale, amplitude;
} scales[] = {
    {"V2-Lite", YARN("40", ", \"mscale\": 0.707, \"mscale_all_dim\": 0.707"), 0.1147213868, 1},
    {"V3", YARN("40", ", \"mscale\": 1.0, \"mscale_all_dim\": 1.0"), 0.1352337788, 1},
    {"K2", YARN("32", ", \"mscale\": 1.0, \"mscale_all_dim\": 1.0"), 0.1308608000, 1},
    {"YaRN without mscale_all_dim", YARN("32", ""), 0.0721687836, 1.3465735903},
    {"no YaRN", ROPE, 0.0721687836, 0},
    {"the other spelling",
     ROPE
     ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000, \"factor\": 40, "
     "\"original_max_position_embeddings\": 4096,"
     " \"mscale\": 0.707, \"mscale_all_dim\": 0.707}",
     0.1147213868, 1},
};

START_TEST(yarn_goes_into_the_scale_of_scores)
{
    exf_architecture a;
    exf_err err;
    ck_ok(configure(&a, scales[_i].more, &err), err);
    ck_assert_msg(fabs(a.mla.score_scale / scales[_i].scale - 1) < 1e-9, "%s: scale %.10f, expected %.10f", scales[_i].model,
                  a.mla.score_scale, scales[_i].scale);
    ck_assert_double_eq_tol(a.rope[EXF_ROPE_MAIN].amplitude, scales[_i].amplitude, 1e-9);
    ck_assert_int_eq(a.rope[EXF_ROPE_MAIN].dim, 64);
    ck_assert_int_eq(a.rope[EXF_ROPE_MAIN].interleaved, 1);
}
END_TEST

/* ---- layers ---------------------------------------------------------------------- */

START_TEST(layers_and_widths_of_v2_lite)
{
    exf_architecture a;
    exf_err err;
    ck_ok(configure(&a,
                    ROPE ", \"q_lora_rank\": null, \"attention_bias\": false, \"scoring_func\": \"softmax\", \"moe_layer_freq\": 1",
                    &err), err);
    ck_assert_int_eq(a.n_moe_layers, 26);
    ck_assert_int_eq(a.d_shared, 2816);
    ck_assert_int_eq(a.dim[EXF_DIM_Q], 3072);
    ck_assert_int_eq(a.dim[EXF_DIM_KV_A], 576);
    ck_assert_int_eq(a.dim[EXF_DIM_KV_B], 4096);
    ck_assert_int_eq(a.dim[EXF_DIM_O], 2048);
    ck_assert_uint_eq(a.traits[0], EXF_T_DENSE | EXF_T_MLA | EXF_T_NO_Q_LORA | EXF_T_SCORED | EXF_T_SHARED | EXF_T_UNTIED);
    ck_assert_uint_eq(a.traits[1], EXF_T_MOE | EXF_T_MLA | EXF_T_NO_Q_LORA | EXF_T_SCORED | EXF_T_SHARED | EXF_T_UNTIED);
}
END_TEST

START_TEST(low_rank_queries_and_every_other_layer)
{
    exf_architecture a;
    exf_err err;
    ck_ok(configure(&a, ROPE ", \"q_lora_rank\": 1536, \"moe_layer_freq\": 2", &err), err);
    ck_assert_int_eq(a.dim[EXF_DIM_Q_RANK], 1536);
    ck_assert((a.traits[3] & (EXF_T_Q_LORA | EXF_T_NO_Q_LORA)) == EXF_T_Q_LORA);
    for (int l = 0; l < a.n_layers; l++) ck_assert_int_eq(a.is_moe[l], l >= 1 && l % 2 == 0);
}
END_TEST

START_TEST(a_frequency_that_leaves_no_layer)
{
    exf_architecture a;
    exf_err err;
    ck_fails(configure(&a, ROPE ", \"q_lora_rank\": 1536, \"moe_layer_freq\": 27", &err), EXF_MODEL, err,
             "1 27 \"moe_layer_freq\" 27");
}
END_TEST

/* ---- the router -------------------------------------------------------------------- */

static void assert_weights(const char *more, int renormalise, double scaling)
{
    exf_architecture a;
    exf_err err;
    ck_ok(configure(&a, more, &err), err);
    ck_assert_int_eq(a.router.renormalise, renormalise);
    ck_assert_double_eq(a.router.scaling, scaling);
    ck_assert_double_eq(a.router.epsilon, renormalise ? 1e-20 : 0);
}

START_TEST(weights_are_renormalised_or_scaled)
{
    assert_weights(ROPE, 0, 1);
    assert_weights(ROPE ", \"routed_scaling_factor\": 16.0, \"norm_topk_prob\": false", 0, 16);
    assert_weights(ROPE ", \"routed_scaling_factor\": 16.0, \"norm_topk_prob\": true", 1, 1);
}
END_TEST

START_TEST(groups_count_only_where_the_method_has_them)
{
    exf_architecture a;
    exf_err err;
    ck_ok(configure(&a, ROPE ", \"topk_method\": \"greedy\", \"n_group\": 8, \"topk_group\": 3", &err), err);
    ck_assert_int_eq(a.router.n_groups, 1);
    ck_ok(configure(&a, ROPE GROUPS ", \"n_group\": 8, \"topk_group\": 3", &err), err);
    ck_assert_int_eq(a.router.n_groups, 8);
    ck_assert_int_eq(a.router.top_groups, 3);
    ck_assert_int_eq(a.router.group_score, EXF_GROUP_MAX);
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------- */

static const struct {
    const char *more, *part;
} refused[] = {
    {ROPE ", \"topk_method\": \"noaux_tc\"", "\"topk_method\" is noaux_tc"},
    {ROPE ", \"scoring_func\": \"sigmoid\"", "\"scoring_func\" is sigmoid"},
    {ROPE ", \"attention_bias\": true", "\"attention_bias\" is true"},
    {ROPE ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}", "\"linear\" is not supported"},
    {ROPE ", \"q_lora_rank\": 0", "\"q_lora_rank\" is 0"},
    {"", "\"qk_rope_head_dim\""},
    {", \"qk_rope_head_dim\": 63", "\"qk_rope_head_dim\" is 63, expected an even number"},
    {ROPE GROUPS, "\"n_group\""},
    {ROPE GROUPS ", \"n_group\": 7, \"topk_group\": 3", "64 experts in 7 groups"},
    {ROPE GROUPS ", \"n_group\": 8, \"topk_group\": 9", "of which 9 are kept"},
    {ROPE GROUPS ", \"n_group\": 32, \"topk_group\": 2", "the 2 groups kept hold 4"},
};

START_TEST(what_cannot_be_is_refused)
{
    exf_architecture a;
    exf_err err;
    ck_fails(configure(&a, refused[_i].more, &err), EXF_MODEL, err, refused[_i].part);
    ck_assert(strncmp(err.msg, "config.json: ", 13) == 0);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, yarn_goes_into_the_scale_of_scores, 0, sizeof scales / sizeof *scales);
    tcase_add_test(t, layers_and_widths_of_v2_lite);
    tcase_add_test(t, low_rank_queries_and_every_other_layer);
    tcase_add_test(t, a_frequency_that_leaves_no_layer);
    tcase_add_test(t, weights_are_renormalised_or_scaled);
    tcase_add_test(t, groups_count_only_where_the_method_has_them);
    tcase_add_loop_test(t, what_cannot_be_is_refused, 0, sizeof refused / sizeof *refused);
}

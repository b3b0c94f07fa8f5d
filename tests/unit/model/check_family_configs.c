/* check_family_configs.c - what config.json says of families beside the first ones: fields that change the architecture, and those
 * that are refused. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

static exf_err e;

/* Opens a golden's config with one place changed. */
static exf_code open_changed(exf_model **m, const char *golden, const char *from, const char *to)
{
    char path[128], *text;
    size_t n;
    exf_text out = {0};
    snprintf(path, sizeof path, "tests/golden/%s/config.json", golden);
    ck_ok(exf_file_slurp(path, 1 << 20, &text, &n, &e), e);
    char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "%s lacks %s", path, from);
    exf_text_append(&out, text, (size_t)(at - text));
    exf_text_appendf(&out, "%s%s", to, at + strlen(from));
    exf_write_file(exf_scratch("config.json"), out.s, out.len);
    exf_text_free(&out);
    exf_mem_free(text);
    return exf_model_open_part(m, exf_scratch(""), EXF_MODEL_CONFIG, &e);
}

static const struct { const char *golden, *from, *to, *words; } refused[] = {
    {"minimax_m2", "\"rotary_dim\": 8", "\"rotary_dim\": 7", "\"rotary_dim\" 7"},
    {"minimax_m2", "\"rotary_dim\": 8", "\"rotary_dim\": 18", "\"rotary_dim\" 18 16"},
    {"minimax_m2", "\"rotary_dim\": 8", "\"rotary_dim\": 8, \"rope_parameters\": {\"partial_rotary_factor\": 0.25}",
     "\"rotary_dim\" 8 \"partial_rotary_factor\" 4"},
    {"minimax_m2", "\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"softmax\"", "\"scoring_func\" softmax"},
    {"minimax_m2", "\"use_routing_bias\": true", "\"use_routing_bias\": false", "\"use_routing_bias\" false"},
    {"minimax_m2", "\"qk_norm_type\": \"per_layer\"", "\"qk_norm_type\": \"per_head\"", "\"qk_norm_type\" per_head"},
    {"minimax_m2", "\"rotary_dim\": 8", "\"rotary_dim\": 8, \"attn_type_list\": [1, 0, 1]", "\"attn_type_list\" layer 1"},
    {"minimax_m2", "\"rotary_dim\": 8", "\"rotary_dim\": 8, \"shared_intermediate_size\": 24", "\"shared_intermediate_size\" 24"},
    {"minimax_m2", "\"rotary_dim\": 8", "\"rotary_dim\": 8, \"sliding_window\": 64", "\"sliding_window\" 64"},
    {"qwen3_next", "\"partial_rotary_factor\": 0.25,", "", "\"partial_rotary_factor"},
    {"qwen3_next", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "\"norm_topk_prob\" false"},
    {"qwen3_next", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]", "\"mlp_only_layers\" 1"},
    {"gpt_oss", "\"full_attention\"", "\"chunked_attention\"", "\"layer_types\"[1] chunked_attention"},
    {"gpt_oss", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", "\"layer_types\" 4 \"num_hidden_layers\" 5"},
    {"gpt_oss", "\"sliding_window\": 8", "\"sliding_window\": 0", "\"sliding_window\" 0"},
    {"gpt_oss", "\"sliding_window\": 8,", "", "\"sliding_window\""},
    {"gpt_oss_mxfp4", "\"intermediate_size\": 32", "\"intermediate_size\": 24", "\"intermediate_size\" 24"},
    {"qwen3_next", "\"partial_rotary_factor\": 0.25,", "\"partial_rotary_factor\": 0.25, \"output_gate_type\": \"sigmoid\",",
     "\"output_gate_type\" sigmoid"},
    {"glm4_moe_lite", "\"first_k_dense_replace\": 1",
     "\"first_k_dense_replace\": 1, \"mlp_layer_types\": [\"dense\", \"dense\", \"sparse\"]",
     "layer 1 dense \"mlp_layer_types\" sparse \"first_k_dense_replace\""},
    {"glm4_moe_lite", "\"first_k_dense_replace\": 1", "\"mlp_layer_types\": [\"dense\", \"dense\", \"dense\"]", "3 layers"},
    {"glm4_moe_lite", "\"first_k_dense_replace\": 1", "\"mlp_layer_types\": [\"dense\", \"mixed\", \"sparse\"]",
     "\"mlp_layer_types\"[1] mixed"},
    {"glm4_moe_lite", "\"partial_rotary_factor\": 1.0", "\"partial_rotary_factor\": 0.5", "\"partial_rotary_factor 0.5"},
    {"dots1", "\"sliding_window\": 8,", "", "\"sliding_window\""},
    {"dots1", "\"sliding_window\": 8,",
     "\"sliding_window\": null, \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"],",
     "layer 1 \"sliding_window\""},
    {"glm4v_moe", "\"partial_rotary_factor\": 0.5,", "", "\"partial_rotary_factor"},
    {"glm4v_moe", "\"use_qk_norm\": false", "\"use_qk_norm\": true", "\"use_qk_norm\" true"},
    {"glm4v_moe", "\"glm4v_moe_text\"", "\"glm4_moe\"", "\"text_config.model_type\" glm4_moe"},
    {"qwen3_vl_moe", "\"moe_intermediate_size\": 24", "\"moe_intermediate_size\": 32",
     "\"hidden_size\" 64 \"moe_intermediate_size\" 32"},
    {"qwen3_vl_moe", "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "\"norm_topk_prob\" false"},
    {"qwen3_omni_moe", "\"qwen3_omni_moe_text\"", "\"qwen3_moe\"", "text_config.model_type\" qwen3_moe"},
    {"solar_open", "\"first_k_dense_replace\": 0", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\" 1"},
    {"mistral4", "\"partial_rotary_factor\": 0.3333333333333333", "\"partial_rotary_factor\": 0.5",
     "0.5 24 \"qk_rope_head_dim\" 8"},
    {"mistral4", "\"model_type\": \"mistral4\"", "\"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"mistral\"}",
     "\"text_config.model_type\" mistral"},
    {"deepseek_v32", "\"index_topk\": 12", "\"index_topk\": 0", "\"index_topk\" 0"},
    {"deepseek_v32", "\"index_head_dim\": 16", "\"index_head_dim\": 6", "8 6"},
    {"deepseek_v32", "\"q_lora_rank\": 24", "\"q_lora_rank\": null", "\"q_lora_rank\""},
    {"deepseek_v32", "\"index_topk\": 12", "\"index_topk\": 12, \"indexer_rope_interleave\": true",
     "\"indexer_rope_interleave\" true"},
    {"glm_moe_dsa", "\"index_topk\": 12", "\"index_topk\": 12, \"indexer_types\": [\"full\", \"none\", \"full\"]",
     "\"indexer_types\"[1] none"},
    {"glm_moe_dsa", "\"index_topk\": 12", "\"index_topk\": 12, \"indexer_types\": [\"shared\", \"full\", \"full\"]", "layer 0"},
    {"glm_moe_dsa", "\"index_topk\": 12", "\"index_topk\": 12, \"index_topk_pattern\": \"FSS\"", "\"index_topk_pattern\" FSS"},
    {"kimi_k25", "\"kimi_k2\"", "\"kimi_linear\"", "\"text_config.model_type\" kimi_linear"},
    {"kimi_k25", "\"text_config\"", "\"other_config\"", "\"text_config\""},
    {"kimi_k25", "\"format\": \"pack-quantized\"", "\"format\": \"int-quantized\"", "\"quantization_config.format\" int-quantized"},
    {"hy_v3", "\"route_norm\": true", "\"route_norm\": false", "\"route_norm\" false"},
    {"hy_v3", "\"expert_hidden_dim\": 24", "\"expert_hidden_dim\": 32", "\"moe_intermediate_size\" 24 \"expert_hidden_dim\" 32"},
    {"ernie4_5_moe", "\"use_bias\": false", "\"use_bias\": true", "\"use_bias\" true"},
    {"ernie4_5_moe", "\"moe_layer_interval\": 2", "\"moe_layer_interval\": 5", "none of the 4 layers"},
    {"ernie4_5_moe", "\"moe_k\": 4", "\"moe_k\": 4, \"moe_norm_min\": 0.5", "\"moe_norm_min\" 0.5"},
    {"granitemoe", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "\"hidden_act\" gelu"},
    {"gemma4", "\"enable_moe_block\": true", "\"enable_moe_block\": false", "\"enable_moe_block\""},
    {"gemma4", "\"hidden_size_per_layer_input\": 0", "\"hidden_size_per_layer_input\": 16", "\"hidden_size_per_layer_input\" 16"},
    {"gemma4", "\"hidden_size_per_layer_input\": 0,", "", "\"hidden_size_per_layer_input\" 256"},
    {"gemma4", "\"num_kv_shared_layers\": 0", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\" 2"},
    {"gemma4", "\"use_double_wide_mlp\": false", "\"use_double_wide_mlp\": true", "\"use_double_wide_mlp\" true"},
    {"gemma4", "\"use_bidirectional_attention\": \"vision\"", "\"use_bidirectional_attention\": \"all\"",
     "\"use_bidirectional_attention\" all"},
    {"gemma4", "gelu_pytorch_tanh", "silu", "\"hidden_activation\" silu"},
    {"gemma4", "\"rope_type\": \"proportional\"", "\"rope_type\": \"yarn\"", "\"rope_type\" yarn"},
    {"gemma4", "\"rope_type\": \"proportional\"", "\"factor\": 8.0, \"rope_type\": \"proportional\"", "\"factor\" 8"},
    {"gemma4", "\"sliding_attention\": {", "\"other\": {", "\"rope_parameters\" \"sliding_attention\""},
    {"gemma4", "\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 1.5", "\"partial_rotary_factor\" 1.5"},
    {"gemma4", "\"global_head_dim\": 32", "\"per_layer_config\": {\"2\": {\"head_dim\": 32}}", "\"per_layer_config\" 1 2"},
    {"gemma4", "\"global_head_dim\": 32", "\"per_layer_config\": {\"1\": {\"head_dim\": 32}}", "\"per_layer_config\" \"1\""},
    {"gemma4", "\"global_head_dim\": 32", "\"per_layer_config\": {\"2\": {\"head_dim\": 32}, \"4\": {\"head_dim\": 16}}",
     "\"per_layer_config.4\" 16 32"},
    {"gemma4", "\"num_global_key_value_heads\": 1", "\"num_global_key_value_heads\": 3", "4 3"},
    {"qwen3_next", "\"num_experts\": 16", "\"num_experts\": 16, \"quantization_config\": {\"quant_method\": \"mxfp4\"}",
     "\"mxfp4\" MXFP4"},
};

START_TEST(configs_are_refused)
{
    exf_model *m;
    ck_fails(open_changed(&m, refused[_i].golden, refused[_i].from, refused[_i].to), EXF_MODEL, e, refused[_i].words);
}
END_TEST

START_TEST(rotary_width_is_either_spelling)
{
    exf_model *m;
    ck_ok(open_changed(&m, "minimax_m2", "\"rotary_dim\": 8", "\"rope_parameters\": {\"partial_rotary_factor\": 0.25}"), e);
    ck_assert_int_eq(m->arch.rope[EXF_ROPE_MAIN].dim, 4);
    exf_model_close(m);
    ck_ok(open_changed(&m, "minimax_m2", "\"rotary_dim\": 8", "\"rotary_dim\": 10"), e);
    ck_assert_int_eq(m->arch.rope[EXF_ROPE_MAIN].dim, 10);
    exf_model_close(m);
}
END_TEST

START_TEST(qk_norm_may_be_left_out)
{
    exf_model *m;
    ck_ok(open_changed(&m, "minimax_m2", "\"use_qk_norm\": true", "\"use_qk_norm\": false"), e);
    ck_assert_uint_eq(m->arch.traits[0] & (EXF_T_QK_NORM_ROW | EXF_T_QK_NORM), 0);
    exf_model_close(m);
}
END_TEST

START_TEST(windows_alternate_where_no_list_says_it)
{
    exf_model *m;
    ck_ok(open_changed(&m, "gpt_oss", "\"layer_types\"", "\"other_types\""), e);
    for (int l = 0; l < m->arch.n_layers; l++) ck_assert_int_eq(m->arch.attention.window[l], l % 2 ? 0 : 8);
    exf_model_close(m);
}
END_TEST

START_TEST(slope_and_limit_are_read)
{
    exf_model *m;
    ck_ok(open_changed(&m, "gpt_oss", "\"swiglu_limit\": 7.0", "\"swiglu_limit\": 5.5, \"swiglu_alpha\": 1.5"), e);
    ck_assert(m->arch.swiglu_limit == 5.5 && m->arch.swiglu_slope == 1.5 && m->arch.swiglu_shift == 1);
    exf_model_close(m);
    ck_ok(open_changed(&m, "gpt_oss", "\"swiglu_limit\": 7.0,", ""), e);
    ck_assert(m->arch.swiglu_limit == 7 && m->arch.swiglu_slope == 1.702);
    exf_model_close(m);
}
END_TEST

/* As GLM-5.2 says it, in either way. */
START_TEST(layers_may_share_an_indexer)
{
    static const char *const ways[] = {"\"indexer_types\": [\"full\", \"full\", \"shared\"]",
                                       "\"index_topk_freq\": 4, \"index_skip_topk_offset\": 2"};
    for (int i = 0; i < 2; i++) {
        char to[128];
        exf_model *m;
        snprintf(to, sizeof to, "\"index_topk\": 12, %s", ways[i]);
        ck_ok(open_changed(&m, "glm_moe_dsa", "\"index_topk\": 12", to), e);
        for (int l = 0; l < 3; l++) ck_assert_int_eq(!(m->arch.traits[l] & EXF_T_INDEXED), l == 2);
        ck_assert_int_eq(m->arch.mla.index_shared, 1);
        exf_model_close(m);
    }
}
END_TEST

START_TEST(attention_biases_follow_the_config)
{
    exf_model *m;
    ck_ok(open_changed(&m, "gpt_oss", "\"attention_bias\": true", "\"attention_bias\": false"), e);
    ck_assert_uint_eq(m->arch.traits[0] & (EXF_T_QKV_BIAS | EXF_T_O_BIAS), 0);
    exf_model_close(m);
}
END_TEST

/* Wide heads may be listed a layer, as transformers saves them; without numbers of their own they have those of the others. */
START_TEST(wide_heads_are_either_spelling)
{
    exf_model *m;
    ck_ok(open_changed(&m, "gemma4", "\"global_head_dim\": 32",
                       "\"per_layer_config\": {\"2\": {\"head_dim\": 64, \"num_key_value_heads\": 4}, \"4\": {\"head_dim\": 64, "
                       "\"num_key_value_heads\": 4}}"), e);
    ck_assert(m->arch.attention.wide_head_dim == 64 && m->arch.attention.wide_kv_heads == 4);
    ck_assert(m->arch.rope[EXF_ROPE_WIDE].dim == 64 && m->arch.rope[EXF_ROPE_WIDE].turned == 16);
    exf_model_close(m);
    ck_ok(open_changed(&m, "gemma4", "\"attention_k_eq_v\": true", "\"attention_k_eq_v\": false"), e);
    ck_assert(m->arch.attention.wide_kv_heads == 2 && m->arch.traits[2] & EXF_T_OWN_VALUES);
    exf_model_close(m);
    ck_ok(open_changed(&m, "gemma4", "\"rope_parameters\"", "\"unread\""), e);
    ck_assert(m->arch.rope[EXF_ROPE_WIDE].theta == 1e6 && m->arch.rope[EXF_ROPE_WIDE].turned == 8);
    exf_model_close(m);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, configs_are_refused, 0, sizeof refused / sizeof *refused);
    tcase_add_test(t, rotary_width_is_either_spelling);
    tcase_add_test(t, qk_norm_may_be_left_out);
    tcase_add_test(t, windows_alternate_where_no_list_says_it);
    tcase_add_test(t, slope_and_limit_are_read);
    tcase_add_test(t, layers_may_share_an_indexer);
    tcase_add_test(t, attention_biases_follow_the_config);
    tcase_add_test(t, wide_heads_are_either_spelling);
}

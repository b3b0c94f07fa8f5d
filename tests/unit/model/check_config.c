/* check_config.c - config.json: typed fields, and what a Qwen3-MoE's say. */
#include "tests/support/fixtures.h"

#include "base/text.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static exf_err e; /* of the last call */

/* ---- fields ----------------------------------------------------------------------- */

static exf_json *doc;

static exf_config config_of(const char *text)
{
    exf_json_free(doc);
    ck_ok(exf_json_parse(&doc, text, strlen(text), "c.json", &e), e);
    return (exf_config){doc, "c.json"};
}

static void free_doc(void)
{
    exf_json_free(doc);
    doc = NULL;
}

START_TEST(a_field_is_found_under_any_spelling)
{
    exf_config c = config_of("{\"b\": 3, \"o\": {\"p\": {\"q\": 4}}, \"n\": null, \"s\": \"x\", \"t\": \"x\", \"u\": \"y\"}");
    const exf_json *j;
    int i;
    const char *s;
    ck_ok(exf_config_find(&c, "a|b|c", &j, &e), e);
    ck_assert_int_eq(exf_json_int(j), 3);
    ck_ok(exf_config_find(&c, "a|c", &j, &e), e);
    ck_assert_ptr_null(j);
    ck_ok(exf_config_find(&c, "n", &j, &e), e); /* null is absent */
    ck_assert_ptr_null(j);
    ck_ok(exf_config_int(&c, "a|o.p.q", 0, 9, &i, &e), e);
    ck_assert_int_eq(i, 4);
    ck_ok(exf_config_find(&c, "o.x.q|b.q|o.p.q.r", &j, &e), e); /* a step into what is no object */
    ck_assert_ptr_null(j);
    ck_ok(exf_config_text_or(&c, "s|t", "z", &s, &e), e);
    ck_assert_str_eq(s, "x");
    ck_fails(exf_config_text_or(&c, "s|u", "z", &s, &e), EXF_MODEL, e,
             "c.json \"s\" \"u\"");
    ck_fails(exf_config_find(&c, "a|b|n|o.p.q", &j, &e), EXF_MODEL, e, "\"b\" 3 \"o.p.q\" 4");
    ck_fails(exf_config_find(&c, "b|s", &j, &e), EXF_MODEL, e, "c.json \"b\"");
}
END_TEST

START_TEST(integers_have_a_range)
{
    exf_config c = config_of("{\"i\": 5, \"r\": 5.0, \"s\": \"5\", \"big\": 4294967297, \"t\": true}");
    int i = 0;
    ck_ok(exf_config_int(&c, "i", 5, 5, &i, &e), e);
    ck_assert_int_eq(i, 5);
    ck_fails(exf_config_int(&c, "i", 6, 9, &i, &e), EXF_MODEL, e, "\"i\" 5 6 9");
    ck_fails(exf_config_int(&c, "i", 1, 4, &i, &e), EXF_MODEL, e, "\"i\" 5 1 4");
    ck_fails(exf_config_int(&c, "big", 1, 9, &i, &e), EXF_MODEL, e, "4294967297");
    ck_fails(exf_config_int(&c, "r", 1, 9, &i, &e), EXF_MODEL, e, "c.json \"r\"");
    ck_fails(exf_config_int(&c, "s", 1, 9, &i, &e), EXF_MODEL, e, "c.json \"s\"");
    ck_fails(exf_config_int(&c, "t", 0, 9, &i, &e), EXF_MODEL, e, "c.json \"t\"");
    ck_fails(exf_config_int(&c, "absent", 1, 9, &i, &e), EXF_MODEL, e, "c.json \"absent\"");
    ck_ok(exf_config_int_or(&c, "absent", 1, 9, 77, &i, &e), e);
    ck_assert_int_eq(i, 77);
    ck_fails(exf_config_int_or(&c, "i", 6, 9, 7, &i, &e), EXF_MODEL, e, "5"); /* a fallback excuses nothing */
}
END_TEST

START_TEST(reals_booleans_and_texts_have_their_type)
{
    exf_config c = config_of("{\"i\": 5, \"r\": 0.25, \"zero\": 0, \"below\": -1.5, \"s\": \"5\", \"t\": true, \"f\": false}");
    double r = 0;
    int b = 2;
    const char *s = "";
    ck_ok(exf_config_real(&c, "r", &r, &e), e);
    ck_assert(r == 0.25);
    ck_ok(exf_config_real(&c, "i", &r, &e), e);
    ck_assert(r == 5);
    ck_fails(exf_config_real(&c, "zero", &r, &e), EXF_MODEL, e, "\"zero\" 0 0");
    ck_fails(exf_config_real_or(&c, "below", 1, &r, &e), EXF_MODEL, e, "-1.5");
    ck_fails(exf_config_real(&c, "s", &r, &e), EXF_MODEL, e, "c.json \"s\"");
    ck_fails(exf_config_real(&c, "absent", &r, &e), EXF_MODEL, e, "c.json \"absent\"");
    ck_ok(exf_config_real_or(&c, "absent", 1.5, &r, &e), e);
    ck_assert(r == 1.5);
    ck_ok(exf_config_bool_or(&c, "t", 0, &b, &e), e);
    ck_assert_int_eq(b, 1);
    ck_ok(exf_config_bool_or(&c, "f", 1, &b, &e), e);
    ck_assert_int_eq(b, 0);
    ck_ok(exf_config_bool_or(&c, "absent", 1, &b, &e), e);
    ck_assert_int_eq(b, 1);
    ck_fails(exf_config_bool_or(&c, "i", 1, &b, &e), EXF_MODEL, e, "c.json \"i\"");
    ck_ok(exf_config_text_or(&c, "absent", NULL, &s, &e), e);
    ck_assert_ptr_null(s);
    ck_fails(exf_config_text_or(&c, "i", "x", &s, &e), EXF_MODEL, e, "c.json \"i\"");
}
END_TEST

START_TEST(some_fields_have_one_value)
{
    exf_config c = config_of("{\"i\": 1, \"r\": 1.0, \"h\": 0.5, \"s\": \"silu\", \"f\": false, \"n\": null, \"a\": []}");
    ck_ok(exf_config_must_be(&c, "absent|n", "silu", &e), e);
    ck_ok(exf_config_must_be(&c, "s", "silu", &e), e);
    ck_ok(exf_config_must_be(&c, "f", "false", &e), e);
    ck_ok(exf_config_must_be(&c, "i", "1", &e), e);
    ck_ok(exf_config_must_be(&c, "r", "1", &e), e);
    ck_fails(exf_config_must_be(&c, "h", "1", &e), EXF_MODEL, e, "c.json \"h\" 0.5 1");
    ck_fails(exf_config_must_be(&c, "s", "gelu", &e), EXF_MODEL, e, "\"s\"");
    ck_fails(exf_config_must_be(&c, "f", "true", &e), EXF_MODEL, e, "\"f\"");
    ck_fails(exf_config_must_be(&c, "a", "x", &e), EXF_MODEL, e, "\"a\"");
}
END_TEST

/* ---- a Qwen3-MoE --------------------------------------------------------------------- */

typedef struct { const char *key, *value; } field; /* value NULL: left out */

static const field small[] = {
    {"hidden_size", "8"}, {"num_hidden_layers", "4"}, {"vocab_size", "32"}, {"num_experts", "6"}, {"num_experts_per_tok", "2"},
    {"moe_intermediate_size", "5"}, {"num_attention_heads", "4"}, {"num_key_value_heads", "2"}, {"head_dim", "6"},
};

/* The small model with up to three fields changed, added or left out. */
static exf_code configure(exf_architecture *a, field x, field y, field z)
{
    const field *changed[] = {&x, &y, &z};
    exf_text t = {0};
    memset(a, 0, sizeof *a);
    exf_text_appendf(&t, "{\"model_type\": \"qwen3_moe\"");
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        int skip = 0;
        for (int k = 0; k < 3; k++) skip |= changed[k]->key && strcmp(changed[k]->key, small[i].key) == 0;
        if (!skip) exf_text_appendf(&t, ", \"%s\": %s", small[i].key, small[i].value);
    }
    for (int k = 0; k < 3; k++)
        if (changed[k]->value) exf_text_appendf(&t, ", \"%s\": %s", changed[k]->key, changed[k]->value);
    exf_text_appendf(&t, "}");
    exf_config c = config_of(t.s);
    exf_text_free(&t);
    exf_code rc = exf_family_find("qwen3_moe")->configure(&c, a, &e);
    if (rc == EXF_OK) exf_architecture_finish(a);
    return rc;
}

#define WITH1(a, k, v) configure(a, (field){k, v}, (field){0}, (field){0})
#define WITH2(a, k, v, l, w) configure(a, (field){k, v}, (field){l, w}, (field){0})
#define WITH3(a, k, v, l, w, m, x) configure(a, (field){k, v}, (field){l, w}, (field){m, x})

static void refused(const char *key, const char *value, const char *part)
{
    exf_architecture a;
    ck_fails(WITH1(&a, key, value), EXF_MODEL, e, part);
    ck_assert_msg(strstr(e.msg, "c.json") != NULL, "no file in \"%s\"", e.msg);
}

START_TEST(families_are_listed)
{
    const exf_family *f;
    ck_assert_str_eq(exf_family_find("qwen3_moe")->name, "qwen3_moe");
    ck_assert_ptr_null(exf_family_find("qwen3"));
    ck_ok(exf_family_require("qwen3_moe", &f, &e), e);
    ck_assert_ptr_eq(f, exf_family_find("qwen3_moe"));
    ck_fails(exf_family_require("qwen3_mo", &f, &e), EXF_MODEL, e, "model_type \"qwen3_mo\"");
    ck_assert_ptr_null(f);
    ck_assert_msg(strstr(e.msg, "did you mean") == NULL, "%s", e.msg); /* it would be another model */
    for (size_t i = 0; exf_family_at(i); i++) ck_assert_msg(strstr(e.msg, exf_family_at(i)->name) != NULL, "%s", e.msg);
}
END_TEST

START_TEST(fields_fill_the_architecture)
{
    exf_architecture a;
    ck_ok(WITH3(&a, "rms_norm_eps", "0.5", "rope_theta", "1000000.0", "norm_topk_prob", "true"), e);
    ck_assert(a.d_model == 8 && a.n_layers == 4 && a.vocab == 32 && a.n_experts == 6 && a.top_k == 2 && a.d_expert == 5);
    ck_assert(a.attention.n_heads == 4 && a.attention.n_kv_heads == 2 && a.attention.head_dim == 6 &&
              a.rope[EXF_ROPE_MAIN].dim == 6);
    ck_assert(a.rope[EXF_ROPE_MAIN].theta == 1e6 && a.traits[0] & EXF_T_QK_NORM && !(a.traits[0] & EXF_T_QKV_BIAS));
    ck_assert(a.norm_eps == 0.5 && a.router.renormalise && a.router.score == EXF_ROUTER_SOFTMAX && !a.tied_embeddings);
    ck_assert_int_eq(a.n_moe_layers, 4);
    ck_assert_int_eq(a.dim[EXF_DIM_Q], 24);
    ck_assert_int_eq(a.dim[EXF_DIM_KV], 12);
    ck_assert_int_eq(a.dim[EXF_DIM_NONE], 0);
    ck_ok(WITH3(&a, "num_key_value_heads", "null", "head_dim", NULL, "tie_word_embeddings", "true"), e);
    ck_assert(a.attention.n_kv_heads == 4 && a.attention.head_dim == 2 && a.tied_embeddings);
    ck_assert(a.rope[EXF_ROPE_MAIN].theta == 1e4 && a.norm_eps == 1e-6 && !a.router.renormalise);
}
END_TEST

START_TEST(both_spellings_are_read_and_must_agree)
{
    exf_architecture a;
    ck_ok(WITH2(&a, "num_experts", NULL, "num_local_experts", "7"), e);
    ck_assert_int_eq(a.n_experts, 7);
    ck_ok(WITH2(&a, "num_experts", NULL, "n_routed_experts", "8"), e);
    ck_assert_int_eq(a.n_experts, 8);
    ck_ok(WITH1(&a, "num_local_experts", "6"), e);
    refused("num_local_experts", "7", "disagree");
    ck_ok(WITH1(&a, "rope_parameters", "{\"rope_theta\": 500.0, \"rope_type\": \"default\"}"), e);
    ck_assert(a.rope[EXF_ROPE_MAIN].theta == 500);
    ck_ok(WITH2(&a, "rope_theta", "500", "rope_parameters", "{\"rope_theta\": 500.0}"), e);
    ck_fails(WITH2(&a, "rope_theta", "501", "rope_parameters", "{\"rope_theta\": 500.0}"), EXF_MODEL, e, "c.json \"rope_theta\"");
}
END_TEST

START_TEST(what_is_not_supported_is_said)
{
    exf_architecture a;
    refused("rope_scaling", "{\"type\": \"linear\", \"factor\": 2.0}", "\"linear\" is not supported");
    refused("rope_scaling", "{\"rope_type\": \"yarn\"}", "factor");
    refused("rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4.0}", "max_position_embeddings");
    refused("rope_parameters", "{\"rope_type\": \"llama3\"}", "\"llama3\" is not supported");
    refused("partial_rotary_factor", "0.5", "is 0.5; only 1");
    refused("use_sliding_window", "true", "is true; only false");
    refused("hidden_act", "\"gelu\"", "is gelu; only silu");
    ck_ok(WITH3(&a, "rope_scaling", "null", "attention_bias", "false", "hidden_act", "\"silu\""), e);
    ck_ok(WITH3(&a, "partial_rotary_factor", "1.0", "use_sliding_window", "false", "sliding_window", "4096"), e);
}
END_TEST

START_TEST(yarn_and_biases_are_read)
{
    exf_architecture a;
    const exf_rope_spec *r = &a.rope[EXF_ROPE_MAIN];
    ck_ok(WITH3(&a, "rope_parameters", "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32}",
                "max_position_embeddings", "128", "attention_bias", "true"), e);
    ck_assert(r->yarn && r->factor == 4 && r->original_length == 32 && r->beta_fast == 32 && r->beta_slow == 1 && r->truncate);
    ck_assert_double_eq_tol(r->amplitude, 0.1 * log(4) + 1, 1e-15);
    ck_assert_uint_eq(a.traits[0] & (EXF_T_QKV_BIAS | EXF_T_O_BIAS), EXF_T_QKV_BIAS | EXF_T_O_BIAS);
    ck_ok(WITH2(&a, "rope_scaling", "{\"type\": \"yarn\", \"factor\": 4.0}", "max_position_embeddings", "128"), e);
    ck_assert(r->original_length == 128 && !(a.traits[0] & (EXF_T_QKV_BIAS | EXF_T_O_BIAS)));
    ck_ok(WITH3(&a, "rope_parameters", "{\"partial_rotary_factor\": 1.0}", "partial_rotary_factor", "1.0", "rope_theta", "5"), e);
}
END_TEST

/* A release's config.json, and the one that transformers makes of it: rope_parameters, dtype, layers by their types. */
START_TEST(transformers_config_means_the_same)
{
    static const char *const names[] = {"deepseek-v2-lite", "deepseek-v4-flash", "glm-4.5", "glm-4.5-air", "kimi-k2",
                                        "qwen3-30b-a3b", "qwen3.5-35b-a3b", "qwen3.6-35b-a3b",
                                        "qwen3-next-80b-a3b", "minimax-m2",
                                        "mixtral-8x7b", "mixtral-8x22b", "olmoe-1b-7b", "qwen1.5-moe-a2.7b", "qwen2-57b-a14b",
                                        "deepseek-v3", "gpt-oss-20b", "gpt-oss-120b", "glm-4.7-flash", "dots.llm1",
                                        "glm-4.5v", "qwen3-vl-30b-a3b",
                                        "qwen3-vl-235b-a22b", "qwen3-omni-30b-a3b", "solar-open-100b",
                                        "mistral-small-4-119b", "deepseek-v3.2", "glm-5", "kimi-k2.5", "hy3",
                                        "ernie-4.5-21b-a3b", "granite-3.1-1b-a400m", "qwen3-coder-480b-a35b",
                                        "deepseek-v4-pro", "qwen3.8-2.4t-a95b"};
    for (int i = 0; i < COUNT(names); i++) {
        char released[128], saved[128];
        exf_model *a, *b;
        snprintf(released, sizeof released, "tests/configs/%s", names[i]);
        snprintf(saved, sizeof saved, "tests/golden/saved_configs/%s", names[i]);
        ck_ok(exf_model_open_part(&a, released, EXF_MODEL_CONFIG, &e), e);
        ck_ok(exf_model_open_part(&b, saved, EXF_MODEL_CONFIG, &e), e);
        ck_assert_msg(memcmp(&a->arch, &b->arch, sizeof a->arch) == 0, "%s: another architecture", names[i]);
        ck_assert_int_eq(!a->quantization.exempt, !b->quantization.exempt);
        a->quantization.exempt = b->quantization.exempt = NULL; /* each is of its own document */
        ck_assert_msg(memcmp(&a->quantization, &b->quantization, sizeof a->quantization) == 0, "%s: another number format",
                      names[i]);
        exf_model_close(a);
        exf_model_close(b);
    }
}
END_TEST

START_TEST(sizes_are_possible_ones)
{
    static const field bad[] = {
        {"hidden_size", "0"}, {"hidden_size", "1048577"}, {"num_hidden_layers", "0"}, {"num_hidden_layers", "1025"},
        {"vocab_size", "0"},
        {"num_experts", "1"}, {"num_experts", "4097"}, {"num_experts_per_tok", "0"}, {"num_experts_per_tok", "65"},
        {"moe_intermediate_size", "0"}, {"num_attention_heads", "0"}, {"num_key_value_heads", "0"}, {"head_dim", "0"},
        {"head_dim", "-2"},
        {"hidden_size", NULL}, {"num_experts", NULL}, {"num_experts_per_tok", NULL}, {"moe_intermediate_size", NULL},
        {"vocab_size", NULL},
        {"num_hidden_layers", NULL}, {"num_attention_heads", NULL}, {"hidden_size", "8.0"}, {"vocab_size", "\"32\""},
        {"rms_norm_eps", "0"}, {"rope_theta", "-1"}, {"tie_word_embeddings", "1"}, {"norm_topk_prob", "\"yes\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refused(bad[i].key, bad[i].value, bad[i].key);
    refused("num_experts_per_tok", "7", "7 experts per token, but only 6 experts");
    refused("num_key_value_heads", "3", "4 attention heads are no multiple of 3 key-value heads");
    refused("head_dim", "5", "\"head_dim\" is 5, expected an even number");
}
END_TEST

/* ---- which layers are mixtures ------------------------------------------------------------- */

static void ck_layers(const char *step, const char *dense, const char *want)
{
    exf_architecture a;
    ck_ok(WITH3(&a, "decoder_sparse_step", step, "mlp_only_layers", dense, "intermediate_size", "11"), e);
    for (int l = 0; l < 4; l++) ck_assert_msg(a.is_moe[l] == (want[l] == 'm'), "layer %d of %s", l, want);
    int n = 0;
    for (int l = 0; l < 4; l++) n += want[l] == 'm';
    ck_assert_int_eq(a.n_moe_layers, n);
    ck_assert_int_eq(a.d_ffn, n < 4 ? 11 : 0);
}

START_TEST(layers_are_mixtures_by_step_and_list)
{
    ck_layers("1", "[]", "mmmm");
    ck_layers(NULL, NULL, "mmmm");
    ck_layers("2", "[]", "dmdm");
    ck_layers("3", NULL, "ddmd");
    ck_layers("4", NULL, "dddm");
    ck_layers("1", "[0, 2]", "dmdm");
    ck_layers("2", "[1]", "dddm");
    ck_layers("2", "[0, 0]", "dmdm");
    ck_layers(NULL, "null", "mmmm");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "fields"), *q = exf_case(s, "qwen3_moe");
    tcase_add_checked_fixture(t, NULL, free_doc);
    tcase_add_test(t, a_field_is_found_under_any_spelling);
    tcase_add_test(t, integers_have_a_range);
    tcase_add_test(t, reals_booleans_and_texts_have_their_type);
    tcase_add_test(t, some_fields_have_one_value);
    tcase_add_checked_fixture(q, NULL, free_doc);
    tcase_add_test(q, families_are_listed);
    tcase_add_test(q, fields_fill_the_architecture);
    tcase_add_test(q, both_spellings_are_read_and_must_agree);
    tcase_add_test(q, what_is_not_supported_is_said);
    tcase_add_test(q, yarn_and_biases_are_read);
    tcase_add_test(q, transformers_config_means_the_same);
    tcase_add_test(q, sizes_are_possible_ones);
    tcase_add_test(q, layers_are_mixtures_by_step_and_list);
}

/* check_deepseek_v4.c - what a deepseek_v4 config.json means, in both spellings,
 * what is refused, and that tables of experts name experts. */
#include "tests/support/fixtures.h"

#include "base/file.h"
#include "base/mem.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#define COMMON                                                                                                                  \
    "\"hidden_size\":64,\"num_hidden_layers\":4,\"vocab_size\":32,\"moe_intermediate_size\":24,\"n_routed_experts\":16,"        \
    "\"num_experts_per_tok\":3,\"num_attention_heads\":4,\"head_dim\":32,\"q_lora_rank\":24,\"o_groups\":2,\"o_lora_rank\":16," \
    "\"sliding_window\":16,\"index_n_heads\":2,\"index_head_dim\":16,\"index_topk\":6,\"hc_mult\":4,"                           \
    "\"scoring_func\":\"sqrtsoftplus\""
#define YARN "\"factor\":16,\"original_max_position_embeddings\":256"
#define RELEASED(ratios)                                                                                            \
    "{" COMMON ",\"qk_rope_head_dim\":8,\"num_hash_layers\":2,\"compress_ratios\":" ratios ",\"rope_theta\":10000," \
    "\"compress_rope_theta\":160000,\"rope_scaling\":{\"type\":\"yarn\"," YARN "}}"
#define NORMALISED                                                                                                \
    "{" COMMON ",\"partial_rotary_factor\":0.25,\"mlp_layer_types\":[\"hash_moe\",\"hash_moe\",\"moe\",\"moe\"]," \
    "\"layer_types\":[\"sliding_attention\",\"heavily_compressed_attention\",\"compressed_sparse_attention\","    \
    "\"heavily_compressed_attention\"],\"compress_rates\":{\"compressed_sparse_attention\":4,"                    \
    "\"heavily_compressed_attention\":64},"                                                                       \
    "\"rope_parameters\":{\"main\":{\"rope_type\":\"default\",\"rope_theta\":10000},"                             \
    "\"compress\":{\"rope_type\":\"yarn\",\"rope_theta\":160000,\"attention_factor\":1.0," YARN "}}}"

static exf_code configure(exf_architecture *a, const char *text, exf_err *err)
{
    exf_json *doc;
    exf_err parse;
    ck_ok(exf_json_parse(&doc, text, strlen(text), "config.json", &parse), parse);
    memset(a, 0, sizeof *a);
    exf_config c = {doc, "config.json"};
    exf_code rc = exf_family_find("deepseek_v4")->configure(&c, a, err);
    exf_json_free(doc);
    return rc;
}

START_TEST(both_spellings_mean_the_same)
{
    static exf_architecture released, normalised;
    exf_err err;
    ck_ok(configure(&released, RELEASED("[0,64,4,64,0]"), &err), err);
    ck_ok(configure(&normalised, NORMALISED, &err), err);
    ck_assert_mem_eq(&released.compressed, &normalised.compressed, sizeof released.compressed);
    ck_assert_mem_eq(released.traits, normalised.traits, sizeof released.traits);
    ck_assert_mem_eq(released.dim, normalised.dim, sizeof released.dim);
    for (int i = EXF_ROPE_MAIN; i <= EXF_ROPE_COMPRESSED; i++) {
        const exf_rope_spec *a = &released.rope[i], *b = &normalised.rope[i];
        ck_assert(a->dim == 8 && b->dim == 8 && a->theta == b->theta && a->yarn == b->yarn && a->factor == b->factor);
        ck_assert(a->amplitude == b->amplitude && a->original_length == b->original_length && a->interleaved && b->interleaved);
    }
}
END_TEST

START_TEST(layers_differ_as_the_config_says)
{
    static exf_architecture a;
    exf_err err;
    ck_ok(configure(&a, RELEASED("[0,64,4,64,0]"), &err), err);
    ck_assert_uint_eq(a.traits[0], EXF_T_SHARED | EXF_T_HASHED);
    ck_assert_uint_eq(a.traits[1], EXF_T_SHARED | EXF_T_HASHED | EXF_T_RATIO_LONG);
    ck_assert_uint_eq(a.traits[2], EXF_T_SHARED | EXF_T_SCORED | EXF_T_RATIO_SHORT);
    ck_assert_int_eq(a.dim[EXF_DIM_LONG], 64);
    ck_assert_int_eq(a.dim[EXF_DIM_SHORT], 4);
    ck_assert(!a.rope[EXF_ROPE_MAIN].yarn && a.rope[EXF_ROPE_COMPRESSED].yarn);
    ck_assert_double_eq(a.rope[EXF_ROPE_COMPRESSED].amplitude, 1);
    ck_assert_double_eq(a.swiglu_limit, 10);
    ck_assert_double_eq(a.router.scaling, 1.5);
}
END_TEST

static const struct { const char *config, *part;
} refusals[] = {
    {RELEASED("[0,64,4,128]"), "layer 3 compresses 128 tokens into one, an earlier one 64"},
    {RELEASED("[0,64,4]"), "\"compress_ratios\" has 3 elements for 4 layers"},
    {RELEASED("[0,-1,4,0]"), "\"compress_ratios\"[1] is -1, expected 0 to 1048576"},
    {RELEASED("[0,\"x\",4,0]"), "\"compress_ratios\"[1] is a string, expected an integer"},
    {RELEASED("7"), "\"compress_ratios\" is an integer, expected an array"},
    {RELEASED("null"), "neither \"compress_ratios\" nor \"layer_types\""},
    {RELEASED("[0,64,4,0],\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"x\",\"x\"]"),
     "layer 1 compresses 64 tokens by \"compress_ratios\", 0 by \"layer_types\""},
    {RELEASED("[0,0,0,0],\"layer_types\":[\"global\",\"x\",\"x\",\"x\"]"),
     "\"layer_types\"[0] is global, expected sliding_attention"},
    {RELEASED("[0,0,0,0],\"mlp_layer_types\":[\"dense\",\"moe\",\"moe\",\"moe\"]"),
     "\"mlp_layer_types\"[0] is dense, expected hash_moe or moe"},
    {RELEASED("[0,0,0,0],\"compress_rates\":{\"compressed_sparse_attention\":8}"), "is 8; only 4 is supported"},
    {RELEASED("[0,0,0,0],\"norm_topk_prob\":false"), "\"norm_topk_prob\" is false; only true"},
    {RELEASED("[0,0,0,0],\"n_shared_experts\":2"), "\"n_shared_experts\" is 2; only 1"},
    {RELEASED("[0,0,0,0],\"num_key_value_heads\":2"), "\"num_key_value_heads\" is 2; only 1"},
    {"{" COMMON ",\"compress_ratios\":[0,0,0,0],\"qk_rope_head_dim\":18}",
     "18 rotary dimensions in heads of 32 and index heads of 16"},
    {"{" COMMON ",\"compress_ratios\":[0,0,0,0],\"qk_rope_head_dim\":8,\"rope_scaling\":{\"type\":\"linear\"}}",
     "\"linear\" is not supported"},
};

START_TEST(what_cannot_be_is_refused)
{
    static exf_architecture a;
    exf_err err;
    ck_fails(configure(&a, refusals[_i].config, &err), EXF_MODEL, err, refusals[_i].part);
}
END_TEST

/* The golden with one expert number of layer 1's table replaced, as a checkpoint. */
static exf_code open_with_expert(int64_t expert, exf_err *err)
{
    char *bytes, *dir;
    size_t n;
    exf_model *m;
    ck_ok(exf_file_slurp("tests/golden/deepseek_v4/config.json", 1 << 20, &bytes, &n, err), *err);
    exf_write_file(exf_scratch("config.json"), bytes, n);
    exf_mem_free(bytes);
    ck_ok(exf_file_slurp("tests/golden/deepseek_v4/model.safetensors", 1 << 24, &bytes, &n, err), *err);
    const char *entry = strstr(bytes + 8, "\"layers.1.ffn.gate.tid2eid\"");
    uint64_t header, begin;
    ck_assert_ptr_nonnull(entry);
    ck_assert_int_eq(sscanf(strstr(entry, "data_offsets"), "data_offsets\":[%lu", (unsigned long *)&begin), 1);
    memcpy(&header, bytes, 8);
    memcpy(bytes + 8 + header + begin + 8 * (5 * 3 + 2), &expert, 8); /* row 5 of 3 columns */
    exf_write_file(exf_scratch("model.safetensors"), bytes, n);
    exf_mem_free(bytes);
    ck_ok(exf_path_dir(&dir, exf_scratch("config.json"), err), *err);
    exf_code rc = exf_model_open(&m, dir, err);
    if (rc == EXF_OK) exf_model_close(m);
    exf_mem_free(dir);
    return rc;
}

START_TEST(tables_name_experts_that_there_are)
{
    exf_err err;
    ck_ok(open_with_expert(0, &err), err);
    ck_ok(open_with_expert(15, &err), err);
    ck_fails(open_with_expert(16, &err), EXF_MODEL, err, "\"layers.1.ffn.gate.tid2eid\" 5 16");
    ck_fails(open_with_expert(-1, &err), EXF_MODEL, err, "5 -1");
    ck_fails(open_with_expert((int64_t)1 << 40, &err), EXF_MODEL, err, "5 1099511627776");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, both_spellings_mean_the_same);
    tcase_add_test(t, layers_differ_as_the_config_says);
    tcase_add_loop_test(t, what_cannot_be_is_refused, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(t, tables_name_experts_that_there_are);
}

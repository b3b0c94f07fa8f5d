/* check_model.c - src/model/model: a checkpoint held to what its config says. */
#include "tests/support/model_fixtures.h"

static exf_err e; /* of the last call */

static exf_model *open_model(void)
{
    exf_model *m = NULL;
    ck_ok(open_scratch(&m, &e), e);
    return m;
}

static void refused(exf_code want, const char *part)
{
    exf_model *m = (exf_model *)1;
    ck_fails(open_scratch(&m, &e), want, e, part);
    ck_assert_ptr_null(m);
}

/* ---- opening and reading ------------------------------------------------------------- */

/* The tensor of a role is the one of this name. */
static void ck_role(const exf_model *m, const small_model *s, exf_role role, int layer, int expert, const char *name)
{
    int i = small_find(s, name);
    size_t n = (size_t)(s->shape[i][0] * (s->rank[i] == 2 ? s->shape[i][1] : 1));
    float read[64];
    ck_assert_uint_eq(exf_model_count(m, role, layer), n);
    ck_ok(exf_model_read(m, role, layer, expert, read, &e), e);
    for (size_t k = 0; k < n; k++) ck_assert_msg(read[k] == s->value[i][k], "%s[%zu]", name, k);
}

START_TEST(tensors_are_read_by_role_in_every_format)
{
    static const exf_dtype formats[] = {EXF_DT_BF16, EXF_DT_F16, EXF_DT_F32};
    small_model s = small_new(1);
    for (int f = 0; f < 4; f++) {
        for (int i = 0; i < s.n; i++) s.dtype[i] = formats[f < 3 ? f : i % 3]; /* at last each its own */
        small_write(&s, 0);
        exf_model *m = open_model();
        ck_role(m, &s, EXF_W_EMBED, 0, 0, "model.embed_tokens.weight");
        ck_role(m, &s, EXF_W_FINAL_NORM, 0, 0, "model.norm.weight");
        ck_role(m, &s, EXF_W_HEAD, 0, 0, "lm_head.weight");
        ck_role(m, &s, EXF_W_Q, 1, 0, "model.layers.1.self_attn.q_proj.weight");
        ck_role(m, &s, EXF_W_K_NORM, 0, 0, "model.layers.0.self_attn.k_norm.weight");
        ck_role(m, &s, EXF_W_DENSE_DOWN, 0, 0, "model.layers.0.mlp.down_proj.weight");
        ck_role(m, &s, EXF_W_ROUTER, 1, 0, "model.layers.1.mlp.gate.weight");
        ck_role(m, &s, EXF_W_EXPERT_UP, 1, 2, "model.layers.1.mlp.experts.2.up_proj.weight");
        ck_role(m, &s, EXF_W_EXPERT_DOWN, 1, 0, "model.layers.1.mlp.experts.0.down_proj.weight");
        exf_model_close(m);
    }
    small_free(&s);
}
END_TEST

START_TEST(roles_occur_where_the_config_says)
{
    small_model s = small_new(1);
    small_write(&s, 0);
    exf_model *m = open_model();
    ck_assert_str_eq(m->family->name, "qwen3_moe");
    ck_assert_int_eq(m->arch.n_moe_layers, 1);
    ck_assert(!m->arch.is_moe[0] && m->arch.is_moe[1]);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_DENSE_UP, 0), 1);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_DENSE_UP, 1), 0);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_ROUTER, 0), 0);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_ROUTER, 1), 1);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_EXPERT_GATE, 0), 0);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_EXPERT_GATE, 1), T_E);
    ck_assert_int_eq(exf_model_copies(m, EXF_W_Q, 0), 1);
    exf_model_close(m);
    exf_model_close(NULL);
    small_free(&s);
}
END_TEST

/* Gives the head the embedding's values. */
static void copy_embedding(small_model *s)
{
    memcpy(s->value[small_find(s, "lm_head.weight")], s->value[small_find(s, "model.embed_tokens.weight")],
           T_VOCAB * T_H * sizeof(float));
}

START_TEST(a_tied_head_is_the_embedding)
{
    for (int with_head = 0; with_head < 2; with_head++) { /* a copy that is there all the same is not used */
        small_model s = small_new(with_head);
        if (with_head) copy_embedding(&s);
        small_write(&s, 1);
        exf_model *m = open_model();
        ck_assert(m->arch.tied_embeddings);
        ck_role(m, &s, EXF_W_HEAD, 0, 0, "model.embed_tokens.weight");
        exf_model_close(m);
        small_free(&s);
    }
    small_model s = small_new(0);
    small_write(&s, 0);
    refused(EXF_MODEL, "config.json: tensor \"lm_head.weight\" [6, 4] is missing from the checkpoint");
    small_free(&s);
}
END_TEST

static uint64_t bytes_of(const small_model *s, const char *prefix)
{
    uint64_t bytes = 0;
    for (int i = 0; i < s->n; i++)
        if (strncmp(s->name[i], prefix, strlen(prefix)) == 0)
            bytes += (uint64_t)(s->shape[i][0] * (s->rank[i] == 2 ? s->shape[i][1] : 1)) * exf_dtype_bits(s->dtype[i]) / 8;
    return bytes;
}

START_TEST(bytes_are_those_of_the_tensors)
{
    small_model s = small_new(1);
    s.dtype[3] = EXF_DT_F32;
    small_write(&s, 0);
    exf_model *m = open_model();
    ck_assert_uint_eq(exf_model_bytes(m), bytes_of(&s, ""));
    ck_assert_uint_eq(exf_model_layer_bytes(m, 0), bytes_of(&s, "model.layers.0."));
    ck_assert_uint_eq(exf_model_layer_bytes(m, 1), bytes_of(&s, "model.layers.1."));
    ck_assert_uint_eq(exf_model_layer_bytes(m, -1), bytes_of(&s, "") - bytes_of(&s, "model.layers."));
    exf_model_close(m);
    copy_embedding(&s);
    small_write(&s, 1); /* tied: the head is there, but never read */
    m = open_model();
    ck_assert_uint_eq(exf_model_bytes(m), bytes_of(&s, "") - bytes_of(&s, "lm_head"));
    exf_model_close(m);
    small_free(&s);
}
END_TEST

/* A head that is stored beside a tied embedding is the embedding, whatever its dtype, or the model is refused. */
START_TEST(a_tied_model_has_no_other_head)
{
    small_model s = small_new(1);
    int head = small_find(&s, "lm_head.weight");
    exf_model *m;
    copy_embedding(&s);
    s.dtype[head] = EXF_DT_F32;
    small_write(&s, 1);
    exf_model_close(open_model());
    s.value[head][T_VOCAB * T_H - 1] += 0.25f;
    small_write(&s, 1);
    ck_fails(open_scratch(&m, &e), EXF_MODEL, e, "\"lm_head.weight\" \"model.embed_tokens.weight\" \"tie_word_embeddings\"");
    small_write(&s, 0);
    exf_model_close(open_model());
    s.rank[head] = 1; /* [6] */
    small_write(&s, 1);
    ck_fails(open_scratch(&m, &e), EXF_MODEL, e, "\"lm_head.weight\" \"tie_word_embeddings\"");
    small_free(&s);
}
END_TEST

START_TEST(stored_frequencies_are_passed_over)
{
    small_model s = small_new(1);
    small_add(&s, "model.layers.0.self_attn.rotary_emb.inv_freq", 2, 0);
    small_add(&s, "model.rotary_emb.inv_freq", 2, 0);
    small_write(&s, 0);
    exf_model_close(open_model());
    small_free(&s);
}
END_TEST

/* Tensors of two layouts are no model, even if together they are all that is needed. */
START_TEST(layouts_are_not_mixed)
{
    small_model s = small_new(1);
    exf_model *m;
    small_add(&s, "model.layers.1.mlp.experts.down_proj", T_E, T_H * T_I);
    small_write(&s, 0);
    ck_fails(open_scratch(&m, &e), EXF_MODEL, e, "\"model.layers.1.mlp.experts.down_proj\" is not one that");
    for (int x = 0; x < T_E; x++) {
        char name[80];
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.down_proj.weight", x);
        small_drop(&s, name);
    }
    small_write(&s, 0);
    ck_fails(open_scratch(&m, &e), EXF_MODEL, e, "\"model.layers.1.mlp.experts.down_proj\" is [3, 12], says [3, 4, 3]");
    small_free(&s);
}
END_TEST

/* ---- tensors that do not fit --------------------------------------------------------------- */

static void shape_refused(const char *name, int rank, int64_t rows, int64_t columns, const char *part)
{
    small_model s = small_new(1);
    int i = small_find(&s, name);
    s.rank[i] = rank;
    s.shape[i][0] = rows;
    s.shape[i][1] = columns;
    small_write(&s, 0);
    refused(EXF_MODEL, part);
    ck_assert_msg(strstr(e.msg, "model.safetensors") && strstr(e.msg, "config.json"), "not both files in \"%s\"", e.msg);
    small_free(&s);
}

/* Tensors of another rank; check_model_refusals.c has those of other lengths, of other types, and the missing. */
START_TEST(ranks_are_those_of_the_config)
{
    shape_refused("model.norm.weight", 2, 4, 1, "is [4, 1]");
    shape_refused("model.layers.1.mlp.gate.weight", 1, 12, 0, "is [12]");
    ck_assert_msg(strstr(e.msg, "says [3, 4]") != NULL, "%s", e.msg);
}
END_TEST

START_TEST(tensors_beyond_the_config_are_refused)
{
    static const char *const names[] = {
        "model.layers.2.input_layernorm.weight",          /* a layer too many */
        "model.layers.1.mlp.experts.3.up_proj.weight",    /* an expert too many */
        "model.layers.0.mlp.gate.weight",                 /* a router in a dense layer */
        "model.layers.1.mlp.up_proj.weight",              /* a dense part in a mixture */
        "model.layers.1.self_attn.q_proj.bias",
        "model.layers.01.mlp.gate.weight", "model.layers.+1.mlp.gate.weight", "model.layers.-1.mlp.gate.weight",
        "model.layers. 1.mlp.gate.weight", "model.layers.99999999999999999999.mlp.gate.weight", "model.layers.1.mlp.gate.weight2",
        "model.norm.weigh", "stray"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char want[160];
        small_model s = small_new(1);
        small_add(&s, names[i], 3, 4);
        small_write(&s, 0);
        snprintf(want, sizeof want, "model.safetensors: tensor \"%s\" is not one that ", names[i]);
        refused(EXF_MODEL, want);
        small_free(&s);
    }
}
END_TEST

/* Of a release that lost its quantization_config. */
START_TEST(packed_tensors_need_a_config)
{
    static const char *const endings[][2] = {{"qweight", "by AWQ or GPTQ, but "}, {"weight_packed", "by compressed-tensors, but "},
                                             {"weight_scale_2", "by ModelOpt (NVFP4), but "}, {"weight.absmax", "bitsandbytes"}};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        char name[72];
        small_model s = small_new(1);
        snprintf(name, sizeof name, "model.layers.1.mlp.experts.1.up_proj.%s", endings[i][0]);
        small_add(&s, name, 3, 4);
        small_write(&s, 0);
        refused(EXF_MODEL, name);
        ck_assert_msg(strstr(e.msg, endings[i][1]) && strstr(e.msg, "docs/quantized.md"), "%s", e.msg);
        small_free(&s);
    }
}
END_TEST

/* ---- numbers that are none ------------------------------------------------------------------- */

START_TEST(weights_that_are_no_numbers_are_refused)
{
    static const exf_dtype formats[] = {EXF_DT_BF16, EXF_DT_F16, EXF_DT_F32};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 9; k++) {
        float read[64];
        small_model s = small_new(1);
        int i = small_find(&s, "model.layers.1.mlp.experts.1.up_proj.weight");
        s.dtype[i] = formats[k / 3];
        s.value[i][7] = bad[k % 3];
        small_write(&s, 0);
        exf_model *m = open_model();
        ck_ok(exf_model_read(m, EXF_W_EXPERT_UP, 1, 0, read, &e), e);
        ck_fails(exf_model_read(m, EXF_W_EXPERT_UP, 1, 1, read, &e), EXF_NUMERIC, e,
                 "model.safetensors \"model.layers.1.mlp.experts.1.up_proj.weight\" 7");
        ck_assert_msg(strstr(e.msg, k % 3 ? "infinite" : "not a number") != NULL, "%s", e.msg);
        exf_model_close(m);
        small_free(&s);
    }
}
END_TEST

/* ---- config.json ------------------------------------------------------------------------------ */

START_TEST(a_config_must_be_one_of_ours)
{
    small_model s = small_new(1);
    small_write(&s, 0);
    put_text("config.json", "[]");
    refused(EXF_FORMAT, "config.json: is an array, expected an object");
    put_text("config.json", "{\"model_type\": ");
    refused(EXF_FORMAT, "config.json");
    put_text("config.json", "{\"hidden_size\": 4}");
    refused(EXF_MODEL, "model_type \"\" is of a family that this version does not read; it reads ");
    put_text("config.json", "{\"model_type\": \"llama\"}");
    refused(EXF_MODEL, "model_type \"llama\" is of a family that this version does not read; it reads ");
    ck_assert_msg(strstr(e.msg, "qwen3_moe") != NULL, "%s", e.msg);
    put_text("config.json", "{\"model_type\": 3}");
    refused(EXF_MODEL, "model_type");
    put_text("config.json", SMALL_CONFIG "false, \"quantization_config\": {\"quant_method\": \"bitsandbytes\"}}");
    refused(EXF_MODEL, "\"quantization_config.quant_method\" is \"bitsandbytes\"");
    unlink(exf_scratch("config.json"));
    refused(EXF_IO, "config.json");
    small_write(&s, 0);
    unlink(exf_scratch("model.safetensors"));
    refused(EXF_MODEL, "neither model.safetensors nor model.safetensors.index.json");
    small_free(&s);
}
END_TEST

START_TEST(the_config_is_named_by_its_sha256)
{
    char sha[EXF_SHA256_HEX];
    small_model s = small_new(1);
    small_write(&s, 0);
    exf_model *m = open_model();
    ck_ok(exf_hash_file(exf_scratch("config.json"), sha, &e), e);
    ck_assert_str_eq(m->config_sha256, sha);
    exf_model_close(m);
    small_free(&s);
}
END_TEST

/* Routers of a config alone: MiniMax-M2's releases store them in float32, Mixtral's in bfloat16. */
START_TEST(routers_are_planned_as_releases_store_them)
{
    static const struct { const char *config; uint64_t bytes; } rows[] = {{"minimax-m2", 256 * 3072 * 4},
                                                                          {"mixtral-8x7b", 8 * 4096 * 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[80];
        exf_model *m = NULL;
        snprintf(dir, sizeof dir, "tests/configs/%s", rows[i].config);
        ck_ok(exf_model_open_part(&m, dir, EXF_MODEL_CONFIG, &e), e);
        ck_assert_uint_eq(exf_model_role_bytes(m, EXF_W_ROUTER, 0), rows[i].bytes);
        ck_assert_int_eq(exf_model_fits_bf16(m, EXF_W_ROUTER, 0), i);
        exf_model_close(m);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, tensors_are_read_by_role_in_every_format);
    tcase_add_test(t, roles_occur_where_the_config_says);
    tcase_add_test(t, a_tied_head_is_the_embedding);
    tcase_add_test(t, a_tied_model_has_no_other_head);
    tcase_add_test(t, stored_frequencies_are_passed_over);
    tcase_add_test(t, layouts_are_not_mixed);
    tcase_add_test(t, bytes_are_those_of_the_tensors);
    tcase_add_test(t, ranks_are_those_of_the_config);
    tcase_add_test(t, tensors_beyond_the_config_are_refused);
    tcase_add_test(t, packed_tensors_need_a_config);
    tcase_add_test(t, weights_that_are_no_numbers_are_refused);
    tcase_add_test(t, a_config_must_be_one_of_ours);
    tcase_add_test(t, the_config_is_named_by_its_sha256);
    tcase_add_test(t, routers_are_planned_as_releases_store_them);
}

/* model_fixtures.h - small checkpoints for the tests of src/model, written into
 * the scratch directory, whole or with one thing wrong. */
#ifndef EXF_TESTS_MODEL_FIXTURES_H
#define EXF_TESTS_MODEL_FIXTURES_H
#include "tests/support/scratch_fixtures.h"

#include "format/safetensors.h"
#include "model/model.h"

#include <math.h>

/* Layer 0 is dense, layer 1 a mixture. */
enum { T_H = 4, T_L = 2, T_VOCAB = 6, T_Q = 8, T_KV = 4, T_HEAD = 4, T_FFN = 5, T_E = 3, T_I = 3, T_MAX = 48 };

#define SMALL_CONFIG                                                                                                    \
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 4, \"num_hidden_layers\": 2, \"vocab_size\": 6, \"num_experts\": 3, " \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 3, \"intermediate_size\": 5, \"num_attention_heads\": 2, "      \
    "\"num_key_value_heads\": 1, \"head_dim\": 4, \"mlp_only_layers\": [0], \"tie_word_embeddings\": "

typedef struct {
    char name[T_MAX][80];
    int rank[T_MAX];
    int64_t shape[T_MAX][3];
    exf_dtype dtype[T_MAX];
    float *value[T_MAX]; /* as many as the shape says */
    int n;
} small_model;

static inline void small_add(small_model *m, const char *name, int64_t rows, int64_t columns)
{
    exf_err e;
    int i = m->n++;
    size_t n = (size_t)(rows * (columns ? columns : 1));
    ck_assert_int_lt(i, T_MAX);
    snprintf(m->name[i], sizeof m->name[i], "%s", name);
    m->rank[i] = columns ? 2 : 1;
    m->shape[i][0] = rows;
    m->shape[i][1] = columns;
    m->dtype[i] = EXF_DT_BF16;
    ck_ok(exf_mem_new(&m->value[i], n, sizeof(float), "test tensor", &e), e);
    for (size_t k = 0; k < n; k++) m->value[i][k] = (float)((i * 7 + (int)k * 3) % 31 - 15) / 4; /* exact in every format */
}

static inline void small_add_layer(small_model *m, int l)
{
    static const struct { const char *name; int rows, columns;
    } common[] = {{"input_layernorm", T_H, 0},     {"self_attn.q_proj", T_Q, T_H},      {"self_attn.k_proj", T_KV, T_H},
                  {"self_attn.v_proj", T_KV, T_H}, {"self_attn.o_proj", T_H, T_Q},      {"self_attn.q_norm", T_HEAD, 0},
                  {"self_attn.k_norm", T_HEAD, 0}, {"post_attention_layernorm", T_H, 0}};
    static const struct { const char *name; int rows[2], columns[2]; } parts[] = {
        {"gate_proj", {T_FFN, T_I}, {T_H, T_H}}, {"up_proj", {T_FFN, T_I}, {T_H, T_H}}, {"down_proj", {T_H, T_H}, {T_FFN, T_I}}};
    char name[80];
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, common[i].name);
        small_add(m, name, common[i].rows, common[i].columns);
    }
    for (int p = 0; p < 3; p++)
        for (int x = 0; x < (l ? T_E : 1); x++) {
            if (l) snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", l, x, parts[p].name);
            else snprintf(name, sizeof name, "model.layers.%d.mlp.%s.weight", l, parts[p].name);
            small_add(m, name, parts[p].rows[l], parts[p].columns[l]);
        }
    if (l) small_add(m, "model.layers.1.mlp.gate.weight", T_E, T_H);
}

static inline small_model small_new(int with_head)
{
    small_model m = {.n = 0};
    small_add(&m, "model.embed_tokens.weight", T_VOCAB, T_H);
    small_add(&m, "model.norm.weight", T_H, 0);
    if (with_head) small_add(&m, "lm_head.weight", T_VOCAB, T_H);
    for (int l = 0; l < T_L; l++) small_add_layer(&m, l);
    return m;
}

static inline void small_free(small_model *m)
{
    for (int i = 0; i < m->n; i++) exf_mem_free(m->value[i]);
}

static inline int small_find(const small_model *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->name[i], name) == 0) return i;
    ck_abort_msg("no tensor %s", name);
    return -1;
}

static inline void small_drop(small_model *m, const char *name)
{
    int i = small_find(m, name), last = --m->n;
    exf_mem_free(m->value[i]);
    memmove(m->name[i], m->name[last], sizeof m->name[i]); /* it may be the last */
    memmove(m->shape[i], m->shape[last], sizeof m->shape[i]);
    m->rank[i] = m->rank[last];
    m->dtype[i] = m->dtype[last];
    m->value[i] = m->value[last];
}

/* Puts the experts of layer 1 into two tensors, as transformers 5 saves them: each expert's gate above its up, and the downs. */
static inline void small_fuse(small_model *m)
{
    static const char *const part[] = {"gate_proj", "up_proj", "down_proj"};
    enum { ROWS = T_I * T_H };
    float stack[3][T_E][ROWS];
    char name[80];
    for (int p = 0; p < 3; p++)
        for (int x = 0; x < T_E; x++) {
            snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s.weight", x, part[p]);
            memcpy(stack[p][x], m->value[small_find(m, name)], sizeof stack[p][x]);
            small_drop(m, name);
        }
    for (int k = 0; k < 2; k++) {
        int i = m->n, parts = k ? 1 : 2;
        small_add(m, k ? "model.layers.1.mlp.experts.down_proj" : "model.layers.1.mlp.experts.gate_up_proj", T_E * parts, ROWS);
        m->rank[i] = 3;
        m->shape[i][0] = T_E;
        m->shape[i][1] = k ? T_H : 2 * T_I;
        m->shape[i][2] = k ? T_I : T_H;
        for (int x = 0; x < T_E; x++)
            for (int p = 0; p < parts; p++)
                memcpy(m->value[i] + (x * parts + p) * ROWS, stack[k ? 2 : p][x], sizeof stack[0][0]);
    }
}

/* Half precision of a value that it holds exactly (no subnormals). */
static inline uint16_t half_of(float x)
{
    int exponent;
    float m = frexpf(fabsf(x), &exponent);
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x)) return sign | 0x7e00;
    if (isinf(x)) return sign | 0x7c00;
    return x == 0 ? sign : (uint16_t)(sign | (exponent + 14) << 10 | (int)((m * 2 - 1) * 1024));
}

static inline void encode(void *out, const float *v, size_t n, exf_dtype dtype)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        uint16_t narrow = dtype == EXF_DT_F16 ? half_of(v[i]) : (uint16_t)(bits >> 16);
        if (exf_dtype_bits(dtype) == 32) memcpy((char *)out + 4 * i, &bits, 4);
        else memcpy((char *)out + 2 * i, &narrow, 2);
    }
}

/* Tensors [from, to) into one file of the scratch directory. */
static inline void small_write_part(const small_model *m, const char *file, int from, int to)
{
    exf_err e;
    exf_tensor t[T_MAX];
    void *bytes[T_MAX];
    exf_st_meta meta = {"format", "pt"};
    for (int i = from; i < to; i++) {
        exf_tensor *x = &t[i - from];
        *x = (exf_tensor){.name = m->name[i], .dtype = m->dtype[i], .rank = m->rank[i]};
        memcpy(x->shape, m->shape[i], (size_t)m->rank[i] * sizeof *x->shape);
        ck_ok(exf_mem_new(&bytes[i], exf_tensor_bytes(x), 1, "test tensor", &e), e);
        encode(bytes[i], m->value[i], (size_t)exf_tensor_count(x), m->dtype[i]);
        x->data = bytes[i];
    }
    ck_ok(exf_st_write(exf_scratch(file), 1, t, (size_t)(to - from), &meta, 1, NULL, &e), e);
    for (int i = from; i < to; i++) exf_mem_free(bytes[i]);
}

static inline void put_text(const char *file, const char *text)
{
    exf_write_file(exf_scratch(file), text, strlen(text));
}

/* config.json and model.safetensors. */
static inline void small_write(const small_model *m, int tied)
{
    put_text("config.json", tied ? SMALL_CONFIG "true}" : SMALL_CONFIG "false}");
    small_write_part(m, "model.safetensors", 0, m->n);
}

/* The scratch directory itself: the checkpoint's. */
static inline exf_code open_scratch(exf_model **m, exf_err *err)
{
    return exf_model_open(m, exf_scratch(""), err);
}
#endif

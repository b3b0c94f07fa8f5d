/* check_qwen3_5.c - Qwen3.5 MoE beyond its golden run: the other layout of
 * checkpoints, sequences of all lengths, and configs that are refused. */
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

static const char golden_dir[] = "tests/golden/qwen3_5_moe";
static const char long_prefix[] = "model.language_model.";

/* ---- the golden checkpoint, written anew --------------------------------------- */

enum { MOST = 512 };

typedef struct {
    exf_tensor tensor[MOST];
    char name[MOST][EXF_TENSOR_NAME_LEN];
    char *held[MOST]; /* bytes of the tensors of the source */
    size_t n, n_held;
} rewritten;

static void add(rewritten *r, const char *name, const exf_tensor *like, const char *data)
{
    ck_assert_uint_lt(r->n, MOST);
    snprintf(r->name[r->n], sizeof r->name[0], "%s", name);
    r->tensor[r->n] = *like;
    r->tensor[r->n].name = r->name[r->n];
    r->tensor[r->n].data = data;
    r->n++;
}

/* A stack [E, rows, cols] as E matrices for each of the n_parts equal parts of its rows. */
static void add_experts(rewritten *r, const char *base, const exf_tensor *stack, const char *data, const char *const *parts,
                        int n_parts)
{
    exf_tensor one = {.dtype = stack->dtype, .rank = 2, .shape = {stack->shape[1] / n_parts, stack->shape[2]}};
    for (int i = 0; i < (int)stack->shape[0] * n_parts; i++) {
        char name[EXF_TENSOR_NAME_LEN];
        snprintf(name, sizeof name, "%s.%d.%s.weight", base, i / n_parts, parts[i % n_parts]);
        add(r, name, &one, data + (size_t)i * exf_tensor_bytes(&one));
    }
}

static void add_unstacked(rewritten *r, const char *name, const exf_tensor *t, const char *data)
{
    static const char *const gate_up[] = {"gate_proj", "up_proj"}, *const down[] = {"down_proj"};
    char base[EXF_TENSOR_NAME_LEN];
    snprintf(base, sizeof base, "%s", name);
    if (strrchr(base, '.')) *strrchr(base, '.') = 0;
    if (exf_ends_with(name, ".experts.gate_up_proj"))
        add_experts(r, base, t, data, gate_up, 2);
    else if (exf_ends_with(name, ".experts.down_proj"))
        add_experts(r, base, t, data, down, 1);
    else
        add(r, name, t, data);
}

/* The golden checkpoint's tensors into the scratch directory: with the prefix
 * `prefix`, and with one tensor per expert when unstack is set. */
static void write_tensors(const char *prefix, int unstack)
{
    static rewritten r;
    exf_st_file *f;
    exf_err err;
    memset(&r, 0, sizeof r);
    ck_ok(exf_st_open(&f, "tests/golden/qwen3_5_moe/model.safetensors", &err), err);
    for (size_t i = 0; i < f->n_tensors; i++) {
        const exf_st_tensor *t = &f->tensor[i];
        char name[EXF_TENSOR_NAME_LEN];
        if (exf_starts_with(t->view.name, long_prefix))
            snprintf(name, sizeof name, "%s%s", prefix, t->view.name + strlen(long_prefix));
        else
            snprintf(name, sizeof name, "%s", t->view.name);
        char **data = &r.held[r.n_held++];
        ck_ok(exf_mem_new(data, t->nbytes, 1, "tensor", &err), err);
        ck_ok(exf_st_read(f, t, 0, *data, t->nbytes, &err), err);
        if (unstack)
            add_unstacked(&r, name, &t->view, *data);
        else
            add(&r, name, &t->view, *data);
    }
    ck_ok(exf_st_write(exf_scratch("model.safetensors"), 1, r.tensor, r.n, NULL, 0, NULL, &err), err);
    for (size_t i = 0; i < r.n_held; i++) exf_mem_free(r.held[i]);
    exf_st_close(f);
}

/* ---- its config, with one place changed ------------------------------------------ */

/* The first occurrence of `from` replaced; a NULL changes nothing. */
static void write_config(const char *from, const char *to)
{
    char *text;
    size_t n;
    exf_err err;
    exf_text out = {0};
    ck_ok(exf_file_slurp("tests/golden/qwen3_5_moe/config.json", 1 << 20, &text, &n, &err), err);
    char *at = from ? strstr(text, from) : text;
    ck_assert_msg(at != NULL, "config.json lacks %s", from);
    exf_text_append(&out, text, (size_t)(at - text));
    if (from) exf_text_appendf(&out, "%s", to);
    exf_text_appendf(&out, "%s", from ? at + strlen(from) : at);
    exf_write_file(exf_scratch("config.json"), out.s, out.len);
    exf_text_free(&out);
    exf_mem_free(text);
}

/* The text_config object alone, as a text-only checkpoint has it. */
static void write_text_config(void)
{
    char *text;
    size_t n;
    exf_err err;
    ck_ok(exf_file_slurp("tests/golden/qwen3_5_moe/config.json", 1 << 20, &text, &n, &err), err);
    char *begin = strchr(strstr(text, "\"text_config\""), '{'), *end = strstr(begin, "\n }");
    ck_assert(end != NULL);
    exf_write_file(exf_scratch("config.json"), begin, (size_t)(end + 3 - begin));
    exf_mem_free(text);
}

/* ---- running ------------------------------------------------------------------------ */

enum { LONGEST = 70 };

static void fill_ids(int32_t *ids, int vocab)
{
    for (int i = 0; i < LONGEST; i++) ids[i] = (int32_t)((i * 97 + i * i * 31 + 5) % vocab);
}

/* Logits of the first n test tokens by the model in dir; the caller frees. */
static float *logits_of(const char *dir, int n, size_t *count)
{
    exf_model *m;
    exf_err err;
    golden_seen s;
    int32_t ids[LONGEST];
    exf_span span = {0, n};
    exf_batch batch = {ids, &span, 1, (size_t)n, n};
    ck_ok(exf_model_open(&m, dir, &err), err);
    fill_ids(ids, m->arch.vocab);
    golden_forward(&s, m, &batch, &exf_backend_cpu, EXF_COMPUTE_F32, 1);
    *count = (size_t)n * (size_t)m->arch.vocab;
    float *logits = s.logits;
    s.logits = NULL;
    golden_free(&s);
    exf_model_close(m);
    return logits;
}

/* The model in the scratch directory gives the golden one's bits. */
static void assert_same_model(const char *what)
{
    size_t n, m;
    float *want = logits_of(golden_dir, LONGEST, &n), *seen = logits_of(exf_scratch(""), LONGEST, &m);
    ck_assert_uint_eq(n, m);
    ck_assert_msg(memcmp(want, seen, n * sizeof *want) == 0, "%s: other logits, %.1e off", what, golden_distance(seen, want, n));
    exf_mem_free(want);
    exf_mem_free(seen);
}

START_TEST(layouts_give_the_same_bits)
{
    static const char *const prefix[] = {"model.", "model.language_model."};
    write_config(NULL, NULL);
    write_tensors(prefix[_i & 1], _i >> 1);
    assert_same_model(_i >> 1 ? "one tensor per expert" : "stacked experts");
}
END_TEST

START_TEST(text_only_checkpoints_are_read)
{
    write_text_config();
    write_tensors("model.", 1);
    assert_same_model("text only");
}
END_TEST

START_TEST(layer_types_follow_the_interval)
{
    write_config("\"layer_types\"", "\"full_attention_interval\": 4, \"other_types\"");
    write_tensors(long_prefix, 0);
    assert_same_model("full_attention_interval");
}
END_TEST

/* Shorter than the convolution, around a chunk of 64, and beyond. */
START_TEST(lengths_agree_with_prefixes)
{
    static const int lengths[] = {1, 2, 3, 4, 5, 63, 64, 65, 69};
    size_t n, m;
    float *whole = logits_of(golden_dir, LONGEST, &n), *cut = logits_of(golden_dir, lengths[_i], &m);
    double d = golden_distance(cut, whole, m);
    ck_assert_msg(d < 1e-5, "the first %d of %d tokens are %.1e off", lengths[_i], LONGEST, d);
    exf_mem_free(whole);
    exf_mem_free(cut);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------ */

static const struct { const char *from, *to, *part; } refused[] = {
    {"\"full_attention\"", "\"sliding_attention\"",
     "\"layer_types\"[3] is sliding_attention, expected linear_attention or full_attention"},
    {"\"full_attention\"", "7", "\"layer_types\"[3] is an integer"},
    {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", "\"layer_types\" has 4 elements, \"num_hidden_layers\" is 5"},
    {"\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 5", "\"linear_num_value_heads\" is 5, no multiple"},
    {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 3", "conv1d.weight\" is [128, 1, 4]"},
    {"\"partial_rotary_factor\": 0.25,", "", "partial_rotary_factor"},
    {"\"partial_rotary_factor\": 0.25,", "\"partial_rotary_factor\": 1e300,", "is 1e+300, expected a number above 0, at most 1"},
    {"\"rope_theta\": 10000000,", "", "rope_theta"},
    {"\"attention_bias\": false", "\"attention_bias\": true", "\"attention_bias\" is true"},
    {"\"attention_bias\": false", "\"attn_output_gate\": false", "\"attn_output_gate\" is false"},
    {"\"attention_bias\": false", "\"tie_word_embeddings\": true", "disagree"},
    {"\"attention_bias\": false", "\"mlp_only_layers\": [1]", "\"mlp_only_layers\" has 1 entries"},
    {"\"attention_bias\": false", "\"norm_topk_prob\": false", "\"norm_topk_prob\" is false"},
    {"\"qwen3_5_moe_text\"", "\"qwen3_next\"", "\"text_config.model_type\" is qwen3_next"},
    {"\"shared_expert_intermediate_size\": 24", "\"shared_expert_intermediate_size\": 23", "shared_expert.gate_proj.weight"},
    {"\"moe_intermediate_size\": 24", "\"moe_intermediate_size\": 12", "experts.gate_up_proj\" is [16, 48, 64]"},
    {"\"text_config\": {", "\"text_config\": 1, \"other\": {", "\"text_config\" is an integer"},
};

START_TEST(configs_are_refused)
{
    exf_model *m;
    exf_err err;
    write_config(refused[_i].from, refused[_i].to);
    write_tensors(long_prefix, 0);
    ck_fails(exf_model_open(&m, exf_scratch(""), &err), EXF_MODEL, err, refused[_i].part);
}
END_TEST

/* tie_word_embeddings beside text_config, or inside it. */
START_TEST(tied_embeddings)
{
    static const struct { const char *from, *to; } places[] = {
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"},
        {"\"vocab_size\": 512\n },\n \"tie_word_embeddings\": false", "\"vocab_size\": 512, \"tie_word_embeddings\": true}"},
    };
    exf_model *m;
    exf_err err;
    write_config(places[_i].from, places[_i].to);
    ck_ok(exf_model_open_part(&m, exf_scratch(""), EXF_MODEL_CONFIG, &err), err);
    ck_assert_int_eq(m->arch.tied_embeddings, 1);
    ck_assert_uint_eq(exf_model_count(m, EXF_W_HEAD, -1), 512 * 64);
    exf_model_close(m);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, layouts_give_the_same_bits, 0, 4);
    tcase_add_test(t, text_only_checkpoints_are_read);
    tcase_add_test(t, layer_types_follow_the_interval);
    tcase_add_loop_test(t, lengths_agree_with_prefixes, 0, 9);
    tcase_add_loop_test(t, configs_are_refused, 0, sizeof refused / sizeof *refused);
    tcase_add_loop_test(t, tied_embeddings, 0, 2);
}

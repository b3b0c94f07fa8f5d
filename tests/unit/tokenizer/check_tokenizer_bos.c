/* check_tokenizer_bos.c - what goes before and after a document: each family's tokenizer_config.json and post-processor against the
 * ids of transformers 4.57 and 5.23 (scripts/make_bos_goldens.py), the run's choice, and what is refused. */
#include "tests/support/tokenizer_fixtures.h"
#include "tests/support/tokenizer_ids.h"

#include "format/json.h"

#include <stdio.h>
#include <unistd.h>

/* ---- families ---------------------------------------------------------- */

/* The id that goes before a document by data.bos: auto and always; -1: none, NO_BOS: refused. */
enum { NO_BOS = -2 };
static const struct { const char *name; int auto_id, always_id, disputed; const char *said; } family[] = {
    {"qwen3_moe", -1, NO_BOS, 0, "none (post_processor)"},
    {"qwen3_5_moe", -1, NO_BOS, 0, "none (post_processor)"},
    {"glm4_moe", -1, NO_BOS, 0, "none (post_processor)"},
    {"deepseek_v2", 256, 256, 1, "256 (add_bos_token)"},
    {"deepseek_coder", 256, 256, 1, "256 (add_bos_token)"},
    {"deepseek_v3", 256, 256, 1, "256 (add_bos_token)"},
    {"deepseek_v2_with_eos", 256, 256, 1, "256 (add_bos_token)"},
    {"deepseek_v2_without_bos", -1, 256, 0, "none (add_bos_token)"},
    {"llama3", 256, 256, 0, "256 (post_processor)"},
    {"olmoe", -1, NO_BOS, 0, "none (add_bos_token)"},
    {"mixtral", 1, 1, 0, "1 (add_bos_token)"},
    {"mixtral_metaspace", 1, 1, 0, "1 (add_bos_token)"},
    {"gpt_oss", -1, 256, 0, "none (post_processor)"},
    {"minimax_m2", -1, 256, 0, "none (post_processor)"},
};
enum { FAMILIES = sizeof family / sizeof *family };

static const char *file_of(int i, const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "tests/golden/tokenizers/bos/%s/%s", family[i].name, name);
    return path;
}

/* All texts have the ids of that version; without: but for what goes before. */
static void expect_golden(const exf_tokenizer *t, const exf_json *golden, const char *version, size_t without)
{
    expect_texts(t, exf_json_get(golden, "texts"), exf_json_get(golden, version), 4, without, version);
}

static int is_equal(const exf_json *a, const exf_json *b)
{
    if (exf_json_type(a) != EXF_JSON_ARRAY) return exf_json_int(a) == exf_json_int(b);
    int equal = exf_json_size(a) == exf_json_size(b);
    for (size_t i = 0; equal && i < exf_json_size(a); i++) equal = is_equal(exf_json_at(a, i), exf_json_at(b, i));
    return equal;
}

START_TEST(families_as_transformers)
{
    exf_err e;
    exf_tokenizer *t;
    exf_json *golden;
    ck_ok(exf_json_load(&golden, file_of(_i, "ids.json"), 1 << 20, &e), e);
    ck_ok(exf_tokenizer_load(&t, file_of(_i, "tokenizer.json"), EXF_BOS_AUTO, &e), e);
    ck_assert_str_eq(exf_tokenizer_facts_of(t)->around.said.s, family[_i].said);
    ck_assert_int_eq(exf_tokenizer_facts_of(t)->around.disputed, family[_i].disputed);
    ck_assert_int_eq(!is_equal(exf_json_get(golden, "4.57"), exf_json_get(golden, "5.23")), family[_i].disputed);
    expect_golden(t, golden, "4.57", 0);
    exf_tokenizer_free(t);
    ck_ok(exf_tokenizer_load(&t, file_of(_i, "tokenizer.json"), EXF_BOS_NEVER, &e), e);
    ck_assert_str_eq(exf_tokenizer_facts_of(t)->around.said.s, "none (data.bos: never)");
    expect_golden(t, golden, "4.57", family[_i].auto_id >= 0);
    if (strcmp(family[_i].name, "deepseek_v2_with_eos") != 0 && family[_i].disputed) expect_golden(t, golden, "5.23", 0);
    exf_tokenizer_free(t);
    exf_json_free(golden);
}
END_TEST

START_TEST(a_run_that_wants_it_always)
{
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    exf_code rc = exf_tokenizer_load(&t, file_of(_i, "tokenizer.json"), EXF_BOS_ALWAYS, &e);
    if (family[_i].always_id == NO_BOS) {
        ck_fails(rc, EXF_MODEL, e, "tokenizer_config.json bos_token data.bos");
        return;
    }
    ck_ok(rc, e);
    ck_assert_str_eq(exf_tokenizer_facts_of(t)->around.said.s,
                     family[_i].always_id == 1 ? "1 (data.bos: always)" : "256 (data.bos: always)");
    ck_ok(exf_tokenizer_encode(t, "a", 1, &ids, &e), e);
    ck_assert_int_eq(ids.id[0], family[_i].always_id);
    ck_assert_int_ne(ids.id[1], family[_i].always_id);
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}
END_TEST

/* ---- configurations ------------------------------------------------------ */

/* The tiny tokenizer beside this tokenizer_config.json; "<s>" is 256, "<e>" 257. */
static exf_code load(exf_tokenizer **t, const char *config, const char *post, exf_bos bos, exf_err *e)
{
    const char *path = make((parts){.added = ADDED("<e>", "257", "false"), .vocab = "\"<s>\":256", .post = post});
    char copy[600];
    snprintf(copy, sizeof copy, "%s", path);
    exf_write_file(exf_scratch("tokenizer_config.json"), config, strlen(config));
    exf_code rc = exf_tokenizer_load(t, copy, bos, e);
    unlink(exf_scratch("tokenizer_config.json"));
    return rc;
}

#define LLAMA "\"tokenizer_class\":\"LlamaTokenizer\""
#define TEMPLATE                                                                                                         \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"p\"}},{\"Sequence\":{\"id\":\"A\"}}],"      \
    "\"special_tokens\":{\"p\":{\"id\":\"p\",\"ids\":[300,301],\"tokens\":[]}}}"

static const struct { const char *config, *post; exf_bos bos; const char *ids; } told[] = {
    {"{" LLAMA ",\"bos_token\":\"<s>\",\"eos_token\":\"<e>\"}", NULL, EXF_BOS_AUTO, "256 97"}, /* the class' own choice */
    {"{" LLAMA ",\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":null}", NULL, EXF_BOS_AUTO, "256 97"},
    {"{" LLAMA ",\"add_bos_token\":false,\"eos_token\":\"<e>\",\"add_eos_token\":true}", TEMPLATE, EXF_BOS_AUTO, "97 257"},
    {"{" LLAMA ",\"bos_token\":\"<s>\"}", TEMPLATE, EXF_BOS_AUTO, "256 97"},
    {"{" LLAMA "}", NULL, EXF_BOS_NEVER, "97"},
    {"{\"model_max_length\":1000000000000000019884624838656," LLAMA ",\"bos_token\":\"<s>\"}", NULL, EXF_BOS_AUTO, "256 97"},
    {"{\"tokenizer_class\":\"GPTNeoXTokenizer\",\"bos_token\":\"<s>\"}", TEMPLATE, EXF_BOS_AUTO, "97"},
    {"{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"bos_token\":\"<s>\",\"add_bos_token\":true}", NULL, EXF_BOS_AUTO, "97"},
    {"{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"bos_token\":\"<s>\"}", TEMPLATE, EXF_BOS_AUTO, "300 301 97"},
    {"{\"bos_token\":\"<s>\"}", TEMPLATE, EXF_BOS_ALWAYS, "300 301 97"},
    {"{\"bos_token\":\"<s>\"}", NULL, EXF_BOS_ALWAYS, "256 97"},
    {"{\"bos_token\":\"<s>\"}", TEMPLATE, EXF_BOS_NEVER, "97"},
};

START_TEST(configurations_decide)
{
    exf_err e;
    exf_tokenizer *t;
    exf_ids ids = {0};
    ck_ok(load(&t, told[_i].config, told[_i].post, told[_i].bos, &e), e);
    expect_encoded(t, "a", 1, told[_i].ids);
    ck_ok(exf_tokenizer_encode(t, "a", 1, &ids, &e), e);
    for (size_t i = 0; i < ids.n; i++) ck_assert_int_lt(ids.id[i], exf_tokenizer_facts_of(t)->size);
    exf_ids_free(&ids);
    exf_tokenizer_free(t);
}
END_TEST

static const struct { const char *config; exf_bos bos; exf_code code; const char *named; } bad[] = {
    {"[]", EXF_BOS_AUTO, EXF_MODEL, "tokenizer_config.json an array object"},
    {"{", EXF_BOS_AUTO, EXF_FORMAT, "tokenizer_config.json line"},
    {"{" LLAMA ",\"add_bos_token\":\"yes\"}", EXF_BOS_AUTO, EXF_MODEL, "tokenizer_config.json add_bos_token a string"},
    {"{" LLAMA ",\"add_eos_token\":1}", EXF_BOS_AUTO, EXF_MODEL, "tokenizer_config.json add_eos_token an integer"},
    {"{" LLAMA "}", EXF_BOS_AUTO, EXF_MODEL, "tokenizer_config.json add_bos_token bos_token missing data.bos"},
    {"{" LLAMA ",\"bos_token\":null}", EXF_BOS_AUTO, EXF_MODEL, "bos_token null"},
    {"{" LLAMA ",\"bos_token\":\"<b>\"}", EXF_BOS_AUTO, EXF_MODEL, "tokenizer_config.json bos_token <b> tokenizer.json data.bos"},
    {"{" LLAMA ",\"bos_token\":\"<s>\",\"add_eos_token\":true}", EXF_BOS_AUTO, EXF_MODEL, "add_eos_token eos_token"},
    {"{}", EXF_BOS_ALWAYS, EXF_MODEL, "tokenizer_config.json bos_token data.bos"},
};

START_TEST(configurations_are_refused)
{
    exf_err e;
    exf_tokenizer *t;
    ck_fails(load(&t, bad[_i].config, NULL, bad[_i].bos, &e), bad[_i].code, e, bad[_i].named);
    ck_assert_ptr_null(t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, families_as_transformers, 0, FAMILIES);
    tcase_add_loop_test(t, a_run_that_wants_it_always, 0, FAMILIES);
    tcase_add_loop_test(t, configurations_decide, 0, (int)(sizeof told / sizeof *told));
    tcase_add_loop_test(t, configurations_are_refused, 0, (int)(sizeof bad / sizeof *bad));
}

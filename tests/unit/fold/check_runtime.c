/* check_runtime.c - fold/runtime: what each runtime makes of a variant, and what it refuses. */
#include "tests/support/scratch_fixtures.h"

#include "fold/runtime.h"
#include "fold/variant.h"

#include <string.h>

static exf_err e;
static const exf_architecture qwen3 = {.n_experts = 128, .top_k = 8}, v4 = {.n_experts = 256, .top_k = 6};

static const exf_runtime *named(const char *name)
{
    const exf_runtime *r = NULL;
    ck_ok(exf_runtime_require(name, &r, &e), e);
    return r;
}

/* Parses the text for the runtime and without one, and compares all that folding looks at. */
static void same(const char *runtime, const char *text, const char *as, exf_fold_candidates candidates, int folds_hashed,
                 const exf_architecture *a)
{
    exf_variant v, want;
    ck_ok(exf_variant_parse_on(named(runtime), &v, text, &e), e);
    ck_ok(exf_runtime_check(named(runtime), &v, a, &e), e);
    ck_assert_str_eq(v.name, text);
    ck_ok(exf_variant_parse(&want, as, &e), e);
    memcpy(want.name, v.name, sizeof v.name);
    if (want.decode != EXF_DECODE_NONE) want.decode_options.candidates = candidates;
    want.folds_hashed = folds_hashed;
    ck_assert_msg(memcmp(&v, &want, sizeof v) == 0, "%s for %s is not %s", text, runtime, as);
}

static void refused(const char *runtime, const char *text, const exf_architecture *a, const char *message)
{
    exf_variant v;
    exf_code rc = exf_variant_parse_on(named(runtime), &v, text, &e);
    if (rc == EXF_OK) rc = exf_runtime_check(named(runtime), &v, a, &e);
    ck_assert_int_eq(rc, EXF_USAGE);
    ck_assert_msg(strstr(e.msg, message) != NULL, "\"%s\" lacks \"%s\"", e.msg, message);
}

START_TEST(qwen3_in_vllm)
{
    same("vllm-qwen3", "P4", "P4:rank=score", 0, 0, &qwen3);
    same("vllm-qwen3", "P4:rank=score", "P4:rank=score", 0, 0, &qwen3);
    same("vllm-qwen3", "P4+D64", "P4:rank=score+D64", EXF_FOLD_POOL_OF_ALL, 0, &qwen3);
    same("vllm-qwen3", "D48:pool=static", "D48:pool=static", EXF_FOLD_POOL_OF_ALL, 0, &qwen3);
    same("vllm-qwen3", "P8+D128", "P8:rank=score+D128", EXF_FOLD_POOL_OF_ALL, 0, &qwen3);
    same("vllm-qwen3", "D64:batch=8", "D64:batch=8", EXF_FOLD_POOL_OF_ALL, 0, &qwen3); /* what it meets, not what it is told */
    refused("vllm-qwen3", "D64:fold=renorm", &qwen3, "cannot be told fold=renorm");
    refused("vllm-qwen3", "P3", &qwen3, "runs P of a power of two alone: P1, P2, P4, ..., not P3");
    refused("vllm-qwen3", "D48", &qwen3, "dynamic pools of a power of two alone: D16, D32, D64, ..., not D48");
    refused("vllm-qwen3", "D32", &(exf_architecture){.n_experts = 60, .top_k = 4}, "the model has 60; it runs D32:pool=static");
    refused("vllm-qwen3", "P4:rank=norm", &qwen3, "cannot be told rank=norm; its P runs with rank=score, without options");
    refused("vllm-qwen3", "P4:projector=joint", &qwen3, "cannot be told projector=joint");
    refused("vllm-qwen3", "D64:rank=energy", &qwen3, "cannot be told rank=energy; its D runs as it is and takes pool");
    refused("vllm-qwen3", "top4:drop", &qwen3, "vllm-qwen3 runs no top; it runs P and D");
    refused("vllm-qwen3", "P4+sere4", &qwen3, "runs no sere");
}
END_TEST

#define V4_PREFILL "P3:rank=score,loss=frobenius,"
START_TEST(deepseek_v4_in_vllm)
{
    same("vllm-deepseek-v4", "P3", V4_PREFILL "confidence=on", 0, 1, &v4);
    same("vllm-deepseek-v4", "P3:confidence=off", V4_PREFILL "confidence=off", 0, 1, &v4);
    same("vllm-deepseek-v4", "P3:rescale=l2,confidence=off", V4_PREFILL "rescale=l2", 0, 1, &v4);
    same("vllm-deepseek-v4", "D100", "D100:loss=frobenius,fallback=first", EXF_FOLD_POOL_OF_POSITIVE, 1, &v4);
    same("vllm-deepseek-v4", "D100:max_loss=0.5", "D100:loss=frobenius,fallback=first,max_loss=0.5", EXF_FOLD_POOL_OF_POSITIVE, 1,
         &v4);
    refused("vllm-deepseek-v4", "P3:rescale=l2", &v4, "confidence=on, confidence=off, or rescale=l2,confidence=off");
    refused("vllm-deepseek-v4", "P3:rescale=sum,confidence=off", &v4, "EXFOLD_PREFILL_RENORM=similarity_blend, none, router_l2");
    refused("vllm-deepseek-v4", "P3:max_loss=0.5", &v4, "takes confidence rescale");
    refused("vllm-deepseek-v4", "D64:rank=score", &v4, "cannot be told rank=score");
    refused("vllm-deepseek-v4", "D64:pool=static", &v4, "cannot be told pool=static");
}
END_TEST

START_TEST(deepseek_v4_in_sglang)
{
    same("sglang-deepseek-v4", "P3", V4_PREFILL "confidence=on", 0, 0, &v4);
    same("sglang-deepseek-v4", "D100", "D100:rank=score,loss=frobenius,fallback=first", EXF_FOLD_POOL_OF_POSITIVE, 0, &v4);
    refused("sglang-deepseek-v4", "P3:confidence=off", &v4, "cannot be told confidence=off");
    refused("sglang-deepseek-v4", "D64:max_loss=0.5", &v4, "cannot be told max_loss=0.5");
}
END_TEST

START_TEST(a_runtime_of_ones_own)
{
    same("exfold", "P3:projector=joint+D48:rank=energy", "P3:projector=joint+D48:rank=energy", 0, 0, &qwen3);
    same("exfold", "D48:fold=drop,batch=8", "D48:fold=drop,batch=8", 0, 0, &qwen3);
    refused("exfold", "D48:fold=renorm", &qwen3, "fold=renorm is a baseline, which no runtime runs");
    refused("exfold", "P3+D48:fold=random", &qwen3, "fold=random is a baseline");
    refused("exfold", "P3:projector=diagonal", &qwen3, "projector=diagonal adds vectors to outputs");
    refused("exfold", "D32:pool=static,projector=joint", &qwen3, "exfold has no joint weights for a static pool");
    refused("exfold", "skip1:tau=0.1", &qwen3, "exfold runs no skip");
    refused("exfold", "reap64", &qwen3, "exfold runs no reap");
}
END_TEST

/* The profile decode-speed: one static pool, prompts too. */
START_TEST(qwen3_in_vllm_for_speed)
{
    same("vllm-qwen3-speed", "D32:pool=static", "D32:pool=static", EXF_FOLD_POOL_OF_ALL, 0, &qwen3);
    same("vllm-qwen3-speed", "P8+D48:pool=static", "P8:rank=score+D48:pool=static", EXF_FOLD_POOL_OF_ALL, 0, &qwen3);
    refused("vllm-qwen3-speed", "D32", &qwen3, "into one static pool: it runs D32:pool=static");
    refused("vllm-qwen3-speed", "P4", &qwen3, "remaps prompts and decode steps");
    refused("vllm-qwen3-speed", "P4+D32:pool=static", &qwen3, "remaps prompts and decode steps");
    ck_ok(exf_runtime_takes_prompts(named("vllm-qwen3-speed"), 0, &e), e);
    ck_ok(exf_runtime_takes_prompts(named("vllm-qwen3"), 16, &e), e);
    ck_fails(exf_runtime_takes_prompts(named("vllm-qwen3-speed"), 16, &e), EXF_USAGE, e,
             "validate.prefill_tokens 16 vllm-qwen3-speed");
}
END_TEST

START_TEST(models_and_names)
{
    const exf_runtime *r;
    ck_ok(exf_runtime_serves(named("vllm-qwen3"), "qwen3_moe", &qwen3, &e), e);
    ck_ok(exf_runtime_serves(named("exfold"), "glm4_moe", &v4, &e), e);
    ck_fails(exf_runtime_serves(named("vllm-qwen3"), "glm4_moe", &qwen3, &e), EXF_MODEL, e,
             "vllm-qwen3 qwen3_moe glm4_moe");
    ck_fails(exf_runtime_serves(named("sglang-deepseek-v4"), "deepseek_v4", &(exf_architecture){.n_experts = 256, .top_k = 9}, &e),
             EXF_MODEL, e, "8 9");
    ck_fails(exf_runtime_require("vllm-qwen", &r, &e), EXF_USAGE, e, "\"vllm-qwen3\"");
    ck_assert_str_eq(exf_runtime_at(0)->name, "exfold");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "runtimes");
    tcase_add_test(c, qwen3_in_vllm);
    tcase_add_test(c, qwen3_in_vllm_for_speed);
    tcase_add_test(c, deepseek_v4_in_vllm);
    tcase_add_test(c, deepseek_v4_in_sglang);
    tcase_add_test(c, a_runtime_of_ones_own);
    tcase_add_test(c, models_and_names);
}

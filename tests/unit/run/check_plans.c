/* check_plans.c - plans of released models from their config.json alone: weight
 * bytes to the last one, the recipes and manifests that go with them.
 *
 * A model whose family this build lacks is skipped, and said to be. */
#include "tests/support/fake_device.h"
#include "tests/support/fixtures.h"

#include "accumulate/accumulate.h"
#include "base/mem.h"
#include "capture/capture.h"
#include "capture/manifest.h"
#include "export/writer.h"
#include "fold/variant.h"
#include "recipe/recipe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* bytes: of all tensors that are read; without_head: of all but lm_head. */
static const struct {
    const char *name, *family;
    uint64_t bytes, without_head;
    int layers, sequences, max_tokens, clip;
} models[] = {
    {"qwen3-30b-a3b", "qwen3_moe", 61064245248u, 0, 48, 32, 4096, 1},
    /* parameters in BF16, and two bytes more for each of 45 x 128 correction biases in F32 */
    {"glm-4.5-air", "glm4_moe", 2 * 106852251264u + 2 * 45 * 128, 0, 46, 16, 1024, 1},
    {"deepseek-v2-lite", "deepseek_v2", 31412968448u, 0, 27, 32, 4096, 1},
    {"qwen3.5-35b-a3b", "qwen3_5_moe", 0, 68304112256u, 40, 32, 4096, 1},
    {"deepseek-v4-flash", "deepseek_v4", 156015698140u, 0, 43, 56, 4096, 0},
    /* counted by hand from the shapes, the small tensors of the delta rule and the correction biases in F32 */
    {"qwen3-next-80b-a3b", "qwen3_next", 159348794112u, 0, 48, 32, 4096, 1},
    /* parameters in BF16, but for experts' matrices in 17 bytes to each 32 */
    {"gpt-oss-20b", "gpt_oss", 13761264768u, 0, 24, 32, 4096, 1},
    {"gpt-oss-120b", "gpt_oss", 65248815744u, 0, 36, 32, 4096, 1},
    {"minimax-m2", "minimax_m2", 230121630720u, 0, 62, 32, 4096, 1},
    {"mixtral-8x7b", "mixtral", 93405585408u, 0, 32, 32, 4096, 1},
    {"mixtral-8x22b", "mixtral", 281241268224u, 0, 56, 32, 4096, 1},
    {"olmoe-1b-7b", "olmoe", 13838323712u, 0, 16, 32, 4096, 1},
    {"qwen1.5-moe-a2.7b", "qwen2_moe", 28631568384u, 0, 24, 32, 4096, 1},
    {"qwen2-57b-a14b", "qwen2_moe", 114817317888u, 0, 28, 32, 4096, 1},
    /* in FP8 with a float32 a block; without the layer of multi-token prediction */
    {"deepseek-v3", "deepseek_v3", 673150611808u, 0, 61, 32, 4096, 1},
    {"kimi-k2", "deepseek_v3", 1029173249888u, 0, 61, 32, 4096, 1},
    {"glm-4.7-flash", "glm4_moe_lite", 59886793728u, 0, 47, 32, 4096, 1},
    {"dots.llm1", "dots1", 285548779008u, 0, 62, 32, 4096, 1},
    {"glm-4.5v", "glm4v_moe", 213704514048u, 0, 46, 32, 4096, 1},
    {"qwen3-vl-30b-a3b", "qwen3_vl_moe", 61064245248u, 0, 48, 32, 4096, 1},
    {"qwen3-omni-30b-a3b", "qwen3_omni_moe", 61065293824u, 0, 48, 32, 4096, 1},
    {"solar-open-100b", "solar_open", 205303611392u, 0, 48, 32, 4096, 1},
    {"mistral-small-4-119b", "mistral4", 237945653248u, 0, 36, 32, 4096, 1},
    {"deepseek-v3.2", "deepseek_v32", 674030337216u, 0, 61, 32, 4096, 1},
    {"glm-5", "glm_moe_dsa", 1487822475264u, 0, 78, 32, 4096, 1},
    /* experts in 4-bit integers with a BF16 scale to each 32; without the 8 bytes that tell a matrix's shape */
    {"kimi-k2.5", "kimi_k25", 594205351936u, 0, 61, 32, 4096, 1},
    {"hy3", "hy_v3", 590067117312u, 0, 80, 32, 4096, 1},
    {"ernie-4.5-21b-a3b", "ernie4_5_moe", 43650879232u, 0, 28, 32, 4096, 1},
    {"granite-3.1-1b-a400m", "granitemoe", 2669256704u, 0, 24, 32, 4096, 1},
};
enum { N_MODELS = sizeof models / sizeof *models };

/* NULL, said, when the family is not in this build. */
static exf_model *open_config(int i)
{
    char dir[128];
    exf_err e;
    exf_model *m;
    if (!exf_family_find(models[i].family)) {
        printf("skipped: %s, this build has no family %s\n", models[i].name, models[i].family);
        return NULL;
    }
    snprintf(dir, sizeof dir, "tests/configs/%s", models[i].name);
    ck_ok(exf_model_open_part(&m, dir, EXF_MODEL_CONFIG, &e), e);
    return m;
}

START_TEST(bytes_of_the_release)
{
    exf_model *m = open_config(_i);
    if (!m) return;
    uint64_t all = exf_model_bytes(m), head = exf_model_role_bytes(m, EXF_W_HEAD, -1);
    ck_assert_int_eq(m->arch.n_layers, models[_i].layers);
    if (models[_i].bytes) ck_assert_uint_eq(all, models[_i].bytes);
    if (models[_i].without_head) ck_assert_uint_eq(all - head, models[_i].without_head);
    ck_assert_ptr_null(m->identity);
    exf_model_close(m);
}
END_TEST

START_TEST(a_plan_needs_no_weights)
{
    exf_model *m = open_config(_i);
    if (!m) return;
    exf_span span[4] = {{0, 4096}, {4096, 4096}, {8192, 4096}, {12288, 4096}};
    exf_batch batch = {NULL, span, 4, 4 * 4096, 4096};
    exf_err err;
    uint64_t layer = exf_model_layer_bytes(m, m->arch.n_layers - 1);
    exf_forward_footprint f;
    exf_forward_options options = {.backend = &exf_backend_cpu, .threads = 2};
    ck_ok(exf_forward_memory(&f, &options, m, &batch, &(exf_demand){.lanes = 1}, &err), err);
    uint64_t ram = f.host;
    ck_assert(f.device == 0 && f.window == 0);
    ck_assert_uint_gt(layer, 0);
    ck_assert_msg(ram > layer && ram < (uint64_t)80 << 30, "%s: %" PRIu64 " bytes of memory", models[_i].name, ram);
    ck_assert(exf_forward_flops(&m->arch, &batch, 0) > 1e12);
    exf_model_close(m);
}
END_TEST

/* ---- a layer larger than the GPU ---------------------------------------------------- */

enum { LARGE_LAYERS = 2, LARGE_LENGTH = 2048 };

/* The memory of a calibration of 384 experts of 7168 x 2048 in FP8: one dense layer and one of experts. */
static exf_code large_memory(exf_forward_footprint *f, size_t n_sequences, uint64_t limit, exf_err *err)
{
    static exf_span span[512];
    exf_accumulate_options sums = {.weighting = EXF_WEIGHT_SOURCE_NORM};
    exf_batch batch = {NULL, span, n_sequences, n_sequences * LARGE_LENGTH, LARGE_LENGTH};
    exf_run_shape shape = {384, 8, 7168, (int64_t)n_sequences, (int64_t)batch.n_tokens};
    exf_forward_options o = {.backend = fake_device((uint64_t)140 << 30), .compute = EXF_COMPUTE_BF16, .threads = 2,
                             .n_layers = LARGE_LAYERS, .max_device_memory = limit};
    exf_demand d = {.lanes = 1, .sweeps = 1, .observers = exf_accumulate_device_memory(o.backend, &shape, &sums)};
    exf_model *m;
    exf_code rc = exf_model_open_part(&m, "tests/configs/kimi-k2", EXF_MODEL_CONFIG, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n_sequences; i++) span[i] = (exf_span){i * LARGE_LENGTH, LARGE_LENGTH};
    ck_assert_uint_gt(exf_model_role_bytes(m, EXF_W_EXPERT_UP, 1), (uint64_t)5 << 30); /* a third of a layer's experts */
    rc = exf_forward_memory(f, &o, m, &batch, &d, err);
    exf_model_close(m);
    return rc;
}

START_TEST(experts_larger_than_a_gpu_are_planned_in_parts)
{
    const uint64_t limit = (uint64_t)24 << 30;
    exf_forward_footprint f;
    exf_err e;
    for (size_t n = 8; n <= 512; n *= 8) {
        ck_ok(large_memory(&f, n, 0, &e), e);
        ck_assert_int_eq(f.reads, 1);
        ck_assert_uint_gt(f.device, limit);
        ck_ok(large_memory(&f, n, limit, &e), e);
        ck_assert_uint_le(f.device, limit);
        ck_assert_msg(f.reads >= 1 && (size_t)f.reads <= n / 8, "%zu sequences: experts are read %d times", n, f.reads);
    }
    ck_fails(large_memory(&f, 8, (uint64_t)2 << 30, &e), EXF_NOSPACE, e, "2147483648");
}
END_TEST

/* ---- a GPU of 24 GB, with nothing set ------------------------------------------------ */

/* What such a GPU has free beside the driver and a desktop; sequences of a usual calibration. */
enum { USUAL_SEQUENCES = 512, USUAL_LENGTH = 2048 };
static const uint64_t free_of_24_gb = (uint64_t)22 << 30;

START_TEST(released_models_run_on_24_gb)
{
    static exf_span span[USUAL_SEQUENCES];
    exf_model *m = open_config(_i);
    if (!m) return;
    for (size_t i = 0; i < USUAL_SEQUENCES; i++) span[i] = (exf_span){i * USUAL_LENGTH, USUAL_LENGTH};
    exf_accumulate_options sums = {.weighting = EXF_WEIGHT_SOURCE_NORM};
    exf_batch batch = {NULL, span, USUAL_SEQUENCES, USUAL_SEQUENCES * USUAL_LENGTH, USUAL_LENGTH};
    exf_run_shape shape = {m->arch.n_experts, m->arch.top_k, m->arch.d_model, USUAL_SEQUENCES, (int64_t)batch.n_tokens};
    exf_forward_options o = {.backend = fake_device(free_of_24_gb), .compute = EXF_COMPUTE_BF16, .threads = 2};
    exf_demand d = {.lanes = 1, .sweeps = 1, .observers = exf_accumulate_device_memory(o.backend, &shape, &sums)};
    exf_forward_footprint f;
    exf_err err;
    ck_ok(exf_forward_memory(&f, &o, m, &batch, &d, &err), err);
    int in_parts = exf_model_layer_bytes(m, m->arch.n_layers - 1) > free_of_24_gb / 3; /* DeepSeek-V3 and Kimi-K2 */
    ck_assert_msg(f.device <= free_of_24_gb && (in_parts ? f.reads <= USUAL_SEQUENCES / 8 : f.reads == 1),
                  "%s: %" PRIu64 " bytes, experts read %d times", models[_i].name, f.device, f.reads);
    exf_model_close(m);
}
END_TEST

/* The rules' sum is the files' sum, layer by layer, in the goldens' layouts too. */
/* Without minimax_m2, whose golden has routers in bfloat16, as its releases have not. */
static const char *const goldens[] = {
    "qwen3_moe",   "qwen3_moe_fp8",           "glm4_moe",    "glm4_moe_qknorm_groups",
    "deepseek_v2", "deepseek_v2_qlora_groups", "qwen3_5_moe", "deepseek_v4", "deepseek_v4_fp8_fp4",
    "qwen3_next",              "mixtral",     "olmoe",       "qwen2_moe",   "deepseek_v3",
    "gpt_oss",     "gpt_oss_mxfp4", "glm4_moe_lite", "dots1", "glm4v_moe", "qwen3_vl_moe", "qwen3_omni_moe",
    "solar_open", "mistral4", "deepseek_v32", "glm_moe_dsa",
    "kimi_k25", "hy_v3", "ernie4_5_moe", "granitemoe",
};
enum { N_GOLDENS = sizeof goldens / sizeof *goldens };

START_TEST(rules_count_what_files_hold)
{
    char dir[128];
    exf_err e;
    exf_model *whole, *config;
    snprintf(dir, sizeof dir, "tests/golden/%s", goldens[_i]);
    if (!exf_checkpoint_present(dir)) {
        printf("skipped: %s is not there\n", dir);
        return;
    }
    ck_ok(exf_model_open(&whole, dir, &e), e);
    ck_ok(exf_model_open_part(&config, dir, EXF_MODEL_CONFIG, &e), e);
    for (int l = -1; l < whole->arch.n_layers; l++)
        ck_assert_uint_eq(exf_model_layer_bytes(config, l), exf_model_layer_bytes(whole, l));
    ck_assert_uint_eq(exf_model_bytes(config), exf_model_bytes(whole));
    exf_model_close(whole);
    exf_model_close(config);
}
END_TEST

/* ---- recipes and manifests ------------------------------------------------------ */

START_TEST(recipes_say_what_the_paper_did)
{
    char path[128];
    exf_err e;
    exf_recipe r = {.recipe_file = NULL};
    exf_solve_options o;
    exf_corpus *c;
    char *missing;
    size_t n;
    const exf_opt *rows = exf_recipe_key_rows(&n);
    snprintf(path, sizeof path, "recipes/%s.yaml", models[_i].name);
    ck_ok(exf_opts_new(&r.opts, rows, n, &r, &e), e);
    ck_ok(exf_recipe_read(&r, path, &e), e);
    ck_ok(exf_recipe_solve_options(&r, &o, &e), e);
    ck_assert_int_eq(o.rule.clip, models[_i].clip);
    if (o.rule.clip) ck_assert(o.rule.clip_min == -4 && o.rule.clip_max == 4);
    ck_assert(o.rule.ridge == 1e-3);
    exf_corpus_request q = {r.manifest, r.sequences, r.max_tokens, r.min_tokens, (uint64_t)r.seed, 1 << 20,
                            "no/tokenizer.json", NULL, EXF_BOS_AUTO};
    ck_ok(exf_corpus_plan(&c, &q, &missing, &e), e);
    ck_assert_ptr_nonnull(missing);
    ck_assert_uint_eq(c->n_sequences, (size_t)models[_i].sequences);
    ck_assert_int_eq(c->max_tokens, models[_i].max_tokens);
    ck_assert_uint_eq(c->n_tokens, (uint64_t)(models[_i].sequences * models[_i].max_tokens));
    exf_corpus_free(c);
    exf_mem_free(missing);
    exf_recipe_free(&r);
}
END_TEST

static int names(const exf_text_list *l, const char *word)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->item[i], word) == 0) return 1;
    return 0;
}

/* Pools, the runtime that serves the model, and a validation that its tables can be asked for. */
START_TEST(recipes_serve_and_validate)
{
    char path[128];
    exf_err e;
    exf_recipe r = {.recipe_file = NULL};
    exf_manifest *held_out;
    size_t n;
    const exf_opt *rows = exf_recipe_key_rows(&n);
    exf_model *m = open_config(_i);
    if (!m) return;
    snprintf(path, sizeof path, "recipes/%s.yaml", models[_i].name);
    ck_ok(exf_opts_new(&r.opts, rows, n, &r, &e), e);
    ck_ok(exf_recipe_read(&r, path, &e), e);
    ck_assert_uint_gt(r.pools.n, 0);
    const exf_run_shape shape = {m->arch.n_experts, m->arch.top_k, m->arch.d_model, 1, 1};
    ck_ok(exf_recipe_check_shape(&r, &shape, &e), e);
    ck_ok(exf_recipe_check_targets(&r, &e), e);
    const exf_export_model facts = {m->family->name, m->arch.n_layers, m->arch.n_experts, m->arch.top_k};
    for (size_t i = 0; exf_writer_at(i); i++) {
        const exf_writer *w = exf_writer_at(i);
        int serves = w->serves && w->serves(&facts, &e) == EXF_OK;
        ck_assert_msg(!w->of_plugin || names(&r.targets, w->name) == serves, "%s: %s", path, w->name);
    }
    ck_assert_uint_gt(r.variants.n, 5);
    for (size_t i = 0; i < r.variants.n; i++) {
        exf_variant v;
        ck_ok(exf_variant_parse(&v, r.variants.item[i], &e), e);
        ck_ok(exf_variant_check(&v, m->arch.n_experts, m->arch.top_k, &e), e);
    }
    ck_ok(exf_manifest_load(&held_out, r.validate_manifest, &e), e);
    for (size_t i = 0; i < held_out->n; i++) /* whole batches */
        ck_assert_int_eq(held_out->source[i].sequences, r.decode_batch.item[0]);
    exf_manifest_free(held_out);
    exf_model_close(m);
    exf_recipe_free(&r);
}
END_TEST

static void write_text(const char *name, const char *text)
{
    exf_write_file(exf_scratch(name), text, strlen(text));
}

START_TEST(a_corpus_is_assumed_only_when_it_must)
{
    exf_err e;
    exf_corpus *c;
    char *missing;
    write_text("m.yaml", "schema: exfold-manifest/1\nsources:\n  - {path: absent.jsonl, format: jsonl}\n");
    exf_corpus_request q = {exf_scratch("m.yaml"), 0, 64, 1, 42, 512, NULL, NULL, EXF_BOS_AUTO};
    ck_fails(exf_corpus_plan(&c, &q, &missing, &e), EXF_USAGE, e, "m.yaml 1");
    ck_assert_ptr_null(c);
    q.sequences = 5;
    ck_ok(exf_corpus_plan(&c, &q, &missing, &e), e);
    ck_assert_uint_eq(c->n_tokens, 5 * 64);
    ck_assert_msg(strstr(missing, "absent.jsonl") != NULL, "%s", missing);
    exf_corpus_free(c);
    exf_mem_free(missing);
    q = (exf_corpus_request){"data-manifests/demo-tokens.yaml", 6, 64, 1, 42, 4096, NULL, NULL, EXF_BOS_AUTO};
    ck_ok(exf_corpus_plan(&c, &q, &missing, &e), e);
    ck_assert_ptr_null(missing);
    ck_assert_ptr_nonnull(c->ids);
    exf_corpus_free(c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, bytes_of_the_release, 0, N_MODELS);
    tcase_add_loop_test(t, a_plan_needs_no_weights, 0, N_MODELS);
    tcase_add_loop_test(t, released_models_run_on_24_gb, 0, N_MODELS);
    tcase_add_loop_test(t, rules_count_what_files_hold, 0, N_GOLDENS);
    tcase_add_test(t, experts_larger_than_a_gpu_are_planned_in_parts);
    tcase_add_loop_test(t, recipes_say_what_the_paper_did, 0, N_MODELS);
    tcase_add_loop_test(t, recipes_serve_and_validate, 0, N_MODELS);
    tcase_add_test(t, a_corpus_is_assumed_only_when_it_must);
}

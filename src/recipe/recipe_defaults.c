/* recipe_defaults.c - the settings of a run without a recipe, and the recipes that the project has for released models; see
 * recipe.h.  The Makefile makes gen/released_files.inc of recipes and data-manifests. */
#include "recipe/recipe.h"

#include "base/log.h"
#include "export/writer.h"
#include "fold/variant.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

/* ---- released models --------------------------------------------------------------- */

static const struct {
    const char *file, *line;
} lines[] = {
#include "gen/released_files.inc"
};

enum { N_LINES = sizeof lines / sizeof *lines };

static const exf_released_model models[] = {
    {"Qwen3-30B-A3B", "recipes/qwen3-30b-a3b.yaml", "qwen3_moe", 48, 128, 8, 2048},
    {"DeepSeek-V2-Lite", "recipes/deepseek-v2-lite.yaml", "deepseek_v2", 27, 64, 6, 2048},
    {"GLM-4.5-Air", "recipes/glm-4.5-air.yaml", "glm4_moe", 46, 128, 8, 4096},
    {"Qwen3.5-35B-A3B", "recipes/qwen3.5-35b-a3b.yaml", "qwen3_5_moe", 40, 256, 8, 2048},
    {"Qwen3-Next-80B-A3B", "recipes/qwen3-next-80b-a3b.yaml", "qwen3_next", 48, 512, 10, 2048},
    {"MiniMax-M2", "recipes/minimax-m2.yaml", "minimax_m2", 62, 256, 8, 3072},
    {"gpt-oss-20b", "recipes/gpt-oss-20b.yaml", "gpt_oss", 24, 32, 4, 2880},
    {"gpt-oss-120b", "recipes/gpt-oss-120b.yaml", "gpt_oss", 36, 128, 4, 2880},
    {"Mixtral-8x7B", "recipes/mixtral-8x7b.yaml", "mixtral", 32, 8, 2, 4096},
    {"Mixtral-8x22B", "recipes/mixtral-8x22b.yaml", "mixtral", 56, 8, 2, 6144},
    {"OLMoE-1B-7B", "recipes/olmoe-1b-7b.yaml", "olmoe", 16, 64, 8, 2048},
    {"Qwen1.5-MoE-A2.7B", "recipes/qwen1.5-moe-a2.7b.yaml", "qwen2_moe", 24, 60, 4, 2048},
    {"Qwen2-57B-A14B", "recipes/qwen2-57b-a14b.yaml", "qwen2_moe", 28, 64, 8, 3584},
    {"DeepSeek-V3", "recipes/deepseek-v3.yaml", "deepseek_v3", 61, 256, 8, 7168},
    {"Kimi-K2", "recipes/kimi-k2.yaml", "deepseek_v3", 61, 384, 8, 7168},
    {"GLM-4.7-Flash", "recipes/glm-4.7-flash.yaml", "glm4_moe_lite", 47, 64, 4, 2048},
    {"dots.llm1", "recipes/dots.llm1.yaml", "dots1", 62, 128, 6, 4096},
    {"GLM-4.5V", "recipes/glm-4.5v.yaml", "glm4v_moe", 46, 128, 8, 4096},
    {"Qwen3-VL-30B-A3B", "recipes/qwen3-vl-30b-a3b.yaml", "qwen3_vl_moe", 48, 128, 8, 2048},
    {"Qwen3-Omni-30B-A3B", "recipes/qwen3-omni-30b-a3b.yaml", "qwen3_omni_moe", 48, 128, 8, 2048},
    {"Solar-Open-100B", "recipes/solar-open-100b.yaml", "solar_open", 48, 128, 8, 4096},
    {"Mistral-Small-4-119B", "recipes/mistral-small-4-119b.yaml", "mistral4", 36, 128, 4, 4096},
    {"DeepSeek-V3.2", "recipes/deepseek-v3.2.yaml", "deepseek_v32", 61, 256, 8, 7168},
    {"GLM-5", "recipes/glm-5.yaml", "glm_moe_dsa", 78, 256, 8, 6144},
    {"Kimi-K2.5", "recipes/kimi-k2.5.yaml", "kimi_k25", 61, 384, 8, 7168},
    {"Hy3", "recipes/hy3.yaml", "hy_v3", 80, 192, 8, 4096},
    {"ERNIE-4.5-21B-A3B", "recipes/ernie-4.5-21b-a3b.yaml", "ernie4_5_moe", 28, 64, 6, 2560},
    {"Granite-3.1-1B-A400M", "recipes/granite-3.1-1b-a400m.yaml", "granitemoe", 24, 32, 8, 1024},
    {"DeepSeek-V4-Flash", "recipes/deepseek-v4-flash.yaml", "deepseek_v4", 43, 256, 6, 4096},
};

exf_code exf_released_file(exf_text *out, const char *path, exf_err *err)
{
    size_t before = out->len;
    for (size_t i = 0; i < N_LINES; i++)
        if (strcmp(lines[i].file, path) == 0) exf_text_appendf(out, "%s\n", lines[i].line);
    exf_code rc = exf_text_end(out, err);
    if (rc == EXF_OK && out->len == before) rc = exf_fail(err, EXF_INTERNAL, "%s: is not embedded in this program", path);
    return rc;
}

/* ---- the settings ------------------------------------------------------------------- */

static const char origin[] = "a run without a recipe";

static exf_code set_key(exf_recipe *r, const char *key, const exf_text *value, exf_err *err)
{
    exf_code rc = exf_text_end(value, err);
    return rc != EXF_OK ? rc : exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, key, value->s, origin, err);
}

/* Sets pools of a half and a quarter of the experts; as targets safetensors, and every one that is made for this family, can serve
 * the model and asks for nothing that the settings lack; as variants half of the routes in prefill and half of the experts in
 * decode, each beside its baseline. */
static exf_code set_general(exf_recipe *r, const exf_model *m, exf_err *err)
{
    int e = m->arch.n_experts, p = m->arch.top_k / 2, d = e / 2 < 1 ? 1 : e / 2;
    const exf_export_model facts = {m->family->name, m->arch.n_layers, e, m->arch.top_k};
    const exf_export_settings settings = {e, m->arch.top_k, r->export_experts, r->export_ranks, &m->arch};
    const exf_writer *w;
    exf_text pools = {0}, targets = {0}, variants = {0};
    exf_err ignored = {.code = EXF_OK};
    exf_code rc;
    EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, "schema", EXF_RECIPE_SCHEMA, origin, err));
    exf_text_appendf(&pools, e >= 4 ? "%d,%d" : "%d", d, e / 4);
    EXF_TRY(set_key(r, "pools", &pools, err));
    if (m->arch.top_k < 2) EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, "calibrate.pairs", "common_input", origin, err));
    exf_text_appendf(&targets, "safetensors");
    for (size_t i = 0; (w = exf_writer_at(i)); i++)
        if (w->serves && w->serves(&facts, &ignored) == EXF_OK && exf_writer_check_settings(w, &settings, &ignored) == EXF_OK)
            exf_text_appendf(&targets, ",%s", w->name);
    EXF_TRY(set_key(r, "output.targets", &targets, err));
    if (p >= 1) exf_text_appendf(&variants, "P%d P%d:projector=joint top%d:renorm top%d:drop ", p, p, p, p);
    exf_text_appendf(&variants, "D%d D%d:rank=energy,projector=joint D%d:fold=drop", d, d, d);
    if (p >= 1) exf_text_appendf(&variants, " P%d+D%d", p, d);
    EXF_TRY(set_key(r, "validate.variants", &variants, err));
out:
    exf_text_free(&pools);
    exf_text_free(&targets);
    exf_text_free(&variants);
    return rc;
}

/* Sets budgets of a half and a quarter of the experts per token, unless the settings have some, or they cannot be solved: with
 * sizes that no fold takes, or without a sample of routes. */
static exf_code set_budgets(exf_recipe *r, const exf_model *m, exf_err *err)
{
    int k = m->arch.top_k;
    exf_text budgets = {0};
    exf_code rc = EXF_OK;
    int solvable = k >= 2 && exf_variant_folds(m->arch.n_experts, k) && r->route_sample;
    if (!solvable || exf_opts_given(r->opts, "budgets", EXF_OPT_BY_RECIPE)) return EXF_OK;
    exf_text_appendf(&budgets, k >= 4 ? "%d,%d" : "%d", k / 2, k / 4);
    rc = set_key(r, "budgets", &budgets, err);
    exf_text_free(&budgets);
    return rc;
}

exf_code exf_default_settings_set(exf_recipe *r, const exf_released_model **released, exf_err *err)
{
    exf_model *m = NULL;
    exf_text text = {0};
    exf_code rc;
    *released = NULL;
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_model_open_part(&m, r->model_path, EXF_MODEL_CONFIG, err));
    for (size_t i = 0; i < sizeof models / sizeof *models && !*released; i++) {
        const exf_released_model *k = &models[i];
        const exf_architecture *a = &m->arch;
        if (strcmp(k->family, m->family->name) == 0 && k->n_layers == a->n_layers && k->n_experts == a->n_experts &&
            k->top_k == a->top_k && k->d_model == a->d_model)
            *released = k;
    }
    if (*released) {
        EXF_TRY(exf_released_file(&text, (*released)->recipe, err));
        EXF_TRY(exf_recipe_read_settings(r, text.s, text.len, (*released)->recipe, err));
    } else {
        EXF_TRY(set_general(r, m, err));
    }
    EXF_TRY(set_budgets(r, m, err));
    rc = exf_recipe_fit_positions(r, m->arch.positions, err);
out:
    exf_text_free(&text);
    exf_model_close(m);
    return rc;
}

/* ---- the report of them --------------------------------------------------------------- */

/* Reports "key=value, key=value" of the named keys that the command line did not give, after a word. */
static exf_code report_keys(const exf_recipe *r, const char *const *key, const char *word, exf_err *err)
{
    exf_text line = {0};
    size_t n_common, n_keys;
    exf_recipe_global_rows(&n_common);
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    exf_code rc = EXF_OK;
    for (; *key; key++)
        for (size_t i = 0; i < n_keys; i++) {
            if (strcmp(rows[i].key, *key) != 0 || exf_opts_given(r->opts, *key, EXF_OPT_BY_ARGV)) continue;
            exf_text_appendf(&line, "%s%s=", line.len ? ", " : "", *key);
            EXF_TRY(exf_opts_value(r->opts, n_common + i, &line, err));
        }
    EXF_TRY(exf_text_end(&line, err));
    if (line.len) exf_log_info("%s: %s", word, line.s);
out:
    exf_text_free(&line);
    return rc;
}

static exf_code report_settings(const exf_recipe *r, const exf_released_model *released, exf_settings_of what, exf_err *err)
{
    static const char *const settings[][3][6] = {
        [EXF_SETTINGS_OF_CALIBRATION] = {
            {"data.sequences", "data.max_tokens", "data.min_tokens", "data.seed", "data.bos", NULL},
            {"calibrate.pairs", "calibrate.weighting", "calibrate.ridge", "calibrate.clip", "calibrate.projectors", NULL},
            {"pools", "budgets", "coverage.fail_below", "runtime.compute", "output.targets", NULL}},
        [EXF_SETTINGS_OF_VALIDATION] = {
            {"validate.sequences", "data.max_tokens", "data.seed", "data.bos", NULL},
            {"validate.variants", NULL},
            {"validate.decode_batch", "validate.prefill_tokens", "runtime.compute", "output.directory", NULL}},
    };
    exf_code rc = EXF_OK;
    if (released)
        exf_log_info("no recipe: the settings of %s, whose sizes the model has (%s)", released->title, released->recipe);
    else
        exf_log_info("no recipe: the settings of a model that is not among the released ones");
    int sweeps = r->frontier || r->wants_sensitivities || r->validate_limit; /* which run variants of their own */
    for (size_t i = 0; rc == EXF_OK && i < 3; i++)
        if (!sweeps || strcmp(settings[what][i][0], "validate.variants") != 0)
            rc = report_keys(r, settings[what][i], "default", err);
    const char *sequences = settings[what][0][0];
    int takes_all = !exf_opts_given(r->opts, sequences, EXF_OPT_BY_ARGV);
    if (rc == EXF_OK)
        exf_log_info("%s%schange a setting with --set KEY=VALUE", takes_all ? sequences : "",
                     takes_all ? "=0 takes every sequence of the texts; " : "");
    return rc;
}

exf_code exf_default_settings(exf_recipe *r, exf_settings_of what, exf_err *err)
{
    const exf_released_model *released;
    exf_code rc;
    if (r->recipe_file) return EXF_OK;
    EXF_TRY(exf_default_settings_set(r, &released, err));
    if (!exf_opts_given(r->opts, "data.sequences", EXF_OPT_BY_ARGV)) r->sequences = 0;
    if (!exf_opts_given(r->opts, "validate.sequences", EXF_OPT_BY_ARGV)) r->validate_sequences = 0;
    rc = report_settings(r, released, what, err);
out:
    return rc;
}

/* ---- the settings of tables, kept with statistics --------------------------------------- */

static const char *const of_tables[] = {"calibrate.ridge", "calibrate.clip", "calibrate.projectors", "calibrate.ranks",
                                        "calibrate.min_pair_tokens", "coverage.fail_below", "coverage.pair_tokens", "pools",
                                        "budgets", "budget_rules", NULL};

exf_code exf_solve_settings_keep(const exf_recipe *r, exf_provenance *out, exf_err *err)
{
    exf_text value = {0};
    size_t n_common, n_keys;
    exf_recipe_global_rows(&n_common);
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n_keys; i++)
        for (const char *const *key = of_tables; *key; key++) {
            char name[64];
            if (strcmp(rows[i].key, *key) != 0) continue;
            value.len = 0;
            EXF_TRY(exf_opts_value(r->opts, n_common + i, &value, err));
            snprintf(name, sizeof name, EXF_SETTING "%s", *key);
            EXF_TRY(exf_provenance_add(out, err, name, "%s", value.s));
        }
out:
    exf_text_free(&value);
    return rc;
}

exf_code exf_solve_settings_take(exf_recipe *r, const exf_provenance *kept, const char *path, exf_err *err)
{
    size_t n = 0;
    exf_provenance now = {0};
    exf_code rc = EXF_OK;
    if (r->recipe_file) return EXF_OK;
    EXF_TRY(exf_solve_settings_keep(r, &now, err));
    for (const char *const *key = of_tables; *key; key++) {
        char name[64];
        snprintf(name, sizeof name, EXF_SETTING "%s", *key);
        const char *value = exf_provenance_get(kept, name);
        if (!value) continue;
        n++;
        /* what is as it was stays a default: rules that nobody gave go on to follow from the sensitivities */
        if (exf_opts_given(r->opts, *key, EXF_OPT_BY_ARGV) || strcmp(value, exf_provenance_get(&now, name)) == 0) continue;
        EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, *key, value, path, err));
    }
    if (n)
        exf_log_info("no recipe: settings that are not given are those of the run that made %s", path);
    else
        exf_log_info("no recipe, and %s names no settings, as where its parts had several or an earlier program made it: those "
                     "that are not given are the programs' own", path);
    rc = report_keys(r, of_tables, n ? "as then" : "default", err);
out:
    exf_provenance_free(&now);
    return rc;
}

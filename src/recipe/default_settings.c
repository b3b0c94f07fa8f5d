/* default_settings.c - see default_settings.h. */
#include "recipe/default_settings.h"

#include "base/log.h"
#include "export/writer.h"

#include <stdio.h>
#include <string.h>

/* ---- of any model --------------------------------------------------------------- */

static const char origin[] = "a run without a recipe";

static exf_code set(exf_recipe *r, const char *key, const exf_text *value, exf_err *err)
{
    return exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, key, value->s, origin, err);
}

static exf_code set_pools(exf_recipe *r, int n_experts, exf_err *err)
{
    exf_text t = {0};
    exf_code rc = exf_text_addf(&t, err, n_experts >= 4 ? "%d,%d" : "%d", n_experts >= 2 ? n_experts / 2 : 1, n_experts / 4);
    if (rc == EXF_OK) rc = set(r, "pools", &t, err);
    exf_text_free(&t);
    return rc;
}

/* safetensors, and every target that is made for this family and can serve the model. */
static exf_code set_targets(exf_recipe *r, const exf_model *m, exf_err *err)
{
    const exf_export_model facts = {m->family->name, m->arch.n_layers, m->arch.n_experts, m->arch.top_k};
    exf_err ignored = {.code = EXF_OK};
    exf_text t = {0};
    exf_code rc = exf_text_addf(&t, err, "safetensors");
    for (size_t i = 0; rc == EXF_OK && exf_writer_at(i); i++) {
        const exf_writer *w = exf_writer_at(i);
        if (w->serves && w->serves(&facts, &ignored) == EXF_OK) rc = exf_text_addf(&t, err, ",%s", w->name);
    }
    if (rc == EXF_OK) rc = set(r, "output.targets", &t, err);
    exf_text_free(&t);
    return rc;
}

/* Half of the routes in prefill, half of the experts in decode, each beside its baseline. */
static exf_code set_variants(exf_recipe *r, int n_experts, int top_k, exf_err *err)
{
    int p = top_k / 2, d = n_experts / 2;
    exf_text t = {0};
    exf_code rc = EXF_OK;
    if (p >= 1) EXF_TRY(exf_text_addf(&t, err, "P%d P%d:projector=joint top%d:renorm top%d:drop ", p, p, p, p));
    if (d < 1) d = 1;
    EXF_TRY(exf_text_addf(&t, err, "D%d D%d:rank=energy,projector=joint D%d:fold=drop", d, d, d));
    if (p >= 1) EXF_TRY(exf_text_addf(&t, err, " P%d+D%d", p, d));
    rc = set(r, "validate.variants", &t, err);
out:
    exf_text_free(&t);
    return rc;
}

static exf_code set_general(exf_recipe *r, const exf_model *m, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, "schema", "exfold-recipe/1", origin, err));
    EXF_TRY(set_pools(r, m->arch.n_experts, err));
    EXF_TRY(set_targets(r, m, err));
    EXF_TRY(set_variants(r, m->arch.n_experts, m->arch.top_k, err));
out:
    return rc;
}

/* ---- of a released one ------------------------------------------------------------ */

static exf_code set_released(exf_recipe *r, const exf_released_model *m, exf_err *err)
{
    exf_text text = {0};
    exf_code rc = exf_released_file(&text, m->recipe, err);
    if (rc == EXF_OK) rc = exf_recipe_read_settings(r, text.s, text.len, m->recipe, err);
    exf_text_free(&text);
    return rc;
}

exf_code exf_default_settings_set(exf_recipe *r, const exf_released_model **released, exf_err *err)
{
    exf_model *m = NULL;
    exf_code rc;
    *released = NULL;
    EXF_TRY(exf_recipe_check_model(r, err));
    EXF_TRY(exf_model_open_part(&m, r->model_path, EXF_MODEL_CONFIG, err));
    *released = exf_released_find(m);
    EXF_TRY(*released ? set_released(r, *released, err) : set_general(r, m, err));
out:
    exf_model_close(m);
    return rc;
}

/* ---- what is said of them ----------------------------------------------------------- */

/* "key=value, key=value" of the named keys that the command line did not give. */
static exf_code report_keys(const exf_recipe *r, const char *const *key, exf_err *err)
{
    exf_text line = {0};
    size_t n_common, n_keys;
    exf_recipe_global_rows(&n_common);
    const exf_opt *rows = exf_recipe_key_rows(&n_keys);
    exf_code rc = EXF_OK;
    for (; *key; key++)
        for (size_t i = 0; i < n_keys; i++) {
            if (strcmp(rows[i].key, *key) != 0 || exf_opts_given(r->opts, *key, EXF_OPT_BY_ARGV)) continue;
            EXF_TRY(exf_text_addf(&line, err, "%s%s=", line.len ? ", " : "", *key));
            EXF_TRY(exf_opts_value(r->opts, n_common + i, &line, err));
        }
    if (line.len) exf_log_info("default: %s", line.s);
out:
    exf_text_free(&line);
    return rc;
}

static exf_code report(const exf_recipe *r, const exf_released_model *released, exf_settings_of what, exf_err *err)
{
    static const char *const settings[][3][6] = {
        [EXF_SETTINGS_OF_CALIBRATION] = {
            {"data.sequences", "data.max_tokens", "data.min_tokens", "data.seed", NULL},
            {"calibrate.pairs", "calibrate.weighting", "calibrate.ridge", "calibrate.clip", "calibrate.projectors", NULL},
            {"pools", "runtime.compute", "output.targets", NULL}},
        [EXF_SETTINGS_OF_VALIDATION] = {
            {"validate.sequences", "data.max_tokens", "data.seed", NULL},
            {"validate.variants", NULL},
            {"validate.decode_batch", "validate.prefill_tokens", "runtime.compute", "output.directory", NULL}},
    };
    exf_code rc = EXF_OK;
    if (released)
        exf_log_info("no recipe: the settings of %s, whose sizes the model has (%s)", released->title, released->recipe);
    else
        exf_log_info("no recipe: the settings of a model that is not among the released ones");
    for (size_t i = 0; rc == EXF_OK && i < 3; i++) rc = report_keys(r, settings[what][i], err);
    if (rc == EXF_OK) exf_log_info("0 sequences are all of the texts; change a setting with --set KEY=VALUE");
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
    rc = report(r, released, what, err);
out:
    return rc;
}

/* stage_validate_request.c - what a validation is asked for: texts, the limit that decides, outputs, variants and gates; see
 * stage.h. */
#include "run/stage_validate_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* Makes the corpus of --text, and takes default settings where no recipe gives them; results then go beside the tables unless a
 * directory is named. */
static exf_code take_texts(exf_validate_stage *s, exf_recipe *r, exf_err *err)
{
    char *beside = NULL;
    exf_code rc;
    if (!r->recipe_file && !r->output_directory && r->validate_tables) {
        EXF_TRY(exf_path_dir(&beside, r->validate_tables, err));
        EXF_TRY(exf_opts_set(r->opts, EXF_OPT_BY_RECIPE, "output.directory", beside, "the tables' directory", err));
    }
    if (!r->recipe_file && !r->output_directory)
        return exf_fail(err, EXF_USAGE, "--tables: no tables are named: give --tables FILE, the tables.h5 of a calibration, or "
                        "--output DIR, where they are");
    EXF_TRY(exf_default_settings(r, EXF_SETTINGS_OF_VALIDATION, err));
    EXF_TRY(exf_recipe_check_output(r, err));
    EXF_TRY(exf_run_directory_name(&s->dir, r->output_directory, err));
    EXF_TRY(exf_path_join(&s->manifest, s->dir.path, "validation_manifest.yaml", err));
    EXF_TRY(exf_session_check_piped(r, err));
    EXF_TRY(exf_text_inputs_make(&s->text, r, s->manifest, err));
    EXF_TRY(exf_text_inputs_use(&s->text, r, "validate.manifest", err));
    if (s->text.path) EXF_TRY(exf_output_check(s->manifest, r->force, err));
out:
    exf_mem_free(beside);
    return rc;
}

/* Makes the recipe that the session reads, with the data of validate.* in the place of data.*. */
static exf_code make_recipe(exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    exf_recipe *own = &s->recipe;
    *own = *r;
    if (!r->validate_manifest)
        return exf_fail(err, EXF_USAGE, "%s: validate.manifest (or --text FILE) is missing", r->recipe_file);
    own->manifest = r->validate_manifest;
    own->sequences = r->validate_sequences;
    if (r->validate_max_tokens) own->max_tokens = r->validate_max_tokens;
    if (own->min_tokens < 2) own->min_tokens = 2; /* one token has no next one */
    exf_code rc = exf_recipe_check_batches(r, err);
    if (rc != EXF_OK) return rc;
    if (r->validate_max_tokens && own->max_tokens < own->min_tokens)
        return exf_recipe_refuse(r, err, "validate.max_tokens: %lld is below %lld, %s", (long long)own->max_tokens,
                                 (long long)own->min_tokens,
                                 r->min_tokens < 2 ? "the fewest that can be scored" : "which is data.min_tokens");
    return EXF_OK;
}

/* Names tables and outputs; the suffix of the frontier's picture says its kind. */
static exf_code name_files(exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    const char *stem = r->frontier ? "frontier" : r->wants_sensitivities ? "sensitivities" : "validation";
    char name[32];
    exf_code rc;
    EXF_TRY(r->validate_tables ? exf_mem_strdup(&s->tables_path, r->validate_tables, "path", err)
                               : exf_path_join(&s->tables_path, s->dir.path, "tables.h5", err));
    snprintf(name, sizeof name, "%s.md", stem);
    EXF_TRY(exf_path_join(&s->markdown, s->dir.path, name, err));
    if (r->frontier && r->wants_sensitivities)
        return exf_fail(err, EXF_USAGE, "--frontier and --sensitivities are two validations; give one of them");
    if (r->picture_path && !r->frontier)
        return exf_fail(err, EXF_USAGE, "--picture is of the frontier; give --frontier with it");
    if (r->picture_path && !exf_picture_is_named(r->picture_path))
        return exf_fail(err, EXF_USAGE, "--picture is %s, expected a name that ends in %s", r->picture_path, EXF_PICTURE_SUFFIXES);
    if (r->frontier)
        EXF_TRY(r->picture_path ? exf_mem_strdup(&s->picture, r->picture_path, "path", err)
                                : exf_path_join(&s->picture, s->dir.path, "frontier.svg", err));
    snprintf(name, sizeof name, "%s.json", stem);
    if (!r->json_path)
        EXF_TRY(exf_path_join(&s->json, s->dir.path, name, err));
    else if (strcmp(r->json_path, "-") != 0 && !r->dry_run)
        EXF_TRY(exf_mem_strdup(&s->json, r->json_path, "path", err));
out:
    return rc;
}

/* Reads validate.limit, validate.gpu and validate.bandwidth.  A limit asks for the sweep of --frontier and sets r->frontier, unless
 * variants are given where it is, on the command line or in the recipe. */
static exf_code read_decision(exf_validate_decision *d, exf_recipe *r, exf_err *err)
{
    const exf_gpu *gpu;
    exf_code rc = EXF_OK;
    *d = (exf_validate_decision){.has_limit = 0};
    if (r->validate_gpu && r->validate_bandwidth)
        return exf_recipe_refuse(r, err, "validate.gpu: is %s, but validate.bandwidth is given too (%s); give one of them",
                                 r->validate_gpu, r->validate_bandwidth);
    if (r->validate_gpu) {
        EXF_TRY(exf_recipe_blame(r, exf_gpu_require(r->validate_gpu, &gpu, err), err));
        d->bandwidth = gpu->bandwidth;
    }
    if (r->validate_bandwidth) EXF_TRY(exf_recipe_blame(r, exf_bandwidth_parse(r->validate_bandwidth, &d->bandwidth, err), err));
    if (!r->validate_limit) return EXF_OK;
    EXF_TRY(exf_recipe_blame(r, exf_limit_parse(&d->limit, r->validate_limit, err), err));
    exf_opt_rank rank = exf_opts_given(r->opts, "validate.limit", EXF_OPT_BY_ARGV) ? EXF_OPT_BY_ARGV : EXF_OPT_BY_RECIPE;
    if (r->wants_sensitivities && rank == EXF_OPT_BY_ARGV)
        return exf_fail(err, EXF_USAGE, "--limit recommends variants and --sensitivities runs none of these; give one of them");
    if (r->wants_sensitivities) return EXF_OK;
    d->has_limit = 1;
    if (!exf_opts_given(r->opts, "validate.variants", rank)) r->frontier = 1;
out:
    return rc;
}

exf_code exf_validate_read_request(exf_validate_stage *s, exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(take_texts(s, r, err));
    EXF_TRY(make_recipe(s, r, err));
    int all = r->frontier;
    EXF_TRY(read_decision(&s->decision, r, err));
    s->pilots = r->frontier && !all;
    rc = name_files(s, r, err);
out:
    return rc;
}

exf_code exf_validate_check_files(const exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    const char *const path[] = {s->markdown, s->picture, s->json, s->text.path ? s->manifest : NULL};
    exf_code rc;
    EXF_TRY(exf_run_outputs_check(&s->dir, path, sizeof path / sizeof *path, err));
    EXF_TRY(exf_output_check(s->markdown, r->force, err));
    if (s->picture) EXF_TRY(exf_output_check(s->picture, r->force, err));
    if (s->json) EXF_TRY(exf_output_check(s->json, r->force, err));
out:
    return rc;
}

/* ---- variants, once the model is open ---------------------------------------------------------- */

/* Parses a variant of the recipe and checks that model and runtime can run it. */
static exf_code parse_variant(const exf_validate_stage *s, exf_variant *v, const char *text, exf_err *err)
{
    const exf_architecture *a = &s->session.model->arch;
    exf_code rc;
    EXF_TRY(exf_variant_parse_on(s->runtime, v, text, err));
    EXF_TRY(exf_variant_check(v, a->n_experts, a->top_k, err));
    if (s->runtime) EXF_TRY(exf_runtime_check(s->runtime, v, a, err));
out:
    if (rc != EXF_OK) exf_err_prefix(err, "validate.variants: ");
    return rc;
}

static exf_code parse_variants(exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    const exf_architecture *a = &s->session.model->arch;
    EXF_TRY(exf_recipe_runtime(r, &s->runtime, err));
    if (s->runtime)
        EXF_TRY(exf_recipe_blame(r, exf_runtime_serves(s->runtime, s->session.model->family->name, a, err), err));
    if (s->runtime) EXF_TRY(exf_recipe_blame(r, exf_runtime_takes_prompts(s->runtime, r->prefill_tokens, err), err));
    if (r->frontier)
        return exf_frontier_variants(&s->variants, &s->n_variants, a, &s->tables, s->session.model->family->name, s->runtime, err);
    if (r->wants_sensitivities) {
        exf_solve_options o;
        EXF_TRY(exf_recipe_solve_options(r, &o, err));
        int rules = exf_sensitivity_rules(&o);
        return exf_sensitivity_variants(&s->variants, &s->n_variants, &s->tables, rules ? rules : EXF_SENSITIVITIES_MEASURED, err);
    }
    if (r->variants.n == 0)
        return exf_fail(err, EXF_USAGE, "%s: validate.variants names none; give some, or --frontier", r->recipe_file);
    EXF_TRY(exf_mem_new(&s->variants, r->variants.n, sizeof *s->variants, "variants", err));
    for (; s->n_variants < r->variants.n; s->n_variants++) {
        const char *text = r->variants.item[s->n_variants];
        EXF_TRY(exf_recipe_blame(r, parse_variant(s, &s->variants[s->n_variants], text, err), err));
    }
out:
    return rc;
}

exf_code exf_validate_list_lanes(exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    const exf_architecture *a = &s->session.model->arch;
    exf_code rc;
    for (size_t i = 0; i < s->n_variants; i++)
        EXF_TRY(exf_recipe_blame(r, exf_lanes_ask(&s->lanes, &s->variants[i], &r->decode_batch, &s->tables, err), err));
    if (!r->baselines || r->wants_sensitivities) goto out;
    EXF_TRY(exf_lanes_add_baselines(&s->lanes, a, &s->tables, err));
    EXF_TRY(exf_lanes_add_halves(&s->lanes, a, &s->tables, err));
out:
    return rc;
}

exf_code exf_validate_read_variants(exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(parse_variants(s, r, err));
    EXF_TRY(exf_validate_list_lanes(s, r, err));
    EXF_TRY(exf_mem_new(&s->gates, r->fail_above.n, sizeof *s->gates, "limits", err));
    for (; s->n_gates < r->fail_above.n; s->n_gates++) {
        const char *text = r->fail_above.item[s->n_gates];
        rc = exf_quality_gate_parse(&s->gates[s->n_gates], text, s->lanes.lane, s->lanes.n, err);
        if (rc == EXF_OK) rc = exf_quality_gate_is_new(s->gates, s->n_gates, err);
        EXF_TRY(exf_recipe_blame(r, rc, err));
    }
out:
    return rc;
}

/* recipe_check.c - checks what no single key can, and makes options of modules from the keys; see recipe.h.  A message begins
 * with the place that set the value to blame: a line of the recipe or the command line. */
#include "recipe/recipe.h"

#include "export/writer.h"
#include "fold/runtime.h"
#include "fold/variant.h"
#include "solve/solve.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

exf_code exf_recipe_blame(const exf_recipe *r, exf_code rc, exf_err *err)
{
    char message[sizeof err->msg];
    exf_text key = {0}, place = {0};
    const char *colon = err ? strstr(err->msg, ": ") : NULL;
    if (rc == EXF_OK || !colon || !r->opts) return rc;
    snprintf(message, sizeof message, "%s", colon);
    exf_text_append(&key, err->msg, (size_t)(colon - err->msg));
    exf_code made = exf_text_end(&key, err);
    if (made == EXF_OK) made = exf_opts_place(r->opts, key.s, &place, err);
    if (made == EXF_OK) made = exf_fail(err, rc, "%s%s", place.s, message);
    exf_text_free(&key);
    exf_text_free(&place);
    return made;
}

exf_code exf_recipe_refuse(const exf_recipe *r, exf_err *err, const char *fmt, ...)
{
    char message[sizeof err->msg];
    va_list va;
    va_start(va, fmt);
    vsnprintf(message, sizeof message, fmt, va);
    va_end(va);
    return exf_recipe_blame(r, exf_fail(err, EXF_USAGE, "%s", message), err);
}

/* Refuses a run without the value; also: another way to give it. */
static exf_code require_value(const exf_recipe *r, const char *value, const char *key, const char *also, exf_err *err)
{
    if (value && *value) return EXF_OK;
    if (r->opts && exf_opts_given(r->opts, key, EXF_OPT_BY_ARGV))
        return exf_recipe_refuse(r, err, "%s: is empty", key);
    return exf_fail(err, EXF_USAGE, "%s: %s%s is missing", r->recipe_file ? r->recipe_file : "command line", key, also);
}

exf_code exf_recipe_check_model(const exf_recipe *r, exf_err *err)
{
    return require_value(r, r->model_path, "model.path", " (or --model DIR)", err);
}

/* Of two lengths that disagree, blames the one that the command line set. */
exf_code exf_recipe_check_data(const exf_recipe *r, exf_err *err)
{
    long long least = r->min_tokens, most = r->max_tokens;
    exf_code rc = require_value(r, r->manifest, "data.manifest", " (or --text FILE)", err);
    if (rc != EXF_OK || least <= most) return rc;
    if (r->opts && exf_opts_given(r->opts, "data.max_tokens", EXF_OPT_BY_ARGV) &&
        !exf_opts_given(r->opts, "data.min_tokens", EXF_OPT_BY_ARGV))
        return exf_recipe_refuse(r, err, "data.max_tokens: %lld is below data.min_tokens, %lld", most, least);
    return exf_recipe_refuse(r, err, "data.min_tokens: %lld is above data.max_tokens, %lld", least, most);
}

exf_code exf_recipe_fit_positions(exf_recipe *r, double positions, exf_err *err)
{
    const char *key = r->validate_max_tokens == r->max_tokens ? "validate.max_tokens" : "data.max_tokens";
    double longest = (double)r->max_tokens, least = (double)r->min_tokens;
    if (positions <= 0 || (longest <= positions && least <= positions)) return EXF_OK;
    if (least > positions)
        return exf_recipe_refuse(r, err, "data.min_tokens: %.0f tokens a sequence, but %s/config.json has %.0f positions: give "
                                 "less", least, r->model_path, positions);
    /* without a recipe file, settings of a recipe's rank are those of a released model */
    if (exf_opts_given(r->opts, key, r->recipe_file ? EXF_OPT_BY_RECIPE : EXF_OPT_BY_ARGV))
        return exf_recipe_refuse(r, err, "%s: %.0f tokens a sequence, but %s/config.json has %.0f positions "
                                 "(max_position_embeddings, or more by YaRN): give %.0f or less", key, longest, r->model_path,
                                 positions, positions);
    r->max_tokens = (int64_t)positions;
    return EXF_OK;
}

exf_code exf_recipe_check_output(const exf_recipe *r, exf_err *err)
{
    return require_value(r, r->output_directory, "output.directory", " (or --output DIR)", err);
}

static exf_code refuse_twice(const exf_recipe *r, const exf_text_list *list, const char *key, exf_err *err)
{
    for (size_t i = 0; i < list->n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(list->item[i], list->item[k]) == 0)
                return exf_recipe_refuse(r, err, "%s: %s stands twice", key, list->item[i]);
    return EXF_OK;
}

static exf_code refuse_number_twice(const exf_recipe *r, const exf_int_list *list, const char *key, exf_err *err)
{
    for (size_t i = 0; i < list->n; i++)
        for (size_t k = 0; k < i; k++)
            if (list->item[i] == list->item[k])
                return exf_recipe_refuse(r, err, "%s: %lld stands twice", key, (long long)list->item[i]);
    return EXF_OK;
}

exf_code exf_recipe_check_targets(const exf_recipe *r, exf_err *err)
{
    exf_code rc = refuse_twice(r, &r->targets, "output.targets", err);
    if (rc == EXF_OK) rc = refuse_twice(r, &r->datasets, "card.datasets", err);
    for (size_t i = 0; rc == EXF_OK && i < r->targets.n; i++) {
        const exf_writer *w;
        const exf_runtime *runtime = exf_runtime_find(r->targets.item[i]);
        if (runtime && runtime->target && !exf_writer_find(runtime->name))
            return exf_recipe_refuse(r, err, "output.targets: \"%s\" is a runtime, for --runtime; the target that it loads is %s",
                                     runtime->name, runtime->target);
        rc = exf_recipe_blame(r, exf_writer_require(r->targets.item[i], &w, err), err);
    }
    return rc;
}

exf_code exf_recipe_runtime(const exf_recipe *r, const exf_runtime **out, exf_err *err)
{
    *out = NULL;
    if (!r->serve_runtime || !*r->serve_runtime) return EXF_OK;
    return exf_recipe_blame(r, exf_runtime_require(r->serve_runtime, out, err), err);
}

/* Reads a pool: "8" or "8:energy"; out->by NULL: "8" names no criterion. */
static exf_code read_pool(const exf_recipe *r, const char *text, exf_pool_choice *out, exf_err *err)
{
    const char *colon = strchr(text, ':');
    char size[32];
    int by = EXF_POOL_BY_NORM;
    snprintf(size, sizeof size, "%.*s", (int)(colon ? colon - text : (ptrdiff_t)strlen(text)), text);
    if (colon) by = exf_name_place(exf_pool_criteria, EXF_POOL_CRITERIA, colon + 1);
    if (!exf_parse_i64(size, &out->size) || out->size < 1 || by == EXF_POOL_CRITERIA)
        return exf_recipe_refuse(r, err, "pools: \"%s\" is no pool; a size D, or one with a criterion: D:norm, reap, energy, "
                                 "frequency, ean or weighted_ean", text);
    out->by = colon ? exf_pool_criteria[by] : NULL;
    return EXF_OK;
}

static exf_code read_pools(const exf_recipe *r, exf_solve_options *o, exf_err *err)
{
    exf_code rc;
    if (r->pools.n > EXF_MOST_POOLS / EXF_POOL_CRITERIA)
        return exf_recipe_refuse(r, err, "pools: %zu of them, at most %d", r->pools.n, EXF_MOST_POOLS / EXF_POOL_CRITERIA);
    EXF_TRY(refuse_twice(r, &r->pools, "pools", err));
    for (size_t i = 0; i < r->pools.n; i++) {
        exf_pool_choice p;
        EXF_TRY(read_pool(r, r->pools.item[i], &p, err));
        for (int by = 0; by < EXF_POOL_CRITERIA; by++) {
            size_t k = 0;
            if (p.by ? p.by != exf_pool_criteria[by] : by >= EXF_POOL_IMPLIED) continue;
            while (k < o->n_pools_by && (o->pool_by[k].size != p.size || o->pool_by[k].by != exf_pool_criteria[by])) k++;
            if (k == o->n_pools_by) o->pool_by[o->n_pools_by++] = (exf_pool_choice){p.size, exf_pool_criteria[by], 1};
            o->pool_by[k].implied &= !p.by;
        }
    }
out:
    return rc;
}

exf_code exf_recipe_check_batches(const exf_recipe *r, exf_err *err)
{
    const exf_int_list *b = &r->decode_batch;
    if (b->n == 0)
        return exf_recipe_refuse(r, err, "validate.decode_batch: names none; give the sequences that decode side by side");
    for (size_t i = 0; i < b->n; i++)
        if (b->item[i] < 1 || b->item[i] > EXF_LARGEST_BATCH)
            return exf_recipe_refuse(r, err, "validate.decode_batch: %lld sequences, expected 1 to %d", (long long)b->item[i],
                                     EXF_LARGEST_BATCH);
    return refuse_number_twice(r, b, "validate.decode_batch", err);
}

static exf_code read_budgets(const exf_recipe *r, exf_solve_options *o, exf_err *err)
{
    int measured = 0;
    exf_code rc;
    EXF_TRY(refuse_number_twice(r, &r->budgets, "budgets", err));
    EXF_TRY(refuse_twice(r, &r->budget_rules, "budget_rules", err));
    if (r->budgets.n > EXF_MOST_BUDGETS)
        return exf_recipe_refuse(r, err, "budgets: %zu of them, at most %d", r->budgets.n, EXF_MOST_BUDGETS);
    for (size_t i = 0; i < r->budgets.n; i++) {
        long long budget = r->budgets.item[i];
        if (budget < 1) return exf_recipe_refuse(r, err, "budgets: %lld experts per token, expected 1 or more", budget);
        o->budgets[o->n_budgets++] = r->budgets.item[i];
    }
    for (size_t i = 0; i < r->budget_rules.n; i++) {
        const char *rule = r->budget_rules.item[i];
        int k = exf_name_place(exf_budget_rules, EXF_BUDGET_RULES, rule);
        if (k == EXF_BUDGET_RULES)
            return exf_recipe_refuse(r, err, "budget_rules: %s, expected stream, output, measured, top_p or skip", rule);
        o->rules[o->n_rules++] = exf_budget_rules[k];
        measured |= k == EXF_RULE_MEASURED || k == EXF_RULE_SKIP;
    }
    if (r->sensitivities && !measured) o->rules[o->n_rules++] = exf_budget_rules[EXF_RULE_MEASURED];
out:
    return rc;
}

/* Refuses budgets of more experts than a token has, those of a model that no fold takes, and those without a sample of routes. */
static exf_code check_budgets(const exf_recipe *r, const exf_run_shape *model, exf_err *err)
{
    int e = (int)model->n_experts, k = (int)model->top_k;
    for (size_t i = 0; i < r->budgets.n; i++)
        if (r->budgets.item[i] > k)
            return exf_recipe_refuse(r, err, "budgets: %lld experts per token, the model has %d", (long long)r->budgets.item[i], k);
    if (r->budgets.n && !exf_variant_folds(e, k))
        return exf_recipe_refuse(r, err, "budgets: the model has %d experts and runs %d per token, which no fold takes; set "
                                 "budgets=[]", e, k);
    if (!r->budgets.n || r->route_sample > 0) return EXF_OK;
    return exf_recipe_refuse(r, err, "calibrate.route_sample: 0 keeps no routes, from which budgets: %lld%s would be solved; set "
                             "it above 0, or budgets=[]", (long long)r->budgets.item[0], r->budgets.n > 1 ? ", ..." : "");
}

exf_code exf_recipe_check_shape(const exf_recipe *r, const exf_run_shape *model, exf_err *err)
{
    int h = (int)model->d_model, columns = exf_basis_rank(h), ranked = 0;
    exf_code rc = EXF_OK;
    if (r->pairs != EXF_PAIRS_COMMON_INPUT && model->top_k < 2)
        return exf_recipe_refuse(r, err, "calibrate.pairs: corouted: the model sends a token to %d expert, so that no two are in "
                                 "one token's choice; set calibrate.pairs=common_input", (int)model->top_k);
    for (size_t i = 0; i < r->pools.n; i++) {
        exf_pool_choice p;
        EXF_TRY(read_pool(r, r->pools.item[i], &p, err));
        if (p.size > model->n_experts)
            return exf_recipe_refuse(r, err, "pools: %lld experts, the model has %d", (long long)p.size, (int)model->n_experts);
    }
    for (size_t i = 0; i < r->projectors.n; i++) ranked |= exf_projector_find(r->projectors.item[i])->ranked;
    for (size_t i = 0; ranked && i < r->ranks.n; i++)
        if (r->ranks.item[i] > columns)
            return exf_recipe_refuse(r, err, "calibrate.ranks: %d, the basis of a model of width %d has %d columns",
                                     (int)r->ranks.item[i], h, columns);
    rc = check_budgets(r, model, err);
out:
    return rc;
}

exf_code exf_recipe_check_measured(const exf_recipe *r, exf_err *err)
{
    const char *asked = NULL;
    if (r->sensitivities && !r->budgets.n)
        return exf_fail(err, EXF_USAGE, "--sensitivities: %s: budgets is empty, so that nothing is solved from it; give --set "
                        "budgets=NUMBERS too", r->sensitivities);
    for (size_t i = 0; i < r->budget_rules.n; i++) {
        const char *rule = r->budget_rules.item[i];
        int k = exf_name_place(exf_budget_rules, EXF_BUDGET_RULES, rule);
        if (k == EXF_RULE_MEASURED || k == EXF_RULE_SKIP) asked = rule;
    }
    if (!asked || !r->budgets.n || r->sensitivities) return EXF_OK;
    return exf_recipe_refuse(r, err, "budget_rules: %s needs a file of sensitivities, which is measured with tables: calibrate "
                             "without %s, then exfold-validate --sensitivities%s, then exfold-solve --sensitivities FILE",
                             asked, asked,
                             strcmp(asked, exf_budget_rules[EXF_RULE_SKIP]) == 0 ? " --set budget_rules=skip" : "");
}

exf_code exf_recipe_solve_options(const exf_recipe *r, exf_solve_options *o, exf_err *err)
{
    *o = (exf_solve_options){
        .rule = {.ridge = r->ridge},
        .projectors = (const char *const *)r->projectors.item,
        .n_projectors = r->projectors.n,
        .min_pair_tokens = (uint64_t)r->min_pair_tokens,
        .ranks = r->ranks.item,
        .n_ranks = r->ranks.n,
        .partial = r->partial,
    };
    const exf_text_list *clip = &r->clip;
    exf_code rc;
    if (r->projectors.n == 0) return exf_recipe_refuse(r, err, "calibrate.projectors: names none");
    EXF_TRY(read_pools(r, o, err));
    EXF_TRY(read_budgets(r, o, err));
    EXF_TRY(refuse_number_twice(r, &r->ranks, "calibrate.ranks", err));
    EXF_TRY(refuse_twice(r, &r->projectors, "calibrate.projectors", err));
    o->rule.clip = !(clip->n == 1 && strcmp(clip->item[0], "none") == 0);
    if (o->rule.clip &&
        (clip->n != 2 || !exf_parse_f64(clip->item[0], &o->rule.clip_min) || !exf_parse_f64(clip->item[1], &o->rule.clip_max) ||
         o->rule.clip_min >= o->rule.clip_max))
        return exf_recipe_refuse(r, err, "calibrate.clip: expected [MIN, MAX] with MIN below MAX, or none");
    rc = exf_recipe_blame(r, exf_solve_check(o, err), err);
out:
    return rc;
}

exf_code exf_recipe_accumulate_options(const exf_recipe *r, exf_accumulate_options *o, exf_err *err)
{
    exf_solve_options solve;
    int64_t rank = 0;
    unsigned observed = 0; /* EXF_OBSERVES_* of the projectors, whose names are checked with the solve options */
    exf_code rc = exf_recipe_solve_options(r, &solve, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < r->ranks.n; i++) rank = r->ranks.item[i] > rank ? r->ranks.item[i] : rank;
    for (size_t i = 0; i < r->projectors.n; i++) observed |= exf_projector_find(r->projectors.item[i])->observes;
    *o = (exf_accumulate_options){
        .weighting = (exf_weighting)r->weighting,
        .common_input_tokens = r->pairs == EXF_PAIRS_COMMON_INPUT ? (int)r->observer_tokens : 0,
        .bare_router = r->bare_router ? EXF_BARE_PLAIN : EXF_BARE_NONE,
        .diagonal = (observed & EXF_OBSERVES_ELEMENTS) != 0,
        .lowrank = (observed & EXF_OBSERVES_BASIS) != 0,
        .vector_pairs = r->vector_pairs,
        .rank = (int)rank,
        .samples = r->samples,
        .seed = (uint64_t)r->basis_seed,
        .norm_head = (int)r->norm_head,
        .route_sample = r->route_sample,
        .rule = solve.rule,
        .cross_check = r->cross_check,
        .partial = r->partial,
    };
    return exf_recipe_blame(r, exf_accumulate_check(o, err), err);
}

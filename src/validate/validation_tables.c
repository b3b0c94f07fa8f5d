/* validation_tables.c - finds what variants ask for and tables lack, and writes the exfold-solve command that adds it, or
 * derives it where the tables are a plugin's; see validation.h. */
#include "validate/validation.h"

#include "artifact/data.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/names.h"
#include "kernels/linear/symmetric.h"

#include <stdio.h>
#include <string.h>

/* The projectors and pools that the variants ask for and the tables lack, as items of two recipe keys. */
typedef struct {
    const exf_tables *t;
    exf_text first;             /* "variant "D3:pool=static": the tables hold no static pool of 3" */
    exf_text pools, projectors; /* of the tables and missing: "4,2,3:energy", "pair,layer" */
    exf_text budgets, rules;    /* "4,2", "stream,top_p" */
    int any;
} missing;

static int has_item(const exf_text *list, const char *item)
{
    size_t n = strlen(item);
    for (const char *at = list->s; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && memcmp(at, item, n) == 0) return 1;
    return 0;
}

static void add_item(exf_text *list, const char *item)
{
    if (!has_item(list, item)) exf_text_appendf(list, "%s%s", list->len ? "," : "", item);
}

enum { ITEM = 80 };

/* Spells a pool: "8:energy", or "8", which is one by each criterion. */
static void spell_pool(char item[ITEM], int size, const char *by)
{
    snprintf(item, ITEM, by ? "%d:%.15s" : "%d", size, by);
}

/* Returns 1 if a pool that names no criterion is solved by that one too. */
static int is_implied(const char *by)
{
    return exf_name_place(exf_pool_criteria, EXF_POOL_IMPLIED, by) < EXF_POOL_IMPLIED;
}

static void add_number(exf_text *list, double number)
{
    char item[ITEM];
    snprintf(item, sizeof item, "%.9g", number);
    add_item(list, item);
}

/* Adds what the tables have. */
static void add_present(missing *m)
{
    const exf_tables *t = m->t;
    const char *projectors = exf_provenance_get(&t->provenance, "solve.projectors");
    for (int i = 0; i < t->n_pools; i++) {
        char item[ITEM];
        int every = 0; /* of that size, the criteria that a pool without one means */
        for (int k = 0; k < t->n_pools; k++) every += t->pool[k].size == t->pool[i].size && is_implied(t->pool[k].by);
        spell_pool(item, t->pool[i].size, is_implied(t->pool[i].by) && every == EXF_POOL_IMPLIED ? NULL : t->pool[i].by);
        add_item(&m->pools, item);
    }
    for (int i = 0; i < t->n_budgets; i++) {
        add_number(&m->budgets, t->budget[i].budget);
        add_item(&m->rules, t->budget[i].rule);
    }
    exf_text_appendf(&m->projectors, "%s", projectors ? projectors : "pair");
}

static void name_first(missing *m, const exf_variant *v, const char *what, const char *item)
{
    m->any = 1;
    if (!m->first.len) exf_text_appendf(&m->first, "variant \"%s\": the tables hold no %s %s", v->name, what, item);
}

static void add_pool(missing *m, const exf_variant *v)
{
    int size = (int)v->decode_options.pool;
    char item[ITEM], every[ITEM];
    if (v->decode != EXF_DECODE_STATIC) return;
    spell_pool(item, size, exf_pool_criteria[v->pool_by]);
    spell_pool(every, size, NULL);
    if (has_item(&m->pools, item) || (is_implied(exf_pool_criteria[v->pool_by]) && has_item(&m->pools, every))) return;
    if (v->pool_by == EXF_POOL_BY_NORM) spell_pool(item, size, NULL);
    name_first(m, v, "static pool of", item);
    add_item(&m->pools, item);
}

/* Adds a budget of the variant's rule, or of any size where the variant has none of its own. */
static void add_budget(missing *m, const exf_variant *v)
{
    const char *rule = exf_variant_budget_rule(v);
    double budget = v->budget ? v->prefill_options.keep : v->skip_budget;
    char item[ITEM];
    if (!rule) return;
    for (int i = 0; i < m->t->n_budgets; i++)
        if (strcmp(m->t->budget[i].rule, rule) == 0 && (budget == 0 || m->t->budget[i].budget == budget)) return;
    int asks = budget > 0;
    if (asks)
        snprintf(item, sizeof item, "of %g experts per token by %.12s", budget, rule);
    else
        snprintf(item, sizeof item, "by %.12s", rule);
    name_first(m, v, "budget", item);
    if (!asks) budget = (double)((m->t->shape.top_k + 1) / 2); /* any will do */
    if (asks || !m->budgets.len) add_number(&m->budgets, budget);
    add_item(&m->rules, rule);
}

static void add_shared(missing *m, const exf_variant *v, const exf_projector *p)
{
    if (!p || p->apply != EXF_APPLY_SHARED) return;
    for (int i = 0; i < m->t->n_shared; i++)
        if (strcmp(m->t->shared[i].name, p->name) == 0) return;
    name_first(m, v, p->name, "scalar");
    add_item(&m->projectors, p->name);
}

exf_code exf_pools_derive(exf_tables *t, const exf_variant *variants, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!exf_provenance_get(&t->provenance, "read_from")) return EXF_OK; /* ours, with statistics */
    for (size_t i = 0; rc == EXF_OK && i < n; i++) {
        const exf_variant *v = &variants[i];
        int has = 0;
        if (v->decode != EXF_DECODE_STATIC || v->pool_by != EXF_POOL_BY_NORM) continue;
        for (int p = 0; p < t->n_pools; p++) has |= t->pool[p].size == v->decode_options.pool;
        if (!has) rc = exf_solve_pool_of(t, v->decode_options.pool, err);
    }
    return rc;
}

/* ---- the command ------------------------------------------------------------------------- */

/* Adds all settings that are recorded, so that no default and no recipe decides. */
static void add_settings(exf_text *out, const missing *m)
{
    static const struct { const char *fact, *key; } recorded[] = {{"solve.ridge", "calibrate.ridge"},
                                                                  {"solve.clip", "calibrate.clip"},
                                                                  {"solve.ranks", "calibrate.ranks"},
                                                                  {"solve.min_pair_tokens", "calibrate.min_pair_tokens"}};
    if (m->pools.len) exf_text_appendf(out, " --set pools=%s", m->pools.s);
    exf_text_appendf(out, " --set calibrate.projectors=%s", m->projectors.s);
    if (m->budgets.len) exf_text_appendf(out, " --set budgets=%s --set budget_rules=%s", m->budgets.s, m->rules.s);
    if (has_item(&m->rules, "measured") || has_item(&m->rules, "skip"))
        exf_text_appendf(out, " --sensitivities sensitivities.json");
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        const char *value = exf_provenance_get(&m->t->provenance, recorded[i].fact);
        if (value) exf_text_appendf(out, " --set %s=%s", recorded[i].key, value);
    }
}

/* Returns 1 if the file holds the statistics of the tables: they have all of its facts. */
static int are_statistics_of(const char *path, const exf_tables *t)
{
    exf_err ignored;
    exf_h5 *h = NULL;
    exf_provenance p = {0};
    int same = exf_artifact_open(&h, path, &exf_artifact_statistics, NULL, &p, &ignored) == EXF_OK;
    for (size_t i = 0; same && i < p.n; i++) {
        const char *theirs = exf_provenance_get(&t->provenance, p.key[i]);
        same = theirs && strcmp(theirs, p.value[i]) == 0;
    }
    exf_h5_close(h);
    exf_provenance_free(&p);
    return same;
}

/* Adds the command; leaves *out empty where none is known to do it. */
static exf_code add_command(exf_text *out, const missing *m, const char *path, exf_err *err)
{
    char *directory = NULL, *statistics = NULL;
    const char *slash = strrchr(path, '/');
    exf_code rc;
    EXF_TRY(exf_path_dir(&directory, path, err));
    EXF_TRY(exf_path_join(&statistics, directory, "statistics.h5", err));
    if (strcmp(slash ? slash + 1 : path, "tables.h5") != 0 || !are_statistics_of(statistics, m->t)) goto out;
    exf_text_appendf(out, "exfold-solve ");
    exf_text_append_word(out, statistics);
    exf_text_appendf(out, " --output ");
    exf_text_append_word(out, directory);
    add_settings(out, m);
    exf_text_appendf(out, "%s --force", exf_provenance_get(&m->t->provenance, EXF_PART_FACT) ? " --partial" : "");
    rc = exf_text_end(out, err);
out:
    exf_mem_free(directory);
    exf_mem_free(statistics);
    return rc;
}

exf_code exf_solve_command_check(const exf_tables *t, const char *path, const exf_variant *variants, size_t n, exf_err *err)
{
    missing m = {.t = t};
    exf_text command = {0}, *const texts[] = {&m.first, &m.pools, &m.projectors, &m.budgets, &m.rules, &command};
    enum { N_TEXTS = sizeof texts / sizeof *texts };
    exf_code rc;
    add_present(&m);
    for (size_t i = 0; i < n; i++) {
        add_pool(&m, &variants[i]);
        add_budget(&m, &variants[i]);
        add_shared(&m, &variants[i], variants[i].prefill_projector);
        add_shared(&m, &variants[i], variants[i].decode_projector);
    }
    for (size_t i = 0; i < N_TEXTS; i++) EXF_TRY(exf_text_end(texts[i], err));
    if (!m.any) goto out;
    EXF_TRY(add_command(&command, &m, path, err));
    if (command.len)
        rc = exf_fail(err, EXF_USAGE, "%s; this solves it from the statistics: %s", m.first.s, command.s);
    else
        rc = exf_fail(err, EXF_USAGE, "%s; the statistics of %s are not beside it: set pools=%s%s%s and "
                      "calibrate.projectors=%s, and calibrate again", m.first.s, path, m.pools.len ? m.pools.s : "[]",
                      m.budgets.len ? ", budgets=" : "", m.budgets.len ? m.budgets.s : "", m.projectors.s);
out:
    for (size_t i = 0; i < N_TEXTS; i++) exf_text_free(texts[i]);
    return rc;
}

/* ---- tables of earlier releases ---------------------------------------------------------------------- */

exf_code exf_mean_cosines_tell(const exf_tables *t, const char *path, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    double *m = NULL, least = 0;
    int below = 0, worst = 0;
    exf_code rc = EXF_OK;
    if (!t->cosine || exf_tables_valid_correlations(t)) return EXF_OK;
    EXF_TRY(exf_mem_new(&m, e * e, sizeof *m, "correlations", err));
    for (int l = 0; l < t->n_layers; l++) {
        double value;
        for (size_t i = 0; i < e * e; i++) m[i] = (double)t->cosine[(size_t)l * e * e + i];
        EXF_TRY(exf_symmetric_least(&value, m, (int)e, err));
        below += value < 0;
        if (value >= least) continue;
        least = value;
        worst = l;
    }
    if (below)
        exf_log_warn("%s: an earlier release compiled it: in %d of %d layers the mean cosines are no correlation matrix (least "
                     "eigenvalue %.2f, layer %d), so that joint weights, budgets and stand-ins may do harm there; exfold-solve on "
                     "the same statistics mends it", path, below, t->n_layers, least, (int)t->layer_number[worst]);
out:
    exf_mem_free(m);
    return rc;
}

/* ---- whether they are of the model -------------------------------------------------------------------- */

static exf_code check_number(const char *path, const char *what, int64_t theirs, int64_t ours, exf_err *err)
{
    if (theirs == ours) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: tables of a model with %s %lld, this model has %lld", path, what, (long long)theirs,
                    (long long)ours);
}

static exf_code check_sizes(const exf_tables *t, const char *path, const exf_model *m, exf_err *err)
{
    const char *family = exf_provenance_get(&t->provenance, "model.family"),
               *layers = exf_provenance_get(&t->provenance, "model.layers");
    int64_t n_layers;
    exf_code rc;
    EXF_TRY(check_number(path, "experts", t->shape.n_experts, m->arch.n_experts, err));
    if (!t->shape.top_k) return EXF_OK; /* tables of others, which say nothing more of their model (tables_safetensors.c) */
    EXF_TRY(check_number(path, "experts per token", t->shape.top_k, m->arch.top_k, err));
    EXF_TRY(check_number(path, "hidden size", t->shape.d_model, m->arch.d_model, err));
    if (layers && exf_parse_i64(layers, &n_layers)) EXF_TRY(check_number(path, "layers", n_layers, m->arch.n_layers, err));
    if (family && strcmp(family, m->family->name) != 0)
        rc = exf_fail(err, EXF_MODEL, "%s: tables of a model of the family %s, this model is of %s", path, family, m->family->name);
out:
    return rc;
}

static exf_code check_architecture(const exf_tables *t, const char *path, const exf_model *m, exf_err *err)
{
    exf_provenance own = {0};
    exf_code rc;
    EXF_TRY(exf_forward_facts_add(&own, &m->arch, err));
    EXF_TRY(exf_provenance_add(&own, err, "model.config_sha256", "%s", m->config_sha256));
    rc = exf_architecture_facts_same(&t->provenance, path, &own, m->config_path,
                                     "; give the model that they were made on, or calibrate this one (exfold-calibrate)", err);
out:
    exf_provenance_free(&own);
    return rc;
}

exf_code exf_validate_check_tables(const exf_tables *t, const char *path, const exf_model *m, int other_weights, exf_err *err)
{
    const char *weights = exf_provenance_get(&t->provenance, EXF_WEIGHTS_FACT),
               *by_place = exf_provenance_get(&t->provenance, EXF_WEIGHTS_BY_PLACE_FACT);
    exf_code rc;
    EXF_TRY(check_sizes(t, path, m, err));
    if (!t->shape.top_k) return EXF_OK;
    EXF_TRY(check_architecture(t, path, m, err));
    if (other_weights || !m->identity) return EXF_OK;
    if (weights) return exf_weight_identity_expect(m->identity, weights, by_place, path, err);
    if (exf_provenance_get(&t->provenance, "model.weights_digest"))
        exf_log_warn("%s: names its weights as earlier programs did: whether they are this checkpoint's is not checked", path);
out:
    return rc;
}

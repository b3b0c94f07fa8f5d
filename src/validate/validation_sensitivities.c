/* validation_sensitivities.c - what folding single layers does to the model: the variants that measure it, and their results as
 * a solver reads them; see validation.h. */
#include "validate/validation.h"

#include "accumulate/statistics.h"
#include "artifact/provenance.h"
#include "base/mem.h"
#include "base/names.h"
#include "format/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_BYTES = 1 << 26 };

static void name_variant(char out[EXF_VARIANT_NAME_LEN], int64_t top_k, int layer)
{
    snprintf(out, EXF_VARIANT_NAME_LEN, "P%d:projector=joint,layer=%d", (int)(top_k / 2 ? top_k / 2 : 1), layer);
}

/* Names the variant that leaves out a layer's routed experts: no route's share comes near that threshold. */
static void name_skip(char out[EXF_VARIANT_NAME_LEN], int layer)
{
    snprintf(out, EXF_VARIANT_NAME_LEN, "skip0:tau=1e9,layer=%d", layer);
}

exf_code exf_sensitivity_variants(exf_variant **out, size_t *n, const exf_tables *t, int rules, exf_err *err)
{
    exf_code rc;
    size_t layers = (size_t)t->n_layers;
    *n = 0;
    EXF_TRY(exf_mem_new(out, 2 * layers, sizeof **out, "variants", err));
    for (size_t i = 0; i < 2 * layers; i++) {
        char name[EXF_VARIANT_NAME_LEN];
        int skips = i >= layers;
        if (!(rules & (skips ? EXF_SENSITIVITIES_OF_SKIP : EXF_SENSITIVITIES_MEASURED))) continue;
        if (skips)
            name_skip(name, t->layer_number[i - layers]);
        else
            name_variant(name, t->shape.top_k, t->layer_number[i]);
        EXF_TRY(exf_variant_parse(&(*out)[(*n)++], name, err));
    }
out:
    return rc;
}

/* ---- reading ------------------------------------------------------------------------ */

static exf_code read_variant(double *kl, const exf_json *variants, const char *name, const char *path, exf_err *err)
{
    const exf_json *v = NULL;
    for (size_t i = 0; !v && i < exf_json_size(variants); i++) {
        const char *s = exf_json_string(exf_json_get(exf_json_at(variants, i), "name"), NULL);
        if (s && strcmp(s, name) == 0) v = exf_json_at(variants, i);
    }
    const exf_json *number = exf_json_get(v, "kl_mean");
    if (!v)
        return exf_fail(err, EXF_FORMAT, "%s: has no variant \"%s\": measure it with exfold-validate --sensitivities%s", path, name,
                        strncmp(name, "skip", 4) == 0 ? " --set budget_rules=skip" : "");
    *kl = exf_json_type(number) == EXF_JSON_INT || exf_json_type(number) == EXF_JSON_REAL ? exf_json_real(number) : NAN;
    if (*kl >= 0 && isfinite(*kl)) return EXF_OK; /* 0: of a layer that costs nothing */
    return exf_fail(err, EXF_FORMAT, "%s: variant \"%s\" has kl_mean %g, expected a number from 0: measure it again", path, name,
                    *kl);
}

static exf_code read_facts(exf_provenance *facts, const exf_json *object, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (void *it = exf_json_first(object); rc == EXF_OK && it; it = exf_json_next(object, it)) {
        const char *value = exf_json_string(exf_json_value(it), NULL);
        if (value) rc = exf_provenance_add(facts, err, exf_json_key(it), "%s", value);
    }
    return rc;
}

exf_code exf_validation_facts_read(exf_provenance *out, const char *path, exf_err *err)
{
    exf_json *doc = NULL;
    exf_code rc = exf_json_load(&doc, path, MOST_BYTES, err);
    if (rc == EXF_OK) rc = read_facts(out, exf_json_get(doc, "provenance"), err);
    exf_json_free(doc);
    return rc;
}

static exf_code check_model(exf_sensitivities *s, const char *path, const exf_provenance *of, const char *statistics,
                            int other_weights, exf_err *err)
{
    exf_err why = {.code = EXF_OK};
    exf_code rc;
    EXF_TRY(exf_architecture_facts_same(&s->facts, path, of, statistics, "; measure it with exfold-validate --sensitivities", err));
    if (other_weights) return exf_weights_facts_difference(&s->other_weights, of, &s->facts, err);
    rc = exf_model_facts_same(&s->facts, path, of, statistics, &why);
    if (rc == EXF_MODEL) (void)exf_fail(err, rc, "%s; they are taken by --accept other-weights", why.msg);
    if (rc != EXF_OK && rc != EXF_MODEL) *err = why;
out:
    return rc;
}

/* Reads the layers' KLs by the rules that are asked for. */
static exf_code read_layers(exf_sensitivities *s, const exf_json *variants, const exf_statistics_reader *r, int rules,
                            const char *path, exf_err *err)
{
    char name[EXF_VARIANT_NAME_LEN];
    exf_code rc = EXF_OK;
    if (rules & EXF_SENSITIVITIES_MEASURED) EXF_TRY(exf_mem_new(&s->kl, (size_t)r->n_layers, sizeof *s->kl, "sensitivities", err));
    if (rules & EXF_SENSITIVITIES_OF_SKIP)
        EXF_TRY(exf_mem_new(&s->skipped_kl, (size_t)r->n_layers, sizeof *s->skipped_kl, "sensitivities", err));
    for (int l = 0; l < r->n_layers; l++) {
        name_variant(name, r->shape.top_k, r->layer_number[l]);
        if (s->kl) EXF_TRY(read_variant(&s->kl[l], variants, name, path, err));
        name_skip(name, r->layer_number[l]);
        if (s->skipped_kl) EXF_TRY(read_variant(&s->skipped_kl[l], variants, name, path, err));
    }
out:
    return rc;
}

int exf_sensitivity_rules(const exf_solve_options *o)
{
    int rules = 0;
    for (size_t i = 0; i < o->n_rules; i++) {
        if (strcmp(o->rules[i], exf_budget_rules[EXF_RULE_MEASURED]) == 0) rules |= EXF_SENSITIVITIES_MEASURED;
        if (strcmp(o->rules[i], exf_budget_rules[EXF_RULE_SKIP]) == 0) rules |= EXF_SENSITIVITIES_OF_SKIP;
    }
    return rules;
}

exf_code exf_sensitivities_read(exf_sensitivities *out, const char *path, int rules, const char *statistics,
                                const char *statistics_digest, int other_weights, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_json *doc = NULL;
    exf_code rc;
    memset(out, 0, sizeof *out);
    EXF_TRY(exf_json_load(&doc, path, MOST_BYTES, err));
    EXF_TRY(exf_hash_file(path, out->sha256, err));
    EXF_TRY(exf_statistics_open(&r, statistics, err));
    if (statistics_digest)
        snprintf(out->statistics_digest, sizeof out->statistics_digest, "%s", statistics_digest);
    else
        EXF_TRY(exf_h5_digest(r.h, out->statistics_digest, err));
    EXF_TRY(read_facts(&out->facts, exf_json_get(doc, "provenance"), err));
    EXF_TRY(check_model(out, path, &r.provenance, statistics, other_weights, err));
    const char *have = exf_provenance_get(&out->facts, "validate.statistics_digest"); /* which earlier versions do not name */
    if (have && strcmp(have, out->statistics_digest) != 0)
        rc = exf_fail(err, EXF_MODEL, "%s: measured with tables of other statistics, of digest %s, than %s, of %s: solve these "
                      "without --sensitivities, and measure their tables with exfold-validate --sensitivities", path, have,
                      statistics, out->statistics_digest);
    else
        rc = read_layers(out, exf_json_get(doc, "variants"), &r, rules, path, err);
out:
    exf_statistics_close(&r);
    exf_json_free(doc);
    if (rc != EXF_OK) exf_sensitivities_free(out);
    return rc;
}

void exf_sensitivities_free(exf_sensitivities *s)
{
    exf_mem_free(s->kl);
    exf_mem_free(s->skipped_kl);
    exf_text_free(&s->other_weights);
    exf_provenance_free(&s->facts);
    memset(s, 0, sizeof *s);
}

/* ---- recording ---------------------------------------------------------------------- */

exf_code exf_sensitivities_record(const exf_sensitivities *s, exf_tables *t, exf_err *err)
{
    static const struct { const char *fact, *key; } data[] = {{"data.tokens_digest", "solve.sensitivities_tokens_digest"},
                                                              {"data.domains", "solve.sensitivities_domains"}};
    int measured = 0;
    exf_code rc;
    for (int i = 0; i < t->n_budgets; i++) {
        int rule = exf_name_place(exf_budget_rules, EXF_BUDGET_RULES, t->budget[i].rule);
        measured |= rule == EXF_RULE_MEASURED || rule == EXF_RULE_SKIP;
    }
    if (!measured) return EXF_OK;
    if (s->other_weights.len)
        EXF_TRY(exf_provenance_add(&t->provenance, err, "solve.sensitivities_other_weights", "%s", s->other_weights.s));
    EXF_TRY(exf_provenance_add(&t->provenance, err, "solve.sensitivities_sha256", "%s", s->sha256));
    for (size_t i = 0; i < sizeof data / sizeof *data; i++) {
        const char *value = exf_provenance_get(&s->facts, data[i].fact);
        if (value) EXF_TRY(exf_provenance_add(&t->provenance, err, data[i].key, "%s", value));
    }
out:
    return rc;
}

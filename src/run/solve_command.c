/* solve_command.c - see solve_command.h. */
#include "run/solve_command.h"

#include "artifact/shards.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

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

static exf_code add_item(exf_text *list, const char *item, exf_err *err)
{
    return has_item(list, item) ? EXF_OK : exf_text_addf(list, err, "%s%s", list->len ? "," : "", item);
}

/* "8", or "8:energy". */
static exf_code add_sized(exf_text *list, int size, const char *by, exf_err *err)
{
    char item[32];
    if (strcmp(by, "norm") == 0)
        snprintf(item, sizeof item, "%d", size);
    else
        snprintf(item, sizeof item, "%d:%.8s", size, by);
    return add_item(list, item, err);
}

static exf_code add_number(exf_text *list, double number, exf_err *err)
{
    char item[32];
    snprintf(item, sizeof item, "%.9g", number);
    return add_item(list, item, err);
}

static exf_code start(missing *m, const exf_tables *t, exf_err *err)
{
    const char *projectors = exf_provenance_get(&t->provenance, "solve.projectors");
    exf_code rc;
    m->t = t;
    for (int i = 0; i < t->n_pools; i++) EXF_TRY(add_sized(&m->pools, t->pool[i].size, t->pool[i].by, err));
    for (int i = 0; i < t->n_budgets; i++) {
        EXF_TRY(add_number(&m->budgets, t->budget[i].budget, err));
        EXF_TRY(add_item(&m->rules, t->budget[i].rule, err));
    }
    EXF_TRY(exf_text_addf(&m->projectors, err, "%s", projectors ? projectors : "pair"));
out:
    return rc;
}

static exf_code name_first(missing *m, const exf_variant *v, const char *what, const char *item, exf_err *err)
{
    m->any = 1;
    if (m->first.len) return EXF_OK;
    return exf_text_addf(&m->first, err, "variant \"%s\": the tables hold no %s %s", v->name, what, item);
}

static exf_code add_pool(missing *m, const exf_variant *v, exf_err *err)
{
    const char *by = exf_pool_criterion_name(v->pool_by);
    exf_text item = {0};
    exf_code rc = EXF_OK;
    if (v->decode != EXF_DECODE_STATIC) return EXF_OK;
    EXF_TRY(add_sized(&item, (int)v->decode_options.pool, by, err));
    if (has_item(&m->pools, item.s)) goto out;
    EXF_TRY(name_first(m, v, "static pool of", item.s, err));
    rc = add_item(&m->pools, item.s, err);
out:
    exf_text_free(&item);
    return rc;
}

/* Names a budget of that rule, or of any size where the variant has none of its own. */
static exf_code add_budget(missing *m, const exf_variant *v, exf_err *err)
{
    const char *rule = exf_variant_budget_rule(v);
    double budget = v->budget ? v->prefill_options.keep : 0;
    char item[80];
    exf_code rc;
    if (!rule) return EXF_OK;
    for (int i = 0; i < m->t->n_budgets; i++)
        if (strcmp(m->t->budget[i].rule, rule) == 0 && (!v->budget || m->t->budget[i].budget == budget)) return EXF_OK;
    if (v->budget)
        snprintf(item, sizeof item, "of %g experts per token by %.12s", budget, rule);
    else
        snprintf(item, sizeof item, "by %.12s", rule);
    EXF_TRY(name_first(m, v, "budget", item, err));
    if (!v->budget) budget = (double)((m->t->shape.top_k + 1) / 2); /* any will do */
    if (v->budget || !m->budgets.len) EXF_TRY(add_number(&m->budgets, budget, err));
    EXF_TRY(add_item(&m->rules, rule, err));
out:
    return rc;
}

static exf_code add_shared(missing *m, const exf_variant *v, const exf_projector *p, exf_err *err)
{
    exf_code rc;
    if (!p || p->apply != EXF_APPLY_SHARED) return EXF_OK;
    for (int i = 0; i < m->t->n_shared; i++)
        if (strcmp(m->t->shared[i].name, p->name) == 0) return EXF_OK;
    EXF_TRY(name_first(m, v, p->name, "scalar", err));
    rc = add_item(&m->projectors, p->name, err);
out:
    return rc;
}

/* ---- the command ------------------------------------------------------------------------- */

/* A word that a shell reads as it stands. */
static exf_code add_word(exf_text *out, const char *word, exf_err *err)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-,=:@%";
    exf_code rc;
    if (*word && strspn(word, plain) == strlen(word)) return exf_text_addf(out, err, " %s", word);
    EXF_TRY(exf_text_addf(out, err, " '"));
    for (; *word; word++) EXF_TRY(exf_text_addf(out, err, *word == '\'' ? "'\\''" : "%c", *word));
    rc = exf_text_addf(out, err, "'");
out:
    return rc;
}

/* All settings that are recorded, so that no default and no recipe decides. */
static exf_code add_settings(exf_text *out, const missing *m, exf_err *err)
{
    static const struct { const char *fact, *key; } recorded[] = {{"solve.ridge", "calibrate.ridge"},
                                                                  {"solve.clip", "calibrate.clip"},
                                                                  {"solve.ranks", "calibrate.ranks"},
                                                                  {"solve.min_pair_tokens", "calibrate.min_pair_tokens"}};
    exf_code rc;
    if (m->pools.len) EXF_TRY(exf_text_addf(out, err, " --set pools=%s", m->pools.s));
    EXF_TRY(exf_text_addf(out, err, " --set calibrate.projectors=%s", m->projectors.s));
    if (m->budgets.len) EXF_TRY(exf_text_addf(out, err, " --set budgets=%s --set budget_rules=%s", m->budgets.s, m->rules.s));
    if (has_item(&m->rules, "measured")) EXF_TRY(exf_text_addf(out, err, " --sensitivities sensitivities.json"));
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        const char *value = exf_provenance_get(&m->t->provenance, recorded[i].fact);
        if (value) EXF_TRY(exf_text_addf(out, err, " --set %s=%s", recorded[i].key, value));
    }
out:
    return rc;
}

/* 1 if the file holds the statistics of the tables: all of its facts are theirs. */
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

/* Leaves *out empty where no command is known to do it. */
static exf_code add_command(exf_text *out, const missing *m, const char *path, exf_err *err)
{
    char *directory = NULL, *statistics = NULL;
    const char *slash = strrchr(path, '/');
    exf_code rc;
    EXF_TRY(exf_path_dir(&directory, path, err));
    EXF_TRY(exf_path_join(&statistics, directory, "statistics.h5", err));
    if (strcmp(slash ? slash + 1 : path, "tables.h5") != 0 || !are_statistics_of(statistics, m->t)) goto out;
    EXF_TRY(exf_text_addf(out, err, "exfold-solve"));
    EXF_TRY(add_word(out, statistics, err));
    EXF_TRY(exf_text_addf(out, err, " --output"));
    EXF_TRY(add_word(out, directory, err));
    EXF_TRY(add_settings(out, m, err));
    EXF_TRY(exf_text_addf(out, err, "%s --force", exf_provenance_get(&m->t->provenance, EXF_PART_FACT) ? " --partial" : ""));
out:
    exf_mem_free(directory);
    exf_mem_free(statistics);
    return rc;
}

exf_code exf_solve_command_check(const exf_tables *t, const char *path, const exf_variant *variants, size_t n, exf_err *err)
{
    missing m = {.t = NULL};
    exf_text command = {0};
    exf_code rc;
    EXF_TRY(start(&m, t, err));
    for (size_t i = 0; i < n; i++) {
        EXF_TRY(add_pool(&m, &variants[i], err));
        EXF_TRY(add_budget(&m, &variants[i], err));
        EXF_TRY(add_shared(&m, &variants[i], variants[i].prefill_projector, err));
        EXF_TRY(add_shared(&m, &variants[i], variants[i].decode_projector, err));
    }
    if (!m.any) goto out;
    EXF_TRY(add_command(&command, &m, path, err));
    if (command.len)
        rc = exf_fail(err, EXF_USAGE, "%s; this solves it from the statistics: %s", m.first.s, command.s);
    else
        rc = exf_fail(err, EXF_USAGE, "%s; the statistics of %s are not beside it: set pools=%s%s%s and "
                      "calibrate.projectors=%s, and calibrate again", m.first.s, path, m.pools.len ? m.pools.s : "[]",
                      m.budgets.len ? ", budgets=" : "", m.budgets.len ? m.budgets.s : "", m.projectors.s);
out:
    exf_text_free(&m.first);
    exf_text_free(&m.pools);
    exf_text_free(&m.projectors);
    exf_text_free(&m.budgets);
    exf_text_free(&m.rules);
    exf_text_free(&command);
    return rc;
}

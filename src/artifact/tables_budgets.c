/* tables_budgets.c - the budgets per token of tables (tables.h), a group for each mean number P of experts per token
 * and rule, which is stream, output, measured, top_p or skip; since version 4:
 *   /budgets/<P>/<rule>/lambda   F64 [1]  price of one more expert; top_p: the share p
 *   /budgets/<P>/<rule>/scale    F64 [L]  a layer's sensitivity a_l; 1 with top_p
 *   /budgets/<P>/<rule>/mean     F64 [1]  mean experts per token on the route sample
 *   /budgets/<P>/<rule>/kept     U64 [L, K]  sampled tokens of a layer that keep 1..K routes; skip: [L, K + 1] of 0..K
 *   /budgets/<P>/<rule>/predicted/lambda, mean, kept  the same by norms that /norm_head predicts, over the same scale; not of
 *       skip, which asks for no norms; absent without a head, or where the route sample lacks what it reads
 * With skip, lambda is the threshold and scale the factors, which add up to 1.  A layer whose routed outputs are 0 costs nothing
 * and is left out of mean: no token of it is in kept, and its scale is the smallest normal number in the place of 0; with top_p
 * it is 1. */
#include "artifact/tables.h"

#include "base/mem.h"
#include "base/names.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH_LEN = 64, MOST_BUDGETS = 256 };

static int place_of(const char *rule)
{
    return exf_name_place(exf_budget_rules, EXF_BUDGET_RULES, rule);
}

int exf_budget_least(const exf_budget *b)
{
    return place_of(b->rule) != EXF_RULE_SKIP;
}

/* Returns the columns of kept. */
static int64_t count_columns(const exf_budget *b, const exf_tables *t)
{
    return t->shape.top_k + 1 - exf_budget_least(b);
}

exf_code exf_budgets_add(exf_tables *t, double budget, const char *rule, exf_budget **out, exf_err *err)
{
    exf_budget *now = NULL, one = {.budget = budget};
    int at = 0;
    exf_code rc;
    snprintf(one.rule, sizeof one.rule, "%s", rule);
    for (; at < t->n_budgets; at++) {
        const exf_budget *b = &t->budget[at];
        if (b->budget != budget ? b->budget < budget : place_of(b->rule) >= place_of(rule)) break;
    }
    EXF_TRY(exf_mem_new(&now, (size_t)t->n_budgets + 1, sizeof *now, "budgets", err));
    EXF_TRY(exf_mem_new(&one.scale, (size_t)t->n_layers, sizeof *one.scale, "budgets", err));
    EXF_TRY(exf_mem_new(&one.kept, (size_t)t->n_layers * (size_t)count_columns(&one, t), sizeof *one.kept, "budgets", err));
    for (int i = 0; i <= t->n_budgets; i++) now[i] = i < at ? t->budget[i] : i == at ? one : t->budget[i - 1];
    exf_mem_free(t->budget);
    t->budget = now;
    t->n_budgets++;
    *out = &now[at];
    return EXF_OK;
out:
    exf_mem_free(now);
    exf_mem_free(one.scale);
    return rc;
}

exf_code exf_budgets_add_predicted(const exf_tables *t, exf_budget *b, exf_err *err)
{
    return exf_mem_new(&b->predicted.kept, (size_t)t->n_layers * (size_t)count_columns(b, t), sizeof *b->predicted.kept, "budgets",
                       err);
}

exf_budget_threshold exf_budget_threshold_of(const exf_budget *b, int predicted)
{
    if (predicted && place_of(b->rule) != EXF_RULE_SKIP) return b->predicted;
    return (exf_budget_threshold){b->lambda, b->mean, b->kept};
}

void exf_budgets_remove(exf_tables *t, exf_budget *b)
{
    size_t after = (size_t)(t->budget + t->n_budgets - (b + 1));
    exf_mem_free(b->scale);
    exf_mem_free(b->kept);
    exf_mem_free(b->predicted.kept);
    memmove(b, b + 1, after * sizeof *b);
    t->n_budgets--;
}

exf_tensor exf_budget_tensor(const exf_tables *t, const exf_budget *b, int i)
{
    const exf_budget_threshold *p = &b->predicted;
    int64_t l = t->n_layers, columns = count_columns(b, t);
    const exf_tensor all[EXF_BUDGET_PARTS] = {
        {.name = "lambda", .dtype = EXF_DT_F64, .rank = 1, .shape = {1}, .data = &b->lambda},
        {.name = "scale", .dtype = EXF_DT_F64, .rank = 1, .shape = {l}, .data = b->scale},
        {.name = "mean", .dtype = EXF_DT_F64, .rank = 1, .shape = {1}, .data = &b->mean},
        {.name = "kept", .dtype = EXF_DT_U64, .rank = 2, .shape = {l, columns}, .data = b->kept},
        {.name = "predicted/lambda", .dtype = EXF_DT_F64, .rank = 1, .shape = {1}, .data = p->kept ? &p->lambda : NULL},
        {.name = "predicted/mean", .dtype = EXF_DT_F64, .rank = 1, .shape = {1}, .data = p->kept ? &p->mean : NULL},
        {.name = "predicted/kept", .dtype = EXF_DT_U64, .rank = 2, .shape = {l, columns}, .data = p->kept}};
    return all[i];
}

/* Writes the part's path and gives the tensor that name. */
static exf_tensor part_of(const exf_tables *t, const exf_budget *b, int i, char path[PATH_LEN])
{
    exf_tensor x = exf_budget_tensor(t, b, i);
    snprintf(path, PATH_LEN, "/budgets/%.9g/%s/%s", b->budget, b->rule, x.name);
    x.name = path;
    return x;
}

exf_code exf_budgets_write(const exf_tables *t, exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; i < t->n_budgets; i++)
        for (int k = 0; rc == EXF_OK && k < EXF_BUDGET_PARTS; k++) {
            char path[PATH_LEN];
            exf_tensor x = part_of(t, &t->budget[i], k, path);
            if (x.data) rc = exf_h5_write(h, &x, err);
        }
    return rc;
}

/* ---- reading -------------------------------------------------------------- */

typedef struct {
    exf_tables *t;
    exf_h5 *h;
    double budget; /* whose rules are listed */
} listing;

static exf_code read_rule(void *self, const char *name, exf_err *err)
{
    listing *s = self;
    exf_budget *b;
    char group[PATH_LEN];
    int predicted;
    exf_code rc;
    if (place_of(name) == EXF_BUDGET_RULES)
        return exf_fail(err, EXF_FORMAT, "%s: /budgets/%.9g/%s, expected stream, output, measured, top_p or skip",
                        exf_h5_path(s->h), s->budget, name);
    if (s->t->n_budgets == MOST_BUDGETS)
        return exf_fail(err, EXF_FORMAT, "%s: more than %d budgets", exf_h5_path(s->h), MOST_BUDGETS);
    EXF_TRY(exf_budgets_add(s->t, s->budget, name, &b, err));
    snprintf(group, sizeof group, "/budgets/%.9g/%s/predicted", s->budget, name);
    EXF_TRY(exf_h5_exists(s->h, group, &predicted, err));
    if (predicted) EXF_TRY(exf_budgets_add_predicted(s->t, b, err));
    for (int k = 0; k < EXF_BUDGET_PARTS; k++) {
        char path[PATH_LEN];
        exf_tensor x = part_of(s->t, b, k, path);
        void *data = (void *)(uintptr_t)x.data;
        x.data = NULL;
        if (data) EXF_TRY(exf_h5_read(s->h, &x, data, err));
    }
out:
    return rc;
}

static exf_code read_budget(void *self, const char *name, exf_err *err)
{
    listing *s = self;
    char group[PATH_LEN], again[PATH_LEN];
    if (!exf_parse_f64(name, &s->budget) || snprintf(again, sizeof again, "%.9g", s->budget) < 0 || strcmp(name, again) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: /budgets/%s is no number of experts", exf_h5_path(s->h), name);
    snprintf(group, sizeof group, "/budgets/%.9g", s->budget);
    return exf_h5_members(s->h, group, read_rule, s, err);
}

exf_code exf_budgets_read(exf_tables *t, exf_h5 *h, exf_err *err)
{
    listing s = {t, h, 0};
    return exf_h5_members(h, "/budgets", read_budget, &s, err);
}

static exf_code refuse(const exf_budget *b, const char *path, const char *of, const char *what, double value, const char *expected,
                       exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: /budgets/%.9g/%s/%s%s is %g, expected %s", path, b->budget, b->rule, of, what, value,
                    expected);
}

/* Checks that the counts have the mean; of: "" or "predicted/". */
static exf_code check_kept(const exf_tables *t, const exf_budget *b, const exf_budget_threshold *p, const char *of,
                           const char *path, exf_err *err)
{
    size_t k = (size_t)count_columns(b, t), least = (size_t)exf_budget_least(b);
    uint64_t sum = 0, n = 0, tokens = 0; /* tokens: of one layer */
    for (size_t i = 0; p->kept && i < (size_t)t->n_layers * k; i++) {
        if (p->kept[i] > UINT32_MAX) return refuse(b, path, of, "kept", (double)p->kept[i], "tokens of a sample", err);
        sum += p->kept[i] * (i % k + least);
        n += p->kept[i];
        tokens = (i % k ? tokens : 0) + p->kept[i];
        if (tokens > (uint64_t)t->shape.n_tokens)
            return exf_fail(err, EXF_FORMAT, "%s: layer %d: /budgets/%.9g/%s/%skept counts %llu tokens, n_tokens is %lld", path,
                            (int)t->layer_number[i / k], b->budget, b->rule, of, (unsigned long long)tokens,
                            (long long)t->shape.n_tokens);
    }
    if (p->kept && !(n && p->mean == (double)sum / (double)n))
        return refuse(b, path, of, "mean", p->mean, "the mean of kept", err);
    return EXF_OK;
}

static exf_code check_threshold(const exf_tables *t, const exf_budget *b, const exf_budget_threshold *p, const char *of,
                                const char *path, exf_err *err)
{
    double k = (double)t->shape.top_k;
    int top_p = strcmp(b->rule, exf_budget_rules[EXF_RULE_TOP_P]) == 0;
    if (!(exf_budget_least(b) ? p->mean >= 1 : p->mean > 0) || p->mean > k)
        return refuse(b, path, of, "mean", p->mean, "1 to the experts that a token has", err);
    if (!(p->lambda >= 0 && isfinite(p->lambda)) || (top_p && p->lambda > 1))
        return refuse(b, path, of, "lambda", p->lambda, top_p ? "a share" : "a number from 0", err);
    return check_kept(t, b, p, of, path, err);
}

static exf_code check_one(const exf_tables *t, const exf_budget *b, const char *path, exf_err *err)
{
    const exf_budget_threshold mean = exf_budget_threshold_of(b, 0), *predicted = &b->predicted;
    exf_code rc;
    if (!(b->budget >= 1 && b->budget <= (double)t->shape.top_k))
        return refuse(b, path, "", "", b->budget, "1 to the experts that a token has", err);
    EXF_TRY(check_threshold(t, b, &mean, "", path, err));
    for (int l = 0; l < t->n_layers; l++)
        if (!(b->scale[l] > 0 && isfinite(b->scale[l]))) return refuse(b, path, "", "scale", b->scale[l], "numbers above 0", err);
    if (!predicted->kept) goto out;
    if (!t->norm_head.q)
        rc = exf_fail(err, EXF_FORMAT, "%s: has /budgets/%.9g/%s/predicted without /norm_head", path, b->budget, b->rule);
    else
        rc = check_threshold(t, b, predicted, "predicted/", path, err);
out:
    return rc;
}

exf_code exf_budgets_check(const exf_tables *t, const char *path, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < t->n_budgets; i++) rc = check_one(t, &t->budget[i], path, err);
    return rc;
}

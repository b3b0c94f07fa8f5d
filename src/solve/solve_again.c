/* solve_again.c - reads the settings of a solution back from the provenance of tables, and solves them again; see solve.h. */
#include "solve/solve_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <string.h>

/* The settings, with the lists that exf_solve_options borrows. */
typedef struct {
    exf_solve_options options;
    char *names, *numbers; /* of projectors and ranks, cut at the commas */
    const char **projector;
    int64_t *rank;
} settings;

static exf_code refuse_setting(const exf_tables *t, const char *path, const char *key, const char *expected, exf_err *err)
{
    const char *text = exf_provenance_get(&t->provenance, key);
    return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, expected %s", path, key, text ? text : "nothing", expected);
}

static exf_code read_rule(exf_scalar_rule *rule, const exf_tables *t, const char *path, exf_err *err)
{
    const char *ridge = exf_provenance_get(&t->provenance, "solve.ridge"), *clip = exf_provenance_get(&t->provenance, "solve.clip");
    const char *comma = clip ? strchr(clip, ',') : NULL;
    char *low = NULL;
    exf_code rc = EXF_OK;
    if (!ridge || !exf_parse_f64(ridge, &rule->ridge)) return refuse_setting(t, path, "solve.ridge", "a number", err);
    if (clip && strcmp(clip, "none") == 0) return EXF_OK;
    rule->clip = 1;
    if (comma) EXF_TRY(exf_mem_dup(&low, clip, (size_t)(comma - clip), "clip", err));
    if (!comma || !exf_parse_f64(low, &rule->clip_min) || !exf_parse_f64(comma + 1, &rule->clip_max))
        rc = refuse_setting(t, path, "solve.clip", "MIN,MAX or none", err);
out:
    exf_mem_free(low);
    return rc;
}

static size_t count_items(const char *list)
{
    size_t n = 1;
    for (; (list = strchr(list, ',')); list++) n++;
    return n;
}

/* Returns the item at *list, cut off at its comma, and moves on to the next. */
static char *next_item(char **list)
{
    char *item = *list, *comma = strchr(item, ',');
    if (comma) *comma = 0;
    *list = comma ? comma + 1 : NULL;
    return item;
}

static exf_code read_projectors(settings *s, const exf_tables *t, const char *path, exf_err *err)
{
    const char *list = exf_provenance_get(&t->provenance, "solve.projectors"),
               *ranks = exf_provenance_get(&t->provenance, "solve.ranks");
    exf_solve_options *o = &s->options;
    exf_code rc;
    if (!list) return refuse_setting(t, path, "solve.projectors", "names of projectors", err);
    EXF_TRY(exf_mem_strdup(&s->names, list, "projectors", err));
    EXF_TRY(exf_mem_new(&s->projector, count_items(list), sizeof *s->projector, "projectors", err));
    for (char *at = s->names; at;) s->projector[o->n_projectors++] = next_item(&at);
    o->projectors = s->projector;
    if (!ranks) return EXF_OK;
    EXF_TRY(exf_mem_strdup(&s->numbers, ranks, "ranks", err));
    EXF_TRY(exf_mem_new(&s->rank, count_items(ranks), sizeof *s->rank, "ranks", err));
    for (char *at = s->numbers; at;)
        if (!exf_parse_i64(next_item(&at), &s->rank[o->n_ranks++]))
            return refuse_setting(t, path, "solve.ranks", "ranks such as 8,16", err);
    o->ranks = s->rank;
out:
    return rc;
}

/* Takes pools, budgets and rules from the tables, where each budget has each rule. */
static void take_pools_and_budgets(exf_solve_options *o, const exf_tables *t)
{
    for (int i = 0; i < t->n_pools && i < EXF_MOST_POOLS; i++)
        o->pool_by[o->n_pools_by++] = (exf_pool_choice){t->pool[i].size, t->pool[i].by, 0};
    for (int i = 0; i < t->n_budgets; i++) {
        const exf_budget *b = &t->budget[i];
        size_t known = 0;
        while (known < o->n_budgets && o->budgets[known] != (int64_t)b->budget) known++;
        if (known == o->n_budgets && known < EXF_MOST_BUDGETS) o->budgets[o->n_budgets++] = (int64_t)b->budget;
        for (known = 0; known < o->n_rules && strcmp(o->rules[known], b->rule) != 0;) known++;
        if (known == o->n_rules && known < EXF_BUDGET_RULES) o->rules[o->n_rules++] = b->rule;
        if (strcmp(b->rule, exf_budget_rules[EXF_RULE_MEASURED]) == 0) o->measured_scale = b->scale;
        if (strcmp(b->rule, exf_budget_rules[EXF_RULE_SKIP]) == 0) o->skip_scale = b->scale;
    }
}

exf_code exf_solve_again(const exf_tables *t, const char *path, const char *statistics, exf_tables *out, exf_err *err)
{
    settings s = {.names = NULL};
    const char *text = exf_provenance_get(&t->provenance, "solve.min_pair_tokens");
    int64_t least = 1;
    exf_err why;
    exf_code rc;
    EXF_TRY(read_rule(&s.options.rule, t, path, err));
    EXF_TRY(read_projectors(&s, t, path, err));
    if (text && (!exf_parse_i64(text, &least) || least < 1)) {
        rc = refuse_setting(t, path, "solve.min_pair_tokens", "a number of tokens", err);
        goto out;
    }
    s.options.min_pair_tokens = (uint64_t)least;
    take_pools_and_budgets(&s.options, t);
    s.options.partial = 1; /* the tables are judged by what they say (inspect/verify.h) */
    if (exf_solve_check(&s.options, &why) == EXF_OK)
        rc = exf_solve(statistics, &s.options, out, err);
    else /* no program can have solved with these settings: a fault of the file */
        rc = exf_fail(err, EXF_FORMAT, "%s: provenance: %s", path, why.msg);
out:
    exf_mem_free(s.names);
    exf_mem_free(s.numbers);
    exf_mem_free(s.projector);
    exf_mem_free(s.rank);
    return rc;
}

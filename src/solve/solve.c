/* solve.c - see solve.h. */
#include "solve/solve.h"

#include "artifact/shards.h"
#include "base/mem.h"
#include "base/stop.h"
#include "base/text.h"

#include <string.h>

static exf_code take_layers(exf_statistics_reader *r, const exf_solve_options *o, exf_solver *solver, exf_err *err)
{
    exf_layer_statistics s;
    exf_vector_sums vectors = {.n_pairs = 0};
    exf_code rc = exf_layer_statistics_new(&s, (int)r->shape.n_experts, err);
    if (rc != EXF_OK) return rc;
    s.vectors = &vectors;
    for (int l = 0; l < r->n_layers; l++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_statistics_get(r, l, &s, err));
        exf_vector_sums_free(&vectors);
        if (exf_solver_wants_vectors(o)) EXF_TRY(exf_statistics_get_vectors(r, l, &vectors, err));
        EXF_TRY(exf_solver_layer(solver, l, &s, err));
    }
out:
    exf_vector_sums_free(&vectors);
    exf_layer_statistics_free(&s);
    return rc;
}

exf_code exf_solve(const char *statistics_path, const exf_solve_options *o, exf_tables *t, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_solve_options with = *o;
    exf_solver *solver = NULL;
    exf_text part = {0};
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    memset(t, 0, sizeof *t);
    EXF_TRY(exf_solve_check(o, err));
    EXF_TRY(exf_statistics_open(&r, statistics_path, err));
    exf_facts_part file = {.path = statistics_path, .provenance = &r.provenance, .origin = &r.origin};
    EXF_TRY(exf_shards_check(&file, 1, o->partial, err));
    if (!o->statistics_digest) EXF_TRY(exf_h5_digest(r.h, digest, err));
    if (!o->statistics_digest) with.statistics_digest = digest;
    exf_solver_head head = {.path = statistics_path, .shape = r.shape, .layer_number = r.layer_number, .n_layers = r.n_layers,
                            .by_sequence = r.sequences.length != NULL, .has_energies = r.has_energies};
    EXF_TRY(exf_solver_new(&solver, &head, &with, &r, err));
    EXF_TRY(take_layers(&r, &with, solver, err));
    EXF_TRY(exf_solver_end(solver, &with, &r.provenance, t, err));
    EXF_TRY(exf_part_words(&part, &file, err));
    if (part.len) EXF_TRY(exf_provenance_add(&t->provenance, err, EXF_PART_FACT, "%s", part.s));
out:
    if (rc != EXF_OK) exf_tables_free(t);
    exf_text_free(&part);
    exf_solver_free(solver);
    exf_statistics_close(&r);
    return rc;
}

/* ---- solve again ------------------------------------------------------------------------------- */

/* The settings, with the lists that exf_solve_options borrows. */
typedef struct {
    exf_solve_options options;
    char *names; /* of projectors, cut at the commas */
    const char **projector;
    int64_t *rank;
} settings;

static void free_settings(settings *s)
{
    exf_mem_free(s->names);
    exf_mem_free(s->projector);
    exf_mem_free(s->rank);
}

static exf_code malformed(const exf_tables *t, const char *path, const char *key, const char *expected, exf_err *err)
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
    if (!ridge || !exf_parse_f64(ridge, &rule->ridge)) return malformed(t, path, "solve.ridge", "a number", err);
    if (clip && strcmp(clip, "none") == 0) return EXF_OK;
    rule->clip = 1;
    if (comma) EXF_TRY(exf_mem_dup(&low, clip, (size_t)(comma - clip), "clip", err));
    if (!comma || !exf_parse_f64(low, &rule->clip_min) || !exf_parse_f64(comma + 1, &rule->clip_max))
        rc = malformed(t, path, "solve.clip", "MIN,MAX or none", err);
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

static exf_code read_projectors(settings *s, const exf_tables *t, const char *path, exf_err *err)
{
    const char *list = exf_provenance_get(&t->provenance, "solve.projectors");
    exf_code rc;
    if (!list) return malformed(t, path, "solve.projectors", "names of projectors", err);
    EXF_TRY(exf_mem_strdup(&s->names, list, "projectors", err));
    EXF_TRY(exf_mem_new(&s->projector, count_items(list), sizeof *s->projector, "projectors", err));
    for (char *at = s->names, *comma; at; at = comma ? comma + 1 : NULL) {
        comma = strchr(at, ',');
        if (comma) *comma = 0;
        s->projector[s->options.n_projectors++] = at;
    }
    s->options.projectors = s->projector;
out:
    return rc;
}

static exf_code read_ranks(settings *s, const exf_tables *t, const char *path, exf_err *err)
{
    const char *list = exf_provenance_get(&t->provenance, "solve.ranks");
    char *copy = NULL;
    exf_code rc = EXF_OK;
    if (!list) return EXF_OK;
    EXF_TRY(exf_mem_strdup(&copy, list, "ranks", err));
    EXF_TRY(exf_mem_new(&s->rank, count_items(list), sizeof *s->rank, "ranks", err));
    for (char *at = copy, *comma; at && rc == EXF_OK; at = comma ? comma + 1 : NULL) {
        comma = strchr(at, ',');
        if (comma) *comma = 0;
        if (!exf_parse_i64(at, &s->rank[s->options.n_ranks++])) rc = malformed(t, path, "solve.ranks", "ranks such as 8,16", err);
    }
    s->options.ranks = s->rank;
out:
    exf_mem_free(copy);
    return rc;
}

static exf_code read_least(settings *s, const exf_tables *t, const char *path, exf_err *err)
{
    const char *text = exf_provenance_get(&t->provenance, "solve.min_pair_tokens");
    int64_t least = 1;
    if (text && (!exf_parse_i64(text, &least) || least < 1))
        return malformed(t, path, "solve.min_pair_tokens", "a number of tokens", err);
    s->options.min_pair_tokens = (uint64_t)least;
    return EXF_OK;
}

static void read_pools(settings *s, const exf_tables *t)
{
    for (int i = 0; i < t->n_pools && i < EXF_MOST_POOLS; i++)
        s->options.pool_by[s->options.n_pools_by++] = (exf_pool_choice){t->pool[i].size, t->pool[i].by};
}

/* Takes budgets and rules from the tables, whose budgets have each rule. */
static void read_budgets(settings *s, const exf_tables *t)
{
    exf_solve_options *o = &s->options;
    for (int i = 0; i < t->n_budgets; i++) {
        const exf_budget *b = &t->budget[i];
        size_t known = 0;
        while (known < o->n_budgets && o->budgets[known] != (int64_t)b->budget) known++;
        if (known == o->n_budgets && known < EXF_MOST_BUDGETS) o->budgets[o->n_budgets++] = (int64_t)b->budget;
        for (known = 0; known < o->n_rules && strcmp(o->rules[known], b->rule) != 0;) known++;
        if (known == o->n_rules && known < EXF_MOST_RULES) o->rules[o->n_rules++] = b->rule;
        if (strcmp(b->rule, "measured") == 0) o->measured_scale = b->scale;
    }
}

/* Settings that no program can have solved with are a fault of the file. */
static exf_code check(const settings *s, const char *path, exf_err *err)
{
    exf_err why;
    if (exf_solve_check(&s->options, &why) == EXF_OK) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: provenance: %s", path, why.msg);
}

exf_code exf_solve_again(const exf_tables *t, const char *path, const char *statistics, exf_tables *out, exf_err *err)
{
    settings s = {.names = NULL};
    exf_code rc;
    EXF_TRY(read_rule(&s.options.rule, t, path, err));
    EXF_TRY(read_projectors(&s, t, path, err));
    EXF_TRY(read_ranks(&s, t, path, err));
    EXF_TRY(read_least(&s, t, path, err));
    read_pools(&s, t);
    read_budgets(&s, t);
    s.options.partial = 1; /* the tables are judged by what they say (inspect/verify.h) */
    EXF_TRY(check(&s, path, err));
    rc = exf_solve(statistics, &s.options, out, err);
out:
    free_settings(&s);
    return rc;
}

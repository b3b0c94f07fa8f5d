/* solve.c - solves tables layer by layer: norms, the pair's scalar, measures, further projectors, pools, and at the end what
 * needs all layers; and solves tables again by the settings that they name. */
#include "solve/solve_internal.h"

#include "accumulate/norm_sums.h"
#include "artifact/data.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parallel.h"
#include "base/text.h"
#include "kernels/linear/linear.h"

#include <stdio.h>
#include <string.h>

struct exf_solver {
    exf_solve_options options;
    exf_tables tables;
    exf_budget_inputs budgets;
    int has[EXF_PART_BARE]; /* of the statistics, as in exf_solver_head */
    int from_file;  /* 1: there was a file from the start */
    int norm_layers; /* layers that came with the sums of a norm head */
    exf_massive *massive; /* [n_layers] */
};

exf_code exf_solve_check(const exf_solve_options *o, exf_err *err)
{
    const exf_projector *p;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < o->n_projectors; i++) EXF_TRY(exf_projector_require(o->projectors[i], &p, err));
    for (size_t i = 0; i < o->n_ranks; i++)
        if (o->ranks[i] < 1 || o->ranks[i] > EXF_BASIS_RANK)
            return exf_fail(err, EXF_USAGE, "calibrate.ranks: %lld, expected 1 to %d, the columns of a basis",
                            (long long)o->ranks[i], EXF_BASIS_RANK);
out:
    return rc;
}

/* Returns 1 if layers must come with their vector sums. */
static int wants_vectors(const exf_solve_options *o)
{
    int any = 0;
    for (size_t i = 0; i < o->n_projectors; i++) any |= exf_projector_find(o->projectors[i])->observes != 0;
    return any;
}

exf_solver_bytes exf_solver_bytes_of(const exf_run_shape *shape, int n_layers, const exf_solve_options *o, int q,
                                     uint64_t vector_pairs)
{
    enum { OF_A_PAIR = 28, OF_ITS_HALVES = 16 }; /* in files */
    const exf_tables *t = NULL;
    uint64_t l = (uint64_t)n_layers, pairs = l * (uint64_t)shape->n_experts * (uint64_t)shape->n_experts;
    uint64_t head = exf_norm_head_bytes(shape, n_layers, q);
    uint64_t h = (uint64_t)shape->d_model, numbers = 0; /* that the projectors store for a pair with vectors */
    for (size_t p = 0; p < o->n_projectors; p++)
        for (const exf_stored_array *a = exf_projector_find(o->projectors[p])->stored; a && a->name; a++) {
            if (a->shape == EXF_STORED_PAIRS) numbers += h;
            for (size_t i = 0; a->shape == EXF_STORED_RANKS && i < o->n_ranks; i++) numbers += h * (uint64_t)o->ranks[i];
        }
    uint64_t vectors = l * vector_pairs * numbers * sizeof(float);
    size_t pair = sizeof *t->count + sizeof *t->coeff + sizeof *t->loss + sizeof *t->cosine + sizeof *t->similarity +
                  sizeof *t->frobenius + sizeof *t->std_error + 2 * (sizeof **t->half_scalar + sizeof **t->half_loss);
    return (exf_solver_bytes){.memory = pairs * pair + head + vectors, .file = pairs * (OF_A_PAIR + OF_ITS_HALVES) + head + vectors,
                              .exported = pairs * OF_A_PAIR + head, .vectors = vectors};
}

/* Allocates tables with the pools by norm, then the others. */
static exf_code new_tables(exf_tables *t, const exf_solver_head *head, const exf_solve_options *o, exf_err *err)
{
    int64_t *sizes = NULL;
    const char **by = NULL;
    size_t n = o->n_pools;
    exf_code rc;
    EXF_TRY(exf_mem_new(&sizes, o->n_pools + o->n_pools_by, sizeof *sizes, "pools", err));
    EXF_TRY(exf_mem_new(&by, o->n_pools + o->n_pools_by, sizeof *by, "pools", err));
    for (size_t i = 0; i < n; i++) sizes[i] = o->pools[i], by[i] = exf_pool_criteria[EXF_POOL_BY_NORM];
    for (size_t i = 0; i < o->n_pools_by; i++) {
        const exf_pool_choice *p = &o->pool_by[i];
        int known = head->has[EXF_PART_ENERGIES] || strcmp(p->by, exf_pool_criteria[EXF_POOL_BY_ENERGY]) != 0;
        if (!known && !p->implied) {
            rc = exf_fail(err, EXF_MODEL,
                          "%s: is of a version before 4, which has no energies: a pool of %lld by energy needs statistics of "
                          "this release (exfold-calibrate)", head->path, (long long)p->size);
            goto out;
        }
        if (known) sizes[n] = p->size, by[n++] = p->by;
    }
    EXF_TRY(exf_tables_new(t, &head->shape, head->layer_number, head->n_layers, sizes, n, err));
    for (size_t i = 0; i < n; i++) snprintf(t->pool[i].by, sizeof t->pool->by, "%s", by[i]);
    EXF_TRY(exf_measures_new(head->has[EXF_PART_SEQUENCES], t, err));
    EXF_TRY(exf_tables_add_correlations(t, err));
    if (head->has[EXF_PART_HALVES] && head->both_halves) rc = exf_tables_add_halves(t, err);
out:
    exf_mem_free(by);
    exf_mem_free(sizes);
    return rc;
}

/* Returns 1 if a projector waits for the file. */
static int waits(const exf_solver *s, const exf_projector *p)
{
    return p->reads_file && !s->from_file;
}

exf_code exf_solver_new(exf_solver **out, const exf_solver_head *head, const exf_solve_options *o, exf_statistics_reader *r,
                        exf_err *err)
{
    exf_solver *s = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_solve_check(o, err));
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "solver", err));
    s->options = *o;
    memcpy(s->has, head->has, sizeof s->has);
    if (!s->has[EXF_PART_COSINES])
        exf_log_warn("%s: is of a version before 6, which has no cosines of tokens: joint weights and budgets go by those of "
                       "summed products, in which tokens of large outputs weigh most; calibrate again for better ones",
                       head->path);
    s->from_file = r != NULL;
    EXF_TRY(new_tables(&s->tables, head, o, err));
    EXF_TRY(exf_mem_new(&s->massive, (size_t)head->n_layers, sizeof *s->massive, "solver", err));
    if (o->n_budgets) EXF_TRY(exf_budget_inputs_new(&s->budgets, o, &s->tables, err));
    if (wants_vectors(o) || head->norm_head) EXF_TRY(exf_blas_reserve_cpu(exf_background_threads(), err));
    if (wants_vectors(o) && !r) EXF_TRY(exf_vector_support_reserve(&s->tables, head->vector_pairs, err));
    for (size_t i = 0; i < o->n_projectors; i++) {
        const exf_projector *p = exf_projector_find(o->projectors[i]);
        if (p->begin && !waits(s, p)) EXF_TRY(p->begin(r, &s->options, &s->tables, err));
    }
out:
    if (rc != EXF_OK)
        exf_solver_free(s);
    else
        *out = s;
    return rc;
}

exf_code exf_solver_layer(exf_solver *x, int l, const exf_layer_statistics *s, exf_err *err)
{
    const exf_solve_options *o = &x->options;
    exf_tables *t = &x->tables;
    exf_code rc;
    if (*s->empty_slots && !t->empty_slots)
        EXF_TRY(exf_mem_new(&t->empty_slots, (size_t)t->n_layers, sizeof *t->empty_slots, "tables", err));
    if (t->empty_slots) t->empty_slots[l] = *s->empty_slots;
    EXF_TRY(exf_solve_norms(s, l, t, err));
    EXF_TRY(exf_solve_bare(s, l, t, err));
    EXF_TRY(exf_projector_pair.layer(s, o, l, t, err));
    EXF_TRY(exf_measures_solve(s, o, l, t, err));
    EXF_TRY(exf_correlations_solve(s, l, x->has[EXF_PART_COSINES], t, err));
    x->massive[l] = exf_massive_of(s);
    if (s->norms.known) {
        EXF_TRY(exf_solve_norm_head(&s->norms, l, t, err));
        x->norm_layers++;
    }
    if (!x->from_file && s->vectors) EXF_TRY(exf_vector_support_add(t, l, s->vectors, err));
    for (size_t i = 0; i < o->n_projectors; i++) {
        const exf_projector *p = exf_projector_find(o->projectors[i]);
        if (p != &exf_projector_pair && !waits(x, p)) EXF_TRY(p->layer(s, o, l, t, err));
    }
    exf_solve_pools(l, s->energy_sum, t);
    if (o->n_budgets) rc = exf_budget_inputs_take(&x->budgets, s, l, t, err);
out:
    return rc;
}

/* Solves a projector's layers from the file. */
static exf_code solve_projector(exf_solver *s, const exf_projector *p, exf_statistics_reader *r, exf_err *err)
{
    exf_layer_statistics sums;
    exf_code rc = exf_layer_statistics_new(&sums, (int)r->shape.n_experts, err);
    if (rc != EXF_OK) return rc;
    EXF_TRY(p->begin(r, &s->options, &s->tables, err));
    for (int l = 0; l < r->n_layers; l++) {
        EXF_TRY(exf_statistics_get(r, l, &sums, err));
        EXF_TRY(p->layer(&sums, &s->options, l, &s->tables, err));
    }
out:
    exf_layer_statistics_free(&sums);
    return rc;
}

exf_code exf_solver_read_file(exf_solver *s, exf_statistics_reader *r, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < s->options.n_projectors; i++) {
        const exf_projector *p = exf_projector_find(s->options.projectors[i]);
        if (waits(s, p)) rc = solve_projector(s, p, r, err);
    }
    return rc;
}

/* ---- the settings, in the provenance of the tables and back ------------- */

static void add_numbers(exf_text *list, const int64_t *number, size_t n)
{
    for (size_t i = 0; i < n; i++) exf_text_appendf(list, "%s%lld", i ? "," : "", (long long)number[i]);
}

static exf_code add_list(exf_provenance *p, const char *key, const exf_text *list, exf_err *err)
{
    exf_code rc = exf_text_end(list, err);
    return rc == EXF_OK ? exf_provenance_add(p, err, key, "%s", list->s ? list->s : "") : rc;
}

/* Adds the facts of tables to t: those of their statistics, and the settings by which they were solved; o has the digest of
 * the statistics. */
static exf_code add_facts(exf_tables *t, const exf_provenance *of, const exf_solve_options *o, exf_err *err)
{
    exf_code rc;
    exf_provenance *p = &t->provenance;
    exf_text names = {0}, ranks = {0}, budgets = {0}, rules = {0};
    int ranked = 0;
    EXF_TRY(exf_provenance_copy(p, of, err));
    EXF_TRY(exf_provenance_add(p, err, "solve.program", "exfold-solve"));
    EXF_TRY(exf_provenance_add(p, err, "solve.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "solve.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, "solve.statistics_digest", "%s", o->statistics_digest));
    EXF_TRY(exf_provenance_add(p, err, "solve.ridge", "%.17g", o->rule.ridge));
    if (o->rule.clip)
        EXF_TRY(exf_provenance_add(p, err, "solve.clip", "%.17g,%.17g", o->rule.clip_min, o->rule.clip_max));
    else
        EXF_TRY(exf_provenance_add(p, err, "solve.clip", "none"));
    exf_text_appendf(&names, "pair");
    for (size_t i = 0; i < o->n_projectors; i++) {
        if (strcmp(o->projectors[i], exf_projector_pair.name) != 0) exf_text_appendf(&names, ",%s", o->projectors[i]);
        ranked |= exf_projector_find(o->projectors[i])->ranked;
    }
    EXF_TRY(add_list(p, "solve.projectors", &names, err));
    add_numbers(&ranks, o->ranks, o->n_ranks);
    if (ranked) EXF_TRY(add_list(p, "solve.ranks", &ranks, err));
    if (o->n_budgets) {
        add_numbers(&budgets, o->budgets, o->n_budgets);
        for (size_t i = 0; i < o->n_rules; i++) exf_text_appendf(&rules, "%s%s", i ? "," : "", o->rules[i]);
        EXF_TRY(add_list(p, "solve.budgets", &budgets, err));
        EXF_TRY(add_list(p, "solve.budget_rules", &rules, err));
    }
    EXF_TRY(exf_provenance_add(p, err, EXF_CORRELATIONS_FACT, EXF_CORRELATIONS_VALID));
    if (o->min_pair_tokens > 1)
        EXF_TRY(exf_provenance_add(p, err, "solve.min_pair_tokens", "%llu", (unsigned long long)o->min_pair_tokens));
out:
    exf_text_free(&names);
    exf_text_free(&ranks);
    exf_text_free(&budgets);
    exf_text_free(&rules);
    return rc;
}

/* ---- the end, after all layers --------------------------------------------------------------- */

exf_code exf_solver_end(exf_solver *s, const exf_solve_options *o, const exf_provenance *of, exf_tables *t, exf_err *err)
{
    exf_code rc;
    if (s->norm_layers && s->norm_layers != s->tables.n_layers)
        return exf_fail(err, EXF_MODEL, "the statistics have the sums of a norm head in %d layers of %d", s->norm_layers,
                        s->tables.n_layers);
    EXF_TRY(add_facts(&s->tables, of, o, err));
    EXF_TRY(exf_coverage_facts(&s->tables, s->has[EXF_PART_HALVES], err));
    EXF_TRY(exf_massive_facts(&s->tables, s->massive, err));
    if (o->n_budgets) EXF_TRY(exf_budgets_solve(&s->budgets, o, &s->tables, err));
    *t = s->tables;
    memset(&s->tables, 0, sizeof s->tables);
out:
    return rc;
}

void exf_solver_free(exf_solver *s)
{
    if (!s) return;
    exf_budget_inputs_free(&s->budgets);
    exf_tables_free(&s->tables);
    exf_mem_free(s->massive);
    exf_mem_free(s);
}

/* ---- a whole file --------------------------------------------------------------------------- */

static exf_code solve_layers(exf_statistics_reader *r, const exf_solve_options *o, exf_solver *solver, exf_err *err)
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
        if (wants_vectors(o)) EXF_TRY(exf_statistics_get_vectors(r, l, &vectors, err));
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
    EXF_TRY(exf_sums_check_version(&r.provenance, statistics_path, r.shape.top_k, r.shape.d_model, err));
    exf_facts_part file = {.path = statistics_path, .provenance = &r.provenance, .origin = &r.origin};
    EXF_TRY(exf_shards_check(&file, 1, o->partial, err));
    if (!o->statistics_digest) {
        EXF_TRY(exf_h5_digest(r.h, digest, err));
        with.statistics_digest = digest;
    }
    exf_solver_head head = {.path = statistics_path, .shape = r.shape, .layer_number = r.layer_number, .n_layers = r.n_layers,
                            .both_halves = exf_sequence_halves(&r.sequences),
                            .norm_head = exf_provenance_get(&r.provenance, EXF_NORM_HEAD_FACT) != NULL};
    memcpy(head.has, r.has, sizeof head.has);
    EXF_TRY(exf_solver_new(&solver, &head, &with, &r, err));
    EXF_TRY(solve_layers(&r, &with, solver, err));
    EXF_TRY(exf_solver_end(solver, &with, &r.provenance, t, err));
    EXF_TRY(exf_tables_take_sequences(t, &r.sequences, err));
    EXF_TRY(exf_part_words(&part, &file, err));
    if (part.len) EXF_TRY(exf_provenance_add(&t->provenance, err, EXF_PART_FACT, "%s", part.s));
out:
    if (rc != EXF_OK) exf_tables_free(t);
    exf_text_free(&part);
    exf_solver_free(solver);
    exf_statistics_close(&r);
    return rc;
}

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

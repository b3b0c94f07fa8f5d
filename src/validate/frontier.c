/* frontier.c - judges a validation: the variants that it sweeps, what rows cost and are served by, the frontiers, and the best
 * pools. */
#include "validate/frontier.h"

#include "base/mem.h"
#include "validate/validate.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the sweep ------------------------------------------------------------------------------ */

enum { MOST = 256 };

typedef struct {
    exf_variant *list;
    size_t n;
    const exf_runtime *runtime;
    const exf_architecture *a;
    exf_code rc; /* the first failure, after which nothing is added */
    exf_err *err;
} sweep;

/* Returns 1 if the sweep's runtime runs the variant. */
static int is_run(const sweep *s, const char *text)
{
    exf_variant v;
    return !s->runtime || (exf_variant_parse_on(s->runtime, &v, text, NULL) == EXF_OK &&
                           exf_runtime_check(s->runtime, &v, s->a, NULL) == EXF_OK);
}

static void add_variant(sweep *s, const char *fmt, ...) EXF_PRINTF(2, 3);

/* Adds a variant unless it is listed already: budgets of a small model may round to the same. */
static void add_variant(sweep *s, const char *fmt, ...)
{
    char text[EXF_VARIANT_NAME_LEN];
    va_list va;
    va_start(va, fmt);
    vsnprintf(text, sizeof text, fmt, va);
    va_end(va);
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->list[i].name, text) == 0) return;
    if (s->rc != EXF_OK || !is_run(s, text)) return;
    s->rc = s->n == MOST ? exf_fail(s->err, EXF_INTERNAL, "the sweep has more than %d variants", MOST)
                         : exf_variant_parse_on(s->runtime, &s->list[s->n++], text, s->err);
}

static const int eighths[] = {6, 4, 3, 2, 1};

/* Adds what the public runtimes of a family run of the swept P and D; a static pool where the tables have it by norm. */
static void add_served(sweep *s, const exf_tables *t, const char *family)
{
    const exf_runtime *r;
    for (size_t i = 0; family && (r = exf_runtime_at(i)); i++) {
        sweep own = {.runtime = r, .a = s->a};
        if (!r->target || exf_runtime_serves(r, family, s->a, NULL) != EXF_OK) continue;
        const char *p_colon = *r->prefill ? ":" : "", *d_colon = *r->decode ? ":" : "";
        char text[EXF_VARIANT_NAME_LEN];
        for (int p = s->a->top_k - 1; p >= 1; p--) {
            snprintf(text, sizeof text, "P%d%s%s", p, p_colon, r->prefill);
            if (is_run(&own, text)) add_variant(s, "%s", text);
        }
        for (size_t k = 0; k < sizeof eighths / sizeof *eighths; k++) {
            snprintf(text, sizeof text, "D%d%s%s", s->a->n_experts * eighths[k] / 8, d_colon, r->decode);
            if (s->a->n_experts * eighths[k] / 8 >= s->a->top_k && is_run(&own, text)) add_variant(s, "%s", text);
        }
        for (int k = 0; k < t->n_pools; k++) {
            snprintf(text, sizeof text, "D%d:pool=static", t->pool[k].size);
            if (strcmp(t->pool[k].by, "norm") == 0 && is_run(&own, text)) add_variant(s, "%s", text);
        }
    }
}

exf_code exf_frontier_variants(exf_variant **out, size_t *n, const exf_architecture *a, const exf_tables *t, const char *family,
                               const exf_runtime *runtime, exf_err *err)
{
    sweep s = {.runtime = runtime, .a = a, .err = err};
    int joint = t->cosine && t->rms && is_run(&s, "P1:projector=joint");
    exf_code rc;
    EXF_TRY(exf_mem_new(&s.list, MOST, sizeof *s.list, "variants", err));
    for (int p = a->top_k - 1; p >= 1; p--) {
        add_variant(&s, "P%d", p);
        if (joint) add_variant(&s, "P%d:projector=joint", p);
    }
    for (int i = 0; joint && i < t->n_budgets && s.n < MOST; i++) { /* of which a variant's number is an integer */
        const exf_budget *b = &t->budget[i];
        if (b->budget != floor(b->budget) || strcmp(b->rule, exf_budget_rules[EXF_RULE_SKIP]) == 0) continue; /* a baseline's */
        if (strcmp(b->rule, exf_budget_rules[EXF_RULE_TOP_P]) == 0) add_variant(&s, "P%d:budget=topp", (int)b->budget);
        else add_variant(&s, "P%d:budget=token,sensitivity=%s", (int)b->budget, b->rule);
    }
    for (size_t i = 0; i < sizeof eighths / sizeof *eighths; i++) {
        int d = a->n_experts * eighths[i] / 8;
        if (d < a->top_k) continue;
        add_variant(&s, "D%d", d);
        if (joint) add_variant(&s, "D%d:rank=energy,projector=joint", d);
        if (joint) add_variant(&s, "D%d:rank=energy,targets=router", d);
    }
    for (int i = 0; joint && i < t->n_pools && s.n < MOST; i++) {
        int alike = 0; /* static pools of sizes that the tables hold by several criteria */
        for (int j = 0; j < t->n_pools; j++) alike += t->pool[j].size == t->pool[i].size;
        if (alike > 1) add_variant(&s, "D%d:pool=static,by=%s,targets=router", t->pool[i].size, t->pool[i].by);
    }
    if (!runtime) add_served(&s, t, family);
    for (int quarters = 3; quarters >= 2; quarters--) { /* of prefill and decode budgets */
        int p = a->top_k * quarters / 4, d = a->n_experts * quarters / 4;
        if (p < 1 || d < a->top_k) continue;
        if (joint)
            add_variant(&s, "P%d:projector=joint+D%d:rank=energy,projector=joint", p, d);
        else
            add_variant(&s, "P%d+D%d", p, d);
    }
    rc = s.rc;
out:
    if (rc != EXF_OK) {
        exf_mem_free(s.list);
        s.list = NULL;
    }
    *out = s.list;
    *n = s.n;
    return rc;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static exf_row_kind kind_of(const exf_variant *v)
{
    if (v->prefill == EXF_PREFILL_NONE) return EXF_ROW_DECODE;
    return v->decode == EXF_DECODE_NONE ? EXF_ROW_PREFILL : EXF_ROW_BOTH;
}

/* Lists the public runtimes that serve the model and run the row.  One runs it as it is if both fold alike in this model: which
 * experts without routes compete for a pool makes no difference where the pool constrains, and hash layers none where there are
 * none. */
static void find_servers(exf_row *row, const exf_variant *v, const exf_judged *of)
{
    const exf_runtime *r;
    exf_variant theirs;
    int has_hash_layers = 0;
    for (int l = 0; l < of->a->n_layers; l++) has_hash_layers |= (of->a->traits[l] & EXF_T_HASHED) != 0;
    for (size_t i = 0; (r = exf_runtime_at(i)) && row->n_servers < EXF_SERVERS; i++) {
        if (!r->target || exf_runtime_serves(r, of->family, of->a, NULL) != EXF_OK ||
            exf_variant_parse_on(r, &theirs, v->name, NULL) != EXF_OK || exf_runtime_check(r, &theirs, of->a, NULL) != EXF_OK)
            continue;
        theirs.decode_options.candidates = v->decode_options.candidates;
        if (!has_hash_layers) theirs.folds_hashed = v->folds_hashed;
        row->server[row->n_servers++] = (exf_server){r, !exf_variant_equal(v, &theirs)};
    }
    r = exf_runtime_find("exfold");
    row->in_plugin = (!of->runtime || of->runtime == r) && exf_runtime_serves(r, of->family, of->a, NULL) == EXF_OK &&
                     exf_runtime_check(r, v, of->a, NULL) == EXF_OK;
}

double exf_original_cost(const exf_judged *of, exf_row_kind kind, int batch)
{
    const exf_cost_model *c = of->cost;
    const exf_batch_size *b = &of->v->batch_size[batch];
    double bytes = 0;
    if (kind == EXF_ROW_PREFILL) return exf_cost_of(c, &of->v->variant[0], 1).flops;
    for (int l = 0; l < c->n_layers; l++) bytes += (b->layer_experts ? b->layer_experts[l] : b->experts) * c->expert_bytes[l];
    return bytes;
}

double exf_whole_share(const exf_judged *of, double cost, exf_row_kind kind, int batch)
{
    double experts = exf_original_cost(of, kind, batch);
    double whole = kind == EXF_ROW_PREFILL ? of->flops_per_token : experts + of->cost->other_bytes;
    return whole > 0 ? (whole - experts + cost) / whole : NAN;
}

double exf_prefill_share(const exf_batch *whole, const exf_decode_schedule *schedule)
{
    double prefill = 0;
    for (size_t i = 0; i < whole->n_sequences; i++) prefill += exf_decode_schedule_prefill(schedule, whole->span[i].n_tokens);
    return prefill / (double)whole->n_tokens;
}

static exf_code make_row(exf_row *row, size_t i, const exf_judged *of, exf_err *err)
{
    const exf_variant_result *r = &of->v->variant[i];
    const exf_variant *v = &row->variant;
    char name[EXF_VARIANT_NAME_LEN];
    exf_code rc;
    row->cost = exf_cost_of(of->cost, r, of->v->batch_size[r->batch].size);
    if (r->role == EXF_LANE_ORIGINAL) return EXF_OK;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(r->name, " "), r->name); /* a half, "P4 half 1", is read as its row */
    EXF_TRY(exf_variant_parse_on(r->role == EXF_LANE_BASELINE ? NULL : of->runtime, &row->variant, name, err));
    row->kind = kind_of(v);
    if (row->kind == EXF_ROW_PREFILL && of->prefill_share > 0) { /* the tokens that decode run what the original does */
        double whole = exf_original_cost(of, EXF_ROW_PREFILL, 0);
        row->cost.flops = whole - (whole - row->cost.flops) / of->prefill_share;
    }
    int needs_no_tables = v->prefill == EXF_PREFILL_TOP || v->prefill == EXF_PREFILL_RANDOM || v->outside != EXF_OUTSIDE_FOLDED;
    row->competes = r->role == EXF_LANE_ASKED && r->constraint == EXF_CONSTRAINED && !needs_no_tables && !v->only_layer;
    if (r->role == EXF_LANE_ASKED) find_servers(row, v, of);
out:
    return rc;
}

int exf_is_plain_fold(const exf_judged *of, const exf_variant *v)
{
    char text[24];
    exf_variant plain, own = *v;
    if (kind_of(v) == EXF_ROW_BOTH) return 0;
    if (kind_of(v) == EXF_ROW_PREFILL) snprintf(text, sizeof text, "P%d", v->prefill_options.keep);
    else snprintf(text, sizeof text, "D%d", v->decode_options.pool);
    own.batch = 0;
    return exf_variant_parse_on(of->runtime, &plain, text, NULL) == EXF_OK && exf_variant_equal(&plain, &own);
}

/* Finds the plain fold of row i's P or D, and whether i lost to it. */
static void find_twin(exf_row *row, size_t i, const exf_judged *of)
{
    const exf_variant_result *mine = &of->v->variant[i];
    const exf_variant *own = &row[i].variant;
    double tie = EXF_TWIN_TIE * exf_original_cost(of, row[i].kind, mine->batch);
    if (!row[i].competes || row[i].kind == EXF_ROW_BOTH) return;
    for (size_t j = 1; j < of->v->n_variants && !row[i].twin; j++) {
        const exf_variant *other = &row[j].variant;
        if (j == i || !row[j].competes || row[j].kind != row[i].kind || of->v->variant[j].batch != mine->batch) continue;
        if (exf_row_cost(&row[j], row[i].kind) > exf_row_cost(&row[i], row[i].kind) + tie) continue;
        int same = other->prefill_options.keep == own->prefill_options.keep &&
                   other->decode_options.pool == own->decode_options.pool;
        if (same && exf_is_plain_fold(of, other)) row[i].twin = j;
    }
    if (row[i].twin && of->v->variant[row[i].twin].all.kl_mean < mine->all.kl_mean) row[i].lost_to = row[i].twin;
}

exf_code exf_rows_make(exf_row **out, const exf_judged *of, exf_err *err)
{
    const exf_validation *v = of->v;
    size_t *line = NULL;
    exf_row *row = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&row, v->n_variants, sizeof *row, "rows", err));
    EXF_TRY(exf_mem_new(&line, v->n_variants, sizeof *line, "rows", err));
    for (size_t i = 0; i < v->n_variants; i++) EXF_TRY(make_row(&row[i], i, of, err));
    for (size_t i = 1; i < v->n_variants; i++) find_twin(row, i, of);
    for (int b = -1; b < v->n_batch_sizes; b++) { /* -1: prefill */
        size_t n = exf_frontier_line(line, of, row, b < 0 ? EXF_ROW_PREFILL : EXF_ROW_DECODE, b);
        while (n) row[line[--n]].on_frontier = 1;
    }
out:
    exf_mem_free(line);
    if (rc != EXF_OK) {
        exf_mem_free(row);
        row = NULL;
    }
    *out = row;
    return rc;
}

int exf_row_is_served(const exf_row *row, const exf_runtime *runtime)
{
    if (runtime && !runtime->target) return row->in_plugin;
    for (int i = 0; i < row->n_servers; i++)
        if (!row->server[i].by_its_own && (!runtime || row->server[i].runtime == runtime)) return 1;
    return 0;
}

size_t exf_worst_domain(const exf_validation *v, size_t i)
{
    size_t worst = 0;
    for (size_t d = 1; d < v->n_domains; d++)
        if (v->variant[i].domain[d].kl_mean > v->variant[i].domain[worst].kl_mean) worst = d;
    return worst;
}

/* ---- the frontiers --------------------------------------------------------------------------- */

double exf_row_cost(const exf_row *row, exf_row_kind kind)
{
    return kind == EXF_ROW_PREFILL ? row->cost.flops : row->cost.expert_bytes;
}

int exf_row_may_serve(const exf_judged *of, const exf_row *row, size_t i, exf_row_kind kind, int batch, const exf_runtime *runtime)
{
    if (!row[i].competes || row[i].kind != kind) return 0;
    if (kind == EXF_ROW_DECODE && of->v->variant[i].batch != batch) return 0;
    if (runtime && !exf_row_is_served(&row[i], runtime)) return 0;
    if (row[i].lost_to && exf_row_may_serve(of, row, row[i].lost_to, kind, batch, runtime)) return 0;
    return exf_row_cost(&row[i], kind) < exf_original_cost(of, kind, batch);
}

int exf_row_gains_nothing(const exf_judged *of, const exf_row *row, size_t i)
{
    exf_difference d = exf_kl_difference(of->v, row[i].twin, i);
    return row[i].twin && !(d.mean > 0 && exf_beyond_noise(&d));
}

/* Returns 1 if row i is a candidate for the place after `from` (0: for the first) on a line. */
static int may_follow(const exf_judged *of, const exf_row *row, size_t i, size_t from, exf_row_kind kind, int batch)
{
    if (!exf_row_may_serve(of, row, i, kind, batch, NULL)) return 0;
    if (!from) return 1;
    exf_difference d = exf_kl_difference(of->v, from, i);
    return d.mean > 0 && exf_beyond_noise(&d);
}

/* Returns 1 for such a row unless it gains nothing over a plain fold that is one too. */
static int is_candidate(const exf_judged *of, const exf_row *row, size_t i, size_t from, exf_row_kind kind, int batch)
{
    if (!may_follow(of, row, i, from, kind, batch)) return 0;
    return !exf_row_gains_nothing(of, row, i) || !may_follow(of, row, row[i].twin, from, kind, batch);
}

static size_t next_on_line(const exf_judged *of, const exf_row *row, size_t from, exf_row_kind kind, int batch)
{
    size_t best = 0;
    double least = INFINITY, tie = EXF_COST_TIE * exf_original_cost(of, kind, batch);
    for (size_t i = 1; i < of->v->n_variants; i++)
        if (is_candidate(of, row, i, from, kind, batch)) least = fmin(least, exf_row_cost(&row[i], kind));
    for (size_t i = 1; i < of->v->n_variants; i++) {
        if (!is_candidate(of, row, i, from, kind, batch) || exf_row_cost(&row[i], kind) > least + tie) continue;
        if (!best || of->v->variant[i].all.kl_mean < of->v->variant[best].all.kl_mean) best = i;
    }
    return best;
}

size_t exf_frontier_line(size_t *line, const exf_judged *of, const exf_row *row, exf_row_kind kind, int batch)
{
    size_t n = 0, i = 0;
    while ((i = next_on_line(of, row, i, kind, batch))) line[n++] = i;
    return n;
}

/* ---- best pools -------------------------------------------------------------------------------- */

int exf_same_but_pool(const exf_row *a, const exf_row *b)
{
    exf_variant x;
    memcpy(&x, &a->variant, sizeof x); /* with its padding: exf_variant_equal() */
    if (x.decode != EXF_DECODE_STATIC || b->variant.decode != EXF_DECODE_STATIC || x.pool_by == b->variant.pool_by) return 0;
    x.pool_by = b->variant.pool_by;
    return exf_variant_equal(&x, &b->variant);
}

size_t exf_best_pools(size_t *best, const exf_validation *v, const exf_row *row)
{
    size_t n = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        int rivals = 0, beaten = 0;
        for (size_t j = 1; j < v->n_variants; j++) {
            double mine = v->variant[i].all.kl_mean, theirs = v->variant[j].all.kl_mean;
            if (!exf_same_but_pool(&row[i], &row[j])) continue;
            rivals++;
            beaten |= theirs < mine || (theirs == mine && j < i);
        }
        if (rivals && !beaten) best[n++] = i;
    }
    return n;
}

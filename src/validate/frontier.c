/* frontier.c - judges a validation: the variants that it sweeps, those that no other beats, and the best pools. */
#include "validate/frontier.h"

#include "base/mem.h"

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

/* Adds the budgets per token that the tables hold; a variant's number is an integer. */
static void add_budgets(sweep *s, const exf_tables *t)
{
    for (int i = 0; i < t->n_budgets && s->n < MOST; i++) {
        const exf_budget *b = &t->budget[i];
        if (b->budget != floor(b->budget)) continue;
        if (strcmp(b->rule, exf_budget_rules[EXF_RULE_TOP_P]) == 0)
            add_variant(s, "P%d:budget=topp", (int)b->budget);
        else
            add_variant(s, "P%d:budget=token,sensitivity=%s", (int)b->budget, b->rule);
    }
}

/* Adds the static pools of sizes that the tables hold by several criteria. */
static void add_pools(sweep *s, const exf_tables *t)
{
    for (int i = 0; i < t->n_pools && s->n < MOST; i++) {
        int alike = 0;
        for (int j = 0; j < t->n_pools; j++) alike += t->pool[j].size == t->pool[i].size;
        if (alike > 1) add_variant(s, "D%d:pool=static,by=%s,targets=router", t->pool[i].size, t->pool[i].by);
    }
}

exf_code exf_frontier_variants(exf_variant **out, size_t *n, const exf_architecture *a, const exf_tables *t,
                               const exf_runtime *runtime, exf_err *err)
{
    static const int eighths[] = {6, 4, 3, 2, 1};
    sweep s = {.runtime = runtime, .a = a, .err = err};
    int joint = t->cosine && t->rms && is_run(&s, "P1:projector=joint");
    exf_code rc;
    EXF_TRY(exf_mem_new(&s.list, MOST, sizeof *s.list, "variants", err));
    for (int p = a->top_k - 1; p >= 1; p--) {
        add_variant(&s, "P%d", p);
        if (joint) add_variant(&s, "P%d:projector=joint", p);
    }
    if (joint) add_budgets(&s, t);
    for (size_t i = 0; i < sizeof eighths / sizeof *eighths; i++) {
        int d = a->n_experts * eighths[i] / 8;
        if (d < a->top_k) continue;
        add_variant(&s, "D%d", d);
        if (joint) add_variant(&s, "D%d:rank=energy,projector=joint", d);
        if (joint) add_variant(&s, "D%d:rank=energy,targets=router", d);
    }
    if (joint) add_pools(&s, t);
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

/* ---- the frontier ---------------------------------------------------------------------------- */

/* Returns two standard errors of the difference of two KLs, as if they were independent: they are of the same tokens, so that
 * it is less. */
static double noise_of(const exf_variant_result *a, const exf_variant_result *b)
{
    return 2 * sqrt(a->all.kl_se * a->all.kl_se + b->all.kl_se * b->all.kl_se);
}

static int beats(const exf_variant_result *a, const exf_variant_result *b)
{
    double better = b->all.kl_mean - a->all.kl_mean, token = a->experts_per_token - b->experts_per_token,
           batch = a->experts_per_batch - b->experts_per_batch;
    return better >= noise_of(a, b) && token <= 0 && batch <= 0 && (better > 0 || token < 0 || batch < 0);
}

void exf_frontier_mark(unsigned char *on, const exf_validation *v)
{
    for (size_t i = 0; i < v->n_variants; i++) {
        on[i] = 1;
        for (size_t j = 0; j < v->n_variants; j++)
            if (beats(&v->variant[j], &v->variant[i])) on[i] = 0;
    }
}

static double cost_of(const exf_variant_result *r, int per_batch)
{
    return per_batch ? r->experts_per_batch : r->experts_per_token;
}

size_t exf_frontier_cheapest(const exf_validation *v, double limit, int per_batch)
{
    size_t best = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i], *b = &v->variant[best];
        double gap = cost_of(r, per_batch) - cost_of(b, per_batch);
        if (r->all.kl_mean <= limit && (gap < 0 || (gap == 0 && best && r->all.kl_mean < b->all.kl_mean))) best = i;
    }
    return best;
}

/* Returns the cheapest variant, after `from` on the line, with a KL below its KL by more than the noise; ties to the lower KL;
 * 0: none. */
static size_t next_on_line(const exf_validation *v, size_t from, int per_batch)
{
    size_t best = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i], *b = &v->variant[best], *last = &v->variant[from];
        if (!(r->all.kl_mean > 0)) continue;
        if (from && !(last->all.kl_mean - r->all.kl_mean > noise_of(last, r))) continue;
        double gap = best ? cost_of(r, per_batch) - cost_of(b, per_batch) : -1;
        if (gap < 0 || (gap == 0 && r->all.kl_mean < b->all.kl_mean)) best = i;
    }
    return best;
}

size_t exf_frontier_line(size_t *line, const exf_validation *v, int per_batch)
{
    size_t n = 0;
    for (size_t i = next_on_line(v, 0, per_batch); i; i = next_on_line(v, i, per_batch)) line[n++] = i;
    return n;
}

/* ---- best pools -------------------------------------------------------------------------------- */

/* Reads the variant of a result; returns 0 if it has no static pool. */
static int read_static(exf_variant *v, const exf_variant_result *r)
{
    exf_err ignored;
    return exf_variant_parse(v, r->name, &ignored) == EXF_OK && v->decode == EXF_DECODE_STATIC;
}

const char *exf_pool_criterion_of(const exf_variant_result *r)
{
    exf_variant v;
    return read_static(&v, r) ? exf_pool_criteria[v.pool_by] : "";
}

int exf_same_but_pool(const exf_variant_result *a, const exf_variant_result *b)
{
    exf_variant x, y;
    if (!read_static(&x, a) || !read_static(&y, b) || x.pool_by == y.pool_by) return 0;
    memset(x.name, 0, sizeof x.name);
    memset(y.name, 0, sizeof y.name);
    x.pool_by = y.pool_by = EXF_POOL_BY_NORM;
    return memcmp(&x, &y, sizeof x) == 0; /* a variant is read into zeroed memory */
}

size_t exf_best_pools(size_t *best, const exf_validation *v)
{
    size_t n = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        int rivals = 0, beaten = 0;
        for (size_t j = 1; j < v->n_variants; j++) {
            double mine = v->variant[i].all.kl_mean, theirs = v->variant[j].all.kl_mean;
            if (!exf_same_but_pool(&v->variant[i], &v->variant[j])) continue;
            rivals++;
            beaten |= theirs < mine || (theirs == mine && j < i);
        }
        if (rivals && !beaten) best[n++] = i;
    }
    return n;
}

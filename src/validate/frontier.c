/* frontier.c - see frontier.h. */
#include "validate/frontier.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 256 };

typedef struct {
    exf_variant *list;
    size_t n;
    const exf_runtime *runtime;
    const exf_architecture *a;
} sweep;

/* Returns 1 if the sweep's runtime runs the variant. */
static int runs(const sweep *s, const char *text)
{
    exf_variant v;
    return !s->runtime || (exf_runtime_parse(s->runtime, &v, text, NULL) == EXF_OK &&
                           exf_runtime_check(s->runtime, &v, s->a, NULL) == EXF_OK);
}

/* Adds a variant unless it is listed already: budgets of a small model may round to the same. */
static exf_code add(sweep *s, const char *text, exf_err *err)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->list[i].name, text) == 0) return EXF_OK;
    if (!runs(s, text)) return EXF_OK;
    if (s->n == MOST) return exf_fail(err, EXF_INTERNAL, "the sweep has more than %d variants", MOST);
    return exf_runtime_parse(s->runtime, &s->list[s->n++], text, err);
}

static exf_code add_prefill(sweep *s, int top_k, int joint, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int p = top_k - 1; rc == EXF_OK && p >= 1; p--) {
        char text[EXF_VARIANT_NAME_LEN];
        snprintf(text, sizeof text, "P%d", p);
        rc = add(s, text, err);
        snprintf(text, sizeof text, "P%d:projector=joint", p);
        if (rc == EXF_OK && joint) rc = add(s, text, err);
    }
    return rc;
}

static const int eighths[] = {6, 4, 3, 2, 1};

static exf_code add_decode(sweep *s, int n_experts, int top_k, int joint, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < sizeof eighths / sizeof *eighths; i++) {
        char text[EXF_VARIANT_NAME_LEN];
        int d = n_experts * eighths[i] / 8;
        if (d < top_k) continue;
        snprintf(text, sizeof text, "D%d", d);
        rc = add(s, text, err);
        snprintf(text, sizeof text, "D%d:rank=energy,projector=joint", d);
        if (rc == EXF_OK && joint) rc = add(s, text, err);
        snprintf(text, sizeof text, "D%d:rank=energy,targets=router", d);
        if (rc == EXF_OK && joint) rc = add(s, text, err);
    }
    return rc;
}

/* Adds the budgets per token that the tables hold. */
static exf_code add_budgets(sweep *s, const exf_tables *t, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < t->n_budgets && s->n < MOST; i++) {
        const exf_budget *b = &t->budget[i];
        char text[EXF_VARIANT_NAME_LEN];
        if (b->budget != floor(b->budget)) continue; /* a variant's number is an integer */
        if (strcmp(b->rule, "top_p") == 0)
            snprintf(text, sizeof text, "P%d:budget=topp", (int)b->budget);
        else
            snprintf(text, sizeof text, "P%d:budget=token,sensitivity=%s", (int)b->budget, b->rule);
        rc = add(s, text, err);
    }
    return rc;
}

/* Adds the static pools of sizes that the tables hold by several criteria. */
static exf_code add_pools(sweep *s, const exf_tables *t, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < t->n_pools && s->n < MOST; i++) {
        int alike = 0;
        char text[EXF_VARIANT_NAME_LEN];
        for (int j = 0; j < t->n_pools; j++) alike += t->pool[j].size == t->pool[i].size;
        snprintf(text, sizeof text, "D%d:pool=static,by=%s,targets=router", t->pool[i].size, t->pool[i].by);
        if (alike > 1) rc = add(s, text, err);
    }
    return rc;
}

/* Adds combinations of prefill and decode budgets: three quarters of both, half of both. */
static exf_code add_both(sweep *s, int n_experts, int top_k, int joint, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int quarters = 3; rc == EXF_OK && quarters >= 2; quarters--) {
        char text[EXF_VARIANT_NAME_LEN];
        int p = top_k * quarters / 4, d = n_experts * quarters / 4;
        if (p < 1 || d < top_k) continue;
        snprintf(text, sizeof text, joint ? "P%d:projector=joint+D%d:rank=energy,projector=joint" : "P%d+D%d", p, d);
        rc = add(s, text, err);
    }
    return rc;
}

exf_code exf_frontier_variants(exf_variant **out, size_t *n, const exf_architecture *a, const exf_tables *t,
                               const exf_runtime *runtime, exf_err *err)
{
    sweep s = {NULL, 0, runtime, a};
    int joint = t->cosine && t->rms && runs(&s, "P1:projector=joint");
    exf_code rc;
    EXF_TRY(exf_mem_new(&s.list, MOST, sizeof *s.list, "variants", err));
    EXF_TRY(add_prefill(&s, a->top_k, joint, err));
    if (joint) EXF_TRY(add_budgets(&s, t, err));
    EXF_TRY(add_decode(&s, a->n_experts, a->top_k, joint, err));
    if (joint) EXF_TRY(add_pools(&s, t, err));
    EXF_TRY(add_both(&s, a->n_experts, a->top_k, joint, err));
out:
    if (rc != EXF_OK) {
        exf_mem_free(s.list);
        s.list = NULL;
    }
    *out = s.list;
    *n = s.n;
    return rc;
}

/* Two standard errors of the difference, the two being independent at worst: both are of the same tokens. */
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

/* The cheapest variant, after `from` on the line, with a KL below its KL by more than the noise; ties to the
 * lower KL; 0: none. */
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
    return read_static(&v, r) ? exf_pool_criterion_name(v.pool_by) : "";
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

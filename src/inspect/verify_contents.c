/* verify_contents.c - what follows from a file's specification; see verify.h. */
#include "artifact/tables.h"
#include "base/mem.h"

#include <string.h>
#include "base/stop.h"
#include "base/text.h"
#include "inspect/quantile.h"
#include "inspect/verify_internal.h"

#include <math.h>

/* ---- tables ---------------------------------------------------------------------------- */

/* Tokens that a pair takes to count as observed. */
static uint64_t tokens_asked_for(const exf_verify_file *x)
{
    const char *text = exf_provenance_get(&x->inspection.provenance, "solve.min_pair_tokens");
    int64_t n;
    return text && exf_parse_i64(text, &n) && n > 1 ? (uint64_t)n : 1;
}

static exf_code check_evidence(const exf_verify_file *x, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    size_t e = (size_t)s->shape.n_experts;
    uint64_t least = tokens_asked_for(x);
    for (size_t i = 0; i < (size_t)s->n_layers * e * e; i++) {
        int layer = s->layer_number[i / e / e];
        size_t source = i / e % e, target = i % e;
        if (source == target) continue;
        int never = s->loss[i] >= EXF_LOSS_NEVER;
        if (never && s->coeff[i] != 0)
            return exf_fail(err, EXF_FORMAT, "%s: layer %d: S[%zu, %zu] is %g without evidence, expected 0", x->path, layer, source,
                            target, (double)s->coeff[i]);
        if (never != (s->count[i] < least))
            return exf_fail(err, EXF_FORMAT,
                            "%s: layer %d: the loss [%zu, %zu] is %g with %llu tokens behind it, where %llu are asked for", x->path,
                            layer, source, target, (double)s->loss[i], (unsigned long long)s->count[i], (unsigned long long)least);
    }
    return exf_verify_passed(x, err, "pairs have a scalar and a loss where %llu tokens or more are behind them, and nowhere else",
                            (unsigned long long)least);
}

/* A cold expert has the lower median of the others' norms above 0; 1 where none is. */
static exf_code check_cold_norms(const exf_verify_file *x, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    size_t e = (size_t)s->shape.n_experts;
    double *warm = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&warm, e, sizeof *warm, "norms", err));
    for (size_t l = 0; l < (size_t)s->n_layers; l++) {
        size_t n = 0;
        for (size_t i = l * e; i < (l + 1) * e; i++)
            if (s->expert_count[i] && s->norms[i] > 0) warm[n++] = (double)s->norms[i];
        exf_sort(warm, n);
        double median = n ? warm[(n - 1) / 2] : 1;
        for (size_t i = l * e; i < (l + 1) * e; i++) {
            if (s->expert_count[i] || (double)s->norms[i] == median) continue;
            rc = exf_fail(err, EXF_FORMAT, "%s: layer %d: cold expert %zu has norm %g, the median of the others is %g", x->path,
                          (int)s->layer_number[l], i - l * e, (double)s->norms[i], median);
            goto out;
        }
    }
    rc = exf_verify_passed(x, err, "cold experts have the median norm of the others");
out:
    exf_mem_free(warm);
    return rc;
}

static exf_code check_members(const exf_verify_file *x, const exf_static_pool *p, size_t l, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    const int32_t *m = p->members + l * (size_t)p->size;
    const float *h = s->norms + l * (size_t)s->shape.n_experts;
    for (int i = 1; i < p->size; i++)
        if (strcmp(p->by, "norm") == 0 && h[m[i]] > h[m[i - 1]])
            return exf_fail(
                err, EXF_FORMAT, "%s: pool of %d, layer %d: member %d has norm %g after member %d with %g, expected falling norms",
                x->path, p->size, (int)s->layer_number[l], (int)m[i], (double)h[m[i]], (int)m[i - 1], (double)h[m[i - 1]]);
    return EXF_OK;
}

/* Checks the target of expert `source`: itself within the pool, else a member of least loss. */
static exf_code check_target(const exf_verify_file *x, const exf_static_pool *p, size_t l, size_t source, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    size_t e = (size_t)s->shape.n_experts, at = l * e + source;
    const int32_t *m = p->members + l * (size_t)p->size;
    const float *loss = s->loss + at * e;
    int target = p->target_ids[at], inside = 0, member = 0;
    float least = EXF_LOSS_NEVER, scale = 1;
    for (int i = 0; i < p->size; i++) {
        inside |= m[i] == (int)source;
        member |= m[i] == target;
        if (loss[m[i]] < least) least = loss[m[i]];
    }
    if (!inside) scale = least < EXF_LOSS_NEVER ? s->coeff[at * e + (size_t)target] : 0;
    if (member && (inside ? target == (int)source : loss[target] <= least) && p->target_scale[at] == scale) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: pool of %d, layer %d: expert %zu goes to %d (loss %g) times %g, expected %s, scale %g",
                    x->path, p->size, (int)s->layer_number[l], source, target, (double)loss[target], (double)p->target_scale[at],
                    inside ? "itself" : "the member of least loss", (double)scale);
}

static exf_code check_pools(const exf_verify_file *x, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; i < x->inspection.n_pools; i++) {
        const exf_static_pool *p = &x->inspection.pool[i];
        for (size_t l = 0; l < (size_t)x->inspection.n_layers; l++) {
            EXF_TRY(check_members(x, p, l, err));
            for (size_t s = 0; s < (size_t)x->inspection.shape.n_experts; s++) EXF_TRY(check_target(x, p, l, s, err));
        }
        EXF_TRY(exf_verify_passed(
            x, err, strcmp(p->by, "norm") == 0
                        ? "pool of %d: members by falling %s, every other expert goes to the member of least loss"
                        : "pool of %d by %s: members differ, every other expert goes to the member of least loss",
            p->size, p->by));
    }
out:
    return rc;
}

/* Reading checks them; they may be gigabytes, so only this reads them. */
static exf_code check_vectors(const exf_verify_file *x, exf_err *err)
{
    exf_tables t = {0};
    exf_code rc;
    EXF_TRY(exf_tables_read(&t, x->path, err));
    EXF_TRY(exf_tables_read_vectors(&t, x->path, err));
    if (t.vectors.n_pairs)
        rc = exf_verify_passed(x, err, "vectors are finite and of known pairs, %lld of them", (long long)t.vectors.n_pairs);
out:
    exf_tables_free(&t);
    return rc;
}

exf_code exf_verify_tables(const exf_verify_file *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_vectors(x, err));
    EXF_TRY(check_evidence(x, err));
    EXF_TRY(check_cold_norms(x, err));
    EXF_TRY(check_pools(x, err));
out:
    return rc;
}

/* ---- statistics ------------------------------------------------------------------------- */

/* A product sum is bounded by its sums of squares; the last bits may disagree. */
static int within(double product, double a_sq, double b_sq)
{
    return a_sq >= 0 && b_sq >= 0 && product * product <= a_sq * b_sq * (1 + 1e-6) + 1e-300;
}

static exf_code check_pair_sums(const exf_verify_file *x, const exf_layer_statistics *s, size_t layer, size_t at, exf_err *err)
{
    size_t e = (size_t)s->n_experts, mirror = at % e * e + at / e;
    double dot = exf_exact_value(&s->dot[at]), target = exf_exact_value(&s->target_sq[at]),
           source = exf_exact_value(&s->source_sq[at]);
    double dot0 = exf_exact_value(&s->dot0[at]), sq0 = exf_exact_value(&s->sq0[at]), other = exf_exact_value(&s->sq0[mirror]);
    int number = x->inspection.layer_number[layer];
    if (!s->count[at] && (dot != 0 || target != 0 || source != 0 || dot0 != 0 || sq0 != 0))
        return exf_fail(err, EXF_FORMAT, "%s: layer %d: sums of %zu -> %zu are not 0 without a token behind them", x->path, number,
                        at / e, at % e);
    if (!within(dot, target, source) || !within(dot0, sq0, other))
        return exf_fail(err, EXF_FORMAT,
                        "%s: layer %d: %zu -> %zu: a product sum of %g (%g unweighted) is beyond its squares %g, %g (%g, %g)",
                        x->path, number, at / e, at % e, dot, dot0, target, source, sq0, other);
    return EXF_OK;
}

static exf_code check_expert_sums(const exf_verify_file *x, const exf_layer_statistics *s, size_t layer, exf_err *err)
{
    for (size_t i = 0; i < (size_t)s->n_experts; i++) {
        double n = (double)s->norm_count[i], sum = exf_exact_value(&s->norm_sum[i]), sq = exf_exact_value(&s->sq_sum[i]);
        if (sum >= 0 && within(sum, n, sq) && (n > 0 || sum == 0)) continue;
        return exf_fail(err, EXF_FORMAT,
                        "%s: layer %d: expert %zu: norms add up to %g and their squares to %g over %g tokens, which cannot be",
                        x->path, (int)x->inspection.layer_number[layer], i, sum, sq, n);
    }
    return EXF_OK;
}

exf_code exf_verify_statistics(const exf_verify_file *x, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_layer_statistics s = {0};
    exf_code rc;
    EXF_TRY(exf_statistics_open(&r, x->path, err));
    EXF_TRY(exf_layer_statistics_new(&s, (int)r.shape.n_experts, err));
    for (int l = 0; l < r.n_layers; l++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_statistics_get(&r, l, &s, err));
        EXF_TRY(check_expert_sums(x, &s, (size_t)l, err));
        for (size_t i = 0; i < (size_t)(s.n_experts * s.n_experts); i++) EXF_TRY(check_pair_sums(x, &s, (size_t)l, i, err));
    }
    rc = exf_verify_passed(x, err, "rounded sums are those of the exact ones, sums of squares bound the product sums");
out:
    exf_layer_statistics_free(&s);
    exf_statistics_close(&r);
    return rc;
}

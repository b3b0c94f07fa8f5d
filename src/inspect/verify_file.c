/* verify_file.c - checks a file by itself: structure, counts, what follows from its specification, facts that fit its contents; see
 * verify.h. */
#include "inspect/verify_internal.h"

#include "accumulate/statistics.h"
#include "artifact/data.h"
#include "artifact/provenance.h"
#include "artifact/tables.h"
#include "base/mem.h"
#include "base/names.h"
#include "solve/solve.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

exf_code exf_verify_passed(const exf_verified_file *x, exf_err *err, const char *fmt, ...)
{
    exf_text sentence = {0};
    va_list va;
    exf_text_appendf(&sentence, "%s: ", x->path);
    va_start(va, fmt);
    exf_text_appendv(&sentence, fmt, va);
    va_end(va);
    exf_code rc = exf_text_end(&sentence, err);
    if (rc == EXF_OK) rc = x->held(x->self, sentence.s, err);
    exf_text_free(&sentence);
    return rc;
}

/* ---- tables ---------------------------------------------------------------------------- */

static exf_code check_evidence(const exf_verified_file *x, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    size_t e = (size_t)s->shape.n_experts;
    const char *text = exf_provenance_get(&s->provenance, "solve.min_pair_tokens");
    int64_t asked;
    uint64_t least = text && exf_parse_i64(text, &asked) && asked > 1 ? (uint64_t)asked : 1; /* tokens of an observed pair */
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
                            "%s: layer %d: the loss [%zu, %zu] is %g with %llu tokens, where %llu are asked for", x->path,
                            layer, source, target, (double)s->loss[i], (unsigned long long)s->count[i], (unsigned long long)least);
    }
    return exf_verify_passed(x, err, "pairs have a scalar and a loss where they have %llu tokens or more, and nowhere else",
                            (unsigned long long)least);
}

/* Checks that a cold expert has the lower median of the others' norms above 0, or 1 where none is. */
static exf_code check_cold_norms(const exf_verified_file *x, exf_err *err)
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

/* Checks that the members of a pool by norm are in the order of falling norms. */
static exf_code check_members(const exf_verified_file *x, const exf_static_pool *p, size_t l, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    const int32_t *m = p->members + l * (size_t)p->size;
    const float *h = s->norms + l * (size_t)s->shape.n_experts;
    for (int i = 1; i < p->size; i++)
        if (strcmp(p->by, exf_pool_criteria[EXF_POOL_BY_NORM]) == 0 && h[m[i]] > h[m[i - 1]])
            return exf_fail(
                err, EXF_FORMAT, "%s: pool of %d, layer %d: member %d has norm %g after member %d with %g, expected falling norms",
                x->path, p->size, (int)s->layer_number[l], (int)m[i], (double)h[m[i]], (int)m[i - 1], (double)h[m[i - 1]]);
    return EXF_OK;
}

/* Checks the target of expert `source`: itself within the pool, else a member of least loss. */
static exf_code check_target(const exf_verified_file *x, const exf_static_pool *p, size_t l, size_t source, exf_err *err)
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

static exf_code check_pools(const exf_verified_file *x, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; i < x->inspection.n_pools; i++) {
        const exf_static_pool *p = &x->inspection.pool[i];
        for (size_t l = 0; l < (size_t)x->inspection.n_layers; l++) {
            EXF_TRY(check_members(x, p, l, err));
            for (size_t s = 0; s < (size_t)x->inspection.shape.n_experts; s++) EXF_TRY(check_target(x, p, l, s, err));
        }
        EXF_TRY(exf_verify_passed(
            x, err, strcmp(p->by, exf_pool_criteria[EXF_POOL_BY_NORM]) == 0
                        ? "pool of %d: members by falling %s, every other expert goes to the member of least loss"
                        : "pool of %d by %s: members differ, every other expert goes to the member of least loss",
            p->size, p->by));
    }
out:
    return rc;
}

/* Reads the vectors, which checks them: they may be gigabytes, and nothing else here reads them. */
static exf_code check_vectors(const exf_verified_file *x, exf_err *err)
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

/* Checks that the facts of stable targets and of their cost, which earlier versions did not write, are what both halves give. */
static exf_code check_stability(const exf_verified_file *x, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    const char *said = exf_provenance_get(&s->provenance, EXF_STABLE_FACT);
    exf_layer_summary *rows = NULL;
    const char *cost = exf_provenance_get(&s->provenance, EXF_COST_FACT);
    char gives[16] = "", costs[16] = "";
    exf_code rc;
    EXF_TRY(exf_mem_new(&rows, (size_t)s->n_layers + 1, sizeof *rows, "summary", err));
    EXF_TRY(exf_summarise(s, rows, err));
    if (!isnan(rows[s->n_layers].stable)) snprintf(gives, sizeof gives, "%.4f", rows[s->n_layers].stable);
    if (strcmp(said ? said : "", gives) != 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: provenance says " EXF_STABLE_FACT " is %s, the losses of both halves give %s", x->path,
                      said ? said : "nothing", *gives ? gives : "nothing");
    if (rc != EXF_OK) goto out;
    if (!isnan(rows[s->n_layers].cost)) snprintf(costs, sizeof costs, "%.4f", rows[s->n_layers].cost);
    if (cost && strcmp(cost, costs) != 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: provenance says " EXF_COST_FACT " is %s, both halves give %s", x->path, cost,
                      *costs ? costs : "nothing");
    else if (said)
        rc = exf_verify_passed(x, err, "%s of the traffic has the same best target by either half of the text%s%s", said,
                    cost ? ", whose choices cost " : "", cost ? cost : "");
out:
    exf_mem_free(rows);
    return rc;
}

/* ---- statistics ------------------------------------------------------------------------- */

/* Returns 1 if a product sum of n terms is within the bound of its sums of squares.  The last bits may disagree, and each term was
 * rounded to the grid of the sums: the squares of outputs of 1e-20 are 0. */
static int is_within(double product, double a_sq, double b_sq, uint64_t n)
{
    const double lost = (double)n * 0x1p-97; /* half a unit of an exf_exact for each term */
    double least = fmax(fabs(product) - lost, 0);
    return a_sq >= 0 && b_sq >= 0 && least * least <= (a_sq + lost) * (b_sq + lost) * (1 + 1e-6) + 1e-300;
}

static exf_code check_pair_sums(const exf_verified_file *x, const exf_layer_statistics *s, size_t layer, size_t at, exf_err *err)
{
    size_t e = (size_t)s->n_experts, mirror = at % e * e + at / e;
    double dot = exf_exact_value(&s->dot[at]), target = exf_exact_value(&s->target_sq[at]),
           source = exf_exact_value(&s->source_sq[at]);
    double dot0 = exf_exact_value(&s->dot0[at]), sq0 = exf_exact_value(&s->sq0[at]), other = exf_exact_value(&s->sq0[mirror]);
    double cosine = exf_exact_value(&s->cosine_sum[at]), cosines = exf_exact_value(&s->cosine_sum[mirror]);
    int number = x->inspection.layer_number[layer];
    if (!s->count[at] && (dot != 0 || target != 0 || source != 0 || dot0 != 0 || sq0 != 0 || cosine != 0))
        return exf_fail(err, EXF_FORMAT, "%s: layer %d: sums of %zu -> %zu are not 0 without a token", x->path, number,
                        at / e, at % e);
    if (!is_within(dot, target, source, s->count[at]) || !is_within(dot0, sq0, other, s->count[at]))
        return exf_fail(err, EXF_FORMAT,
                        "%s: layer %d: %zu -> %zu: a product sum of %g (%g unweighted) is beyond its squares %g, %g (%g, %g)",
                        x->path, number, at / e, at % e, dot, dot0, target, source, sq0, other);
    if (!(fabs(cosine) <= (double)s->count[at] * (1 + 1e-6)) || cosine != cosines)
        return exf_fail(err, EXF_FORMAT, "%s: layer %d: %zu -> %zu: cosines of %llu tokens sum to %g, the mirrored pair's to %g",
                        x->path, number, at / e, at % e, (unsigned long long)s->count[at], cosine, cosines);
    return EXF_OK;
}

/* Returns the part of a sum that is of one half. */
static double value_of_half(const exf_exact *whole, const exf_exact *part, int half)
{
    exf_exact x = *part;
    if (half) return exf_exact_value(&x);
    exf_exact_negate(&x);
    (void)exf_exact_merge(&x, whole);
    return exf_exact_value(&x);
}

static exf_code check_half_sums(const exf_verified_file *x, const exf_layer_statistics *s, size_t layer, size_t at, exf_err *err)
{
    for (int half = 0; half < 2; half++) {
        uint64_t n = half ? s->half_count[at] : s->count[at] - s->half_count[at];
        double dot = value_of_half(&s->dot[at], &s->half_dot[at], half),
               target = value_of_half(&s->target_sq[at], &s->half_target_sq[at], half),
               source = value_of_half(&s->source_sq[at], &s->half_source_sq[at], half);
        if (n ? is_within(dot, target, source, n) : dot == 0 && target == 0 && source == 0) continue;
        return exf_fail(err, EXF_FORMAT,
                        "%s: layer %d: %zu -> %zu: half %d of the data has a product sum of %g and squares %g, %g over %llu "
                        "tokens, which cannot be", x->path, (int)x->inspection.layer_number[layer], at / (size_t)s->n_experts,
                        at % (size_t)s->n_experts, half, dot, target, source, (unsigned long long)n);
    }
    return EXF_OK;
}

static exf_code check_statistics(const exf_verified_file *x, exf_err *err)
{
    exf_statistics_reader r = {0};
    exf_layer_statistics s = {0};
    exf_code rc;
    EXF_TRY(exf_statistics_open(&r, x->path, err));
    EXF_TRY(exf_layer_statistics_new(&s, (int)r.shape.n_experts, err));
    for (int l = 0; l < r.n_layers; l++) {
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_statistics_get(&r, l, &s, err));
        for (size_t i = 0; i < (size_t)s.n_experts; i++) {
            double n = (double)s.norm_count[i], sum = exf_exact_value(&s.norm_sum[i]), sq = exf_exact_value(&s.sq_sum[i]);
            if (sum >= 0 && is_within(sum, n, sq, s.norm_count[i]) && (n > 0 || sum == 0)) continue;
            rc = exf_fail(err, EXF_FORMAT,
                          "%s: layer %d: expert %zu: norms add up to %g and their squares to %g over %g tokens, which cannot be",
                          x->path, (int)x->inspection.layer_number[l], i, sum, sq, n);
            goto out;
        }
        for (size_t i = 0; i < (size_t)(s.n_experts * s.n_experts); i++) {
            EXF_TRY(check_pair_sums(x, &s, (size_t)l, i, err));
            if (r.has[EXF_PART_HALVES]) EXF_TRY(check_half_sums(x, &s, (size_t)l, i, err));
        }
    }
    EXF_TRY(exf_verify_passed(x, err, "rounded sums are those of the exact ones, sums of squares bound the product sums"));
    if (r.has[EXF_PART_HALVES])
        rc = exf_verify_passed(x, err, "the sums of one half of the data, and what is left for the other, can be");
out:
    exf_layer_statistics_free(&s);
    exf_statistics_close(&r);
    return rc;
}

/* ---- facts ------------------------------------------------------------------------------ */

static exf_code check_number(const exf_verified_file *x, const char *key, int64_t have, exf_err *err)
{
    const char *text = exf_provenance_get(&x->inspection.provenance, key);
    int64_t n;
    if (!text || (exf_parse_i64(text, &n) && n == have)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, the file %lld", x->path, key, text, (long long)have);
}

static exf_code check_digests(const exf_verified_file *x, exf_err *err)
{
    const exf_provenance *p = &x->inspection.provenance;
    for (size_t i = 0; i < p->n; i++) {
        const char *v = p->value[i];
        int is_hash = exf_ends_with(p->key[i], "sha256") || exf_ends_with(p->key[i], "digest");
        if (!is_hash || strcmp(v, "none") == 0 || strcmp(v, "unpinned") == 0) continue;
        if (strlen(v) != 64 || strspn(v, "0123456789abcdef") != 64)
            return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, expected 64 hex digits", x->path, p->key[i], v);
    }
    return EXF_OK;
}

/* Refuses facts of a stage that comes after this kind of file. */
static exf_code check_stages(const exf_verified_file *x, exf_err *err)
{
    static const struct {
        const exf_artifact *kind;
        const char *prefix;
    } later[] = {
        {&exf_artifact_capture, "accumulate."},
        {&exf_artifact_capture, "solve."},
        {&exf_artifact_statistics, "solve."},
    };
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        for (size_t k = 0; later[i].kind == x->inspection.kind && k < x->inspection.provenance.n; k++)
            if (exf_starts_with(x->inspection.provenance.key[k], later[i].prefix))
                return exf_fail(err, EXF_FORMAT, "%s: holds %s, which cannot have the fact %s", x->path, x->inspection.kind->kind,
                                x->inspection.provenance.key[k]);
    return EXF_OK;
}

/* Refuses sums that are known to be wrong, and tells whether a GPU's were made again on the CPU. */
static exf_code check_sums(const exf_verified_file *x, exf_err *err)
{
    const exf_provenance *p = &x->inspection.provenance;
    const char *tokens = exf_provenance_get(p, EXF_CROSS_CHECK_FACT);
    int has_sums = x->inspection.kind == &exf_artifact_statistics || x->inspection.kind == &exf_artifact_tables;
    exf_code rc;
    if (!has_sums || !exf_is_by_gpu(p)) return EXF_OK;
    EXF_TRY(exf_sums_check_version(p, x->path, x->inspection.shape.top_k, x->inspection.shape.d_model, err));
    if (tokens)
        rc = exf_verify_passed(x, err, "the sums of %s tokens of each layer were made again on the CPU, and agreed with the GPU's",
                               tokens);
    else
        rc = exf_verify_passed(x, err, "no sums were made again on the CPU to check the GPU's (runtime.cross_check)");
out:
    return rc;
}

static exf_code check_facts(const exf_verified_file *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_sums(x, err));
    EXF_TRY(check_number(x, "data.tokens", x->inspection.shape.n_tokens, err));
    EXF_TRY(check_number(x, "data.sequences", x->inspection.shape.n_sequences, err));
    EXF_TRY(check_digests(x, err));
    EXF_TRY(check_stages(x, err));
    EXF_TRY(exf_verify_passed(x, err, "provenance fits the contents, facts: %zu", x->inspection.provenance.n));
    if (x->inspection.part) rc = exf_verify_passed(x, err, "holds a part: %s", x->inspection.part);
out:
    return rc;
}

/* ---- the file ---------------------------------------------------------------------------- */

static exf_code check_structure(exf_verified_file *x, exf_err *err)
{
    exf_h5 *h = NULL;
    const exf_artifact *kind;
    int64_t version;
    exf_code rc;
    EXF_TRY(exf_artifact_open(&h, x->path, NULL, &kind, NULL, err));
    EXF_TRY(exf_h5_get_i64(h, "/", "exfold_version", &version, err));
    if (version < 1) {
        rc = exf_fail(err, EXF_FORMAT, "%s: exfold_version is %lld, expected at least 1", x->path, (long long)version);
        goto out;
    }
    EXF_TRY(exf_verify_passed(x, err, "holds %s, version %" PRId64 ", which this program reads", kind->kind, version));
    EXF_TRY(exf_h5_digest(h, x->digest, err));
    EXF_TRY(exf_verify_passed(x, err, "every object can be read, digest %s", x->digest));
out:
    exf_h5_close(h);
    return rc;
}

/* Checks the counts of a capture; those of statistics and tables were checked as they were read. */
static exf_code check_counts(const exf_verified_file *x, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    size_t e = (size_t)s->shape.n_experts;
    exf_code rc = EXF_OK;
    for (int l = 0; rc == EXF_OK && s->kind == &exf_artifact_capture && l < s->n_layers; l++) {
        exf_layer_counts c = {.path = x->path, .layer = s->layer_number[l], .pairs = "pairs [", .experts = "experts [",
                              .run = &s->shape, .count = s->count + (size_t)l * e * e,
                              .expert_count = s->expert_count + (size_t)l * e, .empty_slots = s->empty_slots[l]};
        rc = exf_counts_check(&c, err);
    }
    if (rc != EXF_OK) return rc;
    return exf_verify_passed(x, err, "counts are those of all tokens' routes, pairs are mirrored and within their experts'");
}

exf_code exf_verify_file(exf_verified_file *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_structure(x, err));
    EXF_TRY(exf_inspection_read(&x->inspection, x->path, NULL, err));
    EXF_TRY(exf_verify_passed(x, err,
                             "structure, ranges and sentinels are as specified, all numbers finite; layers: %d, experts: %lld",
                             x->inspection.n_layers, (long long)x->inspection.shape.n_experts));
    EXF_TRY(check_counts(x, err));
    if (x->inspection.kind == &exf_artifact_tables) {
        EXF_TRY(check_vectors(x, err));
        EXF_TRY(check_evidence(x, err));
        EXF_TRY(check_cold_norms(x, err));
        EXF_TRY(check_pools(x, err));
        EXF_TRY(check_stability(x, err));
    }
    if (x->inspection.kind == &exf_artifact_statistics) EXF_TRY(check_statistics(x, err));
    EXF_TRY(check_facts(x, err));
out:
    return rc;
}

/* verify.c - checks each file by itself: structure, counts, what follows from its specification, facts that fit its contents;
 * then files of one chain against each other: digests, facts and counts, and tables solved again from their statistics; see
 * verify.h. */
#include "inspect/verify.h"

#include "accumulate/statistics.h"
#include "artifact/data.h"
#include "artifact/provenance.h"
#include "artifact/tables.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/names.h"
#include "base/text.h"
#include "inspect/inspection.h"
#include "solve/solve.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file that is being verified. */
typedef struct {
    const char *path;
    char digest[EXF_SHA256_HEX];
    exf_inspection inspection;
    exf_verify_callback held;
    void *self;
} verify_file;

/* ---- a file by itself ------------------------------------------------------------------------ */

/* Reports that a check passed. */
static EXF_PRINTF(3, 4) exf_code passed(const verify_file *x, exf_err *err, const char *fmt, ...)
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

/* Returns how many tokens a pair takes to count as observed. */
static uint64_t read_least_tokens(const verify_file *x)
{
    const char *text = exf_provenance_get(&x->inspection.provenance, "solve.min_pair_tokens");
    int64_t n;
    return text && exf_parse_i64(text, &n) && n > 1 ? (uint64_t)n : 1;
}

static exf_code check_evidence(const verify_file *x, exf_err *err)
{
    const exf_inspection *s = &x->inspection;
    size_t e = (size_t)s->shape.n_experts;
    uint64_t least = read_least_tokens(x);
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
    return passed(x, err, "pairs have a scalar and a loss where %llu tokens or more are behind them, and nowhere else",
                            (unsigned long long)least);
}

/* Checks that a cold expert has the lower median of the others' norms above 0, or 1 where none is. */
static exf_code check_cold_norms(const verify_file *x, exf_err *err)
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
    rc = passed(x, err, "cold experts have the median norm of the others");
out:
    exf_mem_free(warm);
    return rc;
}

/* Checks that the members of a pool by norm are in the order of falling norms. */
static exf_code check_members(const verify_file *x, const exf_static_pool *p, size_t l, exf_err *err)
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
static exf_code check_target(const verify_file *x, const exf_static_pool *p, size_t l, size_t source, exf_err *err)
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

static exf_code check_pools(const verify_file *x, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; i < x->inspection.n_pools; i++) {
        const exf_static_pool *p = &x->inspection.pool[i];
        for (size_t l = 0; l < (size_t)x->inspection.n_layers; l++) {
            EXF_TRY(check_members(x, p, l, err));
            for (size_t s = 0; s < (size_t)x->inspection.shape.n_experts; s++) EXF_TRY(check_target(x, p, l, s, err));
        }
        EXF_TRY(passed(
            x, err, strcmp(p->by, exf_pool_criteria[EXF_POOL_BY_NORM]) == 0
                        ? "pool of %d: members by falling %s, every other expert goes to the member of least loss"
                        : "pool of %d by %s: members differ, every other expert goes to the member of least loss",
            p->size, p->by));
    }
out:
    return rc;
}

/* Reads the vectors, which checks them: they may be gigabytes, and nothing else here reads them. */
static exf_code check_vectors(const verify_file *x, exf_err *err)
{
    exf_tables t = {0};
    exf_code rc;
    EXF_TRY(exf_tables_read(&t, x->path, err));
    EXF_TRY(exf_tables_read_vectors(&t, x->path, err));
    if (t.vectors.n_pairs)
        rc = passed(x, err, "vectors are finite and of known pairs, %lld of them", (long long)t.vectors.n_pairs);
out:
    exf_tables_free(&t);
    return rc;
}

/* Checks that the facts of stable targets and of their cost, which earlier versions did not write, are what both halves give. */
static exf_code check_stability(const verify_file *x, exf_err *err)
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
        rc = passed(x, err, "%s of the traffic has the same best target by either half of the text%s%s", said,
                    cost ? ", whose choices cost " : "", cost ? cost : "");
out:
    exf_mem_free(rows);
    return rc;
}

static exf_code check_tables(const verify_file *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_vectors(x, err));
    EXF_TRY(check_evidence(x, err));
    EXF_TRY(check_cold_norms(x, err));
    EXF_TRY(check_pools(x, err));
    EXF_TRY(check_stability(x, err));
out:
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

static exf_code check_pair_sums(const verify_file *x, const exf_layer_statistics *s, size_t layer, size_t at, exf_err *err)
{
    size_t e = (size_t)s->n_experts, mirror = at % e * e + at / e;
    double dot = exf_exact_value(&s->dot[at]), target = exf_exact_value(&s->target_sq[at]),
           source = exf_exact_value(&s->source_sq[at]);
    double dot0 = exf_exact_value(&s->dot0[at]), sq0 = exf_exact_value(&s->sq0[at]), other = exf_exact_value(&s->sq0[mirror]);
    double cosine = exf_exact_value(&s->cosine_sum[at]), cosines = exf_exact_value(&s->cosine_sum[mirror]);
    int number = x->inspection.layer_number[layer];
    if (!s->count[at] && (dot != 0 || target != 0 || source != 0 || dot0 != 0 || sq0 != 0 || cosine != 0))
        return exf_fail(err, EXF_FORMAT, "%s: layer %d: sums of %zu -> %zu are not 0 without a token behind them", x->path, number,
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

static exf_code check_half_sums(const verify_file *x, const exf_layer_statistics *s, size_t layer, size_t at, exf_err *err)
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

static exf_code check_expert_sums(const verify_file *x, const exf_layer_statistics *s, size_t layer, exf_err *err)
{
    for (size_t i = 0; i < (size_t)s->n_experts; i++) {
        double n = (double)s->norm_count[i], sum = exf_exact_value(&s->norm_sum[i]), sq = exf_exact_value(&s->sq_sum[i]);
        if (sum >= 0 && is_within(sum, n, sq, s->norm_count[i]) && (n > 0 || sum == 0)) continue;
        return exf_fail(err, EXF_FORMAT,
                        "%s: layer %d: expert %zu: norms add up to %g and their squares to %g over %g tokens, which cannot be",
                        x->path, (int)x->inspection.layer_number[layer], i, sum, sq, n);
    }
    return EXF_OK;
}

static exf_code check_statistics(const verify_file *x, exf_err *err)
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
        for (size_t i = 0; i < (size_t)(s.n_experts * s.n_experts); i++) {
            EXF_TRY(check_pair_sums(x, &s, (size_t)l, i, err));
            if (r.has[EXF_PART_HALVES]) EXF_TRY(check_half_sums(x, &s, (size_t)l, i, err));
        }
    }
    EXF_TRY(passed(x, err, "rounded sums are those of the exact ones, sums of squares bound the product sums"));
    if (r.has[EXF_PART_HALVES]) rc = passed(x, err, "the sums of one half of the data, and what is left for the other, can be");
out:
    exf_layer_statistics_free(&s);
    exf_statistics_close(&r);
    return rc;
}

/* ---- facts ------------------------------------------------------------------------------ */

static exf_code check_number(const verify_file *x, const char *key, int64_t have, exf_err *err)
{
    const char *text = exf_provenance_get(&x->inspection.provenance, key);
    int64_t n;
    if (!text || (exf_parse_i64(text, &n) && n == have)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, the file %lld", x->path, key, text, (long long)have);
}

static exf_code check_digests(const verify_file *x, exf_err *err)
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
static exf_code check_stages(const verify_file *x, exf_err *err)
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
static exf_code check_sums(const verify_file *x, exf_err *err)
{
    const exf_provenance *p = &x->inspection.provenance;
    const char *tokens = exf_provenance_get(p, EXF_CROSS_CHECK_FACT);
    int has_sums = x->inspection.kind == &exf_artifact_statistics || x->inspection.kind == &exf_artifact_tables;
    exf_code rc;
    if (!has_sums || !exf_is_by_gpu(p)) return EXF_OK;
    EXF_TRY(exf_sums_check_version(p, x->path, x->inspection.shape.top_k, x->inspection.shape.d_model, err));
    if (tokens)
        rc = passed(x, err, "the sums of %s tokens of each layer were made again on the CPU, and agreed with the GPU's",
                               tokens);
    else
        rc = passed(x, err, "no sums were made again on the CPU to check the GPU's (runtime.cross_check)");
out:
    return rc;
}

static exf_code check_facts(const verify_file *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_sums(x, err));
    EXF_TRY(check_number(x, "data.tokens", x->inspection.shape.n_tokens, err));
    EXF_TRY(check_number(x, "data.sequences", x->inspection.shape.n_sequences, err));
    EXF_TRY(check_digests(x, err));
    EXF_TRY(check_stages(x, err));
    EXF_TRY(passed(x, err, "provenance fits the contents, facts: %zu", x->inspection.provenance.n));
    if (x->inspection.part) rc = passed(x, err, "holds a part: %s", x->inspection.part);
out:
    return rc;
}

/* ---- the file ---------------------------------------------------------------------------- */

static exf_code check_structure(verify_file *x, exf_err *err)
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
    EXF_TRY(passed(x, err, "holds %s, version %" PRId64 ", which this program reads", kind->kind, version));
    EXF_TRY(exf_h5_digest(h, x->digest, err));
    EXF_TRY(passed(x, err, "every object can be read, digest %s", x->digest));
out:
    exf_h5_close(h);
    return rc;
}

/* Checks the counts of a capture; those of statistics and tables were checked as they were read. */
static exf_code check_counts(const verify_file *x, exf_err *err)
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
    return passed(x, err, "counts are those of all tokens' routes, pairs are mirrored and within their experts'");
}

/* Reads the file into x->inspection and checks it by itself. */
static exf_code verify_alone(verify_file *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(check_structure(x, err));
    EXF_TRY(exf_inspection_read(&x->inspection, x->path, NULL, err));
    EXF_TRY(passed(x, err,
                             "structure, ranges and sentinels are as specified, all numbers finite; layers: %d, experts: %lld",
                             x->inspection.n_layers, (long long)x->inspection.shape.n_experts));
    EXF_TRY(check_counts(x, err));
    if (x->inspection.kind == &exf_artifact_tables) EXF_TRY(check_tables(x, err));
    if (x->inspection.kind == &exf_artifact_statistics) EXF_TRY(check_statistics(x, err));
    EXF_TRY(check_facts(x, err));
out:
    return rc;
}

/* ---- solved again ------------------------------------------------------------------------ */

enum { VALUE = 32 };

static void show_value(char out[VALUE], const exf_tensor *t, size_t i)
{
    switch (t->dtype) {
    case EXF_DT_F32: snprintf(out, VALUE, "%.9g", (double)((const float *)t->data)[i]); break;
    case EXF_DT_F64: snprintf(out, VALUE, "%.17g", ((const double *)t->data)[i]); break;
    case EXF_DT_I32: snprintf(out, VALUE, "%" PRId32, ((const int32_t *)t->data)[i]); break;
    default: snprintf(out, VALUE, "%" PRIu64, ((const uint64_t *)t->data)[i]); break;
    }
}

/* Refuses element i of an array: says where it stands, "coeff[3, 5, 2]", both values, and whether another program solved. */
static exf_code refuse_number(const verify_file *statistics, const verify_file *tables, const exf_tensor *have,
                              const exf_tensor *want, size_t i, exf_err *err)
{
    const exf_provenance *p = &tables->inspection.provenance;
    const char *version = exf_provenance_get(p, "solve.version"), *commit = exf_provenance_get(p, "solve.commit");
    char is[VALUE], gives[VALUE];
    exf_text place = {0};
    size_t below = 1;
    show_value(is, have, i);
    show_value(gives, want, i);
    for (int a = 1; a < have->rank; a++) below *= (size_t)have->shape[a];
    for (int a = 0; a < have->rank; a++) {
        exf_text_appendf(&place, "%s%zu", a ? ", " : "[", i / below % (size_t)have->shape[a]);
        if (a + 1 < have->rank) below /= (size_t)have->shape[a + 1];
    }
    exf_text_appendf(&place, "] is %s, %s solved again with the recorded settings gives %s", is, statistics->path, gives);
    if (!version || !commit || strcmp(version, exf_release()) != 0 || strcmp(commit, exf_commit()) != 0)
        exf_text_appendf(&place, "; they were solved by exfold %s (commit %s), this is %s (commit %s)", version ? version : "?",
                         commit ? commit : "?", exf_release(), exf_commit());
    exf_code rc = exf_text_end(&place, err);
    if (rc == EXF_OK) rc = exf_fail(err, EXF_FORMAT, "%s: %s%s", tables->path, have->name, place.s);
    exf_text_free(&place);
    return rc;
}

static exf_code compare_arrays(const verify_file *statistics, const verify_file *tables, const exf_tensor *have,
                        const exf_tensor *want, exf_err *err)
{
    size_t size = exf_dtype_bits(have->dtype) / 8, n = exf_tensor_bytes(have) / size;
    const char *a = have->data, *b = want->data;
    if (have->dtype != want->dtype || have->rank != want->rank || memcmp(have->shape, want->shape, sizeof have->shape) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: %s has another shape than %s gives when it is solved again", tables->path, have->name,
                        statistics->path);
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i * size, b + i * size, size) != 0) return refuse_number(statistics, tables, have, want, i, err);
    return EXF_OK;
}

static const exf_tensor *find_array(const exf_table_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->name[i], name) == 0) return &l->tensor[i];
    return NULL;
}

/* Compares all arrays; tables of an older version lack some that are solved today. */
static exf_code compare_lists(const verify_file *statistics, const verify_file *tables, const exf_table_list *have,
                              const exf_table_list *want, exf_err *err)
{
    int is_old = tables->inspection.version < exf_artifact_tables.version;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < want->n; i++) {
        const exf_tensor *t = find_array(have, want->name[i]);
        if (!t && is_old) continue;
        if (!t)
            return exf_fail(err, EXF_FORMAT, "%s: lacks %s, which %s gives when it is solved again", tables->path, want->name[i],
                            statistics->path);
        EXF_TRY(compare_arrays(statistics, tables, t, &want->tensor[i], err));
    }
    for (size_t i = 0; i < have->n; i++)
        if (!find_array(want, have->name[i]))
            return exf_fail(err, EXF_FORMAT, "%s: holds %s, which %s does not give when it is solved again", tables->path,
                            have->name[i], statistics->path);
out:
    return rc;
}

/* Compares the digests of the sequences, which tables before version 5 lack. */
static exf_code compare_sequences(const exf_tables *have, const exf_tables *want, const verify_file *tables,
                                  const verify_file *statistics, exf_err *err)
{
    size_t n = (size_t)have->shape.n_sequences;
    if (!have->sequence_digest && (!want->sequence_digest || tables->inspection.version < 5)) return EXF_OK;
    if (have->sequence_digest && want->sequence_digest && have->shape.n_sequences == want->shape.n_sequences &&
        memcmp(have->sequence_digest, want->sequence_digest, n * sizeof *have->sequence_digest) == 0)
        return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: /sequence_digests are not those of the %lld sequences of %s", tables->path,
                    (long long)want->shape.n_sequences, statistics->path);
}

/* Solves the statistics again with the settings of the tables and compares every number, so that a changed number is found
 * however well it fits the others. */
static exf_code check_solved(const verify_file *statistics, const verify_file *tables, exf_err *err)
{
    exf_tables have = {.n_layers = 0}, want = {.n_layers = 0};
    exf_table_list a = {.n = 0}, b = {.n = 0};
    exf_code rc;
    EXF_TRY(exf_tables_read(&have, tables->path, err));
    EXF_TRY(exf_tables_read_vectors(&have, tables->path, err));
    EXF_TRY(exf_solve_again(&have, tables->path, statistics->path, &want, err));
    EXF_TRY(compare_sequences(&have, &want, tables, statistics, err));
    EXF_TRY(exf_table_list_make(&a, &have, 1, err));
    EXF_TRY(exf_table_list_make(&b, &want, 1, err));
    EXF_TRY(compare_lists(statistics, tables, &a, &b, err));
    rc = passed(tables, err, "%s solved again with the recorded settings gives the same bits, arrays: %zu",
                           statistics->path, b.n);
out:
    exf_table_list_free(&a);
    exf_table_list_free(&b);
    exf_tables_free(&have);
    exf_tables_free(&want);
    return rc;
}

/* ---- two files --------------------------------------------------------------------------- */

/* Returns 1 for facts of a part alone: of several captures each has its own data, and may have spelled the same layers in
 * another way. */
static int is_of_part(const char *key)
{
    return exf_starts_with(key, "data.") || strcmp(key, "capture.layers") == 0 || exf_model_facts_key(key);
}

/* Checks that facts of the earlier file are in the later; those of a part alone only if it is the whole. */
static exf_code check_inherited(const verify_file *a, const verify_file *b, int whole, exf_err *err)
{
    const exf_provenance *p = &a->inspection.provenance;
    exf_code rc = exf_model_facts_same(p, a->path, &b->inspection.provenance, b->path, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < p->n; i++) {
        const char *other = exf_provenance_get(&b->inspection.provenance, p->key[i]);
        if ((!whole && is_of_part(p->key[i])) || (other && strcmp(other, p->value[i]) == 0)) continue;
        return exf_fail(err, EXF_FORMAT, "%s: provenance says %s is %s, %s, from which it should come, says %s", b->path, p->key[i],
                        other ? other : "nothing", a->path, p->value[i]);
    }
    return EXF_OK;
}

static exf_code compare_layers(const verify_file *a, const verify_file *b, exf_err *err)
{
    const exf_inspection *s = &a->inspection, *t = &b->inspection;
    if (s->shape.n_experts != t->shape.n_experts || s->n_layers != t->n_layers)
        return exf_fail(err, EXF_FORMAT, "%s: %d layers of %lld experts, %s has %d of %lld", b->path, t->n_layers,
                        (long long)t->shape.n_experts, a->path, s->n_layers, (long long)s->shape.n_experts);
    if (memcmp(s->layer_number, t->layer_number, (size_t)s->n_layers * sizeof *s->layer_number) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: other layer numbers than %s", b->path, a->path);
    return EXF_OK;
}

static exf_code compare_counts(const verify_file *a, const verify_file *b, exf_err *err)
{
    const exf_inspection *s = &a->inspection, *t = &b->inspection;
    size_t e = (size_t)s->shape.n_experts, l = (size_t)s->n_layers;
    if (memcmp(s->count, t->count, l * e * e * sizeof *s->count) != 0 ||
        memcmp(s->expert_count, t->expert_count, l * e * sizeof *s->expert_count) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: other token counts than %s", b->path, a->path);
    return EXF_OK;
}

static exf_code compare_norms(const verify_file *a, const verify_file *b, exf_err *err)
{
    size_t e = (size_t)a->inspection.shape.n_experts;
    for (size_t i = 0; i < (size_t)a->inspection.n_layers * e; i++)
        if (a->inspection.expert_count[i] && a->inspection.norms[i] != b->inspection.norms[i])
            return exf_fail(err, EXF_FORMAT, "%s: layer %d: expert %zu has norm %.9g, the sums of %s give %.9g", b->path,
                            (int)b->inspection.layer_number[i / e], i % e, (double)b->inspection.norms[i], a->path,
                            (double)a->inspection.norms[i]);
    return EXF_OK;
}

/* Checks that the tables say of which part of the data their statistics are. */
static exf_code check_part(const verify_file *statistics, const verify_file *tables, exf_err *err)
{
    const char *of = statistics->inspection.part, *said = tables->inspection.part;
    if (strcmp(of ? of : "", said ? said : "") == 0) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: is of %s, %s, from which it was solved, is of %s; solve it again (exfold-solve)",
                    tables->path, said ? said : "all of its data", statistics->path, of ? of : "all of its data");
}

static exf_code verify_tables_of(const verify_file *statistics, const verify_file *tables, exf_err *err)
{
    const char *named = exf_provenance_get(&tables->inspection.provenance, "solve.statistics_digest");
    exf_code rc;
    if (!named || strcmp(named, statistics->digest) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: provenance says solve.statistics_digest is %s, %s has %s", tables->path,
                        named ? named : "nothing", statistics->path, statistics->digest);
    EXF_TRY(check_inherited(statistics, tables, 1, err));
    EXF_TRY(check_part(statistics, tables, err));
    EXF_TRY(compare_layers(statistics, tables, err));
    EXF_TRY(compare_counts(statistics, tables, err));
    EXF_TRY(compare_norms(statistics, tables, err));
    EXF_TRY(passed(tables, err, "was solved from %s: digest, facts, counts and norms agree", statistics->path));
    rc = check_solved(statistics, tables, err);
out:
    return rc;
}

/* Returns 1 if the statistics name the digest of the capture's tokens among their data. */
static int has_data(const exf_provenance *whole, const char *digest)
{
    for (size_t i = 0; i < whole->n; i++)
        if (exf_starts_with(whole->key[i], "data.") && strcmp(whole->value[i], digest) == 0) return 1;
    return 0;
}

static int by_digest(const void *a, const void *b)
{
    return memcmp(a, b, 32);
}

/* Checks that every sequence of the capture is one of the statistics'. */
static exf_code check_sequences(const verify_file *capture, const verify_file *statistics, exf_err *err)
{
    const exf_sequence_list *part = &capture->inspection.sequences, *all = &statistics->inspection.sequences;
    for (size_t i = 0; i < part->n; i++)
        if (!bsearch(part->sha256[i], all->sha256, all->n, sizeof *all->sha256, by_digest))
            return exf_fail(err, EXF_FORMAT, "%s: does not hold sequence %zu (of %d tokens) of %s", statistics->path, i,
                            (int)part->length[i], capture->path);
    return EXF_OK;
}

/* Checks the same for files of version 1, which know no sequences but name the digests of their tokens. */
static exf_code check_tokens(const verify_file *capture, const verify_file *statistics, exf_err *err)
{
    const exf_provenance *p = &capture->inspection.provenance;
    const char *tokens = exf_provenance_get(p, "data.tokens_digest");
    if (!tokens) tokens = exf_provenance_get(p, "data.moe_inputs_sha256");
    if (tokens && has_data(&statistics->inspection.provenance, tokens)) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: its data does not name the tokens of %s, %s", statistics->path, capture->path,
                    tokens ? tokens : "which tell no digest");
}

static exf_code verify_statistics_of(const verify_file *capture, const verify_file *statistics, exf_err *err)
{
    exf_code rc = check_inherited(capture, statistics, 0, err);
    if (rc == EXF_OK) rc = compare_layers(capture, statistics, err);
    if (rc != EXF_OK) return rc;
    int known = capture->inspection.sequences.length && statistics->inspection.sequences.length;
    rc = known ? check_sequences(capture, statistics, err) : check_tokens(capture, statistics, err);
    return rc == EXF_OK ? passed(statistics, err, "adds up %s: model, run and tokens agree", capture->path) : rc;
}

/* Checks two files, the earlier of the chain first; EXF_OK if they are not of one chain. */
static exf_code verify_chain(const verify_file *earlier, const verify_file *later, exf_err *err)
{
    const exf_artifact *from = earlier->inspection.kind, *to = later->inspection.kind;
    if (from == &exf_artifact_statistics && to == &exf_artifact_tables) return verify_tables_of(earlier, later, err);
    if (from == &exf_artifact_capture && to == &exf_artifact_statistics) return verify_statistics_of(earlier, later, err);
    return EXF_OK;
}

exf_code exf_verify(const char *const *paths, size_t n, exf_verify_callback held, void *self, exf_err *err)
{
    verify_file *x = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&x, n, sizeof *x, "files", err));
    for (size_t i = 0; i < n; i++) {
        x[i].path = paths[i];
        x[i].held = held;
        x[i].self = self;
        EXF_TRY(verify_alone(&x[i], err));
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) EXF_TRY(verify_chain(&x[i], &x[k], err));
out:
    for (size_t i = 0; x && i < n; i++) exf_inspection_free(&x[i].inspection);
    exf_mem_free(x);
    return rc;
}

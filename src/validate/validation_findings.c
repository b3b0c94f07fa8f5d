/* validation_findings.c - what a validation found, made once for every output: what rows gain over their best baselines, and the
 * sentences on what the tables are worth, what is wrong in one layer, how stable that is, what is not constrained, and the
 * data; see validation.h. */
#include "validate/validation.h"

#include "artifact/provenance.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what rows gain ------------------------------------------------------------------------------- */

/* Returns 1 if all layers are folded by the tables, wherever the variant folds.  Stand-ins with the router's weights need none. */
static int folds_by_tables(const exf_variant *v)
{
    int by_router_alone = v->by_router && v->stand_in_weights != EXF_FOLD_STAND_INS_JOINT;
    int has_pool = v->decode == EXF_DECODE_DYNAMIC || v->decode == EXF_DECODE_STATIC;
    int prefill = v->prefill == EXF_PREFILL_FOLD && !v->only_layer;
    int decode = has_pool && v->outside == EXF_OUTSIDE_FOLDED && !by_router_alone;
    return (prefill || v->prefill == EXF_PREFILL_NONE) && (decode || v->decode == EXF_DECODE_NONE);
}

/* Returns 1 if b is a baseline of v. */
static int is_baseline(const exf_variant *b, const exf_variant *v)
{
    int prefill = v->prefill == EXF_PREFILL_NONE
                      ? b->prefill == EXF_PREFILL_NONE
                      : (b->prefill == EXF_PREFILL_TOP || b->prefill == EXF_PREFILL_RANDOM) &&
                            b->prefill_options.keep == v->prefill_options.keep;
    if (v->decode == EXF_DECODE_NONE) return prefill && b->decode == EXF_DECODE_NONE;
    return prefill && b->decode == v->decode && b->outside != EXF_OUTSIDE_FOLDED &&
           b->decode_options.pool == v->decode_options.pool && (v->decode == EXF_DECODE_DYNAMIC || b->pool_by == v->pool_by);
}

/* Finds the best baseline of each row that was asked for, folds by the tables, and is constrained: ties to the earlier one. */
static void find_gains(const exf_validate_report *r)
{
    const exf_validation *v = r->of.v;
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *own = &v->variant[i];
        size_t best = 0;
        if (own->role != EXF_LANE_ASKED || own->constraint != EXF_CONSTRAINED || !folds_by_tables(&r->row[i].variant)) continue;
        for (size_t j = 1; j < v->n_variants; j++) {
            if (v->variant[j].batch != own->batch || !is_baseline(&r->row[j].variant, &r->row[i].variant)) continue;
            if (!best || v->variant[j].all.kl_mean < v->variant[best].all.kl_mean) best = j;
        }
        r->row[i].baseline = best;
        if (best) r->row[i].gain = exf_kl_difference(v, best, i);
    }
}

/* ---- sentences -------------------------------------------------------------------------------------- */

enum { NAMED = 3 }; /* rows that a sentence names */

/* Adds a name to a sentence's list, the first one after the words that begin it; returns 0 where the list has enough of them. */
static int add_name(exf_text *out, size_t *n, const char *begin, const char *name)
{
    if ((*n)++ >= NAMED) return 0;
    exf_text_appendf(out, "%s%s", *n > 1 ? ", " : begin, name);
    return 1;
}

static void end_names(exf_text *out, size_t n, const char *end)
{
    if (n > NAMED) exf_text_appendf(out, " and %zu more", n - NAMED);
    if (n) exf_text_appendf(out, "%s", end);
}

/* ---- the verdict ------------------------------------------------------------------------------------ */

/* Returns the share of its best baseline's KL that row i gains; below 0, loses. */
static double effect_of(const exf_validate_report *r, size_t i)
{
    double other = r->of.v->variant[r->row[i].baseline].all.kl_mean;
    return other > 0 ? r->row[i].gain.mean / other : 0;
}

/* Adds a sentence on what row i gains over its best baseline, with two digits of the half-width. */
static void add_gain(const exf_validate_report *r, size_t i, exf_text *out)
{
    enum { FEWEST = 4, MOST = 9 };
    const exf_variant_result *row = &r->of.v->variant[i], *best = &r->of.v->variant[r->row[i].baseline];
    const exf_difference *d = &r->row[i].gain;
    double mean = d->mean, half = d->half_width, own = row->all.kl_mean, other = best->all.kl_mean;
    int n = half > 1e-9 ? 1 - (int)floor(log10(half)) : 0;
    n = n < FEWEST ? FEWEST : n > MOST ? MOST : n;
    if (exf_beyond_noise(d) && mean > 0) {
        exf_text_appendf(out, "%s gains %.*f ± %.*f nats of KL, %.1f %% of it, over %s, its best baseline: beyond the noise\n",
                         row->name, n, mean, n, half, 100 * effect_of(r, i), best->name);
        return;
    }
    exf_text_appendf(out, "%s: ", row->name);
    if (!isnan(half))
        exf_text_appendf(out, "these tables %s here: ", exf_beyond_noise(d) ? "do harm" : "are worth nothing");
    else
        n = FEWEST;
    exf_text_appendf(out, "KL %.*f, %s %.*f", n, own, best->name, n, other);
    if (isnan(half))
        exf_text_appendf(out, "; one %s cannot tell what is noise\n", r->of.v->clusters_are_documents ? "document" : "sequence");
    else if (exf_beyond_noise(d))
        exf_text_appendf(out, ", worse by %.*f ± %.*f, beyond the noise\n", n, -mean, n, half);
    else /* never "-0.0000" */
        exf_text_appendf(out, ", difference %.*f ± %.*f, within the noise\n", n, fabs(mean) < 0.5 * pow(10, -n) ? 0 : mean, n,
                         half);
}

/* Adds in how many of the rows that have a baseline the tables gain, how much, and in which they do not. */
static void add_counts(const exf_validate_report *r, size_t rows, exf_text *out)
{
    const exf_validation *v = r->of.v;
    double least = INFINITY, most = -INFINITY;
    size_t gains = 0, harms = 0, nothings = 0;
    exf_text harm = {0}, nothing = {0};
    for (size_t i = 1; i < v->n_variants; i++) {
        if (!r->row[i].baseline) continue;
        if (!exf_beyond_noise(&r->row[i].gain)) {
            (void)add_name(&nothing, &nothings, "; they are worth nothing in ", v->variant[i].name);
        } else if (r->row[i].gain.mean < 0) {
            (void)add_name(&harm, &harms, "; they do harm in ", v->variant[i].name);
        } else {
            gains++;
            least = fmin(least, 100 * effect_of(r, i));
            most = fmax(most, 100 * effect_of(r, i));
        }
    }
    end_names(&harm, harms, "");
    end_names(&nothing, nothings, "");
    exf_text_appendf(out, "The tables gain KL beyond the noise in %zu of %zu rows", gains, rows);
    if (gains == 1) exf_text_appendf(out, ", %.1f %% of the baseline's", most);
    if (gains > 1) exf_text_appendf(out, ", %.1f to %.1f %% of the baseline's", least, most);
    if (harm.refused || nothing.refused) out->refused = harm.refused + nothing.refused;
    exf_text_appendf(out, "%s%s\n", harms && harm.s ? harm.s : "", nothings && nothing.s ? nothing.s : "");
    exf_text_free(&harm);
    exf_text_free(&nothing);
}

/* Adds the rows that lost to the plain fold of their P or D beyond the noise. */
static void add_lost(const exf_validate_report *r, exf_text *out)
{
    const exf_validation *v = r->of.v;
    size_t n = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        size_t twin = r->row[i].lost_to;
        exf_difference worse = twin ? exf_kl_difference(v, i, twin) : (exf_difference){0, 0, 0};
        if (!twin || !exf_beyond_noise(&worse)) continue;
        if (add_name(out, &n, "Not recommended, since the plain fold does better beyond the noise at no more cost: ",
                     v->variant[i].name))
            exf_text_appendf(out, " (KL %.4f, %s %.4f)", v->variant[i].all.kl_mean, v->variant[twin].name,
                             v->variant[twin].all.kl_mean);
    }
    end_names(out, n, "\n");
}

/* Adds what the tables are worth: the counts, the rows of prefill alone and of decode alone that gain the largest share of their
 * baselines' KL, which speak for the tables, or why there is no verdict. */
static void add_verdict(const exf_validate_report *r, exf_text *out)
{
    const exf_validation *v = r->of.v;
    size_t rows = 0, best[] = {[EXF_ROW_PREFILL] = 0, [EXF_ROW_DECODE] = 0, [EXF_ROW_BOTH] = 0}, unconstrained = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        size_t *b = &best[r->row[i].kind];
        if (!unconstrained && v->variant[i].role == EXF_LANE_ASKED && v->variant[i].constraint != EXF_CONSTRAINED &&
            folds_by_tables(&r->row[i].variant))
            unconstrained = i; /* it may have no baselines */
        if (!r->row[i].baseline) continue;
        rows++;
        if (!*b || effect_of(r, i) > effect_of(r, *b)) *b = i;
    }
    if (rows > 1) add_counts(r, rows, out);
    if (best[EXF_ROW_PREFILL]) add_gain(r, best[EXF_ROW_PREFILL], out);
    if (best[EXF_ROW_DECODE]) add_gain(r, best[EXF_ROW_DECODE], out);
    const exf_variant_result *row = &v->variant[unconstrained];
    const exf_batch_size *b = &v->batch_size[row->batch];
    if (!best[EXF_ROW_DECODE] && unconstrained && row->constraint == EXF_FEW_EXPERTS)
        exf_text_appendf(out, "%s: no verdict: the original's batches of %d run %.1f experts, so that nothing is left out\n",
                         row->name, b->size, b->experts);
    else if (!best[EXF_ROW_DECODE] && unconstrained)
        exf_text_appendf(out, "%s: no verdict: batches of %d were asked for, and a token has %.1f sequences side by side\n",
                         row->name, b->size, b->width);
    if (!rows && !unconstrained)
        exf_text_appendf(out, "No baseline ran at the same P or D: what the tables gain is not known\n");
    add_lost(r, out);
}

/* Adds the rows of which a layer's output error is far above that of the plain fold of their P or D: weights that explode in one
 * layer may cost little KL on one text and much on another. */
static void add_worse_layers(const exf_validate_report *r, exf_text *out)
{
    const double TOLD_FROM = 1.5; /* times the twin's error */
    const exf_validation *v = r->of.v;
    size_t n = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *row = &v->variant[i], *twin = &v->variant[r->row[i].twin];
        double worst = 0;
        int at = 0;
        for (int l = 0; r->row[i].twin && row->layer && l < v->n_layers; l++) {
            double plain = twin->layer[l].output_error, times = row->layer[l].output_error / plain;
            if (!(plain > 0) || !(times > worst)) continue;
            worst = times;
            at = l;
        }
        if (worst < TOLD_FROM) continue;
        if (add_name(out, &n, "The output of one layer is 1.5 times as wrong as in the plain fold, or more: ", row->name))
            exf_text_appendf(out, " in layer %d (%.3f, %s %.3f)", row->layer[at].layer, row->layer[at].output_error, twin->name,
                             twin->layer[at].output_error);
    }
    end_names(out, n, "\n");
}

/* ---- stability ----------------------------------------------------------------------------------- */

/* Returns the row "NAME half K"; 0: none. */
static size_t find_half(const exf_validation *v, const char *name, int k)
{
    char half[EXF_VARIANT_NAME_LEN + 16];
    snprintf(half, sizeof half, "%s half %d", name, k);
    for (size_t i = 1; i < v->n_variants; i++)
        if (v->variant[i].role == EXF_LANE_HALF && strcmp(v->variant[i].name, half) == 0) return i;
    return 0;
}

static void add_stability(const exf_validate_report *r, exf_text *out)
{
    static const struct { const char *fact, *before, *after; } facts[] = {
        {"solve.stable_targets", "Stability: both halves of the calibration choose the same target for", "of the traffic"},
        {"solve.choice_cost", "Cost of the choice: targets of one half lose", "of the experts' output more on the other half "
                              "than its own"}};
    const exf_validation *v = r->of.v;
    const char *small = r->tables ? exf_provenance_get(r->tables, "solve.small_calibration") : NULL;
    double share;
    int n = 0;
    if (small) exf_text_appendf(out, "%s\n", small);
    for (size_t i = 0; r->tables && i < 2; i++) {
        const char *value = exf_provenance_get(r->tables, facts[i].fact);
        if (value && exf_parse_f64(value, &share))
            exf_text_appendf(out, "%s %.1f %% %s.\n", facts[i].before, 100 * share, facts[i].after);
    }
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *row = &v->variant[i];
        size_t one = find_half(v, row->name, 1), two = find_half(v, row->name, 2);
        if (row->role == EXF_LANE_HALF || row->constraint != EXF_CONSTRAINED || !one || !two) continue;
        exf_difference apart = exf_kl_difference(v, one, two);
        exf_text_appendf(out, "%s %s %.5f and %.5f%s (by all %.5f)",
                         n++ ? ";" : "Stability: KL by the tables of each half of the calibration:", row->name,
                         v->variant[one].all.kl_mean, v->variant[two].all.kl_mean,
                         exf_beyond_noise(&apart) ? ", apart beyond the noise" : "", row->all.kl_mean);
    }
    if (n) exf_text_appendf(out, "\n");
}

/* ---- what is not constrained, and the data ---------------------------------------------------------- */

/* Adds a sentence for each batch size and reason, with some of the rows that it is about; tables mark them all. */
static void add_constraints(const exf_validation *v, exf_text *out)
{
    for (int b = 0; b < v->n_batch_sizes; b++)
        for (exf_constraint reason = EXF_FEW_EXPERTS; reason <= EXF_SHORT_BATCHES; reason++) {
            const exf_variant_result *first = NULL;
            size_t n = 0;
            for (size_t i = 1; i < v->n_variants; i++) {
                const exf_variant_result *row = &v->variant[i];
                if (row->role != EXF_LANE_ASKED || row->batch != b || row->constraint != reason) continue;
                (void)add_name(out, &n, "Not constrained: ", row->name);
                if (!first) first = row;
            }
            end_names(out, n, ": ");
            if (first) exf_constraint_advice(out, v, first);
            if (first) exf_text_appendf(out, "\n");
        }
}

static void add_data(const exf_validate_report *r, exf_text *out)
{
    const exf_validation *v = r->of.v;
    const char *text = exf_provenance_get(r->facts, "validate.text"), *part = exf_provenance_get(r->facts, "validate.tables_part"),
               *same = exf_provenance_get(r->facts, "validate.calibration_text"),
               *runtime = exf_provenance_get(r->facts, "validate.runtime"),
               *other = exf_provenance_get(r->facts, "validate.other_weights");
    if (same) exf_text_appendf(out, "%s\n", same);
    if (part) exf_text_appendf(out, "The tables are of a part of their data: %s.\n", part);
    if (runtime) exf_text_appendf(out, "Variants fold as the runtime %s does.\n", runtime);
    if (other && !exf_starts_with(other, "none "))
        exf_text_appendf(out, "The tables are of other weights than the model, as --accept other-weights allows; digests that "
                              "differ: %s.\n", other);
    exf_text_appendf(out, "%" PRIu64 " tokens scored of %zu %s", v->variant[0].all.tokens, v->n_clusters,
                     v->clusters_are_documents ? "documents" : "sequences");
    if (v->near_copies) exf_text_appendf(out, ", of which %" PRIu64 " that are near copies count as fewer", v->near_copies);
    if (text) exf_text_appendf(out, ", from ");
    if (text) exf_text_append_shown(out, text);
    for (size_t d = 0; v->n_domains > 1 && d < v->n_domains && d < NAMED; d++) {
        exf_text_appendf(out, "%s", d ? ", " : "; domains ");
        exf_text_append_shown(out, r->domain_names[d]);
    }
    if (v->n_domains > 1) end_names(out, v->n_domains, "");
    exf_text_appendf(out, "; decode batches of ");
    for (int b = 0; b < v->n_batch_sizes; b++) exf_text_appendf(out, "%s%d", b ? ", " : "", v->batch_size[b].size);
    exf_text_appendf(out, ".\n");
}

/* ---- all of it ------------------------------------------------------------------------------------- */

exf_code exf_validate_report_make(exf_validate_report *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_rows_make(&r->row, &r->of, err));
    if (r->compares) {
        find_gains(r);
        add_verdict(r, &r->found[EXF_FOUND_VERDICT]);
    }
    add_worse_layers(r, &r->found[EXF_FOUND_LAYERS]);
    add_stability(r, &r->found[EXF_FOUND_STABILITY]);
    add_constraints(r->of.v, &r->found[EXF_FOUND_CONSTRAINTS]);
    if (r->limit) EXF_TRY(exf_recommendation_words(r, &r->found[EXF_FOUND_RECOMMENDATION], err));
    add_data(r, &r->found[EXF_FOUND_DATA]);
    for (int k = 0; k < EXF_FINDINGS; k++) EXF_TRY(exf_text_end(&r->found[k], err));
out:
    if (rc != EXF_OK) exf_validate_report_free(r);
    return rc;
}

void exf_validate_report_free(exf_validate_report *r)
{
    for (int k = 0; k < EXF_FINDINGS; k++) exf_text_free(&r->found[k]);
    memset(r->found, 0, sizeof r->found);
    exf_mem_free(r->row);
    r->row = NULL;
}

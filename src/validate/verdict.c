/* verdict.c - compares what was folded by the tables with its baselines, and puts the result in words; see verdict.h. */
#include "validate/verdict.h"

#include "base/mem.h"
#include "fold/variant.h"

#include <math.h>
#include <string.h>

/* ---- which variants are compared -------------------------------------------------------------- */

/* Reads the variant of a result; returns 0 for the original. */
static int read_variant(exf_variant *out, const exf_variant_result *r)
{
    exf_err ignored;
    return exf_variant_parse(out, r->name, &ignored) == EXF_OK;
}

static int has_pool(const exf_variant *v)
{
    return v->decode == EXF_DECODE_DYNAMIC || v->decode == EXF_DECODE_STATIC;
}

/* Returns 1 if all layers are folded by the tables, wherever the variant folds.  Stand-ins with the router's weights need none. */
static int folds_by_tables(const exf_variant *v)
{
    int by_router_alone = v->by_router && v->stand_in_weights != EXF_FOLD_STAND_INS_JOINT;
    int prefill = v->prefill == EXF_PREFILL_FOLD && !v->only_layer;
    int decode = has_pool(v) && v->outside == EXF_OUTSIDE_FOLDED && !by_router_alone;
    return (prefill || v->prefill == EXF_PREFILL_NONE) && (decode || v->decode == EXF_DECODE_NONE);
}

static int is_prefill_baseline(const exf_variant *b, const exf_variant *v)
{
    if (v->prefill == EXF_PREFILL_NONE) return b->prefill == EXF_PREFILL_NONE;
    return (b->prefill == EXF_PREFILL_TOP || b->prefill == EXF_PREFILL_RANDOM) &&
           b->prefill_options.keep == v->prefill_options.keep;
}

static int is_decode_baseline(const exf_variant *b, const exf_variant *v)
{
    if (v->decode == EXF_DECODE_NONE) return b->decode == EXF_DECODE_NONE;
    return b->decode == v->decode && b->outside != EXF_OUTSIDE_FOLDED && b->decode_options.pool == v->decode_options.pool &&
           (v->decode == EXF_DECODE_DYNAMIC || b->pool_by == v->pool_by);
}

size_t exf_baselines_of(size_t *list, const exf_validation *v, size_t row)
{
    exf_variant own, other;
    size_t n = 0;
    if (!read_variant(&own, &v->variant[row]) || !folds_by_tables(&own)) return 0;
    for (size_t i = 1; i < v->n_variants; i++)
        if (read_variant(&other, &v->variant[i]) && v->variant[i].batch == v->variant[row].batch &&
            is_prefill_baseline(&other, &own) && is_decode_baseline(&other, &own))
            list[n++] = i;
    return n;
}

/* ---- the verdict -------------------------------------------------------------------------------- */

static void add_gain(exf_verdict *d, const exf_validation *v, size_t row, const size_t *list, size_t n)
{
    exf_variant own;
    exf_gain g = {.row = row, .best = list[0]};
    for (size_t i = 1; i < n; i++)
        if (v->variant[list[i]].all.kl_mean < v->variant[g.best].all.kl_mean) g.best = list[i];
    int is_read = read_variant(&own, &v->variant[row]);
    g.folds_prefill = is_read && own.prefill != EXF_PREFILL_NONE;
    g.folds_decode = is_read && own.decode != EXF_DECODE_NONE;
    g.kl = exf_kl_difference(v, g.best, row);
    g.log_ppl = exf_log_ppl_difference(v, g.best, row);
    d->n_beyond += exf_beyond_noise(&g.kl) && g.kl.mean > 0;
    d->n_harm += exf_beyond_noise(&g.kl) && g.kl.mean < 0;
    d->gain[d->n++] = g;
}

/* Returns the share of its best baseline's KL that a row gains; below 0, loses. */
static double effect_of(const exf_validation *v, const exf_gain *g)
{
    double other = v->variant[g->best].all.kl_mean;
    return other > 0 ? g->kl.mean / other : 0;
}

/* Returns the gain of prefill alone, or of decode alone, with the largest effect; n: none. */
static size_t best_of(const exf_verdict *d, const exf_validation *v, int is_decode)
{
    size_t best = d->n;
    for (size_t i = 0; i < d->n; i++) {
        if (d->gain[i].folds_decode != is_decode || d->gain[i].folds_prefill == is_decode) continue;
        if (best == d->n || effect_of(v, &d->gain[i]) > effect_of(v, &d->gain[best])) best = i;
    }
    return best;
}

exf_code exf_verdict_find(exf_verdict *out, const exf_validation *v, exf_err *err)
{
    size_t *list = NULL;
    exf_variant own;
    exf_code rc;
    memset(out, 0, sizeof *out);
    EXF_TRY(exf_mem_new(&out->gain, v->n_variants, sizeof *out->gain, "verdict", err));
    EXF_TRY(exf_mem_new(&list, v->n_variants, sizeof *list, "verdict", err));
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i];
        if (r->role != EXF_LANE_ASKED) continue;
        size_t n = exf_baselines_of(list, v, i);
        if (n && r->constraint == EXF_CONSTRAINED) add_gain(out, v, i, list, n);
        if (r->constraint != EXF_CONSTRAINED && !out->unconstrained && read_variant(&own, r) && folds_by_tables(&own))
            out->unconstrained = i; /* it may have no baselines */
    }
    out->prefill = best_of(out, v, 0);
    out->decode = best_of(out, v, 1);
out:
    exf_mem_free(list);
    return rc;
}

void exf_verdict_free(exf_verdict *d)
{
    exf_mem_free(d->gain);
    memset(d, 0, sizeof *d);
}

/* ---- words ---------------------------------------------------------------------------------------- */

enum { FEWEST_DIGITS = 4, MOST_DIGITS = 9 };

/* Returns the digits after the point that show two of the half-width. */
static int digits_of(double half)
{
    int digits = half > 1e-9 ? 1 - (int)floor(log10(half)) : 0;
    return digits < FEWEST_DIGITS ? FEWEST_DIGITS : digits > MOST_DIGITS ? MOST_DIGITS : digits;
}

/* Returns 0 for what would be printed as "-0.0000". */
static double drop_sign(double x, int digits)
{
    return fabs(x) < 0.5 * pow(10, -digits) ? 0 : x;
}

/* Appends a sentence without a newline, on what the row gains over its best baseline. */
static void say_gain(const exf_validation *v, const exf_gain *g, exf_text *out)
{
    const exf_variant_result *row = &v->variant[g->row], *best = &v->variant[g->best];
    double mean = g->kl.mean, half = g->kl.half_width, own = row->all.kl_mean, other = best->all.kl_mean;
    int n = digits_of(half);
    if (isnan(half))
        exf_text_appendf(out, "%s: KL %.4f, %s %.4f; one %s cannot tell what is noise", row->name, own, best->name, other,
                         v->clusters_are_documents ? "document" : "sequence");
    else if (!exf_beyond_noise(&g->kl))
        exf_text_appendf(out,
                         "%s: these tables are worth nothing here: KL %.*f, %s %.*f, difference %.*f ± %.*f, within the noise",
                         row->name, n, own, best->name, n, other, n, drop_sign(mean, n), n, half);
    else if (mean > 0)
        exf_text_appendf(out, "%s gains %.*f ± %.*f nats of KL, %.1f %% of it, over %s, its best baseline: beyond the noise",
                         row->name, n, mean, n, half, 100 * effect_of(v, g), best->name);
    else
        exf_text_appendf(out, "%s: these tables do harm here: KL %.*f, %s %.*f, worse by %.*f ± %.*f, beyond the noise", row->name,
                         n, own, best->name, n, other, n, -mean, n, half);
}

/* Appends why the first decode fold that is left out says nothing. */
static void add_unconstrained(const exf_validation *v, const exf_variant_result *r, exf_text *out)
{
    const exf_batch_size *b = &v->batch_size[r->batch];
    if (r->constraint == EXF_FEW_EXPERTS)
        exf_text_appendf(out, "%s: no verdict: the original's batches of %d run %.1f experts, so that nothing is left out\n",
                         r->name, b->size, b->experts);
    else
        exf_text_appendf(out, "%s: no verdict: batches of %d were asked for, and a token has %.1f sequences side by side\n",
                         r->name, b->size, b->width);
}

static void add_sentence(const exf_validation *v, const exf_verdict *d, size_t i, exf_text *out)
{
    if (i == d->n) return;
    say_gain(v, &d->gain[i], out);
    exf_text_appendf(out, "\n");
}

/* Appends the rows in which the tables do harm, or are worth nothing, where there are any. */
static void add_rows(const exf_validation *v, const exf_verdict *d, int harms, exf_text *out)
{
    enum { NAMED = 3 };
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++) {
        const exf_difference *kl = &d->gain[i].kl;
        if (exf_beyond_noise(kl) ? !harms || kl->mean > 0 : harms) continue;
        if (n++ < NAMED)
            exf_text_appendf(out, "%s%s", n > 1 ? ", " : harms ? "; they do harm in " : "; they are worth nothing in ",
                             v->variant[d->gain[i].row].name);
    }
    if (n > NAMED) exf_text_appendf(out, " and %zu more", n - NAMED);
}

/* Appends in how many rows the tables gain, how much, and where they do not. */
static void add_counts(const exf_validation *v, const exf_verdict *d, exf_text *out)
{
    double least = INFINITY, most = -INFINITY;
    exf_text_appendf(out, "The tables gain KL beyond the noise in %zu of %zu rows", d->n_beyond, d->n);
    for (size_t i = 0; i < d->n; i++) {
        if (!exf_beyond_noise(&d->gain[i].kl) || d->gain[i].kl.mean < 0) continue;
        least = fmin(least, 100 * effect_of(v, &d->gain[i]));
        most = fmax(most, 100 * effect_of(v, &d->gain[i]));
    }
    if (d->n_beyond == 1) exf_text_appendf(out, ", %.1f %% of the baseline's", most);
    if (d->n_beyond > 1) exf_text_appendf(out, ", %.1f to %.1f %% of the baseline's", least, most);
    add_rows(v, d, 1, out);
    add_rows(v, d, 0, out);
    exf_text_appendf(out, "\n");
}

void exf_verdict_words(const exf_validation *v, const exf_verdict *d, exf_text *out)
{
    if (d->n > 1) add_counts(v, d, out);
    add_sentence(v, d, d->prefill, out);
    add_sentence(v, d, d->decode, out);
    if (d->decode == d->n && d->unconstrained) add_unconstrained(v, &v->variant[d->unconstrained], out);
    if (!d->n && !d->unconstrained)
        exf_text_appendf(out, "No baseline ran at the same P or D: what the tables gain is not known\n");
}

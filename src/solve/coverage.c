/* coverage.c - whether a calibration's text is enough: how much of the traffic lies in pairs that were well observed, what the
 * targets of one half of the text cost on the other and how many both agree on, and what tables say of themselves where it is
 * not (docs/method.md, section 11). */
#include "solve/solve_internal.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- coverage ---------------------------------------------------------------------------------- */

exf_layer_coverage exf_coverage_of(const exf_tables *t, int l, uint64_t tokens)
{
    size_t e = (size_t)t->shape.n_experts, base = (size_t)l * e * e;
    exf_layer_coverage c = {.pairs = e * (e - 1)};
    double all = 0, within = 0;
    for (size_t i = 0; i < e * e; i++) {
        int observed = t->loss[base + i] < EXF_LOSS_NEVER;
        double n = (double)t->count[base + i];
        c.observed += (size_t)observed;
        c.thin += !observed && n > 0;
        all += n;
        within += observed && t->count[base + i] >= tokens ? n : 0;
    }
    for (size_t i = 0; i < e; i++) c.cold += t->expert_count[(size_t)l * e + i] == 0;
    c.share = all > 0 ? within / all : t->shape.top_k < 2;
    return c;
}

static int falling(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* Rounds up to two digits. */
static double round_up(double x)
{
    double unit = 1;
    while (x / unit > 99) unit *= 10;
    return ceil(x / unit) * unit;
}

/* What was observed shows how routes spread, where a pair has some tokens; below, all pairs are taken for alike. */
exf_code exf_coverage_tokens(const exf_tables *t, int l, uint64_t tokens, double share, double *out, exf_err *err)
{
    enum { SHOWS = 8 };
    const char *pairs = exf_provenance_get(&t->provenance, "accumulate.pairs");
    size_t e = (size_t)t->shape.n_experts;
    double k = (double)t->shape.top_k, most = 0;
    double all = 0, sum = 0;
    uint64_t *count = NULL, reached = 0; /* reached: most tokens that the pairs of that share of the traffic have */
    exf_code rc = exf_mem_new(&count, e * e, sizeof *count, "coverage", err);
    if (rc != EXF_OK) return rc;
    memcpy(count, t->count + (size_t)l * e * e, e * e * sizeof *count);
    for (size_t i = 0; i < e * e; i++) all += (double)count[i];
    qsort(count, e * e, sizeof *count, falling);
    for (size_t i = 0; i < e * e && sum < share * all; i++) sum += (double)(reached = count[i]);
    if (reached) most = (double)tokens / (double)reached * (double)t->shape.n_tokens;
    if (reached < SHOWS && k > 1 && !(pairs && strcmp(pairs, "common_input") == 0))
        most = fmax(most, (double)tokens * (double)(e * (e - 1)) / (k * (k - 1)));
    *out = round_up(most);
    exf_mem_free(count);
    return EXF_OK;
}

exf_code exf_coverage_worst(const exf_tables *t, uint64_t tokens, int *layer, double *share, exf_err *err)
{
    *layer = 0;
    *share = 1;
    for (int l = 0; l < t->n_layers; l++) {
        exf_layer_coverage c = exf_coverage_of(t, l, tokens);
        if (c.share >= *share) continue;
        *layer = l;
        *share = c.share;
    }
    return exf_stop_check(err);
}

/* ---- halves -------------------------------------------------------------------------------------- */

/* Returns the target of least loss, ties to the lower number; -1: none has evidence. */
static int best_target(const float *loss, size_t e)
{
    int best = -1;
    for (size_t i = 0; i < e; i++)
        if (loss[i] < EXF_LOSS_NEVER && (best < 0 || loss[i] < loss[best])) best = (int)i;
    return best;
}

exf_stability exf_stability_of(const float *loss, const float *const half_loss[2], const uint64_t *tokens, size_t e)
{
    exf_stability s = {.tokens = 0};
    for (size_t i = 0; i < e; i++) {
        if (best_target(loss + i * e, e) < 0) continue;
        int one = best_target(half_loss[0] + i * e, e), other = best_target(half_loss[1] + i * e, e);
        s.tokens += tokens[i];
        s.stable += one >= 0 && one == other ? tokens[i] : 0;
    }
    return s;
}

/* A target that explains less than NONE explains nothing: what it adds depends on its scalar, which float32 does not resolve.
 * Without a target, or with one that the judging tables never saw, the source is dropped. */
void exf_choice_add(exf_choice_sums *c, const float *const scalar[2], const float *const loss[2], const uint64_t *tokens, size_t e)
{
    const double NONE = 1e-4;
    for (size_t i = 0; i < e; i++) {
        const float *const row[2] = {loss[0] + i * e, loss[1] + i * e};
        int best[2] = {best_target(row[0], e), best_target(row[1], e)};
        for (int judge = 0; judge < 2; judge++) {
            int own = best[judge], other = best[!judge];
            double lost = 1;
            if (own < 0) continue;
            if (other >= 0 && row[judge][other] < EXF_LOSS_NEVER) {
                double s = (double)scalar[!judge][i * e + (size_t)other], mine = (double)scalar[judge][i * e + (size_t)other];
                double left = (double)row[judge][other], apart = mine != 0 ? s / mine - 1 : 0;
                lost = left + (1 - left > NONE ? (1 - left) * apart * apart : 0);
            }
            c->all += (double)tokens[i];
            c->own += (double)tokens[i] * (double)row[judge][own];
            c->choice += (double)tokens[i] * lost;
        }
    }
}

double exf_choice_cost(const exf_choice_sums *c)
{
    return c->all > 0 ? fmin(fmax(0, c->choice - c->own) / c->all, EXF_MOST_COST) : (double)NAN;
}

/* ---- facts ----------------------------------------------------------------------------------------- */

/* Returns the share of the traffic whose best target both halves agree on; -1: nothing tells. */
static double stable_share(const exf_tables *t)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_stability all = {.tokens = 0};
    for (size_t l = 0; t->half_loss[0] && l < (size_t)t->n_layers; l++) {
        const float *const half[2] = {t->half_loss[0] + l * e * e, t->half_loss[1] + l * e * e};
        exf_stability s = exf_stability_of(t->loss + l * e * e, half, t->expert_count + l * e, e);
        all.tokens += s.tokens;
        all.stable += s.stable;
    }
    return all.tokens ? (double)all.stable / (double)all.tokens : -1;
}

/* Returns what one half's choice costs on the other in all layers; NaN: nothing tells. */
static double choice_cost(const exf_tables *t)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_choice_sums all = {.own = 0};
    for (size_t l = 0; t->half_loss[0] && l < (size_t)t->n_layers; l++) {
        const float *const scalar[2] = {t->half_scalar[0] + l * e * e, t->half_scalar[1] + l * e * e};
        const float *const loss[2] = {t->half_loss[0] + l * e * e, t->half_loss[1] + l * e * e};
        exf_choice_add(&all, scalar, loss, t->expert_count + l * e, e);
    }
    return exf_choice_cost(&all);
}

/* Appends why pairs are not covered. */
static exf_code add_thin(exf_text *why, const exf_tables *t, uint64_t pair_tokens, double least, double *needed, exf_err *err)
{
    double share;
    int l;
    exf_code rc;
    EXF_TRY(exf_coverage_worst(t, pair_tokens, &l, &share, err));
    if (share >= least) goto out;
    EXF_TRY(exf_coverage_tokens(t, l, pair_tokens, least, needed, err));
    exf_text_appendf(why, "%.0f %% of layer %d's pair traffic is in pairs of %llu tokens or more, expected %.0f %%", 100 * share,
                     (int)t->layer_number[l], (unsigned long long)pair_tokens, 100 * least);
out:
    return rc;
}

exf_code exf_coverage_lacks(exf_text *why, const exf_tables *t, int one_half, uint64_t pair_tokens, double least, exf_err *err)
{
    const double COST_POWER = 0.5; /* the cost falls as the tokens to this power (docs/method.md, section 11, has the figures) */
    double cost = choice_cost(t), tokens = (double)t->shape.n_tokens, needed = 0;
    const char *documents = exf_provenance_get(&t->provenance, EXF_DOCUMENTS_FACT);
    exf_code rc;
    if (least <= 0 || t->shape.n_tokens == 0) return EXF_OK; /* tables of others do not tell their text */
    EXF_TRY(add_thin(why, t, pair_tokens, least, &needed, err));
    if (cost > EXF_CHOICE_COST) {
        exf_text_appendf(why, "%sthe targets that half of the text chooses lose %.0f %% of the experts' output more on the "
                         "other half than its own, expected at most %.0f %%", why->len ? ", and " : "", 100 * cost,
                         100 * EXF_CHOICE_COST);
        needed = fmax(needed, round_up(tokens * pow(cost / EXF_CHOICE_COST, 1 / COST_POWER)));
    }
    if (needed > 0)
        exf_text_appendf(why, ": the text has %.0f tokens, about %.0f would do", tokens, needed);
    if (one_half && documents)
        exf_text_appendf(why, "%sall %.0f sequences are of %s document%s in one of the two halves that are compared, so that "
                         "nothing tells how much hangs on the text: more documents do", why->len ? "; " : "",
                         (double)t->shape.n_sequences, documents, strcmp(documents, "1") == 0 ? "," : "s");
    else if (one_half)
        exf_text_appendf(why, "%sall %.0f sequences fell into one of the two halves that are compared, so that nothing tells how "
                         "much hangs on the text: more sequences do", why->len ? "; " : "", (double)t->shape.n_sequences);
    rc = exf_text_end(why, err);
out:
    return rc;
}

exf_code exf_coverage_facts(exf_tables *t, int halves, exf_err *err)
{
    int one_half = halves && !t->half_loss[0];
    double stable = stable_share(t), cost = choice_cost(t);
    exf_text why = {0};
    exf_code rc;
    if (stable >= 0) EXF_TRY(exf_provenance_add(&t->provenance, err, EXF_STABLE_FACT, "%.4f", stable));
    if (!isnan(cost)) EXF_TRY(exf_provenance_add(&t->provenance, err, EXF_COST_FACT, "%.4f", cost));
    if (one_half) EXF_TRY(exf_provenance_add(&t->provenance, err, EXF_HALVES_FACT, "1"));
    EXF_TRY(exf_coverage_lacks(&why, t, one_half, EXF_COVERAGE_TOKENS, EXF_COVERAGE_SHARE, err));
    if (why.len) rc = exf_provenance_add(&t->provenance, err, EXF_SMALL_FACT, "%s", why.s);
out:
    exf_text_free(&why);
    return rc;
}

/* coverage.c - whether a calibration's text is enough: how much of the traffic lies in pairs that were well observed, how many
 * targets both halves of the text agree on, and what tables say of themselves where it is not (docs/method.md, section 11). */
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

/* Returns the largest number of tokens that the pairs of a share of the traffic reach; 0 where there is no traffic. */
static uint64_t tokens_reached(uint64_t *count, size_t n, double share)
{
    double all = 0, sum = 0;
    size_t i = 0;
    for (size_t k = 0; k < n; k++) all += (double)count[k];
    qsort(count, n, sizeof *count, falling);
    while (i < n && sum < share * all) sum += (double)count[i++];
    return i ? count[i - 1] : 0;
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
    uint64_t *count = NULL;
    exf_code rc = exf_mem_new(&count, e * e, sizeof *count, "coverage", err);
    if (rc != EXF_OK) return rc;
    memcpy(count, t->count + (size_t)l * e * e, e * e * sizeof *count);
    uint64_t reached = tokens_reached(count, e * e, share);
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

/* ---- facts ----------------------------------------------------------------------------------------- */

static exf_code add_stability(exf_tables *t, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_stability all = {.tokens = 0};
    for (size_t l = 0; t->half_loss[0] && l < (size_t)t->n_layers; l++) {
        const float *const half[2] = {t->half_loss[0] + l * e * e, t->half_loss[1] + l * e * e};
        exf_stability s = exf_stability_of(t->loss + l * e * e, half, t->expert_count + l * e, e);
        all.tokens += s.tokens;
        all.stable += s.stable;
    }
    if (!all.tokens) return EXF_OK;
    return exf_provenance_add(&t->provenance, err, EXF_STABLE_FACT, "%.4f", (double)all.stable / (double)all.tokens);
}

exf_code exf_coverage_facts(exf_tables *t, int halves, exf_err *err)
{
    exf_text why = {0};
    double share, needed;
    int l;
    exf_code rc;
    EXF_TRY(add_stability(t, err));
    EXF_TRY(exf_coverage_worst(t, EXF_COVERAGE_TOKENS, &l, &share, err));
    if (share < EXF_COVERAGE_SHARE) {
        EXF_TRY(exf_coverage_tokens(t, l, EXF_COVERAGE_TOKENS, EXF_COVERAGE_SHARE, &needed, err));
        exf_text_appendf(&why, "%.0f %% of layer %d's pair traffic is in pairs of %d tokens or more, expected %.0f %%: %lld tokens "
                         "of text were calibrated on, about %.0f would do", 100 * share, (int)t->layer_number[l],
                         EXF_COVERAGE_TOKENS, 100 * EXF_COVERAGE_SHARE, (long long)t->shape.n_tokens, needed);
    }
    if (halves && !t->half_loss[0])
        exf_text_appendf(&why, "%sall sequences are of one half of the data, so that nothing tells how much hangs on the text: "
                         "calibrate on more sequences", why.len ? "; " : "");
    EXF_TRY(exf_text_end(&why, err));
    if (why.len) rc = exf_provenance_add(&t->provenance, err, EXF_SMALL_FACT, "%s", why.s);
out:
    exf_text_free(&why);
    return rc;
}

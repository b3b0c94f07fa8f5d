/* validation_words.c - says in sentences what a validation found: stability, what is not constrained, the data, and what is
 * recommended; see validation.h.  Every output has the same sentences. */
#include "validate/validation.h"

#include "artifact/provenance.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- lines ---------------------------------------------------------------------------------------- */

/* Returns 1 for the first byte of a character of UTF-8. */
static int begins_character(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

size_t exf_bytes_of_columns(const char *s, int columns)
{
    size_t n = 0;
    while (s[n] && (columns > 0 || !begins_character(s[n]))) columns -= begins_character(s[n++]);
    return n;
}

/* Returns 1 for a blank at which a line may end: not before a per cent sign, nor on either side of "±". */
static int may_break(const char *s, size_t at)
{
    return s[at] == ' ' && s[at + 1] != '%' && strncmp(s + at + 1, "±", 2) != 0 && !(at > 1 && strncmp(s + at - 2, "±", 2) == 0);
}

void exf_add_wrapped(exf_text *out, const char *s, size_t n)
{
    size_t indent = strspn(s, " ");
    size_t at = indent; /* where the line's words begin */
    int room = EXF_SUMMARY_COLUMNS;
    while (n > 0) {
        size_t take = exf_bytes_of_columns(s, room);
        if (take >= n) {
            take = n;
        } else {
            size_t blank = take;
            while (blank > 0 && !may_break(s, blank)) blank--;
            take = blank > at ? blank : take;
        }
        exf_text_append(out, s, take);
        exf_text_append(out, "\n", 1);
        s += take;
        n -= take;
        while (n > 0 && *s == ' ') s++, n--;
        if (n > 0) exf_text_appendf(out, "%*s", (int)indent + 2, "");
        room = EXF_SUMMARY_COLUMNS - (int)indent - 2;
        at = 0;
    }
}

/* ---- what several sentences ask -------------------------------------------------------------------- */

static void add_interval(exf_text *out, const char *before, const char *what, exf_difference d)
{
    exf_text_appendf(out, "%s %s %.5f ± ", before, what, d.mean);
    if (isnan(d.half_width))
        exf_text_appendf(out, "-");
    else
        exf_text_appendf(out, "%.5f", d.half_width);
}

size_t exf_count_role(const exf_validation *v, exf_lane_role role)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n_variants; i++) n += v->variant[i].role == role;
    return n;
}

const exf_gain *exf_validate_gain(const exf_validate_report *r, size_t i)
{
    for (size_t k = 0; r->verdict && k < r->verdict->n; k++)
        if (r->verdict->gain[k].row == i) return &r->verdict->gain[k];
    return NULL;
}

int exf_validate_answers_for(const exf_validate_report *r, const exf_runtime *runtime)
{
    if (r->of.runtime && r->of.runtime != runtime) return 0;
    return exf_runtime_serves(runtime, r->of.family, r->of.a, NULL) == EXF_OK;
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

/* Adds the KLs of each row that ran by the tables of both halves, and is constrained. */
static void add_halves(const exf_validation *v, exf_text *out)
{
    int n = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i];
        size_t one = find_half(v, r->name, 1), two = find_half(v, r->name, 2);
        if (r->role == EXF_LANE_HALF || r->constraint != EXF_CONSTRAINED || !one || !two) continue;
        exf_difference apart = exf_kl_difference(v, one, two);
        exf_text_appendf(out, "%s %s %.5f and %.5f%s (by all %.5f)",
                         n++ ? ";" : "Stability: KL by the tables of each half of the calibration:", r->name,
                         v->variant[one].all.kl_mean, v->variant[two].all.kl_mean,
                         exf_beyond_noise(&apart) ? ", apart beyond the noise" : "", r->all.kl_mean);
    }
    if (n) exf_text_appendf(out, "\n");
}

static void add_stability(const exf_validate_report *r, exf_text *out)
{
    const char *same = r->tables ? exf_provenance_get(r->tables, "solve.stable_targets") : NULL,
               *small = r->tables ? exf_provenance_get(r->tables, "solve.small_calibration") : NULL;
    const char *cost = r->tables ? exf_provenance_get(r->tables, "solve.choice_cost") : NULL;
    double share, more;
    if (small) exf_text_appendf(out, "%s\n", small);
    if (same && exf_parse_f64(same, &share))
        exf_text_appendf(out, "Stability: both halves of the calibration choose the same target for %.1f %% of the traffic.\n",
                         100 * share);
    if (cost && exf_parse_f64(cost, &more))
        exf_text_appendf(out, "Cost of the choice: targets of one half lose %.1f %% more on the other half than its own.\n",
                         100 * more);
    add_halves(r->of.v, out);
}

/* ---- what is not constrained --------------------------------------------------------------------- */

void exf_constraint_words(const exf_validation *v, size_t i, exf_text *out)
{
    exf_text_appendf(out, "not constrained: ");
    exf_constraint_advice(out, v, &v->variant[i]);
}

/* Adds a sentence for each batch size and reason, with some of the rows that it is about; tables mark them all. */
static void add_constraints(const exf_validation *v, exf_text *out)
{
    enum { NAMED = 3 };
    static const exf_constraint reasons[] = {EXF_FEW_EXPERTS, EXF_SHORT_BATCHES};
    for (int b = 0; b < v->n_batch_sizes; b++)
        for (size_t k = 0; k < sizeof reasons / sizeof *reasons; k++) {
            const exf_variant_result *first = NULL;
            int n = 0;
            for (size_t i = 1; i < v->n_variants; i++) {
                const exf_variant_result *r = &v->variant[i];
                if (r->role != EXF_LANE_ASKED || r->batch != b || r->constraint != reasons[k]) continue;
                if (n++ < NAMED) exf_text_appendf(out, "%s%s", first ? ", " : "Not constrained: ", r->name);
                if (!first) first = r;
            }
            if (!first) continue;
            if (n > NAMED) exf_text_appendf(out, " and %d more", n - NAMED);
            exf_text_appendf(out, ": ");
            exf_constraint_advice(out, v, first);
            exf_text_appendf(out, "\n");
        }
}

/* ---- the data ------------------------------------------------------------------------------------ */

static void add_data(const exf_validate_report *r, exf_text *out)
{
    enum { NAMED = 3 };
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
    if (v->n_domains > NAMED) exf_text_appendf(out, " and %zu more", v->n_domains - NAMED);
    exf_text_appendf(out, "; decode batches of ");
    for (int b = 0; b < v->n_batch_sizes; b++) exf_text_appendf(out, "%s%d", b ? ", " : "", v->batch_size[b].size);
    exf_text_appendf(out, ".\n");
}

/* ---- the recommendation -------------------------------------------------------------------------- */

void exf_choice_words(const exf_validate_report *r, exf_choice c, exf_row_kind kind, int batch, exf_text *out)
{
    int prefill = kind == EXF_ROW_PREFILL, size = r->of.v->batch_size[batch].size;
    double cost = exf_row_cost(&r->row[c.row], kind), whole = exf_whole_share(&r->of, cost, kind, batch);
    if (prefill) exf_text_appendf(out, "  prefill");
    else exf_text_appendf(out, "  batches of %d: decode", size);
    exf_text_appendf(out, "%s %s, %.1f %% of the experts' %s", c.holds ? "" : ": nothing holds; nearest",
                     r->of.v->variant[c.row].name, 100 * cost / exf_original_cost(&r->of, kind, batch),
                     prefill ? "FLOP" : "bytes");
    if (!isnan(whole)) exf_text_appendf(out, ", %.1f %% of all", 100 * whole);
    add_interval(out, ",", exf_limit_words(r->limit), exf_limit_value(r->limit, r->of.v, c.row));
}

/* Says what both rows do together, or adds them to the variants that were not run. */
static void add_together(const exf_validate_report *r, exf_choice p, exf_choice d, exf_text *missing, exf_text *out)
{
    if (!p.row || !p.holds || !d.row || !d.holds) return;
    size_t both = exf_find_together(&r->of, p.row, d.row);
    if (!both) {
        char pair[2 * EXF_VARIANT_NAME_LEN + 2];
        snprintf(pair, sizeof pair, "%s+%s", r->of.v->variant[p.row].name, r->of.v->variant[d.row].name);
        if (!missing->s || !strstr(missing->s, pair)) exf_text_appendf(missing, "%s%s", missing->len ? " " : "", pair);
        return;
    }
    exf_difference value = exf_limit_value(r->limit, r->of.v, both);
    add_interval(out, r->prefill_tokens ? "; together" : "; both at every position", exf_limit_words(r->limit), value);
    if (!(value.mean + value.half_width <= r->limit->most)) exf_text_appendf(out, ", above the limit");
}

/* Adds what a pair does that was run without its parts: each alone would say nothing of it. */
static void add_pair(const exf_validate_report *r, size_t i, exf_text *out)
{
    exf_difference value = exf_limit_value(r->limit, r->of.v, i);
    exf_text_appendf(out, "  %s", r->of.v->variant[i].name);
    add_interval(out, r->prefill_tokens ? ", together" : ", both at every position", exf_limit_words(r->limit), value);
    exf_text_appendf(out, "%s\n", value.mean + value.half_width <= r->limit->most ? ": holds the limit" : ": above the limit");
}

/* Adds the choices of a runtime (NULL: of all rows) for each batch size and returns how many; collects pairs that were not run. */
static int add_choices(const exf_validate_report *r, const exf_runtime *runtime, exf_text *missing, exf_text *out)
{
    exf_choice p = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_PREFILL, 0, runtime);
    int n = p.row != 0;
    if (p.row) exf_choice_words(r, p, EXF_ROW_PREFILL, 0, out);
    if (p.row) exf_text_appendf(out, "\n");
    for (int b = 0; b < r->of.v->n_batch_sizes; b++) {
        exf_choice d = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_DECODE, b, runtime);
        if (!d.row) continue;
        exf_choice_words(r, d, EXF_ROW_DECODE, b, out);
        add_together(r, p, d, missing, out);
        exf_text_appendf(out, "\n");
        n++;
    }
    for (size_t i = 1; !n && !runtime && i < r->of.v->n_variants; i++)
        if (r->row[i].competes && r->row[i].kind == EXF_ROW_BOTH) add_pair(r, i, out);
    return n;
}

/* Adds the choices of each public runtime that serves the model. */
static void add_runtimes(const exf_validate_report *r, exf_text *missing, exf_text *out)
{
    const exf_runtime *runtime;
    for (size_t i = 0; (runtime = exf_runtime_at(i)); i++) {
        if (!exf_validate_answers_for(r, runtime)) continue;
        exf_text_appendf(out, "In %s:", runtime->name);
        size_t before = out->len;
        exf_text_appendf(out, "\n");
        if (add_choices(r, runtime, missing, out)) continue;
        out->len = before;
        exf_text_appendf(out, " nothing that it runs was measured; --runtime %s does\n", runtime->name);
    }
}

static exf_code add_recommendation(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    exf_text missing = {0}, choices = {0};
    exf_code rc;
    (void)add_choices(r, NULL, &missing, &choices);
    EXF_TRY(exf_text_end(&choices, err));
    exf_text_appendf(out, "Recommended for %s=%g, which the whole 95 %% interval holds, of all:%s\n%s",
                     exf_limit_name(r->limit), r->limit->most, choices.len ? "" : " nothing; no row that saves anything was run",
                     choices.len ? choices.s : "");
    add_runtimes(r, &missing, out);
    EXF_TRY(exf_text_end(&missing, err));
    if (missing.len)
        exf_text_appendf(out, "Prefill and decode were measured apart; what they do together: --variants '%s' --set "
                              "validate.prefill_tokens=%d, after which the tokens of a sequence count as decoded\n",
                         missing.s, r->prefill_tokens ? r->prefill_tokens : r->longest / 2);
out:
    exf_text_free(&missing);
    exf_text_free(&choices);
    return rc;
}

/* ---- the verdict ------------------------------------------------------------------------------------- */

/* Adds the variants that lost to the plain fold of their P or D beyond the noise. */
static void add_lost(const exf_validate_report *r, exf_text *out)
{
    enum { NAMED = 3 };
    const exf_validation *v = r->of.v;
    size_t n = 0;
    for (size_t i = 1; r->row && i < v->n_variants; i++) {
        size_t twin = r->row[i].lost_to;
        if (!twin) continue;
        exf_difference worse = exf_kl_difference(v, i, twin);
        if (!exf_beyond_noise(&worse)) continue;
        if (n++ < NAMED)
            exf_text_appendf(out, "%s%s (KL %.4f, %s %.4f)",
                             n > 1 ? ", " : "Not recommended, since the plain fold does better beyond the noise at no more cost: ",
                             v->variant[i].name, v->variant[i].all.kl_mean, v->variant[twin].name, v->variant[twin].all.kl_mean);
    }
    if (n > NAMED) exf_text_appendf(out, " and %zu more", n - NAMED);
    if (n) exf_text_appendf(out, "\n");
}

/* Adds the variants of which a layer's output error is far above that of the plain fold of their P or D: weights that explode in
 * one layer may cost little KL on one text and much on another. */
static void add_worse_layers(const exf_validate_report *r, exf_text *out)
{
    enum { NAMED = 3 };
    const exf_validation *v = r->of.v;
    size_t n = 0;
    for (size_t i = 1; r->row && i < v->n_variants; i++) {
        int l = 0;
        if (exf_worst_layer(&l, v, r->row, i) < EXF_WORSE_LAYER || n++ >= NAMED) continue;
        exf_text_appendf(out, "%s%s in layer %d (%.3f, %s %.3f)",
                         n > 1 ? ", " : "The output of one layer is 1.5 times as wrong as in the plain fold, or more: ",
                         v->variant[i].name, v->variant[i].layer[l].layer, v->variant[i].layer[l].output_error,
                         v->variant[r->row[i].twin].name, v->variant[r->row[i].twin].layer[l].output_error);
    }
    if (n > NAMED) exf_text_appendf(out, " and %zu more", n - NAMED);
    if (n) exf_text_appendf(out, "\n");
}

exf_code exf_validate_words(const exf_validate_report *r, exf_words which, exf_text *out, exf_err *err)
{
    exf_code rc;
    switch (which) {
    case EXF_WORDS_VERDICT:
        if (r->verdict) exf_verdict_words(r->of.v, r->verdict, out);
        if (r->verdict) add_lost(r, out);
        break;
    case EXF_WORDS_LAYERS: add_worse_layers(r, out); break;
    case EXF_WORDS_STABILITY: add_stability(r, out); break;
    case EXF_WORDS_CONSTRAINTS: add_constraints(r->of.v, out); break;
    case EXF_WORDS_DATA: add_data(r, out); break;
    case EXF_WORDS_RECOMMENDATION:
        if (r->limit) EXF_TRY(add_recommendation(r, out, err));
        break;
    }
    rc = exf_text_end(out, err);
out:
    return rc;
}

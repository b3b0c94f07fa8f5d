/* coverage_report.c - what calibration did not see; see stage_internal.h. */
#include "run/stage_internal.h"

#include "artifact/shards.h"
#include "base/log.h"
#include "base/text.h"
#include "solve/solve.h"

enum { NAMED = 8 }; /* experts in a layer's line */

static exf_code add_list(exf_text *out, const exf_tables *t, int l, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts, named = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < e && named <= NAMED; i++)
        if (t->expert_count[(size_t)l * e + i] == 0) {
            rc = named == NAMED ? exf_text_addf(out, err, " ...") : exf_text_addf(out, err, "%s%zu", named ? " " : " (", i);
            named++;
        }
    return rc == EXF_OK && named ? exf_text_addf(out, err, ")") : rc;
}

static exf_code report_layer(const exf_tables *t, int l, const exf_layer_coverage *c, int64_t least, exf_err *err)
{
    exf_text line = {0};
    exf_code rc = EXF_OK;
    if (!c->cold && !c->thin) return EXF_OK;
    EXF_TRY(exf_text_addf(&line, err, "layer %d: %zu of %zu pairs observed", (int)t->layer_number[l], c->observed, c->pairs));
    if (c->thin) EXF_TRY(exf_text_addf(&line, err, ", %zu left out with fewer than %lld tokens", c->thin, (long long)least));
    if (c->cold) EXF_TRY(exf_text_addf(&line, err, "; %zu cold experts", c->cold));
    EXF_TRY(add_list(&line, t, l, err));
    exf_log_info("%s", line.s);
out:
    exf_text_free(&line);
    return rc;
}

/* One line per source that has any. */
static exf_code list_thin(const exf_tables *t, int l, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_code rc = EXF_OK;
    for (size_t s = 0; rc == EXF_OK && s < e; s++) {
        exf_text line = {0};
        for (size_t k = 0; rc == EXF_OK && k < e; k++) {
            size_t at = ((size_t)l * e + s) * e + k;
            if (t->count[at] && t->loss[at] >= EXF_LOSS_NEVER)
                rc = exf_text_addf(&line, err, " %zu (%llu)", k, (unsigned long long)t->count[at]);
        }
        if (line.s) exf_log_debug("layer %d: thin pairs of %zu with:%s", (int)t->layer_number[l], s, line.s);
        exf_text_free(&line);
    }
    return rc;
}

exf_code exf_tell_part(const exf_tables *t, const char *path, exf_err *err)
{
    exf_facts_part file = {.path = path, .provenance = &t->provenance};
    exf_text part = {0};
    exf_code rc = exf_part_words(&part, &file, err);
    if (rc == EXF_OK && part.len) exf_log_warn("%s: is of a part: %s", path, part.s);
    exf_text_free(&part);
    return rc;
}

exf_code exf_coverage_report(const exf_tables *t, const exf_recipe *r, exf_worst_coverage *worst, exf_err *err)
{
    exf_code rc = EXF_OK;
    *worst = (exf_worst_coverage){-1, 1};
    for (int l = 0; l < t->n_layers; l++) {
        exf_layer_coverage c = exf_coverage_of(t, l);
        double share = c.pairs ? (double)c.observed / (double)c.pairs : 1;
        if (worst->layer < 0 || share < worst->observed) *worst = (exf_worst_coverage){t->layer_number[l], share};
        EXF_TRY(report_layer(t, l, &c, r->min_pair_tokens, err));
        if (r->verbose) EXF_TRY(list_thin(t, l, err));
    }
out:
    return rc;
}

exf_code exf_coverage_gate(const exf_recipe *r, const exf_worst_coverage *worst, exf_err *err)
{
    if (worst->observed >= r->coverage_fail_below) return EXF_OK;
    return exf_fail(err, EXF_THRESHOLD,
                    "coverage.fail_below: layer %d has %.4f of its ordered pairs observed, at least %.4f were asked for",
                    worst->layer, worst->observed, r->coverage_fail_below);
}

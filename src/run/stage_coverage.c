/* stage_coverage.c - what the text of a calibration did not see: reports it, refuses tables of too little text, and says what comes
 * next; see stage.h. */
#include "run/stage.h"

#include "artifact/data.h"
#include "base/log.h"
#include "base/text.h"
#include "fold/variant.h"

#include <stdio.h>
#include <string.h>

enum { NAMED = 8 }; /* experts that a layer's line names */

/* Reports a layer with cold experts or thin pairs in one line. */
static exf_code report_layer(const exf_tables *t, int l, const exf_layer_coverage *c, int64_t least, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts, named = 0;
    exf_text line = {0};
    if (!c->cold && !c->thin) return EXF_OK;
    exf_text_appendf(&line, "layer %d: %zu of %zu pairs observed", (int)t->layer_number[l], c->observed, c->pairs);
    if (c->thin) exf_text_appendf(&line, ", %zu left out with fewer than %lld tokens", c->thin, (long long)least);
    if (c->cold) exf_text_appendf(&line, "; %zu cold experts", c->cold);
    for (size_t i = 0; i < e && named <= NAMED; i++) {
        if (t->expert_count[(size_t)l * e + i] != 0) continue;
        if (named == NAMED)
            exf_text_appendf(&line, " ...");
        else
            exf_text_appendf(&line, "%s%zu", named ? " " : " (", i);
        named++;
    }
    if (named) exf_text_appendf(&line, ")");
    exf_code rc = exf_text_end(&line, err);
    if (rc == EXF_OK) exf_log_info("%s", line.s);
    exf_text_free(&line);
    return rc;
}

/* Reports a layer's thin pairs, a line for each source that has any. */
static exf_code report_thin_pairs(const exf_tables *t, int l, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_code rc = EXF_OK;
    for (size_t s = 0; rc == EXF_OK && s < e; s++) {
        exf_text line = {0};
        for (size_t k = 0; k < e; k++) {
            size_t at = ((size_t)l * e + s) * e + k;
            if (t->count[at] && t->loss[at] >= EXF_LOSS_NEVER)
                exf_text_appendf(&line, " %zu (%llu)", k, (unsigned long long)t->count[at]);
        }
        rc = exf_text_end(&line, err);
        if (rc == EXF_OK && line.s) exf_log_debug("layer %d: thin pairs of %zu with:%s", (int)t->layer_number[l], s, line.s);
        exf_text_free(&line);
    }
    return rc;
}

exf_code exf_coverage_report(const exf_tables *t, const exf_recipe *r, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int l = 0; l < t->n_layers; l++) {
        exf_layer_coverage c = exf_coverage_of(t, l, (uint64_t)r->coverage_tokens);
        EXF_TRY(report_layer(t, l, &c, r->min_pair_tokens, err));
        if (r->verbose) EXF_TRY(report_thin_pairs(t, l, err));
    }
out:
    return rc;
}

exf_code exf_coverage_gate(const exf_recipe *r, const exf_tables *t, const char *path, exf_err *err)
{
    int64_t tokens = r->coverage_tokens > r->min_pair_tokens ? r->coverage_tokens : r->min_pair_tokens;
    int one_half = exf_provenance_get(&t->provenance, EXF_HALVES_FACT) != NULL;
    const char *small = exf_provenance_get(&t->provenance, EXF_SMALL_FACT);
    exf_text why = {0};
    exf_code rc;
    EXF_TRY(exf_coverage_lacks(&why, t, one_half, (uint64_t)tokens, r->coverage_fail_below, err));
    if (why.len && r->accept != EXF_ACCEPT_SMALL_CALIBRATION)
        rc = exf_fail(err, EXF_THRESHOLD,
                      "%s: is of too little text to serve by (coverage.fail_below is %g): %s; exfold-export --accept "
                      "small-calibration takes it all the same", path, r->coverage_fail_below, why.s);
    else if (why.len || small)
        exf_log_warn("%s: small calibration: %s", path, why.len ? why.s : small);
out:
    exf_text_free(&why);
    return rc;
}

/* Says what validates tables whose model exfold-validate may not read, since another program ran it (docs/any-model.md). */
static void add_validation_in_vllm(exf_text *next, const exf_tables *t, const exf_recipe *r, const char *path)
{
    size_t stem = strlen(path) - (exf_ends_with(path, ".h5") ? strlen(".h5") : 0);
    exf_text exported = {0};
    exf_text_append(&exported, path, stem);
    exf_text_appendf(&exported, ".safetensors");
    exf_text_appendf(next, "what they are worth is told by other text in vLLM: python3 -m exfold_vllm.validate ");
    exf_text_append_word(next, r->model_path ? r->model_path : "DIR");
    exf_text_appendf(next, " IDS.safetensors P%d D%d --tables ", (int)(t->shape.top_k + 1) / 2, (int)t->shape.n_experts / 2);
    exf_text_append_word(next, exported.s ? exported.s : "");
    exf_text_appendf(next, " -o DIR --limit kl=0.05");
    if (exported.refused) next->refused = exported.refused;
    exf_text_free(&exported);
}

/* Names the command that comes next. */
static exf_code tell_next(const exf_tables *t, const exf_recipe *r, const char *path, exf_err *err)
{
    const char *program = exf_provenance_get(&t->provenance, "capture.program");
    exf_text next = {0};
    if (!exf_variant_folds((int)t->shape.n_experts, (int)t->shape.top_k)) {
        exf_text_appendf(&next, "no fold takes a model of %lld experts and %lld per token; look at the tables with: exfold-inspect "
                         "report ", (long long)t->shape.n_experts, (long long)t->shape.top_k);
        exf_text_append_word(&next, path);
        exf_text_appendf(&next, " -o report.html");
    } else if (program && strcmp(program, "exfold_record") == 0) {
        add_validation_in_vllm(&next, t, r, path);
    } else {
        exf_text_appendf(&next, "what they are worth is told by other text: exfold-validate --model ");
        exf_text_append_word(&next, r->model_path ? r->model_path : "DIR");
        exf_text_appendf(&next, " --tables ");
        exf_text_append_word(&next, path);
        exf_text_appendf(&next, " --text FILE --limit kl=0.05");
    }
    exf_code rc = exf_text_end(&next, err);
    if (rc == EXF_OK) exf_log_info("next: %s", next.s);
    exf_text_free(&next);
    return rc;
}

exf_code exf_coverage_conclude(const exf_solved *made, const exf_recipe *r, const char *path, exf_err *err)
{
    const exf_tables *t = &made->tables;
    const char *stable = exf_provenance_get(&t->provenance, EXF_STABLE_FACT);
    const char *cost = exf_provenance_get(&t->provenance, EXF_COST_FACT);
    double share, more;
    if (made->lacks.code != EXF_OK) {
        *err = made->lacks;
        return err->code;
    }
    fflush(stdout); /* the conclusion comes after what was written */
    if (!exf_provenance_get(&t->provenance, EXF_SMALL_FACT) && stable && exf_parse_f64(stable, &share) && cost &&
        exf_parse_f64(cost, &more))
        exf_log_info("the text is enough: targets that half of its %lld tokens chooses lose %.1f %% of the experts' output more "
                     "on the other half than its own (at most %.0f %%); both choose the same for %.1f %% of the traffic",
                     (long long)t->shape.n_tokens, 100 * more, 100 * EXF_CHOICE_COST, 100 * share);
    return tell_next(t, r, path, err);
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

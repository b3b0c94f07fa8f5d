/* stage_validate_results.c - what a validation writes: facts, the summary, JSON, markdown and the picture of a frontier; see
 * stage.h. */
#include "run/stage_validate_internal.h"

#include "artifact/data.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- facts ------------------------------------------------------------------------------------ */

/* Adds the fact validate.text: the files of --text, or the manifest, without their directories. */
static exf_code add_text_fact(exf_provenance *p, const exf_recipe *r, exf_err *err)
{
    enum { NAMED = 3 };
    size_t n = r->texts.n ? r->texts.n + r->n_inputs : 0;
    exf_text names = {0};
    for (size_t i = 0; i < (n ? n : 1) && i < NAMED; i++) {
        const char *path = !n ? r->validate_manifest : i < r->texts.n ? r->texts.item[i] : r->inputs[i - r->texts.n];
        const char *slash = strrchr(path, '/');
        exf_text_appendf(&names, "%s%s", i ? ", " : "", slash && slash[1] ? slash + 1 : path);
    }
    if (n > NAMED) exf_text_appendf(&names, " and %zu more files", n - NAMED);
    exf_code rc = exf_text_end(&names, err);
    if (rc == EXF_OK) rc = exf_provenance_add(p, err, "validate.text", "%s", names.s);
    exf_text_free(&names);
    return rc;
}

exf_code exf_validate_add_facts(exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    exf_code rc;
    exf_provenance *p = &s->facts;
    exf_text sizes = {0};
    const char *statistics = exf_provenance_get(&s->tables.provenance, "solve.statistics_digest"),
               *part = exf_provenance_get(&s->tables.provenance, EXF_PART_FACT);
    EXF_TRY(exf_session_facts(p, &s->session, "all", err));
    EXF_TRY(exf_provenance_add(p, err, "validate.version", "%s", exf_release()));
    EXF_TRY(exf_provenance_add(p, err, "validate.commit", "%s", exf_commit()));
    EXF_TRY(exf_provenance_add(p, err, "validate." EXF_MADE_FROM, "%s", s->digest));
    if (part) EXF_TRY(exf_provenance_add(p, err, "validate.tables_part", "%s", part));
    if (r->wants_sensitivities && statistics)
        EXF_TRY(exf_provenance_add(p, err, "validate.statistics_digest", "%s", statistics));
    if (r->accept == EXF_ACCEPT_OTHER_WEIGHTS) EXF_TRY(exf_provenance_add(p, err, "validate.accept", "other-weights"));
    if (s->runtime) EXF_TRY(exf_provenance_add(p, err, "validate.runtime", "%s", s->runtime->name));
    for (size_t i = 0; i < r->decode_batch.n; i++)
        exf_text_appendf(&sizes, "%s%lld", i ? "," : "", (long long)r->decode_batch.item[i]);
    EXF_TRY(exf_text_end(&sizes, err));
    EXF_TRY(exf_provenance_add(p, err, "validate.decode_batch", "%s", sizes.s));
    EXF_TRY(exf_provenance_add(p, err, "validate.prefill_tokens", "%lld", (long long)r->prefill_tokens));
    rc = add_text_fact(p, r, err);
out:
    exf_text_free(&sizes);
    return rc;
}

/* Adds the facts that the pass found: the digests of the weights, and in how many the tables' differ where they may. */
static exf_code add_weights(exf_validate_stage *s, exf_err *err)
{
    exf_text differ = {0};
    exf_code rc;
    EXF_TRY(exf_capture_weights_facts(&s->facts, s->session.model, err));
    if (s->recipe.accept != EXF_ACCEPT_OTHER_WEIGHTS) return EXF_OK;
    EXF_TRY(exf_weights_facts_difference(&differ, &s->tables.provenance, &s->facts, err));
    rc = exf_provenance_add(&s->facts, err, "validate.other_weights", "%s", differ.s);
out:
    exf_text_free(&differ);
    return rc;
}

/* ---- files --------------------------------------------------------------------------------- */

/* Writes a result and announces it; path NULL: to standard output. */
static exf_code write_text(const exf_validate_stage *s, const char *path, const exf_text *t, exf_err *err)
{
    if (!path) {
        fputs(t->s, stdout);
        return EXF_OK;
    }
    exf_code rc = exf_output_file_whole(path, s->recipe.force, t->s, t->len, err);
    return rc == EXF_OK ? exf_announce_short(path, s->json != NULL, err) : rc;
}

/* Draws the frontier as a picture. */
static exf_code draw_frontier(const exf_validate_stage *s, const exf_validate_report *report, exf_err *err)
{
    const char *part = exf_provenance_get(report->facts, "validate.tables_part");
    exf_text note = {0};
    exf_drawing *d = NULL;
    exf_code rc;
    exf_text_appendf(&note, "%s%s%s", s->digest, part ? "; a part of the data: " : "", part ? part : "");
    EXF_TRY(exf_text_end(&note, err));
    EXF_TRY(exf_drawing_open(&d, s->picture, s->recipe.force, err));
    exf_drawing_note(d, EXF_MADE_FROM, note.s);
    EXF_TRY(exf_frontier_draw(report, d, err));
    rc = exf_drawing_close(d, err);
    d = NULL;
    if (rc == EXF_OK) rc = exf_announce_short(s->picture, s->json != NULL, err);
out:
    exf_drawing_abort(d);
    exf_text_free(&note);
    return rc;
}

/* Writes the files, each whole or not at all, and the summary to standard output, unless that is the JSON alone. */
static exf_code write_files(const exf_validate_stage *s, const exf_validate_report *report, exf_err *err)
{
    exf_text summary = {0}, json = {0}, markdown = {0};
    exf_code rc;
    EXF_TRY(exf_validate_summary(report, &summary, err));
    if (s->json) EXF_TRY(write_text(s, NULL, &summary, err));
    if (s->picture) EXF_TRY(draw_frontier(s, report, err));
    EXF_TRY(exf_validate_json(report, &json, err));
    EXF_TRY(write_text(s, s->json, &json, err));
    EXF_TRY(exf_validate_markdown(report, &markdown, err));
    EXF_TRY(write_text(s, s->markdown, &markdown, err));
    if (s->text.path) EXF_TRY(write_text(s, s->manifest, &s->text.manifest, err));
out:
    exf_text_free(&summary);
    exf_text_free(&json);
    exf_text_free(&markdown);
    return rc;
}

/* Returns 1 for a key that the closing screen's command has by itself, or that is of this run alone: gates name rows of the sweep,
 * and resume points are of its lanes. */
static int is_of_sweep(const char *key)
{
    static const char *const keys[] = {"validate.tables", "validate.variants", "validate.limit", "validate.prefill_tokens",
                                       "validate.decode_batch", "validate.fail_above", "serve.runtime", "output.directory"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return 1;
    return exf_starts_with(key, "runtime.checkpoint.");
}

/* Appends the manifest that was made of the texts, or the texts, and the settings that the command line gave, as a command takes
 * them. */
static exf_code add_settings(exf_text *out, const exf_validate_stage *s, const exf_recipe *r, exf_err *err)
{
    size_t n_common, n_keys;
    exf_text value = {0};
    exf_code rc;
    exf_recipe_global_rows(&n_common);
    const exf_opt *row = exf_recipe_key_rows(&n_keys);
    if (r->texts.n) {
        exf_text_appendf(&value, "validate.manifest=%s", s->manifest);
        EXF_TRY(exf_text_end(&value, err));
        exf_text_appendf(out, " --set ");
        exf_text_append_word(out, value.s);
    }
    for (size_t i = 0; i < n_keys; i++) {
        const char *key = row[i].key;
        if (!exf_opts_given(r->opts, key, EXF_OPT_BY_ARGV) || is_of_sweep(key)) continue;
        if (strcmp(key, "model.path") == 0 && !r->recipe_file) continue; /* it is --model's */
        if (strcmp(key, "validate.manifest") == 0 && r->texts.n) continue; /* it is the texts' */
        value.len = 0;
        exf_text_appendf(&value, "%s=", key);
        EXF_TRY(exf_opts_value(r->opts, n_common + i, &value, err));
        exf_text_appendf(out, " --set ");
        exf_text_append_word(out, value.s);
    }
    rc = exf_text_end(out, err);
out:
    exf_text_free(&value);
    return rc;
}

exf_code exf_validate_write_results(exf_validate_stage *s, const exf_recipe *r, const exf_validation *v, exf_err *err)
{
    const exf_model *m = s->session.model;
    exf_cost_model cost = exf_cost_model_of(m, s->decision.bandwidth);
    exf_text settings = {0};
    exf_validate_files files = {.recipe = r->recipe_file, .model = r->model_path, .tables = s->tables_path,
                                .output = r->output_directory, .report = s->markdown};
    exf_validate_report report = {
        .of = {.v = v, .cost = &cost, .a = &m->arch, .family = m->family->name, .runtime = s->runtime,
               .prefill_share = exf_prefill_share(&s->session.batch, s->schedule),
               .flops_per_token = v->one_flops / (double)s->session.batch.n_tokens},
        .domain_names = s->names, .facts = &s->facts, .tables = &s->tables.provenance,
        .limit = s->decision.has_limit ? &s->decision.limit : NULL, .files = &files, .model_bytes = exf_model_bytes(m),
        .prefill_tokens = (int)r->prefill_tokens, .longest = s->session.corpus->max_tokens, .compares = !r->wants_sensitivities};
    exf_code rc;
    EXF_TRY(add_weights(s, err));
    EXF_TRY(add_settings(&settings, s, r, err));
    files.settings = settings.s ? settings.s : "";
    EXF_TRY(exf_validate_report_make(&report, err));
    rc = write_files(s, &report, err);
out:
    exf_validate_report_free(&report);
    exf_text_free(&settings);
    return rc;
}

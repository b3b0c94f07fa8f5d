/* writer_card.c - README.md, a model card in Markdown with the front matter of
 * model hubs: what the tables are of, the data and settings behind them, coverage,
 * the validator's result if there is one, the files, how
 * to load them.  A target of its own: who does not publish the tables wants no
 * README.md in their directory.
 *
 * No clock, host or path goes in: equal tables give equal cards. */
#include "export/writer.h"

#include "artifact/made_from.h"
#include "artifact/shards.h"
#include "base/file.h"
#include "base/mem.h"
#include "export/evidence.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_VALIDATION = 1 << 20 }; /* bytes */

/* ---- text that comes from outside ---------------------------------------------- */

/* As one line of Markdown that stays text in a table's cell. */
static exf_code add_plain(exf_text *out, const char *s, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (; rc == EXF_OK && *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c == 0x7f)
            rc = exf_text_addf(out, err, " ");
        else
            rc = exf_text_addf(out, err, strchr("\\`*_[]<>|#&", c) ? "\\%c" : "%c", c);
    }
    return rc;
}

/* As a YAML scalar in single quotes, in which only the quote is doubled. */
static exf_code add_yaml(exf_text *out, const char *s, exf_err *err)
{
    exf_code rc = exf_text_addf(out, err, "'");
    for (; rc == EXF_OK && *s; s++) rc = exf_text_addf(out, err, *s == '\'' ? "''" : (unsigned char)*s < 0x20 ? " " : "%c", *s);
    return rc == EXF_OK ? exf_text_addf(out, err, "'") : rc;
}

/* ---- sections --------------------------------------------------------------------- */

static exf_code add_front_matter(exf_text *out, const exf_export *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "---\n"));
    if (x->base_model) {
        EXF_TRY(exf_text_addf(out, err, "base_model: "));
        EXF_TRY(add_yaml(out, x->base_model, err));
        EXF_TRY(exf_text_addf(out, err, "\nbase_model_relation: adapter\n"));
    }
    for (size_t i = 0; i < x->n_datasets; i++) {
        EXF_TRY(exf_text_addf(out, err, i ? "  - " : "datasets:\n  - "));
        EXF_TRY(add_yaml(out, x->datasets[i], err));
        EXF_TRY(exf_text_addf(out, err, "\n"));
    }
    EXF_TRY(
        exf_text_addf(out, err, "library_name: exfold\ntags:\n  - exfold\n  - mixture-of-experts\n  - expert-folding\n---\n\n"));
out:
    return rc;
}

static exf_code add_title(exf_text *out, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    const char *family = exf_provenance_get(&t->provenance, "model.family");
    const char *part = exf_provenance_get(&t->provenance, EXF_PART_FACT);
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "# ExFold tables of "));
    EXF_TRY(add_plain(out, x->base_model ? x->base_model : family ? family : "a mixture-of-experts model", err));
    EXF_TRY(exf_text_addf(
        out, err,
        "\n\nFor every pair of experts that the router chose together: the scalar by which one stands in for the other,\n"
        "and what is lost. A runtime that loads them runs fewer experts and folds the contribution of those it left\n"
        "out into those it kept. They change router metadata only; the weights are the base model's.\n\n"));
    EXF_TRY(exf_text_addf(out, err,
                          "%d MoE layers of %" PRId64 " experts, top-%" PRId64 ", hidden %" PRId64 "; calibrated on %" PRId64
                          " sequences, %" PRId64 " tokens.\n",
                          t->n_layers, t->shape.n_experts, t->shape.top_k, t->shape.d_model, t->shape.n_sequences,
                          t->shape.n_tokens));
    if (part) {
        EXF_TRY(exf_text_addf(out, err, "\n**A part of its data**, not all of it: "));
        EXF_TRY(add_plain(out, part, err));
        EXF_TRY(exf_text_addf(out, err, ".\n"));
    }
    if (x->base_model) {
        EXF_TRY(exf_text_addf(out, err, "\nBase model: "));
        EXF_TRY(add_plain(out, x->base_model, err));
        EXF_TRY(exf_text_addf(out, err, x->revision ? ", revision " : ", revision not given"));
        if (x->revision) EXF_TRY(add_plain(out, x->revision, err));
        EXF_TRY(exf_text_addf(out, err, ".\n"));
    }
out:
    return rc;
}

typedef enum { OF_MODEL, OF_DATA, OF_SETTINGS } section;

static section section_of(const char *key)
{
    if (exf_starts_with(key, "model.") || exf_starts_with(key, "tokenizer.")) return OF_MODEL;
    return exf_starts_with(key, "data.") ? OF_DATA : OF_SETTINGS;
}

static exf_code add_facts(exf_text *out, const exf_export *x, const char *heading, section which, exf_err *err)
{
    const exf_provenance *p = &x->tables->provenance;
    exf_code rc = exf_text_addf(out, err, "\n## %s\n\n| fact | |\n|---|---|\n", heading);
    for (size_t i = 0; rc == EXF_OK && i < p->n; i++) {
        if (section_of(p->key[i]) != which) continue;
        EXF_TRY(exf_text_addf(out, err, "| `%s` | ", p->key[i]));
        EXF_TRY(add_plain(out, p->value[i], err));
        EXF_TRY(exf_text_addf(out, err, " |\n"));
    }
out:
    return rc;
}

static exf_code add_coverage(exf_text *out, const exf_tables *t, exf_err *err)
{
    exf_code rc;
    EXF_TRY(
        exf_text_addf(out, err,
                      "\n## Coverage\n\n"
                      "Of the observed ordered pairs: median tokens and loss; median over experts of the loss to the best target.\n"
                      "Cold experts were never chosen by the router.\n\n"
                      "| layer | pairs observed | tokens | loss | best target's loss | cold experts |\n"
                      "|---:|---:|---:|---:|---:|---:|\n"));
    for (int l = 0; l < t->n_layers; l++) {
        exf_evidence c;
        EXF_TRY(exf_evidence_of_layer(&c, t, l, err));
        EXF_TRY(exf_text_addf(out, err, "| %d | %zu of %zu | ", (int)t->layer_number[l], c.observed, c.pairs));
        if (c.observed)
            EXF_TRY(
                exf_text_addf(out, err, "%" PRIu64 " | %.3f | %.3f | %d |\n", c.tokens, (double)c.loss, (double)c.best, c.cold));
        else
            EXF_TRY(exf_text_addf(out, err, "| | | %d |\n", c.cold));
    }
out:
    return rc;
}

/* Adds the validation's table as the validator wrote it. */
static exf_code add_validation(exf_text *out, const exf_export *x, exf_err *err)
{
    char *text = NULL;
    size_t n = 0;
    exf_code rc;
    if (!x->validation) return EXF_OK;
    EXF_TRY(exf_file_slurp(x->validation, MAX_VALIDATION, &text, &n, err));
    if (memchr(text, 0, n) || exf_utf8_valid(text, n) != n) {
        rc = exf_fail(err, EXF_FORMAT, "%s: is not UTF-8 text", x->validation);
        goto out;
    }
    EXF_TRY(exf_text_addf(out, err, "\n## Validation\n\n"));
    EXF_TRY(exf_text_add(out, text, n, err));
    if (n && text[n - 1] != '\n') EXF_TRY(exf_text_addf(out, err, "\n"));
out:
    exf_mem_free(text);
    return rc;
}

static exf_code add_files(exf_text *out, const exf_export *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "\n## Files\n\n| file | |\n|---|---|\n"));
    for (size_t i = 0; i < x->n_targets; i++) {
        const exf_writer *w = exf_writer_find(x->targets[i]);
        if (w && strcmp(w->name, "card") != 0)
            EXF_TRY(exf_text_addf(out, err, "| `%s%s` | %s |\n", w->file, w->is_directory ? "/" : "", w->about));
    }
    if (x->has_recipe) EXF_TRY(exf_text_addf(out, err, "| `exfold_recipe.yaml` | the recipe of the run, as resolved |\n"));
out:
    return rc;
}

static exf_code add_snippet(exf_text *out, const char *target, exf_err *err)
{
    const exf_snippet *s = exf_snippet_find(target);
    return s ? exf_text_addf(out, err, "\n%s:\n\n```python\n%s```\n", s->title, s->code) : EXF_OK;
}

static exf_code add_loading(exf_text *out, const exf_export *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_text_addf(out, err, "\n## How to load\n"));
    for (size_t i = 0; i < x->n_targets; i++) EXF_TRY(add_snippet(out, x->targets[i], err));
    EXF_TRY(exf_text_addf(out, err, "\nWhere the whole run is published, `tables.h5` and `statistics.h5` are HDF5.\n"));
    EXF_TRY(add_snippet(out, "hdf5", err));
out:
    return rc;
}

static exf_code add_card(exf_text *out, const exf_export *x, exf_err *err)
{
    exf_code rc;
    EXF_TRY(add_front_matter(out, x, err));
    EXF_TRY(add_title(out, x, err));
    EXF_TRY(add_facts(out, x, "Model", OF_MODEL, err));
    EXF_TRY(add_facts(out, x, "Calibration data", OF_DATA, err));
    EXF_TRY(add_facts(out, x, "Settings", OF_SETTINGS, err));
    EXF_TRY(add_coverage(out, x->tables, err));
    EXF_TRY(add_validation(out, x, err));
    EXF_TRY(add_files(out, x, err));
    EXF_TRY(add_loading(out, x, err));
    if (x->digest) EXF_TRY(exf_made_from_comment(out, x->digest, err));
out:
    return rc;
}

static exf_code write_card(const exf_export *x, const char *path, int force, exf_err *err)
{
    exf_text text = {0};
    exf_output_file *f = NULL;
    exf_code rc;
    EXF_TRY(add_card(&text, x, err));
    EXF_TRY(exf_output_file_begin(&f, path, force, err));
    EXF_TRY(exf_output_file_write(f, text.s, text.len, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
out:
    exf_output_file_abort(f);
    exf_text_free(&text);
    return rc;
}

const exf_writer exf_writer_card = {
    .name = "card",
    .file = "README.md",
    .about = "a model card: data, settings, coverage, how to load",
    .write = write_card,
};

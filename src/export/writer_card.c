/* writer_card.c - README.md, a model card in Markdown with the front matter of
 * model hubs: what the tables are of, from which data and by which settings, coverage,
 * the validator's result with its text and settings, or that there is none, the files, how
 * to load them.  A target of its own: who does not publish the tables wants no
 * README.md in their directory.
 *
 * No clock, host or path goes in: equal tables give equal cards. */
#include "export/writer_internal.h"

#include "artifact/data.h"
#include "artifact/provenance.h"
#include "base/file.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALIDATION = 1 << 20 }; /* bytes */

/* ---- text that comes from outside ---------------------------------------------- */

/* Adds the text as a YAML scalar in single quotes, in which only the quote is doubled. */
static void add_yaml(exf_text *out, const char *s)
{
    exf_text_append(out, "'", 1);
    while (*s) s += exf_text_append_character(out, s, *s == '\'' ? "''" : NULL);
    exf_text_append(out, "'", 1);
}

/* ---- evidence --------------------------------------------------------------------- */

static int rising_counts(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int rising_losses(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median_loss(float *loss, size_t n)
{
    if (n == 0) return 0;
    qsort(loss, n, sizeof *loss, rising_losses);
    return loss[(n - 1) / 2];
}

typedef struct {
    uint64_t *tokens; /* of observed pairs */
    float *loss, *best;
    size_t n_best;
} samples;

static void collect_evidence(samples *x, exf_evidence *c, const exf_tables *t, size_t layer)
{
    size_t e = (size_t)t->shape.n_experts;
    for (size_t s = 0; s < e; s++) {
        const float *loss = t->loss + (layer * e + s) * e;
        const uint64_t *count = t->count + (layer * e + s) * e;
        float best = EXF_LOSS_NEVER;
        for (size_t d = 0; d < e; d++) {
            if (d == s || loss[d] >= EXF_LOSS_NEVER) continue;
            if (loss[d] < best) best = loss[d];
            x->tokens[c->observed] = count[d];
            x->loss[c->observed++] = loss[d];
        }
        if (best < EXF_LOSS_NEVER) x->best[x->n_best++] = best;
        c->cold += t->expert_count[layer * e + s] == 0;
    }
}

exf_code exf_evidence_of_layer(exf_evidence *c, const exf_tables *t, int layer, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    samples x = {.n_best = 0};
    exf_code rc;
    memset(c, 0, sizeof *c);
    c->pairs = e * e - e;
    EXF_TRY(exf_mem_new(&x.tokens, c->pairs, sizeof *x.tokens, "coverage", err));
    EXF_TRY(exf_mem_new(&x.loss, c->pairs, sizeof *x.loss, "coverage", err));
    EXF_TRY(exf_mem_new(&x.best, e, sizeof *x.best, "coverage", err));
    collect_evidence(&x, c, t, (size_t)layer);
    qsort(x.tokens, c->observed, sizeof *x.tokens, rising_counts);
    c->tokens = c->observed ? x.tokens[(c->observed - 1) / 2] : 0;
    c->loss = median_loss(x.loss, c->observed);
    c->best = median_loss(x.best, x.n_best);
out:
    exf_mem_free(x.tokens);
    exf_mem_free(x.loss);
    exf_mem_free(x.best);
    return rc;
}

/* ---- sections --------------------------------------------------------------------- */

static void add_front_matter(exf_text *out, const exf_export *x)
{
    exf_text_appendf(out, "---\n");
    if (x->base_model) {
        exf_text_appendf(out, "base_model: ");
        add_yaml(out, x->base_model);
        exf_text_appendf(out, "\nbase_model_relation: adapter\n");
    }
    for (size_t i = 0; i < x->n_datasets; i++) {
        exf_text_appendf(out, i ? "  - " : "datasets:\n  - ");
        add_yaml(out, x->datasets[i]);
        exf_text_appendf(out, "\n");
    }
    exf_text_appendf(out, "library_name: exfold\ntags:\n  - exfold\n  - mixture-of-experts\n  - expert-folding\n---\n\n");
}

static void add_title(exf_text *out, const exf_export *x)
{
    const exf_tables *t = x->tables;
    const char *family = exf_provenance_get(&t->provenance, "model.family");
    const char *part = exf_provenance_get(&t->provenance, EXF_PART_FACT);
    exf_text_appendf(out, "# ExFold tables of ");
    exf_text_append_markdown(out, x->base_model ? x->base_model : family ? family : "a mixture-of-experts model");
    exf_text_appendf(
        out, "\n\nFor every pair of experts that the router chose together: the scalar by which one stands in for the other,\n"
             "and what is lost. A runtime that loads them runs fewer experts and folds the contribution of those it left\n"
             "out into those it kept. They change router metadata only; the weights are the base model's.\n\n");
    exf_text_appendf(out,
                     "%d MoE layers of %" PRId64 " experts, top-%" PRId64 ", hidden %" PRId64 "; calibrated on %" PRId64
                     " sequences, %" PRId64 " tokens.\n",
                     t->n_layers, t->shape.n_experts, t->shape.top_k, t->shape.d_model, t->shape.n_sequences, t->shape.n_tokens);
    if (part) {
        exf_text_appendf(out, "\n**A part of its data**, not all of it: ");
        exf_text_append_markdown(out, part);
        exf_text_appendf(out, ".\n");
    }
    if (x->base_model) {
        exf_text_appendf(out, "\nBase model: ");
        exf_text_append_markdown(out, x->base_model);
        exf_text_appendf(out, x->revision ? ", revision " : ", revision not given");
        if (x->revision) exf_text_append_markdown(out, x->revision);
        exf_text_appendf(out, ".\n");
    }
}

/* Adds a row of a table of facts. */
static void add_fact(exf_text *out, const char *key, const char *value)
{
    exf_text_appendf(out, "| `%s` | ", key);
    exf_text_append_markdown(out, value);
    exf_text_appendf(out, " |\n");
}

typedef enum { OF_MODEL, OF_DATA, OF_SETTINGS } section;

static void add_facts(exf_text *out, const exf_export *x, const char *heading, section which)
{
    const exf_provenance *p = &x->tables->provenance;
    exf_text_appendf(out, "\n## %s\n\n| fact | |\n|---|---|\n", heading);
    for (size_t i = 0; i < p->n; i++) {
        section of = exf_starts_with(p->key[i], "model.") || exf_starts_with(p->key[i], "tokenizer.") ? OF_MODEL
                     : exf_starts_with(p->key[i], "data.")                                            ? OF_DATA
                                                                                                      : OF_SETTINGS;
        if (of == which) add_fact(out, p->key[i], p->value[i]);
    }
    if (which == OF_MODEL && x->other_weights) add_fact(out, "export.other_weights", x->other_weights);
}

static exf_code add_coverage(exf_text *out, const exf_tables *t, exf_err *err)
{
    exf_text_appendf(out,
                     "\n## Coverage\n\n"
                     "Of the observed ordered pairs: median tokens and loss; median over experts of the loss to the best target.\n"
                     "Cold experts were never chosen by the router.\n\n"
                     "| layer | pairs observed | tokens | loss | best target's loss | cold experts |\n"
                     "|---:|---:|---:|---:|---:|---:|\n");
    for (int l = 0; l < t->n_layers; l++) {
        exf_evidence c;
        exf_code rc = exf_evidence_of_layer(&c, t, l, err);
        if (rc != EXF_OK) return rc;
        exf_text_appendf(out, "| %d | %zu of %zu | ", (int)t->layer_number[l], c.observed, c.pairs);
        if (c.observed)
            exf_text_appendf(out, "%" PRIu64 " | %.3f | %.3f | %d |\n", c.tokens, (double)c.loss, (double)c.best, c.cold);
        else
            exf_text_appendf(out, "| | | %d |\n", c.cold);
    }
    return EXF_OK;
}

/* Adds the validation's tables as the validator wrote them. */
static exf_code add_validation(exf_text *out, const exf_export *x, exf_err *err)
{
    const char *path = x->validation;
    const exf_provenance *p = x->validated;
    char *text = NULL;
    size_t n = 0;
    exf_text_appendf(out, "\n## Validation\n\n");
    if (!path) {
        exf_text_appendf(out, "Not validated: no results of `exfold-validate` lay beside the tables when this card was written.\n");
        return EXF_OK;
    }
    exf_code rc = exf_file_slurp(path, MAX_VALIDATION, &text, &n, err);
    if (rc != EXF_OK) return rc;
    if (memchr(text, 0, n) || exf_utf8_valid(text, n) != n) rc = exf_fail(err, EXF_FORMAT, "%s: is not UTF-8 text", path);
    exf_text_append(out, text, n);
    if (n && text[n - 1] != '\n') exf_text_append(out, "\n", 1);
    if (p) exf_text_appendf(out, "\nIts text and settings:\n\n| fact | |\n|---|---|\n");
    for (size_t i = 0; p && i < p->n; i++)
        if (exf_starts_with(p->key[i], "data.") || exf_starts_with(p->key[i], "validate.")) add_fact(out, p->key[i], p->value[i]);
    exf_mem_free(text);
    return rc;
}

/* ---- how to load ------------------------------------------------------------------------------ */

const exf_snippet exf_snippet_hdf5 = {
    "hdf5", "HDF5, with h5py",
    "import h5py\n"
    "\n"
    "with h5py.File(\"tables.h5\") as f:\n"
    "    family = f[\"provenance\"].attrs[\"model.family\"].decode()  # text attributes are bytes\n"
    "    coeff, loss = f[\"coeff\"][:], f[\"loss\"][:]\n"
    "target = loss[0, 3].argmin()\n"
    "print(f\"first layer: expert 3 is about {coeff[0, 3, target]:.4f} times expert {target}\")\n"};

static void add_snippet(exf_text *out, const exf_snippet *s)
{
    if (s->code) exf_text_appendf(out, "\n%s:\n\n```python\n%s```\n", s->title, s->code);
}

static exf_code write_card(const exf_export *x, const char *path, int force, exf_err *err)
{
    exf_text text = {0};
    exf_code rc;
    add_front_matter(&text, x);
    add_title(&text, x);
    add_facts(&text, x, "Model", OF_MODEL);
    add_facts(&text, x, "Calibration data", OF_DATA);
    add_facts(&text, x, "Settings", OF_SETTINGS);
    EXF_TRY(add_coverage(&text, x->tables, err));
    for (int i = 0; i < x->tables->n_pools; i++)
        exf_text_appendf(&text, "%s%d by %s", i ? ", " : "\nStatic decode pools: ", x->tables->pool[i].size, x->tables->pool[i].by);
    if (x->tables->n_pools) exf_text_appendf(&text, ".\n");
    EXF_TRY(add_validation(&text, x, err));
    exf_text_appendf(&text, "\n## Files\n\n| file | |\n|---|---|\n");
    for (size_t i = 0; i < x->n_targets; i++) {
        const exf_writer *w = x->targets[i];
        if (strcmp(w->name, "card") != 0)
            exf_text_appendf(&text, "| `%s%s` | %s |\n", w->file, w->is_directory ? "/" : "", w->about);
    }
    if (x->has_recipe) exf_text_appendf(&text, "| `exfold_recipe.yaml` | the recipe of the run, as resolved |\n");
    exf_text_appendf(&text, "\n## How to load\n");
    for (size_t i = 0; i < x->n_targets; i++) add_snippet(&text, &x->targets[i]->load);
    exf_text_appendf(&text, "\nWhere the whole run is published, `tables.h5` and `statistics.h5` are HDF5.\n");
    add_snippet(&text, &exf_snippet_hdf5);
    if (x->digest) EXF_TRY(exf_made_from_comment(&text, x->digest, err));
    EXF_TRY(exf_text_end(&text, err));
    rc = exf_output_file_whole(path, force, text.s, text.len, err);
out:
    exf_text_free(&text);
    return rc;
}

const exf_writer exf_writer_card = {
    .name = "card",
    .file = "README.md",
    .about = "a model card: data, settings, coverage, how to load",
    .write = write_card,
};

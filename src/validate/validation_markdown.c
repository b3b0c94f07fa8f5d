/* validation_markdown.c - formats the results of a validation as Markdown, for people and model cards; see validation.h. */
#include "validate/validation.h"

#include "artifact/provenance.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* Names the best criterion for each static pool of which several were run. */
static exf_code add_best_pools(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    const exf_validation *v = r->of.v;
    size_t *best = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&best, v->n_variants, sizeof *best, "pools", err));
    for (size_t i = 0, n = exf_best_pools(best, v, r->row); i < n; i++) {
        const exf_variant_result *b = &v->variant[best[i]];
        exf_text_appendf(out, "%sBest criterion of `%s`: %s, KL %.4f (", i ? "" : "\n", b->name,
                         exf_pool_criteria[r->row[best[i]].variant.pool_by], b->all.kl_mean);
        const char *comma = "";
        for (size_t j = 1; j < v->n_variants; j++) {
            if (!exf_same_but_pool(&r->row[best[i]], &r->row[j])) continue;
            exf_text_appendf(out, "%s%s %.4f", comma, exf_pool_criteria[r->row[j].variant.pool_by], v->variant[j].all.kl_mean);
            comma = ", ";
        }
        exf_text_appendf(out, ")\n");
    }
out:
    exf_mem_free(best);
    return rc;
}

/* Adds sentences as a list; those that are indented stand under the one before. */
static exf_code add_list(const exf_text *found, exf_text *out, exf_err *err)
{
    exf_text sentence = {0};
    exf_code rc = EXF_OK;
    for (const char *s = found->s, *end; s && *s; s = end + 1) {
        int indent = (int)strspn(s, " ");
        end = strchr(s, '\n');
        sentence.len = 0;
        exf_text_append(&sentence, s + indent, (size_t)(end - s) - (size_t)indent);
        EXF_TRY(exf_text_end(&sentence, err));
        exf_text_appendf(out, "%*s* ", indent, "");
        exf_text_append_markdown(out, sentence.s);
        exf_text_append(out, "\n", 1);
    }
    if (found->len) exf_text_appendf(out, "\n");
out:
    exf_text_free(&sentence);
    return rc;
}

/* ---- the table of all rows ---------------------------------------------------------------------------- */

static const char *const heads[] = {
    "variant", "PPL", "KL mean", "KL 99 %", "KL max", "same top token", "experts per token", "experts per batch",
    "KL below the best baseline", "log PPL above the original", "worst domain", "expert MFLOP per token", "expert MB per step",
    "served by", ""};
enum { HEADS = sizeof heads / sizeof *heads };

/* Adds the public runtimes that run the row, "~" before one that does with options of its own, and what the row is: on a frontier,
 * a baseline, or not constrained and why. */
static void add_marks(const exf_validate_report *r, size_t i, exf_text *out)
{
    static const char *const roles[] = {"", "", "baseline", "half"};
    const exf_variant_result *of = &r->of.v->variant[i];
    const exf_row *row = &r->row[i];
    for (int k = 0; k < row->n_servers; k++)
        exf_text_appendf(out, "%s%s%s", k ? ", " : " ", row->server[k].by_its_own ? "~" : "", row->server[k].runtime->name);
    exf_text_appendf(out, " | %s", row->on_frontier ? "frontier" : roles[of->role]);
    if (of->constraint != EXF_CONSTRAINED) {
        exf_text_appendf(out, "%snot constrained: ", of->role != EXF_LANE_ASKED ? ", " : "");
        exf_constraint_advice(out, r->of.v, of);
    }
    exf_text_appendf(out, " |\n");
}

/* Adds a row, a cell for each head. */
static void add_row(const exf_validate_report *r, size_t i, exf_text *out)
{
    const exf_validation *v = r->of.v;
    const exf_variant_result *row = &v->variant[i];
    exf_difference kl = exf_kl_difference(v, i, 0), ppl = exf_log_ppl_difference(v, i, 0);
    size_t worst = exf_worst_domain(v, i);
    exf_text_appendf(out, "| `%s`%s |", row->name, row->constraint == EXF_CONSTRAINED ? "" : " (not constrained)");
    exf_text_appendf(out, " ");
    exf_add_spread(out, 3, row->all.ppl, row->all.ppl_se);
    exf_text_appendf(out, " | ");
    exf_add_spread(out, 5, row->all.kl_mean, kl.half_width);
    exf_text_appendf(out, " | %.3f | %.2f | %.1f %% | %.2f | %.1f |", row->all.kl_p99, row->all.kl_max, 100 * row->all.top1,
                     row->experts_per_token, row->experts_per_batch);
    if (r->row[i].baseline) {
        exf_text_appendf(out, " ");
        exf_add_spread(out, 5, r->row[i].gain.mean, r->row[i].gain.half_width);
        exf_text_appendf(out, " (`%s`)", v->variant[r->row[i].baseline].name);
    }
    exf_text_appendf(out, " | ");
    exf_add_spread(out, 5, ppl.mean, ppl.half_width);
    exf_text_appendf(out, " |");
    if (v->n_domains > 1) {
        exf_text_appendf(out, " %.4f ", row->domain[worst].kl_mean);
        exf_text_append_markdown(out, r->domain_names[worst]);
    }
    exf_text_appendf(out, " | %.4g | %.4g |", r->row[i].cost.flops / 1e6, r->row[i].cost.expert_bytes / 1e6);
    add_marks(r, i, out);
}

/* ---- the others ------------------------------------------------------------------------------------- */

static void add_domains(const exf_validate_report *r, exf_text *out)
{
    exf_text_appendf(out, "\nPer domain, PPL (KL mean):\n\n| variant |");
    for (size_t d = 0; d < r->of.v->n_domains; d++) {
        exf_text_append(out, " ", 1);
        exf_text_append_markdown(out, r->domain_names[d]);
        exf_text_append(out, " |", 2);
    }
    exf_text_appendf(out, "\n|---|");
    for (size_t d = 0; d < r->of.v->n_domains; d++) exf_text_appendf(out, "---|");
    for (size_t i = 0; i < r->of.v->n_variants; i++) {
        const exf_variant_result *v = &r->of.v->variant[i];
        exf_text_appendf(out, "\n| `%s` |", v->name);
        for (size_t d = 0; d < r->of.v->n_domains; d++)
            exf_text_appendf(out, " %.3f (%.4f) |", v->domain[d].ppl, v->domain[d].kl_mean);
    }
    exf_text_appendf(out, "\n");
}

static void add_layers(const exf_validation *v, exf_text *out)
{
    exf_text_appendf(out, "\nRelative error of each layer's routed output on the original's hidden states:\n\n| layer |");
    for (size_t i = 1; i < v->n_variants; i++) exf_text_appendf(out, " `%s` |", v->variant[i].name);
    exf_text_appendf(out, "\n|---|");
    for (size_t i = 1; i < v->n_variants; i++) exf_text_appendf(out, "---|");
    for (int l = 0; l < v->n_layers; l++) {
        exf_text_appendf(out, "\n| %d |", v->variant[0].layer[l].layer);
        for (size_t i = 1; i < v->n_variants; i++) exf_text_appendf(out, " %.3f |", v->variant[i].layer[l].output_error);
    }
    exf_text_appendf(out, "\n");
}

exf_code exf_validate_markdown(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    exf_code rc;
    const char *tables = exf_provenance_get(r->facts, "validate." EXF_MADE_FROM);
    for (int k = 0; k < EXF_FINDINGS; k++) EXF_TRY(add_list(&r->found[k], out, err));
    exf_text_appendf(out, "Each variant ran beside the original in one pass. KL is KL(original || variant) of the next token; PPL "
                          "± is a standard error, the other ± are halves of 95 %% intervals, all by %s. Served by: public "
                          "runtimes; ~: with options of their own.\n\n",
                     r->of.v->clusters_are_documents ? "document" : "sequence");
    for (size_t i = 0; i < HEADS; i++) exf_text_appendf(out, "| %s ", heads[i]);
    exf_text_appendf(out, "|\n|");
    for (size_t i = 0; i < HEADS; i++) exf_text_appendf(out, "---|");
    exf_text_appendf(out, "\n");
    for (size_t i = 0; i < r->of.v->n_variants; i++) add_row(r, i, out);
    EXF_TRY(add_best_pools(r, out, err));
    if (r->of.v->n_domains > 1) add_domains(r, out);
    if (r->of.v->n_variants > 1) add_layers(r->of.v, out);
    if (tables) {
        exf_text_appendf(out, "\n");
        EXF_TRY(exf_made_from_comment(out, tables, err));
    }
    rc = exf_text_end(out, err);
out:
    return rc;
}

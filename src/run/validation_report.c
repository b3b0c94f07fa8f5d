/* validation_report.c - formats the results of a validation as a table, JSON and Markdown; see validation.h. */
#include "run/validation.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "fold/runtime.h"
#include "format/json.h"
#include "validate/frontier.h"
#include "validate/uncertainty.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- terminal --------------------------------------------------------------------- */

/* Names the best criterion for each static pool of which several were run; variants are between two `quote`. */
static exf_code add_best_pools(const exf_validation *v, const char *quote, exf_text *out, exf_err *err)
{
    size_t *best = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&best, v->n_variants, sizeof *best, "pools", err));
    for (size_t i = 0, n = exf_best_pools(best, v); i < n; i++) {
        const exf_variant_result *b = &v->variant[best[i]];
        exf_text_appendf(out, "%sBest criterion of %s%s%s: %s, KL %.4f (", i ? "" : "\n", quote, b->name, quote,
                         exf_pool_criterion_of(b), b->all.kl_mean);
        const char *comma = "";
        for (size_t j = 1; j < v->n_variants; j++) {
            if (!exf_same_but_pool(b, &v->variant[j])) continue;
            exf_text_appendf(out, "%s%s %.4f", comma, exf_pool_criterion_of(&v->variant[j]), v->variant[j].all.kl_mean);
            comma = ", ";
        }
        exf_text_appendf(out, ")\n");
    }
out:
    exf_mem_free(best);
    return rc;
}

/* Formats a standard error; one that is not known is "-". */
static const char *error_text(char text[16], double error, int digits)
{
    if (isnan(error)) return "-";
    snprintf(text, 16, "%.*f", digits, error);
    return text;
}

static size_t count_role(const exf_validation *v, exf_lane_role role)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n_variants; i++) n += v->variant[i].role == role;
    return n;
}

/* Adds a line for each row that was asked for and is not constrained; variants are between two `quote`. */
static void add_unconstrained(const exf_validation *v, const char *quote, exf_text *out)
{
    int n = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i];
        if (r->role != EXF_LANE_ASKED || r->constraint == EXF_CONSTRAINED) continue;
        exf_text_appendf(out, "%s%s%s%s: not constrained: ", n++ ? "" : "\n", quote, r->name, quote);
        exf_constraint_advice(out, v, r);
        exf_text_appendf(out, ".%s\n", *quote ? "\n" : "");
    }
}

exf_code exf_validate_table(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    const exf_validation *v = r->v;
    size_t most = strlen("variant");
    char read[16], whole[16], error[16];
    for (size_t i = 0; i < v->n_variants; i++) most = strlen(v->variant[i].name) > most ? strlen(v->variant[i].name) : most;
    int width = (int)most;
    exf_text_appendf(out, "%-*s  %17s   %8s %8s %8s %8s %8s %8s  %9s  %8s  %9s %9s\n", width, "", "", "KL", "KL", "KL", "KL", "KL",
                     "KL", "same", "output", "experts", "experts");
    exf_text_appendf(out, "%-*s  %17s   %8s %8s %8s %8s %8s %8s  %9s  %8s  %9s %9s\n", width, "variant", "PPL ± std. error", "mean",
                     "median", "90 %", "99 %", "99.9 %", "max", "top", "error", "per token", "per batch");
    for (size_t i = 0; i < v->n_variants; i++) {
        const exf_variant_result *row = &v->variant[i];
        const exf_quality *q = &row->all;
        exf_text_appendf(out, "%-*s  %9.4f ± %-7s %8.5f %8.5f %8.5f %8.5f %8.4f %8.3f  %7.2f %%  %8.4f  %9.3f %9.2f%s\n", width,
                         row->name, q->ppl, error_text(error, q->ppl_se, 4), q->kl_mean, q->kl_median, q->kl_p90, q->kl_p99,
                         q->kl_p999, q->kl_max, 100 * q->top1, row->output_error, row->experts_per_token, row->experts_per_batch,
                         row->constraint == EXF_CONSTRAINED ? "" : "  not constrained");
    }
    add_unconstrained(v, "", out);
    exf_code rc = add_best_pools(v, "", out, err);
    if (rc != EXF_OK) return rc;
    exf_text_appendf(out,
                     "\n%" PRIu64 " tokens scored. Weights read: %s (%" PRIu64 " bytes) of a model of %s (%" PRIu64 " bytes).\n"
                     "Work: %.2f forward passes for the original and %zu variants",
                     v->variant[0].all.tokens, exf_human_bytes(read, sizeof read, (double)v->report.weight_bytes),
                     v->report.weight_bytes, exf_human_bytes(whole, sizeof whole, (double)r->model_bytes), r->model_bytes,
                     v->report.flops / v->one_flops, count_role(v, EXF_LANE_ASKED));
    size_t beside = count_role(v, EXF_LANE_BASELINE) + count_role(v, EXF_LANE_HALF);
    if (beside) exf_text_appendf(out, ", and %zu that run beside them", beside);
    exf_text_appendf(out, ".\n");
    return exf_text_end(out, err);
}

/* ---- JSON --------------------------------------------------------------------------- */

static void add_quality(exf_jw *w, const exf_quality *q)
{
    exf_jw_count(w, "tokens", q->tokens);
    exf_jw_real(w, "ppl", q->ppl);
    exf_jw_real(w, "ppl_se", q->ppl_se);
    exf_jw_real(w, "kl_mean", q->kl_mean);
    exf_jw_real(w, "kl_se", q->kl_se);
    exf_jw_real(w, "kl_median", q->kl_median);
    exf_jw_real(w, "kl_p90", q->kl_p90);
    exf_jw_real(w, "kl_p99", q->kl_p99);
    exf_jw_real(w, "kl_p999", q->kl_p999);
    exf_jw_real(w, "kl_max", q->kl_max);
    exf_jw_real(w, "top1", q->top1);
}

static void add_budget(exf_jw *w, double output_error, double per_token, double per_batch)
{
    exf_jw_real(w, "output_error", output_error);
    exf_jw_real(w, "experts_per_token", per_token);
    exf_jw_real(w, "experts_per_batch", per_batch);
}

/* Adds the half-widths of the 95 % intervals of the KL and of the difference of log PPL, both to the original. */
static void add_intervals(exf_jw *w, const exf_validation *v, const exf_variant_result *r)
{
    size_t i = (size_t)(r - v->variant);
    exf_difference kl = exf_kl_difference(v, i, 0), log_ppl = exf_log_ppl_difference(v, i, 0);
    exf_jw_real(w, "kl_half_width", kl.half_width);
    exf_jw_real(w, "log_ppl_difference", log_ppl.mean);
    exf_jw_real(w, "log_ppl_difference_half_width", log_ppl.half_width);
}

/* Adds a sentence for people on what the row's variant does; "P4 half 1" is P4. */
static exf_code add_words(exf_jw *w, const exf_variant_result *v, const char *runtime, exf_err *err)
{
    exf_text words = {0};
    exf_variant variant;
    char name[EXF_VARIANT_NAME_LEN];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(v->name, " "), v->name);
    const exf_runtime *r = runtime && v->role != EXF_LANE_BASELINE ? exf_runtime_find(runtime) : NULL;
    exf_code rc = exf_variant_parse_on(r, &variant, name, err);
    if (rc == EXF_OK) rc = exf_variant_words(&variant, &words, err);
    if (rc == EXF_OK) exf_jw_text(w, "words", words.s);
    exf_text_free(&words);
    return rc;
}

static exf_code add_variant(exf_jw *w, const exf_validate_report *r, const exf_variant_result *v, exf_err *err)
{
    static const char *const roles[] = {"original", "asked", "baseline", "half"};
    exf_code rc = EXF_OK;
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "name", v->name);
    exf_jw_text(w, "role", roles[v->role]);
    exf_jw_int(w, "decode_batch", r->v->batch_size[v->batch].size);
    exf_jw_text(w, "constraint", exf_constraint_name(v->constraint));
    if (v == r->v->variant)
        exf_jw_text(w, "words", "the model as it is");
    else
        rc = add_words(w, v, exf_provenance_get(r->facts, "validate.runtime"), err);
    add_quality(w, &v->all);
    add_budget(w, v->output_error, v->experts_per_token, v->experts_per_batch);
    add_intervals(w, r->v, v);
    exf_jw_open(w, "domains", '{');
    for (size_t d = 0; d < r->v->n_domains; d++) {
        exf_jw_open(w, r->domain_names[d], '{');
        add_quality(w, &v->domain[d]);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_jw_open(w, "layers", '[');
    for (int l = 0; l < r->v->n_layers; l++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_int(w, "layer", v->layer[l].layer);
        add_budget(w, v->layer[l].output_error, v->layer[l].experts_per_token, v->layer[l].experts_per_batch);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_jw_close(w);
    return rc;
}

/* Adds the best criterion for each static pool of which several were run. */
static exf_code add_pools(exf_jw *w, const exf_validation *v, exf_err *err)
{
    size_t *best = NULL;
    exf_code rc = exf_mem_new(&best, v->n_variants, sizeof *best, "pools", err);
    if (rc != EXF_OK) return rc;
    exf_jw_open(w, "best_pools", '[');
    for (size_t i = 0, n = exf_best_pools(best, v); i < n; i++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_text(w, "variant", v->variant[best[i]].name);
        exf_jw_text(w, "by", exf_pool_criterion_of(&v->variant[best[i]]));
        exf_jw_real(w, "kl_mean", v->variant[best[i]].all.kl_mean);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_mem_free(best);
    return EXF_OK;
}

static void add_batches(exf_jw *w, const exf_validation *v)
{
    exf_jw_open(w, "decode_batches", '[');
    for (int i = 0; i < v->n_batch_sizes; i++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_int(w, "size", v->batch_size[i].size);
        exf_jw_real(w, "width", v->batch_size[i].width);
        exf_jw_real(w, "original_experts_per_batch", v->batch_size[i].experts);
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

exf_code exf_validate_json(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    exf_jw w = {.depth = 0};
    exf_code rc = EXF_OK;
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "schema", "exfold-validation/1");
    exf_jw_open(&w, "variants", '[');
    for (size_t i = 0; rc == EXF_OK && i < r->v->n_variants; i++) rc = add_variant(&w, r, &r->v->variant[i], err);
    exf_jw_close(&w);
    if (rc == EXF_OK) rc = add_pools(&w, r->v, err);
    exf_jw_open(&w, "clusters", '{');
    exf_jw_text(&w, "by", r->v->clusters_are_documents ? "document" : "sequence");
    exf_jw_count(&w, "n", r->v->n_clusters);
    exf_jw_close(&w);
    add_batches(&w, r->v);
    exf_jw_open(&w, "cost", '{');
    exf_jw_real(&w, "forwards", r->v->report.flops / r->v->one_flops);
    exf_jw_count(&w, "variants", count_role(r->v, EXF_LANE_ASKED));
    exf_jw_count(&w, "baselines", count_role(r->v, EXF_LANE_BASELINE));
    exf_jw_count(&w, "halves", count_role(r->v, EXF_LANE_HALF));
    exf_jw_count(&w, "weight_bytes_read", r->v->report.weight_bytes);
    exf_jw_count(&w, "model_bytes", r->model_bytes);
    exf_jw_close(&w);
    exf_jw_open(&w, "provenance", '{');
    for (size_t i = 0; i < r->facts->n; i++) exf_jw_text(&w, r->facts->key[i], r->facts->value[i]);
    exf_jw_close(&w);
    exf_jw_close(&w);
    if (rc == EXF_OK) return exf_jw_end(&w, out, err);
    exf_jw_free(&w);
    return rc;
}

/* ---- Markdown ------------------------------------------------------------------------- */

static void add_overall(const exf_validation *v, exf_text *out)
{
    exf_text_appendf(out, "| variant | PPL | KL mean | KL 99 %% | KL max | same top token | experts per token | "
                          "experts per batch |\n|---|---|---|---|---|---|---|---|\n");
    char error[16];
    for (size_t i = 0; i < v->n_variants; i++) {
        const exf_variant_result *r = &v->variant[i];
        exf_text_appendf(out, "| `%s`%s | %.3f ± %s | %.4f | %.3f | %.2f | %.1f %% | %.2f | %.1f |\n", r->name,
                         r->constraint == EXF_CONSTRAINED ? "" : " (not constrained)", r->all.ppl,
                         error_text(error, r->all.ppl_se, 3), r->all.kl_mean, r->all.kl_p99, r->all.kl_max, 100 * r->all.top1,
                         r->experts_per_token, r->experts_per_batch);
    }
}

static void add_domains(const exf_validate_report *r, exf_text *out)
{
    exf_text_appendf(out, "\nPer domain, PPL (KL mean):\n\n| variant |");
    for (size_t d = 0; d < r->v->n_domains; d++) exf_text_appendf(out, " %s |", r->domain_names[d]);
    exf_text_appendf(out, "\n|---|");
    for (size_t d = 0; d < r->v->n_domains; d++) exf_text_appendf(out, "---|");
    for (size_t i = 0; i < r->v->n_variants; i++) {
        const exf_variant_result *v = &r->v->variant[i];
        exf_text_appendf(out, "\n| `%s` |", v->name);
        for (size_t d = 0; d < r->v->n_domains; d++)
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
    const char *tables = exf_provenance_get(r->facts, "validate." EXF_MADE_FROM),
               *runtime = exf_provenance_get(r->facts, "validate.runtime"),
               *part = exf_provenance_get(r->facts, "validate.tables_part");
    exf_text_appendf(out, "%" PRIu64 " tokens, each variant beside the original in one pass; KL is KL(original || variant) of the "
                          "next token.\n\n", r->v->variant[0].all.tokens);
    if (part) exf_text_appendf(out, "The tables are of a part of their data: %s.\n\n", part);
    if (runtime) exf_text_appendf(out, "Variants fold as the runtime `%s` does.\n\n", runtime);
    add_overall(r->v, out);
    add_unconstrained(r->v, "`", out);
    EXF_TRY(add_best_pools(r->v, "`", out, err));
    if (r->v->n_domains > 1) add_domains(r, out);
    if (r->v->n_variants > 1) add_layers(r->v, out);
    if (tables) {
        exf_text_appendf(out, "\n");
        EXF_TRY(exf_made_from_comment(out, tables, err));
    }
    rc = exf_text_end(out, err);
out:
    return rc;
}

/* validation_json.c - formats the results of a validation as JSON; see validation.h. */
#include "validate/validation.h"

#include "artifact/provenance.h"
#include "base/mem.h"
#include "format/json.h"

#include <math.h>
#include <string.h>

/* A number of an object; lists of them end with a key of NULL. */
typedef struct {
    const char *key;
    double value;
} figure;

static void add_figures(exf_jw *w, const figure *f)
{
    for (; f->key; f++) exf_jw_real(w, f->key, f->value);
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

static void add_quality(exf_jw *w, const exf_quality *q)
{
    exf_jw_count(w, "tokens", q->tokens);
    add_figures(w, (const figure[]){{"ppl", q->ppl}, {"ppl_se", q->ppl_se}, {"kl_mean", q->kl_mean}, {"kl_se", q->kl_se},
                                    {"kl_median", q->kl_median}, {"kl_p90", q->kl_p90}, {"kl_p99", q->kl_p99},
                                    {"kl_p999", q->kl_p999}, {"kl_max", q->kl_max}, {"top1", q->top1}, {NULL, 0}});
}

/* Adds the runtimes that run the row as it is, or with options of their own. */
static void add_servers(exf_jw *w, const exf_row *row, const char *key, int by_its_own)
{
    exf_jw_open(w, key, '[');
    for (int i = 0; i < row->n_servers; i++)
        if (row->server[i].by_its_own == by_its_own) exf_jw_text(w, NULL, row->server[i].runtime->name);
    exf_jw_close(w);
}

/* Adds what kind of row it is, the marks that outputs have, and a sentence for people on what it does. */
static exf_code add_marks(exf_jw *w, const exf_validate_report *r, size_t i, exf_err *err)
{
    static const char *const roles[] = {"original", "asked", "baseline", "half"};
    static const char *const folds[] = {NULL, "prefill", "decode", "both"};
    static const char *const constraints[] = {"none", "few_experts", "short_batches"};
    const exf_validation *v = r->of.v;
    const exf_variant_result *of = &v->variant[i];
    const exf_row *row = &r->row[i];
    exf_text why = {0}, words = {0};
    exf_code rc;
    if (of->constraint != EXF_CONSTRAINED) exf_text_appendf(&why, "not constrained: ");
    exf_constraint_advice(&why, v, of);
    EXF_TRY(exf_text_end(&why, err));
    if (row->kind == EXF_ROW_ORIGINAL) exf_text_appendf(&words, "the model as it is");
    else EXF_TRY(exf_variant_words(&row->variant, &words, err));
    EXF_TRY(exf_text_end(&words, err));
    exf_jw_text(w, "name", of->name);
    exf_jw_text(w, "role", roles[of->role]);
    exf_jw_int(w, "decode_batch", v->batch_size[of->batch].size);
    exf_jw_text(w, "constraint", constraints[of->constraint]);
    exf_jw_text(w, "constraint_words", why.s);
    exf_jw_text(w, "folds", folds[row->kind]);
    exf_jw_bool(w, "on_frontier", row->on_frontier);
    exf_jw_text(w, "lost_to", row->lost_to ? v->variant[row->lost_to].name : NULL);
    add_servers(w, row, "served_by", 0);
    add_servers(w, row, "served_otherwise_by", 1);
    exf_jw_text(w, "words", words.s);
out:
    exf_text_free(&why);
    exf_text_free(&words);
    return rc;
}

/* Adds what the row costs, and its share of what the original does. */
static void add_cost(exf_jw *w, const exf_validate_report *r, size_t i)
{
    const exf_cost *c = &r->row[i].cost;
    int batch = r->of.v->variant[i].batch;
    double flops = exf_original_cost(&r->of, EXF_ROW_PREFILL, 0), bytes = exf_original_cost(&r->of, EXF_ROW_DECODE, batch);
    exf_jw_open(w, "cost", '{');
    add_figures(w, (const figure[]){{"expert_flops_per_token", c->flops},
                                    {"expert_flops_share", flops > 0 ? c->flops / flops : NAN},
                                    {"model_flops_share", exf_whole_share(&r->of, c->flops, EXF_ROW_PREFILL, 0)},
                                    {"expert_bytes_per_step", c->expert_bytes},
                                    {"expert_bytes_share", bytes > 0 ? c->expert_bytes / bytes : NAN},
                                    {"weight_bytes_share", exf_whole_share(&r->of, c->expert_bytes, EXF_ROW_DECODE, batch)},
                                    {"weight_bytes_per_step", c->step_bytes},
                                    {c->tokens_per_second > 0 ? "tokens_per_second_bound" : NULL, c->tokens_per_second},
                                    {NULL, 0}});
    exf_jw_close(w);
}

static void add_experts(exf_jw *w, double output_error, double per_token, double per_batch)
{
    add_figures(w, (const figure[]){{"output_error", output_error}, {"experts_per_token", per_token},
                                    {"experts_per_batch", per_batch}, {NULL, 0}});
}

static exf_code add_row(exf_jw *w, const exf_validate_report *r, size_t i, exf_err *err)
{
    const exf_validation *v = r->of.v;
    const exf_variant_result *of = &v->variant[i];
    const exf_row *row = &r->row[i];
    exf_difference kl = exf_kl_difference(v, i, 0), log_ppl = exf_log_ppl_difference(v, i, 0); /* to the original */
    exf_jw_open(w, NULL, '{');
    exf_code rc = add_marks(w, r, i, err);
    if (rc != EXF_OK) return rc;
    add_quality(w, &of->all);
    add_experts(w, of->output_error, of->experts_per_token, of->experts_per_batch);
    add_figures(w, (const figure[]){{"kl_half_width", kl.half_width}, {"log_ppl_difference", log_ppl.mean},
                                    {"log_ppl_difference_half_width", log_ppl.half_width}, {NULL, 0}});
    add_cost(w, r, i);
    if (row->baseline) {
        exf_jw_open(w, "gain", '{');
        exf_jw_text(w, "over", v->variant[row->baseline].name);
        exf_jw_real(w, "kl", row->gain.mean);
        exf_jw_real(w, "kl_half_width", row->gain.half_width);
        exf_jw_bool(w, "beyond_noise", exf_beyond_noise(&row->gain));
        exf_jw_close(w);
    }
    exf_jw_open(w, "domains", '{');
    for (size_t d = 0; d < v->n_domains; d++) {
        exf_jw_open(w, r->domain_names[d], '{');
        add_quality(w, &of->domain[d]);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_jw_text(w, "worst_domain", v->n_domains > 1 ? r->domain_names[exf_worst_domain(v, i)] : NULL);
    exf_jw_open(w, "layers", '[');
    for (int l = 0; l < v->n_layers; l++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_int(w, "layer", of->layer[l].layer);
        add_experts(w, of->layer[l].output_error, of->layer[l].experts_per_token, of->layer[l].experts_per_batch);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_jw_close(w);
    return EXF_OK;
}

/* ---- findings ------------------------------------------------------------------------------------------- */

/* Adds sentences as an array. */
static exf_code add_sentences(exf_jw *w, const char *key, const exf_text *found, exf_err *err)
{
    exf_text sentence = {0};
    exf_code rc = EXF_OK;
    exf_jw_open(w, key, '[');
    for (const char *s = found->s, *end; s && *s; s = end + 1) {
        end = strchr(s, '\n');
        sentence.len = 0;
        exf_text_append(&sentence, s, (size_t)(end - s));
        EXF_TRY(exf_text_end(&sentence, err));
        exf_jw_text(w, NULL, sentence.s);
    }
    exf_jw_close(w);
out:
    exf_text_free(&sentence);
    return rc;
}

static void add_choice(exf_jw *w, const char *key, const exf_validate_report *r, exf_choice c)
{
    if (!c.row) {
        exf_jw_text(w, key, NULL);
        return;
    }
    exf_difference value = exf_limit_value(r->limit, r->of.v, c.row);
    exf_jw_open(w, key, '{');
    exf_jw_text(w, "variant", r->of.v->variant[c.row].name);
    exf_jw_bool(w, "holds", c.holds);
    exf_jw_open(w, "value", '{');
    add_figures(w, (const figure[]){{"mean", value.mean}, {"se", value.se}, {"half_width", value.half_width}, {NULL, 0}});
    exf_jw_close(w);
    add_servers(w, &r->row[c.row], "served_by", 0);
    exf_jw_close(w);
}

/* Adds the pair for each batch size, of the rows that a runtime (NULL: any) runs; "together" is null where it was not measured. */
static void add_pairs(exf_jw *w, const exf_validate_report *r, const exf_runtime *runtime)
{
    exf_choice p = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_PREFILL, 0, runtime);
    exf_jw_open(w, "pairs", '[');
    for (int b = 0; b < r->of.v->n_batch_sizes; b++) {
        exf_choice d = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_DECODE, b, runtime);
        size_t both = p.row && d.row ? exf_find_together(&r->of, r->row, p.row, d.row) : 0;
        exf_difference value = both ? exf_limit_value(r->limit, r->of.v, both) : (exf_difference){0, 0, 0};
        exf_jw_open(w, NULL, '{');
        exf_jw_int(w, "decode_batch", r->of.v->batch_size[b].size);
        add_choice(w, "prefill", r, p);
        add_choice(w, "decode", r, d);
        add_choice(w, "together", r, (exf_choice){both, value.mean + value.half_width <= r->limit->most});
        exf_jw_close(w);
    }
    exf_jw_close(w);
}

/* Adds what is recommended of all rows, and in each public runtime that serves the model. */
static exf_code add_recommendation(exf_jw *w, const exf_validate_report *r, exf_err *err)
{
    const exf_runtime *runtime;
    if (!r->limit) return EXF_OK;
    exf_jw_open(w, "recommendation", '{');
    exf_jw_text(w, "metric", exf_limit_name(r->limit));
    exf_jw_real(w, "limit", r->limit->most);
    add_pairs(w, r, NULL);
    exf_jw_open(w, "runtimes", '{');
    for (size_t i = 0; (runtime = exf_runtime_at(i)); i++) {
        if (!exf_validate_answers_for(r, runtime)) continue;
        exf_jw_open(w, runtime->name, '{');
        add_pairs(w, r, runtime);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_code rc = add_sentences(w, "words", &r->found[EXF_FOUND_RECOMMENDATION], err);
    exf_jw_close(w);
    return rc;
}

/* Adds the best criterion for each static pool of which several were run. */
static exf_code add_pools(exf_jw *w, const exf_validate_report *r, exf_err *err)
{
    const exf_validation *v = r->of.v;
    size_t *best = NULL;
    exf_code rc = exf_mem_new(&best, v->n_variants, sizeof *best, "pools", err);
    if (rc != EXF_OK) return rc;
    exf_jw_open(w, "best_pools", '[');
    for (size_t i = 0, n = exf_best_pools(best, v, r->row); i < n; i++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_text(w, "variant", v->variant[best[i]].name);
        exf_jw_text(w, "by", exf_pool_criteria[r->row[best[i]].variant.pool_by]);
        exf_jw_real(w, "kl_mean", v->variant[best[i]].all.kl_mean);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_mem_free(best);
    return EXF_OK;
}

/* Adds the sizes of decode batches, and what errors are taken over. */
static void add_text_of_run(exf_jw *w, const exf_validation *v)
{
    exf_jw_open(w, "decode_batches", '[');
    for (int b = 0; b < v->n_batch_sizes; b++) {
        exf_jw_open(w, NULL, '{');
        exf_jw_int(w, "size", v->batch_size[b].size);
        exf_jw_real(w, "width", v->batch_size[b].width);
        exf_jw_real(w, "original_experts_per_batch", v->batch_size[b].experts);
        exf_jw_close(w);
    }
    exf_jw_close(w);
    exf_jw_open(w, "clusters", '{');
    exf_jw_text(w, "by", v->clusters_are_documents ? "document" : "sequence");
    exf_jw_count(w, "n", v->n_clusters);
    exf_jw_count(w, "near_copies", v->near_copies);
    exf_jw_close(w);
}

/* Adds what the run cost, and where its data came from. */
static void add_run(exf_jw *w, const exf_validate_report *r)
{
    const exf_validation *v = r->of.v;
    uint64_t n[] = {[EXF_LANE_ORIGINAL] = 0, [EXF_LANE_ASKED] = 0, [EXF_LANE_BASELINE] = 0, [EXF_LANE_HALF] = 0};
    for (size_t i = 0; i < v->n_variants; i++) n[v->variant[i].role]++;
    exf_jw_open(w, "cost", '{');
    exf_jw_real(w, "forwards", v->report.flops / v->one_flops);
    exf_jw_count(w, "variants", n[EXF_LANE_ASKED]);
    exf_jw_count(w, "baselines", n[EXF_LANE_BASELINE]);
    exf_jw_count(w, "halves", n[EXF_LANE_HALF]);
    exf_jw_count(w, "weight_bytes_read", v->report.weight_bytes);
    exf_jw_count(w, "model_bytes", r->model_bytes);
    exf_jw_close(w);
    exf_jw_open(w, "provenance", '{');
    for (size_t i = 0; i < r->facts->n; i++) exf_jw_text(w, r->facts->key[i], r->facts->value[i]);
    exf_jw_close(w);
}

exf_code exf_validate_json(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    static const char *const keys[] = {[EXF_FOUND_VERDICT] = "verdict", [EXF_FOUND_LAYERS] = "worse_layers",
                                       [EXF_FOUND_STABILITY] = "stability", [EXF_FOUND_CONSTRAINTS] = "not_constrained",
                                       [EXF_FOUND_DATA] = "data"};
    exf_jw w = {.depth = 0};
    exf_text summary = {0};
    exf_code rc;
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "schema", "exfold-validation/1");
    for (int k = 0; k < EXF_FINDINGS; k++)
        if (k == EXF_FOUND_RECOMMENDATION) EXF_TRY(add_recommendation(&w, r, err));
        else EXF_TRY(add_sentences(&w, keys[k], &r->found[k], err));
    EXF_TRY(exf_validate_summary(r, &summary, err));
    exf_jw_text(&w, "summary", summary.s);
    add_text_of_run(&w, r->of.v);
    EXF_TRY(add_pools(&w, r, err));
    exf_jw_open(&w, "variants", '[');
    for (size_t i = 0; i < r->of.v->n_variants; i++) EXF_TRY(add_row(&w, r, i, err));
    exf_jw_close(&w);
    add_run(&w, r);
    exf_jw_close(&w);
    exf_text_free(&summary);
    return exf_jw_end(&w, out, err);
out:
    exf_text_free(&summary);
    exf_jw_free(&w);
    return rc;
}

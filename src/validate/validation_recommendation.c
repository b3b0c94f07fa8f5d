/* validation_recommendation.c - says which rows hold the limit: in sentences for all rows and for each public runtime, and as the
 * end of the summary on a terminal, with the commands that validate the rows together and that serve them; see validation.h. */
#include "validate/validation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what is chosen ------------------------------------------------------------------------------------- */

static int holds(const exf_validate_report *r, exf_difference value)
{
    return value.mean + value.half_width <= r->limit->most;
}

/* Adds a row that was chosen: what it costs, and its value in the limit's metric; without a newline. */
static void add_choice(const exf_validate_report *r, exf_choice c, exf_row_kind kind, int batch, exf_text *out)
{
    int prefill = kind == EXF_ROW_PREFILL;
    double cost = exf_row_cost(&r->row[c.row], kind), whole = exf_whole_share(&r->of, cost, kind, batch);
    if (prefill) exf_text_appendf(out, "  prefill");
    else exf_text_appendf(out, "  batches of %d: decode", r->of.v->batch_size[batch].size);
    exf_text_appendf(out, "%s %s, %.1f %% of the experts' %s", c.holds ? "" : ": nothing holds; nearest",
                     r->of.v->variant[c.row].name, 100 * cost / exf_original_cost(&r->of, kind, batch),
                     prefill ? "FLOP" : "bytes");
    if (!isnan(whole)) exf_text_appendf(out, ", %.1f %% of all", 100 * whole);
    exf_text_appendf(out, ", %s ", exf_limit_words(r->limit));
    exf_difference value = exf_limit_value(r->limit, r->of.v, c.row);
    exf_add_spread(out, 5, value.mean, value.half_width);
}

int exf_validate_answers_for(const exf_validate_report *r, const exf_runtime *runtime)
{
    if (r->of.runtime && r->of.runtime != runtime) return 0;
    return exf_runtime_serves(runtime, r->of.family, r->of.a, NULL) == EXF_OK;
}

/* ---- in sentences --------------------------------------------------------------------------------------- */

/* Says what both rows do together, or adds them to the variants that were not run. */
static void add_together(const exf_validate_report *r, exf_choice p, exf_choice d, exf_text *missing, exf_text *out)
{
    if (!p.row || !p.holds || !d.row || !d.holds) return;
    size_t both = exf_find_together(&r->of, r->row, p.row, d.row);
    if (!both) {
        char pair[2 * EXF_VARIANT_NAME_LEN + 2];
        snprintf(pair, sizeof pair, "%s+%s", r->of.v->variant[p.row].name, r->of.v->variant[d.row].name);
        if (!missing->s || !strstr(missing->s, pair)) exf_text_appendf(missing, "%s%s", missing->len ? " " : "", pair);
        return;
    }
    exf_difference value = exf_limit_value(r->limit, r->of.v, both);
    exf_text_appendf(out, "; %s %s ", r->prefill_tokens ? "together" : "both at every position", exf_limit_words(r->limit));
    exf_add_spread(out, 5, value.mean, value.half_width);
    if (!holds(r, value)) exf_text_appendf(out, ", above the limit");
}

/* Adds the choices of a runtime (NULL: of all rows) for each batch size and returns how many; collects pairs that were not run.  Of
 * all rows, pairs that were run without their parts are told where there is nothing else. */
static int add_choices(const exf_validate_report *r, const exf_runtime *runtime, exf_text *missing, exf_text *out)
{
    const exf_validation *v = r->of.v;
    exf_choice p = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_PREFILL, 0, runtime);
    int n = p.row != 0;
    if (p.row) add_choice(r, p, EXF_ROW_PREFILL, 0, out);
    if (p.row) exf_text_appendf(out, "\n");
    for (int b = 0; b < v->n_batch_sizes; b++) {
        exf_choice d = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_DECODE, b, runtime);
        if (!d.row) continue;
        add_choice(r, d, EXF_ROW_DECODE, b, out);
        add_together(r, p, d, missing, out);
        exf_text_appendf(out, "\n");
        n++;
    }
    for (size_t i = 1; !n && !runtime && i < v->n_variants; i++) {
        if (!r->row[i].competes || r->row[i].kind != EXF_ROW_BOTH) continue;
        exf_difference value = exf_limit_value(r->limit, v, i);
        exf_text_appendf(out, "  %s, %s %s ", v->variant[i].name, r->prefill_tokens ? "together" : "both at every position",
                         exf_limit_words(r->limit));
        exf_add_spread(out, 5, value.mean, value.half_width);
        exf_text_appendf(out, ": %s the limit\n", holds(r, value) ? "holds" : "above");
    }
    return n;
}

exf_code exf_recommendation_words(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    exf_text missing = {0}, choices = {0};
    const exf_runtime *runtime;
    exf_code rc;
    (void)add_choices(r, NULL, &missing, &choices);
    EXF_TRY(exf_text_end(&choices, err));
    exf_text_appendf(out, "Recommended for %s=%g, which the whole 95 %% interval holds, of all:%s\n%s", exf_limit_name(r->limit),
                     r->limit->most, choices.len ? "" : " nothing; no row that saves anything was run",
                     choices.len ? choices.s : "");
    for (size_t i = 0; (runtime = exf_runtime_at(i)); i++) {
        if (!exf_validate_answers_for(r, runtime)) continue;
        exf_text_appendf(out, "In %s:", runtime->name);
        size_t before = out->len;
        exf_text_appendf(out, "\n");
        if (add_choices(r, runtime, &missing, out)) continue;
        out->len = before;
        exf_text_appendf(out, " nothing that it runs was measured; --runtime %s does\n", runtime->name);
    }
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

/* ---- on a terminal: which rows ----------------------------------------------------------------------------- */

/* The rows that are recommended: of those that our vLLM plugin runs (or the runtime that was asked for), or of all where it runs
 * none. */
typedef struct {
    const exf_runtime *runtime; /* that serves them; NULL: none that is known */
    exf_choice prefill, decode[EXF_SUMMARY_SIZES];
    int n_sizes;
    int holds_at; /* the first size of batches at which a decode row holds the limit; -1: none */
} chosen;

/* Returns 0 where no row is to be recommended. */
static int choose(chosen *c, const exf_validate_report *r)
{
    const exf_runtime *of[] = {r->of.runtime ? r->of.runtime : exf_runtime_find("exfold"), NULL};
    int n = r->of.v->n_batch_sizes, any = 0;
    for (int k = 0; r->limit && !any && k < 2; k++) {
        *c = (chosen){.runtime = of[k], .n_sizes = n < EXF_SUMMARY_SIZES ? n : EXF_SUMMARY_SIZES, .holds_at = -1};
        c->prefill = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_PREFILL, 0, of[k]);
        any = c->prefill.row != 0;
        for (int b = c->n_sizes - 1; b >= 0; b--) {
            c->decode[b] = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_DECODE, b, of[k]);
            any |= c->decode[b].row != 0;
            if (c->decode[b].row && c->decode[b].holds) c->holds_at = b;
        }
    }
    return any;
}

int exf_closing_names(const exf_validate_report *r, size_t i)
{
    chosen c;
    if (!choose(&c, r)) return 0;
    for (int b = 0; b < c.n_sizes; b++)
        if (c.decode[b].row == i) return 1;
    return c.prefill.row == i;
}

/* Adds a row with its perplexity, and what its KL is below that of the best fold without tables. */
static void add_row(const exf_validate_report *r, exf_choice c, exf_row_kind kind, int batch, exf_text *out)
{
    const exf_validation *v = r->of.v;
    const exf_row *row = &r->row[c.row];
    exf_text line = {0};
    if (!c.row) return;
    add_choice(r, c, kind, batch, &line);
    exf_text_appendf(&line, ", PPL %.2f (original %.2f)", v->variant[c.row].all.ppl, v->variant[0].all.ppl);
    if (row->baseline && exf_beyond_noise(&row->gain) && row->gain.mean > 0)
        exf_text_appendf(&line, ", KL %.5f below that of %s", row->gain.mean, v->variant[row->baseline].name);
    else if (row->baseline)
        exf_text_appendf(&line, ", KL not below that of %s beyond the noise", v->variant[row->baseline].name);
    exf_end_wrapped(out, &line, 0);
}

/* ---- on a terminal: commands ---------------------------------------------------------------------------------- */

/* Copies a variant's name without the size of batches that a validation adds to it. */
static void serving_name(char name[EXF_VARIANT_NAME_LEN], const char *of)
{
    snprintf(name, EXF_VARIANT_NAME_LEN, "%s", of);
    exf_drop_batch(name);
}

/* Adds the command that validates the pair: prompts fold as prefill, what follows as decode. */
static void add_validation(const exf_validate_report *r, const chosen *c, exf_text *out)
{
    const exf_validate_files *f = r->files;
    exf_text command = {0}, output = {0};
    char decode[EXF_VARIANT_NAME_LEN];
    serving_name(decode, r->of.v->variant[c->decode[c->holds_at].row].name);
    exf_text_appendf(&command, "  exfold-validate %s", f->recipe ? "" : "--model ");
    exf_text_append_word(&command, f->recipe ? f->recipe : f->model);
    exf_text_appendf(&command, "%s --tables ", f->settings);
    exf_text_append_word(&command, f->tables);
    exf_text_appendf(&command, " --variants %s+%s --set validate.prefill_tokens=%d --set validate.decode_batch=%d",
                     r->of.v->variant[c->prefill.row].name, decode, r->prefill_tokens ? r->prefill_tokens : r->longest / 2,
                     r->of.v->batch_size[c->holds_at].size);
    exf_text_appendf(&command, " --limit %s=%g -o ", exf_limit_name(r->limit), r->limit->most);
    /* these results stay */
    exf_text_appendf(&output, "%s%s", f->output, exf_ends_with(f->report, "validation.md") ? "/together" : "");
    if (output.s) exf_text_append_word(&command, output.s);
    if (r->of.runtime) exf_text_appendf(&command, " --runtime %s", r->of.runtime->name);
    exf_text_free(&output);
    exf_text_appendf(out, "They were measured apart; this validates them together, prompts as prefill and the rest as decode:\n");
    exf_end_wrapped(out, &command, 1);
}

/* Adds the commands that export the tables, where that is to be done, and serve with them. */
static void add_serving(const exf_validate_report *r, const chosen *c, exf_text *out)
{
    const exf_validate_files *f = r->files;
    const exf_validation *v = r->of.v;
    int exported = strlen(f->tables) > strlen(".safetensors") && exf_ends_with(f->tables, ".safetensors");
    char name[EXF_VARIANT_NAME_LEN];
    exf_text export = {0}, serve = {0}, path = {0};
    exf_text_appendf(&path, "%s/tables.safetensors", f->output);
    exf_text_appendf(&export, "  exfold-export ");
    exf_text_append_word(&export, f->tables);
    exf_text_appendf(&export, " --set output.targets=safetensors -o ");
    exf_text_append_word(&export, f->output);
    exf_text_appendf(&serve, "  EXFOLD_TABLES=");
    if (path.s) exf_text_append_word(&serve, exported ? f->tables : path.s);
    if (c->prefill.row && c->prefill.holds) exf_text_appendf(&serve, " EXFOLD_PREFILL=%s", v->variant[c->prefill.row].name);
    if (c->holds_at >= 0) {
        serving_name(name, v->variant[c->decode[c->holds_at].row].name);
        exf_text_appendf(&serve, " EXFOLD_DECODE=%s", name);
    }
    exf_text_appendf(&serve, " vllm serve ");
    exf_text_append_word(&serve, f->model);
    exf_text_appendf(out, "This serves them in vLLM with the plugin python/exfold_vllm (docs/serving.md):\n");
    if (!exported) exf_end_wrapped(out, &export, 1);
    exf_end_wrapped(out, &serve, 1);
    exf_text_free(&path);
    exf_text_free(&export);
}

/* Adds the rows, of decode those of the first n sizes of batches, and the commands. */
static void add_all(const exf_validate_report *r, const chosen *c, int n, exf_text *out)
{
    int prefill = c->prefill.row && c->prefill.holds, decode = c->holds_at >= 0;
    size_t both = prefill && decode ? exf_find_together(&r->of, r->row, c->prefill.row, c->decode[c->holds_at].row) : 0;
    if (prefill || (decode && c->holds_at < n))
        exf_text_appendf(out, "Recommended for %s=%g, which the whole 95 %% interval holds:\n", exf_limit_name(r->limit),
                         r->limit->most);
    add_row(r, c->prefill, EXF_ROW_PREFILL, 0, out);
    for (int i = 0; i < n; i++) add_row(r, c->decode[i], EXF_ROW_DECODE, i, out);
    if (n < r->of.v->n_batch_sizes) exf_text_appendf(out, "  other sizes of batches are in the report\n");
    if (both) {
        exf_difference value = exf_limit_value(r->limit, r->of.v, both);
        exf_text_appendf(out, "  together %s ", exf_limit_words(r->limit));
        exf_add_spread(out, 5, value.mean, value.half_width);
        exf_text_appendf(out, ", PPL %.2f: %s the limit\n", r->of.v->variant[both].all.ppl, holds(r, value) ? "within" : "above");
    }
    if (!r->files) return;
    if (prefill && decode && !both) add_validation(r, c, out);
    if (c->runtime && c->runtime->target) exf_text_appendf(out, "How %s serves them is in docs/serving.md\n", c->runtime->name);
    else if (c->runtime && (prefill || decode)) add_serving(r, c, out);
    exf_text_appendf(out, "Every row, and what each public runtime runs: %s\n", r->files->report);
}

void exf_validate_closing(const exf_validate_report *r, exf_text *out)
{
    const exf_text *words = &r->found[EXF_FOUND_RECOMMENDATION];
    chosen c;
    if (!choose(&c, r)) { /* pairs alone, or nothing */
        exf_text_append(out, words->s ? words->s : "", words->len);
        return;
    }
    for (int n = c.n_sizes; n > 0; n--) {
        out->len = 0;
        add_all(r, &c, n, out);
        if (out->refused || exf_count_lines(out) <= EXF_CLOSING_LINES) break;
    }
}

/* validation_closing.c - the end of a validation's summary where a limit was given: which rows to serve, what they cost and gain,
 * and the commands that validate them together and that serve them; see validation.h. */
#include "validate/validation.h"

#include <stdio.h>
#include <string.h>

/* The rows that are recommended: of those that our vLLM plugin runs (or the runtime that was asked for), or of all where it runs
 * none. */
typedef struct {
    const exf_runtime *runtime; /* that serves them; NULL: none that is known */
    exf_choice prefill, decode[EXF_SUMMARY_SIZES];
    int n_sizes;
} chosen;

static int choose_of(chosen *c, const exf_validate_report *r, const exf_runtime *runtime)
{
    int n = r->of.v->n_batch_sizes, any;
    *c = (chosen){.runtime = runtime, .n_sizes = n < EXF_SUMMARY_SIZES ? n : EXF_SUMMARY_SIZES};
    c->prefill = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_PREFILL, 0, runtime);
    any = c->prefill.row != 0;
    for (int b = 0; b < c->n_sizes; b++) {
        c->decode[b] = exf_recommend(r->limit, &r->of, r->row, EXF_ROW_DECODE, b, runtime);
        any |= c->decode[b].row != 0;
    }
    return any;
}

/* Returns 0 where no row is to be recommended. */
static int choose(chosen *c, const exf_validate_report *r)
{
    return choose_of(c, r, r->of.runtime ? r->of.runtime : exf_runtime_find("exfold")) || choose_of(c, r, NULL);
}

/* Returns the first size of batches at which a row holds the limit; -1: none. */
static int size_that_holds(const chosen *c)
{
    for (int b = 0; b < c->n_sizes; b++)
        if (c->decode[b].row && c->decode[b].holds) return b;
    return -1;
}

int exf_closing_names(const exf_validate_report *r, size_t i)
{
    chosen c;
    if (!r->limit || !choose(&c, r)) return 0;
    for (int b = 0; b < c.n_sizes; b++)
        if (c.decode[b].row == i) return 1;
    return c.prefill.row == i;
}

/* ---- what they cost and gain --------------------------------------------------------------------------- */

/* Adds a row with its perplexity, and what its KL is below that of the best fold without tables. */
static void add_row(const exf_validate_report *r, exf_choice c, exf_row_kind kind, int batch, exf_text *out)
{
    const exf_validation *v = r->of.v;
    const exf_gain *gain = exf_validate_gain(r, c.row);
    exf_text line = {0};
    if (!c.row) return;
    exf_choice_words(r, c, kind, batch, &line);
    exf_text_appendf(&line, ", PPL %.2f (original %.2f)", v->variant[c.row].all.ppl, v->variant[0].all.ppl);
    if (gain && exf_beyond_noise(&gain->kl) && gain->kl.mean > 0)
        exf_text_appendf(&line, ", KL %.5f below that of %s", gain->kl.mean, v->variant[gain->best].name);
    else if (gain)
        exf_text_appendf(&line, ", KL not below that of %s beyond the noise", v->variant[gain->best].name);
    if (line.refused) out->refused = line.refused;
    else exf_add_wrapped(out, line.s, line.len);
    exf_text_free(&line);
}

/* Adds what a pair does that was run. */
static void add_together(const exf_validate_report *r, size_t both, exf_text *out)
{
    exf_difference value = exf_limit_value(r->limit, r->of.v, both);
    exf_text_appendf(out, "  together %s %.5f ± %.5f, PPL %.2f: %s the limit\n", exf_limit_words(r->limit), value.mean,
                     value.half_width, r->of.v->variant[both].all.ppl,
                     value.mean + value.half_width <= r->limit->most ? "within" : "above");
}

/* ---- commands ------------------------------------------------------------------------------------------ */

/* Appends a command in lines that a shell takes as one; words are never broken. */
static void add_command(exf_text *out, const exf_text *command)
{
    const char *s = command->s;
    int column = 2;
    if (command->refused || !s) {
        out->refused = command->refused;
        return;
    }
    exf_text_append(out, "  ", 2);
    while (*s) {
        size_t n = 0;
        for (int quoted = 0; s[n] && (quoted || s[n] != ' '); n++) quoted ^= s[n] == '\'';
        if (column > 2 && column + 1 + (int)n + 2 > EXF_SUMMARY_COLUMNS) {
            int indent = 4 + (int)n + 2 > EXF_SUMMARY_COLUMNS ? 2 : 4;
            exf_text_appendf(out, " \\\n%*s", indent, "");
            column = indent;
        } else if (column > 2) {
            exf_text_append(out, " ", 1);
            column++;
        }
        exf_text_append(out, s, n);
        column += (int)n;
        s += n + strspn(s + n, " ");
    }
    exf_text_append(out, "\n", 1);
}

/* Copies a variant's name without the size of batches that a validation adds to it. */
static void serving_name(char name[EXF_VARIANT_NAME_LEN], const char *of)
{
    snprintf(name, EXF_VARIANT_NAME_LEN, "%s", of);
    char *last = strstr(name, "batch=");
    if (last && last > name && last[6 + strspn(last + 6, "0123456789")] == '\0') last[-1] = '\0';
}

/* Adds the command that validates the pair: prompts fold as prefill, what follows as decode. */
static void add_validation(const exf_validate_report *r, const chosen *c, int b, exf_text *out)
{
    const exf_validate_files *f = r->files;
    exf_text command = {0};
    char decode[EXF_VARIANT_NAME_LEN];
    serving_name(decode, r->of.v->variant[c->decode[b].row].name);
    exf_text_appendf(&command, "exfold-validate ");
    if (!f->recipe) exf_text_appendf(&command, "--model ");
    exf_text_append_word(&command, f->recipe ? f->recipe : f->model);
    exf_text_appendf(&command, "%s --tables ", f->settings);
    exf_text_append_word(&command, f->tables);
    exf_text_appendf(&command, " --variants %s+%s --set validate.prefill_tokens=%d --set validate.decode_batch=%d",
                     r->of.v->variant[c->prefill.row].name, decode, r->prefill_tokens ? r->prefill_tokens : r->longest / 2,
                     r->of.v->batch_size[b].size);
    exf_text_appendf(&command, " --limit %s=%g -o ", exf_limit_name(r->limit), r->limit->most);
    exf_text_append_word(&command, f->output);
    if (r->of.runtime) exf_text_appendf(&command, " --runtime %s", r->of.runtime->name);
    exf_text_appendf(out, "They were measured apart; this validates them together, prompts as prefill and the rest as decode:\n");
    add_command(out, &command);
    exf_text_free(&command);
}

/* Adds the commands that export the tables, where that is to be done, and serve with them. */
static void add_serving(const exf_validate_report *r, const chosen *c, int b, exf_text *out)
{
    const exf_validate_files *f = r->files;
    const exf_validation *v = r->of.v;
    size_t n = strlen(f->tables);
    int exported = n > 12 && strcmp(f->tables + n - 12, ".safetensors") == 0;
    char name[EXF_VARIANT_NAME_LEN];
    exf_text export = {0}, serve = {0}, path = {0};
    exf_text_appendf(&path, "%s/tables.safetensors", f->output);
    exf_text_appendf(&export, "exfold-export ");
    exf_text_append_word(&export, f->tables);
    exf_text_appendf(&export, " --set output.targets=safetensors -o ");
    exf_text_append_word(&export, f->output);
    exf_text_appendf(&serve, "EXFOLD_TABLES=");
    if (path.s) exf_text_append_word(&serve, exported ? f->tables : path.s);
    if (c->prefill.row && c->prefill.holds) exf_text_appendf(&serve, " EXFOLD_PREFILL=%s", v->variant[c->prefill.row].name);
    if (b >= 0) {
        serving_name(name, v->variant[c->decode[b].row].name);
        exf_text_appendf(&serve, " EXFOLD_DECODE=%s", name);
    }
    exf_text_appendf(&serve, " vllm serve ");
    exf_text_append_word(&serve, f->model);
    exf_text_appendf(out, "This serves them in vLLM with the plugin python/exfold_vllm (docs/serving.md):\n");
    if (!exported) add_command(out, &export);
    add_command(out, &serve);
    exf_text_free(&path);
    exf_text_free(&export);
    exf_text_free(&serve);
}

/* Adds the rows, of decode those of the first n sizes of batches, and the commands. */
static void add_all(const exf_validate_report *r, const chosen *c, int n, exf_text *out)
{
    int b = size_that_holds(c), holds = c->prefill.row && c->prefill.holds;
    size_t both = holds && b >= 0 ? exf_find_together(&r->of, c->prefill.row, c->decode[b].row) : 0;
    exf_text_appendf(out, "Recommended for %s=%g, which the whole 95 %% interval holds:\n", exf_limit_name(r->limit),
                     r->limit->most);
    add_row(r, c->prefill, EXF_ROW_PREFILL, 0, out);
    for (int i = 0; i < n; i++) add_row(r, c->decode[i], EXF_ROW_DECODE, i, out);
    if (n < r->of.v->n_batch_sizes) exf_text_appendf(out, "  other sizes of batches are in the report\n");
    if (both) add_together(r, both, out);
    if (!r->files) return;
    if (holds && b >= 0 && !both) add_validation(r, c, b, out);
    if (c->runtime && !c->runtime->target && (holds || b >= 0)) add_serving(r, c, b, out);
    else if (c->runtime && c->runtime->target)
        exf_text_appendf(out, "How %s serves them is in docs/serving.md\n", c->runtime->name);
    exf_text_appendf(out, "Every row, and what each public runtime runs: %s\n", r->files->report);
}

static int count_lines(const exf_text *t, size_t from)
{
    int n = 0;
    for (size_t i = from; i < t->len; i++) n += t->s[i] == '\n';
    return n;
}

exf_code exf_validate_closing(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    size_t before = out->len;
    chosen c;
    if (!choose(&c, r)) return exf_validate_words(r, EXF_WORDS_RECOMMENDATION, out, err); /* pairs alone, or nothing */
    for (int n = c.n_sizes; n > 0; n--) {
        out->len = before;
        add_all(r, &c, n, out);
        if (out->refused || count_lines(out, before) <= EXF_CLOSING_LINES) break;
    }
    return exf_text_end(out, err);
}

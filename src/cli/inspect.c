/* inspect.c - exfold-inspect summary, and what all commands of exfold-inspect print alike; see inspect.h. */
#include "cli/inspect.h"

#include "artifact/provenance.h"
#include "base/file.h"
#include "base/mem.h"
#include "inspect/inspection.h"
#include "recipe/run_directory.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- for all commands ------------------------------------------------------------------ */

exf_code exf_print_json(exf_jw *w, exf_err *err)
{
    exf_text text = {0};
    exf_code rc = exf_jw_end(w, &text, err);
    if (rc == EXF_OK) fputs(text.s, stdout);
    exf_text_free(&text);
    return rc;
}

exf_code exf_tell_output(exf_jw *w, const char *path, exf_err *err)
{
    char digest[EXF_SHA256_HEX];
    exf_file *f = NULL;
    exf_code rc;
    if (!w) return exf_announce(path, err);
    EXF_TRY(exf_file_open(&f, path, err));
    EXF_TRY(exf_hash_file(path, digest, err));
    exf_jw_open(w, NULL, '{');
    exf_jw_text(w, "path", path);
    exf_jw_count(w, "bytes", exf_file_size(f));
    exf_jw_text(w, "sha256", digest);
    exf_jw_close(w);
out:
    exf_file_close(f);
    return rc;
}

/* ---- summary as text ------------------------------------------------------------------ */

/* In which of the two tables a group of columns is: the one that fits a screen of 100 columns, the one of --verbose, or both. */
enum { BRIEF = 1, WHOLE = 2 };

/* A number of a layer's summary, " %*.*f" of it times scale. */
typedef struct {
    size_t at; /* offset in exf_layer_summary */
    int width, digits;
    double scale;
    int gap; /* one more blank before it */
} number;

/* A group of columns has two lines of heading; a layer's numbers, or what show() prints of it, are under them. */
typedef struct {
    unsigned in;
    const char *head[2];
    size_t needs; /* offset in exf_inspection of a pointer that must be set; 0: always there */
    void (*show)(const exf_layer_summary *row); /* NULL: the numbers, up to a width of 0 */
    number numbers[6];
} column;

/* Prints a number, or "-" for what was never observed. */
static void show_number(int width, int digits, double value)
{
    if (isnan(value))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, digits, value);
}

static void show_coverage(const exf_layer_summary *row)
{
    char text[64];
    snprintf(text, sizeof text, "%" PRIu64 "/%" PRIu64 " (%.1f %%)", row->observed, row->pairs,
             row->pairs ? 100.0 * (double)row->observed / (double)row->pairs : 0.0);
    printf("  %-24s", text);
}

static void show_norm_ends(const exf_layer_summary *row)
{
    printf("  %8.4g %8.4g", row->norm_min, row->norm_max);
}

static void show_norm_head(const exf_layer_summary *row)
{
    show_number(11, 3, row->explained);
    show_number(6, 3, row->explained_error);
    printf(" %6" PRIu64, row->by_rms);
}

static void show_norms(const exf_layer_summary *row)
{
    char least[32], most[32];
    if (row->layer < 0) {
        snprintf(least, sizeof least, "(%d:%d)", row->layer_min, row->expert_min);
        snprintf(most, sizeof most, "(%d:%d)", row->layer_max, row->expert_max);
    } else {
        snprintf(least, sizeof least, "(%3d)", row->expert_min);
        snprintf(most, sizeof most, "(%3d)", row->expert_max);
    }
    if (row->expert_min < 0)
        printf("  %36s", "");
    else
        printf("  %8.4g %-8s .. %8.4g %-8s", row->norm_min, least, row->norm_max, most);
}

static void show_cold(const exf_layer_summary *row)
{
    printf(" %" PRIu64 "/%" PRIu64, row->cold, row->experts);
}

#define OF(field) offsetof(exf_layer_summary, field)
#define IN(field) offsetof(exf_inspection, field)

static const column columns[] = {
    {BRIEF | WHOLE, {"  pairs observed          ", "                          "}, 0, show_coverage, {{0}}},
    {BRIEF, {" tokens of", "    a pair"}, 0, NULL, {{OF(tokens[1]), 9, 0, 1, 0}}},
    {WHOLE, {"     tokens of a pair", "   25 %   50 %   75 %"}, 0, NULL,
     {{OF(tokens[0]), 6, 0, 1, 0}, {OF(tokens[1]), 6, 0, 1, 0}, {OF(tokens[2]), 6, 0, 1, 0}}},
    {BRIEF, {"  best target's loss ", "   25 %   50 %   75 %"}, IN(loss), NULL,
     {{OF(best[0]), 6, 3, 1, 0}, {OF(best[1]), 6, 3, 1, 0}, {OF(best[2]), 6, 3, 1, 0}}},
    {WHOLE, {"   loss  under  best target's loss   ", " median  0.5 %    25 %   50 %   75 %"}, IN(loss), NULL,
     {{OF(loss), 6, 3, 1, 0}, {OF(below_half), 6, 1, 100, 0}, {OF(best[0]), 6, 3, 1, 1}, {OF(best[1]), 6, 3, 1, 0},
      {OF(best[2]), 6, 3, 1, 0}}},
    {BRIEF | WHOLE, {"  stable", " targets"}, IN(half_loss), NULL, {{OF(stable), 7, 1, 100, 0}}},
    {BRIEF | WHOLE, {"  choice", "  cost %"}, IN(half_loss), NULL, {{OF(cost), 7, 1, 100, 0}}},
    {WHOLE, {"  similar", "  outputs"}, IN(similarity), NULL, {{OF(similarity), 8, 3, 1, 0}}},
    {WHOLE, {"  after best", "      scalar"}, IN(aligned), NULL, {{OF(aligned), 11, 3, 1, 0}}},
    {BRIEF, {"   expert norm     ", "       min      max"}, 0, show_norm_ends, {{0}}},
    {WHOLE, {"  expert norm                         ", "       min (expert) ..      max (expert)"}, 0, show_norms, {{0}}},
    {WHOLE, {"   log norms explained    ", "       share  error by rms"}, IN(layer_explained), show_norm_head, {{0}}},
    {WHOLE, {"  mean cosines: least   near", " eigenvalue square copies"}, IN(least_eigenvalue), NULL,
     {{OF(least_eigenvalue), 9, 2, 1, 0}, {OF(cosine_sq), 7, 3, 1, 0}, {OF(near_copies), 7, 1, 100, 0}}},
    {BRIEF | WHOLE, {" cold", " experts"}, 0, show_cold, {{0}}},
};

enum { N_COLUMNS = sizeof columns / sizeof *columns };

static int is_shown(const column *c, const exf_inspection *s, unsigned in)
{
    const void *numbers = s;
    if (c->needs) memcpy(&numbers, (const char *)s + c->needs, sizeof numbers);
    return c->in & in && numbers;
}

static void show_layer(const exf_inspection *s, const exf_layer_summary *row, unsigned in)
{
    if (row->layer < 0)
        printf("  all");
    else
        printf("%5d", row->layer);
    for (const column *c = columns; c < columns + N_COLUMNS; c++) {
        if (!is_shown(c, s, in)) continue;
        if (c->show) c->show(row);
        for (const number *x = c->numbers; x->width; x++) {
            if (x->gap) printf(" ");
            show_number(x->width, x->digits, x->scale * *(const double *)(const void *)((const char *)row + x->at));
        }
    }
}

static void show_table(const exf_inspection *s, const exf_layer_summary *rows, unsigned in)
{
    size_t e = (size_t)s->shape.n_experts;
    for (int line = 0; line < 2; line++) {
        printf(line ? "     " : "\nlayer");
        for (size_t c = 0; c < N_COLUMNS; c++)
            if (is_shown(&columns[c], s, in)) fputs(columns[c].head[line], stdout);
        printf("\n");
    }
    for (size_t l = 0; l <= (size_t)s->n_layers; l++) {
        size_t named = 0; /* of its cold experts, eight at most */
        show_layer(s, &rows[l], in);
        for (size_t i = 0; in == WHOLE && l < (size_t)s->n_layers && i < e && named < 8; i++)
            if (s->expert_count[l * e + i] == 0) printf("%s%zu", named++ ? " " : ": ", i);
        printf(named == 8 ? " ...\n" : "\n");
    }
}

/* Prints the members of every layer's static pools, by falling criterion: "3 17 5 ...". */
static void show_pools(const exf_inspection *s)
{
    for (int i = 0; i < s->n_pools; i++) {
        const exf_static_pool *p = &s->pool[i];
        printf("\nstatic pool of %d experts by %s\nlayer  members by falling %s\n", p->size, p->by, p->by);
        for (int l = 0; l < s->n_layers; l++) {
            printf("%5d ", (int)s->layer_number[l]);
            for (int k = 0; k < p->size; k++) printf(" %d", (int)p->members[(size_t)l * (size_t)p->size + (size_t)k]);
            printf("\n");
        }
    }
}

/* Prints the shares of a layer's sampled tokens that keep 1..K experts, or 0..K, in per cent. */
static void show_kept(const exf_inspection *s, const exf_budget *b, int l)
{
    int64_t most = s->shape.top_k + 1 - exf_budget_least(b);
    const uint64_t *kept = b->kept + (size_t)l * (size_t)most;
    double n = 0;
    for (int64_t p = 0; p < most; p++) n += (double)kept[p];
    if (n > 0)
        printf("%5d  %6.3f ", (int)s->layer_number[l], exf_budget_layer_mean(s, b, l));
    else
        printf("%5d  left out, since it costs nothing", (int)s->layer_number[l]);
    for (int64_t p = 0; n > 0 && p < most; p++) printf(" %5.1f", 100 * (double)kept[p] / n);
    printf("\n");
}

/* Names the budgets, a line each, with the most and the fewest experts that a layer keeps. */
static void name_budgets(const exf_inspection *s)
{
    for (int i = 0; i < s->n_budgets; i++) {
        const exf_budget *b = &s->budget[i];
        double least = INFINITY, most = 0;
        for (int l = 0; l < s->n_layers; l++) {
            double mean = exf_budget_layer_mean(s, b, l);
            if (!(mean >= 0)) continue;
            least = fmin(least, mean);
            most = fmax(most, mean);
        }
        printf("%sbudget of %g experts per token by %s: layers keep %.2f to %.2f\n", i ? "" : "\n", b->budget, b->rule, least,
               most);
    }
}

static void show_budgets(const exf_inspection *s)
{
    for (int i = 0; i < s->n_budgets; i++) {
        const exf_budget *b = &s->budget[i];
        printf("\nbudget of %g experts per token by %s: lambda %.6g, mean %.4f of the sampled tokens\n", b->budget, b->rule,
               b->lambda, b->mean);
        if (b->predicted.kept)
            printf("by predicted norms: lambda %.6g, mean %.4f\n", b->predicted.lambda, b->predicted.mean);
        printf("layer    mean  %% of tokens that keep %s1, 2, ... %" PRId64 "\n", exf_budget_least(b) ? "" : "0, ", s->shape.top_k);
        for (int l = 0; l < s->n_layers; l++) show_kept(s, b, l);
    }
}

/* Returns 1 for facts by which programs compare files, and that nobody reads: digests, versions of numbers, who made what. */
static int is_for_programs(const char *key)
{
    static const char *const endings[] = {"digest", "sha256", ".commit", ".program", ".numbers", ".unicode", ".architecture",
                                          ".layers", ".route_sample", "data.sequences", "data.tokens", "data.min_tokens",
                                          "capture.version", "accumulate.version"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (exf_ends_with(key, endings[i])) return 1;
    return exf_weights_facts_list_key(key);
}

/* Prints the facts, of long ones in the brief table the beginning. */
static void show_facts(const exf_inspection *s, unsigned in)
{
    enum { MOST = 66 }; /* letters of a brief fact */
    printf("\nprovenance\n");
    for (size_t i = 0; i < s->provenance.n; i++) {
        const char *key = s->provenance.key[i], *value = s->provenance.value[i];
        char cut[MOST + 1];
        if (in == BRIEF ? is_for_programs(key) : exf_weights_facts_list_key(key)) continue;
        snprintf(cut, sizeof cut, "%s", value);
        size_t whole = exf_utf8_valid(cut, strlen(cut));
        cut[whole] = 0;
        printf("  ");
        exf_print_text(key, 26);
        printf(" ");
        exf_print_text(in == BRIEF ? cut : value, 0);
        printf("%s\n", in == BRIEF && value[whole] ? "..." : "");
    }
}

static void show_summary(const char *path, const exf_inspection *s, const exf_layer_summary *rows, unsigned in)
{
    exf_print_text(path, 0);
    printf(": %s, version %" PRId64 "\n", s->kind->kind, s->version);
    if (s->shape.top_k)
        printf("%" PRId64 " experts, top-%" PRId64 ", hidden %" PRId64 "; %d MoE layers; %" PRId64 " sequences, %" PRId64
               " tokens\n",
               s->shape.n_experts, s->shape.top_k, s->shape.d_model, s->n_layers, s->shape.n_sequences, s->shape.n_tokens);
    else /* tables in the format of artifact/tables_safetensors.c */
        printf("%" PRId64 " experts; %d layers with evidence; the file does not say of how many tokens a pair is: "
               "1 stands for any\n",
               s->shape.n_experts, s->n_layers);
    if (s->part) printf("part: %s\n", s->part);
    show_table(s, rows, in);
    if (in == BRIEF) {
        for (int i = 0, k; i < s->n_pools; i = k) { /* the pools of one size in a line */
            printf("%sstatic pools of %d experts by ", i ? "" : "\n", s->pool[i].size);
            for (k = i; k < s->n_pools && s->pool[k].size == s->pool[i].size; k++) printf("%s%s", k > i ? ", " : "", s->pool[k].by);
            printf("\n");
        }
        name_budgets(s);
    } else {
        show_pools(s);
        show_budgets(s);
    }
    show_facts(s, in);
    if (in == BRIEF) printf("\n--verbose: all columns, members of pools, budgets layer by layer, and all facts\n");
}

/* ---- summary as JSON -------------------------------------------------------------------- */

static void write_three(exf_jw *w, const char *key, const double x[3])
{
    exf_jw_open(w, key, '[');
    for (int i = 0; i < 3; i++) exf_jw_real(w, NULL, x[i]);
    exf_jw_close(w);
}

static void write_row(exf_jw *w, const char *key, const exf_layer_summary *row)
{
    exf_jw_open(w, key, '{');
    if (row->layer >= 0) exf_jw_int(w, "layer", row->layer);
    exf_jw_count(w, "pairs", row->pairs);
    exf_jw_count(w, "observed", row->observed);
    write_three(w, "tokens_quartiles", row->tokens);
    exf_jw_real(w, "loss_median", row->loss);
    exf_jw_real(w, "loss_below_half", row->below_half);
    write_three(w, "best_loss_quartiles", row->best);
    exf_jw_real(w, "stable_targets", row->stable);
    exf_jw_real(w, "choice_cost", row->cost);
    exf_jw_real(w, "similarity", row->similarity);
    exf_jw_real(w, "aligned", row->aligned);
    if (!isnan(row->explained)) {
        exf_jw_real(w, "norms_explained", row->explained);
        exf_jw_real(w, "norms_explained_error", row->explained_error);
        exf_jw_count(w, "norms_by_rms", row->by_rms);
    }
    if (!isnan(row->least_eigenvalue)) {
        exf_jw_real(w, "least_eigenvalue", row->least_eigenvalue);
        exf_jw_real(w, "median_cosine_sq", row->cosine_sq);
        exf_jw_real(w, "near_copies", row->near_copies);
    }
    exf_jw_real(w, "norm_min", row->norm_min);
    if (row->layer < 0) exf_jw_int(w, "norm_min_layer", row->layer_min);
    exf_jw_int(w, "norm_min_expert", row->expert_min);
    exf_jw_real(w, "norm_max", row->norm_max);
    if (row->layer < 0) exf_jw_int(w, "norm_max_layer", row->layer_max);
    exf_jw_int(w, "norm_max_expert", row->expert_max);
    exf_jw_count(w, "experts", row->experts);
    exf_jw_count(w, "cold", row->cold);
    exf_jw_close(w);
}

static exf_code print_as_json(const char *path, const exf_inspection *s, const exf_layer_summary *rows, exf_err *err)
{
    exf_jw w = {0};
    exf_jw_open(&w, NULL, '{');
    exf_jw_text(&w, "file", path);
    exf_jw_text(&w, "kind", s->kind->kind);
    exf_jw_int(&w, "version", s->version);
    exf_jw_text(&w, "part", s->part);
    exf_jw_int(&w, "n_experts", s->shape.n_experts);
    exf_jw_int(&w, "top_k", s->shape.top_k);
    exf_jw_int(&w, "d_model", s->shape.d_model);
    exf_jw_int(&w, "n_sequences", s->shape.n_sequences);
    exf_jw_int(&w, "n_tokens", s->shape.n_tokens);
    exf_pools_json(&w, s);
    exf_budgets_json(&w, s);
    exf_jw_open(&w, "layers", '[');
    for (int l = 0; l < s->n_layers; l++) write_row(&w, NULL, &rows[l]);
    exf_jw_close(&w);
    write_row(&w, "all", &rows[s->n_layers]);
    exf_jw_open(&w, "provenance", '{');
    for (size_t i = 0; i < s->provenance.n; i++) exf_jw_text(&w, s->provenance.key[i], s->provenance.value[i]);
    exf_jw_close(&w);
    exf_jw_close(&w);
    return exf_print_json(&w, err);
}

/* ---- a validation ----------------------------------------------------------------------- */

enum { VALIDATION_MAX = 16 << 20 }; /* bytes */

/* Prints the summary that validation.json and frontier.json hold, or the file. */
static exf_code show_validation(const exf_recipe *r, exf_err *err)
{
    const char *path = r->inputs[0];
    exf_json *root = NULL;
    char *text = NULL;
    size_t n;
    exf_code rc;
    EXF_TRY(exf_json_load(&root, path, VALIDATION_MAX, err));
    const char *schema = exf_json_string(exf_json_get(root, "schema"), NULL),
               *summary = exf_json_string(exf_json_get(root, "summary"), NULL);
    if (!schema || strcmp(schema, "exfold-validation/1") != 0)
        rc = exf_fail(err, EXF_FORMAT, "%s: \"schema\" is %s, expected exfold-validation/1, as exfold-validate writes it", path,
                      schema ? schema : "missing");
    else if (r->n_inputs > 1)
        rc = exf_fail(err, EXF_USAGE, "%s: is a validation, which is summed up alone, without %s", path, r->inputs[1]);
    else if (!summary)
        rc = exf_fail(err, EXF_FORMAT, "%s: has no \"summary\", which earlier programs did not write; validate again", path);
    if (rc != EXF_OK) goto out;
    EXF_TRY(exf_file_slurp(path, VALIDATION_MAX, &text, &n, err));
    fputs(r->json ? text : summary, stdout);
out:
    exf_mem_free(text);
    exf_json_free(root);
    return rc;
}

exf_code exf_inspect_summary(exf_recipe *r, exf_err *err)
{
    if (exf_ends_with(r->inputs[0], ".json")) return show_validation(r, err);
    exf_inspection s = {0};
    exf_layer_summary *rows = NULL;
    exf_code rc;
    EXF_TRY(exf_inspection_read(&s, r->inputs[0], r->n_inputs > 1 ? r->inputs[1] : NULL, err));
    EXF_TRY(exf_mem_new(&rows, (size_t)s.n_layers + 1, sizeof *rows, "summary", err));
    EXF_TRY(exf_summarise(&s, rows, err));
    if (r->json)
        EXF_TRY(print_as_json(r->inputs[0], &s, rows, err));
    else
        show_summary(r->inputs[0], &s, rows, r->verbose ? WHOLE : BRIEF);
out:
    exf_mem_free(rows);
    exf_inspection_free(&s);
    return rc;
}

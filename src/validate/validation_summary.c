/* validation_summary.c - the summary of a validation for a terminal, which it does not fill; see validation.h.
 *
 * A run of few variants shows all that were asked for, a sweep the rows on its frontiers; validation.md has every row. */
#include "validate/validation.h"

#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns of a table: two marks, then these, a blank before each. */
enum { MARKS = 2, NAME = 33, COST = 21, KL = 17, WORST = 15, LAST = 7 };

/* ---- lines --------------------------------------------------------------------------------------- */

static int count_columns(const char *s, size_t n)
{
    int columns = 0;
    for (size_t i = 0; i < n; i++) columns += ((unsigned char)s[i] & 0xc0) != 0x80; /* the first byte of a character of UTF-8 */
    return columns;
}

static int count_lines(const exf_text *t)
{
    int n = 0;
    for (size_t i = 0; i < t->len; i++) n += t->s[i] == '\n';
    return n;
}

/* Appends a blank and the text in a field of so many columns, cut where it is longer; right: to its right end. */
static void add_field(exf_text *out, const char *s, int width, int right)
{
    int columns = count_columns(s, strlen(s)), is_cut = columns > width;
    size_t n = exf_bytes_of_columns(s, is_cut ? width - 1 : width);
    int blanks = is_cut ? 0 : width - columns;
    exf_text_appendf(out, " %*s", right ? blanks : 0, "");
    exf_text_append(out, s, n);
    exf_text_appendf(out, "%s%*s", is_cut ? "…" : "", right ? 0 : blanks, "");
}

/* Ends a line without the blanks at its end. */
static void end_line(exf_text *out)
{
    while (out->len && out->s[out->len - 1] == ' ') out->s[--out->len] = '\0';
    exf_text_append(out, "\n", 1);
}

/* Appends sentences, whole ones, in at most so many lines. */
static exf_code add_words(const exf_validate_report *r, exf_words which, int most, exf_text *out, exf_err *err)
{
    exf_text words = {0}, lines = {0};
    int left_out = 0, n = 0;
    exf_code rc;
    EXF_TRY(exf_validate_words(r, which, &words, err));
    for (const char *s = words.s, *end; s && *s; s = end + 1) {
        end = strchr(s, '\n');
        lines.len = 0;
        exf_add_wrapped(&lines, s, (size_t)(end - s));
        EXF_TRY(exf_text_end(&lines, err));
        int more = count_lines(&lines);
        if (left_out || n + more > most - !!end[1]) {
            left_out++;
            continue;
        }
        exf_text_append(out, lines.s, lines.len);
        n += more;
    }
    if (left_out) exf_text_appendf(out, "%d more sentence%s of this: in the .md\n", left_out, left_out > 1 ? "s" : "");
    rc = exf_text_end(out, err);
out:
    exf_text_free(&words);
    exf_text_free(&lines);
    return rc;
}

/* ---- one row of a table ---------------------------------------------------------------------------- */

/* Writes "393 k", "1.57 M", "3.62 G". */
static const char *count_text(char buf[16], double x)
{
    static const char *const unit[] = {"", " k", " M", " G", " T"};
    int i = 0;
    for (; x >= 999.5 && i < 4; i++) x /= 1000;
    snprintf(buf, 16, "%.3g%s", x, unit[i]);
    return buf;
}

/* Writes a perplexity in the column's seven characters, a huge one as its power of ten: "4.866", "12345", "1.2e+31". */
static void ppl_text(char buf[16], double ppl)
{
    if (ppl < 9999.5) snprintf(buf, 16, "%#.4g", ppl);
    else if (ppl < 999999.5) snprintf(buf, 16, "%.0f", ppl);
    else snprintf(buf, 16, "%.1e", ppl);
}

static void add_cost(const exf_validate_report *r, double cost, exf_row_kind kind, int batch, exf_text *out)
{
    char number[16], field[40];
    double whole = exf_original_cost(&r->of, kind, batch);
    if (kind == EXF_ROW_PREFILL) count_text(number, cost);
    else exf_human_bytes(number, sizeof number, cost);
    double share = exf_whole_share(&r->of, cost, kind, batch);
    int n = snprintf(field, sizeof field, "%s %5.1f", number, whole > 0 ? 100 * cost / whole : 100);
    if (!isnan(share)) n += snprintf(field + n, sizeof field - (size_t)n, " / %.0f", 100 * share);
    snprintf(field + n, sizeof field - (size_t)n, " %%");
    add_field(out, field, COST, 1);
}

static void add_kl(const exf_validate_report *r, size_t i, exf_text *out)
{
    char field[48];
    exf_difference d = exf_kl_difference(r->of.v, i, 0);
    int n = snprintf(field, sizeof field, "%.5f ± ", r->of.v->variant[i].all.kl_mean);
    if (isnan(d.half_width)) snprintf(field + n, sizeof field - (size_t)n, "-");
    else snprintf(field + n, sizeof field - (size_t)n, "%.5f", d.half_width);
    add_field(out, field, KL, 1);
}

/* Adds the KL of the domain where it is largest, and its name, cut. */
static void add_worst(const exf_validate_report *r, size_t i, exf_text *out)
{
    const exf_validation *v = r->of.v;
    char field[16 + 4 * WORST];
    size_t worst = exf_worst_domain(v, i);
    field[0] = '\0';
    if (v->n_domains > 1)
        snprintf(field, sizeof field, "%.4f %.*s", v->variant[i].domain[worst].kl_mean, 4 * WORST, r->domain_names[worst]);
    exf_make_printable(field);
    add_field(out, field, WORST, 0);
}

static int bounds_tokens(const exf_validate_report *r, exf_row_kind kind)
{
    return kind == EXF_ROW_DECODE && r->of.cost->bandwidth > 0;
}

/* Adds the bound of tokens per second where it is known, else the perplexity. */
static void add_last(const exf_validate_report *r, size_t i, exf_row_kind kind, double tokens_per_second, exf_text *out)
{
    char field[16];
    if (bounds_tokens(r, kind)) count_text(field, tokens_per_second);
    else ppl_text(field, r->of.v->variant[i].all.ppl);
    add_field(out, field, LAST, 1);
}

/* Returns 1 if a public runtime serves the model's family, and rows were not asked for as one runs them. */
static int marks_servers(const exf_validate_report *r)
{
    const exf_runtime *runtime;
    for (size_t i = 0; !r->of.runtime && (runtime = exf_runtime_at(i)); i++)
        if (runtime->target && exf_runtime_serves(runtime, r->of.family, r->of.a, NULL) == EXF_OK) return 1;
    return 0;
}

/* Returns 'x' for a row that no public runtime runs, '~' for one that some run with options of their own. */
static char serving_mark(const exf_validate_report *r, const exf_row *row)
{
    if (!marks_servers(r) || exf_row_is_served(row, NULL)) return ' ';
    return row->n_servers ? '~' : 'x';
}

/* Adds what both folds cost: shares of operations and of bytes. */
static void add_both_costs(const exf_validate_report *r, const exf_row *row, int batch, exf_text *out)
{
    char field[48];
    double whole = exf_original_cost(&r->of, EXF_ROW_DECODE, batch);
    snprintf(field, sizeof field, "%.1f + %.1f %%", 100 * row->cost.flops / exf_original_cost(&r->of, EXF_ROW_PREFILL, batch),
             whole > 0 ? 100 * row->cost.expert_bytes / whole : 100);
    add_field(out, field, COST, 1);
}

/* Adds the row's name.  Of several sizes of batches the size comes first, where it is not cut: "16: D8". */
static void add_name(const exf_validate_report *r, size_t i, exf_row_kind kind, int batch, exf_text *out)
{
    char name[EXF_VARIANT_NAME_LEN + 16], *last;
    int n = 0;
    name[0] = '\0';
    if (kind != EXF_ROW_PREFILL && r->of.v->n_batch_sizes > 1)
        n = snprintf(name, sizeof name, "%d: ", r->of.v->batch_size[batch].size);
    snprintf(name + n, sizeof name - (size_t)n, "%s", r->of.v->variant[i].name);
    last = strstr(name, "batch=");
    if (n && last && last[6 + strspn(last + 6, "0123456789")] == '\0') last[-1] = '\0';
    add_field(out, name, NAME, 0);
}

static void add_row(const exf_validate_report *r, size_t i, exf_row_kind kind, int batch, exf_text *out)
{
    const exf_row *row = &r->row[i];
    exf_text_appendf(out, "%c%c", row->on_frontier ? '*' : ' ', serving_mark(r, row));
    add_name(r, i, kind, batch, out);
    if (kind == EXF_ROW_BOTH) add_both_costs(r, row, batch, out);
    else add_cost(r, exf_row_cost(row, kind), kind, batch, out);
    add_kl(r, i, out);
    add_worst(r, i, out);
    add_last(r, i, kind, row->cost.tokens_per_second, out);
    end_line(out);
}

/* ---- tables ---------------------------------------------------------------------------------------- */

/* The rows of one question, by falling cost. */
typedef struct {
    exf_row_kind kind;
    int batch;
    size_t *row; /* [n] */
    size_t n, shown;
} section;

enum { SECTIONS = 1 + 2 * EXF_SUMMARY_SIZES };

/* Puts row i in its place among the section's. */
static void insert_row(const exf_validate_report *r, section *s, size_t i)
{
    exf_row_kind by = s->kind == EXF_ROW_BOTH ? EXF_ROW_DECODE : s->kind;
    size_t at = s->n++;
    for (; at && exf_row_cost(&r->row[s->row[at - 1]], by) < exf_row_cost(&r->row[i], by); at--) s->row[at] = s->row[at - 1];
    s->row[at] = i;
}

/* Lists the rows of a section: those on its frontier or, if `all`, all that were asked for and are constrained. */
static void fill_section(const exf_validate_report *r, section *s, int all)
{
    const exf_validation *v = r->of.v;
    s->n = 0;
    for (size_t i = 1; i < v->n_variants; i++) {
        const exf_variant_result *row = &v->variant[i];
        if (row->role != EXF_LANE_ASKED || row->constraint != EXF_CONSTRAINED || r->row[i].kind != s->kind) continue;
        if (s->kind != EXF_ROW_PREFILL && row->batch != s->batch) continue;
        if (all || r->row[i].on_frontier || exf_closing_names(r, i)) insert_row(r, s, i);
    }
    s->shown = s->n;
}

static void add_heads(const char *what, const char *cost, const char *last, exf_text *out)
{
    exf_text_appendf(out, "  ");
    add_field(out, what, NAME, 0);
    add_field(out, cost, COST, 1);
    add_field(out, "KL, 95 %", KL, 1);
    add_field(out, "worst domain", WORST, 0);
    add_field(out, last, LAST, 1);
    end_line(out);
}

/* Adds the original's line, the first of a section. */
static void add_original(const exf_validate_report *r, const section *s, exf_text *out)
{
    char name[48] = "original", last[16];
    double cost = exf_original_cost(&r->of, s->kind, s->batch);
    if (s->kind == EXF_ROW_DECODE)
        snprintf(name, sizeof name, "original in batches of %d", r->of.v->batch_size[s->batch].size);
    if (bounds_tokens(r, s->kind))
        count_text(last, r->of.v->batch_size[s->batch].size * r->of.cost->bandwidth / (cost + r->of.cost->other_bytes));
    else
        ppl_text(last, r->of.v->variant[0].all.ppl);
    exf_text_appendf(out, "  ");
    add_field(out, name, NAME, 0);
    add_cost(r, cost, s->kind, s->batch, out);
    add_field(out, "", KL, 1);
    add_field(out, "", WORST, 0);
    add_field(out, last, LAST, 1);
    end_line(out);
}

/* Decode at several sizes has one costly line a size less: shares say what the original costs. */
static int has_original(const exf_validate_report *r, const section *s)
{
    return s->kind == EXF_ROW_PREFILL || (s->kind == EXF_ROW_DECODE && r->of.v->n_batch_sizes == 1);
}

static void add_section(const exf_validate_report *r, const section *s, int is_first_of_kind, exf_text *out)
{
    if (s->kind == EXF_ROW_PREFILL)
        add_heads("Prefill", "FLOP/token, % / all", "PPL", out);
    else if (is_first_of_kind && s->kind == EXF_ROW_DECODE)
        add_heads("Decode", "bytes/step, % / all", bounds_tokens(r, s->kind) ? "tok/s <" : "PPL", out);
    else if (is_first_of_kind)
        add_heads("Both", "FLOP + bytes", "PPL", out);
    if (has_original(r, s)) add_original(r, s, out);
    for (size_t k = 0; k < s->shown; k++) add_row(r, s->row[k], s->kind, s->batch, out);
}

/* ---- the summary ----------------------------------------------------------------------------------- */

typedef struct {
    section list[SECTIONS];
    int n;
    size_t *rows; /* memory of all sections */
} tables;

/* Makes the sections: prefill, decode at each size, and both where all rows are shown. */
static exf_code make_tables(tables *t, const exf_validate_report *r, int all, exf_err *err)
{
    const exf_validation *v = r->of.v;
    int sizes = v->n_batch_sizes < EXF_SUMMARY_SIZES ? v->n_batch_sizes : EXF_SUMMARY_SIZES;
    exf_code rc = exf_mem_new(&t->rows, SECTIONS * v->n_variants, sizeof *t->rows, "rows", err);
    if (rc != EXF_OK) return rc;
    t->n = 0;
    for (exf_row_kind kind = EXF_ROW_PREFILL; kind <= EXF_ROW_BOTH; kind++)
        for (int b = 0; b < (kind == EXF_ROW_PREFILL ? 1 : sizes); b++) {
            section s = {.kind = kind, .batch = b, .row = t->rows + (size_t)t->n * v->n_variants};
            fill_section(r, &s, all);
            int wanted = s.n && (all || kind != EXF_ROW_BOTH);
            if (wanted) t->list[t->n++] = s;
        }
    return EXF_OK;
}

/* Returns 1 if section k begins with the heads of its kind. */
static int has_heads(const tables *t, int k)
{
    return k == 0 || t->list[k].kind != t->list[k - 1].kind;
}

static int tables_lines(const exf_validate_report *r, const tables *t)
{
    int lines = 0;
    for (int k = 0; k < t->n; k++) lines += (int)t->list[k].shown + has_heads(t, k) + has_original(r, &t->list[k]);
    return lines;
}

/* Takes the cheapest row, which is the worst, from a section, unless it is recommended and others are left. */
static void drop_row(const exf_validate_report *r, section *s)
{
    size_t k = s->shown;
    while (k && exf_closing_names(r, s->row[k - 1])) k--;
    if (!k) k = s->shown;
    s->shown--;
    memmove(s->row + k - 1, s->row + k, (s->shown + 1 - k) * sizeof *s->row);
}

/* Takes rows from the longest section, until the tables have so many lines at most; sections that have no row left go, the last one
 * first. */
static void fit_tables(const exf_validate_report *r, tables *t, int most)
{
    while (t->n && tables_lines(r, t) > most) {
        section *longest = &t->list[0];
        for (int k = 1; k < t->n; k++)
            if (t->list[k].shown > longest->shown) longest = &t->list[k];
        if (longest->shown) drop_row(r, longest);
        else t->n--;
    }
}

/* Explains the marks, and says how many rows are not shown. */
static void add_legend(const exf_validate_report *r, const tables *t, exf_text *out)
{
    exf_text line = {0};
    size_t shown = 0, all = 0;
    for (int k = 0; k < t->n; k++) shown += t->list[k].shown;
    for (size_t i = 1; i < r->of.v->n_variants; i++) all += r->of.v->variant[i].role != EXF_LANE_HALF;
    exf_text_appendf(&line, "%% / all: of the experts' cost, of the model's (%d tokens, no cache); *: on the frontier", r->longest);
    if (marks_servers(r)) exf_text_appendf(&line, "; x: no public runtime runs it, ~: with its own options");
    if (shown < all) exf_text_appendf(&line, "; %zu more in the .md", all - shown);
    if (line.refused) out->refused = line.refused;
    else if (t->n) exf_add_wrapped(out, line.s, line.len);
    exf_text_free(&line);
}

enum { LEGEND = 2, BLANKS = 2, TABLES = 9 }; /* TABLES: lines that are left for them: two heads, two originals, some rows */

/* What stands before the tables and after them; before them the first kinds of sentences have the lines that are left. */
static exf_code add_around(const exf_validate_report *r, exf_text *before, exf_text *after, exf_err *err)
{
    static const struct { exf_words which; int most; } kinds[] = {
        {EXF_WORDS_LAYERS, 4}, {EXF_WORDS_VERDICT, 6}, {EXF_WORDS_STABILITY, 4}, {EXF_WORDS_CONSTRAINTS, 3}};
    exf_code rc;
    EXF_TRY(add_words(r, EXF_WORDS_DATA, 3, after, err));
    if (r->limit) EXF_TRY(exf_validate_closing(r, after, err));
    int room = EXF_SUMMARY_LINES - LEGEND - BLANKS - TABLES - count_lines(after);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int left = room - count_lines(before);
        if (left > 0) EXF_TRY(add_words(r, kinds[i].which, left < kinds[i].most ? left : kinds[i].most, before, err));
    }
    rc = exf_text_end(after, err);
out:
    return rc;
}

exf_code exf_validate_summary(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    exf_text before = {0}, after = {0};
    tables t = {.n = 0};
    exf_code rc;
    EXF_TRY(add_around(r, &before, &after, err));
    int most = EXF_SUMMARY_LINES - LEGEND - BLANKS - count_lines(&before) - count_lines(&after);
    EXF_TRY(make_tables(&t, r, 1, err));
    if (tables_lines(r, &t) > most) {
        exf_mem_free(t.rows);
        EXF_TRY(make_tables(&t, r, 0, err));
    }
    fit_tables(r, &t, most);
    if (before.len) exf_text_appendf(out, "%s\n", before.s);
    for (int k = 0; k < t.n; k++) add_section(r, &t.list[k], has_heads(&t, k), out);
    add_legend(r, &t, out);
    exf_text_appendf(out, "\n%s", after.s);
    rc = exf_text_end(out, err);
out:
    exf_text_free(&before);
    exf_text_free(&after);
    exf_mem_free(t.rows);
    return rc;
}

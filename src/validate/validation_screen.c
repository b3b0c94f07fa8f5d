/* validation_screen.c - the summary of a validation for a terminal, which it does not fill; see validation.h.
 *
 * A run of few variants shows all that were asked for, a sweep the rows on its frontiers; validation.md has every row. */
#include "validate/validation.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Appends whole sentences of a kind, in at most so many lines, and returns how many are left out. */
static int add_found(const exf_text *found, int most, exf_text *out)
{
    int left_out = 0, n = 0;
    exf_text lines = {0};
    for (const char *s = found->s, *end; s && *s; s = end + 1) {
        end = strchr(s, '\n');
        lines.len = 0;
        exf_add_wrapped(&lines, s, (size_t)(end - s), 0);
        int more = exf_count_lines(&lines);
        if (lines.refused) out->refused = lines.refused;
        if (left_out || lines.refused || n + more > most) {
            left_out++;
            continue;
        }
        exf_text_append(out, lines.s, lines.len);
        n += more;
    }
    exf_text_free(&lines);
    return left_out;
}

/* ---- one line of a table ------------------------------------------------------------------------------ */

/* Columns of a table: two marks, then these, a blank before each. */
enum { NAME, COST, KL, WORST, LAST, COLUMNS, FIELD = 4 * EXF_VARIANT_NAME_LEN };
static const struct { int width, is_right; } columns[COLUMNS] = {[NAME] = {33, 0}, [COST] = {21, 1}, [KL] = {17, 1},
                                                                 [WORST] = {15, 0}, [LAST] = {7, 1}};
typedef char fields[COLUMNS][FIELD];

/* Appends a line without the blanks at its end; what is too long for its column is cut. */
static void add_line(exf_text *out, const char *marks, fields field)
{
    exf_text_append(out, marks, 2);
    for (int c = 0; c < COLUMNS; c++) {
        int width = columns[c].width, n = 0, cut;
        for (const char *s = field[c]; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80; /* the first byte of a character */
        cut = n > width;
        exf_text_appendf(out, " %*s", columns[c].is_right && !cut ? width - n : 0, "");
        exf_text_append(out, field[c], exf_bytes_of_columns(field[c], cut ? width - 1 : width));
        exf_text_appendf(out, "%s%*s", cut ? "…" : "", columns[c].is_right || cut ? 0 : width - n, "");
    }
    while (out->len && out->s[out->len - 1] == ' ') out->s[--out->len] = '\0';
    exf_text_append(out, "\n", 1);
}

/* Writes "393 k", "1.57 M", "3.62 G". */
static const char *count_text(char buf[16], double x)
{
    static const char *const unit[] = {"", " k", " M", " G", " T"};
    int i = 0;
    for (; x >= 999.5 && i < 4; i++) x /= 1000;
    snprintf(buf, 16, "%.3g%s", x, unit[i]);
    return buf;
}

/* Writes what a kind costs: operations or bytes, the share of the experts', and that of the model's; of both folds two shares. */
static void cost_text(char *field, const exf_validate_report *r, const exf_cost *cost, exf_row_kind kind, int batch)
{
    char number[16];
    double flops = exf_original_cost(&r->of, EXF_ROW_PREFILL, batch), bytes = exf_original_cost(&r->of, EXF_ROW_DECODE, batch);
    double own = kind == EXF_ROW_PREFILL ? cost->flops : cost->expert_bytes, whole = kind == EXF_ROW_PREFILL ? flops : bytes;
    double share = exf_whole_share(&r->of, own, kind, batch), percent = whole > 0 ? 100 * own / whole : 100;
    if (kind == EXF_ROW_BOTH) {
        snprintf(field, FIELD, "%.1f + %.1f %%", 100 * cost->flops / flops, percent);
        return;
    }
    if (kind == EXF_ROW_PREFILL) count_text(number, own);
    else exf_human_bytes(number, sizeof number, own);
    int n = snprintf(field, FIELD, "%s %5.1f", number, percent);
    if (!isnan(share)) n += snprintf(field + n, FIELD - (size_t)n, " / %.0f", 100 * share);
    snprintf(field + n, FIELD - (size_t)n, " %%");
}

/* Returns 1 if the last column of a kind is the bound of tokens per second, not PPL. */
static int bounds_tokens(const exf_validate_report *r, exf_row_kind kind)
{
    return kind == EXF_ROW_DECODE && r->of.cost->bandwidth > 0;
}

/* Writes a rate, or a perplexity in the column's seven characters, a huge one as its power of ten: "4.866", "12345", "1.2e+31". */
static void last_text(char *field, const exf_validate_report *r, exf_row_kind kind, double rate, double ppl)
{
    if (bounds_tokens(r, kind)) count_text(field, rate);
    else snprintf(field, FIELD, ppl < 9999.5 ? "%#.4g" : ppl < 999999.5 ? "%.0f" : "%.1e", ppl);
}

/* Returns 1 if a public runtime serves the model's family, and rows were not asked for as one runs them. */
static int marks_servers(const exf_validate_report *r)
{
    const exf_runtime *runtime;
    for (size_t i = 0; !r->of.runtime && (runtime = exf_runtime_at(i)); i++)
        if (runtime->target && exf_runtime_serves(runtime, r->of.family, r->of.a, NULL) == EXF_OK) return 1;
    return 0;
}

/* Adds a row with its marks: on a frontier; x: no public runtime runs it, ~: some do with options of their own.  Of several sizes
 * of batches the size stands before the name, where it is not cut: "16: D8". */
static void add_row(const exf_validate_report *r, size_t i, exf_text *out)
{
    const exf_validation *v = r->of.v;
    const exf_row *row = &r->row[i];
    const exf_variant_result *of = &v->variant[i];
    size_t worst = exf_worst_domain(v, i);
    exf_difference kl = exf_kl_difference(v, i, 0);
    char marks[2] = {row->on_frontier ? '*' : ' ', ' '};
    fields field = {""};
    int n = 0, sizes = row->kind != EXF_ROW_PREFILL && v->n_batch_sizes > 1;
    if (marks_servers(r) && !exf_row_is_served(row, NULL)) marks[1] = row->n_servers ? '~' : 'x';
    if (sizes) n = snprintf(field[NAME], FIELD, "%d: ", v->batch_size[of->batch].size);
    snprintf(field[NAME] + n, FIELD - (size_t)n, "%s", of->name);
    if (sizes) exf_drop_batch(field[NAME]);
    cost_text(field[COST], r, &row->cost, row->kind, of->batch);
    if (isnan(kl.half_width)) snprintf(field[KL], FIELD, "%.5f ± -", of->all.kl_mean);
    else snprintf(field[KL], FIELD, "%.5f ± %.5f", of->all.kl_mean, kl.half_width);
    if (v->n_domains > 1) snprintf(field[WORST], FIELD, "%.4f %.60s", of->domain[worst].kl_mean, r->domain_names[worst]);
    exf_make_printable(field[WORST]);
    last_text(field[LAST], r, row->kind, row->cost.tokens_per_second, of->all.ppl);
    add_line(out, marks, field);
}

/* Decode at several sizes has no line for the original's cost: shares say it. */
static int has_original(const exf_validate_report *r, exf_row_kind kind)
{
    return kind == EXF_ROW_PREFILL || (kind == EXF_ROW_DECODE && r->of.v->n_batch_sizes == 1);
}

/* Adds the heads of a kind, and the line of the original. */
static void add_heads(const exf_validate_report *r, exf_row_kind kind, exf_text *out)
{
    static const struct { const char *kind, *cost; } names[] = {[EXF_ROW_PREFILL] = {"Prefill", "FLOP/token, % / all"},
                                                                [EXF_ROW_DECODE] = {"Decode", "bytes/step, % / all"},
                                                                [EXF_ROW_BOTH] = {"Both", "FLOP + bytes"}};
    fields head = {"", "", "KL, 95 %", "worst domain", ""}, field = {"original"};
    const exf_batch_size *b = &r->of.v->batch_size[0];
    exf_cost cost = {.flops = exf_original_cost(&r->of, EXF_ROW_PREFILL, 0),
                     .expert_bytes = exf_original_cost(&r->of, EXF_ROW_DECODE, 0)};
    snprintf(head[NAME], FIELD, "%s", names[kind].kind);
    snprintf(head[COST], FIELD, "%s", names[kind].cost);
    snprintf(head[LAST], FIELD, "%s", bounds_tokens(r, kind) ? "tok/s <" : "PPL");
    add_line(out, "  ", head);
    if (!has_original(r, kind)) return;
    if (kind == EXF_ROW_DECODE) snprintf(field[NAME], FIELD, "original in batches of %d", b->size);
    cost_text(field[COST], r, &cost, kind, 0);
    last_text(field[LAST], r, kind, b->size * r->of.cost->bandwidth / (cost.expert_bytes + r->of.cost->other_bytes),
              r->of.v->variant[0].all.ppl);
    add_line(out, "  ", field);
}

/* ---- which rows ---------------------------------------------------------------------------------------- */

/* Returns the number of a row's section, those of one kind and size of batches. */
static int section_of(const exf_validate_report *r, size_t i)
{
    exf_row_kind kind = r->row[i].kind;
    return (int)kind * EXF_SUMMARY_SIZES + (kind == EXF_ROW_PREFILL ? 0 : r->of.v->variant[i].batch);
}

/* Lists the rows by section and falling cost: those on frontiers and those that are recommended or, if `all`, all that were asked
 * for and are constrained.  Returns how many. */
static size_t list_rows(size_t *list, const exf_validate_report *r, int all)
{
    size_t n = 0;
    for (size_t i = 1; i < r->of.v->n_variants; i++) {
        const exf_variant_result *of = &r->of.v->variant[i];
        const exf_row *row = &r->row[i];
        exf_row_kind by = row->kind == EXF_ROW_BOTH ? EXF_ROW_DECODE : row->kind;
        if (of->role != EXF_LANE_ASKED || of->constraint != EXF_CONSTRAINED || of->batch >= EXF_SUMMARY_SIZES) continue;
        if (!all && (row->kind == EXF_ROW_BOTH || !(row->on_frontier || exf_closing_names(r, i)))) continue;
        size_t at = n++;
        for (; at && section_of(r, list[at - 1]) >= section_of(r, i); at--) {
            int same = section_of(r, list[at - 1]) == section_of(r, i);
            if (same && exf_row_cost(&r->row[list[at - 1]], by) >= exf_row_cost(row, by)) break;
            list[at] = list[at - 1];
        }
        list[at] = i;
    }
    return n;
}

static int begins_kind(const exf_validate_report *r, const size_t *list, size_t k)
{
    return k == 0 || r->row[list[k]].kind != r->row[list[k - 1]].kind;
}

static int lines_of(const exf_validate_report *r, const size_t *list, size_t n)
{
    int lines = (int)n;
    for (size_t k = 0; k < n; k++)
        if (begins_kind(r, list, k)) lines += 1 + has_original(r, r->row[list[k]].kind);
    return lines;
}

/* Takes the cheapest row, which is the worst, from the longest section, unless it is recommended and others are left; of sections
 * of one row each the last one goes. */
static size_t drop_row(const exf_validate_report *r, size_t *list, size_t n)
{
    size_t end = 0, most = 0, drop;
    for (size_t k = 0, at = 0; k < n; k++) {
        if (k && section_of(r, list[k]) != section_of(r, list[k - 1])) at = k;
        if (k + 1 - at > most || (most == 1 && k == at)) {
            most = k + 1 - at;
            end = k + 1;
        }
    }
    for (drop = end; drop > end - most && exf_closing_names(r, list[drop - 1]);) drop--;
    if (drop == end - most) drop = end;
    memmove(list + drop - 1, list + drop, (n - drop) * sizeof *list);
    return n - 1;
}

/* ---- the summary ----------------------------------------------------------------------------------- */

exf_code exf_validate_summary(const exf_validate_report *r, exf_text *out, exf_err *err)
{
    /* TABLES: lines that are left for them: two heads, two originals, some rows */
    enum { LEGEND = 2, BLANKS = 2, MORE = 1, TABLES = 9 };
    static const struct { exf_finding kind; int most; } kinds[] = {
        {EXF_FOUND_LAYERS, 4}, {EXF_FOUND_VERDICT, 6}, {EXF_FOUND_STABILITY, 4}, {EXF_FOUND_CONSTRAINTS, 3}};
    exf_text before = {0}, after = {0}, closing = {0}, legend = {0};
    size_t *list = NULL, n, rows = 0;
    exf_code rc;
    int left_out = add_found(&r->found[EXF_FOUND_DATA], 3, &after);
    if (r->limit) exf_validate_closing(r, &closing);
    EXF_TRY(exf_text_end(&after, err));
    EXF_TRY(exf_text_end(&closing, err));
    int room = EXF_SUMMARY_LINES - LEGEND - BLANKS - MORE - exf_count_lines(&after) - exf_count_lines(&closing);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int left = room - TABLES - exf_count_lines(&before);
        if (left > kinds[i].most) left = kinds[i].most;
        left_out += add_found(&r->found[kinds[i].kind], left > 0 ? left : 0, &before);
    }
    EXF_TRY(exf_text_end(&before, err));
    room -= exf_count_lines(&before);
    EXF_TRY(exf_mem_new(&list, r->of.v->n_variants, sizeof *list, "rows", err));
    n = list_rows(list, r, 1);
    if (lines_of(r, list, n) > room) n = list_rows(list, r, 0);
    while (n && lines_of(r, list, n) > room) n = drop_row(r, list, n);
    if (before.len) exf_text_appendf(out, "%s\n", before.s);
    for (size_t k = 0; k < n; k++) {
        if (begins_kind(r, list, k)) add_heads(r, r->row[list[k]].kind, out);
        add_row(r, list[k], out);
    }
    for (size_t i = 1; i < r->of.v->n_variants; i++) rows += r->of.v->variant[i].role != EXF_LANE_HALF;
    if (n) { /* the marks, and how many rows are not shown */
        exf_text_appendf(&legend, "%% / all: of the experts' cost, of the model's (%d tokens, no cache); *: on the frontier",
                         r->longest);
        if (marks_servers(r)) exf_text_appendf(&legend, "; x: no public runtime runs it, ~: with its own options");
        if (n < rows) exf_text_appendf(&legend, "; %zu more in the .md", rows - n);
        exf_end_wrapped(out, &legend, 0);
    }
    exf_text_appendf(out, "\n%s", after.s);
    if (left_out) exf_text_appendf(out, "%d more sentence%s: in the .md\n", left_out, left_out > 1 ? "s" : "");
    exf_text_appendf(out, "%s", closing.s ? closing.s : "");
    rc = exf_text_end(out, err);
out:
    exf_text_free(&before);
    exf_text_free(&after);
    exf_text_free(&closing);
    exf_mem_free(list);
    return rc;
}

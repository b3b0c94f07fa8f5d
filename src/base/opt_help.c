/* opt_help.c - the --help and --help-keys texts of an option table: two columns, 80 wide; see opt.h. */
#include "base/opt_internal.h"

#include <string.h>

/* LEFT_MAX: a longer left part stands on a line of its own. */
enum { WIDTH = 80, LEFT_MAX = 32, GAP = 2, CHOICE_MAX = 24 };

static int choice_is_long(const exf_opt *row)
{
    return row->type == EXF_OPT_CHOICE && row->values && strlen(row->values) > CHOICE_MAX;
}

const char *exf_opt_placeholder(const exf_opt *row)
{
    switch (row->type) {
    case EXF_OPT_INT: return "N";
    case EXF_OPT_REAL: return "X";
    case EXF_OPT_FLAG: return "true|false";
    case EXF_OPT_CHOICE: return choice_is_long(row) || !row->values ? "WORD" : row->values;
    case EXF_OPT_TEXT: return row->values ? row->values : "TEXT";
    case EXF_OPT_FILES: return "FILE";
    case EXF_OPT_BYTES: return row->values ? row->values : "SIZE";
    case EXF_OPT_TEXT_LIST: return row->values ? row->values : "A,B,...";
    case EXF_OPT_WORD_LIST: return row->values ? row->values : "\"A B ...\"";
    case EXF_OPT_INT_LIST: return row->values ? row->values : "N,N,...";
    }
    return "VALUE";
}

/* "-o, --output DIR", with four blanks in the place of a letter if there is none and `aligned`. */
static void add_flag(exf_text *out, const exf_opt *row, int aligned)
{
    int is_flag = row->type == EXF_OPT_FLAG, is_on = is_flag && row->fallback && strcmp(row->fallback, "true") == 0;
    if (row->letter) exf_text_appendf(out, "-%c, ", row->letter);
    else if (aligned) exf_text_appendf(out, "    ");
    exf_text_appendf(out, "--%s%s", is_on ? "[no-]" : "", row->flag);
    if (!is_flag) exf_text_appendf(out, " %s", exf_opt_placeholder(row));
}

/* The left column of a row in one of the two texts; nothing if the row does not stand there. */
typedef void (*left_part)(exf_text *out, const exf_opt *row);

static void left_of_flag(exf_text *out, const exf_opt *row)
{
    if (!row->flag) return;
    exf_text_appendf(out, "  ");
    add_flag(out, row, 1);
}

static void left_of_key(exf_text *out, const exf_opt *row)
{
    if (row->key) exf_text_appendf(out, "  %s %s", row->key, exf_opt_placeholder(row));
}

static void add_remark(exf_text *out, int *n, const char *what, const char *text)
{
    exf_text_appendf(out, "%s%s%s", (*n)++ ? "; " : " (", what, text);
}

/* Lists words with commas: a "|" gives the wrapping no place to break. */
static void add_words(exf_text *out, int *n, const char *values)
{
    add_remark(out, n, "one of ", "");
    for (; *values; values++)
        if (*values == '|') exf_text_append(out, ", ", 2);
        else exf_text_append(out, values, 1);
}

/* help (one of ...; range; default X; recipe: key) */
exf_code exf_opt_remarks(const exf_opt *row, exf_text *out, exf_err *err)
{
    int n = 0, is_off = row->type == EXF_OPT_FLAG && row->fallback && strcmp(row->fallback, "false") == 0;
    char range[EXF_OPT_RANGE_MAX];
    exf_text_appendf(out, "%s", row->help ? row->help : "");
    if (choice_is_long(row)) add_words(out, &n, row->values);
    if (exf_opt_range(row, range) && *range) add_remark(out, &n, range, "");
    if (row->fallback && !is_off) add_remark(out, &n, "default ", row->fallback);
    if (row->key && row->flag) add_remark(out, &n, "recipe: ", row->key);
    if (n) exf_text_append(out, ")", 1);
    return exf_text_end(out, err);
}

/* Bytes of s that go on a line of `width` characters: up to a blank, or cut. */
static size_t bytes_that_fit(const char *s, size_t width)
{
    size_t i = 0, chars = 0, blank = 0;
    for (; s[i]; i++) {
        if (((unsigned char)s[i] & 0xc0) == 0x80) continue; /* inside a UTF-8 character */
        if (s[i] == ' ') blank = i;
        if (chars++ == width) return blank ? blank : i;
    }
    return i;
}

exf_code exf_opts_help_line(const char *left, const char *right, size_t column, exf_text *out, exf_err *err)
{
    size_t used = strlen(left);
    exf_text_appendf(out, "%s", left);
    if (used + GAP > column && used + GAP + strlen(right) <= WIDTH) column = used + GAP;
    if (used && used + GAP > column && *right) {
        exf_text_appendf(out, "\n");
        used = 0;
    }
    while (*right) {
        size_t n = bytes_that_fit(right, WIDTH - column);
        exf_text_appendf(out, "%*s%.*s", (int)(column - used), "", (int)n, right);
        right += n;
        while (*right == ' ') right++;
        if (*right) exf_text_appendf(out, "\n");
        used = 0;
    }
    exf_text_appendf(out, "\n");
    return exf_text_end(out, err);
}

/* Finds the start of the right column: after the longest left part that is not too long. */
static exf_code find_column(const exf_opt *table, size_t n, left_part add_left, size_t *column, exf_err *err)
{
    exf_text left = {0};
    *column = 20;
    for (size_t i = 0; i < n; i++) {
        left.len = 0;
        add_left(&left, &table[i]);
        if (left.len <= LEFT_MAX && left.len + GAP > *column) *column = left.len + GAP;
    }
    exf_code rc = exf_text_end(&left, err);
    exf_text_free(&left);
    return rc;
}

/* ---- the three texts ---------------------------------------------------------------------- */

exf_code exf_opts_help(const exf_opt *table, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    exf_text left = {0}, right = {0};
    size_t column;
    EXF_TRY(find_column(table, n, left_of_flag, &column, err));
    for (size_t i = 0; i < n; i++) {
        if (!table[i].flag) continue;
        left.len = right.len = 0;
        left_of_flag(&left, &table[i]);
        const char *help = table[i].help ? table[i].help : "", *end = strstr(help, "; "); /* up to the first one */
        exf_text_append(&right, help, end ? (size_t)(end - help) : strlen(help));
        if (choice_is_long(&table[i])) { /* its words, for which the left column has no room */
            int n_words = 0;
            add_words(&right, &n_words, table[i].values);
            exf_text_append(&right, ")", 1);
        }
        EXF_TRY(exf_text_end(&left, err));
        EXF_TRY(exf_text_end(&right, err));
        EXF_TRY(exf_opts_help_line(left.s, right.s, column, out, err));
    }
out:
    exf_text_free(&left);
    exf_text_free(&right);
    return rc;
}

static const char *group_of(const exf_opt *row)
{
    return row->group ? row->group : "Options";
}

exf_code exf_opts_help_keys(const exf_opt *table, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    exf_text left = {0}, right = {0};
    const char *group = NULL;
    size_t column;
    EXF_TRY(find_column(table, n, left_of_key, &column, err));
    for (size_t i = 0; i < n; i++) {
        if (!table[i].key) continue;
        if (!group || strcmp(group, group_of(&table[i])) != 0)
            exf_text_appendf(out, "%s%s:\n", group ? "\n" : "", group_of(&table[i]));
        group = group_of(&table[i]);
        left.len = right.len = 0;
        left_of_key(&left, &table[i]);
        EXF_TRY(exf_text_end(&left, err));
        exf_opt keyed = table[i];
        keyed.flag = NULL; /* the remarks would name the key again */
        EXF_TRY(exf_opt_remarks(&keyed, &right, err));
        if (table[i].flag) {
            exf_text_appendf(&right, "; or ");
            add_flag(&right, &table[i], 0);
            EXF_TRY(exf_text_end(&right, err));
        }
        EXF_TRY(exf_opts_help_line(left.s, right.s, column, out, err));
    }
out:
    exf_text_free(&left);
    exf_text_free(&right);
    return rc;
}

exf_code exf_opts_help_flags(const exf_opt *table, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    exf_text item = {0};
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (!table[i].flag) continue;
        item.len = 0;
        add_flag(&item, &table[i], 0);
        EXF_TRY(exf_text_end(&item, err));
        if (used && used + GAP + item.len > WIDTH) {
            exf_text_appendf(out, "\n");
            used = 0;
        }
        exf_text_appendf(out, "  %s", item.s);
        used += GAP + item.len;
    }
    if (used) exf_text_appendf(out, "\n");
    rc = exf_text_end(out, err);
out:
    exf_text_free(&item);
    return rc;
}

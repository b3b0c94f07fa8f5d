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
static exf_code add_flag(exf_text *out, const exf_opt *row, int aligned, exf_err *err)
{
    int is_flag = row->type == EXF_OPT_FLAG, is_on = is_flag && row->fallback && strcmp(row->fallback, "true") == 0;
    exf_code rc = row->letter ? exf_text_addf(out, err, "-%c, ", row->letter) : exf_text_addf(out, err, aligned ? "    " : "");
    if (rc != EXF_OK) return rc;
    return exf_text_addf(out, err, "--%s%s%s%s", is_on ? "[no-]" : "", row->flag, is_flag ? "" : " ",
                         is_flag ? "" : exf_opt_placeholder(row));
}

/* The left column of a row in one of the two texts; nothing if the row does not stand there. */
typedef exf_code (*left_part)(exf_text *out, const exf_opt *row, exf_err *err);

static exf_code left_of_flag(exf_text *out, const exf_opt *row, exf_err *err)
{
    exf_code rc = row->flag ? exf_text_addf(out, err, "  ") : EXF_OK;
    return rc == EXF_OK && row->flag ? add_flag(out, row, 1, err) : rc;
}

static exf_code left_of_key(exf_text *out, const exf_opt *row, exf_err *err)
{
    return row->key ? exf_text_addf(out, err, "  %s %s", row->key, exf_opt_placeholder(row)) : EXF_OK;
}

static exf_code add_remark(exf_text *out, int *n, const char *what, const char *text, exf_err *err)
{
    return exf_text_addf(out, err, "%s%s%s", (*n)++ ? "; " : " (", what, text);
}

/* A "|" gives the wrapping no place to break. */
static exf_code add_words(exf_text *out, int *n, const char *values, exf_err *err)
{
    exf_code rc = add_remark(out, n, "one of ", "", err);
    for (; rc == EXF_OK && *values; values++)
        rc = *values == '|' ? exf_text_add(out, ", ", 2, err) : exf_text_add(out, values, 1, err);
    return rc;
}

/* help (one of ...; range; default X; recipe: key) */
exf_code exf_opt_remarks(const exf_opt *row, exf_text *out, exf_err *err)
{
    exf_code rc;
    int n = 0, is_off = row->type == EXF_OPT_FLAG && row->fallback && strcmp(row->fallback, "false") == 0;
    char range[EXF_OPT_RANGE_MAX];
    EXF_TRY(exf_text_addf(out, err, "%s", row->help ? row->help : ""));
    if (choice_is_long(row)) EXF_TRY(add_words(out, &n, row->values, err));
    if (exf_opt_range(row, range) && *range) EXF_TRY(add_remark(out, &n, range, "", err));
    if (row->fallback && !is_off) EXF_TRY(add_remark(out, &n, "default ", row->fallback, err));
    if (row->key && row->flag) EXF_TRY(add_remark(out, &n, "recipe: ", row->key, err));
    if (n) EXF_TRY(exf_text_add(out, ")", 1, err));
out:
    return rc;
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
    exf_code rc;
    size_t used = strlen(left);
    EXF_TRY(exf_text_addf(out, err, "%s", left));
    if (used && used + GAP > column && *right) {
        EXF_TRY(exf_text_addf(out, err, "\n"));
        used = 0;
    }
    while (*right) {
        size_t n = bytes_that_fit(right, WIDTH - column);
        EXF_TRY(exf_text_addf(out, err, "%*s%.*s", (int)(column - used), "", (int)n, right));
        right += n;
        while (*right == ' ') right++;
        if (*right) EXF_TRY(exf_text_addf(out, err, "\n"));
        used = 0;
    }
    rc = exf_text_addf(out, err, "\n");
out:
    return rc;
}

/* Finds the start of the right column: after the longest left part that is not too long. */
static exf_code find_column(const exf_opt *table, size_t n, left_part add_left, size_t *column, exf_err *err)
{
    exf_code rc = EXF_OK;
    exf_text left = {0};
    *column = 20;
    for (size_t i = 0; i < n; i++) {
        left.len = 0;
        EXF_TRY(add_left(&left, &table[i], err));
        if (left.len <= LEFT_MAX && left.len + GAP > *column) *column = left.len + GAP;
    }
out:
    exf_text_free(&left);
    return rc;
}

/* ---- the three texts ---------------------------------------------------------------------- */

/* And the words of a choice that the left column has no room for. */
static exf_code first_clause(exf_text *out, const exf_opt *row, exf_err *err)
{
    const char *help = row->help ? row->help : "", *end = strstr(help, "; ");
    int n = 0;
    exf_code rc;
    EXF_TRY(exf_text_add(out, help, end ? (size_t)(end - help) : strlen(help), err));
    if (!choice_is_long(row)) return EXF_OK;
    EXF_TRY(add_words(out, &n, row->values, err));
    rc = exf_text_add(out, ")", 1, err);
out:
    return rc;
}

exf_code exf_opts_help(const exf_opt *table, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    exf_text left = {0}, right = {0};
    size_t column;
    EXF_TRY(find_column(table, n, left_of_flag, &column, err));
    for (size_t i = 0; i < n; i++) {
        if (!table[i].flag) continue;
        left.len = right.len = 0;
        EXF_TRY(left_of_flag(&left, &table[i], err));
        EXF_TRY(first_clause(&right, &table[i], err));
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

/* help (one of ...; range; default X; or -o, --output DIR) */
static exf_code key_remarks(const exf_opt *row, exf_text *out, exf_err *err)
{
    exf_code rc;
    exf_opt keyed = *row;
    keyed.flag = NULL; /* the remarks would name the key again */
    EXF_TRY(exf_opt_remarks(&keyed, out, err));
    if (!row->flag) return EXF_OK;
    EXF_TRY(exf_text_addf(out, err, "; or "));
    rc = add_flag(out, row, 0, err);
out:
    return rc;
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
            EXF_TRY(exf_text_addf(out, err, "%s%s:\n", group ? "\n" : "", group_of(&table[i])));
        group = group_of(&table[i]);
        left.len = right.len = 0;
        EXF_TRY(left_of_key(&left, &table[i], err));
        EXF_TRY(key_remarks(&table[i], &right, err));
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
        EXF_TRY(add_flag(&item, &table[i], 0, err));
        if (used && used + GAP + item.len > WIDTH) {
            EXF_TRY(exf_text_addf(out, err, "\n"));
            used = 0;
        }
        EXF_TRY(exf_text_addf(out, err, "  %s", item.s));
        used += GAP + item.len;
    }
    if (used) rc = exf_text_addf(out, err, "\n");
out:
    exf_text_free(&item);
    return rc;
}

/* opt_help.c - the --help text of an option table: two columns, 100 wide; see opt.h. */
#include "base/opt_internal.h"

#include <string.h>

/* LEFT_MAX: a longer left part stands on a line of its own. */
enum { WIDTH = 100, LEFT_MAX = 36, GAP = 2, CHOICE_MAX = 24 };

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
    case EXF_OPT_BYTES: return row->values ? row->values : "SIZE";
    case EXF_OPT_TEXT_LIST: return row->values ? row->values : "A,B,...";
    case EXF_OPT_WORD_LIST: return row->values ? row->values : "\"A B ...\"";
    case EXF_OPT_INT_LIST: return row->values ? row->values : "N,N,...";
    }
    return "VALUE";
}

static exf_code add_left(exf_text *out, const exf_opt *row, exf_err *err)
{
    int is_flag = row->type == EXF_OPT_FLAG, is_on = is_flag && row->fallback && strcmp(row->fallback, "true") == 0;
    if (!row->flag) return exf_text_addf(out, err, "      --set %s=%s", row->key ? row->key : "?", exf_opt_placeholder(row));
    exf_code rc = row->letter ? exf_text_addf(out, err, "  -%c, ", row->letter) : exf_text_addf(out, err, "      ");
    if (rc != EXF_OK) return rc;
    return exf_text_addf(out, err, "--%s%s%s%s", is_on ? "[no-]" : "", row->flag, is_flag ? "" : " ",
                         is_flag ? "" : exf_opt_placeholder(row));
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

static exf_code add_line(exf_text *out, const char *left, const char *right, size_t column, exf_err *err)
{
    exf_code rc;
    size_t used = strlen(left);
    EXF_TRY(exf_text_addf(out, err, "%s", left));
    if (used + GAP > column && *right) {
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

static exf_code add_row(exf_text *out, const exf_opt *row, size_t column, exf_err *err)
{
    exf_code rc;
    exf_text left = {0}, right = {0};
    EXF_TRY(add_left(&left, row, err));
    EXF_TRY(exf_opt_remarks(row, &right, err));
    EXF_TRY(add_line(out, left.s, right.s, column, err));
out:
    exf_text_free(&left);
    exf_text_free(&right);
    return rc;
}

static const char set_left[] = "      --set KEY=VALUE";

/* Where the right column starts: behind the longest left part that is not too long. */
static exf_code find_column(const exf_opt *table, size_t n, size_t *column, exf_err *err)
{
    exf_code rc = EXF_OK;
    exf_text left = {0};
    *column = strlen(set_left) + GAP;
    for (size_t i = 0; i < n; i++) {
        left.len = 0;
        EXF_TRY(add_left(&left, &table[i], err));
        if (left.len <= LEFT_MAX && left.len + GAP > *column) *column = left.len + GAP;
    }
out:
    exf_text_free(&left);
    return rc;
}

static int same_group(const exf_opt *a, const exf_opt *b)
{
    return strcmp(a->group ? a->group : "", b->group ? b->group : "") == 0;
}

exf_code exf_opts_help(const exf_opt *table, size_t n, exf_text *out, exf_err *err)
{
    exf_code rc;
    size_t column;
    int any_key = 0;
    EXF_TRY(find_column(table, n, &column, err));
    for (size_t i = 0; i < n; i++) {
        any_key |= table[i].key != NULL;
        if (i == 0 || !same_group(&table[i - 1], &table[i]))
            EXF_TRY(exf_text_addf(out, err, "%s%s%s", i ? "\n" : "", table[i].group ? table[i].group : "Options", ":\n"));
        EXF_TRY(add_row(out, &table[i], column, err));
    }
    if (!any_key) goto out;
    EXF_TRY(exf_text_addf(out, err, "\nRecipe keys:\n"));
    rc = add_line(out, set_left, "set any recipe key from the command line", column, err);
out:
    return rc;
}

/* opt_value.c - one option's value: text to value, value to text, ranges; see opt_internal.h. */
#include "base/opt_internal.h"

#include "base/mem.h"
#include "base/registry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int exf_opt_holds_texts(exf_opt_type type)
{
    return type == EXF_OPT_TEXT_LIST || type == EXF_OPT_WORD_LIST || type == EXF_OPT_FILES;
}

size_t exf_opt_value_size(exf_opt_type type)
{
    switch (type) {
    case EXF_OPT_TEXT: return sizeof(char *);
    case EXF_OPT_INT: return sizeof(int64_t);
    case EXF_OPT_REAL: return sizeof(double);
    case EXF_OPT_BYTES: return sizeof(uint64_t);
    case EXF_OPT_FLAG:
    case EXF_OPT_CHOICE: return sizeof(int);
    case EXF_OPT_WORD_LIST:
    case EXF_OPT_FILES:
    case EXF_OPT_TEXT_LIST: return sizeof(exf_text_list);
    case EXF_OPT_INT_LIST: return sizeof(exf_int_list);
    }
    return 0;
}

void exf_opt_value_free(exf_opt_type type, exf_opt_value *v)
{
    if (type == EXF_OPT_TEXT) exf_mem_free(v->text);
    if (type == EXF_OPT_INT_LIST) exf_mem_free(v->ints.item);
    if (exf_opt_holds_texts(type)) {
        for (size_t i = 0; i < v->texts.n; i++) exf_mem_free(v->texts.item[i]);
        exf_mem_free(v->texts.item);
    }
    memset(v, 0, sizeof *v);
}

/* ---- ranges -------------------------------------------------------------- */
static int copy_bound(char out[EXF_OPT_BOUND_MAX], const char *s, size_t len)
{
    if (len >= EXF_OPT_BOUND_MAX) return 0;
    memcpy(out, s, len);
    out[len] = 0;
    return 1;
}

/* "min..max" into its two texts, empty where there is no bound. */
static int split_range(const exf_opt *row, char low[EXF_OPT_BOUND_MAX], char high[EXF_OPT_BOUND_MAX])
{
    low[0] = high[0] = 0;
    if (!row->values) return 1;
    const char *dots = strstr(row->values, "..");
    return dots && copy_bound(low, row->values, (size_t)(dots - row->values)) && copy_bound(high, dots + 2, strlen(dots + 2));
}

static int is_number(const exf_opt *row, const char *s)
{
    int64_t i;
    double d;
    return row->type == EXF_OPT_INT ? exf_parse_i64(s, &i) : exf_parse_f64(s, &d);
}

int exf_opt_range(const exf_opt *row, char text[EXF_OPT_RANGE_MAX])
{
    char low[EXF_OPT_BOUND_MAX], high[EXF_OPT_BOUND_MAX];
    text[0] = 0;
    if (row->type != EXF_OPT_INT && row->type != EXF_OPT_REAL) return 1;
    if (!split_range(row, low, high) || (*low && !is_number(row, low)) || (*high && !is_number(row, high))) return 0;
    if (*low && *high) snprintf(text, EXF_OPT_RANGE_MAX, "%s to %s", low, high);
    else if (*low) snprintf(text, EXF_OPT_RANGE_MAX, "at least %s", low);
    else if (*high) snprintf(text, EXF_OPT_RANGE_MAX, "at most %s", high);
    return 1;
}

/* ---- text to value --------------------------------------------------------- */
static exf_code parse_number(exf_opt_value *out, const exf_opt *row, const char *text, exf_err *err)
{
    char low[EXF_OPT_BOUND_MAX], high[EXF_OPT_BOUND_MAX], range[EXF_OPT_RANGE_MAX];
    int is_int = row->type == EXF_OPT_INT, outside;
    int64_t bound;
    double real;
    if (is_int ? !exf_parse_i64(text, &out->i) : !exf_parse_f64(text, &out->real))
        return exf_fail(err, EXF_USAGE, "\"%.80s\" is no %s", text, is_int ? "64-bit integer" : "number");
    if (!split_range(row, low, high) || !exf_opt_range(row, range))
        return exf_fail(err, EXF_INTERNAL, "\"%s\" is no range", row->values);
    if (is_int)
        outside = (*low && exf_parse_i64(low, &bound) && out->i < bound) ||
                  (*high && exf_parse_i64(high, &bound) && out->i > bound);
    else
        outside = (*low && exf_parse_f64(low, &real) && out->real < real) ||
                  (*high && exf_parse_f64(high, &real) && out->real > real);
    return outside ? exf_fail(err, EXF_USAGE, "%.80s is out of range, expected %s", text, range) : EXF_OK;
}

enum { MAX_WORDS = 32, WORDS_ROOM = 512 };

/* "a|b|c" into NULL-terminated words inside room; -1 if they do not fit. */
static int split_words(const char *values, const char *words[MAX_WORDS + 1], char room[WORDS_ROOM])
{
    int n = 0;
    if (!values || strlen(values) >= WORDS_ROOM) return -1;
    strcpy(room, values);
    for (char *p = room;; p++) {
        if (n == MAX_WORDS) return -1;
        words[n++] = p;
        p = strchr(p, '|');
        if (!p) break;
        *p = 0;
    }
    words[n] = NULL;
    return n;
}

static exf_code parse_choice(int *out, const exf_opt *row, const char *text, exf_err *err)
{
    const char *words[MAX_WORDS + 1];
    char room[WORDS_ROOM], list[2 * WORDS_ROOM] = "";
    int n = split_words(row->values, words, room);
    if (n < 0) return exf_fail(err, EXF_INTERNAL, "a choice needs 1 to %d words", MAX_WORDS);
    for (int i = 0; i < n; i++)
        if (strcmp(words[i], text) == 0) {
            *out = i;
            return EXF_OK;
        }
    size_t used = 0;
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    const char *near = exf_nearest(text, words);
    return exf_fail(err, EXF_USAGE, "\"%.80s\" is none of %s%s%s%s", text, list, near ? "; did you mean \"" : "",
                    near ? near : "", near ? "\"?" : "");
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Returns the end of the word that starts at p: a blank, or a comma that is not one between the options that follow its colon. */
static const char *word_end(const char *p, const char *end)
{
    int in_options = 0;
    for (; p < end && !is_blank(*p); p++) {
        int goes_on = in_options && p + 1 < end && !is_blank(p[1]);
        if (*p == ',' && !goes_on) break;
        in_options |= *p == ':';
    }
    return p;
}

/* Returns the end of the item that starts at p: a comma or, in a list without commas, a blank. */
static const char *item_end(const exf_opt *row, int has_commas, const char *p, const char *end)
{
    if (row->type == EXF_OPT_WORD_LIST) return word_end(p, end);
    while (p < end && !(has_commas ? *p == ',' : is_blank(*p))) p++;
    return p;
}

/* Adds one item to a list that was allocated for it. */
static exf_code add_item(exf_opt_value *list, const exf_opt *row, const char *s, size_t len, exf_err *err)
{
    char *copy;
    if (len == 0) return exf_fail(err, EXF_USAGE, "an item of the list is empty; the empty list is []");
    if (s[0] == '[') return exf_fail(err, EXF_USAGE, "\"%.*s\" is a list inside a list", len > 80 ? 80 : (int)len, s);
    const char *stop = row->type == EXF_OPT_WORD_LIST ? word_end(s, s + len) : memchr(s, ',', len);
    if (stop && stop < s + len)
        return exf_fail(err, EXF_USAGE, "\"%.*s\" has a %s, which separates items", len > 80 ? 80 : (int)len, s,
                        *stop == ',' ? "comma" : "blank");
    exf_code rc = exf_mem_dup(&copy, s, len, "list item", err);
    if (rc != EXF_OK) return rc;
    if (exf_opt_holds_texts(row->type)) {
        list->texts.item[list->texts.n++] = copy;
        return EXF_OK;
    }
    if (exf_parse_i64(copy, &list->ints.item[list->ints.n])) list->ints.n++;
    else rc = exf_fail(err, EXF_USAGE, "\"%.80s\" is no 64-bit integer", copy);
    exf_mem_free(copy);
    return rc;
}

static exf_code allocate_items(exf_opt_value *list, const exf_opt *row, size_t n, exf_err *err)
{
    memset(list, 0, sizeof *list);
    if (n == 0) return EXF_OK;
    return exf_opt_holds_texts(row->type) ? exf_mem_new(&list->texts.item, n, sizeof *list->texts.item, "list option", err)
                                          : exf_mem_new(&list->ints.item, n, sizeof *list->ints.item, "list option", err);
}

static void trim(const char **begin, const char **end)
{
    while (*begin < *end && is_blank(**begin)) ++*begin;
    while (*begin < *end && is_blank((*end)[-1])) --*end;
}

/* The start of the item after one that ends at p, past blanks with at most one comma among them; end if there is none. */
static const char *next_item(const char *p, const char *end)
{
    while (p < end && is_blank(*p)) p++;
    if (p < end && *p == ',') p++;
    while (p < end && is_blank(*p)) p++;
    return p;
}

static exf_code parse_list(exf_opt_value *out, const exf_opt *row, const char *text, exf_err *err)
{
    exf_code rc;
    const char *p = text, *end = text + strlen(text);
    size_t n = 0;
    int is_empty = 0;
    trim(&p, &end);
    if (p < end && *p == '[') {
        if (end - p < 2 || end[-1] != ']') return exf_fail(err, EXF_USAGE, "\"%.80s\" has no closing bracket", text);
        p++;
        end--;
        trim(&p, &end);
        is_empty = p == end;
    }
    int has_commas = p < end && memchr(p, ',', (size_t)(end - p)) != NULL, more = !is_empty;
    for (const char *item = p; more; n++) { /* counts them */
        const char *last = item_end(row, has_commas, item, end);
        more = last < end;
        item = next_item(last, end);
    }
    EXF_TRY(allocate_items(out, row, n, err));
    for (size_t i = 0; i < n; i++) {
        const char *first = p, *item_last = item_end(row, has_commas, p, end), *last = item_last;
        trim(&first, &last);
        EXF_TRY(add_item(out, row, first, (size_t)(last - first), err));
        p = next_item(item_last, end);
    }
out:
    return rc;
}

exf_code exf_opt_parse_items(exf_opt_value *out, const exf_opt *row, const char *const *item, size_t n, exf_err *err)
{
    exf_code rc;
    EXF_TRY(allocate_items(out, row, n, err));
    for (size_t i = 0; i < n; i++) {
        const char *first = item[i], *last = first + strlen(first);
        trim(&first, &last);
        EXF_TRY(add_item(out, row, first, (size_t)(last - first), err));
    }
out:
    if (rc != EXF_OK) exf_opt_value_free(row->type, out);
    return rc;
}

/* Parses a text as the row's type says.  Names and words go into files of YAML, JSON and HDF5, which hold UTF-8. */
exf_code exf_opt_parse(exf_opt_value *out, const exf_opt *row, const char *text, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t valid = exf_utf8_valid(text, strlen(text));
    int holds_one = row->type == EXF_OPT_TEXT || row->type == EXF_OPT_FILES;
    int is_path = holds_one && row->values && (strcmp(row->values, "DIR") == 0 || strcmp(row->values, "FILE") == 0);
    memset(out, 0, sizeof *out);
    if (text[valid])
        return exf_fail(err, EXF_USAGE, "\"%.80s\" is not valid UTF-8: byte 0x%02x; a recipe cannot hold it", text,
                        (unsigned)(unsigned char)text[valid]);
    if (is_path && exf_path_has_tilde(text))
        return exf_fail(err, EXF_USAGE, "\"%.80s\": only a shell knows where ~ is; write the whole path, or ./~ for a file of this "
                        "name", text);
    switch (row->type) {
    case EXF_OPT_TEXT: rc = exf_mem_strdup(&out->text, text, "option text", err); break;
    case EXF_OPT_INT:
    case EXF_OPT_REAL: rc = parse_number(out, row, text, err); break;
    case EXF_OPT_BYTES:
        if (!exf_parse_bytes(text, &out->bytes))
            rc = exf_fail(err, EXF_USAGE, "\"%.80s\" is no size such as 8GiB, 512MB or 4096", text);
        break;
    case EXF_OPT_FLAG:
        out->word = strcmp(text, "true") == 0;
        if (!out->word && strcmp(text, "false") != 0) rc = exf_fail(err, EXF_USAGE, "\"%.80s\" is neither true nor false", text);
        break;
    case EXF_OPT_CHOICE: rc = parse_choice(&out->word, row, text, err); break;
    case EXF_OPT_TEXT_LIST:
    case EXF_OPT_WORD_LIST:
    case EXF_OPT_INT_LIST: rc = parse_list(out, row, text, err); break;
    case EXF_OPT_FILES: /* one name, which may hold any characters */
        rc = *text ? allocate_items(out, row, 1, err) : exf_fail(err, EXF_USAGE, "the name is empty");
        if (rc == EXF_OK) rc = exf_mem_strdup(&out->texts.item[0], text, "file name", err);
        if (rc == EXF_OK) out->texts.n = 1;
        break;
    }
    if (rc != EXF_OK) exf_opt_value_free(row->type, out);
    return rc;
}

/* ---- value to text --------------------------------------------------------- */
exf_code exf_opt_print(exf_text *out, const exf_opt *row, const exf_opt_value *v, exf_err *err)
{
    static const char *const unit[] = {"", "KiB", "MiB", "GiB", "TiB"};
    const char *words[MAX_WORDS + 1], *gap = row->type == EXF_OPT_WORD_LIST || row->type == EXF_OPT_FILES ? " " : ",";
    char room[WORDS_ROOM], real[EXF_REAL_TEXT];
    uint64_t bytes = row->type == EXF_OPT_BYTES ? v->bytes : 0;
    int u = 0, is_text = exf_opt_holds_texts(row->type);
    size_t n;
    switch (row->type) {
    case EXF_OPT_TEXT: exf_text_appendf(out, "%s", v->text ? v->text : ""); break;
    case EXF_OPT_INT: exf_text_appendf(out, "%" PRId64, v->i); break;
    case EXF_OPT_REAL: exf_text_appendf(out, "%s", exf_real_text(real, v->real)); break;
    case EXF_OPT_BYTES:
        for (; bytes && bytes % 1024 == 0 && u < 4; u++) bytes /= 1024;
        exf_text_appendf(out, "%" PRIu64 "%s", bytes, unit[u]);
        break;
    case EXF_OPT_FLAG: exf_text_appendf(out, "%s", v->word ? "true" : "false"); break;
    case EXF_OPT_TEXT_LIST:
    case EXF_OPT_WORD_LIST:
    case EXF_OPT_FILES:
    case EXF_OPT_INT_LIST:
        n = is_text ? v->texts.n : v->ints.n;
        if (!n) exf_text_appendf(out, "[]");
        for (size_t i = 0; i < n; i++)
            if (is_text) exf_text_appendf(out, "%s%s", i ? gap : "", v->texts.item[i]);
            else exf_text_appendf(out, "%s%" PRId64, i ? gap : "", v->ints.item[i]);
        break;
    case EXF_OPT_CHOICE:
        if (v->word < 0 || v->word >= split_words(row->values, words, room))
            return exf_fail(err, EXF_INTERNAL, "option %s holds %d, which is none of %s", row->key ? row->key : row->flag, v->word,
                            row->values ? row->values : "nothing");
        exf_text_appendf(out, "%s", words[v->word]);
    }
    return exf_text_end(out, err);
}

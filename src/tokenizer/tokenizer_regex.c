/* tokenizer_regex.c - translates patterns from Oniguruma to PCRE2 on the bytes of an alphabet: an accepted subset, item by item;
 * see tokenizer_internal.h. */
#include "tokenizer/tokenizer_internal.h"

#include <string.h>

typedef struct {
    exf_text *out; /* NULL: the pattern's sets are told to the alphabet, nothing is written */
    exf_alphabet *alphabet;
    exf_chars set; /* of the item that is read */
    const char *p, *end, *start;
    size_t depth, fold_depth; /* open groups; those open when (?i: began, plus one, or 0 */
    char letter;              /* the last one in (?i: since a "|", in lower case; '[' after a class; or 0 */
    const exf_regex_source *from;
    exf_err *err;
} reader;

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static exf_code refuse(const reader *r, size_t len)
{
    size_t left = (size_t)(r->end - r->p);
    if (len > left) len = left;
    while (len < left && ((unsigned char)r->p[len] & 0xc0) == 0x80) len++;
    return exf_fail(
        r->err, EXF_MODEL,
        "%s: %s: \"%.*s\" at byte %zu is not supported (%s and PCRE2 may read it differently)", r->from->file, r->from->what,
        (int)len, r->p, (size_t)(r->p - r->start), r->from->tiktoken ? "tiktoken" : "Oniguruma");
}

/* Takes the next bytes over as they are. */
static exf_code accept(reader *r, size_t len)
{
    if (r->out) exf_text_append(r->out, r->p, len);
    r->p += len;
    return EXF_OK;
}

/* Writes r->set as an item of the pattern, or tells it. */
static exf_code put_set(reader *r)
{
    exf_chars_sort(&r->set);
    if (!r->out) return exf_alphabet_tell(r->alphabet, &r->set, r->err);
    exf_alphabet_write(r->alphabet, &r->set, r->out);
    return EXF_OK;
}

/* 1 if the rest of the pattern starts with s. */
static int is_ahead(const reader *r, const char *s)
{
    size_t len = strlen(s);
    return (size_t)(r->end - r->p) >= len && memcmp(r->p, s, len) == 0;
}

/* The character at p, which is valid UTF-8, and its length. */
static uint32_t read_character(const char *p, size_t *len)
{
    const unsigned char *b = (const unsigned char *)p;
    *len = b[0] < 0x80 ? 1 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
    uint32_t c = *len == 1 ? b[0] : b[0] & (0x7fu >> *len);
    for (size_t i = 1; i < *len; i++) c = c << 6 | (b[i] & 63);
    return c;
}

/* ---- escapes -------------------------------------------------------- */

/* \x41, \x{4E00}: the length, or 0.  From \x80 on the short form is a byte to Oniguruma; surrogates are no characters. */
static size_t hex_len(const reader *r, uint32_t *c)
{
    static const char hex[] = "0123456789abcdef0123456789ABCDEF";
    size_t left = (size_t)(r->end - r->p), at = 2, digits = 0;
    int braces = left > 2 && r->p[2] == '{';
    const char *found;
    *c = 0;
    for (at += (size_t)braces; at < left && digits < (braces ? 8 : 2); at++, digits++) {
        if (!r->p[at] || !(found = strchr(hex, r->p[at]))) break;
        *c = *c << 4 | (uint32_t)((found - hex) & 15);
    }
    if (!braces) return digits == 2 && *c < 0x80 ? at : 0;
    return digits && at < left && r->p[at] == '}' && *c < 0x110000 && (*c < 0xd800 || *c >= 0xe000) ? at + 1 : 0;
}

static exf_code add_all(reader *r, const exf_chars *set)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < set->n; i++)
        rc = exf_chars_add(&r->set, set->range[i].first, set->range[i].end - 1, r->err);
    return rc;
}

/* Adds \s, \d, \p{...} (name NULL: white space), or all other characters. */
static exf_code add_property(reader *r, const char *name, size_t len, int negated)
{
    exf_chars held = {0};
    exf_code rc;
    if (!name) { /* White_Space */
        EXF_TRY(exf_chars_add(&held, '\t', '\r', r->err));
        EXF_TRY(exf_chars_add(&held, 0x85, 0x85, r->err));
    }
    EXF_TRY(exf_chars_add_category(&held, name ? name : "Z", name ? len : 1, r->err));
    if (negated) EXF_TRY(exf_chars_negate(&held, r->err));
    rc = add_all(r, &held);
out:
    exf_chars_free(&held);
    return rc;
}

/* Adds the set that an escape names to r->set; *single: the character that it stands for, or -1 for a property. */
static exf_code read_escape(reader *r, int32_t *single)
{
    static const char names[] = "nrtfea", values[] = "\n\r\t\f\x1b\a";
    char c = r->end - r->p > 1 ? r->p[1] : 0;
    const char *named = c ? strchr(names, c) : NULL;
    uint32_t point = (unsigned char)c;
    size_t len = 2;
    *single = -1;
    if (c == 's' || c == 'S' || c == 'd' || c == 'D') {
        r->p += 2;
        return add_property(r, (c | 0x20) == 'd' ? "Nd" : NULL, 2, c < 'a');
    }
    if (c == 'p' || c == 'P') {
        /* \p{Lu}, \P{N}, \p{^N} */
        int negated = c == 'P', inverse = r->end - r->p > 3 && r->p[3] == '^';
        const char *name = r->p + 3 + inverse, *close = memchr(r->p, '}', (size_t)(r->end - r->p));
        int known = close && r->p[2] == '{' && close > name && exf_chars_category(name, (size_t)(close - name));
        if (r->fold_depth || !known) return refuse(r, 2);
        r->p = close + 1;
        return add_property(r, name, (size_t)(close - name), negated != inverse);
    }
    if (named) point = (unsigned char)values[named - names];
    else if (c == 'x') len = r->fold_depth ? 0 : hex_len(r, &point);
    else if (c < ' ' || c >= 0x7f || is_letter(c) || is_digit(c) || (r->from->tiktoken && (c == '<' || c == '>'))) len = 0;
    if (!len) return refuse(r, 2);
    r->p += len;
    *single = (int32_t)point;
    return exf_chars_add(&r->set, point, point, r->err);
}

/* Adds the next character, or what an escape holds, to r->set; *single as above. */
static exf_code read_item(reader *r, int32_t *single)
{
    size_t len;
    if (*r->p == '\\') return read_escape(r, single);
    if (r->fold_depth && (unsigned char)*r->p >= 0x80) return refuse(r, 1);
    *single = (int32_t)read_character(r->p, &len);
    r->p += len;
    return exf_chars_add(&r->set, (uint32_t)*single, (uint32_t)*single, r->err);
}

/* A character or an escape outside of [...]. */
static exf_code translate_item(reader *r)
{
    int32_t single;
    exf_code rc;
    if (r->end - r->p > 1 && *r->p == '\\' && (r->p[1] == 'A' || r->p[1] == 'z')) return accept(r, 2);
    r->set.n = 0;
    EXF_TRY(read_item(r, &single));
    if (r->fold_depth) EXF_TRY(exf_chars_fold(&r->set, r->err));
    rc = put_set(r);
out:
    return rc;
}

/* ---- groups, classes -------------------------------------------------- */

/* Under (?i:...) Oniguruma also lets one character stand for several letters
 * (U+00DF for "ss"); PCRE2 folds character by character.  A class next to a letter
 * might be such a pair too. */
static exf_code check_folding(reader *r)
{
    static const char *const joined[] = {"ss", "st", "ff", "fi", "fl"};
    char c = *r->p;
    if ((unsigned char)c >= 0x80) return refuse(r, 1);
    if (c == '|') r->letter = 0;
    if (c == '[' && r->letter) return refuse(r, 1);
    if (c == '[') r->letter = c;
    if (!is_letter(c)) return EXF_OK;
    c |= 0x20;
    for (size_t i = 0; i < sizeof joined / sizeof joined[0]; i++)
        if (r->letter == '[' || (joined[i][0] == r->letter && joined[i][1] == c)) return refuse(r, 1);
    r->letter = c;
    return EXF_OK;
}

static exf_code open_group(reader *r)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    size_t len = is_ahead(r, "(?") || is_ahead(r, "(*") ? 0 : 1;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (is_ahead(r, known[i])) len = strlen(known[i]);
    if (!len) return refuse(r, 3);
    r->depth++;
    if (!is_ahead(r, "(?i:")) return accept(r, len);
    if (!r->fold_depth) r->fold_depth = r->depth;
    if (r->out) exf_text_append(r->out, "(?:", 3); /* the sets are folded */
    r->p += len;
    return EXF_OK;
}

static exf_code close_group(reader *r)
{
    if (r->fold_depth && r->depth == r->fold_depth) {
        r->fold_depth = 0;
        r->letter = 0;
    }
    if (r->depth) r->depth--;
    return accept(r, 1);
}

/* {n}, {n,}, {n,m}; a "?" or "+" after means something else to Ruby. */
static exf_code translate_interval(reader *r)
{
    size_t n = 1, left = (size_t)(r->end - r->p);
    while (n < left && is_digit(r->p[n])) n++;
    int digits = n > 1;
    if (n < left && r->p[n] == ',') n++;
    while (n < left && is_digit(r->p[n])) n++;
    if (!digits || n >= left || r->p[n] != '}') return refuse(r, n + 1);
    n++;
    if (n < left && (r->p[n] == '?' || r->p[n] == '+')) return refuse(r, n + 1);
    return accept(r, n);
}

/* The end of a range whose first character is read, and "-" ahead. */
static exf_code read_range(reader *r, int32_t first)
{
    int32_t last;
    const char *dash = r->p, *item = ++r->p;
    exf_code rc = *item == '[' ? refuse(r, 2) : read_item(r, &last);
    if (rc != EXF_OK) return rc;
    if (last < first) { /* also of a property, which is -1 */
        r->p = last < 0 ? item : dash - 1;
        return refuse(r, last < 0 ? 4 : 3);
    }
    return exf_chars_add(&r->set, (uint32_t)first, (uint32_t)last, r->err);
}

/* Reads the items of [...] up to the "]", or up to "&&[", which an inner class does not have. */
static exf_code read_class_items(reader *r, int inner)
{
    int after_range = 0, open = 1;
    exf_code rc = EXF_OK;
    while (r->p < r->end && *r->p != ']') {
        const char *item = r->p;
        int32_t single;
        if (is_ahead(r, "&&[") && r->set.n && !inner && !r->fold_depth) return EXF_OK;
        if (*r->p == '[' || is_ahead(r, "&&") || is_ahead(r, "--") || is_ahead(r, "~~")) return refuse(r, 2);
        open = *r->p != '-' || !after_range; /* "-" after a range is itself */
        EXF_TRY(read_item(r, &single));
        after_range = 0;
        if (!open || r->end - r->p < 2 || *r->p != '-' || r->p[1] == ']') continue;
        if (single < 0) {
            r->p = item;
            return refuse(r, 4);
        }
        EXF_TRY(read_range(r, single));
        after_range = 1;
    }
out:
    return rc;
}

/* The start of a class; *negated: whether it is "[^". */
static exf_code open_class(reader *r, int *negated)
{
    *negated = is_ahead(r, "[^");
    size_t len = *negated ? 2 : 1;
    if (r->end - r->p > (ptrdiff_t)len && r->p[len] == ']') return refuse(r, len + 1);
    r->p += len;
    return EXF_OK;
}

/* "&&[...]" at the end of a class: leaves in r->set what both hold. */
static exf_code intersect_class(reader *r)
{
    exf_chars held = r->set;
    int negated;
    exf_code rc;
    r->set = (exf_chars){0};
    r->p += 2;
    EXF_TRY(open_class(r, &negated));
    EXF_TRY(read_class_items(r, 1));
    if (r->end - r->p < 2) r->p = r->end; /* the class has no end */
    else if (r->p[1] != ']') EXF_TRY(refuse(r, 2));
    else r->p++;
    /* What both hold is the complement of their complements together. */
    if (!negated) EXF_TRY(exf_chars_negate(&r->set, r->err));
    EXF_TRY(exf_chars_negate(&held, r->err));
    EXF_TRY(add_all(r, &held));
    rc = exf_chars_negate(&r->set, r->err);
out:
    exf_chars_free(&held);
    return rc;
}

static exf_code translate_class(reader *r)
{
    const char *start = r->p;
    int negated;
    exf_code rc;
    EXF_TRY(open_class(r, &negated));
    r->set.n = 0;
    EXF_TRY(read_class_items(r, 0));
    if (is_ahead(r, "&&")) EXF_TRY(intersect_class(r));
    if (r->p == r->end) {
        r->p = start;
        return refuse(r, (size_t)(r->end - start));
    }
    r->p++;
    if (r->fold_depth) EXF_TRY(exf_chars_fold(&r->set, r->err));
    if (negated) EXF_TRY(exf_chars_negate(&r->set, r->err));
    rc = put_set(r);
out:
    return rc;
}

/* ---- the pattern -------------------------------------------------------- */

exf_code exf_regex_translate(exf_text *out, exf_alphabet *a, const char *pattern, size_t len, const exf_regex_source *from,
                             exf_err *err)
{
    reader r = {.out = out, .alphabet = a, .p = pattern, .start = pattern, .end = pattern + len, .from = from, .err = err};
    exf_code rc = EXF_OK;
    while (r.p < r.end) {
        char c = *r.p;
        if (r.fold_depth) EXF_TRY(check_folding(&r));
        if (c == '[') EXF_TRY(translate_class(&r));
        else if (c == '(') EXF_TRY(open_group(&r));
        else if (c == ')') EXF_TRY(close_group(&r));
        else if (c == '{') EXF_TRY(translate_interval(&r));
        else if (from->tiktoken && (c == '^' || c == '$')) EXF_TRY(refuse(&r, 1));
        else if (c && strchr("|*+?.^$", c)) EXF_TRY(accept(&r, 1));
        else EXF_TRY(translate_item(&r));
    }
    if (out) rc = exf_text_end(out, err);
out:
    exf_chars_free(&r.set);
    return rc;
}

exf_code exf_regex_literal(exf_text *out, exf_alphabet *a, const char *text, size_t len, exf_err *err)
{
    reader r = {.out = out, .alphabet = a, .err = err};
    exf_code rc = EXF_OK;
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t c = read_character(text + i, &n);
        r.set.n = 0;
        EXF_TRY(exf_chars_add(&r.set, c, c, err));
        EXF_TRY(put_set(&r));
    }
    if (out) rc = exf_text_end(out, err);
out:
    exf_chars_free(&r.set);
    return rc;
}

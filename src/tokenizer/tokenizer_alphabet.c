/* tokenizer_alphabet.c - sets of characters, and the alphabet of a pre-tokenizer: one byte for all characters that its patterns
 * do not tell apart.
 *
 * A pattern sees a character only through the sets that it names: \p{L}, [^\s\p{N}], "'".  Characters that are in the same sets
 * are one class.  A text is matched as a string of classes, so that what a category holds is decided here, by
 * tokenizer_unicode.c, and never by the installed PCRE2, which sees bytes. */
#include "tokenizer/tokenizer_internal.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { END = 0x110000, NEWLINE = '\n', CLASSES = 256 };

static const char category_names[] = "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCoCn";

/* ---- sets --------------------------------------------------------------------------------------------------------- */

exf_code exf_chars_add(exf_chars *set, uint32_t first, uint32_t last, exf_err *err)
{
    if (set->n && set->range[set->n - 1].end == first) { /* as the next run of a category's group */
        set->range[set->n - 1].end = last + 1;
        return EXF_OK;
    }
    exf_code rc = exf_mem_grow(&set->range, &set->cap, set->n + 1, sizeof *set->range, "set of characters", err);
    if (rc == EXF_OK) set->range[set->n++] = (exf_char_range){first, last + 1};
    return rc;
}

static int by_first(const void *pa, const void *pb)
{
    const exf_char_range *a = pa, *b = pb;
    return a->first != b->first ? (a->first < b->first ? -1 : 1) : (a->end > b->end) - (a->end < b->end);
}

void exf_chars_sort(exf_chars *set)
{
    size_t n = 0;
    if (set->n) qsort(set->range, set->n, sizeof *set->range, by_first);
    for (size_t i = 0; i < set->n; i++) {
        exf_char_range r = set->range[i];
        if (n && r.first <= set->range[n - 1].end) {
            if (r.end > set->range[n - 1].end) set->range[n - 1].end = r.end;
        } else {
            set->range[n++] = r;
        }
    }
    set->n = n;
}

exf_code exf_chars_negate(exf_chars *set, exf_err *err)
{
    uint32_t done = 0;
    exf_chars_sort(set);
    exf_code rc = exf_mem_grow(&set->range, &set->cap, set->n + 1, sizeof *set->range, "set of characters", err);
    if (rc != EXF_OK) return rc;
    size_t n = 0, old = set->n;
    for (size_t i = 0; i < old; i++) { /* writes at most where it has read */
        exf_char_range r = set->range[i];
        if (done < r.first) set->range[n++] = (exf_char_range){done, r.first};
        done = r.end;
    }
    if (done < END) set->range[n++] = (exf_char_range){done, END};
    set->n = n;
    return EXF_OK;
}

static exf_code add_pairs(exf_chars *set, const int32_t pair[][2], size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < n; i++) rc = exf_chars_add(set, (uint32_t)pair[i][0], (uint32_t)pair[i][1], err);
    return rc;
}

static int is_han(const char *name, size_t len)
{
    return len == 3 && memcmp(name, "Han", 3) == 0;
}

int exf_chars_category(const char *name, size_t len)
{
    if (is_han(name, len)) return 1;
    for (size_t i = 0; (len == 1 || len == 2) && category_names[i]; i += 2)
        if (memcmp(category_names + i, name, len) == 0) return 1;
    return 0;
}

exf_code exf_chars_add_category(exf_chars *set, const char *name, size_t len, exf_err *err)
{
    if (is_han(name, len)) return add_pairs(set, exf_unicode_han, exf_unicode_han_ranges, err);
    for (size_t i = 0; i < exf_unicode_runs; i++) {
        uint32_t first = exf_unicode_run[i] >> 5, end = i + 1 < exf_unicode_runs ? exf_unicode_run[i + 1] >> 5 : END;
        if (memcmp(category_names + 2 * (exf_unicode_run[i] & 31), name, len) != 0) continue;
        exf_code rc = exf_chars_add(set, first, end - 1, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}

exf_code exf_chars_add_digits(exf_chars *set, exf_err *err)
{
    exf_code rc = exf_chars_add_category(set, "N", 1, err);
    return rc == EXF_OK ? add_pairs(set, exf_unicode_younger_digit, exf_unicode_younger_digits, err) : rc;
}

exf_code exf_chars_fold(exf_chars *set, exf_err *err)
{
    size_t n = set->n;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t c = set->range[i].first; c < set->range[i].end && c < 0x80; c++) {
            uint32_t lower = c | 0x20;
            if (lower < 'a' || lower > 'z') continue;
            exf_code rc = exf_chars_add(set, lower, lower, err);
            if (rc == EXF_OK) rc = exf_chars_add(set, lower ^ 0x20, lower ^ 0x20, err);
            if (rc == EXF_OK && lower == 's') rc = exf_chars_add(set, 0x17f, 0x17f, err);
            if (rc == EXF_OK && lower == 'k') rc = exf_chars_add(set, 0x212a, 0x212a, err);
            if (rc != EXF_OK) return rc;
        }
    }
    return EXF_OK;
}

/* Whether the set holds c, for characters that rise from call to call; *at: where the last call stopped, 0 at first. */
static int reaches(const exf_chars *set, size_t *at, uint32_t c)
{
    while (*at < set->n && set->range[*at].end <= c) ++*at;
    return *at < set->n && set->range[*at].first <= c;
}

void exf_chars_free(exf_chars *set)
{
    exf_mem_free(set->range);
    *set = (exf_chars){0};
}

/* ---- the alphabet --------------------------------------------------------------------------------------------------- */

typedef struct { uint32_t first; unsigned char class; } span; /* up to the next span's first */

/* Planes 0 and 1 hold nearly all text; the rest is searched. */
enum { DIRECT = 0x20000 };

struct exf_alphabet {
    span *span, *spare;
    size_t n, cap, spare_cap;
    unsigned n_classes;
    const char *where;
    uint32_t member[CLASSES]; /* one character of each class */
    unsigned char direct[DIRECT];
};

exf_code exf_alphabet_new(exf_alphabet **out, const char *where, exf_err *err)
{
    static const span start[] = {{0, 0}, {NEWLINE, NEWLINE}, {NEWLINE + 1, 0}};
    exf_code rc = exf_mem_new(out, 1, sizeof **out, "alphabet of patterns", err);
    if (rc == EXF_OK)
        rc = exf_mem_grow(&(*out)->span, &(*out)->cap, sizeof start / sizeof *start, sizeof *start, "alphabet of patterns", err);
    if (rc != EXF_OK) {
        exf_alphabet_free(*out);
        *out = NULL;
        return rc;
    }
    memcpy((*out)->span, start, sizeof start);
    (*out)->n = sizeof start / sizeof *start;
    (*out)->n_classes = 1;
    (*out)->where = where;
    return EXF_OK;
}

void exf_alphabet_free(exf_alphabet *a)
{
    if (!a) return;
    exf_mem_free(a->span);
    exf_mem_free(a->spare);
    exf_mem_free(a);
}

/* Cuts the spans at the edges of the set, into a->spare. */
static exf_code cut_spans(exf_alphabet *a, const exf_chars *set, size_t *n, exf_err *err)
{
    exf_code rc = exf_mem_grow(&a->spare, &a->spare_cap, a->n + 2 * set->n, sizeof *a->spare, "alphabet of patterns", err);
    if (rc != EXF_OK) return rc;
    size_t edge = 0;
    *n = 0;
    for (size_t i = 0; i < a->n; i++) {
        uint32_t end = i + 1 < a->n ? a->span[i + 1].first : END;
        a->spare[(*n)++] = a->span[i];
        for (; edge < 2 * set->n; edge++) {
            uint32_t at = edge % 2 ? set->range[edge / 2].end : set->range[edge / 2].first;
            if (at >= end) break;
            if (at > a->spare[*n - 1].first) a->spare[(*n)++] = (span){at, a->span[i].class};
        }
    }
    return EXF_OK;
}

exf_code exf_alphabet_tell(exf_alphabet *a, const exf_chars *set, exf_err *err)
{
    unsigned char in[CLASSES] = {0}, out[CLASSES] = {0}, split[CLASSES] = {0};
    size_t n, at = 0;
    exf_code rc = cut_spans(a, set, &n, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) (reaches(set, &at, a->spare[i].first) ? in : out)[a->spare[i].class] = 1;
    for (unsigned c = 0; c < CLASSES; c++) {
        if (!in[c] || !out[c]) continue;
        if (a->n_classes == NEWLINE) a->n_classes++; /* a class of its own from the start, so that ^, $ and "." see it */
        unsigned made = a->n_classes++;
        if (made >= CLASSES)
            return exf_fail(err, EXF_MODEL, "%s: the patterns of pre_tokenizer tell more than %d kinds of characters apart",
                            a->where, CLASSES);
        split[c] = (unsigned char)made;
    }
    at = 0;
    for (size_t i = 0; i < n; i++)
        if (reaches(set, &at, a->spare[i].first) && split[a->spare[i].class]) a->spare[i].class = split[a->spare[i].class];
    span *was = a->span;
    size_t cap = a->cap;
    a->span = a->spare;
    a->cap = a->spare_cap;
    a->spare = was;
    a->spare_cap = cap;
    a->n = n;
    return EXF_OK;
}

void exf_alphabet_close(exf_alphabet *a)
{
    for (size_t i = 0; i < a->n; i++) {
        uint32_t end = i + 1 < a->n ? a->span[i + 1].first : END;
        a->member[a->span[i].class] = a->span[i].first;
        if (a->span[i].first >= DIRECT) continue;
        memset(a->direct + a->span[i].first, a->span[i].class, (end < DIRECT ? end : DIRECT) - a->span[i].first);
    }
}

void exf_alphabet_write(const exf_alphabet *a, const exf_chars *set, exf_text *out)
{
    int none = 1;
    exf_text_appendf(out, "[");
    for (unsigned c = 0; c < CLASSES; c++) {
        if (c >= a->n_classes && c != NEWLINE) continue;
        size_t lo = 0, hi = set->n;
        while (lo < hi) {
            size_t mid = lo + (hi - lo) / 2;
            if (set->range[mid].end <= a->member[c]) lo = mid + 1;
            else hi = mid;
        }
        if (lo == set->n || set->range[lo].first > a->member[c]) continue;
        exf_text_appendf(out, "\\x%02x", c);
        none = 0;
    }
    exf_text_appendf(out, none ? "^\\x00-\\xff]" : "]");
}

static unsigned char class_beyond(const exf_alphabet *a, uint32_t c)
{
    size_t lo = 0, hi = a->n;
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (a->span[mid].first <= c) lo = mid;
        else hi = mid;
    }
    return a->span[lo].class;
}

size_t exf_alphabet_map(const exf_alphabet *a, const char *text, size_t len, unsigned char *out)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + len;
    unsigned char *w = out;
    while (p < end) {
        uint32_t c = *p++;
        if (c >= 0xf0) {
            c = (c & 7) << 18 | (uint32_t)(p[0] & 63) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63);
            p += 3;
        } else if (c >= 0xe0) {
            c = (c & 15) << 12 | (uint32_t)(p[0] & 63) << 6 | (p[1] & 63);
            p += 2;
        } else if (c >= 0x80) {
            c = (c & 31) << 6 | (p[0] & 63);
            p++;
        }
        *w++ = c < DIRECT ? a->direct[c] : class_beyond(a, c);
    }
    return (size_t)(w - out);
}

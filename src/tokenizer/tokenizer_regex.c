/* tokenizer_regex.c - translates patterns from Oniguruma to PCRE2: an accepted subset, item by item; see tokenizer_internal.h. */
#include "tokenizer/tokenizer_internal.h"

#include <string.h>

/* White_Space, and what is not.  Spelled out because PCRE2's \s also has U+180E. */
#define SPACE "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACE                                                                                     \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"   \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

typedef struct {
    exf_text *out;
    const char *p, *end, *start;
    size_t depth, fold_depth; /* open groups; those open when (?i: began, plus one, or 0 */
    int in_class, class_at_start;
    char letter;              /* the last one in (?i: since a "|", in lower case; '[' after a class; or 0 */
    const char *where;
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
        "%s: pattern of pre_tokenizer Split: \"%.*s\" at byte %zu is not supported (Oniguruma and PCRE2 may read it differently)",
        r->where, (int)len, r->p, (size_t)(r->p - r->start));
}

/* Takes the next bytes over as they are. */
static exf_code accept(reader *r, size_t len)
{
    exf_text_append(r->out, r->p, len);
    r->p += len;
    return EXF_OK;
}

/* 1 if the rest of the pattern starts with s. */
static int is_ahead(const reader *r, const char *s)
{
    size_t len = strlen(s);
    return (size_t)(r->end - r->p) >= len && memcmp(r->p, s, len) == 0;
}

/* \p{Lu}, \P{N}, \p{^N}: the length, or 0 if it is not a general category. */
static size_t category_len(const reader *r)
{
    static const char known[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn ";
    const char *name = r->p + 2, *close = memchr(r->p, '}', (size_t)(r->end - r->p));
    char word[5] = " ";
    if (!close || *name++ != '{') return 0;
    if (*name == '^') name++;
    size_t len = (size_t)(close - name);
    if (len < 1 || len > 2) return 0;
    memcpy(word + 1, name, len);
    word[len + 1] = ' ';
    return strstr(known, word) ? (size_t)(close - r->p) + 1 : 0;
}

/* \x41, \x{4E00}: the length, or 0.  From \x80 on the short form is a byte to
 * Oniguruma and a code point to PCRE2. */
static size_t hex_len(const reader *r)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    size_t left = (size_t)(r->end - r->p), n = 3;
    if (left >= 4 && r->p[2] >= '0' && r->p[2] <= '7' && strspn(r->p + 3, hex)) return 4;
    if (left < 5 || r->p[2] != '{') return 0;
    n += strspn(r->p + 3, hex);
    return n > 3 && n < 10 && n < left && r->p[n] == '}' ? n + 1 : 0;
}

static exf_code translate_space(reader *r, int negated)
{
    const char *text = !r->in_class ? (negated ? "[^" SPACE "]" : "[" SPACE "]") : negated ? NO_SPACE : SPACE;
    /* Next to a hyphen the ranges would grow into it. */
    int hyphen =
        r->in_class && ((r->p[-1] == '-' && !r->class_at_start) || (r->end - r->p > 3 && r->p[2] == '-' && r->p[3] != ']'));
    if (hyphen) return refuse(r, 4);
    r->p += 2;
    exf_text_append(r->out, text, strlen(text));
    return EXF_OK;
}

static exf_code translate_escape(reader *r)
{
    char c = r->end - r->p > 1 ? r->p[1] : 0;
    size_t len = 0;
    if (c == 's' || c == 'S') return translate_space(r, c == 'S');
    if (c == 'p' || c == 'P') len = r->fold_depth ? 0 : category_len(r);
    else if (c == 'x') len = r->fold_depth ? 0 : hex_len(r);
    else if (c && strchr("dDnrtfea", c)) len = 2;
    else if ((c == 'A' || c == 'z') && !r->in_class) len = 2;
    else if (c >= ' ' && c < 0x7f && !is_letter(c) && !is_digit(c)) len = 2;
    return len ? accept(r, len) : refuse(r, 2);
}

/* Under (?i:...) Oniguruma also lets one character stand for several letters
 * (U+00DF for "ss"); PCRE2 folds character by character.  A class next to a letter
 * might be such a pair too. */
static exf_code check_folding(reader *r)
{
    static const char *const joined[] = {"ss", "st", "ff", "fi", "fl"};
    char c = *r->p;
    if ((unsigned char)c >= 0x80) return refuse(r, 1);
    if (r->in_class) return EXF_OK;
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
    if (is_ahead(r, "(?i:") && !r->fold_depth) r->fold_depth = r->depth;
    return accept(r, len);
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

static exf_code open_class(reader *r)
{
    size_t len = is_ahead(r, "[^") ? 2 : 1;
    if (r->end - r->p > (ptrdiff_t)len && r->p[len] == ']') return refuse(r, len + 1);
    r->in_class = r->class_at_start = 1;
    return accept(r, len);
}

static exf_code translate_class_item(reader *r)
{
    char c = *r->p;
    exf_code rc;
    if (c == '[' || is_ahead(r, "&&")) return refuse(r, 2);
    if (c == ']') r->in_class = 0;
    rc = c == '\\' ? translate_escape(r) : accept(r, 1);
    r->class_at_start = 0;
    return rc;
}

exf_code exf_regex_translate(exf_text *out, const char *pattern, size_t len, const char *where, exf_err *err)
{
    reader r = {.out = out, .p = pattern, .start = pattern, .end = pattern + len, .where = where, .err = err};
    exf_code rc = EXF_OK;
    while (r.p < r.end) {
        char c = *r.p;
        if (r.fold_depth) EXF_TRY(check_folding(&r));
        if (r.in_class) EXF_TRY(translate_class_item(&r));
        else if (c == '\\') EXF_TRY(translate_escape(&r));
        else if (c == '[') EXF_TRY(open_class(&r));
        else if (c == '(') EXF_TRY(open_group(&r));
        else if (c == ')') EXF_TRY(close_group(&r));
        else if (c == '{') EXF_TRY(translate_interval(&r));
        else EXF_TRY(accept(&r, 1));
    }
    rc = exf_text_end(out, err);
out:
    return rc;
}

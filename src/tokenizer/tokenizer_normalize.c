/* tokenizer_normalize.c - the normalizer of tokenizer.json: NFC, Prepend, and Replace of one text by another, in any sequence.
 *
 * Prepend and Replace are how releases write blanks as "▁" where pre_tokenizer is null: each stretch of text between added tokens
 * gets one in front.
 *
 * NFC is utf8proc's, whose only wrapper this is.  Decomposing, ordering and composing are separate steps because
 * utf8proc_decompose() orders marks in quadratic time. */
#include "tokenizer/tokenizer_internal.h"

#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

/* ---- normal form C ------------------------------------------------------ */

/* The lead byte of U+0300.  Everything below is its own NFC, and none of it ever
 * joins with what stands before it; text is only worked on from there up. */
enum { FIRST_MARK = 0xcc, LONG_RUN = 32, LONGEST_DECOMPOSITION = 8 };

/* To the library's normalizer these are unassigned: they take part in nothing. */
static int is_younger(int32_t point)
{
    size_t lo = 0, hi = exf_unicode_younger_marks;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (point > exf_unicode_younger_mark[mid][1]) lo = mid + 1;
        else hi = mid;
    }
    return lo < exf_unicode_younger_marks && point >= exf_unicode_younger_mark[lo][0];
}

static int mark_class(int32_t point)
{
    return utf8proc_get_property(point)->combining_class;
}

/* Decomposes up to *end, or up to the first younger character, which becomes *end. */
static exf_code decompose_text(exf_nfc_work *w, const utf8proc_uint8_t *p, const utf8proc_uint8_t **end, exf_err *err)
{
    w->n = 0;
    while (p < *end) {
        utf8proc_int32_t point;
        int boundary = 0;
        exf_code rc = exf_mem_grow(&w->point, &w->cap, w->n + LONGEST_DECOMPOSITION, sizeof *w->point, "code points", err);
        if (rc != EXF_OK) return rc;
        utf8proc_ssize_t step = utf8proc_iterate(p, *end - p, &point);
        if (step > 0 && is_younger(point)) {
            *end = p;
            break;
        }
        utf8proc_ssize_t made = step <= 0 ? 0
                                          : utf8proc_decompose_char(point, w->point + w->n, LONGEST_DECOMPOSITION,
                                                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (made <= 0 || made > LONGEST_DECOMPOSITION)
            return exf_fail(err, EXF_INTERNAL, "utf8proc cannot decompose U+%04X", (unsigned)point);
        p += step;
        w->n += (size_t)made;
    }
    return EXF_OK;
}

/* Canonical ordering: each run of marks stably by combining class, a long one by counting. */
static exf_code order_marks(exf_nfc_work *w, exf_err *err)
{
    for (size_t i = 0; i < w->n; i++) {
        int32_t *run = w->point + i;
        size_t n = 0;
        for (; i < w->n && mark_class(w->point[i]); i++) n++;
        if (n <= LONG_RUN) {
            for (size_t k = 1; k < n; k++) {
                int32_t point = run[k];
                size_t j = k;
                for (; j && mark_class(run[j - 1]) > mark_class(point); j--) run[j] = run[j - 1];
                run[j] = point;
            }
            continue;
        }
        size_t start[257] = {0};
        exf_code rc = exf_mem_grow(&w->sorted, &w->sorted_cap, n, sizeof *run, "combining marks", err);
        if (rc != EXF_OK) return rc;
        for (size_t k = 0; k < n; k++) start[mark_class(run[k]) + 1]++;
        for (int c = 0; c < 256; c++) start[c + 1] += start[c];
        for (size_t k = 0; k < n; k++) w->sorted[start[mark_class(run[k])]++] = run[k];
        memcpy(run, w->sorted, n * sizeof *run);
    }
    return EXF_OK;
}

static exf_code normalize_stretch(exf_nfc_work *w, const char *bytes, size_t len, exf_err *err)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)bytes, *end = p + len;
    exf_code rc = EXF_OK;
    while (p < end) {
        const utf8proc_uint8_t *stop = end;
        EXF_TRY(decompose_text(w, p, &stop, err));
        EXF_TRY(order_marks(w, err));
        utf8proc_ssize_t n = utf8proc_normalize_utf32(w->point, (utf8proc_ssize_t)w->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        if (n < 0) return exf_fail(err, EXF_INTERNAL, "utf8proc cannot compose: %s", utf8proc_errmsg(n));
        for (utf8proc_ssize_t i = 0; i < n; i++) {
            utf8proc_uint8_t utf8[4];
            exf_text_append(&w->text, (const char *)utf8, (size_t)utf8proc_encode_char(w->point[i], utf8));
        }
        p = stop;
        if (p < end) p += utf8proc_utf8class[*p];
        exf_text_append(&w->text, (const char *)stop, (size_t)(p - stop));
    }
out:
    return rc;
}

/* The first byte at or after `at` that starts something above U+02FF, or len. */
static size_t find_high(const char *bytes, size_t at, size_t len)
{
    while (at < len && (unsigned char)bytes[at] < FIRST_MARK) at++;
    return at;
}

/* Replaces *bytes, *len (valid UTF-8) by their NFC: unchanged if a quick check says that they are in NFC, else pointing into w
 * until the next call. */
static exf_code to_nfc(exf_nfc_work *w, const char **bytes, size_t *len, exf_err *err)
{
    const char *s = *bytes;
    size_t n = *len, high = find_high(s, 0, n), done = 0;
    exf_code rc;
    if (high == n) return EXF_OK;
    w->text.len = 0;
    while (done < n) {
        size_t from = high, to = high;
        /* The character before may join with the first mark. */
        if (high < n && from > done)
            do from--;
            while (from > done && ((unsigned char)s[from] & 0xc0) == 0x80);
        /* Up to the next start of a character below U+0300. */
        while (to < n && (unsigned char)s[to] >= 0x80 && ((unsigned char)s[to] < 0xc0 || (unsigned char)s[to] >= FIRST_MARK)) to++;
        exf_text_append(&w->text, s + done, from - done);
        if (from < to) EXF_TRY(normalize_stretch(w, s + from, to - from, err));
        done = to;
        high = find_high(s, to, n);
    }
    EXF_TRY(exf_text_end(&w->text, err));
    *bytes = w->text.s;
    *len = w->text.len;
out:
    return rc;
}

/* ---- loading --------------------------------------------------------- */

static exf_code add_step(exf_normalizer *n, const char *from, const char *to, size_t from_len, size_t to_len, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_grow(&n->step, &n->cap, n->n + 1, sizeof *n->step, "normalizer", err));
    exf_normal_step *s = &n->step[n->n++];
    *s = (exf_normal_step){NULL, NULL, from_len, to_len};
    if (from) EXF_TRY(exf_mem_dup(&s->from, from, from_len, "normalizer", err));
    if (to) EXF_TRY(exf_mem_dup(&s->to, to, to_len, "normalizer", err));
out:
    return rc;
}

/* A step that deletes text is refused: which places of the text are left, and so where a document begins, would be the library's
 * own affair. */
static exf_code load_replace(exf_normalizer *n, const exf_json *part, const char *where, exf_err *err)
{
    const exf_json *pattern = exf_json_get(part, "pattern");
    size_t from_len = 0, to_len = 0;
    if (exf_json_type(pattern) != EXF_JSON_OBJECT) pattern = NULL;
    const char *from = exf_json_string(exf_json_get(pattern, "String"), &from_len);
    const char *to = exf_json_string(exf_json_get(part, "content"), &to_len);
    if (from_len == 0)
        return exf_fail(err, EXF_MODEL, "%s: normalizer Replace: its pattern is not {\"String\": ...} of at least one character",
                        where);
    if (to_len == 0)
        return exf_fail(err, EXF_MODEL, "%s: normalizer Replace: content is not a string of at least one character", where);
    return add_step(n, from, to, from_len, to_len, err);
}

exf_code exf_normalizer_load(exf_normalizer *n, const exf_json *part, const char *where, exf_err *err)
{
    const char *type = exf_part_type(part);
    const exf_json *list = exf_json_get(part, "normalizers");
    if (exf_json_type(part) == EXF_JSON_NULL) return EXF_OK;
    if (strcmp(type, "NFC") == 0) return add_step(n, NULL, NULL, 0, 0, err);
    if (strcmp(type, "Prepend") == 0) {
        size_t len = 0;
        const char *text = exf_json_string(exf_json_get(part, "prepend"), &len);
        if (len == 0)
            return exf_fail(err, EXF_MODEL, "%s: normalizer Prepend: prepend is not a string of at least one character", where);
        return add_step(n, "", text, 0, len, err);
    }
    if (strcmp(type, "Replace") == 0) return load_replace(n, part, where, err);
    if (strcmp(type, "Sequence") != 0 || exf_json_type(list) != EXF_JSON_ARRAY)
        return exf_fail(err, EXF_MODEL,
                        "%s: normalizer \"%s\" is not supported (supported: null, NFC, Prepend, Replace, Sequence)", where, type);
    for (size_t i = 0; i < exf_json_size(list); i++) {
        exf_code rc = exf_normalizer_load(n, exf_json_at(list, i), where, err);
        if (rc != EXF_OK) return rc;
    }
    return EXF_OK;
}

void exf_normalizer_free(exf_normalizer *n)
{
    for (size_t i = 0; i < n->n; i++) {
        exf_mem_free(n->step[i].from);
        exf_mem_free(n->step[i].to);
    }
    exf_mem_free(n->step);
    *n = (exf_normalizer){0};
}

/* ---- normalizing ------------------------------------------------------- */

/* The first place of a text where `from` stands, or its end. */
static const char *find_text(const char *p, const char *end, const exf_normal_step *s)
{
    for (; (size_t)(end - p) >= s->from_len; p++) {
        p = memchr(p, s->from[0], (size_t)(end - p) - s->from_len + 1);
        if (!p) return end;
        if (memcmp(p, s->from, s->from_len) == 0) return p;
    }
    return end;
}

/* Appends the text with each `from` replaced, or with the prefix. */
static void apply_step(const exf_normal_step *s, exf_text *out, const char *text, size_t len)
{
    const char *p = text, *end = text + len;
    if (s->from_len == 0) {
        exf_text_append(out, s->to, s->to_len);
        exf_text_append(out, text, len);
        return;
    }
    while (p < end) {
        const char *at = find_text(p, end, s);
        exf_text_append(out, p, (size_t)(at - p));
        if (at == end) break;
        exf_text_append(out, s->to, s->to_len);
        p = at + s->from_len;
    }
}

/* An empty text stays empty: nothing is prepended to it. */
exf_code exf_normalize(const exf_normalizer *n, exf_normal_work *w, const char **bytes, size_t *len, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n->n && *len; i++) {
        exf_text *made = n->step[i].to ? &w->spare : &w->nfc.text;
        if (n->step[i].to) {
            made->len = 0;
            apply_step(&n->step[i], made, *bytes, *len);
            EXF_TRY(exf_text_end(made, err));
            *bytes = made->s;
            *len = made->len;
        } else {
            EXF_TRY(to_nfc(&w->nfc, bytes, len, err));
        }
        if (*bytes != made->s) continue; /* it is in normal form */
        exf_text was = w->text;
        w->text = *made;
        *made = was;
    }
out:
    return rc;
}

void exf_normal_work_free(exf_normal_work *w)
{
    exf_text_free(&w->nfc.text);
    exf_mem_free(w->nfc.point);
    exf_mem_free(w->nfc.sorted);
    w->nfc = (exf_nfc_work){0};
    exf_text_free(&w->text);
    exf_text_free(&w->spare);
}

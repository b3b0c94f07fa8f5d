/* tokenizer_nfc.c - converts text to Unicode normal form C; the only wrapper of utf8proc.  Decomposing, ordering and composing are
 * separate steps because utf8proc_decompose() orders marks in quadratic time. */
#include "tokenizer/tokenizer_internal.h"

#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

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

static int is_low_start(unsigned char c)
{
    return c < 0x80 || (c >= 0xc0 && c < FIRST_MARK);
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

static void insertion_sort(int32_t *run, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        int32_t point = run[i];
        size_t j = i;
        for (; j && mark_class(run[j - 1]) > mark_class(point); j--) run[j] = run[j - 1];
        run[j] = point;
    }
}

static exf_code counting_sort(exf_nfc_work *w, int32_t *run, size_t n, exf_err *err)
{
    size_t start[257] = {0};
    exf_code rc = exf_mem_grow(&w->sorted, &w->sorted_cap, n, sizeof *run, "combining marks", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) start[mark_class(run[i]) + 1]++;
    for (int c = 0; c < 256; c++) start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++) w->sorted[start[mark_class(run[i])]++] = run[i];
    memcpy(run, w->sorted, n * sizeof *run);
    return EXF_OK;
}

/* Canonical ordering: each run of marks stably by combining class. */
static exf_code order_marks(exf_nfc_work *w, exf_err *err)
{
    for (size_t i = 0; i < w->n; i++) {
        size_t from = i;
        while (i < w->n && mark_class(w->point[i])) i++;
        if (i - from <= LONG_RUN) {
            insertion_sort(w->point + from, i - from);
        } else {
            exf_code rc = counting_sort(w, w->point + from, i - from, err);
            if (rc != EXF_OK) return rc;
        }
    }
    return EXF_OK;
}

static exf_code compose_points(exf_nfc_work *w, exf_err *err)
{
    utf8proc_ssize_t n = utf8proc_normalize_utf32(w->point, (utf8proc_ssize_t)w->n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (n < 0) return exf_fail(err, EXF_INTERNAL, "utf8proc cannot compose: %s", utf8proc_errmsg(n));
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        utf8proc_uint8_t utf8[4];
        utf8proc_ssize_t len = utf8proc_encode_char(w->point[i], utf8);
        exf_text_append(&w->text, (const char *)utf8, (size_t)len);
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
        EXF_TRY(compose_points(w, err));
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

exf_code exf_nfc(exf_nfc_work *w, const char **bytes, size_t *len, exf_err *err)
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
        while (to < n && !is_low_start((unsigned char)s[to])) to++;
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

void exf_nfc_free(exf_nfc_work *w)
{
    exf_text_free(&w->text);
    exf_mem_free(w->point);
    exf_mem_free(w->sorted);
    *w = (exf_nfc_work){0};
}

/* tokenizer_normalize.c - the normalizer of tokenizer.json: NFC, Prepend, and Replace of one text by another, in any sequence.
 *
 * Prepend and Replace are how releases write blanks as "▁" where pre_tokenizer is null: each stretch of text between added tokens
 * gets one in front. */
#include "tokenizer/tokenizer_internal.h"

#include "base/mem.h"

#include <string.h>

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
static exf_code load_prepend(exf_normalizer *n, const exf_json *part, const char *where, exf_err *err)
{
    size_t len = 0;
    const char *text = exf_json_string(exf_json_get(part, "prepend"), &len);
    if (len == 0)
        return exf_fail(err, EXF_MODEL, "%s: normalizer Prepend: prepend is not a string of at least one character", where);
    return add_step(n, "", text, 0, len, err);
}

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
    if (strcmp(type, "Prepend") == 0) return load_prepend(n, part, where, err);
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
            EXF_TRY(exf_nfc(&w->nfc, bytes, len, err));
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
    exf_nfc_free(&w->nfc);
    exf_text_free(&w->text);
    exf_text_free(&w->spare);
}

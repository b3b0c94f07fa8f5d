/* tokenizer_metaspace.c - text of models that know no patterns, whose words begin with "▁" (U+2581) in place of a blank:
 * pre_tokenizer Metaspace, or null where the normalizer writes the "▁".
 *
 * To the library a whole text is then one pre-token.  Here it is cut in front of words wherever no merge reaches over the cut,
 * which changes no id and keeps the memory of encoding small. */
#include "tokenizer/tokenizer_internal.h"

#include <string.h>

int exf_starts_with_metaspace(const char *text, size_t len)
{
    return len >= EXF_METASPACE_LEN && memcmp(text, EXF_METASPACE, EXF_METASPACE_LEN) == 0;
}

int exf_ends_with_metaspace(const char *text, size_t len)
{
    return len >= EXF_METASPACE_LEN && exf_starts_with_metaspace(text + len - EXF_METASPACE_LEN, EXF_METASPACE_LEN);
}

/* ---- loading --------------------------------------------------------- */

/* Files of old releases have add_prefix_space beside prepend_scheme, or in its place; "always" counts where that is missing. */
static exf_code load_scheme(exf_metaspace *m, const exf_json *part, const char *where, exf_err *err)
{
    static const char *const scheme[] = {"never", "first", "always"}; /* as exf_prepend */
    const exf_json *j = exf_json_get(part, "prepend_scheme"), *prefix = exf_json_get(part, "add_prefix_space");
    const char *name = exf_json_type(j) == EXF_JSON_NULL ? "always" : exf_json_string(j, NULL);
    int known = 0;
    if (!name) name = exf_json_type_name(j);
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, scheme[i]) != 0) continue;
        m->prepend = (exf_prepend)i;
        known = 1;
    }
    if (!known)
        return exf_fail(err, EXF_MODEL,
                        "%s: pre_tokenizer Metaspace with prepend_scheme \"%s\" is not supported (supported: always, first, never)",
                        where, name);
    if (exf_json_type(prefix) == EXF_JSON_BOOL && !exf_json_true(prefix) && m->prepend != EXF_PREPEND_NEVER)
        return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer Metaspace: add_prefix_space is false, but prepend_scheme is %s", where,
                        name);
    return EXF_OK;
}

/* Returns 1 for a Split at blanks, as Gemma has it, of a text from which the normalizer's last step takes all of them. */
static int splits_nothing(const exf_normalizer *n, const exf_json *part)
{
    const exf_json *pattern = exf_json_get(part, "pattern");
    const char *at = exf_json_type(pattern) == EXF_JSON_OBJECT ? exf_json_string(exf_json_get(pattern, "String"), NULL) : NULL;
    const exf_normal_step *last = n->n ? &n->step[n->n - 1] : NULL;
    if (strcmp(exf_part_type(part), "Split") != 0 || !at || strcmp(at, " ") != 0 || !last || !last->from) return 0;
    if (exf_json_type(exf_json_get(part, "invert")) != EXF_JSON_BOOL || exf_json_true(exf_json_get(part, "invert"))) return 0;
    return strcmp(last->from, " ") == 0 && !memchr(last->to, ' ', last->to_len);
}

exf_code exf_metaspace_load(exf_metaspace *m, const exf_normalizer *n, const exf_json *part, const char *where, exf_err *err)
{
    const char *replacement = exf_json_string(exf_json_get(part, "replacement"), NULL);
    *m = (exf_metaspace){0};
    if (exf_json_type(part) == EXF_JSON_NULL || splits_nothing(n, part)) return EXF_OK;
    if (strcmp(exf_part_type(part), "Metaspace") != 0)
        return exf_fail(err, EXF_MODEL,
                        "%s: pre_tokenizer \"%s\" is not supported with byte_fallback (supported: null, Metaspace, Split at "
                        "the blanks that normalizer Replace takes away)", where,
                        exf_part_type(part));
    if (!replacement) replacement = exf_json_type_name(exf_json_get(part, "replacement"));
    if (strcmp(replacement, EXF_METASPACE) != 0)
        return exf_fail(err, EXF_MODEL, "%s: pre_tokenizer Metaspace with replacement \"%s\" is not supported (supported: \"%s\")",
                        where, replacement, EXF_METASPACE);
    m->replaces = m->split = 1;
    if (exf_json_type(exf_json_get(part, "split")) != EXF_JSON_NULL) {
        exf_code rc = exf_part_bool(&m->split, part, "split", where, "pre_tokenizer", "Metaspace", err);
        if (rc != EXF_OK) return rc;
    }
    return load_scheme(m, part, where, err);
}

/* ---- running --------------------------------------------------------- */

/* Writes the text with a "▁" for each blank and, where there is to be one, in front. */
static exf_code replace_blanks(const exf_metaspace *m, exf_text *out, int first, const char *text, size_t len, exf_err *err)
{
    const char *p = text, *end = text + len;
    int prepend = m->prepend == EXF_PREPEND_ALWAYS || (m->prepend == EXF_PREPEND_FIRST && first);
    out->len = 0;
    if (prepend && *text != ' ' && !exf_starts_with_metaspace(text, len)) exf_text_append(out, EXF_METASPACE, EXF_METASPACE_LEN);
    while (p < end) {
        const char *blank = memchr(p, ' ', (size_t)(end - p)), *stop = blank ? blank : end;
        exf_text_append(out, p, (size_t)(stop - p));
        if (blank) exf_text_append(out, EXF_METASPACE, EXF_METASPACE_LEN);
        p = blank ? blank + 1 : end;
    }
    return exf_text_end(out, err);
}

/* The place of the next cut after `from`, or len.  words: cuts only follow what is no "▁". */
static size_t next_cut(const char *text, size_t len, size_t from, int words)
{
    const char *p = text + from + 1, *end = text + len;
    while (p < end && (p = memchr(p, EXF_METASPACE[0], (size_t)(end - p)))) {
        if (exf_starts_with_metaspace(p, (size_t)(end - p)) && !(words && exf_ends_with_metaspace(text, (size_t)(p - text))))
            return (size_t)(p - text);
        p++;
    }
    return len;
}

exf_code exf_metaspace_run(const exf_metaspace *m, int words, exf_text *work, int first, const char *text, size_t len,
                           exf_pretoken_fn *emit, void *ctx, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (len == 0) return EXF_OK;
    if (m->replaces) {
        EXF_TRY(replace_blanks(m, work, first, text, len, err));
        text = work->s;
        len = work->len;
    }
    for (size_t at = 0, cut; at < len; at = cut) {
        cut = m->split || words ? next_cut(text, len, at, !m->split) : len;
        EXF_TRY(emit(ctx, text + at, cut - at, err));
    }
out:
    return rc;
}

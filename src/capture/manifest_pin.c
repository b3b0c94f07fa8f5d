/* manifest_pin.c - see manifest_pin.h.
 *
 * The YAML is edited as text, since an emitter would lose comments.  Sources and
 * their keys stand in the order of the document, a key stands once, and aliases
 * are refused, so the n-th `sha256: unpinned` outside comments is the n-th
 * unpinned source's; the edited text is read back to prove it. */
#include "capture/manifest_pin.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "capture/manifest.h"

#include <string.h>

static const char key[] = "sha256:", word[] = "unpinned";

typedef char digest[EXF_SHA256_HEX];

/* The word of the next `sha256: unpinned` at or after `at`, or NULL. */
static const char *next_word(const char *at)
{
    while (*at) {
        size_t line = strcspn(at, "\n");
        const char *end = at + line, *comment = memchr(at, '#', line), *k = strstr(at, key);
        if (k && k < (comment ? comment : end)) {
            const char *value = k + strlen(key) + strspn(k + strlen(key), " ");
            if (strncmp(value, word, strlen(word)) == 0) return value;
            at = value;
        } else {
            at = *end ? end + 1 : end;
        }
    }
    return NULL;
}

static exf_code hash_unpinned(const exf_manifest *m, digest *hex, int *n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < m->n; i++) {
        if (m->source[i].sha256[0]) continue;
        rc = exf_hash_file(m->source[i].file, hex[i], err);
        if (rc != EXF_OK) exf_err_prefix(err, "%s: ", m->source[i].label);
        ++*n;
    }
    return rc;
}

/* The text with every unpinned source's word replaced. */
static exf_code edit(const exf_manifest *m, const digest *hex, int n, const char *text, exf_text *out, exf_err *err)
{
    exf_code rc;
    const char *at = text, *found;
    int n_words = 0;
    for (found = next_word(text); found; found = next_word(found + strlen(word))) n_words++;
    if (n_words != n)
        return exf_fail(err, EXF_USAGE, "%s: %d sources are unpinned, but \"sha256: unpinned\" stands %d times; write it into each",
                        m->path, n, n_words);
    for (size_t i = 0; i < m->n; i++) {
        if (m->source[i].sha256[0]) continue;
        found = next_word(at);
        EXF_TRY(exf_text_add(out, at, (size_t)(found - at), err));
        EXF_TRY(exf_text_add(out, hex[i], strlen(hex[i]), err));
        at = found + strlen(word);
    }
    EXF_TRY(exf_text_add(out, at, strlen(at), err));
out:
    return rc;
}

static exf_code read_back(const char *path, const exf_manifest *m, const digest *hex, exf_err *err)
{
    exf_manifest *again = NULL;
    exf_code rc;
    EXF_TRY(exf_manifest_load(&again, path, err));
    for (size_t i = 0; i < m->n; i++) {
        const char *want = m->source[i].sha256[0] ? m->source[i].sha256 : hex[i];
        if (i < again->n && strcmp(again->source[i].sha256, want) == 0) continue;
        rc = exf_fail(err, EXF_USAGE, "%s: cannot be edited: its sources have to say \"sha256: unpinned\" as keys of their own",
                      m->path);
        goto out;
    }
out:
    exf_manifest_free(again);
    return rc;
}

exf_code exf_manifest_pin(const char *path, int *n_pinned, exf_err *err)
{
    exf_manifest *m = NULL;
    exf_output_file *f = NULL;
    exf_text edited = {0};
    digest *hex = NULL;
    char *text = NULL;
    size_t len;
    exf_code rc;
    *n_pinned = 0;
    EXF_TRY(exf_manifest_load(&m, path, err));
    EXF_TRY(exf_manifest_verify(m, err));
    EXF_TRY(exf_mem_new(&hex, m->n, sizeof *hex, "checksums", err));
    EXF_TRY(hash_unpinned(m, hex, n_pinned, err));
    if (*n_pinned == 0) goto out;
    EXF_TRY(exf_file_slurp(path, 1u << 26, &text, &len, err));
    EXF_TRY(edit(m, (const digest *)hex, *n_pinned, text, &edited, err));
    EXF_TRY(exf_output_file_begin(&f, path, 1, err));
    EXF_TRY(exf_output_file_write(f, edited.s, edited.len, err));
    EXF_TRY(read_back(exf_output_file_path(f), m, (const digest *)hex, err));
    rc = exf_output_file_commit(f, err);
    f = NULL;
out:
    exf_output_file_abort(f);
    exf_text_free(&edited);
    exf_mem_free(text);
    exf_mem_free(hex);
    exf_manifest_free(m);
    return rc;
}

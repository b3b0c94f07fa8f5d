/* manifest_pin.c - see manifest_pin.h.
 *
 * The YAML is edited as text, since an emitter would lose comments: at the place of each
 * `sha256: unpinned` its word is replaced, and a source without the key gets it as its first; the
 * edited text is read back to prove it. */
#include "capture/manifest_pin.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "capture/manifest.h"
#include "format/yaml.h"

#include <string.h>

typedef char digest[EXF_SHA256_HEX];

/* The text up to the character number `at`. */
static const char *place(const char *text, size_t at)
{
    for (; *text; text++) {
        if (((unsigned char)*text & 0xc0) == 0x80) continue; /* inside a character */
        if (at-- == 0) break;
    }
    return text;
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

/* Adds the digest at the source's own place and moves *from, which starts the text that is not yet copied,
 * after what it replaces. */
static exf_code edit_source(const exf_yaml *source, const char *hex, const char *text, const char **from, exf_text *out,
                            exf_err *err)
{
    const exf_yaml *key = exf_yaml_get(source, "sha256");
    const char *at = place(text, (key ? key : source)->at), *line = at;
    int in_braces = !key && *at == '{', quotes = key && (*at == '"' || *at == '\'');
    exf_code rc;
    if (in_braces) at++;
    EXF_TRY(exf_text_add(out, *from, (size_t)(at - *from), err));
    *from = key ? at + strlen(key->text) + (size_t)(2 * quotes) : at;
    while (line > text && line[-1] != '\n') line--;
    if (key) rc = exf_text_addf(out, err, "%s", hex);
    else if (in_braces) rc = exf_text_addf(out, err, "sha256: %s, ", hex);
    else rc = exf_text_addf(out, err, "sha256: %s\n%*s", hex, (int)(at - line), "");
out:
    return rc;
}

/* The text with every unpinned source pinned. */
static exf_code edit(const exf_manifest *m, const digest *hex, const char *text, size_t len, exf_text *out, exf_err *err)
{
    exf_yaml *root = NULL;
    const char *from = text;
    exf_code rc;
    EXF_TRY(exf_yaml_parse(&root, text, len, m->path, err));
    const exf_yaml *sources = exf_yaml_get(root, "sources");
    for (size_t i = 0; i < m->n; i++)
        if (!m->source[i].sha256[0]) EXF_TRY(edit_source(sources->child[i], hex[i], text, &from, out, err));
    EXF_TRY(exf_text_addf(out, err, "%s", from));
out:
    exf_yaml_free(root);
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
        rc = exf_fail(err, EXF_USAGE, "%s: cannot be edited: write \"sha256: unpinned\" into each source, on a line of its own",
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
    EXF_TRY(edit(m, (const digest *)hex, text, len, &edited, err));
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

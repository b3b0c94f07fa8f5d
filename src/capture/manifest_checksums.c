/* manifest_checksums.c - the checksums of a manifest's files: compared, missing, and written into it; see manifest.h.
 *
 * To pin, the YAML is edited as text, since an emitter would lose comments: at the place of each `sha256: unpinned` its
 * word is replaced, and a source without the key gets it as its first; the edited text is read back to prove it. */
#include "capture/manifest.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/yaml.h"

#include <string.h>

exf_code exf_source_open(exf_file **out, const char *file, exf_err *err)
{
    return strcmp(file, EXF_STANDARD_INPUT) == 0 ? exf_file_open_input(out, err) : exf_file_open(out, file, err);
}

exf_code exf_source_hash(const char *file, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_file *f = NULL;
    exf_code rc = exf_source_open(&f, file, err);
    if (rc == EXF_OK) rc = exf_hash_open_file(f, hex, err);
    exf_file_close(f);
    return rc;
}

size_t exf_manifest_first_of_file(const exf_manifest *m, size_t i)
{
    size_t k = 0;
    while (k < i && (!m->source[k].sha256[0] || strcmp(m->source[k].file, m->source[i].file) != 0)) k++;
    return k;
}

static exf_code keep_state(exf_manifest_source *s, const char *state, exf_err *err)
{
    exf_mem_free(s->state);
    return exf_mem_strdup(&s->state, state, "state of a file", err);
}

exf_code exf_source_unchanged(const exf_manifest_source *s, const exf_file *f, exf_err *err)
{
    if (s->state && strcmp(s->state, exf_file_state(f)) != 0)
        return exf_fail(err, EXF_MODEL, "%s: changed after its checksum was compared: was %s, is %s; run again when it stays as it "
                        "is", s->label, s->state, exf_file_state(f));
    return strcmp(s->file, EXF_STANDARD_INPUT) == 0 ? EXF_OK : exf_file_unchanged(f, err);
}

exf_code exf_manifest_verify(exf_manifest *m, int fresh, exf_err *err)
{
    exf_code rc = EXF_OK;
    exf_file *f = NULL;
    char(*digest)[EXF_SHA256_HEX] = NULL;
    EXF_TRY(exf_mem_new(&digest, m->n, sizeof *digest, "checksums", err));
    for (size_t i = 0; i < m->n; i++) {
        exf_manifest_source *s = &m->source[i];
        if (!s->sha256[0]) continue;
        size_t first = exf_manifest_first_of_file(m, i);
        if (first == i) {
            rc = exf_source_open(&f, s->file, err);
            if (rc == EXF_OK) rc = exf_hash_open_file(f, digest[i], err);
            if (rc == EXF_OK) rc = keep_state(s, exf_file_state(f), err);
            exf_file_close(f);
            f = NULL;
            if (rc != EXF_OK) exf_err_prefix(err, "%s: ", s->label);
        } else {
            rc = keep_state(s, m->source[first].state, err);
        }
        if (rc != EXF_OK) goto out;
        if (strcmp(digest[first], s->sha256) == 0) continue;
        if (fresh)
            rc = exf_fail(err, EXF_MODEL, "--text: %s changed while it was read: its sha256 was %.12s..., now it is %.12s...; "
                          "wait until it is written, or give a copy of it", s->path, s->sha256, digest[first]);
        else
            rc = exf_fail(err, EXF_MODEL, "%s: the file's sha256 is %s, the manifest says %s", s->label, digest[first], s->sha256);
        goto out;
    }
out:
    exf_mem_free(digest);
    return rc;
}

exf_code exf_manifest_unpinned(const exf_manifest *m, char **files, int *n, exf_err *err)
{
    enum { NAMED = 4 };
    exf_text list = {0};
    exf_code rc;
    int named = 0;
    *files = NULL;
    *n = 0;
    for (size_t i = 0; i < m->n; i++) {
        size_t k = 0;
        if (m->source[i].sha256[0]) continue;
        ++*n;
        while (k < i && (m->source[k].sha256[0] || strcmp(m->source[k].path, m->source[i].path) != 0)) k++;
        if (named > NAMED || k < i) continue; /* k < i: an earlier source has the file */
        exf_text_appendf(&list, "%s%s", named ? ", " : "", named == NAMED ? "..." : m->source[i].path);
        named++;
    }
    EXF_TRY(exf_text_end(&list, err));
    if (list.s) rc = exf_mem_strdup(files, list.s, "list of files", err);
out:
    exf_text_free(&list);
    return rc;
}

/* ---- pinning ------------------------------------------------------------------------------------------ */

typedef char digest[EXF_SHA256_HEX];

/* Returns where the character number `at` begins. */
static const char *place(const char *text, size_t at)
{
    for (; *text; text++) {
        if (((unsigned char)*text & 0xc0) == 0x80) continue; /* inside a character */
        if (at-- == 0) break;
    }
    return text;
}

/* Adds the text before the source's own place, and its digest; moves *from, which starts the text that is not yet copied,
 * past what the digest replaces. */
static void edit_source(const exf_yaml *source, const char *hex, const char *text, const char **from, exf_text *out)
{
    const exf_yaml *key = exf_yaml_get(source, "sha256");
    const char *at = place(text, (key ? key : source)->at), *line = at;
    int in_braces = !key && *at == '{', quotes = key && (*at == '"' || *at == '\'');
    if (in_braces) at++;
    exf_text_append(out, *from, (size_t)(at - *from));
    *from = key ? at + strlen(key->text) + (size_t)(2 * quotes) : at;
    while (line > text && line[-1] != '\n') line--;
    if (key) exf_text_appendf(out, "%s", hex);
    else if (in_braces) exf_text_appendf(out, "sha256: %s, ", hex);
    else exf_text_appendf(out, "sha256: %s\n%*s", hex, (int)(at - line), "");
}

/* Makes the text with every unpinned source pinned. */
static exf_code edit_text(const exf_manifest *m, const digest *hex, const char *text, size_t len, exf_text *out, exf_err *err)
{
    exf_yaml *root = NULL;
    const char *from = text;
    exf_code rc;
    EXF_TRY(exf_yaml_parse(&root, text, len, m->path, err));
    const exf_yaml *sources = exf_yaml_get(root, "sources");
    for (size_t i = 0; i < m->n; i++)
        if (!m->source[i].sha256[0]) edit_source(sources->child[i], hex[i], text, &from, out);
    exf_text_appendf(out, "%s", from);
    rc = exf_text_end(out, err);
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
    EXF_TRY(exf_manifest_verify(m, 0, err));
    EXF_TRY(exf_mem_new(&hex, m->n, sizeof *hex, "checksums", err));
    for (size_t i = 0; i < m->n; i++) {
        if (m->source[i].sha256[0]) continue;
        rc = exf_source_hash(m->source[i].file, hex[i], err);
        if (rc != EXF_OK) exf_err_prefix(err, "%s: ", m->source[i].label);
        if (rc != EXF_OK) goto out;
        ++*n_pinned;
    }
    if (*n_pinned == 0) goto out;
    EXF_TRY(exf_file_slurp(path, 1u << 26, &text, &len, err));
    EXF_TRY(edit_text(m, (const digest *)hex, text, len, &edited, err));
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

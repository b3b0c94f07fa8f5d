/* weights_facts.c - see weights_facts.h. */
#include "artifact/weights_facts.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const char parts_key[] = "model.weights_parts", digest_key[] = "model.weights_digest";

exf_code exf_weights_facts_add(exf_provenance *p, const char *parts, exf_err *err)
{
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_hash_bytes(parts, strlen(parts), digest, err));
    EXF_TRY(exf_provenance_add(p, err, parts_key, "%s", parts));
    EXF_TRY(exf_provenance_add(p, err, digest_key, "%s", digest));
out:
    return rc;
}

int exf_weights_facts_key(const char *key)
{
    return strcmp(key, parts_key) == 0 || strcmp(key, digest_key) == 0;
}

int exf_weights_facts_list_key(const char *key)
{
    return strcmp(key, parts_key) == 0;
}

static exf_code malformed(const char *path, exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: %s is no list of digests", path, parts_key);
}

static exf_code same_parts(const char *a, const char *path_a, const char *b, const char *path_b, exf_err *err)
{
    exf_digest_entry e;
    char other[EXF_SHA256_HEX];
    int more;
    while ((more = exf_digest_list_next(&a, &e)) == 1)
        if (exf_digest_list_find(b, e.name, other) && strcmp(e.hex, other) != 0)
            return exf_fail(err, EXF_MODEL,
                            "%s: was made with other weights than %s: the digest of part %s is %.12s..., in %s it is %.12s...",
                            path_a, path_b, e.name, e.hex, path_b, other);
    return more == 0 ? EXF_OK : malformed(path_a, err);
}

exf_code exf_weights_facts_same(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b,
                                exf_err *err)
{
    const char *parts_a = exf_provenance_get(a, parts_key), *parts_b = exf_provenance_get(b, parts_key),
               *digest_a = exf_provenance_get(a, digest_key), *digest_b = exf_provenance_get(b, digest_key);
    if (parts_a && parts_b) return same_parts(parts_a, path_a, parts_b, path_b, err);
    if (parts_a || parts_b)
        return exf_fail(err, EXF_MODEL, "%s: names samples of the weights at most, %s all of them: make the older file again",
                        parts_a ? path_b : path_a, parts_a ? path_a : path_b);
    if ((!digest_a && !digest_b) || (digest_a && digest_b && strcmp(digest_a, digest_b) == 0)) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: %s is %s, in %s it is %s", path_a, digest_key, digest_a ? digest_a : "missing", path_b,
                    digest_b ? digest_b : "missing");
}

/* ---- joining ---------------------------------------------------------------------------- */

typedef struct {
    exf_digest_entry *entry;
    size_t n, capacity;
} entries;

/* Orders parts as weight identities do: those outside layers by name, then layer by layer. */
static int by_part(const void *a, const void *b)
{
    const char *x = ((const exf_digest_entry *)a)->name, *y = ((const exf_digest_entry *)b)->name;
    long i = *x >= '0' && *x <= '9' ? strtol(x, NULL, 10) : -1, k = *y >= '0' && *y <= '9' ? strtol(y, NULL, 10) : -1;
    return i == k ? strcmp(x, y) : i < k ? -1 : 1;
}

static exf_code collect(entries *all, const char *parts, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (exf_digest_entry e; parts && rc == EXF_OK && exf_digest_list_next(&parts, &e) == 1;) {
        rc = exf_mem_grow(&all->entry, &all->capacity, all->n + 1, sizeof *all->entry, "parts of weights", err);
        if (rc == EXF_OK) all->entry[all->n++] = e;
    }
    return rc;
}

static exf_code write_list(const entries *all, exf_text *out, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < all->n; i++)
        if (i == 0 || by_part(&all->entry[i - 1], &all->entry[i]) != 0)
            rc = exf_text_addf(out, err, "%s%s:%s", i ? " " : "", all->entry[i].name, all->entry[i].hex);
    return rc;
}

exf_code exf_weights_facts_join(exf_provenance *out, const exf_provenance *const *part, size_t n, exf_err *err)
{
    const char *digest = exf_provenance_get(part[0], digest_key);
    entries all = {0};
    exf_text text = {0};
    exf_code rc;
    if (!exf_provenance_get(part[0], parts_key)) return digest ? exf_provenance_add(out, err, digest_key, "%s", digest) : EXF_OK;
    for (size_t i = 0; i < n; i++) EXF_TRY(collect(&all, exf_provenance_get(part[i], parts_key), err));
    if (all.n) qsort(all.entry, all.n, sizeof *all.entry, by_part);
    EXF_TRY(write_list(&all, &text, err));
    EXF_TRY(exf_weights_facts_add(out, text.s ? text.s : "", err));
out:
    exf_mem_free(all.entry);
    exf_text_free(&text);
    return rc;
}

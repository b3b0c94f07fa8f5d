/* provenance_model.c - adds, compares and joins the facts of a model: its architecture and its weights; see provenance.h. */
#include "artifact/provenance.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char parts_key[] = EXF_WEIGHTS_FACT, by_place_key[] = EXF_WEIGHTS_BY_PLACE_FACT, digest_key[] = "model.weights_digest",
                  architecture_key[] = "model.architecture", architecture_digest_key[] = "model.architecture_digest";

/* Adds a text and its digest. */
static exf_code add_digested(exf_provenance *p, const char *key, const char *key_of_digest, const char *text, exf_err *err)
{
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_hash_bytes(text, strlen(text), digest, err));
    EXF_TRY(exf_provenance_add(p, err, key, "%s", text));
    EXF_TRY(exf_provenance_add(p, err, key_of_digest, "%s", digest));
out:
    return rc;
}

exf_code exf_architecture_facts_add(exf_provenance *p, const char *text, exf_err *err)
{
    return add_digested(p, architecture_key, architecture_digest_key, text, err);
}

exf_code exf_weights_facts_add(exf_provenance *p, const char *parts, const char *by_place, exf_err *err)
{
    exf_code rc = add_digested(p, parts_key, digest_key, parts, err);
    return rc == EXF_OK && by_place ? exf_provenance_add(p, err, by_place_key, "%s", by_place) : rc;
}

int exf_weights_facts_key(const char *key)
{
    return exf_weights_facts_list_key(key) || strcmp(key, digest_key) == 0;
}

int exf_model_facts_key(const char *key)
{
    return exf_weights_facts_key(key) || strcmp(key, architecture_key) == 0 || strcmp(key, architecture_digest_key) == 0;
}

int exf_weights_facts_list_key(const char *key)
{
    return strcmp(key, parts_key) == 0 || strcmp(key, by_place_key) == 0 || strcmp(key, EXF_ROUTERS_FACT) == 0;
}

/* Returns the length of the word's name, up to the "=". */
static size_t name_length(const char *word)
{
    return strcspn(word, "= ");
}

/* Returns the value of the field that is named at `name`, 0 where the text has no word of it, and its length. */
static const char *find_value(const char *text, const char *name, size_t *n)
{
    size_t length = name_length(name);
    for (const char *word = text; *word; word += strcspn(word, " "), word += *word == ' ') {
        if (name_length(word) != length || strncmp(word, name, length) != 0 || word[length] != '=') continue;
        *n = strcspn(word + length + 1, " ");
        return word + length + 1;
    }
    *n = 1;
    return "0";
}

/* Compares the architectures that both name: the fields of the one, then those that only the other has. */
static exf_code same_architecture(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b,
                                  const char *mend, exf_err *err)
{
    const char *text[2] = {exf_provenance_get(a, architecture_key), exf_provenance_get(b, architecture_key)};
    if (!text[0] || !text[1] || strcmp(text[0], text[1]) == 0) return EXF_OK;
    for (int i = 0; i < 2; i++)
        for (const char *word = text[i]; *word; word += strcspn(word, " "), word += *word == ' ') {
            size_t n, k;
            const char *x = find_value(text[0], word, &n), *y = find_value(text[1], word, &k);
            if (n == k && memcmp(x, y, n) == 0) continue;
            return exf_fail(err, EXF_MODEL, "%s: was made with another model than %s: %.*s is %.*s, there it is %.*s%s", path_a,
                            path_b, (int)name_length(word), word, (int)n, x, (int)k, y, mend);
        }
    return exf_fail(err, EXF_MODEL, "%s: %s has other words than in %s%s", path_a, architecture_key, path_b, mend);
}

exf_code exf_architecture_facts_same(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b,
                                     const char *mend, exf_err *err)
{
    static const char config_key[] = "model.config_sha256";
    const char *x = exf_provenance_get(a, config_key), *y = exf_provenance_get(b, config_key);
    if (exf_provenance_get(a, architecture_key) && exf_provenance_get(b, architecture_key))
        return same_architecture(a, path_a, b, path_b, mend, err);
    if (!x || !y || strcmp(x, y) == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL,
                    "%s: config_sha256 of its model is %s, of %s it is %s, and a file of an earlier program names no architecture "
                    "to compare%s",
                    path_a, x, path_b, y, mend);
}

/* The digest lists of a file; NULL: it has none. */
typedef struct {
    const char *parts, *by_place;
} lists;

static lists lists_of(const exf_provenance *p)
{
    return (lists){exf_provenance_get(p, parts_key), exf_provenance_get(p, by_place_key)};
}

/* What digest lists have in common. */
typedef struct {
    size_t both, differ; /* parts */
    exf_digest_entry of_a; /* the first that differs */
    char of_b[EXF_SHA256_HEX];
} comparison;

/* Compares the parts of a with those of b; names, where it is not NULL, gets those that differ. */
static exf_code compare_parts(comparison *c, lists a, lists b, const char *path_a, exf_text *names, exf_err *err)
{
    exf_digest_entry e;
    char other[EXF_SHA256_HEX], x[EXF_SHA256_HEX], y[EXF_SHA256_HEX];
    int more;
    memset(c, 0, sizeof *c);
    while ((more = exf_digest_list_next(&a.parts, &e)) == 1) {
        if (!exf_digest_list_find(b.parts, e.name, other)) continue;
        c->both++;
        int same = strcmp(e.hex, other) == 0; /* or both lists have the part by its place, with one digest */
        if (!same && a.by_place && b.by_place && exf_digest_list_find(a.by_place, e.name, x) &&
            exf_digest_list_find(b.by_place, e.name, y))
            same = strcmp(x, y) == 0;
        if (same) continue;
        if (names) exf_text_appendf(names, "%s%s", c->differ ? ", " : "", e.name);
        if (c->differ++) continue;
        c->of_a = e;
        memcpy(c->of_b, other, sizeof other);
    }
    return more == 0 ? EXF_OK : exf_fail(err, EXF_FORMAT, "%s: %s is no list of digests", path_a, parts_key);
}

static exf_code same_weights(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b, exf_err *err)
{
    const char *digest_a = exf_provenance_get(a, digest_key), *digest_b = exf_provenance_get(b, digest_key);
    lists of_a = lists_of(a), of_b = lists_of(b);
    if (of_a.parts && of_b.parts) {
        comparison c;
        exf_code rc = compare_parts(&c, of_a, of_b, path_a, NULL, err);
        if (rc != EXF_OK || !c.differ) return rc;
        return exf_fail(err, EXF_MODEL,
                        "%s: was made with other weights than %s: the digest of part %s is %.12s..., in %s it is %.12s...",
                        path_a, path_b, c.of_a.name, c.of_a.hex, path_b, c.of_b);
    }
    if (of_a.parts || of_b.parts)
        return exf_fail(err, EXF_MODEL, "%s: names its weights as earlier programs did, %s by XXH3: make the older file again",
                        of_a.parts ? path_b : path_a, of_a.parts ? path_a : path_b);
    if ((!digest_a && !digest_b) || (digest_a && digest_b && strcmp(digest_a, digest_b) == 0)) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: %s is %s, in %s it is %s", path_a, digest_key, digest_a ? digest_a : "missing", path_b,
                    digest_b ? digest_b : "missing");
}

exf_code exf_model_facts_same(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b,
                              exf_err *err)
{
    exf_code rc = same_architecture(a, path_a, b, path_b, "", err);
    return rc == EXF_OK ? same_weights(a, path_a, b, path_b, err) : rc;
}

exf_code exf_weights_facts_difference(exf_text *out, const exf_provenance *a, const exf_provenance *b, exf_err *err)
{
    enum { NAMED = 200 }; /* letters */
    lists of_a = lists_of(a), of_b = lists_of(b);
    comparison c;
    exf_text names = {0};
    exf_code rc = EXF_OK;
    if (!of_a.parts || !of_b.parts) {
        exf_text_appendf(out, "not known: the %s names no parts of its weights", of_a.parts ? "second file" : "first file");
        goto out;
    }
    EXF_TRY(compare_parts(&c, of_a, of_b, "model", &names, err));
    EXF_TRY(exf_text_end(&names, err));
    if (!c.differ)
        exf_text_appendf(out, "none of %zu parts", c.both);
    else
        exf_text_appendf(out, "%zu of %zu parts: %.*s%s", c.differ, c.both, NAMED, names.s, names.len > NAMED ? "..." : "");
    rc = exf_text_end(out, err);
out:
    exf_text_free(&names);
    return rc;
}

/* ---- joining ---------------------------------------------------------------------------- */

/* A part as one of the files has it. */
typedef struct {
    exf_digest_entry is;
    char by_place[EXF_SHA256_HEX]; /* "": the file has none */
} entry;

typedef struct {
    entry *entry;
    size_t n, capacity;
} entries;

/* Orders parts as weight identities do: those outside layers by name, then layer by layer; of one part, those with a digest by
 * place come first. */
static int by_part(const void *a, const void *b)
{
    const entry *d = a, *e = b;
    const char *x = d->is.name, *y = e->is.name;
    long i = *x >= '0' && *x <= '9' ? strtol(x, NULL, 10) : -1, k = *y >= '0' && *y <= '9' ? strtol(y, NULL, 10) : -1;
    int order = i == k ? strcmp(x, y) : i < k ? -1 : 1;
    if (order == 0) order = strcmp(d->is.hex, e->is.hex);
    return order ? order : strcmp(e->by_place, d->by_place);
}

/* Lists the parts of all files in order. */
static exf_code collect_parts(entries *all, const exf_provenance *const *part, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) {
        lists of = lists_of(part[i]);
        for (entry e; of.parts && exf_digest_list_next(&of.parts, &e.is) == 1;) {
            if (!of.by_place || !exf_digest_list_find(of.by_place, e.is.name, e.by_place)) e.by_place[0] = 0;
            EXF_TRY(exf_mem_grow(&all->entry, &all->capacity, all->n + 1, sizeof *all->entry, "parts of weights", err));
            all->entry[all->n++] = e;
        }
    }
    if (all->n) qsort(all->entry, all->n, sizeof *all->entry, by_part);
out:
    return rc;
}

/* Appends a digest to a list. */
static void list_digest(exf_text *list, const char *name, const char *hex)
{
    exf_text_appendf(list, "%s%s:%s", list->len ? " " : "", name, hex);
}

exf_code exf_model_facts_join(exf_provenance *out, const exf_provenance *const *part, size_t n, exf_err *err)
{
    const char *digest = exf_provenance_get(part[0], digest_key);
    entries all = {0};
    const char *architecture = NULL, *routers = NULL; /* of the first part that names them */
    exf_text text = {0}, by_place = {0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n && !architecture; i++) architecture = exf_provenance_get(part[i], architecture_key);
    for (size_t i = 0; i < n && !routers; i++) routers = exf_provenance_get(part[i], EXF_ROUTERS_FACT);
    if (architecture) EXF_TRY(exf_architecture_facts_add(out, architecture, err));
    if (routers) EXF_TRY(exf_provenance_add(out, err, EXF_ROUTERS_FACT, "%s", routers));
    if (!exf_provenance_get(part[0], parts_key)) return digest ? exf_provenance_add(out, err, digest_key, "%s", digest) : EXF_OK;
    EXF_TRY(collect_parts(&all, part, n, err));
    for (size_t i = 0; i < all.n; i++) {
        const entry *e = &all.entry[i];
        if (i && strcmp(e[-1].is.name, e->is.name) == 0) continue;
        list_digest(&text, e->is.name, e->is.hex);
        if (e->by_place[0]) list_digest(&by_place, e->is.name, e->by_place);
    }
    EXF_TRY(exf_text_end(&text, err));
    EXF_TRY(exf_text_end(&by_place, err));
    EXF_TRY(exf_weights_facts_add(out, text.s ? text.s : "", by_place.len ? by_place.s : NULL, err));
out:
    exf_mem_free(all.entry);
    exf_text_free(&text);
    exf_text_free(&by_place);
    return rc;
}

int exf_weights_facts_differ(const exf_provenance *a, const exf_provenance *b)
{
    lists of_a = lists_of(a), of_b = lists_of(b);
    comparison c;
    exf_err ignored;
    return of_a.parts && of_b.parts && compare_parts(&c, of_a, of_b, "", NULL, &ignored) == EXF_OK && c.differ;
}

/* Returns 1 if all entries are of one digest, by name or by place. */
static int are_same(const entry *e, size_t n)
{
    size_t i = 1;
    while (i < n && (strcmp(e[i].is.hex, e->is.hex) == 0 || (e->by_place[0] && strcmp(e[i].by_place, e->by_place) == 0))) i++;
    return i == n;
}

exf_code exf_weights_facts_mixed(exf_provenance *out, const exf_provenance *const *part, size_t n, exf_err *err)
{
    entries all = {0};
    exf_text names = {0};
    size_t parts = 0, differ = 0;
    exf_code rc = EXF_OK;
    EXF_TRY(collect_parts(&all, part, n, err));
    for (size_t i = 0, end; i < all.n; i = end, parts++) {
        for (end = i + 1; end < all.n && strcmp(all.entry[end].is.name, all.entry[i].is.name) == 0;) end++;
        if (are_same(&all.entry[i], end - i)) continue;
        exf_text_appendf(&names, "%s%s", differ++ ? ", " : "", all.entry[i].is.name);
    }
    EXF_TRY(exf_text_end(&names, err));
    if (differ) rc = exf_provenance_add(out, err, EXF_MIXED_WEIGHTS_FACT, "%zu of %zu parts: %s", differ, parts, names.s);
out:
    exf_mem_free(all.entry);
    exf_text_free(&names);
    return rc;
}

/* ---- the facts of several captures as those of one ----------------------------------------------- */

static int is_data(const char *key)
{
    return exf_starts_with(key, "data.");
}

static exf_code check_same(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b, exf_err *err)
{
    for (size_t i = 0; i < a->n; i++) {
        const char *other = exf_provenance_get(b, a->key[i]);
        if (is_data(a->key[i]) || exf_model_facts_key(a->key[i]) || (other && strcmp(other, a->value[i]) == 0)) continue;
        return exf_fail(err, EXF_MODEL, "%s: %s is %s, in %s it is %s", path_a, a->key[i], a->value[i], path_b,
                        other ? other : "missing");
    }
    return EXF_OK;
}

static const char *tokens_of(const exf_provenance *p)
{
    const char *sha = exf_provenance_get(p, "data.tokens_digest");
    if (!sha) sha = exf_provenance_get(p, "data.moe_inputs_sha256");
    return sha ? sha : "";
}

static uint64_t number_of(const exf_provenance *p, const char *key)
{
    const char *text = exf_provenance_get(p, key);
    int64_t v = 0;
    return text && exf_parse_i64(text, &v) && v > 0 ? (uint64_t)v : 0;
}

static exf_code add_part(exf_provenance *out, const exf_provenance *p, size_t rank, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < p->n; i++) {
        char key[128];
        if (exf_model_facts_key(p->key[i])) continue;
        if (is_data(p->key[i]))
            snprintf(key, sizeof key, "data.%zu.%s", rank, p->key[i] + strlen("data."));
        else
            snprintf(key, sizeof key, "%s", p->key[i]);
        rc = exf_provenance_add(out, err, key, "%s", p->value[i]);
    }
    return rc;
}

exf_code exf_provenance_join(exf_provenance *out, const exf_provenance *const *part, const char *const *path, size_t n,
                             exf_err *err)
{
    exf_code rc = EXF_OK;
    uint64_t sequences = 0, tokens = 0;
    if (n == 1) return exf_provenance_copy(out, part[0], err);
    for (size_t i = 0; i < n; i++) {
        EXF_TRY(check_same(part[0], path[0], part[i], path[i], err));
        EXF_TRY(check_same(part[i], path[i], part[0], path[0], err));
        for (size_t k = 0; k < i; k++) {
            EXF_TRY(exf_model_facts_same(part[k], path[k], part[i], path[i], err));
            if (strcmp(tokens_of(part[i]), tokens_of(part[k])) == 0)
                return exf_fail(err, EXF_MODEL, "%s: holds the same tokens (%.12s) as %s; they would count twice", path[i],
                                tokens_of(part[i]), path[k]);
        }
        size_t rank = 0; /* parts that come before it in order of tokens */
        for (size_t k = 0; k < n; k++) rank += strcmp(tokens_of(part[k]), tokens_of(part[i])) < 0;
        EXF_TRY(add_part(out, part[i], rank, err));
        sequences += number_of(part[i], "data.sequences");
        tokens += number_of(part[i], "data.tokens");
    }
    EXF_TRY(exf_model_facts_join(out, part, n, err));
    EXF_TRY(exf_provenance_add(out, err, "data.parts", "%zu", n));
    EXF_TRY(exf_provenance_add(out, err, "data.sequences", "%llu", (unsigned long long)sequences));
    EXF_TRY(exf_provenance_add(out, err, "data.tokens", "%llu", (unsigned long long)tokens));
out:
    return rc;
}

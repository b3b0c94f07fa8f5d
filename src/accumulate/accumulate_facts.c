/* accumulate_facts.c - joins the facts of parts over different data into those of one run over all of it (exf_facts_join). */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- facts that add up ---------------------------------------------------------- */

static int adds_up(const char *key)
{
    static const char *const keys[] = {"data.sequences", "data.tokens", "data.domains", "data.sequences_digest",
                                       EXF_DOCUMENTS_FACT};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return 1;
    return 0;
}

/* The facts that may differ between parts, with their names in /origin: those that name a part's data by its file; then those that
 * say how sequences were cut and chosen, and which program made the part.  The latter are listed per part only if parts differ. */
static const struct { const char *key, *name; } of_part[] = {
    {"data.tokens_digest", "tokens_digest"}, {"data.moe_inputs_sha256", "moe_inputs_sha256"},
    {"data.manifest_sha256", "manifest_sha256"}, {"data.shard", "shard"},
    {"data.seed", "seed"}, {"data.max_tokens", "max_tokens"}, {"data.min_tokens", "min_tokens"},
    {"capture.version", "capture.version"}, {"capture.commit", "capture.commit"},
    {"accumulate.version", "accumulate.version"}, {"accumulate.commit", "accumulate.commit"},
    {EXF_CROSS_CHECK_FACT, EXF_CROSS_CHECK_FACT}};
enum { N_NAMES = 4, N_OF_PART = sizeof of_part / sizeof *of_part };

static int is_of_part(const char *key)
{
    for (size_t i = 0; i < N_OF_PART; i++)
        if (strcmp(key, of_part[i].key) == 0) return 1;
    return 0;
}

static const char config_key[] = "model.config_sha256", architecture_key[] = "model.architecture";

/* Returns 1 for facts that parts need not agree on.  A config.json that was saved anew has other bytes and says the same: where
 * both name their architecture, that is what is compared (exf_model_facts_same).  The version and commit of the program that made
 * both do not matter where both say by a fact that is compared which numbers it makes. */
static int may_differ(const char *key, const exf_provenance *a, const exf_provenance *b)
{
    const char *numbers = exf_starts_with(key, "accumulate.") ? EXF_ACCUMULATE_NUMBERS_FACT : EXF_CAPTURE_NUMBERS_FACT;
    if (strcmp(key, config_key) == 0) return exf_provenance_get(a, architecture_key) && exf_provenance_get(b, architecture_key);
    if (exf_starts_with(key, "data.")) return is_of_part(key);
    return is_of_part(key) && exf_provenance_get(a, numbers) && exf_provenance_get(b, numbers);
}

/* Returns the text of a fact on which all parts agree, or NULL. */
static const char *agreed(const exf_facts_part *part, size_t n, const char *key)
{
    const char *first = exf_provenance_get(part[0].provenance, key);
    for (size_t i = 1; first && i < n; i++) {
        const char *other = exf_provenance_get(part[i].provenance, key);
        if (!other || strcmp(first, other) != 0) return NULL;
    }
    return first;
}

typedef struct {
    char *name;
    uint64_t sequences, tokens;
} domain;

typedef struct {
    domain *all;
    size_t n, cap;
} domains;

static exf_code add_domain(domains *d, const char *name, size_t len, uint64_t sequences, uint64_t tokens, exf_err *err)
{
    size_t at = 0;
    while (at < d->n && (strlen(d->all[at].name) != len || memcmp(d->all[at].name, name, len) != 0)) at++;
    if (at == d->n) {
        exf_code rc = exf_mem_grow(&d->all, &d->cap, d->n + 1, sizeof *d->all, "domains", err);
        if (rc == EXF_OK) rc = exf_mem_dup(&d->all[at].name, name, len, "name of a domain", err);
        if (rc != EXF_OK) return rc;
        d->all[at].sequences = d->all[at].tokens = 0;
        d->n++;
    }
    d->all[at].sequences += sequences;
    d->all[at].tokens += tokens;
    return EXF_OK;
}

/* Reads "NAME: 3 sequences, 60 tokens; NAME: ...". Names may contain anything, so the numbers are
 * searched from the end of each piece. */
static exf_code read_domains(domains *d, const char *text, const char *path, exf_err *err)
{
    exf_code rc = EXF_OK;
    while (rc == EXF_OK && *text) {
        const char *end = text, *colon = NULL;
        uint64_t sequences = 0, tokens = 0;
        for (;; end++) {
            int used = 0;
            if (*end == ':' && sscanf(end, ": %" SCNu64 " sequences, %" SCNu64 " tokens%n", &sequences, &tokens, &used) == 2 &&
                used && (end[used] == 0 || strncmp(end + used, "; ", 2) == 0)) {
                colon = end;
                end += used;
                break;
            }
            if (!*end) break;
        }
        if (!colon) return exf_fail(err, EXF_FORMAT, "%s: data.domains is no list of domains: %.60s", path, text);
        rc = add_domain(d, text, (size_t)(colon - text), sequences, tokens, err);
        text = *end ? end + 2 : end;
    }
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const domain *)a)->name, ((const domain *)b)->name);
}

static exf_code join_domains(exf_provenance *out, const exf_facts_part *part, size_t n, exf_err *err)
{
    domains d = {NULL, 0, 0};
    exf_text text = {0};
    exf_code rc = EXF_OK;
    size_t known = 0;
    for (size_t i = 0; i < n; i++) {
        const char *list = exf_provenance_get(part[i].provenance, "data.domains");
        known += list != NULL;
        if (list) EXF_TRY(read_domains(&d, list, part[i].path, err));
    }
    if (!known) goto out;
    if (d.n) qsort(d.all, d.n, sizeof *d.all, by_name);
    for (size_t i = 0; i < d.n; i++)
        exf_text_appendf(&text, "%s%s: %" PRIu64 " sequences, %" PRIu64 " tokens", i ? "; " : "", d.all[i].name,
                         d.all[i].sequences, d.all[i].tokens);
    EXF_TRY(exf_text_end(&text, err));
    EXF_TRY(exf_provenance_add(out, err, "data.domains", "%s", text.s ? text.s : ""));
out:
    exf_text_free(&text);
    for (size_t i = 0; i < d.n; i++) exf_mem_free(d.all[i].name);
    exf_mem_free(d.all);
    return rc;
}

/* ---- origin ------------------------------------------------------------------------ */

/* A part that was not made by joining others. */
typedef struct {
    const char *value[N_OF_PART];
    const char *digest; /* digest of its statistics; NULL: it was no statistics file of its own */
} root;

typedef struct {
    root *all;
    size_t n, cap;
} roots;

static exf_code add_roots(roots *r, const exf_facts_part *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t before = r->n;
    for (size_t i = 0; rc == EXF_OK; i++) {
        root one = {.digest = NULL};
        int any = 0;
        for (size_t k = 0; k < N_OF_PART; k++) {
            const char *own = of_part[k].key;
            char key[64];
            snprintf(key, sizeof key, "part.%zu.%s", i, of_part[k].name);
            one.value[k] = p->origin ? exf_provenance_get(p->origin, key) : NULL;
            any |= k < N_NAMES && (one.value[k] || (!p->origin && exf_provenance_get(p->provenance, own)));
            if (!one.value[k]) one.value[k] = exf_provenance_get(p->provenance, own);
        }
        if (!any) break;
        char key[64];
        snprintf(key, sizeof key, "part.%zu.statistics_digest", i);
        one.digest = p->origin ? exf_provenance_get(p->origin, key) : NULL;
        rc = exf_mem_grow(&r->all, &r->cap, r->n + 1, sizeof *r->all, "parts", err);
        if (rc == EXF_OK) r->all[r->n++] = one;
        if (!p->origin) break;
    }
    if (rc == EXF_OK && r->n == before + 1 && !r->all[before].digest) r->all[before].digest = p->digest; /* a file of its own */
    return rc;
}

static int by_tokens(const void *a, const void *b)
{
    const root *x = a, *y = b;
    int c = 0;
    for (size_t k = 0; c == 0 && k < N_OF_PART; k++) c = strcmp(x->value[k] ? x->value[k] : "", y->value[k] ? y->value[k] : "");
    return c;
}

static exf_code join_origins(exf_provenance *origin, const exf_facts_part *part, size_t n, exf_err *err)
{
    const exf_provenance *first = part[0].origin;
    roots r = {NULL, 0, 0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) EXF_TRY(add_roots(&r, &part[i], err));
    if (r.n) qsort(r.all, r.n, sizeof *r.all, by_tokens);
    for (size_t i = 0; i < r.n; i++) {
        char key[64];
        snprintf(key, sizeof key, "part.%zu.statistics_digest", i);
        if (r.all[i].digest) EXF_TRY(exf_provenance_add(origin, err, key, "%s", r.all[i].digest));
        for (size_t k = 0; k < N_OF_PART; k++) {
            snprintf(key, sizeof key, "part.%zu.%s", i, of_part[k].name);
            if (r.all[i].value[k] && (k < N_NAMES || !agreed(part, n, of_part[k].key)))
                EXF_TRY(exf_provenance_add(origin, err, key, "%s", r.all[i].value[k]));
        }
    }
    /* Settings on which all parts agree: those of tables that are solved of their sum without a recipe. */
    for (size_t i = 0; first && i < first->n; i++) {
        size_t same = 1;
        if (!exf_starts_with(first->key[i], EXF_SETTING)) continue;
        for (; same < n; same++) {
            const char *other = part[same].origin ? exf_provenance_get(part[same].origin, first->key[i]) : NULL;
            if (!other || strcmp(other, first->value[i]) != 0) break;
        }
        if (same == n) EXF_TRY(exf_provenance_add(origin, err, first->key[i], "%s", first->value[i]));
    }
out:
    exf_mem_free(r.all);
    return rc;
}

/* ---- joining ---------------------------------------------------------------------- */

static exf_code check_same(const exf_facts_part *a, const exf_facts_part *b, exf_err *err)
{
    for (size_t i = 0; i < a->provenance->n; i++) {
        const char *key = a->provenance->key[i], *value = a->provenance->value[i], *other = exf_provenance_get(b->provenance, key);
        if (adds_up(key) || exf_model_facts_key(key) || may_differ(key, a->provenance, b->provenance)) continue;
        if (other && strcmp(other, value) == 0) continue;
        return exf_fail(err, EXF_MODEL, "%s: %s is %s, in %s it is %s%s", a->path, key, value, b->path, other ? other : "missing",
                        is_of_part(key) ? "; files of two programs add up only where both name the version of their numbers: make "
                                          "the older one again"
                                        : "");
    }
    return EXF_OK;
}

/* Compares a part's max_tokens with the one that was seen before, if any. */
static exf_code check_max_tokens(const char **first, const char **first_path, const char *max_tokens, const char *path,
                                 exf_err *err)
{
    if (!max_tokens || (*first && strcmp(max_tokens, *first) == 0)) return EXF_OK;
    if (*first)
        return exf_fail(err, EXF_MODEL,
                        "%s: data.max_tokens is %s, in %s it is %s: documents that both have would count twice, and cut at two "
                        "lengths they have no sequence in common that shows it; make all parts with one length",
                        path, max_tokens, *first_path, *first);
    *first = max_tokens;
    *first_path = path;
    return EXF_OK;
}

/* Refuses documents that were cut at two lengths, in these parts or in those of which they were joined. */
static exf_code check_cuts(const exf_facts_part *part, size_t n, exf_err *err)
{
    const char *first = NULL, *first_path = NULL;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) {
        const exf_provenance *origin = part[i].origin;
        const char *own = exf_provenance_get(part[i].provenance, "data.max_tokens");
        EXF_TRY(check_max_tokens(&first, &first_path, own, part[i].path, err));
        for (size_t k = 0; origin && k < origin->n; k++)
            if (exf_starts_with(origin->key[k], "part.") && exf_ends_with(origin->key[k], ".max_tokens"))
                EXF_TRY(check_max_tokens(&first, &first_path, origin->value[k], part[i].path, err));
    }
out:
    return rc;
}

/* Compares the models of two parts: architectures, and weights unless others are taken. */
static exf_code check_models(const exf_facts_part *a, const exf_facts_part *b, int other_weights, exf_err *err)
{
    if (other_weights) return exf_architecture_facts_same(a->provenance, a->path, b->provenance, b->path, "", err);
    exf_code rc = exf_model_facts_same(a->provenance, a->path, b->provenance, b->path, err);
    exf_err why = *err;
    if (rc == EXF_OK || !exf_weights_facts_differ(a->provenance, b->provenance)) return rc;
    return exf_fail(err, EXF_MODEL, "%s; weights that were quantized or stored in other types since are taken by exfold-merge "
                    "--accept other-weights", why.msg);
}

static exf_code check_parts(const exf_facts_part *part, size_t n, int other_weights, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) {
        EXF_TRY(check_same(&part[0], &part[i], err));
        EXF_TRY(check_same(&part[i], &part[0], err));
        for (size_t k = 0; k < i; k++) {
            int64_t at;
            int same_corpus;
            EXF_TRY(check_models(&part[k], &part[i], other_weights, err));
            EXF_TRY(exf_sequence_list_shared(part[i].sequences, part[k].sequences, &at, err));
            if (at < 0) continue;
            EXF_TRY(exf_shards_of_one_corpus(&part[k], &part[i], &same_corpus, err));
            if (same_corpus) continue;
            return exf_fail(err, EXF_MODEL,
                            "%s: holds the same sequence of %d tokens (%02x%02x%02x%02x) as %s; it would count twice", part[i].path,
                            (int)part[i].sequences->length[at], part[i].sequences->sha256[at][0], part[i].sequences->sha256[at][1],
                            part[i].sequences->sha256[at][2], part[i].sequences->sha256[at][3], part[k].path);
        }
    }
out:
    return rc;
}

exf_code exf_facts_join_sequences(exf_sequence_list *out, const exf_facts_part *part, size_t n, exf_err *err)
{
    const exf_sequence_list **lists = NULL;
    exf_code rc = exf_mem_new(&lists, n, sizeof *lists, "sequences", err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < n; i++) lists[i] = part[i].sequences;
    rc = exf_sequence_list_join(out, lists, n, err);
    exf_mem_free(lists);
    return rc;
}

exf_code exf_facts_same_sizes(const char *path, const exf_run_shape *s, const char *first_path, const exf_run_shape *first,
                              exf_err *err)
{
    if (s->n_experts == first->n_experts && s->top_k == first->top_k && s->d_model == first->d_model) return EXF_OK;
    return exf_fail(err, EXF_MODEL, "%s: %lld experts, %lld per token, width %lld; %s has %lld, %lld, %lld", path,
                    (long long)s->n_experts, (long long)s->top_k, (long long)s->d_model, first_path, (long long)first->n_experts,
                    (long long)first->top_k, (long long)first->d_model);
}

exf_code exf_facts_join(exf_provenance *out, exf_provenance *origin, const exf_facts_part *part, size_t n,
                        const exf_sequence_list *sequences, int other_weights, exf_err *err)
{
    const exf_provenance *first = part[0].provenance, **all = NULL;
    const char **paths = NULL;
    char digest[EXF_SHA256_HEX];
    uint64_t tokens = 0;
    size_t documents;
    exf_code rc;
    EXF_TRY(check_cuts(part, n, err));
    EXF_TRY(exf_mem_new(&all, n, sizeof *all, "provenance", err));
    EXF_TRY(exf_mem_new(&paths, n, sizeof *paths, "provenance", err));
    for (size_t i = 0; i < n; i++) {
        all[i] = part[i].provenance;
        paths[i] = part[i].path;
    }
    if (!sequences->length) { /* as captures of version 1 were joined */
        rc = exf_provenance_join(out, all, paths, n, err);
        goto out;
    }
    EXF_TRY(check_parts(part, n, other_weights, err));
    for (size_t i = 0; i < first->n; i++)
        if (!adds_up(first->key[i]) && !is_of_part(first->key[i]) && !exf_model_facts_key(first->key[i]) &&
            (strcmp(first->key[i], config_key) != 0 || agreed(part, n, config_key)))
            EXF_TRY(exf_provenance_add(out, err, first->key[i], "%s", first->value[i]));
    for (size_t k = N_NAMES; k < N_OF_PART; k++) {
        const char *key = of_part[k].key, *value = agreed(part, n, key);
        if (value) EXF_TRY(exf_provenance_add(out, err, key, "%s", value));
    }
    EXF_TRY(exf_model_facts_join(out, all, n, err));
    if (other_weights) EXF_TRY(exf_weights_facts_mixed(out, all, n, err));
    EXF_TRY(join_domains(out, part, n, err));
    for (size_t i = 0; i < sequences->n; i++) tokens += (uint64_t)sequences->length[i];
    EXF_TRY(exf_sequence_list_digest(sequences, digest, err));
    EXF_TRY(exf_provenance_add(out, err, "data.sequences", "%zu", sequences->n));
    EXF_TRY(exf_provenance_add(out, err, "data.tokens", "%" PRIu64, tokens));
    EXF_TRY(exf_provenance_add(out, err, "data.sequences_digest", "%s", digest));
    EXF_TRY(exf_sequence_list_documents(sequences, &documents, err));
    if (documents) EXF_TRY(exf_provenance_add(out, err, EXF_DOCUMENTS_FACT, "%zu", documents));
    EXF_TRY(join_origins(origin, part, n, err));
out:
    exf_mem_free(all);
    exf_mem_free(paths);
    return rc;
}

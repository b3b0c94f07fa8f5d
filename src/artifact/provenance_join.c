/* provenance_join.c - the facts of several captures as those of one; see provenance.h. */
#include "artifact/provenance.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

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

/* Returns how many parts come before part i in order of tokens. */
static size_t rank_of(const exf_provenance *const *part, size_t n, size_t i)
{
    size_t rank = 0;
    for (size_t k = 0; k < n; k++) rank += strcmp(tokens_of(part[k]), tokens_of(part[i])) < 0;
    return rank;
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
        EXF_TRY(add_part(out, part[i], rank_of(part, n, i), err));
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

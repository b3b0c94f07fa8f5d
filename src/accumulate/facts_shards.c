/* facts_shards.c - which shards of a corpus captures and statistics hold, and whether all are there; see facts.h. */
#include "accumulate/facts.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    int index, of;             /* 1 to of */
    char corpus[EXF_SHA256_HEX];
    const char *path;          /* the file that holds it */
} shard;

typedef struct {
    shard *all;
    size_t n, cap;
    size_t others; /* parts that are no shards */
} shards;

static exf_code parse(shard *s, const char *text, const char *path, exf_err *err)
{
    int used = 0;
    s->path = path;
    if (sscanf(text, "%9d/%9d of %64[0-9a-f]%n", &s->index, &s->of, s->corpus, &used) == 3 && !text[used] && s->index >= 1 &&
        s->index <= s->of && strlen(s->corpus) == EXF_SHA256_HEX - 1)
        return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: its shard is \"%.90s\", expected I/N of a digest", path, text);
}

static exf_code add(shards *out, const char *text, const char *path, exf_err *err)
{
    exf_code rc;
    if (!text) {
        out->others++;
        return EXF_OK;
    }
    rc = exf_mem_grow(&out->all, &out->cap, out->n + 1, sizeof *out->all, "shards", err);
    if (rc == EXF_OK) rc = parse(&out->all[out->n], text, path, err);
    if (rc == EXF_OK) out->n++;
    return rc;
}

/* Adds the shards of a part: of statistics those of its origin, of a capture its own. */
static exf_code list(shards *out, const exf_facts_part *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!p->origin) return add(out, exf_provenance_get(p->provenance, "data.shard"), p->path, err);
    for (size_t i = 0; rc == EXF_OK; i++) {
        char tokens[64], key[64];
        snprintf(tokens, sizeof tokens, "part.%zu.tokens_digest", i);
        snprintf(key, sizeof key, "part.%zu.shard", i);
        if (!exf_provenance_get(p->origin, tokens)) break;
        rc = add(out, exf_provenance_get(p->origin, key), p->path, err);
    }
    return rc;
}

static exf_code check_two(const shard *a, const shard *b, exf_err *err)
{
    if (strcmp(a->corpus, b->corpus) != 0) return EXF_OK;
    if (a->of != b->of)
        return exf_fail(err, EXF_MODEL,
                        "%s: is shard %d/%d of its corpus, %s is %d/%d of the same: they overlap; merge shards of one cut",
                        b->path, b->index, b->of, a->path, a->index, a->of);
    if (a->index == b->index)
        return exf_fail(err, EXF_MODEL, "%s: holds shard %d/%d, and so does %s: it would count twice; name it once", b->path,
                        b->index, b->of, a->path);
    return EXF_OK;
}

/* Looks for the shards that complete shard `first`'s corpus. */
static exf_code check_missing(const shards *s, const shard *first, exf_err *err)
{
    exf_text missing = {0};
    exf_code rc = EXF_OK;
    int n = 0, one = 0;
    for (int k = 1; k <= first->of; k++) {
        int found = 0;
        for (size_t i = 0; i < s->n; i++) found |= s->all[i].index == k && strcmp(s->all[i].corpus, first->corpus) == 0;
        if (found || n++ > 16) continue;
        one = one ? one : k;
        EXF_TRY(exf_text_addf(&missing, err, "%s%d/%d", n > 1 ? ", " : "", k, first->of));
    }
    if (n)
        rc = exf_fail(err, EXF_MODEL,
                      "%s: is shard %d/%d, and %d of its corpus' shards %s missing: %s%s; make them, as with exfold-calibrate "
                      "RECIPE --shard %d/%d, or add up what is there with --partial",
                      first->path, first->index, first->of, n, n == 1 ? "is" : "are", missing.s, n > 17 ? ", ..." : "", one,
                      first->of);
out:
    exf_text_free(&missing);
    return rc;
}

exf_code exf_shards_check(const exf_facts_part *part, size_t n, int partial, exf_err *err)
{
    shards s = {.all = NULL};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) EXF_TRY(list(&s, &part[i], err));
    for (size_t i = 0; i < s.n; i++)
        for (size_t k = 0; k < i; k++) EXF_TRY(check_two(&s.all[k], &s.all[i], err));
    for (size_t i = 0; !partial && i < s.n; i++) EXF_TRY(check_missing(&s, &s.all[i], err));
out:
    exf_mem_free(s.all);
    return rc;
}

exf_code exf_shards_of_one_corpus(const exf_facts_part *a, const exf_facts_part *b, int *same, exf_err *err)
{
    shards s = {.all = NULL};
    exf_code rc;
    EXF_TRY(list(&s, a, err));
    EXF_TRY(list(&s, b, err));
    *same = s.n && !s.others;
    for (size_t i = 1; i < s.n; i++) *same &= strcmp(s.all[0].corpus, s.all[i].corpus) == 0;
out:
    exf_mem_free(s.all);
    return rc;
}

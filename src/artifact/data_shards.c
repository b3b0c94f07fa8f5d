/* data_shards.c - which shards of a corpus files hold, whether all are there, and how to say it; see data.h. */
#include "artifact/data.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int index, of;             /* 1 to of */
    char corpus[EXF_SHA256_HEX];
    const char *path;          /* the file that holds it */
    size_t at;                 /* its place in the list of files */
    int is_captured;           /* 1: of a capture, 0: of statistics */
} shard;

typedef struct {
    shard *all;
    size_t n, cap;
    size_t others; /* data that are no shards */
} shards;

/* ---- the list ------------------------------------------------------------------------ */

static exf_code add_shard(shards *out, const char *text, const exf_facts_part *file, size_t at, exf_err *err)
{
    exf_code rc;
    int used = 0;
    if (!text) {
        out->others++;
        return EXF_OK;
    }
    EXF_TRY(exf_mem_grow(&out->all, &out->cap, out->n + 1, sizeof *out->all, "shards", err));
    shard *s = &out->all[out->n];
    *s = (shard){.path = file->path, .at = at, .is_captured = !file->origin};
    if (sscanf(text, "%9d/%9d of %64[0-9a-f]%n", &s->index, &s->of, s->corpus, &used) != 3 || text[used] || s->index < 1 ||
        s->index > s->of || strlen(s->corpus) != EXF_SHA256_HEX - 1)
        return exf_fail(err, EXF_FORMAT, "%s: its shard is \"%.90s\", expected I/N of a digest", s->path, text);
    out->n++;
out:
    return rc;
}

/* Returns the fact of part i of an origin, or NULL. */
static const char *fact_of(const exf_provenance *origin, size_t i, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "part.%zu.%s", i, name);
    return exf_provenance_get(origin, key);
}

/* Adds the shards of a file: of statistics those of their origin, of a capture its own. */
static exf_code list_file(shards *out, const exf_facts_part *file, size_t at, exf_err *err)
{
    const exf_provenance *from = file->origin;
    exf_code rc = EXF_OK;
    if (!from) return add_shard(out, exf_provenance_get(file->provenance, "data.shard"), file, at, err);
    for (size_t i = 0; rc == EXF_OK && (fact_of(from, i, "tokens_digest") || fact_of(from, i, "moe_inputs_sha256")); i++)
        rc = add_shard(out, fact_of(from, i, "shard"), file, at, err);
    return rc;
}

static int by_corpus(const void *a, const void *b)
{
    const shard *x = a, *y = b;
    int c = strcmp(x->corpus, y->corpus);
    if (c == 0) c = (x->index > y->index) - (x->index < y->index);
    return c ? c : (x->at > y->at) - (x->at < y->at);
}

static exf_code list_all(shards *out, const exf_facts_part *file, size_t n, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < n; i++) rc = list_file(out, &file[i], i, err);
    if (out->n) qsort(out->all, out->n, sizeof *out->all, by_corpus);
    return rc;
}

/* Returns where the corpus of the shard at `from` ends in a sorted list. */
static size_t end_of_corpus(const shards *s, size_t from)
{
    size_t to = from;
    while (to < s->n && strcmp(s->all[to].corpus, s->all[from].corpus) == 0) to++;
    return to;
}

/* ---- whole or part ---------------------------------------------------------------------- */

/* Shards [from, to) of one corpus; first: of the first file. */
static exf_code check_cut(const shards *s, size_t from, size_t to, const shard *first, exf_err *err)
{
    for (size_t i = from; i < to; i++) {
        const shard *b = &s->all[i], *a = i > from ? b - 1 : NULL;
        if (b->of != first->of)
            return exf_fail(err, EXF_MODEL,
                            "%s: is shard %d/%d of its corpus, %s is %d/%d of the same: they overlap; take shards of one cut",
                            b->path, b->index, b->of, first->path, first->index, first->of);
        if (a && a->index == b->index)
            return exf_fail(err, EXF_MODEL, "%s: holds shard %d/%d, and so does %s: it would count twice; name it once", b->path,
                            b->index, b->of, a->path);
    }
    return EXF_OK;
}

/* Refuses shards [from, to) of one corpus if they are not all of it. */
static exf_code check_missing(const shards *s, size_t from, size_t to, const shard *first, exf_err *err)
{
    enum { NAMED = 17 };
    exf_text missing = {0};
    exf_code rc = EXF_OK;
    int n = first->of - (int)(to - from), named = 0, one = 0;
    size_t at = from;
    if (!n) return EXF_OK;
    for (int k = 1; k <= first->of && named < NAMED; k++) {
        if (at < to && s->all[at].index == k) {
            at++;
            continue;
        }
        one = one ? one : k;
        exf_text_appendf(&missing, "%s%d/%d", named++ ? ", " : "", k, first->of);
    }
    EXF_TRY(exf_text_end(&missing, err));
    rc = exf_fail(err, EXF_MODEL,
                  "%s: is shard %d/%d, and %d of its corpus' shards %s missing: %s%s; make them, as with %s RECIPE --shard %d/%d, "
                  "and %s, or take what is there with --partial",
                  first->path, first->index, first->of, n, n == 1 ? "is" : "are", missing.s, n > NAMED ? ", ..." : "",
                  first->is_captured ? "exfold-capture" : "exfold-calibrate", one, first->of,
                  first->is_captured ? "name all of them" : "add all up with exfold-merge");
out:
    exf_text_free(&missing);
    return rc;
}

exf_code exf_shards_check(const exf_facts_part *file, size_t n, int partial, exf_err *err)
{
    shards s = {.all = NULL};
    exf_code rc;
    EXF_TRY(list_all(&s, file, n, err));
    for (size_t from = 0, to; from < s.n; from = to) {
        const shard *first = &s.all[from];
        to = end_of_corpus(&s, from);
        for (size_t i = from; i < to; i++)
            if (s.all[i].at < first->at) first = &s.all[i];
        EXF_TRY(check_cut(&s, from, to, first, err));
        if (!partial) EXF_TRY(check_missing(&s, from, to, first, err));
    }
out:
    exf_mem_free(s.all);
    return rc;
}

/* ---- in words ------------------------------------------------------------------------------ */

/* Appends "1, 2, 4-9" for shards [from, to), which differ; a long list is cut. */
static void append_numbers(exf_text *out, const shards *s, size_t from, size_t to)
{
    enum { RUNS = 32 };
    size_t end;
    int n = 0;
    for (size_t i = from; i < to; i = end) {
        for (end = i + 1; end < to && s->all[end].index == s->all[end - 1].index + 1;) end++;
        if (end == i + 2) end--; /* two are named each */
        if (n == RUNS) {
            exf_text_appendf(out, ", ..., %zu in all,", to - from);
            return;
        }
        exf_text_appendf(out, "%s%d", n++ ? ", " : "", s->all[i].index);
        if (end > i + 1) exf_text_appendf(out, "-%d", s->all[end - 1].index);
    }
}

exf_code exf_part_words(exf_text *out, const exf_facts_part *file, exf_err *err)
{
    const char *said = exf_provenance_get(file->provenance, EXF_PART_FACT), *separator = "";
    shards s = {.all = NULL};
    exf_code rc = EXF_OK;
    if (said) exf_text_append(out, said, strlen(said));
    if (!said) EXF_TRY(list_all(&s, file, 1, err));
    for (size_t from = 0, to; from < s.n; from = to) {
        to = end_of_corpus(&s, from);
        if (to - from == (size_t)s.all[from].of) continue;
        exf_text_appendf(out, "%sshard%s ", separator, to - from == 1 ? "" : "s");
        append_numbers(out, &s, from, to);
        exf_text_appendf(out, " of %d of corpus %.16s", s.all[from].of, s.all[from].corpus);
        separator = "; ";
    }
    rc = exf_text_end(out, err);
out:
    exf_mem_free(s.all);
    return rc;
}

exf_code exf_shards_of_one_corpus(const exf_facts_part *a, const exf_facts_part *b, int *same, exf_err *err)
{
    shards s = {.all = NULL};
    exf_code rc;
    EXF_TRY(list_file(&s, a, 0, err));
    EXF_TRY(list_file(&s, b, 1, err));
    *same = s.n && !s.others;
    for (size_t i = 1; i < s.n; i++) *same &= strcmp(s.all[0].corpus, s.all[i].corpus) == 0;
out:
    exf_mem_free(s.all);
    return rc;
}

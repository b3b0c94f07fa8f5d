/* corpus_chunks.c - cuts documents into sequences, leaves out those that a corpus has already, and says which are of one document,
 * near copies being one; see corpus_internal.h. */
#include "capture/corpus_internal.h"

#include "artifact/data.h"
#include "base/err.h"
#include "base/mem.h"

#include <string.h>

exf_code exf_source_chunks_cut(exf_source_chunks *p, size_t first, const exf_sketch *sketch, exf_err *err)
{
    size_t begin = first;
    while (first < p->ids.n) {
        size_t n = p->ids.n - first < (size_t)p->max_tokens ? p->ids.n - first : (size_t)p->max_tokens;
        if (n < (size_t)p->min_tokens) {
            p->n_short++;
            p->tokens_dropped += n;
            p->ids.n = first;
            break;
        }
        exf_code rc = exf_mem_grow(&p->chunk, &p->cap, p->n + 1, sizeof *p->chunk, "sequences of a source", err);
        if (rc != EXF_OK) return rc;
        p->chunk[p->n++] = (exf_token_chunk){first, (int32_t)n, p->n_documents, p->n_rows++};
        first += n;
    }
    size_t n = p->ids.n - begin;
    exf_code rc = exf_mem_grow(&p->document, &p->cap_documents, (size_t)p->n_documents + 1, sizeof *p->document, "documents", err);
    if (rc != EXF_OK) return rc;
    exf_document *d = &p->document[p->n_documents];
    *d = (exf_document){.number = p->n_documents++};
    if (sketch) d->sketch = *sketch;
    else exf_sketch_of_ids(&d->sketch, p->ids.id + begin, n);
    return exf_sequence_sha256(d->sha256, p->ids.id + begin, (int32_t)n, err);
}

/* ---- sequences that are there twice --------------------------------------------------------------------------- */

/* They are known by the digests that artifacts have of them.  Merging refuses them too: their tokens would count double. */

/* Returns the digest's slot, or the free slot where it belongs. */
static size_t find_slot(const exf_digest_set *s, const unsigned char digest[32])
{
    size_t at;
    memcpy(&at, digest, sizeof at);
    for (at &= s->slots - 1; s->used[at] && memcmp(s->digest[at], digest, 32) != 0;) at = (at + 1) & (s->slots - 1);
    return at;
}

/* Makes room for n more digests, at most half of the slots being used. */
static exf_code make_room(exf_digest_set *s, size_t n, exf_err *err)
{
    exf_digest_set larger = {.slots = s->slots ? s->slots : 64, .n = s->n};
    exf_code rc;
    if (s->slots && 2 * (s->n + n) <= s->slots) return EXF_OK;
    while (larger.slots < 2 * (s->n + n)) larger.slots *= 2;
    EXF_TRY(exf_mem_new(&larger.digest, larger.slots, sizeof *larger.digest, "digests of sequences", err));
    EXF_TRY(exf_mem_new(&larger.used, larger.slots, 1, "digests of sequences", err));
    for (size_t i = 0; i < s->slots; i++) {
        if (!s->used[i]) continue;
        size_t at = find_slot(&larger, s->digest[i]);
        memcpy(larger.digest[at], s->digest[i], 32);
        larger.used[at] = 1;
    }
    exf_digest_set_free(s);
    *s = larger;
    return EXF_OK;
out:
    exf_digest_set_free(&larger);
    return rc;
}

/* *is_new says whether the set did not have the digest. */
static exf_code put(exf_digest_set *s, const unsigned char digest[32], int *is_new, exf_err *err)
{
    exf_code rc = make_room(s, 1, err);
    if (rc != EXF_OK) return rc;
    size_t at = find_slot(s, digest);
    *is_new = !s->used[at];
    s->used[at] = 1;
    s->n += (size_t)*is_new;
    memcpy(s->digest[at], digest, 32);
    return EXF_OK;
}

exf_code exf_digest_set_put(exf_digest_set *s, const int32_t *ids, int32_t n, exf_err *err)
{
    unsigned char digest[32];
    int is_new;
    exf_code rc = exf_sequence_sha256(digest, ids, n, err);
    return rc == EXF_OK ? put(s, digest, &is_new, err) : rc;
}

exf_code exf_source_chunks_drop_duplicates(exf_source_chunks *p, const exf_digest_set *kept, exf_err *err)
{
    exf_digest_set own = {0};
    size_t n = 0;
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < p->n; i++) {
        const exf_token_chunk *c = &p->chunk[i];
        unsigned char digest[32];
        int is_new = 0;
        if (i % 1024 == 0) EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_sequence_sha256(digest, p->ids.id + c->first, c->n, err));
        if (!kept->slots || !kept->used[find_slot(kept, digest)]) EXF_TRY(put(&own, digest, &is_new, err));
        if (is_new) {
            p->chunk[n++] = *c;
        } else {
            p->document[c->document].is_copied = 1;
            p->n_duplicates++;
            p->duplicate_tokens += (uint64_t)c->n;
        }
    }
    p->n = n;
out:
    exf_digest_set_free(&own);
    return rc;
}

void exf_digest_set_free(exf_digest_set *s)
{
    exf_mem_free(s->digest);
    exf_mem_free(s->used);
    *s = (exf_digest_set){0};
}

/* ---- documents that are near copies --------------------------------------------------------------------------- */

/* Sets least [n] to the index of the document of least digest of each group, at the group's lowest index, and counts documents that
 * run: those whose sequences are all copies of others' do not. */
static exf_code sum_up_groups(exf_corpus *c, size_t *least, const size_t *group, const exf_document *document, size_t n,
                              exf_err *err)
{
    uint64_t *size = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&size, n, sizeof *size, "near copies", err));
    for (size_t i = 0; i < n; i++) {
        size_t g = group[i];
        if (g == i || memcmp(document[i].sha256, document[least[g]].sha256, sizeof document->sha256) < 0) least[g] = i;
        size[g] += (uint64_t)document[i].is_run;
        c->n_documents += (uint64_t)document[i].is_run;
    }
    for (size_t g = 0; g < n; g++) {
        c->n_groups += size[g] > 0;
        c->near_copies += size[g] > 1 ? size[g] : 0;
        if (size[g] > 1 && size[g] > c->largest_group) c->largest_group = size[g];
    }
out:
    exf_mem_free(size);
    return rc;
}

exf_code exf_corpus_group(exf_corpus *c, const exf_document *document, size_t n, exf_err *err)
{
    size_t *group = NULL, *least = NULL, at = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&group, n, sizeof *group, "near copies", err));
    EXF_TRY(exf_mem_new(&least, n, sizeof *least, "near copies", err));
    EXF_TRY(exf_mem_new(&c->sketch, n, sizeof *c->sketch, "near copies", err));
    c->n_sketches = n;
    for (size_t i = 0; i < n; i++) c->sketch[i] = document[i].sketch;
    EXF_TRY(exf_near_copies_find(group, c->sketch, n, err));
    EXF_TRY(sum_up_groups(c, least, group, document, n, err));
    for (size_t i = 0; i < c->n_sequences; i++) {
        exf_sequence *s = &c->sequence[i];
        while (document[at].number < s->document) at++;
        s->sketch = at;
        s->group = document[group[at]].number;
        memcpy(s->group_sha256, document[least[group[at]]].sha256, sizeof s->group_sha256);
    }
out:
    exf_mem_free(group);
    exf_mem_free(least);
    return rc;
}

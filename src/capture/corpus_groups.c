/* corpus_groups.c - which sequences of a corpus are of one document, near copies being one; see corpus_internal.h. */
#include "capture/corpus_internal.h"

#include "base/mem.h"

#include <string.h>

/* Copies the sketches, which lie among what else is known of documents, into an array of their own. */
static exf_code take_sketches(exf_corpus *c, const exf_document *document, size_t n, exf_err *err)
{
    exf_code rc = exf_mem_new(&c->sketch, n, sizeof *c->sketch, "near copies", err);
    if (rc != EXF_OK) return rc;
    c->n_sketches = n;
    for (size_t i = 0; i < n; i++) c->sketch[i] = document[i].sketch;
    return EXF_OK;
}

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
    EXF_TRY(take_sketches(c, document, n, err));
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

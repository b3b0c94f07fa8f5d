/* tables_sequences.c - the sequences that tables are of, so that text on which they were calibrated is recognised with the tables
 * alone; see tables.h.  /sequence_digests holds them in rising order, which no manifest, shard or merge decides, and
 * /document_sketches what their documents are like. */
#include "artifact/tables.h"

#include "artifact/data.h"
#include "base/mem.h"

#include <stdlib.h>

static const char dataset[] = "/sequence_digests";

/* Returns the first 8 bytes of a SHA-256 as a number. */
static uint64_t digest_of(const unsigned char sha256[32])
{
    uint64_t digest = 0;
    for (int i = 0; i < 8; i++) digest = digest << 8 | sha256[i];
    return digest;
}

static int compare_digests(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

exf_code exf_tables_take_sequences(exf_tables *t, const exf_sequence_list *s, exf_err *err)
{
    exf_code rc;
    if (!s->length || s->n == 0) return EXF_OK;
    EXF_TRY(exf_mem_new(&t->sequence_digest, s->n, sizeof *t->sequence_digest, "sequences", err));
    for (size_t i = 0; i < s->n; i++) t->sequence_digest[i] = digest_of(s->sha256[i]);
    qsort(t->sequence_digest, s->n, sizeof *t->sequence_digest, compare_digests);
    rc = exf_sketch_set_join(&t->sketches, &s->sketches, err);
out:
    return rc;
}

int exf_tables_has_sequence(const exf_tables *t, const unsigned char sha256[32])
{
    uint64_t digest = digest_of(sha256);
    return t->sequence_digest && bsearch(&digest, t->sequence_digest, (size_t)t->shape.n_sequences, sizeof digest, compare_digests);
}

exf_code exf_tables_sequences_check(const exf_tables *t, const char *path, exf_err *err)
{
    const uint64_t *digest = t->sequence_digest;
    for (int64_t i = 1; digest && i < t->shape.n_sequences; i++)
        if (digest[i] < digest[i - 1])
            return exf_fail(err, EXF_FORMAT, "%s: %s[%lld] is %016llx after %016llx, expected rising numbers", path, dataset,
                            (long long)i, (unsigned long long)digest[i], (unsigned long long)digest[i - 1]);
    return EXF_OK;
}

exf_code exf_tables_sequences_write(const exf_tables *t, exf_h5 *h, exf_err *err)
{
    const exf_tensor digests = {
        .name = dataset, .dtype = EXF_DT_U64, .rank = 1, .shape = {t->shape.n_sequences}, .data = t->sequence_digest};
    exf_code rc = t->sequence_digest ? exf_h5_write(h, &digests, err) : EXF_OK;
    return rc == EXF_OK ? exf_sketch_set_write(&t->sketches, h, err) : rc;
}

exf_code exf_tables_sequences_read(exf_tables *t, exf_h5 *h, exf_err *err)
{
    const exf_tensor digests = {.name = dataset, .dtype = EXF_DT_U64, .rank = 1, .shape = {t->shape.n_sequences}};
    int found;
    exf_code rc;
    EXF_TRY(exf_sketch_set_read(&t->sketches, h, err));
    EXF_TRY(exf_h5_exists(h, dataset, &found, err));
    if (!found) goto out;
    EXF_TRY(exf_h5_expect(h, &digests, err)); /* before memory is taken for so many */
    EXF_TRY(exf_mem_new(&t->sequence_digest, (size_t)t->shape.n_sequences, sizeof *t->sequence_digest, "sequences", err));
    rc = exf_h5_read(h, &digests, t->sequence_digest, err);
out:
    return rc;
}

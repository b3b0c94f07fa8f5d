/* data_sequences.c - lists of the sequences of a file: joining, comparing, reading and writing them; see data.h. */
#include "artifact/data.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { SHA = 32 };
static const char documents[] = "/sequence_document";

exf_code exf_sequence_list_new(exf_sequence_list *s, size_t n, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    s->n = n;
    EXF_TRY(exf_mem_new(&s->length, n, sizeof *s->length, "sequences", err));
    EXF_TRY(exf_mem_new(&s->sha256, n, sizeof *s->sha256, "sequences", err));
out:
    if (rc != EXF_OK) exf_sequence_list_free(s);
    return rc;
}

void exf_sequence_list_free(exf_sequence_list *s)
{
    exf_mem_free(s->length);
    exf_mem_free(s->sha256);
    exf_mem_free(s->document);
    exf_sketch_set_free(&s->sketches);
    memset(s, 0, sizeof *s);
}

/* Returns the documents of sequences: their own digests, where each is one. */
static const unsigned char (*documents_of(const exf_sequence_list *s))[SHA]
{
    return (const unsigned char (*)[SHA])(s->document ? s->document : s->sha256);
}

exf_code exf_sequence_list_join(exf_sequence_list *out, const exf_sequence_list *const *part, size_t n, exf_err *err)
{
    size_t total = 0, at = 0;
    int has_document = 0;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < n; i++) {
        if (!part[i]->length) return EXF_OK;
        total += part[i]->n;
        has_document |= part[i]->document != NULL;
    }
    exf_code rc = exf_sequence_list_new(out, total, err);
    if (rc == EXF_OK && has_document) rc = exf_mem_new(&out->document, total, sizeof *out->document, "documents", err);
    for (size_t i = 0; rc == EXF_OK && i < n; at += part[i++]->n) {
        memcpy(out->length + at, part[i]->length, part[i]->n * sizeof *out->length);
        memcpy(out->sha256 + at, part[i]->sha256, part[i]->n * sizeof *out->sha256);
        if (has_document) memcpy(out->document + at, documents_of(part[i]), part[i]->n * sizeof *out->document);
        rc = exf_sketch_set_join(&out->sketches, &part[i]->sketches, err);
    }
    if (rc != EXF_OK) exf_sequence_list_free(out);
    return rc;
}

/* A sequence, which begins with its digest. */
typedef struct {
    unsigned char sha256[SHA], document[SHA];
    int32_t length;
} entry;

static int by_digest(const void *a, const void *b)
{
    return memcmp(a, b, SHA);
}

exf_code exf_sequence_list_sorted(exf_sequence_list *out, const exf_sequence_list *s, exf_err *err)
{
    entry *all = NULL;
    exf_code rc;
    memset(out, 0, sizeof *out);
    if (!s->length) return EXF_OK;
    EXF_TRY(exf_mem_new(&all, s->n, sizeof *all, "sequences", err));
    for (size_t i = 0; i < s->n; i++) {
        memcpy(all[i].sha256, s->sha256[i], SHA);
        memcpy(all[i].document, documents_of(s)[i], SHA);
        all[i].length = s->length[i];
    }
    qsort(all, s->n, sizeof *all, by_digest);
    EXF_TRY(exf_sequence_list_new(out, s->n, err));
    if (s->document) EXF_TRY(exf_mem_new(&out->document, s->n, sizeof *out->document, "documents", err));
    for (size_t i = 0; i < s->n; i++) {
        memcpy(out->sha256[i], all[i].sha256, SHA);
        if (out->document) memcpy(out->document[i], all[i].document, SHA);
        out->length[i] = all[i].length;
    }
    rc = exf_sketch_set_join(&out->sketches, &s->sketches, err);
out:
    exf_mem_free(all);
    if (rc != EXF_OK) exf_sequence_list_free(out);
    return rc;
}

exf_code exf_sequence_list_digest(const exf_sequence_list *sorted, char hex[EXF_SHA256_HEX], exf_err *err)
{
    static const unsigned char none[SHA];
    return exf_hash_bytes(sorted->n ? sorted->sha256[0] : none, sorted->n * SHA, hex, err);
}

exf_code exf_sequence_list_shared(const exf_sequence_list *a, const exf_sequence_list *b, int64_t *at, exf_err *err)
{
    exf_sequence_list x = {.n = 0}, y = {.n = 0};
    exf_code rc;
    *at = -1;
    EXF_TRY(exf_sequence_list_sorted(&x, a, err));
    EXF_TRY(exf_sequence_list_sorted(&y, b, err));
    for (size_t i = 0, k = 0; x.length && y.length && i < x.n && k < y.n && *at < 0;) {
        int order = memcmp(x.sha256[i], y.sha256[k], SHA);
        if (order == 0)
            for (size_t j = 0; j < a->n && *at < 0; j++) *at = memcmp(a->sha256[j], x.sha256[i], SHA) == 0 ? (int64_t)j : -1;
        i += order <= 0;
        k += order > 0;
    }
out:
    exf_sequence_list_free(&x);
    exf_sequence_list_free(&y);
    return rc;
}

/* Returns 1 if some document is more than one whole sequence. */
static int has_documents(const exf_sequence_list *s)
{
    return s->document && s->n && memcmp(s->document, s->sha256, s->n * sizeof *s->document) != 0;
}

exf_code exf_sequence_list_documents(const exf_sequence_list *s, size_t *out, exf_err *err)
{
    unsigned char (*all)[SHA] = NULL;
    exf_code rc;
    *out = 0;
    if (!has_documents(s)) return EXF_OK;
    EXF_TRY(exf_mem_new(&all, s->n, sizeof *all, "documents", err));
    memcpy(all, s->document, s->n * sizeof *all);
    qsort(all, s->n, sizeof *all, by_digest);
    for (size_t i = 0; i < s->n; i++) *out += i == 0 || memcmp(all[i], all[i - 1], SHA) != 0;
out:
    exf_mem_free(all);
    return rc;
}

exf_code exf_sequence_list_write(const exf_sequence_list *s, exf_h5 *h, exf_err *err)
{
    exf_code rc;
    exf_tensor lengths = {.name = "/sequence_lengths", .dtype = EXF_DT_I32, .rank = 1, .shape = {(int64_t)s->n}, .data = s->length};
    exf_tensor digests = {
        .name = "/sequence_sha256", .dtype = EXF_DT_U8, .rank = 2, .shape = {(int64_t)s->n, SHA}, .data = s->sha256};
    if (!s->length) return EXF_OK;
    EXF_TRY(exf_h5_write(h, &lengths, err));
    EXF_TRY(exf_h5_write(h, &digests, err));
    digests.name = documents;
    digests.data = s->document;
    if (has_documents(s)) EXF_TRY(exf_h5_write(h, &digests, err));
    rc = exf_sketch_set_write(&s->sketches, h, err);
out:
    return rc;
}

int exf_sequence_half(const exf_sequence_list *s, size_t i)
{
    return documents_of(s)[i][SHA - 1] & 1;
}

int exf_sequence_halves(const exf_sequence_list *s)
{
    int seen[2] = {0, 0};
    for (size_t i = 0; s->length && i < s->n; i++) seen[exf_sequence_half(s, i)] = 1;
    return seen[0] && seen[1];
}

static exf_code check_lengths(const exf_sequence_list *s, int64_t n_tokens, const exf_h5 *h, exf_err *err)
{
    int64_t sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->length[i] < 1)
            return exf_fail(err, EXF_FORMAT, "%s: /sequence_lengths[%zu] is %d, expected at least 1", exf_h5_path(h), i,
                            (int)s->length[i]);
        sum += s->length[i];
    }
    if (sum == n_tokens) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: /sequence_lengths add up to %lld tokens, n_tokens is %lld", exf_h5_path(h),
                    (long long)sum, (long long)n_tokens);
}

exf_code exf_sequence_list_read(exf_sequence_list *s, int64_t n_sequences, int64_t n_tokens, exf_h5 *h, exf_err *err)
{
    exf_code rc;
    int has_lengths, has_digests, has_documents_too;
    exf_tensor lengths = {.name = "/sequence_lengths", .dtype = EXF_DT_I32, .rank = 1, .shape = {n_sequences}};
    exf_tensor digests = {.name = "/sequence_sha256", .dtype = EXF_DT_U8, .rank = 2, .shape = {n_sequences, SHA}}, found;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_h5_exists(h, "/sequence_lengths", &has_lengths, err));
    EXF_TRY(exf_h5_exists(h, "/sequence_sha256", &has_digests, err));
    if (!has_lengths && !has_digests) return EXF_OK;
    EXF_TRY(exf_h5_describe(h, "/sequence_lengths", &found, err)); /* allocates only for datasets that exist */
    if (found.rank == 1 && found.shape[0] == n_sequences) EXF_TRY(exf_sequence_list_new(s, (size_t)n_sequences, err));
    EXF_TRY(exf_h5_read(h, &lengths, s->length, err));
    EXF_TRY(exf_h5_read(h, &digests, s->sha256, err));
    EXF_TRY(check_lengths(s, n_tokens, h, err));
    EXF_TRY(exf_sketch_set_read(&s->sketches, h, err));
    EXF_TRY(exf_h5_exists(h, documents, &has_documents_too, err));
    if (!has_documents_too) goto out;
    digests.name = documents;
    EXF_TRY(exf_mem_new(&s->document, s->n, sizeof *s->document, "documents", err));
    rc = exf_h5_read(h, &digests, s->document, err);
out:
    if (rc != EXF_OK) exf_sequence_list_free(s);
    return rc;
}

exf_code exf_sequence_sha256(unsigned char out[SHA], const int32_t *ids, int32_t n, exf_err *err)
{
    exf_hash *h = NULL;
    char hex[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_hash_new(&h, err));
    EXF_TRY(exf_hash_add_u64(h, (uint64_t)n, err));
    EXF_TRY(exf_hash_add(h, ids, (size_t)n * sizeof *ids, err));
    rc = exf_hash_end(h, hex, err);
    h = NULL;
    for (int i = 0; rc == EXF_OK && i < 2 * SHA; i++) {
        int digit = hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10;
        out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] * 16 + digit : digit);
    }
out:
    exf_hash_free(h);
    return rc;
}

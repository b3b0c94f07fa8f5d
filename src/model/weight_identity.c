/* weight_identity.c - digests of the weights that a run reads, made of the pieces as they are read; see weight_identity.h. */
#include "model/weight_identity.h"

#include "base/hash.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const exf_stored_tensor *of;
    uint64_t begin, n;
    char hex[EXF_XXH3_HEX];
} piece;

typedef struct {
    piece *piece; /* read since the part was settled last */
    size_t n, capacity;
    char hex[EXF_SHA256_HEX]; /* "" until it is settled or restored */
} part;

struct exf_weight_identity {
    pthread_mutex_t lock; /* guards the parts */
    part *part;
    int n_parts;
    char *expected, *expected_path; /* NULL: nothing is expected */
};

static void part_name(char out[EXF_DIGEST_NAME], int i)
{
    int layer = (i - EXF_PART_LAYERS) / 2;
    if (i < EXF_PART_LAYERS)
        snprintf(out, EXF_DIGEST_NAME, "%s", i == EXF_PART_EMBEDDING ? "embedding" : "head");
    else
        snprintf(out, EXF_DIGEST_NAME, "%d.%s", layer, (i - EXF_PART_LAYERS) % 2 ? "other" : "experts");
}

exf_code exf_weight_identity_new(exf_weight_identity **out, int n_layers, exf_err *err)
{
    exf_weight_identity *id = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_new(&id, 1, sizeof *id, "weight identity", err));
    pthread_mutex_init(&id->lock, NULL);
    id->n_parts = EXF_PART_LAYERS + 2 * n_layers;
    EXF_TRY(exf_mem_new(&id->part, (size_t)id->n_parts, sizeof *id->part, "weight identity", err));
out:
    if (rc == EXF_OK)
        *out = id;
    else
        exf_weight_identity_free(id);
    return rc;
}

void exf_weight_identity_free(exf_weight_identity *id)
{
    if (!id) return;
    for (int i = 0; id->part && i < id->n_parts; i++) exf_mem_free(id->part[i].piece);
    exf_mem_free(id->part);
    exf_mem_free(id->expected);
    exf_mem_free(id->expected_path);
    pthread_mutex_destroy(&id->lock);
    exf_mem_free(id);
}

/* ---- hashing -------------------------------------------------------------------------------- */

static exf_code add_piece(exf_weight_identity *id, int part_number, const piece *new, exf_err *err)
{
    part *p = &id->part[part_number];
    pthread_mutex_lock(&id->lock);
    exf_code rc = exf_mem_grow(&p->piece, &p->capacity, p->n + 1, sizeof *p->piece, "weight identity", err);
    if (rc == EXF_OK) p->piece[p->n++] = *new;
    pthread_mutex_unlock(&id->lock);
    return rc;
}

exf_code exf_weight_identity_add(exf_weight_identity *id, int part_number, const exf_stored_tensor *of, uint64_t begin,
                                 const void *bytes, size_t n, char hex[EXF_XXH3_HEX], exf_err *err)
{
    exf_xxh3_bytes(bytes, n, hex);
    return exf_weight_identity_add_hashed(id, part_number, of, begin, n, hex, err);
}

exf_code exf_weight_identity_add_hashed(exf_weight_identity *id, int part_number, const exf_stored_tensor *of, uint64_t begin,
                                        size_t n, const char hex[EXF_XXH3_HEX], exf_err *err)
{
    piece new = {of, begin, n, ""};
    memcpy(new.hex, hex, sizeof new.hex);
    return add_piece(id, part_number, &new, err);
}

static exf_code end_piece(exf_piece_hash *p, exf_err *err)
{
    piece new = {p->of, p->begin, p->filled, ""};
    exf_xxh3_end(p->hash, new.hex);
    p->hash = NULL;
    p->begin += p->filled;
    p->filled = 0;
    return add_piece(p->id, p->part, &new, err);
}

exf_code exf_piece_hash_add(exf_piece_hash *p, const void *bytes, size_t n, exf_err *err)
{
    const char *at = bytes;
    exf_code rc = EXF_OK;
    while (p->id && n > 0) {
        size_t some = p->piece - p->filled < n ? p->piece - p->filled : n;
        if (!p->hash) EXF_TRY(exf_xxh3_new(&p->hash, err));
        exf_xxh3_add(p->hash, at, some);
        p->filled += some;
        if (p->filled == p->piece) EXF_TRY(end_piece(p, err));
        at += some;
        n -= some;
    }
out:
    return rc;
}

exf_code exf_piece_hash_end(exf_piece_hash *p, exf_code rc, exf_err *err)
{
    if (rc == EXF_OK && p->hash) rc = end_piece(p, err);
    exf_xxh3_free(p->hash);
    p->hash = NULL;
    return rc;
}

/* ---- parts ---------------------------------------------------------------------------------- */

static const exf_tensor *view_of(const piece *p)
{
    return &p->of->tensor->view;
}

static int by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    int names = strcmp(view_of(x)->name, view_of(y)->name);
    return names ? names : (x->begin > y->begin) - (x->begin < y->begin);
}

static exf_code hash_piece(exf_hash *h, const piece *p, exf_err *err)
{
    const exf_tensor *t = view_of(p);
    exf_code rc;
    EXF_TRY(exf_hash_add_text(h, t->name, err));
    EXF_TRY(exf_hash_add_text(h, exf_dtype_name(t->dtype), err));
    EXF_TRY(exf_hash_add_u64(h, (uint64_t)t->rank, err));
    for (int k = 0; k < t->rank; k++) EXF_TRY(exf_hash_add_u64(h, (uint64_t)t->shape[k], err));
    EXF_TRY(exf_hash_add_u64(h, p->begin, err));
    EXF_TRY(exf_hash_add_u64(h, p->n, err));
    EXF_TRY(exf_hash_add_text(h, p->hex, err));
out:
    return rc;
}

static exf_code compare_pieces(const piece *a, const piece *b, exf_err *err)
{
    if (a->n == b->n && strcmp(a->hex, b->hex) == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL,
                    "%s: tensor \"%s\": bytes from %" PRIu64 " on were read twice and differ (XXH3 %.12s... and %.12s...): "
                    "the file changed during the run", exf_st_path(b->of->file), view_of(b)->name, b->begin, a->hex, b->hex);
}

/* Hashes the pieces of a part, each once however often it was read. */
static exf_code hash_part(part *p, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_hash *h = NULL;
    exf_code rc;
    qsort(p->piece, p->n, sizeof *p->piece, by_place);
    EXF_TRY(exf_hash_new(&h, err));
    for (size_t i = 0; i < p->n; i++) {
        if (i && by_place(&p->piece[i - 1], &p->piece[i]) == 0)
            EXF_TRY(compare_pieces(&p->piece[i - 1], &p->piece[i], err));
        else
            EXF_TRY(hash_piece(h, &p->piece[i], err));
    }
    rc = exf_hash_end(h, hex, err);
    h = NULL;
out:
    exf_hash_free(h);
    return rc;
}

static exf_code check_expected(const exf_weight_identity *id, const char *name, const char *hex, exf_err *err)
{
    char expected[EXF_SHA256_HEX];
    if (!id->expected || !exf_digest_list_find(id->expected, name, expected) || strcmp(hex, expected) == 0) return EXF_OK;
    return exf_fail(err, EXF_MODEL,
                    "%s: was made with other weights: the digest of part %s was %.12s..., this checkpoint's is %.12s...; weights "
                    "that were quantized or stored in other types since are taken by --accept other-weights",
                    id->expected_path, name, expected, hex);
}

static exf_code settle_part(exf_weight_identity *id, int number, exf_err *err)
{
    part *p = &id->part[number];
    char hex[EXF_SHA256_HEX], name[EXF_DIGEST_NAME];
    exf_code rc = EXF_OK;
    if (p->n == 0) return EXF_OK;
    part_name(name, number);
    const exf_stored_tensor *of = p->piece[0].of;
    EXF_TRY(hash_part(p, hex, err));
    p->n = 0;
    if (p->hex[0] && strcmp(p->hex, hex) != 0)
        return exf_fail(err, EXF_MODEL,
                        "%s: the weights of part %s had the digest %.12s... when they were read before, now %.12s...: "
                        "the checkpoint changed", exf_st_path(of->file), name, p->hex, hex);
    memcpy(p->hex, hex, sizeof p->hex);
    rc = check_expected(id, name, hex, err);
out:
    return rc;
}

exf_code exf_weight_identity_settle(exf_weight_identity *id, int number, exf_err *err)
{
    pthread_mutex_lock(&id->lock);
    exf_code rc = settle_part(id, number, err);
    pthread_mutex_unlock(&id->lock);
    return rc;
}

/* ---- lists ----------------------------------------------------------------------------------- */

exf_code exf_weight_identity_list(exf_weight_identity *id, exf_text *out, exf_err *err)
{
    const char *separator = "";
    pthread_mutex_lock(&id->lock);
    for (int i = 0; i < id->n_parts; i++) {
        char name[EXF_DIGEST_NAME];
        if (!id->part[i].hex[0]) continue;
        part_name(name, i);
        exf_text_appendf(out, "%s%s:%s", separator, name, id->part[i].hex);
        separator = " ";
    }
    pthread_mutex_unlock(&id->lock);
    return exf_text_end(out, err);
}

/* Returns the number of the part of that name, or -1. */
static int part_named(const exf_weight_identity *id, const char *name)
{
    for (int i = 0; i < id->n_parts; i++) {
        char have[EXF_DIGEST_NAME];
        part_name(have, i);
        if (strcmp(have, name) == 0) return i;
    }
    return -1;
}

exf_code exf_weight_identity_restore(exf_weight_identity *id, const char *list, const char *path, exf_err *err)
{
    exf_digest_entry e;
    int more;
    while ((more = exf_digest_list_next(&list, &e)) == 1) {
        int i = part_named(id, e.name);
        if (i < 0) break;
        memcpy(id->part[i].hex, e.hex, sizeof e.hex);
    }
    return more == 0 ? EXF_OK : exf_fail(err, EXF_FORMAT, "%s: is no list of the digests of this model's weights", path);
}

exf_code exf_weight_identity_expect(exf_weight_identity *id, const char *list, const char *path, exf_err *err)
{
    exf_code rc;
    exf_mem_free(id->expected);
    exf_mem_free(id->expected_path);
    id->expected = id->expected_path = NULL;
    EXF_TRY(exf_mem_strdup(&id->expected, list, "weight identity", err));
    EXF_TRY(exf_mem_strdup(&id->expected_path, path, "weight identity", err));
out:
    return rc;
}

/* ---- stored read ------------------------------------------------------------------------------- */

static exf_code check_finite(const exf_stored_tensor *s, size_t begin, const float *v, size_t n, exf_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element %zu is %s", exf_st_path(s->file),
                            s->tensor->view.name, begin + i, isnan(v[i]) ? "not a number" : "infinite");
    return EXF_OK;
}

exf_code exf_stored_read_hashed(const exf_stored_tensor *s, size_t begin, size_t n, float *dst, exf_piece_hash *hash, exf_err *err)
{
    enum { CHUNK = 1 << 20 }; /* elements decoded at a time: the raw bytes are never all in memory */
    exf_dtype dtype = s->tensor->view.dtype;
    size_t width = exf_dtype_bits(dtype) / 8;
    char *raw = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&raw, n < CHUNK ? n : CHUNK, width, "weight staging", err));
    for (size_t at = 0; at < n; at += CHUNK) {
        size_t m = n - at < CHUNK ? n - at : CHUNK;
        EXF_TRY(exf_st_read(s->file, s->tensor, (begin + at) * width, raw, m * width, err));
        if (hash) EXF_TRY(exf_piece_hash_add(hash, raw, m * width, err));
        exf_dtype_to_f32(dst + at, raw, m, dtype);
    }
    EXF_TRY(check_finite(s, begin, dst, n, err));
out:
    exf_mem_free(raw);
    return rc;
}

exf_code exf_stored_read_f32(const exf_stored_tensor *s, size_t begin, size_t n, float *dst, exf_err *err)
{
    return exf_stored_read_hashed(s, begin, n, dst, NULL, err);
}

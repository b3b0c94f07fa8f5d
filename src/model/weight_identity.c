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
    exf_weight_place place;
    const exf_stored_tensor *of;
    uint64_t begin, n;
    char hex[EXF_XXH3_HEX];
} piece;

/* The digests of a part; "" until it is settled or restored. */
typedef struct {
    char by_name[EXF_SHA256_HEX], by_place[EXF_SHA256_HEX];
} digests;

typedef struct {
    piece *piece; /* read since the part was settled last */
    size_t n, capacity;
    digests is;
} part;

struct exf_weight_identity {
    pthread_mutex_t lock; /* guards the parts */
    part *part;
    int n_parts;
    char *expected, *expected_by_place, *expected_path; /* NULL: nothing is expected */
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
    exf_mem_free(id->expected_by_place);
    exf_mem_free(id->expected_path);
    pthread_mutex_destroy(&id->lock);
    exf_mem_free(id);
}

/* ---- hashing -------------------------------------------------------------------------------- */

exf_code exf_weight_identity_add(exf_weight_identity *id, const exf_weight_place *place, const exf_stored_tensor *of,
                                 uint64_t begin, size_t n, const char hex[EXF_XXH3_HEX], exf_err *err)
{
    part *p = &id->part[place->part];
    pthread_mutex_lock(&id->lock);
    exf_code rc = exf_mem_grow(&p->piece, &p->capacity, p->n + 1, sizeof *p->piece, "weight identity", err);
    if (rc == EXF_OK) {
        p->piece[p->n] = (piece){*place, of, begin, n, ""};
        memcpy(p->piece[p->n++].hex, hex, EXF_XXH3_HEX);
    }
    pthread_mutex_unlock(&id->lock);
    return rc;
}

static exf_code end_piece(exf_piece_hash *p, exf_err *err)
{
    char hex[EXF_XXH3_HEX];
    size_t n = p->filled;
    exf_xxh3_end(p->hash, hex);
    p->hash = NULL;
    p->begin += n;
    p->filled = 0;
    return exf_weight_identity_add(p->id, &p->place, p->of, p->begin - n, n, hex, err);
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

static int by_name(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    int names = strcmp(view_of(x)->name, view_of(y)->name);
    return names ? names : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Returns the piece's first byte in the expert's matrix. */
static uint64_t offset_of(const piece *p)
{
    return p->begin - p->place.first_byte;
}

static int length_of_name(const piece *p)
{
    return p->place.matrix ? (int)strcspn(p->place.matrix, "|") : 0;
}

static int by_place(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    int n = length_of_name(x), k = length_of_name(y), names = n && k ? strncmp(x->place.matrix, y->place.matrix, (size_t)n) : n - k;
    if (names == 0 && n != k) names = n - k;
    if (names == 0) names = x->place.half - y->place.half;
    if (names == 0) names = x->place.copy - y->place.copy;
    if (names == 0) names = x->place.kind - y->place.kind;
    return names ? names : (offset_of(x) > offset_of(y)) - (offset_of(x) < offset_of(y));
}

static exf_code hash_named(exf_hash *h, const piece *p, exf_err *err)
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

static exf_code hash_placed(exf_hash *h, const piece *p, exf_err *err)
{
    const exf_weight_place *at = &p->place;
    char matrix[EXF_ST_MAX_NAME + 1];
    exf_code rc;
    snprintf(matrix, sizeof matrix, "%.*s", length_of_name(p), at->matrix ? at->matrix : "");
    EXF_TRY(exf_hash_add_text(h, matrix, err));
    EXF_TRY(exf_hash_add_u64(h, (uint64_t)at->half, err));
    EXF_TRY(exf_hash_add_u64(h, (uint64_t)at->copy, err));
    EXF_TRY(exf_hash_add_u64(h, (uint64_t)at->kind, err));
    EXF_TRY(exf_hash_add_text(h, exf_dtype_name(view_of(p)->dtype), err));
    EXF_TRY(exf_hash_add_u64(h, offset_of(p), err));
    EXF_TRY(exf_hash_add_u64(h, p->n, err));
    EXF_TRY(exf_hash_add_text(h, p->hex, err));
out:
    return rc;
}

/* Hashes the pieces of a part in that order, each once however often it was read. */
static exf_code hash_part(part *p, int (*order)(const void *, const void *), exf_code (*hash)(exf_hash *, const piece *, exf_err *),
                          char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_hash *h = NULL;
    exf_code rc;
    qsort(p->piece, p->n, sizeof *p->piece, order);
    EXF_TRY(exf_hash_new(&h, err));
    for (size_t i = 0; i < p->n; i++) {
        const piece *a = i ? &p->piece[i - 1] : NULL, *b = &p->piece[i];
        if (!a || order(a, b) != 0) {
            EXF_TRY(hash(h, b, err));
        } else if (a->n != b->n || strcmp(a->hex, b->hex) != 0) {
            rc = exf_fail(err, EXF_MODEL,
                          "%s: tensor \"%s\": bytes from %" PRIu64 " on were read twice and differ (XXH3 %.12s... and %.12s...): "
                          "the file changed during the run", exf_st_path(b->of->file), view_of(b)->name, b->begin, a->hex, b->hex);
            goto out;
        }
    }
    rc = exf_hash_end(h, hex, err);
    h = NULL;
out:
    exf_hash_free(h);
    return rc;
}

exf_code exf_weight_identity_settle(exf_weight_identity *id, int number, exf_err *err)
{
    part *p = &id->part[number];
    char name[EXF_DIGEST_NAME], expected[EXF_SHA256_HEX], by_place_too[EXF_SHA256_HEX];
    digests now;
    exf_code rc = EXF_OK;
    pthread_mutex_lock(&id->lock);
    if (p->n == 0) goto out;
    part_name(name, number);
    const exf_stored_tensor *of = p->piece[0].of;
    EXF_TRY(hash_part(p, by_name, hash_named, now.by_name, err));
    EXF_TRY(hash_part(p, by_place, hash_placed, now.by_place, err));
    p->n = 0;
    if (p->is.by_name[0] && strcmp(p->is.by_name, now.by_name) != 0) {
        rc = exf_fail(err, EXF_MODEL,
                      "%s: the weights of part %s had the digest %.12s... when they were read before, now %.12s...: "
                      "the checkpoint changed", exf_st_path(of->file), name, p->is.by_name, now.by_name);
        goto out;
    }
    p->is = now;
    int differs = id->expected && exf_digest_list_find(id->expected, name, expected) && strcmp(now.by_name, expected) != 0;
    if (differs && id->expected_by_place && exf_digest_list_find(id->expected_by_place, name, by_place_too))
        differs = strcmp(now.by_place, by_place_too) != 0;
    if (differs)
        rc = exf_fail(err, EXF_MODEL,
                      "%s: was made with other weights: the digest of part %s was %.12s..., this checkpoint's is %.12s...; weights "
                      "that were quantized or stored in other types since are taken by --accept other-weights",
                      id->expected_path, name, expected, now.by_name);
out:
    pthread_mutex_unlock(&id->lock);
    return rc;
}

/* ---- lists ----------------------------------------------------------------------------------- */

exf_code exf_weight_identity_list(exf_weight_identity *id, int places, exf_text *out, exf_err *err)
{
    const char *separator = "";
    pthread_mutex_lock(&id->lock);
    for (int i = 0; i < id->n_parts; i++) {
        char name[EXF_DIGEST_NAME];
        const char *hex = places ? id->part[i].is.by_place : id->part[i].is.by_name;
        if (!hex[0]) continue;
        part_name(name, i);
        exf_text_appendf(out, "%s%s:%s", separator, name, hex);
        separator = " ";
    }
    pthread_mutex_unlock(&id->lock);
    return exf_text_end(out, err);
}

exf_code exf_weight_identity_restore(exf_weight_identity *id, const char *list, const char *by_place, const char *path,
                                     exf_err *err)
{
    exf_digest_entry e;
    int more = 0;
    for (int places = 0; places < 2 && more == 0; places++)
        for (const char *at = places ? by_place : list; (more = exf_digest_list_next(&at, &e)) == 1;) {
            char name[EXF_DIGEST_NAME];
            int i = 0;
            for (; i < id->n_parts; i++) {
                part_name(name, i);
                if (strcmp(name, e.name) == 0) break;
            }
            if (i == id->n_parts) break;
            memcpy(places ? id->part[i].is.by_place : id->part[i].is.by_name, e.hex, sizeof e.hex);
        }
    return more == 0 ? EXF_OK : exf_fail(err, EXF_FORMAT, "%s: is no list of the digests of this model's weights", path);
}

exf_code exf_weight_identity_expect(exf_weight_identity *id, const char *list, const char *by_place, const char *path,
                                    exf_err *err)
{
    exf_code rc;
    exf_mem_free(id->expected);
    exf_mem_free(id->expected_by_place);
    exf_mem_free(id->expected_path);
    id->expected = id->expected_by_place = id->expected_path = NULL;
    EXF_TRY(exf_mem_strdup(&id->expected, list, "weight identity", err));
    if (by_place) EXF_TRY(exf_mem_strdup(&id->expected_by_place, by_place, "weight identity", err));
    EXF_TRY(exf_mem_strdup(&id->expected_path, path, "weight identity", err));
out:
    return rc;
}

/* ---- stored read ------------------------------------------------------------------------------- */

exf_code exf_stored_read(const exf_stored_tensor *s, size_t begin, size_t n, float *dst, exf_piece_hash *hash, exf_err *err)
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
    for (size_t i = 0; i < n; i++)
        if (!isfinite(dst[i])) {
            rc = exf_fail(err, EXF_NUMERIC, "%s: tensor \"%s\": element %zu is %s", exf_st_path(s->file), s->tensor->view.name,
                          begin + i, isnan(dst[i]) ? "not a number" : "infinite");
            break;
        }
out:
    exf_mem_free(raw);
    return rc;
}

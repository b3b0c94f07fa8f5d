/* h5_checksum.c - checksums of a dataset's elements, written with it and compared whenever elements are read; see h5.h.
 *
 * HDF5 1.8's format has checksums of object headers, none of elements and of the index of chunks: a flipped bit in
 * these gives other numbers, or zeros.  Its filter fletcher32 covers chunks but not their index, and needs a chunked
 * layout.  The attribute lies in the object header, and covers what a reader gets, however it is stored. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { BLOCK_BYTES = 1 << 16, BLOCKS_MAX = 4096, HEX_DIGITS = 8 };

/* ---- CRC-32 of blocks that are written in parts ------------------------------------------ */

/* Blocks of t: of at least 64 KiB, and not so many that the attribute would outgrow an object header (64 KiB). */
static exf_h5i_sums shape_of(const exf_tensor *t)
{
    exf_h5i_sums s = {.n_rows = t->rank ? t->shape[0] : 1, .row_bytes = exf_dtype_bits(t->dtype) / 8};
    for (int i = 1; i < t->rank; i++) s.row_bytes *= (size_t)t->shape[i];
    if (s.row_bytes == 0) s.n_rows = 0;
    int64_t small = s.row_bytes ? (int64_t)((BLOCK_BYTES + s.row_bytes - 1) / s.row_bytes) : 1;
    int64_t few = (s.n_rows + BLOCKS_MAX - 1) / BLOCKS_MAX;
    s.block_rows = small > few ? small : few;
    s.n = (size_t)((s.n_rows + s.block_rows - 1) / s.block_rows);
    return s;
}

static size_t block_bytes(const exf_h5i_sums *s, size_t block)
{
    int64_t first = (int64_t)block * s->block_rows, left = s->n_rows - first;
    return (size_t)(left < s->block_rows ? left : s->block_rows) * s->row_bytes;
}

/* crc32() takes at most 4 GiB at once. */
static uint32_t crc_on(uint32_t crc, const void *bytes, size_t n)
{
    enum { AT_ONCE = 1 << 30 };
    const unsigned char *p = bytes;
    for (size_t some; n; p += some, n -= some) {
        some = n < AT_ONCE ? n : AT_ONCE;
        crc = (uint32_t)crc32(crc, p, (uInt)some);
    }
    return crc;
}

/* The remainder of a CRC register behind n more bytes of zeros. */
static uint32_t shifted(uint32_t remainder, size_t n)
{
    return (uint32_t)crc32_combine(remainder, 0, (z_off_t)n);
}

exf_code exf_h5i_sums_new(exf_h5i_sums *s, const exf_tensor *t, exf_err *err)
{
    *s = shape_of(t);
    exf_code rc = exf_mem_new(&s->crc, s->n ? s->n : 1, sizeof *s->crc, "checksums", err);
    /* Of zeros, which is what unwritten rows read as. */
    for (size_t i = 0; rc == EXF_OK && i < s->n; i++) s->crc[i] = ~shifted(UINT32_MAX, block_bytes(s, i));
    return rc;
}

void exf_h5i_sums_free(exf_h5i_sums *s)
{
    exf_mem_free(s->crc);
    s->crc = NULL;
}

/* A CRC is linear: what rows add to their block's does not depend on the other rows, so they may come in any order. */
void exf_h5i_sums_add(exf_h5i_sums *s, int64_t row, int64_t n_rows, const void *data)
{
    const unsigned char *p = data;
    while (n_rows > 0 && s->row_bytes) {
        size_t block = (size_t)(row / s->block_rows), from = (size_t)(row % s->block_rows);
        int64_t fit = s->block_rows - (int64_t)from, some = n_rows < fit ? n_rows : fit;
        size_t bytes = (size_t)some * s->row_bytes, behind = block_bytes(s, block) - from * s->row_bytes - bytes;
        s->crc[block] ^= shifted(~crc_on(UINT32_MAX, p, bytes), behind);
        p += bytes;
        row += some;
        n_rows -= some;
    }
}

/* ---- the attribute ---------------------------------------------------------------------------- */

exf_code exf_h5i_sums_put(exf_h5 *h, const char *path, const exf_h5i_sums *s, exf_err *err)
{
    exf_text text = {0};
    exf_code rc;
    EXF_TRY(exf_text_addf(&text, err, "%" PRId64, s->block_rows));
    for (size_t i = 0; i < s->n; i++) EXF_TRY(exf_text_addf(&text, err, " %08" PRIx32, s->crc[i]));
    rc = exf_h5_put_text(h, path, EXF_H5_CHECKSUM, text.s, err);
out:
    exf_text_free(&text);
    return rc;
}

/* 1: the text has as many checksums as the dataset has blocks of so many rows. */
static int parse(exf_h5i_sums *s, const char *text)
{
    char *end;
    s->block_rows = strtoll(text, &end, 10);
    if (end == text || s->block_rows < 1 || s->block_rows > INT64_MAX / 4) return 0;
    s->n = (size_t)((s->n_rows - 1) / s->block_rows + 1);
    if (s->n_rows == 0) s->n = 0;
    if (strlen(end) != s->n * (HEX_DIGITS + 1)) return 0;
    for (size_t i = 0; i < s->n; i++, end += HEX_DIGITS + 1) {
        if (end[0] != ' ' || strspn(end + 1, "0123456789abcdef") < HEX_DIGITS) return 0;
        s->crc[i] = (uint32_t)strtoul(end + 1, NULL, 16);
    }
    return 1;
}

exf_code exf_h5i_sums_get(exf_h5 *h, const exf_tensor *t, exf_h5i_sums *s, exf_err *err)
{
    exf_h5i_value v = {.text = NULL};
    exf_code rc;
    int has;
    *s = shape_of(t);
    EXF_TRY(exf_h5_has_attr(h, t->name, EXF_H5_CHECKSUM, &has, err));
    if (!has && !h->checksums) goto out; /* of an earlier version */
    EXF_TRY(exf_h5i_attr(h, t->name, EXF_H5_CHECKSUM, &v, err));
    size_t most = v.text ? strlen(v.text) / (HEX_DIGITS + 1) + 1 : 1;
    EXF_TRY(exf_mem_new(&s->crc, most, sizeof *s->crc, "checksums", err));
    if (v.kind != EXF_H5I_TEXT || !parse(s, v.text))
        rc = exf_fail(err, exf_h5i_blame(h), "%s: attribute %s of %s is no list of checksums of its %" PRId64 " rows", h->path,
                      EXF_H5_CHECKSUM, t->name, s->n_rows);
out:
    exf_mem_free(v.text);
    if (rc != EXF_OK) exf_h5i_sums_free(s);
    return rc;
}

/* ---- comparing ---------------------------------------------------------------------------------- */

exf_code exf_h5i_sums_check(exf_h5 *h, const char *path, exf_h5i_sums *s, const void *bytes, size_t n, exf_err *err)
{
    const unsigned char *p = bytes;
    while (n && s->crc) {
        size_t all = block_bytes(s, s->block), fit = all - s->done, some = n < fit ? n : fit;
        s->running = crc_on(s->done ? s->running : 0, p, some);
        s->done += some;
        p += some;
        n -= some;
        if (s->done < all) continue;
        if (s->running != s->crc[s->block])
            return exf_fail(err, exf_h5i_blame(h),
                            "%s: %s is damaged: %zu bytes from row %" PRId64 " on have the CRC-32 %08" PRIx32
                            ", written were %08" PRIx32 "; copy the file again, or make it again",
                            h->path, path, all, (int64_t)s->block * s->block_rows, s->running, s->crc[s->block]);
        s->block++;
        s->done = 0;
    }
    return EXF_OK;
}

/* Compares rows that nobody asked for, but which share a block with some that were. */
static exf_code check_between(exf_h5 *h, const exf_tensor *t, exf_h5i_sums *s, int64_t row, int64_t end, exf_err *err)
{
    void *rows = NULL;
    int64_t some, step = (int64_t)(s->row_bytes < EXF_H5I_CHUNK_BYTES ? EXF_H5I_CHUNK_BYTES / s->row_bytes : 1);
    exf_code rc = EXF_OK;
    if (row >= end) return EXF_OK;
    if (step > end - row) step = end - row;
    EXF_TRY(exf_mem_new(&rows, (size_t)step, s->row_bytes, "rows of a dataset", err));
    for (; row < end; row += some) {
        some = end - row < step ? end - row : step;
        EXF_TRY(exf_h5i_get_rows(h, t, row, some, rows, err));
        EXF_TRY(exf_h5i_sums_check(h, t->name, s, rows, (size_t)some * s->row_bytes, err));
    }
out:
    exf_mem_free(rows);
    return rc;
}

exf_code exf_h5i_check_rows(exf_h5 *h, const exf_tensor *t, int64_t row, int64_t n_rows, const void *data, exf_err *err)
{
    exf_h5i_sums s;
    exf_code rc = exf_h5i_sums_get(h, t, &s, err);
    if (rc != EXF_OK || !s.crc || !s.n) goto out;
    int64_t first = row - row % s.block_rows, behind = row + n_rows, end = behind + s.block_rows - 1;
    end -= end % s.block_rows;
    s.block = (size_t)(first / s.block_rows);
    EXF_TRY(check_between(h, t, &s, first, row, err));
    EXF_TRY(exf_h5i_sums_check(h, t->name, &s, data, (size_t)n_rows * s.row_bytes, err));
    EXF_TRY(check_between(h, t, &s, behind, end < s.n_rows ? end : s.n_rows, err));
out:
    exf_h5i_sums_free(&s);
    return rc;
}

/* ---- rows written one after the other ---------------------------------------------------------------- */

exf_code exf_h5i_defined_add(exf_h5 *h, const exf_tensor *t, exf_err *err)
{
    exf_h5i_defined *d;
    exf_code rc = exf_mem_grow(&h->defined, &h->cap_defined, h->n_defined + 1, sizeof *h->defined, "checksums", err);
    if (rc != EXF_OK) return rc;
    d = &h->defined[h->n_defined];
    *d = (exf_h5i_defined){.path = NULL};
    rc = exf_mem_strdup(&d->path, t->name, "dataset path", err);
    if (rc == EXF_OK) rc = exf_h5i_sums_new(&d->sums, t, err);
    if (rc == EXF_OK)
        h->n_defined++;
    else
        exf_mem_free(d->path);
    return rc;
}

exf_h5i_sums *exf_h5i_defined_find(exf_h5 *h, const char *path)
{
    /* Most calls are for the one behind the last. */
    for (size_t i = 0; i < h->n_defined; i++) {
        size_t k = (h->at_defined + i) % h->n_defined;
        if (strcmp(h->defined[k].path, path) != 0) continue;
        h->at_defined = k;
        return &h->defined[k].sums;
    }
    return NULL;
}

uint32_t *exf_h5_checksums(exf_h5 *h, const char *path, size_t *n)
{
    const exf_h5i_sums *sums = exf_h5i_defined_find(h, path);
    *n = sums ? sums->n : 0;
    return sums ? sums->crc : NULL;
}

exf_code exf_h5_check_kept(exf_h5 *h, const char *path, exf_err *err)
{
    exf_tensor t;
    exf_code rc = exf_h5_describe(h, path, &t, err);
    if (rc != EXF_OK) return rc;
    exf_h5i_sums sums = *exf_h5i_defined_find(h, path);
    rc = check_between(h, &t, &sums, 0, sums.n_rows, err);
    return rc == EXF_INTERNAL ? err->code = EXF_FORMAT : rc; /* the file is one that is written */
}

/* In order of their definition, so that equal calls give equal bytes whichever rows came first. */
exf_code exf_h5i_defined_put(exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < h->n_defined; i++)
        rc = exf_h5i_sums_put(h, h->defined[i].path, &h->defined[i].sums, err);
    return rc;
}

void exf_h5i_defined_free(exf_h5 *h)
{
    for (size_t i = 0; i < h->n_defined; i++) {
        exf_mem_free(h->defined[i].path);
        exf_h5i_sums_free(&h->defined[i].sums);
    }
    exf_mem_free(h->defined);
}

void exf_h5_expect_checksums(exf_h5 *h)
{
    h->checksums = 1;
}

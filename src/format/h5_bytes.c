/* h5_bytes.c - the elements of datasets as bytes of the file: where they lie, their checksums, and large ones, whose pieces are
 * written, read and hashed at once; see h5.h. */
#include "format/h5_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* ---- where they lie -------------------------------------------------------------- */

hid_t exf_h5i_type(exf_dtype t)
{
    switch (t) {
    case EXF_DT_U8: return H5T_STD_U8LE;
    case EXF_DT_I8: return H5T_STD_I8LE;
    case EXF_DT_I32: return H5T_STD_I32LE;
    case EXF_DT_I64: return H5T_STD_I64LE;
    case EXF_DT_U64: return H5T_STD_U64LE;
    case EXF_DT_F32: return H5T_IEEE_F32LE;
    case EXF_DT_F64: return H5T_IEEE_F64LE;
    default: return H5I_INVALID_HID;
    }
}

/* Returns why a dataset is none of ours, whatever its shape; NULL: it may be one. */
static const char *find_foreign_layout(hid_t dataset)
{
    hid_t dcpl = H5Dget_create_plist(dataset);
    const char *why = NULL;
    if (dcpl < 0 || H5Pget_layout(dcpl) != H5D_CONTIGUOUS)
        why = "is chunked, compact or virtual, expected one contiguous run of elements";
    else if (H5Pget_external_count(dcpl) != 0)
        why = "has its elements in another file";
    else if (H5Pget_nfilters(dcpl) != 0)
        why = "has filters, expected plain elements";
    if (dcpl >= 0) H5Pclose(dcpl);
    return why;
}

static int read_dtype(hid_t dataset, exf_dtype *out)
{
    hid_t type = H5Dget_type(dataset);
    int known = 0;
    for (int t = 0; t < EXF_DT_COUNT && type >= 0 && !known; t++) {
        *out = (exf_dtype)t;
        known = exf_h5i_type(*out) >= 0 && H5Tequal(type, exf_h5i_type(*out)) > 0;
    }
    if (type >= 0) H5Tclose(type);
    return known;
}

int exf_h5i_bad_axis(const exf_tensor *t)
{
    int64_t most = INT64_MAX / 16;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] < 0 || t->shape[i] > most) return i;
        if (t->shape[i]) most /= t->shape[i];
    }
    return -1;
}

/* Reads rank and shape; 0 if there is no shape, or one that no memory could hold. */
static int read_shape(hid_t dataset, exf_tensor *t)
{
    hid_t space = H5Dget_space(dataset);
    hsize_t dims[H5S_MAX_RANK];
    H5S_class_t kind = space < 0 ? H5S_NO_CLASS : H5Sget_simple_extent_type(space);
    t->rank = kind == H5S_SIMPLE || kind == H5S_SCALAR ? H5Sget_simple_extent_dims(space, dims, NULL) : -1;
    if (space >= 0) H5Sclose(space);
    if (t->rank < 0 || t->rank > EXF_MAX_RANK) return 0;
    for (int i = 0; i < t->rank; i++) t->shape[i] = dims[i] > INT64_MAX ? -1 : (int64_t)dims[i];
    return exf_h5i_bad_axis(t) < 0;
}

exf_code exf_h5i_find_place(exf_h5 *h, const char *path, hid_t object, exf_h5i_rows *r, exf_err *err)
{
    memset(r, 0, sizeof *r);
    if (H5Iget_type(object) != H5I_DATASET)
        return exf_fail(err, exf_h5i_blame(h), "%s: %s is a group, expected a dataset", h->path, path);
    const char *why = find_foreign_layout(object);
    if (why) return exf_fail(err, exf_h5i_blame(h), "%s: %s %s: not one of ours", h->path, path, why);
    if (!read_dtype(object, &r->shape.dtype))
        return exf_fail(err, exf_h5i_blame(h),
                        "%s: %s has elements that are none of U8 I8 I32 I64 U64 F32 F64, little endian", h->path, path);
    if (!read_shape(object, &r->shape))
        return exf_fail(err, exf_h5i_blame(h),
                        "%s: %s has no shape, more than %d axes, or more elements than fit", h->path, path, EXF_MAX_RANK);
    r->bytes = exf_tensor_bytes(&r->shape);
    if (r->bytes == 0) return EXF_OK;
    haddr_t at = H5Dget_offset(object);
    uint64_t has = H5Dget_storage_size(object), size = h->in ? exf_file_size(h->in) : UINT64_MAX;
    if (at == HADDR_UNDEF || has != r->bytes || at > size || has > size - at)
        return exf_fail(err, exf_h5i_blame(h), "%s: %s states %llu bytes of elements, the file of %llu bytes holds %llu of them",
                        h->path, path, (unsigned long long)r->bytes, (unsigned long long)size,
                        (unsigned long long)(at == HADDR_UNDEF || at > size ? 0 : has < size - at ? has : size - at));
    r->at = at;
    return EXF_OK;
}

/* ---- checksums -------------------------------------------------------------- */

/* Returns the remainder of a CRC register after n more bytes of zeros. */
static uint32_t shift_crc(uint32_t crc, uint64_t n)
{
    return (uint32_t)crc32_combine(crc, 0, (z_off_t)n);
}

uint32_t exf_h5i_crc_of_zeros(uint64_t n)
{
    return ~shift_crc(UINT32_MAX, n);
}

static uint32_t crc_of(const void *bytes, size_t n)
{
    return (uint32_t)crc32_z(0, bytes, n);
}

static uint32_t join_crc(uint32_t crc, uint32_t next, size_t n)
{
    return (uint32_t)crc32_combine(crc, next, (z_off_t)n);
}

uint32_t exf_h5i_add_to_crc(uint32_t crc, const void *bytes, size_t n)
{
    return n ? (uint32_t)crc32_z(crc, bytes, n) : crc; /* NULL would start anew */
}

exf_code exf_h5i_put_checksum(exf_h5 *h, hid_t dataset, const char *path, uint32_t crc, exf_err *err)
{
    char hex[9];
    snprintf(hex, sizeof hex, "%08x", (unsigned)crc);
    exf_code rc = exf_h5i_put_text(h, dataset, path, EXF_H5_CHECKSUM, hex, err);
    if (rc == EXF_OK) exf_h5i_note_checksum(h, path, crc);
    return rc;
}

exf_code exf_h5i_get_checksum(exf_h5 *h, hid_t dataset, const char *path, uint32_t *crc, exf_err *err)
{
    char *text = NULL;
    exf_code rc = exf_h5i_get_text(h, dataset, path, EXF_H5_CHECKSUM, &text, err);
    if (rc != EXF_OK) return rc;
    if (strlen(text) != 8 || strspn(text, "0123456789abcdef") != 8)
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s: its attribute " EXF_H5_CHECKSUM " is no CRC-32 of 8 hexadecimal digits",
                      h->path, path);
    else
        *crc = (uint32_t)strtoul(text, NULL, 16);
    exf_mem_free(text);
    return rc;
}

exf_code exf_h5i_compare_crc(const exf_h5 *h, const char *path, const exf_h5i_rows *r, uint32_t crc, exf_err *err)
{
    if (crc == r->crc_stored) return EXF_OK;
    return exf_fail(err, EXF_FORMAT,
                    "%s: %s is damaged: its %llu bytes have the CRC-32 %08x, those written had %08x; copy the file again, or make "
                    "it again",
                    h->path, path, (unsigned long long)r->bytes, (unsigned)crc, (unsigned)r->crc_stored);
}

/* ---- bytes ------------------------------------------------------------------- */

exf_code exf_h5i_read_bytes(exf_h5 *h, const exf_h5i_rows *r, uint64_t from, void *to, size_t n, exf_err *err)
{
    return h->in ? exf_file_read(h->in, r->at + from, to, n, err) : exf_output_file_read(h->out, r->at + from, to, n, err);
}

exf_code exf_h5i_write_bytes(exf_h5 *h, exf_h5i_rows *r, uint64_t from, const void *bytes, size_t n, exf_err *err)
{
    exf_code rc = exf_output_file_patch(h->out, r->at + from, bytes, n, err);
    if (rc != EXF_OK) return exf_h5i_break(h, err);
    r->crc ^= shift_crc(exf_h5i_add_to_crc(0, bytes, n) ^ exf_h5i_crc_of_zeros(n), r->bytes - from - n);
    return EXF_OK;
}

/* ---- pieces ------------------------------------------------------------------
 * A gigabyte takes seconds on one thread.  Pieces are independent; their checksums and digests are joined in order. */

enum { PIECE_BYTES = 4 << 20 };

typedef struct {
    exf_h5 *h;
    const exf_h5i_rows *r;
    const char *from; /* what is written; NULL: the elements are read */
    char *to;         /* where they are read; NULL: nobody wants them */
    int hashed;
    struct piece {
        uint32_t crc;
        char sha256[EXF_SHA256_HEX];
    } *piece;
} pieces;

static size_t piece_bytes(const pieces *x, size_t i)
{
    uint64_t left = x->r->bytes - (uint64_t)i * PIECE_BYTES;
    return left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
}

static exf_code do_piece(const pieces *x, size_t i, exf_err *err)
{
    uint64_t at = (uint64_t)i * PIECE_BYTES;
    size_t n = piece_bytes(x, i);
    char *own = NULL, *bytes = x->to ? x->to + at : NULL;
    exf_code rc = EXF_OK;
    if (x->from) {
        EXF_TRY(exf_output_file_patch(x->h->out, x->r->at + at, x->from + at, n, err));
        x->piece[i].crc = crc_of(x->from + at, n);
        goto out;
    }
    if (!bytes) EXF_TRY(exf_mem_raw(&own, n, 1, "a piece of a dataset", err));
    if (!bytes) bytes = own;
    EXF_TRY(exf_h5i_read_bytes(x->h, x->r, at, bytes, n, err));
    x->piece[i].crc = crc_of(bytes, n);
    if (x->hashed) rc = exf_hash_bytes(bytes, n, x->piece[i].sha256, err);
out:
    exf_mem_free(own);
    return rc;
}

exf_code exf_h5i_do_pieces(exf_h5 *h, const exf_h5i_rows *r, const void *from, void *to, uint32_t *crc, exf_hash *hash,
                           exf_err *err)
{
    size_t n = (size_t)((r->bytes + PIECE_BYTES - 1) / PIECE_BYTES);
    pieces x = {.h = h, .r = r, .from = from, .to = to, .hashed = hash != NULL};
    exf_loop loop = EXF_LOOP;
    exf_code rc;
    EXF_TRY(exf_mem_new(&x.piece, n, sizeof *x.piece, "pieces of a dataset", err));
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, exf_background_threads()))
    for (size_t i = 0; i < n; i++) {
        exf_err e;
        if (exf_loop_takes(&loop, i) && do_piece(&x, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    EXF_TRY(exf_loop_end(&loop, err));
    *crc = 0;
    for (size_t i = 0; i < n; i++) *crc = join_crc(*crc, x.piece[i].crc, piece_bytes(&x, i));
    if (hash) EXF_TRY(exf_hash_add_text(hash, "pieces", err));
    if (hash) EXF_TRY(exf_hash_add_u64(hash, PIECE_BYTES, err));
    for (size_t i = 0; hash && i < n; i++) EXF_TRY(exf_hash_add_text(hash, x.piece[i].sha256, err));
out:
    exf_mem_free(x.piece);
    return rc;
}

exf_code exf_h5i_check_elements(exf_h5 *h, const char *path, const exf_h5i_rows *r, exf_hash *hash, exf_err *err)
{
    enum { MOST_BYTES = 256 << 10 }; /* which a core's cache holds until they are hashed */
    size_t most = r->bytes < MOST_BYTES ? (size_t)r->bytes : MOST_BYTES;
    uint32_t crc = 0;
    int compared = !hash || !h->out; /* of what this process has just written, who reads it next compares the checksum */
    void *piece = NULL;
    exf_code rc = EXF_OK;
    if (r->bytes >= EXF_H5_LARGE) {
        EXF_TRY(exf_h5i_do_pieces(h, r, NULL, NULL, &crc, hash, err));
        return exf_h5i_compare_crc(h, path, r, crc, err);
    }
    if (most) EXF_TRY(exf_mem_raw(&piece, most, 1, "a piece of a dataset", err));
    for (uint64_t at = 0; at < r->bytes;) {
        size_t n = r->bytes - at < most ? (size_t)(r->bytes - at) : most;
        EXF_TRY(exf_stop_check(err));
        EXF_TRY(exf_h5i_read_bytes(h, r, at, piece, n, err));
        if (compared) crc = exf_h5i_add_to_crc(crc, piece, n);
        if (hash) EXF_TRY(exf_hash_add(hash, piece, n, err));
        at += n;
    }
    if (compared) rc = exf_h5i_compare_crc(h, path, r, crc, err);
out:
    exf_mem_free(piece);
    return rc;
}

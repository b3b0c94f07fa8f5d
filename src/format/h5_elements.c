/* h5_elements.c - the elements of a dataset as bytes of the file, with their checksums; the pieces of large ones are written, read
 * and hashed at once; see h5.h. */
#include "format/h5_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* ---- checksums -------------------------------------------------------------- */

uint32_t exf_h5i_shift_crc(uint32_t crc, uint64_t n)
{
    return (uint32_t)crc32_combine(crc, 0, (z_off_t)n);
}

uint32_t exf_h5i_crc_of_zeros(uint64_t n)
{
    return ~exf_h5i_shift_crc(UINT32_MAX, n);
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
    exf_h5i_made *m = rc == EXF_OK ? exf_h5i_find_made(h, path) : NULL;
    if (m && !m->given) m->r.crc_stored = crc;
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
        x->piece[i].crc = exf_h5i_add_to_crc(0, x->from + at, n);
        goto out;
    }
    if (!bytes) EXF_TRY(exf_mem_raw(&own, n, 1, "a piece of a dataset", err));
    if (!bytes) bytes = own;
    EXF_TRY(exf_h5i_read_bytes(x->h, x->r, at, bytes, n, err));
    x->piece[i].crc = exf_h5i_add_to_crc(0, bytes, n);
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
    for (size_t i = 0; i < n; i++) *crc = (uint32_t)crc32_combine(*crc, x.piece[i].crc, (z_off_t)piece_bytes(&x, i));
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

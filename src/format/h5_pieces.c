/* h5_pieces.c - large datasets, whose pieces are written, read and hashed at once; see h5.h.
 *
 * A gigabyte takes seconds on one thread.  Pieces are independent; their checksums and digests are joined in order. */
#include "format/h5_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/parallel.h"

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
        x->piece[i].crc = exf_h5i_crc(x->from + at, n);
        goto out;
    }
    if (!bytes) EXF_TRY(exf_mem_raw(&own, n, 1, "a piece of a dataset", err));
    if (!bytes) bytes = own;
    EXF_TRY(exf_h5i_read_bytes(x->h, x->r, at, bytes, n, err));
    x->piece[i].crc = exf_h5i_crc(bytes, n);
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
    for (size_t i = 0; i < n; i++) *crc = exf_h5i_join_crc(*crc, x.piece[i].crc, piece_bytes(&x, i));
    if (hash) EXF_TRY(exf_hash_add_text(hash, "pieces", err));
    if (hash) EXF_TRY(exf_hash_add_u64(hash, PIECE_BYTES, err));
    for (size_t i = 0; hash && i < n; i++) EXF_TRY(exf_hash_add_text(hash, x.piece[i].sha256, err));
out:
    exf_mem_free(x.piece);
    return rc;
}

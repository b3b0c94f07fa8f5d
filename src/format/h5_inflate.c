/* h5_inflate.c - reads datasets whose chunks are inflated side by side: the way back of h5_chunks.c.
 *
 * HDF5 inflates one chunk after the other.  Here the stored bytes of many chunks are fetched, then inflated and
 * unshuffled on several threads.  A dataset that is laid out otherwise than ours, lacks a chunk or has a damaged one is
 * left to h5_exact.c, whose message says what is wrong, and to HDF5. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/thread_pool.h"

#include <string.h>
#include <zlib.h>

enum { AT_ONCE = 256 }; /* chunks */

typedef struct {
    size_t to, n;        /* where its elements go in the tensor's data, and their bytes, of which the last chunk may have fewer */
    unsigned char *in;   /* as stored */
    size_t n_in;
    int damaged;
} stored_chunk;

typedef struct {
    hid_t dataset;
    const exf_tensor *t;
    size_t width, capacity; /* bytes of an element, and of a whole chunk */
    hsize_t chunk[EXF_MAX_RANK], at[EXF_MAX_RANK]; /* at: the next chunk's first element */
    int64_t end[EXF_MAX_RANK];  /* behind the last element that is read */
    size_t from;            /* bytes of the elements before it */
    unsigned char *to;
    stored_chunk held[AT_ONCE];
    size_t n_held;
} reading;

/* Returns 1 if the chunks' filters are shuffle and deflate, and nothing else. */
static int has_our_filters(hid_t dcpl)
{
    static const H5Z_filter_t ours[] = {H5Z_FILTER_SHUFFLE, H5Z_FILTER_DEFLATE};
    int same = H5Pget_nfilters(dcpl) == 2;
    for (int i = 0; same && i < 2; i++) same = exf_h5i_filter(dcpl, i) == ours[i];
    return same;
}

/* Returns 1 if chunks follow each other as the elements do in memory: [1, .., 1, k, full, ..]. */
static int is_in_order(const reading *r)
{
    int i = 0;
    while (i < r->t->rank && r->chunk[i] == 1) i++;
    for (i++; i < r->t->rank; i++)
        if (r->chunk[i] != (hsize_t)r->t->shape[i]) return 0;
    return 1;
}

/* Returns 1 if no chunk holds rows that are read and others. */
static int has_whole_chunks(const reading *r)
{
    return r->at[0] % r->chunk[0] == 0 && (r->end[0] == r->t->shape[0] || (hsize_t)r->end[0] % r->chunk[0] == 0);
}

static int is_ours(reading *r)
{
    hid_t dcpl = H5Dget_create_plist(r->dataset);
    int ours = dcpl >= 0 && r->t->rank > 0 && exf_tensor_count(r->t) > 0 && H5Pget_layout(dcpl) == H5D_CHUNKED &&
               H5Pget_chunk(dcpl, r->t->rank, r->chunk) == r->t->rank && has_our_filters(dcpl) && is_in_order(r) &&
               has_whole_chunks(r);
    if (dcpl >= 0) H5Pclose(dcpl);
    r->capacity = r->width = exf_dtype_bits(r->t->dtype) / 8;
    for (int i = 0; ours && i < r->t->rank; i++) r->capacity *= r->chunk[i];
    return ours;
}

/* ---- one chunk ----------------------------------------------------------------------------- */

/* Fetches the stored bytes of the next chunk; *got is 0 if it is absent or was not filtered. */
static exf_code fetch(reading *r, int *got, exf_err *err)
{
    stored_chunk *c = &r->held[r->n_held];
    hsize_t stored = exf_h5i_stored_bytes(r->dataset, r->at);
    uint32_t mask = 0;
    exf_code rc = EXF_OK;
    *got = 0;
    if (stored == 0) return EXF_OK;
    *c = (stored_chunk){.to = r->from, .n = r->width, .n_in = (size_t)stored};
    for (int i = 0; i < r->t->rank; i++) {
        hsize_t left = (hsize_t)r->t->shape[i] - r->at[i];
        c->n *= r->chunk[i] < left ? r->chunk[i] : left;
    }
    EXF_TRY(exf_mem_new(&c->in, c->n_in, 1, "a compressed chunk", err));
    r->n_held++;
    r->from += c->n;
    H5E_BEGIN_TRY { *got = H5Dread_chunk(r->dataset, H5P_DEFAULT, r->at, &mask, c->in) >= 0 && mask == 0; }
    H5E_END_TRY
out:
    return rc;
}

/* Returns 1 if the n_in bytes inflate to exactly n bytes. */
static int inflates_to(unsigned char *out, size_t n, unsigned char *in, size_t n_in)
{
    uLongf filled = (uLongf)n;
    uLong used = (uLong)n_in;
    return uncompress2(out, &filled, in, &used) == Z_OK && filled == n;
}

/* Byte b of element e is at b * n + e, as HDF5's filter put it; a chunk's first bytes are wanted. */
static void unshuffle(unsigned char *out, size_t bytes, const unsigned char *in, size_t n, size_t width)
{
    for (size_t e = 0; e < bytes / width; e++)
        for (size_t b = 0; b < width; b++) out[e * width + b] = in[b * n + e];
}

static exf_code restore(void *self, size_t i, int worker, exf_err *err)
{
    reading *r = self;
    stored_chunk *c = &r->held[i];
    unsigned char *whole = NULL;
    exf_code rc = exf_mem_new(&whole, r->capacity, 1, "chunk", err);
    (void)worker;
    if (rc != EXF_OK) return rc;
    c->damaged = !inflates_to(whole, r->capacity, c->in, c->n_in);
    if (!c->damaged) unshuffle(r->to + c->to, c->n, whole, r->capacity / r->width, r->width);
    exf_mem_free(whole);
    return EXF_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

static void drop(reading *r)
{
    for (size_t i = 0; i < r->n_held; i++) exf_mem_free(r->held[i].in);
    r->n_held = 0;
}

/* Restores the chunks that were fetched; *whole becomes 0 if one is damaged. */
static exf_code restore_held(reading *r, int *whole, exf_err *err)
{
    exf_code rc = exf_parallel_for(r->n_held, exf_background_threads(), restore, r, err);
    for (size_t i = 0; rc == EXF_OK && i < r->n_held; i++) *whole &= !r->held[i].damaged;
    drop(r);
    return rc;
}

exf_code exf_h5i_inflate(hid_t dataset, const exf_tensor *t, int64_t row, int64_t n_rows, void *to, int *done, exf_err *err)
{
    reading *r = NULL;
    exf_code rc;
    *done = 0;
    EXF_TRY(exf_mem_new(&r, 1, sizeof *r, "chunks", err));
    r->dataset = dataset;
    r->t = t;
    r->to = to;
    r->at[0] = (hsize_t)row;
    for (int i = 0; i < t->rank; i++) r->end[i] = i ? t->shape[i] : row + n_rows;
    if (!is_ours(r)) goto out;
    do {
        EXF_TRY(fetch(r, done, err));
        if (*done && r->n_held == AT_ONCE) EXF_TRY(restore_held(r, done, err));
    } while (*done && exf_h5i_next_block(r->at, r->chunk, r->end, t->rank));
    if (*done) rc = restore_held(r, done, err);
out:
    if (r) drop(r);
    exf_mem_free(r);
    if (rc != EXF_OK) *done = 0;
    return rc;
}

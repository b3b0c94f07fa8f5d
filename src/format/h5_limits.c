/* h5_limits.c - refuses datasets that would take far more memory or time than their file's size explains, before
 * anything is allocated or inflated for them.
 *
 * A file may state any shape, and may leave out chunks (which then read as zeros).  What deflate can do at most is 1032
 * bytes from one; a stream that goes on after its chunk is full is h5_exact.c's to refuse.  Sizes that are stated are
 * compared here: HDF5 takes elements that are not stored from behind the end of those that are. */
#include "format/h5_internal.h"

#include <inttypes.h>

enum {
    DEFLATE_MOST = 1032,          /* bytes from one byte */
    FREE_BYTES = 1 << 20,         /* a dataset of so few bytes needs no explanation */
    CHUNK_BYTES_MAX = 64 << 20,   /* HDF5 holds a whole one */
    CHUNK_BYTES_LEAST = 16 << 10, /* of the mean chunk: many small ones take time */
    UNFILTERED_MAX = 8192,        /* each is looked up from the first on */
};

static exf_code refuse(const exf_h5 *h, const char *path, exf_err *err, const char *what, uint64_t has, uint64_t most)
{
    return exf_fail(err, exf_h5i_blame(h), "%s: %s %s: %" PRIu64 ", at most %" PRIu64 " are read", h->path, path, what, has, most);
}

/* ---- the storage of a dataset --------------------------------------------------------------- */

typedef struct {
    hid_t dataset, dcpl;
    int rank;
    size_t width;
    int64_t shape[H5S_MAX_RANK];
    hsize_t chunk[H5S_MAX_RANK];
    uint64_t bytes, chunk_bytes; /* of the elements; of a whole chunk */
    int n_filters;
} storage;

/* Shuffle, deflate and fletcher32, in this order, each at most once.  1: no others. */
static int known_filters(storage *s)
{
    int n = H5Pget_nfilters(s->dcpl), last = 0;
    for (int i = 0; i < n; i++) {
        H5Z_filter_t f = exf_h5i_filter(s->dcpl, i);
        int place = f == H5Z_FILTER_SHUFFLE ? 1 : f == H5Z_FILTER_DEFLATE ? 2 : f == H5Z_FILTER_FLETCHER32 ? 3 : 0;
        if (place <= last) return 0;
        last = place;
    }
    s->n_filters = n;
    return n >= 0;
}

/* A product that stays at UINT64_MAX / 2 where it would be more. */
static uint64_t times(uint64_t a, uint64_t b)
{
    return b && a > UINT64_MAX / 2 / b ? UINT64_MAX / 2 : a * b;
}

static int look_at(storage *s, hid_t dataset)
{
    hid_t space = H5Dget_space(dataset), type = H5Dget_type(dataset);
    hsize_t dims[H5S_MAX_RANK];
    s->dataset = dataset;
    s->dcpl = H5Dget_create_plist(dataset);
    s->rank = space < 0 ? -1 : H5Sget_simple_extent_dims(space, dims, NULL);
    s->width = type < 0 ? 0 : H5Tget_size(type);
    s->bytes = s->width;
    for (int i = 0; i < s->rank; i++) {
        s->shape[i] = (int64_t)dims[i];
        s->bytes = times(s->bytes, dims[i]);
    }
    if (space >= 0) H5Sclose(space);
    if (type >= 0) H5Tclose(type);
    return s->rank >= 0 && s->width && s->dcpl >= 0;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Checks the chunk at `at`; *found counts those that are there. */
static exf_code check_chunk(const exf_h5 *h, const char *path, const storage *s, const hsize_t *at, uint64_t *found, exf_err *err)
{
    hsize_t stored = exf_h5i_stored_bytes(s->dataset, at), most = 2 * s->chunk_bytes + FREE_BYTES;
    *found += stored > 0;
    if (stored <= most) return EXF_OK;
    return refuse(h, path, err, "has a chunk of more stored bytes than its elements explain", stored, most);
}

/* Compares the sizes that the index states of chunks without filters: exf_h5i_stored_bytes() gives that of a whole one. */
static exf_code check_unfiltered(const exf_h5 *h, const char *path, const storage *s, hid_t space, hsize_t n, exf_err *err)
{
    hsize_t at[H5S_MAX_RANK], bytes = 0;
    haddr_t where;
    unsigned mask;
    if (n > UNFILTERED_MAX) return refuse(h, path, err, "has too many chunks without a filter", n, UNFILTERED_MAX);
    for (hsize_t i = 0; i < n; i++) {
        if (H5Dget_chunk_info(s->dataset, space, i, at, &mask, &where, &bytes) < 0)
            return exf_h5i_fail(h, err, "cannot look at the chunks of %s", path);
        if (bytes == s->chunk_bytes) continue;
        return exf_fail(err, exf_h5i_blame(h),
                        "%s: %s has a chunk whose %" PRIu64 " bytes are stored without a filter, expected %" PRIu64, h->path, path,
                        (uint64_t)bytes, s->chunk_bytes);
    }
    return EXF_OK;
}

/* Compares the index with the chunks that were found by their places: no other entry, and none of no bytes. */
static exf_code check_index(const exf_h5 *h, const char *path, const storage *s, uint64_t found, exf_err *err)
{
    hid_t space = H5Dget_space(s->dataset);
    hsize_t n = 0;
    exf_code rc = EXF_OK;
    if (space < 0 || H5Dget_num_chunks(s->dataset, space, &n) < 0)
        rc = exf_h5i_fail(h, err, "cannot look at the chunks of %s", path);
    else if (n != found)
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s has %" PRIu64 " chunks in its index, of which %" PRIu64
                      " are found by their places", h->path, path, (uint64_t)n, found);
    else if (s->n_filters == 0)
        rc = check_unfiltered(h, path, s, space, n, err);
    if (space >= 0) H5Sclose(space);
    return rc;
}

/* Refuses filters of which it is not known how many bytes they give. */
static exf_code check_filters(const exf_h5 *h, const char *path, storage *s, exf_err *err)
{
    unsigned options = 0;
    if (!known_filters(s))
        return exf_fail(err, exf_h5i_blame(h), "%s: %s has other filters than shuffle, deflate and fletcher32, each once", h->path,
                        path);
    if (H5Pget_chunk_opts(s->dcpl, &options) >= 0 && options == 0) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(h), "%s: %s has chunks that are filtered only where they lie inside, expected all or none",
                    h->path, path);
}

static exf_code check_chunks(const exf_h5 *h, const char *path, storage *s, exf_err *err)
{
    hsize_t at[H5S_MAX_RANK] = {0};
    uint64_t n = 1, most = 16 + s->bytes / CHUNK_BYTES_LEAST, found = 0;
    exf_code rc = EXF_OK;
    s->chunk_bytes = s->width;
    if (H5Pget_chunk(s->dcpl, H5S_MAX_RANK, s->chunk) != s->rank) return exf_h5i_fail(h, err, "%s has no chunks", path);
    for (int i = 0; i < s->rank; i++) {
        s->chunk_bytes = times(s->chunk_bytes, s->chunk[i]);
        n = times(n, ((hsize_t)s->shape[i] + s->chunk[i] - 1) / s->chunk[i]);
    }
    if (s->chunk_bytes > CHUNK_BYTES_MAX)
        return refuse(h, path, err, "has chunks of too many bytes", s->chunk_bytes, CHUNK_BYTES_MAX);
    if (n > most) return refuse(h, path, err, "has too many chunks for its bytes", n, most);
    rc = check_filters(h, path, s, err);
    if (rc != EXF_OK || s->bytes == 0) return rc;
    do rc = check_chunk(h, path, s, at, &found, err);
    while (rc == EXF_OK && exf_h5i_next_block(at, s->chunk, s->shape, s->rank));
    return rc == EXF_OK ? check_index(h, path, s, found, err) : rc;
}

/* ---- all ----------------------------------------------------------------------------------------- */

/* Returns 0 for a contiguous dataset that has no storage: it reads as its fill value. */
static int has_place(const storage *s)
{
    haddr_t at = HADDR_UNDEF;
    if (H5Pget_layout(s->dcpl) != H5D_CONTIGUOUS) return 1;
    H5E_BEGIN_TRY { at = H5Dget_offset(s->dataset); }
    H5E_END_TRY
    return at != HADDR_UNDEF;
}

exf_code exf_h5i_check_storage(const exf_h5 *h, const char *path, hid_t dataset, uint64_t file_bytes, exf_err *err)
{
    storage s = {.dcpl = H5I_INVALID_HID};
    exf_code rc = EXF_OK;
    if (!look_at(&s, dataset)) goto out; /* exf_h5_describe() says what is wrong */
    uint64_t stored = H5Dget_storage_size(dataset), most = times(stored, DEFLATE_MOST) + FREE_BYTES;
    if (stored > file_bytes)
        rc = refuse(h, path, err, "states more stored bytes than the file has", stored, file_bytes);
    else if (H5Pget_layout(s.dcpl) == H5D_CHUNKED ? s.bytes > most : s.bytes > stored + FREE_BYTES)
        rc = refuse(h, path, err, "states more bytes of elements than its stored bytes explain", s.bytes,
                    H5Pget_layout(s.dcpl) == H5D_CHUNKED ? most : stored + FREE_BYTES);
    else if (H5Pget_layout(s.dcpl) == H5D_CHUNKED)
        rc = check_chunks(h, path, &s, err);
    else if (stored < s.bytes && has_place(&s))
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s has %" PRIu64 " stored bytes, expected its elements' %" PRIu64, h->path, path,
                      stored, s.bytes);
out:
    if (s.dcpl >= 0) H5Pclose(s.dcpl);
    return rc;
}

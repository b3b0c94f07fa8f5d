/* h5_limits.c - refuses datasets that would take far more memory or time than their file's size explains, before
 * anything is allocated or inflated for them.
 *
 * A file may state any shape, may leave out chunks (which then read as zeros), and may have a deflate stream that goes
 * on after the chunk is full: HDF5 inflates all of it.  What deflate can do at most is 1032 bytes from one. */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <inttypes.h>
#include <zlib.h>

enum {
    DEFLATE_MOST = 1032,          /* bytes from one byte */
    FREE_BYTES = 1 << 20,         /* a dataset of so few bytes needs no explanation */
    CHUNK_BYTES_MAX = 64 << 20,   /* HDF5 holds a whole one */
    CHUNK_BYTES_LEAST = 16 << 10, /* of the mean chunk: many small ones take time */
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
    int deflated;
} storage;

/* Shuffle, deflate and fletcher32, in this order, each at most once.  1: no others. */
static int known_filters(storage *s)
{
    int n = H5Pget_nfilters(s->dcpl), last = 0;
    for (int i = 0; i < n; i++) {
        size_t n_values = 0;
        unsigned flags;
        H5Z_filter_t f = H5Pget_filter2(s->dcpl, (unsigned)i, &flags, &n_values, NULL, 0, NULL, NULL);
        int place = f == H5Z_FILTER_SHUFFLE ? 1 : f == H5Z_FILTER_DEFLATE ? 2 : f == H5Z_FILTER_FLETCHER32 ? 3 : 0;
        if (place <= last) return 0;
        last = place;
        s->deflated |= f == H5Z_FILTER_DEFLATE;
    }
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

/* 1: a deflate stream gives exactly `want` bytes; what lies behind it is another filter's. */
static int inflates_to(unsigned char *in, size_t n, uint64_t want, unsigned char *room, size_t size)
{
    z_stream z = {.next_in = in, .avail_in = (uInt)n};
    int status = Z_OK;
    if (inflateInit(&z) != Z_OK) return 0;
    while (status == Z_OK && z.total_out <= want) {
        z.next_out = room;
        z.avail_out = (uInt)size;
        status = inflate(&z, Z_NO_FLUSH);
        if (status == Z_BUF_ERROR) break;
    }
    int right = z.total_out <= want; /* a stream that is cut or wrong is HDF5's to refuse */
    inflateEnd(&z);
    return right;
}

static exf_code check_stream(const exf_h5 *h, const char *path, const storage *s, const hsize_t *at, size_t n, exf_err *err)
{
    enum { ROOM = 1 << 16 };
    unsigned char *in = NULL, *room = NULL;
    uint32_t mask = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&in, n, 1, "a compressed chunk", err));
    EXF_TRY(exf_mem_new(&room, ROOM, 1, "a compressed chunk", err));
    if (H5Dread_chunk(s->dataset, H5P_DEFAULT, at, &mask, in) < 0)
        rc = exf_h5i_fail(h, err, "cannot read %s", path);
    else if (mask == 0 && !inflates_to(in, n, s->chunk_bytes, room, ROOM))
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s has a chunk whose %zu bytes inflate to more than its %" PRIu64, h->path,
                      path, n, s->chunk_bytes);
out:
    exf_mem_free(in);
    exf_mem_free(room);
    return rc;
}

/* Checks the chunk at `at`.  Streams so short that they cannot fill the largest chunk are left to HDF5: ours, but those of
 * tables, are. */
static exf_code check_chunk(const exf_h5 *h, const char *path, const storage *s, const hsize_t *at, exf_err *err)
{
    hsize_t stored = exf_h5i_stored_bytes(s->dataset, at);
    if (stored > 2 * s->chunk_bytes + FREE_BYTES)
        return refuse(h, path, err, "has a chunk of more stored bytes than its elements explain", stored,
                      2 * s->chunk_bytes + FREE_BYTES);
    if (s->deflated && stored > CHUNK_BYTES_MAX / DEFLATE_MOST + 1024) return check_stream(h, path, s, at, (size_t)stored, err);
    return EXF_OK;
}

static exf_code check_chunks(const exf_h5 *h, const char *path, storage *s, exf_err *err)
{
    hsize_t at[H5S_MAX_RANK] = {0};
    uint64_t n = 1, most = 16 + s->bytes / CHUNK_BYTES_LEAST;
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
    if (!known_filters(s))
        return exf_fail(err, exf_h5i_blame(h), "%s: %s has other filters than shuffle, deflate and fletcher32, each once", h->path,
                        path);
    if (s->bytes == 0) return EXF_OK;
    do rc = check_chunk(h, path, s, at, err);
    while (rc == EXF_OK && exf_h5i_next_block(at, s->chunk, s->shape, s->rank));
    return rc;
}

/* ---- all ----------------------------------------------------------------------------------------- */

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
out:
    if (s.dcpl >= 0) H5Pclose(s.dcpl);
    return rc;
}

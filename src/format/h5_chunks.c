/* h5_chunks.c - datasets whose chunks are compressed side by side; see exf_h5_write_all().
 *
 * HDF5 filters one chunk after the other.  Here every chunk goes through the same two
 * filters, byte shuffle and deflate, on several threads, and is then handed
 * over as it will stand in the file.  Deflate looks for runs only: after the shuffle
 * sums are planes of noise and planes of nearly equal bytes, in which a search for
 * longer matches takes twice the time to save a few hundredths. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/thread_pool.h"

#include <string.h>
#include <zlib.h>

typedef struct {
    const exf_tensor *t;
    hsize_t at[EXF_MAX_RANK]; /* first element */
    size_t from, n, capacity;     /* bytes of the tensor's data that it holds; of a whole chunk */
    unsigned char *out;       /* filtered */
    size_t n_out;
} chunk;

typedef struct {
    chunk *c;
    size_t n, capacity;
} chunks;

static size_t width_of(const exf_tensor *t)
{
    return exf_dtype_bits(t->dtype) / 8;
}

/* Blocks follow each other as the elements do in memory (exf_h5i_block). */
static exf_code cut(chunks *all, const exf_tensor *t, exf_err *err)
{
    hsize_t block[EXF_MAX_RANK], at[EXF_MAX_RANK] = {0};
    size_t from = 0, capacity = width_of(t);
    exf_h5i_block(t, EXF_H5I_PART_BYTES, block);
    for (int i = 0; i < t->rank; i++) capacity *= block[i];
    for (;;) {
        exf_code rc = exf_mem_grow(&all->c, &all->capacity, all->n + 1, sizeof *all->c, "chunks", err);
        if (rc != EXF_OK) return rc;
        chunk *c = &all->c[all->n++];
        *c = (chunk){.t = t, .from = from, .n = width_of(t), .capacity = capacity};
        memcpy(c->at, at, sizeof at);
        for (int i = 0; i < t->rank; i++) c->n *= block[i] < (hsize_t)t->shape[i] - at[i] ? block[i] : (hsize_t)t->shape[i] - at[i];
        from += c->n;
        if (!exf_h5i_next_block(at, block, t->shape, t->rank)) return EXF_OK;
    }
}

/* Byte b of element e goes to b * n + e, as HDF5's filter does it. */
static void shuffle(unsigned char *out, const unsigned char *in, size_t n, size_t width)
{
    for (size_t b = 0; b < width; b++)
        for (size_t e = 0; e < n; e++) out[b * n + e] = in[e * width + b];
}

/* n bytes of in to *room bytes at out; *room becomes what they came to.  0: failed. */
static int deflate_runs(unsigned char *out, size_t *capacity, unsigned char *in, size_t n)
{
    enum { WINDOW_BITS = 15, MEMORY_LEVEL = 8 }; /* zlib's defaults */
    z_stream z = {.next_in = in, .avail_in = (uInt)n, .next_out = out, .avail_out = (uInt)*capacity};
    if (deflateInit2(&z, EXF_H5I_DEFLATE_LEVEL, Z_DEFLATED, WINDOW_BITS, MEMORY_LEVEL, Z_RLE) != Z_OK) return 0;
    int done = deflate(&z, Z_FINISH) == Z_STREAM_END;
    *capacity = z.total_out;
    return deflateEnd(&z) == Z_OK && done;
}

static exf_code filter(void *self, size_t i, int worker, exf_err *err)
{
    chunk *c = &((chunk *)self)[i];
    unsigned char *whole = NULL, *shuffled = NULL;
    size_t n = compressBound((uLong)c->capacity);
    exf_code rc;
    (void)worker;
    EXF_TRY(exf_mem_new(&whole, c->capacity, 1, "chunk", err));
    EXF_TRY(exf_mem_new(&shuffled, c->capacity, 1, "chunk", err));
    EXF_TRY(exf_mem_new(&c->out, n, 1, "chunk", err));
    memcpy(whole, (const char *)c->t->data + c->from, c->n); /* zeros behind */
    shuffle(shuffled, whole, c->capacity / width_of(c->t), width_of(c->t));
    if (!deflate_runs(c->out, &n, shuffled, c->capacity))
        rc = exf_fail(err, EXF_NOSPACE, "%s: out of memory: zlib cannot deflate %zu bytes", c->t->name, c->capacity);
    c->n_out = n;
out:
    exf_mem_free(whole);
    exf_mem_free(shuffled);
    return rc;
}

static exf_code write_chunks(exf_h5 *h, const chunks *all, exf_err *err)
{
    for (size_t i = 0; i < all->n; i++) {
        const chunk *c = &all->c[i];
        hid_t dataset;
        exf_code rc = exf_h5i_dataset(h, c->t->name, &dataset, err);
        if (rc != EXF_OK) return rc;
        if (H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, c->at, c->n_out, c->out) < 0)
            return exf_h5i_fail(h, err, "cannot write %s", c->t->name);
    }
    return EXF_OK;
}

exf_code exf_h5_write_all(exf_h5 *h, const exf_tensor *t, size_t n, exf_err *err)
{
    chunks all = {NULL, 0, 0};
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < n; i++) {
        if (t[i].rank == 0 || exf_tensor_count(&t[i]) == 0)
            return exf_fail(err, EXF_INTERNAL, "%s has no elements to compress", t[i].name);
        EXF_TRY(cut(&all, &t[i], err));
    }
    EXF_TRY(exf_parallel_for(all.n, exf_background_threads(), filter, all.c, err));
    for (size_t i = 0; rc == EXF_OK && i < n; i++) rc = exf_h5i_make(h, &t[i], EXF_H5_COMPRESS | EXF_H5I_IN_PARTS, err);
    if (rc == EXF_OK) rc = write_chunks(h, &all, err);
out:
    for (size_t i = 0; i < all.n; i++) exf_mem_free(all.c[i].out);
    exf_mem_free(all.c);
    return rc;
}

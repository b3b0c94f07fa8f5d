/* h5_exact.c - refuses chunks that decode to fewer or more bytes than their elements have, before libhdf5 decodes them.
 *
 * libhdf5 1.10 takes whatever a chunk decodes to for a whole chunk, and copies elements from behind its end.  A stream
 * must be inflated to know its length, so only chunks that libhdf5 is about to be asked for are looked at, each once as
 * long as their dataset stays open: those of our own files are inflated by h5_inflate.c, which knows their length too. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/thread_pool.h"

#include <inttypes.h>
#include <zlib.h>

enum { AT_ONCE = 256 /* chunks */, FILTERS_MAX = 3, FLETCHER_BYTES = 4, ROOM = 1 << 16 };

typedef struct {
    unsigned char *in; /* as stored */
    size_t n;
    uint32_t mask;     /* bit i: filter i was left out */
    uint64_t gives;    /* bytes, at least so many if it has more than are wanted */
    int is_cut;        /* 1: a deflate stream whose end was not reached */
} stored_chunk;

typedef struct {
    const exf_h5 *h;
    const exf_tensor *t;
    hsize_t chunk[EXF_MAX_RANK];
    uint64_t bytes; /* of a whole chunk */
    H5Z_filter_t filter[FILTERS_MAX];
    int n_filters;
    stored_chunk held[AT_ONCE];
    size_t n_held, held_bytes;
} looking;

/* ---- one chunk ----------------------------------------------------------------------------- */

static int went_through(const looking *l, const stored_chunk *c, H5Z_filter_t filter)
{
    for (int i = 0; i < l->n_filters; i++)
        if (l->filter[i] == filter) return !(c->mask >> i & 1);
    return 0;
}

/* Counts what the first n bytes inflate to, no further than a step beyond what is wanted. */
static exf_code inflate_to(const looking *l, stored_chunk *c, size_t n, unsigned char *room, exf_err *err)
{
    z_stream z = {.next_in = c->in, .avail_in = (uInt)n};
    int status = inflateInit(&z);
    while (status == Z_OK && z.total_out <= l->bytes) {
        z.next_out = room;
        z.avail_out = ROOM;
        status = inflate(&z, Z_NO_FLUSH);
    }
    c->gives = z.total_out;
    c->is_cut = status != Z_STREAM_END;
    inflateEnd(&z);
    if (status != Z_MEM_ERROR) return EXF_OK;
    return exf_fail(err, EXF_NOSPACE, "%s: out of memory: zlib cannot inflate a chunk of %s", l->h->path, l->t->name);
}

static exf_code measure(void *self, size_t i, int worker, exf_err *err)
{
    looking *l = self;
    stored_chunk *c = &l->held[i];
    unsigned char *room = NULL;
    size_t sum = went_through(l, c, H5Z_FILTER_FLETCHER32) ? FLETCHER_BYTES : 0, n = c->n < sum ? 0 : c->n - sum;
    (void)worker;
    c->gives = n; /* the shuffle keeps it */
    if (!went_through(l, c, H5Z_FILTER_DEFLATE)) return EXF_OK;
    exf_code rc = exf_mem_new(&room, ROOM, 1, "a compressed chunk", err);
    if (rc == EXF_OK) rc = inflate_to(l, c, n, room, err);
    exf_mem_free(room);
    return rc;
}

static exf_code judge(const looking *l, const stored_chunk *c, exf_err *err)
{
    if (c->is_cut && c->gives <= l->bytes)
        return exf_fail(err, exf_h5i_blame(l->h),
                        "%s: %s has a chunk whose %zu bytes are no whole deflate stream, expected one of %" PRIu64, l->h->path,
                        l->t->name, c->n, l->bytes);
    if (c->gives == l->bytes) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(l->h), "%s: %s has a chunk whose %zu bytes decode to %s%" PRIu64 ", expected %" PRIu64,
                    l->h->path, l->t->name, c->n, c->is_cut ? "at least " : "", c->gives, l->bytes);
}

/* ---- several ------------------------------------------------------------------------------- */

static void drop(looking *l)
{
    for (size_t i = 0; i < l->n_held; i++) exf_mem_free(l->held[i].in);
    l->n_held = l->held_bytes = 0;
}

static exf_code judge_held(looking *l, exf_err *err)
{
    exf_code rc = exf_parallel_for(l->n_held, exf_background_threads(), measure, l, err);
    for (size_t i = 0; rc == EXF_OK && i < l->n_held; i++) rc = judge(l, &l->held[i], err);
    drop(l);
    return rc;
}

/* Fetches the chunk at `at`, if it is there. */
static exf_code fetch(looking *l, const hsize_t *at, exf_err *err)
{
    stored_chunk *c = &l->held[l->n_held];
    size_t n = (size_t)exf_h5i_stored_bytes(l->h->last, at);
    if (n == 0) return EXF_OK;
    *c = (stored_chunk){.n = n};
    exf_code rc = exf_mem_new(&c->in, n, 1, "a compressed chunk", err);
    if (rc != EXF_OK) return rc;
    l->n_held++;
    l->held_bytes += n;
    if (H5Dread_chunk(l->h->last, H5P_DEFAULT, at, &c->mask, c->in) >= 0) return EXF_OK;
    return exf_h5i_fail(l->h, err, "cannot read %s", l->t->name);
}

/* Looks at the chunks with rows [from, to), where the first of a chunk is `from`. */
static exf_code look_at_rows(looking *l, int64_t from, int64_t to, exf_err *err)
{
    hsize_t at[EXF_MAX_RANK] = {(hsize_t)from};
    int64_t end[EXF_MAX_RANK] = {to};
    int more = from < to;
    exf_code rc = EXF_OK;
    for (int i = 1; i < l->t->rank; i++) end[i] = l->t->shape[i];
    while (rc == EXF_OK && more) {
        rc = fetch(l, at, err);
        more = exf_h5i_next_block(at, l->chunk, end, l->t->rank);
        if (rc == EXF_OK && (!more || l->n_held == AT_ONCE || l->held_bytes > EXF_H5I_STEP_BYTES)) rc = judge_held(l, err);
    }
    return rc;
}

/* Returns 1 if the dataset has chunks that went through filters; sizes of others were compared when it was opened. */
static int has_filters(looking *l)
{
    hid_t dcpl = H5Dget_create_plist(l->h->last);
    int rank = dcpl >= 0 && H5Pget_layout(dcpl) == H5D_CHUNKED ? H5Pget_chunk(dcpl, EXF_MAX_RANK, l->chunk) : 0;
    l->n_filters = rank > 0 ? H5Pget_nfilters(dcpl) : 0;
    l->bytes = exf_dtype_bits(l->t->dtype) / 8;
    for (int i = 0; i < rank; i++) l->bytes *= l->chunk[i];
    for (int i = 0; i < l->n_filters; i++) l->filter[i] = exf_h5i_filter(dcpl, i);
    if (dcpl >= 0) H5Pclose(dcpl);
    return l->n_filters > 0;
}

exf_code exf_h5i_check_chunks(exf_h5 *h, const exf_tensor *t, int64_t row, int64_t n_rows, exf_err *err)
{
    looking *l = NULL;
    exf_code rc;
    if (h->writing || t->rank == 0 || (row >= h->exact_from && row + n_rows <= h->exact_to)) return EXF_OK;
    EXF_TRY(exf_mem_new(&l, 1, sizeof *l, "chunks", err));
    l->h = h;
    l->t = t;
    if (!has_filters(l)) goto out;
    int64_t step = (int64_t)l->chunk[0], from = row - row % step, to = row + n_rows + step - 1;
    to -= to % step;
    if (to > t->shape[0]) to = t->shape[0];
    if (to < h->exact_from || from > h->exact_to) h->exact_from = h->exact_to = from; /* the others are forgotten */
    EXF_TRY(look_at_rows(l, from, h->exact_from, err));
    if (from < h->exact_from) h->exact_from = from;
    EXF_TRY(look_at_rows(l, h->exact_to, to, err));
    if (to > h->exact_to) h->exact_to = to;
out:
    if (l) drop(l);
    exf_mem_free(l);
    return rc;
}

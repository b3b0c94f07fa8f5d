/* check_h5_chunks.c - HDF5 datasets whose stored bytes are fewer or more than their elements are refused, before libhdf5
 * takes what they lack from beyond a buffer. */
#include "tests/support/fixtures_h5.h"

#include <zlib.h>

enum { SHUFFLE = 1, DEFLATE = 2, FLETCHER = 4, ROWS = 5, WIDE = 16, CHUNK_ROWS = 2, CHUNK = CHUNK_ROWS * WIDE * 4 };

/* Element i is i. */
static void count_up(int32_t *x)
{
    for (int i = 0; i < ROWS * WIDE; i++) x[i] = i;
}

/* A dataset [ROWS, WIDE] of its places' numbers, in chunks of two rows, the last of which is half outside. */
static hid_t make_chunked(hid_t f, int filters)
{
    static const hsize_t dims[] = {ROWS, WIDE}, chunk[] = {CHUNK_ROWS, WIDE};
    int32_t x[ROWS * WIDE];
    count_up(x);
    hid_t space = H5Screate_simple(2, dims, NULL), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(dcpl, 2, chunk);
    if (filters & SHUFFLE) H5Pset_shuffle(dcpl);
    if (filters & DEFLATE) H5Pset_deflate(dcpl, 4);
    if (filters & FLETCHER) H5Pset_fletcher32(dcpl);
    hid_t d = H5Dcreate2(f, "x", H5T_STD_I32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    ck_assert_int_ge(H5Dwrite(d, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, x), 0);
    H5Pclose(dcpl);
    H5Sclose(space);
    return d;
}

/* A file whose chunk of rows 2 and 3 holds the first n bytes at `stored`, past the filters in mask. */
static void put_chunk(const char *name, int filters, uint32_t mask, const void *stored, size_t n)
{
    static const hsize_t at[] = {CHUNK_ROWS, 0};
    hid_t f = H5Fcreate(exf_scratch(name), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), d = make_chunked(f, filters);
    ck_assert_int_ge(H5Dwrite_chunk(d, H5P_DEFAULT, mask, at, n, stored), 0);
    H5Dclose(d);
    H5Fclose(f);
}

static exf_h5 *open_it(const char *name)
{
    exf_err e;
    exf_h5 *h;
    ck_ok(exf_h5_open(&h, exf_scratch(name), &e), e);
    return h;
}

/* Whoever reads /x is told `part`: as a whole, by rows, for the hash. */
static void refused(const char *name, const char *part)
{
    exf_err e;
    int32_t x[ROWS * WIDE];
    char hex[EXF_SHA256_HEX];
    exf_tensor t = tensor("/x", EXF_DT_I32, 2, ROWS, WIDE, 0, NULL);
    exf_h5 *h = open_it(name);
    ck_fails(exf_h5_read_rows(h, "/x", EXF_DT_I32, 3, 1, x, &e), EXF_FORMAT, e, part);
    ck_fails(exf_h5_read(h, &t, x, &e), EXF_FORMAT, e, part);
    ck_fails(exf_h5_digest(h, hex, &e), EXF_FORMAT, e, part);
    exf_h5_close(h);
}

/* ---- filtered ------------------------------------------------------------------------------------------ */

typedef struct {
    const char *name;
    int filters;
    uint32_t mask;       /* bit i: filter i was left out */
    int inflated, bytes; /* a deflate stream of so many, or so many bytes as they are; both: of the stream's first */
    const char *part;
} damage;

static const damage filtered[] = {
    {"few-unfiltered.h5", SHUFFLE | DEFLATE, 3, 0, 8, "/x has a chunk whose 8 bytes decode to 8, expected 128"},
    {"many-unfiltered.h5", SHUFFLE | DEFLATE, 3, 0, 200, "/x has a chunk whose 200 bytes decode to 200, expected 128"},
    {"few-inflated.h5", SHUFFLE | DEFLATE, 0, 16, 0, "bytes decode to 16, expected 128"},
    {"none-inflated.h5", SHUFFLE | DEFLATE, 0, 0, 0, "/x has a chunk whose 8 bytes decode to 0, expected 128"},
    {"many-inflated.h5", SHUFFLE | DEFLATE, 0, 129, 0, "bytes decode to 129, expected 128"},
    {"far-too-many-inflated.h5", SHUFFLE | DEFLATE, 0, 900000, 0, "bytes decode to at least 65536, expected 128"},
    {"few-shuffled.h5", SHUFFLE | DEFLATE, 2, 0, 16, "/x has a chunk whose 16 bytes decode to 16, expected 128"},
    {"few-not-shuffled.h5", SHUFFLE | DEFLATE, 1, 16, 0, "bytes decode to 16, expected 128"},
    {"few-deflated.h5", DEFLATE, 0, 127, 0, "bytes decode to 127, expected 128"},
    {"only-shuffled.h5", SHUFFLE, 0, 0, 127, "/x has a chunk whose 127 bytes decode to 127, expected 128"},
    {"few-summed.h5", FLETCHER, 0, 0, 12, "/x has a chunk whose 12 bytes decode to 8, expected 128"},
    {"no-sum.h5", FLETCHER, 0, 0, 3, "/x has a chunk whose 3 bytes decode to 0, expected 128"},
    {"few-not-summed.h5", FLETCHER, 1, 0, 12, "/x has a chunk whose 12 bytes decode to 12, expected 128"},
    {"few-of-all.h5", SHUFFLE | DEFLATE | FLETCHER, 0, 16, 0, "bytes decode to 16, expected 128"},
    {"cut.h5", SHUFFLE | DEFLATE, 0, 128, 9, "/x has a chunk whose 9 bytes are no whole deflate stream, expected one of 128"},
    {"no-stream.h5", SHUFFLE | DEFLATE, 0, 0, 128, "has a chunk whose 128 bytes are no whole deflate stream, expected one of 128"},
};

static void put_damage(const damage *d)
{
    enum { MOST = 1 << 20 };
    unsigned char *plain = malloc(MOST), *out = malloc(MOST);
    uLongf n = MOST - 4;
    for (int i = 0; i < MOST; i++) plain[i] = (unsigned char)(i % 1000 * 37);
    if (d->inflated || !d->bytes) ck_assert_int_eq(compress2(out, &n, plain, (uLong)d->inflated, 4), Z_OK);
    if (d->bytes) n = (uLongf)d->bytes;
    if (d->filters == (SHUFFLE | DEFLATE | FLETCHER)) n += 4;
    put_chunk(d->name, d->filters, d->mask, d->inflated || !d->bytes ? out : plain, n);
    free(plain);
    free(out);
}

START_TEST(chunks_that_decode_to_another_size_are_refused)
{
    for (int i = 0; i < COUNT(filtered); i++) {
        put_damage(&filtered[i]);
        refused(filtered[i].name, filtered[i].part);
    }
    nothing_left(COUNT(filtered));
}
END_TEST

/* Reads all of /x, which holds x. */
static void ck_reads(exf_h5 *h, const int32_t *x)
{
    exf_err e;
    int32_t back[ROWS * WIDE];
    exf_tensor t = tensor("/x", EXF_DT_I32, 2, ROWS, WIDE, 0, NULL);
    ck_ok(exf_h5_read(h, &t, back, &e), e);
    ck_assert_int_eq(memcmp(back, x, sizeof back), 0);
}

/* Filters may be left out of a chunk that is as long as its elements. */
START_TEST(whole_chunks_read_whatever_their_filters)
{
    static const int filters[] = {0,        DEFLATE,           SHUFFLE,
                                  FLETCHER, SHUFFLE | DEFLATE, DEFLATE | FLETCHER, SHUFFLE | DEFLATE | FLETCHER};
    exf_err e;
    int32_t x[ROWS * WIDE], back[ROWS * WIDE];
    count_up(x);
    for (int i = 0; i < COUNT(filters); i++) {
        put_chunk("whole.h5", filters[i], filters[i] ? 7 : 0, x + CHUNK_ROWS * WIDE, CHUNK);
        exf_h5 *h = open_it("whole.h5");
        ck_ok(exf_h5_read_rows(h, "/x", EXF_DT_I32, 1, 3, back, &e), e);
        ck_assert_int_eq(memcmp(back, x + WIDE, 3 * WIDE * sizeof *x), 0);
        ck_reads(h, x);
        exf_h5_close(h);
    }
    nothing_left(1);
}
END_TEST

/* The newest format has an index for one chunk, for chunks that are all there, for a shape that is fixed, and for those
 * that grow along one axis or more. */
START_TEST(chunks_of_any_index_read)
{
    static const hsize_t dims[] = {ROWS, WIDE}, one[] = {ROWS, WIDE}, some[] = {CHUNK_ROWS, 5},
                         grows[][2] = {{ROWS, WIDE}, {H5S_UNLIMITED, WIDE}, {H5S_UNLIMITED, H5S_UNLIMITED}};
    int32_t x[ROWS * WIDE];
    count_up(x);
    for (int i = 0; i < 16; i++) { /* one or some chunks, filtered or not, of four kinds */
        hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), dcpl = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_libver_bounds(fapl, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
        H5Pset_chunk(dcpl, 2, i & 1 ? one : some);
        if (i & 2) H5Pset_deflate(dcpl, 4);
        if (i / 4 == 3) H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY);
        hid_t f = H5Fcreate(exf_scratch("index.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, fapl);
        hid_t space = H5Screate_simple(2, dims, i & 1 ? NULL : grows[i / 4 % 3]);
        hid_t d = H5Dcreate2(f, "x", H5T_STD_I32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
        ck_assert_int_ge(H5Dwrite(d, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, x), 0);
        H5Dclose(d);
        H5Sclose(space);
        H5Pclose(dcpl);
        H5Fclose(f);
        H5Pclose(fapl);
        exf_h5 *h = open_it("index.h5");
        ck_reads(h, x);
        exf_h5_close(h);
    }
    nothing_left(1);
}
END_TEST

/* Rows of whole chunks are read, in any order, beside a chunk that is not. */
START_TEST(rows_beside_a_damaged_chunk_are_read)
{
    static const struct {
        int row, n, whole;
    } reads[] = {{4, 1, 1}, {0, 1, 1}, {1, 1, 1}, {1, 2, 0}, {0, 2, 1}, {3, 2, 0}, {4, 1, 1}, {2, 1, 0}, {0, 5, 0}, {0, 2, 1}};
    exf_err e;
    int32_t x[ROWS * WIDE];
    put_damage(&filtered[0]);
    exf_h5 *h = open_it(filtered[0].name);
    for (int i = 0; i < COUNT(reads); i++) {
        exf_code rc = exf_h5_read_rows(h, "/x", EXF_DT_I32, reads[i].row, reads[i].n, x, &e);
        ck_assert_int_eq(rc, reads[i].whole ? EXF_OK : EXF_FORMAT);
        if (rc == EXF_OK) ck_assert_int_eq(x[0], reads[i].row * WIDE);
    }
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* A dataset of ours that the hash reads in two pieces, of which the second has the damage. */
START_TEST(a_damaged_chunk_of_a_later_piece_is_refused)
{
    enum { N = 6 << 20, CHUNK_ELEMENTS = 1 << 18 };
    static const hsize_t at = 20 * CHUNK_ELEMENTS;
    exf_err e;
    char hex[EXF_SHA256_HEX];
    int32_t *x = calloc(N, sizeof *x);
    exf_tensor t = tensor("/x", EXF_DT_I32, 1, N, 0, 0, x);
    exf_h5 *h = create("long.h5");
    ck_ok(exf_h5_write(h, &t, EXF_H5_COMPRESS, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    free(x);
    hid_t f = H5Fopen(exf_scratch("long.h5"), H5F_ACC_RDWR, H5P_DEFAULT), d = H5Dopen2(f, "x", H5P_DEFAULT);
    ck_assert_int_ge(H5Dwrite_chunk(d, H5P_DEFAULT, 3, &at, 8, "8 bytes"), 0);
    H5Dclose(d);
    H5Fclose(f);
    h = open_it("long.h5");
    ck_fails(exf_h5_digest(h, hex, &e), EXF_FORMAT, e, "/x has a chunk whose 8 bytes decode to 8, expected 1048576");
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* ---- not filtered ---------------------------------------------------------------------------------------- */

START_TEST(unfiltered_chunks_of_another_size_are_refused)
{
    int32_t x[ROWS * WIDE];
    count_up(x);
    put_chunk("few.h5", 0, 0, x, 8);
    refused("few.h5", "/x has a chunk whose 8 bytes are stored without a filter, expected 128");
    put_chunk("many.h5", 0, 0, x, 136);
    refused("many.h5", "/x has a chunk whose 136 bytes are stored without a filter, expected 128");
    nothing_left(2);
}
END_TEST

/* Their sizes are looked up one after the other, each from the first on. */
START_TEST(too_many_unfiltered_chunks_are_refused)
{
    const hsize_t chunk = 16 << 10, n = 8193 * chunk;
    exf_err e;
    exf_tensor t;
    hid_t f = H5Fcreate(exf_scratch("many.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = H5Screate_simple(1, &n, NULL), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(dcpl, 1, &chunk);
    H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER);
    H5Dclose(H5Dcreate2(f, "x", H5T_STD_U8LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT));
    H5Pclose(dcpl);
    H5Sclose(space);
    H5Fclose(f);
    exf_h5 *h = open_it("many.h5");
    ck_fails(exf_h5_describe(h, "/x", &t, &e), EXF_FORMAT, e, "/x has too many chunks without a filter: 8193, at most 8192");
    exf_h5_close(h);
    nothing_left(1);
}
END_TEST

/* HDF5 1.10's format can say that chunks which lie half outside are not filtered. */
START_TEST(chunks_filtered_only_inside_are_refused)
{
    static const hsize_t dims[] = {ROWS, WIDE}, chunk[] = {CHUNK_ROWS, WIDE};
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS), dcpl = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(2, dims, NULL);
    H5Pset_libver_bounds(fapl, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    H5Pset_chunk(dcpl, 2, chunk);
    H5Pset_deflate(dcpl, 4);
    H5Pset_chunk_opts(dcpl, H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS);
    hid_t f = H5Fcreate(exf_scratch("edges.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, fapl);
    H5Dclose(H5Dcreate2(f, "x", H5T_STD_I32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT));
    H5Fclose(f);
    H5Pclose(fapl);
    H5Pclose(dcpl);
    H5Sclose(space);
    refused("edges.h5", "/x has chunks that are filtered only where they lie inside, expected all or none");
    nothing_left(1);
}
END_TEST

/* ---- bytes of the file, changed --------------------------------------------------------------------------- */

/* Replaces the one place of a file that holds the n bytes `was`. */
static void patch(const char *name, const void *was, const void *is, size_t n)
{
    exf_err e;
    char *bytes;
    size_t len, found = 0, at = 0;
    ck_ok(exf_file_slurp(exf_scratch(name), 1 << 20, &bytes, &len, &e), e);
    for (size_t i = 0; i + n <= len; i++)
        if (memcmp(bytes + i, was, n) == 0) {
            at = i;
            found++;
        }
    ck_assert_uint_eq(found, 1);
    memcpy(bytes + at, is, n);
    exf_write_file(exf_scratch(name), bytes, len);
    exf_mem_free(bytes);
}

/* The index's entry of a chunk starts with its bytes and its mask. */
START_TEST(a_chunk_of_no_bytes_is_refused)
{
    static const uint32_t was[] = {60, 3, CHUNK_ROWS, 0, 0, 0}, is[] = {0, 3, CHUNK_ROWS, 0, 0, 0};
    int32_t x[ROWS * WIDE];
    count_up(x);
    put_chunk("none.h5", SHUFFLE | DEFLATE, 3, x, 60);
    patch("none.h5", was, is, sizeof was);
    refused("none.h5", "/x has 3 chunks in its index, of which 2 are found by their places");
    nothing_left(1);
}
END_TEST

/* Makes /x of a layout without chunks; returns its place in the file, or HADDR_UNDEF. */
static haddr_t make_plain(const char *name, H5D_layout_t layout, const int32_t *x)
{
    static const hsize_t dims[] = {ROWS, WIDE};
    hid_t f = H5Fcreate(exf_scratch(name), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hid_t space = H5Screate_simple(2, dims, NULL);
    H5Pset_layout(dcpl, layout);
    hid_t d = H5Dcreate2(f, "x", H5T_STD_I32LE, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    ck_assert_int_ge(H5Dwrite(d, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, x), 0);
    haddr_t at = layout == H5D_CONTIGUOUS ? H5Dget_offset(d) : HADDR_UNDEF;
    H5Dclose(d);
    H5Sclose(space);
    H5Pclose(dcpl);
    H5Fclose(f);
    return at;
}

START_TEST(fewer_stored_bytes_than_elements_are_refused)
{
    unsigned char was[18] = {3, 1}, is[18];
    const uint64_t all = ROWS * WIDE * 4, few = 16;
    int32_t x[ROWS * WIDE];
    count_up(x);
    uint64_t at = make_plain("contiguous.h5", H5D_CONTIGUOUS, x);
    memcpy(was + 2, &at, 8); /* after the version and the class: address and bytes */
    memcpy(was + 10, &all, 8);
    memcpy(is, was, 10);
    memcpy(is + 10, &few, 8);
    patch("contiguous.h5", was, is, 18);
    refused("contiguous.h5", "/x has 16 stored bytes, expected its elements' 320");
    make_plain("compact.h5", H5D_COMPACT, x);
    memcpy(was, (unsigned char[]){3, 0, 320 & 255, 320 >> 8, 0, 0, 0, 0, 1}, 9); /* bytes, then the elements */
    memcpy(is, was, 9);
    memcpy(is + 2, &few, 2);
    patch("compact.h5", was, is, 9);
    refused("compact.h5", "/x"); /* by libhdf5 itself since 1.14, in its words */
    nothing_left(2);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("h5_chunks");
    TCase *t = tcase_create("sizes");
    tcase_add_test(t, chunks_that_decode_to_another_size_are_refused);
    tcase_add_test(t, whole_chunks_read_whatever_their_filters);
    tcase_add_test(t, chunks_of_any_index_read);
    tcase_add_test(t, rows_beside_a_damaged_chunk_are_read);
    tcase_add_test(t, a_damaged_chunk_of_a_later_piece_is_refused);
    tcase_add_test(t, unfiltered_chunks_of_another_size_are_refused);
    tcase_add_test(t, too_many_unfiltered_chunks_are_refused);
    tcase_add_test(t, chunks_filtered_only_inside_are_refused);
    tcase_add_test(t, a_chunk_of_no_bytes_is_refused);
    tcase_add_test(t, fewer_stored_bytes_than_elements_are_refused);
    suite_add_tcase(s, t);
    return s;
}

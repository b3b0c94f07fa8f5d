/* zip_fixtures.h - reading a stored zip in tests, with nothing of zlib or of the
 * writer: records by name, their data checked to lie at multiples of 64 and to
 * have the CRC-32 that the directory and the local header say. */
#ifndef EXF_TESTS_ZIP_FIXTURES_H
#define EXF_TESTS_ZIP_FIXTURES_H
#include "tests/support/scratch_fixtures.h"

#include <stdint.h>

typedef struct {
    unsigned char *bytes;
    size_t n, directory, n_records;
    int wide; /* there is a Zip64 end */
} zip_file;

typedef struct {
    char name[64];
    const unsigned char *data;
    size_t n, offset;
    int wide; /* its directory entry has a Zip64 field */
} zip_record;

static inline uint64_t le(const unsigned char *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* Byte by byte, from a table that is made bit by bit, as the standard words it. */
static inline uint32_t slow_crc32(const unsigned char *p, size_t n)
{
    static uint32_t table[256];
    uint32_t c = 0xffffffffu;
    for (uint32_t i = 1; i < 256 && !table[255]; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++) table[i] = table[i] & 1 ? table[i] >> 1 ^ 0xedb88320u : table[i] >> 1;
    }
    for (size_t i = 0; i < n; i++) c = c >> 8 ^ table[(c ^ p[i]) & 0xff];
    return ~c;
}

static inline zip_file zip_open(const char *name)
{
    exf_err e;
    zip_file z = {.bytes = NULL};
    ck_ok(exf_file_slurp(exf_scratch(name), 1 << 28, (char **)&z.bytes, &z.n, &e), e);
    ck_assert_uint_ge(z.n, 22);
    const unsigned char *end = z.bytes + z.n - 22;
    ck_assert_uint_eq(le(end, 4), 0x06054b50);
    z.n_records = (size_t)le(end + 10, 2);
    ck_assert_uint_eq(le(end + 8, 2), z.n_records);
    z.directory = (size_t)le(end + 16, 4);
    uint64_t size = le(end + 12, 4);
    z.wide = z.n >= 22 + 20 && le(end - 20, 4) == 0x07064b50;
    if (z.wide) {
        const unsigned char *end64 = z.bytes + le(end - 12, 8);
        ck_assert_uint_eq(le(end64, 4), 0x06064b50);
        ck_assert_uint_eq(le(end64 + 32, 8), z.n_records);
        size = le(end64 + 40, 8);
        z.directory = (size_t)le(end64 + 48, 8);
        ck_assert_uint_eq(z.directory + size, (size_t)(end64 - z.bytes));
    } else {
        ck_assert_uint_eq(z.directory + size, z.n - 22);
    }
    return z;
}

/* What a Zip64 field of a directory entry says, in its order, of the fields that are all ones. */
static inline void zip_widen(const unsigned char *c, uint64_t *n, uint64_t *offset)
{
    const unsigned char *extra = c + 46 + le(c + 28, 2), *p = extra + 4;
    ck_assert_uint_eq(le(extra, 2), 1);
    if (*n == UINT32_MAX) {
        *n = le(p, 8);
        ck_assert_uint_eq(le(p + 8, 8), *n);
        p += 16;
    }
    if (*offset == UINT32_MAX) {
        *offset = le(p, 8);
        p += 8;
    }
    ck_assert_uint_eq((size_t)(p - extra), le(extra + 2, 2) + 4);
}

static inline const unsigned char *zip_entry(const zip_file *z, size_t i)
{
    const unsigned char *c = z->bytes + z->directory;
    for (; i > 0; i--) c += 46 + le(c + 28, 2) + le(c + 30, 2) + le(c + 32, 2);
    ck_assert_uint_eq(le(c, 4), 0x02014b50);
    return c;
}

static inline zip_record zip_at(const zip_file *z, size_t i)
{
    zip_record r = {.name = ""};
    const unsigned char *c = zip_entry(z, i);
    ck_assert_uint_eq(le(c + 10, 2), 0); /* stored */
    uint64_t n = le(c + 24, 4), offset = le(c + 42, 4), crc = le(c + 16, 4), len = le(c + 28, 2);
    ck_assert_uint_eq(le(c + 20, 4), n);
    r.wide = le(c + 30, 2) != 0;
    if (r.wide) zip_widen(c, &n, &offset);
    const unsigned char *local = z->bytes + offset;
    ck_assert_uint_eq(le(local, 4), 0x04034b50);
    ck_assert_int_eq(memcmp(local + 6, c + 8, 2 + 2 + 2 + 2 + 4), 0); /* flags to CRC */
    ck_assert_uint_eq(le(local + 26, 2), len);
    ck_assert_int_eq(memcmp(local + 30, c + 46, len), 0);
    ck_assert_uint_lt(len, sizeof r.name);
    memcpy(r.name, c + 46, len);
    r.offset = (size_t)offset;
    r.data = local + 30 + len + le(local + 28, 2);
    r.n = (size_t)n;
    ck_assert_uint_eq((size_t)(r.data - z->bytes) % 64, 0);
    ck_assert_uint_eq(slow_crc32(r.data, r.n), crc);
    return r;
}

static inline zip_record zip_find(const zip_file *z, const char *name)
{
    for (size_t i = 0; i < z->n_records; i++) {
        const unsigned char *c = zip_entry(z, i);
        if (le(c + 28, 2) == strlen(name) && memcmp(c + 46, name, strlen(name)) == 0) return zip_at(z, i);
    }
    ck_abort_msg("no record %s", name);
}
#endif

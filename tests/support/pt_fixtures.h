/* pt_fixtures.h - a .pt file around any bytes in the place of its pickle, beside a storage data/0 of 16 bytes. */
#ifndef EXF_TESTS_PT_FIXTURES_H
#define EXF_TESTS_PT_FIXTURES_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { PT_STORAGE = 16 };

typedef struct {
    unsigned char *b;
    size_t n;
} pt_bytes;

static inline void pt_put(pt_bytes *f, uint64_t v, int n)
{
    for (int i = 0; i < n; i++) f->b[f->n++] = i < 8 ? (unsigned char)(v >> (8 * i)) : 0;
}

static inline void pt_add(pt_bytes *f, const void *bytes, size_t n)
{
    if (n) memcpy(f->b + f->n, bytes, n);
    f->n += n;
}

/* CRC-32 and both sizes of a stored record, and the lengths of its name and extra fields. */
static inline void pt_sizes(pt_bytes *f, const char *name, const void *bytes, size_t n)
{
    pt_put(f, crc32_z(0, bytes, n), 4);
    pt_put(f, n, 4);
    pt_put(f, n, 4);
    pt_put(f, strlen(name), 2);
    pt_put(f, 0, 2);
}

static inline void pt_local(pt_bytes *f, const char *name, const void *bytes, size_t n)
{
    pt_put(f, 0x04034b50, 4);
    pt_put(f, 0, 10); /* version, flags, stored, time, date */
    pt_sizes(f, name, bytes, n);
    pt_add(f, name, strlen(name));
    pt_add(f, bytes, n);
}

static inline void pt_central(pt_bytes *f, const char *name, const void *bytes, size_t n, size_t offset)
{
    pt_put(f, 0x02014b50, 4);
    pt_put(f, 0, 8); /* versions, flags, stored, and */
    pt_put(f, 0, 4); /* time, date */
    pt_sizes(f, name, bytes, n);
    pt_put(f, 0, 8); /* comment, disk, attributes */
    pt_put(f, 0, 2);
    pt_put(f, offset, 4);
    pt_add(f, name, strlen(name));
}

/* The file's bytes; free(b). */
static inline pt_bytes pt_wrap(const void *pickle, size_t n)
{
    static const unsigned char storage[PT_STORAGE] = {0, 0, 128, 63, 0, 0, 0, 64}; /* 1, 2, 0, 0 */
    pt_bytes f = {malloc(n + 512), 0};
    if (!f.b) abort();
    pt_local(&f, "a/data.pkl", pickle, n);
    size_t second = f.n;
    pt_local(&f, "a/data/0", storage, sizeof storage);
    size_t directory = f.n;
    pt_central(&f, "a/data.pkl", pickle, n, 0);
    pt_central(&f, "a/data/0", storage, sizeof storage, second);
    size_t size = f.n - directory;
    pt_put(&f, 0x06054b50, 4);
    pt_put(&f, 0, 4);
    pt_put(&f, 2, 2);
    pt_put(&f, 2, 2);
    pt_put(&f, size, 4);
    pt_put(&f, directory, 4);
    pt_put(&f, 0, 2);
    return f;
}
#endif

/* ptfile_read_zip.c - the archive of a .pt file, for reading: stored records, with or without Zip64 fields. */
#include "base/mem.h"
#include "format/ptfile_read_internal.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

enum { END = 22, END64 = 56, LOCATOR = 20, CENTRAL = 46, LOCAL = 30, MAX_COMMENT = 0xffff };
enum { MAX_RECORDS = 1 << 16, MAX_DIRECTORY = 16 << 20 };

static uint64_t get(const unsigned char *p, int n)
{
    uint64_t v = 0;
    for (int i = n; i-- > 0;) v = v << 8 | p[i];
    return v;
}

static exf_code malformed(const exf_pt_zip *z, const char *what, exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: is no file of torch.save(): %s", exf_file_path(z->file), what);
}

/* The archive's directory: its place in the file and how many records it lists. */
typedef struct {
    uint64_t offset, size, n;
} directory;

static exf_code read_end64(const exf_pt_zip *z, uint64_t end, directory *d, exf_err *err)
{
    unsigned char b[END64];
    exf_code rc;
    if (end < LOCATOR) return malformed(z, "its Zip64 record is missing", err);
    EXF_TRY(exf_file_read(z->file, end - LOCATOR, b, LOCATOR, err));
    uint64_t at = get(b + 8, 8);
    if (get(b, 4) != 0x07064b50 || at > end || end - at < END64) return malformed(z, "its Zip64 record is missing", err);
    EXF_TRY(exf_file_read(z->file, at, b, END64, err));
    if (get(b, 4) != 0x06064b50) return malformed(z, "its Zip64 record is missing", err);
    *d = (directory){get(b + 48, 8), get(b + 40, 8), get(b + 32, 8)};
out:
    return rc;
}

/* Finds the end record, behind which only a comment stands. */
static exf_code find_directory(const exf_pt_zip *z, directory *d, exf_err *err)
{
    uint64_t size = exf_file_size(z->file), tail = size < END + MAX_COMMENT ? size : END + MAX_COMMENT;
    unsigned char *b = NULL;
    exf_code rc;
    if (size < END) return malformed(z, "it is too short for a zip archive", err);
    EXF_TRY(exf_mem_new(&b, (size_t)tail, 1, "end of the archive", err));
    EXF_TRY(exf_file_read(z->file, size - tail, b, (size_t)tail, err));
    uint64_t at = tail - END;
    while (at > 0 && !(get(b + at, 4) == 0x06054b50 && get(b + at + 20, 2) == tail - END - at)) at--;
    if (get(b + at, 4) != 0x06054b50) {
        rc = malformed(z, "it is no zip archive (files of torch before 1.6 are none)", err);
        goto out;
    }
    *d = (directory){get(b + at + 16, 4), get(b + at + 12, 4), get(b + at + 10, 2)};
    if (d->offset == UINT32_MAX || d->size == UINT32_MAX || d->n == 0xffff) EXF_TRY(read_end64(z, size - tail + at, d, err));
    if (d->n > MAX_RECORDS || d->size > MAX_DIRECTORY || d->size > size || d->offset > size - d->size)
        rc = malformed(z, "its directory is larger than the limits, or outside the file", err);
out:
    exf_mem_free(b);
    return rc;
}

/* Sizes and offset that stand in the Zip64 field, in that order, where the directory has none. */
static void take_zip64(const unsigned char *extra, size_t n, uint64_t *values[3])
{
    for (size_t at = 0; at + 4 <= n;) {
        size_t id = (size_t)get(extra + at, 2), len = (size_t)get(extra + at + 2, 2), field = at + 4;
        at = field + len;
        if (id != 1 || at > n) continue;
        for (int i = 0; i < 3; i++)
            if (*values[i] == UINT32_MAX && field + 8 <= at) {
                *values[i] = get(extra + field, 8);
                field += 8;
            }
    }
}

/* Finds where a record's data begins, behind its local header. */
static exf_code locate(const exf_pt_zip *z, exf_pt_zip_record *r, uint64_t header, exf_err *err)
{
    unsigned char b[LOCAL];
    uint64_t size = exf_file_size(z->file);
    exf_code rc;
    if (size < LOCAL || header > size - LOCAL) return malformed(z, "a record lies outside the file", err);
    EXF_TRY(exf_file_read(z->file, header, b, LOCAL, err));
    r->offset = header + LOCAL + get(b + 26, 2) + get(b + 28, 2);
    if (get(b, 4) != 0x04034b50 || r->offset > size || r->size > size - r->offset)
        rc = malformed(z, "a record lies outside the file", err);
out:
    return rc;
}

static exf_code read_entry(exf_pt_zip *z, const unsigned char *b, size_t room, size_t *used, exf_err *err)
{
    exf_pt_zip_record *r = &z->record[z->n];
    if (room < CENTRAL || get(b, 4) != 0x02014b50) return malformed(z, "its directory is cut off", err);
    size_t name = (size_t)get(b + 28, 2), extra = (size_t)get(b + 30, 2);
    *used = CENTRAL + name + extra + (size_t)get(b + 32, 2);
    if (*used > room) return malformed(z, "its directory is cut off", err);
    if (get(b + 8, 2) & 1 || get(b + 10, 2) != 0) return malformed(z, "a record is compressed or encrypted", err);
    uint64_t stored = get(b + 20, 4), header = get(b + 42, 4);
    *r = (exf_pt_zip_record){(const char *)b + CENTRAL, name, get(b + 24, 4), 0, (uint32_t)get(b + 16, 4)};
    take_zip64(b + CENTRAL + name, extra, (uint64_t *[3]){&r->size, &stored, &header});
    if (stored != r->size) return malformed(z, "a stored record has two sizes", err);
    z->n++;
    return locate(z, r, header, err);
}

/* The names' prefix is what stands before data.pkl. */
static exf_code find_prefix(exf_pt_zip *z, exf_err *err)
{
    static const char pickle[] = "/data.pkl";
    size_t n = sizeof pickle - 1;
    for (size_t i = 0; i < z->n; i++) {
        const exf_pt_zip_record *r = &z->record[i];
        if (r->len <= n || memcmp(r->name + r->len - n, pickle, n) != 0 || memchr(r->name, '/', r->len - n)) continue;
        z->prefix = r->name;
        z->prefix_len = r->len - n + 1;
        return EXF_OK;
    }
    return malformed(z, "the archive has no data.pkl", err);
}

exf_code exf_pt_zip_open(exf_pt_zip *z, const char *path, exf_err *err)
{
    directory d = {0};
    exf_code rc;
    EXF_TRY(exf_file_open(&z->file, path, err));
    EXF_TRY(find_directory(z, &d, err));
    EXF_TRY(exf_mem_new(&z->directory, (size_t)d.size, 1, "directory of the archive", err));
    EXF_TRY(exf_mem_new(&z->record, (size_t)d.n, sizeof *z->record, "records of the archive", err));
    EXF_TRY(exf_file_read(z->file, d.offset, z->directory, (size_t)d.size, err));
    for (size_t at = 0, used = 0; z->n < d.n; at += used)
        EXF_TRY(read_entry(z, (const unsigned char *)z->directory + at, (size_t)d.size - at, &used, err));
    rc = find_prefix(z, err);
out:
    return rc;
}

void exf_pt_zip_close(exf_pt_zip *z)
{
    exf_file_close(z->file);
    exf_mem_free(z->directory);
    exf_mem_free(z->record);
}

const exf_pt_zip_record *exf_pt_zip_find(const exf_pt_zip *z, const char *name, size_t len)
{
    for (size_t i = 0; i < z->n; i++) {
        const exf_pt_zip_record *r = &z->record[i];
        if (r->len == z->prefix_len + len && memcmp(r->name, z->prefix, z->prefix_len) == 0 &&
            memcmp(r->name + z->prefix_len, name, len) == 0)
            return r;
    }
    return NULL;
}

exf_code exf_pt_zip_read(const exf_pt_zip *z, const exf_pt_zip_record *r, void *buffer, exf_err *err)
{
    exf_code rc = exf_file_read(z->file, r->offset, buffer, (size_t)r->size, err);
    if (rc != EXF_OK) return rc;
    uint32_t crc = (uint32_t)crc32_z(0, buffer, (size_t)r->size);
    if (crc == r->crc) return EXF_OK;
    return exf_fail(err, EXF_FORMAT, "%s: record %.*s has CRC-32 %08" PRIx32 ", the archive says %08" PRIx32,
                    exf_file_path(z->file), (int)(r->len < 200 ? r->len : 200), r->name, crc, r->crc);
}

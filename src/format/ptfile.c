/* ptfile.c - the zip of a .pt file; see ptfile.h.  The one door to zlib, for CRC-32. */
#include "format/ptfile_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

/* Of the parts of a zip file, without names and extra fields. */
enum { LOCAL = 30, CENTRAL = 46, END64 = 56, ZIP64_LOCAL = 20, PADDING_HEAD = 4, ALIGNMENT = 64 };
enum { VERSION_STORED = 20, VERSION_ZIP64 = 45, DOS_DATE = 1 << 5 | 1 /* 1980-01-01 */, MAX_RECORDS = 0xffff };
enum { ID_DIGITS = 40 };

static uint64_t zip64_from = UINT32_MAX;

void exf_pt_zip64_from(uint64_t bytes)
{
    zip64_from = bytes ? bytes : UINT32_MAX;
}

typedef struct {
    size_t name; /* where it starts in the archive's names */
    const void *bytes;
    uint64_t n, offset; /* offset: of the local header */
    uint32_t crc;
} record;

typedef struct {
    const char *target;
    record *record;
    size_t n;
    exf_text names; /* each with its NUL */
    exf_output_file *file;
    uint64_t at; /* bytes written */
    char id[ID_DIGITS + 1];
} archive;

/* ---- records ---------------------------------------------------------------- */

static exf_code add_record(archive *a, const char *name, const void *bytes, uint64_t n, exf_err *err)
{
    record *r = &a->record[a->n];
    exf_code rc;
    if (n > SIZE_MAX) return exf_fail(err, EXF_NOSPACE, "%s: record %s of %" PRIu64 " bytes", a->target, name, n);
    r->name = a->names.len;
    EXF_TRY(exf_text_addf(&a->names, err, "archive/%s", name));
    EXF_TRY(exf_text_add(&a->names, "", 1, err));
    if (a->names.len - r->name > 0x8000) {
        rc = exf_fail(err, EXF_FORMAT, "%s: a record's name of %zu bytes", a->target, a->names.len - r->name);
        goto out;
    }
    r->bytes = bytes;
    r->n = n;
    r->crc = (uint32_t)crc32_z(0, bytes, (size_t)n);
    a->n++;
out:
    return rc;
}

static exf_code add_storages(archive *a, const exf_pt_storages *s, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < s->n; i++) {
        char name[32];
        snprintf(name, sizeof name, "data/%zu", i);
        rc = add_record(a, name, s->at[i]->data ? s->at[i]->data : "", exf_tensor_bytes(s->at[i]), err);
    }
    return rc;
}

/* Twenty digits of the records' names, twenty of their contents, as torch has it. */
static void make_id(archive *a)
{
    uint64_t names = crc32_z(0, (const void *)a->names.s, a->names.len), contents = 0;
    for (size_t i = 0; i < a->n; i++) contents = contents * 0x9e3779b97f4a7c15u + a->record[i].crc;
    snprintf(a->id, sizeof a->id, "%020" PRIu64 "%020" PRIu64, names, contents);
}

static exf_code list_records(archive *a, const exf_text *pickle, const exf_pt_storages *storages, const exf_pt_record *extra,
                             size_t n_extra, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_new(&a->record, storages->n + n_extra + 4, sizeof *a->record, a->target, err));
    EXF_TRY(add_record(a, "data.pkl", pickle->s, pickle->len, err));
    EXF_TRY(add_record(a, "byteorder", "little", 6, err));
    EXF_TRY(add_storages(a, storages, err));
    for (size_t i = 0; i < n_extra; i++) EXF_TRY(add_record(a, extra[i].name, extra[i].bytes, extra[i].n, err));
    EXF_TRY(add_record(a, "version", "3\n", 2, err));
    make_id(a);
    EXF_TRY(add_record(a, ".data/serialization_id", a->id, ID_DIGITS, err));
out:
    return rc;
}

/* ---- fields ------------------------------------------------------------------- */

typedef struct {
    unsigned char b[CENTRAL + ZIP64_LOCAL + 16];
    size_t n;
} fields;

static void put(fields *f, uint64_t v, int n)
{
    for (int i = 0; i < n; i++) f->b[f->n++] = (unsigned char)(v >> (8 * i) & 0xff);
}

static uint32_t low(uint64_t v)
{
    return v >= zip64_from ? UINT32_MAX : (uint32_t)v;
}

static exf_code out_bytes(archive *a, const void *bytes, size_t n, exf_err *err)
{
    exf_code rc = exf_output_file_write(a->file, bytes, n, err);
    if (rc == EXF_OK) a->at += n;
    return rc;
}

/* From "version needed" to the length of the name, alike in both headers. */
static void put_common(fields *f, const record *r, int wide, size_t name_len)
{
    put(f, wide ? VERSION_ZIP64 : VERSION_STORED, 2);
    put(f, 0, 2); /* flags: names are ASCII */
    put(f, 0, 2); /* method: stored */
    put(f, 0, 2); /* time */
    put(f, DOS_DATE, 2);
    put(f, r->crc, 4);
    put(f, low(r->n), 4);
    put(f, low(r->n), 4);
    put(f, name_len, 2);
}

/* The padding is an extra field named "FB", filled with "Z", which makes the data start at a multiple of 64. */
static exf_code write_local(archive *a, record *r, exf_err *err)
{
    const char *name = a->names.s + r->name;
    size_t len = strlen(name), zip64 = r->n >= zip64_from ? ZIP64_LOCAL : 0;
    char padding[ALIGNMENT];
    fields f = {.n = 0};
    exf_code rc;
    r->offset = a->at;
    uint64_t end = a->at + LOCAL + len + zip64 + PADDING_HEAD;
    size_t pad = (ALIGNMENT - end % ALIGNMENT) % ALIGNMENT;
    put(&f, 0x04034b50, 4);
    put_common(&f, r, zip64 != 0, len);
    put(&f, zip64 + PADDING_HEAD + pad, 2);
    EXF_TRY(out_bytes(a, f.b, f.n, err));
    EXF_TRY(out_bytes(a, name, len, err));
    f.n = 0;
    if (zip64) {
        put(&f, 1, 2);
        put(&f, 16, 2);
        put(&f, r->n, 8);
        put(&f, r->n, 8);
    }
    put(&f, 'F' | 'B' << 8, 2);
    put(&f, pad, 2);
    EXF_TRY(out_bytes(a, f.b, f.n, err));
    memset(padding, 'Z', sizeof padding);
    EXF_TRY(out_bytes(a, padding, pad, err));
out:
    return rc;
}

static exf_code write_central(archive *a, const record *r, exf_err *err)
{
    const char *name = a->names.s + r->name;
    int wide_n = r->n >= zip64_from, wide_offset = r->offset >= zip64_from, wide = wide_n || wide_offset;
    size_t zip64 = wide ? 4u + (wide_n ? 16u : 0u) + (wide_offset ? 8u : 0u) : 0;
    fields f = {.n = 0};
    exf_code rc;
    put(&f, 0x02014b50, 4);
    put(&f, wide ? VERSION_ZIP64 : VERSION_STORED, 2); /* made by, on no particular system */
    put_common(&f, r, wide, strlen(name));
    put(&f, zip64, 2);
    put(&f, 0, 2); /* comment */
    put(&f, 0, 2); /* disk */
    put(&f, 0, 2); /* internal attributes */
    put(&f, 0, 4); /* external attributes */
    put(&f, low(r->offset), 4);
    EXF_TRY(out_bytes(a, f.b, f.n, err));
    EXF_TRY(out_bytes(a, name, strlen(name), err));
    f.n = 0;
    if (wide) {
        put(&f, 1, 2);
        put(&f, zip64 - 4, 2);
    }
    if (wide_n) {
        put(&f, r->n, 8);
        put(&f, r->n, 8);
    }
    if (wide_offset) put(&f, r->offset, 8);
    EXF_TRY(out_bytes(a, f.b, f.n, err));
out:
    return rc;
}

/* Start and size of the central directory, once in 64 bits where they or the number of records need it. */
static exf_code write_end(archive *a, uint64_t start, exf_err *err)
{
    uint64_t size = a->at - start, end = a->at;
    int wide = start >= zip64_from || size >= zip64_from || a->n >= MAX_RECORDS;
    fields f = {.n = 0};
    exf_code rc;
    if (wide) {
        put(&f, 0x06064b50, 4);
        put(&f, END64 - 12, 8);
        put(&f, VERSION_ZIP64, 2);
        put(&f, VERSION_ZIP64, 2);
        put(&f, 0, 8); /* this disk, the directory's disk */
        put(&f, a->n, 8);
        put(&f, a->n, 8);
        put(&f, size, 8);
        put(&f, start, 8);
        put(&f, 0x07064b50, 4);
        put(&f, 0, 4);
        put(&f, end, 8);
        put(&f, 1, 4); /* disks */
    }
    EXF_TRY(out_bytes(a, f.b, f.n, err));
    f.n = 0;
    put(&f, 0x06054b50, 4);
    put(&f, 0, 4);
    put(&f, a->n < MAX_RECORDS ? a->n : MAX_RECORDS, 2);
    put(&f, a->n < MAX_RECORDS ? a->n : MAX_RECORDS, 2);
    put(&f, low(size), 4);
    put(&f, low(start), 4);
    put(&f, 0, 2); /* comment */
    EXF_TRY(out_bytes(a, f.b, f.n, err));
out:
    return rc;
}

static exf_code write_records(archive *a, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; i < a->n; i++) {
        EXF_TRY(write_local(a, &a->record[i], err));
        EXF_TRY(out_bytes(a, a->record[i].bytes, (size_t)a->record[i].n, err));
    }
    uint64_t start = a->at;
    for (size_t i = 0; i < a->n; i++) EXF_TRY(write_central(a, &a->record[i], err));
    EXF_TRY(write_end(a, start, err));
out:
    return rc;
}

exf_code exf_pt_write(const char *target, int force, const exf_pt *root, const exf_pt_record *extra, size_t n_extra, exf_err *err)
{
    archive a = {.target = target};
    exf_text pickle = {0};
    exf_pt_storages storages = {0};
    exf_code rc;
    EXF_TRY(exf_pt_pickle(&pickle, root, &storages, target, err));
    EXF_TRY(list_records(&a, &pickle, &storages, extra, n_extra, err));
    EXF_TRY(exf_output_file_begin(&a.file, target, force, err));
    EXF_TRY(write_records(&a, err));
    rc = exf_output_file_commit(a.file, err);
    a.file = NULL;
out:
    exf_output_file_abort(a.file);
    exf_mem_free(a.record);
    exf_text_free(&a.names);
    exf_mem_free(storages.at);
    exf_text_free(&pickle);
    return rc;
}

/* ptfile.c - writes .pt files: the pickle that names the storages, and the zip file that holds them; see ptfile.h. */
#include "format/ptfile.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

/* Storages in order of appearance. */
typedef struct {
    const exf_tensor **at;
    size_t n, cap;
} pt_storages;

/* ---- the pickle -----------------------------------------------------------------
 * Protocol 2, with no more opcodes than torch's restricted unpickler knows.  Nothing is memoized: a loader may,
 * but need not, find the same string twice. */

enum { MAX_DEPTH = 16 };

typedef struct {
    exf_text *out;
    pt_storages *storages;
    const char *where;
} pickler;

/* Writes an opcode and the n low bytes of v after it, little endian. */
static void write_op(pickler *p, char code, uint64_t v, int n)
{
    char b[9] = {code};
    for (int i = 0; i < n; i++) b[1 + i] = (char)(v >> (8 * i) & 0xff);
    exf_text_append(p->out, b, (size_t)n + 1);
}

static exf_code write_text(pickler *p, const char *s, exf_err *err)
{
    size_t n = strlen(s);
    if (exf_utf8_valid(s, n) != n) return exf_fail(err, EXF_FORMAT, "%s: text \"%.40s\" is not UTF-8", p->where, s);
    if (n > UINT32_MAX) return exf_fail(err, EXF_FORMAT, "%s: text of %zu bytes, at most 4294967295 fit", p->where, n);
    write_op(p, 'X', n, 4);
    exf_text_append(p->out, s, n);
    return EXF_OK;
}

/* K, M, J: 1, 2 bytes unsigned, 4 bytes signed; 0x8a: the next byte says how many. */
static void write_int(pickler *p, int64_t v)
{
    uint64_t u = (uint64_t)v;
    if (v >= 0 && v <= 0xff) write_op(p, 'K', u, 1);
    else if (v >= 0 && v <= 0xffff) write_op(p, 'M', u, 2);
    else if (v >= INT32_MIN && v <= INT32_MAX) write_op(p, 'J', u, 4);
    else {
        exf_text_append(p->out, "\x8a", 1);
        write_op(p, 8, u, 8);
    }
}

static void write_tuple(pickler *p, const int64_t *v, int n)
{
    exf_text_append(p->out, "(", 1);
    for (int i = 0; i < n; i++) write_int(p, v[i]);
    exf_text_append(p->out, "t", 1);
}

/* ---- tensors ------------------------------------------------------------------ */

static const char *const storage_class[EXF_DT_COUNT] = {
    [EXF_DT_F32] = "FloatStorage", [EXF_DT_I32] = "IntStorage", [EXF_DT_I64] = "LongStorage"};

static exf_code check_tensor(const pickler *p, const exf_pt *v, exf_err *err)
{
    const exf_tensor *t = &v->tensor;
    const char *name = v->key ? v->key : "?";
    size_t bytes = exf_dtype_bits(t->dtype) / 8;
    exf_code rc = EXF_OK;
    if (!storage_class[t->dtype])
        return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\" is %s, expected F32, I32 or I64", p->where, name,
                        exf_dtype_name(t->dtype));
    if (t->rank < 0 || t->rank > EXF_MAX_RANK)
        return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\" has %d axes, expected 0 to %d", p->where, name, t->rank, EXF_MAX_RANK);
    for (int i = 0; rc == EXF_OK && i < t->rank; i++) {
        if (t->shape[i] < 0 || (t->shape[i] && bytes > (size_t)INT64_MAX / (size_t)t->shape[i]))
            return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\" has an axis of %lld: more than 64 bits of bytes, or less than none",
                            p->where, name, (long long)t->shape[i]);
        bytes *= (size_t)t->shape[i];
    }
    if (bytes && !t->data) return exf_fail(err, EXF_INTERNAL, "%s: tensor \"%s\": no data for %zu bytes", p->where, name, bytes);
    return rc;
}

static exf_code write_tensor(pickler *p, const exf_pt *v, exf_err *err)
{
    const exf_tensor *t = &v->tensor;
    pt_storages *s = p->storages;
    int64_t stride[EXF_MAX_RANK];
    char index[24];
    exf_code rc;
    EXF_TRY(check_tensor(p, v, err));
    /* Of an empty tensor too, torch has strides as if no axis were shorter than 1. */
    for (int64_t i = t->rank - 1, step = 1; i >= 0; i--) {
        stride[i] = step;
        step *= t->shape[i] > 1 ? t->shape[i] : 1;
    }
    exf_text_appendf(p->out, "ctorch._utils\n_rebuild_tensor_v2\n((");
    /* The storage's persistent id: ("storage", torch.<class>, "<i>", "cpu", elements). */
    snprintf(index, sizeof index, "%zu", s->n);
    EXF_TRY(write_text(p, "storage", err));
    exf_text_appendf(p->out, "ctorch\n%s\n", storage_class[t->dtype]);
    EXF_TRY(write_text(p, index, err));
    EXF_TRY(write_text(p, "cpu", err));
    write_int(p, exf_tensor_count(t));
    exf_text_append(p->out, "tQ", 2);
    EXF_TRY(exf_mem_grow(&s->at, &s->cap, s->n + 1, sizeof *s->at, p->where, err));
    s->at[s->n++] = t;
    write_int(p, 0);
    write_tuple(p, t->shape, t->rank);
    write_tuple(p, stride, t->rank);
    exf_text_appendf(p->out, "\x89"
                             "ccollections\nOrderedDict\n)RtR");
out:
    return rc;
}

/* ---- objects -------------------------------------------------------------------- */

static exf_code write_object(pickler *p, const exf_pt *v, int depth, exf_err *err);

static exf_code write_items(pickler *p, const exf_pt *v, int depth, exf_err *err)
{
    int is_dict = v->kind == EXF_PT_DICT;
    exf_code rc = EXF_OK;
    if (depth == MAX_DEPTH) return exf_fail(err, EXF_FORMAT, "%s: lists and dicts are nested deeper than %d", p->where, MAX_DEPTH);
    for (size_t i = 0; is_dict && i < v->n; i++) {
        const char *key = v->item[i].key;
        if (!key) return exf_fail(err, EXF_INTERNAL, "%s: item %zu of a dict has no key", p->where, i);
        for (size_t k = 0; k < i; k++)
            if (strcmp(key, v->item[k].key) == 0) return exf_fail(err, EXF_FORMAT, "%s: key \"%s\" is given twice", p->where, key);
    }
    exf_text_append(p->out, is_dict ? "}" : "]", 1);
    if (v->n == 0) goto out;
    exf_text_append(p->out, "(", 1);
    for (size_t i = 0; i < v->n; i++) {
        if (is_dict) EXF_TRY(write_text(p, v->item[i].key, err));
        EXF_TRY(write_object(p, &v->item[i], depth + 1, err));
    }
    exf_text_append(p->out, is_dict ? "u" : "e", 1);
out:
    return rc;
}

static exf_code write_object(pickler *p, const exf_pt *v, int depth, exf_err *err)
{
    switch (v->kind) {
    case EXF_PT_NONE: exf_text_append(p->out, "N", 1); return EXF_OK;
    case EXF_PT_BOOL: exf_text_append(p->out, v->integer ? "\x88" : "\x89", 1); return EXF_OK;
    case EXF_PT_INT: write_int(p, v->integer); return EXF_OK;
    case EXF_PT_REAL: { /* big endian, unlike the rest */
        uint64_t u;
        char b[9] = {'G'};
        memcpy(&u, &v->real, sizeof u);
        for (int i = 0; i < 8; i++) b[1 + i] = (char)(u >> (8 * (7 - i)) & 0xff);
        exf_text_append(p->out, b, sizeof b);
        return EXF_OK;
    }
    case EXF_PT_TEXT: return write_text(p, v->text, err);
    case EXF_PT_TENSOR: return write_tensor(p, v, err);
    case EXF_PT_LIST:
    case EXF_PT_DICT: return write_items(p, v, depth, err);
    }
    return exf_fail(err, EXF_INTERNAL, "%s: object of kind %d", p->where, (int)v->kind);
}

/* ---- the zip file -------------------------------------------------------------- */

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
    if (n > SIZE_MAX) return exf_fail(err, EXF_NOSPACE, "%s: record %s of %" PRIu64 " bytes", a->target, name, n);
    r->name = a->names.len;
    exf_text_appendf(&a->names, "archive/%s", name);
    exf_text_append(&a->names, "", 1);
    if (a->names.len - r->name > 0x8000)
        return exf_fail(err, EXF_FORMAT, "%s: a record's name of %zu bytes", a->target, a->names.len - r->name);
    r->bytes = bytes;
    r->n = n;
    r->crc = (uint32_t)crc32_z(0, bytes, (size_t)n);
    a->n++;
    return exf_text_end(&a->names, err);
}

static exf_code list_records(archive *a, const exf_text *pickle, const pt_storages *storages, const exf_pt_record *extra,
                             size_t n_extra, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_new(&a->record, storages->n + n_extra + 4, sizeof *a->record, a->target, err));
    EXF_TRY(add_record(a, "data.pkl", pickle->s, pickle->len, err));
    EXF_TRY(add_record(a, "byteorder", "little", 6, err));
    for (size_t i = 0; i < storages->n; i++) {
        const exf_tensor *t = storages->at[i];
        char name[32];
        snprintf(name, sizeof name, "data/%zu", i);
        EXF_TRY(add_record(a, name, t->data ? t->data : "", exf_tensor_bytes(t), err));
    }
    for (size_t i = 0; i < n_extra; i++) EXF_TRY(add_record(a, extra[i].name, extra[i].bytes, extra[i].n, err));
    EXF_TRY(add_record(a, "version", "3\n", 2, err));
    /* Twenty digits of the records' names, twenty of their contents, as torch has it. */
    uint64_t names = crc32_z(0, (const void *)a->names.s, a->names.len), contents = 0;
    for (size_t i = 0; i < a->n; i++) contents = contents * 0x9e3779b97f4a7c15u + a->record[i].crc;
    snprintf(a->id, sizeof a->id, "%020" PRIu64 "%020" PRIu64, names, contents);
    EXF_TRY(add_record(a, ".data/serialization_id", a->id, ID_DIGITS, err));
out:
    return rc;
}

/* ---- fields ------------------------------------------------------------------- */

typedef struct {
    unsigned char b[CENTRAL + ZIP64_LOCAL + 16];
    size_t n;
} fields;

typedef struct { uint64_t v; int n; } field; /* n low bytes of v, little endian */

/* list: up to a field of no bytes. */
static void add_fields(fields *f, const field *list)
{
    for (; list->n; list++)
        for (int i = 0; i < list->n; i++) f->b[f->n++] = (unsigned char)(list->v >> (8 * i) & 0xff);
}

static uint32_t low_bits(uint64_t v)
{
    return v >= zip64_from ? UINT32_MAX : (uint32_t)v;
}

static exf_code write_out(archive *a, const void *bytes, size_t n, exf_err *err)
{
    exf_code rc = exf_output_file_write(a->file, bytes, n, err);
    if (rc == EXF_OK) a->at += n;
    return rc;
}

/* From "version needed" to the length of the name, alike in both headers. */
static void add_common(fields *f, const record *r, int wide, size_t name_len)
{
    add_fields(f, (const field[]){
        {wide ? VERSION_ZIP64 : VERSION_STORED, 2},
        {0, 2}, /* flags: names are ASCII */
        {0, 2}, /* method: stored */
        {0, 2}, {DOS_DATE, 2}, /* time, date */
        {r->crc, 4},
        {low_bits(r->n), 4}, {low_bits(r->n), 4},
        {name_len, 2},
        {0}});
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
    add_fields(&f, (const field[]){{0x04034b50, 4}, {0}});
    add_common(&f, r, zip64 != 0, len);
    add_fields(&f, (const field[]){{zip64 + PADDING_HEAD + pad, 2}, {0}});
    EXF_TRY(write_out(a, f.b, f.n, err));
    EXF_TRY(write_out(a, name, len, err));
    f.n = 0;
    if (zip64) add_fields(&f, (const field[]){{1, 2}, {16, 2}, {r->n, 8}, {r->n, 8}, {0}});
    add_fields(&f, (const field[]){{'F' | 'B' << 8, 2}, {pad, 2}, {0}});
    EXF_TRY(write_out(a, f.b, f.n, err));
    memset(padding, 'Z', sizeof padding);
    EXF_TRY(write_out(a, padding, pad, err));
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
    /* "made by" is on no particular system */
    add_fields(&f, (const field[]){{0x02014b50, 4}, {wide ? VERSION_ZIP64 : VERSION_STORED, 2}, {0}});
    add_common(&f, r, wide, strlen(name));
    add_fields(&f, (const field[]){
        {zip64, 2},
        {0, 2}, {0, 2}, /* comment, disk */
        {0, 2}, {0, 4}, /* internal and external attributes */
        {low_bits(r->offset), 4},
        {0}});
    EXF_TRY(write_out(a, f.b, f.n, err));
    EXF_TRY(write_out(a, name, strlen(name), err));
    f.n = 0;
    if (wide) add_fields(&f, (const field[]){{1, 2}, {zip64 - 4, 2}, {0}});
    if (wide_n) add_fields(&f, (const field[]){{r->n, 8}, {r->n, 8}, {0}});
    if (wide_offset) add_fields(&f, (const field[]){{r->offset, 8}, {0}});
    EXF_TRY(write_out(a, f.b, f.n, err));
out:
    return rc;
}

/* Start and size of the central directory, once in 64 bits where they or the number of records need it. */
static exf_code write_end(archive *a, uint64_t start, exf_err *err)
{
    uint64_t size = a->at - start, end = a->at, n = a->n < MAX_RECORDS ? a->n : MAX_RECORDS;
    int wide = start >= zip64_from || size >= zip64_from || a->n >= MAX_RECORDS;
    fields f = {.n = 0};
    exf_code rc;
    if (wide)
        add_fields(&f, (const field[]){
            {0x06064b50, 4}, {END64 - 12, 8}, {VERSION_ZIP64, 2}, {VERSION_ZIP64, 2},
            {0, 8}, /* this disk, the directory's disk */
            {a->n, 8}, {a->n, 8}, {size, 8}, {start, 8},
            {0x07064b50, 4}, {0, 4}, {end, 8},
            {1, 4}, /* disks */
            {0}});
    EXF_TRY(write_out(a, f.b, f.n, err));
    f.n = 0;
    add_fields(&f, (const field[]){
        {0x06054b50, 4}, {0, 4}, {n, 2}, {n, 2}, {low_bits(size), 4}, {low_bits(start), 4},
        {0, 2}, /* comment */
        {0}});
    EXF_TRY(write_out(a, f.b, f.n, err));
out:
    return rc;
}

exf_code exf_pt_write(const char *target, int force, const exf_pt *root, const exf_pt_record *extra, size_t n_extra, exf_err *err)
{
    archive a = {.target = target};
    exf_text pickle = {0};
    pt_storages storages = {0};
    pickler p = {&pickle, &storages, target};
    exf_code rc;
    exf_text_append(p.out, "\x80\x02", 2);
    EXF_TRY(write_object(&p, root, 0, err));
    exf_text_append(p.out, ".", 1);
    EXF_TRY(exf_text_end(&pickle, err));
    EXF_TRY(list_records(&a, &pickle, &storages, extra, n_extra, err));
    EXF_TRY(exf_output_file_begin(&a.file, target, force, err));
    for (size_t i = 0; i < a.n; i++) {
        EXF_TRY(write_local(&a, &a.record[i], err));
        EXF_TRY(write_out(&a, a.record[i].bytes, (size_t)a.record[i].n, err));
    }
    uint64_t start = a.at;
    for (size_t i = 0; i < a.n; i++) EXF_TRY(write_central(&a, &a.record[i], err));
    EXF_TRY(write_end(&a, start, err));
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

/* safetensors.c - reads .safetensors; see safetensors.h. */
#include "format/safetensors.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char metadata_key[] = "__metadata__";

/* ---- one tensor's description ----------------------------------------- */

static exf_code check_name(const char *path, const char *name, exf_err *err)
{
    enum { SHOWN = 40 };
    size_t len = strlen(name);
    if (len > EXF_ST_MAX_NAME)
        return exf_fail(err, EXF_FORMAT, "%s: tensor \"%.*s...\": name of %zu bytes, at most %d are accepted", path,
                        (int)exf_utf8_valid(name, SHOWN), name, len, EXF_ST_MAX_NAME);
    if (exf_utf8_valid(name, len) != len) return exf_fail(err, EXF_FORMAT, "%s: a tensor's name is not UTF-8", path);
    /* C0, DEL and, as UTF-8, C1: all that a terminal might obey. */
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        if (*p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0))
            return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": control character in its name", path, name);
    if (strcmp(name, metadata_key) == 0) return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": this name is reserved", path, name);
    return EXF_OK;
}

static exf_code refuse_shape(const char *path, const exf_tensor *t, const char *what, exf_err *err)
{
    char shape[256];
    return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": shape %s %s", path, t->name,
                    exf_shape_text(shape, sizeof shape, t->shape, t->rank), what);
}

exf_code exf_st_check(const char *path, const exf_tensor *t, uint64_t *nbytes, exf_err *err)
{
    exf_code rc = check_name(path, t->name, err);
    if (rc != EXF_OK) return rc;
    if (t->rank < 0 || t->rank > EXF_MAX_RANK)
        return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": rank %d, at most %d is supported", path, t->name, t->rank,
                        EXF_MAX_RANK);
    /* Zeros are left out of the product: whoever multiplies a part of the
     * dimensions later must not overflow either. */
    int64_t bits = exf_dtype_bits(t->dtype), empty = 0;
    for (int i = 0; i < t->rank; i++) {
        int64_t d = t->shape[i];
        if (d < 0) return refuse_shape(path, t, "has a negative dimension", err);
        if (d > 0 && bits > INT64_MAX / d) return refuse_shape(path, t, "overflows 64 bits", err);
        if (d > 0) bits *= d;
        empty |= d == 0;
    }
    if (empty) bits = 0;
    if (bits % 8) {
        char shape[256];
        return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": %s %s is %" PRId64 " bits, no whole number of bytes", path, t->name,
                        exf_dtype_name(t->dtype), exf_shape_text(shape, sizeof shape, t->shape, t->rank), bits);
    }
    *nbytes = (uint64_t)bits / 8;
    return EXF_OK;
}

/* ---- parsing the header ----------------------------------------------- */

static exf_code refuse_kind(const exf_st_file *f, const char *tensor, const char *member, const exf_json *j, const char *expected,
                           exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": %s is %s, expected %s", exf_st_path(f), tensor, member,
                    exf_json_type_name(j), expected);
}

static exf_code parse_shape(const exf_st_file *f, exf_tensor *t, const exf_json *j, exf_err *err)
{
    size_t rank = exf_json_size(j);
    if (exf_json_type(j) != EXF_JSON_ARRAY) return refuse_kind(f, t->name, "shape", j, "an array", err);
    if (rank > EXF_MAX_RANK)
        return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": rank %zu, at most %d is supported", exf_st_path(f), t->name, rank,
                        EXF_MAX_RANK);
    for (size_t i = 0; i < rank; i++) {
        const exf_json *d = exf_json_at(j, i);
        if (exf_json_type(d) != EXF_JSON_INT) return refuse_kind(f, t->name, "a dimension of its shape", d, "an integer", err);
        t->shape[i] = exf_json_int(d);
    }
    t->rank = (int)rank;
    return EXF_OK;
}

/* Sets t's span, which must be as long as dtype and shape need. */
static exf_code parse_offsets(const exf_st_file *f, exf_st_tensor *t, const exf_json *j, uint64_t need, exf_err *err)
{
    const exf_json *b = NULL, *e = NULL;
    if (exf_json_type(j) == EXF_JSON_ARRAY && exf_json_size(j) == 2) {
        b = exf_json_at(j, 0);
        e = exf_json_at(j, 1);
    }
    if (exf_json_type(b) != EXF_JSON_INT || exf_json_type(e) != EXF_JSON_INT)
        return refuse_kind(f, t->view.name, "data_offsets", j, "[begin, end]", err);
    int64_t begin = exf_json_int(b), end = exf_json_int(e);
    if (begin < 0 || end < begin)
        return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": data_offsets [%" PRId64 ", %" PRId64 "] are no span", exf_st_path(f),
                        t->view.name, begin, end);
    t->offset = f->header_len + (uint64_t)begin;
    t->nbytes = (uint64_t)(end - begin);
    if (t->nbytes == need) return EXF_OK;
    char shape[256];
    return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": %" PRIu64 " bytes at [%" PRId64 ", %" PRId64 "), %s %s needs %" PRIu64,
                    exf_st_path(f), t->view.name, t->nbytes, begin, end, exf_dtype_name(t->view.dtype),
                    exf_shape_text(shape, sizeof shape, t->view.shape, t->view.rank), need);
}

/* Copies s over the parsed header.  It fits: all strings kept come
 * from there, where each took two quotes more, and escapes only lengthen. */
static const char *keep_string(exf_st_file *f, const char *s)
{
    char *at = f->header + f->kept;
    size_t len = strlen(s) + 1;
    memcpy(at, s, len);
    f->kept += len;
    return at;
}

static exf_code parse_tensor(exf_st_file *f, const char *name, const exf_json *j, exf_err *err)
{
    exf_code rc;
    uint64_t need;
    exf_st_tensor *t = &f->tensor[f->n_tensors];
    t->view.name = name;
    if (exf_json_type(j) != EXF_JSON_OBJECT) return refuse_kind(f, name, "its entry", j, "an object", err);
    size_t len;
    const exf_json *dtype = exf_json_get(j, "dtype");
    const char *word = exf_json_string(dtype, &len);
    if (!word) return refuse_kind(f, name, "dtype", dtype, "a string", err);
    if (strlen(word) != len || !exf_dtype_parse(word, &t->view.dtype))
        return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": unknown dtype \"%s\"", exf_st_path(f), name, word);
    EXF_TRY(parse_shape(f, &t->view, exf_json_get(j, "shape"), err));
    EXF_TRY(exf_st_check(exf_st_path(f), &t->view, &need, err));
    EXF_TRY(parse_offsets(f, t, exf_json_get(j, "data_offsets"), need, err));
    t->view.name = keep_string(f, name);
    f->n_tensors++;
out:
    return rc;
}

static exf_code parse_metadata(exf_st_file *f, const exf_json *meta, exf_err *err)
{
    if (meta && exf_json_type(meta) != EXF_JSON_OBJECT)
        return exf_fail(err, EXF_FORMAT, "%s: %s is %s, expected an object", exf_st_path(f), metadata_key,
                        exf_json_type_name(meta));
    exf_code rc = exf_mem_new(&f->meta, exf_json_size(meta), sizeof *f->meta, exf_st_path(f), err);
    if (rc != EXF_OK || !meta) return rc;
    for (void *it = exf_json_first(meta); it; it = exf_json_next(meta, it)) {
        size_t len;
        const char *value = exf_json_string(exf_json_value(it), &len);
        if (!value)
            return exf_fail(err, EXF_FORMAT, "%s: %s: \"%s\" is %s, expected a string", exf_st_path(f), metadata_key,
                            exf_json_key(it), exf_json_type_name(exf_json_value(it)));
        if (strlen(value) != len)
            return exf_fail(err, EXF_FORMAT, "%s: %s: \"%s\": NUL at byte %zu of %zu", exf_st_path(f), metadata_key,
                            exf_json_key(it), strlen(value), len);
        f->meta[f->n_meta].key = keep_string(f, exf_json_key(it));
        f->meta[f->n_meta++].value = keep_string(f, value);
    }
    return EXF_OK;
}

static exf_code parse_header(exf_st_file *f, exf_err *err)
{
    exf_code rc;
    exf_json *doc = NULL;
    exf_text where = {0};
    exf_text_appendf(&where, "%s: header", exf_st_path(f));
    EXF_TRY(exf_text_end(&where, err));
    EXF_TRY(exf_json_parse(&doc, f->header + 8, f->header_len - 8, where.s, err));
    const exf_json *meta = exf_json_get(doc, metadata_key);
    EXF_TRY(parse_metadata(f, meta, err));
    EXF_TRY(exf_mem_new(&f->tensor, exf_json_size(doc), sizeof *f->tensor, exf_st_path(f), err));
    for (void *it = exf_json_first(doc); it; it = exf_json_next(doc, it))
        if (exf_json_value(it) != meta) EXF_TRY(parse_tensor(f, exf_json_key(it), exf_json_value(it), err));
out:
    exf_text_free(&where);
    exf_json_free(doc);
    return rc;
}

/* ---- opening ------------------------------------------------------------ */

static exf_code read_header(exf_st_file *f, exf_err *err)
{
    exf_code rc;
    const char *path = exf_st_path(f);
    uint64_t size = exf_file_size(f->file), n = 0;
    unsigned char le[8];
    if (size < sizeof le)
        return exf_fail(err, EXF_FORMAT, "%s: no safetensors file: %" PRIu64 " bytes, the header's length alone takes 8", path,
                        size);
    EXF_TRY(exf_file_read(f->file, 0, le, sizeof le, err));
    for (int i = 0; i < 8; i++) n |= (uint64_t)le[i] << (8 * i);
    if (n > EXF_ST_MAX_HEADER)
        return exf_fail(err, EXF_FORMAT, "%s: no safetensors file: header of %" PRIu64 " bytes, at most %d are accepted", path, n,
                        EXF_ST_MAX_HEADER);
    if (n > size - sizeof le)
        return exf_fail(err, EXF_FORMAT, "%s: truncated: header of %" PRIu64 " bytes at byte 8, the file ends at byte %" PRIu64,
                        path, n, size);
    f->header_len = sizeof le + (size_t)n;
    EXF_TRY(exf_mem_new(&f->header, f->header_len, 1, path, err));
    EXF_TRY(exf_file_read(f->file, 0, f->header, f->header_len, err));
    if (n == 0) return exf_fail(err, EXF_FORMAT, "%s: no safetensors file: header of 0 bytes, expected a JSON object", path);
    if (f->header[8] != '{')
        return exf_fail(err, EXF_FORMAT, "%s: no safetensors file: header starts with byte 0x%02x, expected '{' (0x7b)", path,
                        (unsigned char)f->header[8]);
out:
    return rc;
}

static int by_offset(const void *a, const void *b)
{
    const exf_st_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? -1 : 1;
    return strcmp(x->view.name, y->view.name); /* so that a message never depends on qsort */
}

static int by_name(const void *a, const void *b)
{
    const exf_st_tensor *x = a, *y = b;
    return strcmp(x->view.name, y->view.name);
}

static int by_key(const void *a, const void *b)
{
    const exf_st_meta *x = a, *y = b;
    return strcmp(x->key, y->key);
}

/* In order of offset the spans touch, from the header to the end of the file.
 * Sorts the tensors by offset. */
static exf_code check_tiling(exf_st_file *f, exf_err *err)
{
    uint64_t at = f->header_len, size = exf_file_size(f->file);
    const exf_st_tensor *t = NULL;
    qsort(f->tensor, f->n_tensors, sizeof *f->tensor, by_offset);
    for (size_t i = 0; i < f->n_tensors; i++) {
        t = &f->tensor[i];
        if (t->offset != at)
            return exf_fail(err, EXF_FORMAT,
                            "%s: tensor \"%s\": begins at byte %" PRIu64 " of the data, what lies before ends at %" PRIu64 ": %s",
                            exf_st_path(f), t->view.name, t->offset - f->header_len, at - f->header_len,
                            t->offset > at ? "hole" : "overlap");
        at += t->nbytes;
    }
    if (at == size) return EXF_OK;
    if (!t)
        return exf_fail(err, EXF_FORMAT,
                        "%s: header ends at byte %" PRIu64 ", the file at byte %" PRIu64 ": no tensor has this data",
                        exf_st_path(f), at, size);
    return exf_fail(err, EXF_FORMAT, "%s: tensor \"%s\": ends at byte %" PRIu64 ", the file at byte %" PRIu64 ": %s",
                    exf_st_path(f), t->view.name, at, size, at > size ? "truncated" : "no tensor has this data");
}

int exf_st_is_one(const char *path)
{
    unsigned char b[9]; /* the header's length, far below 2^32, and its first character */
    return exf_file_begins(path, b, sizeof b) && !(b[4] | b[5] | b[6] | b[7]) && b[8] == '{';
}

exf_code exf_st_open(exf_st_file **out, const char *path, exf_err *err)
{
    exf_file *file;
    *out = NULL;
    exf_code rc = exf_file_open(&file, path, err);
    return rc == EXF_OK ? exf_st_open_file(out, file, err) : rc;
}

exf_code exf_st_open_file(exf_st_file **out, exf_file *file, exf_err *err)
{
    exf_code rc;
    exf_st_file *f = NULL;
    *out = NULL;
    if ((rc = exf_mem_new(&f, 1, sizeof *f, exf_file_path(file), err)) != EXF_OK) {
        exf_file_close(file);
        return rc;
    }
    f->file = file;
    EXF_TRY(read_header(f, err));
    EXF_TRY(parse_header(f, err));
    EXF_TRY(check_tiling(f, err));
    qsort(f->tensor, f->n_tensors, sizeof *f->tensor, by_name);
    qsort(f->meta, f->n_meta, sizeof *f->meta, by_key);
    *out = f;
    f = NULL;
out:
    exf_st_close(f);
    return rc;
}

void exf_st_close(exf_st_file *f)
{
    if (!f) return;
    exf_file_close(f->file);
    exf_mem_free(f->header);
    exf_mem_free(f->tensor);
    exf_mem_free(f->meta);
    exf_mem_free(f);
}

/* ---- looking up and reading ---------------------------------------------- */

const char *exf_st_path(const exf_st_file *f)
{
    return exf_file_path(f->file);
}

const exf_st_tensor *exf_st_find(const exf_st_file *f, const char *name)
{
    exf_st_tensor key = {.view.name = name};
    return bsearch(&key, f->tensor, f->n_tensors, sizeof *f->tensor, by_name);
}

const char *exf_st_metadata(const exf_st_file *f, const char *key)
{
    exf_st_meta wanted = {.key = key};
    const exf_st_meta *m = bsearch(&wanted, f->meta, f->n_meta, sizeof *f->meta, by_key);
    return m ? m->value : NULL;
}

static exf_code check_span(const exf_st_file *f, const exf_st_tensor *t, uint64_t begin, size_t n, exf_err *err)
{
    if (begin <= t->nbytes && n <= t->nbytes - begin) return EXF_OK;
    return exf_fail(err, EXF_INTERNAL, "%s: tensor \"%s\": %zu bytes asked for at byte %" PRIu64 " of %" PRIu64, exf_st_path(f),
                    t->view.name, n, begin, t->nbytes);
}

exf_code exf_st_read(const exf_st_file *f, const exf_st_tensor *t, uint64_t begin, void *buf, size_t n, exf_err *err)
{
    exf_code rc = check_span(f, t, begin, n, err);
    return rc == EXF_OK ? exf_file_read(f->file, t->offset + begin, buf, n, err) : rc;
}

exf_code exf_st_read_aligned(const exf_st_file *f, const exf_st_tensor *t, uint64_t begin, void *buffer, size_t n, const void **at,
                             exf_err *err)
{
    exf_code rc = check_span(f, t, begin, n, err);
    return rc == EXF_OK ? exf_file_read_aligned(f->file, t->offset + begin, buffer, n, at, err) : rc;
}

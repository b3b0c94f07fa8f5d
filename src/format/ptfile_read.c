/* ptfile_read.c - see ptfile_read.h. */
#include "base/mem.h"
#include "format/ptfile_read_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The place of a tensor's bytes in the file; the tensor's exf_pt.integer is its index among these places. */
typedef struct {
    const exf_pt_zip_record *from;
    uint64_t begin;
} place;

struct exf_pt_file {
    exf_pt_zip zip;
    char *path;
    exf_pt root;
    void **owned; /* items, keys and text of the root */
    size_t n_owned, cap_owned;
    place *tensor;
    size_t n_tensors, cap_tensors;
};

const char *exf_pt_path(const exf_pt_file *f)
{
    return f->path;
}

const exf_pt *exf_pt_root(const exf_pt_file *f)
{
    return &f->root;
}

const exf_pt *exf_pt_get(const exf_pt *dict, const char *key)
{
    for (size_t i = dict && dict->kind == EXF_PT_DICT ? dict->n : 0; i-- > 0;)
        if (strcmp(dict->item[i].key, key) == 0) return &dict->item[i];
    return NULL;
}

/* ---- objects to values ----------------------------------------------------------------- */

typedef struct {
    exf_pt_file *f;
    const exf_pt_objects *objects;
    size_t made; /* values so far: an object may stand at many places */
} conversion;

static exf_code own(exf_pt_file *f, void *memory, exf_err *err)
{
    exf_code rc = exf_mem_grow(&f->owned, &f->cap_owned, f->n_owned + 1, sizeof *f->owned, f->path, err);
    if (rc == EXF_OK)
        f->owned[f->n_owned++] = memory;
    else
        exf_mem_free(memory);
    return rc;
}

static exf_code own_text(exf_pt_file *f, const char **out, const char *text, size_t n, exf_err *err)
{
    char *copy = NULL;
    exf_code rc = exf_mem_dup(&copy, text, n, f->path, err);
    *out = copy;
    return rc == EXF_OK ? own(f, copy, err) : rc;
}

static exf_code convert_key(conversion *c, exf_pt *out, const exf_pt_object *key, exf_err *err)
{
    char digits[24];
    if (key->kind == EXF_PT_TEXT) return own_text(c->f, &out->key, key->text, key->len, err);
    if (key->kind != EXF_PT_INT)
        return exf_fail(err, EXF_FORMAT, "%s: a dict has a key that is neither text nor an integer", c->f->path);
    int n = snprintf(digits, sizeof digits, "%" PRId64, key->integer);
    return own_text(c->f, &out->key, digits, (size_t)n, err);
}

static exf_code convert(conversion *c, exf_pt *out, uint32_t which, int depth, exf_err *err);

static exf_code convert_items(conversion *c, exf_pt *out, const exf_pt_object *o, int depth, exf_err *err)
{
    size_t each = o->kind == EXF_PT_DICT ? 2 : 1, n = o->n / each;
    exf_pt *item = NULL;
    exf_code rc;
    if (n > EXF_PT_MAX_OBJECTS - c->made) /* before there is memory for them: a list may hold itself */
        return exf_fail(err, EXF_FORMAT, "%s: more than %d values", c->f->path, EXF_PT_MAX_OBJECTS);
    c->made += n;
    EXF_TRY(exf_mem_new(&item, n, sizeof *item, c->f->path, err));
    EXF_TRY(own(c->f, item, err));
    out->item = item;
    for (size_t i = 0; i < n; i++) {
        EXF_TRY(convert(c, &item[i], o->child[each * i + each - 1], depth + 1, err));
        if (each == 2) EXF_TRY(convert_key(c, &item[i], &c->objects->at[o->child[2 * i]], err));
        out->n = i + 1;
    }
out:
    return rc;
}

static exf_code convert_tensor(conversion *c, exf_pt *out, const exf_pt_object *o, exf_err *err)
{
    exf_pt_file *f = c->f;
    exf_code rc = exf_mem_grow(&f->tensor, &f->cap_tensors, f->n_tensors + 1, sizeof *f->tensor, f->path, err);
    if (rc != EXF_OK) return rc;
    f->tensor[f->n_tensors] = (place){o->from, o->begin};
    out->tensor = o->view;
    out->integer = (int64_t)f->n_tensors++;
    return EXF_OK;
}

static exf_code convert(conversion *c, exf_pt *out, uint32_t which, int depth, exf_err *err)
{
    const exf_pt_object *o = &c->objects->at[which];
    if (depth > EXF_PT_MAX_DEPTH) return exf_fail(err, EXF_FORMAT, "%s: nested deeper than %d", c->f->path, EXF_PT_MAX_DEPTH);
    *out = (exf_pt){.kind = (exf_pt_kind)o->kind, .integer = o->integer, .real = o->real};
    switch (o->kind) {
    case EXF_PT_NONE:
    case EXF_PT_BOOL:
    case EXF_PT_INT:
    case EXF_PT_REAL: return EXF_OK;
    case EXF_PT_TEXT: return own_text(c->f, &out->text, o->text, o->len, err);
    case EXF_PT_TENSOR: return convert_tensor(c, out, o, err);
    case EXF_PT_LIST:
    case EXF_PT_DICT: return convert_items(c, out, o, depth, err);
    default: return exf_fail(err, EXF_FORMAT, "%s: holds a class or a storage where a value belongs", c->f->path);
    }
}

/* ---- the file ------------------------------------------------------------------------------ */

static exf_code check_byte_order(const exf_pt_file *f, exf_err *err)
{
    const exf_pt_zip_record *r = exf_pt_zip_find(&f->zip, "byteorder", 9);
    char order[6];
    if (!r) return EXF_OK; /* of torch before 2.1 */
    if (r->size != sizeof order) return exf_fail(err, EXF_FORMAT, "%s: is big-endian; save it on a little-endian machine", f->path);
    exf_code rc = exf_pt_zip_read(&f->zip, r, order, err);
    if (rc == EXF_OK && memcmp(order, "little", sizeof order) != 0)
        return exf_fail(err, EXF_FORMAT, "%s: is big-endian; save it on a little-endian machine", f->path);
    return rc;
}

static exf_code read_pickle(exf_pt_file *f, exf_err *err)
{
    const exf_pt_zip_record *r = exf_pt_zip_find(&f->zip, "data.pkl", 8);
    exf_pt_objects objects = {0};
    unsigned char *pickle = NULL;
    uint32_t root = 0;
    exf_code rc;
    if (r->size > EXF_PT_MAX_PICKLE)
        return exf_fail(err, EXF_FORMAT, "%s: data.pkl has %" PRIu64 " bytes, at most %d are read", f->path, r->size,
                        EXF_PT_MAX_PICKLE);
    EXF_TRY(exf_mem_new(&pickle, (size_t)r->size, 1, f->path, err));
    EXF_TRY(exf_pt_zip_read(&f->zip, r, pickle, err));
    EXF_TRY(exf_pt_unpickle(&objects, &root, &f->zip, pickle, (size_t)r->size, err));
    rc = convert(&(conversion){.f = f, .objects = &objects}, &f->root, root, 0, err);
out:
    exf_pt_objects_free(&objects);
    exf_mem_free(pickle);
    return rc;
}

exf_code exf_pt_open(exf_pt_file **out, const char *path, exf_err *err)
{
    exf_code rc;
    exf_pt_file *f = NULL;
    *out = NULL;
    EXF_TRY(exf_mem_new(&f, 1, sizeof *f, path, err));
    EXF_TRY(exf_mem_strdup(&f->path, path, path, err));
    EXF_TRY(exf_pt_zip_open(&f->zip, path, err));
    EXF_TRY(check_byte_order(f, err));
    EXF_TRY(read_pickle(f, err));
out:
    if (rc == EXF_OK)
        *out = f;
    else
        exf_pt_close(f);
    return rc;
}

void exf_pt_close(exf_pt_file *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->n_owned; i++) exf_mem_free(f->owned[i]);
    exf_mem_free(f->owned);
    exf_mem_free(f->tensor);
    exf_pt_zip_close(&f->zip);
    exf_mem_free(f->path);
    exf_mem_free(f);
}

exf_code exf_pt_read(const exf_pt_file *f, const exf_pt *tensor, void *dst, exf_err *err)
{
    const place *p = &f->tensor[tensor->integer];
    size_t n = exf_tensor_bytes(&tensor->tensor);
    char *all = NULL;
    exf_code rc;
    if (n == p->from->size) return exf_pt_zip_read(&f->zip, p->from, dst, err);
    EXF_TRY(exf_mem_new(&all, (size_t)p->from->size, 1, f->path, err));
    EXF_TRY(exf_pt_zip_read(&f->zip, p->from, all, err));
    memcpy(dst, all + p->begin, n);
out:
    exf_mem_free(all);
    return rc;
}

/* Takes no memory: where there is none left, who opens the file next says so. */
int exf_pt_is_one(const char *path)
{
    char b[4];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int is = fd >= 0 && pread(fd, b, sizeof b, 0) == (ssize_t)sizeof b && memcmp(b, "PK\3\4", sizeof b) == 0;
    if (fd >= 0) close(fd);
    return is;
}

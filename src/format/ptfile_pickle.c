/* ptfile_pickle.c - the pickle of a .pt file, protocol 2, with no more opcodes
 * than torch's restricted unpickler knows.  Nothing is memoized: a loader may,
 * but need not, find the same string twice. */
#include "format/ptfile_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 16 };

typedef struct {
    exf_text *out;
    exf_pt_storages *storages;
    const char *where;
} pickler;

static exf_code raw(pickler *p, const void *bytes, size_t n, exf_err *err)
{
    return exf_text_add(p->out, bytes, n, err);
}

/* An opcode and the n low bytes of v after it, little endian. */
static exf_code op(pickler *p, char code, uint64_t v, int n, exf_err *err)
{
    char b[9] = {code};
    for (int i = 0; i < n; i++) b[1 + i] = (char)(v >> (8 * i) & 0xff);
    return raw(p, b, (size_t)n + 1, err);
}

static exf_code put_text(pickler *p, const char *s, exf_err *err)
{
    size_t n = strlen(s);
    if (exf_utf8_valid(s, n) != n) return exf_fail(err, EXF_FORMAT, "%s: text \"%.40s\" is not UTF-8", p->where, s);
    if (n > UINT32_MAX) return exf_fail(err, EXF_FORMAT, "%s: text of %zu bytes, at most 4294967295 fit", p->where, n);
    exf_code rc = op(p, 'X', n, 4, err);
    return rc == EXF_OK ? raw(p, s, n, err) : rc;
}

/* K, M, J: 1, 2 bytes unsigned, 4 bytes signed; 0x8a: the next byte says how many. */
static exf_code put_int(pickler *p, int64_t v, exf_err *err)
{
    uint64_t u = (uint64_t)v;
    if (v >= 0 && v <= 0xff) return op(p, 'K', u, 1, err);
    if (v >= 0 && v <= 0xffff) return op(p, 'M', u, 2, err);
    if (v >= INT32_MIN && v <= INT32_MAX) return op(p, 'J', u, 4, err);
    exf_code rc = raw(p, "\x8a\x08", 2, err);
    for (int i = 0; rc == EXF_OK && i < 8; i++) rc = raw(p, (char[]){(char)(u >> (8 * i) & 0xff)}, 1, err);
    return rc;
}

/* Big endian, unlike the rest. */
static exf_code put_real(pickler *p, double v, exf_err *err)
{
    uint64_t u;
    char b[9] = {'G'};
    memcpy(&u, &v, sizeof u);
    for (int i = 0; i < 8; i++) b[1 + i] = (char)(u >> (8 * (7 - i)) & 0xff);
    return raw(p, b, sizeof b, err);
}

static exf_code put_tuple(pickler *p, const int64_t *v, int n, exf_err *err)
{
    exf_code rc;
    EXF_TRY(raw(p, "(", 1, err));
    for (int i = 0; i < n; i++) EXF_TRY(put_int(p, v[i], err));
    EXF_TRY(raw(p, "t", 1, err));
out:
    return rc;
}

/* ---- tensors ------------------------------------------------------------------ */

static const char *storage_class(exf_dtype t)
{
    switch (t) {
    case EXF_DT_F32: return "FloatStorage";
    case EXF_DT_I32: return "IntStorage";
    case EXF_DT_I64: return "LongStorage";
    default: return NULL;
    }
}

static exf_code check_tensor(const pickler *p, const exf_pt *v, exf_err *err)
{
    const exf_tensor *t = &v->tensor;
    const char *name = v->key ? v->key : "?";
    size_t bytes = exf_dtype_bits(t->dtype) / 8;
    exf_code rc = EXF_OK;
    if (!storage_class(t->dtype))
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

/* ("storage", torch.<class>, "<i>", "cpu", elements) as a persistent id. */
static exf_code put_storage(pickler *p, const exf_tensor *t, exf_err *err)
{
    char index[24];
    exf_code rc;
    snprintf(index, sizeof index, "%zu", p->storages->n);
    EXF_TRY(raw(p, "(", 1, err));
    EXF_TRY(put_text(p, "storage", err));
    EXF_TRY(exf_text_addf(p->out, err, "ctorch\n%s\n", storage_class(t->dtype)));
    EXF_TRY(put_text(p, index, err));
    EXF_TRY(put_text(p, "cpu", err));
    EXF_TRY(put_int(p, exf_tensor_count(t), err));
    EXF_TRY(raw(p, "tQ", 2, err));
    EXF_TRY(exf_mem_grow(&p->storages->at, &p->storages->cap, p->storages->n + 1, sizeof *p->storages->at, p->where, err));
    p->storages->at[p->storages->n++] = t;
out:
    return rc;
}

static exf_code put_tensor(pickler *p, const exf_pt *v, exf_err *err)
{
    const exf_tensor *t = &v->tensor;
    int64_t stride[EXF_MAX_RANK];
    exf_code rc;
    EXF_TRY(check_tensor(p, v, err));
    /* Of an empty tensor too, torch has strides as if no axis were shorter than 1. */
    for (int64_t i = t->rank - 1, step = 1; i >= 0; i--) {
        stride[i] = step;
        step *= t->shape[i] > 1 ? t->shape[i] : 1;
    }
    EXF_TRY(exf_text_addf(p->out, err, "ctorch._utils\n_rebuild_tensor_v2\n("));
    EXF_TRY(put_storage(p, t, err));
    EXF_TRY(put_int(p, 0, err));
    EXF_TRY(put_tuple(p, t->shape, t->rank, err));
    EXF_TRY(put_tuple(p, stride, t->rank, err));
    EXF_TRY(exf_text_addf(p->out, err,
                          "\x89"
                          "ccollections\nOrderedDict\n)RtR"));
out:
    return rc;
}

/* ---- objects -------------------------------------------------------------------- */

static exf_code check_keys(const pickler *p, const exf_pt *dict, exf_err *err)
{
    for (size_t i = 0; i < dict->n; i++) {
        if (!dict->item[i].key) return exf_fail(err, EXF_INTERNAL, "%s: item %zu of a dict has no key", p->where, i);
        for (size_t k = 0; k < i; k++)
            if (strcmp(dict->item[i].key, dict->item[k].key) == 0)
                return exf_fail(err, EXF_FORMAT, "%s: key \"%s\" is given twice", p->where, dict->item[i].key);
    }
    return EXF_OK;
}

static exf_code put(pickler *p, const exf_pt *v, int depth, exf_err *err);

static exf_code put_items(pickler *p, const exf_pt *v, int depth, exf_err *err)
{
    int is_dict = v->kind == EXF_PT_DICT;
    exf_code rc;
    if (depth == MAX_DEPTH) return exf_fail(err, EXF_FORMAT, "%s: lists and dicts are nested deeper than %d", p->where, MAX_DEPTH);
    if (is_dict) EXF_TRY(check_keys(p, v, err));
    EXF_TRY(raw(p, is_dict ? "}" : "]", 1, err));
    if (v->n == 0) goto out;
    EXF_TRY(raw(p, "(", 1, err));
    for (size_t i = 0; i < v->n; i++) {
        if (is_dict) EXF_TRY(put_text(p, v->item[i].key, err));
        EXF_TRY(put(p, &v->item[i], depth + 1, err));
    }
    EXF_TRY(raw(p, is_dict ? "u" : "e", 1, err));
out:
    return rc;
}

static exf_code put(pickler *p, const exf_pt *v, int depth, exf_err *err)
{
    switch (v->kind) {
    case EXF_PT_NONE: return raw(p, "N", 1, err);
    case EXF_PT_BOOL: return raw(p, v->integer ? "\x88" : "\x89", 1, err);
    case EXF_PT_INT: return put_int(p, v->integer, err);
    case EXF_PT_REAL: return put_real(p, v->real, err);
    case EXF_PT_TEXT: return put_text(p, v->text, err);
    case EXF_PT_TENSOR: return put_tensor(p, v, err);
    case EXF_PT_LIST:
    case EXF_PT_DICT: return put_items(p, v, depth, err);
    }
    return exf_fail(err, EXF_INTERNAL, "%s: object of kind %d", p->where, (int)v->kind);
}

exf_code exf_pt_pickle(exf_text *out, const exf_pt *root, exf_pt_storages *storages, const char *where, exf_err *err)
{
    pickler p = {out, storages, where};
    exf_code rc;
    EXF_TRY(raw(&p, "\x80\x02", 2, err));
    EXF_TRY(put(&p, root, 0, err));
    EXF_TRY(raw(&p, ".", 1, err));
out:
    return rc;
}

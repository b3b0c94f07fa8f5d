/* h5_digest.c - the hash over a file's payload; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <string.h>

enum { DEPTH_MAX = 32 }; /* groups within groups */

/* The place of a digest's walk.  Every record of the hash starts with a word that says what follows, so that no two payloads
 * give the same bytes. */
typedef struct {
    exf_h5 *h;
    exf_hash *hash;
    const char *path;
    int depth; /* 0: the root */
} walk;

static exf_code hash_attr(void *self, const char *name, exf_err *err)
{
    walk *w = self;
    exf_h5i_value v;
    exf_code rc;
    if (strcmp(name, EXF_H5_CHECKSUM) == 0) return EXF_OK; /* follows from the elements */
    if (w->depth == 0 && strcmp(name, EXF_H5_CONTAINER) == 0) return EXF_OK;
    EXF_TRY(exf_h5i_attr(w->h, w->path, name, &v, err));
    EXF_TRY(exf_hash_add_text(w->hash, "attribute", err));
    EXF_TRY(exf_hash_add_text(w->hash, name, err));
    EXF_TRY(exf_hash_add_text(w->hash, exf_h5i_kind_name(v.kind), err));
    if (v.kind == EXF_H5I_OTHER)
        rc = exf_fail(err, exf_h5i_blame(w->h), "%s: attribute %s of %s is neither a text nor one I64, U64 or F64", w->h->path,
                      name, w->path);
    else if (v.kind == EXF_H5I_TEXT)
        rc = exf_hash_add_text(w->hash, v.text, err);
    else
        rc = exf_hash_add_u64(w->hash, v.number.u64, err);
out:
    exf_mem_free(v.text);
    return rc;
}

static exf_code hash_dataset(walk *w, exf_err *err)
{
    exf_h5i_rows r;
    const exf_h5i_rows *defined = w->h->out ? exf_h5i_rows_of(w->h, w->path) : NULL;
    uint32_t crc, should = 0;
    exf_code rc;
    EXF_TRY(exf_h5i_look(w->h, w->path, &r, err));
    EXF_TRY(exf_hash_add_text(w->hash, "elements", err));
    EXF_TRY(exf_hash_add_text(w->hash, exf_dtype_name(r.shape.dtype), err));
    EXF_TRY(exf_hash_add_u64(w->hash, (uint64_t)r.shape.rank, err));
    for (int i = 0; i < r.shape.rank; i++) EXF_TRY(exf_hash_add_u64(w->hash, (uint64_t)r.shape.shape[i], err));
    if (defined)
        should = defined->crc;
    else
        EXF_TRY(exf_h5i_get_checksum(w->h, w->path, &should, err));
    EXF_TRY(exf_h5i_read_all(w->h, &r, &crc, w->hash, err));
    rc = exf_h5i_compare(w->h, w->path, r.bytes, crc, should, err);
out:
    return rc;
}

/* An object with two names could be its own ancestor, and has no one place in
 * the walk; we never write such. */
static exf_code only_name(const walk *w, hid_t object, exf_err *err)
{
#if H5_VERSION_GE(1, 12, 0)
    H5O_info2_t info;
    herr_t status = H5Oget_info3(object, &info, H5O_INFO_BASIC);
#else
    H5O_info_t info;
    herr_t status = H5Oget_info2(object, &info, H5O_INFO_BASIC);
#endif
    if (status < 0) return exf_h5i_fail(w->h, err, "cannot look at %s", w->path);
    if (info.rc == 1) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(w->h), "%s: %s is one object under %u names, expected 1", w->h->path, w->path,
                    (unsigned)info.rc);
}

static exf_code hash_member(void *self, const char *name, exf_err *err);

static exf_code hash_object(walk *w, exf_err *err)
{
    hid_t object;
    exf_code rc = exf_h5i_open(w->h, w->path, &object, err);
    if (rc != EXF_OK) return rc;
    H5I_type_t kind = H5Iget_type(object);
    rc = only_name(w, object, err);
    H5Oclose(object);
    if (rc != EXF_OK) return rc;
    if (kind != H5I_GROUP && kind != H5I_DATASET)
        return exf_fail(err, exf_h5i_blame(w->h), "%s: %s is neither a group nor a dataset", w->h->path, w->path);
    EXF_TRY(exf_hash_add_text(w->hash, "object", err));
    EXF_TRY(exf_hash_add_text(w->hash, w->path, err));
    EXF_TRY(exf_hash_add_text(w->hash, kind == H5I_GROUP ? "group" : "dataset", err));
    EXF_TRY(exf_h5_attrs(w->h, w->path, hash_attr, w, err));
    rc = kind == H5I_GROUP ? exf_h5_members(w->h, w->path, hash_member, w, err) : hash_dataset(w, err);
out:
    return rc;
}

static exf_code hash_member(void *self, const char *name, exf_err *err)
{
    const walk *up = self;
    exf_text path = {0};
    exf_code rc;
    if (up->depth == 0 && strcmp(name, EXF_H5_ORIGIN) == 0) return EXF_OK;
    if (up->depth == DEPTH_MAX)
        return exf_fail(err, EXF_FORMAT, "%s: %s is nested deeper than %d groups", up->h->path, up->path, DEPTH_MAX);
    EXF_TRY(exf_text_addf(&path, err, "%s/%s", up->depth ? up->path : "", name));
    walk w = {up->h, up->hash, path.s, up->depth + 1};
    rc = hash_object(&w, err);
out:
    exf_text_free(&path);
    return rc;
}

exf_code exf_h5_digest(exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err)
{
    walk w = {h, NULL, "/", 0};
    exf_code rc;
    EXF_TRY(exf_hash_new(&w.hash, err));
    EXF_TRY(hash_object(&w, err));
    rc = exf_hash_end(w.hash, hex, err);
    w.hash = NULL;
out:
    exf_hash_free(w.hash);
    return rc;
}

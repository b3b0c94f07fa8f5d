/* h5_digest.c - listing an HDF5 file's objects, and the hash over its payload; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/stop.h"
#include "base/text.h"

#include <string.h>

/* ---- listing --------------------------------------------------------------- */

typedef struct {
    exf_h5_visit visit;
    void *self;
    exf_err *err;
    exf_code rc;
} visitor;

static herr_t visit_name(visitor *v, const char *name)
{
    v->rc = v->visit(v->self, name, v->err);
    return v->rc == EXF_OK ? 0 : 1; /* 1 stops without being HDF5's failure */
}

static herr_t visit_link(hid_t group, const char *name, const H5L_info_t *info, void *self)
{
    (void)group, (void)info;
    return visit_name(self, name);
}

static herr_t visit_attr(hid_t object, const char *name, const H5A_info_t *info, void *self)
{
    (void)object, (void)info;
    return visit_name(self, name);
}

exf_code exf_h5_members(exf_h5 *h, const char *group, exf_h5_visit visit, void *self, exf_err *err)
{
    visitor v = {visit, self, err, EXF_OK};
    H5G_info_t info;
    hid_t object;
    exf_code rc = exf_h5i_open(h, group, &object, err);
    if (rc != EXF_OK) return rc;
    if (H5Iget_type(object) != H5I_GROUP)
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s is a dataset, expected a group", h->path, group);
    else if (H5Gget_info(object, &info) < 0)
        rc = exf_h5i_fail(h, err, "cannot list %s", group);
    else if (info.storage_type == H5G_STORAGE_TYPE_DENSE) /* see exf_h5i_compact */
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s keeps its members in an index, expected them in its header: not one of ours",
                      h->path, group);
    else if (H5Literate(object, H5_INDEX_NAME, H5_ITER_INC, NULL, visit_link, &v) < 0)
        rc = exf_h5i_fail(h, err, "cannot list %s", group);
    H5Oclose(object);
    return rc != EXF_OK ? rc : v.rc;
}

exf_code exf_h5_attrs(exf_h5 *h, const char *object, exf_h5_visit visit, void *self, exf_err *err)
{
    visitor v = {visit, self, err, EXF_OK};
    hid_t o;
    exf_code rc = exf_h5i_open(h, object, &o, err);
    if (rc != EXF_OK) return rc;
    if (H5Aiterate2(o, H5_INDEX_NAME, H5_ITER_INC, NULL, visit_attr, &v) < 0)
        rc = exf_h5i_fail(h, err, "cannot list the attributes of %s", object);
    H5Oclose(o);
    return rc != EXF_OK ? rc : v.rc;
}

/* ---- hashing --------------------------------------------------------------- */

/* Every record of the hash starts with a word that says what follows, so that no two payloads give the same bytes. */
typedef exf_h5i_walk walk;

static exf_code hash_attr(void *self, const char *name, exf_err *err)
{
    walk *w = self;
    exf_h5i_value v;
    exf_code rc;
    if (strcmp(name, EXF_H5_CHECKSUM) == 0) return EXF_OK; /* follows from the elements */
    EXF_TRY(exf_h5i_attr(w->h, w->path, name, &v, err));
    EXF_TRY(exf_hash_add_text(w->hash, "attribute", err));
    EXF_TRY(exf_hash_add_text(w->hash, name, err));
    EXF_TRY(exf_hash_add_text(w->hash, exf_h5i_kind_name(v.kind), err));
    if (v.kind == EXF_H5I_OTHER)
        rc = exf_fail(err, EXF_FORMAT, "%s: attribute %s of %s is neither a text nor one I64, U64 or F64", w->h->path, name,
                      w->path);
    else if (v.kind == EXF_H5I_TEXT)
        rc = exf_hash_add_text(w->hash, v.text, err);
    else
        rc = exf_hash_add_u64(w->hash, v.number.u64, err);
out:
    exf_mem_free(v.text);
    return rc;
}

/* Shortens a block of several rows, but not of all, to whole chunks. */
static void align(hid_t dataset, const exf_tensor *t, hsize_t *block)
{
    hsize_t chunk[H5S_MAX_RANK];
    hid_t dcpl = H5Dget_create_plist(dataset);
    if (dcpl >= 0 && t->rank > 0 && H5Pget_layout(dcpl) == H5D_CHUNKED && H5Pget_chunk(dcpl, H5S_MAX_RANK, chunk) == t->rank &&
        block[0] > chunk[0] && block[0] < (hsize_t)t->shape[0])
        block[0] -= block[0] % chunk[0];
    if (dcpl >= 0) H5Pclose(dcpl);
}

/* Reads one block of elements: whole rows in the fastest way. */
static exf_code read_block(const walk *w, hid_t dataset, const exf_tensor *t, const hsize_t *at, const hsize_t *count, size_t bytes,
                           void *to, exf_err *err)
{
    int done = 0;
    exf_code rc = EXF_OK;
    int64_t row = t->rank ? (int64_t)at[0] : 0, n_rows = t->rank ? (int64_t)count[0] : 1, all = t->rank ? t->shape[0] : 1;
    size_t row_bytes = (size_t)(exf_tensor_count(t) / all) * (exf_dtype_bits(t->dtype) / 8);
    if (bytes == (size_t)n_rows * row_bytes) rc = exf_h5i_inflate(dataset, t, row, n_rows, to, &done, err);
    if (rc == EXF_OK && !done) rc = exf_h5i_check_chunks(w->h, t, row, n_rows, err);
    if (rc != EXF_OK || done) return rc;
    if (exf_h5i_box(dataset, exf_h5i_type(t->dtype), t->rank, at, count, to, NULL) >= 0) return EXF_OK;
    return exf_h5i_fail(w->h, err, "cannot read %s", w->path);
}

/* The elements in the order of memory, in blocks whose size does not matter to
 * the hash. */
static exf_code hash_elements(walk *w, hid_t dataset, const exf_tensor *t, exf_err *err)
{
    size_t element = exf_dtype_bits(t->dtype) / 8, bytes;
    hsize_t block[EXF_MAX_RANK], at[EXF_MAX_RANK] = {0}, count[EXF_MAX_RANK];
    void *buf = NULL;
    exf_h5i_sums sums = {.crc = NULL};
    exf_code rc;
    exf_h5i_block(t, EXF_H5I_STEP_BYTES, block);
    align(dataset, t, block);
    bytes = element;
    for (int i = 0; i < t->rank; i++) bytes *= block[i];
    EXF_TRY(exf_mem_new(&buf, bytes, 1, "a piece of a dataset", err));
    EXF_TRY(exf_h5i_sums_get(w->h, t, &sums, err));
    do {
        bytes = element;
        EXF_TRY(exf_stop_check(err));
        for (int k = 0; k < t->rank; k++) {
            hsize_t left = (hsize_t)t->shape[k] - at[k];
            count[k] = left < block[k] ? left : block[k];
            bytes *= count[k];
        }
        EXF_TRY(read_block(w, dataset, t, at, count, bytes, buf, err));
        EXF_TRY(exf_h5i_sums_check(w->h, w->path, &sums, buf, bytes, err));
        EXF_TRY(exf_hash_add(w->hash, buf, bytes, err));
    } while (exf_h5i_next_block(at, block, t->shape, t->rank));
out:
    exf_h5i_sums_free(&sums);
    exf_mem_free(buf);
    return rc;
}

static exf_code hash_dataset(walk *w, exf_err *err)
{
    exf_tensor t;
    hid_t dataset;
    exf_code rc;
    EXF_TRY(exf_h5_describe(w->h, w->path, &t, err));
    EXF_TRY(exf_h5i_dataset(w->h, w->path, &dataset, err));
    EXF_TRY(exf_hash_add_text(w->hash, "elements", err));
    EXF_TRY(exf_hash_add_text(w->hash, exf_dtype_name(t.dtype), err));
    EXF_TRY(exf_hash_add_u64(w->hash, (uint64_t)t.rank, err));
    for (int i = 0; i < t.rank; i++) EXF_TRY(exf_hash_add_u64(w->hash, (uint64_t)t.shape[i], err));
    if (exf_tensor_count(&t) > 0) rc = hash_elements(w, dataset, &t, err);
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
    return exf_fail(err, EXF_FORMAT, "%s: %s is one object under %u names, expected 1", w->h->path, w->path, (unsigned)info.rc);
}

exf_code exf_h5i_hash_head(walk *w, int *is_group, exf_err *err)
{
    hid_t object;
    exf_code rc = exf_h5i_open(w->h, w->path, &object, err);
    *is_group = 0;
    if (rc != EXF_OK) return rc;
    H5I_type_t kind = H5Iget_type(object);
    rc = only_name(w, object, err);
    H5Oclose(object);
    if (rc != EXF_OK) return rc;
    if (kind != H5I_GROUP && kind != H5I_DATASET)
        return exf_fail(err, EXF_FORMAT, "%s: %s is neither a group nor a dataset", w->h->path, w->path);
    *is_group = kind == H5I_GROUP;
    EXF_TRY(exf_hash_add_text(w->hash, "object", err));
    EXF_TRY(exf_hash_add_text(w->hash, w->path, err));
    EXF_TRY(exf_hash_add_text(w->hash, *is_group ? "group" : "dataset", err));
    rc = exf_h5_attrs(w->h, w->path, hash_attr, w, err);
out:
    return rc;
}

static exf_code hash_object(walk *w, exf_err *err)
{
    int is_group;
    exf_code rc = exf_h5i_hash_head(w, &is_group, err);
    if (rc != EXF_OK) return rc;
    return is_group ? exf_h5_members(w->h, w->path, exf_h5i_hash_member, w, err) : hash_dataset(w, err);
}

exf_code exf_h5i_hash_member(void *self, const char *name, exf_err *err)
{
    const walk *up = self;
    exf_text path = {0};
    exf_code rc;
    if (up->depth == 0 && strcmp(name, EXF_H5_ORIGIN) == 0) return EXF_OK;
    if (up->depth == EXF_H5I_DEPTH_MAX)
        return exf_fail(err, EXF_FORMAT, "%s: %s is nested deeper than %d groups", up->h->path, up->path, EXF_H5I_DEPTH_MAX);
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
    if (h->writing) return exf_fail(err, EXF_INTERNAL, "%s: is open for writing, cannot be hashed yet", h->path);
    EXF_TRY(exf_hash_new(&w.hash, err));
    EXF_TRY(hash_object(&w, err));
    rc = exf_hash_end(w.hash, hex, err);
    w.hash = NULL;
out:
    exf_hash_free(w.hash);
    return rc;
}

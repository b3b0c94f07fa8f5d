/* h5_object.c - attributes, lists of what an object has, and the digest over all objects; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <string.h>

/* ---- listing --------------------------------------------------------------- */

typedef struct {
    exf_h5_visit visit;
    void *self;
    exf_err *err;
    exf_code rc;
} visitor;

static herr_t visit_link(hid_t group, const char *name, const H5L_info_t *info, void *self)
{
    visitor *v = self;
    (void)group, (void)info;
    return (v->rc = v->visit(v->self, name, v->err)) != EXF_OK; /* 1 stops without being HDF5's failure */
}

static herr_t visit_attr(hid_t object, const char *name, const H5A_info_t *info, void *self)
{
    (void)info;
    return visit_link(object, name, NULL, self);
}

exf_code exf_h5_members(exf_h5 *h, const char *group, exf_h5_visit visit, void *self, exf_err *err)
{
    visitor v = {visit, self, err, EXF_OK};
    hid_t object;
    exf_code rc = exf_h5i_open(h, group, &object, err);
    if (rc != EXF_OK) return rc;
    if (H5Iget_type(object) != H5I_GROUP)
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s is a dataset, expected a group", h->path, group);
    else
        rc = exf_h5i_check_group(h, object, group, (int)strlen(group), err);
    if (rc == EXF_OK && H5Literate(object, H5_INDEX_NAME, H5_ITER_INC, NULL, visit_link, &v) < 0)
        rc = exf_h5i_fail(h, err, "cannot list %s", group);
    H5Oclose(object);
    return rc != EXF_OK ? rc : v.rc;
}

/* exf_h5_attrs of an open object. */
static exf_code visit_attrs(exf_h5 *h, hid_t o, const char *object, exf_h5_visit visit, void *self, exf_err *err)
{
    visitor v = {visit, self, err, EXF_OK};
    if (H5Aiterate2(o, H5_INDEX_NAME, H5_ITER_INC, NULL, visit_attr, &v) < 0)
        return exf_h5i_fail(h, err, "cannot list the attributes of %s", object);
    return v.rc;
}

exf_code exf_h5_attrs(exf_h5 *h, const char *object, exf_h5_visit visit, void *self, exf_err *err)
{
    hid_t o;
    exf_code rc = exf_h5i_open(h, object, &o, err);
    if (rc != EXF_OK) return rc;
    rc = visit_attrs(h, o, object, visit, self, err);
    H5Oclose(o);
    return rc;
}

/* ---- writing attributes ---------------------------------------------------- */

static exf_code write_attr(exf_h5 *h, hid_t o, const char *object, const char *name, hid_t type, const void *value, exf_err *err)
{
    exf_code rc;
    hid_t attr = H5I_INVALID_HID, space = H5I_INVALID_HID, acpl = H5I_INVALID_HID;
    EXF_TRY(exf_h5i_writable(h, err));
    htri_t exists = H5Aexists(o, name);
    if (exists != 0) {
        rc = exists < 0 ? exf_h5i_fail(h, err, "cannot look up attribute %s of %s", name, object)
                        : exf_fail(err, EXF_INTERNAL, "%s: %s has an attribute %s already", h->path, object, name);
        goto out;
    }
    acpl = H5Pcreate(H5P_ATTRIBUTE_CREATE);
    H5Pset_char_encoding(acpl, H5T_CSET_UTF8);
    space = H5Screate(H5S_SCALAR);
    attr = H5Acreate2(o, name, type, space, acpl, H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, type, value) < 0) rc = exf_h5i_fail(h, err, "cannot write attribute %s of %s", name, object);
out:
    if (attr >= 0 && H5Aclose(attr) < 0 && rc == EXF_OK) rc = exf_h5i_fail(h, err, "cannot close attribute %s of %s", name, object);
    if (space >= 0) H5Sclose(space);
    if (acpl >= 0) H5Pclose(acpl);
    return rc;
}

exf_code exf_h5i_put_text(exf_h5 *h, hid_t o, const char *object, const char *name, const char *value, exf_err *err)
{
    size_t len = strlen(value), bad = exf_utf8_valid(value, len);
    if (bad != len)
        return exf_fail(err, EXF_INTERNAL, "%s: attribute %s of %s is not valid UTF-8 at byte %zu", h->path, name, object, bad);
    if (len > EXF_H5_TEXT_MAX)
        return exf_fail(err, EXF_INTERNAL, "%s: attribute %s of %s is %zu bytes long, at most %d fit", h->path, name, object, len,
                        EXF_H5_TEXT_MAX);
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, len ? len : 1); /* there is no type of size 0; the NUL after value pads */
    H5Tset_strpad(type, H5T_STR_NULLPAD);
    H5Tset_cset(type, H5T_CSET_UTF8);
    exf_code rc = write_attr(h, o, object, name, type, value, err);
    H5Tclose(type);
    return rc;
}

/* Opens an object to write to it. */
static exf_code open_to_write(exf_h5 *h, const char *object, hid_t *o, exf_err *err)
{
    exf_code rc = exf_h5i_writable(h, err);
    return rc == EXF_OK ? exf_h5i_open(h, object, o, err) : rc;
}

exf_code exf_h5_put_text(exf_h5 *h, const char *object, const char *name, const char *value, exf_err *err)
{
    hid_t o;
    exf_code rc = open_to_write(h, object, &o, err);
    if (rc != EXF_OK) return rc;
    rc = exf_h5i_put_text(h, o, object, name, value, err);
    H5Oclose(o);
    return rc;
}

exf_code exf_h5_put_i64(exf_h5 *h, const char *object, const char *name, int64_t value, exf_err *err)
{
    hid_t o;
    exf_code rc = open_to_write(h, object, &o, err);
    if (rc != EXF_OK) return rc;
    rc = write_attr(h, o, object, name, H5T_STD_I64LE, &value, err);
    H5Oclose(o);
    return rc;
}

/* ---- reading attributes ---------------------------------------------------- */

typedef enum { ATTR_OTHER, ATTR_TEXT, ATTR_I64 } attr_kind;
static const char *const kind_name[] = {"something else", "text", "I64"};

typedef struct {
    attr_kind kind; /* OTHER: nothing was read */
    int64_t i64;
    char *text; /* caller frees; NULL unless TEXT */
} attr_value;

static attr_kind kind_of(hid_t attr, hid_t type)
{
    hid_t space = H5Aget_space(attr);
    int scalar = space >= 0 && H5Sget_simple_extent_type(space) == H5S_SCALAR;
    if (space >= 0) H5Sclose(space);
    if (!scalar) return ATTR_OTHER;
    if (H5Tequal(type, H5T_STD_I64LE) > 0) return ATTR_I64;
    return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 ? ATTR_TEXT : ATTR_OTHER;
}

static exf_code read_text(exf_h5 *h, const char *object, const char *name, hid_t attr, hid_t type, char **text, exf_err *err)
{
    size_t size = H5Tget_size(type);
    if (size > EXF_H5_TEXT_MAX)
        return exf_fail(err, EXF_FORMAT, "%s: attribute %s of %s is %zu bytes long, at most %d are read", h->path, name, object,
                        size, EXF_H5_TEXT_MAX);
    exf_code rc = exf_mem_new(text, size + 1, 1, name, err);
    if (rc != EXF_OK) return rc;
    if (H5Aread(attr, type, *text) < 0) return exf_h5i_fail(h, err, "cannot read attribute %s of %s", name, object);
    while (size && !(*text)[size - 1]) size--; /* padding */
    if (memchr(*text, 0, size) || exf_utf8_valid(*text, size) != size)
        return exf_fail(err, exf_h5i_blame(h), "%s: attribute %s of %s is not valid UTF-8 text", h->path, name, object);
    return EXF_OK;
}

/* Reads an attribute of any kind of an open object; v->text is the caller's to free, also after an error. */
static exf_code read_attr(exf_h5 *h, hid_t o, const char *object, const char *name, attr_value *v, exf_err *err)
{
    exf_code rc = EXF_OK;
    hid_t attr = H5I_INVALID_HID, type = H5I_INVALID_HID;
    *v = (attr_value){.kind = ATTR_OTHER};
    htri_t has = H5Aexists(o, name);
    if (has == 0) {
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s lacks the attribute %s", h->path, object, name);
        goto out;
    }
    attr = has < 0 ? H5I_INVALID_HID : H5Aopen(o, name, H5P_DEFAULT);
    type = attr < 0 ? H5I_INVALID_HID : H5Aget_type(attr);
    if (type < 0) {
        rc = exf_h5i_fail(h, err, "cannot open attribute %s of %s", name, object);
        goto out;
    }
    v->kind = kind_of(attr, type);
    if (v->kind == ATTR_TEXT) EXF_TRY(read_text(h, object, name, attr, type, &v->text, err));
    if (v->kind == ATTR_I64 && H5Aread(attr, H5T_NATIVE_INT64, &v->i64) < 0)
        rc = exf_h5i_fail(h, err, "cannot read attribute %s of %s", name, object);
out:
    if (type >= 0) H5Tclose(type);
    if (attr >= 0) H5Aclose(attr);
    return rc;
}

/* Reads an attribute that must be of that kind. */
static exf_code read_kind(exf_h5 *h, hid_t o, const char *object, const char *name, attr_kind want, attr_value *v, exf_err *err)
{
    exf_code rc = read_attr(h, o, object, name, v, err);
    if (rc == EXF_OK && v->kind != want)
        rc = exf_fail(err, exf_h5i_blame(h), "%s: attribute %s of %s is %s, expected %s", h->path, name, object,
                      kind_name[v->kind], kind_name[want]);
    if (rc == EXF_OK) return EXF_OK;
    exf_mem_free(v->text);
    v->text = NULL;
    return rc;
}

exf_code exf_h5i_get_text(exf_h5 *h, hid_t o, const char *object, const char *name, char **value, exf_err *err)
{
    attr_value v;
    exf_code rc = read_kind(h, o, object, name, ATTR_TEXT, &v, err);
    *value = v.text;
    return rc;
}

exf_code exf_h5_get_text(exf_h5 *h, const char *object, const char *name, char **value, exf_err *err)
{
    hid_t o;
    exf_code rc = exf_h5i_open(h, object, &o, err);
    *value = NULL;
    if (rc != EXF_OK) return rc;
    rc = exf_h5i_get_text(h, o, object, name, value, err);
    H5Oclose(o);
    return rc;
}

exf_code exf_h5_get_i64(exf_h5 *h, const char *object, const char *name, int64_t *value, exf_err *err)
{
    attr_value v;
    hid_t o;
    exf_code rc = exf_h5i_open(h, object, &o, err);
    if (rc != EXF_OK) return rc;
    rc = read_kind(h, o, object, name, ATTR_I64, &v, err);
    if (rc == EXF_OK) *value = v.i64;
    H5Oclose(o);
    return rc;
}

exf_code exf_h5_has_attr(exf_h5 *h, const char *object, const char *name, int *has, exf_err *err)
{
    hid_t o;
    exf_code rc = exf_h5i_open(h, object, &o, err);
    if (rc != EXF_OK) return rc;
    htri_t exists = H5Aexists(o, name);
    if (exists < 0) rc = exf_h5i_fail(h, err, "cannot look up attribute %s of %s", name, object);
    *has = exists > 0;
    H5Oclose(o);
    return rc;
}

/* ---- the digest ------------------------------------------------------------ */

enum { DEPTH_MAX = 32 }; /* groups within groups */

/* The place of a digest's walk.  Every record of the hash starts with a word that says what follows, so that no two payloads
 * give the same bytes. */
typedef struct {
    exf_h5 *h;
    exf_hash *hash;
    const char *after, *through; /* objects: the walk goes on after the one, and ends with the other; NULL: the whole walk */
    const char *path;
    int depth; /* 0: the root */
    hid_t object; /* the one at path, while its attributes are hashed */
} walk;

typedef enum { EARLIER, AROUND, WITHIN, LATER } walk_place;

/* Returns where an object stands to another in the walk: earlier, a group around it, itself or within it, later. */
static walk_place place_of(const char *path, const char *other)
{
    size_t n = 0;
    if (path[1] == 0) return other[1] == 0 ? WITHIN : AROUND; /* the root */
    while (path[n] && path[n] == other[n]) n++;
    if (!path[n]) return !other[n] ? WITHIN : other[n] == '/' ? AROUND : EARLIER;
    if (!other[n]) return path[n] == '/' ? WITHIN : LATER;
    if (path[n] == '/' || other[n] == '/') return path[n] == '/' ? EARLIER : LATER; /* the shorter name comes first */
    return (unsigned char)path[n] < (unsigned char)other[n] ? EARLIER : LATER;
}

static exf_code hash_attr(void *self, const char *name, exf_err *err)
{
    walk *w = self;
    attr_value v;
    exf_code rc;
    if (strcmp(name, EXF_H5_CHECKSUM) == 0) return EXF_OK; /* follows from the elements */
    if (w->depth == 0 && strcmp(name, EXF_H5_CONTAINER) == 0) return EXF_OK;
    EXF_TRY(read_attr(w->h, w->object, w->path, name, &v, err));
    EXF_TRY(exf_hash_add_text(w->hash, "attribute", err));
    EXF_TRY(exf_hash_add_text(w->hash, name, err));
    EXF_TRY(exf_hash_add_text(w->hash, kind_name[v.kind], err));
    if (v.kind == ATTR_OTHER)
        rc = exf_fail(err, exf_h5i_blame(w->h), "%s: attribute %s of %s is neither a text nor one I64", w->h->path, name, w->path);
    else
        rc = v.kind == ATTR_TEXT ? exf_hash_add_text(w->hash, v.text, err) : exf_hash_add_u64(w->hash, (uint64_t)v.i64, err);
out:
    exf_mem_free(v.text);
    return rc;
}

static exf_code hash_dataset(const walk *w, exf_err *err)
{
    exf_h5i_rows r;
    exf_code rc;
    EXF_TRY(exf_h5i_find_elements(w->h, w->path, w->object, &r, err));
    EXF_TRY(exf_hash_add_text(w->hash, "elements", err));
    EXF_TRY(exf_hash_add_text(w->hash, exf_dtype_name(r.shape.dtype), err));
    EXF_TRY(exf_hash_add_u64(w->hash, (uint64_t)r.shape.rank, err));
    for (int i = 0; i < r.shape.rank; i++) EXF_TRY(exf_hash_add_u64(w->hash, (uint64_t)r.shape.shape[i], err));
    rc = exf_h5i_check_elements(w->h, w->path, &r, w->hash, err);
out:
    return rc;
}

/* Refuses an object with two names: it could be its own ancestor, and has no one place in the walk; we never write such. */
static exf_code check_only_name(const walk *w, hid_t object, exf_err *err)
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

/* Hashes what an object is beside the members of a group: path, kind, attributes, elements. */
static exf_code hash_itself(walk *w, H5I_type_t *kind, exf_err *err)
{
    exf_code rc = exf_h5i_open(w->h, w->path, &w->object, err);
    if (rc != EXF_OK) return rc;
    *kind = H5Iget_type(w->object);
    EXF_TRY(check_only_name(w, w->object, err));
    if (*kind != H5I_GROUP && *kind != H5I_DATASET) {
        rc = exf_fail(err, exf_h5i_blame(w->h), "%s: %s is neither a group nor a dataset", w->h->path, w->path);
        goto out;
    }
    EXF_TRY(exf_hash_add_text(w->hash, "object", err));
    EXF_TRY(exf_hash_add_text(w->hash, w->path, err));
    EXF_TRY(exf_hash_add_text(w->hash, *kind == H5I_GROUP ? "group" : "dataset", err));
    EXF_TRY(visit_attrs(w->h, w->object, w->path, hash_attr, w, err));
    if (*kind == H5I_DATASET) rc = hash_dataset(w, err);
out:
    H5Oclose(w->object);
    return rc;
}

static exf_code hash_object(walk *w, exf_err *err)
{
    walk_place from_after = w->after ? place_of(w->path, w->after) : LATER;
    H5I_type_t kind = H5I_GROUP;
    exf_code rc = EXF_OK;
    if (from_after == EARLIER || from_after == WITHIN) return EXF_OK;
    if (w->through && place_of(w->path, w->through) == LATER) return EXF_OK;
    if (from_after != AROUND) EXF_TRY(hash_itself(w, &kind, err)); /* a group around it is hashed itself */
    if (kind == H5I_GROUP) rc = exf_h5_members(w->h, w->path, hash_member, w, err);
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
    exf_text_appendf(&path, "%s/%s", up->depth ? up->path : "", name);
    EXF_TRY(exf_text_end(&path, err));
    walk w = {up->h, up->hash, up->after, up->through, path.s, up->depth + 1, H5I_INVALID_HID};
    rc = hash_object(&w, err);
out:
    exf_text_free(&path);
    return rc;
}

static void forget_digest(exf_h5 *h)
{
    exf_hash_free(h->hash);
    exf_mem_free(h->hashed);
    h->hash = NULL;
    h->hashed = NULL;
}

/* Begins a digest, or goes on with it until the object at `through`; NULL: to its end. */
static exf_code go_on(exf_h5 *h, const char *through, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (!h->hash) {
        EXF_TRY(exf_hash_new(&h->hash, err));
        exf_hash_beside(h->hash);
    }
    walk w = {h, h->hash, h->hashed, through, "/", 0, H5I_INVALID_HID};
    rc = hash_object(&w, err);
out:
    return rc;
}

exf_code exf_h5_digest_through(exf_h5 *h, const char *path, exf_err *err)
{
    char *hashed = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_strdup(&hashed, path, "path of an object", err));
    EXF_TRY(go_on(h, path, err));
    exf_mem_free(h->hashed);
    h->hashed = hashed;
    hashed = NULL;
out:
    exf_mem_free(hashed);
    if (rc != EXF_OK) forget_digest(h);
    return rc;
}

exf_code exf_h5_digest(exf_h5 *h, char hex[EXF_SHA256_HEX], exf_err *err)
{
    exf_hash *whole;
    exf_code rc;
    EXF_TRY(go_on(h, NULL, err));
    whole = h->hash;
    h->hash = NULL;
    rc = exf_hash_end(whole, hex, err);
out:
    forget_digest(h);
    return rc;
}

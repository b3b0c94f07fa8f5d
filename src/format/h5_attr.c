/* h5_attr.c - attributes of HDF5 objects, and lists of what an object has; see h5.h. */
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
    else if (info.storage_type == H5G_STORAGE_TYPE_DENSE) /* see keep_compact */
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

/* ---- writing attributes ---------------------------------------------------- */

static exf_code put_attr(exf_h5 *h, const char *object, const char *name, hid_t file_type, hid_t type, const void *value,
                         exf_err *err)
{
    exf_code rc;
    hid_t o = H5I_INVALID_HID, attr = H5I_INVALID_HID, space = H5I_INVALID_HID, acpl = H5I_INVALID_HID;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(exf_h5i_open(h, object, &o, err));
    htri_t exists = H5Aexists(o, name);
    if (exists != 0) {
        rc = exists < 0 ? exf_h5i_fail(h, err, "cannot look up attribute %s of %s", name, object)
                        : exf_fail(err, EXF_INTERNAL, "%s: %s has an attribute %s already", h->path, object, name);
        goto out;
    }
    acpl = H5Pcreate(H5P_ATTRIBUTE_CREATE);
    H5Pset_char_encoding(acpl, H5T_CSET_UTF8);
    space = H5Screate(H5S_SCALAR);
    attr = H5Acreate2(o, name, file_type, space, acpl, H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, type, value) < 0) rc = exf_h5i_fail(h, err, "cannot write attribute %s of %s", name, object);
out:
    if (attr >= 0 && H5Aclose(attr) < 0 && rc == EXF_OK) rc = exf_h5i_fail(h, err, "cannot close attribute %s of %s", name, object);
    if (space >= 0) H5Sclose(space);
    if (acpl >= 0) H5Pclose(acpl);
    if (o >= 0) H5Oclose(o);
    return rc;
}

exf_code exf_h5_put_text(exf_h5 *h, const char *object, const char *name, const char *value, exf_err *err)
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
    exf_code rc = put_attr(h, object, name, type, type, value, err);
    H5Tclose(type);
    return rc;
}

exf_code exf_h5_put_i64(exf_h5 *h, const char *object, const char *name, int64_t value, exf_err *err)
{
    return put_attr(h, object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value, err);
}

exf_code exf_h5_put_f64(exf_h5 *h, const char *object, const char *name, double value, exf_err *err)
{
    return put_attr(h, object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value, err);
}

/* ---- reading attributes ---------------------------------------------------- */

static exf_h5i_kind kind_of(hid_t attr, hid_t type)
{
    hid_t space = H5Aget_space(attr);
    int scalar = space >= 0 && H5Sget_simple_extent_type(space) == H5S_SCALAR;
    if (space >= 0) H5Sclose(space);
    if (!scalar) return EXF_H5I_OTHER;
    if (H5Tequal(type, H5T_STD_I64LE) > 0) return EXF_H5I_I64;
    if (H5Tequal(type, H5T_STD_U64LE) > 0) return EXF_H5I_U64;
    if (H5Tequal(type, H5T_IEEE_F64LE) > 0) return EXF_H5I_F64;
    return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 ? EXF_H5I_TEXT : EXF_H5I_OTHER;
}

static exf_code read_text(exf_h5 *h, const char *object, const char *name, hid_t attr, hid_t type, char **text, exf_err *err)
{
    size_t size = H5Tget_size(type);
    *text = NULL;
    if (size > EXF_H5_TEXT_MAX)
        return exf_fail(err, EXF_FORMAT, "%s: attribute %s of %s is %zu bytes long, at most %d are read", h->path, name, object,
                        size, EXF_H5_TEXT_MAX);
    exf_code rc = exf_mem_new(text, size + 1, 1, name, err);
    if (rc != EXF_OK) return rc;
    if (H5Aread(attr, type, *text) < 0) {
        rc = exf_h5i_fail(h, err, "cannot read attribute %s of %s", name, object);
    } else {
        while (size && !(*text)[size - 1]) size--; /* padding */
        size_t bad = exf_utf8_valid(*text, size);
        if (memchr(*text, 0, size) || bad != size)
            rc = exf_fail(err, exf_h5i_blame(h), "%s: attribute %s of %s is not valid UTF-8 text", h->path, name, object);
    }
    if (rc == EXF_OK) return rc;
    exf_mem_free(*text);
    *text = NULL;
    return rc;
}

exf_code exf_h5i_attr(exf_h5 *h, const char *object, const char *name, exf_h5i_value *v, exf_err *err)
{
    exf_code rc;
    hid_t o = H5I_INVALID_HID, attr = H5I_INVALID_HID, type = H5I_INVALID_HID;
    v->kind = EXF_H5I_OTHER;
    v->text = NULL;
    EXF_TRY(exf_h5i_open(h, object, &o, err));
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
    if (v->kind == EXF_H5I_TEXT) {
        EXF_TRY(read_text(h, object, name, attr, type, &v->text, err));
    } else if (v->kind != EXF_H5I_OTHER) {
        hid_t native = v->kind == EXF_H5I_F64 ? H5T_NATIVE_DOUBLE : v->kind == EXF_H5I_I64 ? H5T_NATIVE_INT64 : H5T_NATIVE_UINT64;
        if (H5Aread(attr, native, &v->number) < 0) rc = exf_h5i_fail(h, err, "cannot read attribute %s of %s", name, object);
    }
out:
    if (type >= 0) H5Tclose(type);
    if (attr >= 0) H5Aclose(attr);
    if (o >= 0) H5Oclose(o);
    return rc;
}

const char *exf_h5i_kind_name(exf_h5i_kind kind)
{
    static const char *const name[] = {"something else", "text", "I64", "U64", "F64"};
    return name[kind];
}

static exf_code get_attr(exf_h5 *h, const char *object, const char *name, exf_h5i_kind want, exf_h5i_value *v, exf_err *err)
{
    exf_code rc = exf_h5i_attr(h, object, name, v, err);
    if (rc != EXF_OK || v->kind == want) return rc;
    exf_mem_free(v->text);
    return exf_fail(err, exf_h5i_blame(h), "%s: attribute %s of %s is %s, expected %s", h->path, name, object,
                    exf_h5i_kind_name(v->kind), exf_h5i_kind_name(want));
}

exf_code exf_h5_get_text(exf_h5 *h, const char *object, const char *name, char **value, exf_err *err)
{
    exf_h5i_value v;
    exf_code rc = get_attr(h, object, name, EXF_H5I_TEXT, &v, err);
    *value = rc == EXF_OK ? v.text : NULL;
    return rc;
}

exf_code exf_h5_get_i64(exf_h5 *h, const char *object, const char *name, int64_t *value, exf_err *err)
{
    exf_h5i_value v;
    exf_code rc = get_attr(h, object, name, EXF_H5I_I64, &v, err);
    if (rc == EXF_OK) *value = v.number.i64;
    return rc;
}

exf_code exf_h5_get_f64(exf_h5 *h, const char *object, const char *name, double *value, exf_err *err)
{
    exf_h5i_value v;
    exf_code rc = get_attr(h, object, name, EXF_H5I_F64, &v, err);
    if (rc == EXF_OK) *value = v.number.f64;
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

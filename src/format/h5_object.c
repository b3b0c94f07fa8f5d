/* h5_object.c - objects: finds and makes them by their paths, lists what they have, writes and reads their attributes; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"
#include "base/text.h"

#include <string.h>

/* ---- steps of a path ------------------------------------------------------------------ */

void exf_h5i_keep_compact(hid_t creation_list)
{
    enum { MOST = 65535 };
    H5Pset_link_phase_change(creation_list, MOST, 0);
    H5Pset_attr_phase_change(creation_list, MOST, 0);
    H5Pset_obj_track_times(creation_list, 0);
}

/* A step of a path: a member of an open group. */
typedef struct {
    hid_t group;
    const char *name, *path;
    int group_len, path_len; /* how much of the path leads to the group, and to its member, for messages */
} step;

/* HDF5 can make parents itself, but not without times in them. */
static exf_code make_group(exf_h5 *h, const step *s, hid_t *group, exf_err *err)
{
    exf_code rc = EXF_OK;
    hid_t gcpl = H5Pcreate(H5P_GROUP_CREATE);
    exf_h5i_keep_compact(gcpl);
    *group = H5Gcreate2(s->group, s->name, h->lists.link, gcpl, H5P_DEFAULT);
    if (*group < 0)
        rc = exf_h5i_fail(h, err, "cannot make group %.*s", s->path_len, s->path);
    else
        rc = exf_h5i_note_made(h, s->path, s->path_len, NULL, err);
    if (rc != EXF_OK && *group >= 0) {
        H5Gclose(*group);
        *group = H5I_INVALID_HID;
    }
    H5Pclose(gcpl);
    return rc;
}

/* Refuses a group whose members are in an index, see exf_h5i_keep_compact; len: of its path. */
static exf_code check_group(exf_h5 *h, hid_t group, const char *path, int len, exf_err *err)
{
    H5G_info_t info;
    if (H5Gget_info(group, &info) < 0) return exf_h5i_fail(h, err, "cannot list %.*s", len, path);
    if (info.storage_type != H5G_STORAGE_TYPE_DENSE) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(h), "%s: %.*s keeps its members in an index, expected them in its header: not one of ours",
                    h->path, len, path);
}

/* Opens the member, or makes it a group; leaves *member invalid if there is none.  What only a soft or external link leads to
 * is refused: one to another file could make us read anything. */
static exf_code open_member(exf_h5 *h, const step *s, int make, hid_t *member, exf_err *err)
{
    H5L_info_t link;
    int is_group = H5Iget_type(s->group) == H5I_GROUP;
    exf_code rc = is_group ? check_group(h, s->group, s->path, s->group_len, err) : EXF_OK;
    if (rc != EXF_OK) return rc;
    htri_t exists = is_group ? H5Lexists(s->group, s->name, H5P_DEFAULT) : 0;
    if (exists < 0 || (exists && H5Lget_info(s->group, s->name, &link, H5P_DEFAULT) < 0))
        return exf_h5i_fail(h, err, "cannot look up %.*s", s->path_len, s->path);
    if (!exists) return make ? make_group(h, s, member, err) : EXF_OK;
    if (link.type != H5L_TYPE_HARD)
        return exf_fail(err, exf_h5i_blame(h), "%s: %.*s is a soft or external link, which is not followed", h->path, s->path_len,
                        s->path);
    *member = H5Oopen(s->group, s->name, H5P_DEFAULT);
    return *member < 0 ? exf_h5i_fail(h, err, "cannot open %.*s", s->path_len, s->path) : EXF_OK;
}

/* ---- groups that are kept open --------------------------------------------------- */

void exf_h5i_drop_kept(exf_h5 *h)
{
    for (int i = 0; i < EXF_H5I_KEPT; i++) {
        if (h->kept[i].group >= 0 && h->broken == EXF_OK) H5Oclose(h->kept[i].group);
        h->kept[i].group = H5I_INVALID_HID;
    }
}

/* Returns the kept group that leads furthest along a path; NULL: none does, and the root is opened anew. */
static const exf_h5i_kept *find_kept(const exf_h5 *h, const char *path, size_t len)
{
    const exf_h5i_kept *best = NULL;
    for (int i = 0; i < EXF_H5I_KEPT; i++) {
        const exf_h5i_kept *k = &h->kept[i];
        if (k->group < 0 || k->len > len || (k->len < len && path[k->len] != '/') || memcmp(path, k->path, k->len) != 0) continue;
        if (!best || k->len > best->len) best = k;
    }
    return best;
}

/* Keeps an open group, in place of the one that was kept the longest; a path that is kept already has one. */
static void keep_group(exf_h5 *h, hid_t group, const char *path, size_t len)
{
    const exf_h5i_kept *has = find_kept(h, path, len);
    exf_h5i_kept *k = &h->kept[h->next_kept];
    if (len > sizeof k->path || (has && has->len == len)) {
        H5Oclose(group);
        return;
    }
    h->next_kept = (h->next_kept + 1) % EXF_H5I_KEPT;
    if (k->group >= 0 && h->broken == EXF_OK) H5Oclose(k->group);
    k->group = group;
    k->len = len;
    memcpy(k->path, path, len);
}

/* ---- whole paths ---------------------------------------------------------------------- */

/* Opens the object to which the first `len` bytes of a path lead, over hard links alone; `make` makes the groups that are
 * missing.  *object is H5I_INVALID_HID where there is none; the caller closes it with H5Oclose. */
static exf_code walk(exf_h5 *h, const char *path, size_t len, int make, hid_t *object, exf_err *err)
{
    char *names = NULL, *rest = NULL;
    const exf_h5i_kept *kept = find_kept(h, path, len);
    size_t known = kept ? kept->len : 0;
    exf_code rc;
    *object = H5I_INVALID_HID;
    if (path[0] != '/') return exf_fail(err, EXF_INTERNAL, "%s: object path \"%s\" is not absolute", h->path, path);
    EXF_TRY(exf_h5i_enter(err));
    EXF_TRY(exf_mem_dup(&names, path, len, "object path", err));
    *object = kept ? kept->group : H5Gopen2(h->file, "/", H5P_DEFAULT);
    if (*object < 0) rc = exf_h5i_fail(h, err, "cannot open /");
    if (kept) H5Iinc_ref(kept->group); /* it is closed as the others are */
    char *name = strtok_r(names + known, "/", &rest), *next;
    for (; *object >= 0 && name; name = next) {
        int at = (int)(name - names);
        const step s = {*object, name, path, at > 1 ? at - 1 : 1, at + (int)strlen(name)};
        next = strtok_r(NULL, "/", &rest);
        *object = H5I_INVALID_HID;
        rc = open_member(h, &s, make, object, err);
        if (!next && *object >= 0 && at > 1)
            keep_group(h, s.group, path, (size_t)at - 1);
        else
            H5Oclose(s.group);
    }
out:
    exf_mem_free(names);
    return rc;
}

exf_code exf_h5i_open_parent(exf_h5 *h, const char *path, hid_t *group, exf_err *err)
{
    size_t len = (size_t)(strrchr(path, '/') - path);
    const exf_h5i_kept *kept = find_kept(h, path, len);
    exf_code rc = EXF_OK;
    if (kept && kept->len == len) {
        *group = kept->group;
        H5Iinc_ref(*group);
        return EXF_OK;
    }
    rc = walk(h, path, len, 1, group, err);
    if (rc != EXF_OK || H5Iget_type(*group) != H5I_GROUP) return rc;
    H5Iinc_ref(*group);
    keep_group(h, *group, path, len);
    return EXF_OK;
}

exf_code exf_h5i_open(exf_h5 *h, const char *path, hid_t *object, exf_err *err)
{
    exf_code rc = walk(h, path, strlen(path), 0, object, err);
    if (rc != EXF_OK || *object >= 0) return rc;
    return exf_fail(err, exf_h5i_blame(h), "%s: %s is missing", h->path, path);
}

exf_code exf_h5_exists(exf_h5 *h, const char *path, int *found, exf_err *err)
{
    hid_t object;
    exf_code rc = walk(h, path, strlen(path), 0, &object, err);
    *found = object >= 0;
    if (*found) H5Oclose(object);
    return rc;
}

exf_code exf_h5_group(exf_h5 *h, const char *group, exf_err *err)
{
    hid_t object;
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(walk(h, group, strlen(group), 1, &object, err));
    if (H5Iget_type(object) != H5I_GROUP) rc = exf_fail(err, EXF_INTERNAL, "%s: %s is a dataset, expected a group", h->path, group);
    H5Oclose(object);
out:
    return rc;
}

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
        rc = check_group(h, object, group, (int)strlen(group), err);
    if (rc == EXF_OK && H5Literate(object, H5_INDEX_NAME, H5_ITER_INC, NULL, visit_link, &v) < 0)
        rc = exf_h5i_fail(h, err, "cannot list %s", group);
    H5Oclose(object);
    return rc != EXF_OK ? rc : v.rc;
}

exf_code exf_h5i_visit_attrs(exf_h5 *h, hid_t o, const char *object, exf_h5_visit visit, void *self, exf_err *err)
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
    rc = exf_h5i_visit_attrs(h, o, object, visit, self, err);
    H5Oclose(o);
    return rc;
}

/* ---- writing attributes ---------------------------------------------------- */

static exf_code write_attr(exf_h5 *h, hid_t o, const char *object, const char *name, hid_t type, const void *value, exf_err *err)
{
    exf_code rc = EXF_OK;
    htri_t exists = H5Aexists(o, name);
    if (exists < 0) return exf_h5i_fail(h, err, "cannot look up attribute %s of %s", name, object);
    if (exists) return exf_fail(err, EXF_INTERNAL, "%s: %s has an attribute %s already", h->path, object, name);
    hid_t attr = H5Acreate2(o, name, type, h->lists.scalar, h->lists.attr, H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, type, value) < 0) rc = exf_h5i_fail(h, err, "cannot write attribute %s of %s", name, object);
    if (attr >= 0 && H5Aclose(attr) < 0 && rc == EXF_OK) rc = exf_h5i_fail(h, err, "cannot close attribute %s of %s", name, object);
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
    if (rc != EXF_OK) return rc;
    return exf_h5i_note_attr(h, object, name, &(exf_h5i_attr_value){EXF_H5I_TEXT, 0, (char *)(uintptr_t)value}, err);
}

exf_code exf_h5_put_i64(exf_h5 *h, const char *object, const char *name, int64_t value, exf_err *err)
{
    hid_t o;
    exf_code rc = open_to_write(h, object, &o, err);
    if (rc != EXF_OK) return rc;
    rc = write_attr(h, o, object, name, H5T_STD_I64LE, &value, err);
    H5Oclose(o);
    return rc == EXF_OK ? exf_h5i_note_attr(h, object, name, &(exf_h5i_attr_value){EXF_H5I_I64, value, NULL}, err) : rc;
}

/* ---- reading attributes ---------------------------------------------------- */

const char *exf_h5i_kind_name(exf_h5i_attr_kind kind)
{
    static const char *const name[] = {"something else", "text", "I64"};
    return name[kind];
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

exf_code exf_h5i_read_attr(exf_h5 *h, hid_t o, const char *object, const char *name, exf_h5i_attr_value *v, exf_err *err)
{
    exf_code rc = EXF_OK;
    hid_t attr = H5I_INVALID_HID, type = H5I_INVALID_HID;
    *v = (exf_h5i_attr_value){.kind = EXF_H5I_OTHER};
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
    hid_t space = H5Aget_space(attr);
    int is_scalar = space >= 0 && H5Sget_simple_extent_type(space) == H5S_SCALAR;
    if (space >= 0) H5Sclose(space);
    if (is_scalar && H5Tequal(type, H5T_STD_I64LE) > 0) v->kind = EXF_H5I_I64;
    else if (is_scalar && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0) v->kind = EXF_H5I_TEXT;
    if (v->kind == EXF_H5I_TEXT) EXF_TRY(read_text(h, object, name, attr, type, &v->text, err));
    if (v->kind == EXF_H5I_I64 && H5Aread(attr, H5T_NATIVE_INT64, &v->i64) < 0)
        rc = exf_h5i_fail(h, err, "cannot read attribute %s of %s", name, object);
out:
    if (type >= 0) H5Tclose(type);
    if (attr >= 0) H5Aclose(attr);
    return rc;
}

/* Reads an attribute that must be of that kind. */
static exf_code read_kind(exf_h5 *h, hid_t o, const char *object, const char *name, exf_h5i_attr_kind want, exf_h5i_attr_value *v,
                          exf_err *err)
{
    exf_code rc = exf_h5i_read_attr(h, o, object, name, v, err);
    if (rc == EXF_OK && v->kind != want)
        rc = exf_fail(err, exf_h5i_blame(h), "%s: attribute %s of %s is %s, expected %s", h->path, name, object,
                      exf_h5i_kind_name(v->kind), exf_h5i_kind_name(want));
    if (rc == EXF_OK) return EXF_OK;
    exf_mem_free(v->text);
    v->text = NULL;
    return rc;
}

exf_code exf_h5i_get_text(exf_h5 *h, hid_t o, const char *object, const char *name, char **value, exf_err *err)
{
    exf_h5i_attr_value v;
    exf_code rc = read_kind(h, o, object, name, EXF_H5I_TEXT, &v, err);
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
    exf_h5i_attr_value v;
    hid_t o;
    exf_code rc = exf_h5i_open(h, object, &o, err);
    if (rc != EXF_OK) return rc;
    rc = read_kind(h, o, object, name, EXF_H5I_I64, &v, err);
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

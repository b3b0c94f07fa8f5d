/* h5_find.c - finds and makes objects by their paths, over hard links alone; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <string.h>

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

exf_code exf_h5i_check_group(exf_h5 *h, hid_t group, const char *path, int len, exf_err *err)
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
    exf_code rc = is_group ? exf_h5i_check_group(h, s->group, s->path, s->group_len, err) : EXF_OK;
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

exf_code exf_h5i_walk(exf_h5 *h, const char *path, size_t len, int make, hid_t *object, exf_err *err)
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
    rc = exf_h5i_walk(h, path, len, 1, group, err);
    if (rc != EXF_OK || H5Iget_type(*group) != H5I_GROUP) return rc;
    H5Iinc_ref(*group);
    keep_group(h, *group, path, len);
    return EXF_OK;
}

exf_code exf_h5i_open(exf_h5 *h, const char *path, hid_t *object, exf_err *err)
{
    exf_code rc = exf_h5i_walk(h, path, strlen(path), 0, object, err);
    if (rc != EXF_OK || *object >= 0) return rc;
    return exf_fail(err, exf_h5i_blame(h), "%s: %s is missing", h->path, path);
}

exf_code exf_h5_exists(exf_h5 *h, const char *path, int *found, exf_err *err)
{
    hid_t object;
    exf_code rc = exf_h5i_walk(h, path, strlen(path), 0, &object, err);
    *found = object >= 0;
    if (*found) H5Oclose(object);
    return rc;
}

exf_code exf_h5_group(exf_h5 *h, const char *group, exf_err *err)
{
    hid_t object;
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(exf_h5i_walk(h, group, strlen(group), 1, &object, err));
    if (H5Iget_type(object) != H5I_GROUP) rc = exf_fail(err, EXF_INTERNAL, "%s: %s is a dataset, expected a group", h->path, group);
    H5Oclose(object);
out:
    return rc;
}

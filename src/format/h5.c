/* h5.c - HDF5 files and their groups: opens, closes and goes on with files, finds objects, tells why libhdf5 failed; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- failures ----------------------------------------------------------- */

typedef struct {
    char text[256];
    int errnum, no_space;
} reason;

static herr_t note_innermost(unsigned n, const H5E_error2_t *e, void *self)
{
    reason *r = self;
    if (n > 0 || !e->desc) return 0;
    snprintf(r->text, sizeof r->text, "%s", e->desc);
    /* errno itself may be overwritten by now; HDF5 quotes it. */
    const char *number = strstr(e->desc, "errno = ");
    if (number) r->errnum = atoi(number + strlen("errno = "));
    if (strstr(e->desc, "stat info")) r->errnum = EIO; /* of an open file: the disk's failure, whose number HDF5 drops */
    r->no_space = e->min_num == H5E_NOSPACE || e->min_num == H5E_CANTALLOC || e->maj_num == H5E_RESOURCE;
    return 0;
}

exf_code exf_h5i_blame(const exf_h5 *h)
{
    return h->out ? EXF_INTERNAL : EXF_FORMAT;
}

exf_code exf_h5i_break(exf_h5 *h, const exf_err *err)
{
    if (h->out && h->broken == EXF_OK) {
        h->broken = err->code;
        h->why = *err;
    }
    return err->code;
}

exf_code exf_h5i_fail(exf_h5 *h, exf_err *err, const char *fmt, ...)
{
    if (h->broken != EXF_OK) return exf_fail(err, h->broken, "%s", h->why.msg);
    reason r = {.text = "libhdf5 gives no reason", .no_space = 1}; /* it then cannot even note why */
    char what[sizeof err->msg];
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_innermost, &r);
    va_list va;
    va_start(va, fmt);
    vsnprintf(what, sizeof what, fmt, va);
    va_end(va);
    if (r.errnum <= 0)
        return exf_fail(err, r.no_space ? EXF_NOSPACE : exf_h5i_blame(h), "%s: %s: %s%s", h->path, what,
                        r.no_space ? "out of memory: " : "", r.text);
    (void)exf_fail_errno(err, r.errnum, "%s: %s", h->path, what);
    return exf_h5i_break(h, err);
}

/* libhdf5 prints its errors unless each thread says otherwise. */
static void quiet_thread(void)
{
    static _Thread_local int done;
    if (!done) H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    done = 1;
}

exf_code exf_h5i_enter(exf_err *err)
{
    exf_code rc = exf_mem_reserve("libhdf5", err);
    if (rc == EXF_OK) quiet_thread();
    return rc;
}

exf_code exf_h5i_writable(const exf_h5 *h, exf_err *err)
{
    exf_code rc = exf_h5i_enter(err);
    if (rc != EXF_OK) return rc;
    if (!h->out) return exf_fail(err, EXF_INTERNAL, "%s: is open for reading, not for writing", h->path);
    if (h->broken != EXF_OK) return exf_fail(err, h->broken, "%s", h->why.msg);
    return EXF_OK;
}

/* ---- opening and closing ------------------------------------------------- */

static exf_code new_handle(exf_h5 **out, const char *path, exf_err *err)
{
    static int once;
    exf_h5 *h = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_reserve("libhdf5", err));
    if (!once) H5dont_atexit(); /* which would print */
    once = 1;
    quiet_thread();
    H5PLset_loading_state(0); /* no filter is loaded from disk because a file names one */
    EXF_TRY(exf_mem_new(&h, 1, sizeof *h, "HDF5 handle", err));
    h->file = h->group = H5I_INVALID_HID;
    EXF_TRY(exf_mem_strdup(&h->path, path, "HDF5 path", err));
    *out = h;
    return EXF_OK;
out:
    exf_mem_free(h);
    return rc;
}

/* File access: the format of HDF5 1.10; closing a file closes all that is open in it; locks, which some file systems
 * lack, are not asked for where libhdf5 lets us choose. */
static hid_t access_list(void)
{
    hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG);
    H5Pset_libver_bounds(fapl, H5F_LIBVER_V110, H5F_LIBVER_V110);
#if H5_VERSION_GE(1, 10, 7) && !(H5_VERSION_GE(1, 12, 0) && H5_VERSION_LE(1, 12, 0))
    H5Pset_file_locking(fapl, 0, 1);
#endif
    return fapl;
}

/* Links and attributes stay in their object's header, which has a checksum; an index of them outside it has crashed
 * libhdf5 1.10 when it was damaged. */
static void keep_compact(hid_t creation_list)
{
    enum { MOST = 65535 };
    H5Pset_link_phase_change(creation_list, MOST, 0);
    H5Pset_attr_phase_change(creation_list, MOST, 0);
    H5Pset_obj_track_times(creation_list, 0);
}

/* Makes the structure of a file that is written, or opens that which it has. */
static exf_code open_structure(exf_h5 *h, int makes, exf_err *err)
{
    const char *path = exf_output_file_path(h->out);
    hid_t fapl = access_list(), fcpl = H5Pcreate(H5P_FILE_CREATE);
    exf_code rc;
    EXF_TRY(exf_output_file_check_name(h->out, err));
    keep_compact(fcpl);
    h->file = makes ? H5Fcreate(path, H5F_ACC_TRUNC, fcpl, fapl) : H5Fopen(path, H5F_ACC_RDWR, fapl);
    if (h->file < 0) rc = exf_h5i_fail(h, err, makes ? "cannot start an HDF5 file" : "is no HDF5 file that can be gone on with");
out:
    H5Pclose(fapl);
    H5Pclose(fcpl);
    return rc;
}

/* Keeps an open group for the next walk, in place of the one that was kept; H5I_INVALID_HID: none. */
static void keep_group(exf_h5 *h, hid_t group, const char *path, int len)
{
    if (h->group >= 0 && h->broken == EXF_OK) H5Oclose(h->group);
    h->group = group;
    snprintf(h->group_path, sizeof h->group_path, "%.*s", len, path);
}

/* Closes the structure, so that the disk has all of it. */
static exf_code close_structure(exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    keep_group(h, H5I_INVALID_HID, "", 0);
    /* Flushing first, because an id whose H5Fclose failed must not be used again. */
    if (H5Fflush(h->file, H5F_SCOPE_GLOBAL) < 0 || H5Fclose(h->file) < 0) {
        rc = exf_h5i_fail(h, err, "cannot be completed");
        (void)exf_h5i_break(h, err);
    }
    h->file = H5I_INVALID_HID;
    return rc;
}

exf_code exf_h5_create(exf_h5 **out, const char *target, int force, const char *temporary, exf_err *err)
{
    exf_h5 *h = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(new_handle(&h, target, err));
    EXF_TRY(temporary ? exf_output_file_begin_at(&h->out, target, force, temporary, 0, err)
                      : exf_output_file_begin(&h->out, target, force, err));
    EXF_TRY(open_structure(h, 1, err));
    EXF_TRY(exf_h5i_begin_made(h, err));
    *out = h;
    return EXF_OK;
out:
    exf_h5_close(h);
    return rc;
}

exf_code exf_h5_open(exf_h5 **out, const char *path, exf_err *err)
{
    exf_h5 *h = NULL;
    hsize_t before = 1;
    exf_code rc;
    *out = NULL;
    EXF_TRY(new_handle(&h, path, err));
    EXF_TRY(exf_file_open(&h->in, path, err)); /* which tells the system's refusals, and a directory, better */
    hid_t fapl = access_list();
    h->file = H5Fopen(path, H5F_ACC_RDONLY, fapl);
    if (h->file < 0) rc = exf_h5i_fail(h, err, "is no readable HDF5 file"); /* before a call that succeeds wipes the reason */
    H5Pclose(fapl);
    if (rc != EXF_OK) goto out;
    hid_t fcpl = H5Fget_create_plist(h->file);
    if (fcpl < 0 || H5Pget_userblock(fcpl, &before) < 0 || before)
        rc = exf_fail(err, EXF_FORMAT, "%s: its HDF5 structure does not begin at byte 0: not one of ours", path);
    if (fcpl >= 0) H5Pclose(fcpl);
out:
    if (rc == EXF_OK)
        *out = h;
    else
        exf_h5_close(h);
    return rc;
}

exf_code exf_h5_commit(exf_h5 *h, exf_err *err)
{
    exf_code rc;
    exf_worker_close(&h->hashing); /* of a digest that nobody asked for */
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(exf_h5i_put_checksums(h, err));
    EXF_TRY(close_structure(h, err));
    exf_output_file *done = h->out;
    h->out = NULL;
    rc = exf_output_file_commit(done, err);
out:
    exf_h5_close(h);
    return rc;
}

exf_code exf_h5_sync(const exf_h5 *h, exf_err *err)
{
    return exf_output_file_sync(h->out, err);
}

void exf_h5_close(exf_h5 *h)
{
    if (!h) return;
    quiet_thread();
    exf_h5i_end_made(h);
    keep_group(h, H5I_INVALID_HID, "", 0);
    if (h->file >= 0 && h->broken == EXF_OK) H5Fclose(h->file);
    exf_output_file_abort(h->out);
    exf_file_close(h->in);
    for (size_t i = 0; i < h->n_rows; i++) exf_mem_free(h->rows[i].path);
    exf_mem_free(h->rows);
    exf_mem_free(h->path);
    exf_mem_free(h);
}

const char *exf_h5_path(const exf_h5 *h)
{
    return h->path;
}

/* ---- files that a later run goes on with -----------------------------------
 * libhdf5 may be killed in the middle of a change to its structure, and marks a file that is open for writing, which it
 * then refuses to open.  Both are undone by writing back the bytes that were kept. */

void exf_h5_structure_free(exf_h5_structure *s)
{
    exf_mem_free(s->extent);
    exf_mem_free(s->bytes);
    memset(s, 0, sizeof *s);
}

static int compare_places(const void *a, const void *b)
{
    const exf_h5i_rows *const *x = a, *const *y = b;
    return ((*x)->at > (*y)->at) - ((*x)->at < (*y)->at);
}

/* Lists the stretches of a file of `size` bytes in which no defined dataset has elements. */
static exf_code list_extents(const exf_h5 *h, uint64_t size, exf_h5_structure *s, exf_err *err)
{
    const exf_h5i_rows **r = NULL;
    uint64_t at = 0;
    size_t n = 0;
    exf_code rc;
    EXF_TRY(exf_mem_new(&r, h->n_rows + 1, sizeof *r, "HDF5 datasets", err));
    EXF_TRY(exf_mem_new(&s->extent, 2 * (h->n_rows + 1), sizeof *s->extent, "HDF5 structure", err));
    for (size_t i = 0; i < h->n_rows; i++)
        if (h->rows[i].bytes) r[n++] = &h->rows[i];
    qsort(r, n, sizeof *r, compare_places);
    for (size_t i = 0; i <= n; i++) {
        uint64_t end = i < n ? r[i]->at : size;
        if (end > at || i == n) {
            s->extent[2 * s->n] = (int64_t)at;
            s->extent[2 * s->n++ + 1] = (int64_t)(end - at);
            s->n_bytes += end - at;
        }
        if (i < n) at = r[i]->at + r[i]->bytes;
    }
out:
    exf_mem_free(r);
    return rc;
}

exf_code exf_h5_end_definitions(exf_h5 *h, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(close_structure(h, err));
    rc = open_structure(h, 0, err);
out:
    return rc;
}

exf_code exf_h5_keep_structure(exf_h5 *h, exf_h5_structure *out, exf_err *err)
{
    exf_h5_structure s = {.n = 0};
    uint64_t size;
    size_t done = 0;
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(close_structure(h, err));
    EXF_TRY(exf_output_file_size(h->out, &size, err));
    EXF_TRY(list_extents(h, size, &s, err));
    EXF_TRY(exf_mem_new(&s.bytes, s.n_bytes, 1, "HDF5 structure", err));
    for (size_t i = 0; i < s.n; done += (size_t)s.extent[2 * i++ + 1])
        EXF_TRY(exf_output_file_read(h->out, (uint64_t)s.extent[2 * i], s.bytes + done, (size_t)s.extent[2 * i + 1], err));
    rc = open_structure(h, 0, err);
out:
    if (rc == EXF_OK)
        *out = s;
    else
        exf_h5_structure_free(&s);
    return rc;
}

exf_code exf_h5_continue_at(exf_h5 **out, const char *target, int force, const char *temporary, const exf_h5_structure *s,
                            exf_err *err)
{
    exf_h5 *h = NULL;
    uint64_t size, end = s->n ? (uint64_t)(s->extent[2 * s->n - 2] + s->extent[2 * s->n - 1]) : 0;
    size_t done = 0;
    exf_code rc;
    *out = NULL;
    EXF_TRY(new_handle(&h, target, err));
    EXF_TRY(exf_output_file_begin_at(&h->out, target, force, temporary, 1, err));
    EXF_TRY(exf_output_file_size(h->out, &size, err));
    if (size < end) {
        rc = exf_fail(err, EXF_FORMAT, "%s: was cut: has %llu bytes, its layers take %llu; --resume=never starts over",
                      exf_output_file_path(h->out), (unsigned long long)size, (unsigned long long)end);
        goto out;
    }
    EXF_TRY(exf_output_file_resize(h->out, end, err));
    for (size_t i = 0; i < s->n; done += (size_t)s->extent[2 * i++ + 1])
        EXF_TRY(exf_output_file_patch(h->out, (uint64_t)s->extent[2 * i], s->bytes + done, (size_t)s->extent[2 * i + 1], err));
    EXF_TRY(open_structure(h, 0, err));
    *out = h;
    return EXF_OK;
out:
    exf_h5_close(h);
    return rc;
}

/* ---- finding objects ----------------------------------------------------- */

hid_t exf_h5i_utf8_links(void)
{
    hid_t lcpl = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_char_encoding(lcpl, H5T_CSET_UTF8);
    return lcpl;
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
    hid_t lcpl = exf_h5i_utf8_links(), gcpl = H5Pcreate(H5P_GROUP_CREATE);
    keep_compact(gcpl);
    *group = H5Gcreate2(s->group, s->name, lcpl, gcpl, H5P_DEFAULT);
    if (*group < 0)
        rc = exf_h5i_fail(h, err, "cannot make group %.*s", s->path_len, s->path);
    else
        rc = exf_h5i_note_made(h, s->path, s->path_len, NULL, err);
    if (rc != EXF_OK && *group >= 0) {
        H5Gclose(*group);
        *group = H5I_INVALID_HID;
    }
    H5Pclose(gcpl);
    H5Pclose(lcpl);
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

/* Returns how much of a path leads to the group that is kept, 0 (the root is opened anew) where the path does not. */
static size_t kept_part(const exf_h5 *h, const char *path, size_t len)
{
    size_t n = strlen(h->group_path);
    return h->group >= 0 && n <= len && (n == len || path[n] == '/') && memcmp(path, h->group_path, n) == 0 ? n : 0;
}

exf_code exf_h5i_walk(exf_h5 *h, const char *path, size_t len, int make, hid_t *object, exf_err *err)
{
    char *names = NULL, *rest = NULL;
    size_t kept = kept_part(h, path, len);
    exf_code rc;
    *object = H5I_INVALID_HID;
    if (path[0] != '/') return exf_fail(err, EXF_INTERNAL, "%s: object path \"%s\" is not absolute", h->path, path);
    EXF_TRY(exf_h5i_enter(err));
    EXF_TRY(exf_mem_dup(&names, path, len, "object path", err));
    *object = kept ? h->group : H5Gopen2(h->file, "/", H5P_DEFAULT);
    if (*object < 0) rc = exf_h5i_fail(h, err, "cannot open /");
    char *name = strtok_r(names + kept, "/", &rest), *next;
    if (kept && !name) H5Iinc_ref(h->group); /* the caller closes it too */
    for (; *object >= 0 && name; name = next) {
        int at = (int)(name - names);
        const step s = {*object, name, path, at > 1 ? at - 1 : 1, at + (int)strlen(name)};
        next = strtok_r(NULL, "/", &rest);
        *object = H5I_INVALID_HID;
        rc = open_member(h, &s, make, object, err);
        if (s.group == h->group) continue;
        if (!next && *object >= 0 && at > 1 && at <= EXF_H5I_KEPT_PATH)
            keep_group(h, s.group, path, at - 1);
        else
            H5Oclose(s.group);
    }
out:
    exf_mem_free(names);
    return rc;
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

/* h5.c - the structure of an HDF5 file: opening and closing, groups, attributes; see h5.h. */
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

static herr_t innermost(unsigned n, const H5E_error2_t *e, void *self)
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
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, &r);
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

exf_code exf_h5i_writable(const exf_h5 *h, exf_err *err)
{
    exf_code rc = exf_h5i_enter(err);
    if (rc != EXF_OK) return rc;
    if (!h->out) return exf_fail(err, EXF_INTERNAL, "%s: is open for reading, not for writing", h->path);
    if (h->broken != EXF_OK) return exf_fail(err, h->broken, "%s", h->why.msg);
    return EXF_OK;
}

/* ---- opening and closing ------------------------------------------------- */

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
    h->file = H5I_INVALID_HID;
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

/* Links and attributes stay in their object's header, which has a checksum; an
 * index of them outside it has crashed libhdf5 1.10 when it was damaged. */
static void keep_compact(hid_t creation_list)
{
    enum { MOST = 65535 };
    H5Pset_link_phase_change(creation_list, MOST, 0);
    H5Pset_attr_phase_change(creation_list, MOST, 0);
}

exf_code exf_h5i_open_structure(exf_h5 *h, int makes, exf_err *err)
{
    const char *path = exf_output_file_path(h->out);
    hid_t fapl = access_list(), fcpl = H5Pcreate(H5P_FILE_CREATE);
    exf_code rc;
    EXF_TRY(exf_output_file_check_name(h->out, err));
    keep_compact(fcpl);
    H5Pset_obj_track_times(fcpl, 0);
    h->file = makes ? H5Fcreate(path, H5F_ACC_TRUNC, fcpl, fapl) : H5Fopen(path, H5F_ACC_RDWR, fapl);
    if (h->file < 0) rc = exf_h5i_fail(h, err, makes ? "cannot start an HDF5 file" : "is no HDF5 file that can be gone on with");
out:
    H5Pclose(fapl);
    H5Pclose(fcpl);
    return rc;
}

exf_code exf_h5i_close_structure(exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    /* Flushing first, because an id whose H5Fclose failed must not be used again. */
    if (H5Fflush(h->file, H5F_SCOPE_GLOBAL) < 0 || H5Fclose(h->file) < 0) {
        rc = exf_h5i_fail(h, err, "cannot be completed");
        (void)exf_h5i_break(h, err);
    }
    h->file = H5I_INVALID_HID;
    return rc;
}

exf_code exf_h5i_new_output(exf_h5 **out, const char *target, int force, const char *temporary, int goes_on, exf_err *err)
{
    exf_h5 *h = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(new_handle(&h, target, err));
    EXF_TRY(temporary ? exf_output_file_begin_at(&h->out, target, force, temporary, goes_on, err)
                      : exf_output_file_begin(&h->out, target, force, err));
    if (!goes_on) EXF_TRY(exf_h5i_open_structure(h, 1, err));
    *out = h;
    return EXF_OK;
out:
    exf_h5_close(h);
    return rc;
}

exf_code exf_h5_create(exf_h5 **out, const char *target, int force, exf_err *err)
{
    return exf_h5i_new_output(out, target, force, NULL, 0, err);
}

exf_code exf_h5_create_at(exf_h5 **out, const char *target, int force, const char *temporary, exf_err *err)
{
    return exf_h5i_new_output(out, target, force, temporary, 0, err);
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
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(exf_h5i_put_checksums(h, err));
    EXF_TRY(exf_h5i_close_structure(h, err));
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

/* ---- finding objects ----------------------------------------------------- */

/* Cuts path before its next step: "/a/b" gives "/a", then "/a/b".  *at starts
 * at 0; returns 0 when there is none.  The cut byte is put back by the next call. */
static int next_step(char *path, size_t *at, char *cut)
{
    path[*at] = *at ? *cut : path[0];
    size_t i = *at;
    while (path[i] == '/') i++;
    if (!path[i]) return 0;
    while (path[i] && path[i] != '/') i++;
    *cut = path[i];
    path[i] = 0;
    *at = i;
    return 1;
}

/* 1 if path leads through a dataset, where HDF5 calls absence an error; its reason for another error stays. */
static int below_dataset(const exf_h5 *h, const char *path)
{
    hid_t stack = H5Eget_current_stack();
    char *parent = NULL;
    hid_t object = exf_path_dir(&parent, path, NULL) == EXF_OK ? H5Oopen(h->file, parent, H5P_DEFAULT) : H5I_INVALID_HID;
    int is_dataset = object >= 0 && H5Iget_type(object) == H5I_DATASET;
    if (object >= 0) H5Oclose(object);
    exf_mem_free(parent);
    if (stack >= 0) H5Eset_current_stack(stack);
    return is_dataset;
}

static exf_code step_exists(exf_h5 *h, const char *path, int *found, exf_err *err)
{
    H5L_info_t info;
    htri_t exists = H5Lexists(h->file, path, H5P_DEFAULT);
    *found = exists > 0;
    if (exists < 0 && !below_dataset(h, path)) return exf_h5i_fail(h, err, "cannot look up %s", path);
    if (!*found) return EXF_OK;
    if (H5Lget_info(h->file, path, &info, H5P_DEFAULT) < 0) return exf_h5i_fail(h, err, "cannot look up %s", path);
    if (info.type == H5L_TYPE_HARD) return EXF_OK;
    /* One to another file could make us read anything. */
    return exf_fail(err, exf_h5i_blame(h), "%s: %s is a soft or external link, which is not followed", h->path, path);
}

static exf_code find(exf_h5 *h, const char *path, int *found, exf_err *err)
{
    char *p = NULL, cut = 0;
    size_t at = 0;
    *found = path[0] == '/';
    if (!*found) return exf_fail(err, EXF_INTERNAL, "%s: object path \"%s\" is not absolute", h->path, path);
    exf_code rc;
    EXF_TRY(exf_h5i_enter(err));
    EXF_TRY(exf_mem_strdup(&p, path, "object path", err));
    while (*found && next_step(p, &at, &cut)) EXF_TRY(step_exists(h, p, found, err));
out:
    exf_mem_free(p);
    return rc;
}

exf_code exf_h5i_open(exf_h5 *h, const char *path, hid_t *object, exf_err *err)
{
    int found;
    *object = H5I_INVALID_HID;
    exf_code rc = find(h, path, &found, err);
    if (rc != EXF_OK) return rc;
    if (!found) return exf_fail(err, exf_h5i_blame(h), "%s: %s is missing", h->path, path);
    *object = H5Oopen(h->file, path, H5P_DEFAULT);
    return *object < 0 ? exf_h5i_fail(h, err, "cannot open %s", path) : EXF_OK;
}

exf_code exf_h5_exists(exf_h5 *h, const char *path, int *found, exf_err *err)
{
    return find(h, path, found, err);
}

/* ---- groups -------------------------------------------------------------- */

hid_t exf_h5i_utf8_links(void)
{
    hid_t lcpl = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_char_encoding(lcpl, H5T_CSET_UTF8);
    return lcpl;
}

/* HDF5 can make parents itself, but not without times in them. */
static exf_code make_group(exf_h5 *h, const char *path, exf_err *err)
{
    int found;
    exf_code rc = step_exists(h, path, &found, err);
    if (rc != EXF_OK || found) return rc;
    hid_t lcpl = exf_h5i_utf8_links(), gcpl = H5Pcreate(H5P_GROUP_CREATE);
    H5Pset_obj_track_times(gcpl, 0);
    keep_compact(gcpl);
    hid_t group = H5Gcreate2(h->file, path, lcpl, gcpl, H5P_DEFAULT);
    if (group < 0) rc = exf_h5i_fail(h, err, "cannot make group %s", path);
    if (group >= 0) H5Gclose(group);
    H5Pclose(gcpl);
    H5Pclose(lcpl);
    return rc;
}

static exf_code make_groups(exf_h5 *h, const char *path, size_t len, exf_err *err)
{
    char *p = NULL, cut = 0;
    size_t at = 0;
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(exf_mem_dup(&p, path, len, "object path", err));
    while (next_step(p, &at, &cut)) EXF_TRY(make_group(h, p, err));
out:
    exf_mem_free(p);
    return rc;
}

exf_code exf_h5i_make_parents(exf_h5 *h, const char *path, exf_err *err)
{
    const char *slash = strrchr(path, '/');
    if (path[0] != '/' || !slash[1]) return exf_fail(err, EXF_INTERNAL, "%s: \"%s\" cannot name a dataset", h->path, path);
    return make_groups(h, path, (size_t)(slash - path), err);
}

exf_code exf_h5_group(exf_h5 *h, const char *group, exf_err *err)
{
    if (group[0] != '/') return exf_fail(err, EXF_INTERNAL, "%s: object path \"%s\" is not absolute", h->path, group);
    exf_code rc = make_groups(h, group, strlen(group), err);
    if (rc != EXF_OK) return rc;
    hid_t object;
    rc = exf_h5i_open(h, group, &object, err);
    if (rc != EXF_OK) return rc;
    if (H5Iget_type(object) != H5I_GROUP) rc = exf_fail(err, EXF_INTERNAL, "%s: %s is a dataset, expected a group", h->path, group);
    H5Oclose(object);
    return rc;
}

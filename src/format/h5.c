/* h5.c - HDF5 files: opens, closes and goes on with them; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- opening and closing ------------------------------------------------- */

static exf_code new_handle(exf_h5 **out, const char *path, exf_err *err)
{
    static const char locking[] = "HDF5_USE_FILE_LOCKING"; /* read when libhdf5 starts */
    static int once;
    exf_h5 *h = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_mem_reserve("libhdf5", err));
    /* Overrules an environment that asks libhdf5 for locks, to which access_list() would give way: libhdf5 takes them by flock(),
     * by which we know a temporary that is in use (base/file_temporary.c), so that it would find our own. */
    if (!once && getenv(locking)) setenv(locking, "FALSE", 1);
    if (!once) H5dont_atexit(); /* which would print */
    once = 1;
    exf_h5i_quiet();
    H5PLset_loading_state(0); /* no filter is loaded from disk because a file names one */
    EXF_TRY(exf_mem_new(&h, 1, sizeof *h, "HDF5 handle", err));
    h->file = H5I_INVALID_HID;
    for (int i = 0; i < EXF_H5I_KEPT; i++) h->kept[i].group = H5I_INVALID_HID;
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

/* Makes what says how objects are made: links and texts are UTF-8, and elements are one run, with a place from the start. */
static void make_lists(exf_h5 *h)
{
    exf_h5i_lists *l = &h->lists;
    if (l->made) return;
    *l = (exf_h5i_lists){1, H5Pcreate(H5P_LINK_CREATE), H5Pcreate(H5P_DATASET_CREATE), H5Pcreate(H5P_ATTRIBUTE_CREATE),
                         H5Screate(H5S_SCALAR)};
    H5Pset_char_encoding(l->link, H5T_CSET_UTF8);
    H5Pset_char_encoding(l->attr, H5T_CSET_UTF8);
    H5Pset_obj_track_times(l->dataset, 0);
    H5Pset_layout(l->dataset, H5D_CONTIGUOUS);
    H5Pset_alloc_time(l->dataset, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(l->dataset, H5D_FILL_TIME_NEVER); /* what nobody writes is a hole of the file */
}

/* Makes the structure of a file that is written, or opens that which it has. */
static exf_code open_structure(exf_h5 *h, int makes, exf_err *err)
{
    const char *path = exf_output_file_path(h->out);
    hid_t fapl = access_list(), fcpl = H5Pcreate(H5P_FILE_CREATE);
    exf_code rc;
    EXF_TRY(exf_output_file_check_name(h->out, err));
    make_lists(h);
    exf_h5i_keep_compact(fcpl);
    h->file = makes ? H5Fcreate(path, H5F_ACC_TRUNC, fcpl, fapl) : H5Fopen(path, H5F_ACC_RDWR, fapl);
    if (h->file < 0) rc = exf_h5i_fail(h, err, makes ? "cannot start an HDF5 file" : "is no HDF5 file that can be gone on with");
out:
    H5Pclose(fapl);
    H5Pclose(fcpl);
    return rc;
}

/* Closes the structure, so that the disk has all of it. */
static exf_code close_structure(exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    exf_h5i_drop_kept(h);
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
    exf_worker_open(&h->hashing); /* from now on what is made is noted */
    EXF_TRY(exf_h5i_note_made(h, "/", 1, NULL, err));
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
    exf_h5i_quiet();
    exf_h5i_end_made(h);
    exf_h5i_drop_kept(h);
    if (h->file >= 0 && h->broken == EXF_OK) H5Fclose(h->file);
    if (h->lists.made) {
        H5Pclose(h->lists.link);
        H5Pclose(h->lists.dataset);
        H5Pclose(h->lists.attr);
        H5Sclose(h->lists.scalar);
    }
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

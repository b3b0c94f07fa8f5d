/* h5_write.c - makes datasets and writes whole ones; see h5.h. */
#include "format/h5_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <string.h>

/* Creates a dataset that is not there yet, in an open group. */
static exf_code create_dataset(exf_h5 *h, const exf_tensor *t, hid_t group, hid_t *dataset, exf_err *err)
{
    hsize_t dims[EXF_MAX_RANK];
    const char *name = strrchr(t->name, '/') + 1;
    htri_t exists = *name ? exf_h5i_is_made(h, t->name) : 1; /* "": the root itself */
    if (*name && !h->n_made) exists = H5Lexists(group, name, H5P_DEFAULT);
    if (exists < 0) return exf_h5i_fail(h, err, "cannot look up %s", t->name);
    if (exists) return exf_fail(err, EXF_INTERNAL, "%s: %s exists already", h->path, t->name);
    for (int i = 0; i < t->rank; i++) dims[i] = (hsize_t)t->shape[i];
    hid_t space = t->rank ? H5Screate_simple(t->rank, dims, NULL) : H5Screate(H5S_SCALAR);
    *dataset = H5Dcreate2(group, name, exf_h5i_type(t->dtype), space, h->lists.link, h->lists.dataset, H5P_DEFAULT);
    exf_code rc = *dataset < 0 ? exf_h5i_fail(h, err, "cannot make %s", t->name) : EXF_OK;
    H5Sclose(space);
    return rc;
}

/* Takes the place of a dataset that was just made as it was asked for. */
static exf_code take_place(exf_h5 *h, const exf_tensor *t, hid_t dataset, exf_h5i_rows *r, exf_err *err)
{
    haddr_t at;
    r->shape = *t;
    r->shape.name = NULL;
    r->shape.data = NULL;
    r->bytes = exf_tensor_bytes(t);
    if (r->bytes == 0) return EXF_OK;
    at = H5Dget_offset(dataset);
    r->at = at;
    return at == HADDR_UNDEF ? exf_h5i_fail(h, err, "cannot find the place of %s", t->name) : EXF_OK;
}

exf_code exf_h5i_make_dataset(exf_h5 *h, const exf_tensor *t, exf_h5i_rows *r, hid_t *dataset, exf_err *err)
{
    hid_t group = H5I_INVALID_HID;
    int axis = exf_h5i_bad_axis(t);
    exf_code rc;
    memset(r, 0, sizeof *r);
    *dataset = H5I_INVALID_HID;
    if (exf_h5i_type(t->dtype) < 0)
        return exf_fail(err, EXF_INTERNAL, "%s: %s: %s is no dtype of an HDF5 dataset here", h->path, t->name,
                        exf_dtype_name(t->dtype));
    if (axis >= 0)
        return exf_fail(err, EXF_INTERNAL, "%s: %s: axis %d of %lld elements", h->path, t->name, axis, (long long)t->shape[axis]);
    EXF_TRY(exf_h5i_open_parent(h, t->name, &group, err));
    EXF_TRY(create_dataset(h, t, group, dataset, err));
    EXF_TRY(take_place(h, t, *dataset, r, err));
    rc = exf_h5i_note_made(h, t->name, (int)strlen(t->name), r, err);
out:
    if (group >= 0) H5Oclose(group);
    return rc;
}

/* A dataset that was made and has no elements yet. */
typedef struct {
    exf_h5i_rows r;
    hid_t dataset;
} made_dataset;

/* Makes and writes the elements of all datasets and computes their checksums: small ones side by side, large ones a piece at a
 * time. */
static exf_code write_elements(exf_h5 *h, made_dataset *made, const exf_tensor *t, size_t n, exf_h5_fill fill, void *self,
                               exf_err *err)
{
    exf_loop loop = EXF_LOOP;
    exf_code rc = EXF_OK;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(n, exf_background_threads() / 2))
    for (size_t i = 0; i < n; i++) {
        exf_h5i_rows *r = &made[i].r;
        exf_err e;
        if (fill) fill(self, i);
        if (r->bytes >= EXF_H5_LARGE) continue;
        if (exf_output_file_patch(h->out, r->at, t[i].data, r->bytes, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
        r->crc = exf_h5i_add_to_crc(0, t[i].data, r->bytes);
    }
    EXF_TRY(exf_loop_end(&loop, err));
    for (size_t i = 0; i < n; i++)
        if (made[i].r.bytes >= EXF_H5_LARGE)
            EXF_TRY(exf_h5i_do_pieces(h, &made[i].r, t[i].data, NULL, &made[i].r.crc, NULL, err));
out:
    return rc == EXF_OK ? rc : exf_h5i_break(h, err);
}

exf_code exf_h5_write_all(exf_h5 *h, const exf_tensor *t, size_t n, exf_h5_fill fill, void *self, exf_err *err)
{
    made_dataset *made = NULL;
    size_t open = 0;
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(exf_mem_new(&made, n, sizeof *made, "HDF5 datasets", err));
    for (size_t i = 0; i < n; i++) {
        open = i + 1;
        EXF_TRY(exf_h5i_make_dataset(h, &t[i], &made[i].r, &made[i].dataset, err));
    }
    EXF_TRY(write_elements(h, made, t, n, fill, self, err));
    for (size_t i = 0; i < n; i++) EXF_TRY(exf_h5i_put_checksum(h, made[i].dataset, t[i].name, made[i].r.crc, err));
out:
    for (size_t i = 0; i < open; i++)
        if (made[i].dataset >= 0) H5Dclose(made[i].dataset);
    exf_mem_free(made);
    return rc;
}

exf_code exf_h5_write(exf_h5 *h, const exf_tensor *t, exf_err *err)
{
    return exf_h5_write_all(h, t, 1, NULL, NULL, err);
}

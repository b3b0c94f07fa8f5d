/* h5_data.c - datasets: finds where their elements lie, makes, writes and reads them, whole or row by row; see h5.h. */
#include "format/h5_internal.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <string.h>

/* ---- where they lie -------------------------------------------------------------- */

/* Returns HDF5's name of a dtype: an immutable id; negative for those not stored. */
static hid_t type_of(exf_dtype t)
{
    switch (t) {
    case EXF_DT_U8: return H5T_STD_U8LE;
    case EXF_DT_I8: return H5T_STD_I8LE;
    case EXF_DT_I32: return H5T_STD_I32LE;
    case EXF_DT_I64: return H5T_STD_I64LE;
    case EXF_DT_U64: return H5T_STD_U64LE;
    case EXF_DT_F32: return H5T_IEEE_F32LE;
    case EXF_DT_F64: return H5T_IEEE_F64LE;
    default: return H5I_INVALID_HID;
    }
}

/* Returns why a dataset is none of ours, whatever its shape; NULL: it may be one. */
static const char *find_foreign_layout(hid_t dataset)
{
    hid_t dcpl = H5Dget_create_plist(dataset);
    const char *why = NULL;
    if (dcpl < 0 || H5Pget_layout(dcpl) != H5D_CONTIGUOUS)
        why = "is chunked, compact or virtual, expected one contiguous run of elements";
    else if (H5Pget_external_count(dcpl) != 0)
        why = "has its elements in another file";
    else if (H5Pget_nfilters(dcpl) != 0)
        why = "has filters, expected plain elements";
    if (dcpl >= 0) H5Pclose(dcpl);
    return why;
}

/* Returns the first axis that is negative or makes more elements than memory could hold; -1: none. */
static int bad_axis(const exf_tensor *t)
{
    int64_t most = INT64_MAX / 16;
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] < 0 || t->shape[i] > most) return i;
        if (t->shape[i]) most /= t->shape[i];
    }
    return -1;
}

/* Finds where the elements of an open object, which must be a dataset, are: all of them, plain, in one piece, within the file. */
static exf_code find_place(exf_h5 *h, const char *path, hid_t object, exf_h5i_rows *r, exf_err *err)
{
    memset(r, 0, sizeof *r);
    if (H5Iget_type(object) != H5I_DATASET)
        return exf_fail(err, exf_h5i_blame(h), "%s: %s is a group, expected a dataset", h->path, path);
    const char *why = find_foreign_layout(object);
    if (why) return exf_fail(err, exf_h5i_blame(h), "%s: %s %s: not one of ours", h->path, path, why);
    hid_t type = H5Dget_type(object), space = H5Dget_space(object);
    int known = 0;
    for (int t = 0; t < EXF_DT_COUNT && type >= 0 && !known; t++) {
        r->shape.dtype = (exf_dtype)t;
        known = type_of(r->shape.dtype) >= 0 && H5Tequal(type, type_of(r->shape.dtype)) > 0;
    }
    hsize_t dims[H5S_MAX_RANK];
    H5S_class_t kind = space < 0 ? H5S_NO_CLASS : H5Sget_simple_extent_type(space);
    int rank = kind == H5S_SIMPLE || kind == H5S_SCALAR ? H5Sget_simple_extent_dims(space, dims, NULL) : -1;
    if (type >= 0) H5Tclose(type);
    if (space >= 0) H5Sclose(space);
    if (!known)
        return exf_fail(err, exf_h5i_blame(h),
                        "%s: %s has elements that are none of U8 I8 I32 I64 U64 F32 F64, little endian", h->path, path);
    r->shape.rank = rank >= 0 && rank <= EXF_MAX_RANK ? rank : 0;
    for (int i = 0; i < r->shape.rank; i++) r->shape.shape[i] = dims[i] > INT64_MAX ? -1 : (int64_t)dims[i];
    if (r->shape.rank != rank || bad_axis(&r->shape) >= 0)
        return exf_fail(err, exf_h5i_blame(h),
                        "%s: %s has no shape, more than %d axes, or more elements than fit", h->path, path, EXF_MAX_RANK);
    r->bytes = exf_tensor_bytes(&r->shape);
    if (r->bytes == 0) return EXF_OK;
    haddr_t at = H5Dget_offset(object);
    uint64_t has = H5Dget_storage_size(object), size = h->in ? exf_file_size(h->in) : UINT64_MAX;
    if (at == HADDR_UNDEF || has != r->bytes || at > size || has > size - at)
        return exf_fail(err, exf_h5i_blame(h), "%s: %s states %llu bytes of elements, the file of %llu bytes holds %llu of them",
                        h->path, path, (unsigned long long)r->bytes, (unsigned long long)size,
                        (unsigned long long)(at == HADDR_UNDEF || at > size ? 0 : has < size - at ? has : size - at));
    r->at = at;
    return EXF_OK;
}

/* ---- shapes ------------------------------------------------------------------- */

exf_code exf_h5_describe(exf_h5 *h, const char *path, exf_tensor *t, exf_err *err)
{
    exf_h5i_rows r = {.path = NULL};
    hid_t object;
    exf_code rc = exf_h5i_open(h, path, &object, err);
    if (rc == EXF_OK) {
        rc = find_place(h, path, object, &r, err);
        H5Oclose(object);
    }
    *t = r.shape;
    t->name = path;
    return rc;
}

/* Refuses another dtype or shape than is expected; `is` is a dataset's. */
static exf_code compare_shapes(const exf_h5 *h, const exf_tensor *is, const exf_tensor *expected, exf_err *err)
{
    char text[256], want[256];
    int same = is->dtype == expected->dtype && is->rank == expected->rank;
    for (int i = 0; same && i < is->rank; i++) same = is->shape[i] == expected->shape[i];
    if (same) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(h), "%s: %s is %s %s, expected %s %s", h->path, expected->name, exf_dtype_name(is->dtype),
                    exf_shape_text(text, sizeof text, is->shape, is->rank), exf_dtype_name(expected->dtype),
                    exf_shape_text(want, sizeof want, expected->shape, expected->rank));
}

exf_code exf_h5_expect(exf_h5 *h, const exf_tensor *expected, exf_err *err)
{
    exf_tensor t;
    exf_code rc = exf_h5_describe(h, expected->name, &t, err);
    return rc == EXF_OK ? compare_shapes(h, &t, expected, err) : rc;
}

/* ---- making ------------------------------------------------------------------- */

/* Makes a dataset, gives it its place in the file, and leaves it open; the caller closes *dataset, unless it is invalid.  Called
 * after exf_h5i_writable(), once for many. */
static exf_code make_dataset(exf_h5 *h, const exf_tensor *t, exf_h5i_rows *r, hid_t *dataset, exf_err *err)
{
    hsize_t dims[EXF_MAX_RANK];
    hid_t group = H5I_INVALID_HID;
    int axis = bad_axis(t);
    exf_code rc;
    memset(r, 0, sizeof *r);
    *dataset = H5I_INVALID_HID;
    if (type_of(t->dtype) < 0)
        return exf_fail(err, EXF_INTERNAL, "%s: %s: %s is no dtype of an HDF5 dataset here", h->path, t->name,
                        exf_dtype_name(t->dtype));
    if (axis >= 0)
        return exf_fail(err, EXF_INTERNAL, "%s: %s: axis %d of %lld elements", h->path, t->name, axis, (long long)t->shape[axis]);
    EXF_TRY(exf_h5i_open_parent(h, t->name, &group, err));
    const char *name = strrchr(t->name, '/') + 1;
    htri_t exists = *name ? exf_h5i_find_made(h, t->name) != NULL : 1; /* "": the root itself */
    if (*name && !h->n_made) exists = H5Lexists(group, name, H5P_DEFAULT);
    if (exists) {
        rc = exists < 0 ? exf_h5i_fail(h, err, "cannot look up %s", t->name)
                        : exf_fail(err, EXF_INTERNAL, "%s: %s exists already", h->path, t->name);
        goto out;
    }
    for (int i = 0; i < t->rank; i++) dims[i] = (hsize_t)t->shape[i];
    hid_t space = t->rank ? H5Screate_simple(t->rank, dims, NULL) : H5Screate(H5S_SCALAR);
    *dataset = H5Dcreate2(group, name, type_of(t->dtype), space, h->lists.link, h->lists.dataset, H5P_DEFAULT);
    if (*dataset < 0) rc = exf_h5i_fail(h, err, "cannot make %s", t->name);
    H5Sclose(space);
    if (rc != EXF_OK) goto out;
    r->shape = *t;
    r->shape.name = NULL;
    r->shape.data = NULL;
    r->bytes = exf_tensor_bytes(t);
    haddr_t at = r->bytes ? H5Dget_offset(*dataset) : 0;
    r->at = at;
    if (at == HADDR_UNDEF) EXF_TRY(exf_h5i_fail(h, err, "cannot find the place of %s", t->name));
    rc = exf_h5i_note_made(h, t->name, (int)strlen(t->name), r, err);
out:
    if (group >= 0) H5Oclose(group);
    return rc;
}

/* ---- writing whole ones --------------------------------------------------------- */

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
        EXF_TRY(make_dataset(h, &t[i], &made[i].r, &made[i].dataset, err));
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

/* ---- rows --------------------------------------------------------------------- */

static uint64_t row_bytes(const exf_h5i_rows *r)
{
    return r->shape.rank && r->shape.shape[0] ? r->bytes / (uint64_t)r->shape.shape[0] : r->bytes;
}

exf_h5i_rows *exf_h5i_find_rows(exf_h5 *h, const char *path)
{
    for (size_t i = 0; i < h->n_rows; i++)
        if (strcmp(h->rows[i].path, path) == 0) return &h->rows[i];
    return NULL;
}

static exf_code add_rows(exf_h5 *h, const char *path, const exf_h5i_rows *r, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_mem_grow(&h->rows, &h->cap_rows, h->n_rows + 1, sizeof *h->rows, "HDF5 datasets", err));
    h->rows[h->n_rows] = *r;
    EXF_TRY(exf_mem_strdup(&h->rows[h->n_rows].path, path, "dataset path", err));
    h->n_rows++;
out:
    return rc;
}

exf_code exf_h5_define(exf_h5 *h, const exf_tensor *t, exf_err *err)
{
    exf_h5i_rows r;
    hid_t dataset;
    exf_code rc = exf_h5i_writable(h, err);
    if (rc != EXF_OK) return rc;
    rc = make_dataset(h, t, &r, &dataset, err);
    if (dataset >= 0) H5Dclose(dataset);
    if (rc != EXF_OK) return rc;
    rc = r.bytes ? exf_output_file_allocate(h->out, r.at, r.bytes, err) : EXF_OK;
    if (rc != EXF_OK) return exf_h5i_break(h, err);
    r.crc = exf_h5i_crc_of_zeros(r.bytes);
    return add_rows(h, t->name, &r, err);
}

exf_code exf_h5_take(exf_h5 *h, const exf_tensor *t, const uint32_t *rows_crc, exf_err *err)
{
    exf_h5i_rows r;
    hid_t dataset;
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(exf_h5i_open(h, t->name, &dataset, err));
    rc = find_place(h, t->name, dataset, &r, err);
    H5Oclose(dataset);
    if (rc == EXF_OK) rc = compare_shapes(h, &r.shape, t, err);
    if (rc != EXF_OK) goto out;
    r.anew = !rows_crc;
    r.crc = r.crc_stored = rows_crc ? *rows_crc : exf_h5i_crc_of_zeros(r.bytes);
    if (rows_crc) EXF_TRY(exf_h5i_check_elements(h, t->name, &r, NULL, err));
    rc = add_rows(h, t->name, &r, err);
out:
    return rc;
}

static exf_code check_rows(const exf_h5 *h, const exf_h5i_rows *r, const char *path, int64_t row, int64_t n_rows, exf_err *err)
{
    if (r->shape.rank == 0) return exf_fail(err, exf_h5i_blame(h), "%s: %s is a single element, expected rows", h->path, path);
    if (row >= 0 && n_rows >= 0 && row <= r->shape.shape[0] && n_rows <= r->shape.shape[0] - row) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(h), "%s: %s has %lld rows, expected %lld from row %lld on", h->path, path,
                    (long long)r->shape.shape[0], (long long)n_rows, (long long)row);
}

exf_code exf_h5_write_rows(exf_h5 *h, const char *path, int64_t row, int64_t n_rows, const void *data, exf_err *err)
{
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    exf_h5i_rows *r = exf_h5i_find_rows(h, path);
    if (!r) return exf_fail(err, EXF_INTERNAL, "%s: %s was not defined: its rows cannot be written", h->path, path);
    EXF_TRY(check_rows(h, r, path, row, n_rows, err));
    uint64_t from = (uint64_t)row * row_bytes(r), n = (uint64_t)n_rows * row_bytes(r);
    if (exf_output_file_patch(h->out, r->at + from, data, n, err) != EXF_OK) return exf_h5i_break(h, err);
    r->crc ^= exf_h5i_shift_crc(exf_h5i_add_to_crc(0, data, n) ^ exf_h5i_crc_of_zeros(n), r->bytes - from - n);
    r->next += n_rows;
out:
    return rc;
}

exf_code exf_h5_checksum(exf_h5 *h, const char *path, uint32_t *crc, exf_err *err)
{
    const exf_h5i_rows *r = exf_h5i_find_rows(h, path);
    if (!r) return exf_fail(err, EXF_INTERNAL, "%s: %s was not defined", h->path, path);
    *crc = r->crc;
    return EXF_OK;
}

exf_code exf_h5i_put_checksums(exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < h->n_rows; i++) {
        const exf_h5i_rows *r = &h->rows[i];
        hid_t dataset;
        if (r->anew && r->next < r->shape.shape[0])
            return exf_fail(err, EXF_INTERNAL, "%s: %s has %lld of %lld rows that were written anew", h->path, r->path,
                            (long long)r->next, (long long)r->shape.shape[0]);
        EXF_TRY(exf_h5i_open(h, r->path, &dataset, err));
        rc = exf_h5i_put_checksum(h, dataset, r->path, r->crc, err);
        H5Oclose(dataset);
    }
out:
    return rc;
}

/* ---- reading ------------------------------------------------------------------ */

exf_code exf_h5i_find_elements(exf_h5 *h, const char *path, hid_t dataset, exf_h5i_rows *r, exf_err *err)
{
    const exf_h5i_rows *defined = h->out ? exf_h5i_find_rows(h, path) : NULL;
    exf_code rc;
    EXF_TRY(find_place(h, path, dataset, r, err));
    if (defined)
        r->crc_stored = defined->crc;
    else
        rc = exf_h5i_get_checksum(h, dataset, path, &r->crc_stored, err);
out:
    return rc;
}

/* Opens a dataset to find its elements; `expected` NULL: whatever their shape. */
static exf_code find_to_read(exf_h5 *h, const char *path, const exf_tensor *expected, exf_h5i_rows *r, exf_err *err)
{
    hid_t dataset;
    exf_code rc = exf_h5i_open(h, path, &dataset, err);
    if (rc != EXF_OK) return rc;
    EXF_TRY(find_place(h, path, dataset, r, err));
    if (expected) EXF_TRY(compare_shapes(h, &r->shape, expected, err)); /* before a checksum that it may lack */
    rc = exf_h5i_find_elements(h, path, dataset, r, err);
out:
    H5Oclose(dataset);
    return rc;
}

exf_code exf_h5_read_rows(exf_h5 *h, const char *path, exf_dtype dtype, int64_t row, int64_t n_rows, void *data, exf_err *err)
{
    exf_h5i_rows *r = exf_h5i_find_rows(h, path), new;
    exf_code rc;
    if (h->out) return exf_fail(err, EXF_INTERNAL, "%s: is open for writing", h->path);
    if (!r) {
        EXF_TRY(find_to_read(h, path, NULL, &new, err));
        EXF_TRY(add_rows(h, path, &new, err));
        r = &h->rows[h->n_rows - 1];
    }
    EXF_TRY(check_rows(h, r, path, row, n_rows, err));
    if (r->shape.dtype != dtype)
        return exf_fail(err, EXF_FORMAT, "%s: %s is %s, expected %s", h->path, path, exf_dtype_name(r->shape.dtype),
                        exf_dtype_name(dtype));
    if (row == 0) r->next = 0, r->crc = 0;
    if (row != r->next)
        return exf_fail(err, EXF_INTERNAL, "%s: %s: row %lld is to be read, after row %lld", h->path, path, (long long)row,
                        (long long)r->next - 1);
    size_t n = (size_t)((uint64_t)n_rows * row_bytes(r));
    EXF_TRY(exf_h5i_read_bytes(h, r, (uint64_t)row * row_bytes(r), data, n, err));
    r->crc = exf_h5i_add_to_crc(r->crc, data, n);
    r->next += n_rows;
    if (r->next == r->shape.shape[0]) rc = exf_h5i_compare_crc(h, path, r, r->crc, err);
out:
    return rc;
}

exf_code exf_h5_read(exf_h5 *h, const exf_tensor *expected, void *data, exf_err *err)
{
    exf_h5i_rows r;
    exf_code rc;
    EXF_TRY(find_to_read(h, expected->name, expected, &r, err));
    if (r.bytes >= EXF_H5_LARGE) {
        EXF_TRY(exf_h5i_do_pieces(h, &r, NULL, data, &r.crc, NULL, err));
    } else {
        EXF_TRY(exf_h5i_read_bytes(h, &r, 0, data, r.bytes, err));
        r.crc = exf_h5i_add_to_crc(0, data, r.bytes);
    }
    rc = exf_h5i_compare_crc(h, expected->name, &r, r.crc, err);
out:
    return rc;
}

exf_code exf_h5_verify(exf_h5 *h, const char *path, exf_err *err)
{
    exf_h5i_rows r;
    exf_code rc = find_to_read(h, path, NULL, &r, err);
    return rc == EXF_OK ? exf_h5i_check_elements(h, path, &r, NULL, err) : rc;
}

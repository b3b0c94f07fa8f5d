/* h5_data.c - datasets of an HDF5 file; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static const exf_dtype stored[] = {EXF_DT_U8, EXF_DT_I8, EXF_DT_I32, EXF_DT_I64, EXF_DT_U64, EXF_DT_F32, EXF_DT_F64};

hid_t exf_h5i_type(exf_dtype t)
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

void exf_h5i_block(const exf_tensor *t, size_t limit, hsize_t *block)
{
    size_t bytes = exf_dtype_bits(t->dtype) / 8;
    int whole = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        hsize_t n = (hsize_t)t->shape[i], fit = limit / bytes ? limit / bytes : 1;
        block[i] = !whole ? 1 : n < fit ? n : fit;
        whole = whole && block[i] == n;
        bytes *= block[i];
    }
}

int exf_h5i_next_block(hsize_t *at, const hsize_t *block, const int64_t *shape, int rank)
{
    int axis = rank - 1;
    while (axis >= 0 && (at[axis] += block[axis]) >= (hsize_t)shape[axis]) at[axis--] = 0;
    return axis >= 0;
}

hsize_t exf_h5i_stored_bytes(hid_t dataset, const hsize_t *at)
{
    hsize_t bytes = 0;
    H5E_BEGIN_TRY { if (H5Dget_chunk_storage_size(dataset, at, &bytes) < 0) bytes = 0; }
    H5E_END_TRY
    return bytes;
}

H5Z_filter_t exf_h5i_filter(hid_t creation_list, int i)
{
    size_t n_values = 0;
    unsigned flags;
    return H5Pget_filter2(creation_list, (unsigned)i, &flags, &n_values, NULL, 0, NULL, NULL);
}

static herr_t is_inflate(unsigned n, const H5E_error2_t *e, void *found)
{
    if (n == 0 && e->desc && strstr(e->desc, "inflate")) *(int *)found = 1;
    return 0;
}

/* libhdf5 says the same of a stream that is damaged and of memory that inflate() lacked: what is damaged fails
 * twice.  Other reads are not tried again, since libhdf5 keeps what a failed read of the disk left in its buffers. */
static herr_t read_or_retry(hid_t dataset, hid_t type, hid_t memory, hid_t file, void *to)
{
    int inflating = 0;
    if (H5Dread(dataset, type, memory, file, H5P_DEFAULT, to) >= 0) return 0;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, is_inflate, &inflating);
    return inflating ? H5Dread(dataset, type, memory, file, H5P_DEFAULT, to) : -1;
}

herr_t exf_h5i_box(hid_t dataset, hid_t type, int rank, const hsize_t *start, const hsize_t *count, void *to, const void *from)
{
    hid_t file = H5Dget_space(dataset);
    hid_t memory = rank ? H5Screate_simple(rank, count, NULL) : H5Screate(H5S_SCALAR);
    herr_t status = file < 0 || memory < 0 ? -1 : 0;
    if (status >= 0 && rank) status = H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, count, NULL);
    if (status >= 0)
        status = to ? read_or_retry(dataset, type, memory, file, to) : H5Dwrite(dataset, type, memory, file, H5P_DEFAULT, from);
    /* H5Sclose would wipe the reason of a failure; exf_h5i_fail wants it. */
    hid_t stack = status < 0 ? H5Eget_current_stack() : H5I_INVALID_HID;
    if (memory >= 0) H5Sclose(memory);
    if (file >= 0) H5Sclose(file);
    if (stack >= 0) H5Eset_current_stack(stack);
    return status;
}

/* ---- the dataset used last ------------------------------------------------ */

exf_code exf_h5i_forget(exf_h5 *h, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (h->last < 0) return EXF_OK;
    if (H5Dclose(h->last) < 0) rc = exf_h5i_fail(h, err, "cannot complete %s", h->last_path);
    h->last = H5I_INVALID_HID;
    exf_mem_free(h->last_path);
    h->last_path = NULL;
    return rc;
}

/* Takes over the dataset's id, also on failure. */
static exf_code remember(exf_h5 *h, const char *path, hid_t dataset, exf_err *err)
{
    exf_code rc = exf_h5i_forget(h, err);
    if (rc == EXF_OK) rc = exf_mem_strdup(&h->last_path, path, "dataset path", err);
    h->exact_from = h->exact_to = 0;
    if (rc == EXF_OK)
        h->last = dataset;
    else
        H5Dclose(dataset);
    return rc;
}

/* A few chunks, evicted as soon as they are complete. */
static hid_t access_list(void)
{
    hid_t dapl = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(dapl, 521, EXF_H5I_STEP_BYTES, 1.0);
    return dapl;
}

/* Returns why a dataset of a foreign file is refused: its elements lie in other files; NULL: it is not. */
static const char *unacceptable(hid_t dataset)
{
    const char *why = NULL;
    hid_t dcpl = H5Dget_create_plist(dataset);
    H5D_layout_t layout = H5Pget_layout(dcpl);
    if (layout != H5D_COMPACT && layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) {
        why = "is a virtual dataset";
    } else if (layout == H5D_CONTIGUOUS && H5Pget_external_count(dcpl) != 0) {
        why = "has its elements in another file";
    }
    if (dcpl >= 0) H5Pclose(dcpl);
    return why;
}

exf_code exf_h5i_dataset(exf_h5 *h, const char *path, hid_t *dataset, exf_err *err)
{
    exf_code rc = exf_h5i_enter(err);
    if (rc != EXF_OK) return rc;
    *dataset = h->last;
    if (h->last >= 0 && strcmp(h->last_path, path) == 0) return EXF_OK;
    hid_t object;
    rc = exf_h5i_open(h, path, &object, err);
    if (rc != EXF_OK) return rc;
    int is_dataset = H5Iget_type(object) == H5I_DATASET;
    H5Oclose(object);
    if (!is_dataset) return exf_fail(err, exf_h5i_blame(h), "%s: %s is a group, expected a dataset", h->path, path);
    hid_t dapl = access_list();
    *dataset = H5Dopen2(h->file, path, dapl);
    if (*dataset < 0) rc = exf_h5i_fail(h, err, "cannot open %s", path);
    H5Pclose(dapl);
    if (rc != EXF_OK) return rc;
    const char *why = unacceptable(*dataset);
    if (why)
        rc = exf_fail(err, exf_h5i_blame(h), "%s: %s %s, which is not read", h->path, path, why);
    else if (!h->writing)
        rc = exf_h5i_check_storage(h, path, *dataset, h->bytes, err);
    if (rc == EXF_OK) return remember(h, path, *dataset, err);
    H5Dclose(*dataset);
    return rc;
}

/* ---- describing ------------------------------------------------------------- */

static int dtype_of(hid_t dataset, exf_dtype *out)
{
    hid_t type = H5Dget_type(dataset);
    int known = 0;
    for (size_t i = 0; i < sizeof stored / sizeof *stored && !known; i++) {
        known = type >= 0 && H5Tequal(type, exf_h5i_type(stored[i])) > 0;
        *out = stored[i];
    }
    if (type >= 0) H5Tclose(type);
    return known;
}

/* rank and shape; 0 if there is no shape, or one that no memory could hold. */
static int shape_of(hid_t dataset, exf_tensor *t)
{
    hid_t space = H5Dget_space(dataset);
    hsize_t dims[H5S_MAX_RANK], room = INT64_MAX / 16;
    H5S_class_t kind = space < 0 ? H5S_NO_CLASS : H5Sget_simple_extent_type(space);
    t->rank = kind == H5S_SIMPLE || kind == H5S_SCALAR ? H5Sget_simple_extent_dims(space, dims, NULL) : -1;
    if (space >= 0) H5Sclose(space);
    if (t->rank < 0 || t->rank > EXF_MAX_RANK) return 0;
    for (int i = 0; i < t->rank; i++) {
        if (dims[i] > room) return 0;
        if (dims[i]) room /= dims[i];
        t->shape[i] = (int64_t)dims[i];
    }
    return 1;
}

exf_code exf_h5_describe(exf_h5 *h, const char *path, exf_tensor *t, exf_err *err)
{
    hid_t dataset;
    memset(t, 0, sizeof *t);
    t->name = path;
    exf_code rc = exf_h5i_dataset(h, path, &dataset, err);
    if (rc != EXF_OK) return rc;
    if (!dtype_of(dataset, &t->dtype))
        return exf_fail(err, exf_h5i_blame(h),
                        "%s: %s has elements that are none of U8 I8 I32 I64 U64 F32 F64, little endian", h->path, path);
    if (!shape_of(dataset, t))
        return exf_fail(err, exf_h5i_blame(h),
                        "%s: %s has no shape, more than %d axes, or more elements than fit", h->path, path, EXF_MAX_RANK);
    return EXF_OK;
}

/* ---- writing ---------------------------------------------------------------- */

static exf_code check_new(exf_h5 *h, const exf_tensor *t, int whole, exf_err *err)
{
    int found;
    exf_code rc;
    int64_t room = INT64_MAX / 16;
    EXF_TRY(exf_h5i_writable(h, err));
    if (exf_h5i_type(t->dtype) < 0)
        return exf_fail(err, EXF_INTERNAL, "%s: %s: %s is no dtype of an HDF5 dataset here", h->path, t->name,
                        exf_dtype_name(t->dtype));
    if (t->rank < 0 || t->rank > EXF_MAX_RANK) return exf_fail(err, EXF_INTERNAL, "%s: %s has %d axes", h->path, t->name, t->rank);
    for (int i = 0; i < t->rank; i++) {
        if (t->shape[i] < 0 || t->shape[i] > room)
            return exf_fail(err, EXF_INTERNAL, "%s: %s: axis %d of %lld elements", h->path, t->name, i, (long long)t->shape[i]);
        if (t->shape[i]) room /= t->shape[i];
    }
    if (whole && !t->data && exf_tensor_count(t) > 0) return exf_fail(err, EXF_INTERNAL, "%s: %s has no data", h->path, t->name);
    EXF_TRY(exf_h5i_find(h, t->name, &found, err));
    if (found) return exf_fail(err, EXF_INTERNAL, "%s: %s exists already", h->path, t->name);
    rc = exf_h5i_make_parents(h, t->name, err);
out:
    return rc;
}

/* Layout, filters and what unwritten space holds. */
static hid_t creation_list(const exf_tensor *t, int flags, int whole)
{
    hsize_t chunk[EXF_MAX_RANK];
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(dcpl, 0);
    if ((flags & EXF_H5_COMPRESS) && t->rank > 0 && exf_tensor_count(t) > 0) {
        exf_h5i_block(t, flags & EXF_H5I_IN_PARTS ? EXF_H5I_PART_BYTES : EXF_H5I_CHUNK_BYTES, chunk);
        H5Pset_chunk(dcpl, t->rank, chunk);
        H5Pset_shuffle(dcpl);
        H5Pset_deflate(dcpl, EXF_H5I_DEFLATE_LEVEL);
        /* Also the part of the last chunk that lies outside: equal bytes. */
        H5Pset_fill_time(dcpl, H5D_FILL_TIME_ALLOC);
    } else if (whole) {
        H5Pset_fill_time(dcpl, H5D_FILL_TIME_NEVER);
    } else {
        /* Space taken in the file may have held something else before. */
        H5Pset_alloc_time(dcpl, H5D_ALLOC_TIME_EARLY);
        H5Pset_fill_time(dcpl, H5D_FILL_TIME_ALLOC);
    }
    return dcpl;
}

static exf_code make_dataset(exf_h5 *h, const exf_tensor *t, int flags, int whole, exf_err *err)
{
    hsize_t dims[EXF_MAX_RANK];
    exf_code rc = check_new(h, t, whole, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < t->rank; i++) dims[i] = (hsize_t)t->shape[i];
    hid_t space = t->rank ? H5Screate_simple(t->rank, dims, NULL) : H5Screate(H5S_SCALAR);
    hid_t lcpl = exf_h5i_utf8_links(), dcpl = creation_list(t, flags, whole), dapl = access_list();
    hid_t dataset = H5Dcreate2(h->file, t->name, exf_h5i_type(t->dtype), space, lcpl, dcpl, dapl);
    if (dataset < 0) rc = exf_h5i_fail(h, err, "cannot make %s", t->name);
    H5Pclose(dapl);
    H5Pclose(dcpl);
    H5Pclose(lcpl);
    H5Sclose(space);
    return dataset < 0 ? rc : remember(h, t->name, dataset, err);
}

exf_code exf_h5_define(exf_h5 *h, const exf_tensor *t, int flags, exf_err *err)
{
    exf_code rc = exf_h5i_forget(h, err); /* what it has still to write is not kept back */
    if (rc != EXF_OK) return rc;
    h->sink.keep = h->goes_on;
    rc = make_dataset(h, t, flags, 0, err);
    if (rc == EXF_OK) rc = exf_h5i_forget(h, err); /* writes the zeros of a small one */
    h->sink.keep = 0;
    return rc == EXF_OK ? exf_h5i_defined_add(h, t, err) : rc;
}

exf_code exf_h5i_make(exf_h5 *h, const exf_tensor *t, int flags, exf_err *err)
{
    exf_h5i_sums sums = {.crc = NULL};
    exf_code rc;
    EXF_TRY(make_dataset(h, t, flags, 1, err));
    EXF_TRY(exf_h5i_sums_new(&sums, t, err));
    exf_h5i_sums_add(&sums, 0, sums.n_rows, t->data);
    rc = exf_h5i_sums_put(h, t->name, &sums, err);
out:
    exf_h5i_sums_free(&sums);
    return rc;
}

exf_code exf_h5_write(exf_h5 *h, const exf_tensor *t, int flags, exf_err *err)
{
    exf_code rc = exf_h5i_make(h, t, flags, err);
    if (rc != EXF_OK || exf_tensor_count(t) == 0) return rc;
    if (H5Dwrite(h->last, exf_h5i_type(t->dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, t->data) < 0)
        return exf_h5i_fail(h, err, "cannot write %s", t->name);
    return EXF_OK;
}

/* ---- rows --------------------------------------------------------------------- */

/* Opens path and checks that it has these rows. */
static exf_code rows_of(exf_h5 *h, const char *path, int64_t row, int64_t n_rows, exf_tensor *t, exf_err *err)
{
    exf_code rc = exf_h5_describe(h, path, t, err);
    if (rc != EXF_OK) return rc;
    if (t->rank == 0) return exf_fail(err, exf_h5i_blame(h), "%s: %s is a single element, expected rows", h->path, path);
    if (row >= 0 && n_rows >= 0 && row <= t->shape[0] && n_rows <= t->shape[0] - row) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(h), "%s: %s has %lld rows, expected %lld from row %lld on", h->path, path,
                    (long long)t->shape[0], (long long)n_rows, (long long)row);
}

static herr_t move_rows(exf_h5 *h, const exf_tensor *t, int64_t row, int64_t n_rows, void *to, const void *from)
{
    hsize_t start[EXF_MAX_RANK] = {0}, count[EXF_MAX_RANK];
    for (int i = 0; i < t->rank; i++) count[i] = (hsize_t)t->shape[i];
    start[0] = (hsize_t)row;
    count[0] = (hsize_t)n_rows;
    return exf_h5i_box(h->last, exf_h5i_type(t->dtype), t->rank, start, count, to, from);
}

exf_code exf_h5_write_rows(exf_h5 *h, const char *path, int64_t row, int64_t n_rows, const void *data, exf_err *err)
{
    exf_tensor t;
    exf_code rc = exf_h5i_writable(h, err);
    if (rc == EXF_OK) rc = rows_of(h, path, row, n_rows, &t, err);
    if (rc != EXF_OK || n_rows == 0 || exf_tensor_count(&t) == 0) return rc;
    exf_h5i_sums *sums = exf_h5i_defined_find(h, path);
    if (!sums) return exf_fail(err, EXF_INTERNAL, "%s: %s was written whole, its rows cannot be written again", h->path, path);
    exf_h5i_sums_add(sums, row, n_rows, data);
    return move_rows(h, &t, row, n_rows, NULL, data) < 0 ? exf_h5i_fail(h, err, "cannot write %s", path) : EXF_OK;
}

exf_code exf_h5i_get_rows(exf_h5 *h, const exf_tensor *t, int64_t row, int64_t n_rows, void *to, exf_err *err)
{
    exf_code rc = exf_h5i_check_chunks(h, t, row, n_rows, err);
    if (rc != EXF_OK) return rc;
    return move_rows(h, t, row, n_rows, to, NULL) < 0 ? exf_h5i_fail(h, err, "cannot read %s", t->name) : EXF_OK;
}

exf_code exf_h5_read_rows(exf_h5 *h, const char *path, exf_dtype dtype, int64_t row, int64_t n_rows, void *data, exf_err *err)
{
    exf_tensor t;
    exf_code rc = rows_of(h, path, row, n_rows, &t, err);
    if (rc != EXF_OK) return rc;
    if (t.dtype != dtype)
        return exf_fail(err, exf_h5i_blame(h), "%s: %s is %s, expected %s", h->path, path, exf_dtype_name(t.dtype),
                        exf_dtype_name(dtype));
    if (n_rows == 0 || exf_tensor_count(&t) == 0) return EXF_OK;
    rc = exf_h5i_get_rows(h, &t, row, n_rows, data, err);
    return rc == EXF_OK ? exf_h5i_check_rows(h, &t, row, n_rows, data, err) : rc;
}

/* ---- reading ------------------------------------------------------------------ */

exf_code exf_h5_expect(exf_h5 *h, const exf_tensor *expected, exf_err *err)
{
    exf_tensor t;
    char is[256], want[256];
    exf_code rc = exf_h5_describe(h, expected->name, &t, err);
    if (rc != EXF_OK) return rc;
    int same = t.dtype == expected->dtype && t.rank == expected->rank;
    for (int i = 0; same && i < t.rank; i++) same = t.shape[i] == expected->shape[i];
    if (same) return EXF_OK;
    return exf_fail(err, exf_h5i_blame(h), "%s: %s is %s %s, expected %s %s", h->path, expected->name, exf_dtype_name(t.dtype),
                    exf_shape_text(is, sizeof is, t.shape, t.rank), exf_dtype_name(expected->dtype),
                    exf_shape_text(want, sizeof want, expected->shape, expected->rank));
}

exf_code exf_h5_read(exf_h5 *h, const exf_tensor *expected, void *data, exf_err *err)
{
    int done;
    int64_t n_rows = expected->rank ? expected->shape[0] : 1;
    exf_code rc = exf_h5_expect(h, expected, err);
    if (rc != EXF_OK || exf_tensor_count(expected) == 0) return rc;
    rc = exf_h5i_inflate(h->last, expected, 0, n_rows, data, &done, err);
    if (rc == EXF_OK && !done) rc = exf_h5i_check_chunks(h, expected, 0, n_rows, err);
    if (rc != EXF_OK) return rc;
    if (!done && read_or_retry(h->last, exf_h5i_type(expected->dtype), H5S_ALL, H5S_ALL, data) < 0)
        return exf_h5i_fail(h, err, "cannot read %s", expected->name);
    return exf_h5i_check_rows(h, expected, 0, n_rows, data, err);
}

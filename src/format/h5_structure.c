/* h5_structure.c - files that a later run goes on with: their structure is kept, and put back; see h5.h.
 *
 * libhdf5 may be killed in the middle of a change to its structure, and marks a file that is open for writing, which it
 * then refuses to open.  Both are undone by the bytes that were kept. */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void exf_h5_structure_free(exf_h5_structure *s)
{
    exf_mem_free(s->extent);
    exf_mem_free(s->bytes);
    memset(s, 0, sizeof *s);
}

static int by_place(const void *a, const void *b)
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
    qsort(r, n, sizeof *r, by_place);
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
    EXF_TRY(exf_h5i_close_structure(h, err));
    rc = exf_h5i_open_structure(h, 0, err);
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
    EXF_TRY(exf_h5i_close_structure(h, err));
    EXF_TRY(exf_output_file_size(h->out, &size, err));
    EXF_TRY(list_extents(h, size, &s, err));
    EXF_TRY(exf_mem_new(&s.bytes, s.n_bytes, 1, "HDF5 structure", err));
    for (size_t i = 0; i < s.n; done += (size_t)s.extent[2 * i++ + 1])
        EXF_TRY(exf_output_file_read(h->out, (uint64_t)s.extent[2 * i], s.bytes + done, (size_t)s.extent[2 * i + 1], err));
    rc = exf_h5i_open_structure(h, 0, err);
out:
    if (rc == EXF_OK)
        *out = s;
    else
        exf_h5_structure_free(&s);
    return rc;
}

/* Puts the structure back as it was kept, whatever a run that was killed has written since. */
static exf_code restore(exf_h5 *h, const exf_h5_structure *s, exf_err *err)
{
    uint64_t size, end = s->n ? (uint64_t)(s->extent[2 * s->n - 2] + s->extent[2 * s->n - 1]) : 0;
    size_t done = 0;
    exf_code rc;
    EXF_TRY(exf_output_file_size(h->out, &size, err));
    if (size < end)
        return exf_fail(err, EXF_FORMAT, "%s: was cut: has %llu bytes, its layers take %llu; --resume=never starts over",
                        exf_output_file_path(h->out), (unsigned long long)size, (unsigned long long)end);
    EXF_TRY(exf_output_file_resize(h->out, end, err));
    for (size_t i = 0; i < s->n; done += (size_t)s->extent[2 * i++ + 1])
        EXF_TRY(exf_output_file_patch(h->out, (uint64_t)s->extent[2 * i], s->bytes + done, (size_t)s->extent[2 * i + 1], err));
out:
    return rc;
}

exf_code exf_h5_continue_at(exf_h5 **out, const char *target, int force, const char *temporary, const exf_h5_structure *s,
                            exf_err *err)
{
    exf_h5 *h = NULL;
    exf_code rc;
    *out = NULL;
    EXF_TRY(exf_h5i_new_output(&h, target, force, temporary, 1, err));
    EXF_TRY(restore(h, s, err));
    EXF_TRY(exf_h5i_open_structure(h, 0, err));
    *out = h;
    return EXF_OK;
out:
    exf_h5_close(h);
    return rc;
}

exf_code exf_h5_take(exf_h5 *h, const exf_tensor *t, const uint32_t *rows_crc, exf_err *err)
{
    exf_h5i_rows r = {.path = NULL};
    uint32_t crc;
    exf_code rc;
    EXF_TRY(exf_h5i_writable(h, err));
    EXF_TRY(exf_h5i_look(h, t->name, &r, err));
    EXF_TRY(exf_h5i_expect(h, t, &r.shape, err));
    r.defined = rows_crc ? 1 : 2;
    r.crc = rows_crc ? *rows_crc : exf_h5i_crc_of_zeros(r.bytes);
    if (rows_crc) EXF_TRY(exf_h5i_read_all(h, &r, &crc, NULL, err));
    if (rows_crc) EXF_TRY(exf_h5i_compare(h, t->name, r.bytes, crc, *rows_crc, err));
    rc = exf_h5i_add_rows(h, t->name, &r, NULL, err);
out:
    return rc;
}

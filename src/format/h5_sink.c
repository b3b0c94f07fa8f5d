/* h5_sink.c - an HDF5 file driver that writes through base/file.h.
 *
 * HDF5's own driver cannot give up a file: when the disk is full, H5Fclose
 * fails, keeps the descriptor, and leaves an id whose use crashes.  This one
 * reports the first failure, with the system's reason, and from then on lets
 * HDF5 believe that all is well, so that closing succeeds and frees everything;
 * the temporary is removed anyway. */
#include "format/h5_internal.h"

#include <string.h>

static exf_h5i_sink *sink_of(const H5FD_t *f)
{
    return (exf_h5i_sink *)(uintptr_t)f;
}

/* HDF5 hears of a failure once. */
static herr_t outcome(exf_h5i_sink *s, exf_code rc, const exf_err *err)
{
    if (rc == EXF_OK || s->deaf || s->broken != EXF_OK) return 0;
    s->broken = rc;
    s->why = *err;
    return -1;
}

static H5FD_t *sink_open(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr)
{
    (void)name, (void)flags, (void)maxaddr;
    exf_h5i_sink *const *s = H5Pget_driver_info(fapl);
    if (!s) return NULL;
    (*s)->eoa = (*s)->eof = 0;
    return &(*s)->pub;
}

static herr_t sink_close(H5FD_t *f)
{
    (void)f; /* the sink is part of the exf_h5 */
    return 0;
}

static herr_t sink_query(const H5FD_t *f, unsigned long *flags)
{
    (void)f;
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

static haddr_t sink_get_eoa(const H5FD_t *f, H5FD_mem_t type)
{
    (void)type;
    return sink_of(f)->eoa;
}

static herr_t sink_set_eoa(H5FD_t *f, H5FD_mem_t type, haddr_t addr)
{
    (void)type;
    sink_of(f)->eoa = addr;
    return 0;
}

static haddr_t sink_get_eof(const H5FD_t *f, H5FD_mem_t type)
{
    (void)type;
    return sink_of(f)->eof;
}

static herr_t sink_read(H5FD_t *f, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t n, void *buf)
{
    (void)type, (void)dxpl;
    exf_h5i_sink *s = sink_of(f);
    exf_err err;
    /* Space that is allocated but was never written reads as zero. */
    size_t have = addr >= s->eof ? 0 : s->eof - addr < n ? (size_t)(s->eof - addr) : n;
    memset((char *)buf + have, 0, n - have);
    return outcome(s, exf_output_file_read(s->out, addr, buf, have, &err), &err);
}

/* Elements that stay must be in the file: one that ends before them was cut. */
static exf_code check_kept(const exf_h5i_sink *s, haddr_t addr, size_t n, exf_err *err)
{
    char last;
    exf_code rc = n ? exf_output_file_read(s->out, addr + n - 1, &last, 1, err) : EXF_OK;
    if (rc != EXF_FORMAT) return rc;
    return exf_fail(err, EXF_FORMAT, "%s: was cut: its layers take at least %llu bytes; --resume=never starts over",
                    exf_output_file_path(s->out), (unsigned long long)(addr + n));
}

static herr_t sink_write(H5FD_t *f, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t n, const void *buf)
{
    (void)dxpl;
    exf_h5i_sink *s = sink_of(f);
    exf_err err;
    int kept = s->keep && type == H5FD_MEM_DRAW;
    exf_code rc = kept ? check_kept(s, addr, n, &err) : exf_output_file_patch(s->out, addr, buf, n, &err);
    if (rc == EXF_OK && s->eof < addr + n) s->eof = addr + n;
    return outcome(s, rc, &err);
}

/* At flush and close the file must end where HDF5's allocations end. */
static herr_t sink_truncate(H5FD_t *f, hid_t dxpl, hbool_t closing)
{
    (void)dxpl, (void)closing;
    exf_h5i_sink *s = sink_of(f);
    exf_err err;
    if (s->eof == s->eoa && !s->goes_on) return 0;
    exf_code rc = exf_output_file_resize(s->out, s->eoa, &err);
    if (rc == EXF_OK) s->eof = s->eoa;
    return outcome(s, rc, &err);
}

static const H5FD_class_t sink_class = {
#if H5_VERSION_GE(1, 13, 0)
    .version = H5FD_CLASS_VERSION,
    .value = 512, /* the first value that is free for private drivers */
#endif
    .name = "exfold",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(exf_h5i_sink *),
    .open = sink_open,
    .close = sink_close,
    .query = sink_query,
    .get_eoa = sink_get_eoa,
    .set_eoa = sink_set_eoa,
    .get_eof = sink_get_eof,
    .read = sink_read,
    .write = sink_write,
    .truncate = sink_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

exf_code exf_h5i_sink_use(exf_h5i_sink *sink, hid_t fapl, exf_err *err)
{
    /* Registered once for good: libhdf5 1.10 lets go of the last file's driver
     * just before it calls that driver's close. */
    static hid_t driver = H5I_INVALID_HID;
    if (driver < 0 || H5Iget_type(driver) != H5I_VFL) driver = H5FDregister(&sink_class);
    if (driver >= 0 && H5Pset_driver(fapl, driver, &sink) >= 0) return EXF_OK; /* copies the pointer */
    return exf_fail(err, EXF_INTERNAL, "%s: libhdf5 refuses the file driver", sink->path);
}

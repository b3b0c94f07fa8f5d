/* h5_fail.c - what every call of libhdf5 needs before and after it: quiet and memory, why it failed, and whether a file can still
 * be written; see h5.h. */
#include "format/h5_internal.h"

#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- before a call -------------------------------------------------------- */

void exf_h5i_quiet(void)
{
    static _Thread_local int done;
    if (!done) H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    done = 1;
}

exf_code exf_h5i_enter(exf_err *err)
{
    exf_code rc = exf_mem_reserve("libhdf5", err);
    if (rc == EXF_OK) exf_h5i_quiet();
    return rc;
}

/* ---- failures --------------------------------------------------------------- */

typedef struct {
    char text[256];
    int errnum, no_space;
} reason;

static herr_t note_innermost(unsigned n, const H5E_error2_t *e, void *self)
{
    reason *r = self;
    if (n > 0 || !e->desc) return 0;
    snprintf(r->text, sizeof r->text, "%s", e->desc);
    /* HDF5's codes tell a failed write from a failed read, but not a full disk from a broken one.  The system's number is in the
     * description alone: errno itself may be overwritten by now. */
    const char *number = strstr(e->desc, "errno = ");
    if (number)
        r->errnum = atoi(number + strlen("errno = "));
    else if (e->maj_num == H5E_FILE && e->min_num == H5E_CANTGET)
        r->errnum = EIO; /* lstat() failed on a file that is open: HDF5 drops the number, but it is the disk's failure */
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

exf_code exf_h5i_writable(const exf_h5 *h, exf_err *err)
{
    exf_code rc = exf_h5i_enter(err);
    if (rc != EXF_OK) return rc;
    if (!h->out) return exf_fail(err, EXF_INTERNAL, "%s: is open for reading, not for writing", h->path);
    if (h->broken != EXF_OK) return exf_fail(err, h->broken, "%s", h->why.msg);
    return EXF_OK;
}

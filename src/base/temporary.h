/* temporary.h - names, locks and removes the temporaries that outputs are written to.
 *
 * The temporary of DIR/NAME is DIR/.NAME.<random>.partial.  Its writer holds a lock on it (flock)
 * until the temporary has its final name or is gone, so a temporary without a lock was left by a
 * process that was killed: the next writer of the same output removes it. */
#ifndef EXF_BASE_TEMPORARY_H
#define EXF_BASE_TEMPORARY_H
#include "base/err.h"

/* Returns the path of a new temporary for `target` in *out; the caller frees it. */
exf_code exf_temporary_name(char **out, const char *target, exf_err *err) EXF_CHECKED;
/* Locks an open temporary for as long as fd is open.  Where the file system has no locks the temporary stays without. */
void exf_temporary_lock(int fd);
/* Removes the temporaries of `target` that nobody has locked, files and folders of files; what cannot be removed stays. */
exf_code exf_temporary_remove_stale(const char *target, exf_err *err) EXF_CHECKED;
#endif

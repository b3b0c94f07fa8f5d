/* outfolder.h - writing a folder of files atomically: all of them or none.
 *
 * The files go to a temporary folder beside the target; commit syncs it and
 * renames it to the target.  Whatever fails, the target is as it was and the
 * temporary is gone.
 *
 * An existing target is refused unless `force`; with it, it must be a folder that
 * holds nothing but regular files whose names end as one of the new files' names
 * do (".npy"), so that nobody's notes are deleted.  It is moved aside, the new
 * folder takes its name, then it is removed; no file system renames a folder over
 * another, so for a moment between two renames the target is not there. */
#ifndef EXF_BASE_OUTFOLDER_H
#define EXF_BASE_OUTFOLDER_H
#include "base/err.h"

#include <stddef.h>

typedef struct exf_outfolder exf_outfolder;

/* The parent directory must exist. */
exf_code exf_outfolder_begin(exf_outfolder **out, const char *target, int force, exf_err *err) EXF_CHECKED;
/* Starts the next file, after syncing the one before.  `name` has no slash and is new. */
exf_code exf_outfolder_file(exf_outfolder *f, const char *name, exf_err *err) EXF_CHECKED;
/* Appends to the file that was started last; EXF_INTERNAL if none was. */
exf_code exf_outfolder_write(exf_outfolder *f, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
exf_code exf_outfolder_commit(exf_outfolder *f, exf_err *err) EXF_CHECKED; /* frees f, also on failure */
void exf_outfolder_abort(exf_outfolder *f);                                /* NULL is allowed */

/* EXF_IO if the target exists and force is 0, or is no folder: to refuse before any work. */
exf_code exf_outfolder_check(const char *target, int force, exf_err *err) EXF_CHECKED;

/* Names of the files in a folder, sorted, each passed to visit; stops at the first code that is not EXF_OK. */
exf_code exf_fold_rewriter_each(const char *path, exf_code (*visit)(void *self, const char *name, exf_err *err), void *self,
                         exf_err *err) EXF_CHECKED;
#endif

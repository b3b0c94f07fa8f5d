/* output_directory.h - exf_output_directory writes a directory of files atomically: all or none.
 *
 * The files go to a temporary directory beside the target; commit syncs it and
 * renames it to the target.  Whatever fails, the target is as it was and the
 * temporary is gone.
 *
 * A folder also gets EXF_FOLDER_LIST, its files' SHA-256 as `sha256sum -c` reads them, below a line that says
 * what it is.  An existing target is refused unless `force`; with it, it must be a folder that holds such a
 * list and nothing but what that lists, with those bytes: what this program did not write, or what was
 * changed since, is nobody's to delete.  Old and new directory exchange their names and the old one is
 * removed.  Where the system cannot exchange names, the old one is moved aside first, and the target is
 * absent for a moment. */
#ifndef EXF_BASE_OUTPUT_DIRECTORY_H
#define EXF_BASE_OUTPUT_DIRECTORY_H
#include "base/err.h"

#include <stddef.h>

#define EXF_FOLDER_LIST "exfold-files.sha256"

typedef struct exf_output_directory exf_output_directory;

/* The parent directory must exist. */
exf_code exf_output_directory_begin(exf_output_directory **out, const char *target, int force, exf_err *err) EXF_CHECKED;
/* Starts the next file, after syncing the one before.  `name` has no slash and is new. */
exf_code exf_output_directory_file(exf_output_directory *f, const char *name, exf_err *err) EXF_CHECKED;
/* Appends to the file that was started last; EXF_INTERNAL if none was. */
exf_code exf_output_directory_write(exf_output_directory *f, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
exf_code exf_output_directory_commit(exf_output_directory *f, exf_err *err) EXF_CHECKED; /* frees f, also on failure */
void exf_output_directory_abort(exf_output_directory *f);                                /* NULL is allowed */

/* EXF_IO if the target exists and force is 0, or is no directory, or holds what force may not replace; called before any
 * work. */
exf_code exf_output_directory_check(const char *target, int force, exf_err *err) EXF_CHECKED;

/* Calls visit with the name of each file in a directory, in sorted order, until it returns another code than EXF_OK. */
exf_code exf_each_file(const char *path, exf_code (*visit)(void *self, const char *name, exf_err *err), void *self,
                         exf_err *err) EXF_CHECKED;
#endif

/* temporary.h - makes the temporaries that outputs are written to, and removes those that killed processes left.
 *
 * The temporary of DIR/NAME is DIR/.NAME.<random>.partial, a file or a folder.  A name proves nothing: a file of somebody
 * else may be called so.  Before a temporary is made it is therefore claimed, by a symbolic link beside it that leads
 * nowhere and whose text says what is claimed; such a link appears with its text, in one step, or not at all:
 *
 *   .exfold-<random>       -> exfold-temporary/1:<inode of DIR>:.NAME.<random>.partial
 *   .exfold-<random>-<n>   -> exfold-temporary/1:<inode of DIR>:.NAME.<random>.partial/FILE      the n-th file of a folder
 *
 * The random number makes the claimed name new, and O_EXCL sees to it that this process made what has it; the inode tells a
 * copy of the directory from the one where the claim was made.  The writer holds a lock (flock) on the temporary until that
 * has its final name or is gone.  So what is claimed and not locked was left by a killed process, and the next writer in DIR
 * removes it, file by file; a folder that holds anything else stays.  What is not claimed is never touched.  Where a file
 * system has no symbolic links or no locks, temporaries of killed processes stay. */
#ifndef EXF_BASE_TEMPORARY_H
#define EXF_BASE_TEMPORARY_H
#include "base/err.h"

#include <stddef.h>

typedef struct {
    char *path, *directory; /* of the temporary, and of what it is in; NULL: none was made */
    unsigned long long random;
    size_t n_files; /* claimed in a folder */
} exf_temporary;

/* Makes an empty file, opened for reading and writing, or a folder, opened to be listed, that nobody else has; removes
 * what killed processes left in its directory. */
exf_code exf_temporary_make(exf_temporary *t, const char *target, int is_folder, int *fd, exf_err *err) EXF_CHECKED;
/* Claims a name in the folder, before the file is made.  No failure: what is not claimed is not removed. */
void exf_temporary_claim(exf_temporary *t, const char *name);
/* Locks an open temporary for as long as fd is open.  Where the file system has no locks the temporary stays without. */
void exf_temporary_lock(int fd);
/* Returns 1 if the path still names what fd has open, links not followed. */
int exf_temporary_is(const char *path, int fd);
/* Withdraws the claims, for a temporary that has its final name or is gone, and frees *t; *t may be zero. */
void exf_temporary_end(exf_temporary *t);
/* Frees *t and leaves the claims, for a temporary that could not be removed. */
void exf_temporary_leave(exf_temporary *t);
/* Removes what killed processes left in a directory; what cannot be removed stays. */
void exf_temporary_remove_stale(const char *directory);
#endif

/* run_directory.h - the directory in which a program writes: that of a run, which is made on demand and unmade after a
 * failure that left it empty, or that of a file which the user named.  One program at a time writes in a directory: its
 * lock is taken before the work and held until the outputs stand. */
#ifndef EXF_RECIPE_RUN_DIRECTORY_H
#define EXF_RECIPE_RUN_DIRECTORY_H
#include "base/err.h"

#include <stddef.h>

typedef struct exf_run_directory {
    char *path;
    size_t n_made; /* the last directories of the path, which this run made */
    int lock;      /* open while this run may write; 0: not locked */
    struct exf_run_directory *next; /* of those that the process has locked */
} exf_run_directory; /* stays where it is until it is closed */

/* Names it without touching the disk; makes and locks what was named; both.  EXF_IO if another program
 * has locked the directory; a process may lock one more than once. */
exf_code exf_run_directory_name(exf_run_directory *d, const char *path, exf_err *err) EXF_CHECKED;
exf_code exf_run_directory_make(exf_run_directory *d, exf_err *err) EXF_CHECKED;
exf_code exf_run_directory_open(exf_run_directory *d, const char *path, exf_err *err) EXF_CHECKED;
/* Locks the directory of an output file that the user named.  Nothing is locked where the directory is not there or cannot
 * be read, which the writer tells, or where a device, a pipe or a directory stands in the file's place. */
exf_code exf_run_directory_of_file(exf_run_directory *d, const char *file, exf_err *err) EXF_CHECKED;
/* Path of a file in it; caller frees. */
exf_code exf_run_directory_file(const exf_run_directory *d, const char *name, char **path, exf_err *err) EXF_CHECKED;
/* Gives the lock back.  After a failure: removes the directories that were made and are still empty. */
void exf_run_directory_close(exf_run_directory *d, int failed);
#endif

/* run_directory.h - the output directory of a run: made on demand, locked while the run writes, and
 * unmade after a failure that left it empty. */
#ifndef EXF_TOOL_RUN_DIRECTORY_H
#define EXF_TOOL_RUN_DIRECTORY_H
#include "base/err.h"

#include <stddef.h>

typedef struct {
    char *path;
    size_t n_made; /* directories that did not exist before */
    int lock;      /* open while this run may write; 0: not locked */
} exf_run_directory;

/* Names it without touching the disk; makes and locks what was named; both.  EXF_IO if another run
 * has locked the directory. */
exf_code exf_run_directory_name(exf_run_directory *d, const char *path, exf_err *err) EXF_CHECKED;
exf_code exf_run_directory_make(exf_run_directory *d, exf_err *err) EXF_CHECKED;
exf_code exf_run_directory_open(exf_run_directory *d, const char *path, exf_err *err) EXF_CHECKED;
/* Path of a file in it; caller frees. */
exf_code exf_run_directory_file(const exf_run_directory *d, const char *name, char **path, exf_err *err) EXF_CHECKED;
/* After a failure: removes the directories that were made and are still empty. */
void exf_run_directory_close(exf_run_directory *d, int failed);
#endif

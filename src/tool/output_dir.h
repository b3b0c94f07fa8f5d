/* output_dir.h - the output directory, made on demand and unmade after a failure that left
 * it empty. */
#ifndef EXF_TOOL_OUTPUT_DIR_H
#define EXF_TOOL_OUTPUT_DIR_H
#include "base/err.h"

#include <stddef.h>

typedef struct {
    char *path;
    size_t n_made; /* directories that did not exist before */
} exf_output_dir;

/* Names it without touching the disk; makes what was named; both. */
exf_code exf_output_dir_name(exf_output_dir *d, const char *path, exf_err *err) EXF_CHECKED;
exf_code exf_output_dir_make(exf_output_dir *d, exf_err *err) EXF_CHECKED;
exf_code exf_output_dir_open(exf_output_dir *d, const char *path, exf_err *err) EXF_CHECKED;
/* Path of a file in it; caller frees. */
exf_code exf_output_dir_file(const exf_output_dir *d, const char *name, char **path, exf_err *err) EXF_CHECKED;
/* After a failure: removes the directories that were made and are still empty. */
void exf_output_dir_close(exf_output_dir *d, int failed);
#endif

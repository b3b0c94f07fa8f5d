/* verify_directory.h - verifies the outputs of a run as one set.
 *
 * A run writes exfold_recipe.yaml last, and every output names the tables that it was made from; so
 * a directory that holds outputs of two runs, as a killed one leaves it, is told from a whole one. */
#ifndef EXF_TOOL_VERIFY_DIRECTORY_H
#define EXF_TOOL_VERIFY_DIRECTORY_H
#include "inspect/verify.h"

/* Verifies files as exf_verify() does.  A directory stands for the tables, statistics and capture in it;
 * it is moreover EXF_FORMAT if a run has not ended in it, or if a file that was made from tables
 * (derived_files.h) was made from others than its tables.h5; EXF_IO if it holds no artifact. */
exf_code exf_verify_inputs(const char *const *paths, size_t n, exf_verify_callback held, void *self, exf_err *err) EXF_CHECKED;
#endif

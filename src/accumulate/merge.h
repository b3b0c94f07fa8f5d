/* merge.h - adding up statistics of different data. */
#ifndef EXF_ACCUMULATE_MERGE_H
#define EXF_ACCUMULATE_MERGE_H
#include "base/err.h"

#include <stddef.h>

/* The sums of n statistics files of the same model, tokenizer, settings and layers into
 * `target`.  In whatever order or steps files are merged, the result has the payload digest
 * of one run over the union of their data; /origin lists the parts with their digests.
 *
 * EXF_MODEL naming both files: for a fact that differs, with both texts; a sequence that
 * two of them hold; files of which some only say which sequences they hold (version 1);
 * vector sums of other pairs or another basis, which do not add.  Where those agree, their
 * grids become that of the sums: a sum is rounded to it once per merge. */
exf_code exf_merge_statistics(const char *const *paths, size_t n, const char *target, int force, exf_err *err) EXF_CHECKED;
#endif

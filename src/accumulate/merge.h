/* merge.h - adds up statistics of different data. */
#ifndef EXF_ACCUMULATE_MERGE_H
#define EXF_ACCUMULATE_MERGE_H
#include "base/hash.h"

#include <stddef.h>

/* Adds the sums of n statistics files of the same model, tokenizer, settings and layers into
 * `target`.  In whatever order or steps files are merged, the result has the payload digest
 * of one run over the union of their data; /origin lists the parts with their digests.
 *
 * Shards of a corpus (artifact/shards.h) must all be there, once each; partial: some may be missing.
 * EXF_MODEL names both files and what is wrong: a fact that differs, with both texts; a
 * sequence that two of them have; sequences known in only some of the files (version 1);
 * vector sums over another basis (artifact/artifact_basis.h), which cannot be added.  Over one basis
 * they are integers in one unit.  Only in files of earlier programs, which do not name their basis, a
 * sum is put on the grid of the merged sums: rounded to it once per merge.  digest: of the result's payload; may be NULL. */
exf_code exf_merge_statistics(const char *const *paths, size_t n, const char *target, int force, int partial,
                              char digest[EXF_SHA256_HEX], exf_err *err) EXF_CHECKED;
#endif

/* sketch_set.h - sketches of the documents that an artifact is of (capture/near_copies.h), so that text like the calibration's is
 * recognised without it.
 *
 * A set, in rising order of its bytes: whatever shards, merges and orders of files it was put together by, it is the same.  Of more
 * than EXF_MOST_SKETCHES documents it has the least ones, which no other part can turn out: 8 MiB at most. */
#ifndef EXF_ARTIFACT_SKETCH_SET_H
#define EXF_ARTIFACT_SKETCH_SET_H
#include "format/h5.h"

#include <stddef.h>

enum { EXF_SKETCH_BYTES = 128, EXF_MOST_SKETCHES = 1 << 16 };

/* Zero-initialise; sketch NULL: no document is known. */
typedef struct {
    size_t n;
    unsigned char (*sketch)[EXF_SKETCH_BYTES]; /* [n] */
} exf_sketch_set;

/* Adds n sketches, some of which the set may have. */
exf_code exf_sketch_set_add(exf_sketch_set *s, const unsigned char (*sketch)[EXF_SKETCH_BYTES], size_t n, exf_err *err) EXF_CHECKED;
/* Adds those of another set. */
exf_code exf_sketch_set_join(exf_sketch_set *s, const exf_sketch_set *other, exf_err *err) EXF_CHECKED;
int exf_sketch_set_same(const exf_sketch_set *a, const exf_sketch_set *b);
/* Write and read /document_sketches U8 [n, 128]; nothing where no document is known.  EXF_FORMAT naming file and row where they do
 * not rise. */
exf_code exf_sketch_set_write(const exf_sketch_set *s, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_sketch_set_read(exf_sketch_set *s, exf_h5 *h, exf_err *err) EXF_CHECKED;
void exf_sketch_set_free(exf_sketch_set *s);
#endif

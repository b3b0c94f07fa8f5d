/* capture_write_behind.h - a thread that writes captured blocks while the forward pass
 * computes the next ones.
 *
 * Putting a block copies it and returns; if two blocks are not yet written, it waits for
 * the first.  HDF5 serves one thread at a time: between new and finish that is the
 * writing thread. */
#ifndef EXF_CAPTURE_CAPTURE_WRITE_BEHIND_H
#define EXF_CAPTURE_CAPTURE_WRITE_BEHIND_H
#include "artifact/artifact_capture.h"

typedef struct exf_capture_write_behind exf_capture_write_behind;

/* For blocks of at most `rows` rows of the file, which is borrowed. */
exf_code exf_capture_write_behind_new(exf_capture_write_behind **out, exf_capture_file *file, int64_t rows,
                                      exf_err *err) EXF_CHECKED;
/* As exf_capture_put() and, if the file has energies of the stream, exf_capture_put_stream(), from any thread;
 * returns the failure of an earlier block, if any. */
exf_code exf_capture_write_behind_put(exf_capture_write_behind *w, int layer, int64_t row, int64_t n, const int32_t *ids,
                                      const float *weights, const float *outputs, const double *stream_sq,
                                      exf_err *err) EXF_CHECKED;
/* Waits for the last block; the first failure, if any. */
exf_code exf_capture_write_behind_finish(exf_capture_write_behind *w, exf_err *err) EXF_CHECKED;
void exf_capture_write_behind_free(exf_capture_write_behind *w); /* drops blocks that are not written; NULL is allowed */
#endif

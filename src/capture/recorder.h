/* recorder.h - the observer that writes a capture file. */
#ifndef EXF_CAPTURE_RECORDER_H
#define EXF_CAPTURE_RECORDER_H
#include "artifact/artifact_capture.h"
#include "capture/capture.h"
#include "pass/resume.h"

/* A thread that writes captured blocks while the forward pass
 * computes the next ones.
 *
 * Putting a block copies it and returns; if two blocks are not yet written, it waits for
 * the first.  HDF5 serves one thread at a time: between new and finish that is the
 * writing thread. */

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

typedef struct exf_recorder exf_recorder;
/* has_stream: the pass has a residual stream, whose energies are recorded too.
 * resume: the run's resume point, or NULL.  A run that saves points writes to the target's unfinished file, which the point's
 * journal names and which is removed with the point.  It stays when the run is stopped after a saved layer: the point has the
 * checksums of its finished layers, and a run that goes on from the point compares them (EXF_FORMAT) and writes the others. */
exf_code exf_recorder_new(exf_recorder **out, const char *target, int force, const exf_run_shape *shape, exf_layer_choice *layers,
                          const exf_sequence_list *sequences, int has_stream, const exf_provenance *p, exf_resume *resume,
                          exf_err *err) EXF_CHECKED;
/* Returns the path of a target's unfinished file, "DIR/.NAME.unfinished", in *out; the caller frees it. */
exf_code exf_recorder_unfinished(char **out, const char *target, exf_err *err) EXF_CHECKED;
const exf_observer *exf_recorder_observer(exf_recorder *r);
/* Moves the file into place.  late: facts that were known only after the pass; NULL: none. */
exf_code exf_recorder_commit(exf_recorder *r, const exf_provenance *late, exf_err *err) EXF_CHECKED;
/* Gives up what was not committed and of which no layer is saved.  Before the resume point is closed. */
void exf_recorder_free(exf_recorder *r);
#endif

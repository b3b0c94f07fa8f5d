/* recorder.h - the observer that writes a capture file. */
#ifndef EXF_CAPTURE_RECORDER_H
#define EXF_CAPTURE_RECORDER_H
#include "capture/capture.h"

typedef struct exf_recorder exf_recorder;
exf_code exf_recorder_new(exf_recorder **out, const char *target, int force, const exf_run_shape *shape, exf_layer_choice *layers,
                          const exf_sequence_list *sequences, const exf_provenance *p, exf_err *err) EXF_CHECKED;
const exf_observer *exf_recorder_observer(exf_recorder *r);
/* Moves the file into place.  late: facts that were known only behind the pass; NULL: none. */
exf_code exf_recorder_commit(exf_recorder *r, const exf_provenance *late, exf_err *err) EXF_CHECKED;
void exf_recorder_free(exf_recorder *r); /* gives up what was not committed */
#endif

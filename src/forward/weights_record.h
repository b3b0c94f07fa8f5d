/* weights_record.h - keeps the digests of the weights that a pass has read (model/weight_identity.h) at its
 * resume point, since a run that goes on does not read them again. */
#ifndef EXF_FORWARD_WEIGHTS_RECORD_H
#define EXF_FORWARD_WEIGHTS_RECORD_H
#include "model/model.h"
#include "resume/resume.h"

/* Writes them after `done` layers. */
exf_code exf_weights_record_put(const exf_model *m, exf_resume *r, int done, exf_err *err) EXF_CHECKED;
/* Restores them from the point that was opened. */
exf_code exf_weights_record_get(const exf_model *m, const exf_resume *r, exf_err *err) EXF_CHECKED;
#endif

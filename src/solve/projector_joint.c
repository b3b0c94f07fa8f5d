/* projector_joint.c - the joint projector: the weights of kept routes that approximate all omitted
 * experts of a token best (docs/method.md, section 8).  It stores no arrays: the joint forms of
 * exfold/fold.h solve for the weights from the mean Gram matrix, tables.cosine and tables.rms. */
#include "artifact/projector.h"

const exf_projector exf_projector_joint = {EXF_PROJECTOR_JOINT};

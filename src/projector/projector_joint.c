/* projector_joint.c - weights that best stand in for all omitted experts of a token together
 * (method, section 8).  Nothing of its own is solved or stored: the joint forms of
 * exfold/fold.h work on the mean Gram matrix, tables.cosine and tables.rms. */
#include "artifact/projector.h"

const exf_projector exf_projector_joint = {.name = "joint", .place = 60, .apply = EXF_APPLY_JOINTLY};

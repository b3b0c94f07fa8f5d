/* provenance_join.h - joins the facts of files over different data. */
#ifndef EXF_ARTIFACT_PROVENANCE_JOIN_H
#define EXF_ARTIFACT_PROVENANCE_JOIN_H
#include "artifact/provenance.h"

/* Joins the facts of n parts over different data.  Facts outside data.* must be equal in all parts
 * (EXF_MODEL naming the two files, the fact and both texts); data.sequences and data.tokens add up;
 * the other data.* facts are listed per part as data.<i>.*, parts in order of data.tokens_digest (of
 * recorded hidden states: data.moe_inputs_sha256), so that the order given does not matter.  The
 * same tokens twice are refused.  One part: a copy. */
exf_code exf_provenance_join(exf_provenance *out, const exf_provenance *const *part, const char *const *path, size_t n,
                             exf_err *err) EXF_CHECKED;
#endif

/* provenance.h - where an artifact comes from: facts as key = text, in order of
 * key.  A stage copies its input's facts and adds its own under its name:
 *
 *   model.family, model.config_sha256, model.weights_sha256, tokenizer.sha256
 *   data.manifest_sha256, data.tokens_sha256, data.sequences, data.tokens, ...
 *   capture.program, capture.version, capture.commit, capture.backend, ...
 *   accumulate.weighting, ...      solve.ridge, solve.statistics_sha256, ...
 *
 * No clock, host or path ever goes in: equal inputs give equal facts.
 * Ownership: zero-initialise, exf_provenance_free(). */
#ifndef EXF_ARTIFACT_PROVENANCE_H
#define EXF_ARTIFACT_PROVENANCE_H
#include "format/h5.h"

typedef struct {
    char **key, **value;
    size_t n, cap_key, cap_value;
} exf_provenance;

/* Adds a fact; a key that is there already with another text is EXF_INTERNAL. */
exf_code exf_provenance_add(exf_provenance *p, exf_err *err, const char *key, const char *fmt, ...) EXF_PRINTF(4, 5) EXF_CHECKED;
const char *exf_provenance_get(const exf_provenance *p, const char *key); /* NULL if absent */
exf_code exf_provenance_copy(exf_provenance *to, const exf_provenance *from, exf_err *err) EXF_CHECKED;
/* The facts of n parts over different data as one.  Facts outside data.* must be
 * equal in all parts (EXF_MODEL naming the two files, the fact and both texts);
 * data.sequences and data.tokens add up; the other data.* facts are listed per
 * part as data.<i>.*, parts in order of data.tokens_sha256 (of recorded hidden
 * states: data.moe_inputs_sha256), so that the order
 * given does not matter.  The same tokens twice are refused.  One part: a copy. */
exf_code exf_provenance_join(exf_provenance *out, const exf_provenance *const *part, const char *const *path, size_t n,
                             exf_err *err) EXF_CHECKED;
void exf_provenance_free(exf_provenance *p);

/* As text attributes of the group /provenance. */
exf_code exf_provenance_write(const exf_provenance *p, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_provenance_read(exf_provenance *p, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Facts of another group; writing none makes no group, a group that is absent has none. */
exf_code exf_facts_write(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_facts_read(exf_provenance *p, const char *group, exf_h5 *h, exf_err *err) EXF_CHECKED;
#endif

/* provenance.h - facts as key = text that say from which inputs an artifact was made.
 *
 * They stand in order of key.  A stage copies its input's facts and adds its own under its name:
 *
 *   model.family, model.config_sha256, model.weights_digest, model.weights_parts (weights_facts.h)
 *   tokenizer.sha256
 *   data.manifest_sha256, data.tokens_digest, data.sequences, data.tokens, ...
 *   capture.program, capture.version, capture.commit, capture.backend, ...
 *   accumulate.weighting, ...      solve.ridge, solve.statistics_digest, ...
 *   solve.sensitivities_sha256, ...  of the file behind budgets by "measured"
 *
 * A key that ends in sha256 has what `sha256sum FILE` prints of one file; a key that ends in digest
 * has the SHA-256 of contents, wherever and however they are stored: of an artifact's payload
 * (exf_h5_digest), of a checkpoint's tensors, of tokens or sequences.  Files of earlier programs name digests
 * sha256 too; they are read under the names of today.
 *
 * No clock, host or path is ever recorded: equal inputs give equal facts. */
#ifndef EXF_ARTIFACT_PROVENANCE_H
#define EXF_ARTIFACT_PROVENANCE_H
#include "format/h5.h"

/* Ownership: zero-initialise, exf_provenance_free(). */
typedef struct {
    char **key, **value;
    size_t n, cap_key, cap_value;
} exf_provenance;

/* Adds a fact; EXF_INTERNAL if the key has another text already. */
exf_code exf_provenance_add(exf_provenance *p, exf_err *err, const char *key, const char *fmt, ...) EXF_PRINTF(4, 5) EXF_CHECKED;
const char *exf_provenance_get(const exf_provenance *p, const char *key); /* NULL if absent */
exf_code exf_provenance_copy(exf_provenance *to, const exf_provenance *from, exf_err *err) EXF_CHECKED;
void exf_provenance_free(exf_provenance *p);

/* Write and read the facts as text attributes of the group /provenance. */
exf_code exf_provenance_write(const exf_provenance *p, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_provenance_read(exf_provenance *p, exf_h5 *h, exf_err *err) EXF_CHECKED;
/* Write and read the facts of another group.  Writing no facts makes no group; a missing group has no facts. */
/* Adds facts to a group that is there. */
exf_code exf_facts_append(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_facts_write(const exf_provenance *p, const char *group, exf_h5 *h, exf_err *err) EXF_CHECKED;
exf_code exf_facts_read(exf_provenance *p, const char *group, exf_h5 *h, exf_err *err) EXF_CHECKED;
#endif

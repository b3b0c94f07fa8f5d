/* weights_facts.h - what provenance says of the weights that were read, and whether two files had the same.
 *
 *   model.weights_parts    a digest list (base/hash.h) of the parts that the run read: "embedding",
 *                          "head", "<l>.experts", "<l>.other"; each the SHA-256 of all bytes of the part's
 *                          tensors as they were read (model/weight_identity.h)
 *   model.weights_digest   SHA-256 of that list's text
 *
 * Runs that read other parts (chosen layers, logits) are compared in the parts that both read.  Files of
 * earlier programs have a model.weights_digest of samples and no parts: it says nothing about bytes that
 * were not sampled, so these are compared with each other only. */
#ifndef EXF_ARTIFACT_WEIGHTS_FACTS_H
#define EXF_ARTIFACT_WEIGHTS_FACTS_H
#include "artifact/provenance.h"

/* Adds both facts of a list of parts. */
exf_code exf_weights_facts_add(exf_provenance *p, const char *parts, exf_err *err) EXF_CHECKED;
/* Returns 1 for the keys of the two facts, which are joined and compared by the functions below. */
int exf_weights_facts_key(const char *key);
/* Returns 1 for the key of the list, which is for programs: of a model of 48 layers it has 7,000 letters. */
int exf_weights_facts_list_key(const char *key);
/* EXF_MODEL naming both files and the first part that differs. */
exf_code exf_weights_facts_same(const exf_provenance *a, const char *path_a, const exf_provenance *b, const char *path_b,
                                exf_err *err) EXF_CHECKED;
/* Adds to out the facts of all parts that any of n provenances has; they must be the same. */
exf_code exf_weights_facts_join(exf_provenance *out, const exf_provenance *const *part, size_t n, exf_err *err) EXF_CHECKED;
#endif

/* sensitivities.h - what folding one layer alone does to the model: a validation measures it (exfold-validate
 * --sensitivities), and budgets per token by "measured" are solved from its file (exfold-solve --sensitivities). */
#ifndef EXF_RUN_SENSITIVITIES_H
#define EXF_RUN_SENSITIVITIES_H
#include "artifact/tables.h"
#include "base/hash.h"
#include "fold/variant.h"

/* Lists a variant for each layer of the tables: K / 2 experts per token with joint weights in that layer, all others as
 * they are.  The caller frees *out. */
exf_code exf_sensitivity_variants(exf_variant **out, size_t *n, const exf_tables *t, exf_err *err) EXF_CHECKED;

/* The sensitivities that a validation measured.  Ownership: exf_sensitivities_free(). */
typedef struct {
    double *kl;                               /* [L] mean KL of each layer of the statistics, in their order */
    char sha256[EXF_SHA256_HEX];              /* of the file */
    char statistics_digest[EXF_SHA256_HEX];   /* of the statistics' payload */
    exf_provenance facts;                     /* of the validation: model, data, tables */
} exf_sensitivities;

/* Reads the JSON of such a validation for a statistics file, whose payload has the digest statistics_digest (NULL: it is
 * computed).  EXF_FORMAT naming the file and the layer where a number is missing or not above 0; EXF_MODEL where it was
 * measured on another model, or with tables of other statistics. */
exf_code exf_sensitivities_read(exf_sensitivities *out, const char *path, const char *statistics, const char *statistics_digest,
                                exf_err *err) EXF_CHECKED;
/* Adds to tables that have budgets by "measured" which file these are from and on which data it was made:
 * solve.sensitivities_sha256, solve.sensitivities_tokens_digest, solve.sensitivities_domains. */
exf_code exf_sensitivities_record(const exf_sensitivities *s, exf_tables *t, exf_err *err) EXF_CHECKED;
void exf_sensitivities_free(exf_sensitivities *s); /* accepts zeroed memory */
#endif

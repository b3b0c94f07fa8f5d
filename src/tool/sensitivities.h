/* sensitivities.h - what folding one layer alone does to the model: a validation measures it (exfold-validate
 * --sensitivities), and budgets per token by "measured" are solved from its file (exfold-solve --sensitivities). */
#ifndef EXF_TOOL_SENSITIVITIES_H
#define EXF_TOOL_SENSITIVITIES_H
#include "artifact/tables.h"
#include "fold/variant.h"

/* Lists a variant for each layer of the tables: K / 2 experts per token with joint weights in that layer, all others as
 * they are.  The caller frees *out. */
exf_code exf_sensitivity_variants(exf_variant **out, size_t *n, const exf_tables *t, exf_err *err) EXF_CHECKED;
/* Reads from the JSON of such a validation the mean KL of each layer of a statistics file, [L] in its order: finite and
 * above 0, EXF_FORMAT naming the file and the layer otherwise.  The caller frees *kl. */
exf_code exf_sensitivities_read(double **kl, const char *path, const char *statistics, exf_err *err) EXF_CHECKED;
#endif

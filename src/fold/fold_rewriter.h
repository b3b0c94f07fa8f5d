/* fold_rewriter.h - makes a rewriter from a variant: a lane of the forward pass with it runs the
 * model as the variant says. */
#ifndef EXF_FOLD_FOLD_REWRITER_H
#define EXF_FOLD_FOLD_REWRITER_H
#include "artifact/tables.h"
#include "fold/decode_schedule.h"
#include "fold/variant.h"

/* Cost of the routes of a lane in one MoE layer, added up over calls. */
typedef struct {
    uint64_t tokens, executed; /* executed: distinct experts of each token, added up */
    uint64_t steps, distinct;  /* decode steps, and the distinct experts of each */
} exf_expert_usage;

typedef struct exf_fold_rewriter exf_fold_rewriter;

/* Makes a rewriter.  variant NULL: changes nothing and counts.  Layers that the tables lack
 * are never folded, hash layers only as the variant's runtime folds them.  All arguments are borrowed; t->vectors must be read if
 * the variant asks for vectors.  EXF_USAGE names what the tables lack (a projector, a pool,
 * an array that version 1 of the format did not have), or says that vectors and a decode
 * fold apply to the same positions. */
exf_code exf_fold_rewriter_new(exf_fold_rewriter **out, const exf_variant *variant, const exf_tables *t, const exf_architecture *a,
                               const exf_decode_schedule *schedule, exf_err *err) EXF_CHECKED;
const exf_rewriter *exf_fold_rewriter_callbacks(exf_fold_rewriter *f);
/* Returns counts [MoE layers of the model] of the lane's own routes; probes are not counted. */
const exf_expert_usage *exf_fold_rewriter_usage(const exf_fold_rewriter *f);
/* Sets the counts of the first n MoE layers, which a resumed pass does not run. */
void exf_fold_rewriter_set_usage(exf_fold_rewriter *f, const exf_expert_usage *usage, int n);
void exf_fold_rewriter_free(exf_fold_rewriter *f); /* NULL is allowed */
/* Returns 1 if the variant applies vectors (exf_tables_read_vectors). */
int exf_variant_wants_vectors(const exf_variant *v);
#endif

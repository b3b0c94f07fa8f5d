/* fold_rewriter.h - a variant as a rewriter: plug it into a lane of the forward pass, and the
 * model runs that way. */
#ifndef EXF_FOLD_FOLD_REWRITER_H
#define EXF_FOLD_FOLD_REWRITER_H
#include "artifact/tables.h"
#include "fold/decode_schedule.h"
#include "fold/variant.h"

/* What the routes of a lane cost, added up over calls; one per MoE layer. */
typedef struct {
    uint64_t tokens, executed; /* executed: distinct experts of each token, added up */
    uint64_t steps, distinct;  /* decode steps, and the distinct experts of each */
} exf_expert_usage;

typedef struct exf_fold_rewriter exf_fold_rewriter;

/* variant NULL: changes nothing and counts.  Layers that the tables lack and hash
 * layers are never folded.  Borrows all; the tables' vectors must be there if the
 * variant asks for them.  EXF_USAGE naming what the tables lack: a projector, a pool,
 * what version 1 of their format had not; or that vectors and a decode fold meet in the
 * same positions. */
exf_code exf_fold_rewriter_new(exf_fold_rewriter **out, const exf_variant *variant, const exf_tables *t, const exf_architecture *a,
                               const exf_decode_schedule *schedule, exf_err *err) EXF_CHECKED;
const exf_rewriter *exf_fold_rewriter_callbacks(exf_fold_rewriter *f);
/* [MoE layers of the model] of the lane's own routes, not of probes. */
const exf_expert_usage *exf_fold_rewriter_usage(const exf_fold_rewriter *f);
void exf_fold_rewriter_free(exf_fold_rewriter *f); /* NULL is allowed */
/* 1 if the variant acts on vectors (exf_tables_read_vectors). */
int exf_variant_wants_vectors(const exf_variant *v);
#endif

/* evidence.h - computes the evidence of a layer's tables for a model card: how many pairs
 * were observed on how many tokens. */
#ifndef EXF_EXPORT_EVIDENCE_H
#define EXF_EXPORT_EVIDENCE_H
#include "artifact/tables.h"
#include "export/writer.h"

/* Medians are the lower of two in the middle. */
typedef struct {
    size_t pairs, observed; /* ordered pairs of two experts; those with a loss below EXF_LOSS_NEVER */
    uint64_t tokens;        /* median over observed pairs; 0 if there are none, as the next two */
    float loss;             /* the same of the loss */
    float best;             /* median over experts with an observed pair of the loss to the best target */
    int cold;               /* experts never routed */
} exf_evidence;

exf_code exf_evidence_of_layer(exf_evidence *c, const exf_tables *t, int layer, exf_err *err) EXF_CHECKED;

/* Lines of Python that load a file of tables, for a model card.
 * The tests compare them with tests/interop/load_*.py, which are run. */

/* Of an export target, or "hdf5" for tables.h5; NULL: there is none. */
const exf_snippet *exf_snippet_find(const char *target);
#endif

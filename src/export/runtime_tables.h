/* runtime_tables.h - shared by the writers of the two public plugins' files: tables that have all of the model's layers. */
#ifndef EXF_EXPORT_RUNTIME_TABLES_H
#define EXF_EXPORT_RUNTIME_TABLES_H
#include "export/writer_internal.h"
#include "format/ptfile.h"

typedef struct {
    int64_t n_layers;  /* M, all layers of the model */
    int64_t n_experts; /* E */
    float *coeff;      /* [M, E, E] 1 on the diagonal, 0 where there is no evidence */
    float *loss;       /* [M, E, E] EXF_LOSS_NEVER on the diagonal and where there is no evidence */
    float *norms;      /* [M, E] */
} exf_runtime_tables;

/* Makes tables of all n layers of the model, with these losses, [L, E, E] of t.  A layer that the tables lack - a dense one, one
 * that was not captured - has no evidence for any pair, and norms of 1: loaders refuse
 * 0.  Release with exf_runtime_tables_free(). */
exf_code exf_runtime_tables_make(exf_runtime_tables *out, const exf_tables *t, const float *loss, exf_err *err) EXF_CHECKED;
void exf_runtime_tables_free(exf_runtime_tables *r);

/* F32 tensors of the shapes above. */
exf_pt exf_runtime_matrices(const char *key, const exf_runtime_tables *r, const float *data);
exf_pt exf_runtime_norms(const char *key, const exf_runtime_tables *r);

/* Writes the dict; the tables' facts go into a record extra/provenance.json, so that
 * the dict has the plugin's keys and no others. */
exf_code exf_runtime_write(const char *path, int force, const exf_pt *dict, const exf_export *x, exf_err *err) EXF_CHECKED;
#endif

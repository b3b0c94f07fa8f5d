/* runtime_tables.h - shared by the writers of the two public plugins' files: tables that
 * have all of the model's layers, and the rules that the plugins' loaders check. */
#ifndef EXF_EXPORT_RUNTIME_TABLES_H
#define EXF_EXPORT_RUNTIME_TABLES_H
#include "export/writer.h"
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

/* EXF_THRESHOLD where the plugin's validator calls losses degenerate: where, in some
 * layer, the median over experts of the loss to the best target is 0.9 or more
 * (of an even number the lower of the two in the middle; experts without any
 * target and losses from 1e20 on are left out), or where no layer has a pair. */
exf_code exf_runtime_refuse_degenerate(const exf_tables *t, const float *loss, exf_err *err) EXF_CHECKED;
/* EXF_THRESHOLD if one of the model's layers first .. n - 1 has no pair with evidence, or is not in the tables: a plugin that
 * folds it all the same adds nothing for what it leaves out. */
exf_code exf_runtime_refuse_unobserved(const exf_tables *t, int first, int n, exf_err *err) EXF_CHECKED;
/* The same of every layer of the tables: `covers` of files that a runtime of one's own loads. */
exf_code exf_runtime_covers_own(const exf_tables *t, int by_token, exf_err *err) EXF_CHECKED;
/* The same of every layer of the tables, and of the model's others, unless the tables are known to hold all that have experts:
 * a dense layer that they lack is not folded. */
exf_code exf_runtime_refuse_unobserved_layers(const exf_tables *t, exf_err *err) EXF_CHECKED;

/* F32 tensors of the shapes above. */
exf_pt exf_runtime_matrices(const char *key, const exf_runtime_tables *r, const float *data);
exf_pt exf_runtime_norms(const char *key, const exf_runtime_tables *r);

/* Writes the dict; the tables' facts go into a record extra/provenance.json, so that
 * the dict has the plugin's keys and no others. */
exf_code exf_runtime_write(const char *path, int force, const exf_pt *dict, const exf_export *x, exf_err *err) EXF_CHECKED;

/* The facts that go with exported tables: their provenance and what a reader
 * of the arrays must know. */

/* Collects facts about the tables as key = text, in order of key: exfold_format "tables/1",
 * layer_numbers "[3, 4]", loss_kind, tables_digest where it is known, and the tables' provenance.  Release with
 * exf_provenance_free(). */
exf_code exf_table_facts(exf_provenance *out, const exf_export *x, exf_err *err) EXF_CHECKED;
/* The same as a JSON object of strings, a line each. */
exf_code exf_table_facts_json(exf_text *out, const exf_export *x, exf_err *err) EXF_CHECKED;
#endif

/* writer_internal.h - what the writers share: facts and layers without evidence (table_facts.c), the tables of plugins
 * (table_facts.c), models without some of their experts (pruned.c), evidence for model cards (writer_card.c). */
#ifndef EXF_EXPORT_WRITER_INTERNAL_H
#define EXF_EXPORT_WRITER_INTERNAL_H
#include "base/file.h"
#include "export/writer.h"
#include "format/ptfile.h"

/* ---- facts: the tables' provenance and what a reader of the arrays must know ----------------- */

#define EXF_FACTS_FILE "provenance.json" /* of directories that are exported */

/* Collects facts about the tables as key = text, in order of key: exfold_format "tables/1",
 * layer_numbers "[3, 4]", loss_kind, model.types (each model_type of its family), tables_digest where it is known, and
 * the tables' provenance.  Release with exf_provenance_free(). */
exf_code exf_table_facts(exf_provenance *out, const exf_export *x, exf_err *err) EXF_CHECKED;
/* Append the same as a JSON object of strings, a line each; write it as the next file of a directory. */
exf_code exf_table_facts_file(exf_output_directory *f, const exf_export *x, exf_err *err) EXF_CHECKED;

/* ---- layers without evidence ------------------------------------------------------------------ */

#define EXF_NO_PAIR 1e20f /* losses from here on stand for pairs without evidence */

/* Refuses (EXF_THRESHOLD) tables where one of the model's layers first .. n - 1 has no pair with evidence, or is not in
 * the tables: a runtime that folds it all the same adds nothing for what it leaves out. */
exf_code exf_writer_refuse_unobserved(const exf_tables *t, int first, int n, exf_err *err) EXF_CHECKED;
/* Checks every layer of the tables likewise: `covers` of files that a runtime of one's own loads. */
exf_code exf_writer_covers_own(const exf_tables *t, int by_token, exf_err *err) EXF_CHECKED;

/* ---- files of the two public plugins (table_facts.c) -------------------------------------------- */

/* Tables that have all of the model's layers. */
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

/* Returns an F32 tensor of one of them. */
exf_pt exf_runtime_array(const char *key, const exf_runtime_tables *r, const float *data);

/* Writes the dict; the tables' facts go into a record extra/provenance.json, so that
 * the dict has the plugin's keys and no others. */
exf_code exf_runtime_write(const char *path, int force, const exf_pt *dict, const exf_export *x, exf_err *err) EXF_CHECKED;

/* ---- a model without some of its experts (pruned.c) ---------------------------------------------- */

/* The score is that of x->by: REAP's, the mean of w ||E(x)|| over an expert's tokens, or another of exf_tables_score(), as in the
 * variant reapN:by=CRITERION.
 * With R ranks of expert parallelism (rank r holds experts [r E/R, (r+1) E/R)) the order goes round by round: the
 * best expert of every rank that is not listed yet, by score.  The first N then have N/R of each rank for every N that R
 * divides.  Ties go to the lower number. */

/* Refuses ranks that do not divide E. */
exf_code exf_expert_order_asks_ranks(const exf_export_settings *s, exf_err *err) EXF_CHECKED;
/* Refuses the same, and a number to keep that is not given, is not in [top_k, E), or that the ranks do not divide. */
exf_code exf_expert_order_asks_keep(const exf_export_settings *s, exf_err *err) EXF_CHECKED;
/* Refuses tables without the score. */
exf_code exf_expert_order_allows(const exf_export *x, exf_err *err) EXF_CHECKED;
/* Makes *out [L, E], expert numbers in order; the caller frees them.  The export must have been checked. */
exf_code exf_expert_order_make(int32_t **out, const exf_export *x, exf_err *err) EXF_CHECKED;
/* Adds a line of a list of experts: {"<layer>": [3, 0, ...]}. */
void exf_expert_list_add(exf_text *out, int layer, const int32_t *experts, int64_t n);

/* Appends the config with other numbers in the place of some, and otherwise as it is, byte for byte: where num_experts,
 * n_routed_experts, num_local_experts or moe_num_experts is `experts` it becomes `keep`, and num_nextn_predict_layers and
 * mtp_num_hidden_layers 0 unless they stay.  The text is valid JSON.  EXF_MODEL, naming path, where no number of experts is. */
exf_code exf_pruned_config(exf_text *out, const char *config, size_t n, int64_t experts, int64_t keep, int keeps_prediction,
                           const char *path, exf_err *err) EXF_CHECKED;

/* A tensor of a checkpoint without some of its experts. */
typedef struct {
    const exf_stored_tensor *from;
    char *name;          /* as it is called now: experts are numbered anew */
    exf_tensor view;     /* with that name and what is left of the shape; no data */
    const int32_t *rows; /* those of the experts' axis that are left; NULL: all, bit for bit */
} exf_pruned_tensor;

/* The axis along which a tensor has a place for each expert: the first, but of [1, E] the second. */
static inline int exf_pruned_axis(const exf_tensor *v)
{
    return v->rank == 2 && v->shape[0] == 1;
}

typedef struct {
    exf_pruned_tensor *tensor; /* by the old name */
    size_t n;
    size_t n_dropped_layers; /* tensors of layers for multi-token prediction, which are left out */
    uint64_t bytes;
} exf_pruned_tensors;

/* Lists what is left.  kept [n_layers of the model, keep]: ascending expert numbers of each MoE layer; borrowed.  What is
 * no expert, router or router bias of these layers stays as it is, but for the layers for multi-token prediction, whose
 * own experts have no scores. EXF_MODEL where a tensor of the experts has another number of rows than there are experts. */
exf_code exf_pruned_tensors_make(exf_pruned_tensors *out, const exf_model *m, const int32_t *kept, int keep,
                                 exf_err *err) EXF_CHECKED;
void exf_pruned_tensors_free(exf_pruned_tensors *p);

/* ---- for model cards --------------------------------------------------------------------------- */

/* The lines of Python that load tables.h5, which is no target.  The tests compare these and those of the targets with
 * tests/interop/load_*.py, which are run. */
extern const exf_snippet exf_snippet_hdf5;

/* How many pairs of a layer were observed on how many tokens.  Medians are the lower of two in the middle. */
typedef struct {
    size_t pairs, observed; /* ordered pairs of two experts; those with a loss below EXF_LOSS_NEVER */
    uint64_t tokens;        /* median over observed pairs; 0 if there are none, as the next two */
    float loss;             /* the same of the loss */
    float best;             /* median over experts with an observed pair of the loss to the best target */
    int cold;               /* experts never routed */
} exf_evidence;

exf_code exf_evidence_of_layer(exf_evidence *c, const exf_tables *t, int layer, exf_err *err) EXF_CHECKED;
#endif

/* capture.h - what the programs take from a forward pass over a corpus.
 *
 * Two observers write a pass's results with their provenance.  The recorder writes the routed expert outputs of chosen
 * layers to a `capture` file (artifact/artifact_capture.h) for exfold-accumulate.  The exporter writes everything that a
 * layer shows to an observer to one .safetensors file, to be compared with other implementations. */
#ifndef EXF_CAPTURE_CAPTURE_H
#define EXF_CAPTURE_CAPTURE_H
#include "artifact/artifact.h"
#include "artifact/artifact_capture.h"
#include "artifact/data.h"
#include "capture/corpus.h"
#include "kernels/backend.h"
#include "pass/experts.h"
#include "pass/forward.h"
#include "pass/resume.h"

/* ---- layers and sequences ------------------------------------------------------------------------------ */

/* The layers to capture, by the model's layer number. */
typedef struct {
    unsigned char chosen[EXF_MAX_LAYERS];
    int32_t number[EXF_MAX_LAYERS]; /* the chosen ones, ascending */
    int n, last;                    /* how many; the largest number */
} exf_layer_choice;

/* Reads "all", or a list of MoE layers "0,3,8-11"; EXF_USAGE naming what is wrong. */
exf_code exf_layer_choice_parse(exf_layer_choice *c, const char *text, const exf_architecture *a, exf_err *err) EXF_CHECKED;

/* Makes a batch of the corpus; borrows its ids.  Caller frees batch->span. */
exf_code exf_batch_of_corpus(exf_batch *batch, const exf_corpus *c, exf_err *err) EXF_CHECKED;
/* Lists length and digest of every sequence, and its document by the corpus that the batch is of (NULL: documents are not
 * known). */
exf_code exf_sequences_of_batch(exf_sequence_list *s, const exf_batch *batch, const exf_corpus *corpus,
                                exf_err *err) EXF_CHECKED;
void exf_run_shape_of(exf_run_shape *s, const exf_model *m, const exf_corpus *c);

/* ---- facts ------------------------------------------------------------------------------------------------ */

/* Adds the facts of the capture stage: model, data, device. */
exf_code exf_capture_provenance(exf_provenance *p, const exf_model *m, const exf_corpus *c, const exf_corpus_request *request,
                                const exf_backend *backend, exf_compute compute, const char *layers, exf_err *err) EXF_CHECKED;
/* Adds the facts about data alone. */
exf_code exf_capture_data_facts(exf_provenance *p, const exf_corpus *c, const exf_corpus_request *request,
                                exf_err *err) EXF_CHECKED;
/* Writes a corpus for programs that run its model elsewhere, one .safetensors: token_ids [T] I32, and of each sequence [N]
 * sequence_lengths I32, sequence_domains I32 and sequence_documents U8 [N, 32], an identity; its metadata are the facts about data,
 * the settings by which tables are to be solved, and the name of domain i as "domain.<i>". */
exf_code exf_capture_write_ids(const char *target, int force, const exf_corpus *c, const exf_corpus_request *request,
                               const exf_provenance *settings, exf_err *err) EXF_CHECKED;
/* Adds those without the facts about data. */
exf_code exf_capture_stage_facts(exf_provenance *p, const exf_model *m, const exf_backend *backend, exf_compute compute,
                                 const char *layers, exf_err *err) EXF_CHECKED;
/* Adds the facts about the weights that the passes so far have read (artifact/provenance.h), which are known only after a
 * pass. */
exf_code exf_capture_weights_facts(exf_provenance *p, const exf_model *m, exf_err *err) EXF_CHECKED;
/* Adds model.file.<name>, the state of each file of the checkpoint (exf_file_state()): facts of a resume point,
 * never of an artifact. */
exf_code exf_capture_file_facts(exf_provenance *p, const exf_model *m, exf_err *err) EXF_CHECKED;

/* ---- the recorder ------------------------------------------------------------------------------------------ */

typedef struct exf_recorder exf_recorder;
/* resume: the run's resume point, or NULL.  A run that saves points writes to the target's unfinished file, which the point's
 * journal names and which is removed with the point.  It stays when the run is stopped after a saved layer: the point has the
 * checksums of its finished layers, and a run that goes on from the point compares them (EXF_FORMAT) and writes the others. */
exf_code exf_recorder_new(exf_recorder **out, const char *target, int force, const exf_run_shape *shape, exf_layer_choice *layers,
                          const exf_sequence_list *sequences, const exf_provenance *p, exf_resume *resume,
                          exf_err *err) EXF_CHECKED;
/* Returns the path of a target's unfinished file, "DIR/.NAME.unfinished", in *out; the caller frees it. */
exf_code exf_recorder_unfinished(char **out, const char *target, exf_err *err) EXF_CHECKED;
const exf_observer *exf_recorder_observer(exf_recorder *r);
/* Moves the file into place.  late: facts that were known only after the pass; NULL: none. */
exf_code exf_recorder_commit(exf_recorder *r, const exf_provenance *late, exf_err *err) EXF_CHECKED;
/* Gives up what was not committed and of which no layer is saved.  Before the resume point is closed. */
void exf_recorder_free(exf_recorder *r);

/* A thread that writes captured blocks while the forward pass computes the next ones.  Putting a block copies it and
 * returns; if two blocks are not yet written, it waits for the first.  HDF5 serves one thread at a time: between new and
 * finish that is the writing thread. */
typedef struct exf_capture_write_behind exf_capture_write_behind;

/* For blocks of at most `rows` rows of the file, which is borrowed. */
exf_code exf_capture_write_behind_new(exf_capture_write_behind **out, exf_capture_file *file, int64_t rows,
                                      exf_err *err) EXF_CHECKED;
/* Hands a block to the thread that calls exf_capture_put(); from any thread.  Returns the failure of an earlier block, if any. */
exf_code exf_capture_write_behind_put(exf_capture_write_behind *w, int layer, int64_t row, int64_t n, const int32_t *ids,
                                      const float *weights, const float *outputs, const double *stream_sq,
                                      exf_err *err) EXF_CHECKED;
/* Waits for the last block; returns the first failure, if any. */
exf_code exf_capture_write_behind_finish(exf_capture_write_behind *w, exf_err *err) EXF_CHECKED;
void exf_capture_write_behind_free(exf_capture_write_behind *w); /* drops blocks that are not written; NULL is allowed */

/* ---- the exporter ------------------------------------------------------------------------------------------ */

/* Writes one .safetensors.
 * T rows in manifest order; per chosen layer l:
 *   layers.<l>.moe_input [T, H]       layers.<l>.expert_outputs [T, K, H]
 *   layers.<l>.topk_ids [T, K] I32    layers.<l>.routed_output  [T, H]
 *   layers.<l>.topk_weights [T, K]    layers.<l>.block_output   [T, H]
 * and, with_logits, logits [T, vocab]; always sequence_lengths [N] I32 and, where
 * tokens are known, token_ids [T] I32.  All else F32.  Ids and weights by falling weight. */
typedef struct exf_exporter exf_exporter;
exf_code exf_exporter_new(exf_exporter **out, const char *target, int force, const exf_model *m, const exf_batch *batch,
                          exf_layer_choice *layers, int with_logits, const exf_provenance *p, exf_err *err) EXF_CHECKED;
const exf_observer *exf_exporter_observer(exf_exporter *x);
exf_code exf_exporter_commit(exf_exporter *x, exf_err *err) EXF_CHECKED;
void exf_exporter_free(exf_exporter *x);
#endif

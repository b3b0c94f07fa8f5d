/* capture.h - captures and exports a forward pass over a corpus: two observers write its
 * results with their provenance.
 *
 * The recorder writes the routed expert outputs of chosen layers to a `capture` file
 * (artifact/artifact_capture.h) for exfold-accumulate.  The exporter writes everything that a
 * layer shows to an observer to one .safetensors file, to be compared with other
 * implementations. */
#ifndef EXF_CAPTURE_CAPTURE_H
#define EXF_CAPTURE_CAPTURE_H
#include "artifact/artifact.h"
#include "artifact/sequences.h"
#include "capture/corpus.h"
#include "pass/forward.h"
#include "kernels/backend.h"

/* The layers to capture, by the model's layer number. */
typedef struct {
    unsigned char chosen[EXF_MAX_LAYERS];
    int32_t number[EXF_MAX_LAYERS]; /* the chosen ones, ascending */
    int n, last;                    /* how many; the largest number */
} exf_layer_choice;

/* "all", or a list of MoE layers "0,3,8-11"; EXF_USAGE naming what is wrong. */
exf_code exf_layer_choice_parse(exf_layer_choice *c, const char *text, const exf_architecture *a, exf_err *err) EXF_CHECKED;

/* The corpus as a batch; borrows its ids.  Caller frees batch->span. */
exf_code exf_batch_of_corpus(exf_batch *batch, const exf_corpus *c, exf_err *err) EXF_CHECKED;

/* Facts of the capture stage: model, data, device. */
exf_code exf_capture_provenance(exf_provenance *p, const exf_model *m, const exf_corpus *c, const exf_corpus_request *request,
                                const exf_backend *backend, exf_compute compute, const char *layers, exf_err *err) EXF_CHECKED;
/* The facts of the capture stage without those about data. */
exf_code exf_capture_stage_facts(exf_provenance *p, const exf_model *m, const exf_backend *backend, exf_compute compute,
                                 const char *layers, exf_err *err) EXF_CHECKED;
/* The facts about the weights that the passes so far have read (artifact/provenance.h): the capture stage's
 * too, but known only after a pass. */
exf_code exf_capture_weights_facts(exf_provenance *p, const exf_model *m, exf_err *err) EXF_CHECKED;
/* Adds model.file.<name>, the state of each file of the checkpoint (exf_file_state()): facts of a resume point,
 * never of an artifact. */
exf_code exf_capture_file_facts(exf_provenance *p, const exf_model *m, exf_err *err) EXF_CHECKED;
/* Length and digest of every sequence; recorded: the SHA-256 of a file of hidden states,
 * which with the sequence's number stands for tokens that are not known (batch->ids NULL). */
exf_code exf_sequences_of_batch(exf_sequence_list *s, const exf_batch *batch, const char *recorded, exf_err *err) EXF_CHECKED;
void exf_run_shape_of(exf_run_shape *s, const exf_model *m, const exf_corpus *c);
#endif

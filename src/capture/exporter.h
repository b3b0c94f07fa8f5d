/* exporter.h - the observer that writes one .safetensors.
 *
 * T rows in manifest order; per chosen layer l:
 *   layers.<l>.moe_input [T, H]       layers.<l>.expert_outputs [T, K, H]
 *   layers.<l>.topk_ids [T, K] I32    layers.<l>.routed_output  [T, H]
 *   layers.<l>.topk_weights [T, K]    layers.<l>.block_output   [T, H]
 * and, with_logits, logits [T, vocab]; always sequence_lengths [N] I32 and, where
 * tokens are known, token_ids [T] I32.  All else F32.  Ids and weights by falling weight. */
#ifndef EXF_CAPTURE_EXPORTER_H
#define EXF_CAPTURE_EXPORTER_H
#include "capture/capture.h"

typedef struct exf_exporter exf_exporter;
exf_code exf_exporter_new(exf_exporter **out, const char *target, int force, const exf_model *m, const exf_batch *batch,
                          exf_layer_choice *layers, int with_logits, const exf_provenance *p, exf_err *err) EXF_CHECKED;
const exf_observer *exf_exporter_observer(exf_exporter *x);
exf_code exf_exporter_commit(exf_exporter *x, exf_err *err) EXF_CHECKED;
void exf_exporter_free(exf_exporter *x);
#endif

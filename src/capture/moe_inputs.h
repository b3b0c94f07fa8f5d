/* moe_inputs.h - reads a file of recorded MoE inputs, to be replayed by exf_replay().
 *
 * One .safetensors; T rows, all sequences one after the other; per layer l of the
 * model (any of its MoE layers), the model's own numbers:
 *   layers.<l>.moe_input    [T, H] F32, F16 or BF16   the input of router and experts (after the norm)
 *   layers.<l>.topk_ids     [T, K] I32 or I64         both or neither: without
 *   layers.<l>.topk_weights [T, K] F32, F16 or BF16   them the router runs
 * and, if there were several sequences or a layer routes by token:
 *   sequence_lengths [N] I32 or I64, sum T (else all rows are one sequence)
 *   token_ids        [T] I32 or I64
 * Anything else in the file is ignored, so that what exfold-capture --export wrote
 * can be replayed.  scripts/record_moe_inputs.py writes such files.
 *
 * A tensor that contradicts the model is EXF_MODEL naming file, tensor and both values; a
 * number that is not finite is EXF_NUMERIC.  Rows are read on demand: the file is never
 * in memory as a whole. */
#ifndef EXF_CAPTURE_MOE_INPUTS_H
#define EXF_CAPTURE_MOE_INPUTS_H
#include "capture/capture.h"
#include "kernels/backend.h"
#include "pass/recorded.h"

typedef struct exf_moe_inputs exf_moe_inputs;

/* Opens the file and borrows the model.  layers: "all" layers of the file, or a list of
 * them; *choice becomes the parsed list. */
exf_code exf_moe_inputs_open(exf_moe_inputs **out, const char *path, const exf_model *m, const char *layers,
                             exf_layer_choice *choice, exf_err *err) EXF_CHECKED;
void exf_moe_inputs_free(exf_moe_inputs *x); /* NULL is allowed */
const exf_batch *exf_moe_inputs_batch(const exf_moe_inputs *x); /* ids NULL without token_ids */
const exf_recorded *exf_moe_inputs_recorded(const exf_moe_inputs *x);

/* Facts of a replay: as exf_capture_provenance(), but data.moe_inputs_sha256, of
 * the whole file, in place of what is known of tokens. */
exf_code exf_moe_inputs_provenance(exf_provenance *p, const exf_moe_inputs *x, const exf_backend *backend, exf_compute compute,
                                   const char *layers, exf_err *err) EXF_CHECKED;
#endif

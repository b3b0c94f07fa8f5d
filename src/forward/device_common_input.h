/* device_common_input.h - all experts on the tokens of common input, on a device that has the
 * grouped products: many tokens at once, of as many sequences as there are.
 *
 * Tokens are laid out in chunks of exf_gram_tokens() places, from which they are shown;
 * units of EXF_COMMON_INPUT_UNIT tokens of a sequence are never cut, so a chunk may have places
 * left over.  Neither how sequences share chunks nor how many chunks fit changes a bit. */
#ifndef EXF_FORWARD_DEVICE_COMMON_INPUT_H
#define EXF_FORWARD_DEVICE_COMMON_INPUT_H
#include "forward/expert_step.h"

/* Bytes for so many chunks at a time. */
size_t exf_device_common_input_bytes(const exf_backend *b, const exf_architecture *a, int n_chunks);
/* 1 if the step's common input can run this way. */
int exf_device_common_input_serve(const exf_step *s);
/* Everything the lane's observer asked for of the group's sequences, in the pass's memory for grouped experts. */
exf_code exf_device_common_input_run(exf_step *s, exf_err *err) EXF_CHECKED;
#endif

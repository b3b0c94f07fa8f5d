/* quantization.h - what config.json's quantization_config says. */
#ifndef EXF_MODEL_QUANTIZATION_H
#define EXF_MODEL_QUANTIZATION_H
#include "model/config.h"

typedef struct {
    int fp8;                    /* E4M3 weights with a scale per block may occur */
    int block_rows, block_cols; /* of that block */
    int fp4;                    /* packed E2M1 weights with a scale per 32 columns may occur */
    /* For planning only; what is read is told by its dtype. */
    int fp4_experts;            /* the routed experts' matrices are FP4 */
    int e8m0_scales;            /* scales of FP8 weights are F8_E8M0, else F32 */
} exf_quantization;

/* quant_method "fp8" with fmt "e4m3", weight_block_size (default [128, 128]) and
 * anything in activation_scheme, scale_fmt and modules_to_not_convert; no
 * quantization_config.  EXF_MODEL saying what is supported for anything else. */
exf_code exf_quantization_read(const exf_config *c, exf_quantization *q, exf_err *err) EXF_CHECKED;
#endif

/* quantization.h - what config.json says of the number formats of a checkpoint's weights.
 *
 * Only what the stored tensors do not tell is kept: which formats may occur, and how large their blocks are.  Which matrices
 * are coded is told by the tensors (weight_source.h), so lists of modules count for the plan of a config alone. */
#ifndef EXF_MODEL_QUANTIZATION_H
#define EXF_MODEL_QUANTIZATION_H
#include "model/config.h"

#include <stddef.h>
#include <stdint.h>

/* Whose layout and names the coded tensors have: quant_method. */
typedef enum {
    EXF_QUANTIZER_NONE, EXF_QUANTIZER_FP8, EXF_QUANTIZER_COMPRESSED, EXF_QUANTIZER_MODELOPT, EXF_QUANTIZER_AWQ, EXF_QUANTIZER_GPTQ,
    EXF_QUANTIZER_MXFP4 /* of stacks that rules name (EXF_MXFP4), and of nothing else */
} exf_quantizer;

/* Bits of exf_quantization.formats: what compressed-tensors and ModelOpt may have side by side; of FP8, MXFP8, or NVFP4, which its
 * routed experts have beside blocks of FP8, or none. */
enum { EXF_FORMAT_INT4 = 1, EXF_FORMAT_FP8 = 2, EXF_FORMAT_NVFP4 = 4, EXF_FORMAT_MXFP4 = 8, EXF_FORMAT_MXFP8 = 16 };

/* Which group of columns a column of 4-bit integers is of: desc_act, actorder. */
typedef enum {
    EXF_ORDER_FREE,     /* as the group numbers say, or in order where there are none */
    EXF_ORDER_SEQUENCE, /* in order, and group numbers say nothing else */
    EXF_ORDER_STORED    /* as the group numbers say, which must be there */
} exf_column_order;

typedef struct {
    exf_quantizer quantizer;
    int fp8;                    /* quantizer FP8: E4M3 weights with a scale per block may occur */
    int block_rows, block_cols; /* of that block; of FP8 of others, 0: it has none */
    int fp4;                    /* quantizer FP8: packed E2M1 weights with a scale per 32 columns may occur */
    int byte_scales;            /* quantizer FP8: scales in U8 are E8M0: scale_fmt is "ue8m0" */
    unsigned formats;           /* of the other quantizers; of FP8 MXFP8, quant_method "mxfp8", or NVFP4, moe_quant_algo */
    int group_cols;             /* 4-bit integers: columns of a group; 0: a row is one */
    int zeros;                  /* 4-bit integers: 1 if groups have zero points */
    int zeros_are_8;            /* those that are stored must be 8: GPTQ's "sym", and AWQ's "zero_point" where it is false */
    exf_column_order order;     /* 4-bit integers */
    unsigned zero_add;          /* what is added to them (exf_coded_rows) */
    int zero_carries;           /* as one number for the eight of a word */
    /* For planning only; what is read is told by its dtype. */
    int fp4_experts;            /* the routed experts' matrices are FP4 */
    int e8m0_scales;            /* scales of FP8 weights are F8_E8M0, else F32 */
    int whole_scales;           /* FP8 of other quantizers: one scale a matrix, else one a row */
    const exf_json *exempt;     /* names of modules that are not quantized; NULL: none.  Lives as long as the file that has it */
} exf_quantization;

/* What is said of weights in a format that is not read, after the file and what it says; a format of which
 * more is known that helps has a sentence of its own. */
#define EXF_RELEASE_SERVES                                                                                                \
    "calibrate on the release that they were made from (BF16, or FP8 in blocks) and serve its tables with these weights: " \
    "docs/quantized.md"
#define EXF_QUANTIZED_BY(packer) "the weights are packed by " packer ", which is not read; " EXF_RELEASE_SERVES
#define EXF_QUANTIZED_MLX                                                                                                  \
    "the weights are packed for Apple's MLX, which is not read, nor are the stacks of experts that mlx_lm.convert " \
    "--dequantize leaves; " EXF_RELEASE_SERVES
#define EXF_QUANTIZED_EXL3                                                                                                  \
    "the weights are EXL3's trellis codes, which ExLlamaV3 alone decodes; " EXF_RELEASE_SERVES
#define EXF_QUANTIZED_QUANTO                                                                                                \
    "the weights are packed by optimum-quanto, which quantizes a release as it is loaded and is not read; " EXF_RELEASE_SERVES

/* No quantization_config, or one of a quant_method above with a scheme that weight_source.h lists; what it says of activations
 * and of the key-value cache is not looked at.  EXF_MODEL saying what is supported for anything else. */
exf_code exf_quantization_read(const exf_config *c, exf_quantization *q, exf_err *err) EXF_CHECKED;
/* The same of a ModelOpt export whose settings stand in a file of its own, hf_quant_config.json: {"producer": {"name": "modelopt"},
 * "quantization": {"quant_algo": ..., "exclude_modules": [...], "quantized_layers": {...}}}. */
exf_code exf_quantization_read_export(const exf_config *of_export, exf_quantization *q, exf_err *err) EXF_CHECKED;
/* Refuses weights of quant_method `method`, which another family may have. */
exf_code exf_quantization_refuse(const exf_config *c, const char *method, exf_err *err) EXF_CHECKED;
/* 1 if the config's list of exempt modules has the one of tensor `weight`, X.weight. */
int exf_quantization_exempts(const exf_quantization *q, const char *weight);
/* 1 if bfloat16 holds every value of a matrix that is quantized as the config says; expert: of a routed expert. */
int exf_quantization_fits_bf16(const exf_quantization *q, int expert);
/* Bytes that a matrix [rows, cols] takes once it is quantized as the config says; expert: of a routed expert. */
uint64_t exf_quantization_bytes(const exf_quantization *q, int64_t rows, int64_t cols, int expert);

enum { EXF_FP4_BLOCK = 32, EXF_NVFP4_BLOCK = 16, EXF_MXFP8_BLOCK = 32 }; /* columns that share a scale */
#endif

/* dequantize.h - describes rows of a weight as a checkpoint stores them, which a device
 * dequantizes to the operand of products.
 *
 *   plain   BF16, F16 or F32 [rows, cols], plus `add` (1 for norms stored as w - 1)
 *   FP8     E4M3 [rows, cols], a scale per block of block_rows x block_cols
 *   FP4     two E2M1 nibbles a byte, the low one the even column, cols even
 *
 * value = code * scale in float32, as src/model/weight_dequantize.h has it, then rounded
 * to nearest even where the operand is bfloat16.  Scales are F32, BF16 or F8_E8M0,
 * [ceil(rows / block_rows), ceil(cols / block_cols)]: row 0 is the first of a block. */
#ifndef EXF_KERNELS_DEQUANTIZE_H
#define EXF_KERNELS_DEQUANTIZE_H
#include "base/tensor.h"
#include "kernels/linear/matrix.h"

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { EXF_DEVICE_CODED_PLAIN, EXF_DEVICE_CODED_FP8, EXF_DEVICE_CODED_FP4 } exf_device_coding;

typedef struct {
    exf_device_coding coding;
    exf_dtype dtype;       /* of plain elements */
    exf_dtype scale_dtype; /* of scales */
    const void *codes, *scales;
    size_t rows, cols, block_rows, block_cols;
    float add;
} exf_device_coded_rows;

/* to [rows, cols] of `number`; *bad (the GPU's) becomes 1 where a value is not finite. */
void exf_dequantize_cuda(struct exf_queue *q, void *to, exf_number number, const exf_device_coded_rows *c, int *bad);
/* *bad becomes 1 where one of n bfloat16 is not finite. */
void exf_check_bf16_cuda(struct exf_queue *q, const uint16_t *x, size_t n, int *bad);
#ifdef __cplusplus
}
#endif
#endif

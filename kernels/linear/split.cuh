/* split.cuh - a float32 number as the sum of three bfloat16 terms, so that tensor cores
 * multiply it by bfloat16 weights without loss.
 *
 *   term 0 = round(x), term 1 = round(x - term 0), term 2 = round(x - term 0 - term 1)
 *
 * Roundings are to nearest and the differences exact: 3 x 8 bits hold float32's 24, so
 * the terms add up to x wherever x's last bit is at least 2^-133, the smallest bfloat16;
 * below that the sum is off by at most 2^-134.  A number that is not finite, or that
 * rounds to infinity (3.39e38 and more), makes every product that reads it not finite. */
#ifndef EXF_KERNELS_SPLIT_CUH
#define EXF_KERNELS_SPLIT_CUH
#include "kernels/device/cuda_queue.cuh"

enum { EXF_SPLIT_TERMS = 3 };

/* Term i of x [n_rows, n] (rows ldx apart) to out + i * apart elements, rows n apart. */
void exf_split_rows_cuda(exf_queue *q, uint16_t *out, size_t apart, const float *x, int ldx, int n_rows, int n);
#endif

/* gpu_clock.h - writes the GPU's time when a queue has come so far. */
#ifndef EXF_KERNELS_GPU_CLOCK_H
#define EXF_KERNELS_GPU_CLOCK_H
#include <stdint.h>

struct exf_queue;
#ifdef __cplusplus
extern "C" {
#endif
/* *ns, in memory of alloc_staging, becomes the nanoseconds of the GPU's clock, never 0, when all that was queued on q
 * before is done; the host may read it at any time and does not wait. */
void exf_stamp_cuda(struct exf_queue *q, uint64_t *ns);
#ifdef __cplusplus
}
#endif
#endif

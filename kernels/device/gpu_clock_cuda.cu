/* gpu_clock_cuda.cu - see gpu_clock.h. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/gpu_clock.h"

static __global__ void stamp(volatile unsigned long long *ns)
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    *ns = now;
    __threadfence_system();
}

void exf_stamp_cuda(exf_queue *q, uint64_t *ns)
{
    EXF_LAUNCH(q, "stamp", stamp, 1, 1, 0, reinterpret_cast<unsigned long long *>(ns));
}

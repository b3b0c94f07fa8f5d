/* sums_fault.cuh - notes on a device the fault that sums_fault.h describes, the same one whatever the order of threads. */
#ifndef EXF_KERNELS_SUMS_FAULT_CUH
#define EXF_KERNELS_SUMS_FAULT_CUH
#include "kernels/statistics/sums_fault.h"

/* Returns true if the noted fault is of an earlier place, or of the same and of no later a and b. */
static __device__ inline bool fault_is_before(const volatile exf_sums_fault *f, unsigned long long place, int a, int b)
{
    unsigned long long noted = f->place;
    __threadfence();
    return noted > place || (noted == place && (f->a < a || (f->a == a && f->b <= b)));
}

/* The writers take turns; a warp's threads too, of which each goes on when it had its turn. */
static __device__ __noinline__ void note_fault(exf_sums_fault *f, unsigned long long at, int a, int b, double x, double y)
{
    volatile exf_sums_fault *noted = f;
    for (bool done = fault_is_before(f, ~at, a, b); !done;) {
        if (atomicCAS(&f->lock, 0, 1) != 0) continue;
        __threadfence();
        if (!fault_is_before(f, ~at, a, b)) {
            noted->a = a;
            noted->b = b;
            noted->x = x;
            noted->y = y;
            __threadfence();
            noted->place = ~at;
        }
        __threadfence();
        atomicExch(&f->lock, 0);
        done = true;
    }
}
#endif

/* hopper.cu - see hopper.cuh. */
#include "kernels/device/hopper.cuh"

/* Its launch bounds tell which of a build's codes the device has loaded. */
#ifdef EXF_HOPPER
enum { MOST_THREADS = 128 };
#else
enum { MOST_THREADS = 64 };
#endif
static __global__ void __launch_bounds__(MOST_THREADS) probe(int *x)
{
    if (x) *x = 1;
}

static int ask(void)
{
    cudaFuncAttributes a;
    int has = cudaFuncGetAttributes(&a, (const void *)probe) == cudaSuccess && a.maxThreadsPerBlock == 128;
    cudaGetLastError();
    return has;
}

int exf_hopper_code(void)
{
    static const int code = ask();
    return code;
}

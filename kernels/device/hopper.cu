/* hopper.cu - which tensor-core kernels the device runs, and maps for tensor copies; see hopper.cuh. */
#include "kernels/device/hopper.cuh"

/* ---- which of a build's codes the device has loaded: the launch bounds of a kernel tell ---- */

enum { THREADS_PLAIN = 64, THREADS_MMA = 96, THREADS_HOPPER = 128 };
#if defined(EXF_HOPPER)
enum { MOST_THREADS = THREADS_HOPPER };
#elif defined(EXF_MMA)
enum { MOST_THREADS = THREADS_MMA };
#else
enum { MOST_THREADS = THREADS_PLAIN };
#endif

static __global__ void __launch_bounds__(MOST_THREADS) probe(int *x)
{
    if (x) *x = 1;
}

/* Returns THREADS_HOPPER, THREADS_MMA or less. */
static int loaded_code(void)
{
    static const int code = [] {
        cudaFuncAttributes a;
        int threads = cudaFuncGetAttributes(&a, (const void *)probe) == cudaSuccess ? a.maxThreadsPerBlock : 0;
        cudaGetLastError();
        return threads;
    }();
    return code;
}

static exf_tensor_cores chosen = EXF_TENSOR_CORES_AUTO;

int exf_uses_wgmma(void)
{
    return chosen != EXF_TENSOR_CORES_MMA && loaded_code() == THREADS_HOPPER;
}

int exf_uses_mma(void)
{
    return !exf_uses_wgmma() && loaded_code() >= THREADS_MMA;
}

exf_code exf_choose_tensor_cores_cuda(exf_tensor_cores choice, exf_err *err)
{
    int code = loaded_code();
    if (choice == EXF_TENSOR_CORES_WGMMA && code != THREADS_HOPPER)
        return exf_fail(err, EXF_DEVICE, "wgmma: the GPU is no Hopper, or this build has no code for it (sm_90a)");
    if (choice == EXF_TENSOR_CORES_MMA && code < THREADS_MMA)
        return exf_fail(err, EXF_DEVICE, "mma: the GPU is older than compute capability 8.0, or so is this build's code");
    chosen = choice;
    return EXF_OK;
}

size_t exf_most_shared_bytes(void)
{
    static const size_t bytes = [] {
        int device = 0, value = 0;
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
            value = 0;
        cudaGetLastError();
        return (size_t)value;
    }();
    return bytes;
}

/* ---- maps for tensor copies --------------------------------------------------------------- */

typedef decltype(&cuTensorMapEncodeTiled) encode_fn;

/* Finds the driver's function by way of the runtime: nothing links to the driver. */
static encode_fn find_encoder(void)
{
    void *f = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    return reinterpret_cast<encode_fn>(f);
}

int exf_tensor_map(exf_queue *q, CUtensorMap *map, const void *base, size_t n0, size_t n1, size_t n2, int rows)
{
    static const encode_fn encode = find_encoder();
    cuuint64_t size[3] = {n0, n1, n2}, stride[2] = {n0 * 2, n0 * n1 * 2};
    cuuint32_t box[3] = {64, (cuuint32_t)rows, 1}, step[3] = {1, 1, 1};
    if (q->err.code != EXF_OK) return 0;
    CUresult r = !encode ? CUDA_ERROR_NOT_FOUND
                         : encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void *>(base), size, stride, box, step,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r == CUDA_SUCCESS) return 1;
    exf_fail(&q->err, EXF_DEVICE, "CUDA: tensor map of [%zu, %zu, %zu]: error %d", n2, n1, n0, (int)r);
    return 0;
}

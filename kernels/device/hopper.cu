/* hopper.cu - what the host asks of Hopper: whether its code is loaded, and maps for tensor copies; see hopper.cuh. */
#include "kernels/device/hopper.cuh"

/* ---- which of a build's codes the device has loaded: the launch bounds of a kernel tell ---- */

#ifdef EXF_HOPPER
enum { MOST_THREADS = 128 };
#else
enum { MOST_THREADS = 64 };
#endif

static __global__ void __launch_bounds__(MOST_THREADS) probe(int *x)
{
    if (x) *x = 1;
}

static int ask_for_code(void)
{
    cudaFuncAttributes a;
    int has = cudaFuncGetAttributes(&a, (const void *)probe) == cudaSuccess && a.maxThreadsPerBlock == 128;
    cudaGetLastError();
    return has;
}

int exf_hopper_code(void)
{
    static const int code = ask_for_code();
    return code;
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

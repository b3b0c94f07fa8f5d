/* dequantize_cuda.cu - see dequantize.h: eight elements a thread where rows allow it. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/linear/dequantize.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

static __device__ inline float of_bf16(uint16_t u)
{
    return __uint_as_float((uint32_t)u << 16);
}

static __device__ inline float of_e2m1(unsigned nibble)
{
    unsigned m = nibble & 7, sign = (nibble & 8) << 28;
    unsigned bits = m < 2 ? m * 0x3f000000u : ((m >> 1) + 126) << 23 | (m & 1) << 22;
    return __uint_as_float(bits | sign);
}

static __device__ inline float of_e4m3(unsigned code)
{
    __half_raw h = __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3);
    return __half2float(__half(h));
}

static __device__ inline float of_e8m0(unsigned b)
{
    return __uint_as_float(b == 255 ? 0x7fc00000u : b == 0 ? 0x00400000u : b << 23);
}

static __device__ inline float scale_at(const exf_device_coded_rows &c, size_t row, size_t col)
{
    size_t per_row = (c.cols + c.block_cols - 1) / c.block_cols, at = row / c.block_rows * per_row + col / c.block_cols;
    if (c.scale_dtype == EXF_DT_F8_E8M0) return of_e8m0(static_cast<const uint8_t *>(c.scales)[at]);
    if (c.scale_dtype == EXF_DT_BF16) return of_bf16(static_cast<const uint16_t *>(c.scales)[at]);
    return static_cast<const float *>(c.scales)[at];
}

static __device__ inline float plain_at(const exf_device_coded_rows &c, size_t i)
{
    if (c.dtype == EXF_DT_BF16) return of_bf16(static_cast<const uint16_t *>(c.codes)[i]);
    if (c.dtype == EXF_DT_F16) return __half2float(static_cast<const __half *>(c.codes)[i]);
    return static_cast<const float *>(c.codes)[i];
}

static __device__ inline float value_at(const exf_device_coded_rows &c, size_t row, size_t col)
{
    size_t i = row * c.cols + col;
    if (c.coding == EXF_DEVICE_CODED_PLAIN) return plain_at(c, i) + c.add;
    float scale = scale_at(c, row, col);
    if (c.coding == EXF_DEVICE_CODED_FP8) return of_e4m3(static_cast<const uint8_t *>(c.codes)[i]) * scale;
    unsigned byte = static_cast<const uint8_t *>(c.codes)[i / 2];
    return of_e2m1(col & 1 ? byte >> 4 : byte & 15) * scale;
}

static __device__ inline void store(float *to, size_t i, float v)
{
    to[i] = v;
}

static __device__ inline void store(uint16_t *to, size_t i, float v)
{
    to[i] = __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

static __device__ inline bool finite_bits(float v)
{
    return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u;
}

template <class T> static __global__ void unpack_any(T *to, exf_device_coded_rows c, int *bad)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= c.rows * c.cols) return;
    float v = value_at(c, i / c.cols, i % c.cols);
    if (!finite_bits(v)) *bad = 1;
    store(to, i, v);
}

static __device__ inline void store_eight(float *to, const float (&v)[8])
{
    reinterpret_cast<float4 *>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4 *>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

static __device__ inline void store_eight(uint16_t *to, const float (&v)[8])
{
    uint32_t u[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
        memcpy(&u[i], &two, 4);
    }
    *reinterpret_cast<uint4 *>(to) = make_uint4(u[0], u[1], u[2], u[3]);
}

/* Eight columns under one scale; FP4 as four bytes, FP8 as eight. */
template <class T> static __global__ void unpack_eights(T *to, exf_device_coded_rows c, int *bad)
{
    size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) * 8;
    if (i >= c.rows * c.cols) return;
    float v[8], scale = scale_at(c, i / c.cols, i % c.cols);
    if (c.coding == EXF_DEVICE_CODED_FP8) {
        uint2 u = *reinterpret_cast<const uint2 *>(static_cast<const uint8_t *>(c.codes) + i);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = of_e4m3((k < 4 ? u.x : u.y) >> 8 * (k & 3) & 0xff) * scale;
    } else {
        uint32_t u = *reinterpret_cast<const uint32_t *>(static_cast<const uint8_t *>(c.codes) + i / 2);
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = of_e2m1(u >> 4 * k & 15) * scale;
    }
    bool fine = true;
#pragma unroll
    for (int k = 0; k < 8; k++) fine = fine && finite_bits(v[k]);
    if (!fine) *bad = 1;
    store_eight(to + i, v);
}

template <class T> static void unpack(exf_queue *q, T *to, const exf_device_coded_rows *c, int *bad)
{
    size_t n = c->rows * c->cols;
    int eights = c->coding != EXF_DEVICE_CODED_PLAIN && c->cols % 8 == 0 && c->block_cols % 8 == 0 && ((uintptr_t)to & 15) == 0 &&
                 ((uintptr_t)c->codes & 7) == 0;
    if (n == 0) return;
    if (eights)
        EXF_LAUNCH(q, "unpack", unpack_eights<T>, exf_blocks(n / 8, 256), 256, 0, to, *c, bad);
    else
        EXF_LAUNCH(q, "unpack", unpack_any<T>, exf_blocks(n, 256), 256, 0, to, *c, bad);
}

void exf_dequantize_cuda(exf_queue *q, void *to, exf_number number, const exf_device_coded_rows *c, int *bad)
{
    if (number == EXF_NUMBER_BF16)
        unpack(q, static_cast<uint16_t *>(to), c, bad);
    else
        unpack(q, static_cast<float *>(to), c, bad);
}

/* Two bfloat16 a word: an exponent of ones is not finite. */
static __global__ void check_words(const uint4 *x, size_t n, int *bad)
{
    uint32_t found = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint4 v = x[i];
        uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; k++)
            found |= (u[k] & 0x7f800000u) == 0x7f800000u || (u[k] & 0x7f80u) == 0x7f80u;
    }
    if (found) *bad = 1;
}

static __global__ void check_rest(const uint16_t *x, size_t n, int *bad)
{
    if (threadIdx.x < n && (x[threadIdx.x] & 0x7f80u) == 0x7f80u) *bad = 1;
}

void exf_check_bf16_cuda(exf_queue *q, const uint16_t *x, size_t n, int *bad)
{
    size_t words = n / 8;
    unsigned blocks = exf_blocks(words, 1024);
    if (words)
        EXF_LAUNCH(q, "check", check_words, blocks > 2048 ? 2048 : blocks, 256, 0, reinterpret_cast<const uint4 *>(x), words, bad);
    if (n % 8) EXF_LAUNCH(q, "check", check_rest, 1, 32, 0, x + words * 8, n % 8, bad);
}

/* output_rows.cuh - loads elements of an expert's output as float32 from float32 or bfloat16. */
#ifndef EXF_KERNELS_OUTPUT_ROWS_CUH
#define EXF_KERNELS_OUTPUT_ROWS_CUH
#include <cstdint>

enum { EXF_OUTPUT_STEP = 8 };

/* Loads eight consecutive elements from column c on, 0 past the end. */
static __device__ inline void exf_output_load(float (&v)[EXF_OUTPUT_STEP], const float *x, int c, int h)
{
    if (h % 4 == 0 && c + EXF_OUTPUT_STEP <= h) {
        float4 a = *reinterpret_cast<const float4 *>(x + c), b = *reinterpret_cast<const float4 *>(x + c + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < EXF_OUTPUT_STEP; i++) v[i] = c + i < h ? x[c + i] : 0;
}

static __device__ inline void exf_output_load(float (&v)[EXF_OUTPUT_STEP], const uint16_t *x, int c, int h)
{
    if (h % 8 == 0 && c + EXF_OUTPUT_STEP <= h) {
        uint4 a = *reinterpret_cast<const uint4 *>(x + c);
        uint32_t u[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(u[i] << 16);
            v[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < EXF_OUTPUT_STEP; i++) v[i] = c + i < h ? __uint_as_float((uint32_t)x[c + i] << 16) : 0;
}
#endif

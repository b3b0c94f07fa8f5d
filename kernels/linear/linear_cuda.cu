/* linear_cuda.cu - products through cuBLAS, and weights decoded into their operands; see linear.h. */
#include "kernels/device/cuda_rows.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/linear/linear.h"
#include "kernels/rows/rows.h"

#include <climits>
#include <cmath>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* ---- products --------------------------------------------------------------------------
 * cuBLAS is column-major: a row-major y = x w^T is its y^T = w x^T.  A float32 x before a bfloat16 w is first written into
 * the queue's own buffer, as many rows at a time as fit: how many that is depends on the shape alone, so bits do too.  A
 * queue that computes in bfloat16 rounds x; one that computes in float32 splits it into three terms (rows.h), which take
 * one product each, the smallest terms first.
 *
 * The floor is 2 m n k at 794 TFLOP/s, three times that where x is split; docs/performance.md has the rates reached. */

static void gemm(exf_queue *q, cublasOperation_t op, float *y, int ldy, const void *x, int ldx, const void *w, int ldw,
                 cudaDataType type, int m, int n, int k, float alpha, float beta)
{
    if (m == 0 || n == 0 || !exf_cublas_ready(q)) return;
    exf_cublas_note(q,
                    q->cublas->gemm(q->blas, op, CUBLAS_OP_N, n, m, k, &alpha, w, type, ldw, x, type, ldx, &beta, y, CUDA_R_32F,
                                    ldy, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                    "gemm");
}

/* Rows of `width` numbers that the buffer holds: whole tiles of 128 where it holds one. */
static int rows_at_a_time(int width, int terms)
{
    size_t most = EXF_BUFFER_BYTES / 2 / (size_t)terms / (size_t)(width > 0 ? width : 1);
    int rows = most > 1 << 30 ? 1 << 30 : (int)most;
    return rows > 128 ? rows / 128 * 128 : rows;
}

/* Terms that this queue makes of a float32 that meets a bfloat16. */
static int terms_of(const exf_queue *q)
{
    return exf_rounds(q) ? 1 : EXF_SPLIT_TERMS;
}

/* Elements between the terms of n elements: term after term is 256-byte aligned. */
static size_t apart_of(size_t n)
{
    return (n + 127) / 128 * 128;
}

/* The terms of x [rows, width] into the buffer, rows `width` apart. */
static void write_terms(exf_queue *q, const float *x, int ldx, int rows, int width)
{
    if (exf_rounds(q))
        exf_round_rows_cuda(q, q->buffer, width, x, ldx, rows, width);
    else
        exf_split_rows_cuda(q, q->buffer, apart_of((size_t)rows * (size_t)width), x, ldx, rows, width);
}

static void gemm_rounded(exf_queue *q, float *y, int ldy, const float *x, int ldx, const void *w, int ldw, int m, int n, int k,
                         float alpha, float beta)
{
    int terms = terms_of(q), most = rows_at_a_time(k, terms);
    if (m == 0 || n == 0 || !exf_queue_buffer(q)) return;
    if (most < 1) exf_fail(&q->err, EXF_INTERNAL, "product over %d columns: a row is too long", k);
    for (int at = 0; at < m && most > 0; at += most) {
        int rows = m - at < most ? m - at : most;
        size_t apart = apart_of((size_t)rows * (size_t)k);
        write_terms(q, x + (size_t)at * ldx, ldx, rows, k);
        for (int term = terms - 1; term >= 0; term--)
            gemm(q, CUBLAS_OP_T, y + (size_t)at * ldy, ldy, q->buffer + term * apart, k, w, ldw, CUDA_R_16BF, rows, n, k, alpha,
                 term == terms - 1 ? beta : 1);
    }
}

int exf_has_bf16_products_cuda(void)
{
    enum { UNKNOWN = -1 };
    static const int major = [] {
        int device = 0, value = 0;
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
            value = UNKNOWN;
        return value;
    }();
    return major == UNKNOWN || major >= 8;
}

/* On an older device a float32 product with a bfloat16 w widens rows of w in the buffer. */
static void gemm_widened(exf_queue *q, float *y, int ldy, const float *x, int ldx, const uint16_t *w, int ldw, int m, int n, int k,
                         float alpha, float beta)
{
    float *wide = reinterpret_cast<float *>(q->buffer);
    int most = (int)(EXF_BUFFER_BYTES / sizeof *wide / (size_t)(ldw > 0 ? ldw : 1));
    if (most < 1) exf_fail(&q->err, EXF_INTERNAL, "product over %d columns: a row is too long", k);
    for (int at = 0; at < n && most > 0; at += most) {
        int rows = n - at < most ? n - at : most;
        exf_widen_cuda(q, wide, w + (size_t)at * ldw, (size_t)(rows - 1) * ldw + k);
        gemm(q, CUBLAS_OP_T, y + at, ldy, x, ldx, wide, ldw, CUDA_R_32F, m, rows, k, alpha, beta);
    }
}

void exf_gemm_xwt_cuda(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, int m, int n, int k,
                       float alpha, float beta)
{
    if (x.number == w.number)
        gemm(q, CUBLAS_OP_T, y, ldy, x.p, ldx, w.p, ldw, w.number == EXF_NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F, m, n, k, alpha,
             beta);
    else if (w.number == EXF_NUMBER_BF16 && !exf_rounds(q) && !exf_has_bf16_products_cuda() && exf_queue_buffer(q))
        gemm_widened(q, y, ldy, static_cast<const float *>(x.p), ldx, static_cast<const uint16_t *>(w.p), ldw, m, n, k, alpha,
                     beta);
    else if (w.number == EXF_NUMBER_BF16)
        gemm_rounded(q, y, ldy, static_cast<const float *>(x.p), ldx, w.p, ldw, m, n, k, alpha, beta);
    else if (q->err.code == EXF_OK)
        exf_fail(&q->err, EXF_INTERNAL, "product of a rounded [%d, %d] with float32 weights", m, k);
}

static void gemm_many(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw, const exf_product_steps *s,
                      int m, int n, int k, float beta)
{
    const float one = 1;
    cudaDataType type = w.number == EXF_NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    if (!exf_cublas_ready(q)) return;
    exf_cublas_note(q,
                    q->cublas->gemm_batched(q->blas, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, w.p, type, ldw, (long long)s->w, x.p,
                                            type, ldx, s->x, &beta, y, CUDA_R_32F, ldy, s->y, s->count, CUBLAS_COMPUTE_32F,
                                            CUBLAS_GEMM_DEFAULT),
                    "gemm");
}

static void gemm_many_rounded(exf_queue *q, float *y, int ldy, const float *x, int ldx, exf_matrix w, int ldw,
                              const exf_product_steps *s, int m, int n, int k)
{
    int width = (s->count - 1) * s->x + k, terms = terms_of(q), most = rows_at_a_time(width, terms);
    if (!exf_queue_buffer(q)) return;
    for (int at = 0; at < m; at += most) {
        int rows = m - at < most ? m - at : most;
        size_t apart = apart_of((size_t)rows * (size_t)width);
        write_terms(q, x + (size_t)at * ldx, ldx, rows, width);
        for (int term = terms - 1; term >= 0; term--)
            gemm_many(q, y + (size_t)at * ldy, ldy, exf_bf16(q->buffer + term * apart), width, w, ldw, s, rows, n, k,
                      term < terms - 1);
    }
}

void exf_gemm_xwt_many_cuda(exf_queue *q, float *y, int ldy, exf_matrix x, int ldx, exf_matrix w, int ldw,
                            const exf_product_steps *s, int m, int n, int k)
{
    int width = (s->count - 1) * s->x + k;
    if (m == 0 || n == 0 || s->count == 0) return;
    if (x.number == w.number) {
        gemm_many(q, y, ldy, x, ldx, w, ldw, s, m, n, k, 0);
        return;
    }
    if (w.number == EXF_NUMBER_BF16 && rows_at_a_time(width, terms_of(q)) > 0 && (exf_rounds(q) || exf_has_bf16_products_cuda())) {
        gemm_many_rounded(q, y, ldy, static_cast<const float *>(x.p), ldx, w, ldw, s, m, n, k);
        return;
    }
    for (int i = 0; i < s->count; i++) /* as single products have it, or say why not */
        exf_gemm_xwt_cuda(q, y + (size_t)i * s->y, ldy, exf_matrix_at(x, (size_t)i * s->x), ldx,
                          exf_matrix_at(w, (size_t)i * s->w), ldw, m, n, k, 1, 0);
}

void exf_warm_up_products_cuda(exf_queue *q)
{
    enum { M = 2048, N = 4096, K = 1024 };
    uint16_t *x = exf_queue_buffer(q), *w = x + M * K;
    float *y = reinterpret_cast<float *>(w + N * K);
    static_assert((M * K + N * K) * sizeof(uint16_t) + (size_t)M * N * sizeof(float) <= EXF_BUFFER_BYTES, "the buffer holds it");
    if (!x || !exf_has_bf16_products_cuda()) return;
    exf_cuda_note(q, cudaMemsetAsync(x, 0, EXF_BUFFER_BYTES, q->stream), "zero");
    for (int beta = 0; beta < 2; beta++) gemm(q, CUBLAS_OP_T, y, N, x, K, w, K, CUDA_R_16BF, M, N, K, 1, (float)beta);
}

void exf_gemm_xw_cuda(exf_queue *q, float *y, int ldy, const float *x, int ldx, const float *w, int ldw, int m, int n, int k,
                      float alpha, float beta)
{
    gemm(q, CUBLAS_OP_N, y, ldy, x, ldx, w, ldw, CUDA_R_32F, m, n, k, alpha, beta);
}

/* ---- decoding ----------------------------------------------------------------------------
 * A thread decodes sixteen columns of a row where rows allow it, of 4-bit integers eight, else one.  Bytes of an element: its
 * code (0.5 to 4) and its operand (2 or 4), e.g. FP4 to bfloat16 2.5; a chunk of 8 M of them is 21 MB, 5 us at 4.2 TB/s, and
 * takes 9.8 on an H200.  Indices have 32 bits: divisions of 64 would take longer than the memory. */

/* A value of at least this magnitude has no finite number of type T: it is infinite, or rounds to an infinite bfloat16. */
template <class T> static __device__ constexpr float beyond()
{
    return sizeof(T) == sizeof(uint16_t) ? 0x1.ffp127f : INFINITY;
}

template <class T> static __device__ inline bool holds(float v)
{
    return fabsf(v) < beyond<T>(); /* false for a NaN */
}

/* The exponent and fraction bits of a nibble are put where a float32 has its lowest ones: that is the value over 2^126. */
static __device__ inline float of_e2m1(unsigned nibble)
{
    return __uint_as_float((nibble & 8) << 28 | (nibble & 7) << 22) * 0x1p126f;
}

static __device__ inline float of_e4m3(unsigned code)
{
    __half_raw h = __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3);
    return __half2float(__half(h));
}

static __device__ inline float stored_scale(const exf_device_coded_rows &c, unsigned at)
{
    if (c.scale_dtype == EXF_DT_F8_E8M0) {
        unsigned b = static_cast<const uint8_t *>(c.scales)[at];
        return __uint_as_float(b == 255 ? 0x7fc00000u : b == 0 ? 0x00400000u : b << 23);
    }
    if (c.scale_dtype == EXF_DT_F8_E4M3) return of_e4m3(static_cast<const uint8_t *>(c.scales)[at]);
    if (c.scale_dtype == EXF_DT_BF16) return exf_widen(static_cast<const uint16_t *>(c.scales)[at]);
    if (c.scale_dtype == EXF_DT_F16) return __half2float(static_cast<const __half *>(c.scales)[at]);
    return static_cast<const float *>(c.scales)[at];
}

/* The numbers of a call's rows, columns and blocks, whose products are below 2^31. */
struct extent {
    unsigned rows, cols, block_rows, block_cols;
    unsigned groups; /* blocks of a row */
};

/* Rounded as on the CPU: __fmul_rn() and __fdiv_rn() whatever the compiler's options are. */
static __device__ inline float scale_at(const exf_device_coded_rows &c, const extent &n, unsigned row, unsigned col)
{
    float scale = stored_scale(c, row / n.block_rows * n.groups + col / n.block_cols);
    if (!c.factor) return scale;
    float factor = *static_cast<const float *>(c.factor);
    return c.divides ? __fdiv_rn(scale, factor) : __fmul_rn(scale, factor);
}

static __device__ inline float value_at(const exf_device_coded_rows &c, const extent &n, unsigned i)
{
    if (c.coding == EXF_DEVICE_CODED_PLAIN) {
        float v = c.dtype == EXF_DT_BF16  ? exf_widen(static_cast<const uint16_t *>(c.codes)[i])
                  : c.dtype == EXF_DT_F16 ? __half2float(static_cast<const __half *>(c.codes)[i])
                                          : static_cast<const float *>(c.codes)[i];
        return v + c.add;
    }
    unsigned row = i / n.cols, col = i - row * n.cols;
    float scale = scale_at(c, n, row, col);
    if (c.coding == EXF_DEVICE_CODED_FP8) return of_e4m3(static_cast<const uint8_t *>(c.codes)[i]) * scale;
    unsigned byte = static_cast<const uint8_t *>(c.codes)[i / 2];
    return of_e2m1(col & 1 ? byte >> 4 : byte & 15) * scale;
}

template <class T> static __global__ void unpack_any(T *to, exf_device_coded_rows c, extent n, int *bad)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n.rows * n.cols) return;
    float v = value_at(c, n, i);
    if (!holds<T>(v)) *bad = 1;
    exf_set_element(to + i, v);
}

/* Sixteen columns under one scale; FP4 as eight bytes, FP8 as sixteen. */
enum { UNPACKED = 16 };
template <class T> static __global__ void unpack_sixteens(T *to, exf_device_coded_rows c, extent n, int *bad)
{
    unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * UNPACKED;
    if (i >= n.rows * n.cols) return;
    unsigned row = i / n.cols;
    float scale = scale_at(c, n, row, i - row * n.cols), v[2][UNPACKED / 2];
    if (c.coding == EXF_DEVICE_CODED_FP8) {
        uint4 codes = *reinterpret_cast<const uint4 *>(static_cast<const uint8_t *>(c.codes) + i);
        unsigned u[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int k = 0; k < UNPACKED; k += 2) {
            __nv_fp8x2_storage_t codes2 = (__nv_fp8x2_storage_t)(u[k / 4] >> 8 * (k & 2) & 0xffff);
            float2 two = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes2, __NV_E4M3)));
            v[k / 8][k % 8] = two.x * scale;
            v[k / 8][k % 8 + 1] = two.y * scale;
        }
    } else {
        uint2 codes = *reinterpret_cast<const uint2 *>(static_cast<const uint8_t *>(c.codes) + i / 2);
#pragma unroll
        for (int k = 0; k < UNPACKED; k++) v[k / 8][k % 8] = of_e2m1((k < 8 ? codes.x : codes.y) >> 4 * (k & 7) & 15) * scale;
    }
    bool fine = true;
#pragma unroll
    for (int k = 0; k < UNPACKED; k++) fine = fine && holds<T>(v[k / 8][k % 8]);
    if (!fine) *bad = 1;
    exf_store8(to + i, v[0]);
    exf_store8(to + i + 8, v[1]);
}

/* ---- 4-bit integers: a thread decodes eight columns of a row */

static __device__ inline unsigned awq_shift(unsigned row)
{
    return (row & 1) * 16 + (row >> 1 & 3) * 4;
}

static __device__ inline uint32_t eight_codes(const exf_device_coded_rows &c, const extent &n, unsigned row, unsigned octet)
{
    const uint32_t *words = static_cast<const uint32_t *>(c.codes);
    if (c.coding == EXF_DEVICE_CODED_INT4) return words[row * ((n.cols + 7) / 8) + octet];
    if (c.coding == EXF_DEVICE_CODED_GPTQ) return words[octet * n.rows + row];
    uint32_t eight = 0;
    for (unsigned k = 0; k < 8 && 8 * octet + k < n.cols; k++)
        eight |= (words[(8 * octet + k) * (n.rows / 8) + row / 8] >> awq_shift(row) & 15) << 4 * k;
    return eight;
}

static __device__ inline int zero_at(const exf_device_coded_rows &c, const extent &n, unsigned row, unsigned group)
{
    const uint32_t *words = static_cast<const uint32_t *>(c.zeros);
    if (!words) return 8;
    uint32_t word = words[c.coding == EXF_DEVICE_CODED_INT4 ? row / 8 * n.groups + group : group * ((n.rows + 7) / 8) + row / 8];
    unsigned shift = c.coding == EXF_DEVICE_CODED_AWQ ? awq_shift(row) : 4 * (row & 7);
    if (c.zero_carries) return (int)((word + 0x11111111u * c.zero_add) >> shift & 15);
    return (int)(((word >> shift) + c.zero_add) & 15);
}

/* in_eights: a row's eights of columns begin at multiples of 16 bytes. */
template <class T> static __global__ void unpack_int4(T *to, exf_device_coded_rows c, extent n, bool in_eights, int *bad)
{
    unsigned octets = (n.cols + 7) / 8, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n.rows * octets) return;
    /* Neighbours have the rows of a word, or of neighbouring words, where rows lie beside each other. */
    bool turned = c.coding != EXF_DEVICE_CODED_INT4;
    unsigned inner = turned ? n.rows : octets, slow = i / inner, fast = i - slow * inner;
    unsigned row = turned ? fast : slow, octet = turned ? slow : fast, last = n.groups;
    uint32_t codes = eight_codes(c, n, row, octet);
    float scale = 0, v[8] = {};
    int zero = 0;
    bool fine = true;
#pragma unroll
    for (unsigned k = 0; k < 8; k++) {
        unsigned col = 8 * octet + k;
        if (col >= n.cols) continue;
        unsigned group = c.groups ? (unsigned)static_cast<const int32_t *>(c.groups)[col] : col / n.block_cols;
        if (group != last) {
            scale = stored_scale(c, turned ? group * n.rows + row : row * n.groups + group);
            zero = zero_at(c, n, row, group);
            last = group;
        }
        v[k] = __fmul_rn((float)((int)(codes >> 4 * k & 15) - zero), scale);
        fine = fine && holds<T>(v[k]);
    }
    if (!fine) *bad = 1;
    to += row * n.cols + 8 * octet;
    if (in_eights) {
        exf_store8(to, v);
        return;
    }
#pragma unroll
    for (unsigned k = 0; k < 8; k++)
        if (8 * octet + k < n.cols) exf_set_element(to + k, v[k]);
}

template <class T> static void unpack(exf_queue *q, T *to, const exf_device_coded_rows *c, int *bad)
{
    size_t n = c->rows * c->cols, alignment = c->coding == EXF_DEVICE_CODED_FP8 ? 16 : 8;
    bool sixteens = c->coding != EXF_DEVICE_CODED_PLAIN && c->cols % UNPACKED == 0 && c->block_cols % UNPACKED == 0 &&
                    (uintptr_t)to % 16 == 0 && (uintptr_t)c->codes % alignment == 0;
    extent e = {(unsigned)c->rows, (unsigned)c->cols, (unsigned)c->block_rows, (unsigned)c->block_cols,
                c->block_cols ? (unsigned)((c->cols + c->block_cols - 1) / c->block_cols) : 0};
    if (n == 0 || q->err.code != EXF_OK) return;
    if (n > INT_MAX)
        exf_fail(&q->err, EXF_INTERNAL, "unpack: %zu elements in one call", n);
    else if (c->coding >= EXF_DEVICE_CODED_INT4)
        EXF_LAUNCH(q, "unpack", unpack_int4<T>, exf_blocks(c->rows * ((c->cols + 7) / 8), 256), 256, 0, to, *c, e,
                   c->cols % 8 == 0 && (uintptr_t)to % 16 == 0, bad);
    else if (sixteens)
        EXF_LAUNCH(q, "unpack", unpack_sixteens<T>, exf_blocks(n / UNPACKED, 256), 256, 0, to, *c, e, bad);
    else
        EXF_LAUNCH(q, "unpack", unpack_any<T>, exf_blocks(n, 256), 256, 0, to, *c, e, bad);
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
            found |= exf_not_finite(u[k]) || (u[k] & 0x7f80u) == 0x7f80u;
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

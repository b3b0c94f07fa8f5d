/* lowrank_sums_moments_cuda.cu - second moments of sampled residuals; see lowrank_sums.h.
 *
 * Of 2048 samples at a time: their residuals as float32 rows, the sums of the columns, X'X by cuBLAS in float32, and its addition
 * to the total in double.
 *
 * Floor: 2 n H^2 operations in float32; n 65,536 and H 2048 at 60 TFLOP/s, 9 ms.  Bytes beside: 2 n H elements once, and 20 H^2 a
 * product, 2.7 GB in all. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/lowrank_sums.h"

/* The residual of a sample: a block a row, of those from `at` on. */
template <class T> static __global__ void take_residuals(exf_residual_call c, const T *source, const T *target, int at)
{
    int place = c.place[at + blockIdx.x];
    double scalar = c.scalar[at + blockIdx.x];
    float *row = c.rows + (size_t)blockIdx.x * c.d_model;
    for (int j = threadIdx.x; j < c.d_model; j += blockDim.x) {
        size_t i = (size_t)(place < 0 ? 0 : place) * c.d_model + j;
        double u = (double)exf_element(source[i]), v = (double)exf_element(target[i]);
        row[j] = place < 0 ? 0 : (float)__dsub_rn(u, __dmul_rn(scalar, v));
    }
}

/* A row itself; the source has it in one part or two. */
template <class T> static __global__ void take_rows(exf_residual_call c, const T *source, int at)
{
    const T *from = source + (size_t)c.place[at + blockIdx.x] * c.parts * c.d_model;
    float *row = c.rows + (size_t)blockIdx.x * c.d_model;
    for (int j = threadIdx.x; j < c.d_model; j += blockDim.x)
        row[j] = exf_element(from[j]) + (c.parts == 2 ? exf_element(from[c.d_model + j]) : 0.0f);
}

/* Sums of 32 columns: thread (x, y) adds rows y, y + 8, ... of column x in order, then thread (x, 0) those of all y in order. */
enum { SUM_COLUMNS = 32, SUM_ROWS = 8 };
static __global__ void add_columns(exf_residual_call c, int n_rows)
{
    __shared__ double part[SUM_ROWS][SUM_COLUMNS];
    int x = threadIdx.x % SUM_COLUMNS, y = threadIdx.x / SUM_COLUMNS, column = blockIdx.x * SUM_COLUMNS + x;
    double sum = 0;
    for (int i = y; i < n_rows && column < c.d_model; i += SUM_ROWS) sum += (double)c.rows[(size_t)i * c.d_model + column];
    part[y][x] = sum;
    __syncthreads();
    if (y > 0 || column >= c.d_model) return;
    for (int i = 1; i < SUM_ROWS; i++) sum += part[i][x];
    c.sum[column] += sum;
}

static __global__ void add_product(double *gram, const float *product, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) gram[i] += (double)product[i];
}

/* Adds the products of n rows; as cuBLAS sees them, rows are the columns of a matrix of H rows. */
static void add_rows(exf_queue *q, const exf_residual_call *c, int n)
{
    float one = 1, zero = 0;
    int h = c->d_model;
    size_t cells = (size_t)h * h;
    if (c->sum)
        EXF_LAUNCH(q, "residuals: columns", add_columns, exf_blocks((size_t)h, SUM_COLUMNS), SUM_COLUMNS * SUM_ROWS, 0, *c, n);
    if (!exf_cublas_ready(q)) return;
    exf_cublas_note(q,
                    q->cublas->gemm(q->blas, CUBLAS_OP_N, CUBLAS_OP_T, h, h, n, &one, c->rows, CUDA_R_32F, h, c->rows, CUDA_R_32F,
                                    h, &zero, c->product, CUDA_R_32F, h, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                    "residuals");
    EXF_LAUNCH(q, "residuals: total", add_product, exf_blocks(cells, 256), 256, 0, c->gram, c->product, cells);
}

template <class T> static void add_samples(exf_queue *q, const exf_residual_call *c)
{
    const T *source = static_cast<const T *>(c->source.p), *target = static_cast<const T *>(c->target.p);
    for (int at = 0; at < c->n; at += EXF_RESIDUAL_ROWS) {
        int n = c->n - at < EXF_RESIDUAL_ROWS ? c->n - at : EXF_RESIDUAL_ROWS;
        if (target)
            EXF_LAUNCH(q, "residuals", take_residuals<T>, (unsigned)n, 256, 0, *c, source, target, at);
        else
            EXF_LAUNCH(q, "rows", take_rows<T>, (unsigned)n, 256, 0, *c, source, at);
        add_rows(q, c, n);
    }
}

void exf_residual_moments_cuda(exf_queue *q, const exf_residual_call *c)
{
    size_t h = (size_t)c->d_model;
    if (q->err.code == EXF_OK) exf_cuda_note(q, cudaMemsetAsync(c->gram, 0, h * h * sizeof *c->gram, q->stream), "residuals");
    if (q->err.code == EXF_OK && c->sum) exf_cuda_note(q, cudaMemsetAsync(c->sum, 0, h * sizeof *c->sum, q->stream), "residuals");
    if (c->source.number == EXF_NUMBER_BF16)
        add_samples<uint16_t>(q, c);
    else
        add_samples<float>(q, c);
}

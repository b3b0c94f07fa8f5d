/* expert_products_cuda.cu - see expert_products.h. */
#include "kernels/expert_products.cuh"
#include "kernels/hopper.cuh"

static size_t rows_of(const exf_expert_shape *s)
{
    return (size_t)s->n_tokens * (size_t)s->top_k;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

int exf_experts_fit_cuda(const exf_expert_shape *s)
{
    return exf_hopper_code() && s->d_model % 8 == 0 && s->d_expert % 8 == 0 && s->n_experts <= 4096 &&
           rows_of(s) < (size_t)1 << 30;
}

size_t exf_experts_workspace_cuda(const exf_expert_shape *s)
{
    size_t rows = rows_of(s);
    return aligned(4 * exf_bucket_ints((int)rows, s->n_experts)) + aligned(2 * rows * (size_t)s->d_model) + aligned(2 * rows * (size_t)s->d_expert);
}

/* Sorted row i = the token of its slot; a block per row, 16 bytes a thread. */
static __global__ void gather(uint4 *out, const uint4 *x, const int32_t *slot, const int32_t *n, int top_k, int width)
{
    if ((int)blockIdx.x >= *n) return;
    const uint4 *in = x + (size_t)(slot[blockIdx.x] / top_k) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[(size_t)blockIdx.x * width + i] = in[i];
}

/* Outputs of slots without an expert. */
static __global__ void clear_unused(uint4 *out, const int32_t *ids, int width)
{
    if (ids[blockIdx.x] >= 0) return;
    for (int i = threadIdx.x; i < width; i += blockDim.x) out[(size_t)blockIdx.x * width + i] = make_uint4(0, 0, 0, 0);
}

void exf_experts_cuda(exf_queue *q, uint16_t *outputs, const uint16_t *x, const int32_t *ids, const exf_expert_matrices *m,
                      const exf_expert_shape *s, void *workspace)
{
    size_t rows = rows_of(s);
    int width = s->d_model / 8, threads = width < 256 ? (width + 31) / 32 * 32 : 256;
    char *memory = static_cast<char *>(workspace);
    uint16_t *sorted = reinterpret_cast<uint16_t *>(memory), *act = sorted + aligned(2 * rows * (size_t)s->d_model) / 2;
    char *behind = reinterpret_cast<char *>(act) + aligned(2 * rows * (size_t)s->d_expert);
    exf_buckets b = exf_bucket_carve(reinterpret_cast<int32_t *>(behind), (int)rows, s->n_experts);
    if (rows == 0) return;
    exf_bucket_cuda(q, &b, ids, (int)rows, s->n_experts);
    EXF_LAUNCH(q, "experts: gather", gather, (unsigned)rows, threads, 0, reinterpret_cast<uint4 *>(sorted),
               reinterpret_cast<const uint4 *>(x), b.slot, b.first + s->n_experts, s->top_k, width);
    exf_grouped_swiglu_cuda(q, act, sorted, m->gate, m->up, &b, s);
    EXF_LAUNCH(q, "experts: clear", clear_unused, (unsigned)rows, threads, 0, reinterpret_cast<uint4 *>(outputs), ids, width);
    exf_grouped_down_cuda(q, outputs, act, m->down, &b, s);
}

/* expert_products_cuda.cu - see expert_products.h. */
#include "kernels/moe/expert_products.cuh"
#include "kernels/device/hopper.cuh"

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
    return aligned(2 * rows * (size_t)s->d_expert) + aligned(4 * exf_bucket_ints((int)rows, s->n_experts));
}

/* Outputs of slots without an expert. */
static __global__ void clear_unused(uint4 *out, const int32_t *ids, int n_slots, int width)
{
    int slot = blockIdx.x * blockDim.x + threadIdx.x;
    if (slot >= n_slots || ids[slot] >= 0) return;
    for (int i = 0; i < width; i++) out[(size_t)slot * width + i] = make_uint4(0, 0, 0, 0);
}

void exf_experts_cuda(exf_queue *q, uint16_t *outputs, const uint16_t *x, const int32_t *ids, const exf_expert_matrices *m,
                      const exf_expert_shape *s, void *workspace)
{
    size_t rows = rows_of(s);
    uint16_t *act = static_cast<uint16_t *>(workspace);
    char *behind = static_cast<char *>(workspace) + aligned(2 * rows * (size_t)s->d_expert);
    exf_buckets b = exf_bucket_carve(reinterpret_cast<int32_t *>(behind), (int)rows, s->n_experts);
    if (rows == 0) return;
    exf_bucket_cuda(q, &b, ids, (int)rows, s->n_experts, s->first);
    EXF_LAUNCH(q, "experts: clear", clear_unused, exf_blocks(rows, 256), 256, 0, reinterpret_cast<uint4 *>(outputs), ids, (int)rows, s->d_model / 8);
    exf_grouped_swiglu_cuda(q, act, x, m->gate, m->up, &b, s);
    exf_grouped_down_cuda(q, outputs, act, m->down, &b, s);
}

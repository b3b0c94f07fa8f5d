/* expert_products_cuda.cu - see expert_products.h. */
#include "kernels/moe/expert_products_internal.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/linear/split.cuh"

/* Limits: experts whose bounds fit into shared memory, and slots that an int can count. */
enum { TENSOR_CORE_EXPERTS = 4096, MOST_EXPERTS = 12288, MOST_SLOTS = 1 << 30 };

static size_t rows_of(const exf_expert_shape *s)
{
    return (size_t)s->n_tokens * (size_t)s->top_k;
}

static size_t aligned(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* Returns true if Hopper's tensor cores can run a call of this shape with bfloat16 matrices. */
static bool fits_tensor_cores(const exf_expert_shape *s)
{
    return exf_hopper_code() && s->d_model % 8 == 0 && s->d_expert % 8 == 0 && s->n_experts <= TENSOR_CORE_EXPERTS;
}

/* Bytes of the workspace's parts: split float32 inputs, results of the SwiGLU, buckets. */
typedef struct {
    size_t x, act, buckets;
} parts;

static parts parts_of(const exf_expert_shape *s, exf_number x)
{
    size_t rows = rows_of(s), inputs = (size_t)s->n_tokens * (size_t)s->d_model, act = rows * (size_t)s->d_expert;
    bool split = x == EXF_NUMBER_F32 && fits_tensor_cores(s);
    return {aligned(split ? 2 * EXF_SPLIT_TERMS * inputs : 0), aligned(act * (split ? 2 * EXF_SPLIT_TERMS : exf_number_bytes(x))),
            aligned(4 * exf_bucket_ints((int)rows, s->n_experts))};
}

size_t exf_experts_workspace_cuda(const exf_expert_shape *s, exf_number x)
{
    parts p = parts_of(s, x);
    return p.x + p.act + p.buckets;
}

/* Zeroes the outputs of slots without an expert, a warp for each slot; width in units of 2 bytes. */
static __global__ void clear_unused(uint16_t *out, const int32_t *ids, size_t n_slots, size_t width)
{
    size_t slot = (blockIdx.x * (size_t)blockDim.x + threadIdx.x) / 32;
    if (slot >= n_slots || ids[slot] >= 0) return;
    for (size_t i = threadIdx.x & 31; i < width; i += 32) out[slot * width + i] = 0;
}

static void *output_of(exf_matrix outputs)
{
    return const_cast<void *>(outputs.p);
}

static void on_tensor_cores(exf_queue *q, exf_matrix outputs, exf_matrix x, const exf_expert_matrices *m, const exf_expert_shape *s,
                            char *workspace, const parts *p, const exf_buckets *b)
{
    uint16_t *terms = reinterpret_cast<uint16_t *>(workspace), *act = reinterpret_cast<uint16_t *>(workspace + p->x);
    int planes = x.number == EXF_NUMBER_F32 ? EXF_SPLIT_TERMS : 1;
    const uint16_t *in = static_cast<const uint16_t *>(x.p);
    if (planes > 1) {
        exf_split_rows_cuda(q, terms, (size_t)s->n_tokens * (size_t)s->d_model, static_cast<const float *>(x.p), s->d_model,
                            s->n_tokens, s->d_model);
        in = terms;
    }
    exf_grouped_swiglu_cuda(q, act, in, planes, m, b, s);
    exf_grouped_down_cuda(q, output_of(outputs), act, planes, m, b, s);
}

static bool acceptable(exf_queue *q, exf_matrix outputs, exf_matrix x, const exf_expert_matrices *m, const exf_expert_shape *s)
{
    if (q->err.code != EXF_OK) return false;
    if (outputs.number != x.number || m->up.number != m->gate.number || m->down.number != m->gate.number)
        exf_fail(&q->err, EXF_INTERNAL, "experts: matrices of different numbers, or outputs of another than x");
    else if (s->n_experts > MOST_EXPERTS || rows_of(s) >= MOST_SLOTS)
        exf_fail(&q->err, EXF_INTERNAL, "experts: %d experts and %zu slots in one call", s->n_experts, rows_of(s));
    return q->err.code == EXF_OK;
}

void exf_experts_cuda(exf_queue *q, exf_matrix outputs, exf_matrix x, const int32_t *ids, const exf_expert_matrices *m,
                      const exf_expert_shape *s, void *workspace)
{
    size_t rows = rows_of(s), width = (size_t)s->d_model * exf_number_bytes(outputs.number) / 2;
    char *memory = static_cast<char *>(workspace);
    parts p = parts_of(s, x.number);
    exf_buckets b = exf_bucket_carve(reinterpret_cast<int32_t *>(memory + p.x + p.act), (int)rows, s->n_experts);
    if (rows == 0 || !acceptable(q, outputs, x, m, s)) return;
    exf_bucket_cuda(q, &b, ids, (int)rows, s->n_experts, s->first);
    if (!s->keep)
        EXF_LAUNCH(q, "experts: clear", clear_unused, exf_blocks(32 * rows, 256), 256, 0,
                   static_cast<uint16_t *>(output_of(outputs)), ids, rows, width);
    if (m->gate.number == EXF_NUMBER_BF16 && fits_tensor_cores(s)) {
        on_tensor_cores(q, outputs, x, m, s, memory, &p, &b);
    } else {
        exf_grouped_swiglu_any_cuda(q, memory + p.x, x, m, &b, s);
        exf_grouped_down_any_cuda(q, outputs, memory + p.x, m, &b, s);
    }
}

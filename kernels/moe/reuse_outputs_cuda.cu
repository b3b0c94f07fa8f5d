/* reuse_outputs_cuda.cu - see reuse_outputs.h.  A thread finds a slot's source; where rows
 * are wanted, a block per slot then copies or zeroes one. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/moe/reuse_outputs.h"

static __global__ void find_sources(exf_reuse_call c)
{
    int slot = blockIdx.x * blockDim.x + threadIdx.x, base = slot - slot % c.top_k;
    if (slot >= c.n_tokens * c.top_k) return;
    int32_t id = c.wanted[slot];
    int source = id < 0 ? EXF_SOURCE_NONE : EXF_SOURCE_OTHER;
    for (int k = c.top_k - 1; id >= 0 && k >= 0; k--)
        if (c.ran[base + k] == id) source = base + k;
    c.source[slot] = source;
    c.missing[slot] = source == EXF_SOURCE_OTHER ? id : -1;
}

template <typename word> static __global__ void copy_rows(exf_reuse_call c, int words)
{
    int slot = blockIdx.x, source = c.source[slot];
    if (source == EXF_SOURCE_OTHER) return;
    word *to = static_cast<word *>(const_cast<void *>(c.to.p)) + (size_t)slot * words;
    const word *from = static_cast<const word *>(c.from.p) + (size_t)(source < 0 ? 0 : source) * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = source < 0 ? word{} : from[i];
}

static unsigned threads_of(int words)
{
    return words < 256 ? (words + 31) / 32 * 32 : 256;
}

void exf_reuse_outputs_cuda(exf_queue *q, const exf_reuse_call *c)
{
    size_t row = (size_t)c->d_model * exf_number_bytes(c->to.number);
    int slots = c->n_tokens * c->top_k;
    if (slots == 0) return;
    EXF_LAUNCH(q, "reuse_outputs", find_sources, exf_blocks((size_t)slots, 256), 256, 0, *c);
    if (!c->to.p) return;
    if (row % 16 == 0 && (((uintptr_t)c->to.p | (uintptr_t)c->from.p) & 15) == 0)
        EXF_LAUNCH(q, "reuse_outputs", copy_rows<uint4>, slots, threads_of((int)(row / 16)), 0, *c, (int)(row / 16));
    else
        EXF_LAUNCH(q, "reuse_outputs", copy_rows<uint16_t>, slots, threads_of((int)(row / 2)), 0, *c, (int)(row / 2));
}

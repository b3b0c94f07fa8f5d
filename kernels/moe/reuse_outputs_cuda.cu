/* reuse_outputs_cuda.cu - see reuse_outputs.h.  A block per slot copies or zeroes a row. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/moe/reuse_outputs.h"

template <typename word> static __global__ void reuse(exf_reuse_call c, int words)
{
    int slot = blockIdx.x, base = slot - slot % c.top_k;
    int32_t id = c.wanted[slot];
    int at = -1;
    for (int k = c.top_k - 1; id >= 0 && k >= 0; k--)
        if (c.ran[base + k] == id) at = base + k;
    if (threadIdx.x == 0) c.missing[slot] = at < 0 ? id : -1;
    if (at < 0 && id >= 0) return;
    word *to = static_cast<word *>(const_cast<void *>(c.to.p)) + (size_t)slot * words;
    const word *from = static_cast<const word *>(c.from.p) + (size_t)(at < 0 ? 0 : at) * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = at < 0 ? word{} : from[i];
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
    if (row % 16 == 0 && (((uintptr_t)c->to.p | (uintptr_t)c->from.p) & 15) == 0)
        EXF_LAUNCH(q, "reuse_outputs", reuse<uint4>, slots, threads_of((int)(row / 16)), 0, *c, (int)(row / 16));
    else
        EXF_LAUNCH(q, "reuse_outputs", reuse<uint16_t>, slots, threads_of((int)(row / 2)), 0, *c, (int)(row / 2));
}

/* delta_parts.cuh - what the kernels of the chunked delta rule share (delta_chunks.cu). */
#ifndef EXF_KERNELS_DELTA_PARTS_CUH
#define EXF_KERNELS_DELTA_PARTS_CUH
#include "kernels/hopper.cuh"

enum { EXF_DELTA_CHUNK = 64, EXF_DELTA_COLUMNS = 32, EXF_DELTA_THREADS = 256 };

/* Of every value head and chunk: W [64, DK], U [64, width], P [64, 64], gates [2, 64] =
 * c_i and c_end / c_i.  Where halves is set, W and P are float16, and so are q and k,
 * of every key head [n_chunks * 64, DK], 0 where there is no token or dimension. */
struct exf_delta_problem {
    float *out;
    const float *query, *k, *v, *decay, *beta;
    exf_delta_shape s;
    int n_chunks, width; /* value_dim as a multiple of EXF_DELTA_COLUMNS */
    bool wide, halves;   /* wide: rows of q and k can be read 16 bytes at a time */
    float *w, *u, *p, *gates;
    char *half_q, *half_k;
    __device__ int group() const
    {
        return s.n_value_heads / s.n_key_heads;
    }
};

/* The walk over the chunks with float16 operands; dk: 64 or 128. */
void exf_delta_carry_halves(exf_queue *q, const exf_delta_problem &p, int dk);
#endif

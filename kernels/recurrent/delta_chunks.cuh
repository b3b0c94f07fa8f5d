/* delta_chunks.cuh - the delta rule in chunks (delta_chunks.cu); see delta_rule.h. */
#ifndef EXF_KERNELS_DELTA_CHUNKS_CUH
#define EXF_KERNELS_DELTA_CHUNKS_CUH
#include "kernels/device/cuda_queue.cuh"

enum { EXF_DELTA_MOST_KEY = 128 };

/* Floats of workspace; s->key_dim at most EXF_DELTA_MOST_KEY. */
size_t exf_delta_chunks_workspace(const exf_delta_shape *s);
void exf_delta_chunks(exf_queue *q, float *out, const float *query, const float *k, const float *v, const float *decay,
                      const float *beta, const exf_delta_shape *s, float *workspace);
#endif

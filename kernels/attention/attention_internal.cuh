/* attention_internal.cuh - shared by the CUDA files of causal attention: the tiled kernel's entry,
 * and the view by which kernels that serve both kinds of attention read rows and keys; see
 * attention.h. */
#ifndef EXF_KERNELS_ATTENTION_INTERNAL_CUH
#define EXF_KERNELS_ATTENTION_INTERNAL_CUH
#include "kernels/attention/attention.h"
#include "kernels/device/hopper.cuh"

/* Attention on tensor cores for heads of at most 256: floats of workspace, 0 if it does not
 * support the shape; and the operation. */
size_t exf_attention_tiles_workspace(const exf_attention_shape *s);
void exf_attention_tiles(exf_queue *q, float *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                         float *workspace);

/* The same in float32 mode; operands are sums of two float16. */
size_t exf_attention_split_workspace(const exf_attention_shape *s);
void exf_attention_split(exf_queue *q, float *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                         float *workspace);

/* A view names the rows and keys of one grid row (blockIdx.y): a query head. */
struct exf_causal_view {
    float *out;
    const float *query, *k, *v;
    exf_attention_shape s;

    __device__ int n_rows() const
    {
        return s.n_tokens;
    }
    __device__ int head_kv() const
    {
        return blockIdx.y / (s.n_heads / s.n_kv);
    }
    __device__ const float *query_row(int r) const
    {
        return query + (size_t)r * s.ldq + (size_t)blockIdx.y * s.d;
    }
    __device__ float *out_row(int r) const
    {
        return out + (size_t)r * s.ldo + (size_t)blockIdx.y * s.dv;
    }
    /* Row access of the wide kernel: loads eight of a query's columns as float16; stores a
     * thread's part of its two output rows, times inverse[]. */
    __device__ uint4 query8(int r, int column, int n, bool quads) const
    {
        return exf_half8(query_row(r), column, n, quads);
    }
    template <int N>
    __device__ void keep(const float (&o)[N], const float (&inverse)[2], int row, int column, int n, bool quads) const
    {
        exf_keep_rows(*this, o, inverse, row, column, n, quads);
    }
    /* Return the number of keys that any of the 64 rows from `first` attends to, and the j-th of them. */
    __device__ int n_keys(int first) const
    {
        return first + 64 < s.n_tokens ? first + 64 : s.n_tokens;
    }
    __device__ int key(int first, int j) const
    {
        (void)first;
        return j;
    }
    __device__ const float *k_row(int key) const
    {
        return k + (size_t)key * s.ldk + (size_t)head_kv() * s.d;
    }
    __device__ const float *v_row(int key) const
    {
        return v + (size_t)key * s.ldv + (size_t)head_kv() * s.dv;
    }
    /* Returns the group of a row; rows of one group attend to the same keys. */
    __device__ int group(int r) const
    {
        return r;
    }
    __device__ bool sees(int group, int key) const
    {
        return key <= group;
    }
    /* Returns the attention sink of a row: a score that counts in the softmax sum but has no value. */
    __device__ float sink(int r) const
    {
        (void)r;
        return -INFINITY;
    }
};
#endif

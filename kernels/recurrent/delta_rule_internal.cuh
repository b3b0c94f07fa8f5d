/* delta_rule_internal.cuh - the delta rule in chunks, shared by its CUDA files: delta_chunks.cu in
 * float32, which has the formulas; and with float16 operands first all chunks' W, U and P at
 * once (delta_prepare.cu), then the walk over them (delta_halves.cu).
 *
 * Between the two, everything is stored as the tensor cores' registers have it, 16 bytes a
 * lane, so that the walk needs no shared memory for it.  A fragment is [32 lanes] of uint4:
 * the A operand of a product of 16 x 8 x 16 (tensor_cores.cuh), or four floats of its result. */
#ifndef EXF_KERNELS_DELTA_RULE_INTERNAL_CUH
#define EXF_KERNELS_DELTA_RULE_INTERNAL_CUH
#include "kernels/device/hopper.cuh"
#include "kernels/recurrent/delta_rule.h"

enum { EXF_DELTA_MOST_KEY = 128 };

/* The logarithm of a decay, one below 1e-38 counting as that; of a NaN one. */
static __device__ __forceinline__ double exf_delta_log(float decay)
{
    return log((double)(decay < 1e-38f ? 1e-38f : decay));
}

/* Returns 1 if this shape can be computed in chunks in float32; floats of workspace.  s->key_dim is at most
 * EXF_DELTA_MOST_KEY. */
int exf_delta_chunks_fit(const exf_delta_shape *s);
size_t exf_delta_chunks_workspace(const exf_delta_shape *s);
void exf_delta_chunks(exf_queue *q, float *out, const float *query, const float *k, const float *v, const float *decay,
                      const float *beta, const exf_delta_shape *s, float *workspace);

/* ---- with float16 operands ------------------------------------------------------ */
enum { EXF_DELTA_CHUNK = 64, EXF_DELTA_COLUMNS = 32, EXF_DELTA_THREADS = 256 };

/* Float16 rows of every head, [heads, T, dk] and [heads, T, width], 0 where a head has no such
 * dimension.  dk: 64 or 128; width: value_dim as a multiple of EXF_DELTA_COLUMNS. */
struct exf_delta_rows {
    char *q, *k, *v;
};

struct exf_delta_halves {
    float *out;
    const float *decay, *beta;
    exf_delta_shape s;
    int n_chunks, dk, width;
    exf_delta_rows rows;
    /* Of every value head and chunk fragments of W [4 strips of tokens, dk / 16], P [4, 4],
     * U [4, width / 8], and gates [2, 64] = c_i and c_end / c_i; of every key head and chunk
     * Q [4, dk / 16] and K transposed [dk / 16, 4]. */
    uint4 *w, *p, *q, *k;
    float4 *u;
    float *gates;
    __device__ int group() const
    {
        return s.n_value_heads / s.n_key_heads;
    }
};

/* rows from q, k and v as projected, side by side in rows of x: convolved with `taps` (delta_rule.h),
 * q and k l2-normalised, q scaled.  fit: 1 if this shape goes this way. */
int exf_conv_rows_fit(const float *x, const exf_delta_shape *s, int width);
void exf_conv_rows(exf_queue *q, exf_delta_rows to, const float *x, const float *taps, const exf_delta_shape *s, double eps,
                   double scale);

/* Floats of workspace, and the arrays in it; s->key_dim at most 128. */
size_t exf_delta_halves_workspace(const exf_delta_shape *s);
exf_delta_halves exf_delta_halves_at(float *workspace, float *out, const float *decay, const float *beta, const exf_delta_shape *s);
/* Runs the rule on p.rows, which must be filled: prepares all chunks, then walks over them.
 * exf_delta_walk() is the second part alone. */
void exf_delta_halves_run(exf_queue *q, const exf_delta_halves &p);
void exf_delta_walk(exf_queue *q, const exf_delta_halves &p);
#endif

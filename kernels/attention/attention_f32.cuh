/* attention_f32.cuh - a kernel of softmax attention in float32 without tensor cores, for the
 * rows and keys of a view (attention_internal.cuh); no rows x keys matrix is written.
 *
 * A block has 64 rows and loops over their keys 64 at a time.  256 threads: a thread has
 * four rows, and of them the scores of four keys and four of every 64 output columns.
 * Products and sums are fused multiply-adds in order of the index; a row's running sum
 * of weights is multiplied with exp(old top - new top) <= 1 at every tile, at most
 * n_keys / 64 times, so that |error| <= (d + n_keys) 2^-23 sum |terms| holds.
 *
 * Queries lie transposed in shared memory, whole where a block may have so much (heads of 256: 112 KB; of 512: 198), else 32
 * columns at a time, loaded anew for every tile of keys.  The sums are the same.
 *
 * Cost: the FLOP of attention_tiles.cu on float32 units.  Bytes: a block reads every key and value that its rows see, from
 * the cache.  Compressed attention with 64 heads of 512 in float32: measured 4.39 ms of a window alone, 14.3 with 512
 * entries. */
#ifndef EXF_KERNELS_ATTENTION_F32_CUH
#define EXF_KERNELS_ATTENTION_F32_CUH
#include "kernels/attention/attention_internal.cuh"

enum { EXF_F32_TILE = 64, EXF_F32_DEPTH = 32, EXF_F32_LD = EXF_F32_TILE + 4, EXF_F32_VALUES = 16 };

/* Loads four floats from column c of a row of n; 0 after the row's end or if row is NULL. */
static __device__ inline float4 exf_four(const float *row, int c, int n, bool wide)
{
    if (!row) return make_float4(0, 0, 0, 0);
    if (wide && c + 4 <= n) return *reinterpret_cast<const float4 *>(row + c);
    return make_float4(c < n ? row[c] : 0, c + 1 < n ? row[c + 1] : 0, c + 2 < n ? row[c + 2] : 0, c + 3 < n ? row[c + 3] : 0);
}

/* Loads columns c .. c + DEPTH - 1 of 64 rows, transposed: to[column][row]. */
static __device__ __forceinline__ void exf_f32_transpose(float *to, const float *const *rows, int c, int n, bool wide)
{
    for (int i = threadIdx.x; i < EXF_F32_TILE * EXF_F32_DEPTH / 4; i += 256) {
        int r = i % EXF_F32_TILE, at = i / EXF_F32_TILE * 4;
        float4 x = exf_four(rows[r], c + at, n, wide);
        to[(at + 0) * EXF_F32_LD + r] = x.x;
        to[(at + 1) * EXF_F32_LD + r] = x.y;
        to[(at + 2) * EXF_F32_LD + r] = x.z;
        to[(at + 3) * EXF_F32_LD + r] = x.w;
    }
}

/* Adds a[c][4 ty + i] b[c][4 tx + j] to s[i][j] over DEPTH c. */
static __device__ __forceinline__ void exf_f32_score(float (&s)[4][4], const float *a, const float *b)
{
#pragma unroll 8
    for (int c = 0; c < EXF_F32_DEPTH; c++) {
        float4 x = *reinterpret_cast<const float4 *>(a + c * EXF_F32_LD), y = *reinterpret_cast<const float4 *>(b + c * EXF_F32_LD);
        float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) s[i][j] = fmaf(xs[i], ys[j], s[i][j]);
    }
}

/* Reduce over the 16 threads that share four rows: sum, maximum. */
static __device__ inline float exf_f32_sum16(float x)
{
    for (int step = 8; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ inline float exf_f32_max16(float x)
{
    for (int step = 8; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Replaces scores by exp(score - top); returns the factor by which the row's output so far
 * must be rescaled. */
static __device__ __forceinline__ float exf_f32_online_softmax(float (&s)[4], float &top, float &sum)
{
    float most = exf_f32_max16(fmaxf(fmaxf(top, fmaxf(s[0], s[1])), fmaxf(s[2], s[3])));
    float base = most == -INFINITY ? 0 : most, rescale = expf(top - base);
    top = most;
#pragma unroll
    for (int j = 0; j < 4; j++) s[j] = expf(s[j] - base);
    sum = sum * rescale + ((s[0] + s[1]) + (s[2] + s[3]));
    return rescale;
}

/* Adds the weights of 16 keys times their values to o; p [key][row], v [16][DV]. */
template <int DV> static __device__ __forceinline__ void exf_f32_weigh(float (&o)[4][DV / 16], const float *p, const float *v)
{
#pragma unroll 4
    for (int k = 0; k < EXF_F32_VALUES; k++) {
        float4 x = *reinterpret_cast<const float4 *>(p + k * EXF_F32_LD);
        float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int c = 0; c < DV / 64; c++) {
            float4 y = *reinterpret_cast<const float4 *>(v + k * DV + c * 64);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                o[i][4 * c + 0] = fmaf(xs[i], y.x, o[i][4 * c + 0]);
                o[i][4 * c + 1] = fmaf(xs[i], y.y, o[i][4 * c + 1]);
                o[i][4 * c + 2] = fmaf(xs[i], y.z, o[i][4 * c + 2]);
                o[i][4 * c + 3] = fmaf(xs[i], y.w, o[i][4 * c + 3]);
            }
        }
    }
}

/* The 64 keys of the present tile; -1 and NULL past the last. */
struct exf_f32_keys {
    const float *k_row[EXF_F32_TILE], *v_row[EXF_F32_TILE];
    int key[EXF_F32_TILE];
};

/* Shared memory: queries transposed, keys of one depth, weights, values, keys; the block's query rows, NULL past the last. */
struct exf_f32_space {
    float *q, *k, *p, *v;
    exf_f32_keys *keys;
    const float *const *q_row;
    bool whole; /* q has all columns of the queries, else those of one depth */
};

/* Loads the keys of tile `at`; those past the last are absent. */
template <class View>
static __device__ __forceinline__ void exf_f32_find(const exf_f32_space &m, const View &w, int first, int at, int n_keys)
{
    for (int j = threadIdx.x; j < EXF_F32_TILE; j += 256) {
        int key = at + j < n_keys ? w.key(first, at + j) : -1;
        m.keys->key[j] = key;
        m.keys->k_row[j] = key < 0 ? nullptr : w.k_row(key);
        m.keys->v_row[j] = key < 0 ? nullptr : w.v_row(key);
    }
    __syncthreads();
}

/* Computes scores, masked and scaled, of this thread's four rows and four keys. */
template <class View>
static __device__ __forceinline__ void exf_f32_scores(float (&s)[4][4], const exf_f32_space &m, const View &w, int first, int d,
                                                      float scale, bool wide)
{
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int c = 0; c < d; c += EXF_F32_DEPTH) {
        exf_f32_transpose(m.k, m.keys->k_row, c, d, wide);
        if (!m.whole) exf_f32_transpose(m.q, m.q_row, c, d, false);
        __syncthreads();
        exf_f32_score(s, m.q + (m.whole ? c : 0) * EXF_F32_LD + 4 * ty, m.k + 4 * tx);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = first + 4 * ty + i, group = r < w.n_rows() ? w.group(r) : 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int key = m.keys->key[4 * tx + j];
            s[i][j] = key >= 0 && w.sees(group, key) ? s[i][j] * scale : -INFINITY;
        }
    }
}

template <int DV>
static __device__ __forceinline__ void exf_f32_values(float (&o)[4][DV / 16], const exf_f32_space &m, int dv, bool wide)
{
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (int at = 0; at < EXF_F32_TILE; at += EXF_F32_VALUES) {
        for (int i = threadIdx.x; i < EXF_F32_VALUES * DV / 4; i += 256)
            reinterpret_cast<float4 *>(m.v)[i] = exf_four(m.keys->v_row[at + i / (DV / 4)], i % (DV / 4) * 4, dv, wide);
        __syncthreads();
        exf_f32_weigh<DV>(o, m.p + at * EXF_F32_LD + 4 * ty, m.v + 4 * tx);
        __syncthreads();
    }
}

template <class View, int DV>
static __device__ void exf_f32_store(const float (&o)[4][DV / 16], const View &w, int r, float top, float sum, int i, int dv)
{
    sum = exf_f32_sum16(sum);
    if (r >= w.n_rows()) return;
    float sink = w.sink(r), inverse = 1 / (sum + (sink == -INFINITY ? 0 : expf(sink - top)));
    long long at = w.out_at(r);
#pragma unroll
    for (int c = 0; c < DV / 16; c++) {
        int column = c / 4 * 64 + 4 * (threadIdx.x % 16) + c % 4;
        if (column < dv) exf_set_output(w.out, at + column, o[i][c] * inverse, w.rounds());
    }
}

/* Bytes of shared memory; depth: columns of the queries in it. */
static inline size_t exf_f32_bytes(int depth, int dv)
{
    return ((size_t)(depth + EXF_F32_DEPTH + EXF_F32_TILE) * EXF_F32_LD + (size_t)EXF_F32_VALUES * dv) * sizeof(float);
}

/* Grid: tiles of rows, the last first; heads.  Shared memory: exf_f32_bytes(). */
template <class View, int DV>
static __global__ void __launch_bounds__(256)
    exf_attend_f32(View w, int d, int dv, float scale, bool wide_k, bool wide_v, bool whole)
{
    extern __shared__ float4 raw4[];
    __shared__ exf_f32_keys keys;
    __shared__ const float *q_row[EXF_F32_TILE];
    int depth = (d + EXF_F32_DEPTH - 1) / EXF_F32_DEPTH * EXF_F32_DEPTH, first = (gridDim.x - 1 - blockIdx.x) * EXF_F32_TILE;
    int tx = threadIdx.x % 16, ty = threadIdx.x / 16, n_keys = w.n_keys(first);
    float o[4][DV / 16] = {}, top[4], sum[4] = {};
    float *raw = reinterpret_cast<float *>(raw4), *k = raw + (whole ? depth : EXF_F32_DEPTH) * EXF_F32_LD,
          *p = k + EXF_F32_DEPTH * EXF_F32_LD;
    exf_f32_space m = {raw, k, p, p + EXF_F32_TILE * EXF_F32_LD, &keys, q_row, whole};
    for (int r = threadIdx.x; r < EXF_F32_TILE; r += 256)
        q_row[r] = first + r < w.n_rows() ? w.query_row(first + r) : nullptr;
    __syncthreads();
    for (int c = 0; whole && c < depth; c += EXF_F32_DEPTH) exf_f32_transpose(m.q + c * EXF_F32_LD, q_row, c, d, false);
    for (int i = 0; i < 4; i++) top[i] = first + 4 * ty + i < w.n_rows() ? w.sink(first + 4 * ty + i) : -INFINITY;
    __syncthreads();
    for (int at = 0; at < n_keys; at += EXF_F32_TILE) {
        float s[4][4] = {}, rescale;
        exf_f32_find(m, w, first, at, n_keys);
        exf_f32_scores(s, m, w, first, d, scale, wide_k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            rescale = exf_f32_online_softmax(s[i], top[i], sum[i]);
#pragma unroll
            for (int c = 0; c < DV / 16; c++) o[i][c] *= rescale;
#pragma unroll
            for (int j = 0; j < 4; j++) m.p[(4 * tx + j) * EXF_F32_LD + 4 * ty + i] = s[i][j];
        }
        __syncthreads();
        exf_f32_values<DV>(o, m, dv, wide_v);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) exf_f32_store<View, DV>(o, w, first + 4 * ty + i, top[i], sum[i], i, dv);
}

template <class View, int DV>
static void exf_run_f32(exf_queue *q, const View &w, int d, int dv, float scale, int n_rows, int n_heads, bool wide_k, bool wide_v)
{
    int depth = (d + EXF_F32_DEPTH - 1) / EXF_F32_DEPTH * EXF_F32_DEPTH;
    size_t most = exf_most_shared_bytes() - sizeof(exf_f32_keys) - EXF_F32_TILE * sizeof(float *);
    bool whole = exf_f32_bytes(depth, DV) <= most;
    int bytes = (int)exf_f32_bytes(whole ? depth : EXF_F32_DEPTH, DV);
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaFuncSetAttribute(exf_attend_f32<View, DV>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)most),
                  "attention"); /* the same for any d, since other threads may launch another at the same time */
    EXF_LAUNCH(q, "attention", (exf_attend_f32<View, DV>),
               dim3((unsigned)(n_rows + EXF_F32_TILE - 1) / EXF_F32_TILE, (unsigned)n_heads), 256, bytes, w, d, dv, scale, wide_k,
               wide_v, whole);
}

/* Launches the kernel; any d up to 576 and dv up to 512. */
template <class View>
static void exf_attention_f32(exf_queue *q, const View &w, int d, int dv, float scale, int n_rows, int n_heads, bool wide_k,
                              bool wide_v)
{
    auto *run = dv <= 64    ? exf_run_f32<View, 64>
                : dv <= 128 ? exf_run_f32<View, 128>
                : dv <= 256 ? exf_run_f32<View, 256>
                            : exf_run_f32<View, 512>;
    run(q, w, d, dv, scale, n_rows, n_heads, wide_k, wide_v);
}
#endif

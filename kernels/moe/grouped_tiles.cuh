/* grouped_tiles.cuh - what the tensor-core kernels of the grouped products share: the place of a tile, and what happens to
 * sums in registers before they are stored. */
#ifndef EXF_KERNELS_GROUPED_TILES_CUH
#define EXF_KERNELS_GROUPED_TILES_CUH
#include "kernels/device/cuda_rows.cuh"
#include "kernels/moe/moe_internal.cuh"

/* One launch: the buckets of its slots (moe_internal.cuh), and what it reads and writes. */
typedef struct {
    const int32_t *first, *tile, *slot;
    int n_experts, depth; /* inner axis */
    int width;            /* columns of a row of out */
    int column_tiles;
    float limit;
    void *out;
    const uint16_t *x; /* [planes, T, depth] rows of tokens, slot / top_k; NULL: sorted rows, read through a map */
    int top_k;
    size_t x_apart, out_apart; /* elements between planes of x, of a SwiGLU's out */
} exf_grouped_work;

/* The place of a tile; a block loops over tiles with rising e. */
typedef struct {
    int e, row, end, column; /* expert, sorted rows [row, end), number of the column tile */
} exf_tile_place;

static __device__ inline void exf_find_place(exf_tile_place *p, const int32_t *first, const int32_t *tile, int at, int column_tiles)
{
    while (at >= tile[p->e + 1] * column_tiles) p->e++;
    int local = at - tile[p->e] * column_tiles, high = tile[p->e + 1] - tile[p->e];
    p->column = local / high;
    p->row = first[p->e] + local % high * EXF_TILE_ROWS;
    p->end = first[p->e + 1];
}

/* Counts the steps of an element's sum: planes from the last, whose terms are smallest, to the first, each over the whole
 * inner axis. */
typedef struct {
    int plane, k;
} exf_walk;

static __device__ inline exf_walk exf_walk_of(int planes)
{
    return {planes - 1, 0};
}

static __device__ inline bool exf_walk_goes_on(const exf_walk &s)
{
    return s.plane >= 0;
}

static __device__ inline void exf_walk_step(exf_walk *s, int each, int depth)
{
    s->k += each;
    if (s->k < depth) return;
    s->k = 0;
    s->plane--;
}

/* Transposes among four lanes: v[j] of lane q is piece q of block j; afterwards v[i] is piece i of block q. */
static __device__ inline void exf_transpose_quad(uint32_t (&v)[4], int q)
{
    int odd = q & 1, high = q & 2;
    uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 1), b = __shfl_xor_sync(0xffffffffu, odd ? v[2] : v[3], 1);
    uint32_t x0 = odd ? a : v[0], x1 = odd ? v[1] : a, x2 = odd ? b : v[2], x3 = odd ? v[3] : b;
    uint32_t c = __shfl_xor_sync(0xffffffffu, high ? x0 : x2, 2), d = __shfl_xor_sync(0xffffffffu, high ? x1 : x3, 2);
    v[0] = high ? c : x0;
    v[1] = high ? d : x1;
    v[2] = high ? x2 : c;
    v[3] = high ? x3 : d;
}

/* Returns the SwiGLU. One plane is rounded to bfloat16, so the error of the fast exponential does not matter. */
template <int PLANES> static __device__ inline float exf_gated(float g, float u, float limit)
{
    if (limit > 0) {
        g = g > limit ? limit : g;
        u = exf_cut(u, limit);
    }
    return PLANES == 1 ? __fdividef(g, 1.0f + __expf(-g)) * u : g / (1.0f + expf(-g)) * u;
}

/* Splits a and b into planes and stores them in pairs in v[plane][i]. */
template <int PLANES> static __device__ inline void exf_split_pair(uint32_t (&v)[PLANES][4], int i, float a, float b)
{
#pragma unroll
    for (int plane = 0; plane < PLANES; plane++) {
        v[plane][i] = exf_narrow2(a, b);
        a -= exf_widen(v[plane][i]);
        b -= exf_widen_upper(v[plane][i]);
    }
}

/* ---- storing: d[4 j ..] has of block j the columns 8 j + 2 q + {0, 1} of sorted rows `row` and, two further on, `row` + 8;
 * q is the lane % 4.  Block 0 begins at column `column`; rows from `end` on are not stored. ---- */

/* Stores the SwiGLU of BLOCKS blocks of gate and, after them, as many of up. */
template <int PLANES, int BLOCKS>
static __device__ __forceinline__ void exf_store_gated(const float *d, const exf_grouped_work &w, int row, int end, int column,
                                                       int q)
{
    uint16_t *out = static_cast<uint16_t *>(w.out);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = row + 8 * half;
#pragma unroll
        for (int j = 0; j < BLOCKS; j += 4) {
            uint32_t v[PLANES][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *gate = d + 4 * (j + i) + 2 * half, *up = gate + 4 * BLOCKS;
                exf_split_pair<PLANES>(v, i, exf_gated<PLANES>(gate[0], up[0], w.limit),
                                       exf_gated<PLANES>(gate[1], up[1], w.limit));
            }
            int at = column + 8 * (j + q);
#pragma unroll
            for (int plane = 0; plane < PLANES; plane++) {
                exf_transpose_quad(v[plane], q);
                if (r < end && at < w.width)
                    *reinterpret_cast<uint4 *>(out + plane * w.out_apart + (size_t)r * w.width + at) =
                        make_uint4(v[plane][0], v[plane][1], v[plane][2], v[plane][3]);
            }
        }
    }
}

/* Stores the sums of BLOCKS blocks as bfloat16, to the rows of their slots. */
template <int BLOCKS>
static __device__ __forceinline__ void exf_store_rounded(const float *d, const exf_grouped_work &w, int row, int end, int column,
                                                         int q)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = row + 8 * half;
        uint16_t *out = static_cast<uint16_t *>(w.out) + (r < end ? (size_t)w.slot[r] * w.width : 0);
#pragma unroll
        for (int j = 0; j < BLOCKS; j += 4) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = exf_narrow2(d[4 * (j + i) + 2 * half], d[4 * (j + i) + 2 * half + 1]);
            exf_transpose_quad(v, q);
            int at = column + 8 * (j + q);
            if (r < end && at < w.width) *reinterpret_cast<uint4 *>(out + at) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

/* The same in float32; four threads write the 32 bytes of a block. */
template <int BLOCKS>
static __device__ __forceinline__ void exf_store_full(const float *d, const exf_grouped_work &w, int row, int end, int column,
                                                      int q)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = row + 8 * half;
        if (r >= end) continue;
        float *out = static_cast<float *>(w.out) + (size_t)w.slot[r] * w.width;
#pragma unroll
        for (int j = 0; j < BLOCKS; j++) {
            int at = column + 8 * j + 2 * q;
            if (at < w.width)
                *reinterpret_cast<float2 *>(out + at) = make_float2(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
        }
    }
}
#endif

/* delta_halves.cu - the walk over the chunks with float16 operands; see delta_rule_internal.cuh,
 * formulas in delta_chunks.cu.  A block has 32 columns of one head's state, in registers as
 * float32 and for the next products in shared memory as float16.  Warps 0-3 have 16 tokens
 * each of W S and so of D, warps 4-7 of Q S and so of the output; all eight have a part of
 * the state.  What a warp multiplies with comes from memory straight into the registers that
 * the product wants it in, two chunks ahead.
 *
 * Cost, of 32 value heads of 128 by 128, T 4096: 128 blocks of 256 threads walk 64 chunks; bytes of a chunk and block: W, Q
 * and K 16 KB each, P 5, U 8, out 8: 565 MB in all, 219 of them different, 0.05 ms at 4.2 TB/s.  Measured 0.101. */
#include "kernels/device/tensor_cores.cuh"
#include "kernels/recurrent/delta_rule_internal.cuh"

enum { C = EXF_DELTA_CHUNK, COLUMNS = EXF_DELTA_COLUMNS, THREADS = EXF_DELTA_THREADS, LDS = COLUMNS + 8 };

#ifdef EXF_MMA
/* A warp's operands in a chunk: W or Q, K transposed, and U (warps 0-3) or P (4-7); of a thread's
 * two tokens c_end / c_i (warps 0-3) or c_i; and c_end. */
template <int DK> struct chunk_part {
    uint4 first[DK / 16], k[4], side[4];
    float gate[2], whole;
};

/* The addresses of a warp's operands, and the distance from one chunk to the next. */
template <int DK> struct places {
    const uint4 *first, *k, *side;
    const float *gates;
    int side_step, n_side;
    __device__ places(const exf_delta_halves &p, int h)
    {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, strip = warp % 4, of_keys = h / p.group() * p.n_chunks,
            at = h * p.n_chunks;
        first =
            (warp < 4 ? p.w + (size_t)at * (DK / 4) * 32 : p.q + (size_t)of_keys * (DK / 4) * 32) + strip * (DK / 16) * 32 + lane;
        k = p.k + (size_t)of_keys * (DK / 4) * 32 + warp * (DK / 32) / 4 * 4 * 32 + lane;
        if (warp < 4) {
            side_step = p.width / 2 * 32;
            side = reinterpret_cast<const uint4 *>(p.u) + (size_t)at * side_step +
                   (strip * (p.width / 8) + blockIdx.x * (COLUMNS / 8)) * 32 + lane;
            n_side = 4;
        } else {
            side_step = 16 * 32;
            side = p.p + (size_t)at * side_step + strip * 4 * 32 + lane;
            n_side = strip + 1; /* P is 0 after the diagonal */
        }
        gates = p.gates + (size_t)at * 2 * C;
    }
    __device__ __forceinline__ void take_first(chunk_part<DK> &c, int chunk) const
    {
#pragma unroll
        for (int i = 0; i < DK / 16; i++) c.first[i] = first[((size_t)chunk * (DK / 4) + i) * 32];
    }
    __device__ __forceinline__ void take_side(chunk_part<DK> &c, int chunk) const
    {
        int i0 = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
        const float *g = gates + (size_t)chunk * 2 * C;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < n_side) c.side[i] = side[(size_t)chunk * side_step + i * 32];
        for (int r = 0; r < 2; r++) c.gate[r] = g[(threadIdx.x < 128 ? C : 0) + i0 + 8 * r];
        c.whole = g[C - 1];
    }
    __device__ __forceinline__ void take_k(chunk_part<DK> &c, int chunk) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++) c.k[i] = k[((size_t)chunk * (DK / 4) + i) * 32];
    }
};

/* d[n] += fragments times B [16 STEPS, 8 N] in shared memory, rows of LDS; the first `steps`. */
template <int N, int STEPS>
static __device__ __forceinline__ void multiply(float (&d)[N][4], const uint4 (&a)[STEPS], uint32_t b, int steps = STEPS)
{
    int lane = threadIdx.x % 32;
    b += ((lane % 16) * LDS + lane / 16 * 8) * 2;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint32_t x[4] = {a[k].x, a[k].y, a[k].z, a[k].w}, y[4];
        if (k >= steps) break;
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            exf_ldmatrix_transposed(y, b + (k * 16 * LDS + n * 8) * 2);
            exf_mma_half(d[n], x, y[0], y[1]);
            exf_mma_half(d[n + 1], x, y[2], y[3]);
        }
    }
}

/* Stores a pair of neighbouring columns of row i as float16. */
static __device__ __forceinline__ void store_pair(char *to, int i, int c, float x, float y)
{
    *reinterpret_cast<uint32_t *>(to + (i * LDS + c) * 2) = exf_half2(x, y);
}

/* D = U - W S of the strip, and D weighed for the end of the chunk. */
static __device__ __forceinline__ void store_updates(char *d, char *tail, const float (&ws)[4][4], const uint4 (&u)[4],
                                             const float (&gate)[2])
{
    int lane = threadIdx.x % 32, i = threadIdx.x / 32 * 16 + lane / 4, c = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float x = __uint_as_float(u[n].x) - ws[n][0], y = __uint_as_float(u[n].y) - ws[n][1],
              z = __uint_as_float(u[n].z) - ws[n][2], w = __uint_as_float(u[n].w) - ws[n][3];
        store_pair(d, i, 8 * n + c, x, y);
        store_pair(d, i + 8, 8 * n + c, z, w);
        store_pair(tail, i, 8 * n + c, x * gate[0], y * gate[0]);
        store_pair(tail, i + 8, 8 * n + c, z * gate[1], w * gate[1]);
    }
}

/* O = c Q S + P D of the strip; o holds Q S.  Neighbouring lanes exchange halves, so that each
 * writes four columns of one row. */
static __device__ __forceinline__ void store_outputs(float (&o)[4][4], const uint4 (&part)[4], const float (&gate)[2], uint32_t d,
                                              const exf_delta_halves &p, int h, int chunk, bool quads)
{
    int lane = threadIdx.x % 32, strip = threadIdx.x / 32 % 4, odd = lane % 2;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= gate[e / 2];
    multiply<4, 4>(o, part, d, strip + 1);
    int t = chunk * C + strip * 16 + lane / 4 + odd * 8, c0 = blockIdx.x * COLUMNS + lane % 4 / 2 * 4;
    float *to = p.out + (size_t)t * p.s.ldo + (size_t)h * p.s.value_dim + c0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float x = __shfl_xor_sync(0xffffffffu, odd ? o[n][0] : o[n][2], 1),
              y = __shfl_xor_sync(0xffffffffu, odd ? o[n][1] : o[n][3], 1);
        float4 four = odd ? make_float4(x, y, o[n][2], o[n][3]) : make_float4(o[n][0], o[n][1], x, y);
        int c = c0 + 8 * n;
        if (t >= p.s.n_tokens) continue;
        if (quads && c + 4 <= p.s.value_dim) {
            *reinterpret_cast<float4 *>(to + 8 * n) = four;
        } else {
            if (c < p.s.value_dim) to[8 * n] = four.x;
            if (c + 1 < p.s.value_dim) to[8 * n + 1] = four.y;
            if (c + 2 < p.s.value_dim) to[8 * n + 2] = four.z;
            if (c + 3 < p.s.value_dim) to[8 * n + 3] = four.w;
        }
    }
}

/* state <- c_e state + K^T D: rows and columns of this warp. */
template <int DK>
static __device__ __forceinline__ void update_state(float (&state)[DK / 32][4], char *s, const chunk_part<DK> &a, uint32_t tail)
{
    enum { NB = DK / 32 };
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * NB / 4 * 16, column = warp * NB % 4 * 8;
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) state[n][e] *= a.whole;
    multiply<NB, 4>(state, a.k, tail + column * 2);
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            store_pair(s, row + lane / 4 + 8 * r, column + 8 * n + lane % 4 * 2, state[n][2 * r], state[n][2 * r + 1]);
}

/* One chunk; the operands of the chunk after the next are loaded as soon as this one's have been used. */
template <int DK>
static __device__ __forceinline__ void step(float (&state)[DK / 32][4], chunk_part<DK> &a, const places<DK> &from, char *s, char *d,
                                            char *tail, const exf_delta_halves &p, int h, int chunk, bool quads)
{
    bool more = chunk + 2 < p.n_chunks;
    float product[4][4] = {};
    __syncthreads(); /* the state is there, D has been read */
    multiply<4, DK / 16>(product, a.first, exf_shared(s));
    if (more) from.take_first(a, chunk + 2);
    if (threadIdx.x < 128) store_updates(d, tail, product, a.side, a.gate);
    __syncthreads(); /* D is there, the state has been read */
    update_state<DK>(state, s, a, exf_shared(tail));
    if (more) from.take_k(a, chunk + 2);
    if (threadIdx.x >= 128) store_outputs(product, a.side, a.gate, exf_shared(d), p, h, chunk, quads);
    if (more) from.take_side(a, chunk + 2);
}
#endif

/* Grid: blocks of columns, value heads. */
template <int DK> static __global__ void __launch_bounds__(THREADS, 1) walk(exf_delta_halves p, bool quads)
{
#ifdef EXF_MMA
    __shared__ __align__(16) char s[DK * LDS * 2], d[C * LDS * 2], tail[C * LDS * 2];
    int h = blockIdx.y;
    float state[DK / 32][4] = {};
    places<DK> from(p, h);
    chunk_part<DK> a, b;
    for (int i = threadIdx.x; i < DK * LDS / 2; i += THREADS) reinterpret_cast<uint32_t *>(s)[i] = 0;
    from.take_first(a, 0), from.take_side(a, 0), from.take_k(a, 0);
    if (p.n_chunks > 1) from.take_first(b, 1), from.take_side(b, 1), from.take_k(b, 1);
    for (int chunk = 0; chunk < p.n_chunks; chunk += 2) {
        step<DK>(state, a, from, s, d, tail, p, h, chunk, quads);
        if (chunk + 1 < p.n_chunks) step<DK>(state, b, from, s, d, tail, p, h, chunk + 1, quads);
    }
#endif
}

void exf_delta_walk(exf_queue *q, const exf_delta_halves &p)
{
    dim3 grid((unsigned)(p.width / COLUMNS), (unsigned)p.s.n_value_heads);
    bool quads = exf_aligned16(p.out, p.s.ldo) && p.s.value_dim % 4 == 0;
    if (p.dk == 64)
        EXF_LAUNCH(q, "delta_rule", walk<64>, grid, THREADS, 0, p, quads);
    else
        EXF_LAUNCH(q, "delta_rule", walk<128>, grid, THREADS, 0, p, quads);
}

/* delta_halves.cu - the walk over the chunks with float16 operands; see delta_chunks.cu for
 * the formulas.  A block has 32 columns of one head's state, in registers as float32 and
 * for the next products in shared memory as float16.  Warps 0-3 have 16 tokens each of
 * W S and so of D, warps 4-7 of Q S and so of the output; all eight have a part of the
 * state.  The next chunk is fetched while this one is worked on. */
#include "kernels/delta_parts.cuh"
#include "kernels/halves.cuh"

enum { C = EXF_DELTA_CHUNK, COLUMNS = EXF_DELTA_COLUMNS, THREADS = EXF_DELTA_THREADS };

/* Shared memory: two stages of W, Q, K and P, then state, D, D for the end of the chunk;
 * lengths of rows in float16, places in bytes. */
template <int DK> struct room {
    enum { LD = DK + 8, LDP = C + 8, LDS = COLUMNS + 8 };
    enum { W = 0, Q = W + C * LD * 2, K = Q + C * LD * 2, P = K + C * LD * 2, STAGE = P + C * LDP * 2 };
    enum { S = 2 * STAGE, D = S + DK * LDS * 2, TAIL = D + C * LDS * 2, BYTES = TAIL + C * LDS * 2 };
};

#ifdef EXF_HOPPER
/* C rows of N float16 to rows of LD. */
template <int N, int LD> static __device__ __forceinline__ void load(uint32_t to, const char *from)
{
#pragma unroll
    for (int i = threadIdx.x; i < C * N / 8; i += THREADS)
        exf_load16(to + i / (N / 8) * LD * 2 + i % (N / 8) * 16, from + i * 16, true);
}

template <int DK> static __device__ void fetch(uint32_t m, const exf_delta_problem &p, int h, int chunk)
{
    typedef room<DK> R;
    size_t at = (size_t)h * p.n_chunks + chunk, of_keys = (size_t)(h / p.group()) * p.n_chunks + chunk;
    load<DK, R::LD>(m + R::W, reinterpret_cast<const char *>(p.w) + at * C * DK * 2);
    load<DK, R::LD>(m + R::Q, p.half_q + of_keys * C * DK * 2);
    load<DK, R::LD>(m + R::K, p.half_k + of_keys * C * DK * 2);
    load<C, R::LDP>(m + R::P, reinterpret_cast<const char *>(p.p) + at * C * C * 2);
}

/* What a thread needs of a chunk from global memory, read ahead: for its two tokens U
 * and c_end / c_i (warps 0-3) or c_i (warps 4-7), and c_end. */
struct ahead {
    float u[4][4], gate[2], whole;
};

static __device__ __forceinline__ void read_ahead(ahead &a, const exf_delta_problem &p, int h, int chunk)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = warp % 4 * 16 + lane / 4;
    size_t at = (size_t)h * p.n_chunks + chunk;
    const float *gates = p.gates + at * 2 * C, *u = p.u + (at * C + i) * p.width + blockIdx.x * COLUMNS + lane % 4 * 2;
    a.whole = gates[C - 1];
    for (int r = 0; r < 2; r++) a.gate[r] = gates[(warp < 4 ? C : 0) + i + 8 * r];
    if (warp >= 4) return;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 x = *reinterpret_cast<const float2 *>(u + (size_t)8 * r * p.width + 8 * n);
            a.u[n][2 * r] = x.x;
            a.u[n][2 * r + 1] = x.y;
        }
}

/* A pair of neighbouring columns of row i. */
template <int LD> static __device__ __forceinline__ void put(char *to, int i, int c, float x, float y)
{
    *reinterpret_cast<uint32_t *>(to + (i * LD + c) * 2) = exf_half2(x, y);
}

template <int DK> static __device__ __forceinline__ void learn(char *m, const float (&ws)[4][4], const ahead &a)
{
    typedef room<DK> R;
    int lane = threadIdx.x % 32, i = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = a.u[n][2 * r] - ws[n][2 * r], y = a.u[n][2 * r + 1] - ws[n][2 * r + 1];
            put<R::LDS>(m + R::D, i + 8 * r, 8 * n + lane % 4 * 2, x, y);
            put<R::LDS>(m + R::TAIL, i + 8 * r, 8 * n + lane % 4 * 2, x * a.gate[r], y * a.gate[r]);
        }
}

template <int DK>
static __device__ __forceinline__ void answer(float (&o)[4][4], uint32_t m, uint32_t stage, const ahead &a,
                                              const exf_delta_problem &p, int h, int chunk)
{
    typedef room<DK> R;
    int lane = threadIdx.x % 32, strip = threadIdx.x / 32 % 4 * 16;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= a.gate[e / 2];
    exf_half_strip<4, C / 16, false, R::LDP, R::LDS>(o, stage + R::P + strip * R::LDP * 2, m + R::D, strip / 16 + 1);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int t = chunk * C + strip + lane / 4 + e / 2 * 8, c = blockIdx.x * COLUMNS + 8 * n + lane % 4 * 2 + e % 2;
            if (t < p.s.n_tokens && c < p.s.value_dim) p.out[(size_t)t * p.s.ldo + (size_t)h * p.s.value_dim + c] = o[n][e];
        }
}

template <int DK>
static __device__ __forceinline__ void remember(float (&state)[DK / 32][4], char *base, uint32_t m, uint32_t stage, float whole)
{
    typedef room<DK> R;
    enum { NB = DK / 32 };
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp * NB / 4 * 16, column = warp * NB % 4 * 8;
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) state[n][e] *= whole;
    exf_half_strip<NB, C / 16, true, R::LD, R::LDS>(state, stage + R::K + row * 2, m + R::TAIL + column * 2);
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            put<R::LDS>(base + R::S, row + lane / 4 + 8 * r, column + 8 * n + lane % 4 * 2, state[n][2 * r], state[n][2 * r + 1]);
}
#endif

/* Grid: blocks of columns, value heads. */
template <int DK> static __global__ void __launch_bounds__(THREADS, 1) carry(exf_delta_problem p)
{
#ifdef EXF_HOPPER
    typedef room<DK> R;
    extern __shared__ float4 raw[];
    char *base = reinterpret_cast<char *>(raw);
    uint32_t m = exf_shared(base);
    int h = blockIdx.y, warp = threadIdx.x / 32;
    float state[DK / 32][4] = {};
    ahead a;
    for (int i = threadIdx.x; i < DK * R::LDS / 2; i += THREADS) reinterpret_cast<uint32_t *>(base + R::S)[i] = 0;
    fetch<DK>(m, p, h, 0);
    exf_loads_commit();
    read_ahead(a, p, h, 0);
    for (int chunk = 0; chunk < p.n_chunks; chunk++) {
        uint32_t stage = m + chunk % 2 * R::STAGE;
        float product[4][4] = {};
        ahead now;
        exf_loads_wait<0>();
        __syncthreads(); /* this chunk and the state are there, the chunk before has been read */
        if (chunk + 1 < p.n_chunks) fetch<DK>(m + (chunk + 1) % 2 * R::STAGE, p, h, chunk + 1);
        exf_loads_commit();
        exf_half_strip<4, DK / 16, false, R::LD, R::LDS>(product, stage + (warp < 4 ? R::W : R::Q) + warp % 4 * 16 * R::LD * 2,
                                                         m + R::S);
        if (warp < 4) learn<DK>(base, product, a);
        now = a;
        if (chunk + 1 < p.n_chunks) read_ahead(a, p, h, chunk + 1);
        __syncthreads(); /* D is there, the state has been read */
        remember<DK>(state, base, m, stage, now.whole);
        if (warp >= 4) answer<DK>(product, m, stage, now, p, h, chunk);
    }
#endif
}

template <int DK> static void run(exf_queue *q, const exf_delta_problem &p)
{
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaFuncSetAttribute(carry<DK>, cudaFuncAttributeMaxDynamicSharedMemorySize, room<DK>::BYTES), "delta_rule");
    EXF_LAUNCH(q, "delta_rule", carry<DK>, dim3((unsigned)(p.width / COLUMNS), (unsigned)p.s.n_value_heads), THREADS,
               room<DK>::BYTES, p);
}

void exf_delta_carry_halves(exf_queue *q, const exf_delta_problem &p, int dk)
{
    dk == 64 ? run<64>(q, p) : run<128>(q, p);
}

/* delta_chunks.cu - the gated delta rule, 64 tokens at a time; see delta_rule.h.
 *
 * With S the state before a chunk, c_i the product of the chunk's decays up to token i
 * and d_i what the state has to learn there,
 *   d_i = beta_i (v_i - c_i S^T k_i - sum over j < i of c_i / c_j (k_i . k_j) d_j)
 * so D = U - W S where [W | U] solves (1 + A) [W | U] = [beta c K | beta V],
 * A_ij = beta_i c_i / c_j (k_i . k_j) below the diagonal.  Then, e the chunk's end,
 *   O = c Q S + P D,   P_ij = c_i / c_j (q_i . k_j) up to the diagonal
 *   S <- c_e S + sum over j of c_e / c_j k_j d_j^T
 * W, U and P of all chunks are made at once (prepare); then a block per head and 32
 * columns of its state walks the chunks (carry).  This is float32 mode: products on tensor
 * cores, EXACT (tensor_cores.cuh); with float16 operands it is delta_rule_internal.cuh.  The system is
 * solved in float32 by substitution; quotients of decays come from sums of double
 * logarithms, a decay below 1e-38 counting as that.
 *
 * Cost, of 32 value heads of 128 by 128 on 16 key heads, T 4096: bytes: q, k, v and the output 201 MB, W and U 67 MB each
 * and P 34, written once and read once (W, P, q and k by the four blocks of a head): 537 MB, 0.13 ms at 4.2 TB/s.  Measured
 * 0.883 ms in float32, before a spill of registers was mended; with float16 operands 0.271. */
#include "kernels/device/tensor_cores.cuh"
#include "kernels/recurrent/delta_rule_internal.cuh"

enum { C = 64, COLUMNS = 32, THREADS = 256 };

/* Of every value head and chunk: W [64, DK], U [64, width], P [64, 64], gates [2, 64] =
 * c_i and c_end / c_i. */
struct problem {
    float *out;
    const float *query, *k, *v, *decay, *beta;
    exf_delta_shape s;
    int n_chunks, width; /* value_dim as a multiple of COLUMNS */
    bool wide;           /* rows of q and k can be read 16 bytes at a time */
    float *w, *u, *p, *gates;
    __device__ int group() const
    {
        return s.n_value_heads / s.n_key_heads;
    }
};

#ifdef EXF_MMA
/* C rows of n floats from token `first`, 0 after the sequence and from n on, to rows of LD. */
template <int DK, int LD>
static __device__ void load_rows(float *to, const float *x, int ld, int first, int n_tokens, int n, bool wide)
{
    uint32_t at = exf_shared(to);
    for (int i = threadIdx.x; i < C * DK / 4; i += THREADS) {
        int r = i / (DK / 4), c = i % (DK / 4) * 4;
        const float *row = x + (size_t)(first + r) * ld + c;
        bool valid = first + r < n_tokens && c < n;
        if (wide)
            exf_load16(at + (r * LD + c) * 4, valid ? row : x, valid);
        else
            for (int e = 0; e < 4; e++) to[r * LD + c + e] = valid && c + e < n ? row[e] : 0;
    }
}

/* logs[i]: the logarithm of c_i. */
static __device__ void sum_logs(double *logs, float *beta, const problem &p, int first, int h)
{
    if (threadIdx.x < C) {
        int t = first + threadIdx.x;
        size_t at = (size_t)t * p.s.n_value_heads + h;
        bool valid = t < p.s.n_tokens;
        logs[threadIdx.x] = valid ? exf_delta_log(p.decay[at]) : 0;
        beta[threadIdx.x] = valid ? p.beta[at] : 0;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < C; i++) logs[i] += logs[i - 1];
    __syncthreads();
}

/* Warps 0-3: columns of A below the diagonal, transposed; warps 4-7: rows of P. */
template <int DK>
static __device__ void correlate(float *turned, float *p, const float *keys, const float *queries, const double *logs,
                                 const float *beta)
{
    int warp = threadIdx.x / 32, strip = warp % 4 * 16, lane = threadIdx.x % 32;
    bool of_queries = warp >= 4;
    float d[8][4] = {};
    exf_strip<true, 8, DK + 4, 1, 1, DK + 4>(d, (of_queries ? queries : keys) + strip * (DK + 4), keys, DK / 8);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = strip + lane / 4 + e / 2 * 8, j = 8 * n + lane % 4 * 2 + e % 2;
            float x = j <= i ? d[n][e] * expf((float)(logs[i] - logs[j])) : 0;
            if (of_queries)
                p[i * C + j] = x;
            else
                turned[j * (C + 4) + i] = j < i ? beta[i] * x : 0;
        }
}

#endif

template <int DK> struct prepare_layout {
    enum { LD = DK + 4, FLOATS = 2 * C * LD + C * (C + 4) };
};

#ifdef EXF_MMA
/* x <- (1 + A)^-1 x, one column.  A is read anew for every column: kept from one to the
 * next it would not fit in registers. */
static __device__ __forceinline__ void substitute(float (&x)[C], const float *turned)
{
    asm volatile("" ::: "memory");
#pragma unroll
    for (int j = 0; j < C - 1; j++)
#pragma unroll
        for (int i = (j + 1) / 4 * 4; i < C; i += 4) {
            float4 a = *reinterpret_cast<const float4 *>(turned + j * (C + 4) + i);
            if (i > j) x[i] = fmaf(-a.x, x[j], x[i]);
            if (i + 1 > j) x[i + 1] = fmaf(-a.y, x[j], x[i + 1]);
            if (i + 2 > j) x[i + 2] = fmaf(-a.z, x[j], x[i + 2]);
            x[i + 3] = fmaf(-a.w, x[j], x[i + 3]);
        }
}

/* Column c of W. */
template <int DK>
static __device__ __forceinline__ void solve_w(float *w, int c, const float *factor, const float *keys, const float *turned)
{
    float x[C];
#pragma unroll
    for (int i = 0; i < C; i++) x[i] = factor[i] * keys[i * prepare_layout<DK>::LD];
    substitute(x, turned);
#pragma unroll
    for (int i = 0; i < C; i++) w[i * DK + c] = x[i];
}

/* Column c of U, at u. */
static __device__ __forceinline__ void solve_u(float *u, const problem &p, int h, int first, int c, const float *beta,
                                               const float *turned)
{
    bool valid = c < p.s.value_dim;
    const float *v = p.v + (size_t)first * p.s.ldv + (size_t)h * p.s.value_dim + (valid ? c : 0);
    int last = p.s.n_tokens - 1 - first;
    float x[C];
    asm volatile("" : "+r"(last)); /* else the rows' addresses would be kept for the next column, and do not fit in registers */
#pragma unroll
    for (int i = 0; i < C; i++) x[i] = v[(size_t)min(i, last) * p.s.ldv]; /* all loads start before one is used */
#pragma unroll
    for (int i = 0; i < C; i++) x[i] = valid && i <= last ? beta[i] * x[i] : 0;
    substitute(x, turned);
#pragma unroll
    for (int i = 0; i < C; i++) u[(size_t)i * p.width] = x[i];
}
#endif

/* Grid: chunks, value heads. */
template <int DK> static __global__ void __launch_bounds__(THREADS, 2) prepare(problem p)
{
#ifdef EXF_MMA
    enum { LD = prepare_layout<DK>::LD };
    extern __shared__ float4 raw[];
    __shared__ double logs[C];
    __shared__ float beta[C];
    float *keys = reinterpret_cast<float *>(raw), *queries = keys + C * LD, *turned = queries + C * LD;
    int h = blockIdx.y, first = blockIdx.x * C, n = p.s.key_dim;
    size_t head = (size_t)(h / p.group()) * n, at = (size_t)h * p.n_chunks + blockIdx.x;
    load_rows<DK, LD>(keys, p.k + head, p.s.ldk, first, p.s.n_tokens, n, p.wide);
    load_rows<DK, LD>(queries, p.query + head, p.s.ldq, first, p.s.n_tokens, n, p.wide);
    exf_loads_commit();
    sum_logs(logs, beta, p, first, h);
    exf_loads_wait<0>();
    __syncthreads();
    correlate<DK>(turned, p.p + at * C * C, keys, queries, logs, beta);
    if (threadIdx.x < C) {
        p.gates[(at * 2 + 0) * C + threadIdx.x] = expf((float)logs[threadIdx.x]);
        p.gates[(at * 2 + 1) * C + threadIdx.x] = expf((float)(logs[C - 1] - logs[threadIdx.x]));
    }
    __syncthreads();
    if (threadIdx.x < C) queries[threadIdx.x] = beta[threadIdx.x] * expf((float)logs[threadIdx.x]); /* their rows have been read */
    __syncthreads();
    if (threadIdx.x < DK)
        solve_w<DK>(p.w + at * C * DK, threadIdx.x, queries, keys + threadIdx.x, turned);
    for (int c = (int)threadIdx.x - DK; c < p.width; c += THREADS)
        if (c >= 0) solve_u(p.u + at * C * p.width + c, p, h, first, c, beta, turned);
#endif
}

/* Shared memory of carry, in floats: rows whose lengths keep a warp's reads off each
 * other's banks. */
template <int DK> struct carry_layout {
    enum { LDW = DK + 4, LDK = DK + 8, LDP = C + 4, LDS = COLUMNS + 8 };
    enum { W = 0, Q = W + C * LDW, K = Q + C * LDW, P = K + C * LDK, S = P + C * LDP, D = S + DK * LDS, TAIL = D + C * LDS };
    enum { FLOATS = TAIL + C * LDS };
};

#ifdef EXF_MMA
/* A warp's place in a chunk: its strip of 16 tokens, whether it has those of Q or W,
 * and its part of the state: 16 rows, NB times 8 columns. */
template <int DK> struct place {
    enum { NB = DK / 32 };
    int warp, lane, strip, row, column;
    __device__ place()
        : warp(threadIdx.x / 32), lane(threadIdx.x % 32), strip(warp % 4 * 16), row(warp * NB / 4 * 16), column(warp * NB % 4 * 8)
    {
    }
};

template <int DK> static __device__ void load_first_half(float *m, const problem &p, int h, int chunk)
{
    typedef carry_layout<DK> R;
    size_t at = (size_t)h * p.n_chunks + chunk;
    load_rows<DK, R::LDW>(m + R::W, p.w + at * C * DK, DK, 0, C, DK, true);
    load_rows<DK, R::LDW>(m + R::Q, p.query + (size_t)(h / p.group()) * p.s.key_dim, p.s.ldq, chunk * C, p.s.n_tokens, p.s.key_dim,
                          p.wide);
    exf_loads_commit();
}

template <int DK> static __device__ void load_second_half(float *m, const problem &p, int h, int chunk)
{
    typedef carry_layout<DK> R;
    size_t at = (size_t)h * p.n_chunks + chunk;
    load_rows<C, R::LDP>(m + R::P, p.p + at * C * C, C, 0, C, C, true);
    load_rows<DK, R::LDK>(m + R::K, p.k + (size_t)(h / p.group()) * p.s.key_dim, p.s.ldk, chunk * C, p.s.n_tokens, p.s.key_dim,
                          p.wide);
    exf_loads_commit();
}

/* U of this thread's elements of the strip, and of its two rows c_end / c_i. */
template <int DK>
static __device__ __forceinline__ void read_u(float (&u)[4][4], float (&tail)[2], const float *from, const float *gates, int width,
                                              const place<DK> &w)
{
    int i = w.strip + w.lane / 4;
    for (int r = 0; r < 2; r++) tail[r] = gates[C + i + 8 * r];
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 x = *reinterpret_cast<const float2 *>(from + (size_t)(i + 8 * r) * width + 8 * n + w.lane % 4 * 2);
            u[n][2 * r] = x.x;
            u[n][2 * r + 1] = x.y;
        }
}

/* D = U - W S for the strips of W, beside it D weighed for the end of the chunk. */
template <int DK>
static __device__ __forceinline__ void store_updates(float *m, const float (&ws)[4][4], const float (&u)[4][4],
                                                     const float (&tail)[2], const place<DK> &w)
{
    typedef carry_layout<DK> R;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = w.strip + w.lane / 4 + e / 2 * 8, c = 8 * n + w.lane % 4 * 2 + e % 2;
            float d = u[n][e] - ws[n][e];
            m[R::D + i * R::LDS + c] = d;
            m[R::TAIL + i * R::LDS + c] = d * tail[e / 2];
        }
}

/* O = c Q S + P D for the strips of Q; o holds Q S. */
template <int DK>
static __device__ void store_outputs(float (&o)[4][4], const float *m, const float *gates, const problem &p, int h, int chunk,
                              const place<DK> &w)
{
    typedef carry_layout<DK> R;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= gates[w.strip + w.lane / 4 + e / 2 * 8];
    exf_strip<true, 4, R::LDP, 1, R::LDS, 1>(o, m + R::P + w.strip * R::LDP, m + R::D, w.strip / 8 + 2);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int t = chunk * C + w.strip + w.lane / 4 + e / 2 * 8, c = blockIdx.x * COLUMNS + 8 * n + w.lane % 4 * 2 + e % 2;
            if (t < p.s.n_tokens && c < p.s.value_dim) p.out[(size_t)t * p.s.ldo + (size_t)h * p.s.value_dim + c] = o[n][e];
        }
}

/* state <- c_e state + K^T D, in registers and in shared memory. */
template <int DK> static __device__ void update_state(float (&state)[DK / 32][4], float *m, float whole, const place<DK> &w)
{
    typedef carry_layout<DK> R;
    enum { NB = DK / 32 };
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) state[n][e] *= whole;
    exf_strip<true, NB, 1, R::LDK, R::LDS, 1>(state, m + R::K + w.row, m + R::TAIL + w.column, C / 8);
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            m[R::S + (w.row + w.lane / 4 + e / 2 * 8) * R::LDS + w.column + 8 * n + w.lane % 4 * 2 + e % 2] = state[n][e];
}
#endif

/* Grid: blocks of columns, value heads. */
template <int DK> static __global__ void __launch_bounds__(THREADS, 1) carry(problem p)
{
#ifdef EXF_MMA
    typedef carry_layout<DK> R;
    extern __shared__ float4 raw[];
    float *m = reinterpret_cast<float *>(raw), state[DK / 32][4] = {};
    int h = blockIdx.y;
    place<DK> w;
    for (int i = threadIdx.x; i < DK * R::LDS; i += THREADS) m[R::S + i] = 0;
    load_first_half<DK>(m, p, h, 0);
    load_second_half<DK>(m, p, h, 0);
    for (int chunk = 0; chunk < p.n_chunks; chunk++) {
        size_t at = (size_t)h * p.n_chunks + chunk;
        const float *gates = p.gates + at * 2 * C;
        float product[4][4] = {}, u[4][4], tail[2], whole = gates[C - 1];
        if (w.warp < 4) read_u(u, tail, p.u + at * C * p.width + blockIdx.x * COLUMNS, gates, p.width, w);
        exf_loads_wait<1>();
        __syncthreads(); /* W, Q and the state are there */
        exf_strip<true, 4, R::LDW, 1, R::LDS, 1>(product, m + (w.warp < 4 ? R::W : R::Q) + w.strip * R::LDW, m + R::S, DK / 8);
        if (w.warp < 4) store_updates<DK>(m, product, u, tail, w);
        exf_loads_wait<0>();
        __syncthreads(); /* K, P and D are there; W, Q and the state have been read */
        if (chunk + 1 < p.n_chunks) load_first_half<DK>(m, p, h, chunk + 1);
        update_state<DK>(state, m, whole, w);
        if (w.warp >= 4) store_outputs<DK>(product, m, gates, p, h, chunk, w);
        __syncthreads(); /* K, P and D have been read */
        if (chunk + 1 < p.n_chunks) load_second_half<DK>(m, p, h, chunk + 1);
    }
#endif
}

template <int DK> static void launch(exf_queue *q, const problem &p)
{
    int bytes[2] = {prepare_layout<DK>::FLOATS * 4, carry_layout<DK>::FLOATS * 4};
    unsigned heads = (unsigned)p.s.n_value_heads;
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaFuncSetAttribute(prepare<DK>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes[0]), "delta_rule");
    exf_cuda_note(q, cudaFuncSetAttribute(carry<DK>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes[1]), "delta_rule");
    EXF_LAUNCH(q, "delta_rule chunks", (prepare<DK>), dim3((unsigned)p.n_chunks, heads), THREADS, bytes[0], p);
    EXF_LAUNCH(q, "delta_rule", (carry<DK>), dim3((unsigned)(p.width / COLUMNS), heads), THREADS, bytes[1], p);
}

static int chunks_of(const exf_delta_shape *s)
{
    return (s->n_tokens + C - 1) / C;
}

static int padded(int n, int to)
{
    return (n + to - 1) / to * to;
}

int exf_delta_chunks_fit(const exf_delta_shape *s)
{
    size_t floats = s->key_dim <= 64 ? (size_t)carry_layout<64>::FLOATS : (size_t)carry_layout<128>::FLOATS;
    return exf_uses_tensor_cores(floats * sizeof(float));
}

size_t exf_delta_chunks_workspace(const exf_delta_shape *s)
{
    size_t dk = s->key_dim <= 64 ? 64 : EXF_DELTA_MOST_KEY;
    return (size_t)s->n_value_heads * chunks_of(s) * C * (dk + padded(s->value_dim, COLUMNS) + C + 2);
}

void exf_delta_chunks(exf_queue *q, float *out, const float *query, const float *k, const float *v, const float *decay,
                      const float *beta, const exf_delta_shape *s, float *workspace)
{
    size_t dk = s->key_dim <= 64 ? 64 : EXF_DELTA_MOST_KEY;
    problem p = {out, query, k, v, decay, beta, *s, chunks_of(s), padded(s->value_dim, COLUMNS)};
    size_t rows = (size_t)s->n_value_heads * p.n_chunks * C;
    p.w = workspace;
    p.u = p.w + rows * dk;
    p.p = p.u + rows * p.width;
    p.gates = p.p + rows * C;
    p.wide = exf_aligned16(query, s->ldq) && exf_aligned16(k, s->ldk) && s->key_dim % 4 == 0;
    dk == 64 ? launch<64>(q, p) : launch<128>(q, p);
}

/* delta_prepare.cu - W, U and P of all chunks; see delta_rule_internal.cuh, formulas in delta_chunks.cu.
 *
 * A block has a chunk of a value head.  1 + A is inverted in float32: its two halves on the
 * diagonal by substitution, a lane a column, the block below them as -T22 (A21 T11).  The
 * inverse, rounded, times K and V on tensor cores gives W and U.
 *
 * Cost, of 32 value heads of 128 by 128 on 16 key heads, T 4096: 2048 blocks of 256 threads, three a multiprocessor; float16
 * rows read, 67 MB, W, P, Q, K and U written, 34 + 17 + 17 + 17 + 67 MB: 0.05 ms at 4.2 TB/s.  Measured 0.107. */
#include "kernels/device/tensor_cores.cuh"
#include "kernels/recurrent/delta_rule_internal.cuh"

enum { C = EXF_DELTA_CHUNK, THREADS = EXF_DELTA_THREADS, HALF = C / 2, PIECE = 128 /* columns of V at a time */ };

/* Shared memory in bytes; lengths of rows in float16, LDA in floats. */
template <int DK> struct shared_layout {
    enum { LD = DK + 8, LDV = PIECE + 8, LDT = C + 8, LDA = C + 4 };
    enum { K = 0, Q = K + C * LD * 2, V = Q, A = V + C * LDV * 2, TW = A + C * LDA * 4, TU = TW + C * LDT * 2,
          BYTES = TU + C * LDT * 2 };
};

#ifdef EXF_MMA
/* The chunk's rows of one head, columns of n from `first`, to rows of LD; 0 after the sequence. */
template <int LD>
static __device__ __forceinline__ void load(uint32_t to, const char *rows, int chunk, int n_tokens, int first, int n, int width)
{
    for (int i = threadIdx.x; i < C * n / 8; i += THREADS) {
        int r = i / (n / 8), c = i % (n / 8), t = chunk * C + r;
        bool valid = t < n_tokens;
        exf_load16(to + r * LD * 2 + c * 16, rows + ((size_t)(valid ? t : 0) * width + first) * 2 + c * 16, valid);
    }
}

/* logs[i]: the logarithm of c_i, by the first two warps. */
static __device__ void sum_logs(double *logs, float *beta, double *end, const exf_delta_halves &p, int first, int h)
{
    int i = threadIdx.x, t = first + i;
    double sum = 0;
    if (i < C) {
        size_t at = (size_t)t * p.s.n_value_heads + h;
        bool valid = t < p.s.n_tokens;
        sum = valid ? exf_delta_log(p.decay[at]) : 0;
        beta[i] = valid ? p.beta[at] : 0;
        for (int step = 1; step < 32; step <<= 1) {
            double before = __shfl_up_sync(0xffffffffu, sum, step);
            if (i % 32 >= step) sum += before;
        }
        if (i == 31) *end = sum;
    }
    __syncthreads();
    if (i < C) logs[i] = sum + (i >= 32 ? *end : 0);
    __syncthreads();
}

/* d += A B^T: A rows from `a`, B rows from `b`, both of K = 16 STEPS float16. */
template <int STEPS, int LD> static __device__ __forceinline__ void correlate(float (&d)[8][4], uint32_t a, uint32_t b, int tiles)
{
    int lane = threadIdx.x % 32, low = lane % 8, mid = lane / 8 % 2, high = lane / 16;
    a += ((low + mid * 8) * LD + high * 8) * 2;
    b += ((low + high * 8) * LD + mid * 8) * 2;
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        uint32_t x[4], y[4];
        exf_ldmatrix(x, a + k * 32);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (n >= tiles) break;
            exf_ldmatrix(y, b + (n * 8 * LD + k * 16) * 2);
            exf_mma_half(d[n], x, y[0], y[1]);
            exf_mma_half(d[n + 1], x, y[2], y[3]);
        }
    }
}

/* Warps 0-3: A below the diagonal, transposed, to `turned`; warps 4-7: P as fragments. */
template <int DK>
static __device__ __forceinline__ void products(float *turned, uint4 *out, uint32_t m, const double *logs, const float *beta)
{
    typedef shared_layout<DK> R;
    int warp = threadIdx.x / 32, strip = warp % 4, lane = threadIdx.x % 32;
    bool of_queries = warp >= 4;
    float d[8][4] = {};
    correlate<DK / 16, R::LD>(d, m + (of_queries ? R::Q : R::K) + strip * 16 * R::LD * 2, m + R::K, 2 * strip + 2);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = strip * 16 + lane / 4 + e / 2 * 8, j = 8 * n + lane % 4 * 2 + e % 2;
            if (n < 2 * strip + 2) d[n][e] = j <= i ? d[n][e] * expf((float)(logs[i] - logs[j])) : 0;
            if (!of_queries) turned[j * R::LDA + i] = j < i ? beta[i] * d[n][e] : 0;
        }
    if (of_queries)
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k <= strip)
                out[(strip * 4 + k) * 32 + lane] =
                    make_uint4(exf_half2(d[2 * k][0], d[2 * k][1]), exf_half2(d[2 * k][2], d[2 * k][3]),
                               exf_half2(d[2 * k + 1][0], d[2 * k + 1][1]), exf_half2(d[2 * k + 1][2], d[2 * k + 1][3]));
}

/* Stores Q, and K transposed, of a key head as fragments. */
template <int DK> static __device__ __forceinline__ void store_fragments(uint4 *q, uint4 *k, uint32_t m)
{
    typedef shared_layout<DK> R;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, low = lane % 8, mid = lane / 8 % 2, high = lane / 16;
    for (int i = warp; i < DK / 4; i += THREADS / 32) {
        uint32_t x[4];
        int strip = i / (DK / 16), step = i % (DK / 16);
        exf_ldmatrix(x, m + R::Q + ((strip * 16 + low + mid * 8) * R::LD + high * 8 + step * 16) * 2);
        q[i * 32 + lane] = make_uint4(x[0], x[1], x[2], x[3]);
        exf_ldmatrix_transposed(x, m + R::K + ((i % 4 * 16 + low + high * 8) * R::LD + i / 4 * 16 + mid * 8) * 2);
        k[i * 32 + lane] = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* Column `lane` of the inverse of the 32 rows and columns whose transposed elements start at a. */
template <int LDA> static __device__ __forceinline__ void substitute(float (&x)[HALF], const float *a)
{
#pragma unroll
    for (int i = 0; i < HALF; i++) x[i] = (int)(threadIdx.x % 32) == i;
#pragma unroll
    for (int j = 0; j < HALF - 1; j++)
#pragma unroll
        for (int i = (j + 1) / 4 * 4; i < HALF; i += 4) {
            float4 f = *reinterpret_cast<const float4 *>(a + j * LDA + i);
            if (i > j) x[i] = fmaf(-f.x, x[j], x[i]);
            if (i + 1 > j) x[i + 1] = fmaf(-f.y, x[j], x[i + 1]);
            if (i + 2 > j) x[i + 2] = fmaf(-f.z, x[j], x[i + 2]);
            x[i + 3] = fmaf(-f.w, x[j], x[i + 3]);
        }
}

/* y += A B over 32: element (i, j) of A at a[j * LDA + i], (j, c) of B at b[j * LDA + c]. */
template <int LDA> static __device__ __forceinline__ void multiply(float (&y)[4][2], const float *a, const float *b)
{
#pragma unroll 8
    for (int j = 0; j < HALF; j++) {
        float4 f = *reinterpret_cast<const float4 *>(a + j * LDA);
        float2 g = *reinterpret_cast<const float2 *>(b + j * LDA);
        y[0][0] = fmaf(f.x, g.x, y[0][0]), y[0][1] = fmaf(f.x, g.y, y[0][1]);
        y[1][0] = fmaf(f.y, g.x, y[1][0]), y[1][1] = fmaf(f.y, g.y, y[1][1]);
        y[2][0] = fmaf(f.z, g.x, y[2][0]), y[2][1] = fmaf(f.z, g.y, y[2][1]);
        y[3][0] = fmaf(f.w, g.x, y[3][0]), y[3][1] = fmaf(f.w, g.y, y[3][1]);
    }
}

static __device__ __forceinline__ void store_half(char *to, int at, float x)
{
    *reinterpret_cast<unsigned short *>(to + at * 2) = (unsigned short)exf_half2(x, 0);
}

/* T = (1 + A)^-1 times diag(beta c), and times diag(beta), rounded: W and U are products
 * with it.  Of `turned` [64, 64] the quarters become: T11 as it is, A21 (it stays), in the one
 * that A leaves free A21 T11, T22 transposed. */
template <int DK> static __device__ __forceinline__ void invert(char *base, const float *weight_w, const float *weight_u)
{
    typedef shared_layout<DK> R;
    enum { LDA = R::LDA };
    float *a = reinterpret_cast<float *>(base + R::A), *below = a + HALF * LDA;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i = threadIdx.x / 16 % 8 * 4, c = threadIdx.x % 16 * 2;
    char *tw = base + R::TW, *tu = base + R::TU;
    if (warp < 2) {
        float x[HALF];
        substitute<LDA>(x, warp ? below + HALF : a);
        __syncwarp(); /* the quarter has been read */
#pragma unroll
        for (int r = 0; r < HALF; r++)
            if (warp == 0) a[r * LDA + lane] = x[r];
        if (warp == 1)
#pragma unroll
            for (int r = 0; r < HALF; r += 4)
                *reinterpret_cast<float4 *>(below + lane * LDA + HALF + r) = make_float4(x[r], x[r + 1], x[r + 2], x[r + 3]);
        int column = warp * HALF + lane;
        float fw = weight_w[column], fu = weight_u[column];
#pragma unroll
        for (int r = 0; r < HALF; r++) {
            store_half(tw, (warp * HALF + r) * R::LDT + column, x[r] * fw);
            store_half(tu, (warp * HALF + r) * R::LDT + column, x[r] * fu);
        }
    }
    __syncthreads();
    if (warp < 4) {
        float y[4][2] = {};
        multiply<LDA>(y, a + HALF + i, a + c);
        for (int r = 0; r < 4; r++) *reinterpret_cast<float2 *>(below + (i + r) * LDA + c) = make_float2(y[r][0], y[r][1]);
    }
    __syncthreads();
    if (warp < 4) {
        float y[4][2] = {};
        multiply<LDA>(y, below + HALF + i, below + c);
        for (int r = 0; r < 4; r++)
            for (int e = 0; e < 2; e++) {
                store_half(tw, (HALF + i + r) * R::LDT + c + e, -y[r][e] * weight_w[c + e]);
                store_half(tu, (HALF + i + r) * R::LDT + c + e, -y[r][e] * weight_u[c + e]);
            }
    }
    __syncthreads();
}

/* Strip of W: T's strip times K, 64 columns at a time. */
template <int DK> static __device__ __forceinline__ void make_w(uint4 *w, uint32_t m, int strip)
{
    typedef shared_layout<DK> R;
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int half = 0; half < DK / 64; half++) {
        float d[8][4] = {};
        exf_half_strip<8, C / 16, false, R::LDT, R::LD>(d, m + R::TW + strip * 16 * R::LDT * 2, m + R::K + half * 128, strip + 1);
#pragma unroll
        for (int n = 0; n < 8; n += 2)
            w[(strip * (DK / 16) + half * 4 + n / 2) * 32 + lane] =
                make_uint4(exf_half2(d[n][0], d[n][1]), exf_half2(d[n][2], d[n][3]), exf_half2(d[n + 1][0], d[n + 1][1]),
                           exf_half2(d[n + 1][2], d[n + 1][3]));
    }
}

/* Strip of U, columns of a piece of V from `first` on, n of them. */
template <int DK> static __device__ __forceinline__ void make_u(float4 *u, uint32_t m, int strip, int tiles, int first, int n)
{
    typedef shared_layout<DK> R;
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int at = 0; at < n; at += 32) {
        float d[4][4] = {};
        exf_half_strip<4, C / 16, false, R::LDT, R::LDV>(d, m + R::TU + strip * 16 * R::LDT * 2, m + R::V + at * 2, strip + 1);
#pragma unroll
        for (int j = 0; j < 4; j++)
            u[(strip * tiles + (first + at) / 8 + j) * 32 + lane] = make_float4(d[j][0], d[j][1], d[j][2], d[j][3]);
    }
}
#endif

/* Grid: chunks, value heads. */
template <int DK> static __global__ void __launch_bounds__(THREADS, 3) prepare(exf_delta_halves p)
{
#ifdef EXF_MMA
    typedef shared_layout<DK> R;
    extern __shared__ float4 raw[];
    __shared__ double logs[C], end;
    __shared__ float beta[C], weight[C];
    char *base = reinterpret_cast<char *>(raw);
    uint32_t m = exf_shared(base);
    int chunk = blockIdx.x, h = blockIdx.y, key_head = h / p.group(), warp = threadIdx.x / 32;
    size_t at = (size_t)h * p.n_chunks + chunk, of_keys = (size_t)key_head * p.n_chunks + chunk, t = (size_t)p.s.n_tokens;
    const char *values = p.rows.v + h * t * p.width * 2;
    load<R::LD>(m + R::K, p.rows.k + key_head * t * DK * 2, chunk, p.s.n_tokens, 0, DK, DK);
    load<R::LD>(m + R::Q, p.rows.q + key_head * t * DK * 2, chunk, p.s.n_tokens, 0, DK, DK);
    exf_loads_commit();
    sum_logs(logs, beta, &end, p, chunk * C, h);
    if (threadIdx.x < C) {
        float c = expf((float)logs[threadIdx.x]);
        weight[threadIdx.x] = beta[threadIdx.x] * c;
        p.gates[(at * 2 + 0) * C + threadIdx.x] = c;
        p.gates[(at * 2 + 1) * C + threadIdx.x] = expf((float)(logs[C - 1] - logs[threadIdx.x]));
    }
    exf_loads_wait<0>();
    __syncthreads();
    products<DK>(reinterpret_cast<float *>(base + R::A), p.p + at * 16 * 32, m, logs, beta);
    if (h % p.group() == 0) store_fragments<DK>(p.q + of_keys * (DK / 4) * 32, p.k + of_keys * (DK / 4) * 32, m);
    __syncthreads(); /* A is there, Q has been read */
    load<R::LDV>(m + R::V, values, chunk, p.s.n_tokens, 0, min(p.width, (int)PIECE), p.width);
    exf_loads_commit();
    invert<DK>(base, weight, beta);
    if (warp < 4) make_w<DK>(p.w + at * (DK / 4) * 32, m, warp);
    for (int first = 0; first < p.width; first += PIECE) {
        int n = min(p.width - first, (int)PIECE);
        if (first) {
            __syncthreads(); /* the piece before has been read */
            load<R::LDV>(m + R::V, values, chunk, p.s.n_tokens, first, n, p.width);
            exf_loads_commit();
        }
        exf_loads_wait<0>();
        __syncthreads();
        if (warp >= 4) make_u<DK>(p.u + at * (p.width / 2) * 32, m, warp - 4, p.width / 8, first, n);
    }
#endif
}

template <int DK> static void launch(exf_queue *q, const exf_delta_halves &p)
{
    int bytes = shared_layout<DK>::BYTES;
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaFuncSetAttribute(prepare<DK>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "delta_rule");
    EXF_LAUNCH(q, "delta_rule chunks", prepare<DK>, dim3((unsigned)p.n_chunks, (unsigned)p.s.n_value_heads), THREADS, bytes, p);
    exf_delta_walk(q, p);
}

void exf_delta_halves_run(exf_queue *q, const exf_delta_halves &p)
{
    p.dk == 64 ? launch<64>(q, p) : launch<128>(q, p);
}

/* ---- the workspace --------------------------------------------------------------------- */

enum { LINE = 64 }; /* floats that parts start on multiples of */

static size_t take_part(float *&next, size_t floats, float **part)
{
    floats = (floats + LINE - 1) / LINE * LINE;
    *part = next;
    if (next) next += floats;
    return floats;
}

static size_t carve_workspace(float *workspace, exf_delta_halves *p)
{
    size_t t = (size_t)p->s.n_tokens, keys = (size_t)p->s.n_key_heads, values = (size_t)p->s.n_value_heads, dk = (size_t)p->dk,
           width = (size_t)p->width, chunks = (size_t)p->n_chunks, sum = 0;
    float *part[9], *next = workspace;
    sum += take_part(next, keys * t * dk / 2, &part[0]);
    sum += take_part(next, keys * t * dk / 2, &part[1]);
    sum += take_part(next, values * t * width / 2, &part[2]);
    sum += take_part(next, values * chunks * dk * 32, &part[3]); /* of a chunk 64 dk halves */
    sum += take_part(next, values * chunks * C * 32, &part[4]);
    sum += take_part(next, keys * chunks * dk * 32, &part[5]);
    sum += take_part(next, keys * chunks * dk * 32, &part[6]);
    sum += take_part(next, values * chunks * C * width, &part[7]);
    sum += take_part(next, values * chunks * 2 * C, &part[8]);
    p->rows = {reinterpret_cast<char *>(part[0]), reinterpret_cast<char *>(part[1]), reinterpret_cast<char *>(part[2])};
    p->w = reinterpret_cast<uint4 *>(part[3]);
    p->p = reinterpret_cast<uint4 *>(part[4]);
    p->q = reinterpret_cast<uint4 *>(part[5]);
    p->k = reinterpret_cast<uint4 *>(part[6]);
    p->u = reinterpret_cast<float4 *>(part[7]);
    p->gates = part[8];
    return sum;
}

exf_delta_halves exf_delta_halves_at(float *workspace, float *out, const float *decay, const float *beta, const exf_delta_shape *s)
{
    exf_delta_halves p = {};
    p.out = out;
    p.decay = decay;
    p.beta = beta;
    p.s = *s;
    p.n_chunks = (s->n_tokens + C - 1) / C;
    p.dk = s->key_dim <= 64 ? 64 : 128;
    p.width = (s->value_dim + EXF_DELTA_COLUMNS - 1) / EXF_DELTA_COLUMNS * EXF_DELTA_COLUMNS;
    carve_workspace(workspace, &p);
    return p;
}

size_t exf_delta_halves_workspace(const exf_delta_shape *s)
{
    exf_delta_halves p = exf_delta_halves_at(nullptr, nullptr, nullptr, nullptr, s);
    return carve_workspace(nullptr, &p);
}

/* attention_mma.cu - causal attention on the tensor cores of any GPU since compute capability 8.0 (mma.sync) for heads of at
 * most 256, operands rounded to float16; see attention.h.  Nothing of size T x T is written.
 *
 * A block has 64 M query rows of one head and four warps with 16 M rows each, and loops over tiles of 64 keys from the
 * diagonal to the first.  Keys and values are first rounded into tiles (exf_pack_tile), so that loading one is a copy byte
 * for byte.  Shared memory holds the queries, one tile's keys and one tile's values; each loads while the other is used:
 *
 *   wait, barrier   keys j have arrived, values j + 1 have been read
 *   fetch           values j
 *   multiply        scores = queries x keys j
 *   wait, barrier   values j have arrived, keys j have been read
 *   fetch           keys j - 1
 *   multiply        softmax, output += weights x values j
 *
 * A warp leaves out tiles that none of its rows sees.  The sequence of operations on a row is the same wherever its block
 * runs and whatever M is.
 *
 * Cost: 2 (d + dv) FLOP for each of T^2 / 2 scores of a head; 32 heads of 128 and T 4096 are 137 GFLOP, 0.44 ms at an A100's
 * 312 TFLOP/s.  A warp reads 16 KB of keys for 16 M x 64 x 128 products: 8 M a byte, so 128 bytes a clock allow 1024 M a clock;
 * M is 2 where a multiprocessor has shared memory for two such blocks, and there multiplies 1024 or more a clock (compute
 * capability 8.0, 9.0, 10.0), else 1.  Shared memory, heads of 128: 64 KB with M 2, 48 KB with 1.  Bytes as in
 * attention_tiles.cu. */
#include "kernels/attention/attention_internal.cuh"
#include "kernels/device/tensor_cores.cuh"

enum { BN = 64, PANEL = BN * 128, THREADS = 128 };
/* Shared memory that a block may have where a multiprocessor has room for two blocks of M = 2. */
enum { LARGE_SHARED = 160 << 10 };
typedef exf_tiled_attention problem;

/* Bytes in shared memory, and of a tile in the workspace. */
template <int D, int DV, int M> struct layout {
    enum { ROWS = 64 * M, QUERIES = ROWS * D * 2, KEYS = BN * D * 2, VALUES = BN * DV * 2, TILE = KEYS + VALUES };
    enum { K = QUERIES, V = K + KEYS, BYTES = V + VALUES + 1024 }; /* plus padding for alignment */
};

#ifdef EXF_MMA
/* Loads BYTES bytes by all threads, as one group. */
template <int BYTES> static __device__ __forceinline__ void fetch(uint32_t to, const char *from)
{
#pragma unroll
    for (int i = 0; i < BYTES / 16 / THREADS; i++) {
        int at = (i * THREADS + (int)threadIdx.x) * 16;
        exf_load16(to + at, from + at, true);
    }
    exf_loads_commit();
}

/* Loads the block's query rows from `first` on, rounded, into panels. */
template <int D, int M> static __device__ void load_queries(char *to, const problem &p, int head, int first)
{
    for (int i = threadIdx.x; i < 64 * M * D / 8; i += THREADS) {
        int row = i / (D / 8), chunk = i % (D / 8), t = first + row;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (t < p.s.n_tokens) x = exf_half8(p.query_row(t, head), chunk * 8, p.s.d, p.wide_q);
        *reinterpret_cast<uint4 *>(to + chunk / 8 * (64 * M * 128) + exf_panel_at(row, chunk % 8)) = x;
    }
}

/* Where this lane's rows of ldmatrix start.  The lane's row is its number's last three bits in any panel, so 16 rows further
 * are 2048 bytes, and 16 columns further change bits 5 and 6 alone, until the next panel.
 *   q  of a warp's 16 M query rows: rows 0 to 15 at column 0, then at column 8
 *   k  rows 0 to 7 at columns 0 and 8, then rows 8 to 15: the summed index lies along the row
 *   v  rows 0 to 15 at column 0, then at column 8, transposed: the summed index is the row */
typedef struct {
    uint32_t q, k, v;
} places;

template <int D, int DV, int M> static __device__ __forceinline__ places places_of(uint32_t base)
{
    typedef layout<D, DV, M> R;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return {base + exf_panel_at(warp * 16 * M + lane % 16, lane / 16),
            base + R::K + exf_panel_at(lane % 8 + lane / 16 * 8, lane / 8 % 2), base + R::V + exf_panel_at(lane % 16, lane / 16)};
}

/* Computes s = Q K^T of this warp's rows and a tile. */
template <int D, int M> static __device__ __forceinline__ void score(float (&s)[M][BN / 2], const places &at)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < BN / 2; i++) s[m][i] = 0;
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t x[M][4], y[4];
#pragma unroll
        for (int m = 0; m < M; m++) exf_ldmatrix(x[m], (at.q ^ c % 4 * 32) + c / 4 * (64 * M * 128) + m * 2048);
#pragma unroll
        for (int n = 0; n < BN / 16; n++) {
            exf_ldmatrix(y, (at.k ^ c % 4 * 32) + c / 4 * PANEL + n * 2048);
#pragma unroll
            for (int m = 0; m < M; m++) {
                exf_mma_half(&s[m][8 * n], x[m], y[0], y[1]);
                exf_mma_half(&s[m][8 * n + 4], x[m], y[2], y[3]);
            }
        }
    }
}

/* Computes o += P V; weights: the A operands of this warp's rows (exf_round_to). */
template <int DV, int M>
static __device__ __forceinline__ void weigh(float (&o)[M][DV / 2], const uint32_t (&weights)[M][BN / 4], const places &at)
{
#pragma unroll
    for (int c = 0; c < BN / 16; c++) {
        uint32_t x[M][4], y[4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[m][i] = weights[m][4 * c + i];
#pragma unroll
        for (int n = 0; n < DV / 16; n++) {
            exf_ldmatrix_transposed(y, (at.v ^ n % 4 * 32) + n / 4 * PANEL + c * 2048);
#pragma unroll
            for (int m = 0; m < M; m++) {
                exf_mma_half(&o[m][8 * n], x[m], y[0], y[1]);
                exf_mma_half(&o[m][8 * n + 4], x[m], y[2], y[3]);
            }
        }
    }
}

/* Replaces scores by weights, masked where the tile reaches past a row, and fades the output so far. */
template <int DV, int M>
static __device__ __forceinline__ void soften(uint32_t (&weights)[M][BN / 4], float (&o)[M][DV / 2], float (&s)[M][BN / 2],
                                              exf_softmax_state (&state)[M], int row, int first_key, float scale)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
        int mine = row + 16 * m, first = mine - (int)threadIdx.x % 32 / 4; /* of these 16 rows */
        if (first_key + BN - 1 > first) exf_mask<BN>(s[m], mine, first_key);
        exf_online_softmax<BN>(s[m], state[m], scale);
        exf_rescale_output(o[m], state[m]);
        exf_round_to(weights[m], s[m]);
    }
}
#endif

/* Grid: heads within query tiles, the longest tiles first. */
template <int D, int DV, int M> static __global__ void __launch_bounds__(THREADS, 2) attend_mma(problem p)
{
#ifdef EXF_MMA
    typedef layout<D, DV, M> R;
    extern __shared__ char raw[];
    char *base = raw + (1024 - exf_shared(raw) % 1024) % 1024;
    places at = places_of<D, DV, M>(exf_shared(base));
    int n_heads = p.s.n_heads, head = blockIdx.x % n_heads, tile = gridDim.x / n_heads - 1 - blockIdx.x / n_heads;
    int kv = head / (n_heads / p.s.n_kv), first = tile * R::ROWS, end = min(first + R::ROWS, p.s.n_tokens);
    /* The first row of the warp, of the thread. */
    int warp = first + (int)threadIdx.x / 32 * 16 * M, row = warp + (int)threadIdx.x % 32 / 4;
    const char *tiles = p.tiles + (size_t)kv * p.n_key_tiles * R::TILE;
    uint32_t k = exf_shared(base) + R::K, v = exf_shared(base) + R::V, weights[M][BN / 4];
    float o[M][DV / 2] = {}, s[M][BN / 2], scale = p.s.scale * EXF_LOG2_E;
    exf_softmax_state state[M];
#pragma unroll
    for (int m = 0; m < M; m++) state[m] = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    int j = (end + BN - 1) / BN - 1;
    fetch<R::KEYS>(k, tiles + (size_t)j * R::TILE);
    load_queries<D, M>(base, p, head, first);
    for (; j >= 0; j--) {
        bool seen = j * BN < warp + 16 * M;
        exf_loads_wait<0>();
        __syncthreads();
        fetch<R::VALUES>(v, tiles + (size_t)j * R::TILE + R::KEYS);
        if (seen) score<D, M>(s, at);
        exf_loads_wait<0>();
        __syncthreads();
        if (j > 0) fetch<R::KEYS>(k, tiles + (size_t)(j - 1) * R::TILE);
        if (seen) {
            soften<DV, M>(weights, o, s, state, row, j * BN, scale);
            weigh<DV, M>(o, weights, at);
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) exf_tiled_store<DV>(o[m], state[m].sum, p, head, row + 16 * m, p.s.rounded_out);
#endif
}

template <int D, int DV, int M> static void launch(exf_queue *q, const problem &p)
{
    typedef layout<D, DV, M> R;
    int n_tiles = (p.s.n_tokens + R::ROWS - 1) / R::ROWS;
    auto kernel = attend_mma<D, DV, M>;
    if (q->err.code != EXF_OK ||
        !exf_cuda_note(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, R::BYTES), "attention"))
        return;
    EXF_LAUNCH(q, "attention keys", (exf_pack_tile<D, DV, BN>), dim3((unsigned)p.n_key_tiles, (unsigned)p.s.n_kv), 256, 0, p);
    EXF_LAUNCH(q, "attention", kernel, n_tiles * p.s.n_heads, THREADS, R::BYTES, p);
}

/* Sizes of kernels; a head uses the smallest in which it fits: those of attention_tiles.cu, whose workspace this is. */
static const struct {
    int d, dv;
    void (*small)(exf_queue *q, const problem &p);
    void (*large)(exf_queue *q, const problem &p); /* where there is LARGE_SHARED, and rows for two blocks a multiprocessor */
} sizes[] = {{64, 64, launch<64, 64, 1>, launch<64, 64, 2>},
             {128, 128, launch<128, 128, 1>, launch<128, 128, 2>},
             {192, 128, launch<192, 128, 1>, launch<192, 128, 2>},
             {256, 256, launch<256, 256, 1>, launch<256, 256, 1>}};

void exf_attention_mma(exf_queue *q, void *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                       float *workspace)
{
    const auto &size = sizes[exf_tiled_size(sizes, s)];
    problem p = exf_tiled_call(out, query, k, v, s, BN, workspace);
    size_t blocks = ((size_t)s->n_tokens + 127) / 128 * (size_t)s->n_heads; /* with M = 2 */
    bool large = exf_most_shared_bytes() >= LARGE_SHARED && blocks >= 2 * (size_t)q->multiprocessors;
    large ? size.large(q, p) : size.small(q, p);
}

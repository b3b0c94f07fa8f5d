/* attention_split.cu - causal attention in float32 mode on Hopper's tensor cores for heads of at most 256: every operand is
 * the sum of two float16 (tensor_cores.cuh), every product three; see attention.h, and attention_internal.cuh for the shape of
 * a block.  Nothing of size T x T is written.
 *
 * Keys and values are first split into planes of BN keys, low and high parts; the planes of a tile are loaded one after the
 * other into a ring.
 *
 * Tensor cores truncate what a float32 sum cannot hold, always towards 0.  So no sum is
 * long: the small products come first, the scores are a sum over one head, and what a tile
 * adds to the output is a sum of its own, which is added with rounding.
 *
 * The power of two of a query, a key or a value depends on that row alone, that of the
 * weights on the keys that a row sees in the tile: a token's bits depend on no later token.
 *
 * Cost: three times the products of attention_tiles.cu; 32 heads of 128 and T 4096 are 412 GFLOP, 0.52 ms at 794 TFLOP/s;
 * measured 0.834; 16 heads of 256 0.839, 16 latent heads of 192 and 128 0.574.  Bytes: as there, the planes of keys and
 * values twice as large. */
#include "kernels/attention/attention_split.cuh"

enum { BM = EXF_TILED_ROWS, CONSUMERS = EXF_TILED_CONSUMERS, BN = EXF_SPLIT_KEYS, PANEL = EXF_SPLIT_PANEL };
enum { K_LOW = EXF_K_LOW, K_HIGH = EXF_K_HIGH, V_LOW = EXF_V_LOW, V_HIGH = EXF_V_HIGH, PLANES = EXF_SPLIT_PLANES };
typedef exf_split_problem problem;

/* Bytes in shared memory: queries, ring, queries' powers of two, barriers. */
template <int D, int DV> struct shared_layout : exf_split_layout<D, DV> {
    typedef exf_split_layout<D, DV> R;
    enum { QUERIES = BM * D * 2, SLOT = (int)R::K > (int)R::V ? (int)R::K : (int)R::V };
    enum { RING = 2 * QUERIES, LEFT = 227 * 1024 - 2048 - RING, SLOTS = LEFT / SLOT < 8 ? LEFT / SLOT : 8 };
    enum { POWERS = RING + SLOTS * SLOT, BARRIERS = POWERS + BM * 4, BYTES = BARRIERS + 2 * SLOTS * 8 + 1024 };
};

#ifdef EXF_HOPPER
/* The ring: plane i is plane i % PLANES of the (i / PLANES)-th tile of the walk. */
template <int D, int DV> struct ring {
    typedef shared_layout<D, DV> R;
    uint32_t base;
    __device__ uint32_t slot(int i) const
    {
        return base + R::RING + i % R::SLOTS * R::SLOT;
    }
    __device__ uint32_t here(int i) const
    {
        return base + R::BARRIERS + i % R::SLOTS * 16;
    }
    __device__ uint32_t read(int i) const
    {
        return here(i) + 8;
    }
    __device__ uint32_t await(int i) const
    {
        exf_barrier_wait(here(i), i / R::SLOTS & 1);
        return slot(i);
    }
    /* Signals that this warp has read plane i. */
    __device__ void release(int i) const
    {
        if (threadIdx.x % 32 == 0) exf_barrier_arrive(read(i));
    }
};

/* Loads tiles n - 1 .. 0 with one thread of the third warpgroup. */
template <int D, int DV> static __device__ void load_planes(const ring<D, DV> &m, const char *tiles, int n)
{
    typedef shared_layout<D, DV> R;
    if (threadIdx.x != CONSUMERS) return;
    for (int i = 0; i < n * PLANES; i++) {
        const char *tile = tiles + (size_t)(n - 1 - i / PLANES) * R::TILE;
        exf_barrier_wait(m.read(i), (i / R::SLOTS & 1) ^ 1);
        exf_bulk_load(m.slot(i), tile + R::start(i % PLANES), (uint32_t)R::size(i % PLANES), m.here(i));
    }
}

/* Computes s (+)= Q K^T of one plane each. */
template <int D> static __device__ __forceinline__ void multiply(float (&s)[BN / 2], uint32_t q, uint32_t k, int keep)
{
#pragma unroll
    for (int c = 0; c < D / 16; c++)
        exf_wgmma<BN>::ss(s, exf_operand(q + c / 4 * (BM * 128) + c % 4 * 32, 16), exf_operand(k + c / 4 * PANEL + c % 4 * 32, 16),
                          keep || c > 0);
}

/* Starts s = Q K^T; the two planes are i and the next. */
template <int D, int DV>
static __device__ __forceinline__ void score(float (&s)[BN / 2], const ring<D, DV> &m, uint32_t q_high, int i)
{
    uint32_t q_low = q_high + shared_layout<D, DV>::QUERIES, low = m.await(i), high = m.await(i + 1);
    exf_wgmma_begin();
    multiply<D>(s, q_high, low, 0);
    multiply<D>(s, q_low, high, 1);
    multiply<D>(s, q_high, high, 1);
    exf_wgmma_commit();
}

/* Computes o = o fade + (P V) down, in strips of columns; the two planes are i and the next. */
template <int D, int DV>
static __device__ __forceinline__ void weigh(float (&o)[DV / 2], const ring<D, DV> &m, const uint32_t (&high)[BN / 4],
                                             const uint32_t (&low)[BN / 4], const float (&rescale)[2], const float (&down)[2],
                                             int i)
{
    enum { STRIP = DV > 128 ? 64 : DV };
    uint32_t v_low = m.await(i), v_high = m.await(i + 1);
#pragma unroll
    for (int strip = 0; strip < DV / STRIP; strip++) {
        float part[STRIP / 2] = {};
        uint32_t at = strip * (STRIP / 64) * PANEL;
        exf_settle(part);
        exf_wgmma_begin();
#pragma unroll
        for (int c = 0; c < BN / 16; c++) exf_wgmma<STRIP>::rs(part, high + 4 * c, exf_operand(v_low + at + c * 2048, PANEL));
#pragma unroll
        for (int c = 0; c < BN / 16; c++) exf_wgmma<STRIP>::rs(part, low + 4 * c, exf_operand(v_high + at + c * 2048, PANEL));
#pragma unroll
        for (int c = 0; c < BN / 16; c++) exf_wgmma<STRIP>::rs(part, high + 4 * c, exf_operand(v_high + at + c * 2048, PANEL));
        exf_wgmma_commit();
        exf_wgmma_wait<0>();
        exf_settle(part);
#pragma unroll
        for (int e = 0; e < STRIP / 2; e++) {
            float &to = o[strip * (STRIP / 2) + e];
            to = fmaf(part[e], down[e % 4 / 2], to * rescale[e % 4 / 2]);
        }
    }
    m.release(i);
    m.release(i + 1);
}

/* Runs one warpgroup: the rows from `first` on, n tiles; powers: of its queries, of the head's keys and values. */
template <int D, int DV>
static __device__ void consume(const ring<D, DV> &m, const problem &p, int head, int first, int n, const float *of_queries,
                               const float *of_keys)
{
    int r = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, row = first + r;
    uint32_t high[BN / 4], low[BN / 4], q = m.base + threadIdx.x / 128 * 64 * 128;
    float o[DV / 2] = {}, s[BN / 2], down[2], scale = p.s.scale * EXF_LOG2_E;
    float factor[2] = {of_queries[r] * scale, of_queries[r + 8] * scale};
    exf_weighing w = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    for (int j = 0; j < n; j++) {
        int tile = n - 1 - j, i = j * PLANES;
        float2 of_k[BN / 8], of_v[BN / 8];
        score<D, DV>(s, m, q, i + K_LOW);
        exf_take_powers<BN>(of_k, of_keys + tile * 2 * BN);
        if (DV <= 128) exf_take_powers<BN>(of_v, of_keys + tile * 2 * BN + BN);
        exf_wgmma_wait<0>();
        exf_settle(s);
        m.release(i + K_LOW);
        m.release(i + K_HIGH);
        exf_scale_columns<BN>(s, of_k);
        if (tile * BN + BN - 1 > first) exf_mask<BN>(s, row, tile * BN);
        exf_exponentiate<BN>(s, w, factor);
        if (DV > 128) exf_take_powers<BN>(of_v, of_keys + tile * 2 * BN + BN); /* loaded late to save registers */
        exf_scale_columns<BN>(s, of_v);
        exf_split_weights<BN>(high, low, down, s);
        weigh<D, DV>(o, m, high, low, w.rescale, down, i + V_LOW);
    }
    exf_tiled_store<DV>(o, w.sum, p, head, row, false);
}
#endif

/* Grid: heads within query tiles, the longest tiles first. */
template <int D, int DV> static __global__ void __launch_bounds__(EXF_TILED_THREADS, 1) attend(problem p)
{
#ifdef EXF_HOPPER
    typedef shared_layout<D, DV> R;
    extern __shared__ char raw[];
    char *base = raw + (1024 - exf_shared(raw) % 1024) % 1024;
    float *powers = reinterpret_cast<float *>(base + R::POWERS);
    ring<D, DV> m = {exf_shared(base)};
    int n_heads = p.s.n_heads, head = blockIdx.x % n_heads, tile = gridDim.x / n_heads - 1 - blockIdx.x / n_heads;
    int kv = head / (n_heads / p.s.n_kv), warpgroup = threadIdx.x / 128, end = tile * BM + BM;
    int n = ((end < p.s.n_tokens ? end : p.s.n_tokens) + BN - 1) / BN;
    size_t tiles = (size_t)kv * p.n_key_tiles;
    if (threadIdx.x < R::SLOTS) {
        exf_barrier_init(m.here(threadIdx.x), 1);
        exf_barrier_init(m.read(threadIdx.x), CONSUMERS / 32);
    }
    exf_proxy_fence();
    __syncthreads();
    if (warpgroup == 2) {
        exf_registers_lower<EXF_TILED_PRODUCER_REGISTERS>();
        load_planes<D, DV>(m, p.tiles + tiles * R::TILE, n);
    } else {
        exf_registers_raise<EXF_TILED_CONSUMER_REGISTERS>();
        exf_split_queries<D, BM>(base, powers, p, head, tile * BM + warpgroup * 64, warpgroup * 64);
        exf_proxy_fence();
        exf_named_barrier(1 + warpgroup, 128);
        consume<D, DV>(m, p, head, tile * BM + warpgroup * 64, n, powers + warpgroup * 64, p.powers + tiles * 2 * BN);
    }
#endif
}

template <int D, int DV> static void launch(exf_queue *q, const problem &p)
{
    int bytes = shared_layout<D, DV>::BYTES, n_tiles = (p.s.n_tokens + BM - 1) / BM;
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaFuncSetAttribute(attend<D, DV>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention");
    EXF_LAUNCH(q, "attention keys", (exf_split_tile<D, DV>), dim3((unsigned)p.n_key_tiles, (unsigned)p.s.n_kv), 256, 0, p);
    EXF_LAUNCH(q, "attention", (attend<D, DV>), n_tiles * p.s.n_heads, EXF_TILED_THREADS, bytes, p);
}

/* Sizes of kernels; a head uses the smallest in which it fits. */
static const struct {
    int d, dv;
    void (*launch)(exf_queue *q, const problem &p);
} sizes[] = {{64, 64, launch<64, 64>}, {128, 128, launch<128, 128>}, {192, 128, launch<192, 128>}, {256, 256, launch<256, 256>}};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Returns the floats of the planes of one key-value head. */
static size_t plane_floats(const exf_attention_shape *s)
{
    const auto &size = sizes[exf_tiled_size(sizes, s)];
    return ((size_t)s->n_tokens + BN - 1) / BN * BN * (size_t)(size.d + size.dv);
}

/* Returns the floats of the planes and powers of two of one key-value head. */
static size_t head_floats(const exf_attention_shape *s)
{
    return plane_floats(s) + ((size_t)s->n_tokens + BN - 1) / BN * 2 * BN;
}

/* Floats above which the key-value heads are processed in two halves, which needs no more memory
 * than rounded operands do. */
enum { ALL_AT_ONCE = 2 << 20 };

static int heads_at_once(const exf_attention_shape *s)
{
    return (size_t)s->n_kv * head_floats(s) <= ALL_AT_ONCE ? s->n_kv : (s->n_kv + 1) / 2;
}

/* Never shrinks for fewer tokens: a workspace serves shorter sequences too. */
size_t exf_attention_split_workspace(const exf_attention_shape *s)
{
    if (exf_tiled_size(sizes, s) == SIZES) return 0;
    size_t need = (size_t)heads_at_once(s) * head_floats(s);
    return heads_at_once(s) == s->n_kv || need > ALL_AT_ONCE ? need : ALL_AT_ONCE;
}

int exf_attention_split_fits(const exf_attention_shape *s)
{
    return exf_tiled_size(sizes, s) < SIZES && (exf_uses_wgmma() || exf_attention_split_mma_fits(s));
}

void exf_attention_split(exf_queue *q, float *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                         float *workspace)
{
    int group = s->n_heads / s->n_kv, each = heads_at_once(s);
    problem p;
    for (int first = 0; first < s->n_kv; first += each) {
        int n = s->n_kv - first < each ? s->n_kv - first : each;
        size_t head = (size_t)(first * group);
        static_cast<exf_tiled_attention &>(p) = exf_tiled_call(out + head * s->dv, query + head * s->d, k + (size_t)first * s->d,
                                                               v + (size_t)first * s->dv, s, BN, workspace);
        p.powers = workspace + (size_t)each * plane_floats(s);
        p.s.n_kv = n;
        p.s.n_heads = n * group;
        exf_uses_wgmma() ? sizes[exf_tiled_size(sizes, s)].launch(q, p) : exf_attend_split_mma(q, p);
    }
}

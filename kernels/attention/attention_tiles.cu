/* attention_tiles.cu - causal attention on Hopper's tensor cores for heads of at most 256, operands rounded to float16; see
 * attention.h, and attention_internal.cuh for the shape of a block.  Nothing of size T x T is written.
 *
 * Keys and values are first rounded into tiles of BN keys.  The scores of a tile are computed while the tile
 * before is multiplied with its values, and the two warpgroups take turns in starting
 * products, so that one computes its softmax while the other's products run.  The sequence
 * of operations on a row is the same wherever its block runs.
 *
 * Cost: 2 (d + dv) FLOP for each of T^2 / 2 scores of a head; 32 heads of 128 and T 4096 are 137 GFLOP, 0.17 ms at 794
 * TFLOP/s; measured 0.290 (474 TFLOP/s); 16 heads of 256 0.280 (491), 16 latent heads of 192 and 128 0.205 (419).  Bytes:
 * queries read, 67 MB, outputs written, 67 MB or half of that rounded, keys and values of 4 heads 17 MB read and half of that
 * written rounded, 0.04 ms or 0.03 at 4.2 TB/s; tiles come from the cache after that.  Registers: 24 a loading thread, 240 a
 * multiplying one. */
#include "kernels/attention/attention_internal.cuh"

enum { TURN = 3 }; /* the first of two named barriers */
enum { BM = EXF_TILED_ROWS, CONSUMERS = EXF_TILED_CONSUMERS, STAGES = 2 };
typedef exf_tiled_attention problem;

/* Bytes in shared memory: queries, STAGES times keys and values, barriers. */
template <int D, int DV, int BN> struct shared_layout {
    enum { Q = BM * D * 2, K = BN * D * 2, V = BN * DV * 2, STAGE = K + V, BARRIERS = Q + STAGES * STAGE };
    enum { BYTES = BARRIERS + 4 * STAGES * 8 + 1024 }; /* plus padding for alignment */
};

#ifdef EXF_HOPPER
/* Shared memory, and its barriers of each stage. */
enum barrier_kind { K_LOADED, V_LOADED, K_READ, V_READ, KINDS };
template <int D, int DV, int BN> struct space {
    uint32_t base;
    __device__ uint32_t k(int j) const
    {
        return base + shared_layout<D, DV, BN>::Q + j % STAGES * shared_layout<D, DV, BN>::STAGE;
    }
    __device__ uint32_t v(int j) const
    {
        return k(j) + shared_layout<D, DV, BN>::K;
    }
    __device__ uint32_t barrier(barrier_kind kind, int j) const
    {
        return base + shared_layout<D, DV, BN>::BARRIERS + (kind * STAGES + j % STAGES) * 8;
    }
    __device__ void wait(barrier_kind kind, int j, int flip) const
    {
        exf_barrier_wait(barrier(kind, j), (j / STAGES & 1) ^ flip);
    }
    /* Signals that this warp has read a tile's keys or values. */
    __device__ void release(barrier_kind kind, int j) const
    {
        if ((threadIdx.x & 31) == 0) exf_barrier_arrive(barrier(kind, j));
    }
};

/* Loads tiles n - 1 .. 0 with one thread of the third warpgroup. */
template <int D, int DV, int BN> static __device__ void load_tiles(const space<D, DV, BN> &m, const char *tiles, int n)
{
    typedef shared_layout<D, DV, BN> R;
    if (threadIdx.x != CONSUMERS) return;
    for (int j = 0; j < n; j++) {
        const char *tile = tiles + (size_t)(n - 1 - j) * R::STAGE;
        m.wait(K_READ, j, 1);
        exf_bulk_load(m.k(j), tile, R::K, m.barrier(K_LOADED, j));
        m.wait(V_READ, j, 1);
        exf_bulk_load(m.v(j), tile + R::K, R::V, m.barrier(V_LOADED, j));
    }
}

/* Loads the warpgroup's 64 query rows from `first` on, rounded. */
template <int D> static __device__ void load_queries(char *to, const problem &p, int head, int first, int rows_before)
{
    for (int i = threadIdx.x % 128; i < 64 * D / 8; i += 128) {
        int row = i / (D / 8), chunk = i % (D / 8), t = first + row;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (t < p.s.n_tokens) x = exf_half8(p.query_row(t, head), chunk * 8, p.s.d, p.wide_q);
        *reinterpret_cast<uint4 *>(to + chunk / 8 * (BM * 128) + exf_panel_at(rows_before + row, chunk % 8)) = x;
    }
}

/* Starts s = Q K^T. */
template <int D, int BN> static __device__ __forceinline__ void score(float (&s)[BN / 2], uint32_t q, uint32_t k)
{
    exf_wgmma_begin();
#pragma unroll
    for (int c = 0; c < D / 16; c++)
        exf_wgmma<BN>::ss(s, exf_operand(q + c / 4 * (BM * 128) + c % 4 * 32, 16),
                          exf_operand(k + c / 4 * (BN * 128) + c % 4 * 32, 16), c > 0);
    exf_wgmma_commit();
}

/* Starts o += P V. */
template <int DV, int BN> static __device__ __forceinline__ void weigh(float (&o)[DV / 2], const uint32_t (&p)[BN / 4], uint32_t v)
{
    exf_wgmma_begin();
#pragma unroll
    for (int c = 0; c < BN / 16; c++) exf_wgmma<DV>::rs(o, p + 4 * c, exf_operand(v + c * 2048, BN * 128));
    exf_wgmma_commit();
}

/* Waits until it is this warpgroup's turn to start products. */
static __device__ __forceinline__ void await_turn(int group)
{
    exf_named_barrier(TURN + group, CONSUMERS);
}

static __device__ __forceinline__ void end_turn(int group)
{
    exf_named_arrive(TURN + (group ^ 1), CONSUMERS);
}

/* Runs one warpgroup: the rows from `first` on, n tiles. */
template <int D, int DV, int BN>
static __device__ void consume(const space<D, DV, BN> &m, const problem &p, int head, int first, int n)
{
    int group = threadIdx.x / 128, row = first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    float o[DV / 2] = {}, s[BN / 2], scale = p.s.scale * EXF_LOG2_E;
    uint32_t weights[BN / 4], q = m.base + group * 64 * 128;
    exf_softmax_state w = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}};
    m.wait(K_LOADED, 0, 0);
    if (group) await_turn(group);
    score<D, BN>(s, q, m.k(0));
    end_turn(group);
    exf_wgmma_wait<0>();
    exf_settle(s);
    m.release(K_READ, 0);
    exf_mask<BN>(s, row, (n - 1) * BN);
    exf_online_softmax<BN>(s, w, scale);
    exf_round_to(weights, s);
    for (int j = 1; j < n; j++) {
        int key = (n - 1 - j) * BN;
        m.wait(K_LOADED, j, 0);
        m.wait(V_LOADED, j - 1, 0);
        await_turn(group);
        score<D, BN>(s, q, m.k(j));
        weigh<DV, BN>(o, weights, m.v(j - 1));
        end_turn(group);
        exf_wgmma_wait<1>();
        exf_settle(s);
        m.release(K_READ, j);
        if (key + BN - 1 > first) exf_mask<BN>(s, row, key);
        exf_online_softmax<BN>(s, w, scale);
        exf_wgmma_wait<0>();
        exf_settle(o);
        m.release(V_READ, j - 1);
        exf_rescale_output(o, w);
        exf_round_to(weights, s);
    }
    if (!group) await_turn(group); /* the turn that the other warpgroup ended last */
    m.wait(V_LOADED, n - 1, 0);
    weigh<DV, BN>(o, weights, m.v(n - 1));
    exf_wgmma_wait<0>();
    exf_settle(o);
    exf_tiled_store<DV>(o, w.sum, p, head, row, p.s.rounded_out);
}
#endif

/* Grid: heads within query tiles, the longest tiles first. */
template <int D, int DV, int BN> static __global__ void __launch_bounds__(EXF_TILED_THREADS, 1) attend(problem p)
{
#ifdef EXF_HOPPER
    typedef shared_layout<D, DV, BN> R;
    extern __shared__ char raw[];
    char *base = raw + (1024 - exf_shared(raw) % 1024) % 1024;
    space<D, DV, BN> m = {exf_shared(base)};
    int n_heads = p.s.n_heads, head = blockIdx.x % n_heads, tile = gridDim.x / n_heads - 1 - blockIdx.x / n_heads;
    int kv = head / (n_heads / p.s.n_kv), warpgroup = threadIdx.x / 128, end = tile * BM + BM;
    int n = ((end < p.s.n_tokens ? end : p.s.n_tokens) + BN - 1) / BN;
    if (threadIdx.x < KINDS * STAGES)
        exf_barrier_init(m.base + R::BARRIERS + threadIdx.x * 8, threadIdx.x < K_READ * STAGES ? 1 : CONSUMERS / 32);
    exf_proxy_fence();
    __syncthreads();
    if (warpgroup == 2) {
        exf_registers_lower<EXF_TILED_PRODUCER_REGISTERS>();
        load_tiles<D, DV, BN>(m, p.tiles + (size_t)kv * p.n_key_tiles * R::STAGE, n);
    } else {
        exf_registers_raise<EXF_TILED_CONSUMER_REGISTERS>();
        load_queries<D>(base, p, head, tile * BM + warpgroup * 64, warpgroup * 64);
        exf_proxy_fence();
        exf_named_barrier(1 + warpgroup, 128);
        consume<D, DV, BN>(m, p, head, tile * BM + warpgroup * 64, n);
    }
#endif
}

template <int D, int DV, int BN> static void launch(exf_queue *q, const problem &p)
{
    int bytes = shared_layout<D, DV, BN>::BYTES, n_tiles = (p.s.n_tokens + BM - 1) / BM;
    if (q->err.code != EXF_OK) return;
    exf_cuda_note(q, cudaFuncSetAttribute(attend<D, DV, BN>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention");
    EXF_LAUNCH(q, "attention keys", (exf_pack_tile<D, DV, BN>), dim3((unsigned)p.n_key_tiles, (unsigned)p.s.n_kv), 256, 0, p);
    EXF_LAUNCH(q, "attention", (attend<D, DV, BN>), n_tiles * p.s.n_heads, EXF_TILED_THREADS, bytes, p);
}

/* Sizes of kernels; a head uses the smallest in which it fits. */
static const struct {
    int d, dv, bn;
    void (*launch)(exf_queue *q, const problem &p);
} sizes[] = {{64, 64, 128, launch<64, 64, 128>},
             {128, 128, 128, launch<128, 128, 128>},
             {192, 128, 128, launch<192, 128, 128>},
             {256, 256, 64, launch<256, 256, 64>}};
enum { SIZES = sizeof sizes / sizeof *sizes };

size_t exf_attention_tiles_workspace(const exf_attention_shape *s)
{
    int i = exf_tiled_size(sizes, s);
    if (i == SIZES) return 0;
    size_t tiles = ((size_t)s->n_tokens + sizes[i].bn - 1) / sizes[i].bn;
    return (size_t)s->n_kv * tiles * sizes[i].bn * (sizes[i].d + sizes[i].dv) / 2; /* two numbers per float */
}

void exf_attention_tiles(exf_queue *q, void *out, const float *query, const float *k, const float *v, const exf_attention_shape *s,
                         float *workspace)
{
    const auto &size = sizes[exf_tiled_size(sizes, s)];
    size.launch(q, exf_tiled_call(out, query, k, v, s, size.bn, workspace));
}

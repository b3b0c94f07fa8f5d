/* grouped_any_cuda.cu - products of all experts in one launch on any GPU, for any shape
 * and number type; see moe_internal.cuh.
 *
 * A block loops over tiles of 128 rows x 128 columns, with a SwiGLU 64 of gate and the
 * same 64 of up; a thread has 8 x 4 sums of either half.  Operands pass through shared
 * memory as float32, 16 of the inner axis at a time, and the next 16 are loaded into registers
 * while these are multiplied.  An element's sum runs over the inner axis in order by
 * fused multiply-adds, whatever tile it is in.
 *
 * Cost: 6 H I FLOP a slot on float32 units, 256 threads and two blocks a multiprocessor; H 2048, I 768 and 32,768 slots are
 * 309 GFLOP.  Bytes as in grouped_gemm_cuda.cu.  No time is recorded: it runs where tensor cores cannot. */
#include "kernels/device/cuda_rows.cuh"
#include "kernels/moe/moe_internal.cuh"

/* COLUMNS: of a half; PAD: floats after a row, against bank conflicts. */
enum { ROWS = EXF_TILE_ROWS, COLUMNS = 64, DEPTH = 16, THREADS = 256, PAD = 4 };

/* One launch.  X: type of activations, both read and written; W: type of matrices. */
template <class X, class W> struct any_work {
    const int32_t *first, *tile, *slot;
    int n_experts, depth, width, column_tiles, top_k;
    float limit, slope, shift;
    bool gelu;
    const float *bias[2]; /* of the halves, [E, width]; NULL: none */
    const X *x;       /* rows of tokens with a SwiGLU, else sorted rows */
    const W *w[2];    /* matrices of the halves: gate and up, or down twice */
    X *out;           /* sorted rows with a SwiGLU, else rows of slots */
};

typedef struct {
    int e, row, end, column; /* expert, sorted rows [row, end), first column */
} tile_place;

/* Finds a tile's place; its expert is the first whose tiles end after it. */
template <class X, class W> static __device__ tile_place find_place(const any_work<X, W> &w, int at, int columns)
{
    int low = 0, high = w.n_experts - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (w.tile[middle + 1] * w.column_tiles > at)
            high = middle;
        else
            low = middle + 1;
    }
    int local = at - w.tile[low] * w.column_tiles, tiles = w.tile[low + 1] - w.tile[low];
    return {low, w.first[low] + local % tiles * ROWS, w.first[low + 1], local / tiles * columns};
}

/* Loads a thread's elements of COUNT rows; 16 threads share a row and have one element each; 0 after the inner axis. */
template <int COUNT, class T>
static __device__ inline void load_elements(float (&v)[COUNT], const T *from, const int (&row)[COUNT], int k, int depth)
{
    int at = k + threadIdx.x % DEPTH;
#pragma unroll
    for (int j = 0; j < COUNT; j++) v[j] = at < depth ? exf_element(from[(size_t)row[j] * depth + at]) : 0.0f;
}

/* Stores the loaded elements to shared memory, the inner axis outermost. */
template <int COUNT, int WIDTH> static __device__ inline void store_elements(float (&to)[DEPTH][WIDTH], const float (&v)[COUNT])
{
#pragma unroll
    for (int j = 0; j < COUNT; j++) to[threadIdx.x % DEPTH][threadIdx.x / DEPTH + 16 * j] = v[j];
}

static __device__ inline void load_four(float (&v)[4], const float *from)
{
    float4 four = *reinterpret_cast<const float4 *>(from);
    v[0] = four.x;
    v[1] = four.y;
    v[2] = four.z;
    v[3] = four.w;
}

/* Adds to sum[i][j]: rows 4 (thread / 16) + i (from the fifth on: 64 further), columns 4 (thread % 16) + j. */
static __device__ inline void multiply(float (&sum)[8][4], const float (&x)[DEPTH][ROWS + PAD],
                                       const float (&w)[DEPTH][COLUMNS + PAD])
{
    int r = threadIdx.x / 16 * 4, c = threadIdx.x % 16 * 4;
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        float a[4], b[4], columns[4];
        load_four(a, &x[k][r]);
        load_four(b, &x[k][r + 64]);
        load_four(columns, &w[k][c]);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[i][j] = fmaf(a[i], columns[j], sum[i][j]);
                sum[4 + i][j] = fmaf(b[i], columns[j], sum[4 + i][j]);
            }
    }
}

template <bool SWIGLU, class X, class W>
static __device__ inline void store_tile(const any_work<X, W> &w, const tile_place &p, const float (&sum)[2][8][4])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int row = p.row + threadIdx.x / 16 * 4 + i % 4 + i / 4 * 64;
        if (row >= p.end) continue;
        X *out = w.out + (size_t)(SWIGLU ? row : w.slot[row]) * w.width;
        const float *bias[2] = {w.bias[0] ? w.bias[0] + (size_t)p.e * w.width : nullptr,
                                w.bias[1] ? w.bias[1] + (size_t)p.e * w.width : nullptr};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int column = p.column + threadIdx.x % 16 * 4 + j;
            int other = SWIGLU ? column : column + COLUMNS;
            float a = sum[0][i][j] + (bias[0] && column < w.width ? bias[0][column] : 0),
                  b = sum[1][i][j] + (bias[1] && other < w.width ? bias[1][other] : 0);
            if (SWIGLU)
                a = w.gelu         ? exf_geglu(a, b)
                    : w.slope != 0 ? exf_swiglu_scaled(a, b, w.limit, w.slope, w.shift)
                                   : exf_swiglu(a, b, w.limit);
            if (column < w.width) exf_set_element(out + column, a);
            if (!SWIGLU && other < w.width) exf_set_element(out + other, b);
        }
    }
}

template <bool SWIGLU, class X, class W> static __device__ inline void run_tile(const any_work<X, W> &w, const tile_place &p)
{
    __shared__ __align__(16) float xs[DEPTH][ROWS + PAD], ws[2][DEPTH][COLUMNS + PAD];
    size_t matrix = (size_t)p.e * w.width * w.depth;
    const W *of[2] = {w.w[0] + matrix, w.w[1] + matrix};
    float sum[2][8][4] = {}, next_x[8], next_w[2][4];
    /* Rows of x and of each half's matrix from which the thread loads.  Rows after the last are the last again; their results are
     * not stored. */
    int x_row[8], w_row[2][4], lane = threadIdx.x / DEPTH;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int row = min(p.row + lane + 16 * j, p.end - 1);
        x_row[j] = SWIGLU ? w.slot[row] / w.top_k : row;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        w_row[0][j] = min(p.column + lane + 16 * j, w.width - 1);
        w_row[1][j] = SWIGLU ? w_row[0][j] : min(p.column + COLUMNS + lane + 16 * j, w.width - 1);
    }
    for (int k = -DEPTH; k < w.depth; k += DEPTH) {
        if (k + DEPTH < w.depth) {
            load_elements(next_x, w.x, x_row, k + DEPTH, w.depth);
            load_elements(next_w[0], of[0], w_row[0], k + DEPTH, w.depth);
            load_elements(next_w[1], of[1], w_row[1], k + DEPTH, w.depth);
        }
        if (k >= 0) {
            multiply(sum[0], xs, ws[0]);
            multiply(sum[1], xs, ws[1]);
            __syncthreads();
        }
        store_elements(xs, next_x);
        store_elements(ws[0], next_w[0]);
        store_elements(ws[1], next_w[1]);
        __syncthreads();
    }
    store_tile<SWIGLU>(w, p, sum);
}

/* Returns the columns of a tile. */
static __host__ __device__ constexpr int columns_of(bool swiglu)
{
    return swiglu ? COLUMNS : 2 * COLUMNS;
}

template <bool SWIGLU, class X, class W> static __global__ void __launch_bounds__(THREADS, 2) grouped_any(any_work<X, W> w)
{
    constexpr int columns = columns_of(SWIGLU);
    int n_tiles = w.tile[w.n_experts] * w.column_tiles;
    for (int at = blockIdx.x; at < n_tiles; at += gridDim.x) run_tile<SWIGLU>(w, find_place(w, at, columns));
}

template <bool SWIGLU, class X, class W>
static void launch(exf_queue *q, void *out, const void *x, const exf_expert_matrices *m, const exf_buckets *b,
                   const exf_expert_shape *s)
{
    exf_matrix w0 = SWIGLU ? m->gate : m->down, w1 = SWIGLU ? m->up : m->down;
    int depth = SWIGLU ? s->d_model : s->d_expert, width = SWIGLU ? s->d_expert : s->d_model, columns = columns_of(SWIGLU);
    any_work<X, W> w = {b->first, b->tile, b->slot, s->n_experts, depth, width, (width + columns - 1) / columns, s->top_k, s->limit,
                        s->slope, s->shift, s->gelu != 0,
                        {SWIGLU ? m->gate_bias : m->down_bias, SWIGLU ? m->up_bias : m->down_bias},
                        static_cast<const X *>(x), {static_cast<const W *>(w0.p), static_cast<const W *>(w1.p)},
                        static_cast<X *>(out)};
    auto kernel = grouped_any<SWIGLU, X, W>;
    EXF_LAUNCH(q, "experts", kernel, 2 * q->multiprocessors, THREADS, 0, w);
}

template <bool SWIGLU, class X>
static void launch_of(exf_queue *q, void *out, const void *x, const exf_expert_matrices *m, const exf_buckets *b,
                      const exf_expert_shape *s)
{
    if (m->gate.number == EXF_NUMBER_BF16)
        launch<SWIGLU, X, uint16_t>(q, out, x, m, b, s);
    else
        launch<SWIGLU, X, float>(q, out, x, m, b, s);
}

void exf_grouped_swiglu_any_cuda(exf_queue *q, void *act, exf_matrix x, const exf_expert_matrices *m, const exf_buckets *b,
                                 const exf_expert_shape *s)
{
    if (x.number == EXF_NUMBER_BF16)
        launch_of<true, uint16_t>(q, act, x.p, m, b, s);
    else
        launch_of<true, float>(q, act, x.p, m, b, s);
}

void exf_grouped_down_any_cuda(exf_queue *q, exf_matrix out, const void *act, const exf_expert_matrices *m, const exf_buckets *b,
                               const exf_expert_shape *s)
{
    void *to = const_cast<void *>(out.p);
    if (out.number == EXF_NUMBER_BF16)
        launch_of<false, uint16_t>(q, to, act, m, b, s);
    else
        launch_of<false, float>(q, to, act, m, b, s);
}

/* layer_sums_cuda.cu - adds layer sums in device memory; see layer_sums.h.
 *
 * A warp has a token and is a block, so that its place is free for the next one as soon as it is done: tokens that are read
 * then run beside tokens whose terms are added.  It reads the token's K outputs once (K <= 8; else once for each block of 4 x 8
 * entries), makes the lower triangle of their Gram matrix, segment by segment of 2048 columns, and adds every term to a cell
 * (layer_sums_internal.cuh) by integer atomics that return nothing.  Half a warp has a cell: its lanes have the words of a line,
 * so that an instruction adds to two cells, in eight sectors of 32 bytes if all its terms have their digits in the near line.
 *
 * K 8, H 2048, bf16, 4096 tokens: 134 MB of outputs read, 0.034 ms at 4.0 TB/s; measured 0.055 there (62 %).  Beside them a
 * token's 56 pairs and 8 experts are 64 cells, each four sectors to which the level-2 cache adds: 1.05 M in all.  Of about 5,900
 * instructions of a warp, 3,300 make the products and 2,100 add terms. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/layer_sums_internal.cuh"

enum { STEP = EXF_STEP };

/* ---- inner products ------------------------------------------------------------- */

/* Elements of a row that are added in float32 before the sum becomes a double: 64 per lane. */
enum { SEGMENT = 64 * 32 };

/* Returns the row of the triangle in which entry x lies; entries are counted row by row. */
static __device__ inline int triangle_row(int x)
{
    int r = 0;
    while ((r + 1) * (r + 2) / 2 <= x) r++;
    return r;
}

/* Sums v[i] over all lanes into lane i: every step halves the number of values that a lane has. */
template <int STEP_SIZE> static __device__ inline void halve(double (&v)[32], int lane)
{
    bool upper = lane & STEP_SIZE;
#pragma unroll
    for (int i = 0; i < STEP_SIZE; i++) {
        double give = upper ? v[i] : v[i + STEP_SIZE], keep = upper ? v[i + STEP_SIZE] : v[i];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, STEP_SIZE);
    }
}

static __device__ inline double scatter_sums(double (&v)[32], int lane)
{
    halve<16>(v, lane);
    halve<8>(v, lane);
    halve<4>(v, lane);
    halve<2>(v, lane);
    halve<1>(v, lane);
    return v[0];
}

/* Adds a segment's part to entry [i, j] of the lower triangle, and copies the entry to its place in the upper one.  A block of
 * entries across the diagonal has parts of both triangles: those of the upper one are the same products again. */
static __device__ inline void add_entry(double *gram, int k, int i, int j, double sum, bool first)
{
    if (j > i || i >= k) return;
    gram[i * k + j] = first ? sum : gram[i * k + j] + sum;
    gram[j * k + i] = gram[i * k + j];
}

/* Loads a step of a row of a token, whose rows have less than 2^31 elements.  WHOLE: rows have whole steps, and no branch
 * stands between the loads and what uses them. */
template <class T, bool WHOLE> static __device__ inline void load_step(float (&v)[STEP], const T *rows, int row, int c, int h)
{
    if (WHOLE)
        exf_load8(v, rows + (row * h + c));
    else
        exf_load_step(v, rows + row * h, c, h);
}

/* Adds a segment's products of rows [a0, a0 + 4) and [b0, b0 + 8). */
template <class T, bool WHOLE>
static __device__ void gram_block(double *gram, const T *rows, int k, int h, int a0, int b0, int from, int lane)
{
    float sum[4][8] = {};
    double wide[32];
    int end = min(from + SEGMENT, h);
    for (int c = from + lane * STEP; c < end; c += 32 * STEP) {
        float a[4][STEP], b[STEP];
#pragma unroll
        for (int i = 0; i < 4; i++) load_step<T, WHOLE>(a[i], rows, min(a0 + i, k - 1), c, h);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            load_step<T, WHOLE>(b, rows, min(b0 + j, k - 1), c, h);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < STEP; e++) sum[i][j] = fmaf(a[i][e], b[e], sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 32; i++) wide[i] = (double)sum[i / 8][i % 8];
    double mine = scatter_sums(wide, lane);
    add_entry(gram, k, a0 + lane / 8, b0 + lane % 8, mine, from == 0);
}

/* Adds a segment's products of up to eight rows, each of which is read once. */
template <class T, bool WHOLE> static __device__ void gram_eight(double *gram, const T *rows, int k, int h, int from, int lane)
{
    float sum[36] = {};
    double wide[32];
    int end = min(from + SEGMENT, h);
    for (int c = from + lane * STEP; c < end; c += 32 * STEP) {
        float v[8][STEP];
#pragma unroll
        for (int i = 0; i < 8; i++) load_step<T, WHOLE>(v[i], rows, min(i, k - 1), c, h);
#pragma unroll
        for (int e = 0; e < STEP; e++)
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j <= i; j++) sum[i * (i + 1) / 2 + j] = fmaf(v[i][e], v[j][e], sum[i * (i + 1) / 2 + j]);
    }
#pragma unroll
    for (int i = 0; i < 32; i++) wide[i] = (double)sum[i];
    double mine = scatter_sums(wide, lane);
    int r = triangle_row(lane);
    add_entry(gram, k, r, lane - r * (r + 1) / 2, mine, from == 0);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        double all = exf_warp_sum((double)sum[32 + i]);
        if (lane == i) mine = all;
    }
    if (lane < 4) add_entry(gram, k, 7, 4 + lane, mine, from == 0);
}

template <class T, bool WHOLE> static __device__ inline void gram_of_token(double *gram, const T *rows, int k, int h, int lane)
{
    for (int from = 0; from < h; from += SEGMENT) {
        if (k <= 8) gram_eight<T, WHOLE>(gram, rows, k, h, from, lane);
        for (int a = 0; k > 8 && a < k; a += 4)
            for (int b = 0; b < a + 4; b += 8) gram_block<T, WHOLE>(gram, rows, k, h, a, b, from, lane);
        __syncwarp();
    }
}

/* A square below which the Gram matrix of a token is made in double.  A product or sum in float32 that is smaller than 2^-126 is
 * rounded to a multiple of 2^-149, by 2^-150 at most, which H < 2^16 elements make 2^-134: of squares from 2^-100 on no more than
 * 2^-34.  An expert that is dead but for 1e-22 has a square of 1e-44, of which float32 has two bits. */
static const double LEAST_SQUARE = 0x1p-100;

/* Makes the Gram matrix in double, as the CPU does: each entry reads two rows, which few tokens need. */
template <class T> static __device__ __noinline__ void gram_of_small_outputs(double *gram, const T *rows, int k, int h, int lane)
{
    for (int i = 0; i < k; i++)
        for (int j = 0; j <= i; j++) {
            double sum = 0;
            for (int c = lane; c < h; c += 32) sum += (double)exf_element(rows[i * h + c]) * (double)exf_element(rows[j * h + c]);
            sum = exf_warp_sum(sum);
            if (lane == 0) gram[i * k + j] = gram[j * k + i] = sum;
        }
    __syncwarp();
}

/* ---- sums -------------------------------------------------------------------------- */

/* What a warp has of its token in shared memory. */
typedef struct {
    double *gram;    /* [K, K] <u_a, u_b> */
    double *norm;    /* [K] ||u_a|| */
    double *inverse; /* [K] 1 / ||u_a||, of a norm of 0 0 */
    double *one;     /* 1 */
    float *weight;   /* [K] */
    int32_t *id;     /* [K] */
    int k;
} token;

static size_t token_bytes(int k)
{
    return (size_t)(k * (k + 2) + 1) * sizeof(double) + (size_t)k * (sizeof(float) + sizeof(int32_t));
}

static __device__ inline token token_of(double *memory, int k)
{
    token t = {memory, memory + k * k, memory + k * (k + 1), memory + k * (k + 2), nullptr, nullptr, k};
    t.weight = reinterpret_cast<float *>(t.one + 1);
    t.id = reinterpret_cast<int32_t *>(t.weight + k);
    return t;
}

/* Tests a token's range like check_range() of layer_sums_cpu.c; every lane gets the result.  Slots with id -1 are empty. */
static __device__ inline bool in_range(const token &t, int lane)
{
    double largest = 1;
    bool fits = true;
#pragma unroll 1
    for (int a = lane; a < t.k; a += 32) {
        double sq = t.gram[a * t.k + a];
        if (t.id[a] < 0) continue;
        fits = fits && exf_exact_fits(sq) && exf_exact_fits(sq * t.norm[a]);
        largest = sq > largest ? sq : largest;
    }
    largest = exf_warp_max(largest);
#pragma unroll 1
    for (int a = lane; a < t.k; a += 32) {
        double w = (double)t.weight[a];
        fits = fits && (t.id[a] < 0 || (exf_exact_fits(w * largest) && exf_exact_fits(w * w * largest)));
    }
    return __all_sync(0xffffffffu, fits);
}

/* Notes the first expert of a token that is out of range, by the tests of in_range() one after the other. */
static __device__ __noinline__ void note_token(exf_sums_fault *fault, token t, int64_t row)
{
    double largest = 1;
    int a = 0;
    for (; a < t.k; a++) {
        double sq = t.gram[a * t.k + a];
        if (t.id[a] < 0) continue;
        if (!exf_exact_fits(sq) || !exf_exact_fits(sq * sqrt(sq))) break;
        largest = sq > largest ? sq : largest;
    }
    for (int b = 0; a == t.k && b < t.k; b++) {
        double w = (double)t.weight[b];
        if (t.id[b] >= 0 && (!exf_exact_fits(w * largest) || !exf_exact_fits(w * w * largest))) a = b;
    }
    if (a == t.k) a = 0;
    note_fault(fault, (unsigned long long)row, t.id[a], 0, t.gram[a * t.k + a], (double)t.weight[a]);
}

/* Adds to a word without a result.  In a kernel with a fence, such as note_fault() has, nvcc 13.0 makes of atomicAdd() an
 * atomic whose result comes back, used or not (ATOMG instead of REDG, sm_90). */
static __device__ inline void add_to_word(unsigned long long *word, long long x)
{
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(x) : "memory");
}

/* Adds a lane's digit of a term to a cell; word: the lane's in the near line of cell 0. */
static __device__ inline void add_digit(unsigned long long *word, int cell, double term, int place)
{
    bool near;
    long long digit = digit_in_place(term, place, &near);
    int at = cell * WORDS + (near ? 0 : LINE);
    if ((unsigned)digit) add_to_word(word + at, digit);
}

/* Adds all terms of the pairs: half a warp takes a source's every second target. */
static __device__ inline void add_pairs(unsigned long long *cells, const token &t, int n_experts, exf_weighting weighting,
                                        int lane)
{
    int word = lane % LINE, k = t.k;
    line_word mine = line_word_of(word);
    /* The lane's term of pair a, b is w times x[a * by_source + b * by_target]. */
    bool mirrored = mine.sum == SUM_DOT0_OR_COSINE, product = mine.sum == 0 || mirrored, counts = mine.sum == CELL_SUMS;
    bool of_target = mine.sum == 1;
    int by_source = counts || of_target ? 0 : product ? k : k + 1, by_target = of_target ? k + 1 : product ? 1 : 0;
    const double *x = counts ? t.one : t.gram;
    for (int a = 0; a < k; a++, x += by_source) {
        if (t.id[a] < 0) continue;
        unsigned long long *row = cells + (size_t)t.id[a] * n_experts * WORDS + word;
        double w = weighting == EXF_WEIGHT_SOURCE_NORM ? t.norm[a] : (double)t.weight[a];
        if (mine.sum > 2 || weighting == EXF_WEIGHT_NONE) w = 1.0;
#pragma unroll 1
        for (int i = lane / LINE; i < k - 1; i += 32 / LINE) {
            int b = i + (i >= a), target = t.id[b];
            double factor = mirrored && exf_cell_has_cosine(t.id[a], target) ? t.inverse[a] * t.inverse[b] : w;
            if (target >= 0) add_digit(row, target, factor * x[b * by_target], mine.place);
        }
    }
}

/* Returns the term of the s-th of an expert's sums, or of its count; a product whatever s is, for lanes have different ones. */
static __device__ inline double expert_term(int s, double norm, double sq, double w)
{
    double x = s == 4 ? w * w : s == 2 || s == 3 ? w : 1.0;
    double y = s == 1 || s == 4 ? sq : s == 0 || s == 3 ? norm : 1.0;
    return x * y;
}

/* Adds all terms of the experts: half a warp takes every second one. */
static __device__ inline void add_experts(unsigned long long *cells, unsigned long long *empty_slots, const token &t, int lane)
{
    int word = lane % LINE;
    line_word mine = line_word_of(word);
#pragma unroll 1
    for (int a = lane / LINE; a < t.k; a += 32 / LINE) {
        if (t.id[a] >= 0)
            add_digit(cells + word, t.id[a], expert_term(mine.sum, t.norm[a], t.gram[a * t.k + a], (double)t.weight[a]),
                      mine.place);
        else if (word == COUNT)
            add_to_word(empty_slots, 1);
    }
}

/* As many blocks a multiprocessor as 128 registers a thread let be, or 168 where elements take twice as many. */
template <class T>
static __global__ void __launch_bounds__(32, sizeof(T) == 2 ? 16 : 12)
    add_tokens(header *top, const T *outputs, exf_layer_sums_call c)
{
    extern __shared__ double memory[];
    int lane = threadIdx.x, k = c.top_k;
    size_t slot = (size_t)blockIdx.x * k;
    token t = token_of(memory, k);
    unsigned long long *pairs = reinterpret_cast<unsigned long long *>(top + 1);
#pragma unroll 1
    for (int a = lane; a < k; a += 32) {
        t.id[a] = c.ids[slot + a];
        t.weight[a] = c.weights[slot + a];
    }
    if (c.d_model % STEP == 0)
        gram_of_token<T, true>(t.gram, outputs + slot * c.d_model, k, c.d_model, lane);
    else
        gram_of_token<T, false>(t.gram, outputs + slot * c.d_model, k, c.d_model, lane);
    bool small = false;
#pragma unroll 1
    for (int a = lane; a < k; a += 32) small = small || (t.id[a] >= 0 && t.gram[a * k + a] < LEAST_SQUARE);
    if (__any_sync(0xffffffffu, small)) gram_of_small_outputs(t.gram, outputs + slot * c.d_model, k, c.d_model, lane);
#pragma unroll 1
    for (int a = lane; a < k; a += 32) {
        double sq = t.gram[a * k + a];
        t.norm[a] = sqrt(sq);
        t.inverse[a] = sq > 0 ? 1 / t.norm[a] : 0;
        if (c.sq) c.sq[slot + a] = sq;
    }
    if (lane == 0) *t.one = 1.0;
    __syncwarp();
    if (!in_range(t, lane)) {
        if (lane == 0) note_token(&top->output, t, c.row + (int64_t)blockIdx.x);
        return;
    }
    if (!c.experts_only) add_pairs(pairs, t, c.n_experts, c.weighting, lane);
    add_experts(pairs + (size_t)c.n_experts * c.n_experts * WORDS, &top->empty_slots, t, lane);
}

void exf_layer_sums_add_cuda(exf_queue *q, void *sums, const exf_layer_sums_call *c)
{
    unsigned blocks = (unsigned)c->n_tokens;
    size_t bytes = token_bytes(c->top_k);
    if (c->n_tokens == 0) return;
    if (c->outputs.number == EXF_NUMBER_BF16)
        EXF_LAUNCH(q, "layer sums", add_tokens<uint16_t>, blocks, 32, bytes, static_cast<header *>(sums),
                   static_cast<const uint16_t *>(c->outputs.p), *c);
    else
        EXF_LAUNCH(q, "layer sums", add_tokens<float>, blocks, 32, bytes, static_cast<header *>(sums),
                   static_cast<const float *>(c->outputs.p), *c);
}

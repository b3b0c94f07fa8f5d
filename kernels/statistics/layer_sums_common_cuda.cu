/* layer_sums_common_cuda.cu - pair sums of common input; see layer_sums.h.
 *
 * One strided product U U^T per token, then one kernel that reads each C once: a block has 8
 * rows of pairs and 32 columns, a thread one pair, whose sums it keeps in registers while it
 * loops over the tokens; one more warp adds the sums that all pairs of a row share.  Inverse norms of cosines are float32.
 *
 * Product: 2 E E H a token; E 128, H 2048 and 128 tokens are 8.6 GFLOP, 0.011 ms at 794 TFLOP/s bf16, and 67 MB read.  Sums:
 * 4 E E bytes a token, 8.4 MB, 2 us at 4.2 TB/s; measured 43 us on an H200. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/layer_sums_internal.cuh"

enum { ROWS = 8, COLUMNS = 32, THREADS = (ROWS + 1) * COLUMNS, UNIT = EXF_COMMON_INPUT_UNIT };

/* Arrays in a call's memory: products C, and of their diagonals squares and roots. */
typedef struct {
    double *norm; /* [n, E] */
    float *sq;    /* [n, E] */
    float *c;     /* [n, E, E] */
    int n_experts;
} gram_matrices;

static size_t norms_bytes(size_t e, size_t n)
{
    return (n * e * (sizeof(double) + sizeof(float)) + 255) & ~(size_t)255;
}

static gram_matrices gram_matrices_of(const exf_gram_call *c)
{
    size_t e = (size_t)c->n_experts, n = (size_t)c->n_products;
    gram_matrices g = {static_cast<double *>(c->gram_matrices), nullptr, nullptr, c->n_experts};
    g.sq = reinterpret_cast<float *>(g.norm + n * e);
    g.c = reinterpret_cast<float *>(static_cast<char *>(c->gram_matrices) + norms_bytes(e, n));
    return g;
}

size_t exf_gram_matrices_bytes_cuda(int n_experts, int n_products)
{
    size_t e = (size_t)n_experts, n = (size_t)n_products;
    return norms_bytes(e, n) + n * e * e * sizeof(float);
}

/* ---- products ------------------------------------------------------------------------- */

static __global__ void take_diagonals(gram_matrices g, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, e = (size_t)g.n_experts;
    if (i >= n) return;
    float sq = g.c[i / e * e * e + i % e * (e + 1)];
    g.sq[i] = sq;
    g.norm[i] = sqrt((double)sq);
}

void exf_gram_matrices_cuda(exf_queue *q, const exf_gram_call *c)
{
    gram_matrices g = gram_matrices_of(c);
    float one = 1, zero = 0;
    int e = c->n_experts, h = c->d_model, n = c->n_products;
    long long from = (long long)e * h, to = (long long)e * e;
    cudaDataType type = c->outputs.number == EXF_NUMBER_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    if (n == 0 || !exf_cublas_ready(q)) return;
    exf_cublas_note(q,
                    q->cublas->gemm_batched(q->blas, CUBLAS_OP_T, CUBLAS_OP_N, e, e, h, &one, c->outputs.p, type, h, from,
                                            c->outputs.p, type, h, from, &zero, g.c, CUDA_R_32F, e, to, n, CUBLAS_COMPUTE_32F,
                                            CUBLAS_GEMM_DEFAULT),
                    "common input");
    EXF_LAUNCH(q, "common input: norms", take_diagonals, exf_blocks((size_t)n * e, 256), 256, 0, g, (size_t)n * e);
}

/* ---- sums ------------------------------------------------------------------------------ */

/* Words at a time of the cells that a lane adds to; words from one cell's line to the next in shared memory, whose banks are
 * different ones for neighbouring lanes. */
enum { AT_ONCE = 8, PITCH = LINE + 1 };

/* The tokens that a block loops over, and their weights. */
typedef struct {
    int first, n_tokens;
    bool weighted; /* by the source's norm, else by 1 */
} walk;

/* Elements of one pair for a unit of tokens; past the last token the last again. */
typedef struct {
    float c[UNIT], v[UNIT];
} elements;

static __device__ inline size_t row_of(const gram_matrices &g, const walk &k, int token)
{
    return (size_t)(k.first + min(token, k.n_tokens - 1)) * g.n_experts;
}

static __device__ inline void load_unit(elements *x, const gram_matrices &g, const walk &k, int unit, int s, int t)
{
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        size_t at = row_of(g, k, unit + i);
        x->c[i] = g.c[(at + s) * g.n_experts + t];
        x->v[i] = g.sq[at + t];
    }
}

static __device__ inline void add_total(exf_exact_registers *sum, double total)
{
    if (exf_exact_fits(total)) exf_exact_registers_add(sum, total); /* out of range: reported by the row's warp */
}

/* has_cosine: the last of the sums is cosine_sum, else dot0. */
static __device__ inline void add_unit(exf_exact_registers (&sum)[3], const elements &x, const gram_matrices &g, const walk &k,
                                       int unit, int s, bool has_cosine)
{
    double dot = 0, target_sq = 0, dot0_or_cosine = 0, w[UNIT];
#pragma unroll
    for (int i = 0; i < UNIT; i++) w[i] = g.norm[row_of(g, k, unit + i) + s];
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        bool in = unit + i < k.n_tokens; /* no branch: the compiler would move the loads above into it, and each would wait */
        double c = in ? (double)x.c[i] : 0.0, v = in ? (double)x.v[i] : 0.0, weight = k.weighted && in ? w[i] : 1.0;
        dot += weight * c;
        target_sq += weight * v;
        bool zero = !(x.v[i] > 0) || !(w[i] > 0);
        double inverse = zero ? 0.0 : (double)(1 / (float)w[i]) * (double)rsqrtf(x.v[i]);
        dot0_or_cosine += has_cosine ? c * inverse : c;
    }
    add_total(&sum[0], dot);
    add_total(&sum[1], target_sq);
    add_total(&sum[2], dot0_or_cosine);
}

/* Adds dot, target_sq, and dot0 or cosine_sum, of pair s, t; loads the next unit while it adds one. */
static __device__ inline void walk_pair(exf_exact_registers (&sum)[3], const gram_matrices &g, const walk &k, int s, int t)
{
    elements now, next;
    load_unit(&now, g, k, 0, s, t);
    for (int unit = 0; unit < k.n_tokens; unit += UNIT) {
        load_unit(&next, g, k, unit + UNIT, s, t);
        add_unit(sum, now, g, k, unit, s, exf_cell_has_cosine(s, t));
        now = next;
    }
}

/* Returns true if a unit's terms fit: eight norms below 2^20 have sums below 2^63, those of pairs included. */
static __device__ inline bool in_range(double sq, double norm)
{
    return norm < 0x1p20 && sq >= 0; /* false for NaN */
}

/* Elements of one row for a unit of tokens. */
typedef struct {
    float sq[UNIT];
    double norm[UNIT];
} own;

static __device__ inline void load_unit(own *x, const gram_matrices &g, const walk &k, int unit, int s)
{
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        size_t at = row_of(g, k, unit + i) + s;
        x->sq[i] = g.sq[at];
        x->norm[i] = g.norm[at];
    }
}

/* Adds a unit; returns -1, or the first of its tokens that is out of range. */
static __device__ inline int add_unit(exf_exact_registers (&sum)[2], const own &x, const walk &k, int unit)
{
    double source_sq = 0, sq0 = 0;
    int bad = -1;
#pragma unroll
    for (int i = UNIT - 1; i >= 0; i--)
        if (unit + i < k.n_tokens && !in_range((double)x.sq[i], x.norm[i])) bad = unit + i;
#pragma unroll
    for (int i = 0; i < UNIT; i++) {
        double sq = unit + i < k.n_tokens ? (double)x.sq[i] : 0.0;
        source_sq += (k.weighted && unit + i < k.n_tokens ? x.norm[i] : 1.0) * sq;
        sq0 += sq;
    }
    add_total(&sum[0], source_sq);
    add_total(&sum[1], sq0);
    return bad;
}

/* Adds source_sq and sq0 of row s; records the first token that is out of range. */
static __device__ inline void walk_row(exf_exact_registers (&sum)[2], const gram_matrices &g, const walk &k, int s, header *top,
                                       const int32_t *row, int64_t row_offset)
{
    own now, next;
    load_unit(&now, g, k, 0, s);
    for (int unit = 0; unit < k.n_tokens; unit += UNIT) {
        load_unit(&next, g, k, unit + UNIT, s); /* early: nothing else hides the latency of these loads */
        int bad = add_unit(sum, now, k, unit);
        if (bad >= 0)
            note_fault(&top->output, (unsigned long long)(row_offset + row[bad]), s, ALL_EXPERTS,
                       (double)g.sq[row_of(g, k, bad) + s], 0);
        now = next;
    }
}

/* Adds to one line of each of a warp's 32 neighbouring cells the digits of its lane's sums, by way of shared memory, so that
 * neighbouring lanes access neighbouring words.  No other warp adds to these cells. */
template <bool NEAR>
static __device__ inline void give_line(unsigned long long *cells, unsigned long long *exchange,
                                        const exf_exact_registers (&sum)[PAIR_SUMS], unsigned long long count, int lane)
{
    __syncwarp(); /* the line before has been read */
    exchange[lane * PITCH] = NEAR ? count : 0;
#pragma unroll
    for (int s = 0; s < PAIR_SUMS; s++) {
        unsigned long long digit[DIGITS];
        exf_exact_registers_digits(digit, sum[s]);
#pragma unroll
        for (int d = 0; d < DIGITS; d++)
            if (digit_is_near(d) == NEAR) exchange[lane * PITCH + word_of(s, d) % LINE] = digit[d];
    }
    __syncwarp();
    unsigned long long *line = cells + (NEAR ? 0 : LINE);
    for (int from = lane; from < COLUMNS * LINE; from += AT_ONCE * 32) {
        unsigned long long add[AT_ONCE], old[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int at = from + i * 32;
            add[i] = exchange[at / LINE * PITCH + at % LINE];
            if (add[i]) old[i] = line[at / LINE * WORDS + at % LINE];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int at = from + i * 32;
            if (add[i]) line[at / LINE * WORDS + at % LINE] = old[i] + add[i];
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 2)
    add_common(header *top, gram_matrices g, walk k, const int32_t *row, int64_t row_offset)
{
    __shared__ exf_exact_registers rows[ROWS][2];
    __shared__ unsigned long long exchange[ROWS][COLUMNS * PITCH];
    int lane = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS, e = g.n_experts, t = blockIdx.x * COLUMNS + lane;
    int s = blockIdx.y * ROWS + (warp == ROWS ? lane : warp);
    exf_exact_registers sum[3] = {};
    if (warp < ROWS) {
        walk_pair(sum, g, k, min(s, e - 1), min(t, e - 1));
    } else if (lane < ROWS && s < e) {
        exf_exact_registers both[2] = {};
        walk_row(both, g, k, s, top, row, row_offset);
        rows[lane][0] = both[0];
        rows[lane][1] = both[1];
    }
    __syncthreads();
    if (warp == ROWS || s >= e) return;
    unsigned long long *cells = reinterpret_cast<unsigned long long *>(top + 1) + ((size_t)s * e + blockIdx.x * COLUMNS) * WORDS;
    bool mine = t < e && s != t;
    const exf_exact_registers none = {0, 0, 0}, source_sq = rows[warp][0], sq0 = rows[warp][1];
    const exf_exact_registers all[PAIR_SUMS] = {mine ? sum[0] : none, mine ? sum[1] : none, mine ? source_sq : none,
                                                mine ? sum[2] : none, mine ? sq0 : none};
    unsigned long long count = mine ? (unsigned long long)k.n_tokens : 0;
    give_line<true>(cells, exchange[warp], all, count, lane);
    give_line<false>(cells, exchange[warp], all, count, lane);
}

void exf_layer_sums_add_common_input_cuda(exf_queue *q, void *sums, const exf_common_input_call *c)
{
    walk k = {c->first, c->n_tokens, c->weighting == EXF_WEIGHT_SOURCE_NORM};
    unsigned e = (unsigned)c->of->n_experts;
    dim3 blocks((e + COLUMNS - 1) / COLUMNS, (e + ROWS - 1) / ROWS);
    if (c->n_tokens == 0) return;
    EXF_LAUNCH(q, "common input: sums", add_common, blocks, THREADS, 0, static_cast<header *>(sums), gram_matrices_of(c->of), k,
               c->row, c->row_offset);
}

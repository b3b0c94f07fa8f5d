/* layer_sums_diagonal_cuda.cu - element-wise products of pairs; see layer_sums.h.
 *
 * A block has one pair and 2048 elements, eight a thread; it searches the tokens, 256 at a time, for those that chose both
 * experts, and adds their terms, four tokens' rows loaded at a time.
 *
 * Bytes: of every token and ordered pair that it chose two rows, K (K - 1) 2 H elements, mostly from the cache; K 8, H 2048,
 * bf16 and 4096 tokens 1.9 GB, 0.45 ms at 4.2 TB/s if none were cached; and the ids, 4 K T bytes a pair. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/statistics/pair_tokens.cuh"

enum { THREADS = 256, STEP = EXF_STEP, TILE = THREADS * STEP, AT_ONCE = 4 };

/* ---- roots of weights: a warp per slot --------------------------------------------------- */

template <class T> static __global__ void take_roots(double *root, const T *outputs, exf_diagonal_call c)
{
    size_t slot = blockIdx.x * (size_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    if (slot >= (size_t)c.n_tokens * c.top_k) return;
    double w = weight_of_slot(outputs, c, slot);
    if ((threadIdx.x & 31) == 0) root[slot] = sqrt(w);
}

/* ---- sums --------------------------------------------------------------------------------- */

/* Adds one token's terms to vu and vv: a double root times a float each. */
static __device__ inline void add_token(double (&vu)[STEP], double (&vv)[STEP], const float (&u)[STEP], const float (&v)[STEP],
                                        double root)
{
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        double x = root * (double)u[i], y = root * (double)v[i];
        vu[i] += y * x;
        vv[i] += y * y;
    }
}

template <class T>
static __device__ inline void add_found(double (&vu)[STEP], double (&vv)[STEP], const exf_pair_slots *found, int n,
                                        const T *outputs, const exf_diagonal_call &c, int column)
{
    for (int at = 0; at < n; at += AT_ONCE) {
        float u[AT_ONCE][STEP], v[AT_ONCE][STEP];
        double root[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            exf_pair_slots s = found[min(at + i, n - 1)];
            exf_load_step(u[i], outputs + (size_t)s.source * c.d_model, column, c.d_model);
            exf_load_step(v[i], outputs + (size_t)s.target * c.d_model, column, c.d_model);
            root[i] = at + i < n ? c.root[s.source] : 0; /* past the end: the last token again, times 0 */
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) add_token(vu, vv, u[i], v[i], root[i]);
    }
}

/* Adds totals to exact sums without atomics, since no other block has these sums; returns -1, or the first that does not fit. */
static __device__ inline int add_exact(exf_exact *sum, const double (&total)[STEP], int n)
{
    int bad = -1;
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        if (i >= n || total[i] == 0) continue;
        if (!exf_exact_fits(total[i])) {
            if (bad < 0) bad = i;
            continue;
        }
        exf_exact_registers w = {sum[i].limb[0], sum[i].limb[1], sum[i].limb[2]};
        exf_exact_registers_add(&w, total[i]);
        sum[i].limb[0] = w.low;
        sum[i].limb[1] = w.middle;
        sum[i].limb[2] = w.high;
    }
    return bad;
}

/* Returns total[at] without an index that only the run knows, so that the array stays in registers. */
static __device__ inline double value_at(const double (&total)[STEP], int at)
{
    double x = 0;
#pragma unroll
    for (int i = 0; i < STEP; i++) x = i == at ? total[i] : x;
    return x;
}

static __device__ inline void store_open(double *open, const double (&total)[STEP], int n)
{
#pragma unroll
    for (int i = 0; i < STEP; i++)
        if (i < n) open[i] = total[i];
}

static __device__ inline void load_open(double (&total)[STEP], const double *open, int n)
{
#pragma unroll
    for (int i = 0; i < STEP; i++) total[i] = i < n ? open[i] : 0;
}

template <class T>
static __global__ void __launch_bounds__(THREADS) add_pair(exf_diagonal_sums to, const T *outputs, exf_diagonal_call c)
{
    __shared__ exf_pair_slots found[THREADS];
    int p = blockIdx.x, column = blockIdx.y * TILE + threadIdx.x * STEP, left = min(c.d_model - column, (int)STEP);
    int source = to.pair[2 * p], target = to.pair[2 * p + 1];
    size_t at = (size_t)p * c.d_model + column;
    double *open = to.open + 2 * (size_t)p * c.d_model + column, vu[STEP] = {}, vv[STEP] = {};
    if (!c.begins && left > 0) {
        load_open(vu, open, left);
        load_open(vv, open + c.d_model, left);
    }
    for (int t = 0; t < c.n_tokens; t += THREADS) {
        int n = find_tokens<THREADS>(found, c, t, source, target);
        if (left > 0) add_found(vu, vv, found, n, outputs, c, column);
    }
    if (left <= 0) return;
    if (!c.ends) {
        store_open(open, vu, left);
        store_open(open + c.d_model, vv, left);
        return;
    }
    int bad = add_exact(to.vu + at, vu, left), bad_square = add_exact(to.vv + at, vv, left);
    if (bad >= 0) note_fault(to.bad, (unsigned long long)c.row, p, 2 * (column + bad), value_at(vu, bad), 0);
    if (bad_square >= 0)
        note_fault(to.bad, (unsigned long long)c.row, p, 2 * (column + bad_square) + 1, value_at(vv, bad_square), 0);
}

template <class T> static void launch(exf_queue *q, const exf_diagonal_sums *to, const exf_diagonal_call *c)
{
    const T *outputs = static_cast<const T *>(c->outputs.p);
    dim3 blocks((unsigned)to->n_pairs, (unsigned)((c->d_model + TILE - 1) / TILE));
    EXF_LAUNCH(q, "diagonal: roots", take_roots<T>, exf_blocks((size_t)c->n_tokens * c->top_k, 4), 128, 0, c->root, outputs, *c);
    EXF_LAUNCH(q, "diagonal", add_pair<T>, blocks, THREADS, 0, *to, outputs, *c);
}

void exf_diagonal_add_cuda(exf_queue *q, const exf_diagonal_sums *to, const exf_diagonal_call *c)
{
    if (c->n_tokens == 0 || to->n_pairs == 0) return;
    if (c->outputs.number == EXF_NUMBER_BF16)
        launch<uint16_t>(q, to, c);
    else
        launch<float>(q, to, c);
}

/* norm_head_cuda.cu - predicts the norms of routes; see norm_head.h.
 *
 * V'x is a product of bfloat16 terms (rows.h): x of two terms where the pass has it so, else of three; V of as many.  Products of
 * terms i and j with i + j below that number are added by mma.sync in float32.
 *
 * project: a block has 64 tokens, 64 directions and a slice of 512 columns; eight warps of 32 tokens x 16 directions each; 32
 * columns at a time come by cp.async, three steps ahead (two terms: 78 KB of shared memory).  Slices go to the queue's buffer, and
 * predict adds them in double in their order: equal bits whatever the tokens of a call.
 * predict: a block has 16 tokens of 16 threads; eight threads add up q directions of a slot, then a thread finishes a slot.
 *
 * T 4096, H 2048, q 64, two terms: 3.2 GFLOP, 5 us at 650 TFLOP/s; x 33.5 MB, 11 us from memory at 2960 GB/s; V once a block, 34 MB
 * from the cache; slices 4 MB. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/device/tensor_cores.cuh"
#include "kernels/fold/norm_head.h"
#include "kernels/rows/rows.h"

enum { TOKENS = 64, DIRECTIONS = 64, STEP = 32, SLICE = 512, THREADS = 256, CHUNK = 8 /* elements of 16 bytes */ };
enum { X_WIDTH = STEP + 8, X_CHUNKS = STEP / CHUNK, V_WIDTH = DIRECTIONS + 8, V_CHUNKS = DIRECTIONS / CHUNK };
static_assert(TOKENS * X_CHUNKS == THREADS && STEP * V_CHUNKS == THREADS, "a thread copies a chunk of each term");

/* ---- V'x, a slice of the columns at a time -------------------------------------------------------- */

/* The operands of a product of terms, and where its slices go. */
struct head_product {
    const uint16_t *x, *v; /* term i of token t at x + i * x_apart + t * ldx; of row c of V at v + i * v_apart + c * q */
    size_t x_apart, v_apart;
    int ldx, n_tokens, d_model, q;
    float *part;    /* [slices, T, n_directions]: V'x */
    float *squares; /* [slices, T]: squares of x */
};

static __host__ __device__ inline int slices_of(int d_model)
{
    return (d_model + SLICE - 1) / SLICE;
}

/* Returns q rounded up to what blocks compute. */
static __host__ __device__ inline int directions_of(int q)
{
    return (q + DIRECTIONS - 1) / DIRECTIONS * DIRECTIONS;
}

/* What a step multiplies; rows are an odd multiple of 16 bytes, so that eight of them meet all banks. */
template <int TERMS> struct head_step {
    uint16_t x[TERMS][TOKENS][X_WIDTH], v[TERMS][STEP][V_WIDTH];
};

template <int TERMS> static __host__ __device__ constexpr int stages_of(void)
{
    return TERMS == 2 ? 4 : 3;
}

#ifdef EXF_MMA
/* Starts copying elements [c, c + 8) of a row of n elements, zeros after its end or if it is not `there`.  ALIGNED: n and the row's
 * address allow 16 bytes at a time. */
template <bool ALIGNED>
static __device__ __forceinline__ void copy_chunk(uint16_t *to, const uint16_t *row, int c, int n, bool there)
{
    if constexpr (ALIGNED)
        exf_load16(exf_shared(to), there && c < n ? row + c : row, there && c < n);
    else
        for (int i = 0; i < CHUNK; i++) to[i] = there && c + i < n ? row[c + i] : (uint16_t)0;
}

/* Starts copying columns [at, at + STEP) of the block's tokens, and these rows of V. */
template <int TERMS, bool ALIGNED>
static __device__ __forceinline__ void copy_step(head_step<TERMS> *s, const head_product &p, int at, int end)
{
    int t = threadIdx.x / X_CHUNKS, column = threadIdx.x % X_CHUNKS * CHUNK, token = blockIdx.x * TOKENS + t;
    int c = threadIdx.x / V_CHUNKS, r = threadIdx.x % V_CHUNKS * CHUNK, first = blockIdx.z * DIRECTIONS;
    const uint16_t *x = p.x + (size_t)min(token, p.n_tokens - 1) * p.ldx, *v = p.v + (size_t)min(at + c, p.d_model - 1) * p.q;
#pragma unroll
    for (int i = 0; i < TERMS; i++) {
        copy_chunk<ALIGNED>(&s->x[i][t][column], x + i * p.x_apart, at + column, end, token < p.n_tokens);
        copy_chunk<ALIGNED>(&s->v[i][c][r], v + i * p.v_apart, first + r, p.q, at + c < end);
    }
}

/* Adds the products of a step to the warp's tile of 32 tokens and 16 directions. */
template <int TERMS> static __device__ __forceinline__ void multiply_step(float (&sum)[2][2][4], const head_step<TERMS> &s)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp / 4 * 32 + lane % 16, column = warp % 4 * 16 + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
        uint32_t x[TERMS][2][4], v[TERMS][4];
#pragma unroll
        for (int i = 0; i < TERMS; i++) {
            exf_ldmatrix(x[i][0], exf_shared(&s.x[i][row][k + lane / 16 * 8]));
            exf_ldmatrix(x[i][1], exf_shared(&s.x[i][row + 16][k + lane / 16 * 8]));
            exf_ldmatrix_transposed(v[i], exf_shared(&s.v[i][k + lane % 16][column]));
        }
#pragma unroll
        for (int i = TERMS - 1; i >= 0; i--) /* small products first */
#pragma unroll
            for (int j = TERMS - 1 - i; j >= 0; j--)
#pragma unroll
                for (int n = 0; n < 4; n++) exf_mma_bf16(sum[n / 2][n % 2], x[i][n / 2], v[j][n % 2 * 2], v[j][n % 2 * 2 + 1]);
    }
}

/* Returns the squares of this thread's chunk of its token in a step, as a sum. */
template <int TERMS> static __device__ __forceinline__ float squares_of(const head_step<TERMS> &s)
{
    float x[CHUNK] = {}, term[CHUNK], sum = 0;
#pragma unroll
    for (int i = TERMS - 1; i >= 0; i--) {
        exf_load8(term, &s.x[i][threadIdx.x / X_CHUNKS][threadIdx.x % X_CHUNKS * CHUNK]);
#pragma unroll
        for (int e = 0; e < CHUNK; e++) x[e] += term[e];
    }
#pragma unroll
    for (int e = 0; e < CHUNK; e++) sum = fmaf(x[e], x[e], sum);
    return sum;
}
#endif

template <int TERMS, bool ALIGNED> static __global__ void __launch_bounds__(THREADS) project(head_product p)
{
#ifdef EXF_MMA
    enum { STAGES = stages_of<TERMS>() };
    extern __shared__ uint4 memory[];
    head_step<TERMS> *steps = reinterpret_cast<head_step<TERMS> *>(memory);
    int begin = blockIdx.y * SLICE, end = min(begin + SLICE, p.d_model), n_steps = (end - begin + STEP - 1) / STEP;
    float sum[2][2][4] = {}, square = 0;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n_steps) copy_step<TERMS, ALIGNED>(&steps[i], p, begin + i * STEP, end);
        exf_loads_commit();
    }
    for (int i = 0, stage = 0, next = STAGES - 1; i < n_steps; i++) {
        exf_loads_wait<STAGES - 2>();
        __syncthreads(); /* step i is there, step i - 1 has been read */
        if (i + STAGES - 1 < n_steps) copy_step<TERMS, ALIGNED>(&steps[next], p, begin + (i + STAGES - 1) * STEP, end);
        exf_loads_commit();
        multiply_step(sum, steps[stage]);
        if (blockIdx.z == 0) square += squares_of(steps[stage]);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = directions_of(p.q);
    float *part = p.part + (size_t)blockIdx.y * p.n_tokens * width + blockIdx.z * DIRECTIONS + warp % 4 * 16 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int t = blockIdx.x * TOKENS + warp / 4 * 32 + i / 4 * 16 + i % 2 * 8 + lane / 4, n = i / 2 % 2;
        float2 two = {sum[i / 4][n][i % 2 * 2], sum[i / 4][n][i % 2 * 2 + 1]};
        if (t < p.n_tokens) *reinterpret_cast<float2 *>(part + (size_t)t * width + n * 8) = two;
    }
#pragma unroll
    for (int step = X_CHUNKS / 2; step > 0; step >>= 1) square += __shfl_xor_sync(0xffffffffu, square, step);
    int t = blockIdx.x * TOKENS + threadIdx.x / X_CHUNKS;
    if (blockIdx.z == 0 && threadIdx.x % X_CHUNKS == 0 && t < p.n_tokens) p.squares[(size_t)blockIdx.y * p.n_tokens + t] = square;
#endif
}

/* For a GPU without mma.sync: a thread a direction of a token. */
template <int TERMS> static __global__ void __launch_bounds__(THREADS) project_plainly(head_product p)
{
    int r = blockIdx.z * DIRECTIONS + threadIdx.x % DIRECTIONS, t = blockIdx.x * (THREADS / DIRECTIONS) + threadIdx.x / DIRECTIONS;
    int begin = blockIdx.y * SLICE, end = min(begin + SLICE, p.d_model);
    float sum = 0, square = 0;
    if (t >= p.n_tokens) return;
    for (int c = begin; c < end; c++) {
        float x = 0, v = 0;
#pragma unroll
        for (int i = TERMS - 1; i >= 0; i--) {
            x += exf_element(p.x[i * p.x_apart + (size_t)t * p.ldx + c]);
            if (r < p.q) v += exf_element(p.v[i * p.v_apart + (size_t)c * p.q + r]);
        }
        sum = fmaf(x, v, sum);
        square = fmaf(x, x, square);
    }
    size_t row = (size_t)blockIdx.y * p.n_tokens + t;
    p.part[row * directions_of(p.q) + r] = sum;
    if (r == 0) p.squares[row] = square;
}

template <int TERMS> static void queue_project(exf_queue *q, const head_product &p)
{
    size_t bytes = stages_of<TERMS>() * sizeof(head_step<TERMS>);
    bool tensor_cores = exf_uses_tensor_cores(bytes);
    unsigned tokens = tensor_cores ? TOKENS : THREADS / DIRECTIONS;
    dim3 grid(exf_blocks((size_t)p.n_tokens, tokens), (unsigned)slices_of(p.d_model), (unsigned)(directions_of(p.q) / DIRECTIONS));
    bool aligned = p.ldx % CHUNK == 0 && p.d_model % CHUNK == 0 && p.x_apart % CHUNK == 0 && p.q % CHUNK == 0;
    void (*kernel)(head_product) = aligned ? project<TERMS, true> : project<TERMS, false>;
    if (!tensor_cores) {
        EXF_LAUNCH(q, "predict norms", project_plainly<TERMS>, grid, THREADS, 0, p);
        return;
    }
    if (q->err.code == EXF_OK)
        exf_cuda_note(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "predict norms");
    EXF_LAUNCH(q, "predict norms", kernel, grid, THREADS, bytes, p);
}

/* ---- norms ------------------------------------------------------------------------------------------ */

enum { PREDICT_TOKENS = 16, LANES = THREADS / PREDICT_TOKENS, SLOT_LANES = 8 };

/* What a block of predict knows of its tokens, in shared memory. */
struct head_tokens {
    double *mean, *log_norm; /* [tokens] of the logits; log max(||x||, 1e-10) */
    double *projected; /* [tokens, q rounded up] V'x */
    double *sums;      /* [tokens, K] theta . V'x */
    int32_t *ids;      /* [tokens, K]; -1 in tokens after the last */
};

/* Returns the sum over n neighbouring threads. */
static __device__ inline double sum_of_lanes(double v, int n)
{
    for (int step = n / 2; step > 0; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step, n);
    return v;
}

/* Reads what the 16 threads of a token need of it; a token after the last has no routes. */
static __device__ __forceinline__ void read_token(const head_tokens &s, const exf_norm_head_call &c, const head_product &p)
{
    int own = threadIdx.x / LANES, lane = threadIdx.x % LANES, token = blockIdx.x * PREDICT_TOKENS + own;
    int slices = slices_of(p.d_model), width = directions_of(p.q);
    size_t t = (size_t)min(token, p.n_tokens - 1), apart = (size_t)p.n_tokens;
    double logits = 0, square = 0;
    for (int k = lane; k < c.top_k; k += LANES) s.ids[own * c.top_k + k] = token < p.n_tokens ? c.ids[t * c.top_k + k] : -1;
    for (int r = lane * 4; r < width; r += LANES * 4) {
        double sum[4] = {};
#pragma unroll 4
        for (int slice = 0; slice < slices; slice++) {
            float4 v = *reinterpret_cast<const float4 *>(p.part + (slice * apart + t) * width + r);
            sum[0] += (double)v.x, sum[1] += (double)v.y, sum[2] += (double)v.z, sum[3] += (double)v.w;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) s.projected[own * width + r + i] = sum[i];
    }
#pragma unroll 8
    for (int e = lane; e < c.n_experts; e += LANES) logits += (double)c.logits[t * c.n_experts + e];
    for (int slice = lane; slice < slices; slice += LANES) square += (double)p.squares[slice * apart + t];
    logits = sum_of_lanes(logits, LANES);
    square = sum_of_lanes(square, LANES);
    if (lane != 0) return;
    s.mean[own] = logits / c.n_experts;
    s.log_norm[own] = log(fmax(sqrt(square), 1e-10));
}

/* Adds up the directions of the block's slots, eight threads a slot: whole warps, for 16 K is a multiple of four. */
static __device__ __forceinline__ void add_directions(const head_tokens &s, const exf_norm_head_call &c)
{
    int lane = threadIdx.x % SLOT_LANES, q = c.directions, width = directions_of(q);
#pragma unroll 4
    for (int slot = threadIdx.x / SLOT_LANES; slot < PREDICT_TOKENS * c.top_k; slot += THREADS / SLOT_LANES) {
        const float *theta = c.theta + (size_t)max(s.ids[slot], 0) * (q + 4) + 1;
        const double *projected = s.projected + slot / c.top_k * width;
        double sum = 0;
#pragma unroll 8
        for (int r = lane; r < q; r += SLOT_LANES) sum += (double)theta[r] * projected[r];
        sum = sum_of_lanes(sum, SLOT_LANES);
        if (lane == 0) s.sums[slot] = sum;
    }
}

/* Predicts the norm of a slot of the block and writes it. */
static __device__ __forceinline__ void finish_slot(const head_tokens &s, const exf_norm_head_call &c, int slot)
{
    int own = slot / c.top_k, id = s.ids[slot], first = own * c.top_k;
    size_t t = (size_t)blockIdx.x * PREDICT_TOKENS + own, at = t * c.top_k + slot % c.top_k;
    if (t >= (size_t)c.n_tokens) return;
    c.routed[at] = id;
    if (id < 0) return;
    while (s.ids[first] != id) first++; /* the token's first slot with this expert */
    const float *theta = c.theta + (size_t)id * (c.directions + 4);
    double w = (double)c.weights[t * c.top_k + first % c.top_k], sum = s.sums[slot] + (double)theta[0];
    sum += (double)theta[c.directions + 1] * ((double)c.logits[t * c.n_experts + id] - s.mean[own]);
    sum += (double)theta[c.directions + 2] * log(fmax(w, 1e-6)) + (double)theta[c.directions + 3] * s.log_norm[own];
    float n = (float)exp(sum);
    c.norms[at] = n;
    if (!(n > 0) || !isfinite(n))
        atomicMin(reinterpret_cast<unsigned long long *>(c.bad), (unsigned long long)(c.row + (unsigned long long)t));
}

/* Bytes of shared memory that `s` points to. */
static size_t tokens_bytes(int q, int top_k)
{
    size_t slots = PREDICT_TOKENS * (size_t)top_k;
    return (PREDICT_TOKENS * (size_t)directions_of(q) + slots) * sizeof(double) + slots * sizeof(int32_t);
}

static __global__ void __launch_bounds__(THREADS) predict(exf_norm_head_call c, head_product p)
{
    extern __shared__ double numbers[];
    __shared__ double mean[PREDICT_TOKENS], log_norm[PREDICT_TOKENS];
    int slots = PREDICT_TOKENS * c.top_k;
    double *sums = numbers + PREDICT_TOKENS * directions_of(c.directions);
    const head_tokens s = {mean, log_norm, numbers, sums, reinterpret_cast<int32_t *>(sums + slots)};
    read_token(s, c, p);
    __syncthreads();
    add_directions(s, c);
    __syncthreads();
    for (int slot = threadIdx.x; slot < slots; slot += THREADS) finish_slot(s, c, slot);
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* Returns n rounded up, so that what follows n elements is aligned to 16 bytes. */
static size_t aligned(size_t n)
{
    return (n + CHUNK - 1) / CHUNK * CHUNK;
}

/* Predicts for as many tokens as the queue's buffer has room for. */
static void predict_some(exf_queue *q, const exf_norm_head_call &c, uint16_t *buffer)
{
    size_t n = (size_t)c.n_tokens, h = (size_t)c.d_model, slices = (size_t)slices_of(c.d_model);
    head_product p = {.x = static_cast<const uint16_t *>(c.x), .v = c.basis, .x_apart = h, .v_apart = c.apart, .ldx = 2 * c.d_model,
                      .n_tokens = c.n_tokens, .d_model = c.d_model, .q = c.directions, .part = reinterpret_cast<float *>(buffer),
                      .squares = NULL};
    p.squares = p.part + slices * n * (size_t)directions_of(p.q);
    if (c.split) {
        queue_project<2>(q, p);
    } else {
        uint16_t *terms = reinterpret_cast<uint16_t *>(p.squares + aligned(slices * n));
        p.x = terms;
        p.x_apart = aligned(n * h);
        p.ldx = c.d_model;
        exf_split_rows_cuda(q, terms, p.x_apart, static_cast<const float *>(c.x), c.d_model, c.n_tokens, c.d_model);
        queue_project<EXF_SPLIT_TERMS>(q, p);
    }
    EXF_LAUNCH(q, "predict norms", predict, exf_blocks(n, PREDICT_TOKENS), THREADS, tokens_bytes(p.q, c.top_k), c, p);
}

void exf_predict_norms_cuda(exf_queue *q, const exf_norm_head_call *c)
{
    size_t h = (size_t)c->d_model, k = (size_t)c->top_k, terms = c->split ? 0 : EXF_SPLIT_TERMS;
    size_t each = 2 * (size_t)slices_of(c->d_model) * (size_t)(directions_of(c->directions) + 1) + terms * h; /* of a token */
    size_t most = EXF_BUFFER_BYTES / sizeof(uint16_t) / each;
    uint16_t *buffer = exf_queue_buffer(q);
    if (c->n_tokens == 0 || !buffer) return;
    if (most < 1) exf_fail(&q->err, EXF_INTERNAL, "norm head of %d directions of %d numbers is too large", c->directions, c->d_model);
    for (size_t at = 0, n; most > 0 && at < (size_t)c->n_tokens; at += n) {
        exf_norm_head_call some = *c;
        n = (size_t)c->n_tokens - at < most ? (size_t)c->n_tokens - at : most;
        some.n_tokens = (int)n;
        some.x = static_cast<const char *>(c->x) + at * h * sizeof(float); /* two bfloat16 are as long */
        some.logits += at * (size_t)c->n_experts;
        some.ids += at * k;
        some.weights += at * k;
        some.norms += at * k;
        some.routed += at * k;
        some.row += at;
        predict_some(q, some, buffer);
    }
}

/* layer_sums_fetch_cuda.cu - ends a sequence by adding to the sequence sums, turns to the sequences of the other half, and
 * ends a layer by copying all sums to the host; see layer_sums.h and layer_sums_internal.cuh.
 *
 * Ending a sequence: half a warp a pair, a lane a word, so that a warp reads and writes whole lines of 128 bytes, and no read
 * waits for another.  It reads the two cells of 256 bytes of each pair, and writes one of those that it touched; E 128: 8.4 MB
 * read and at most half of it written, 3 us at 4.0 TB/s; measured 6.6.  Turning, between sequences of different halves: a thread a
 * word, 12.6 MB, 3 us; measured 5.2.  Collecting: a thread a cell; it reads and zeroes all cells.  Each array then goes to its
 * place on the host, at the bus's rate where that is pinned: no thread of the host reads them on the way. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/statistics/layer_sums_internal.cuh"

enum { CLOSE_THREADS = 128 };

/* Bytes of the sums and counts that cross. */
static size_t collected_bytes(int n_experts)
{
    size_t e = (size_t)n_experts;
    size_t sums = (PAIR_SUMS + 1 + SEQUENCE_SUMS + HALF_SUMS) * e * e + EXPERT_SUMS * e;
    return sums * sizeof(exf_exact) + (3 * e * e + e) * sizeof(uint64_t);
}

size_t exf_layer_sums_bytes_cuda(int n_experts)
{
    return sizeof(header) + n_cells(n_experts) * WORDS * 8 + collected_bytes(n_experts);
}

/* Carries six digits into a 192-bit integer. */
static __device__ inline exf_exact carried(const unsigned long long (&digit)[DIGITS])
{
    exf_exact out = {{0, 0, 0}};
    long long carry = 0;
#pragma unroll
    for (int d = 0; d < DIGITS; d++) {
        long long v = (long long)digit[d] + carry;
        out.limb[d / 2] |= ((unsigned long long)v & 0xffffffffu) << 32 * (d & 1);
        carry = v >> 32;
    }
    return out;
}

/* ---- sequences ------------------------------------------------------------------------ */

/* Returns x * 2^(e - 96), of the nearest double to x, half to even. */
static __device__ inline double scaled(unsigned long long x, int e)
{
    return (double)x * __hiloint2double((1023 - 96 + e) << 20, 0);
}

/* Returns the nearest double, half to even, like exf_exact_value(). */
static __device__ inline double value_of(exf_exact a)
{
    bool negative = a.limb[2] >> 63;
    if (negative) exf_exact_negate(&a);
    unsigned long long high = a.limb[2], middle = a.limb[1], low = a.limb[0];
    int e = 128;
    for (int i = 0; i < 2 && high == 0; i++, e -= 64) high = middle, middle = low, low = 0;
    int shift = __clzll((long long)(high | 1)); /* of 0, too, less than 64 */
    unsigned long long top = high << shift | middle >> 1 >> (63 - shift), rest = middle << shift | low;
    double v = scaled(top | (rest != 0), e - shift); /* a bit below the half's place tells that there is more */
    return negative ? -v : v;
}

/* The words of one cell that a lane of a half warp has. */
typedef struct {
    unsigned long long near, far;
} lane_words;

/* Returns the value of a sum of the cell that the calling half warp, the lanes of `mask`, has. */
static __device__ inline double sum_in_lanes(unsigned mask, lane_words w, int sum)
{
    unsigned long long digit[DIGITS];
#pragma unroll
    for (int d = 0; d < DIGITS; d++)
        digit[d] = __shfl_sync(mask, digit_is_near(d) ? w.near : w.far, word_of(sum, d) % LINE, LINE);
    return value_of(carried(digit));
}

/* Half a warp has a pair: a lane its word of both lines of both cells, whose layouts agree.  Even lanes make the value of dot,
 * odd ones that of target_sq, and each lane adds its digit of its sum's term. */
static __global__ void __launch_bounds__(CLOSE_THREADS)
    close_sequence(header *top, const unsigned long long *pairs, unsigned long long *cells, int n_experts, double scale,
                   unsigned long long sequence)
{
    size_t i = blockIdx.x * (size_t)(CLOSE_THREADS / LINE) + threadIdx.x / LINE;
    int word = threadIdx.x % LINE;
    unsigned mask = 0xffffu << (threadIdx.x & LINE);
    if (i >= (size_t)n_experts * n_experts) return;
    const unsigned long long *pair = pairs + i * WORDS + word;
    unsigned long long *cell = cells + i * WORDS + word;
    lane_words now = {pair[0], pair[LINE]}, old = {cell[0], cell[LINE]}, added = {now.near - old.near, now.far - old.far};
    if (__shfl_sync(mask, added.near, COUNT, LINE) == 0) return; /* all lanes: the sequence has no such pair */
    double own = scale * sum_in_lanes(mask, added, word & 1), other = __shfl_xor_sync(mask, own, 1);
    double a = word & 1 ? other : own, b = word & 1 ? own : other;
    if (!exf_exact_fits(a * a) || !exf_exact_fits(b * b)) {
        if (word == COUNT)
            note_fault(&top->sequence, sequence, (int)(i / n_experts), (int)(i % n_experts), a / scale, b / scale);
        return;
    }
    line_word mine = line_word_of(word);
    bool near;
    long long digit = digit_in_place(mine.sum == SUM_AA ? a * a : mine.sum == SUM_AB ? a * b : b * b, mine.place, &near);
    if (word == COUNT) {
        now.far = old.far + 1; /* SEQUENCES */
    } else if (mine.sum >= SUM_AA) {
        now.near = old.near + (near ? digit : 0);
        now.far = old.far + (near ? 0 : digit);
    }
    cell[0] = now.near;
    cell[LINE] = now.far;
}

static_assert(WORDS == EXF_CELL_WORDS && CELL_SUMS + 1 == EXF_CELL_VALUES, "exf_cells_call has cells of this layout");

static unsigned long long *cells_of(void *sums)
{
    return reinterpret_cast<unsigned long long *>(static_cast<header *>(sums) + 1);
}

static unsigned long long *sequence_cells_of(void *sums, int n_experts)
{
    return cells_of(sums) + ((size_t)n_experts * n_experts + n_experts) * WORDS;
}

void exf_layer_sums_close_sequence_cuda(exf_queue *q, void *sums, int n_experts, double scale, uint64_t sequence)
{
    unsigned blocks = exf_blocks((size_t)n_experts * n_experts, CLOSE_THREADS / LINE);
    EXF_LAUNCH(q, "layer sums: sequence", close_sequence, blocks, CLOSE_THREADS, 0, static_cast<header *>(sums), cells_of(sums),
               sequence_cells_of(sums, n_experts), n_experts, scale, (unsigned long long)sequence);
}

/* ---- halves ----------------------------------------------------------------------------- */

/* A thread per word.  Digits of differences are as those of sums: not carried, and as far from an overflow. */
static __global__ void turn_half(unsigned long long *half, const unsigned long long *pairs, size_t words, int add)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < words) half[i] += add ? pairs[i] : 0 - pairs[i];
}

static unsigned long long *half_cells_of(void *sums, int n_experts)
{
    return sequence_cells_of(sums, n_experts) + (size_t)n_experts * n_experts * WORDS;
}

void exf_layer_sums_turn_half_cuda(exf_queue *q, void *sums, int n_experts, int add)
{
    size_t words = (size_t)n_experts * n_experts * WORDS;
    EXF_LAUNCH(q, "layer sums: half", turn_half, exf_blocks(words, 256), 256, 0, half_cells_of(sums, n_experts), cells_of(sums),
               words, add);
}

/* ---- cells before and after a few tokens --------------------------------------------------- */

/* Returns the cell of source a and target b of a row, or of expert a if they are one; NULL: there is none. */
static __device__ inline const unsigned long long *cell_of(const unsigned long long *cells, const exf_cells_call &c, size_t i)
{
    size_t w = (size_t)c.width, e = (size_t)c.n_experts, row = i / (w * w);
    int a = (int)(i / w % w), b = (int)(i % w), source = c.ids[row * w + a], target = c.ids[row * w + b];
    if (source < 0 || target < 0) return nullptr;
    return cells + (a == b ? e * e + (size_t)source : (size_t)source * e + (size_t)target) * WORDS;
}

/* A thread per word. */
static __global__ void copy_cells(const unsigned long long *cells, exf_cells_call c, size_t n_cells)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n_cells * WORDS) return;
    const unsigned long long *cell = cell_of(cells, c, i / WORDS);
    c.before[i] = cell ? cell[i % WORDS] : 0;
}

/* A thread per value. */
static __global__ void subtract_cells(const unsigned long long *cells, exf_cells_call c, size_t n_cells)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, at = i / EXF_CELL_VALUES;
    int s = (int)(i % EXF_CELL_VALUES);
    if (at >= n_cells) return;
    const unsigned long long *cell = cell_of(cells, c, at);
    const uint64_t *before = c.before + at * WORDS;
    unsigned long long digit[DIGITS];
    if (!cell) {
        c.added[i] = 0;
        return;
    }
    if (s == CELL_SUMS) {
        c.added[i] = (double)(cell[COUNT] - before[COUNT]);
        return;
    }
#pragma unroll
    for (int d = 0; d < DIGITS; d++) digit[d] = cell[word_of(s, d)] - before[word_of(s, d)];
    c.added[i] = value_of(carried(digit));
}

static size_t cells_of_rows(const exf_cells_call *c)
{
    return (size_t)c->n_rows * (size_t)c->width * (size_t)c->width;
}

static const unsigned long long *cells_in(const void *sums)
{
    return reinterpret_cast<const unsigned long long *>(static_cast<const header *>(sums) + 1);
}

void exf_layer_sums_cells_before_cuda(exf_queue *q, const void *sums, const exf_cells_call *c)
{
    size_t n = cells_of_rows(c);
    EXF_LAUNCH(q, "cells before", copy_cells, exf_blocks(n * WORDS, 256), 256, 0, cells_in(sums), *c, n);
}

void exf_layer_sums_cells_added_cuda(exf_queue *q, const void *sums, const exf_cells_call *c)
{
    size_t n = cells_of_rows(c);
    EXF_LAUNCH(q, "cells added", subtract_cells, exf_blocks(n * EXF_CELL_VALUES, 256), 256, 0, cells_in(sums), *c, n);
}

/* ---- fetching ------------------------------------------------------------------------ */

/* Copies n_sums sums of each cell, from first_sum on, to arrays, sum after sum, and a count, and zeroes the cells. */
static __global__ void collect(exf_exact *exact, unsigned long long *count, unsigned long long *cells, size_t n, int first_sum,
                               int n_sums, int count_word)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long *cell = cells + i * WORDS, digit[DIGITS];
    for (int s = 0; s < n_sums; s++) {
#pragma unroll
        for (int d = 0; d < DIGITS; d++) digit[d] = cell[word_of(first_sum + s, d)];
        exact[s * n + i] = carried(digit);
    }
    count[i] = cell[count_word];
    for (int w = 0; w < WORDS; w++) cell[w] = 0;
}

/* Does so with the cells of pairs; of the sum that is dot0 or cosine_sum makes both, a cell's value in both directions. */
static __global__ void collect_pairs(exf_exact *exact, unsigned long long *count, unsigned long long *cells, int n_experts)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, e = (size_t)n_experts, n = e * e;
    if (i >= n) return;
    unsigned long long *cell = cells + i * WORDS, digit[DIGITS];
    size_t source = i / e, target = i % e, mirror = target * e + source;
    for (int s = 0; s < PAIR_SUMS; s++) {
#pragma unroll
        for (int d = 0; d < DIGITS; d++) digit[d] = cell[word_of(s, d)];
        exf_exact sum = carried(digit);
        if (s != SUM_DOT0_OR_COSINE || source == target) {
            exact[s * n + i] = sum;
            continue;
        }
        exf_exact *both = exact + (exf_cell_has_cosine((int)source, (int)target) ? (size_t)PAIR_SUMS : (size_t)s) * n;
        both[i] = both[mirror] = sum;
    }
    if (source == target) exact[PAIR_SUMS * n + i] = exf_exact{{0, 0, 0}};
    count[i] = cell[COUNT];
    for (int w = 0; w < WORDS; w++) cell[w] = 0;
}

/* The place among the collected sums, whose arrays lie one after the other. */
typedef struct {
    exf_queue *q;
    const char *from;
} copier;

/* Queues the copy of the next array to the host. */
static void copy_next(copier *c, void *to, size_t bytes)
{
    if (c->q->err.code == EXF_OK)
        exf_cuda_note(c->q, cudaMemcpyAsync(to, c->from, bytes, cudaMemcpyDeviceToHost, c->q->stream), "layer sums");
    c->from += bytes;
}

/* Queues the copies of what collect_all() puts into `from`; over NULL: nobody wants what is over sequences. */
static void copy_all(exf_queue *q, const exf_layer_sums *m, const exf_sequence_sums *over, const char *from, size_t e)
{
    exf_exact *const pair[PAIR_SUMS + 1] = {m->dot, m->target_sq, m->source_sq, m->dot0, m->sq0, m->cosine_sum};
    exf_exact *const expert[EXPERT_SUMS] = {m->norm_sum, m->sq_sum, m->route_weight_sum, m->contribution_sum, m->energy_sum};
    copier c = {q, from};
    for (int s = 0; s <= PAIR_SUMS; s++) copy_next(&c, pair[s], e * e * sizeof *pair[s]);
    copy_next(&c, m->count, e * e * sizeof *m->count);
    for (int s = 0; s < EXPERT_SUMS; s++) copy_next(&c, expert[s], e * sizeof *expert[s]);
    copy_next(&c, m->norm_count, e * sizeof *m->norm_count);
    if (!over) return;
    exf_exact *const sequences[SEQUENCE_SUMS] = {over->aa, over->ab, over->bb};
    exf_exact *const half[HALF_SUMS] = {over->half_dot, over->half_target_sq, over->half_source_sq};
    for (int s = 0; s < SEQUENCE_SUMS; s++) copy_next(&c, sequences[s], e * e * sizeof *sequences[s]);
    copy_next(&c, over->sequences, e * e * sizeof *over->sequences);
    for (int s = 0; s < HALF_SUMS; s++) copy_next(&c, half[s], e * e * sizeof *half[s]);
    copy_next(&c, over->half_count, e * e * sizeof *over->half_count);
}

/* Queues the collecting of all cells into `out`. */
static void collect_all(exf_queue *q, void *sums, char *out, int n_experts)
{
    size_t e = (size_t)n_experts, pairs = e * e;
    exf_exact *pair = reinterpret_cast<exf_exact *>(out);
    unsigned long long *pair_count = reinterpret_cast<unsigned long long *>(pair + (PAIR_SUMS + 1) * pairs);
    exf_exact *expert = reinterpret_cast<exf_exact *>(pair_count + pairs);
    unsigned long long *expert_count = reinterpret_cast<unsigned long long *>(expert + EXPERT_SUMS * e);
    exf_exact *over = reinterpret_cast<exf_exact *>(expert_count + e);
    unsigned long long *over_count = reinterpret_cast<unsigned long long *>(over + SEQUENCE_SUMS * pairs);
    exf_exact *half = reinterpret_cast<exf_exact *>(over_count + pairs);
    EXF_LAUNCH(q, "layer sums: collect", collect_pairs, exf_blocks(pairs, 128), 128, 0, pair, pair_count, cells_of(sums),
               n_experts);
    EXF_LAUNCH(q, "layer sums: collect", collect, exf_blocks(e, 128), 128, 0, expert, expert_count, cells_of(sums) + pairs * WORDS,
               e, 0, (int)EXPERT_SUMS, (int)COUNT);
    EXF_LAUNCH(q, "layer sums: collect", collect, exf_blocks(pairs, 128), 128, 0, over, over_count,
               sequence_cells_of(sums, n_experts), pairs, (int)SUM_AA, (int)SEQUENCE_SUMS, (int)SEQUENCES);
    EXF_LAUNCH(q, "layer sums: collect", collect, exf_blocks(pairs, 128), 128, 0, half,
               reinterpret_cast<unsigned long long *>(half + HALF_SUMS * pairs), half_cells_of(sums, n_experts), pairs, 0,
               (int)HALF_SUMS, (int)COUNT);
}

/* The message of what was noted while sums were added. */
static exf_code refuse_fault(const header *was, exf_sums_place *place, exf_err *err)
{
    const exf_sums_fault *f = was->output.place ? &was->output : &was->sequence;
    uint64_t at = ~f->place;
    *place = f == &was->output ? exf_sums_place{(int64_t)at, -1} : exf_sums_place{-1, (int64_t)at};
    if (f == &was->output) return exf_output_fault(err, f->a, f->x, f->b == ALL_EXPERTS ? nullptr : &f->y);
    return exf_sequence_fault(err, at, f->a, f->b, f->x, f->y);
}

exf_code exf_layer_sums_take_cuda(exf_queue *q, void *sums, const exf_layer_sums *to, const exf_sequence_sums *over, int n_experts,
                                  exf_sums_place *place, exf_err *err)
{
    header *top = static_cast<header *>(sums), was = {};
    char *out = reinterpret_cast<char *>(cells_of(sums) + n_cells(n_experts) * WORDS);
    collect_all(q, sums, out, n_experts);
    copy_all(q, to, over, out, (size_t)n_experts);
    if (q->err.code == EXF_OK)
        exf_cuda_note(q, cudaMemcpyAsync(&was, top, sizeof was, cudaMemcpyDeviceToHost, q->stream), "layer sums");
    if (q->err.code == EXF_OK) exf_cuda_note(q, cudaMemsetAsync(top, 0, sizeof *top, q->stream), "layer sums");
    exf_code rc = exf_finish_cuda(q, err);
    if (rc != EXF_OK) return rc;
    if (was.output.place || was.sequence.place) return refuse_fault(&was, place, err);
    *to->empty_slots = was.empty_slots;
    return EXF_OK;
}

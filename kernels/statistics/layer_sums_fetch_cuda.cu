/* layer_sums_fetch_cuda.cu - ends a sequence by adding to the sequence sums, turns to the sequences of the other half, and
 * ends a layer by copying all sums to the host; see layer_sums.h and layer_sums_internal.cuh.
 *
 * A thread per cell, or per word where a cell's words are on their own.  Ending a sequence reads and writes two cells of 256
 * bytes of each pair that it touched; E 128: at most 8.4 MB read and half of it written, 3 us at 4.2 TB/s.  Turning, between
 * sequences of different halves, reads 160 bytes of each pair's cell and of the half's, and writes the latter: 7.9 MB, as
 * long.  Collecting reads and zeroes all cells. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/statistics/layer_sums_internal.cuh"

#include "base/parallel.h"

#include <cstring>

size_t exf_layer_sums_bytes_cuda(int n_experts)
{
    return sizeof(header) + n_cells(n_experts) * WORDS * 8 + exf_layer_sums_host_bytes(n_experts);
}

/* ---- sequences ------------------------------------------------------------------------ */

/* Returns bits [from, from + 64) of a. */
static __device__ inline unsigned long long window(const exf_exact &a, int from)
{
    int word = from >> 6, bit = from & 63;
    unsigned long long low = a.limb[word] >> bit;
    return bit && word < 2 ? low | a.limb[word + 1] << (64 - bit) : low;
}

/* Returns the nearest double, half to even, like exf_exact_value(). */
static __device__ inline double value_of(exf_exact a)
{
    bool negative = a.limb[2] >> 63;
    if (negative) exf_exact_negate(&a);
    int bits = a.limb[2]   ? 192 - __clzll((long long)a.limb[2])
               : a.limb[1] ? 128 - __clzll((long long)a.limb[1])
                           : 64 - __clzll((long long)a.limb[0]);
    int drop = bits - 53;
    double v;
    if (drop <= 0) {
        v = ldexp((double)a.limb[0], -96);
    } else {
        unsigned long long m = window(a, drop) & ((1ull << 53) - 1), half = window(a, drop - 1) & 1, rest = 0;
        for (int i = 0; i < 3; i++) {
            int in_limb = drop - 1 - 64 * i;
            if (in_limb > 0) rest |= a.limb[i] & (in_limb >= 64 ? ~0ull : (1ull << in_limb) - 1);
        }
        if (half && (rest || (m & 1))) m++;
        v = ldexp((double)m, drop - 96);
    }
    return negative ? -v : v;
}

static __global__ void close_sequence(header *top, const unsigned long long *pairs, unsigned long long *cells, int n_experts,
                                      double scale, unsigned long long sequence)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= (size_t)n_experts * n_experts) return;
    const unsigned long long *now = pairs + i * WORDS; /* dot, target_sq, ..., count */
    unsigned long long *cell = cells + i * WORDS;
    if (now[COUNT] == cell[OLD_COUNT]) return;
    double a = scale * value_of(carried(now, cell + OLD_DOT)), b = scale * value_of(carried(now + DIGITS, cell + OLD_TARGET));
    if (!exf_exact_fits(a * a) || !exf_exact_fits(b * b)) {
        note_fault(&top->sequence, sequence, (int)(i / n_experts), (int)(i % n_experts), a / scale, b / scale);
        return;
    }
    add_term(cell + SUM_AA, a * a);
    add_term(cell + SUM_AB, a * b);
    add_term(cell + SUM_BB, b * b);
    cell[SEQUENCES]++;
    for (int d = 0; d < 2 * DIGITS; d++) cell[d] = now[d];
    cell[OLD_COUNT] = now[COUNT];
}

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
    size_t pairs = (size_t)n_experts * n_experts;
    EXF_LAUNCH(q, "layer sums: sequence", close_sequence, exf_blocks(pairs, 128), 128, 0, static_cast<header *>(sums),
               cells_of(sums), sequence_cells_of(sums, n_experts), n_experts, scale, (unsigned long long)sequence);
}

/* ---- halves ----------------------------------------------------------------------------- */

/* A thread per word: dot, target_sq, source_sq and count.  Digits of differences are as those of sums: not carried, and as far from
 * an overflow. */
static __global__ void turn_half(unsigned long long *half, const unsigned long long *pairs, size_t words, int add)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    int word = (int)(i % WORDS);
    if (i >= words || (word >= HALF_SUMS * DIGITS && word != COUNT)) return;
    half[i] += add ? pairs[i] : 0 - pairs[i];
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

/* ---- fetching ------------------------------------------------------------------------ */

/* Copies cells to arrays, sum after sum, and zeroes the cells. */
static __global__ void collect(exf_exact *exact, unsigned long long *count, unsigned long long *cells, size_t n, int n_sums)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long *cell = cells + i * WORDS;
    for (int s = 0; s < n_sums; s++) exact[s * n + i] = carried(cell + s * DIGITS, nullptr);
    count[i] = cell[COUNT];
    for (int w = 0; w < WORDS; w++) cell[w] = 0;
}

/* Does the same for sequence cells. */
static __global__ void collect_sequences(exf_exact *exact, unsigned long long *count, unsigned long long *cells, size_t n)
{
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long *cell = cells + i * WORDS;
    for (int s = 0; s < SEQUENCE_SUMS; s++) exact[s * n + i] = carried(cell + SUM_AA + s * DIGITS, nullptr);
    count[i] = cell[SEQUENCES];
    for (int w = 0; w < WORDS; w++) cell[w] = 0;
}

/* An array of the host copy and the sums it is added to: exact sums or counts. */
struct part {
    exf_exact *sum; /* NULL: counts */
    uint64_t *count;
    const char *from;
    size_t n;
};

static void merge_part(const part *p)
{
    for (size_t i = 0; i < p->n; i++) {
        exf_exact x;
        uint64_t c;
        if (p->sum) {
            memcpy(&x, p->from + i * sizeof x, sizeof x);
            exf_exact_merge(&p->sum[i], &x);
        } else {
            memcpy(&c, p->from + i * sizeof c, sizeof c);
            p->count[i] += c;
        }
    }
}

struct parts {
    part p[PAIR_SUMS + EXPERT_SUMS + SEQUENCE_SUMS + HALF_SUMS + 4];
    size_t n;
    const char *at;
};

static void list_part(parts *all, exf_exact *sum, uint64_t *count, size_t n)
{
    all->p[all->n++] = {sum, count, all->at, n};
    all->at += n * (sum ? sizeof *sum : sizeof *count);
}

/* Adds the collected sums in `host` (pairs' sums and counts, the experts', those over sequences, those of the half) to
 * m and over.  With hundreds of experts these are megabytes, so each array gets a thread. */
static void merge_all(const exf_layer_sums *m, const exf_sequence_sums *over, const char *host, size_t e)
{
    exf_exact *const pair[PAIR_SUMS] = {m->dot, m->target_sq, m->source_sq, m->dot0, m->sq0};
    exf_exact *const expert[EXPERT_SUMS] = {m->norm_sum, m->sq_sum, m->route_weight_sum, m->contribution_sum,
                                            m->energy_sum};
    parts all = {{}, 0, host};
    for (int s = 0; s < PAIR_SUMS; s++) list_part(&all, pair[s], nullptr, e * e);
    list_part(&all, nullptr, m->count, e * e);
    for (int s = 0; s < EXPERT_SUMS; s++) list_part(&all, expert[s], nullptr, e);
    list_part(&all, nullptr, m->norm_count, e);
    if (over) {
        list_part(&all, over->aa, nullptr, e * e);
        list_part(&all, over->ab, nullptr, e * e);
        list_part(&all, over->bb, nullptr, e * e);
        list_part(&all, nullptr, over->sequences, e * e);
        list_part(&all, over->half_dot, nullptr, e * e);
        list_part(&all, over->half_target_sq, nullptr, e * e);
        list_part(&all, over->half_source_sq, nullptr, e * e);
        list_part(&all, nullptr, over->half_count, e * e);
    }
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(all.n, exf_background_threads()))
    for (size_t i = 0; i < all.n; i++) merge_part(&all.p[i]);
}

/* Queues the collecting of all cells into `out`. */
static void collect_all(exf_queue *q, void *sums, char *out, int n_experts)
{
    size_t e = (size_t)n_experts, pairs = e * e;
    exf_exact *pair = reinterpret_cast<exf_exact *>(out);
    unsigned long long *pair_count = reinterpret_cast<unsigned long long *>(pair + PAIR_SUMS * pairs);
    exf_exact *expert = reinterpret_cast<exf_exact *>(pair_count + pairs);
    unsigned long long *expert_count = reinterpret_cast<unsigned long long *>(expert + EXPERT_SUMS * e);
    exf_exact *over = reinterpret_cast<exf_exact *>(expert_count + e);
    unsigned long long *over_count = reinterpret_cast<unsigned long long *>(over + SEQUENCE_SUMS * pairs);
    exf_exact *half = reinterpret_cast<exf_exact *>(over_count + pairs);
    EXF_LAUNCH(q, "layer sums: collect", collect, exf_blocks(pairs, 128), 128, 0, pair, pair_count, cells_of(sums), pairs,
               (int)PAIR_SUMS);
    EXF_LAUNCH(q, "layer sums: collect", collect, exf_blocks(e, 128), 128, 0, expert, expert_count, cells_of(sums) + pairs * WORDS,
               e, (int)EXPERT_SUMS);
    EXF_LAUNCH(q, "layer sums: collect", collect_sequences, exf_blocks(pairs, 128), 128, 0, over, over_count,
               sequence_cells_of(sums, n_experts), pairs);
    EXF_LAUNCH(q, "layer sums: collect", collect, exf_blocks(pairs, 128), 128, 0, half,
               reinterpret_cast<unsigned long long *>(half + HALF_SUMS * pairs), half_cells_of(sums, n_experts), pairs,
               (int)HALF_SUMS);
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
                                  void *host, exf_sums_place *place, exf_err *err)
{
    header *top = static_cast<header *>(sums), was = {};
    char *out = reinterpret_cast<char *>(cells_of(sums) + n_cells(n_experts) * WORDS);
    collect_all(q, sums, out, n_experts);
    if (q->err.code == EXF_OK)
        exf_cuda_note(q, cudaMemcpyAsync(host, out, exf_layer_sums_host_bytes(n_experts), cudaMemcpyDeviceToHost, q->stream),
                      "layer sums");
    if (q->err.code == EXF_OK)
        exf_cuda_note(q, cudaMemcpyAsync(&was, top, sizeof was, cudaMemcpyDeviceToHost, q->stream), "layer sums");
    if (q->err.code == EXF_OK) exf_cuda_note(q, cudaMemsetAsync(top, 0, sizeof *top, q->stream), "layer sums");
    exf_code rc = exf_finish_cuda(q, err);
    if (rc != EXF_OK) return rc;
    if (was.output.place || was.sequence.place) return refuse_fault(&was, place, err);
    *to->empty_slots += was.empty_slots;
    merge_all(to, over, static_cast<const char *>(host), (size_t)n_experts);
    return EXF_OK;
}

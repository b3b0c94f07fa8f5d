/* moe_router_cuda.cu - the router, a warp a token; see moe.h.  Arithmetic is double, as in the reference; ties go to the lower
 * expert number.
 *
 * Bytes: logits read, 4 E a token, ids and weights written, 8 K; E 128, K 8 and 4096 tokens are 2.4 MB, 0.6 us at 4.2 TB/s.
 * A token takes K passes over its E choices in shared memory, and E exponentials in double. */
#include "kernels/device/cuda_queue.cuh"
#include "kernels/device/cuda_rows.cuh"
#include "kernels/device/hopper.cuh"
#include "kernels/moe/route_weights.h"

#include <cfloat>

/* Experts of the largest model that the programs take: the most for which shared memory is requested. */
enum { MOST_ROUTED = 4096 };

/* Finds the largest value over the lanes, ties to the lower index; every lane gets both. */
static __device__ void warp_argmax(double *value, int *index)
{
    for (int step = 16; step > 0; step >>= 1) {
        double v = __shfl_xor_sync(0xffffffffu, *value, step);
        int i = __shfl_xor_sync(0xffffffffu, *index, step);
        if (v > *value || (v == *value && i < *index)) {
            *value = v;
            *index = i;
        }
    }
}

/* Computes score[e] for all E, shared out among the lanes. */
static __device__ void scores_of(double *score, const float *logits, exf_router_score kind, int n_experts, int lane)
{
    if (kind != EXF_ROUTER_SOFTMAX) {
        for (int e = lane; e < n_experts; e += 32) {
            double z = logits[e];
            score[e] = kind == EXF_ROUTER_SIGMOID ? 1 / (1 + exp(-z)) : sqrt(z > 20 ? z : log1p(exp(z)));
        }
        return;
    }
    double top = -INFINITY, sum = 0;
    for (int e = lane; e < n_experts; e += 32) top = fmax(top, (double)logits[e]);
    top = exf_warp_max(top);
    for (int e = lane; e < n_experts; e += 32) sum += score[e] = exp(logits[e] - top);
    sum = exf_warp_sum(sum);
    for (int e = lane; e < n_experts; e += 32) score[e] /= sum;
}

/* Sets choices in groups that are not kept to the lowest number; those of -infinity stay. group: n_groups doubles. */
static __device__ void keep_groups(double *choice, double *group, const exf_router_rules &r, int lane)
{
    int size = r.n_experts / r.n_groups;
    for (int g = lane; g < r.n_groups; g += 32) {
        double best = -INFINITY, second = -INFINITY;
        for (int i = 0; i < size; i++) {
            double c = choice[g * size + i];
            second = c > best ? best : c > second ? c : second;
            best = c > best ? c : best;
        }
        group[g] = r.group_top2 && second > -INFINITY ? best + second : best;
    }
    __syncwarp();
    for (int kept = 0; kept < r.top_groups; kept++) {
        double best = -INFINITY;
        int at = r.n_groups;
        for (int g = lane; g < r.n_groups; g += 32)
            if (group[g] > best) {
                best = group[g];
                at = g;
            }
        warp_argmax(&best, &at);
        __syncwarp(); /* all lanes have read before one writes */
        if (lane == 0 && at < r.n_groups) group[at] = -INFINITY;
        __syncwarp();
    }
    for (int e = lane; e < r.n_experts; e += 32)
        if (group[e / size] > -INFINITY && choice[e] > -INFINITY) choice[e] = -DBL_MAX;
    __syncwarp();
}

static __device__ void choose_experts(int32_t *ids, const double *score, double *choice, double *group, const exf_router_rules &r,
                                      int lane)
{
    for (int e = lane; e < r.n_experts; e += 32) {
        double c = r.bias ? score[e] + (double)r.bias[e] : score[e];
        choice[e] = isnan(c) ? -DBL_MAX : c; /* it comes last but is still an expert: the pass refuses NaN after the layer */
    }
    __syncwarp();
    if (r.n_groups > 1) keep_groups(choice, group, r, lane);
    for (int k = 0; k < r.top_k; k++) { /* NaN: taken; -infinity: to be taken where nothing else is left */
        double best = -INFINITY;
        int at = r.n_experts;
        for (int e = lane; e < r.n_experts; e += 32)
            if (choice[e] > best || (at == r.n_experts && !isnan(choice[e]))) {
                best = choice[e];
                at = e;
            }
        warp_argmax(&best, &at);
        __syncwarp(); /* all lanes have read before one writes */
        if (lane == 0) {
            ids[k] = at;
            choice[at] = NAN;
        }
        __syncwarp();
    }
}

static __global__ void route(int32_t *ids, float *weights, const float *logits, const int32_t *tokens, exf_router_rules r)
{
    extern __shared__ double space[]; /* scores, choices, groups: 3 E */
    double *score = space, *choice = space + r.n_experts, *group = choice + r.n_experts;
    int lane = threadIdx.x;
    size_t t = blockIdx.x;
    ids += t * r.top_k;
    scores_of(score, logits + t * r.n_experts, r.score, r.n_experts, lane);
    __syncwarp();
    if (r.table) {
        for (int k = lane; k < r.top_k; k += 32) ids[k] = (int32_t)r.table[(size_t)tokens[t] * r.top_k + k];
        __syncwarp();
    } else {
        choose_experts(ids, score, choice, group, r, lane);
    }
    if (lane == 0) exf_weigh_routes(ids, weights + t * r.top_k, score, &r);
}

void exf_router_cuda(exf_queue *q, int32_t *ids, float *weights, const float *logits, const int32_t *tokens, int n_tokens,
                     const exf_router_rules *r, double *scratch)
{
    (void)scratch;
    size_t bytes = 3 * (size_t)r->n_experts * sizeof(double);
    if (n_tokens == 0 || q->err.code != EXF_OK) return;
    if (bytes > 48 * 1024) { /* more than the default must be requested, whatever other threads launch */
        size_t most = 3 * (size_t)MOST_ROUTED * sizeof(double), here = exf_most_shared_bytes();
        exf_cuda_note(q, cudaFuncSetAttribute(route, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(most < here ? most : here)),
                      "router");
    }
    EXF_LAUNCH(q, "router", route, n_tokens, 32, bytes, ids, weights, logits, tokens, *r);
}

/* ---- scores of some tokens -------------------------------------------------------------------------- */

/* A warp a token.  Bytes: 4 E read and 8 E written a token; 8,192 tokens of 64 experts are 6 MB, 2 us at 3 TB/s, and 0.5 M
 * exponentials in double. */
static __global__ void score_rows(float *choice, float *gate, const float *logits, const size_t *row, exf_router_score kind,
                                  const float *bias, int n_experts)
{
    extern __shared__ double score[]; /* [E] */
    size_t i = blockIdx.x, at = i * (size_t)n_experts;
    scores_of(score, logits + (row ? row[i] : i) * (size_t)n_experts, kind, n_experts, (int)threadIdx.x);
    for (int e = (int)threadIdx.x; e < n_experts; e += 32) { /* a lane reads what it wrote */
        choice[at + (size_t)e] = (float)(bias ? score[e] + (double)bias[e] : score[e]);
        if (gate) gate[at + (size_t)e] = (float)score[e];
    }
}

void exf_router_scores_cuda(exf_queue *q, float *choice, float *gate, const float *logits, const size_t *row, size_t n,
                            exf_router_score kind, const float *bias, int n_experts)
{
    if (n == 0 || q->err.code != EXF_OK) return;
    EXF_LAUNCH(q, "router scores", score_rows, (unsigned)n, 32, (size_t)n_experts * sizeof(double), choice, gate, logits, row, kind,
               bias, n_experts);
}

/* layer_sums_cpu.c - see layer_sums.h. */
#include "kernels/statistics/layer_sums.h"

#include "kernels/rows/simd.h"

#include <math.h>
#include <stddef.h>

/* Computes gram[a,b] = <E_a(x), E_b(x)> of one token. */
EXF_SIMD_CLONES static void gram_of_token(double *gram, const float *outputs, int top_k, int d_model)
{
    for (int a = 0; a < top_k; a++)
        for (int b = 0; b <= a; b++)
            gram[a * top_k + b] = gram[b * top_k + a] =
                exf_dot(outputs + (size_t)a * (size_t)d_model, outputs + (size_t)b * (size_t)d_model, d_model);
}

static void add_expert(const exf_layer_sums *m, int e, double sq, float route_weight)
{
    double norm = sqrt(sq);
    exf_exact_add(&m->norm_sum[e], norm);
    exf_exact_add(&m->sq_sum[e], sq);
    exf_exact_add(&m->route_weight_sum[e], (double)route_weight);
    exf_exact_add(&m->contribution_sum[e], (double)route_weight * norm);
    exf_exact_add(&m->energy_sum[e], (double)route_weight * (double)route_weight * sq);
    m->norm_count[e]++;
}

static void add_pair(const exf_layer_sums *m, size_t cell, double w, double dot, double source_sq, double target_sq)
{
    exf_exact_add(&m->dot[cell], w * dot);
    exf_exact_add(&m->target_sq[cell], w * target_sq);
    exf_exact_add(&m->source_sq[cell], w * source_sq);
    exf_exact_add(&m->dot0[cell], dot);
    exf_exact_add(&m->sq0[cell], source_sq);
    m->count[cell]++;
}

static double pair_weight(exf_weighting weighting, double source_sq, float route_weight)
{
    switch (weighting) {
    case EXF_WEIGHT_SOURCE_NORM: return sqrt(source_sq);
    case EXF_WEIGHT_ROUTER: return (double)route_weight;
    case EXF_WEIGHT_NONE: break;
    }
    return 1;
}

/* Returns 1 if w and w^2 times an energy may be added. */
static int weight_fits(double w, double energy)
{
    return exf_exact_fits(w * energy) && exf_exact_fits(w * w * energy);
}

static exf_code output_fault(exf_err *err, int token, int32_t expert, double sq, float weight)
{
    double route_weight = (double)weight;
    exf_code rc = exf_output_fault(err, expert, sq, &route_weight);
    exf_err_prefix(err, "token %d: ", token);
    return rc;
}

/* Refuses a token whose terms are out of range.  Every term is at most w * max(1, largest sq) in
 * magnitude (Cauchy-Schwarz), w a norm, 1, a router weight or its square, so these tests cover all of a
 * token's additions. */
static exf_code check_range(const double *gram, int top_k, exf_err *err, int token, const int32_t *ids, const float *weight)
{
    double largest = 1;
    for (int a = 0; a < top_k; a++) {
        double sq = gram[a * top_k + a];
        if (ids[a] < 0) continue;
        if (!exf_exact_fits(sq) || !exf_exact_fits(sq * sqrt(sq)))
            return output_fault(err, token, ids[a], sq, weight[a]);
        largest = sq > largest ? sq : largest;
    }
    for (int a = 0; a < top_k; a++)
        if (ids[a] >= 0 && !weight_fits((double)weight[a], largest))
            return output_fault(err, token, ids[a], gram[a * top_k + a], weight[a]);
    return EXF_OK;
}

exf_code exf_layer_sums_add_experts_cpu(const exf_layer_sums *m, int top_k, int d_model, int n_tokens, const float *outputs,
                                        const int32_t *ids, const float *weights, exf_err *err)
{
    for (size_t i = 0; i < (size_t)n_tokens * (size_t)top_k; i++) {
        const float *u = outputs + i * (size_t)d_model;
        if (ids[i] < 0) {
            ++*m->empty_slots;
            continue;
        }
        double sq = exf_dot(u, u, d_model);
        if (!exf_exact_fits(sq) || !weight_fits((double)weights[i], sq > 1 ? sq : 1))
            return output_fault(err, (int)(i / (size_t)top_k), ids[i], sq, weights[i]);
        add_expert(m, ids[i], sq, weights[i]);
    }
    return EXF_OK;
}

exf_code exf_layer_sums_add_cpu(const exf_layer_sums *m, int n_experts, int top_k, int d_model, int n_tokens, const float *outputs,
                             const int32_t *ids, const float *weights, exf_weighting weighting, double *scratch, exf_err *err)
{
    for (int t = 0; t < n_tokens; t++) {
        const int32_t *id = ids + (size_t)t * (size_t)top_k;
        const float *weight = weights + (size_t)t * (size_t)top_k;
        gram_of_token(scratch, outputs + (size_t)t * (size_t)top_k * (size_t)d_model, top_k, d_model);
        exf_code rc = check_range(scratch, top_k, err, t, id, weight);
        if (rc != EXF_OK) return rc;
        for (int a = 0; a < top_k; a++) {
            if (id[a] < 0) {
                ++*m->empty_slots;
                continue;
            }
            double source_sq = scratch[a * top_k + a], w = pair_weight(weighting, source_sq, weight[a]);
            add_expert(m, id[a], source_sq, weight[a]);
            for (int b = 0; b < top_k; b++)
                if (b != a && id[b] >= 0)
                    add_pair(m, (size_t)id[a] * (size_t)n_experts + (size_t)id[b], w, scratch[a * top_k + b], source_sq,
                             scratch[b * top_k + b]);
        }
    }
    return EXF_OK;
}

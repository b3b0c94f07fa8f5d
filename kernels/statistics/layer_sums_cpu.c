/* layer_sums_cpu.c - the sums of layer_sums.h on the CPU, and the sentences of their faults. */
#include "kernels/statistics/layer_sums.h"

#include "base/parallel.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/simd.h"

#include <math.h>
#include <string.h>

/* ---- faults ---------------------------------------------------------------------------------- */

exf_code exf_output_fault(exf_err *err, int expert, double squared_norm, const double *route_weight)
{
    if (!route_weight)
        return exf_fail(err, EXF_NUMERIC, "the output of expert %d has squared norm %g, outside the range of the sums", expert,
                        squared_norm);
    return exf_fail(err, EXF_NUMERIC,
                    "the output of expert %d has squared norm %g and router weight %g, outside the range of the sums", expert,
                    squared_norm, *route_weight);
}

exf_code exf_sequence_fault(exf_err *err, uint64_t sequence, int source, int target, double dot, double target_sq)
{
    return exf_fail(err, EXF_NUMERIC,
                    "sequence %llu, pair %d -> %d: sums %g and %g have squares outside the range of the sums",
                    (unsigned long long)sequence, source, target, dot, target_sq);
}

exf_code exf_vector_fault(exf_err *err, int source, int target, double sum)
{
    return exf_fail(err, EXF_NUMERIC, "pair %d -> %d: a vector sum of %g is outside the range of the sums", source, target, sum);
}

exf_code exf_root_fault(exf_err *err, double weight)
{
    return exf_fail(err, EXF_NUMERIC, "a weight of %g has no root, which vector sums need", weight);
}

/* ---- routed outputs --------------------------------------------------------------------------- */

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

static double inverse_norm(double sq)
{
    return sq > 0 ? 1 / sqrt(sq) : 0;
}

/* Adds a token's cosines, each of which is both directions'. */
static void add_cosines(const exf_layer_sums *m, int n_experts, int top_k, const double *gram, const int32_t *id)
{
    for (int a = 1; a < top_k; a++) {
        double inverse = id[a] < 0 ? 0 : inverse_norm(gram[a * top_k + a]);
        for (int b = 0; id[a] >= 0 && b < a; b++) {
            if (id[b] < 0) continue;
            double cosine = gram[a * top_k + b] * (inverse * inverse_norm(gram[b * top_k + b]));
            exf_exact_add(&m->cosine_sum[(size_t)id[a] * (size_t)n_experts + (size_t)id[b]], cosine);
            exf_exact_add(&m->cosine_sum[(size_t)id[b] * (size_t)n_experts + (size_t)id[a]], cosine);
        }
    }
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

static exf_code fault_of_token(exf_err *err, int token, int32_t expert, double sq, float weight)
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
            return fault_of_token(err, token, ids[a], sq, weight[a]);
        largest = sq > largest ? sq : largest;
    }
    for (int a = 0; a < top_k; a++)
        if (ids[a] >= 0 && !weight_fits((double)weight[a], largest))
            return fault_of_token(err, token, ids[a], gram[a * top_k + a], weight[a]);
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
            return fault_of_token(err, (int)(i / (size_t)top_k), ids[i], sq, weights[i]);
        add_expert(m, ids[i], sq, weights[i]);
    }
    return EXF_OK;
}

exf_code exf_layer_sums_add_cpu(const exf_layer_sums *m, int n_experts, int top_k, int d_model, int n_tokens, const float *outputs,
                                const double *grams, const int32_t *ids, const float *weights, exf_weighting weighting,
                                double *scratch, exf_err *err)
{
    size_t k = (size_t)top_k;
    for (int token = 0; token < n_tokens; token++, ids += k, weights += k) {
        const double *gram = outputs ? scratch : grams + (size_t)token * k * k;
        if (outputs) gram_of_token(scratch, outputs + (size_t)token * k * (size_t)d_model, top_k, d_model);
        exf_code rc = check_range(gram, top_k, err, token, ids, weights);
        if (rc != EXF_OK) return rc;
        for (int a = 0; a < top_k; a++) {
            if (ids[a] < 0) {
                ++*m->empty_slots;
                continue;
            }
            double source_sq = gram[a * top_k + a], w = pair_weight(weighting, source_sq, weights[a]);
            add_expert(m, ids[a], source_sq, weights[a]);
            for (int b = 0; b < top_k; b++) {
                size_t cell = (size_t)ids[a] * (size_t)n_experts + (size_t)ids[b];
                if (b == a || ids[b] < 0) continue;
                exf_exact_add(&m->dot[cell], w * gram[a * top_k + b]);
                exf_exact_add(&m->target_sq[cell], w * gram[b * top_k + b]);
                exf_exact_add(&m->source_sq[cell], w * source_sq);
                exf_exact_add(&m->dot0[cell], gram[a * top_k + b]);
                exf_exact_add(&m->sq0[cell], source_sq);
                m->count[cell]++;
            }
        }
        add_cosines(m, n_experts, top_k, gram, ids);
    }
    return EXF_OK;
}

#if !EXF_HAVE_CUDA
exf_code exf_layer_sums_grams_cuda(const exf_grams_call *c, exf_err *err)
{
    (void)c;
    return exf_fail(err, EXF_DEVICE, "rows in CUDA memory need a build with CUDA, this one was made without nvcc");
}
#endif

/* ---- common input ----------------------------------------------------------------------------- */

/* Tokens whose products are computed in parallel on idle threads (one worker shows what a GPU
 * computed).  They are added up in order, so this changes no bit. */
enum { AT_ONCE = 8 };

/* Totals of one call, [E, E] each; source_sq and sq0 have the same term for all pairs of a row, so they are [E]. */
typedef struct {
    double *outputs; /* [AT_ONCE, E, H] */
    double *gram;    /* [AT_ONCE, E, E] */
    double *dot, *target_sq, *dot0, *cosine;
    double *source_sq, *sq0; /* [E] */
    double *inverse;         /* [E] one over the norms of a token */
} common_input_space;

size_t exf_layer_sums_common_input_scratch(int n_experts, int d_model)
{
    size_t e = (size_t)n_experts;
    return AT_ONCE * e * ((size_t)d_model + e) + 4 * e * e + 3 * e;
}

static void add_common_token(const common_input_space *c, const double *gram, size_t e, exf_weighting weighting)
{
    for (size_t s = 0; s < e; s++) c->inverse[s] = inverse_norm(gram[s * e + s]);
    for (size_t s = 0; s < e; s++) {
        double sq = gram[s * e + s], w = weighting == EXF_WEIGHT_SOURCE_NORM ? sqrt(sq) : 1;
        for (size_t t = 0; t < e; t++) {
            c->dot[s * e + t] += w * gram[s * e + t];
            c->target_sq[s * e + t] += w * gram[t * e + t];
            c->dot0[s * e + t] += gram[s * e + t];
            c->cosine[s * e + t] += gram[s * e + t] * (c->inverse[s] * c->inverse[t]);
        }
        c->source_sq[s] += w * sq;
        c->sq0[s] += sq;
    }
}

/* Refuses totals out of range.  By Cauchy-Schwarz dot0 is in range if sq0 of both experts is. */
static exf_code check_totals(const common_input_space *c, size_t e, exf_err *err)
{
    for (size_t s = 0; s < e; s++)
        for (size_t t = 0; t < e; t++)
            if (!exf_exact_fits(c->source_sq[s]) || !exf_exact_fits(c->sq0[s]) || !exf_exact_fits(c->target_sq[s * e + t]) ||
                !exf_exact_fits(c->dot[s * e + t]))
                return exf_fail(err, EXF_NUMERIC,
                                "the outputs of experts %zu and %zu have squared norms %g and %g, outside the range of the sums", s,
                                t, c->sq0[s], c->sq0[t]);
    return EXF_OK;
}

static void add_totals(const exf_layer_sums *m, const common_input_space *c, size_t e, uint64_t n_tokens)
{
    for (size_t s = 0; s < e; s++)
        for (size_t t = 0; t < e; t++) {
            size_t i = s * e + t;
            if (s == t) continue;
            exf_exact_add(&m->dot[i], c->dot[i]);
            exf_exact_add(&m->target_sq[i], c->target_sq[i]);
            exf_exact_add(&m->source_sq[i], c->source_sq[s]);
            exf_exact_add(&m->dot0[i], c->dot0[i]);
            exf_exact_add(&m->sq0[i], c->sq0[s]);
            exf_exact_add(&m->cosine_sum[i], c->cosine[s * e + t]);
            m->count[i] += n_tokens;
        }
}

exf_code exf_layer_sums_add_common_input_cpu(const exf_layer_sums *m, int n_experts, int d_model, int n_tokens,
                                             const float *outputs, exf_weighting weighting, double *scratch, exf_err *err)
{
    size_t e = (size_t)n_experts, size = e * (size_t)d_model;
    double *gram = scratch + AT_ONCE * size, *dot = gram + AT_ONCE * e * e, *source_sq = dot + 4 * e * e;
    const common_input_space c = {.outputs = scratch, .gram = gram, .dot = dot, .target_sq = dot + e * e, .dot0 = dot + 2 * e * e,
                                  .cosine = dot + 3 * e * e, .source_sq = source_sq, .sq0 = source_sq + e,
                                  .inverse = source_sq + 2 * e};
    exf_code rc = EXF_OK;
    if (weighting == EXF_WEIGHT_ROUTER)
        return exf_fail(err, EXF_INTERNAL, "common input cannot be weighted by a router that chose some experts only");
    memset(c.dot, 0, (4 * e * e + 2 * e) * sizeof *c.dot);
    for (int at = 0; at < n_tokens; at += AT_ONCE) {
        int n = n_tokens - at < AT_ONCE ? n_tokens - at : AT_ONCE;
#pragma omp parallel for schedule(static) num_threads(exf_team((size_t)n, exf_default_threads()))
        for (size_t t = 0; t < (size_t)n; t++) {
            const float *from = outputs + ((size_t)at + t) * size;
            double *wide = c.outputs + t * size;
            for (size_t i = 0; i < size; i++) wide[i] = (double)from[i];
            exf_linalg_xxt(c.gram + t * e * e, wide, n_experts, d_model);
        }
        EXF_TRY(exf_stop_check(err));
        for (int t = 0; t < n; t++) add_common_token(&c, c.gram + (size_t)t * e * e, e, weighting);
    }
    EXF_TRY(check_totals(&c, e, err));
    add_totals(m, &c, e, (uint64_t)n_tokens);
out:
    return rc;
}

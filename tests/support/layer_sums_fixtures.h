/* layer_sums_fixtures.h - what the tests of kernels/statistics and of src/accumulate
 * share: routed expert outputs by a seed. */
#ifndef EXF_TESTS_LAYER_SUMS_FIXTURES_H
#define EXF_TESTS_LAYER_SUMS_FIXTURES_H
#include "tests/support/artifact_fixtures.h"

#include "base/hash.h"
#include "kernels/statistics/layer_sums.h"

/* Everything about T tokens of one layer. */
typedef struct {
    int n, n_experts, top_k, d_model;
    float *outputs, *weights; /* [T, K, H], [T, K] */
    int32_t *ids;             /* [T, K] */
} routed;

static inline void routed_free(routed *r)
{
    exf_mem_free(r->outputs);
    exf_mem_free(r->weights);
    exf_mem_free(r->ids);
}

/* A number in [0, n): the i-th of this seed. */
static inline int draw(uint64_t seed, int i, int n)
{
    return (int)exf_rng_below((uint64_t)n, seed, 0, (uint64_t)i);
}

/* Distinct experts of every token, weights that are multiples of 1/64. */
static inline routed routed_new(int n, int n_experts, int top_k, int d_model, uint64_t seed)
{
    exf_err e;
    size_t slots = (size_t)(n * top_k), chosen[64];
    routed r = {n, n_experts, top_k, d_model, NULL, NULL, NULL};
    ck_ok(exf_mem_new(&r.outputs, slots * (size_t)d_model, sizeof *r.outputs, "outputs", &e), e);
    ck_ok(exf_mem_new(&r.weights, slots, sizeof *r.weights, "weights", &e), e);
    ck_ok(exf_mem_new(&r.ids, slots, sizeof *r.ids, "ids", &e), e);
    for (int t = 0; t < n; t++) {
        int turn = draw(seed, 2 * t, top_k);
        exf_rng_choose(chosen, (size_t)top_k, (size_t)n_experts, seed, (uint64_t)(2 * t + 1));
        for (int k = 0; k < top_k; k++) { /* not in order of number: a router's are in order of weight */
            r.ids[t * top_k + k] = (int32_t)chosen[(k + turn) % top_k];
            r.weights[t * top_k + k] = (float)(1 + draw(seed + 1, t * top_k + k, 64)) / 64;
        }
    }
    return r;
}

/* Outputs whose norms are integers: Pythagorean quadruples, scaled, with signs,
 * at scattered places.  Every product and every sum of a few thousand of them is
 * then an integer (with the weights: a multiple of 1/64) that a double holds. */
static inline routed routed_integers(int n, int n_experts, int top_k, int d_model, uint64_t seed)
{
    static const int quadruple[][3] = {{1, 2, 2}, {2, 3, 6}, {1, 4, 8}, {3, 4, 0}, {5, 0, 0}, {4, 4, 7}, {0, 0, 0}};
    routed r = routed_new(n, n_experts, top_k, d_model, seed);
    for (int i = 0; i < n * top_k; i++) {
        const int *q = quadruple[draw(seed + 2, i, 7)];
        int scale = 1 + draw(seed + 3, i, 9), signs = draw(seed + 4, i, 8);
        size_t place[3];
        exf_rng_choose(place, 3, (size_t)d_model, seed + 5, (uint64_t)i);
        for (int k = 0; k < 3; k++)
            r.outputs[(size_t)i * (size_t)d_model + place[k]] = (float)(q[k] * scale * (signs >> k & 1 ? -1 : 1));
    }
    return r;
}

/* Outputs with all their bits, of very different sizes. */
static inline routed routed_reals(int n, int n_experts, int top_k, int d_model, uint64_t seed)
{
    routed r = routed_new(n, n_experts, top_k, d_model, seed);
    for (int i = 0; i < n * top_k * d_model; i++)
        r.outputs[i] = (float)(draw(seed + 6, i, 1 << 24) - (1 << 23)) / (float)(3 << (6 + draw(seed + 7, i / d_model, 24)));
    return r;
}

/* Takes experts away from the tokens, up to all but one; what lies in the outputs of an empty slot is nobody's. */
static inline void routed_with_empty_slots(routed *r)
{
    for (int i = 0; i < r->n * r->top_k; i++) {
        int t = i / r->top_k, k = i % r->top_k;
        if (k == t % r->top_k || draw(17, i, 3) == 0) continue; /* one of each token stays */
        r->ids[i] = -1;
        r->weights[i] = 0;
        for (int h = 0; h < r->d_model; h++) r->outputs[i * r->d_model + h] = 1e30f;
    }
}

static inline exf_layer_sums moments_of(const exf_layer_statistics *s)
{
    return (exf_layer_sums){s->dot, s->target_sq, s->source_sq, s->dot0, s->sq0, s->cosine_sum, s->count,
                         s->norm_sum, s->sq_sum, s->route_weight_sum, s->contribution_sum, s->energy_sum,
                         s->norm_count, s->empty_slots};
}

/* Tokens [from, from + n) of r into s. */
static inline exf_code add_range(const exf_layer_statistics *s, const routed *r, int from, int n, exf_weighting w, exf_err *err)
{
    exf_layer_sums m = moments_of(s);
    double *scratch = NULL;
    size_t slot = (size_t)from * (size_t)r->top_k;
    exf_code rc = exf_mem_new(&scratch, (size_t)(r->top_k * r->top_k), sizeof *scratch, "scratch", err);
    if (rc == EXF_OK)
        rc = exf_layer_sums_add_cpu(&m, r->n_experts, r->top_k, r->d_model, n, r->outputs + slot * (size_t)r->d_model, NULL,
                                    r->ids + slot, r->weights + slot, w, scratch, err);
    exf_mem_free(scratch);
    return rc;
}
#endif

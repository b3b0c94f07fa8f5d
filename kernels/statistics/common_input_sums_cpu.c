/* common_input_sums_cpu.c - pair sums of common input; see common_input_sums.h. */
#include "kernels/statistics/common_input_sums.h"

#include "base/thread_pool.h"
#include "kernels/statistics/linalg.h"

#include <math.h>
#include <string.h>

/* Tokens whose products are computed in parallel on idle threads (one worker shows what a GPU
 * computed).  They are added up in order, so this changes no bit. */
enum { AT_ONCE = 8 };

/* Totals of one call, [E, E] each; source_sq and sq0 have the same term for all pairs of a row, so they are [E]. */
typedef struct {
    double *outputs; /* [AT_ONCE, E, H] */
    double *gram;    /* [AT_ONCE, E, E] */
    double *dot, *target_sq, *dot0;
    double *source_sq, *sq0; /* [E] */
} common_input_space;

static void carve(common_input_space *c, double *scratch, size_t e, size_t h)
{
    c->outputs = scratch;
    c->gram = c->outputs + AT_ONCE * e * h;
    c->dot = c->gram + AT_ONCE * e * e;
    c->target_sq = c->dot + e * e;
    c->dot0 = c->target_sq + e * e;
    c->source_sq = c->dot0 + e * e;
    c->sq0 = c->source_sq + e;
}

size_t exf_layer_sums_common_input_scratch(int n_experts, int d_model)
{
    size_t e = (size_t)n_experts;
    return AT_ONCE * e * ((size_t)d_model + e) + 3 * e * e + 2 * e;
}

static void add_token(const common_input_space *c, const double *gram, size_t e, exf_weighting weighting)
{
    for (size_t s = 0; s < e; s++) {
        double sq = gram[s * e + s], w = weighting == EXF_WEIGHT_SOURCE_NORM ? sqrt(sq) : 1;
        for (size_t t = 0; t < e; t++) {
            c->dot[s * e + t] += w * gram[s * e + t];
            c->target_sq[s * e + t] += w * gram[t * e + t];
            c->dot0[s * e + t] += gram[s * e + t];
        }
        c->source_sq[s] += w * sq;
        c->sq0[s] += sq;
    }
}

/* Refuses totals out of range.  By Cauchy-Schwarz dot0 is in range if sq0 of both experts is. */
static exf_code check_range(const common_input_space *c, size_t e, exf_err *err)
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
            m->count[i] += n_tokens;
        }
}

typedef struct {
    const common_input_space *space;
    const float *outputs; /* outputs of the first token, [E, H]; the next tokens' follow */
    int n_experts, d_model;
} gram_job;

static exf_code make_gram(void *self, size_t t, int worker, exf_err *err)
{
    const gram_job *j = self;
    size_t e = (size_t)j->n_experts, size = e * (size_t)j->d_model;
    double *wide = j->space->outputs + t * size;
    (void)worker;
    (void)err;
    for (size_t i = 0; i < size; i++) wide[i] = (double)j->outputs[t * size + i];
    exf_linalg_xxt(j->space->gram + t * e * e, wide, j->n_experts, j->d_model);
    return EXF_OK;
}

exf_code exf_layer_sums_add_common_input_cpu(const exf_layer_sums *m, int n_experts, int d_model, int n_tokens,
                                             const float *outputs, exf_weighting weighting, double *scratch, exf_err *err)
{
    size_t e = (size_t)n_experts, size = e * (size_t)d_model;
    common_input_space c;
    exf_code rc = EXF_OK;
    if (weighting == EXF_WEIGHT_ROUTER)
        return exf_fail(err, EXF_INTERNAL, "common input cannot be weighted by a router that chose some experts only");
    carve(&c, scratch, e, (size_t)d_model);
    memset(c.dot, 0, (3 * e * e + 2 * e) * sizeof *c.dot);
    for (int at = 0; at < n_tokens; at += AT_ONCE) {
        int n = n_tokens - at < AT_ONCE ? n_tokens - at : AT_ONCE;
        gram_job j = {&c, outputs + (size_t)at * size, n_experts, d_model};
        EXF_TRY(exf_parallel_for((size_t)n, exf_default_threads(), make_gram, &j, err));
        for (int t = 0; t < n; t++) add_token(&c, c.gram + (size_t)t * e * e, e, weighting);
    }
    EXF_TRY(check_range(&c, e, err));
    add_totals(m, &c, e, (uint64_t)n_tokens);
out:
    return rc;
}

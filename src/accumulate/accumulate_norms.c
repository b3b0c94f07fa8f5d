/* accumulate_norms.c - adds up the sums of a layer's norm head (artifact/norm_sums.h), slot by slot, in host memory;
 * device_norms.c does so on a GPU. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/simd.h"

#include <math.h>
#include <string.h>

exf_code exf_norm_fault(exf_err *err, size_t feature, double value)
{
    return exf_fail(err, EXF_NUMERIC, "feature %zu of the norm head is %g, outside the range of the sums", feature, value);
}

/* Computes V'x in fixed order. */
static void project(double *to, const float *x, const double *basis, int h, int q)
{
    memset(to, 0, (size_t)q * sizeof *to);
    for (int i = 0; i < h; i++) {
        const double *row = basis + (size_t)i * (size_t)q;
        for (int k = 0; k < q; k++) to[k] += (double)x[i] * row[k];
    }
}

/* A slot's z = [phi, y] on the grid: multiples of 2^-12.  Below 2^9 a product of two has 42 bits, so that a double holds the sum of
 * 2048 of them exactly; a slot with a larger number is added product by product. */
static const double grid = 0x1p-12, largest = 0x1p9, refused = 0x1p31;
enum { TOGETHER = 2048, MOST = EXF_NORM_MOST + EXF_NORM_BESIDE + 1 };

static double on_grid(double v)
{
    return rint(v / grid) * grid;
}

/* A block's tokens, and the products of one expert's slots. */
typedef struct {
    double *projected; /* [T, q] V'x */
    double *norm;      /* [T] of x */
    double *mean;      /* [T] of the router's logits */
    double *product;   /* [n (n + 1) / 2] sums of z z', the lower triangle; n = F + 1 */
    int slots;         /* in product */
} norm_block;

static void free_block(norm_block *m)
{
    exf_mem_free(m->projected);
    exf_mem_free(m->norm);
    exf_mem_free(m->mean);
    exf_mem_free(m->product);
}

/* Computes what all slots of a token share. */
static exf_code read_tokens(norm_block *m, const exf_norm_sums *to, const double *basis, const exf_moe_block *b, exf_err *err)
{
    size_t h = (size_t)b->d_model, tokens = (size_t)b->n_tokens, n = exf_norm_features(to->q) + 1;
    exf_code rc;
    EXF_TRY(exf_mem_new(&m->projected, tokens * (size_t)to->q, sizeof *m->projected, "norm head", err));
    EXF_TRY(exf_mem_new(&m->norm, tokens, sizeof *m->norm, "norm head", err));
    EXF_TRY(exf_mem_new(&m->mean, tokens, sizeof *m->mean, "norm head", err));
    EXF_TRY(exf_mem_new(&m->product, n * (n + 1) / 2, sizeof *m->product, "norm head", err));
    for (size_t t = 0; t < tokens; t++) {
        const float *x = (const float *)b->moe_input + t * h;
        m->norm[t] = sqrt(exf_dot(x, x, b->d_model));
        m->mean[t] = exf_norm_logit_mean(b->router_logits + t * (size_t)b->n_experts, b->n_experts);
        project(m->projected + t * (size_t)to->q, x, basis, b->d_model, to->q);
    }
out:
    return rc;
}

/* Computes z of a slot and returns its largest magnitude, or NaN; *at: its place. */
static double read_slot(double *z, size_t *at, const norm_block *m, const exf_norm_sums *to, const exf_moe_block *b, size_t slot)
{
    size_t t = slot / (size_t)b->top_k, n = exf_norm_features(to->q), h = (size_t)b->d_model;
    const float *u = (const float *)b->expert_outputs + slot * h;
    double sq = exf_dot(u, u, b->d_model), most = 0;
    double logit = (double)b->router_logits[t * (size_t)b->n_experts + (size_t)b->topk_ids[slot]];
    exf_norm_features_of(z, m->projected + t * (size_t)to->q, to->q, logit - m->mean[t], (double)b->topk_weights[slot], m->norm[t]);
    z[n] = 0.5 * log(sq > 1e-20 ? sq : 1e-20);
    for (size_t i = 0; i <= n; i++) {
        z[i] = on_grid(z[i]);
        if (isnan(most) || fabs(z[i]) <= most) continue;
        most = fabs(z[i]);
        *at = i;
    }
    return most;
}

/* Moves the products to the expert's sums. */
static void add_products(const exf_norm_sums *to, size_t expert, norm_block *m)
{
    size_t n = exf_norm_features(to->q), products = exf_norm_products(to->q);
    const double *from = m->product;
    if (!m->slots) return;
    for (size_t i = 0; i < products; i++) exf_exact_add(&to->pp[expert * products + i], *from++);
    for (size_t i = 0; i < n; i++) exf_exact_add(&to->py[expert * n + i], *from++);
    exf_exact_add(&to->yy[expert], *from);
    memset(m->product, 0, (size_t)(from + 1 - m->product) * sizeof *m->product);
    m->slots = 0;
}

static void add_slot(norm_block *m, const double *z, size_t n)
{
    double *row = m->product;
    for (size_t i = 0; i < n; row += ++i)
        for (size_t k = 0; k <= i; k++) row[k] += z[i] * z[k];
    m->slots++;
}

/* Adds an expert's slots of the block. */
static exf_code add_expert(const exf_norm_sums *to, int expert, norm_block *m, const exf_moe_block *b, exf_err *err)
{
    double z[MOST];
    size_t slots = (size_t)b->n_tokens * (size_t)b->top_k, n = exf_norm_features(to->q) + 1, at = 0;
    for (size_t slot = 0; slot < slots; slot++) {
        if (b->topk_ids[slot] != expert) continue;
        double most = read_slot(z, &at, m, to, b, slot);
        if (!(most < refused)) {
            exf_code rc = exf_norm_fault(err, at, z[at]);
            exf_err_prefix(err, "token %zu: ", slot / (size_t)b->top_k);
            return rc;
        }
        if (m->slots == TOGETHER || !(most < largest)) add_products(to, (size_t)expert, m);
        add_slot(m, z, n);
        if (!(most < largest)) add_products(to, (size_t)expert, m);
    }
    add_products(to, (size_t)expert, m);
    return EXF_OK;
}

exf_code exf_norm_sums_add(const exf_norm_sums *to, const double *basis, const exf_moe_block *b, exf_err *err)
{
    norm_block m = {.slots = 0};
    exf_code rc = read_tokens(&m, to, basis, b, err);
    for (int e = 0; rc == EXF_OK && e < b->n_experts; e++) rc = add_expert(to, e, &m, b, err);
    free_block(&m);
    return rc;
}

void exf_norm_head_of_token(float *to, const double *basis, int q, const exf_moe_block *b, size_t t)
{
    size_t h = (size_t)b->d_model, e = (size_t)b->n_experts, k = (size_t)b->top_k;
    const float *x = (const float *)b->moe_input + t * h, *logits = b->router_logits + t * e;
    double projected[EXF_NORM_MOST], phi[MOST], mean = exf_norm_logit_mean(logits, b->n_experts);
    project(projected, x, basis, b->d_model, q);
    exf_norm_features_of(phi, projected, q, 0, 1, sqrt(exf_dot(x, x, b->d_model)));
    for (int i = 0; i < q; i++) to[i] = (float)on_grid(projected[i]);
    to[q] = (float)on_grid(phi[q + 3]);
    for (size_t i = 0; i < k; i++) {
        int id = b->router_ids[t * k + i];
        to[(size_t)q + 1 + i] = id < 0 ? 0 : (float)on_grid((double)logits[id] - mean);
    }
}

/* chapter_norm_head.c - the sums of a layer's norm head (accumulate/norm_sums.h), slot by slot; chapter_norm_directions.c finds
 * what they are over. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "base/parallel.h"
#include "kernels/linear/linear.h"
#include "kernels/rows/simd.h"

#include <math.h>
#include <string.h>

/* ---- in host memory --------------------------------------------------------------------------------- */

/* Returns EXF_NUMERIC naming a number that the sums cannot hold. */
static exf_code refuse_number(exf_err *err, size_t feature, double value)
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

/* Adds an expert's slots of the block. */
static exf_code add_expert(const exf_norm_sums *to, int expert, norm_block *m, const exf_moe_block *b, exf_err *err)
{
    double z[MOST];
    size_t slots = (size_t)b->n_tokens * (size_t)b->top_k, n = exf_norm_features(to->q) + 1, at = 0;
    for (size_t slot = 0; slot < slots; slot++) {
        if (b->topk_ids[slot] != expert) continue;
        double most = read_slot(z, &at, m, to, b, slot), *row = m->product;
        if (!(most < refused)) {
            exf_code rc = refuse_number(err, at, z[at]);
            exf_err_prefix(err, "token %zu: ", slot / (size_t)b->top_k);
            return rc;
        }
        if (m->slots == TOGETHER || !(most < largest)) add_products(to, (size_t)expert, m);
        for (size_t i = 0; i < n; row += ++i)
            for (size_t k = 0; k <= i; k++) row[k] += z[i] * z[k];
        m->slots++;
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
    exf_mem_free(m.projected);
    exf_mem_free(m.norm);
    exf_mem_free(m.mean);
    exf_mem_free(m.product);
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

/* ---- in GPU memory (kernels/statistics/norm_products.h): they cross to the host once a layer ---------- */

/* Returns the sums of an expert: those of pp, py and yy one after the other. */
static size_t sums_each(int q)
{
    size_t n = exf_norm_features(q) + 1;
    return n * (n + 1) / 2;
}

/* Returns the elements of V in device memory. */
static size_t basis_elements(size_t d_model, int q)
{
    size_t rows = (d_model + EXF_NORM_BASIS_ROWS - 1) / EXF_NORM_BASIS_ROWS * EXF_NORM_BASIS_ROWS;
    return rows * (size_t)exf_norm_basis_columns(q);
}

static size_t cells_bytes(const exf_norm_products_sums *s)
{
    return (size_t)s->n_experts * sums_each(s->directions) * EXF_NORM_WORDS * sizeof(uint64_t);
}

/* Lists the arrays with their sizes: into s, or, with s NULL, their bytes alone. */
static exf_code allocate_arrays(exf_device_norms *s, uint64_t *bytes, size_t e, size_t k, size_t h, int q, exf_err *err)
{
    exf_device_norms none = {.b = NULL}, *o = s ? s : &none;
    size_t t = EXF_DEVICE_TOKENS, directions = (size_t)q;
    const struct {
        void *out;
        size_t n, size;
    } all[] = {{&o->sums.cells, e * sums_each(q), EXF_NORM_WORDS * sizeof *o->sums.cells},
               {&o->sums.basis, basis_elements(h, q), sizeof *o->sums.basis},
               {&o->sums.projected, t * directions, sizeof *o->sums.projected},
               {&o->sums.norm, t, sizeof *o->sums.norm},
               {&o->sums.most, (size_t)exf_norm_basis_columns(q) / EXF_NORM_BASIS_COLUMNS * t, sizeof *o->sums.most},
               {&o->sums.after, t * k, EXF_NORM_AFTER * sizeof *o->sums.after},
               {&o->sums.list, e * t, sizeof *o->sums.list},
               {&o->sums.large, t * k, sizeof *o->sums.large},
               {&o->sums.found, e + 1, EXF_NORM_APART * sizeof *o->sums.found},
               {&o->sums.bad, 1, sizeof *o->sums.bad},
               {&o->sq, t * k, sizeof *o->sq}};
    exf_code rc = EXF_OK;
    *bytes = 0;
    for (size_t i = 0; rc == EXF_OK && i < sizeof all / sizeof *all; i++) {
        *bytes += (uint64_t)all[i].n * all[i].size;
        if (s) rc = s->b->alloc(all[i].out, all[i].n, all[i].size, "norm head", err);
    }
    return rc;
}

exf_code exf_device_norms_open(exf_device_norms *s, const exf_backend *b, int n_experts, int top_k, int d_model, int q,
                               exf_err *err)
{
    uint64_t bytes;
    exf_code rc;
    *s = (exf_device_norms){.b = b, .d_model = d_model,
                            .sums = {.n_experts = n_experts, .directions = q, .tokens = EXF_DEVICE_TOKENS}};
    EXF_TRY(allocate_arrays(s, &bytes, (size_t)n_experts, (size_t)top_k, (size_t)d_model, q, err));
    size_t basis = basis_elements((size_t)d_model, q) * sizeof *s->basis_host;
    EXF_TRY(b->gpu->alloc_staging((void *)&s->basis_host, basis, "norm head", err));
    memset(s->basis_host, 0, basis);
    EXF_TRY(b->gpu->alloc_staging((void *)&s->host, cells_bytes(&s->sums), "norm head", err));
out:
    return rc;
}

void exf_device_norms_free(exf_device_norms *s)
{
    void *all[] = {s->sums.cells, s->sums.basis, s->sums.projected, s->sums.norm, s->sums.most, s->sums.after,
                   s->sums.list, s->sums.large, s->sums.found, s->sums.bad, s->sq};
    for (size_t i = 0; s->b && i < sizeof all / sizeof *all; i++) s->b->free(all[i]);
    if (s->b) s->b->gpu->free_staging(s->basis_host);
    if (s->b) s->b->gpu->free_staging(s->host);
    memset(s, 0, sizeof *s);
}

/* The last layer's upload is done: its sums were taken. */
void exf_device_norms_begin(exf_device_norms *s, const double *basis)
{
    size_t q = (size_t)s->sums.directions, width = (size_t)exf_norm_basis_columns(s->sums.directions);
    for (size_t i = 0; i < (size_t)s->d_model; i++)
        memcpy(s->basis_host + exf_norm_basis_row(i) * width, basis + i * q, q * sizeof *basis);
    s->q = NULL;
}

void exf_device_norms_add(exf_device_norms *s, const exf_moe_block *b)
{
    const exf_norm_products_sums *to = &s->sums;
    exf_norm_products_call c = {.top_k = b->top_k, .d_model = b->d_model, .n_tokens = b->n_tokens,
                                .x = {b->moe_input, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, .sq = s->sq,
                                .ids = b->topk_ids, .weights = b->topk_weights, .logits = b->slot_logits, .row = (int64_t)b->row};
    if (!s->q) {
        s->b->upload(b->q, to->basis, s->basis_host, basis_elements((size_t)s->d_model, to->directions) * sizeof *to->basis);
        s->b->zero(b->q, to->cells, cells_bytes(to));
        s->b->zero(b->q, to->bad, sizeof *to->bad);
    }
    s->q = b->q;
    s->batch = b->batch;
    s->b->gpu->norm_products_add(b->q, to, &c);
}

/* Adds a sum in digits: signed multiples of 2^-24, 2^8 and 2^40. */
static void add_digits(exf_exact *to, const uint64_t digit[EXF_NORM_WORDS])
{
    for (int i = 0; i < EXF_NORM_WORDS; i++) {
        int negative = digit[i] >> 63 != 0;
        if (!digit[i]) continue;
        exf_exact t = exf_exact_place(negative ? 0 - digit[i] : digit[i], 96 - 24 + 32 * i);
        if (negative) exf_exact_negate(&t);
        (void)exf_exact_merge(to, &t);
    }
}

exf_code exf_device_norms_take(exf_device_norms *s, const exf_norm_sums *to, int layer, exf_err *err)
{
    size_t n = exf_norm_features(to->q), products = exf_norm_products(to->q), each = sums_each(to->q) * EXF_NORM_WORDS;
    exf_sums_fault bad = {0};
    exf_code rc = EXF_OK;
    if (!s->q) return EXF_OK;
    s->b->copy(s->q, s->host, s->sums.cells, cells_bytes(&s->sums));
    EXF_TRY(s->b->download(s->q, &bad, s->sums.bad, sizeof bad, err));
    if (bad.place) {
        rc = refuse_number(err, (size_t)bad.b, bad.x);
        exf_fault_prefix_row(err, s->batch, (size_t)~bad.place, EXF_MOE_BLOCK, 1);
        exf_err_prefix(err, "layer %d, ", layer);
        goto out;
    }
#pragma omp parallel for schedule(static) num_threads(exf_team((size_t)to->n_experts, exf_background_threads()))
    for (size_t e = 0; e < (size_t)to->n_experts; e++) {
        const uint64_t *from = s->host + e * each;
        for (size_t i = 0; i < products; i++, from += EXF_NORM_WORDS) add_digits(&to->pp[e * products + i], from);
        for (size_t i = 0; i < n; i++, from += EXF_NORM_WORDS) add_digits(&to->py[e * n + i], from);
        add_digits(&to->yy[e], from);
    }
out:
    s->q = NULL;
    return rc;
}

/* ---- the chapter ------------------------------------------------------------------------------------ */

exf_code exf_norms_begin_pass(exf_accumulator *a, exf_err *err)
{
    const exf_accumulate_options *o = &a->options;
    int e = (int)a->shape.n_experts, q = exf_head_directions(&a->shape, o);
    exf_code rc;
    for (int i = 1; i < a->n_workers; i++) EXF_TRY(exf_norm_sums_new(&a->sums[i].norms, e, (int)a->shape.d_model, q, err));
    EXF_TRY(exf_norm_sampler_new(&a->norms, &a->shape, q, a->own, err));
    rc = exf_blas_reserve_cpu(a->n_workers > o->helpers ? a->n_workers : o->helpers, err);
out:
    return rc;
}

uint64_t exf_norms_device_bytes(const exf_run_shape *s, const exf_accumulate_options *o)
{
    int q = exf_head_directions(s, o);
    uint64_t bytes = 0;
    exf_err none;
    if (!q || allocate_arrays(NULL, &bytes, (size_t)s->n_experts, (size_t)s->top_k, (size_t)s->d_model, q, &none) != EXF_OK)
        return 0;
    return bytes + exf_norm_sampler_device_bytes(s, q);
}

exf_code exf_norms_open_device(exf_accumulator *a, const exf_backend *b, exf_err *err)
{
    const exf_run_shape *s = &a->shape;
    exf_code rc;
    EXF_TRY(exf_norm_sampler_open_device(&a->norms, a->ranks, b, err));
    rc = exf_device_norms_open(&a->device_norms, b, (int)s->n_experts, (int)s->top_k, (int)s->d_model,
                               exf_head_directions(s, &a->options), err);
out:
    return rc;
}

exf_code exf_norms_end_inputs(exf_accumulator *a, const exf_moment *m, exf_err *err)
{
    int helpers = a->n_workers > a->options.helpers ? a->n_workers : a->options.helpers;
    exf_code rc = exf_norm_sampler_find(&a->norms, &a->sums[0].norms, m->layer, a->ranks, m->q, helpers, err);
    if (rc == EXF_OK && a->device_norms.b) exf_device_norms_begin(&a->device_norms, a->sums[0].norms.basis);
    return rc;
}

exf_code exf_norms_add_block(exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    const exf_norm_sums *first = &a->sums[0].norms;
    if (!first->known) return EXF_OK;
    if (!b->q) return exf_norm_sums_add(&a->sums[b->worker].norms, first->basis, b, err);
    exf_device_norms_add(&a->device_norms, b);
    return EXF_OK;
}

/* device_norms.c - the sums of a norm head in device memory; see device_norms.h. */
#include "accumulate/device_norms.h"

#include "accumulate/accumulate_internal.h"

#include <string.h>

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
    size_t t = EXF_NORM_TOKENS, directions = (size_t)q;
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

uint64_t exf_device_norms_bytes(int n_experts, int top_k, int d_model, int q)
{
    uint64_t bytes = 0;
    exf_err none;
    if (!q) return 0;
    return allocate_arrays(NULL, &bytes, (size_t)n_experts, (size_t)top_k, (size_t)d_model, q, &none) == EXF_OK ? bytes : 0;
}

exf_code exf_device_norms_open(exf_device_norms *s, const exf_backend *b, int n_experts, int top_k, int d_model, int q,
                               exf_err *err)
{
    uint64_t bytes;
    exf_code rc;
    *s = (exf_device_norms){.b = b, .d_model = d_model,
                            .sums = {.n_experts = n_experts, .directions = q, .tokens = EXF_NORM_TOKENS}};
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

static void add_expert(const exf_norm_sums *to, size_t expert, const uint64_t *from)
{
    size_t n = exf_norm_features(to->q), products = exf_norm_products(to->q);
    for (size_t i = 0; i < products; i++, from += EXF_NORM_WORDS) add_digits(&to->pp[expert * products + i], from);
    for (size_t i = 0; i < n; i++, from += EXF_NORM_WORDS) add_digits(&to->py[expert * n + i], from);
    add_digits(&to->yy[expert], from);
}

exf_code exf_device_norms_take(exf_device_norms *s, const exf_norm_sums *to, int layer, exf_err *err)
{
    size_t each = sums_each(s->sums.directions) * EXF_NORM_WORDS;
    exf_sums_fault bad = {0};
    exf_code rc = EXF_OK;
    if (!s->q) return EXF_OK;
    s->b->copy(s->q, s->host, s->sums.cells, cells_bytes(&s->sums));
    EXF_TRY(s->b->download(s->q, &bad, s->sums.bad, sizeof bad, err));
    if (bad.place) {
        rc = exf_norm_fault(err, (size_t)bad.b, bad.x);
        exf_fault_prefix_row(err, s->batch, (size_t)~bad.place, EXF_MOE_BLOCK, 1);
        exf_err_prefix(err, "layer %d, ", layer);
        goto out;
    }
#pragma omp parallel for schedule(static) num_threads(exf_team((size_t)to->n_experts, exf_background_threads()))
    for (size_t e = 0; e < (size_t)to->n_experts; e++) add_expert(to, e, s->host + e * each);
out:
    s->q = NULL;
    return rc;
}

/* fold_fixtures.h - a small model, its tables, a batch and routes, all made of repeatable
 * numbers, for the tests of src/fold. */
#ifndef EXF_TESTS_FOLD_FIXTURES_H
#define EXF_TESTS_FOLD_FIXTURES_H
#include "tests/support/fixtures.h"
#include "tests/support/naive.h"
#include "tests/support/naive_fold.h"

#include "artifact/tables.h"
#include "base/mem.h"
#include "fold/fold_rewriter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The model's layers: dense, mixture, mixture without tables, mixture, mixture that routes by token. */
enum { F_LAYERS = 5, F_TABLES = 3, F_SEQUENCES = 4, F_TOKENS = 114, F_H = 6, F_BASIS = 3 };
static const int32_t f_numbers[F_TABLES] = {1, 3, 4};

typedef struct {
    exf_architecture arch;
    exf_tables tables;
    exf_batch batch;
    exf_span span[F_SEQUENCES];
    exf_decode_schedule schedule;
    int32_t *ids; /* [T, K] as a router made them */
    float *weights;
    float *logits;          /* [T, E], of which the routes are not */
    float bias[NAIVE_E];
} fold_case;

/* In (0, 1). */
static inline float f_positive(uint64_t stream, uint64_t i)
{
    return 0.5f + 0.4999f * naive_number(stream, i);
}

/* Two of seven pairs and the diagonal are never a target. */
static inline void f_fill_loss(float *loss, size_t cells, size_t e, uint64_t stream)
{
    for (size_t i = 0; i < cells; i++) {
        size_t s = i / e % e, t = i % e;
        loss[i] = s == t || (s * 3 + t) % 7 < 2 ? EXF_LOSS_NEVER : 1.3f * f_positive(stream, i);
    }
}

/* Cosines of random vectors, so that every Gram matrix is one. */
static inline void f_fill_cosine(float *cosine, size_t e, uint64_t stream)
{
    enum { DIM = 7 };
    for (size_t a = 0; a < e; a++)
        for (size_t b = 0; b < e; b++) {
            double ab = 0, aa = 0, bb = 0;
            for (size_t i = 0; i < DIM; i++) {
                double x = (double)naive_number(stream, a * DIM + i) + 0.4, y = (double)naive_number(stream, b * DIM + i) + 0.4;
                ab += x * y;
                aa += x * x;
                bb += y * y;
            }
            cosine[a * e + b] = (float)(a == b ? 1 : ab / sqrt(aa * bb));
        }
}

static inline void f_fill_pool(exf_static_pool *p, const exf_tables *t)
{
    int e = (int)t->shape.n_experts;
    for (int l = 0; l < t->n_layers; l++)
        for (int i = 0; i < e; i++) {
            int start = strcmp(p->by, "reap") == 0 ? 1 : strcmp(p->by, "energy") == 0 ? 2 : 0, at = (i + e - start) % e;
            int inside = at < p->size;
            p->target_ids[l * e + i] = inside ? i : ((i + l) % p->size + start) % e;
            p->target_scale[l * e + i] = inside ? 1.0f : i % 3 == 0 ? 0.0f : naive_number(61, (uint64_t)(l * e + i));
            if (inside) p->members[l * p->size + at] = i;
        }
}

static inline void f_add_shared(exf_tables *t, const char *name, uint64_t stream)
{
    exf_err err;
    exf_shared_scalar *s;
    size_t e = (size_t)t->shape.n_experts;
    ck_ok(exf_tables_add_shared(t, name, &s, &err), err);
    for (int l = 0; l < t->n_layers; l++)
        s->scalar[l] = 0.5f + 0.4f * naive_number(stream, strcmp(name, "layer") == 0 ? (uint64_t)l : 0);
    f_fill_loss(s->loss, (size_t)t->n_layers * e * e, e, stream + 1);
}

/* Every rule for budgets of 1 to 4. */
enum { F_BUDGETS = 20 };
static inline void f_add_budgets(exf_tables *t)
{
    static const char *const rules[] = {"stream", "output", "measured", "top_p", "skip"};
    t->n_budgets = F_BUDGETS;
    t->budget = test_memory(F_BUDGETS, sizeof *t->budget);
    for (int i = 0; i < F_BUDGETS; i++) {
        exf_budget *b = &t->budget[i];
        int rule = i % 5, keep = 4 - i / 5, share = rule == 3;
        b->budget = b->mean = keep;
        snprintf(b->rule, sizeof b->rule, "%s", rules[rule]);
        b->lambda = share ? 0.2 * keep : rule == 4 ? 0.12 / keep : 0.6 / (keep * keep);
        b->scale = test_memory((size_t)t->n_layers, sizeof *b->scale);
        for (int l = 0; l < t->n_layers; l++)
            b->scale[l] = share ? 1 : 0.3 + (double)f_positive(80 + (uint64_t)rule, (uint64_t)l);
    }
}

static inline float *f_add_array(exf_tables *t, const char *name, int rank)
{
    exf_err err;
    float *x;
    ck_ok(exf_vectors_add(t, name, rank, &x, &err), err);
    return x;
}

/* An array of n numbers of a stream. */
static inline void f_add_numbers(exf_tables *t, const char *name, int rank, size_t n, uint64_t stream)
{
    float *x = f_add_array(t, name, rank), *from = naive_numbers(n, stream, 1);
    memcpy(x, from, n * sizeof *x);
    exf_mem_free(from);
}

/* Every third observed pair carries vectors. */
static inline void f_add_vectors(exf_tables *t)
{
    size_t e = (size_t)t->shape.n_experts, cells = (size_t)t->n_layers * e * e, n = 0;
    exf_vectors *v = &t->vectors;
    float *loss = f_add_array(t, "diagonal_loss", 0);
    v->pair = test_memory(3 * cells, sizeof *v->pair);
    memcpy(loss, t->loss, cells * sizeof *t->loss);
    for (size_t i = 0; i < cells; i++) {
        if (t->loss[i] >= EXF_LOSS_NEVER || i % 3) continue;
        v->pair[3 * n] = (int32_t)(i / (e * e));
        v->pair[3 * n + 1] = (int32_t)(i / e % e);
        v->pair[3 * n + 2] = (int32_t)(i % e);
        loss[i] = 0.8f * t->loss[i];
        n++;
    }
    v->n_pairs = (int64_t)n;
    f_add_numbers(t, "diagonal", 0, n * F_H, 71);
    f_add_numbers(t, "basis", F_BASIS, (size_t)t->n_layers * F_H * F_BASIS, 72);
    for (int rank = 2; rank < 4; rank++) f_add_numbers(t, "lowrank", rank, n * (size_t)rank * F_H, 71 + (uint64_t)rank);
}

static inline void f_fill_tables(exf_tables *t, int n_experts, int top_k)
{
    exf_err err;
    exf_run_shape shape = {.n_experts = n_experts, .top_k = top_k, .d_model = F_H};
    int64_t pools[] = {2, n_experts - 1, 2, 2};
    static const char *const by[] = {"norm", "norm", "reap", "energy"};
    size_t e = (size_t)n_experts, cells = F_TABLES * e * e;
    ck_ok(exf_tables_new(t, &shape, f_numbers, F_TABLES, pools, 4, &err), err);
    t->cosine = test_memory(cells, sizeof(float));
    t->rms = test_memory(F_TABLES * e, sizeof(float));
    t->contribution = test_memory(F_TABLES * e, sizeof(float));
    t->similarity = test_memory(cells, sizeof(float));
    f_fill_loss(t->loss, cells, e, 11);
    t->frobenius = test_memory(cells, sizeof *t->frobenius);
    f_fill_loss(t->frobenius, cells, e, 29);
    for (size_t i = 0; i < cells; i++) {
        int self = i / e % e == i % e;
        t->coeff[i] = self ? 1.0f : t->loss[i] >= EXF_LOSS_NEVER ? 0.0f : 1.5f * naive_number(12, i);
        t->similarity[i] = self ? 1.0f : naive_number(13, i);
    }
    for (size_t i = 0; i < F_TABLES * e; i++) {
        t->expert_norms[i] = 0.5f + 2 * f_positive(14, i);
        t->rms[i] = 0.5f + 2 * f_positive(15, i);
        t->contribution[i] = f_positive(16, i);
    }
    for (size_t l = 0; l < F_TABLES; l++) f_fill_cosine(t->cosine + l * e * e, e, 20 + l);
    for (int i = 0; i < t->n_pools; i++) {
        snprintf(t->pool[i].by, sizeof t->pool[i].by, "%s", by[i]);
        f_fill_pool(&t->pool[i], t);
    }
    ck_ok(exf_provenance_add(&t->provenance, &err, "accumulate.pairs", "common_input"), err);
    f_add_budgets(t);
    f_add_shared(t, "layer", 31);
    f_add_shared(t, "global", 33);
    f_add_vectors(t);
}

/* K distinct experts a row, weights by falling size. */
static inline void f_fill_routes(fold_case *c, int top_k)
{
    int e = c->arch.n_experts;
    for (int row = 0; row < F_TOKENS; row++) {
        int32_t *ids = c->ids + row * top_k;
        float left = 1;
        for (int k = 0; k < top_k; k++) {
            int at = (int)((double)f_positive(41, (uint64_t)(row * top_k + k)) * e), fresh = 0;
            while (!fresh) {
                fresh = 1;
                for (int i = 0; i < k; i++) fresh &= ids[i] != at % e;
                at += !fresh;
            }
            ids[k] = at % e;
            c->weights[row * top_k + k] = left *= 0.4f + 0.59f * f_positive(42, (uint64_t)(row * top_k + k));
        }
    }
}

static inline void fold_open(fold_case *c, int n_experts, int top_k, int prefill_tokens, int threads)
{
    static const int lengths[F_SEQUENCES] = {70, 3, 1, 40};
    exf_err err;
    size_t at = 0;
    memset(c, 0, sizeof *c);
    c->arch.n_layers = F_LAYERS;
    c->arch.n_experts = n_experts;
    c->arch.top_k = top_k;
    c->arch.d_model = F_H;
    c->arch.router.renormalise = 1;
    c->arch.n_moe_layers = F_LAYERS - 1;
    for (int l = 1; l < F_LAYERS; l++) c->arch.is_moe[l] = 1;
    for (int i = 0; i < F_SEQUENCES; at += (size_t)lengths[i++]) c->span[i] = (exf_span){at, lengths[i]};
    ck_assert_uint_eq(at, F_TOKENS);
    c->batch = (exf_batch){NULL, c->span, F_SEQUENCES, F_TOKENS, 70};
    ck_ok(exf_decode_schedule_new(&c->schedule, &c->batch, 2, prefill_tokens, threads, &err), err);
    c->ids = test_memory(F_TOKENS * (size_t)top_k, sizeof *c->ids);
    c->weights = test_memory(F_TOKENS * (size_t)top_k, sizeof *c->weights);
    c->logits = test_memory(F_TOKENS * (size_t)n_experts, sizeof *c->logits);
    for (size_t i = 0; i < F_TOKENS * (size_t)n_experts; i++) c->logits[i] = 2 * naive_number(43, i);
    for (int e = 0; e < n_experts; e++) c->bias[e] = 0.1f * naive_number(44, (uint64_t)e);
    f_fill_tables(&c->tables, n_experts, top_k);
    f_fill_routes(c, top_k);
}

static inline void fold_close(fold_case *c)
{
    exf_decode_schedule_free(&c->schedule);
    exf_tables_free(&c->tables);
    exf_mem_free(c->ids);
    exf_mem_free(c->weights);
    exf_mem_free(c->logits);
}

static inline exf_fold_rewriter *f_folder(const fold_case *c, exf_variant *v, const char *text)
{
    exf_err err;
    exf_fold_rewriter *f;
    ck_ok(exf_variant_parse(v, text, &err), err);
    ck_ok(exf_fold_rewriter_new(&f, v, &c->tables, &c->arch, &c->schedule, &err), err);
    return f;
}

/* A fresh copy of the case's routes in a layer. */
static inline exf_routes f_routes(const fold_case *c, int layer)
{
    size_t n = F_TOKENS * (size_t)c->arch.top_k;
    exf_routes r = {
        .layer = layer, .moe_index = layer - 1, .batch = &c->batch, .n_experts = c->arch.n_experts, .top_k = c->arch.top_k,
        .logits = c->logits, .bias = layer == 1 ? c->bias : NULL};
    r.ids = test_memory(n, sizeof *r.ids);
    r.weights = test_memory(n, sizeof *r.weights);
    memcpy(r.ids, c->ids, n * sizeof *r.ids);
    memcpy(r.weights, c->weights, n * sizeof *r.weights);
    return r;
}

static inline void f_rewrite(exf_fold_rewriter *f, exf_routes *r)
{
    exf_err err;
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    ck_ok(w->rewrite(w->self, r, &err), err);
}

static inline void f_free_routes(exf_routes *r)
{
    exf_mem_free(r->ids);
    exf_mem_free(r->weights);
}
#endif

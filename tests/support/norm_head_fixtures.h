/* norm_head_fixtures.h - tables with a norm head, what it predicts by its formula, and variants that fold by it, on the host and
 * on a device. */
#ifndef EXF_TESTS_NORM_HEAD_FIXTURES_H
#define EXF_TESTS_NORM_HEAD_FIXTURES_H
#include "kernels/backend.h"
#include "tests/support/device_fold_fixtures.h"

#include "fold/fold_rewriter_internal.h"

enum { Q = 3, K = 4, E = 8, FEATURES = Q + 4 };

typedef struct {
    fold_case c;
    float *input;              /* [T, H] */
    float norms[F_TOKENS * K]; /* of the layer that was asked for last */
} head_case;

static inline void open_case(head_case *h, int prefill_tokens)
{
    exf_err err;
    exf_norm_head *head = &h->c.tables.norm_head;
    fold_open(&h->c, E, K, prefill_tokens, 2);
    ck_ok(exf_norm_head_new(&h->c.tables, Q, &err), err);
    for (size_t i = 0; i < F_TABLES * F_H * Q; i++) head->basis[i] = naive_number(91, i);
    for (size_t i = 0; i < F_TABLES * E * FEATURES; i++) head->theta[i] = 0.4f * naive_number(92, i);
    for (int i = 0; i < F_BUDGETS; i++) {
        exf_budget *b = &h->c.tables.budget[i];
        b->predicted = (exf_budget_threshold){1.3 * b->lambda, b->mean, NULL};
    }
    h->input = naive_numbers(F_TOKENS * F_H, 93, 1);
}

static inline void close_case(head_case *h)
{
    fold_close(&h->c);
    exf_mem_free(h->input);
}

/* exp(theta' phi), from the formula. */
static inline double predicted(const head_case *h, int index, size_t row, int k)
{
    const exf_norm_head *head = &h->c.tables.norm_head;
    const float *x = h->input + row * F_H, *z = h->c.logits + row * E;
    int id = h->c.ids[row * K + (size_t)k];
    double phi[FEATURES] = {1}, square = 0, mean = 0, sum = 0;
    for (int i = 0; i < F_H; i++) {
        square += (double)x[i] * (double)x[i];
        for (int q = 0; q < Q; q++) phi[1 + q] += (double)x[i] * (double)head->basis[(index * F_H + i) * Q + q];
    }
    for (int e = 0; e < E; e++) mean += (double)z[e] / E;
    phi[Q + 1] = (double)z[id] - mean;
    phi[Q + 2] = log((double)h->c.weights[row * K + (size_t)k]);
    phi[Q + 3] = log(square) / 2;
    for (int i = 0; i < FEATURES; i++) sum += phi[i] * (double)head->theta[(index * E + id) * FEATURES + i];
    return exp(sum);
}

/* Shows the rewriter the routes of all sequences in a layer, last sequence first. */
static inline exf_code show(const head_case *h, exf_fold_rewriter *f, int layer, exf_err *err)
{
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    exf_code rc = EXF_OK;
    for (int s = F_SEQUENCES - 1; rc == EXF_OK && s >= 0; s--) {
        size_t row = h->c.span[s].offset;
        const exf_input_block b = {.layer = layer, .row = row, .n_tokens = h->c.span[s].n_tokens, .n_experts = E, .top_k = K,
                                    .d_model = F_H, .moe_input = h->input + row * F_H, .logits = h->c.logits + row * E,
                                    .ids = h->c.ids + row * K, .weights = h->c.weights + row * K};
        rc = w->routed(w->self, &b, err);
    }
    return rc;
}

static const char *const texts[] = {
    "P2:norms=predicted", "P1:norms=predicted,rank=norm", "P2:norms=predicted,projector=layer",
    "P2:norms=predicted,projector=joint", "P2:norms=predicted,projector=joint,rank=score", "P2:norms=predicted,budget=token",
    "P3:norms=predicted,budget=topp", "D3:norms=predicted", "D3:norms=predicted,rank=energy",
    "D3:norms=predicted,rank=energy,projector=joint", "D3:norms=predicted,rank=score,projector=joint",
    "D3:norms=predicted,rank=energy,targets=router", "D2:norms=predicted,pool=static,projector=joint",
    "P3:norms=predicted,projector=joint+D3:norms=predicted,rank=energy,projector=joint",
    "P3:norms=predicted+D3:rank=energy", "P2:budget=token+D3:norms=predicted,rank=energy",
};
enum { TEXTS = sizeof texts / sizeof *texts };

/* ---- on a device --------------------------------------------------------------------------- */

/* Shows the routes of all sequences to a rewriter on a device, which copies what it keeps before this returns. */
static inline void device_show(const head_case *h, const exf_backend *b, exf_queue *q, exf_fold_rewriter *f, int layer)
{
    exf_err err;
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    float *input = device_fold_put(b, q, h->input, F_TOKENS * F_H * sizeof *input);
    float *logits = device_fold_put(b, q, h->c.logits, F_TOKENS * E * sizeof *logits);
    float *weights = device_fold_put(b, q, h->c.weights, F_TOKENS * K * sizeof *weights);
    int32_t *ids = device_fold_put(b, q, h->c.ids, F_TOKENS * K * sizeof *ids);
    for (int s = 0; s < F_SEQUENCES; s++) {
        size_t row = h->c.span[s].offset;
        const exf_input_block d = {.layer = layer, .row = row, .n_tokens = h->c.span[s].n_tokens, .n_experts = E, .top_k = K,
                                     .d_model = F_H, .q = q, .moe_input = input + row * F_H, .logits = logits + row * E,
                                     .ids = ids + row * K, .weights = weights + row * K};
        ck_ok(w->routed(w->self, &d, &err), err);
    }
    ck_ok(b->finish(q, &err), err);
    void *there[] = {input, logits, weights, ids};
    for (int i = 0; i < 4; i++) b->free(there[i]);
}

/* A rewriter on a device beside the same one on the host: the same experts, and weights but for the last bits of norms. */
static inline void device_folds_by_predicted_norms(const exf_backend *b, exf_queue *q, const char *text)
{
    static const int splits[] = {0, 2, 1000}, layers[] = {1, 3, 2};
    for (size_t s = 0; s < 3; s++) {
        exf_err err;
        exf_variant v;
        head_case h;
        open_case(&h, splits[s]);
        exf_fold_rewriter *host = f_folder(&h.c, &v, text), *there = f_folder(&h.c, &v, text);
        const exf_rewriter *w = exf_fold_rewriter_callbacks(there);
        for (size_t i = 0; w->device_rewrite && i < 3; i++) {
            exf_routes want = f_routes(&h.c, layers[i]), is = f_routes(&h.c, layers[i]);
            if (i == 0) ck_ok(w->device_open(w->self, b, &err), err);
            ck_ok(show(&h, host, layers[i], &err), err);
            f_rewrite(host, &want);
            device_show(&h, b, q, there, layers[i]);
            device_fold_rewrite(b, q, there, &is);
            for (size_t at = 0; at < F_TOKENS * K; at++)
                ck_assert_msg(is.ids[at] == want.ids[at] && fabsf(is.weights[at] - want.weights[at]) <= 1e-5f,
                              "%s: layer %d, slot %zu: %d %.9g, the host has %d %.9g", text, layers[i], at, (int)is.ids[at],
                              (double)is.weights[at], (int)want.ids[at], (double)want.weights[at]);
            f_free_routes(&want);
            f_free_routes(&is);
        }
        if (w->device_rewrite) {
            ck_ok(b->finish(q, &err), err);
            ck_ok(exf_fold_rewriter_check(there, &err), err);
        }
        exf_fold_rewriter_free(host);
        exf_fold_rewriter_free(there);
        close_case(&h);
    }
}

static inline void device_refuses_what_is_no_norm(const exf_backend *b, exf_queue *q)
{
    exf_err err;
    exf_variant v;
    head_case h;
    open_case(&h, 1000);
    h.c.tables.norm_head.theta[((size_t)E + (size_t)h.c.ids[2 * K + 1]) * FEATURES] = 100;
    exf_fold_rewriter *f = f_folder(&h.c, &v, "P2:norms=predicted");
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    exf_routes r = f_routes(&h.c, 3);
    ck_ok(w->device_open(w->self, b, &err), err);
    ck_ok(exf_fold_rewriter_check(f, &err), err);
    device_show(&h, b, q, f, 3);
    device_fold_rewrite(b, q, f, &r);
    ck_ok(b->finish(q, &err), err);
    ck_assert_int_eq(exf_fold_rewriter_check(f, &err), EXF_NUMERIC);
    ck_assert_msg(strstr(err.msg, "variant \"P2:norms=predicted\": token ") && strstr(err.msg, "predicts no finite norm above 0"),
                  "%s", err.msg);
    f_free_routes(&r);
    exf_fold_rewriter_free(f);
    close_case(&h);
}
#endif

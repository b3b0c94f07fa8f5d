/* device_fold_fixtures.h - a rewriter on a device beside the same one on the host: equal routes and counts, for every form that
 * is folded in GPU memory. */
#ifndef EXF_TESTS_DEVICE_FOLD_FIXTURES_H
#define EXF_TESTS_DEVICE_FOLD_FIXTURES_H
#include "kernels/backend.h"
#include "tests/support/fold_fixtures.h"

static const char *const device_fold_texts[] = {
    "P1", "P2", "P4", "top1", "top2", "top1:drop", "skip1:tau=0.3", "skip2:tau=0.4,factor=output",
    "skip0:tau=0.35", "skip0:budget=2",
    "top2+D2:fold=renorm", "P2:rank=score", "P2:rank=norm", "P1:projector=layer", "P2:projector=global",
    "P2:projector=joint",
    "P1:projector=joint,ridge=0", "P2:projector=joint,ridge=0.3,rank=score", "P2:max_loss=0.4", "P1:max_loss=0.2,rescale=sum",
    "P2:rescale=l2", "P2:projector=joint,rescale=sum", "P1:confidence=on", "P2:confidence=on,max_loss=0.5,rescale=l2",
    "P2:projector=joint,layer=3", "P1:budget=token", "P2:budget=token,sensitivity=measured,ridge=0.01", "P2:budget=topp",
    "P2:loss=frobenius,rank=score,confidence=on", "D1", "D2", "D4", "D5", "D2:fold=drop", "D2:fold=renorm", "D3:rank=energy",
    "D3:rank=score", "D2:projector=layer", "D3:projector=global", "D2:projector=joint", "D3:projector=joint,rank=energy,ridge=0.2",
    "D1:fallback=first", "D2:rank=score,loss=frobenius,max_loss=0.3,fallback=first", "D2:max_loss=0.3", "D2:pool=static",
    "D2:pool=static,by=reap,fold=drop", "D2:pool=static,fold=renorm", "reap4", "P1+D2", "P2+reap4", "P1:budget=topp+D2:pool=static",
    "P2:projector=joint+D2:projector=joint", "P2:projector=layer+D3:projector=global,fold=drop", "D3:targets=router",
    "D2:targets=router,weights=route,rank=energy", "D3:targets=router,weights=gate,rank=score", "D2:pool=static,projector=joint",
    "D2:pool=static,by=reap,projector=joint,ridge=0.2", "D2:pool=static,targets=router",
    "D2:pool=static,by=reap,targets=router,weights=route", "P2:projector=joint+D3:targets=router,ridge=0"};
enum { DEVICE_FOLD_TEXTS = sizeof device_fold_texts / sizeof *device_fold_texts };

static inline void *device_fold_put(const exf_backend *b, exf_queue *q, const void *host, size_t bytes)
{
    exf_err err;
    void *p;
    ck_ok(b->alloc(&p, bytes, 1, "test", &err), err);
    b->upload(q, p, host, bytes);
    ck_ok(b->finish(q, &err), err);
    return p;
}

/* Rewrites r's routes on the device. */
static inline void device_fold_rewrite(const exf_backend *b, exf_queue *q, exf_fold_rewriter *f, exf_routes *r)
{
    exf_err err;
    const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
    size_t n = F_TOKENS * (size_t)r->top_k;
    int32_t *ids = device_fold_put(b, q, r->ids, n * sizeof *ids);
    float *weights = device_fold_put(b, q, r->weights, n * sizeof *weights);
    size_t e = (size_t)r->n_experts;
    float *logits = device_fold_put(b, q, r->logits, F_TOKENS * e * sizeof *logits);
    float *bias = r->bias ? device_fold_put(b, q, r->bias, e * sizeof *bias) : NULL;
    exf_routes d = {.layer = r->layer, .moe_index = r->moe_index, .batch = r->batch, .n_experts = r->n_experts,
                    .top_k = r->top_k, .probe = r->probe, .by_token = r->by_token, .q = q, .ids = ids, .weights = weights};
    if (w->wants_logits) {
        d.logits = logits;
        d.bias = bias;
    }
    ck_ok(w->device_rewrite(w->self, &d, &err), err);
    ck_ok(b->download(q, r->ids, ids, n * sizeof *ids, &err), err);
    ck_ok(b->download(q, r->weights, weights, n * sizeof *weights, &err), err);
    void *there[] = {ids, weights, logits, bias};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) b->free(there[i]);
}

static inline void device_fold_compare(const fold_case *c, const exf_backend *b, exf_queue *q, const char *text)
{
    static const int layers[] = {1, 3, 2, 4};
    exf_err err;
    exf_variant v;
    ck_ok(exf_variant_parse(&v, text, &err), err);
    if (exf_variant_check(&v, c->arch.n_experts, c->arch.top_k, &err) != EXF_OK) return;
    exf_fold_rewriter *host = f_folder(c, &v, text), *there = f_folder(c, &v, text);
    const exf_rewriter *w = exf_fold_rewriter_callbacks(there);
    ck_ok(w->device_open(w->self, b, &err), err);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int probe = 1; probe >= 0; probe--) { /* a layer's routes are rewritten twice */
            exf_routes want = f_routes(c, layers[i]), is = f_routes(c, layers[i]);
            want.probe = is.probe = probe;
            want.by_token = is.by_token = layers[i] == 4;
            f_rewrite(host, &want);
            device_fold_rewrite(b, q, there, &is);
            for (size_t at = 0; at < F_TOKENS * (size_t)c->arch.top_k; at++)
                ck_assert_msg(is.ids[at] == want.ids[at] && memcmp(&is.weights[at], &want.weights[at], sizeof(float)) == 0,
                              "%s, %d of %d: layer %d, slot %zu: %d %a, the host has %d %a", text, c->arch.top_k,
                              c->arch.n_experts, layers[i], at, (int)is.ids[at], (double)is.weights[at], (int)want.ids[at],
                              (double)want.weights[at]);
            f_free_routes(&want);
            f_free_routes(&is);
        }
    ck_ok(b->finish(q, &err), err);
    ck_assert_msg(memcmp(exf_fold_rewriter_usage(host), exf_fold_rewriter_usage(there),
                         (size_t)c->arch.n_moe_layers * sizeof(exf_expert_usage)) == 0,
                  "%s: other experts are counted", text);
    exf_fold_rewriter_free(host);
    exf_fold_rewriter_free(there);
}

/* With all positions both, split, and all prefill; rows with empty slots and experts twice. */
static inline void device_folds_as_the_host(const exf_backend *b, exf_queue *q, const char *text)
{
    static const int splits[] = {0, 3, 1000}, sizes[][2] = {{5, 2}, {8, 4}, {16, 11}};
    for (int size = 0; size < 3; size++)
        for (int split = 0; split < 3; split++) {
            fold_case c;
            size_t k = (size_t)sizes[size][1];
            fold_open(&c, sizes[size][0], sizes[size][1], splits[split], 1);
            for (size_t row = 0; row < F_TOKENS; row++) {
                if (row % 4 == 0) c.ids[row * k + row / 4 % k] = -1;
                if (row % 9 == 1) c.ids[row * k + 1] = c.ids[row * k];
                for (size_t i = 0; row % 11 == 2 && i < k; i++) c.ids[row * k + i] = -1;
            }
            device_fold_compare(&c, b, q, text);
            fold_close(&c);
        }
}
#endif

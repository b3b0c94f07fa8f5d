/* correction_cpu.c - see correction.h. */
#include "kernels/fold/correction.h"

#include "kernels/fold/fold_cpu.h"

static void add_scaled(float *routed, const float *v, float by, int h)
{
    for (int i = 0; i < h; i++) routed[i] += by * v[i];
}

static void add_omitted(float *routed, const exf_correction_tables *t, const float *v, float w, size_t cell, int h)
{
    int32_t pair = t->pair[cell];
    size_t row = (size_t)(pair - t->first) * (size_t)h;
    if (pair < 0 || t->scalar) add_scaled(routed, v, w * t->coeff[cell], h);
    if (pair < 0) return;
    const float *d = t->diagonal ? t->diagonal + row : NULL;
    for (int i = 0; d && i < h; i++) routed[i] += w * (d[i] * v[i]);
    for (int k = 0; k < t->rank; k++) { /* the pair's C is [R, H] */
        const float *q = t->basis + (size_t)k * (size_t)h;
        double z = 0;
        for (int i = 0; i < h; i++) z += (double)v[i] * (double)q[i];
        add_scaled(routed, t->c + row * (size_t)t->rank + (size_t)k * (size_t)h, w * (float)z, h);
    }
}

static void correct_token(float *routed, const exf_correction_tables *t, const exf_correction_call *c, int token)
{
    exf_fold_ranked r;
    exf_fold_routes in = {.ids = (void *)(uintptr_t)c->router_ids, .weights = (void *)(uintptr_t)c->router_weights,
                          .rows = c->n_tokens, .width = c->top_k};
    exf_fold_tables tables = {.norms = t->norms, .n_experts = t->n_experts};
    size_t slots = (size_t)token * (size_t)c->top_k, e = (size_t)t->n_experts, h = (size_t)c->d_model;
    exf_fold_rank_row(&r, &in, token, &tables, c->by);
    int kept = r.n < c->keep ? r.n : c->keep;
    if (kept == r.n || c->topk_ids[slots + (size_t)kept] >= 0) return;
    for (int j = kept; j < r.n; j++) {
        size_t row = (size_t)r.id[j] * e;
        int to = exf_fold_target(&r, kept, t->loss + row, c->max_loss);
        if (to >= 0)
            add_omitted(routed, t, (const float *)c->outputs.p + (slots + (size_t)to) * h, r.w[j], row + (size_t)r.id[to],
                        c->d_model);
    }
}

void exf_correct_routes_cpu(float *routed, const exf_correction_tables *t, const exf_correction_call *c)
{
    for (int token = 0; token < c->n_tokens; token++)
        if (!c->prefill || c->prefill[token]) correct_token(routed + (size_t)token * (size_t)c->d_model, t, c, token);
}

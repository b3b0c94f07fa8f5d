/* fold_norms.c - norms of the routes' experts on each token, which the tables' norm head predicts before any expert runs
 * (docs/method.md, section 13). */
#include "fold/fold_rewriter_internal.h"

#include "base/mem.h"
#include "kernels/rows/simd.h"

#include <math.h>
#include <string.h>

_Static_assert((int)EXF_NORM_MOST <= (int)EXF_NORM_HEAD_MOST, "a device predicts by any head that tables hold");

int exf_variant_wants_norms(const exf_variant *v)
{
    return v->prefill_norms || v->decode_norms;
}

exf_code exf_fold_norms_open(exf_fold_rewriter *f, exf_err *err)
{
    size_t slots;
    exf_code rc;
    if (!f->t->norm_head.q)
        return exf_fail(err, EXF_USAGE, "variant \"%s\": the tables hold no norm head; set calibrate.norm_head and calibrate again",
                        f->v->name);
    EXF_TRY(exf_mem_mul(&slots, f->schedule->batch->n_tokens, (size_t)f->a->top_k, "predicted norms", err));
    EXF_TRY(exf_mem_new(&f->routed_ids, slots, sizeof *f->routed_ids, "predicted norms", err));
    EXF_TRY(exf_mem_new(&f->norms, slots, sizeof *f->norms, "predicted norms", err));
out:
    return rc;
}

static exf_code predict_on_host(const exf_fold_rewriter *f, const exf_input_block *b, int index, exf_err *err)
{
    const exf_norm_head *head = &f->t->norm_head;
    int q = head->q;
    size_t e = (size_t)b->n_experts, h = (size_t)b->d_model, k = (size_t)b->top_k, features = exf_norm_features(q);
    const float *basis = head->basis + (size_t)index * h * (size_t)q, *theta = head->theta + (size_t)index * e * features;
    memcpy(f->routed_ids + b->row * k, b->ids, (size_t)b->n_tokens * k * sizeof *b->ids);
    for (size_t i = 0; i < (size_t)b->n_tokens; i++) {
        const float *logits = b->logits + i * e, *x = b->moe_input + i * h;
        double projected[EXF_NORM_MOST] = {0}, phi[EXF_NORM_MOST + EXF_NORM_BESIDE]; /* projected: V'x */
        for (size_t c = 0; c < h; c++)
            for (int j = 0; j < q; j++) projected[j] += (double)x[c] * (double)basis[c * (size_t)q + (size_t)j];
        double norm = sqrt(exf_dot(x, x, b->d_model)), mean = exf_norm_logit_mean(logits, b->n_experts);
        for (size_t slot = i * k; slot < (i + 1) * k; slot++) {
            int id = b->ids[slot];
            if (id < 0) continue;
            exf_norm_features_of(phi, projected, q, (double)logits[id] - mean, (double)b->weights[slot], norm);
            float n = exf_norm_predicted(theta + (size_t)id * features, phi, q);
            if (!(n > 0) || !isfinite(n))
                return exf_fail(err, EXF_NUMERIC, "variant \"%s\": layer %d, token %zu: the norm head predicts %g for expert %d",
                                f->v->name, b->layer, f->schedule->first_row + b->row + i, (double)n, id);
            f->norms[b->row * k + slot] = n;
        }
    }
    return EXF_OK;
}

/* Queues the same on b->q. */
static void predict_on_device(const exf_fold_rewriter *f, const exf_input_block *b, int index)
{
    const exf_device_fold *d = &f->device_fold;
    int q = f->t->norm_head.q;
    size_t k = (size_t)b->top_k, slot = b->row * k, at = (size_t)index;
    const exf_norm_head_call c = {.n_tokens = b->n_tokens, .n_experts = b->n_experts, .top_k = b->top_k, .d_model = b->d_model,
                                  .directions = q, .x = b->moe_input, .split = b->split, .squares = b->squares,
                                  .basis = d->basis + at * (size_t)b->d_model * (size_t)q,
                                  .rows = d->rows + at * (size_t)b->d_model * (size_t)q * EXF_NORM_HEAD_ROWS,
                                  .theta = d->theta + at * (size_t)b->n_experts * exf_norm_features(q), .logits = b->logits,
                                  .ids = b->ids, .weights = b->weights, .norms = d->norms + slot, .routed = d->routed + slot,
                                  .bad = d->bad_there, .row = f->schedule->first_row + b->row};
    d->b->gpu->predict_norms(b->q, &c);
}

exf_code exf_fold_norms_predict(void *self, const exf_input_block *b, exf_err *err)
{
    const exf_fold_rewriter *f = self;
    int index = f->table_of[b->layer];
    if (index < 0) return EXF_OK;
    if (!b->q) return predict_on_host(f, b, index, err);
    predict_on_device(f, b, index);
    return EXF_OK;
}

void exf_fold_norms_of(const exf_fold_rewriter *f, size_t row, const int32_t *ids, float *norms, size_t k)
{
    const int32_t *routed = f->routed_ids + row * k;
    for (size_t i = 0; i < k; i++) {
        size_t slot = 0;
        while (slot + 1 < k && routed[slot] != ids[i]) slot++;
        norms[i] = f->norms[row * k + slot];
    }
}

/* accumulate_bare.c - sums by the bare router, which REAP's code observes: a softmax of the router's logits, without a correction
 * bias, without groups, and in place of any other score; a token's experts are the K of largest logit, ties to the lower number.
 *
 * A model that chooses otherwise did not run these experts, so that the sums are of common input, where all run.  With
 * p = softmax(logits), w is p over the sum of the K, and at least 2^-23 as there, where the model renormalises its weights, else p.
 * Terms are double, sums exact. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "kernels/rows/simd.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Chooses the K experts of largest logit, by falling logit, and their weights. */
static void route(int *id, double *w, const float *logits, int n_experts, int top_k, int renormalises)
{
    double all = 0, chosen = 0;
    int n = 0;
    for (int e = 0; e < n_experts; e++) {
        int at = n;
        while (at > 0 && logits[e] > logits[id[at - 1]]) at--;
        if (at == top_k) continue;
        n += n < top_k;
        memmove(id + at + 1, id + at, (size_t)(n - 1 - at) * sizeof *id);
        id[at] = e;
    }
    for (int e = 0; e < n_experts; e++) all += exp((double)logits[e] - (double)logits[id[0]]);
    for (int k = 0; k < n; k++) chosen += w[k] = exp((double)logits[id[k]] - (double)logits[id[0]]) / all;
    for (int k = 0; renormalises && k < n; k++) w[k] = fmax(w[k] / chosen, (double)FLT_EPSILON);
}

exf_code exf_bare_sums_add(const exf_layer_statistics *s, const exf_bare_tokens *t, exf_err *err)
{
    int id[EXF_MAX_TOP_K + 1];
    double w[EXF_MAX_TOP_K];
    size_t e = (size_t)s->n_experts, h = (size_t)t->d_model;
    for (int i = 0; i < t->n; i++) {
        route(id, w, t->logits + t->row[i] * e, s->n_experts, t->top_k, t->renormalises);
        for (int k = 0; k < t->top_k; k++) {
            const float *u = t->outputs + ((size_t)i * e + (size_t)id[k]) * h;
            double sq = exf_dot(u, u, t->d_model);
            if (!exf_exact_fits(sq)) return exf_output_fault(err, id[k], sq, NULL);
            exf_exact_add(&s->bare_norm_sum[id[k]], sqrt(sq));
            exf_exact_add(&s->bare_contribution_sum[id[k]], w[k] * sqrt(sq));
            s->bare_count[id[k]]++;
        }
    }
    return EXF_OK;
}

/* ---- outputs in GPU memory ------------------------------------------------------------------------ */

/* Copies the tokens [first, first + n) of the block to host memory, as float32. */
static exf_code fetch_outputs(float *to, const exf_backend *b, const exf_common_input_block *c, int first, int n, exf_err *err)
{
    size_t each = (size_t)c->n_experts * (size_t)c->d_model, numbers = (size_t)n * each, from = (size_t)first * each;
    uint16_t *rounded = (uint16_t *)(void *)to + numbers; /* the upper half: widened from the front, nothing is overwritten early */
    exf_code rc;
    if (!c->rounded) return b->download(c->q, to, (const float *)c->outputs + from, numbers * sizeof *to, err);
    EXF_TRY(b->download(c->q, rounded, (const uint16_t *)c->outputs + from, numbers * sizeof *rounded, err));
    for (size_t i = 0; i < numbers; i++) {
        uint16_t half;
        memcpy(&half, rounded + i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(to + i, &bits, sizeof bits);
    }
out:
    return rc;
}

exf_code exf_bare_sums_add_device(const exf_layer_statistics *s, const exf_backend *b, const exf_common_input_block *c, int top_k,
                                  int renormalises, exf_err *err)
{
    enum { TOKENS = EXF_COMMON_INPUT_UNIT };
    size_t each = (size_t)c->n_experts * (size_t)c->d_model, row[TOKENS];
    int32_t *rows = NULL;
    float *outputs = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&rows, (size_t)c->n_tokens, sizeof *rows, "rows of common input", err));
    EXF_TRY(exf_mem_new(&outputs, TOKENS * each, sizeof *outputs, "outputs of common input", err));
    EXF_TRY(b->download(c->q, rows, c->device_row, (size_t)c->n_tokens * sizeof *rows, err));
    for (int p = 0; p < c->n_parts; p++)
        for (int at = 0, n; at < c->part[p].n_tokens; at += n) {
            int first = c->part[p].first + at, left = c->part[p].n_tokens - at;
            n = left < TOKENS ? left : TOKENS;
            EXF_TRY(fetch_outputs(outputs, b, c, first, n, err));
            for (int i = 0; i < n; i++) row[i] = c->row_offset + (size_t)rows[first + i];
            exf_bare_tokens t = {.n = n, .top_k = top_k, .d_model = c->d_model, .renormalises = renormalises, .row = row,
                                 .logits = c->router_logits, .outputs = outputs};
            EXF_TRY(exf_bare_sums_add(s, &t, err));
        }
out:
    exf_mem_free(rows);
    exf_mem_free(outputs);
    return rc;
}

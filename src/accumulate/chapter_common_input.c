/* chapter_common_input.c - the sums of pairs of common input, where all experts run on the same tokens, and of them the sums by the
 * bare router, which REAP's code observes: a softmax of the router's logits, without a correction bias, without groups, and in
 * place of any other score; a token's experts are the K of largest logit, ties to the lower number.
 *
 * A model that chooses otherwise did not run these experts, so that the sums are of common input.  With p = softmax(logits), w is
 * p over the sum of the K, and at least 2^-23 as there, where the model renormalises its weights, else p.  Terms are double, sums
 * exact. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "kernels/rows/simd.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- in host memory --------------------------------------------------------------------------------- */

/* Tokens of common input with the outputs of all experts. */
typedef struct {
    int n, top_k, d_model;
    int renormalises;     /* 1: the model renormalises the weights of a token's experts */
    const size_t *row;    /* [n] of each token in the run */
    const float *logits;  /* [T of the run, E] */
    const float *outputs; /* [n, E, H] */
} bare_tokens;

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

static exf_code add_bare(const exf_layer_statistics *s, const bare_tokens *t, exf_err *err)
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

/* ---- in GPU memory ---------------------------------------------------------------------------------- */

/* Where the CPU checks the first unit of a part, a call of its own adds that unit, which changes no bit. */
void exf_device_sums_add_common_input(exf_device_sums *s, const exf_common_input_block *b)
{
    exf_gram_call g = {.n_experts = b->n_experts, .d_model = b->d_model, .n_products = b->n_tokens,
                        .outputs = {b->outputs, b->rounded ? EXF_NUMBER_BF16 : EXF_NUMBER_F32}, .gram_matrices = s->gram_matrices};
    s->q = b->q;
    s->b->gpu->gram_matrices(b->q, &g);
    for (int i = 0; i < b->n_parts; i++) {
        const exf_common_input_part *p = &b->part[i];
        exf_common_input_call c = {.of = &g, .first = p->first, .n_tokens = p->n_tokens, .weighting = s->weighting,
                                   .row = b->device_row + p->first, .row_offset = (int64_t)b->row_offset}, unit = c;
        if (s->sequences) exf_device_sums_enter_sequence(s, b->q, p->sequence);
        exf_checked_part *part = exf_cross_check_next_common(&s->check, b, i);
        if (part) {
            unit.n_tokens = part->n_tokens;
            exf_cross_check_before_common(&s->check, part, b->q, s->sums, &unit);
            s->b->gpu->layer_sums_add_common_input(b->q, s->sums, &unit);
            exf_cross_check_after(&s->check, part, b->q, s->sums);
            c.first += unit.n_tokens;
            c.n_tokens -= unit.n_tokens;
            c.row += unit.n_tokens;
        }
        if (c.n_tokens) s->b->gpu->layer_sums_add_common_input(b->q, s->sums, &c);
        if (p->ends && s->sequences) exf_device_sums_close_sequence(s, b->q, p->sequence);
    }
}

/* ---- the bare router's sums of outputs in GPU memory, a few tokens at a time --------------------------- */

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

static exf_code add_bare_on_device(const exf_layer_statistics *s, const exf_backend *b, const exf_common_input_block *c, int top_k,
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
            bare_tokens t = {.n = n, .top_k = top_k, .d_model = c->d_model, .renormalises = renormalises, .row = row,
                             .logits = c->router_logits, .outputs = outputs};
            EXF_TRY(add_bare(s, &t, err));
        }
out:
    exf_mem_free(rows);
    exf_mem_free(outputs);
    return rc;
}

/* ---- what cannot be ---------------------------------------------------------------------------------- */

/* Checks that the bare router gave each token of common input K experts. */
exf_code exf_common_input_check_layer(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err)
{
    const exf_statistics_reader *r = read->r;
    int layer = read->layer;
    if (!read->has[EXF_PART_BARE]) return EXF_OK;
    uint64_t all = 0, tokens = s->n_experts > 1 ? s->count[1] : 0;
    for (int e = 0; e < s->n_experts; e++) {
        uint64_t n = s->bare_count[e];
        int sums = exf_exact_value(&s->bare_norm_sum[e]) != 0 || exf_exact_value(&s->bare_contribution_sum[e]) != 0;
        if (n > tokens || (!n && sums))
            return exf_fail(err, EXF_FORMAT, "%s: /layers/%d/bare: expert %d has sums of %llu tokens of %llu of common input",
                            exf_h5_path(r->h), layer, e, (unsigned long long)n, (unsigned long long)tokens);
        all += n;
    }
    if (r->common_input && all == tokens * (uint64_t)r->shape.top_k) return EXF_OK;
    return exf_fail(err, EXF_FORMAT,
                    "%s: /layers/%d/bare/count has %llu routes, expected %lld of each of %llu tokens of common input",
                    exf_h5_path(r->h), layer, (unsigned long long)all, (long long)r->shape.top_k, (unsigned long long)tokens);
}

/* ---- the chapter ------------------------------------------------------------------------------------ */

exf_code exf_common_input_add_block(exf_accumulator *a, const exf_common_input_block *b, exf_err *err)
{
    const exf_layer_statistics *s = &a->sums[b->worker];
    exf_layer_sums m = exf_layer_sums_of(s);
    int renormalises = a->options.bare_router == EXF_BARE_RENORMALISED;
    const bare_tokens t = {.n = b->n_tokens, .top_k = b->top_k, .d_model = b->d_model, .renormalises = renormalises, .row = b->row,
                           .logits = b->router_logits, .outputs = b->outputs};
    exf_code rc = EXF_OK;
    if (b->q) {
        exf_device_sums_add_common_input(&a->device, b);
        return a->options.bare_router ? add_bare_on_device(s, a->device.b, b, b->top_k, renormalises, err) : EXF_OK;
    }
    EXF_TRY(exf_sequences_enter_common_input(a, b, err));
    EXF_TRY(exf_layer_sums_add_common_input_cpu(&m, b->n_experts, b->d_model, b->n_tokens, b->outputs, a->options.weighting,
                                                a->scratch + (size_t)b->worker * a->scratch_each, err));
    if (a->options.bare_router) rc = add_bare(s, &t, err);
out:
    return rc;
}

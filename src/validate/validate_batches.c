/* validate_batches.c - the decode batches of a validation: which rows they constrain as those of serving would, and where a run may
 * be cut; see validate.h. */
#include "validate/validate.h"

exf_step_widths exf_step_widths_of(const exf_decode_schedule *s)
{
    exf_step_widths w = {0, 0};
    for (size_t i = 0; i < s->n_steps; i++) {
        uint64_t width = s->first[i + 1] - s->first[i];
        w.sum += width;
        w.squares += width * width;
    }
    return w;
}

/* ---- whether they constrain ------------------------------------------------------------------ */

exf_constraint exf_constraint_of(const exf_variant *v, const exf_batch_size *b)
{
    if (v->decode != EXF_DECODE_DYNAMIC && v->decode != EXF_DECODE_SERE) return EXF_CONSTRAINED;
    if (b->experts <= v->decode_options.pool) return EXF_FEW_EXPERTS;
    return 4 * b->width < 3 * b->size ? EXF_SHORT_BATCHES : EXF_CONSTRAINED;
}

const char *exf_constraint_name(exf_constraint c)
{
    static const char *const names[] = {"none", "few_experts", "short_batches"};
    return names[c];
}

void exf_constraint_advice(exf_text *out, const exf_validation *v, const exf_variant_result *r)
{
    const exf_batch_size *b = &v->batch_size[r->batch];
    int is_short = 4 * b->width < 3 * b->size;
    if (r->constraint == EXF_CONSTRAINED) return;
    exf_text_appendf(out, "the original runs %.1f experts in decode batches of %d that are %.1f sequences wide", b->experts,
                     b->size, b->width);
    if (is_short)
        exf_text_appendf(out, "; give more sequences (%d and up, of like lengths), or --set validate.decode_batch=%d", b->size,
                         b->width < 2 ? 1 : (int)b->width);
    else
        exf_text_appendf(out, ", no more than its pool; validate a smaller D, or raise validate.decode_batch as it is served");
}

/* ---- where they end ------------------------------------------------------------------------------ */

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void exf_batches_group(size_t *group_of, size_t n, const int64_t *size, size_t n_sizes)
{
    int64_t all = 1;
    for (size_t i = 0; i < n_sizes; i++) {
        all = all / greatest_divisor(all, size[i]) * size[i];
        if ((uint64_t)all >= n) all = n ? (int64_t)n : 1; /* one group */
    }
    for (size_t i = 0; i < n; i++) group_of[i] = i / (size_t)all;
}

/* sequence_sums.c - see sequence_sums.h. */
#include "accumulate/sequence_sums.h"

#include "base/mem.h"
#include "kernels/statistics/sums_fault.h"

#include <string.h>

exf_code exf_sequence_tracker_new(exf_sequence_tracker *k, int n_experts, exf_err *err)
{
    size_t cells = (size_t)n_experts * (size_t)n_experts;
    exf_code rc;
    memset(k, 0, sizeof *k);
    EXF_TRY(exf_mem_new(&k->dot, cells, sizeof *k->dot, "sums of a sequence", err));
    EXF_TRY(exf_mem_new(&k->target_sq, cells, sizeof *k->target_sq, "sums of a sequence", err));
    EXF_TRY(exf_mem_new(&k->count, cells, sizeof *k->count, "sums of a sequence", err));
out:
    if (rc != EXF_OK) exf_sequence_tracker_free(k);
    return rc;
}

void exf_sequence_tracker_free(exf_sequence_tracker *k)
{
    exf_mem_free(k->dot);
    exf_mem_free(k->target_sq);
    exf_mem_free(k->count);
    memset(k, 0, sizeof *k);
}

exf_code exf_sequence_tracker_enter(exf_sequence_tracker *k, const exf_layer_statistics *s, size_t sequence, int position, int n,
                                    exf_err *err)
{
    size_t cells = (size_t)s->n_experts * (size_t)s->n_experts;
    int goes_on = k->open && k->sequence == sequence;
    if (position != (goes_on ? k->next_position : 0))
        return exf_fail(err, EXF_INTERNAL, "sequence %zu is shown from position %d, expected %d", sequence, position,
                        goes_on ? k->next_position : 0);
    if (!goes_on) {
        exf_code rc = exf_sequence_tracker_close(k, s, err);
        if (rc != EXF_OK) return rc;
        memcpy(k->dot, s->dot, cells * sizeof *k->dot);
        memcpy(k->target_sq, s->target_sq, cells * sizeof *k->target_sq);
        memcpy(k->count, s->count, cells * sizeof *k->count);
        k->open = 1;
        k->sequence = sequence;
    }
    k->next_position = position + n;
    return EXF_OK;
}

static double difference(const exf_exact *now, const exf_exact *before)
{
    exf_exact d = *before;
    exf_exact_negate(&d);
    exf_exact_merge(&d, now);
    return exf_exact_value(&d);
}

exf_code exf_sequence_tracker_close(exf_sequence_tracker *k, const exf_layer_statistics *s, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    for (size_t i = 0; k->open && i < e * e; i++) {
        if (s->count[i] == k->count[i]) continue;
        double a = EXF_SEQUENCE_SCALE * difference(&s->dot[i], &k->dot[i]),
               b = EXF_SEQUENCE_SCALE * difference(&s->target_sq[i], &k->target_sq[i]);
        if (!exf_exact_fits(a * a) || !exf_exact_fits(b * b))
            return exf_sequence_fault(err, k->sequence, (int)(i / e), (int)(i % e), a / EXF_SEQUENCE_SCALE, b / EXF_SEQUENCE_SCALE);
        exf_exact_add(&s->seq_aa[i], a * a);
        exf_exact_add(&s->seq_ab[i], a * b);
        exf_exact_add(&s->seq_bb[i], b * b);
        s->sequences[i]++;
    }
    k->open = 0;
    return EXF_OK;
}

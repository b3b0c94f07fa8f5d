/* accumulate_sequences.c - what each sequence added to a layer's sums, and the energy of the residual stream. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "kernels/statistics/divergence.h"
#include "kernels/statistics/layer_sums.h"

#include <math.h>
#include <string.h>

size_t exf_sequence_tracker_bytes(int n_experts)
{
    return (size_t)n_experts * (size_t)n_experts * (2 * sizeof(exf_exact) + sizeof(uint64_t));
}

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

/* Adds the sums so far to those of the half, or takes them from these. */
static void turn_half(const exf_layer_statistics *s, int add)
{
    const exf_exact *const now[] = {s->dot, s->target_sq, s->source_sq};
    exf_exact *const half[] = {s->half_dot, s->half_target_sq, s->half_source_sq};
    size_t cells = (size_t)s->n_experts * (size_t)s->n_experts;
    for (size_t i = 0; i < cells; i++) {
        if (!s->count[i]) continue;
        s->half_count[i] += add ? s->count[i] : 0 - s->count[i];
        for (size_t k = 0; k < sizeof now / sizeof *now; k++) {
            exf_exact x = now[k][i];
            if (!add) exf_exact_negate(&x);
            (void)exf_exact_merge(&half[k][i], &x); /* between the two turns it may wrap, and wraps back */
        }
    }
}

static double difference(const exf_exact *now, const exf_exact *before)
{
    exf_exact d = *before;
    exf_exact_negate(&d);
    exf_exact_merge(&d, now);
    return exf_exact_value(&d);
}

/* Adds the present sequence, if there is one, to s->seq_* and s->sequences. */
static exf_code close_sequence(exf_sequence_tracker *k, const exf_layer_statistics *s, exf_err *err)
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

exf_code exf_sequence_tracker_enter(exf_sequence_tracker *k, const exf_layer_statistics *s, size_t sequence, int in_half,
                                    int position, int n, exf_err *err)
{
    size_t cells = (size_t)s->n_experts * (size_t)s->n_experts;
    int goes_on = k->open && k->sequence == sequence;
    if (position != (goes_on ? k->next_position : 0))
        return exf_fail(err, EXF_INTERNAL, "sequence %zu is shown from position %d, expected %d", sequence, position,
                        goes_on ? k->next_position : 0);
    if (!goes_on) {
        exf_code rc = close_sequence(k, s, err);
        if (rc != EXF_OK) return rc;
        memcpy(k->dot, s->dot, cells * sizeof *k->dot);
        memcpy(k->target_sq, s->target_sq, cells * sizeof *k->target_sq);
        memcpy(k->count, s->count, cells * sizeof *k->count);
        if (in_half != k->in_half) turn_half(s, k->in_half);
        k->in_half = in_half;
        k->open = 1;
        k->sequence = sequence;
    }
    k->next_position = position + n;
    return EXF_OK;
}

exf_code exf_sequence_tracker_end(exf_sequence_tracker *k, const exf_layer_statistics *s, exf_err *err)
{
    exf_code rc = close_sequence(k, s, err);
    if (k->in_half) turn_half(s, 1);
    k->in_half = 0;
    return rc;
}

/* ---- the residual stream ------------------------------------------------------------------------- */

exf_code exf_stream_energy_new(exf_stream_energy *s, int n_workers, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    s->n_workers = n_workers;
    EXF_TRY(exf_mem_new(&s->sum, (size_t)n_workers, sizeof *s->sum, "energy of the stream", err));
    EXF_TRY(exf_mem_new(&s->inverse, (size_t)n_workers, sizeof *s->inverse, "energy of the stream", err));
    EXF_TRY(exf_mem_new(&s->count, (size_t)n_workers, sizeof *s->count, "energy of the stream", err));
out:
    if (rc != EXF_OK) exf_stream_energy_free(s);
    return rc;
}

exf_code exf_stream_energy_open_device(exf_stream_energy *s, const exf_backend *b, exf_err *err)
{
    s->b = b;
    return b->alloc(&s->device, 1, sizeof *s->device, "energy of the stream", err);
}

void exf_stream_energy_free(exf_stream_energy *s)
{
    if (s->b) s->b->free(s->device);
    exf_mem_free(s->sum);
    exf_mem_free(s->inverse);
    exf_mem_free(s->count);
    memset(s, 0, sizeof *s);
}

/* Leaves out energies that are not finite: the pass refuses such hidden states. */
exf_code exf_stream_energy_add(exf_stream_energy *s, const exf_moe_block *b, exf_err *err)
{
    if (!b->stream && !b->stream_sq) return EXF_OK;
    for (int t = 0; t < b->n_tokens; t++) {
        const float *row = b->stream ? b->stream + (size_t)t * (size_t)b->stream_width : NULL;
        double energy = row ? exf_row_energy(row, b->stream_width) : b->stream_sq[t];
        if (!exf_exact_fits(energy)) {
            if (!isfinite(energy)) continue;
            return exf_fail(err, EXF_NUMERIC, "token %d: the residual stream has squared norm %g, outside the range of the sums", t,
                            energy);
        }
        exf_exact_add(&s->sum[b->worker], energy);
        exf_exact_add(&s->inverse[b->worker], 1 / fmax(energy, EXF_LEAST_ENERGY));
    }
    s->count[b->worker] += (uint64_t)b->n_tokens;
    return EXF_OK;
}

void exf_stream_energy_add_device(exf_stream_energy *s, const exf_moe_block *b)
{
    if (!b->stream) return;
    s->b->gpu->row_energies(b->q, s->device, b->stream, b->n_tokens, b->stream_width);
    s->q = b->q;
    s->device_count += (uint64_t)b->n_tokens;
}

static exf_code take_device(exf_stream_energy *s, const exf_layer_statistics *to, int layer, exf_err *err)
{
    exf_row_energies sums;
    exf_code rc;
    if (!s->q) return EXF_OK;
    EXF_TRY(s->b->download(s->q, &sums, s->device, sizeof sums, err));
    s->b->zero(s->q, s->device, sizeof sums);
    if (sums.out_of_range)
        rc = exf_fail(err, EXF_NUMERIC, "layer %d: the residual stream of %llu tokens has a squared norm outside the range of the "
                      "sums", layer, sums.out_of_range);
    exf_row_energies_read(&sums, to->stream_sq, to->stream_inverse_sq);
    *to->stream_count += s->device_count;
    *to->stream_inverse_count += s->device_count;
out:
    s->q = NULL;
    s->device_count = 0;
    return rc;
}

exf_code exf_stream_energy_take(exf_stream_energy *s, const exf_layer_statistics *to, int layer, exf_err *err)
{
    for (int i = 0; i < s->n_workers; i++) {
        exf_exact_merge(to->stream_sq, &s->sum[i]);
        exf_exact_merge(to->stream_inverse_sq, &s->inverse[i]);
        *to->stream_count += s->count[i];
        *to->stream_inverse_count += s->count[i];
        s->sum[i] = s->inverse[i] = (exf_exact){{0, 0, 0}};
        s->count[i] = 0;
    }
    return take_device(s, to, layer, err);
}

/* chapter_sequences.c - what each sequence adds to a layer's pair sums: the squares of a sequence's own sums, whose unit is the
 * sequence, for the jackknife; and the sums of one half of the sequences alone (accumulate/statistics.h).
 *
 * A sequence's own sum is the exact difference of a worker's sum before and after the sequence, rounded once: it depends on no
 * block, worker or other sequence.  Where blocks of several sequences mix (exf_accumulator_plan), what a sequence has added so far
 * is set aside when another's block comes.  The sums of a half come from the same walk: before a run of sequences of that half the
 * worker's sums are taken from s->half_*, after it they are added to them. */
#include "accumulate/accumulate_internal.h"

#include "base/mem.h"
#include "kernels/statistics/layer_sums.h"

#include <string.h>

/* ---- in host memory --------------------------------------------------------------------------------- */

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

static exf_exact difference(const exf_exact *now, const exf_exact *before)
{
    exf_exact d = *before;
    exf_exact_negate(&d);
    exf_exact_merge(&d, now);
    return d;
}

/* Adds the present sequence, if there is one, to s->seq_* and s->sequences. */
static exf_code close_sequence(exf_sequence_tracker *k, const exf_layer_statistics *s, exf_err *err)
{
    size_t e = (size_t)s->n_experts;
    for (size_t i = 0; k->open && i < e * e; i++) {
        if (s->count[i] == k->count[i]) continue;
        exf_exact dot = difference(&s->dot[i], &k->dot[i]), target_sq = difference(&s->target_sq[i], &k->target_sq[i]);
        double a = EXF_SEQUENCE_SCALE * exf_exact_value(&dot), b = EXF_SEQUENCE_SCALE * exf_exact_value(&target_sq);
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

/* Sets aside what the present sequence, which has tokens left, has added to s: the cells that it changed. */
static exf_code park_sequence(exf_sequence_tracker *k, const exf_layer_statistics *s, exf_err *err)
{
    size_t cells = (size_t)s->n_experts * (size_t)s->n_experts, n = 0;
    exf_parked_sequence p = {.sequence = k->sequence, .seen = k->next_position};
    exf_code rc;
    for (size_t i = 0; i < cells; i++) n += s->count[i] != k->count[i];
    EXF_TRY(exf_mem_grow(&k->parked, &k->cap_parked, k->n_parked + 1, sizeof *k->parked, "sums of a sequence", err));
    EXF_TRY(exf_mem_new(&p.cell, n, sizeof *p.cell, "sums of a sequence", err));
    for (size_t i = 0; i < cells; i++)
        if (s->count[i] != k->count[i])
            p.cell[p.n++] = (exf_parked_cell){.at = i, .dot = difference(&s->dot[i], &k->dot[i]),
                                              .target_sq = difference(&s->target_sq[i], &k->target_sq[i]),
                                              .count = s->count[i] - k->count[i]};
    k->parked[k->n_parked++] = p;
    k->open = 0;
out:
    return rc;
}

/* Takes back what a sequence that was set aside has added: it counts as added after the sums "before" it. */
static void resume_sequence(exf_sequence_tracker *k, size_t sequence)
{
    size_t at = 0;
    k->next_position = 0;
    while (at < k->n_parked && k->parked[at].sequence != sequence) at++;
    if (at == k->n_parked) return;
    exf_parked_sequence p = k->parked[at];
    for (const exf_parked_cell *c = p.cell; c < p.cell + p.n; c++) {
        k->dot[c->at] = difference(&k->dot[c->at], &c->dot);
        k->target_sq[c->at] = difference(&k->target_sq[c->at], &c->target_sq);
        k->count[c->at] -= c->count;
    }
    k->next_position = p.seen;
    exf_mem_free(p.cell);
    k->parked[at] = k->parked[--k->n_parked];
}

/* Called before n tokens of `sequence` from `position` on are added to the worker's sums.  length: the tokens that the sequence
 * has, whose blocks may come in any order and mix with others'; 0: blocks come in order, one sequence after the other. */
static exf_code enter(const exf_accumulator *a, int worker, size_t sequence, int position, int n, int length, exf_err *err)
{
    exf_sequence_tracker *k = &a->tracker[worker];
    const exf_layer_statistics *s = &a->sums[worker];
    size_t cells = (size_t)s->n_experts * (size_t)s->n_experts;
    int goes_on = k->open && k->sequence == sequence, in_half = exf_sequence_half(&a->sequences, a->first_sequence + sequence);
    if (!length && position != (goes_on ? k->next_position : 0))
        return exf_fail(err, EXF_INTERNAL, "sequence %zu is shown from position %d, expected %d", sequence, position,
                        goes_on ? k->next_position : 0);
    if (!goes_on) {
        int is_parked = k->open && k->next_position < k->length;
        exf_code rc = is_parked ? park_sequence(k, s, err) : close_sequence(k, s, err);
        if (rc != EXF_OK) return rc;
        memcpy(k->dot, s->dot, cells * sizeof *k->dot);
        memcpy(k->target_sq, s->target_sq, cells * sizeof *k->target_sq);
        memcpy(k->count, s->count, cells * sizeof *k->count);
        if (in_half != k->in_half) turn_half(s, k->in_half);
        k->in_half = in_half;
        k->open = 1;
        k->sequence = sequence;
        k->length = length;
        resume_sequence(k, sequence);
    }
    k->next_position = length ? k->next_position + n : position + n;
    return EXF_OK;
}

exf_code exf_sequences_enter_block(const exf_accumulator *a, const exf_moe_block *b, exf_err *err)
{
    if (!a->sequences.length) return EXF_OK;
    int length = a->mixed ? a->sequences.length[a->first_sequence + b->sequence] : 0;
    return enter(a, b->worker, b->sequence, b->position, b->n_tokens, length, err);
}

exf_code exf_sequences_enter_common_input(const exf_accumulator *a, const exf_common_input_block *b, exf_err *err)
{
    if (!a->sequences.length) return EXF_OK;
    const exf_sequence_tracker *k = &a->tracker[b->worker];
    int position = k->open && k->sequence == b->sequence ? k->next_position : 0;
    return enter(a, b->worker, b->sequence, position, b->n_tokens, 0, err);
}

/* ---- in GPU memory ----------------------------------------------------------------------------------
 * The kernels that add the terms of pairs have the tracker, too: chapter_pairs.c and chapter_common_input.c cut their blocks by
 * sequence. */

void exf_device_sums_enter_sequence(exf_device_sums *s, exf_queue *q, size_t sequence)
{
    int in_half = exf_sequence_half(s->sequences, s->first_sequence + sequence);
    if (in_half != s->in_half) s->b->gpu->layer_sums_turn_half(q, s->sums, s->n_experts, s->in_half);
    s->in_half = in_half;
}

void exf_device_sums_close_sequence(const exf_device_sums *s, exf_queue *q, size_t sequence)
{
    s->b->gpu->layer_sums_close_sequence(q, s->sums, s->n_experts, EXF_SEQUENCE_SCALE, sequence);
}

/* ---- what cannot be ---------------------------------------------------------------------------------- */

/* Checks sequence counts, 0 for a pair without tokens, else at least one and at most one per token; and the counts of a half, which
 * are mirrored and no larger than the whole ones. */
exf_code exf_sequences_check_layer(const exf_layer_read *read, const exf_layer_statistics *s, exf_err *err)
{
    const exf_statistics_reader *r = read->r;
    size_t e = (size_t)s->n_experts;
    for (size_t i = 0; r->has[EXF_PART_SEQUENCES] && i < e * e; i++)
        if (s->sequences[i] > s->count[i] || s->sequences[i] > r->sequences.n || (s->count[i] && !s->sequences[i]))
            return exf_fail(err, EXF_FORMAT, "%s: /layers/%d/sequences[%zu, %zu] is %llu for %llu tokens of %zu sequences",
                            exf_h5_path(r->h), read->layer, i / e, i % e, (unsigned long long)s->sequences[i],
                            (unsigned long long)s->count[i], r->sequences.n);
    for (size_t i = 0; r->has[EXF_PART_HALVES] && i < e * e; i++) {
        size_t mirror = i % e * e + i / e;
        if (s->half_count[i] <= s->count[i] && s->half_count[i] == s->half_count[mirror]) continue;
        return exf_fail(err, EXF_FORMAT, "%s: /layers/%d/half/count[%zu, %zu] is %llu, the mirrored pair's %llu, the whole's %llu",
                        exf_h5_path(r->h), read->layer, i / e, i % e, (unsigned long long)s->half_count[i],
                        (unsigned long long)s->half_count[mirror], (unsigned long long)s->count[i]);
    }
    return EXF_OK;
}

/* ---- the chapter ------------------------------------------------------------------------------------ */

exf_code exf_sequences_begin_pass(exf_accumulator *a, exf_err *err)
{
    size_t cells = (size_t)a->shape.n_experts * (size_t)a->shape.n_experts;
    exf_code rc;
    EXF_TRY(exf_mem_new(&a->tracker, (size_t)a->n_workers, sizeof *a->tracker, "statistics", err));
    for (exf_sequence_tracker *k = a->tracker; k < a->tracker + a->n_workers; k++) {
        EXF_TRY(exf_mem_new(&k->dot, cells, sizeof *k->dot, "sums of a sequence", err));
        EXF_TRY(exf_mem_new(&k->target_sq, cells, sizeof *k->target_sq, "sums of a sequence", err));
        EXF_TRY(exf_mem_new(&k->count, cells, sizeof *k->count, "sums of a sequence", err));
    }
out:
    return rc;
}

/* Ends the last sequence of each worker and the run of sequences of one half, which completes the sums of the half.  EXF_NUMERIC if
 * a product leaves the range of exf_exact. */
exf_code exf_sequences_end_sweep(exf_accumulator *a, int layer, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < a->n_workers; i++) {
        exf_sequence_tracker *k = &a->tracker[i];
        rc = close_sequence(k, &a->sums[i], err);
        if (rc == EXF_OK && k->n_parked)
            rc = exf_fail(err, EXF_INTERNAL, "sequence %zu ends after %d of its tokens", k->parked[0].sequence, k->parked[0].seen);
        if (k->in_half) turn_half(&a->sums[i], 1);
        k->in_half = 0;
    }
    if (rc == EXF_NUMERIC) exf_err_prefix(err, "layer %d, ", layer);
    return rc;
}

void exf_sequences_end_pass(exf_accumulator *a)
{
    for (exf_sequence_tracker *k = a->tracker; k && k < a->tracker + a->n_workers; k++) {
        for (size_t i = 0; i < k->n_parked; i++) exf_mem_free(k->parked[i].cell);
        exf_mem_free(k->parked);
        exf_mem_free(k->dot);
        exf_mem_free(k->target_sq);
        exf_mem_free(k->count);
    }
    exf_mem_free(a->tracker);
}

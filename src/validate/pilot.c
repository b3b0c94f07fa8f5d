/* pilot.c - runs a sweep on a sample of its sequences, to leave out what cannot hold a limit; see pilot.h. */
#include "validate/pilot.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { PART = 8 }; /* of the sequences, the share that a pilot runs */

size_t exf_pilot_sequences(size_t n, int64_t largest_batch)
{
    size_t least = (size_t)largest_batch, wanted = n / PART > least ? n / PART : least;
    return 2 * wanted <= n ? wanted : 0;
}

/* ---- the decision ------------------------------------------------------------------------------ */

/* Keeps what a runtime (NULL: any) would be answered with. */
static void keep_choices(unsigned char *keep, const exf_judged *of, const exf_row *row, const exf_limit *limit,
                         const exf_runtime *runtime)
{
    for (int b = -1; b < of->v->n_batch_sizes; b++) { /* -1: prefill */
        exf_choice c = exf_recommend(limit, of, row, b < 0 ? EXF_ROW_PREFILL : EXF_ROW_DECODE, b < 0 ? 0 : b, runtime);
        if (c.row) keep[c.row - 1] = 1;
    }
}

exf_code exf_pilot_keep(unsigned char *keep, const exf_judged *of, const exf_limit *limit, exf_err *err)
{
    const exf_runtime *runtime;
    exf_row *row = NULL;
    exf_code rc;
    EXF_TRY(exf_rows_make(&row, of, err));
    for (size_t i = 1; i < of->v->n_variants; i++) {
        exf_difference d = exf_limit_value(limit, of->v, i);
        keep[i - 1] = isnan(d.half_width) || d.mean - d.half_width <= limit->most;
    }
    keep_choices(keep, of, row, limit, NULL);
    for (size_t k = 0; (runtime = exf_runtime_at(k)); k++)
        if (runtime->target) keep_choices(keep, of, row, limit, runtime);
    for (size_t i = 1; i < of->v->n_variants; i++) /* the plain fold, "P2" or "D8", of a P or D that is kept */
        for (size_t j = 1; keep[i - 1] && j < of->v->n_variants; j++) {
            const exf_variant *x = &row[i].variant, *y = &row[j].variant;
            if (x->prefill == y->prefill && x->decode == y->decode && x->prefill_options.keep == y->prefill_options.keep &&
                x->decode_options.pool == y->decode_options.pool && exf_is_plain_fold(of, y))
                keep[j - 1] = 1;
        }
out:
    exf_mem_free(row);
    return rc;
}

/* ---- the run ----------------------------------------------------------------------------------- */

/* Sequences of a run, evenly spaced in it, as a run of its own. */
typedef struct {
    exf_batch batch;
    int32_t *ids, *domain_of;
    exf_span *span;
    exf_decode_schedule *schedule; /* [n_schedules] */
    int n_schedules;
} sample;

static exf_code make_sample(sample *s, const exf_validate_job *job, size_t n, exf_err *err)
{
    const exf_batch *all = job->batch;
    exf_code rc;
    s->n_schedules = job->n_schedules;
    EXF_TRY(exf_mem_new(&s->span, n, sizeof *s->span, "pilot", err));
    EXF_TRY(exf_mem_new(&s->domain_of, n, sizeof *s->domain_of, "pilot", err));
    EXF_TRY(exf_mem_new(&s->ids, n * (size_t)all->max_tokens, sizeof *s->ids, "pilot", err));
    s->batch = (exf_batch){.ids = s->ids, .span = s->span, .n_sequences = n};
    for (size_t i = 0; i < n; i++) {
        size_t at = i * all->n_sequences / n;
        const exf_span *from = &all->span[at];
        s->span[i] = (exf_span){s->batch.n_tokens, from->n_tokens};
        s->domain_of[i] = job->domain_of[at];
        memcpy(s->ids + s->batch.n_tokens, all->ids + from->offset, (size_t)from->n_tokens * sizeof *s->ids);
        s->batch.n_tokens += (size_t)from->n_tokens;
        if (from->n_tokens > s->batch.max_tokens) s->batch.max_tokens = from->n_tokens;
    }
    EXF_TRY(exf_mem_new(&s->schedule, (size_t)s->n_schedules, sizeof *s->schedule, "pilot", err));
    for (int i = 0; i < s->n_schedules; i++) {
        const exf_decode_schedule *as = &job->schedule[i];
        EXF_TRY(exf_decode_schedule_new(&s->schedule[i], &s->batch, as->size, as->prefill_tokens, as->threads, err));
    }
out:
    return rc;
}

exf_code exf_pilot_run(unsigned char *keep, const exf_validate_job *job, const exf_limit *limit, const exf_judged *of,
                       size_t sequences, exf_err *err)
{
    sample s = {.n_schedules = 0};
    exf_validate_job pilot = *job;
    exf_judged judged = *of;
    exf_validation v = {.variant = NULL};
    exf_code rc;
    EXF_TRY(make_sample(&s, job, sequences, err));
    pilot.batch = &s.batch;
    pilot.whole = NULL;
    pilot.domain_of = s.domain_of;
    pilot.document_of = NULL;
    pilot.schedule = s.schedule;
    pilot.no_layer_errors = 1;
    pilot.forward.resume = NULL;
    EXF_TRY(exf_validate(&v, &pilot, err));
    judged.v = &v;
    judged.prefill_share = exf_prefill_share(&s.batch, s.schedule);
    rc = exf_pilot_keep(keep, &judged, limit, err);
out:
    exf_validation_free(&v);
    for (int i = 0; s.schedule && i < s.n_schedules; i++) exf_decode_schedule_free(&s.schedule[i]);
    exf_mem_free(s.schedule);
    exf_mem_free(s.span);
    exf_mem_free(s.ids);
    exf_mem_free(s.domain_of);
    return rc;
}

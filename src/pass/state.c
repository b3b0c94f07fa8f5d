/* state.c - what all files of a pass ask of its options and of its state: the backend, workers and tokens, the layers that are
 * done, the groups of a lane's sequences; and what they tell it: which work begins, that queues must end. */
#include "pass/forward_internal.h"

#include "base/parallel.h"

/* ---- options ------------------------------------------------------------------------------------ */

const exf_backend *exf_backend_of(const exf_forward_options *o)
{
    return o->backend ? o->backend : &exf_backend_cpu;
}

int exf_forward_workers(const exf_backend *b, const exf_batch *batch, int threads)
{
    size_t n = threads > 0 ? (size_t)threads : (size_t)exf_default_threads();
    return b->gpu ? 1 : (int)(n < batch->n_sequences ? n : batch->n_sequences);
}

int exf_pass_layers_done(const exf_forward_options *o)
{
    return o->resume ? exf_resume_start(o->resume)->layers_done : 0;
}

/* ---- a pass that runs --------------------------------------------------------------------------- */

size_t exf_pass_run_tokens(const exf_pass *p)
{
    return p->options->run_tokens ? p->options->run_tokens : p->batch->n_tokens;
}

void exf_pass_turn(const exf_pass *p, int kind)
{
    exf_progress_turn(p->b->gpu ? EXF_WORK_REST : kind);
}

exf_code exf_pass_finish(const exf_pass *p, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (int i = 0; rc == EXF_OK && i < p->n_spaces; i++) rc = p->b->finish(p->space[i].q, err);
    exf_stage_clock_read(p->clock);
    return rc;
}

int exf_next_group(exf_step *s, exf_hidden_use use, size_t *n)
{
    exf_hidden *h = &s->p->hidden;
    exf_queue *q = s->p->space[0].q;
    if (*n) exf_hidden_give(h, s->lane, *n - 1, use, q);
    if (*n == h->n_groups) return 0;
    s->moe.group = h->group[*n];
    s->moe.rows = exf_hidden_take(h, s->lane, (*n)++, use, q);
    return 1;
}

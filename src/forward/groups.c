/* groups.c - a lane's sequences, group by group (layer_step.h). */
#include "forward/layer_step.h"

exf_code exf_each_group(exf_step *s, exf_hidden_use use, exf_sequence_group_fn fn, exf_err *err)
{
    exf_hidden *h = &s->p->hidden;
    exf_queue *q = s->p->space[0].q;
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < h->n_groups; i++) {
        s->group = h->group[i];
        s->rows = exf_hidden_take(h, s->lane, i, use, q);
        rc = fn(s, err);
        exf_hidden_give(h, s->lane, i, use, q);
    }
    return rc;
}

typedef struct {
    exf_step *step;
    exf_each_fn fn;
} of_group;

static exf_code one_sequence(void *self, size_t i, int worker, exf_err *err)
{
    const of_group *g = self;
    return g->fn(g->step, g->step->group.first + i, worker, err);
}

exf_code exf_each_sequence(exf_step *s, exf_each_fn fn, exf_err *err)
{
    of_group g = {s, fn};
    return exf_each(s->group.n, s->p->n_workers, one_sequence, &g, err);
}

float *exf_step_rows(const exf_step *s, size_t row)
{
    return s->rows + (row - s->group.row) * exf_row_width(&s->p->model->arch);
}

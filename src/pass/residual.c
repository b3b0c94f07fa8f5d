/* residual.c - reads and updates residual streams, one or several; see residual.h. */
#include "pass/residual.h"

_Static_assert((int)EXF_MAX_STREAMS <= (int)EXF_HYPER_STREAMS_MAX, "the kernels hold every stream that a model may have");

exf_residual_site exf_residual_site_of(const exf_layer_weights *lw, exf_role fn, exf_role base, exf_role scale)
{
    return (exf_residual_site){lw->w[fn], lw->w[base], lw->w[scale]};
}

size_t exf_row_width(const exf_architecture *a)
{
    return (size_t)a->residual.streams * (size_t)a->d_model;
}

int exf_residual_mixing(const exf_architecture *a)
{
    int s = a->residual.streams;
    return s == 1 ? 0 : (2 + s) * s;
}

static exf_hyper_shape shape_of(const exf_architecture *a, const exf_residual_site *site, int n_tokens)
{
    const exf_residual_spec *r = &a->residual;
    exf_hyper_shape shape = {.n_tokens = n_tokens, .streams = r->streams, .width = a->d_model, .iterations = r->sinkhorn_iterations,
                               .eps = r->eps, .norm_eps = a->norm_eps};
    if (site) {
        shape.fn = site->fn;
        shape.base = site->base;
        shape.scale = site->scale;
    }
    return shape;
}

const float *exf_residual_read(const exf_backend *b, exf_queue *q, const exf_architecture *a, const exf_residual_site *site,
                               const float *hidden, int n_tokens, float *u, float *mixing)
{
    if (a->residual.streams == 1) return hidden;
    exf_hyper_shape shape = shape_of(a, site, n_tokens);
    b->hyper_pre(q, u, mixing, hidden, &shape);
    return u;
}

const float *exf_residual_read_again(const exf_backend *b, exf_queue *q, const exf_architecture *a, const exf_residual_site *site,
                                     const float *hidden, int n_tokens, float *u, const float *mixing)
{
    if (a->residual.streams == 1) return hidden;
    exf_hyper_shape shape = shape_of(a, site, n_tokens);
    b->hyper_input(q, u, mixing, hidden, &shape);
    return u;
}

void exf_residual_update(const exf_backend *b, exf_queue *q, const exf_architecture *a, float *hidden, const float *v, int n_tokens,
                        const float *mixing)
{
    exf_hyper_shape shape = shape_of(a, NULL, n_tokens);
    if (a->residual.streams == 1)
        b->add(q, hidden, v, (size_t)n_tokens * (size_t)a->d_model);
    else
        b->hyper_post(q, hidden, v, mixing, &shape);
}

const float *exf_residual_collapse(const exf_backend *b, exf_queue *q, const exf_architecture *a, const exf_residual_site *site,
                                   const float *hidden, int n_tokens, float *u)
{
    if (a->residual.streams == 1) return hidden;
    exf_hyper_shape shape = shape_of(a, site, n_tokens);
    b->hyper_head(q, u, hidden, &shape);
    return u;
}

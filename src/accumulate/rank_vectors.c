/* rank_vectors.c - see rank_vectors.h. */
#include "accumulate/rank_vectors.h"

enum { MOST_ARRAYS = 7 };

static size_t list_arrays(exf_ranks_array out[MOST_ARRAYS], const exf_rank_vectors *b)
{
    const exf_vector_sums *v = &b->sums;
    size_t p = (size_t)v->n_pairs, h = (size_t)v->d_model, r = (size_t)v->rank, n = 0;
    out[n++] = (exf_ranks_array){b->layer_sums->stream_sq, 1, EXF_RANKS_EXACT};
    out[n++] = (exf_ranks_array){b->layer_sums->stream_count, 1, EXF_RANKS_U64};
    if (v->vu) out[n++] = (exf_ranks_array){v->vu, p * h, EXF_RANKS_EXACT};
    if (v->vv) out[n++] = (exf_ranks_array){v->vv, p * h, EXF_RANKS_EXACT};
    if (v->zz) out[n++] = (exf_ranks_array){v->zz, p * r * r, EXF_RANKS_U64};
    if (v->zu) out[n++] = (exf_ranks_array){v->zu, p * r * h, EXF_RANKS_U64};
    if (v->zv) out[n++] = (exf_ranks_array){v->zv, p * r * h, EXF_RANKS_U64};
    return n;
}

static void *add_up(void *self)
{
    exf_rank_vectors *p = self;
    exf_ranks_array list[MOST_ARRAYS];
    size_t n = list_arrays(list, p);
    p->err.code = exf_ranks_sum_beside(p->ranks, list, n, &p->err);
    return NULL;
}

exf_code exf_rank_vectors_start(exf_rank_vectors *p, int layer, const exf_vector_sums *v, const exf_layer_statistics *s,
                                exf_err *err)
{
    *p = (exf_rank_vectors){.ranks = p->ranks, .sums = *v, .layer_sums = s, .layer = layer, .pending = 1};
    p->running = pthread_create(&p->thread, NULL, add_up, p) == 0;
    if (p->running) return EXF_OK;
    add_up(p);
    if (p->err.code != EXF_OK) *err = p->err;
    return p->err.code;
}

exf_code exf_rank_vectors_wait(exf_rank_vectors *p, exf_err *err)
{
    if (p->running) pthread_join(p->thread, NULL);
    p->running = 0;
    if (!p->pending || p->err.code == EXF_OK) return EXF_OK;
    *err = p->err;
    return err->code;
}

void exf_rank_vectors_drop(exf_rank_vectors *p)
{
    if (p->running) pthread_join(p->thread, NULL);
    exf_vector_sums_free(&p->sums);
    p->running = p->pending = 0;
}

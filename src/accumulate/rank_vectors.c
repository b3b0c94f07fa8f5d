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

static exf_code add_up(void *self, exf_err *err)
{
    exf_rank_vectors *p = self;
    exf_ranks_array list[MOST_ARRAYS];
    size_t n = list_arrays(list, p);
    return exf_ranks_sum_beside(p->ranks, list, n, err);
}

exf_code exf_rank_vectors_start(exf_rank_vectors *p, int layer, const exf_vector_sums *v, const exf_layer_statistics *s,
                                exf_err *err)
{
    *p = (exf_rank_vectors){.ranks = p->ranks, .sums = *v, .layer_sums = s, .layer = layer, .pending = 1};
    return exf_background_start(&p->adding, add_up, p, err);
}

exf_code exf_rank_vectors_wait(exf_rank_vectors *p, exf_err *err)
{
    return exf_background_wait(&p->adding, err);
}

void exf_rank_vectors_drop(exf_rank_vectors *p)
{
    exf_background_end(&p->adding);
    exf_vector_sums_free(&p->sums);
    p->pending = 0;
}

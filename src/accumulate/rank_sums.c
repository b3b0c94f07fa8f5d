/* rank_sums.c - see rank_sums.h. */
#include "accumulate/rank_sums.h"

#include "base/mem.h"

enum { MOST_ARRAYS = 24 };

static size_t list_stream(exf_ranks_array *out, const exf_layer_statistics *s)
{
    out[0] = (exf_ranks_array){s->stream_sq, 1, EXF_RANKS_EXACT};
    out[1] = (exf_ranks_array){s->stream_count, 1, EXF_RANKS_U64};
    return 2;
}

/* All ranks chose the same tokens; each has the routes of its own, and zeros for the others. */
static size_t list_routes(exf_ranks_array *out, const exf_route_sample *s)
{
    size_t slots = s->cap * (size_t)s->top_k;
    if (!s->cap) return 0;
    out[0] = (exf_ranks_array){s->key, s->cap * sizeof *s->key, EXF_RANKS_BITS};
    out[1] = (exf_ranks_array){s->ids, slots * sizeof *s->ids, EXF_RANKS_BITS};
    out[2] = (exf_ranks_array){s->weights, slots * sizeof *s->weights, EXF_RANKS_BITS};
    return 3;
}

static size_t list_sums(exf_ranks_array out[MOST_ARRAYS], const exf_layer_statistics *s)
{
    size_t e = (size_t)s->n_experts, n = 0;
#define X(name) out[n++] = (exf_ranks_array){s->name, e * e, EXF_RANKS_EXACT};
    EXF_PAIR_SUMS(X)
    EXF_SEQUENCE_SUMS(X)
#undef X
#define X(name) out[n++] = (exf_ranks_array){s->name, e, EXF_RANKS_EXACT};
    EXF_EXPERT_SUMS(X)
#undef X
    out[n++] = (exf_ranks_array){s->sequences, e * e, EXF_RANKS_U64};
    out[n++] = (exf_ranks_array){s->count, e * e, EXF_RANKS_U64};
    out[n++] = (exf_ranks_array){s->norm_count, e, EXF_RANKS_U64};
    out[n++] = (exf_ranks_array){s->empty_slots, 1, EXF_RANKS_U64};
    return n + list_stream(out + n, s) + list_routes(out + n + 2, &s->routes);
}

exf_code exf_rank_sums_start(exf_rank_sums *p, int layer, const exf_layer_statistics *own, exf_err *err)
{
    exf_ranks_array list[MOST_ARRAYS];
    size_t n = list_sums(list, own);
    p->layer = layer;
    return exf_ranks_sum_start(&p->sums, p->ranks, list, n, err);
}

int exf_rank_sums_pending(const exf_rank_sums *p)
{
    return p->sums != NULL;
}

exf_code exf_rank_sums_finish(exf_rank_sums *p, const exf_layer_statistics *total, exf_err *err)
{
    exf_ranks_array list[MOST_ARRAYS];
    exf_ranks_sums *sums = p->sums;
    size_t n = list_sums(list, total);
    p->sums = NULL;
    return exf_ranks_sum_finish(sums, list, n, err);
}

exf_code exf_rank_sums_now(exf_ranks *ranks, const exf_layer_statistics *s, exf_err *err)
{
    exf_ranks_array list[MOST_ARRAYS];
    size_t n = list_sums(list, s);
    return exf_ranks_sum(ranks, list, n, err);
}

exf_code exf_rank_samples(exf_ranks *ranks, const exf_sampler *s, int d_model, exf_err *err)
{
    size_t floats = s->n * (size_t)d_model;
    exf_ranks_array list[] = {{s->source, floats * sizeof *s->source, EXF_RANKS_BITS},
                              {s->target, floats * sizeof *s->target, EXF_RANKS_BITS},
                              {s->pair, s->n * 2 * sizeof *s->pair, EXF_RANKS_BITS}};
    return exf_ranks_sum(ranks, list, sizeof list / sizeof *list, err);
}

exf_code exf_rank_choice(exf_ranks *ranks, exf_vector_sums *v, int diagonal, int choice, exf_err *err)
{
    struct {
        int64_t n_pairs;
        int32_t d_model, rank;
    } head = {v->n_pairs, v->d_model, v->rank};
    exf_code rc;
    if (!ranks) return EXF_OK;
    EXF_TRY(exf_ranks_broadcast(ranks, &head, sizeof head, err));
    if (!exf_ranks_first(ranks))
        EXF_TRY(choice ? exf_vector_sums_new_choice(v, head.n_pairs, head.d_model, head.rank, err)
                       : exf_vector_sums_new(v, head.n_pairs, head.d_model, diagonal, head.rank, err));
    size_t p = (size_t)head.n_pairs;
    if (v->pair) EXF_TRY(exf_ranks_broadcast(ranks, v->pair, 2 * p * sizeof *v->pair, err));
    if (v->grid) EXF_TRY(exf_ranks_broadcast(ranks, v->grid, p * EXF_N_GRIDS * sizeof *v->grid, err));
    if (v->basis) EXF_TRY(exf_ranks_broadcast(ranks, v->basis, (size_t)v->d_model * (size_t)v->rank * sizeof *v->basis, err));
out:
    return rc;
}

/* ---- rank vectors ------------------------------------------------------------------------------ */

enum { MOST_VECTOR_ARRAYS = 7 };

static size_t list_arrays(exf_ranks_array out[MOST_VECTOR_ARRAYS], const exf_rank_vectors *b)
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
    exf_ranks_array list[MOST_VECTOR_ARRAYS];
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

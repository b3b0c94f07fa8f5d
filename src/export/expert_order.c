/* expert_order.c - see expert_order.h. */
#include "export/expert_order.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdlib.h>

static int64_t ranks_of(const exf_export *x)
{
    return x->ranks ? x->ranks : 1;
}

exf_code exf_expert_order_check(const exf_export *x, exf_err *err)
{
    int64_t e = x->tables->shape.n_experts, ranks = ranks_of(x);
    if (!x->tables->contribution)
        return exf_fail(err, EXF_USAGE, "the tables hold no contribution, which came with version 2; calibrate again");
    if (ranks < 1 || e % ranks)
        return exf_fail(err, EXF_USAGE, "export.expert_parallel is %" PRId64 ", expected a number that divides %" PRId64 " experts",
                        ranks, e);
    return EXF_OK;
}

exf_code exf_expert_order_check_keep(const exf_export *x, exf_err *err)
{
    int64_t e = x->tables->shape.n_experts, k = x->tables->shape.top_k;
    exf_code rc = exf_expert_order_check(x, err);
    if (rc != EXF_OK) return rc;
    if (x->keep == 0)
        return exf_fail(err, EXF_USAGE, "export.experts is missing; --set export.experts=N keeps N of %" PRId64 " experts", e);
    if (x->keep < k || x->keep >= e)
        return exf_fail(err, EXF_USAGE, "export.experts is %" PRId64 ", expected %" PRId64 " (experts per token) to %" PRId64,
                        x->keep, k, e - 1);
    if (x->keep % ranks_of(x))
        return exf_fail(err, EXF_USAGE, "export.experts is %" PRId64 ", no multiple of export.expert_parallel, %" PRId64, x->keep,
                        ranks_of(x));
    return EXF_OK;
}

typedef struct {
    float score;
    int round; /* its place among the experts of its rank */
    int32_t expert;
} place;

static int by_round_then_score(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->round != y->round) return x->round < y->round ? -1 : 1;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

/* Experts of the same rank that go before e. */
static int count_better(const float *score, int64_t each, int32_t e)
{
    int32_t first = (int32_t)(e / each * each);
    int better = 0;
    for (int32_t i = first; i < first + each; i++) better += score[i] > score[e] || (score[i] == score[e] && i < e);
    return better;
}

exf_code exf_expert_order_make(int32_t **out, const exf_export *x, exf_err *err)
{
    const exf_tables *t = x->tables;
    size_t e = (size_t)t->shape.n_experts;
    place *sorted = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(out, (size_t)t->n_layers * e, sizeof **out, "order of experts", err));
    EXF_TRY(exf_mem_new(&sorted, e, sizeof *sorted, "order of experts", err));
    for (size_t l = 0; l < (size_t)t->n_layers; l++) {
        const float *score = t->contribution + l * e;
        for (size_t i = 0; i < e; i++)
            sorted[i] = (place){score[i], count_better(score, (int64_t)e / ranks_of(x), (int32_t)i), (int32_t)i};
        qsort(sorted, e, sizeof *sorted, by_round_then_score);
        for (size_t i = 0; i < e; i++) (*out)[l * e + i] = sorted[i].expert;
    }
out:
    exf_mem_free(sorted);
    return rc;
}

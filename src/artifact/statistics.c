/* statistics.c - the sums of a layer in memory; see statistics.h. */
#include "artifact/statistics.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- the sums of a layer ---------------------------------------------------------- */

/* Counts of a set's arrays: of pairs, of experts, and single ones. */
#define X(name) +1
enum {
    PAIR_ARRAYS = 0 EXF_PAIR_SUMS(X) EXF_SEQUENCE_SUMS(X) EXF_HALF_SUMS(X),
    EXPERT_ARRAYS = 0 EXF_EXPERT_SUMS(X) EXF_BARE_SUMS(X)
};
#undef X

size_t exf_layer_statistics_bytes(int n_experts)
{
    size_t e = (size_t)n_experts;
    return (PAIR_ARRAYS * e * e + EXPERT_ARRAYS * e + 1) * sizeof(exf_exact) + (3 * e * e + 2 * e + 2) * sizeof(uint64_t);
}

/* Points the arrays into the memory of a set, one after the other: all are of words. */
static void place_arrays(exf_layer_statistics *s, void *memory)
{
    size_t e = (size_t)s->n_experts;
    exf_exact *sums = memory;
#define X(name) s->name = sums, sums += e * e;
    EXF_PAIR_SUMS(X)
    EXF_SEQUENCE_SUMS(X)
    EXF_HALF_SUMS(X)
#undef X
#define X(name) s->name = sums, sums += e;
    EXF_EXPERT_SUMS(X)
    EXF_BARE_SUMS(X)
#undef X
    s->stream_sq = sums++;
    s->count = (void *)sums;
    s->sequences = s->count + e * e;
    s->half_count = s->sequences + e * e;
    s->norm_count = s->half_count + e * e;
    s->bare_count = s->norm_count + e;
    s->empty_slots = s->bare_count + e;
    s->stream_count = s->empty_slots + 1;
}

exf_code exf_layer_statistics_new(exf_layer_statistics *s, int n_experts, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    s->n_experts = n_experts;
    EXF_TRY(exf_mem_new(&s->own, exf_layer_statistics_bytes(n_experts), 1, "sums of a layer", err));
    place_arrays(s, s->own);
out:
    return rc;
}

void exf_layer_statistics_move(exf_layer_statistics *s, void *memory)
{
    memset(memory, 0, exf_layer_statistics_bytes(s->n_experts));
    exf_mem_free(s->own);
    s->own = NULL;
    place_arrays(s, memory);
}

void exf_layer_statistics_zero(exf_layer_statistics *s)
{
    memset(s->dot, 0, exf_layer_statistics_bytes(s->n_experts)); /* dot is the first of the arrays */
    s->routes.n = 0;
    exf_norm_sums_zero(&s->norms);
}

static exf_code merge_sums(exf_exact *to, const exf_exact *from, size_t n, const char *name, exf_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!exf_exact_merge(&to[i], &from[i])) continue;
        exf_exact back = from[i];
        exf_exact_negate(&back);
        (void)exf_exact_merge(&back, &to[i]);
        return exf_fail(err, EXF_FORMAT, "%s[%zu]: %.17g and %.17g are more together than a sum holds", name, i,
                        exf_exact_value(&back), exf_exact_value(&from[i]));
    }
    return EXF_OK;
}

static exf_code merge_counts(uint64_t *to, const uint64_t *from, size_t n, const char *name, exf_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (from[i] > UINT64_MAX - to[i])
            return exf_fail(err, EXF_FORMAT, "%s[%zu]: %llu and %llu are more together than a count holds", name, i,
                            (unsigned long long)to[i], (unsigned long long)from[i]);
        to[i] += from[i];
    }
    return EXF_OK;
}

exf_code exf_layer_statistics_merge(exf_layer_statistics *to, const exf_layer_statistics *from, exf_err *err)
{
    size_t e = (size_t)to->n_experts;
    exf_code rc;
#define X(name) EXF_TRY(merge_sums(to->name, from->name, e *e, #name, err));
    EXF_PAIR_SUMS(X)
    EXF_SEQUENCE_SUMS(X)
    EXF_HALF_SUMS(X)
#undef X
#define X(name) EXF_TRY(merge_sums(to->name, from->name, e, #name, err));
    EXF_EXPERT_SUMS(X)
    EXF_BARE_SUMS(X)
#undef X
#define X(name, n) EXF_TRY(merge_counts(to->name, from->name, n, #name, err));
    X(count, e * e)
    X(sequences, e * e)
    X(half_count, e * e)
    X(norm_count, e)
    X(bare_count, e)
    X(empty_slots, 1)
    X(stream_count, 1)
#undef X
    EXF_TRY(merge_sums(to->stream_sq, from->stream_sq, 1, "stream_sq", err));
    if (to->routes.cap) exf_route_sample_merge(&to->routes, &from->routes);
    rc = exf_norm_sums_merge(&to->norms, &from->norms, err);
out:
    return rc;
}

void exf_layer_statistics_free(exf_layer_statistics *s)
{
    exf_mem_free(s->own);
    exf_route_sample_free(&s->routes);
    exf_norm_sums_free(&s->norms);
    memset(s, 0, sizeof *s);
}

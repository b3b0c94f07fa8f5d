/* statistics.c - the sums of a layer in memory; see statistics.h. */
#include "artifact/statistics.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- the sums of a layer ---------------------------------------------------------- */

exf_code exf_layer_statistics_new(exf_layer_statistics *s, int n_experts, exf_err *err)
{
    exf_code rc;
    size_t e = (size_t)n_experts;
    memset(s, 0, sizeof *s);
    s->n_experts = n_experts;
#define X(name) EXF_TRY(exf_mem_new(&s->name, e * e, sizeof *s->name, "pair sums", err));
    EXF_PAIR_SUMS(X)
    EXF_SEQUENCE_SUMS(X)
    EXF_HALF_SUMS(X)
    X(sequences)
    X(half_count)
#undef X
#define X(name) EXF_TRY(exf_mem_new(&s->name, e, sizeof *s->name, "expert sums", err));
    EXF_EXPERT_SUMS(X)
    EXF_BARE_SUMS(X)
#undef X
    EXF_TRY(exf_mem_new(&s->count, e * e, sizeof *s->count, "pair counts", err));
    EXF_TRY(exf_mem_new(&s->norm_count, e, sizeof *s->norm_count, "expert counts", err));
    EXF_TRY(exf_mem_new(&s->bare_count, e, sizeof *s->bare_count, "expert counts", err));
    EXF_TRY(exf_mem_new(&s->empty_slots, 1, sizeof *s->empty_slots, "expert counts", err));
    EXF_TRY(exf_mem_new(&s->stream_sq, 1, sizeof *s->stream_sq, "energy of the stream", err));
    EXF_TRY(exf_mem_new(&s->stream_count, 1, sizeof *s->stream_count, "energy of the stream", err));
out:
    if (rc != EXF_OK) exf_layer_statistics_free(s);
    return rc;
}

void exf_layer_statistics_zero(exf_layer_statistics *s)
{
    size_t e = (size_t)s->n_experts;
#define X(name) memset(s->name, 0, e *e * sizeof *s->name);
    EXF_PAIR_SUMS(X)
    EXF_SEQUENCE_SUMS(X)
    EXF_HALF_SUMS(X)
    X(sequences)
    X(count)
    X(half_count)
#undef X
#define X(name) memset(s->name, 0, e * sizeof *s->name);
    EXF_EXPERT_SUMS(X)
    EXF_BARE_SUMS(X)
    X(norm_count)
    X(bare_count)
#undef X
    memset(s->stream_sq, 0, sizeof *s->stream_sq);
    *s->stream_count = *s->empty_slots = 0;
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
#define X(name) exf_mem_free(s->name);
    EXF_PAIR_SUMS(X)
    EXF_SEQUENCE_SUMS(X)
    EXF_HALF_SUMS(X)
    X(sequences)
    X(half_count)
    EXF_EXPERT_SUMS(X)
    EXF_BARE_SUMS(X)
    X(count)
    X(norm_count)
    X(bare_count)
    X(empty_slots)
    X(stream_sq)
    X(stream_count)
#undef X
    exf_route_sample_free(&s->routes);
    exf_norm_sums_free(&s->norms);
    memset(s, 0, sizeof *s);
}

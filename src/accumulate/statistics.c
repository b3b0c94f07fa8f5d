/* statistics.c - the arrays of a layer's sums: their table, their memory, merging; see statistics.h. */
#include "accumulate/statistics.h"

#include "base/mem.h"

#include <string.h>

const exf_layer_array exf_layer_arrays[EXF_N_LAYER_ARRAYS] = {
#define X(name, of, element, part, rounded, words) \
    {#name, EXF_OF_##of, EXF_ELEMENT_##element, EXF_PART_##part, rounded, words, offsetof(exf_layer_statistics, name)},
    EXF_LAYER_ARRAYS(X)
#undef X
};

size_t exf_layer_array_count(const exf_layer_array *a, int n_experts)
{
    size_t e = (size_t)n_experts;
    return a->of == EXF_OF_PAIR ? e * e : a->of == EXF_OF_EXPERT ? e : 1;
}

static size_t array_bytes(const exf_layer_array *a, int n_experts)
{
    return exf_layer_array_count(a, n_experts) * (a->element == EXF_ELEMENT_EXACT ? sizeof(exf_exact) : sizeof(uint64_t));
}

void *exf_layer_array_at(const exf_layer_array *a, const exf_layer_statistics *s)
{
    void *array;
    memcpy(&array, (const char *)s + a->offset, sizeof array);
    return array;
}

exf_tensor exf_layer_array_tensor(const exf_layer_array *a, int n_experts, const void *data)
{
    exf_tensor t = {.name = a->name, .dtype = EXF_DT_U64, .data = data};
    t.shape[t.rank++] = a->of == EXF_OF_LAYER ? 1 : n_experts;
    if (a->of == EXF_OF_PAIR) t.shape[t.rank++] = n_experts;
    if (a->element == EXF_ELEMENT_EXACT) t.shape[t.rank++] = sizeof(exf_exact) / sizeof(uint64_t);
    return t;
}

/* ---- memory ------------------------------------------------------------------------ */

size_t exf_layer_statistics_bytes(int n_experts)
{
    size_t bytes = 0;
    for (int i = 0; i < EXF_N_LAYER_ARRAYS; i++) bytes += array_bytes(&exf_layer_arrays[i], n_experts);
    return bytes;
}

/* Points the arrays into the memory of a set, one after the other: all are of words. */
static void place_arrays(exf_layer_statistics *s, void *memory)
{
    char *at = memory;
    for (int i = 0; i < EXF_N_LAYER_ARRAYS; i++) {
        const exf_layer_array *a = &exf_layer_arrays[i];
        memcpy((char *)s + a->offset, &at, sizeof at);
        at += array_bytes(a, s->n_experts);
    }
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
    memset(exf_layer_array_at(&exf_layer_arrays[0], s), 0, exf_layer_statistics_bytes(s->n_experts));
    s->routes.n = 0;
    exf_norm_sums_zero(&s->norms);
}

void exf_layer_statistics_free(exf_layer_statistics *s)
{
    exf_mem_free(s->own);
    exf_route_sample_free(&s->routes);
    exf_norm_sums_free(&s->norms);
    memset(s, 0, sizeof *s);
}

/* ---- merging ----------------------------------------------------------------------- */

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

exf_code exf_layer_statistics_merge(exf_layer_statistics *to, const exf_layer_statistics *from, exf_err *err)
{
    exf_code rc;
    for (const exf_layer_array *a = exf_layer_arrays; a < exf_layer_arrays + EXF_N_LAYER_ARRAYS; a++) {
        size_t n = exf_layer_array_count(a, to->n_experts);
        uint64_t *count = exf_layer_array_at(a, to);
        const uint64_t *more = exf_layer_array_at(a, from);
        if (a->element == EXF_ELEMENT_EXACT) {
            EXF_TRY(merge_sums(exf_layer_array_at(a, to), exf_layer_array_at(a, from), n, a->name, err));
            continue;
        }
        for (size_t i = 0; i < n; i++) {
            if (more[i] > UINT64_MAX - count[i])
                return exf_fail(err, EXF_FORMAT, "%s[%zu]: %llu and %llu are more together than a count holds", a->name, i,
                                (unsigned long long)count[i], (unsigned long long)more[i]);
            count[i] += more[i];
        }
    }
    if (to->routes.cap) exf_route_sample_merge(&to->routes, &from->routes);
    rc = exf_norm_sums_merge(&to->norms, &from->norms, err);
out:
    return rc;
}

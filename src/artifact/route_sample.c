/* route_sample.c - see route_sample.h. */
#include "artifact/route_sample.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

exf_code exf_route_sample_new(exf_route_sample *s, size_t cap, int top_k, exf_err *err)
{
    size_t slots;
    exf_code rc;
    *s = (exf_route_sample){.cap = cap, .top_k = top_k};
    EXF_TRY(exf_mem_mul(&slots, cap, (size_t)top_k, "route sample", err));
    EXF_TRY(exf_mem_new(&s->key, cap, sizeof *s->key, "route sample", err));
    EXF_TRY(exf_mem_new(&s->ids, slots, sizeof *s->ids, "route sample", err));
    EXF_TRY(exf_mem_new(&s->weights, slots, sizeof *s->weights, "route sample", err));
out:
    if (rc != EXF_OK) exf_route_sample_free(s);
    return rc;
}

void exf_route_sample_free(exf_route_sample *s)
{
    exf_mem_free(s->key);
    exf_mem_free(s->ids);
    exf_mem_free(s->weights);
    memset(s, 0, sizeof *s);
}

/* Orders tokens by key, then by contents: tokens of equal sequences have equal keys and contents. */
static int compare(const exf_route_sample *a, size_t i, const exf_route_sample *b, size_t j)
{
    size_t k = (size_t)a->top_k;
    if (a->key[i] != b->key[j]) return a->key[i] < b->key[j] ? -1 : 1;
    int order = memcmp(a->ids + i * k, b->ids + j * k, k * sizeof *a->ids);
    return order ? order : memcmp(a->weights + i * k, b->weights + j * k, k * sizeof *a->weights);
}

static void copy(exf_route_sample *to, size_t at, const exf_route_sample *from, size_t i)
{
    size_t k = (size_t)to->top_k;
    to->key[at] = from->key[i];
    memmove(to->ids + at * k, from->ids + i * k, k * sizeof *to->ids);
    memmove(to->weights + at * k, from->weights + i * k, k * sizeof *to->weights);
}

/* Finds how many tokens of each side are among the smallest keys, then merges them from the back. */
void exf_route_sample_merge(exf_route_sample *to, const exf_route_sample *from)
{
    size_t i = 0, j = 0;
    while (i + j < to->cap && (i < to->n || j < from->n)) {
        if (j == from->n || (i < to->n && compare(to, i, from, j) <= 0))
            i++;
        else
            j++;
    }
    to->n = i + j;
    for (size_t at = to->n; j; at--) {
        if (i && compare(to, i - 1, from, j - 1) > 0)
            copy(to, at - 1, to, --i);
        else
            copy(to, at - 1, from, --j);
    }
}

static exf_code check_token(const exf_route_sample *s, size_t i, int n_experts, const char *where, exf_err *err)
{
    const int32_t *id = s->ids + i * (size_t)s->top_k;
    const float *w = s->weights + i * (size_t)s->top_k;
    if (i && s->key[i] < s->key[i - 1]) return exf_fail(err, EXF_FORMAT, "%s: key %zu is below the key before it", where, i);
    int routes = 0;
    for (int a = 0; a < s->top_k; a++) {
        if (id[a] == -1) {
            if (w[a] == 0) continue;
            return exf_fail(err, EXF_FORMAT, "%s: token %zu: an empty slot has weight %g, expected 0", where, i, (double)w[a]);
        }
        routes++;
        if (id[a] < 0 || id[a] >= n_experts)
            return exf_fail(err, EXF_FORMAT, "%s: token %zu has expert %d, expected [0, %d)", where, i, (int)id[a], n_experts);
        for (int b = 0; b < a; b++)
            if (id[a] == id[b]) return exf_fail(err, EXF_FORMAT, "%s: token %zu has expert %d twice", where, i, (int)id[a]);
        if (!isfinite(w[a]))
            return exf_fail(err, EXF_FORMAT, "%s: token %zu: the weight of expert %d is not finite", where, i, (int)id[a]);
    }
    if (!routes) return exf_fail(err, EXF_FORMAT, "%s: token %zu has no expert, expected 1 to %d", where, i, s->top_k);
    return EXF_OK;
}

exf_code exf_route_sample_check(const exf_route_sample *s, int n_experts, const char *where, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < s->n; i++) rc = check_token(s, i, n_experts, where, err);
    return rc;
}

/* route_sample.c - the route sample of a layer in memory and in its file; see route_sample.h. */
#include "accumulate/route_sample.h"

#include "artifact/tables.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- in memory ---------------------------------------------------------------- */

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

exf_code exf_route_sample_add_head(exf_route_sample *s, int q, exf_err *err)
{
    size_t floats;
    exf_code rc;
    if (!q) return EXF_OK;
    s->q = q;
    EXF_TRY(exf_mem_mul(&floats, s->cap, exf_route_sample_head(s), "route sample", err));
    EXF_TRY(exf_mem_new(&s->head, floats, sizeof *s->head, "route sample", err));
out:
    return rc;
}

void exf_route_sample_free(exf_route_sample *s)
{
    exf_mem_free(s->head);
    exf_mem_free(s->key);
    exf_mem_free(s->ids);
    exf_mem_free(s->weights);
    memset(s, 0, sizeof *s);
}

/* Orders tokens by key, then by contents: tokens of equal sequences have equal keys and contents. */
static int compare_tokens(const exf_route_sample *a, size_t i, const exf_route_sample *b, size_t j)
{
    size_t k = (size_t)a->top_k;
    if (a->key[i] != b->key[j]) return a->key[i] < b->key[j] ? -1 : 1;
    int order = memcmp(a->ids + i * k, b->ids + j * k, k * sizeof *a->ids);
    return order ? order : memcmp(a->weights + i * k, b->weights + j * k, k * sizeof *a->weights);
}

static void copy_token(exf_route_sample *to, size_t at, const exf_route_sample *from, size_t i)
{
    size_t k = (size_t)to->top_k, width = exf_route_sample_head(to);
    to->key[at] = from->key[i];
    if (width) memmove(to->head + at * width, from->head + i * width, width * sizeof *to->head);
    memmove(to->ids + at * k, from->ids + i * k, k * sizeof *to->ids);
    memmove(to->weights + at * k, from->weights + i * k, k * sizeof *to->weights);
}

/* Finds how many tokens of each side are among the smallest keys, then merges them from the back. */
void exf_route_sample_merge(exf_route_sample *to, const exf_route_sample *from)
{
    size_t i = 0, j = 0;
    while (i + j < to->cap && (i < to->n || j < from->n)) {
        if (j == from->n || (i < to->n && compare_tokens(to, i, from, j) <= 0))
            i++;
        else
            j++;
    }
    to->n = i + j;
    for (size_t at = to->n; j; at--) {
        if (i && compare_tokens(to, i - 1, from, j - 1) > 0)
            copy_token(to, at - 1, to, --i);
        else
            copy_token(to, at - 1, from, --j);
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
    for (size_t a = 0, width = exf_route_sample_head(s); a < width; a++)
        if (!isfinite(s->head[i * width + a]))
            return exf_fail(err, EXF_FORMAT, "%s: token %zu: number %zu of head is not finite", where, i, a);
    if (!routes) return exf_fail(err, EXF_FORMAT, "%s: token %zu has no expert, expected 1 to %d", where, i, s->top_k);
    return EXF_OK;
}

exf_code exf_route_sample_check(const exf_route_sample *s, int n_experts, const char *where, exf_err *err)
{
    exf_code rc = EXF_OK;
    for (size_t i = 0; rc == EXF_OK && i < s->n; i++) rc = check_token(s, i, n_experts, where, err);
    return rc;
}

/* ---- in files of kind statistics ------------------------------------------------ */

enum { MOST_SAMPLED = 1 << 24 };

size_t exf_route_sample_list(const exf_route_sample *s, size_t tokens, exf_sum_array out[EXF_MOST_SUM_ARRAYS])
{
    int64_t n = (int64_t)tokens, k = s->top_k, head = (int64_t)exf_route_sample_head(s);
    const exf_sum_array all[] = {
        {EXF_RANKS_BITS, {.name = "routes.key", .dtype = EXF_DT_U64, .rank = 1, .shape = {n}, .data = s->key}},
        {EXF_RANKS_BITS, {.name = "routes.ids", .dtype = EXF_DT_I32, .rank = 2, .shape = {n, k}, .data = s->ids}},
        {EXF_RANKS_BITS, {.name = "routes.weights", .dtype = EXF_DT_F32, .rank = 2, .shape = {n, k}, .data = s->weights}},
        {EXF_RANKS_BITS, {.name = "routes.head", .dtype = EXF_DT_F32, .rank = 2, .shape = {n, head}, .data = s->head}}};
    memcpy(out, all, sizeof all);
    return !n ? 0 : s->q ? 4 : 3;
}

/* Finds how many tokens a file's sample has. */
static exf_code find_tokens(int64_t *n, exf_h5 *h, const exf_run_shape *shape, int layer, exf_err *err)
{
    char path[EXF_SUM_PATH];
    exf_tensor found;
    exf_code rc;
    EXF_TRY(exf_h5_describe(h, exf_sum_path(path, layer, "routes.key"), &found, err));
    *n = found.shape[0];
    if (found.rank != 1 || *n < 1 || *n > shape->n_tokens || *n > MOST_SAMPLED)
        return exf_fail(err, EXF_FORMAT, "%s: %s has %lld keys, expected 1 to the run's %lld tokens", exf_h5_path(h), path,
                        (long long)*n, (long long)shape->n_tokens);
    found = (exf_tensor){.name = path, .dtype = EXF_DT_U64, .rank = 1, .shape = {*n}};
    rc = exf_h5_expect(h, &found, err);
out:
    return rc;
}

/* Finds how many directions its tokens have. */
static exf_code find_directions(int *q, exf_h5 *h, int64_t top_k, int layer, exf_err *err)
{
    char path[EXF_SUM_PATH];
    int64_t least = top_k + 2, most = top_k + 1 + EXF_NORM_MOST;
    exf_tensor found;
    int has = 0;
    exf_code rc;
    *q = 0;
    EXF_TRY(exf_h5_exists(h, exf_sum_path(path, layer, "routes.head"), &has, err));
    if (!has) return EXF_OK;
    EXF_TRY(exf_h5_describe(h, path, &found, err));
    if (found.rank != 2 || found.shape[1] < least || found.shape[1] > most)
        return exf_fail(err, EXF_FORMAT, "%s: %s has %lld numbers of a token, expected %lld to %lld", exf_h5_path(h), path,
                        (long long)(found.rank == 2 ? found.shape[1] : 0), (long long)least, (long long)most);
    *q = (int)(found.shape[1] - top_k - 1);
out:
    return rc;
}

exf_code exf_route_sample_read(exf_route_sample *s, exf_h5 *h, const exf_run_shape *shape, int layer, exf_err *err)
{
    exf_sum_array all[EXF_MOST_SUM_ARRAYS];
    char path[EXF_SUM_PATH], where[2 * EXF_SUM_PATH];
    int has, q;
    int64_t n;
    exf_code rc;
    EXF_TRY(exf_h5_exists(h, exf_sum_path(path, layer, "routes"), &has, err));
    if (!has) return EXF_OK;
    EXF_TRY(find_tokens(&n, h, shape, layer, err));
    EXF_TRY(find_directions(&q, h, shape->top_k, layer, err));
    if (s->cap < (size_t)n || s->top_k != (int)shape->top_k || s->q != q) {
        exf_route_sample_free(s);
        EXF_TRY(exf_route_sample_new(s, (size_t)n, (int)shape->top_k, err));
        EXF_TRY(exf_route_sample_add_head(s, q, err));
    }
    s->n = (size_t)n;
    EXF_TRY(exf_sum_arrays_do(EXF_SUMS_READ, all, exf_route_sample_list(s, s->n, all), h, layer, err));
    snprintf(where, sizeof where, "%.90s: %s", exf_h5_path(h), exf_sum_path(path, layer, "routes"));
    rc = exf_route_sample_check(s, (int)shape->n_experts, where, err);
out:
    return rc;
}

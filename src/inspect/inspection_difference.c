/* inspection_difference.c - what changed between two tables of one model, layer by layer; see inspection.h. */
#include "inspect/inspection.h"

#include "base/mem.h"
#include "solve/solve.h"

#include <math.h>
#include <string.h>

/* Layers [first, first + n) of both. */
typedef struct {
    const exf_inspection *a, *b;
    size_t first, n, e;
    double *scratch;
} span;

/* Finds quantiles of |b - a| over pairs observed in both. */
static void find_quantiles(const span *x, const float *a, const float *b, double out[4])
{
    static const double at[] = {0.5, 0.9, 0.99, 1};
    size_t n = 0;
    for (size_t i = x->first * x->e * x->e; i < (x->first + x->n) * x->e * x->e; i++)
        if (exf_inspection_observed(x->a, i) && exf_inspection_observed(x->b, i))
            x->scratch[n++] = fabs((double)b[i] - (double)a[i]);
    exf_sort(x->scratch, n);
    for (int i = 0; i < 4; i++) out[i] = exf_quantile(x->scratch, n, at[i]);
}

/* Returns the target of least loss; -1: none was ever observed. */
static int find_best_target(const exf_inspection *s, size_t source)
{
    size_t e = (size_t)s->shape.n_experts;
    const float *loss = s->loss + source * e;
    int best = -1;
    for (size_t t = 0; t < e; t++)
        if (loss[t] < EXF_LOSS_NEVER && (best < 0 || loss[t] < loss[best])) best = (int)t;
    return best;
}

static void compare_sources(const span *x, exf_layer_difference *row)
{
    double all = 0, flipped = 0;
    row->sources = x->n * x->e;
    for (size_t i = x->first * x->e; i < (x->first + x->n) * x->e; i++) {
        int flip = find_best_target(x->a, i) != find_best_target(x->b, i);
        double was = (double)x->a->norms[i], is = (double)x->b->norms[i];
        double change = was == is ? 0 : was > 0 ? fabs(is - was) / was : 1; /* relative; 1 where the norm was 0 */
        if (change > row->norm) row->norm = change;
        row->flips += (uint64_t)flip;
        double tokens = (double)x->a->expert_count[i] + (double)x->b->expert_count[i]; /* routed to the source, in both */
        all += tokens;
        flipped += flip ? tokens : 0;
    }
    row->flip_traffic = all > 0 ? flipped / all : (double)NAN;
}

static void compare_choices(const span *x, exf_layer_difference *row)
{
    exf_choice_sums all = {.own = 0};
    for (size_t l = x->first; l < x->first + x->n; l++) {
        size_t at = l * x->e * x->e;
        const float *const scalar[2] = {x->a->coeff + at, x->b->coeff + at}, *const loss[2] = {x->a->loss + at, x->b->loss + at};
        uint64_t *tokens = (uint64_t *)(void *)x->scratch;
        for (size_t i = 0; i < x->e; i++) tokens[i] = x->a->expert_count[l * x->e + i] + x->b->expert_count[l * x->e + i];
        exf_choice_add(&all, scalar, loss, tokens, x->e);
    }
    row->cost = exf_choice_cost(&all);
}

static void compare_span(const span *x, exf_layer_difference *row)
{
    *row = (exf_layer_difference){.layer = x->n == 1 ? x->a->layer_number[x->first] : -1};
    row->pairs = x->n * x->e * (x->e - 1);
    for (size_t i = x->first * x->e * x->e; i < (x->first + x->n) * x->e * x->e; i++) {
        int in_a = exf_inspection_observed(x->a, i), in_b = exf_inspection_observed(x->b, i);
        row->observed_a += (uint64_t)in_a;
        row->observed_b += (uint64_t)in_b;
        row->gained += in_b && !in_a;
        row->lost += in_a && !in_b;
    }
    find_quantiles(x, x->a->coeff, x->b->coeff, row->scalar);
    find_quantiles(x, x->a->loss, x->b->loss, row->loss);
    compare_sources(x, row);
    compare_choices(x, row);
}

static exf_code check_comparable(const exf_inspection *a, const char *path_a, const exf_inspection *b, const char *path_b,
                                 exf_err *err)
{
    if (!a->coeff || !b->coeff)
        return exf_fail(err, EXF_MODEL, "%s holds %s and %s holds %s, expected tables", path_a, a->kind->kind, path_b,
                        b->kind->kind);
    if (a->shape.n_experts != b->shape.n_experts)
        return exf_fail(err, EXF_MODEL, "%s has %lld experts, %s has %lld", path_a, (long long)a->shape.n_experts, path_b,
                        (long long)b->shape.n_experts);
    if (a->n_layers != b->n_layers)
        return exf_fail(err, EXF_MODEL, "%s has %d layers, %s has %d", path_a, a->n_layers, path_b, b->n_layers);
    for (int i = 0; i < a->n_layers; i++)
        if (a->layer_number[i] != b->layer_number[i])
            return exf_fail(err, EXF_MODEL, "%s has layer %d where %s has layer %d", path_a, (int)a->layer_number[i], path_b,
                            (int)b->layer_number[i]);
    return EXF_OK;
}

exf_code exf_compare(const exf_inspection *a, const char *path_a, const exf_inspection *b, const char *path_b,
                     exf_layer_difference *rows, exf_err *err)
{
    exf_code rc = check_comparable(a, path_a, b, path_b, err);
    if (rc != EXF_OK) return rc;
    span x = {.a = a, .b = b, .e = (size_t)a->shape.n_experts, .n = 1};
    size_t n = (size_t)a->n_layers;
    rc = exf_mem_new(&x.scratch, n * x.e * x.e, sizeof *x.scratch, "differences", err);
    if (rc != EXF_OK) return rc;
    for (; x.first < n; x.first++) compare_span(&x, &rows[x.first]);
    x.first = 0;
    x.n = n;
    compare_span(&x, &rows[n]);
    rows[n].layer = -1;
    exf_mem_free(x.scratch);
    return EXF_OK;
}

/* ---- pools ------------------------------------------------------------------------------ */

static void compare_pools(const exf_inspection *a, const exf_static_pool *p, const exf_inspection *b, const exf_static_pool *q,
                          exf_pool_difference *out)
{
    size_t e = (size_t)a->shape.n_experts, size = (size_t)p->size;
    double all = 0, moved = 0;
    for (size_t l = 0; l < (size_t)a->n_layers; l++) {
        for (size_t i = 0; i < size; i++) {
            size_t k = 0; /* the place in p of q's member */
            while (k < size && p->members[l * size + k] != q->members[l * size + i]) k++;
            out->members += k == size;
        }
        for (size_t i = l * e; i < (l + 1) * e; i++) {
            double tokens = (double)a->expert_count[i] + (double)b->expert_count[i];
            all += tokens;
            moved += p->target_ids[i] != q->target_ids[i] ? tokens : 0;
        }
    }
    out->places = (uint64_t)a->n_layers * size;
    out->target_traffic = all > 0 ? moved / all : (double)NAN;
}

int exf_compare_pool(const exf_inspection *a, int i, const exf_inspection *b, exf_pool_difference *out)
{
    for (int k = 0; k < b->n_pools; k++) {
        if (b->pool[k].size != a->pool[i].size || strcmp(b->pool[k].by, a->pool[i].by) != 0) continue;
        *out = (exf_pool_difference){.size = a->pool[i].size, .by = a->pool[i].by};
        compare_pools(a, &a->pool[i], b, &b->pool[k], out);
        return 1;
    }
    return 0;
}

/* ---- facts and bytes --------------------------------------------------------------------- */

int exf_next_fact_change(const exf_provenance *a, const exf_provenance *b, size_t *i, size_t *j, exf_fact_change *out)
{
    while (*i < a->n || *j < b->n) {
        int order = *i == a->n ? 1 : *j == b->n ? -1 : strcmp(a->key[*i], b->key[*j]);
        *out = (exf_fact_change){order <= 0 ? a->key[*i] : b->key[*j], order <= 0 ? a->value[*i] : NULL,
                                 order >= 0 ? b->value[*j] : NULL};
        *i += order <= 0;
        *j += order >= 0;
        if (order != 0 || strcmp(out->a, out->b) != 0) return 1;
    }
    return 0;
}

static int same_pools(const exf_inspection *a, const exf_inspection *b)
{
    size_t experts = (size_t)a->n_layers * (size_t)a->shape.n_experts;
    if (a->n_pools != b->n_pools) return 0;
    for (int i = 0; i < a->n_pools; i++) {
        const exf_static_pool *p = &a->pool[i], *q = &b->pool[i];
        size_t members = (size_t)a->n_layers * (size_t)p->size;
        if (p->size != q->size || strcmp(p->by, q->by) != 0 ||
            memcmp(p->members, q->members, members * sizeof *p->members) != 0 ||
            memcmp(p->target_ids, q->target_ids, experts * sizeof *p->target_ids) != 0 ||
            memcmp(p->target_scale, q->target_scale, experts * sizeof *p->target_scale) != 0)
            return 0;
    }
    return 1;
}

int exf_same_numbers(const exf_inspection *a, const exf_inspection *b)
{
    size_t experts = (size_t)a->n_layers * (size_t)a->shape.n_experts, pairs = experts * (size_t)a->shape.n_experts;
    for (int i = 0; a->half_loss[0] && b->half_loss[0] && i < 2; i++)
        if (memcmp(a->half_scalar[i], b->half_scalar[i], pairs * sizeof(float)) != 0 ||
            memcmp(a->half_loss[i], b->half_loss[i], pairs * sizeof(float)) != 0)
            return 0;
    return memcmp(a->count, b->count, pairs * sizeof *a->count) == 0 && memcmp(a->coeff, b->coeff, pairs * sizeof *a->coeff) == 0 &&
           memcmp(a->loss, b->loss, pairs * sizeof *a->loss) == 0 && memcmp(a->norms, b->norms, experts * sizeof *a->norms) == 0 &&
           memcmp(a->expert_count, b->expert_count, experts * sizeof *a->expert_count) == 0 && same_pools(a, b);
}

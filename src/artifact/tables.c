/* tables.c - tables in memory, and the rules that they obey; see tables.h. */
#include "artifact/tables.h"

#include "artifact/data.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static exf_code new_pool(exf_static_pool *p, int64_t size, const exf_tables *t, exf_err *err)
{
    exf_code rc;
    size_t l = (size_t)t->n_layers, e = (size_t)t->shape.n_experts;
    if (size < 1 || size > t->shape.n_experts)
        return exf_fail(err, EXF_USAGE, "a decode pool of %lld experts: the model has %lld", (long long)size,
                        (long long)t->shape.n_experts);
    p->size = (int)size;
    snprintf(p->by, sizeof p->by, "norm");
    EXF_TRY(exf_mem_new(&p->members, l * (size_t)size, sizeof *p->members, "pools", err));
    EXF_TRY(exf_mem_new(&p->target_ids, l * e, sizeof *p->target_ids, "pools", err));
    EXF_TRY(exf_mem_new(&p->target_scale, l * e, sizeof *p->target_scale, "pools", err));
out:
    return rc;
}

exf_code exf_tables_new(exf_tables *t, const exf_run_shape *shape, const int32_t *layer_number, int n_layers,
                        const int64_t *pool_sizes, size_t n_pools, exf_err *err)
{
    exf_code rc;
    size_t l = (size_t)n_layers, e = (size_t)shape->n_experts;
    memset(t, 0, sizeof *t);
    t->shape = *shape;
    t->n_layers = n_layers;
    EXF_TRY(exf_mem_new(&t->layer_number, l, sizeof *t->layer_number, "tables", err));
    memcpy(t->layer_number, layer_number, l * sizeof *layer_number);
    EXF_TRY(exf_mem_new(&t->coeff, l * e * e, sizeof *t->coeff, "tables", err));
    EXF_TRY(exf_mem_new(&t->loss, l * e * e, sizeof *t->loss, "tables", err));
    EXF_TRY(exf_mem_new(&t->count, l * e * e, sizeof *t->count, "tables", err));
    EXF_TRY(exf_mem_new(&t->expert_norms, l * e, sizeof *t->expert_norms, "tables", err));
    EXF_TRY(exf_mem_new(&t->expert_count, l * e, sizeof *t->expert_count, "tables", err));
    EXF_TRY(exf_mem_new(&t->pool, n_pools, sizeof *t->pool, "pools", err));
    t->n_pools = (int)n_pools;
    for (size_t i = 0; i < n_pools; i++) EXF_TRY(new_pool(&t->pool[i], pool_sizes[i], t, err));
out:
    if (rc != EXF_OK) exf_tables_free(t);
    return rc;
}

exf_code exf_tables_add_pool(exf_tables *t, int64_t size, exf_err *err)
{
    exf_static_pool *now = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&now, (size_t)t->n_pools + 1, sizeof *now, "pools", err));
    for (int i = 0; i < t->n_pools; i++) now[i] = t->pool[i];
    exf_mem_free(t->pool);
    t->pool = now;
    return new_pool(&now[t->n_pools++], size, t, err);
out:
    return rc;
}

exf_code exf_tables_add_shared(exf_tables *t, const char *name, exf_shared_scalar **out, exf_err *err)
{
    exf_code rc;
    size_t l = (size_t)t->n_layers, e = (size_t)t->shape.n_experts;
    exf_shared_scalar *now = NULL, s = {.name = ""};
    int at = 0;
    if (strlen(name) >= sizeof s.name) return exf_fail(err, EXF_INTERNAL, "sharing pattern \"%s\" has too long a name", name);
    snprintf(s.name, sizeof s.name, "%s", name);
    while (at < t->n_shared && strcmp(t->shared[at].name, name) < 0) at++;
    EXF_TRY(exf_mem_new(&now, (size_t)t->n_shared + 1, sizeof *now, "shared scalars", err));
    EXF_TRY(exf_mem_new(&s.scalar, l, sizeof *s.scalar, "shared scalars", err));
    EXF_TRY(exf_mem_new(&s.loss, l * e * e, sizeof *s.loss, "losses of shared scalars", err));
    for (int i = 0; i <= t->n_shared; i++) now[i] = i < at ? t->shared[i] : i == at ? s : t->shared[i - 1];
    exf_mem_free(t->shared);
    t->shared = now;
    t->n_shared++;
    *out = &now[at];
    return EXF_OK;
out:
    exf_mem_free(now);
    exf_mem_free(s.scalar);
    return rc;
}

exf_code exf_tables_add_correlations(exf_tables *t, exf_err *err)
{
    size_t layers = (size_t)t->n_layers, e = (size_t)t->shape.n_experts;
    exf_code rc;
    EXF_TRY(exf_mem_new(&t->cosine, layers * e * e, sizeof *t->cosine, "tables", err));
    EXF_TRY(exf_mem_new(&t->relative_norms, layers * e, sizeof *t->relative_norms, "tables", err));
    EXF_TRY(exf_mem_new(&t->least_eigenvalue, layers, sizeof *t->least_eigenvalue, "tables", err));
    EXF_TRY(exf_mem_new(&t->median_cosine_sq, layers, sizeof *t->median_cosine_sq, "tables", err));
    EXF_TRY(exf_mem_new(&t->near_copies, layers, sizeof *t->near_copies, "tables", err));
out:
    return rc;
}

int exf_tables_valid_correlations(const exf_tables *t)
{
    const char *said = exf_provenance_get(&t->provenance, EXF_CORRELATIONS_FACT);
    return said && strcmp(said, EXF_CORRELATIONS_VALID) == 0;
}

exf_code exf_tables_add_halves(exf_tables *t, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts, cells = (size_t)t->n_layers * e * e;
    exf_code rc;
    EXF_TRY(exf_mem_new(&t->half_scalar[0], 2 * cells, sizeof **t->half_scalar, "tables of halves", err));
    EXF_TRY(exf_mem_new(&t->half_loss[0], 2 * cells, sizeof **t->half_loss, "tables of halves", err));
    t->half_scalar[1] = t->half_scalar[0] + cells;
    t->half_loss[1] = t->half_loss[0] + cells;
out:
    return rc;
}

exf_tables exf_tables_half(const exf_tables *t, int half)
{
    exf_tables view = *t;
    view.coeff = t->half_scalar[half];
    view.loss = t->half_loss[half];
    return view;
}

int exf_tables_of_common_input(const exf_tables *t)
{
    const char *pairs = exf_provenance_get(&t->provenance, "accumulate.pairs");
    return pairs && strcmp(pairs, "common_input") == 0;
}

int exf_tables_index(const exf_tables *t, int layer)
{
    for (int i = 0; i < t->n_layers; i++)
        if (t->layer_number[i] == layer) return i;
    return -1;
}

void exf_tables_free(exf_tables *t)
{
    for (int i = 0; i < t->n_shared; i++) {
        exf_mem_free(t->shared[i].scalar);
        exf_mem_free(t->shared[i].loss);
    }
    exf_mem_free(t->shared);
    for (int i = 0; i < t->n_budgets; i++) {
        exf_mem_free(t->budget[i].scale);
        exf_mem_free(t->budget[i].kept);
        exf_mem_free(t->budget[i].predicted.kept);
    }
    exf_mem_free(t->budget);
    exf_norm_head_free(&t->norm_head);
    exf_vectors_free(&t->vectors);
    exf_mem_free(t->cosine);
    exf_mem_free(t->relative_norms);
    exf_mem_free(t->least_eigenvalue);
    exf_mem_free(t->median_cosine_sq);
    exf_mem_free(t->near_copies);
    exf_mem_free(t->rms);
    exf_mem_free(t->contribution);
    exf_mem_free(t->bare_count);
    exf_mem_free(t->bare_norms);
    exf_mem_free(t->bare_contribution);
    exf_mem_free(t->similarity);
    exf_mem_free(t->frobenius);
    exf_mem_free(t->std_error);
    exf_mem_free(t->sequence_digest);
    exf_sketch_set_free(&t->sketches);
    exf_mem_free(t->half_scalar[0]);
    exf_mem_free(t->half_loss[0]);
    for (int i = 0; t->pool && i < t->n_pools; i++) {
        exf_mem_free(t->pool[i].members);
        exf_mem_free(t->pool[i].target_ids);
        exf_mem_free(t->pool[i].target_scale);
    }
    exf_mem_free(t->pool);
    exf_mem_free(t->layer_number);
    exf_mem_free(t->coeff);
    exf_mem_free(t->loss);
    exf_mem_free(t->count);
    exf_mem_free(t->expert_norms);
    exf_mem_free(t->expert_count);
    exf_mem_free(t->empty_slots);
    exf_provenance_free(&t->provenance);
    memset(t, 0, sizeof *t);
}

/* ---- experts by a criterion ----------------------------------------------------------- */

exf_code exf_tables_rank_check(const exf_tables *t, exf_expert_rank r, exf_err *err)
{
    int weighs = r.by == EXF_POOL_BY_REAP || r.by == EXF_POOL_BY_WEIGHTED_EAN;
    if (r.bare && !t->bare_count)
        return exf_fail(err, EXF_USAGE, "the tables hold no scores by the router of REAP's code; calibrate with --set "
                        "calibrate.pairs=common_input --set calibrate.bare_router=true");
    if (!r.bare && weighs && !t->contribution)
        return exf_fail(err, EXF_USAGE, "the tables hold no contribution, which came with version 2; calibrate again");
    return EXF_OK;
}

double exf_tables_score(const exf_tables *t, exf_expert_rank r, size_t l, size_t expert)
{
    size_t at = l * (size_t)t->shape.n_experts + expert;
    double routes = (double)(r.bare ? t->bare_count : t->expert_count)[at];
    const float *norms = r.bare ? t->bare_norms : t->expert_norms, *contribution = r.bare ? t->bare_contribution : t->contribution;
    switch (r.by) {
    case EXF_POOL_BY_NORM: return (double)norms[at];
    case EXF_POOL_BY_REAP: return (double)contribution[at];
    case EXF_POOL_BY_FREQUENCY: return routes;
    case EXF_POOL_BY_EAN: return (double)norms[at] * routes;
    case EXF_POOL_BY_WEIGHTED_EAN: return (double)contribution[at] * routes;
    case EXF_POOL_BY_ENERGY: break; /* of the statistics alone */
    }
    return 0;
}

exf_code exf_tables_add_bare(exf_tables *t, exf_err *err)
{
    size_t rows = (size_t)t->n_layers * (size_t)t->shape.n_experts;
    exf_code rc;
    EXF_TRY(exf_mem_new(&t->bare_count, rows, sizeof *t->bare_count, "tables", err));
    EXF_TRY(exf_mem_new(&t->bare_norms, rows, sizeof *t->bare_norms, "tables", err));
    EXF_TRY(exf_mem_new(&t->bare_contribution, rows, sizeof *t->bare_contribution, "tables", err));
out:
    return rc;
}

/* ---- rules --------------------------------------------------------------------------- */

/* Walks all cells [l, a, b] of arrays [L, E, E], at [at]; quotients of a running index would take most of a check's time. */
#define EACH_CELL(t, at, l, a, b)                                                                  \
    for (size_t at = 0, l = 0, n_cells = (size_t)(t)->shape.n_experts; l < (size_t)(t)->n_layers; l++) \
        for (size_t a = 0; a < n_cells; a++)                                                       \
            for (size_t b = 0; b < n_cells; b++, at++)

static exf_code refuse_cell(const char *path, const char *name, size_t layer, size_t s, size_t t, double value, const char *rule,
                         exf_err *err)
{
    return exf_fail(err, EXF_FORMAT, "%s: %s[%zu, %zu, %zu] is %g, %s", path, name, layer, s, t, value, rule);
}

static exf_code check_pair(const exf_tables *t, const char *path, size_t at, size_t layer, size_t a, size_t b, exf_err *err)
{
    float s = t->coeff[at], loss = t->loss[at];
    if (!isfinite(s)) return refuse_cell(path, "/coeff", layer, a, b, (double)s, "expected a finite number", err);
    if (!isfinite(loss) || loss < 0)
        return refuse_cell(path, "/loss", layer, a, b, (double)loss, "expected a finite number from 0", err);
    if (a == b && s != 1) return refuse_cell(path, "/coeff", layer, a, b, (double)s, "expected 1 on the diagonal", err);
    if ((a == b || t->count[at] == 0) && loss < EXF_LOSS_NEVER)
        return refuse_cell(path, "/loss", layer, a, b, (double)loss, "expected 1e30 on the diagonal and without evidence", err);
    return EXF_OK;
}

/* Checks a measure of pairs that lies in [low, 1]: 1 on the diagonal, and 0 for unobserved pairs if `bare`. */
static exf_code check_measure(const exf_tables *t, const float *m, float low, int bare, const char *name, const char *path,
                              exf_err *err)
{
    if (!m) return EXF_OK;
    EACH_CELL (t, at, l, a, b) {
        if (!(m[at] >= low && m[at] <= 1))
            return refuse_cell(path, name, l, a, b, (double)m[at], low < 0 ? "expected [-1, 1]" : "expected [0, 1]", err);
        if (a == b && m[at] != 1) return refuse_cell(path, name, l, a, b, (double)m[at], "expected 1 on the diagonal", err);
        if (bare && a != b && t->loss[at] >= EXF_LOSS_NEVER && m[at] != 0)
            return refuse_cell(path, name, l, a, b, (double)m[at], "expected 0 without evidence", err);
    }
    return EXF_OK;
}

static exf_code check_errors(const exf_tables *t, const char *path, exf_err *err)
{
    if (!t->std_error) return EXF_OK;
    EACH_CELL (t, at, l, a, b) {
        double x = (double)t->std_error[at];
        if (!isfinite(x) || x < 0) return refuse_cell(path, "/std_error", l, a, b, x, "expected a finite number from 0", err);
        if (a == b && x != 0) return refuse_cell(path, "/std_error", l, a, b, x, "expected 0 on the diagonal", err);
        if (a != b && t->loss[at] >= EXF_LOSS_NEVER && t->std_error[at] < EXF_ERROR_UNKNOWN)
            return refuse_cell(path, "/std_error", l, a, b, x, "expected 1e30 without evidence", err);
    }
    return EXF_OK;
}

/* Checks [L, E] numbers per expert: finite; norms from 0, and above 0 where an expert has no token: those are medians. */
static exf_code check_experts(const exf_tables *t, const float *x, int norms, const char *name, const char *path, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    for (size_t at = 0; x && at < (size_t)t->n_layers * e; at++) {
        int above = norms && !(t->expert_count && t->expert_count[at]);
        if (isfinite(x[at]) && !(norms && x[at] < 0) && !(above && x[at] == 0)) continue;
        return exf_fail(err, EXF_FORMAT, "%s: %s[%zu, %zu] is %g, expected a %s", path, name, at / e, at % e, (double)x[at],
                        above ? "number above 0" : norms ? "finite number from 0" : "finite number");
    }
    return EXF_OK;
}

/* Checks the counts of a run; a public plugin's file (tables_safetensors.c) tells of none, and says which pairs have evidence. */
static exf_code check_counts(const exf_tables *t, const char *path, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    exf_common_tokens common = {0, 0};
    exf_code rc = EXF_OK;
    if (!t->shape.top_k) return EXF_OK;
    if (exf_tables_of_common_input(t))
        EXF_TRY(exf_common_tokens_of(&common, &t->shape, NULL, &t->provenance, path, err));
    for (int l = 0; rc == EXF_OK && l < t->n_layers; l++) {
        char of_pairs[32], of_experts[32];
        snprintf(of_pairs, sizeof of_pairs, "/count[%d, ", l);
        snprintf(of_experts, sizeof of_experts, "/expert_count[%d, ", l);
        exf_layer_counts c = {.path = path, .layer = t->layer_number[l], .pairs = of_pairs, .experts = of_experts, .run = &t->shape,
                              .common = common, .count = t->count + (size_t)l * e * e,
                              .expert_count = t->expert_count + (size_t)l * e,
                              .empty_slots = t->empty_slots ? t->empty_slots[l] : 0};
        rc = exf_counts_check(&c, err);
    }
out:
    return rc;
}

static exf_code check_member(const exf_tables *t, const exf_static_pool *p, size_t k, const char *path, exf_err *err)
{
    size_t size = (size_t)p->size, layer = k / size;
    const int32_t *members = p->members + layer * size;
    if (p->members[k] < 0 || p->members[k] >= t->shape.n_experts)
        return exf_fail(err, EXF_FORMAT, "%s: /pools/%d: member %d, expected an expert in [0, %lld)", path, p->size,
                        (int)p->members[k], (long long)t->shape.n_experts);
    for (size_t i = 0; i < k % size; i++)
        if (members[i] == p->members[k])
            return exf_fail(err, EXF_FORMAT, "%s: /pools/%d, layer %d: members %zu and %zu are expert %d twice", path, p->size,
                            (int)t->layer_number[layer], i, k % size, (int)members[i]);
    return EXF_OK;
}

static exf_code check_pool(const exf_tables *t, const exf_static_pool *p, const char *path, exf_err *err)
{
    size_t e = (size_t)t->shape.n_experts;
    for (size_t k = 0; k < (size_t)t->n_layers * (size_t)p->size; k++) {
        exf_code rc = check_member(t, p, k, path, err);
        if (rc != EXF_OK) return rc;
    }
    for (size_t k = 0; k < (size_t)t->n_layers * e; k++)
        if (p->target_ids[k] < 0 || p->target_ids[k] >= t->shape.n_experts || !isfinite(p->target_scale[k]))
            return exf_fail(err, EXF_FORMAT,
                            "%s: /pools/%d: expert %zu goes to %d times %g, expected an expert in [0, %zu) and a finite scale",
                            path, p->size, k % e, (int)p->target_ids[k], (double)p->target_scale[k], e);
    return EXF_OK;
}

exf_code exf_losses_check(const exf_tables *t, const float *loss, const char *name, const char *path, exf_err *err)
{
    EACH_CELL (t, at, l, a, b) {
        if (!isfinite(loss[at]) || loss[at] < 0)
            return refuse_cell(path, name, l, a, b, (double)loss[at], "expected a finite number from 0", err);
        if (t->loss[at] >= EXF_LOSS_NEVER && loss[at] < EXF_LOSS_NEVER)
            return refuse_cell(path, name, l, a, b, (double)loss[at], "expected 1e30 on the diagonal and without evidence", err);
    }
    return EXF_OK;
}

static exf_code check_shared(const exf_tables *t, const exf_shared_scalar *s, const char *path, exf_err *err)
{
    char name[40];
    for (int l = 0; l < t->n_layers; l++)
        if (!isfinite(s->scalar[l]))
            return exf_fail(err, EXF_FORMAT, "%s: /shared/%s/scalar[%d] is %g, expected a finite number", path, s->name, l,
                            (double)s->scalar[l]);
    snprintf(name, sizeof name, "/shared/%s/loss", s->name);
    return exf_losses_check(t, s->loss, name, path, err);
}

/* Checks the numbers of one half: those of a pair's own by the same rules. */
static exf_code check_half(const exf_tables *t, int half, const char *path, exf_err *err)
{
    const float *scalar = t->half_scalar[half], *loss = t->half_loss[half];
    char name[2][24];
    exf_code rc;
    snprintf(name[0], sizeof name[0], "/half_scalar[%d]", half);
    snprintf(name[1], sizeof name[1], "/half_loss[%d]", half);
    EXF_TRY(exf_losses_check(t, loss, name[1], path, err));
    EACH_CELL (t, at, l, a, b) {
        double x = (double)scalar[at];
        if (!isfinite(x)) return refuse_cell(path, name[0], l, a, b, x, "expected a finite number", err);
        if (a == b && x != 1) return refuse_cell(path, name[0], l, a, b, x, "expected 1 on the diagonal", err);
        if (a != b && loss[at] >= EXF_LOSS_NEVER && x != 0)
            return refuse_cell(path, name[0], l, a, b, x, "expected 0 without evidence", err);
    }
out:
    return rc;
}

/* Checks what is said of the measured cosines. */
static exf_code check_correlations(const exf_tables *t, const char *path, exf_err *err)
{
    const struct {
        const char *name;
        const float *x;
        float low;
    } all[] = {{"/least_eigenvalue", t->least_eigenvalue, -HUGE_VALF}, {"/median_cosine_sq", t->median_cosine_sq, 0},
               {"/near_copies", t->near_copies, 0}};
    if (!!t->relative_norms != exf_tables_valid_correlations(t))
        return exf_fail(err, EXF_FORMAT, "%s: %s /relative_norms, and provenance says %s is %s", path,
                        t->relative_norms ? "has" : "lacks", EXF_CORRELATIONS_FACT,
                        exf_tables_valid_correlations(t) ? EXF_CORRELATIONS_VALID : "nothing");
    for (size_t i = 0; t->relative_norms && i < sizeof all / sizeof *all; i++)
        for (int l = 0; l < t->n_layers; l++)
            if (!isfinite(all[i].x[l]) || all[i].x[l] < all[i].low || all[i].x[l] > 1 + 1e-5f)
                return exf_fail(err, EXF_FORMAT, "%s: %s[%d] is %g, expected %s1 at most", path, all[i].name, l,
                                (double)all[i].x[l], all[i].low < 0 ? "" : "0 at least and ");
    return EXF_OK;
}

exf_code exf_tables_check(const exf_tables *t, const char *path, exf_err *err)
{
    exf_code rc = EXF_OK;
    EXF_TRY(check_counts(t, path, err));
    EXF_TRY(exf_tables_sequences_check(t, path, err));
    EACH_CELL (t, at, l, a, b)
        EXF_TRY(check_pair(t, path, at, l, a, b, err));
    EXF_TRY(check_experts(t, t->expert_norms, 1, "/expert_norms", path, err));
    EXF_TRY(check_experts(t, t->rms, 1, "/rms", path, err));
    EXF_TRY(check_experts(t, t->relative_norms, 1, "/relative_norms", path, err));
    EXF_TRY(check_correlations(t, path, err));
    EXF_TRY(check_experts(t, t->contribution, 0, "/contribution", path, err));
    EXF_TRY(check_experts(t, t->bare_norms, 0, "/bare_norms", path, err));
    EXF_TRY(check_experts(t, t->bare_contribution, 0, "/bare_contribution", path, err));
    EXF_TRY(check_measure(t, t->cosine, -1, !exf_tables_valid_correlations(t), "/cosine", path, err));
    EXF_TRY(check_measure(t, t->similarity, 0, 1, "/similarity", path, err));
    if (t->frobenius) EXF_TRY(exf_losses_check(t, t->frobenius, "/frobenius", path, err));
    EXF_TRY(check_errors(t, path, err));
    for (int half = 0; t->half_loss[0] && half < 2; half++) EXF_TRY(check_half(t, half, path, err));
    for (int i = 0; i < t->n_pools; i++) EXF_TRY(check_pool(t, &t->pool[i], path, err));
    for (int i = 0; i < t->n_shared; i++) EXF_TRY(check_shared(t, &t->shared[i], path, err));
    EXF_TRY(exf_budgets_check(t, path, err));
    EXF_TRY(exf_norm_head_check(t, path, err));
out:
    return rc;
}

/* norm_sums.c - sums from which a norm head is solved: in memory and in files; see norm_sums.h. */
#include "accumulate/norm_sums.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- in memory ------------------------------------------------------------------------ */

static size_t basis_elements(const exf_norm_sums *s)
{
    return (size_t)s->d_model * (size_t)s->q;
}

exf_code exf_norm_sums_new(exf_norm_sums *s, int n_experts, int d_model, int q, exf_err *err)
{
    size_t e = (size_t)n_experts;
    exf_code rc;
    memset(s, 0, sizeof *s);
    if (q == 0) return EXF_OK;
    *s = (exf_norm_sums){.n_experts = n_experts, .d_model = d_model, .q = q};
    EXF_TRY(exf_mem_new(&s->basis, basis_elements(s), sizeof *s->basis, "norm head", err));
    EXF_TRY(exf_mem_new(&s->pp, e * exf_norm_products(q), sizeof *s->pp, "sums of the norm head", err));
    EXF_TRY(exf_mem_new(&s->py, e * exf_norm_features(q), sizeof *s->py, "sums of the norm head", err));
    EXF_TRY(exf_mem_new(&s->yy, e, sizeof *s->yy, "sums of the norm head", err));
out:
    if (rc != EXF_OK) exf_norm_sums_free(s);
    return rc;
}

void exf_norm_sums_zero(exf_norm_sums *s)
{
    size_t e = (size_t)s->n_experts;
    s->known = 0;
    if (!s->pp) return;
    memset(s->pp, 0, e * exf_norm_products(s->q) * sizeof *s->pp);
    memset(s->py, 0, e * exf_norm_features(s->q) * sizeof *s->py);
    memset(s->yy, 0, e * sizeof *s->yy);
}

void exf_norm_sums_free(exf_norm_sums *s)
{
    exf_mem_free(s->basis);
    exf_mem_free(s->pp);
    exf_mem_free(s->py);
    exf_mem_free(s->yy);
    memset(s, 0, sizeof *s);
}

void exf_norm_sums_set_basis(exf_norm_sums *s, const double *basis)
{
    memcpy(s->basis, basis, basis_elements(s) * sizeof *s->basis);
    s->known = 1;
}

static exf_code merge_array(exf_exact *to, const exf_exact *from, size_t n, const char *name, exf_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (exf_exact_merge(&to[i], &from[i]))
            return exf_fail(err, EXF_FORMAT, "norms/%s[%zu]: %.17g and the sum before are more together than a sum holds", name, i,
                            exf_exact_value(&from[i]));
    return EXF_OK;
}

exf_code exf_norm_sums_merge(exf_norm_sums *to, const exf_norm_sums *from, exf_err *err)
{
    size_t e = (size_t)from->n_experts;
    exf_code rc;
    if (!from->q) return EXF_OK;
    EXF_TRY(merge_array(to->pp, from->pp, e * exf_norm_products(to->q), "pp", err));
    EXF_TRY(merge_array(to->py, from->py, e * exf_norm_features(to->q), "py", err));
    EXF_TRY(merge_array(to->yy, from->yy, e, "yy", err));
out:
    return rc;
}

/* ---- in files -------------------------------------------------------------------------- */

size_t exf_norm_sums_list(const exf_norm_sums *s, exf_sum_array out[EXF_MOST_SUM_ARRAYS])
{
    int64_t e = s->n_experts, products = (int64_t)exf_norm_products(s->q), features = (int64_t)exf_norm_features(s->q);
    const exf_sum_array all[] = {
        {EXF_RANKS_ALIKE, {.name = "norms.basis", .dtype = EXF_DT_F64, .rank = 2, .shape = {s->d_model, s->q}, .data = s->basis}},
        {EXF_RANKS_EXACT, {.name = "norms.pp", .dtype = EXF_DT_U64, .rank = 3, .shape = {e, products, 3}, .data = s->pp}},
        {EXF_RANKS_EXACT, {.name = "norms.py", .dtype = EXF_DT_U64, .rank = 3, .shape = {e, features, 3}, .data = s->py}},
        {EXF_RANKS_EXACT, {.name = "norms.yy", .dtype = EXF_DT_U64, .rank = 2, .shape = {e, 3}, .data = s->yy}}};
    if (!s->q) return 0;
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* Finds how many directions a layer has, before memory is taken for them; *q 0: there is no group. */
static exf_code find_directions(int *q, exf_h5 *h, const exf_run_shape *shape, int layer, exf_err *err)
{
    char path[EXF_SUM_PATH];
    exf_tensor basis;
    int found;
    exf_code rc;
    *q = 0;
    EXF_TRY(exf_h5_exists(h, exf_sum_path(path, layer, "norms"), &found, err));
    if (!found) return EXF_OK;
    EXF_TRY(exf_h5_describe(h, exf_sum_path(path, layer, "norms.basis"), &basis, err));
    if (basis.rank != 2 || basis.shape[0] != shape->d_model || shape->d_model > INT32_MAX || basis.shape[1] < 1 ||
        basis.shape[1] > EXF_NORM_MOST || basis.shape[1] > shape->d_model)
        return exf_fail(err, EXF_FORMAT, "%s: %s has %lld directions of %lld elements, expected 1 to %d of %lld", exf_h5_path(h),
                        path, (long long)basis.shape[1], (long long)basis.shape[0], EXF_NORM_MOST, (long long)shape->d_model);
    *q = (int)basis.shape[1];
out:
    return rc;
}

exf_code exf_norm_sums_read(exf_norm_sums *s, exf_h5 *h, const exf_run_shape *shape, int layer, const uint64_t *norm_count,
                            exf_err *err)
{
    exf_norm_sums size = {.n_experts = (int)shape->n_experts, .d_model = (int)shape->d_model};
    exf_sum_array all[EXF_MOST_SUM_ARRAYS]; /* the basis, and the sums */
    char path[EXF_SUM_PATH];
    exf_code rc;
    EXF_TRY(find_directions(&size.q, h, shape, layer, err));
    size_t n = exf_norm_sums_list(&size, all);
    if (n) EXF_TRY(exf_sum_arrays_do(EXF_SUMS_EXPECT, all + 1, n - 1, h, layer, err));
    if (s->q != size.q) {
        exf_norm_sums_free(s);
        EXF_TRY(exf_norm_sums_new(s, size.n_experts, size.d_model, size.q, err));
    }
    if (!n) return EXF_OK;
    (void)exf_norm_sums_list(s, all);
    EXF_TRY(exf_sum_arrays_do(EXF_SUMS_READ, all, 1, h, layer, err));
    for (size_t i = 0; i < basis_elements(s); i++)
        if (!(fabs(s->basis[i]) <= 1.0001))
            return exf_fail(err, EXF_FORMAT, "%s: %s: element %zu is %g, expected a coordinate of a unit vector", exf_h5_path(h),
                            exf_sum_path(path, layer, "norms.basis"), i, s->basis[i]);
    s->known = 1;
    EXF_TRY(exf_sum_arrays_do(EXF_SUMS_READ, all + 1, n - 1, h, layer, err));
    for (int i = 0; i < s->n_experts; i++) {
        double slots = exf_exact_value(&s->pp[(size_t)i * exf_norm_products(s->q)]);
        if (slots != (double)norm_count[i])
            return exf_fail(err, EXF_FORMAT, "%s: %s: expert %d has sums of %.17g tokens, norm_count says %llu", exf_h5_path(h),
                            exf_sum_path(path, layer, "norms.pp"), i, slots, (unsigned long long)norm_count[i]);
    }
out:
    return rc;
}

/* vector_sums.c - sums from which vectors are solved: in memory, on their grids, in files; see vector_sums.h. */
#include "accumulate/vector_sums.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { GRID_BITS = 61 };

const char *const exf_observed_name[EXF_N_OBSERVED] = {"diagonal", "lowrank"};

exf_code exf_vector_sums_new_choice(exf_vector_sums *v, int64_t n_pairs, int d_model, int rank, exf_err *err)
{
    exf_code rc = EXF_OK;
    size_t p = (size_t)n_pairs, h = (size_t)d_model, r = (size_t)rank;
    *v = (exf_vector_sums){.n_pairs = n_pairs, .d_model = d_model, .rank = rank};
    if (n_pairs == 0) return EXF_OK;
    EXF_TRY(exf_mem_new(&v->pair, p, 2 * sizeof *v->pair, "vector sums", err));
    if (rank) {
        EXF_TRY(exf_mem_new(&v->basis, h * r, sizeof *v->basis, "basis", err));
        EXF_TRY(exf_mem_new(&v->grid, p, EXF_N_GRIDS * sizeof *v->grid, "low-rank sums", err));
    }
out:
    if (rc != EXF_OK) exf_vector_sums_free(v);
    return rc;
}

exf_code exf_vector_sums_new(exf_vector_sums *v, int64_t n_pairs, int d_model, int diagonal, int rank, exf_err *err)
{
    exf_code rc;
    size_t p = (size_t)n_pairs, h = (size_t)d_model, r = (size_t)rank, ph, prh;
    EXF_TRY(exf_vector_sums_new_choice(v, n_pairs, d_model, rank, err));
    if (n_pairs == 0) return EXF_OK;
    EXF_TRY(exf_mem_mul(&ph, p, h, "vector sums", err));
    EXF_TRY(exf_mem_mul(&prh, ph, r, "vector sums", err));
    if (diagonal) {
        EXF_TRY(exf_mem_new(&v->vu, ph, sizeof *v->vu, "diagonal sums", err));
        EXF_TRY(exf_mem_new(&v->vv, ph, sizeof *v->vv, "diagonal sums", err));
    }
    if (rank) {
        EXF_TRY(exf_mem_new(&v->zz, p, r * r * sizeof *v->zz, "low-rank sums", err));
        EXF_TRY(exf_mem_new(&v->zu, prh, sizeof *v->zu, "low-rank sums", err));
        EXF_TRY(exf_mem_new(&v->zv, prh, sizeof *v->zv, "low-rank sums", err));
    }
out:
    if (rc != EXF_OK) exf_vector_sums_free(v);
    return rc;
}

void exf_vector_sums_free(exf_vector_sums *v)
{
    void *own[] = {v->pair, v->basis, v->grid}, *sums[] = {v->vu, v->vv, v->zz, v->zu, v->zv};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) exf_mem_free(own[i]);
    for (size_t i = 0; !v->borrowed && i < sizeof sums / sizeof *sums; i++) exf_mem_free(sums[i]);
    memset(v, 0, sizeof *v);
}

/* Returns the grid for sums of magnitude at most `bound`; for a bound of 0 the finest that a double can be scaled by. */
static int grid_of(double bound)
{
    int exponent = -900;
    if (bound > 0) (void)frexp(bound, &exponent);
    return (exponent < -900 ? -900 : exponent) - GRID_BITS;
}

void exf_grid_for_pair(int32_t grid[EXF_N_GRIDS], double source_sq, double target_sq)
{
    grid[EXF_GRID_ZU] = grid_of(sqrt(target_sq) * sqrt(source_sq) * 1.001);
    grid[EXF_GRID_ZV] = grid_of(target_sq * 1.001);
}

void exf_grid_add(int64_t *sum, const double *x, size_t n, int grid)
{
    double scale = ldexp(1, -grid);
    for (size_t i = 0; i < n; i++) sum[i] += llrint(x[i] * scale);
}

void exf_grid_value(double *out, const int64_t *sum, size_t n, int grid)
{
    double unit = ldexp(1, grid);
    for (size_t i = 0; i < n; i++) out[i] = (double)sum[i] * unit;
}

exf_code exf_vector_sums_hash_basis(exf_hash *h, int layer_number, const exf_vector_sums *v, exf_err *err)
{
    size_t p = (size_t)v->n_pairs, r = (size_t)v->rank, d = (size_t)v->d_model;
    const uint64_t head[] = {(uint64_t)layer_number, (uint64_t)p, (uint64_t)d, (uint64_t)r};
    exf_code rc;
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) EXF_TRY(exf_hash_add_u64(h, head[i], err));
    if (!p) return EXF_OK;
    EXF_TRY(exf_hash_add(h, v->pair, 2 * p * sizeof *v->pair, err));
    if (!r) return EXF_OK;
    EXF_TRY(exf_hash_add(h, v->basis, d * r * sizeof *v->basis, err));
    EXF_TRY(exf_hash_add(h, v->grid, p * EXF_N_GRIDS * sizeof *v->grid, err));
out:
    return rc;
}

/* ---- in files ---------------------------------------------------------------------- */

size_t exf_vector_sums_list(const exf_vector_sums *v, int diagonal, int lowrank, exf_sum_array out[EXF_MOST_SUM_ARRAYS])
{
    int64_t p = v->n_pairs, h = v->d_model, r = v->rank;
    const exf_sum_array pairs = {EXF_RANKS_ALIKE, {.name = "vectors.pair", .dtype = EXF_DT_I32, .rank = 2, .shape = {p, 2},
                                                   .data = v->pair}};
    const exf_sum_array diagonals[] = {
        {EXF_RANKS_EXACT, {.name = "vectors.vu", .dtype = EXF_DT_U64, .rank = 3, .shape = {p, h, 3}, .data = v->vu}},
        {EXF_RANKS_EXACT, {.name = "vectors.vv", .dtype = EXF_DT_U64, .rank = 3, .shape = {p, h, 3}, .data = v->vv}}};
    const exf_sum_array lowranks[] = {
        {EXF_RANKS_ALIKE, {.name = "vectors.basis", .dtype = EXF_DT_F64, .rank = 2, .shape = {h, r}, .data = v->basis}},
        {EXF_RANKS_ALIKE, {.name = "vectors.grid", .dtype = EXF_DT_I32, .rank = 2, .shape = {p, EXF_N_GRIDS}, .data = v->grid}},
        {EXF_RANKS_U64, {.name = "vectors.zz", .dtype = EXF_DT_I64, .rank = 3, .shape = {p, r, r}, .data = v->zz}},
        {EXF_RANKS_U64, {.name = "vectors.zu", .dtype = EXF_DT_I64, .rank = 3, .shape = {p, r, h}, .data = v->zu}},
        {EXF_RANKS_U64, {.name = "vectors.zv", .dtype = EXF_DT_I64, .rank = 3, .shape = {p, r, h}, .data = v->zv}}};
    size_t n = 1;
    if (!p) return 0;
    out[0] = pairs;
    if (diagonal) memcpy(out + n, diagonals, sizeof diagonals);
    n += diagonal ? 2 : 0;
    if (lowrank) memcpy(out + n, lowranks, sizeof lowranks);
    return n + (lowrank ? 5 : 0);
}

exf_code exf_vector_sums_write(const exf_vector_sums *v, exf_h5 *h, int layer, exf_err *err)
{
    exf_sum_array all[EXF_MOST_SUM_ARRAYS];
    size_t n = exf_vector_sums_list(v, v->vu != NULL, v->zz != NULL, all);
    return exf_sum_arrays_do(EXF_SUMS_WRITE, all, n, h, layer, err);
}

/* Finds how many pairs and columns a layer has. */
static exf_code find_sizes(exf_vector_sums *v, int lowrank, exf_h5 *h, const exf_run_shape *shape, int layer, exf_err *err)
{
    char path[EXF_SUM_PATH];
    exf_tensor pair, basis = {.rank = 2, .shape = {0, 0}};
    int64_t e = shape->n_experts, d = shape->d_model;
    exf_code rc;
    EXF_TRY(exf_h5_describe(h, exf_sum_path(path, layer, "vectors.pair"), &pair, err));
    if (lowrank) EXF_TRY(exf_h5_describe(h, exf_sum_path(path, layer, "vectors.basis"), &basis, err));
    if (pair.rank != 2 || pair.shape[0] < 1 || pair.shape[0] > e * (e - 1) || d > INT32_MAX || basis.rank != 2 ||
        basis.shape[1] > d || (lowrank && basis.shape[1] < 1))
        return exf_fail(err, EXF_FORMAT,
                        "%s: %s has %lld pairs and a basis of %lld columns, which %lld experts of width %lld forbid",
                        exf_h5_path(h), exf_sum_path(path, layer, "vectors"), (long long)pair.shape[0], (long long)basis.shape[1],
                        (long long)e, (long long)d);
    *v = (exf_vector_sums){.n_pairs = pair.shape[0], .d_model = (int)d, .rank = (int)basis.shape[1]};
out:
    return rc;
}

static exf_code check_contents(const exf_vector_sums *v, exf_h5 *h, const exf_run_shape *shape, int layer, exf_err *err)
{
    enum { LEAST = -1200, MOST = 960 }; /* exponents of a double */
    int64_t e = shape->n_experts, before = -1;
    char path[EXF_SUM_PATH];
    for (int64_t i = 0; i < v->n_pairs; i++) {
        const int32_t *p = v->pair + 2 * i;
        int64_t key = p[0] * e + p[1];
        if (p[0] < 0 || p[0] >= e || p[1] < 0 || p[1] >= e || p[0] == p[1] || key <= before)
            return exf_fail(err, EXF_FORMAT, "%s: %s[%lld] is (%d, %d), expected ascending (source, target)", exf_h5_path(h),
                            exf_sum_path(path, layer, "vectors.pair"), (long long)i, (int)p[0], (int)p[1]);
        before = key;
    }
    for (int64_t i = 0; v->basis && i < (int64_t)v->d_model * v->rank; i++)
        if (!(fabs(v->basis[i]) <= 1.0001))
            return exf_fail(err, EXF_FORMAT, "%s: %s: element %lld is %g, expected a coordinate of a unit vector",
                            exf_h5_path(h), exf_sum_path(path, layer, "vectors.basis"), (long long)i, v->basis[i]);
    for (int64_t i = 0; v->grid && i < v->n_pairs * EXF_N_GRIDS; i++)
        if (v->grid[i] < LEAST || v->grid[i] > MOST)
            return exf_fail(err, EXF_FORMAT, "%s: %s[%lld, %d] is %d, no exponent of a double", exf_h5_path(h),
                            exf_sum_path(path, layer, "vectors.grid"), (long long)(i / EXF_N_GRIDS), (int)(i % EXF_N_GRIDS),
                            (int)v->grid[i]);
    return EXF_OK;
}

exf_code exf_vector_sums_read(exf_vector_sums *v, exf_vectors_what what, exf_h5 *h, const exf_run_shape *shape, int layer,
                              exf_err *err)
{
    exf_sum_array all[EXF_MOST_SUM_ARRAYS];
    exf_vector_sums size;
    char path[EXF_SUM_PATH];
    int found, diagonal = 0, lowrank = 0;
    exf_code rc;
    memset(v, 0, sizeof *v);
    EXF_TRY(exf_h5_exists(h, exf_sum_path(path, layer, "vectors"), &found, err));
    if (!found) return EXF_OK;
    if (what == EXF_VECTORS_SUMS) {
        EXF_TRY(exf_h5_exists(h, exf_sum_path(path, layer, "vectors.vu"), &diagonal, err));
        EXF_TRY(exf_h5_exists(h, exf_sum_path(path, layer, "vectors.zz"), &lowrank, err));
    }
    EXF_TRY(find_sizes(&size, lowrank, h, shape, layer, err));
    size_t n = exf_vector_sums_list(&size, diagonal, lowrank, all);
    EXF_TRY(exf_sum_arrays_do(EXF_SUMS_EXPECT, all, n, h, layer, err));
    EXF_TRY(exf_vector_sums_new(v, size.n_pairs, size.d_model, diagonal, size.rank, err));
    EXF_TRY(exf_sum_arrays_do(EXF_SUMS_READ, all, exf_vector_sums_list(v, diagonal, lowrank, all), h, layer, err));
    rc = check_contents(v, h, shape, layer, err);
out:
    if (rc != EXF_OK) exf_vector_sums_free(v);
    return rc;
}

/* vector_sums.c - see vector_sums.h. */
#include "artifact/vector_sums.h"

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
    exf_mem_free(v->pair);
    exf_mem_free(v->vu);
    exf_mem_free(v->vv);
    exf_mem_free(v->basis);
    exf_mem_free(v->grid);
    exf_mem_free(v->zz);
    exf_mem_free(v->zu);
    exf_mem_free(v->zv);
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

exf_code exf_grids_check(const exf_vector_sums *v, const char *file, const char *group, exf_err *err)
{
    enum { LEAST = -1200, MOST = 960 };
    for (int64_t i = 0; v->grid && i < v->n_pairs * EXF_N_GRIDS; i++)
        if (v->grid[i] < LEAST || v->grid[i] > MOST)
            return exf_fail(err, EXF_FORMAT, "%s: %s/grid[%lld, %d] is %d, no exponent of a double", file, group,
                            (long long)(i / EXF_N_GRIDS), (int)(i % EXF_N_GRIDS), (int)v->grid[i]);
    return EXF_OK;
}

int exf_grids_fit(const int32_t grid[EXF_N_GRIDS], double source_sq, double target_sq)
{
    int32_t own[EXF_N_GRIDS];
    exf_grid_for_pair(own, source_sq, target_sq);
    return own[EXF_GRID_ZU] <= grid[EXF_GRID_ZU] + 1 && own[EXF_GRID_ZV] <= grid[EXF_GRID_ZV] + 1;
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

/* Divides by 2^bits, rounded to nearest, ties to even. */
static int64_t halve(int64_t x, int bits)
{
    if (bits > 62) return 0;
    int64_t unit = (int64_t)1 << bits, rest = x & (unit - 1), floor = (x - rest) / unit;
    return floor + (2 * rest > unit || (2 * rest == unit && (floor & 1)));
}

void exf_grid_coarsen(int64_t *sum, size_t n, int from, int to)
{
    for (size_t i = 0; to > from && i < n; i++) sum[i] = halve(sum[i], to - from);
}

int64_t exf_vector_sums_find(const exf_vector_sums *v, int source, int target)
{
    int64_t low = 0, high = v->n_pairs;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        const int32_t *p = v->pair + 2 * mid;
        if (p[0] == source && p[1] == target) return mid;
        if (p[0] < source || (p[0] == source && p[1] < target))
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

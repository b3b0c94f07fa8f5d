/* check_cuda_basis.c - the basis of rows on the GPU: orthonormal, of the host's energy, its directions where they stand apart;
 * complete where the rows are fewer than its columns; the same bits again. */
#include "accumulate/accumulate_internal.h"
#include "tests/support/basis_fixtures.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

static exf_err e;

static void ck_close(double got, double want, double tolerance, const char *what)
{
    ck_assert_msg(fabs(got - want) <= tolerance, "%s: %.17g, expected %.17g within %g", what, got, want, tolerance);
}

/* n rows of width h, r directions; decay of one direction's size to the next. */
static const struct { int n, h, r; double decay;
} shapes[] = {{3000, 70, 9, 0.7}, {5000, 130, 64, 0.95}, {400, 333, 16, 0.8}, {40, 96, 30, 0.9}, {2, 64, 5, 0.5}, {0, 48, 4, 0.5},
              {700, 24, 24, 0.9}, {600, 256, 40, 0.3}};

/* Rows whose direction i, an axis of a random orthonormal basis, has the size decay^i, about a mean. */
static float *make_rows(int n, int h, double decay)
{
    float *x = test_memory((size_t)(n * h) + 1, sizeof *x);
    double *axis = test_memory((size_t)(h * h), sizeof *axis);
    for (int i = 0; i < h * h; i++) axis[i] = (double)real_at(3, (size_t)i, 1);
    ck_ok(exf_linalg_orthonormalize(axis, h, h, &e), e);
    for (int t = 0; t < n; t++)
        for (int k = 0; k < h; k++) {
            double v = 0.25 * axis[k * h + h - 1];
            for (int i = 0; i < h; i++) v += pow(decay, i) * (double)real_at(4, (size_t)(t * h + i), 1) * axis[k * h + i];
            x[t * h + k] = (float)v;
        }
    exf_mem_free(axis);
    return x;
}

/* Finds the basis of rows that lie in reverse order, in one part or two. */
static void find(double *basis, const float *x, int n, int h, int r, int parts, int about_mean)
{
    exf_device_basis s;
    int32_t *place = test_memory((size_t)n + 1, sizeof *place);
    uint16_t *halves = test_memory((size_t)(2 * n * h) + 1, sizeof *halves);
    float *turned = test_memory((size_t)(n * h) + 1, sizeof *turned);
    for (int t = 0; t < n; t++) {
        place[t] = n - 1 - t;
        for (int k = 0; k < h; k++) {
            float v = x[t * h + k], high = of_bf16(to_bf16(v));
            turned[(n - 1 - t) * h + k] = v;
            halves[((n - 1 - t) * 2) * h + k] = to_bf16(v);
            halves[((n - 1 - t) * 2 + 1) * h + k] = to_bf16(v - high);
        }
    }
    void *rows = parts == 2 ? device_put(&d, halves, (size_t)(2 * n * h + 1) * sizeof *halves)
                            : device_put(&d, turned, (size_t)(n * h + 1) * sizeof *turned);
    int32_t *places = device_put(&d, place, (size_t)(n + 1) * sizeof *place);
    exf_residual_call c = {.source = {rows, parts == 2 ? EXF_NUMBER_BF16 : EXF_NUMBER_F32},
                           .parts = parts, .place = places, .n = n};
    double *again = test_memory((size_t)(h * r), sizeof *again);
    ck_ok(exf_device_basis_open(&s, d.b, h, r, 7, &e), e);
    ck_ok(exf_device_basis_find(&s, basis, d.q, c, (size_t)n, about_mean, &e), e);
    ck_ok(exf_device_basis_find(&s, again, d.q, c, (size_t)n, about_mean, &e), e);
    ck_assert_mem_eq(basis, again, (size_t)(h * r) * sizeof *again);
    exf_device_basis_free(&s);
    d.b->free(rows);
    d.b->free(places);
    exf_mem_free(again);
    exf_mem_free(place);
    exf_mem_free(halves);
    exf_mem_free(turned);
}

START_TEST(it_is_the_hosts)
{
    int n = shapes[_i].n, h = shapes[_i].h, r = shapes[_i].r;
    float *x = make_rows(n, h, shapes[_i].decay);
    double *host = test_memory((size_t)(h * r), sizeof *host), *gpu = test_memory((size_t)(h * r), sizeof *gpu);
    ck_ok(exf_basis_find(host, r, x, (size_t)n, h, 1, 7, 0, 1, &e), e);
    for (int parts = 1; parts <= 2; parts++) {
        find(gpu, x, n, h, r, parts, 1);
        ck_close(distance_from_orthonormal(gpu, h, r), 0, 1e-12, "products of columns");
        double expected = energy_in(host, x, (size_t)n, h, r), found = energy_in(gpu, x, (size_t)n, h, r);
        ck_close(found, expected, 1e-5 * expected, "energy");
        for (int c = 0; c < 3 && n > h && shapes[_i].decay < 0.9; c++) {
            double dot = 0;
            for (int k = 0; k < h; k++) dot += gpu[k * r + c] * host[k * r + c];
            ck_close(dot, 1, 1e-4, "direction");
        }
    }
    exf_mem_free(x);
    exf_mem_free(host);
    exf_mem_free(gpu);
}
END_TEST

/* A mean that is larger than all else is the first direction, unless it is taken away. */
START_TEST(the_mean_is_taken_away_where_it_is_to_be)
{
    enum { N = 2500, H = 40, R = 4 };
    float *x = make_rows(N, H, 0.6);
    double with[H * R], without[H * R];
    for (int t = 0; t < N; t++) x[t * H + 11] += 30;
    find(with, x, N, H, R, 1, 0);
    find(without, x, N, H, R, 1, 1);
    ck_close(with[11 * R], 1, 1e-3, "first direction");
    ck_assert(fabs(without[11 * R]) < 0.9);
    exf_mem_free(x);
}
END_TEST

START_TEST(rows_that_are_not_finite_are_refused)
{
    enum { N = 30, H = 16, R = 4 };
    float *x = make_rows(N, H, 0.6);
    double basis[H * R];
    exf_device_basis s;
    x[3 * H + 2] = NAN;
    void *rows = device_put(&d, x, N * H * sizeof *x);
    int32_t place[N];
    for (int i = 0; i < N; i++) place[i] = i;
    int32_t *places = device_put(&d, place, sizeof place);
    exf_residual_call c = {.source = {rows, EXF_NUMBER_F32}, .parts = 1, .place = places, .n = N};
    ck_ok(exf_device_basis_open(&s, d.b, H, R, 7, &e), e);
    ck_fails(exf_device_basis_find(&s, basis, d.q, c, N, 0, &e), EXF_NUMERIC, e, "not finite");
    exf_device_basis_free(&s);
    d.b->free(rows);
    d.b->free(places);
    exf_mem_free(x);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, it_is_the_hosts, 0, COUNT(shapes));
    tcase_add_test(t, the_mean_is_taken_away_where_it_is_to_be);
    tcase_add_test(t, rows_that_are_not_finite_are_refused);
}

/* check_cuda_ops.c - products with float32 weights of the CUDA backend against the CPU's: exact on small integers, within a
 * stated bound on reals, at awkward shapes (other operations: check_cuda_*_shapes.c). */
#include "tests/support/pair_fixtures.h"

static const struct { int m, n, k; } products[] = {{1, 1, 1}, {3, 5, 7}, {0, 4, 4}, {17, 64, 33}, {128, 96, 128}, {257, 130, 65}};

START_TEST(products_are_exact_on_integers)
{
    int m = products[_i].m, n = products[_i].n, k = products[_i].k;
    pair_array x = pair_integers(&p, (size_t)(m * k), 1), w = pair_integers(&p, (size_t)(n * k), 2),
               y = pair_integers(&p, (size_t)(m * n), 3);
    ON_BOTH(p, B->gemm_xwt(Q, y.f[s], n, exf_f32(x.f[s]), k, exf_f32(w.f[s]), k, m, n, k, 2, 1));
    pair_equal(&y, "gemm_xwt");
    ON_BOTH(p, B->gemm_xw(Q, y.f[s], n, x.f[s], k, w.f[s], n, m, n, k, 1, 0));
    pair_equal(&y, "gemm_xw");
    pair_free(&x);
    pair_free(&w);
    pair_free(&y);
}
END_TEST

START_TEST(products_of_reals_are_near)
{
    int m = products[_i].m, n = products[_i].n, k = products[_i].k;
    pair_array x = pair_reals(&p, (size_t)(m * k), 1, 1), w = pair_reals(&p, (size_t)(n * k), 2, 1),
               y = pair_reals(&p, (size_t)(m * n), 3, 1);
    ON_BOTH(p, B->gemm_xwt(Q, y.f[s], n, exf_f32(x.f[s]), k, exf_f32(w.f[s]), k, m, n, k, 1, 0));
    pair_near(&y, k * 0x1p-23, "gemm_xwt"); /* two float32 accumulations of k terms below 1 */
    pair_free(&x);
    pair_free(&w);
    pair_free(&y);
}
END_TEST

/* Three products in rows that are longer than all of them, x shared or each its own columns. */
START_TEST(products_side_by_side_are_exact)
{
    enum { COUNT = 3, GAP = 2 };
    int m = products[_i].m, n = products[_i].n, k = products[_i].k, ldy = COUNT * (n + GAP), ldx = COUNT * k + GAP;
    pair_array x = pair_integers(&p, (size_t)(m * ldx), 1), w = pair_integers(&p, (size_t)(COUNT * n * k), 2),
               y = pair_integers(&p, (size_t)(m * ldy), 3);
    for (int shared = 0; shared < 2; shared++) {
        exf_product_steps steps = {COUNT, n + GAP, shared ? 0 : k, (size_t)(n * k)};
        ON_BOTH(p, B->gemm_xwt_many(Q, y.f[s], ldy, exf_f32(x.f[s]), ldx, exf_f32(w.f[s]), k, &steps, m, n, k));
        pair_equal(&y, "gemm_xwt_many");
    }
    pair_free(&x);
    pair_free(&w);
    pair_free(&y);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, products_are_exact_on_integers, 0, COUNT(products));
    tcase_add_loop_test(t, products_side_by_side_are_exact, 0, COUNT(products));
    tcase_add_loop_test(t, products_of_reals_are_near, 0, COUNT(products));
}

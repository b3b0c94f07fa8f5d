/* check_cuda_parts.c - the indexer of compressed attention in the CUDA backend against the CPU's, on reals and with
 * NaN among the weights, and on integers (every shape: check_cuda_entries_shapes.c). */
#include "tests/support/pair_fixtures.h"

#include <math.h>
#include <string.h>

static const exf_indexer_shape indexers[] = {
    {.first = 0, .n_rows = 9, .n_heads = 1, .d = 16, .ratio = 4, .top_k = 1, .n_entries = 2},
    {.first = 0, .n_rows = 57, .n_heads = 3, .d = 6, .ratio = 4, .top_k = 6, .n_entries = 14},
    {.first = 100, .n_rows = 40, .n_heads = 2, .d = 64, .ratio = 1, .top_k = 30, .n_entries = 300},
    {.first = 255, .n_rows = 33, .n_heads = 64, .d = 128, .ratio = 4, .top_k = 64, .n_entries = 72},
    {.first = 300, .n_rows = 5, .n_heads = 70, .d = 130, .ratio = 2, .top_k = 8, .n_entries = 152},
    {.first = 500, .n_rows = 12, .n_heads = 65, .d = 100, .ratio = 2, .top_k = 20, .n_entries = 256},
    {.first = 20000, .n_rows = 3, .n_heads = 4, .d = 32, .ratio = 1, .top_k = 512, .n_entries = 20010},
};

/* kind 0: reals; 1: integers, whose scores are equal in many places; 2: all scores 0; 3: with NaN. */
static void choose(int i, int kind, exf_compute compute)
{
    const exf_indexer_shape *shape = &indexers[i];
    size_t n = (size_t)((shape->first + shape->n_rows) / shape->ratio), rows = (size_t)shape->n_rows,
           wide = rows * (size_t)(shape->n_heads * shape->d);
    size_t room = larger(p.b[0]->indexer_workspace(shape->n_rows, shape->n_entries),
                         p.b[1]->indexer_workspace(shape->n_rows, shape->n_entries));
    pair_array q = kind == 1 ? pair_integers(&p, wide, 1) : pair_reals(&p, wide, 1, kind == 2 ? 0 : 1);
    pair_array keys = kind ? pair_integers(&p, n * (size_t)shape->d, 2) : pair_reals(&p, n * (size_t)shape->d, 2, 1);
    pair_array weights =
        kind ? pair_integers(&p, rows * (size_t)shape->n_heads, 3) : pair_reals(&p, rows * (size_t)shape->n_heads, 3, 1);
    pair_array space = pair_reals(&p, room, 4, 1e30f), chosen = pair_integers(&p, (rows * n + 3) / 4, 5);
    if (kind == 3) {
        float nan = NAN;
        exf_err err;
        memcpy(&weights.f[0][0], &nan, sizeof nan);
        p.b[1]->upload(p.q[1], weights.f[1], &nan, sizeof nan);
        ck_ok(p.b[1]->finish(p.q[1], &err), err);
    }
    pair_compute(&p, compute);
    ON_BOTH(p, B->indexer(Q, (unsigned char *)chosen.f[s], q.f[s], weights.f[s], keys.f[s], shape, space.f[s]));
    if (rows * n % 4) chosen.n--; /* what is after the last byte is nobody's */
    pair_equal(&chosen, "indexer");
    chosen.n = (rows * n + 3) / 4;
    pair_free(&q);
    pair_free(&keys);
    pair_free(&weights);
    pair_free(&space);
    pair_free(&chosen);
}

START_TEST(choices_are_the_same)
{
    choose(_i, 0, EXF_COMPUTE_F32);
    choose(_i, 3, EXF_COMPUTE_F32);
    for (int compute = 0; compute < 2; compute++) {
        choose(_i, 1, (exf_compute)compute);
        choose(_i, 2, (exf_compute)compute);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, choices_are_the_same, 0, COUNT(indexers));
}

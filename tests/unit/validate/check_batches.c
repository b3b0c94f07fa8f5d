/* check_batches.c - validate/validate_clusters: which decode folds their batches constrain, and where a run may be cut. */
#include "tests/support/validation_fixtures.h"

static void constrains(const char *text, double width, double experts, exf_constraint want)
{
    exf_err e;
    exf_variant v;
    const exf_batch_size b = {.size = 16, .width = width, .experts = experts};
    ck_ok(exf_variant_parse(&v, text, &e), e);
    ck_assert_msg(exf_constraint_of(&v, &b) == want, "%s, %g wide, %g experts", text, width, experts);
}

START_TEST(small_batches_constrain_no_pool)
{
    constrains("D8", 16, 19.3, EXF_CONSTRAINED);
    constrains("D8", 16, 8.001, EXF_CONSTRAINED);
    constrains("D8", 16, 8, EXF_FEW_EXPERTS);
    constrains("D8", 12, 19.3, EXF_CONSTRAINED); /* three quarters */
    constrains("D8", 11.99, 19.3, EXF_SHORT_BATCHES);
    constrains("D8", 2, 6.7, EXF_FEW_EXPERTS);
    constrains("P2+D8", 2, 6.7, EXF_FEW_EXPERTS);
    constrains("D8:fold=random", 16, 6.7, EXF_FEW_EXPERTS);
    constrains("sere4", 2, 6.7, EXF_SHORT_BATCHES);
    constrains("sere4", 16, 4, EXF_FEW_EXPERTS);
    constrains("sere4", 16, 6.7, EXF_CONSTRAINED);
}
END_TEST

START_TEST(what_is_fixed_beforehand_constrains_at_any_batch)
{
    constrains("P2", 1, 4, EXF_CONSTRAINED);
    constrains("D8:pool=static", 1, 4, EXF_CONSTRAINED);
    constrains("reap8", 1, 4, EXF_CONSTRAINED);
}
END_TEST

static void groups(size_t n, int64_t a, int64_t b, const char *want)
{
    const int64_t size[] = {a, b};
    size_t group[16];
    exf_batches_group(group, n, size, b ? 2 : 1);
    for (size_t i = 0; i < n; i++) ck_assert_uint_eq(group[i], (size_t)(want[i] - '0'));
}

START_TEST(parts_end_where_batches_of_every_size_end)
{
    groups(5, 1, 0, "01234");
    groups(5, 2, 0, "00112");
    groups(5, 16, 0, "00000");
    groups(9, 1, 4, "000011112");
    groups(13, 4, 6, "0000000000001");
    groups(12, 4, 6, "000000000000");
    groups(5, 3, 4, "00000");
    groups(5, 65536, 65535, "00000");
    groups(0, 3, 4, "");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, small_batches_constrain_no_pool);
    tcase_add_test(t, what_is_fixed_beforehand_constrains_at_any_batch);
    tcase_add_test(t, parts_end_where_batches_of_every_size_end);
}

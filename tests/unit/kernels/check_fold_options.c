/* check_fold_options.c - exfold/fold.h as a stranger's program meets it: options left at 0 are the
 * defaults, EXF_FOLD_ZERO is 0 itself, statuses have words, the ABI keeps its layout. */
#include "tests/support/fold_abi_fixtures.h"

#include "base/log.h"

#include <stddef.h>
#include <stdio.h>

enum { E = 32, K = 4, ROWS = 40 };
static fold_tables tables;
static fold_routes from, to, room, was;

/* ---- defaults ----------------------------------------------------------------------- */

static void prefill(exf_fold_routes *out, fold_routes *into, const exf_fold_prefill_options *o, int joint)
{
    exf_fold_routes in = fold_room(&from, ROWS, K, EXF_FOLD_I32, EXF_FOLD_F32);
    fold_fill_routes(&in, E, 7, ROUTES_PLAIN);
    *out = fold_room(into, ROWS, 2, EXF_FOLD_I32, EXF_FOLD_F32);
    ck_assert_int_eq((joint ? exf_fold_prefill_joint_cpu : exf_fold_prefill_cpu)(&in, out, &tables.t, o), EXF_FOLD_OK);
}

static void decode(exf_fold_routes *io, fold_routes *into, const exf_fold_decode_options *o, int joint)
{
    *io = fold_room(into, ROWS, K, EXF_FOLD_I32, EXF_FOLD_F32);
    fold_fill_routes(io, E, 7, ROUTES_PLAIN);
    ck_assert_int_eq((joint ? exf_fold_decode_joint_cpu : exf_fold_decode_cpu)(io, &tables.t, o), EXF_FOLD_OK);
}

/* _i 1: the joint forms. */
START_TEST(options_left_at_zero_are_the_defaults)
{
    const exf_fold_prefill_options given = {.keep = 2, .max_loss = EXF_FOLD_NEVER, .ridge = 1e-2f}, left_out = {.keep = 0};
    const exf_fold_decode_options given_d = {.pool = 9, .max_loss = EXF_FOLD_NEVER, .ridge = 1e-2f}, left_out_d = {.pool = 9};
    exf_fold_routes a, b;
    fold_fill_tables(&tables, E, 3, TABLES_REAL);
    prefill(&a, &to, &given, _i);
    prefill(&b, &room, &left_out, _i);
    ck_assert(fold_same(&a, &b));
    decode(&a, &to, &given_d, _i);
    decode(&b, &room, &left_out_d, _i);
    ck_assert(fold_same(&a, &b));
}
END_TEST

/* Routes to experts 0, 1, 2, 3 of weight 4, 3, 2, 1: 2 and 3 are omitted. */
static void fold_two(float *w, int32_t *kept, float max_loss, float loss)
{
    int32_t ids[4] = {0, 1, 2, 3};
    float weights[4] = {4, 3, 2, 1}, coeff[16], losses[16];
    exf_fold_routes in = {.ids = ids, .weights = weights, .rows = 1, .width = 4},
                    out = {.ids = kept, .weights = w, .rows = 1, .width = 2};
    exf_fold_tables t = {.coeff = coeff, .loss = losses, .n_experts = 4};
    exf_fold_prefill_options o = {.rank = EXF_FOLD_BY_SCORE, .max_loss = max_loss};
    for (int i = 0; i < 16; i++) coeff[i] = 1;
    for (int i = 0; i < 16; i++) losses[i] = i / 4 == 2 ? 0 : loss;
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    ck_assert(kept[0] == 0 && kept[1] == 1);
}

START_TEST(a_limit_left_out_folds_and_a_limit_of_zero_folds_what_has_no_loss)
{
    static const struct {
        float max_loss, loss, want;
    } rows[] = {{0, 0.5f, 7},    {EXF_FOLD_ZERO, 0.5f, 6}, {EXF_FOLD_ZERO, 1e-45f, 6}, {EXF_FOLD_ZERO, 0, 7}, {0.5f, 0.5f, 7},
                {0.4f, 0.5f, 6}, {0, EXF_FOLD_NEVER, 6},   {EXF_FOLD_NEVER, 0.5f, 7}};
    float w[2];
    int32_t kept[2];
    fold_two(w, kept, rows[_i].max_loss, rows[_i].loss);
    ck_assert_msg(w[0] == rows[_i].want && w[1] == 3, "row %d: weights %g %g, expected %g 3", _i, (double)w[0], (double)w[1],
                  (double)rows[_i].want);
}
END_TEST

START_TEST(a_ridge_of_zero_is_none)
{
    exf_fold_routes none, some;
    fold_fill_tables(&tables, E, 3, TABLES_REAL);
    prefill(&none, &to, &(exf_fold_prefill_options){.ridge = EXF_FOLD_ZERO}, 1);
    prefill(&some, &room, &(exf_fold_prefill_options){.ridge = 1e-20f}, 1); /* vanishes beside the diagonal */
    ck_assert(fold_same(&none, &some));
    prefill(&some, &room, &(exf_fold_prefill_options){.ridge = EXF_FOLD_RIDGE}, 1);
    ck_assert(!fold_same(&none, &some));
    decode(&none, &to, &(exf_fold_decode_options){.pool = 9, .ridge = EXF_FOLD_ZERO}, 1);
    decode(&some, &was, &(exf_fold_decode_options){.pool = 9, .ridge = 1e-20f}, 1);
    ck_assert(fold_same(&none, &some));
}
END_TEST

/* ---- the library -------------------------------------------------------------------- */

START_TEST(every_status_has_words_of_its_own)
{
    const char *text[6];
    for (int i = 0; i < 6; i++) {
        text[i] = exf_fold_status_text((exf_fold_status)i); /* 5: none of the header */
        ck_assert(text[i] && strlen(text[i]) > 5);
        for (int j = 0; j < i; j++) ck_assert_str_ne(text[i], text[j]);
    }
    ck_assert_str_eq(exf_fold_status_text((exf_fold_status)-1), text[5]);
}
END_TEST

START_TEST(the_version_is_the_release)
{
    char release[32];
    snprintf(release, sizeof release, "%d.%d.%d", EXF_FOLD_VERSION_MAJOR, EXF_FOLD_VERSION_MINOR, EXF_FOLD_VERSION_PATCH);
    ck_assert_str_eq(release, exf_release());
    ck_assert_int_eq(exf_fold_version(), EXF_FOLD_VERSION);
    ck_assert_int_eq(exf_fold_abi(), EXF_FOLD_ABI);
    ck_assert_int_eq(exf_fold_api(), EXF_FOLD_API);
}
END_TEST

/* A change here needs another EXF_FOLD_ABI: programs that were compiled before pass these structs. */
START_TEST(the_layout_is_that_of_abi_2)
{
    ck_assert_int_eq(EXF_FOLD_ABI, 2);
    ck_assert_uint_eq(sizeof(exf_fold_routes), 2 * sizeof(void *) + 48);
    ck_assert_uint_eq(sizeof(exf_fold_tables), 11 * sizeof(void *) + 8);
    ck_assert_uint_eq(sizeof(exf_fold_prefill_options), 64);
    ck_assert_uint_eq(sizeof(exf_fold_decode_options), 64);
    ck_assert_uint_eq(sizeof(exf_fold_budget_options), 64);
    ck_assert_uint_eq(sizeof(exf_fold_stand_in_options), 64);
    ck_assert_uint_eq(sizeof(exf_fold_explained), 64);
    ck_assert_uint_eq(offsetof(exf_fold_routes, width), 2 * sizeof(void *) + 12);
    ck_assert_uint_eq(offsetof(exf_fold_routes, count), 2 * sizeof(void *) + 16);
    ck_assert_uint_eq(offsetof(exf_fold_decode_options, pool), 28);
    ck_assert_uint_eq(offsetof(exf_fold_decode_options, members), 32);
    ck_assert_uint_eq(offsetof(exf_fold_tables, n_experts), 5 * sizeof(void *));
    ck_assert_uint_eq(offsetof(exf_fold_prefill_options, max_loss), 8);
    ck_assert_uint_eq(offsetof(exf_fold_prefill_options, ridge), 20);
    ck_assert_uint_eq(offsetof(exf_fold_decode_options, max_loss), 8);
    ck_assert_uint_eq(offsetof(exf_fold_budget_options, factor), 32);
    ck_assert_uint_eq(offsetof(exf_fold_decode_options, ridge), 16);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("fold_options");
    TCase *c = tcase_create("options");
    tcase_add_loop_test(c, options_left_at_zero_are_the_defaults, 0, 2);
    tcase_add_loop_test(c, a_limit_left_out_folds_and_a_limit_of_zero_folds_what_has_no_loss, 0, 8);
    tcase_add_test(c, a_ridge_of_zero_is_none);
    tcase_add_test(c, every_status_has_words_of_its_own);
    tcase_add_test(c, the_version_is_the_release);
    tcase_add_test(c, the_layout_is_that_of_abi_2);
    suite_add_tcase(s, c);
    return s;
}

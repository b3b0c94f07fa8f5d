/* check_fold_versions.c - exfold/fold.h from one version to the next: a program compiled for API 1.1 gets what it got, one
 * that names its sizes gets zeros that are zero, and neither has an option ignored; the ABI keeps its layout. */
#include "tests/support/fold_1_1.h"
#include "tests/support/fold_scores_fixtures.h"

#include "base/log.h"

#include <stddef.h>
#include <stdio.h>

enum { E = 32, K = 4, ROWS = 40, FORMS = 6 };
static fold_tables tables;
static fold_scores scores;
static fold_routes from, to[2];
static int32_t kept[2][ROWS];

/* The options of a form, whatever their version. */
typedef union {
    unsigned char bytes[256];
    uint32_t size;
    prefill_1_1 old_prefill;
    budget_1_1 old_budget;
    decode_1_1 old_decode;
    stand_in_1_1 old_stand_in;
    exf_fold_prefill_options prefill;
    exf_fold_budget_options budget;
    exf_fold_decode_options decode;
    exf_fold_stand_in_options stand_in;
} options;

/* Folds plain routes by a form: prefill, prefill_joint, budget, decode, decode_joint, stand-ins; the result is in to[which]. */
static exf_fold_status fold(int form, const options *o, int which)
{
    exf_fold_routes in = fold_room(&from, ROWS, K, EXF_FOLD_I32, EXF_FOLD_F32);
    fold_fill_routes(&in, E, 7, ROUTES_PLAIN);
    fold_fill_scores(&scores, ROWS, E, EXF_FOLD_F32, 7, SCORES_PLAIN, 0);
    memset(&to[which], 0x5a, sizeof to[which]);
    memset(kept[which], 0x5a, sizeof kept[which]);
    if (form >= 3) {
        exf_fold_routes io = fold_copy(&to[which], &in);
        return form == 3   ? exf_fold_decode_cpu(&io, &tables.t, &o->decode)
               : form == 4 ? exf_fold_decode_joint_cpu(&io, &tables.t, &o->decode)
                           : exf_fold_decode_stand_ins_cpu(&io, &scores.s, NULL, &tables.t, &o->stand_in);
    }
    exf_fold_routes out = fold_room(&to[which], ROWS, form == 2 ? 3 : 2, EXF_FOLD_I32, EXF_FOLD_F32);
    return form == 0   ? exf_fold_prefill_cpu(&in, &out, &tables.t, &o->prefill)
           : form == 1 ? exf_fold_prefill_joint_cpu(&in, &out, &tables.t, &o->prefill)
                       : exf_fold_prefill_budget_cpu(&in, &out, kept[which], &tables.t, &o->budget);
}

static int same(void)
{
    return fold_same(&to[0].r, &to[1].r) && !memcmp(kept[0], kept[1], sizeof kept[0]);
}

static int differs_from_input(void)
{
    return to[0].r.width != K || !fold_same(&to[0].r, &from.r);
}

/* Options of 1.1, with numbers `loss` and `ridge`. */
static options old_options(int form, float loss, float ridge)
{
    options o = {{0}};
    if (form < 2)
        o.old_prefill = (prefill_1_1){.keep = 2, .rank = EXF_FOLD_BY_SCORE, .max_loss = loss, .ridge = ridge,
                                      .rescale = EXF_FOLD_RESCALE_SUM, .confidence = 1};
    else if (form == 2)
        o.old_budget = (budget_1_1){.rule = EXF_FOLD_BUDGET_TOP_P, .share = 0.7f, .most = 2, .ridge = ridge};
    else if (form < 5)
        o.old_decode = (decode_1_1){.pool = 9, .importance = EXF_FOLD_IMPORTANCE_ENERGY, .max_loss = loss, .ridge = ridge};
    else
        o.old_stand_in = (stand_in_1_1){.pool = 9, .importance = EXF_FOLD_IMPORTANCE_ENERGY, .ridge = ridge};
    return o;
}

/* The same in this version's structs; without a size they are a source of 1.1 that was compiled anew. */
static options new_options(int form, int sized, float loss, float ridge)
{
    options o = {{0}};
    if (form < 2) {
        o.prefill = sized ? (exf_fold_prefill_options)EXF_FOLD_PREFILL_INIT : (exf_fold_prefill_options){.keep = 0};
        o.prefill.keep = 2;
        o.prefill.rank = EXF_FOLD_BY_SCORE;
        o.prefill.rescale = EXF_FOLD_RESCALE_SUM;
        o.prefill.confidence = 1;
        o.prefill.max_loss = loss;
        o.prefill.ridge = ridge;
    } else if (form == 2) {
        o.budget = sized ? (exf_fold_budget_options)EXF_FOLD_BUDGET_INIT : (exf_fold_budget_options){.least = 0};
        o.budget.rule = EXF_FOLD_BUDGET_TOP_P;
        o.budget.share = 0.7f;
        o.budget.most = 2;
        o.budget.ridge = ridge;
    } else if (form < 5) {
        o.decode = sized ? (exf_fold_decode_options)EXF_FOLD_DECODE_INIT : (exf_fold_decode_options){.pool = 0};
        o.decode.pool = 9;
        o.decode.importance = EXF_FOLD_IMPORTANCE_ENERGY;
        o.decode.max_loss = loss;
        o.decode.ridge = ridge;
    } else {
        o.stand_in = sized ? (exf_fold_stand_in_options)EXF_FOLD_STAND_IN_INIT : (exf_fold_stand_in_options){.pool = 0};
        o.stand_in.pool = 9;
        o.stand_in.importance = EXF_FOLD_IMPORTANCE_ENERGY;
        o.stand_in.ridge = ridge;
    }
    return o;
}

/* What 1.1 wrote as a number, and what a struct with a size calls it. */
static const struct {
    float old_loss, new_loss, old_ridge, new_ridge;
} numbers[] = {{0, EXF_FOLD_NO_LIMIT, 0, EXF_FOLD_RIDGE},
               {EXF_FOLD_ZERO, 0, EXF_FOLD_ZERO, 0},
               {EXF_FOLD_ZERO, EXF_FOLD_ZERO, EXF_FOLD_ZERO, EXF_FOLD_ZERO},
               {0.4f, 0.4f, 0.1f, 0.1f}};

/* _i runs through forms and numbers. */
START_TEST(a_program_of_1_1_gets_what_it_got)
{
    int form = _i % FORMS, n = _i / FORMS;
    options old = old_options(form, numbers[n].old_loss, numbers[n].old_ridge),
            again = new_options(form, 0, numbers[n].old_loss, numbers[n].old_ridge),
            sized = new_options(form, 1, numbers[n].new_loss, numbers[n].new_ridge);
    fold_fill_tables(&tables, E, 3, TABLES_REAL);
    ck_assert_int_eq(fold(form, &old, 0), EXF_FOLD_OK);
    ck_assert(differs_from_input());
    ck_assert_int_eq(fold(form, &again, 1), EXF_FOLD_OK);
    ck_assert_msg(same(), "form %d: compiled anew it folds otherwise", form);
    ck_assert_int_eq(fold(form, &sized, 1), EXF_FOLD_OK);
    ck_assert_msg(same(), "form %d: with a size it folds otherwise", form);
}
END_TEST

START_TEST(a_zero_is_zero_where_the_size_is_named)
{
    fold_fill_tables(&tables, E, 3, TABLES_REAL);
    for (int form = 0; form < FORMS; form++) {
        options sized = new_options(form, 1, 0, 0), old = old_options(form, 0, 0);
        ck_assert_int_eq(fold(form, &sized, 0), EXF_FOLD_OK);
        ck_assert_int_eq(fold(form, &old, 1), EXF_FOLD_OK);
        ck_assert_msg(!same(), "form %d: a limit or a ridge of 0 is the default", form);
    }
}
END_TEST

/* 1.1 refused these and wrote nothing; so does this one. */
START_TEST(what_1_1_refused_is_refused)
{
    fold_fill_tables(&tables, E, 3, TABLES_REAL);
    for (int form = 0; form < FORMS; form++) {
        options o = old_options(form, 0, 0);
        int *first = (int *)&o, *last = (int *)&o + 15;
        *first = -3;
        ck_assert_int_eq(fold(form, &o, 0), EXF_FOLD_BAD_ARGUMENT);
        o = old_options(form, 0, 0);
        *last = 1;
        ck_assert_int_eq(fold(form, &o, 0), EXF_FOLD_UNSUPPORTED);
        o = new_options(form, 0, 0, 0); /* both the first word and the member that replaces it */
        *first = 1;
        ck_assert_int_eq(fold(form, &o, 0), EXF_FOLD_UNSUPPORTED);
    }
    static const struct {
        int form, word;
    } later[] = {{0, 7}, {2, 7}, {2, 8}, {2, 9}}; /* reserved then; now `repeat`, and a budget's rule, factor and padding */
    for (size_t i = 0; i < COUNT(later); i++) {
        options o = old_options(later[i].form, 0, 0);
        ((int *)&o)[later[i].word] = 1;
        ck_assert_int_eq(fold(later[i].form, &o, 0), EXF_FOLD_UNSUPPORTED);
    }
}
END_TEST

START_TEST(sizes_of_other_versions)
{
    fold_fill_tables(&tables, E, 3, TABLES_REAL);
    for (int form = 0; form < FORMS; form++) {
        options o = new_options(form, 1, EXF_FOLD_NO_LIMIT, EXF_FOLD_RIDGE);
        ck_assert_int_eq(fold(form, &o, 0), EXF_FOLD_OK);
        ck_assert_uint_eq(o.size, EXF_FOLD_SIZE_BIT | 64);
        o.size = EXF_FOLD_SIZE_BIT | 200; /* a later version, whose new members are 0 */
        ck_assert_int_eq(fold(form, &o, 1), EXF_FOLD_OK);
        ck_assert(same());
        o.bytes[199] = 1; /* which is no longer so */
        ck_assert_int_eq(fold(form, &o, 1), EXF_FOLD_UNSUPPORTED);
        o.size = EXF_FOLD_SIZE_BIT | 199;
        ck_assert_int_eq(fold(form, &o, 1), EXF_FOLD_OK);
        o.size = EXF_FOLD_SIZE_BIT | 60; /* smaller than any version's */
        ck_assert_int_eq(fold(form, &o, 1), EXF_FOLD_BAD_ARGUMENT);
        o.size = EXF_FOLD_SIZE_BIT | 5000; /* not a size */
        ck_assert_int_eq(fold(form, &o, 1), EXF_FOLD_BAD_ARGUMENT);
    }
}
END_TEST

/* Routes of 1.1 have zeros where the count and the mask are now. */
START_TEST(routes_of_1_1_have_no_padding)
{
    int32_t ids[] = {0, 1};
    float w[] = {1, 2};
    routes_1_1 old = {.ids = ids, .weights = w, .rows = 1, .width = 2};
    exf_fold_routes now;
    ck_assert_uint_eq(sizeof old, sizeof now);
    memcpy(&now, &old, sizeof now);
    ck_assert(now.ids == ids && now.width == 2 && !now.count && !now.mask);
}
END_TEST

/* Routes to experts 0, 1, 2, 3 of weight 4, 3, 2, 1: 2 and 3 are omitted. */
static void fold_two(float *w, int32_t *ids_kept, float max_loss, float loss)
{
    int32_t ids[4] = {0, 1, 2, 3};
    float weights[4] = {4, 3, 2, 1}, coeff[16], losses[16];
    exf_fold_routes in = {.ids = ids, .weights = weights, .rows = 1, .width = 4},
                    out = {.ids = ids_kept, .weights = w, .rows = 1, .width = 2};
    exf_fold_tables t = {.coeff = coeff, .loss = losses, .n_experts = 4};
    exf_fold_prefill_options o = {.rank = EXF_FOLD_BY_SCORE, .max_loss = max_loss};
    for (int i = 0; i < 16; i++) coeff[i] = 1;
    for (int i = 0; i < 16; i++) losses[i] = i / 4 == 2 ? 0 : loss;
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &t, &o), EXF_FOLD_OK);
    ck_assert(ids_kept[0] == 0 && ids_kept[1] == 1);
}

START_TEST(a_limit_left_out_folds_and_a_limit_of_zero_folds_what_has_no_loss)
{
    static const struct {
        float max_loss, loss, want;
    } rows[] = {{0, 0.5f, 7},    {EXF_FOLD_ZERO, 0.5f, 6}, {EXF_FOLD_ZERO, 1e-45f, 6}, {EXF_FOLD_ZERO, 0, 7}, {0.5f, 0.5f, 7},
                {0.4f, 0.5f, 6}, {0, EXF_FOLD_NEVER, 6},   {EXF_FOLD_NEVER, 0.5f, 7}};
    float w[2];
    int32_t ids_kept[2];
    fold_two(w, ids_kept, rows[_i].max_loss, rows[_i].loss);
    ck_assert_msg(w[0] == rows[_i].want && w[1] == 3, "row %d: weights %g %g, expected %g 3", _i, (double)w[0], (double)w[1],
                  (double)rows[_i].want);
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

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "versions");
    tcase_add_loop_test(c, a_program_of_1_1_gets_what_it_got, 0, FORMS * COUNT(numbers));
    tcase_add_test(c, a_zero_is_zero_where_the_size_is_named);
    tcase_add_test(c, what_1_1_refused_is_refused);
    tcase_add_test(c, sizes_of_other_versions);
    tcase_add_test(c, routes_of_1_1_have_no_padding);
    tcase_add_loop_test(c, a_limit_left_out_folds_and_a_limit_of_zero_folds_what_has_no_loss, 0, 8);
    tcase_add_test(c, every_status_has_words_of_its_own);
    tcase_add_test(c, the_version_is_the_release);
    tcase_add_test(c, the_layout_is_that_of_abi_2);
}

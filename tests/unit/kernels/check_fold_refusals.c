/* check_fold_refusals.c - exfold/fold.h: what contradicts itself or is beyond the limits
 * is refused with the status the header names, and nothing is written. */
#include "tests/support/fold_abi_fixtures.h"

static fold_tables tables;
static fold_routes from, to, from_was, to_was;

typedef struct {
    exf_fold_routes in, out; /* decode: in alone */
    exf_fold_tables t;
    exf_fold_prefill_options p;
    exf_fold_decode_options d;
} arguments;

static void ids_missing(arguments *a) { a->in.ids = NULL; }
static void weights_missing(arguments *a) { a->in.weights = NULL; }
static void out_missing(arguments *a) { a->out.weights = NULL; }
static void rows_negative(arguments *a) { a->in.rows = a->out.rows = -1; }
static void rows_differ(arguments *a) { a->out.rows--; }
static void width_zero(arguments *a) { a->in.width = 0; }
static void width_below_keep(arguments *a) { a->out.width--; }
static void width_above_keep(arguments *a) { a->out.width++; }
static void repeat_unknown(arguments *a)
{
    a->p = (exf_fold_prefill_options)EXF_FOLD_PREFILL_INIT;
    a->p.repeat = 2;
}
static void width_17(arguments *a) { a->in.width = 17; }
static void width_above_experts(arguments *a) { a->t.n_experts = 3; }
static void experts_2(arguments *a) { a->t.n_experts = 2; a->in.width = 2; }
static void experts_513(arguments *a) { a->t.n_experts = 513; }
static void slots_65537(arguments *a) { a->in.rows = 65537; a->in.width = 1; }
static void slots_beyond_int(arguments *a) { a->in.rows = INT32_MAX; }
static void id_type_unknown(arguments *a) { a->in.id_type = a->out.id_type = (exf_fold_int)2; }
static void weight_type_unknown(arguments *a) { a->in.weight_type = a->out.weight_type = (exf_fold_real)-1; }
static void types_differ(arguments *a) { a->out.weight_type = EXF_FOLD_BF16; }
static void id_types_differ(arguments *a) { a->out.id_type = EXF_FOLD_I64; }
static void keep_zero(arguments *a) { a->p.keep = a->out.width = 0; }
static void keep_left_out(arguments *a) { a->p.keep = 0; }
static void keep_above_width(arguments *a) { a->p.keep = a->out.width = 5; }
static void rank_unknown(arguments *a) { a->p.rank = (exf_fold_rank)3; }
static void rescale_unknown(arguments *a) { a->p.rescale = (exf_fold_rescale)-1; }
static void overlap(arguments *a) { a->out.weights = (char *)a->in.weights + 4; }
static void overlap_across(arguments *a) { a->out.ids = a->in.weights; }
static void overlap_from_below(arguments *a) { a->in.ids = (char *)a->out.weights + 7 * 2 * 4 - 4; }
static void pool_zero(arguments *a) { a->d.pool = 0; }
static void pool_of_more_than_there_are(arguments *a) { a->d.pool = 100000; }
static void importance_unknown(arguments *a) { a->d.importance = (exf_fold_importance)3; }
static void fallback_unknown(arguments *a) { a->d.fallback = 2; }
static void candidates_unknown(arguments *a) { a->d.candidates = (exf_fold_candidates)3; }
static void fallback_of_joint(arguments *a) { a->d.fallback = 1; }
static void candidates_of_joint(arguments *a) { a->d.candidates = EXF_FOLD_POOL_OF_ALL; }
static void score_without_norms(arguments *a)
{
    a->d.importance = EXF_FOLD_IMPORTANCE_SCORE;
    a->p.rank = EXF_FOLD_BY_SCORE;
    a->t.norms = NULL;
}
static void norms_missing(arguments *a) { a->t.norms = NULL; }
static void norms_of_no_use(arguments *a)
{
    a->t.norms = NULL;
    a->p.rank = EXF_FOLD_BY_SCORE;
    a->d.importance = EXF_FOLD_IMPORTANCE_ENERGY;
}
static void energy_without_rms(arguments *a) { a->t.rms = NULL; a->d.importance = EXF_FOLD_IMPORTANCE_ENERGY; }
static void loss_missing(arguments *a) { a->t.loss = NULL; }
static void coeff_missing(arguments *a) { a->t.coeff = NULL; }
static void max_loss_nan(arguments *a) { a->p.max_loss = a->d.max_loss = NAN; }
static void max_loss_negative(arguments *a) { a->p.max_loss = a->d.max_loss = -0.5f; }
static void cosine_missing(arguments *a) { a->t.cosine = NULL; }
static void rms_missing(arguments *a) { a->t.rms = NULL; }
static void ridge_negative(arguments *a) { a->p.ridge = a->d.ridge = -2; }
static void ridge_nan(arguments *a) { a->p.ridge = a->d.ridge = NAN; }
static void ridge_infinite(arguments *a) { a->p.ridge = a->d.ridge = INFINITY; }
static void confidence_unknown(arguments *a) { a->p.confidence = 2; }
static void drop_unknown(arguments *a) { a->d.drop = -1; }
static void later_routes(arguments *a) { a->in.reserved[1] = 1; }
static void later_out(arguments *a) { a->out.reserved[0] = 1; }
static void later_tables(arguments *a) { a->t.reserved[4] = a->t.coeff; }
static void later_int(arguments *a) { a->t.reserved_int = 1; }
static void later_options(arguments *a) { a->p.reserved[7] = a->d.reserved[5] = 1; }

enum { PREFILL = 1, PREFILL_JOINT = 2, DECODE = 4, DECODE_JOINT = 8, PREFILLS = 3, DECODES = 12, PAIRS = 5, JOINTS = 10, ALL = 15 };

static exf_fold_status call(int form, const arguments *a)
{
    return form == PREFILL         ? exf_fold_prefill_cpu(&a->in, &a->out, &a->t, &a->p)
           : form == PREFILL_JOINT ? exf_fold_prefill_joint_cpu(&a->in, &a->out, &a->t, &a->p)
           : form == DECODE        ? exf_fold_decode_cpu(&a->in, &a->t, &a->d)
                                   : exf_fold_decode_joint_cpu(&a->in, &a->t, &a->d);
}

/* Forms that are not named take the arguments as they are. */
static const struct {
    void (*spoil)(arguments *);
    exf_fold_status want;
    int forms;
} refusals[] = {
    {ids_missing, EXF_FOLD_BAD_ARGUMENT, ALL},
    {weights_missing, EXF_FOLD_BAD_ARGUMENT, ALL},
    {out_missing, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {rows_negative, EXF_FOLD_BAD_ARGUMENT, ALL},
    {rows_differ, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {width_zero, EXF_FOLD_BAD_ARGUMENT, ALL},
    {width_below_keep, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {width_above_keep, EXF_FOLD_OK, 0},
    {repeat_unknown, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {width_17, EXF_FOLD_UNSUPPORTED, ALL},
    {width_above_experts, EXF_FOLD_BAD_ARGUMENT, ALL},
    {experts_2, EXF_FOLD_UNSUPPORTED, ALL},
    {experts_513, EXF_FOLD_UNSUPPORTED, ALL},
    {slots_65537, EXF_FOLD_UNSUPPORTED, DECODES},
    {slots_beyond_int, EXF_FOLD_UNSUPPORTED, DECODES},
    {id_type_unknown, EXF_FOLD_BAD_ARGUMENT, ALL},
    {weight_type_unknown, EXF_FOLD_BAD_ARGUMENT, ALL},
    {types_differ, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {id_types_differ, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {keep_zero, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {keep_left_out, EXF_FOLD_OK, 0},
    {keep_above_width, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {rank_unknown, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {rescale_unknown, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {overlap, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {overlap_across, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {overlap_from_below, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {pool_zero, EXF_FOLD_BAD_ARGUMENT, DECODES},
    {pool_of_more_than_there_are, EXF_FOLD_OK, 0},
    {importance_unknown, EXF_FOLD_BAD_ARGUMENT, DECODES},
    {fallback_unknown, EXF_FOLD_BAD_ARGUMENT, DECODES},
    {candidates_unknown, EXF_FOLD_BAD_ARGUMENT, DECODES},
    {fallback_of_joint, EXF_FOLD_UNSUPPORTED, DECODE_JOINT},
    {candidates_of_joint, EXF_FOLD_UNSUPPORTED, DECODE_JOINT},
    {score_without_norms, EXF_FOLD_OK, 0},
    {norms_missing, EXF_FOLD_BAD_ARGUMENT, ALL},
    {norms_of_no_use, EXF_FOLD_OK, 0},
    {energy_without_rms, EXF_FOLD_BAD_ARGUMENT, PREFILL_JOINT | DECODES},
    {loss_missing, EXF_FOLD_BAD_ARGUMENT, PAIRS},
    {coeff_missing, EXF_FOLD_BAD_ARGUMENT, PAIRS},
    {max_loss_nan, EXF_FOLD_BAD_ARGUMENT, PAIRS},
    {max_loss_negative, EXF_FOLD_BAD_ARGUMENT, PAIRS},
    {cosine_missing, EXF_FOLD_BAD_ARGUMENT, JOINTS},
    {rms_missing, EXF_FOLD_BAD_ARGUMENT, JOINTS},
    {ridge_negative, EXF_FOLD_BAD_ARGUMENT, JOINTS},
    {ridge_nan, EXF_FOLD_BAD_ARGUMENT, JOINTS},
    {ridge_infinite, EXF_FOLD_BAD_ARGUMENT, JOINTS},
    {confidence_unknown, EXF_FOLD_BAD_ARGUMENT, PREFILLS},
    {drop_unknown, EXF_FOLD_BAD_ARGUMENT, DECODES},
    {later_routes, EXF_FOLD_UNSUPPORTED, ALL},
    {later_out, EXF_FOLD_UNSUPPORTED, PREFILLS},
    {later_tables, EXF_FOLD_UNSUPPORTED, ALL},
    {later_int, EXF_FOLD_UNSUPPORTED, ALL},
    {later_options, EXF_FOLD_UNSUPPORTED, ALL},
};

/* Sound arguments: 7 tokens of 4 among 32 experts. */
static arguments sound(void)
{
    arguments a = {.p = {.keep = 2, .max_loss = EXF_FOLD_NEVER, .ridge = 0.01f},
                   .d = {.pool = 9, .max_loss = EXF_FOLD_NEVER, .ridge = 0.01f}};
    fold_fill_tables(&tables, 32, 1, TABLES_REAL);
    memset(&to, 0x5a, sizeof to);
    a.in = fold_room(&from, 7, 4, EXF_FOLD_I32, EXF_FOLD_F32);
    a.out = fold_room(&to, 7, 2, EXF_FOLD_I32, EXF_FOLD_F32);
    a.t = tables.t;
    fold_fill_routes(&a.in, 32, 1, ROUTES_PLAIN);
    memcpy(&from_was, &from, sizeof from);
    memcpy(&to_was, &to, sizeof to);
    return a;
}

static int untouched(void)
{
    return !memcmp(&from, &from_was, offsetof(fold_routes, r)) && !memcmp(&to, &to_was, offsetof(fold_routes, r));
}

START_TEST(bad_arguments_are_refused_and_nothing_is_written)
{
    for (int form = PREFILL; form <= DECODE_JOINT; form *= 2) {
        arguments a = sound();
        ck_assert_int_eq(call(form, &a), EXF_FOLD_OK);
        ck_assert(!untouched());
        a = sound();
        refusals[_i].spoil(&a);
        if (!(refusals[_i].forms & form) && a.in.rows < 100) {
            ck_assert_int_eq(call(form, &a), EXF_FOLD_OK);
        } else if (refusals[_i].forms & form) {
            ck_assert_int_eq(call(form, &a), refusals[_i].want);
            ck_assert(untouched());
        }
    }
}
END_TEST

START_TEST(null_pointers_are_refused)
{
    arguments a = sound();
    for (int joint = 0; joint < 2; joint++) {
        exf_fold_status (*p)(const exf_fold_routes *, const exf_fold_routes *, const exf_fold_tables *,
                             const exf_fold_prefill_options *) = joint ? exf_fold_prefill_joint_cpu : exf_fold_prefill_cpu;
        exf_fold_status (*d)(const exf_fold_routes *, const exf_fold_tables *, const exf_fold_decode_options *) =
            joint ? exf_fold_decode_joint_cpu : exf_fold_decode_cpu;
        ck_assert_int_eq(p(NULL, &a.out, &a.t, &a.p), EXF_FOLD_BAD_ARGUMENT);
        ck_assert_int_eq(p(&a.in, NULL, &a.t, &a.p), EXF_FOLD_BAD_ARGUMENT);
        ck_assert_int_eq(p(&a.in, &a.out, NULL, &a.p), EXF_FOLD_BAD_ARGUMENT);
        ck_assert_int_eq(p(&a.in, &a.out, &a.t, NULL), EXF_FOLD_BAD_ARGUMENT);
        ck_assert_int_eq(d(NULL, &a.t, &a.d), EXF_FOLD_BAD_ARGUMENT);
        ck_assert_int_eq(d(&a.in, NULL, &a.d), EXF_FOLD_BAD_ARGUMENT);
        ck_assert_int_eq(d(&a.in, &a.t, NULL), EXF_FOLD_BAD_ARGUMENT);
    }
    ck_assert(untouched());
}
END_TEST

START_TEST(a_fixed_pool_is_checked_too)
{
    arguments a = sound();
    int32_t target[32] = {0};
    float scale[32] = {0};
    ck_assert_int_eq(exf_fold_decode_static_cpu(NULL, target, scale, 32), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_decode_static_cpu(&a.in, NULL, scale, 32), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_decode_static_cpu(&a.in, target, NULL, 32), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_decode_static_cpu(&a.in, target, scale, 2), EXF_FOLD_UNSUPPORTED);
    ck_assert_int_eq(exf_fold_decode_static_cpu(&a.in, target, scale, 3), EXF_FOLD_BAD_ARGUMENT); /* four experts a token */
    ck_assert(untouched());
}
END_TEST

START_TEST(no_rows_need_no_room)
{
    for (int form = PREFILL; form <= DECODE_JOINT; form *= 2) {
        arguments a = sound();
        a.in.rows = a.out.rows = 0;
        a.in.ids = a.in.weights = a.out.ids = a.out.weights = NULL;
        ck_assert_int_eq(call(form, &a), EXF_FOLD_OK);
        ck_assert_int_eq(exf_fold_decode_static_cpu(&a.in, (int32_t[32]){0}, (float[32]){0}, 32), EXF_FOLD_OK);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "refusals");
    tcase_add_loop_test(c, bad_arguments_are_refused_and_nothing_is_written, 0, (int)(sizeof refusals / sizeof *refusals));
    tcase_add_test(c, null_pointers_are_refused);
    tcase_add_test(c, a_fixed_pool_is_checked_too);
    tcase_add_test(c, no_rows_need_no_room);
}

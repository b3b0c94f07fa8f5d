/* check_fold_explain.c - exfold/fold.h, why: what is explained adds up to what the call does, and reasons by hand. */
#include "tests/support/fold_abi_fixtures.h"

static fold_tables tables;
static fold_routes from, to;
static exf_fold_explained x[FOLD_K];

/* ---- by hand --------------------------------------------------------------------------------- */

/* Six experts of norm 1; S is .5, losses are 0.5 but for 3, which has none, and 2, which is at 0.9. */
static void hand_tables(void)
{
    fold_fill_tables(&tables, 6, 1, TABLES_EQUAL);
    for (int i = 0; i < 36; i++) {
        tables.coeff[i] = .5f;
        if (i / 6 == 2) tables.loss[i] = .9f;
        if (i / 6 == 3) tables.loss[i] = EXF_FOLD_NEVER;
        tables.cosine[i] = i / 6 == i % 6 ? 1 : i % 6 == 0 || i / 6 == 0 ? .5f : 0;
    }
    for (int e = 0; e < 6; e++) tables.norms[e] = tables.rms[e] = 1;
}

static int32_t hand_ids[] = {1, 2, -1, 3, 0, 4};
static float hand_weights[] = {.25f, .125f, 5, .0625f, .5f, .03125f};
static const exf_fold_routes hand_row = {.ids = hand_ids, .weights = hand_weights, .rows = 1, .width = 6};

static void ck_slot(int k, exf_fold_fate fate, int target, int place, float scalar, float result)
{
    ck_assert_msg(x[k].fate == fate && x[k].target == target && x[k].place == place, "slot %d: fate %d, target %d, place %d", k,
                  (int)x[k].fate, x[k].target, x[k].place);
    ck_assert_msg(x[k].scalar == scalar && x[k].result == result, "slot %d: scalar %g, result %g", k, (double)x[k].scalar,
                  (double)x[k].result);
    ck_assert(x[k].expert == hand_ids[k] && x[k].weight == hand_weights[k]);
}

START_TEST(prefill_by_hand)
{
    exf_fold_prefill_options o = EXF_FOLD_PREFILL_INIT;
    hand_tables();
    o.keep = 2;
    o.max_loss = .8f;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    ck_slot(0, EXF_FOLD_FATE_KEPT, -1, 1, 0, .25f);
    ck_slot(1, EXF_FOLD_FATE_ABOVE_LIMIT, 0, 2, 0, 0);
    ck_assert(x[1].loss == .9f);
    ck_slot(2, EXF_FOLD_FATE_NONE, -1, -1, 0, 0);
    ck_slot(3, EXF_FOLD_FATE_NO_PAIR, -1, 3, 0, 0);
    ck_assert(x[3].loss == EXF_FOLD_NEVER && x[3].ranked_by == .0625f);
    ck_slot(4, EXF_FOLD_FATE_KEPT, -1, 0, 0, .5f + .015625f);
    ck_slot(5, EXF_FOLD_FATE_FOLDED, 0, 4, .5f, 0);
    ck_assert(x[5].loss == .5f);
    o.confidence = 1; /* of 4: 1 - .5 */
    o.rank = EXF_FOLD_BY_SCORE;
    tables.t.norms = NULL;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(x[5].scalar == .25f && x[5].ranked_by == .03125f);
}
END_TEST

START_TEST(decode_by_hand)
{
    exf_fold_decode_options o = EXF_FOLD_DECODE_INIT;
    hand_tables();
    o.pool = 2;
    o.max_loss = .8f;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_DECODE, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    ck_slot(0, EXF_FOLD_FATE_KEPT, -1, 1, 0, .25f);
    ck_slot(1, EXF_FOLD_FATE_ABOVE_LIMIT, 0, 2, 0, 0);
    ck_slot(3, EXF_FOLD_FATE_NO_PAIR, -1, 3, 0, 0);
    ck_slot(5, EXF_FOLD_FATE_FOLDED, 0, 4, .5f, .015625f);
    o.fallback = 1;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_DECODE, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    ck_slot(1, EXF_FOLD_FATE_FALLBACK, 0, 2, .5f, .0625f);
    o.drop = 1;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_DECODE, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    ck_slot(5, EXF_FOLD_FATE_DROPPED, 0, 4, 0, 0);
    const int32_t members[] = {5, 4};
    o = (exf_fold_decode_options)EXF_FOLD_DECODE_INIT;
    o.pool = 2;
    o.members = members;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_DECODE, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    ck_slot(5, EXF_FOLD_FATE_KEPT, -1, 1, 0, .03125f);
    ck_slot(4, EXF_FOLD_FATE_FOLDED, 5, -1, .5f, .25f);
    ck_assert(x[4].ranked_by == 0);
}
END_TEST

START_TEST(joint_forms_by_hand)
{
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_decode_options o = EXF_FOLD_DECODE_INIT;
    hand_tables();
    p.keep = 2;
    o.pool = 2;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL_JOINT, &hand_row, 0, &tables.t, &p), EXF_FOLD_OK);
    ck_assert(x[0].fate == EXF_FOLD_FATE_KEPT && x[5].fate == EXF_FOLD_FATE_SOLVED && x[5].target == -1 && x[5].result == 0);
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_DECODE_JOINT, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(x[5].fate == EXF_FOLD_FATE_SOLVED && x[5].target == 0 && x[5].loss == .75f);
    for (int e = 0; e < 6; e++) tables.rms[e] = 0; /* no system at all */
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL_JOINT, &hand_row, 0, &tables.t, &p), EXF_FOLD_OK);
    float scalar = x[5].scalar;
    ck_assert(x[5].fate == EXF_FOLD_FATE_UNSOLVED && scalar == tables.coeff[x[5].expert * 6 + x[5].target] && x[5].result == 0);
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_DECODE_JOINT, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(x[5].fate == EXF_FOLD_FATE_UNSOLVED && x[5].result == x[5].weight * x[5].scalar);
}
END_TEST

START_TEST(padding_and_batches_within_the_pool)
{
    int32_t none = 0;
    exf_fold_routes padded = hand_row;
    exf_fold_decode_options o = EXF_FOLD_DECODE_INIT;
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_budget_options b = EXF_FOLD_BUDGET_INIT;
    hand_tables();
    o.pool = 5;
    p.keep = 1;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_DECODE, &hand_row, 0, &tables.t, &o), EXF_FOLD_OK);
    for (int k = 0; k < 6; k++)
        ck_slot(k, k == 2 ? EXF_FOLD_FATE_NONE : EXF_FOLD_FATE_KEPT, -1, -1, 0, k == 2 ? 0 : hand_weights[k]);
    padded.count = &none;
    for (int call = 0; call < 5; call++) {
        const void *options = call < 2 ? (const void *)&p : call == 2 ? (const void *)&b : (const void *)&o;
        ck_assert_int_eq(exf_fold_explain(x, (exf_fold_call)call, &padded, 0, &tables.t, options), EXF_FOLD_OK);
        for (int k = 0; k < 6; k++) ck_assert(x[k].fate == EXF_FOLD_FATE_NONE && x[k].expert == -1 && x[k].result == 0);
    }
}
END_TEST

/* ---- against the calls ------------------------------------------------------------------------- */

static int is_omitted(exf_fold_fate f)
{
    return f != EXF_FOLD_FATE_NONE && f != EXF_FOLD_FATE_KEPT;
}

/* Kept routes are the call's output in order of their places; by pairs, what was folded adds up to them. */
static void ck_prefill_row(const exf_fold_routes *out, int row, int width, int k, int adds)
{
    for (int i = 0; i < k; i++) {
        if (x[i].fate != EXF_FOLD_FATE_KEPT) continue;
        float w = fold_weight_at(out, row * width + x[i].place), sum = x[i].weight;
        ck_assert(x[i].place < width && fold_id_at(out, row * width + x[i].place) == x[i].expert);
        ck_assert(!memcmp(&w, &x[i].result, sizeof w));
        int again = 0; /* of an expert that a token has twice the first takes all */
        for (int j = 0; j < k; j++) again |= x[j].expert == x[i].expert && x[j].place < x[i].place;
        for (int place = 0; adds && !again && place < k; place++)
            for (int j = 0; j < k; j++)
                if (x[j].place == place && x[j].fate == EXF_FOLD_FATE_FOLDED && x[j].target == x[i].expert)
                    sum += x[j].weight * x[j].scalar;
        if (adds) ck_assert_msg(fabsf(sum - w) <= 1e-6f, "slot %d: %.9g, the call has %.9g", i, (double)sum, (double)w);
    }
    for (int i = 0; i < k; i++)
        if (is_omitted(x[i].fate)) ck_assert(x[i].place >= 0 && x[i].result == 0);
}

static void ck_decode_row(const exf_fold_routes *io, const exf_fold_routes *was, int row, int k)
{
    for (int i = 0; i < k; i++) {
        int at = row * k + i;
        float w = fold_weight_at(io, at), before = fold_weight_at(was, at);
        ck_assert(!memcmp(&before, &x[i].weight, sizeof before));
        if (x[i].fate == EXF_FOLD_FATE_NONE) continue;
        ck_assert(!memcmp(&w, &x[i].result, sizeof w));
        if (x[i].target >= 0 && x[i].fate != EXF_FOLD_FATE_ABOVE_LIMIT) ck_assert_int_eq(fold_id_at(io, at), x[i].target);
        if (x[i].fate == EXF_FOLD_FATE_KEPT) ck_assert_int_eq(fold_id_at(io, at), x[i].expert);
        if (is_omitted(x[i].fate)) ck_assert_int_ne(fold_id_at(io, at), x[i].expert);
    }
}

/* _i runs through shapes and calls. */
START_TEST(what_is_explained_is_what_happens)
{
    const fold_shape *s = &fold_few_shapes[_i / 5];
    exf_fold_call call = (exf_fold_call)(_i % 5);
    fold_fill_tables(&tables, s->e, 30 + (uint64_t)_i, TABLES_REAL);
    for (int v = 0; v < 8; v++) {
        exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
        exf_fold_budget_options b = EXF_FOLD_BUDGET_INIT;
        exf_fold_decode_options d = EXF_FOLD_DECODE_INIT;
        int width = call < 2 ? (s->k + 1) / 2 : s->k;
        p.rank = (exf_fold_rank)(v % 3);
        p.rescale = v == 5 ? EXF_FOLD_RESCALE_SUM : EXF_FOLD_RESCALE_NONE;
        p.keep = width;
        p.max_loss = d.max_loss = v % 2 ? .5f : EXF_FOLD_NO_LIMIT;
        b.penalty = .02f;
        d.pool = s->e / 4 + 1;
        if (call == EXF_FOLD_CALL_DECODE) d.fallback = v % 3 == 2;
        const void *options = call < 2 ? (const void *)&p : call == 2 ? (const void *)&b : (const void *)&d;
        exf_fold_routes in = fold_room(&from, s->rows, s->k, (exf_fold_int)(v % 2), v < 6 ? EXF_FOLD_F32 : EXF_FOLD_BF16);
        fold_fill_routes(&in, s->e, 70 + (uint64_t)v, v % 4 == 3 ? ROUTES_AWKWARD : ROUTES_PLAIN);
        exf_fold_routes out = call < 3 ? fold_room(&to, s->rows, width, in.id_type, in.weight_type) : fold_copy(&to, &in);
        exf_fold_status done = call == EXF_FOLD_CALL_PREFILL          ? exf_fold_prefill_cpu(&in, &out, &tables.t, &p)
                               : call == EXF_FOLD_CALL_PREFILL_JOINT  ? exf_fold_prefill_joint_cpu(&in, &out, &tables.t, &p)
                               : call == EXF_FOLD_CALL_PREFILL_BUDGET ? exf_fold_prefill_budget_cpu(&in, &out, NULL, &tables.t, &b)
                               : call == EXF_FOLD_CALL_DECODE         ? exf_fold_decode_cpu(&out, &tables.t, &d)
                                                                      : exf_fold_decode_joint_cpu(&out, &tables.t, &d);
        ck_assert_int_eq(done, EXF_FOLD_OK);
        for (int row = 0; row < s->rows; row++) {
            ck_assert_int_eq(exf_fold_explain(x, call, &in, row, &tables.t, options), EXF_FOLD_OK);
            if (call < 3)
                ck_prefill_row(&out, row, width, s->k, call == 0 && v < 5);
            else
                ck_decode_row(&out, &in, row, s->k);
        }
    }
}
END_TEST

START_TEST(contradictions_are_refused)
{
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    hand_tables();
    p.keep = 2;
    ck_assert_int_eq(exf_fold_explain(NULL, EXF_FOLD_CALL_PREFILL, &hand_row, 0, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &hand_row, 0, &tables.t, NULL), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &hand_row, 1, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &hand_row, -1, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_explain(x, (exf_fold_call)5, &hand_row, 0, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    p.keep = 7;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &hand_row, 0, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    p.keep = 1 << 30;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &hand_row, 0, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    p.keep = 2;
    tables.t.loss = NULL;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &hand_row, 0, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    for (int i = 0; i <= 9; i++)
        for (int j = 0; j < i; j++) ck_assert_str_ne(exf_fold_fate_text((exf_fold_fate)i), exf_fold_fate_text((exf_fold_fate)j));
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "explain");
    tcase_add_test(c, prefill_by_hand);
    tcase_add_test(c, decode_by_hand);
    tcase_add_test(c, joint_forms_by_hand);
    tcase_add_test(c, padding_and_batches_within_the_pool);
    tcase_add_loop_test(c, what_is_explained_is_what_happens, 0, 5 * N_FOLD_FEW_SHAPES);
    tcase_add_test(c, contradictions_are_refused);
}

/* check_fold_members.c - exfold/fold.h, decode into a pool fixed beforehand, by pairs and jointly: by hand, and against the
 * pool that a batch chooses. */
#include "kernels/fold/fold_cpu.h"
#include "tests/support/fold_abi_fixtures.h"

static fold_tables tables;
static fold_routes room, other, was;

static exf_fold_status decode(const exf_fold_routes *io, const exf_fold_decode_options *o, int joint)
{
    return (joint ? exf_fold_decode_joint_cpu : exf_fold_decode_cpu)(io, &tables.t, o);
}

static exf_fold_decode_options with_members(const int32_t *members, int n)
{
    exf_fold_decode_options o = EXF_FOLD_DECODE_INIT;
    o.pool = n;
    o.members = members;
    return o;
}

/* Cosines of 0, but 2 is like 0 by .25 and like 1 by -.5; S[s,t] = (1 + t) / 4; equal losses. */
static void hand_tables(void)
{
    fold_fill_tables(&tables, 5, 1, TABLES_EQUAL);
    for (int i = 0; i < 25; i++) {
        tables.coeff[i] = i % 6 == 0 ? 1 : (float)(1 + i % 5) / 4;
        tables.cosine[i] = i % 6 == 0;
    }
    for (int e = 0; e < 5; e++) tables.rms[e] = tables.norms[e] = 1;
    tables.cosine[10] = tables.cosine[2] = 0.25f;
    tables.cosine[11] = tables.cosine[7] = -0.5f;
}

START_TEST(by_hand)
{
    const int32_t members[] = {1, 0};
    exf_fold_decode_options o = with_members(members, 2);
    int32_t ids[] = {0, 1, 2};
    float w[] = {.5f, .75f, .25f};
    exf_fold_routes io = {.ids = ids, .weights = w, .rows = 1, .width = 3};
    hand_tables();
    tables.t.norms = NULL; /* nothing is ranked */
    ck_assert_int_eq(decode(&io, &o, 0), EXF_FOLD_OK);
    ck_assert(ids[0] == 0 && ids[1] == 1 && ids[2] == 1 && w[2] == .125f); /* equal losses: the earlier member */
    ids[2] = 2;
    w[2] = .25f;
    o.ridge = .25f;
    ck_assert_int_eq(decode(&io, &o, 1), EXF_FOLD_OK); /* 1, the larger magnitude; G_nn = [1 0 0; 0 1 1; 0 1 1] */
    ck_assert(ids[0] == 0 && ids[1] == 1 && ids[2] == 1);
    ck_weight(&io, 0, .5 + .0625 / 1.25, 1, 1e-7);
    ck_weight(&io, 1, .75 - .125 / 2.25, 1, 1e-7);
    ck_weight(&io, 2, -.125 / 2.25, 1, 1e-7);
}
END_TEST

/* A batch that routes to fewer experts than the pool has is moved all the same. */
START_TEST(a_given_pool_binds_small_batches)
{
    const int32_t members[] = {4, 3, 1};
    for (int joint = 0; joint < 2; joint++) {
        exf_fold_decode_options o = with_members(members, 3);
        int32_t ids[] = {0};
        float w[] = {1};
        exf_fold_routes io = {.ids = ids, .weights = w, .rows = 1, .width = 1};
        hand_tables();
        ck_assert_int_eq(decode(&io, &o, joint), EXF_FOLD_OK);
        ck_assert_int_eq(ids[0], 4);
        ck_assert(w[0] == (joint ? 0.0f : 1.25f));
    }
}
END_TEST

START_TEST(limits_and_fallbacks_hold)
{
    const int32_t members[] = {-1, 3, 1};
    exf_fold_decode_options o = with_members(members, 3);
    int32_t ids[] = {0};
    float w[] = {1};
    exf_fold_routes io = {.ids = ids, .weights = w, .rows = 1, .width = 1};
    hand_tables();
    o.max_loss = 0.25f;
    o.fallback = 1;
    ck_assert_int_eq(decode(&io, &o, 0), EXF_FOLD_OK);
    ck_assert(ids[0] == 3 && w[0] == 1); /* the first that is an expert */
    ids[0] = 0;
    o.fallback = 0;
    ck_assert_int_eq(decode(&io, &o, 0), EXF_FOLD_OK);
    ck_assert(ids[0] == 3 && w[0] == 0);
    ids[0] = 0;
    w[0] = 1;
    o.max_loss = EXF_FOLD_NO_LIMIT;
    o.drop = 1;
    ck_assert_int_eq(decode(&io, &o, 0), EXF_FOLD_OK);
    ck_assert(ids[0] == 3 && w[0] == 0);
}
END_TEST

/* The pool that a batch chooses, given as members, folds the batch alike; strangers and repetitions among them change nothing. */
START_TEST(a_chosen_pool_can_be_given)
{
    const fold_shape *s = &fold_few_shapes[_i];
    fold_fill_tables(&tables, s->e, 50 + (uint64_t)_i, TABLES_REAL);
    for (int v = 0; v < 12; v++) {
        exf_fold_pool pool;
        int32_t members[2 * FOLD_E];
        int n = 0;
        exf_fold_decode_options chosen = EXF_FOLD_DECODE_INIT;
        chosen.pool = 1 + fold_below(s->e / 2, 3, (uint64_t)v, 0);
        chosen.max_loss = v % 3 ? EXF_FOLD_NO_LIMIT : 0.4f;
        chosen.drop = v % 5 == 4;
        exf_fold_routes io = fold_room(&room, s->rows, s->k, (exf_fold_int)(v % 2), (exf_fold_real)(v % 3));
        fold_fill_routes(&io, s->e, 60 + (uint64_t)v, v % 4 == 3 ? ROUTES_AWKWARD : ROUTES_PLAIN);
        if (!exf_fold_choose_pool(&pool, &io, &tables.t, &chosen)) continue;
        exf_fold_routes given = fold_copy(&other, &io);
        for (int i = 0; i < chosen.pool; i++) {
            if (v % 2 && n + chosen.pool - i + 2 <= s->e) members[n++] = i % 2 ? s->e + i : pool.expert[0];
            members[n++] = pool.expert[i];
        }
        if (v % 2 && members[0] != pool.expert[0]) members[0] = -7;
        exf_fold_decode_options o = with_members(members, n);
        o.max_loss = chosen.max_loss;
        o.drop = chosen.drop;
        ck_assert_int_eq(decode(&io, &chosen, v / 2 % 2), EXF_FOLD_OK);
        ck_assert_int_eq(decode(&given, &o, v / 2 % 2), EXF_FOLD_OK);
        ck_assert_msg(fold_same(&io, &given), "E %d, variant %d", s->e, v);
    }
}
END_TEST

START_TEST(no_member_is_no_pool)
{
    const int32_t members[] = {-1, 5, 1 << 30};
    hand_tables();
    for (int joint = 0; joint < 2; joint++) {
        exf_fold_decode_options o = with_members(members, 3);
        exf_fold_routes io = fold_room(&room, 9, 3, EXF_FOLD_I32, EXF_FOLD_F32);
        fold_fill_routes(&io, 5, 2, ROUTES_PLAIN);
        exf_fold_routes before = fold_copy(&was, &io);
        ck_assert_int_eq(decode(&io, &o, joint), EXF_FOLD_OK);
        ck_assert(fold_same(&io, &before));
    }
}
END_TEST

START_TEST(contradictions_are_refused)
{
    const int32_t members[] = {0, 1, 2, 3, 4, 0};
    exf_fold_routes io = fold_room(&room, 9, 3, EXF_FOLD_I32, EXF_FOLD_F32);
    exf_fold_decode_options o;
    hand_tables();
    for (int joint = 0; joint < 2; joint++) {
        o = with_members(members, 6);
        ck_assert_int_eq(decode(&io, &o, joint), EXF_FOLD_BAD_ARGUMENT);
        o = with_members(members, 0);
        ck_assert_int_eq(decode(&io, &o, joint), EXF_FOLD_BAD_ARGUMENT);
        o = with_members(members, 2);
        o.candidates = EXF_FOLD_POOL_OF_ALL;
        ck_assert_int_eq(decode(&io, &o, joint), EXF_FOLD_UNSUPPORTED);
        o = (exf_fold_decode_options){.pool = 2, .members = members}; /* API 1.1 had none */
        ck_assert_int_eq(decode(&io, &o, joint), EXF_FOLD_UNSUPPORTED);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "members");
    tcase_add_test(c, by_hand);
    tcase_add_test(c, a_given_pool_binds_small_batches);
    tcase_add_test(c, limits_and_fallbacks_hold);
    tcase_add_loop_test(c, a_chosen_pool_can_be_given, 0, N_FOLD_FEW_SHAPES);
    tcase_add_test(c, no_member_is_no_pool);
    tcase_add_test(c, contradictions_are_refused);
}

/* check_fold_norms.c - exfold/fold.h with norms of each token's own: equal to the mean ones they change no bit, and other ones fold
 * a row as tables with these norms would. */
#include "tests/support/fold_scores_fixtures.h"

enum { FORMS = 6, MOST_ROWS = 64 };
static const char *const names[FORMS] = {"prefill", "prefill_joint", "prefill_budget", "decode", "decode_joint", "stand_ins"};
static fold_tables tables, of_row;
static fold_scores scores;
static fold_routes routes, other, out, out_other;
static float norms[FOLD_SLOTS];

/* Folds by a form: into `to` in prefill, in place in decode, where `members` [pool] fix the pool unless they are NULL. */
static exf_fold_status fold(int form, const exf_fold_routes *r, const exf_fold_routes *to, const exf_fold_tables *t,
                            const int32_t *members, int pool, int variant)
{
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_budget_options b = EXF_FOLD_BUDGET_INIT;
    exf_fold_decode_options d = EXF_FOLD_DECODE_INIT;
    exf_fold_stand_in_options i = EXF_FOLD_STAND_IN_INIT;
    p.rank = (exf_fold_rank)(variant % 3);
    p.confidence = variant / 2 % 2;
    b.rule = (exf_fold_budget_rule)(variant % 2);
    b.penalty = 0.02f;
    b.share = 0.6f;
    d.pool = i.pool = pool;
    d.members = members;
    d.importance = i.importance = (exf_fold_importance)(variant % 2);
    switch (form) {
    case 0: return exf_fold_prefill_cpu(r, to, t, &p);
    case 1: return exf_fold_prefill_joint_cpu(r, to, t, &p);
    case 2: return exf_fold_prefill_budget_cpu(r, to, NULL, t, &b);
    case 3: return exf_fold_decode_cpu(r, t, &d);
    case 4: return exf_fold_decode_joint_cpu(r, t, &d);
    }
    return exf_fold_decode_stand_ins_cpu(r, &scores.s, members, t, &i);
}

static int width_of(int form, int k)
{
    return form < 2 ? (k + 1) / 2 : k;
}

/* Fills `routes` and tables with one norm for h and rms. */
static exf_fold_routes begin(const fold_shape *s, int variant, fold_routes_kind kind)
{
    fold_fill_tables(&tables, s->e, 30 + (uint64_t)variant, TABLES_REAL);
    memcpy(tables.norms, tables.rms, (size_t)s->e * sizeof *tables.rms);
    fold_fill_scores(&scores, s->rows, s->e, EXF_FOLD_F32, 3, SCORES_PLAIN, 0);
    exf_fold_routes r = fold_room(&routes, s->rows, s->k, (exf_fold_int)(variant % 2), (exf_fold_real)(variant % 3));
    fold_fill_routes(&r, s->e, 50 + (uint64_t)variant, kind);
    return r;
}

/* _i runs through forms and shapes. */
START_TEST(mean_norms_given_by_the_caller_change_no_bit)
{
    const fold_shape *s = &fold_few_shapes[_i / FORMS];
    int form = _i % FORMS;
    for (int variant = 0; variant < 12; variant++) {
        exf_fold_routes r = begin(s, variant, (fold_routes_kind)(variant % N_ROUTES)), copy = fold_copy(&other, &r);
        exf_fold_routes to = fold_room(&out, s->rows, width_of(form, s->k), r.id_type, r.weight_type),
                        to_other = fold_room(&out_other, s->rows, to.width, r.id_type, r.weight_type);
        exf_fold_tables bare = tables.t;
        int pool = s->e / 3 + 1;
        bare.norms = NULL;
        if (form < 4) bare.rms = NULL; /* a stand-in's norm is made of it */
        for (int i = 0; i < r.rows * r.width; i++) {
            int64_t id = fold_id_at(&r, i);
            norms[i] = id >= 0 && id < s->e ? tables.rms[id] : NAN;
        }
        ck_assert_int_eq(fold(form, &copy, &to_other, &tables.t, NULL, pool, variant), EXF_FOLD_OK);
        r.norms = norms;
        ck_assert_int_eq(fold(form, &r, &to, &bare, NULL, pool, variant), EXF_FOLD_OK);
        ck_assert_msg(form < 3 ? fold_same(&to, &to_other) : fold_same(&r, &copy), "%s, %d of %d", names[form], s->k, s->e);
    }
}
END_TEST

/* Makes the tables in which a row's experts have its norms; `moved` is the slot whose stand-in has a norm by it, or -1. */
static void tables_of_row(const exf_fold_routes *r, int row, int moved)
{
    int e = tables.t.n_experts, first = row * r->width;
    of_row = tables;
    of_row.t = (exf_fold_tables){.coeff = of_row.coeff, .loss = of_row.loss, .norms = of_row.norms, .cosine = of_row.cosine,
                                 .rms = of_row.rms, .n_experts = e};
    for (int i = 0; moved >= 0 && i < e; i++)
        of_row.rms[i] = tables.rms[i] * (norms[first + moved] / tables.rms[fold_id_at(r, first + moved)]);
    for (int k = 0; k < r->width; k++) {
        int64_t id = fold_id_at(r, first + k);
        if (id >= 0 && id < e) of_row.norms[id] = of_row.rms[id] = norms[first + k];
    }
}

/* Returns the only slot outside of the members; -1: there is none, or another. */
static int slot_outside(const exf_fold_routes *r, int row, const int32_t *members, int pool)
{
    int found = -1, n = 0;
    for (int k = 0; k < r->width; k++) {
        int inside = 0;
        for (int i = 0; i < pool; i++) inside |= fold_id_at(r, row * r->width + k) == members[i];
        if (!inside) found = k, n++;
    }
    return n == 1 ? found : -1;
}

static int is_held(const exf_fold_routes *r, int row, int64_t id)
{
    int held = 0;
    for (int k = 0; k < r->width; k++) held |= fold_id_at(r, row * r->width + k) == id;
    return held;
}

START_TEST(a_row_folds_as_tables_with_its_norms)
{
    const fold_shape *s = &fold_few_shapes[_i / FORMS];
    int form = _i % FORMS, n = 0, pool = s->e - s->e / 3;
    int32_t members[FOLD_E];
    for (int i = 0; i < pool; i++) members[i] = i;
    for (int variant = 0; variant < 6; variant++) {
        exf_fold_routes r = begin(s, variant, ROUTES_PLAIN);
        for (int i = 0; i < r.rows * r.width; i++) norms[i] = (float)exp(2 * fold_uniform(9, (uint64_t)variant, (uint64_t)i) - 1);
        for (int row = 0; row < s->rows; row++) {
            int moved = form > 3 ? slot_outside(&r, row, members, pool) : -1;
            exf_fold_routes mine = fold_room(&other, 1, s->k, r.id_type, r.weight_type), to_mine, to, one;
            if (form > 3 && moved < 0) continue;
            for (int k = 0; k < s->k; k++)
                fold_put(&mine, k, fold_id_at(&r, row * s->k + k), fold_weight_at(&r, row * s->k + k));
            static fold_routes copy;
            one = fold_copy(&copy, &mine);
            one.norms = norms + row * s->k;
            to = fold_room(&out, 1, width_of(form, s->k), r.id_type, r.weight_type);
            to_mine = fold_room(&out_other, 1, to.width, r.id_type, r.weight_type);
            tables_of_row(&r, row, moved);
            ck_assert_int_eq(fold(form, &mine, &to_mine, &of_row.t, members, pool, variant), EXF_FOLD_OK);
            ck_assert_int_eq(fold(form, &one, &to, &tables.t, members, pool, variant), EXF_FOLD_OK);
            if (moved >= 0 && is_held(&r, row, fold_id_at(&one, moved))) continue; /* with two norms, which no tables have */
            ck_assert_msg(form < 3 ? fold_same(&to, &to_mine) : fold_same(&one, &mine), "%s, %d of %d, row %d", names[form], s->k,
                          s->e, row);
            n++;
        }
    }
    ck_assert_int_gt(n, 0);
}
END_TEST

/* The larger norm comes first, and its expert is the one that stays in a pool of one. */
START_TEST(norms_decide_what_is_kept)
{
    int32_t ids[] = {4, 5, 5, 4}, kept_ids[2];
    float w[] = {.5f, .5f, .5f, .5f}, n[] = {1, 2, 1, 8}, kept_w[2];
    exf_fold_routes r = {.ids = ids, .weights = w, .rows = 2, .width = 2, .norms = n},
                    to = {.ids = kept_ids, .weights = kept_w, .rows = 2, .width = 1};
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_decode_options d = EXF_FOLD_DECODE_INIT;
    exf_fold_explained x[2];
    fold_fill_tables(&tables, 8, 1, TABLES_EQUAL);
    ck_assert_int_eq(exf_fold_prefill_cpu(&r, &to, &tables.t, &p), EXF_FOLD_OK);
    ck_assert(kept_ids[0] == 5 && kept_ids[1] == 4);
    p.keep = d.pool = 1;
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_PREFILL, &r, 1, &tables.t, &p), EXF_FOLD_OK);
    ck_assert(x[0].place == 1 && x[0].ranked_by == .5f && x[0].target == 4);
    ck_assert(x[1].place == 0 && x[1].ranked_by == 4);
    d.importance = EXF_FOLD_IMPORTANCE_ENERGY; /* of 4: 1/4 + 16, of 5: 1 + 1/4 */
    ck_assert_int_eq(exf_fold_explain(x, EXF_FOLD_CALL_DECODE_JOINT, &r, 0, &tables.t, &d), EXF_FOLD_OK);
    ck_assert(x[0].fate == EXF_FOLD_FATE_KEPT && x[0].ranked_by == .25f && x[1].ranked_by == 1 && x[1].target == 4);
    float result = x[1].result;
    ck_assert_int_eq(exf_fold_decode_joint_cpu(&r, &tables.t, &d), EXF_FOLD_OK);
    ck_assert(ids[0] == 4 && ids[1] == 4 && ids[2] == 4 && w[1] == result);
}
END_TEST

START_TEST(norms_that_contradict_are_refused)
{
    int32_t ids[8] = {0, 1, 2, 3, 0, 1, 2, 3}, kept_ids[4], kept[4];
    float w[8] = {0}, kept_w[4], n[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_budget_options b = EXF_FOLD_BUDGET_INIT;
    exf_fold_decode_options d = EXF_FOLD_DECODE_INIT;
    exf_fold_routes r = {.ids = ids, .weights = w, .rows = 4, .width = 2, .norms = n},
                    to = {.ids = kept_ids, .weights = kept_w, .rows = 4, .width = 1};
    d.pool = 1;
    fold_fill_tables(&tables, 8, 1, TABLES_EQUAL);
    ck_assert_int_eq(exf_fold_prefill_cpu(&r, &to, &tables.t, &p), EXF_FOLD_OK);
    to.norms = n;
    ck_assert_int_eq(exf_fold_prefill_cpu(&r, &to, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    to.norms = NULL;
    r.norms = kept_w; /* would be overwritten while they are read */
    ck_assert_int_eq(exf_fold_prefill_cpu(&r, &to, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    r.norms = (const float *)(const void *)kept;
    ck_assert_int_eq(exf_fold_prefill_budget_cpu(&r, &to, kept, &tables.t, &b), EXF_FOLD_BAD_ARGUMENT);
    r.norms = w;
    ck_assert_int_eq(exf_fold_decode_cpu(&r, &tables.t, &d), EXF_FOLD_BAD_ARGUMENT);
    r.norms = n;
    tables.t.rms = NULL;
    ck_assert_int_eq(exf_fold_decode_joint_cpu(&r, &tables.t, &d), EXF_FOLD_BAD_ARGUMENT);
    r.reserved[0] = 1;
    ck_assert_int_eq(exf_fold_decode_cpu(&r, &tables.t, &d), EXF_FOLD_UNSUPPORTED);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "norms");
    tcase_add_loop_test(c, mean_norms_given_by_the_caller_change_no_bit, 0, FORMS * N_FOLD_FEW_SHAPES);
    tcase_add_loop_test(c, a_row_folds_as_tables_with_its_norms, 0, FORMS * N_FOLD_FEW_SHAPES);
    tcase_add_test(c, norms_decide_what_is_kept);
    tcase_add_test(c, norms_that_contradict_are_refused);
}

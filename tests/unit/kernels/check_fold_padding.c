/* check_fold_padding.c - exfold/fold.h with padding: a batch with rows beyond its count, or masked, folds as the batch of its
 * other rows alone, and padding stays as it is. */
#include "tests/support/fold_scores_fixtures.h"

enum { FORMS = 7, MOST_ROWS = 64 };
static const char *const names[FORMS] = {"prefill",      "prefill_joint", "prefill_budget", "decode",
                                         "decode_joint", "stand_ins",     "static"};
static fold_tables tables;
static fold_scores scores, scores_alone;
static fold_routes padded, alone, out_padded, out_alone, was;
static int32_t kept[MOST_ROWS], kept_alone[MOST_ROWS], target[FOLD_E];
static float scale[FOLD_E];

/* Folds by a form; into `out` in prefill, in place in decode. */
static exf_fold_status fold(int form, const exf_fold_routes *r, const exf_fold_routes *out, int32_t *k, const fold_scores *s,
                            int variant)
{
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_budget_options b = EXF_FOLD_BUDGET_INIT;
    exf_fold_decode_options d = EXF_FOLD_DECODE_INIT;
    exf_fold_stand_in_options i = EXF_FOLD_STAND_IN_INIT;
    p.rescale = (exf_fold_rescale)(variant % 3);
    p.confidence = variant / 3 % 2;
    b.penalty = 0.01f;
    b.repeat = variant % 2;
    d.pool = i.pool = tables.t.n_experts / 3 + 1;
    if (form == 3) d.candidates = (exf_fold_candidates)(variant % 3);
    switch (form) {
    case 0: return exf_fold_prefill_cpu(r, out, &tables.t, &p);
    case 1: return exf_fold_prefill_joint_cpu(r, out, &tables.t, &p);
    case 2: return exf_fold_prefill_budget_cpu(r, out, k, &tables.t, &b);
    case 3: return exf_fold_decode_cpu(r, &tables.t, &d);
    case 4: return exf_fold_decode_joint_cpu(r, &tables.t, &d);
    case 5: return exf_fold_decode_stand_ins_cpu(r, &s->s, NULL, &tables.t, &i);
    }
    return exf_fold_decode_static_cpu(r, target, scale, tables.t.n_experts);
}

static void copy_row(const exf_fold_routes *to, int to_row, const exf_fold_routes *r, int row)
{
    for (int k = 0; k < r->width; k++)
        fold_put(to, to_row * r->width + k, fold_id_at(r, row * r->width + k), fold_weight_at(r, row * r->width + k));
}

static void ck_row(const exf_fold_routes *got, int row, const exf_fold_routes *want, int want_row, int width, const char *what)
{
    for (int k = 0; k < width; k++) {
        int i = row * got->width + k, j = want_row * want->width + k;
        float x = fold_weight_at(got, i), y = fold_weight_at(want, j);
        ck_assert_msg(fold_id_at(got, i) == fold_id_at(want, j) && !memcmp(&x, &y, sizeof x),
                      "%s, row %d, slot %d: %lld %a, not %lld %a", what, row, k, (long long)fold_id_at(got, i), (double)x,
                      (long long)fold_id_at(want, j), (double)y);
    }
}

/* A row of padding in the output of a prefill: of a budget empty, else its first slots. */
static void ck_padding(int form, int row, int n_experts, int variant)
{
    const exf_fold_routes *out = &out_padded.r;
    if (form != 2) {
        ck_row(out, row, &was.r, row, out->width, names[form]);
        return;
    }
    int64_t first = fold_id_at(&was.r, row * was.r.width), name = variant % 2 && first >= 0 && first < n_experts ? first : -1;
    ck_assert_int_eq(kept[row], 0);
    for (int k = 0; k < out->width; k++) {
        ck_assert_int_eq(fold_id_at(out, row * out->width + k), name);
        ck_assert(fold_weight_at(out, row * out->width + k) == 0);
    }
}

/* Folds a batch whose rows `mask` and `count` select, and the batch of those rows alone. */
static void compare(int form, const fold_shape *s, int variant, const uint8_t *mask, const int32_t *count)
{
    int real[MOST_ROWS], n = 0, width = form == 2 ? (s->k + 1) / 2 : form < 2 ? (s->k + 2) / 3 : s->k;
    exf_fold_routes r = fold_room(&padded, s->rows, s->k, (exf_fold_int)(variant % 2), (exf_fold_real)(variant % 3));
    fold_fill_routes(&r, s->e, 40 + (uint64_t)variant, variant % 4 == 3 ? ROUTES_AWKWARD : ROUTES_PLAIN);
    fold_copy(&was, &r);
    fold_fill_scores(&scores, s->rows, s->e, EXF_FOLD_F32, 3, SCORES_PLAIN, 0);
    for (int row = 0; row < s->rows; row++)
        if ((!mask || mask[row]) && (!count || row < *count)) real[n++] = row;
    exf_fold_routes few = fold_room(&alone, n, s->k, r.id_type, r.weight_type);
    scores_alone.s = (exf_fold_scores){.choice = scores_alone.choice};
    for (int i = 0; i < n; i++) {
        copy_row(&few, i, &r, real[i]);
        memcpy(scores_alone.choice + i * s->e, scores.choice + real[i] * s->e, (size_t)s->e * sizeof(float));
    }
    r.mask = mask;
    r.count = count;
    memset(kept, 0x5a, sizeof kept);
    exf_fold_routes out = fold_room(&out_padded, s->rows, width, r.id_type, r.weight_type);
    exf_fold_routes out_few = fold_room(&out_alone, n, width, r.id_type, r.weight_type);
    ck_assert_int_eq(fold(form, &r, &out, kept, &scores, variant), EXF_FOLD_OK);
    ck_assert_int_eq(fold(form, &few, &out_few, kept_alone, &scores_alone, variant), EXF_FOLD_OK);
    for (int row = 0, i = 0; row < s->rows; row++) {
        int is_real = i < n && real[i] == row;
        if (form < 3 && is_real) ck_row(&out, row, &out_few, i, width, names[form]);
        if (form < 3 && !is_real) ck_padding(form, row, s->e, variant);
        if (form >= 3) ck_row(&r, row, is_real ? &few : &was.r, is_real ? i : row, s->k, names[form]);
        if (form == 2 && is_real) ck_assert_int_eq(kept[row], kept_alone[i]);
        i += is_real;
    }
}

/* _i runs through forms and shapes. */
START_TEST(padding_counts_for_nothing_and_stays)
{
    const fold_shape *s = &fold_few_shapes[_i / FORMS];
    int form = _i % FORMS;
    static uint8_t mask[MOST_ROWS];
    fold_fill_tables(&tables, s->e, 20 + (uint64_t)_i, TABLES_REAL);
    for (int e = 0; e < s->e; e++) {
        target[e] = e % 3 ? e : e / 2;
        scale[e] = e % 3 ? 1 : 0.5f;
    }
    for (int variant = 0; variant < 6; variant++) {
        int32_t counts[] = {s->rows / 2, 0, -5, s->rows, INT32_MAX, 1};
        for (int row = 0; row < s->rows; row++) mask[row] = fold_uniform(9, (uint64_t)variant, (uint64_t)row) < 0.6 ? 7 : 0;
        compare(form, s, variant, NULL, &counts[variant]);
        compare(form, s, variant, mask, NULL);
        compare(form, s, variant, mask, &counts[variant]);
        compare(form, s, variant, NULL, NULL);
    }
}
END_TEST

/* Folds into K slots what is folded into P as well: after P slots of a row all are empty, and a row of padding is as it was.  A
 * budget's rows have such slots anyway. */
static void compare_widths(int form, const fold_shape *s, int variant, const uint8_t *mask)
{
    int keep = form == 2 ? s->k : (s->k + 2) / 3;
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_budget_options b = EXF_FOLD_BUDGET_INIT;
    exf_fold_routes r = fold_room(&padded, s->rows, s->k, (exf_fold_int)(variant % 2), (exf_fold_real)(variant % 3));
    exf_fold_routes wide = fold_room(&out_padded, s->rows, s->k, r.id_type, r.weight_type);
    exf_fold_routes narrow = fold_room(&out_alone, s->rows, keep, r.id_type, r.weight_type);
    fold_fill_routes(&r, s->e, 60 + (uint64_t)variant, variant % 4 == 3 ? ROUTES_AWKWARD : ROUTES_PLAIN);
    fold_copy(&was, &r);
    r.mask = mask;
    p.keep = keep;
    p.rescale = (exf_fold_rescale)(variant % 3);
    p.confidence = variant / 3 % 2;
    b.penalty = 0.01f;
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        const exf_fold_routes *out = is_wide ? &wide : &narrow;
        p.repeat = is_wide * variant % 2;
        b.padding = is_wide;
        memset(kept, 0x5a, sizeof kept);
        ck_assert_int_eq(form == 0   ? exf_fold_prefill_cpu(&r, out, &tables.t, &p)
                         : form == 1 ? exf_fold_prefill_joint_cpu(&r, out, &tables.t, &p)
                                     : exf_fold_prefill_budget_cpu(&r, out, kept, &tables.t, &b),
                         EXF_FOLD_OK);
    }
    for (int row = 0; row < s->rows; row++) {
        int counts = !mask || mask[row];
        ck_row(&wide, row, counts ? &narrow : &was.r, row, counts ? keep : s->k, names[form]);
        if (form == 2 && !counts) ck_assert_int_eq(kept[row], 0);
        int64_t first = fold_id_at(&wide, row * s->k), name = p.repeat && first >= 0 && first < s->e ? first : -1;
        for (int k = keep; counts && k < s->k; k++) {
            ck_assert_int_eq(fold_id_at(&wide, row * s->k + k), name);
            ck_assert(fold_weight_at(&wide, row * s->k + k) == 0);
        }
    }
}

/* _i runs through the forms of prefill and shapes. */
START_TEST(an_output_may_be_wider_than_what_is_kept)
{
    const fold_shape *s = &fold_few_shapes[_i / 3];
    static uint8_t mask[MOST_ROWS];
    fold_fill_tables(&tables, s->e, 20 + (uint64_t)_i, TABLES_REAL);
    for (int variant = 0; variant < 6; variant++) {
        for (int row = 0; row < s->rows; row++) mask[row] = fold_uniform(9, (uint64_t)variant, (uint64_t)row) < 0.6 ? 7 : 0;
        compare_widths(_i % 3, s, variant, mask);
        compare_widths(_i % 3, s, variant, NULL);
    }
}
END_TEST

/* Experts 0 and 1 serve the batch, 2 and 3 its padding, at weights that would take the pool. */
START_TEST(padding_does_not_enter_a_pool)
{
    int32_t ids[] = {0, 1, 2, 3, 0, 1, 2, 3}, count = 1;
    float w[] = {.5f, .25f, 9, 9, .5f, .25f, 9, 9};
    exf_fold_decode_options o = EXF_FOLD_DECODE_INIT;
    exf_fold_routes io = {.ids = ids, .weights = w, .rows = 4, .width = 2, .count = &count};
    fold_fill_tables(&tables, 8, 1, TABLES_EQUAL);
    o.pool = 1;
    o.importance = EXF_FOLD_IMPORTANCE_SCORE;
    ck_assert_int_eq(exf_fold_decode_cpu(&io, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(ids[0] == 0 && ids[1] == 0 && w[0] == .5f); /* without the count the pool would be {2} */
    ck_assert(ids[2] == 2 && ids[3] == 3 && ids[4] == 0 && ids[5] == 1 && ids[7] == 3 && w[2] == 9 && w[5] == .25f);
    io.count = NULL;
    ck_assert_int_eq(exf_fold_decode_cpu(&io, &tables.t, &o), EXF_FOLD_OK);
    ck_assert(ids[0] == 2);
}
END_TEST

START_TEST(contradictions_of_padding_are_refused)
{
    int32_t ids[8] = {0}, out_ids[4], count = 2, static_ids[8] = {0};
    float w[8] = {0}, out_w[4];
    uint8_t mask[4] = {1, 1, 1, 1};
    exf_fold_prefill_options p = EXF_FOLD_PREFILL_INIT;
    exf_fold_decode_options d = EXF_FOLD_DECODE_INIT;
    d.pool = 1;
    exf_fold_routes in = {.ids = ids, .weights = w, .rows = 4, .width = 2, .count = &count, .mask = mask},
                    out = {.ids = out_ids, .weights = out_w, .rows = 4, .width = 1};
    fold_fill_tables(&tables, 8, 1, TABLES_EQUAL);
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &tables.t, &p), EXF_FOLD_OK);
    out.count = &count;
    out.mask = mask;
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &tables.t, &p), EXF_FOLD_OK);
    out.mask = mask + 1;
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    out.mask = NULL;
    out.count = &out_ids[3];
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    out.count = NULL;
    in.count = &out_ids[3]; /* would be overwritten while it is read */
    ck_assert_int_eq(exf_fold_prefill_cpu(&in, &out, &tables.t, &p), EXF_FOLD_BAD_ARGUMENT);
    in.count = &ids[7];
    ck_assert_int_eq(exf_fold_decode_cpu(&in, &tables.t, &d), EXF_FOLD_BAD_ARGUMENT);
    ck_assert_int_eq(exf_fold_decode_static_cpu(&in, static_ids, w, 8), EXF_FOLD_BAD_ARGUMENT);
    in.count = NULL;
    in.mask = (uint8_t *)w + 3;
    ck_assert_int_eq(exf_fold_decode_cpu(&in, &tables.t, &d), EXF_FOLD_BAD_ARGUMENT);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "padding");
    tcase_add_loop_test(c, padding_counts_for_nothing_and_stays, 0, FORMS * N_FOLD_FEW_SHAPES);
    tcase_add_loop_test(c, an_output_may_be_wider_than_what_is_kept, 0, 3 * N_FOLD_FEW_SHAPES);
    tcase_add_test(c, padding_does_not_enter_a_pool);
    tcase_add_test(c, contradictions_of_padding_are_refused);
}

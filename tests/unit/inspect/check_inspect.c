/* check_inspect.c - src/inspect: geometry and summaries by hand, figures, differences,
 * specifications.  (Verification: check_verify.c; the report: check_report.c.) */
#include "tests/support/inspection_fixtures.h"

#include "inspect/inspection.h"
#include "inspect/figure.h"

static const small_run run = {.l = 2, .e = 6, .k = 2, .n = 60};
static exf_err e; /* of the last call */

static exf_inspection study_of(const char *path, const char *beside)
{
    exf_inspection s;
    ck_ok(exf_inspection_read(&s, exf_scratch(path), beside ? exf_scratch(beside) : NULL, &e), e);
    return s;
}

/* Tables that a test may change before it takes them. */
static exf_inspection taken(exf_tables *t)
{
    exf_inspection s = {0};
    exf_inspection_take_tables(&s, t);
    return s;
}

/* ---- order ------------------------------------------------------------------------- */

START_TEST(quantiles_take_the_lower_of_two)
{
    double x[] = {5, 1, 4, 2}, one[] = {7};
    exf_sort(x, 4);
    ck_assert_double_eq(exf_quantile(x, 4, 0), 1);
    ck_assert_double_eq(exf_quantile(x, 4, 0.25), 1);
    ck_assert_double_eq(exf_quantile(x, 4, 0.5), 2);
    ck_assert_double_eq(exf_quantile(x, 4, 0.99), 4);
    ck_assert_double_eq(exf_quantile(x, 4, 1), 5);
    ck_assert_double_eq(exf_quantile(one, 1, 0.5), 7);
    ck_assert(isnan(exf_quantile(x, 0, 0.5)) && isnan(exf_mean(x, 0)));
    ck_assert_double_eq(exf_mean(x, 4), 3);
}
END_TEST

/* ---- geometry ------------------------------------------------------------------------ */

/* u of norm 2, v of norm 4, <v,u> = 6 on each of 8 tokens. */
START_TEST(geometry_of_two_experts_by_hand)
{
    exf_layer_statistics s;
    float raw[4], aligned[4];
    ck_ok(exf_layer_statistics_new(&s, 2, &e), e);
    for (int i = 0; i < 8; i++) {
        exf_exact_add(&s.dot0[1], 6);
        exf_exact_add(&s.dot0[2], 6);
        exf_exact_add(&s.sq0[1], 4);
        exf_exact_add(&s.sq0[2], 16);
        s.count[1]++;
        s.count[2]++;
    }
    exf_geometry(&s, NULL, raw, aligned);
    double d = sqrt(4 - 12 + 16), a = sqrt(4 * (1 - 36.0 / 64)), b = sqrt(16 * (1 - 36.0 / 64));
    ck_assert_float_eq(raw[0], 1);
    ck_assert_float_eq(aligned[3], 1);
    ck_assert_float_eq(raw[1], 0); /* the farthest pair of the layer */
    ck_assert_float_eq(raw[2], 0);
    ck_assert_float_eq_tol(aligned[1], 1 - (a + b) / 2 / d, 1e-6f);
    ck_assert_float_eq(aligned[2], aligned[1]);
    exf_layer_statistics_free(&s);
}
END_TEST

START_TEST(geometry_is_symmetric_and_aligning_only_helps)
{
    exf_layer_statistics s;
    float raw[36], aligned[36], least = 1;
    ck_ok(exf_layer_statistics_new(&s, run.e, &e), e);
    small_layer(&run, 0, &s);
    exf_geometry(&s, NULL, raw, aligned);
    int unseen = 0;
    for (int i = 0; i < 36; i++) {
        int mirror = i % 6 * 6 + i / 6;
        if (i % 6 == i / 6) {
            ck_assert_float_eq(raw[i], 1);
        } else if (!s.count[i]) {
            unseen++;
            ck_assert(isnan(raw[i]) && isnan(aligned[i]));
        } else {
            ck_assert(raw[i] == raw[mirror] && aligned[i] == aligned[mirror]);
            ck_assert(raw[i] >= 0 && aligned[i] >= raw[i] && aligned[i] <= 1);
            least = raw[i] < least ? raw[i] : least;
        }
    }
    ck_assert_int_eq(unseen, 10 + 10); /* the cold expert's, and who are no neighbours */
    ck_assert_float_eq(least, 0);
    exf_layer_statistics_free(&s);
}
END_TEST

START_TEST(experts_that_agree_are_all_similar)
{
    exf_layer_statistics s;
    float raw[4], aligned[4];
    ck_ok(exf_layer_statistics_new(&s, 2, &e), e);
    for (int i = 1; i < 3; i++) {
        exf_exact_add(&s.dot0[i], 4);
        exf_exact_add(&s.sq0[i], 4);
        s.count[i] = 1;
    }
    exf_geometry(&s, NULL, raw, aligned);
    for (int i = 0; i < 4; i++) ck_assert(raw[i] == 1 && aligned[i] == 1);
    exf_layer_statistics_free(&s);
}
END_TEST

/* ---- studies ----------------------------------------------------------------------------- */

START_TEST(a_study_is_the_same_from_each_kind)
{
    small_files(&run, "s.h5", "t.h5");
    exf_inspection s = study_of("s.h5", NULL), t = study_of("t.h5", NULL), both = study_of("t.h5", "s.h5");
    size_t cells = (size_t)(run.l * run.e * run.e);
    ck_assert(s.kind == &exf_artifact_statistics && t.kind == &exf_artifact_tables);
    ck_assert_mem_eq(s.count, t.count, cells * sizeof *s.count);
    ck_assert_mem_eq(s.similarity, both.similarity, cells * sizeof *s.similarity);
    ck_assert_mem_eq(s.aligned, both.aligned, cells * sizeof *s.aligned);
    ck_assert_mem_eq(t.coeff, both.coeff, cells * sizeof *t.coeff);
    ck_assert(!s.coeff && !t.aligned);
    ck_assert(isnan(s.norms[run.e - 1]) && t.norms[run.e - 1] > 0);
    ck_assert(s.norms[0] == t.norms[0]);
    ck_assert_int_eq(t.n_pools, 1);
    exf_inspection_free(&s);
    exf_inspection_free(&t);
    exf_inspection_free(&both);
    exf_inspection_free(&both);
}
END_TEST

START_TEST(statistics_beside_must_be_those_of_the_tables)
{
    exf_inspection s;
    small_run other = run, wide = run, deep = run;
    other.n++;
    wide.e++;
    deep.l++;
    small_files(&run, "s.h5", "t.h5");
    small_statistics(&other, "other.h5");
    small_statistics(&wide, "wide.h5");
    small_statistics(&deep, "deep.h5");
    ck_fails(exf_inspection_read(&s, exf_scratch("t.h5"), exf_scratch("other.h5"), &e), EXF_MODEL, e,
             "t.h5 1");
    exf_inspection_free(&s);
    ck_fails(exf_inspection_read(&s, exf_scratch("t.h5"), exf_scratch("wide.h5"), &e), EXF_MODEL, e, "2 7");
    exf_inspection_free(&s);
    ck_fails(exf_inspection_read(&s, exf_scratch("t.h5"), exf_scratch("deep.h5"), &e), EXF_MODEL, e, "3 6");
    exf_inspection_free(&s);
    ck_fails(exf_inspection_read(&s, exf_scratch("s.h5"), exf_scratch("s.h5"), &e), EXF_USAGE, e,
             "s.h5");
    exf_inspection_free(&s);
}
END_TEST

/* The recipe may ask for more tokens of a pair than one. */
START_TEST(a_pair_of_too_few_tokens_is_unobserved)
{
    exf_solve_options o = {.rule = {.ridge = 1e-3}};
    exf_tables t;
    small_statistics(&run, "s.h5");
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    uint64_t some = t.count[1];
    exf_tables_free(&t);
    o.min_pair_tokens = some + 1;
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    ck_ok(exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, &e), e);
    exf_tables_free(&t);
    exf_inspection alone = study_of("t.h5", NULL), both = study_of("t.h5", "s.h5");
    ck_assert(alone.count[1] == some && !exf_inspection_observed(&alone, 1) && !exf_inspection_observed(&alone, 0));
    ck_assert(isnan(alone.similarity[1]) && isnan(both.similarity[1]) && isnan(both.aligned[1]));
    for (int i = 0; i < run.l * run.e * run.e; i++) /* the tables' own and ours are one definition */
        ck_assert(isnan(alone.similarity[i]) ? isnan(both.similarity[i]) : alone.similarity[i] == both.similarity[i]);
    exf_inspection_free(&alone);
    exf_inspection_free(&both);
}
END_TEST

START_TEST(a_capture_tells_counts_and_norms)
{
    enum { T = 7, K = 2, H = 3 };
    exf_run_shape shape = {4, K, H, 1, T};
    int32_t number = 5, ids[T * K];
    float weights[T * K], outputs[T * K * H];
    exf_capture_file f;
    exf_provenance p = {0};
    for (int i = 0; i < T; i++) {
        ids[K * i] = 0;
        ids[K * i + 1] = 1 + i % 2;
    }
    for (int i = 0; i < T * K; i++) weights[i] = 0.5f;
    for (int i = 0; i < T * K * H; i++) outputs[i] = i % H == 0 ? 2 : i % H == 1 ? 1 : -2; /* norm 3 */
    ck_ok(exf_capture_create(&f,
            &(exf_capture_plan){.target = exf_scratch("c.h5"), .shape = shape,
                                .layer_number = &number, .n_layers = 1, .provenance = &p}, &e), e);
    ck_ok(exf_capture_put(&f, number, 0, T, ids, weights, outputs, NULL, &e), e);
    ck_ok(exf_capture_commit(&f, &e), e);
    exf_inspection s = study_of("c.h5", NULL);
    static const uint64_t counts[16] = {0, 4, 3, 0, 4, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0}, experts[4] = {7, 4, 3, 0};
    ck_assert_mem_eq(s.count, counts, sizeof counts);
    ck_assert_mem_eq(s.expert_count, experts, sizeof experts);
    ck_assert(s.norms[0] == 3 && s.norms[2] == 3 && isnan(s.norms[3]));
    exf_inspection_free(&s);
}
END_TEST

START_TEST(layers_are_selected_by_their_numbers)
{
    exf_tables t = wide_tables(6, 3, 4);
    float third = t.coeff[3 * 9 + 1], last = t.coeff[5 * 9 + 1];
    exf_inspection s = taken(&t);
    ck_ok(exf_inspection_select(&s, "all", &e), e);
    ck_assert_int_eq(s.n_layers, 6);
    ck_ok(exf_inspection_select(&s, "5,2-3", &e), e);
    ck_assert_int_eq(s.n_layers, 3);
    ck_assert_int_eq(s.layer_number[0], 2);
    ck_assert_int_eq(s.layer_number[2], 5);
    ck_assert(s.coeff[9 + 1] == third && s.coeff[2 * 9 + 1] == last);
    static const char *const bad[] = {"", "2,", ",2", "a", "3-2", "2-", "-2", "2 ", "99999999999999999999", "2,,3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_fails(exf_inspection_select(&s, bad[i], &e), EXF_USAGE, e, "");
    ck_fails(exf_inspection_select(&s, "4", &e), EXF_USAGE, e, "MoE 4");
    ck_assert_int_eq(s.n_layers, 3);
    exf_inspection_free(&s);
}
END_TEST

/* ---- summaries ------------------------------------------------------------------------------- */

/* Three experts, of which 2 is cold: pairs 0 -> 1 and 1 -> 0. */
START_TEST(a_summary_by_hand)
{
    static const float loss[18] = {1e30f, 0.25f,  1e30f,  0.75f, 1e30f, 1e30f,  1e30f,  1e30f, 1e30f,
                                   1e30f, 0.125f, 0.375f, 0.5f,  1e30f, 0.625f, 0.875f, 1,     1e30f};
    exf_layer_summary row[3];
    exf_tables t = wide_tables(2, 3, 100);
    for (int i = 0; i < 18; i++) {
        t.loss[i] = loss[i];
        t.count[i] = loss[i] < EXF_LOSS_NEVER ? (uint64_t)i : 0;
    }
    t.expert_count[2] = 0;
    t.expert_norms[2] = 1000;
    exf_inspection s = taken(&t);
    ck_ok(exf_summarise(&s, row, &e), e);
    ck_assert_int_eq(row[0].layer, 0);
    ck_assert(row[0].observed == 2 && row[0].pairs == 6 && row[0].cold == 1 && row[0].experts == 3);
    ck_assert(row[0].tokens[0] == 1 && row[0].tokens[2] == 1);
    ck_assert(row[0].loss == 0.25 && row[0].below_half == 0.5);
    ck_assert(row[0].best[0] == 0.25 && row[0].best[1] == 0.25);
    ck_assert(row[0].norm_min == 1 && row[0].expert_min == 0 && row[0].norm_max == 2 && row[0].expert_max == 1);
    ck_assert(row[1].observed == 6 && row[1].below_half == 2.0 / 6 && row[1].loss == 0.5);
    ck_assert(row[1].best[0] == 0.125 && row[1].best[1] == 0.5);
    ck_assert_int_eq(row[2].layer, -1);
    ck_assert(row[2].observed == 8 && row[2].pairs == 12 && row[2].cold == 1 && row[2].below_half == 3.0 / 8);
    ck_assert(row[2].loss == 0.5 && row[2].layer_max == 1 && row[2].expert_max == 2 && row[2].norm_max == 6);
    ck_assert(isnan(row[2].similarity) && isnan(row[2].aligned));
    exf_inspection_free(&s);
}
END_TEST

START_TEST(a_summary_of_nothing_is_no_number)
{
    exf_layer_summary row[2];
    exf_tables t = wide_tables(1, 2, 1); /* no pair is seen */
    t.expert_count[0] = t.expert_count[1] = 0;
    exf_inspection s = taken(&t);
    ck_ok(exf_summarise(&s, row, &e), e);
    ck_assert(row[1].observed == 0 && row[1].cold == 2);
    ck_assert(isnan(row[1].loss) && isnan(row[1].best[0]) && isnan(row[1].tokens[1]) && isnan(row[1].below_half));
    ck_assert_double_eq(row[1].norm_min, 1); /* all are cold: the filled-in norms */
    exf_inspection_free(&s);
}
END_TEST

/* ---- figures ------------------------------------------------------------------------------------ */

START_TEST(figures_are_there_where_their_numbers_are)
{
    small_files(&run, "s.h5", "t.h5");
    exf_inspection s = study_of("s.h5", NULL), both = study_of("t.h5", "s.h5");
    for (size_t i = 0; exf_figure_at(i); i++) {
        const exf_figure *f = exf_figure_at(i);
        ck_assert(exf_figure_find(f->name) == f && exf_figure_values(f, &both));
    }
    ck_assert(exf_figure_values(exf_figure_find("aligned"), &s) && exf_figure_values(exf_figure_find("norms"), &s));
    ck_assert(!exf_figure_values(exf_figure_find("scalar"), &s) && !exf_figure_find("nothing"));
    exf_inspection_free(&s);
    exf_inspection_free(&both);
}
END_TEST

START_TEST(scalar_colours_end_at_the_99th_percentile)
{
    double low, high;
    exf_tables t = wide_tables(1, 64, 1000000);
    for (int i = 0, k = 1; i < 64 * 64; i++)
        if (i % 65) {
            t.coeff[i] = (float)(k % 2 ? k : -k);
            k++;
        }
    exf_inspection s = taken(&t);
    ck_ok(exf_figure_range(exf_figure_find("scalar"), &s, 0, &low, &high, &e), e);
    double n = 64 * 63 - 1; /* the pair 0 -> 0 aside, wide_tables leaves cell 0 unseen */
    ck_assert_double_eq_tol(high, 0.99 * n, 2);
    ck_assert_double_eq(low, -high);
    ck_ok(exf_figure_range(exf_figure_find("loss"), &s, 0, &low, &high, &e), e);
    ck_assert(low == 0 && high == 1);
    exf_inspection_free(&s);
}
END_TEST

START_TEST(colours_run_around_values_that_lie_together)
{
    double low, high;
    exf_tables t = wide_tables(1, 64, 1000000);
    for (int i = 0; i < 64 * 64; i++) t.loss[i] = 0.31f + 0.2f * (float)(i % 97) / 96;
    exf_inspection s = taken(&t);
    const exf_figure *loss = exf_figure_find("loss");
    ck_ok(exf_figure_range(loss, &s, 0, &low, &high, &e), e);
    ck_assert_msg(low > 0.28 && low <= 0.3125 && high >= 0.5075 && high < 0.54, "from %g to %g", low, high);
    ck_ok(exf_figure_range(loss, &s, 1, &low, &high, &e), e);
    ck_assert(low > 0.28 && high < 0.54);
    for (int i = 0; i < 64 * 64; i++) s.loss[i] = 0.1f + 0.8f * (float)(i % 97) / 96; /* apart: the whole range, unless asked */
    ck_ok(exf_figure_range(loss, &s, 0, &low, &high, &e), e);
    ck_assert(low == 0 && high == 1);
    ck_ok(exf_figure_range(loss, &s, 1, &low, &high, &e), e);
    ck_assert_msg(low > 0.05 && high < 0.95, "from %g to %g", low, high);
    for (int i = 0; i < 64 * 64; i++) s.loss[i] = 0.25f; /* all equal: in the middle */
    ck_ok(exf_figure_range(loss, &s, 1, &low, &high, &e), e);
    ck_assert(low == -0.25 && high == 0.75);
    exf_inspection_free(&s);
}
END_TEST

START_TEST(numbers_behind_a_figure)
{
    exf_tables t = wide_tables(1, 2, 100);
    char *text;
    size_t n;
    t.count[1] = 0;
    t.loss[1] = EXF_LOSS_NEVER;
    t.coeff[2] = 0.375f;
    t.count[2] = 12;
    exf_inspection s = taken(&t);
    const exf_figure *scalar = exf_figure_find("scalar"), *norms = exf_figure_find("norms");
    ck_ok(exf_figure_csv(scalar, &s, exf_scratch("x.csv"), 0, &e), e);
    ck_ok(exf_file_slurp(exf_scratch("x.csv"), 4096, &text, &n, &e), e);
    ck_assert_str_eq(text, "layer,source,target,tokens,scalar\n0,0,1,0,\n0,1,0,12,0.375\n");
    exf_mem_free(text);
    ck_ok(exf_figure_csv(norms, &s, exf_scratch("n.csv"), 0, &e), e);
    ck_ok(exf_file_slurp(exf_scratch("n.csv"), 4096, &text, &n, &e), e);
    ck_assert_str_eq(text, "layer,expert,tokens,norm\n0,0,10,1\n0,1,11,2\n");
    exf_mem_free(text);
    ck_ok(exf_figure_npy(scalar, &s, exf_scratch("x.npy"), 0, &e), e);
    ck_ok(exf_file_slurp(exf_scratch("x.npy"), 4096, &text, &n, &e), e);
    float back[4];
    memcpy(back, text + 128, sizeof back);
    ck_assert(isnan(back[0]) && isnan(back[1]) && back[2] == 0.375f && isnan(back[3]));
    exf_mem_free(text);
    exf_inspection_free(&s);
}
END_TEST

/* ---- differences ---------------------------------------------------------------------------------- */

START_TEST(tables_do_not_differ_from_themselves)
{
    exf_layer_difference row[3];
    exf_pool_difference pool;
    exf_fact_change fact;
    size_t i = 0, j = 0;
    small_files(&run, "s.h5", "t.h5");
    exf_inspection a = study_of("t.h5", NULL), b = study_of("t.h5", NULL);
    ck_ok(exf_compare(&a, "a", &b, "b", row, &e), e);
    ck_assert(row[2].flips == 0 && row[2].flip_traffic == 0 && row[2].scalar[3] == 0 && row[2].loss[3] == 0 && row[2].norm == 0);
    ck_assert(row[2].gained == 0 && row[2].lost == 0 && row[2].observed_a == row[0].observed_b + row[1].observed_a);
    ck_assert(exf_compare_pool(&a, 0, &b, &pool) && pool.members == 0 && pool.target_traffic == 0 && pool.places == 4);
    ck_assert(!exf_next_fact_change(&a.provenance, &b.provenance, &i, &j, &fact));
    ck_assert(exf_same_numbers(&a, &b));
    exf_inspection_free(&a);
    exf_inspection_free(&b);
}
END_TEST

/* Sources 0, 1, 2 with 10, 11, 12 tokens in a and b; 0 flips, 1 loses its only pair. */
START_TEST(differences_by_hand)
{
    exf_layer_difference row[2];
    exf_tables x = wide_tables(1, 3, 100), y = wide_tables(1, 3, 100);
    static const float loss_a[9] = {1e30f, 0.25f, 0.5f, 0.5f, 1e30f, 1e30f, 0.5f, 0.75f, 1e30f};
    static const float loss_b[9] = {1e30f, 0.75f, 0.5f, 1e30f, 1e30f, 1e30f, 0.5f, 0.75f, 1e30f};
    for (int i = 0; i < 9; i++) {
        x.loss[i] = loss_a[i];
        y.loss[i] = loss_b[i];
        x.count[i] = loss_a[i] < EXF_LOSS_NEVER;
        y.count[i] = loss_b[i] < EXF_LOSS_NEVER;
        y.coeff[i] = x.coeff[i] = 0.5f;
    }
    y.coeff[7] = 0.75f;
    y.expert_norms[1] = 3;
    exf_inspection a = taken(&x), b = taken(&y);
    ck_ok(exf_compare(&a, "a", &b, "b", row, &e), e);
    for (int i = 0; i < 2; i++) {
        ck_assert(row[i].observed_a == 5 && row[i].observed_b == 4 && row[i].lost == 1 && row[i].gained == 0);
        ck_assert(row[i].scalar[0] == 0 && row[i].scalar[3] == 0.25 && row[i].loss[3] == 0.5);
        ck_assert(row[i].flips == 2 && row[i].sources == 3 && row[i].norm == 0.5);
        ck_assert_double_eq_tol(row[i].flip_traffic, 21.0 / 33, 1e-15);
    }
    ck_assert(row[0].layer == 0 && row[1].layer == -1);
    ck_assert(!exf_same_numbers(&a, &b));
    exf_inspection_free(&a);
    exf_inspection_free(&b);
}
END_TEST

START_TEST(only_tables_of_one_shape_are_compared)
{
    exf_layer_difference row[3];
    exf_tables x = wide_tables(2, 3, 100), wide = wide_tables(2, 4, 100), flat = wide_tables(1, 3, 100),
               other = wide_tables(2, 3, 100);
    other.layer_number[1] = 7;
    small_files(&run, "s.h5", "t.h5");
    exf_inspection a = taken(&x), b = taken(&wide), c = taken(&flat), d = taken(&other), s = study_of("s.h5", NULL);
    ck_fails(exf_compare(&a, "a", &b, "b", row, &e), EXF_MODEL, e, "3 4");
    ck_fails(exf_compare(&a, "a", &c, "b", row, &e), EXF_MODEL, e, "2 1");
    ck_fails(exf_compare(&a, "a", &d, "b", row, &e), EXF_MODEL, e, "1 7");
    ck_fails(exf_compare(&a, "a", &s, "b", row, &e), EXF_MODEL, e, "");
    exf_inspection *const all[] = {&a, &b, &c, &d, &s};
    for (int i = 0; i < 5; i++) exf_inspection_free(all[i]);
}
END_TEST

START_TEST(facts_that_changed_come_in_order_of_key)
{
    exf_provenance a = {0}, b = {0};
    exf_fact_change f;
    size_t i = 0, j = 0;
    add_fact(&a, "b", "1");
    add_fact(&a, "c", "2");
    add_fact(&a, "z", "3");
    add_fact(&b, "a", "0");
    add_fact(&b, "b", "1");
    add_fact(&b, "c", "4");
    ck_assert(exf_next_fact_change(&a, &b, &i, &j, &f) && strcmp(f.key, "a") == 0 && !f.a && strcmp(f.b, "0") == 0);
    ck_assert(exf_next_fact_change(&a, &b, &i, &j, &f) && strcmp(f.key, "c") == 0 && strcmp(f.a, "2") == 0 &&
              strcmp(f.b, "4") == 0);
    ck_assert(exf_next_fact_change(&a, &b, &i, &j, &f) && strcmp(f.key, "z") == 0 && !f.b);
    ck_assert(!exf_next_fact_change(&a, &b, &i, &j, &f));
    exf_provenance_free(&a);
    exf_provenance_free(&b);
}
END_TEST

START_TEST(pools_are_compared_by_size)
{
    static const int64_t sizes[] = {3, 2}, other[] = {4};
    exf_solve_options o = {.rule = {.ridge = 1e-3}, .pools = sizes, .n_pools = 2};
    exf_tables x, y, z;
    exf_pool_difference d;
    small_statistics(&run, "s.h5");
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &x, &e), e);
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &y, &e), e);
    o.pools = other;
    o.n_pools = 1;
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &z, &e), e);
    exf_inspection a = taken(&x), b = taken(&y), c = taken(&z);
    exf_static_pool *two = &b.pool[1];
    int32_t stays = two->members[0], gone = two->members[1], comes = 0;
    while (comes == stays || comes == gone) comes++;
    two->members[1] = comes;
    two->target_ids[gone] = stays;
    ck_assert(exf_compare_pool(&a, 1, &b, &d) && d.size == 2 && d.members == 1 && d.places == 4);
    double all = 0;
    for (int i = 0; i < 2 * run.e; i++) all += (double)a.expert_count[i];
    ck_assert_double_eq_tol(d.target_traffic, (double)a.expert_count[gone] / all, 1e-12);
    ck_assert(!exf_same_numbers(&a, &b));
    ck_assert(!exf_compare_pool(&a, 0, &c, &d));
    exf_inspection_free(&a);
    exf_inspection_free(&b);
    exf_inspection_free(&c);
}
END_TEST

/* ---- specifications --------------------------------------------------------------------------------- */

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "inspect");
    tcase_add_checked_fixture(c, start_empty, NULL);
    tcase_add_test(c, quantiles_take_the_lower_of_two);
    tcase_add_test(c, geometry_of_two_experts_by_hand);
    tcase_add_test(c, geometry_is_symmetric_and_aligning_only_helps);
    tcase_add_test(c, experts_that_agree_are_all_similar);
    tcase_add_test(c, a_study_is_the_same_from_each_kind);
    tcase_add_test(c, statistics_beside_must_be_those_of_the_tables);
    tcase_add_test(c, a_pair_of_too_few_tokens_is_unobserved);
    tcase_add_test(c, a_capture_tells_counts_and_norms);
    tcase_add_test(c, layers_are_selected_by_their_numbers);
    tcase_add_test(c, a_summary_by_hand);
    tcase_add_test(c, a_summary_of_nothing_is_no_number);
    tcase_add_test(c, figures_are_there_where_their_numbers_are);
    tcase_add_test(c, scalar_colours_end_at_the_99th_percentile);
    tcase_add_test(c, colours_run_around_values_that_lie_together);
    tcase_add_test(c, numbers_behind_a_figure);
    tcase_add_test(c, tables_do_not_differ_from_themselves);
    tcase_add_test(c, differences_by_hand);
    tcase_add_test(c, only_tables_of_one_shape_are_compared);
    tcase_add_test(c, facts_that_changed_come_in_order_of_key);
    tcase_add_test(c, pools_are_compared_by_size);
}

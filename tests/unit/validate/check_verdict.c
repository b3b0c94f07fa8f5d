/* check_verdict.c - validate/validation_findings: which variants are compared, and what is said of them. */
#include "tests/support/validation_fixtures.h"

#include "validate/validation.h"

typedef exf_validate_report report;

enum { CLUSTERS = 4 };
static uint64_t tokens[CLUSTERS] = {100, 100, 100, 100};
static double sums[RESULTS_MOST][CLUSTERS], nlls[RESULTS_MOST][CLUSTERS];
static exf_batch_size batch_sizes[2] = {{8, 7.5, 6.7, NULL}, {16, 9.3, 19.3, NULL}};
static results *r;

static void start(void)
{
    r = results_begin();
    r->v.n_clusters = CLUSTERS;
    r->v.clusters_are_documents = 1;
    r->v.cluster_tokens = tokens;
    r->v.batch_size = batch_sizes;
    r->v.n_batch_sizes = 2;
    r->variant[0].kl = sums[0];
    r->variant[0].nll = nlls[0];
    memset(sums, 0, sizeof sums);
    memset(nlls, 0, sizeof nlls);
}

/* Adds a variant of this mean KL, which differs from document to document by `spread` up and down. */
static exf_variant_result *add(const char *name, exf_lane_role role, double kl, double spread)
{
    size_t i = r->v.n_variants;
    exf_variant_result *v = results_add(r, name, kl, 2, 8);
    v->role = role;
    v->kl = sums[i];
    v->nll = nlls[i];
    for (int c = 0; c < CLUSTERS; c++) v->kl[c] = 100 * (kl + (c % 2 ? spread : -spread));
    return v;
}

/* Makes the report of the rows, of which the tables' gains are asked; the words of the verdict must be `want`. */
static report found(const char *want)
{
    static exf_cost_model cost;
    static exf_architecture arch;
    static exf_provenance facts;
    exf_err e;
    report made = {.of = {.v = &r->v, .cost = &cost, .a = &arch, .family = "toy"}, .facts = &facts, .compares = 1};
    arch = (exf_architecture){.n_layers = 1, .n_experts = 16, .top_k = 4};
    ck_ok(exf_validate_report_make(&made, &e), e);
    ck_assert_str_eq(made.found[EXF_FOUND_VERDICT].s, want);
    return made;
}

/* A difference of 0.001 up and down has a half-width of 3.18 * 0.001 / sqrt(3). */
START_TEST(a_gain_is_over_the_best_baseline)
{
    start();
    add("P3", EXF_LANE_ASKED, 0.05, 0.02);
    add("P3:projector=joint", EXF_LANE_ASKED, 0.0625, 0.02);
    add("top3:drop", EXF_LANE_BASELINE, 0.08, 0.02);
    add("top3:renorm", EXF_LANE_ASKED, 0.0625, 0.021); /* asked for, and a baseline all the same */
    add("random3", EXF_LANE_BASELINE, 0.07, 0.02);
    add("top2:renorm", EXF_LANE_BASELINE, 0.01, 0.02); /* of another P */
    add("P3+D8", EXF_LANE_ASKED, 0.06, 0.02);
    add("P3:layer=1", EXF_LANE_ASKED, 0.06, 0.02);
    add("D4", EXF_LANE_ASKED, 0.06, 0.02); /* has no baseline */
    report d = found("The tables gain KL beyond the noise in 1 of 2 rows, 20.0 % of the baseline's; they are worth nothing in "
                          "P3:projector=joint\n"
                          "P3 gains 0.0125 ± 0.0018 nats of KL, 20.0 % of it, over top3:renorm, its best baseline: beyond the "
                          "noise\n"
                          "Not recommended, since the plain fold does better beyond the noise at no more cost: "
                          "P3:projector=joint (KL 0.0625, P3 0.0500)\n");
    for (size_t i = 0; i < r->v.n_variants; i++) ck_assert_uint_eq(d.row[i].baseline, i == 1 || i == 2 ? 4 : 0);
    ck_assert(fabs(d.row[1].gain.mean - 0.0125) <= 1e-12 && fabs(d.row[2].gain.mean) <= 1e-12);
    exf_validate_report_free(&d);
}
END_TEST

/* The best rows head the verdict; small effects are told beside many rows beyond the noise. */
START_TEST(the_best_rows_speak_and_effects_are_told)
{
    start();
    add("P2", EXF_LANE_ASKED, 0.11, 0.02);
    add("random2", EXF_LANE_BASELINE, 0.1, 0.02);
    add("P2:projector=joint", EXF_LANE_ASKED, 0.08, 0.02);
    add("P3", EXF_LANE_ASKED, 0.0491, 0.02);
    add("random3", EXF_LANE_BASELINE, 0.05, 0.02);
    report d = found("The tables gain KL beyond the noise in 2 of 3 rows, 1.8 to 20.0 % of the baseline's; they do harm in "
                          "P2\n"
                          "P2:projector=joint gains 0.0200 ± 0.0000 nats of KL, 20.0 % of it, over random2, its best baseline: "
                          "beyond the noise\n");
    exf_validate_report_free(&d);
}
END_TEST

START_TEST(what_is_within_the_noise_is_worth_nothing)
{
    start();
    exf_variant_result *p = add("P3", EXF_LANE_ASKED, 0.095, 0.02), *b = add("random3", EXF_LANE_BASELINE, 0.096, 0.0217);
    for (int c = 0; c < CLUSTERS; c++) p->nll[c] = 200 + c, b->nll[c] = 204 + c;
    report d = found("P3: these tables are worth nothing here: KL 0.0950, random3 0.0960, difference 0.0010 ± 0.0031, within "
                          "the noise\n");
    exf_difference log_ppl = exf_log_ppl_difference(&r->v, 2, 1);
    ck_assert(fabs(log_ppl.mean - 0.04) <= 1e-12 && log_ppl.half_width <= 1e-12);
    exf_validate_report_free(&d);
    start();
    add("P3", EXF_LANE_ASKED, 0.105, 0.02);
    add("random3", EXF_LANE_BASELINE, 0.096, 0.0217);
    d = found("P3: these tables do harm here: KL 0.1050, random3 0.0960, worse by 0.0090 ± 0.0031, beyond the noise\n");
    exf_validate_report_free(&d);
    start();
    add("P3", EXF_LANE_ASKED, 0.0501, 0.02);
    add("random3", EXF_LANE_BASELINE, 0.0500996, 0.0203); /* two digits of the half-width, and no "-0.0000" */
    d = found("P3: these tables are worth nothing here: KL 0.05010, random3 0.05010, difference 0.00000 ± 0.00055, within the "
              "noise\n");
    exf_validate_report_free(&d);
    start();
    add("P3", EXF_LANE_ASKED, 0.105, 0.02);
    add("random3", EXF_LANE_BASELINE, 0.096, 0.0217);
    r->v.n_clusters = 1;
    d = found("P3: KL 0.1050, random3 0.0960; one document cannot tell what is noise\n");
    exf_validate_report_free(&d);
}
END_TEST

START_TEST(decode_rows_have_the_baselines_of_their_batch)
{
    start();
    add("D8", EXF_LANE_ASKED, 0.05, 0.02)->batch = 1;
    add("D8:fold=drop", EXF_LANE_BASELINE, 0.01, 0.02); /* of the other batches */
    add("D8:fold=drop,rank=energy", EXF_LANE_BASELINE, 0.06, 0.02)->batch = 1;
    add("D8:pool=static,fold=drop", EXF_LANE_BASELINE, 0.01, 0.02)->batch = 1;
    add("D4:fold=drop", EXF_LANE_BASELINE, 0.01, 0.02)->batch = 1;
    add("top3:drop", EXF_LANE_BASELINE, 0.01, 0.02);
    add("D8:targets=router,weights=gate", EXF_LANE_ASKED, 0.04, 0.02)->batch = 1; /* folds, but by no table */
    report d = found("D8 gains 0.0100 ± 0.0000 nats of KL, 16.7 % of it, over D8:fold=drop,rank=energy, its best baseline: "
                          "beyond the noise\n");
    ck_assert(d.row[1].baseline == 3 && d.row[1].kind == EXF_ROW_DECODE && !d.row[7].baseline);
    exf_validate_report_free(&d);
}
END_TEST

/* Both together have baselines of both, and speak for neither. */
START_TEST(a_pair_of_folds_has_pairs_of_baselines)
{
    start();
    add("P3+D8", EXF_LANE_ASKED, 0.05, 0.02);
    add("top3:drop+D8:fold=drop", EXF_LANE_BASELINE, 0.07, 0.02);
    add("top3:drop", EXF_LANE_BASELINE, 0.01, 0.02);
    add("D8:fold=drop", EXF_LANE_BASELINE, 0.01, 0.02);
    add("top3:drop+D8", EXF_LANE_ASKED, 0.01, 0.02); /* decode by the tables */
    add("P3", EXF_LANE_ASKED, 0.0625, 0.02);
    report d = found("The tables gain KL beyond the noise in 1 of 2 rows, 28.6 % of the baseline's; they do harm in P3\n"
                          "P3: these tables do harm here: KL 0.0625, top3:drop 0.0100, worse by 0.0525 ± 0.0000, beyond "
                          "the noise\n");
    ck_assert(d.row[1].baseline == 2 && d.row[1].kind == EXF_ROW_BOTH && d.row[6].baseline == 3);
    exf_validate_report_free(&d);
}
END_TEST

START_TEST(what_is_not_constrained_has_no_verdict)
{
    start();
    exf_variant_result *v = add("D8", EXF_LANE_ASKED, 0.00001, 0);
    add("D8:fold=drop", EXF_LANE_BASELINE, 0.00002, 0);
    v->constraint = EXF_FEW_EXPERTS;
    report d = found("D8: no verdict: the original's batches of 8 run 6.7 experts, so that nothing is left out\n");
    ck_assert(!d.row[1].baseline);
    exf_validate_report_free(&d);
    v->constraint = EXF_SHORT_BATCHES;
    v->batch = r->variant[2].batch = 1;
    d = found("D8: no verdict: batches of 16 were asked for, and a token has 9.3 sequences side by side\n");
    exf_validate_report_free(&d);
    start();
    add("P3", EXF_LANE_ASKED, 0.05, 0.02);
    d = found("No baseline ran at the same P or D: what the tables gain is not known\n");
    exf_validate_report_free(&d);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, a_gain_is_over_the_best_baseline);
    tcase_add_test(t, the_best_rows_speak_and_effects_are_told);
    tcase_add_test(t, what_is_within_the_noise_is_worth_nothing);
    tcase_add_test(t, decode_rows_have_the_baselines_of_their_batch);
    tcase_add_test(t, a_pair_of_folds_has_pairs_of_baselines);
    tcase_add_test(t, what_is_not_constrained_has_no_verdict);
}

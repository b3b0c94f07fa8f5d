/* check_coverage.c - how much of the traffic is well observed, how much more text would do, and which targets are stable. */
#include "tests/support/fixtures.h"

#include "solve/solve_internal.h"

#include <math.h>

#define NO EXF_LOSS_NEVER

enum { E = 3 };

static exf_err e; /* of the last call */

/* One layer of tables whose pairs have these tokens; pairs with tokens have a loss. */
static exf_tables tables_of(const uint64_t *count, int64_t n_tokens)
{
    static const int32_t number = 7;
    exf_run_shape shape = {E, 2, 8, 4, n_tokens};
    exf_tables t;
    ck_ok(exf_tables_new(&t, &shape, &number, 1, NULL, 0, &e), e);
    for (int i = 0; i < E * E; i++) {
        t.count[i] = count[i];
        t.loss[i] = count[i] ? 0.5f : NO;
        t.expert_count[i / E] += count[i];
    }
    return t;
}

START_TEST(the_share_is_of_the_tokens_of_pairs)
{
    exf_tables t = tables_of((uint64_t[]){0, 60, 30, 60, 0, 10, 30, 10, 0}, 100);
    ck_assert_double_eq(exf_coverage_of(&t, 0, 1).share, 1);
    ck_assert_double_eq(exf_coverage_of(&t, 0, 30).share, 0.9);
    ck_assert_double_eq(exf_coverage_of(&t, 0, 31).share, 0.6);
    ck_assert_double_eq(exf_coverage_of(&t, 0, 61).share, 0);
    t.loss[1] = NO; /* a pair that is left out is not observed, however many tokens it has */
    exf_layer_coverage c = exf_coverage_of(&t, 0, 31);
    ck_assert_double_eq(c.share, 0.3);
    ck_assert_uint_eq(c.thin, 1);
    ck_assert_uint_eq(c.observed, 5);
    ck_assert_uint_eq(c.cold, 0);
    exf_tables_free(&t);
}
END_TEST

/* A layer without pairs is covered where a token has one expert, and not where it has more. */
START_TEST(without_pairs_there_is_no_share)
{
    exf_tables t = tables_of((uint64_t[E * E]){0}, 10);
    ck_assert_double_eq(exf_coverage_of(&t, 0, 1).share, 0);
    t.shape.top_k = 1;
    ck_assert_double_eq(exf_coverage_of(&t, 0, 1).share, 1);
    exf_tables_free(&t);
}
END_TEST

/* So much more text gives the pairs of that share their tokens. */
START_TEST(how_much_text_would_do)
{
    double needed;
    exf_tables t = tables_of((uint64_t[]){0, 60, 30, 60, 0, 10, 30, 10, 0}, 100);
    ck_ok(exf_coverage_tokens(&t, 0, 120, 0.5, &needed, &e), e); /* the pair of 60 tokens has 60 % */
    ck_assert_double_eq(needed, 200);
    ck_ok(exf_coverage_tokens(&t, 0, 121, 0.9, &needed, &e), e); /* that of 30 tokens: 403.3, in two digits */
    ck_assert_double_eq(needed, 410);
    exf_tables_free(&t);
    t = tables_of((uint64_t[]){0, 1, 0, 1, 0, 0, 0, 0, 0}, 1); /* too few tell nothing: as if all pairs were alike */
    ck_ok(exf_coverage_tokens(&t, 0, 32, 0.5, &needed, &e), e);
    ck_assert_double_eq(needed, 96); /* 32 tokens of each of 3 x 2 pairs, of which a token has 2 x 1 */
    exf_tables_free(&t);
}
END_TEST

START_TEST(stable_targets_are_those_of_both_halves)
{
    static const float whole[] = {NO, .1f, .2f, .1f, NO, .2f, .3f, .3f, NO};
    static const float one[] = {NO, .2f, .2f, .3f, NO, .1f, .3f, .3f, NO};   /* targets 1, 2, 0: ties to the lower number */
    static const float other[] = {NO, .1f, .3f, .1f, NO, .2f, NO, .3f, NO}; /* targets 1, 0, 1 */
    static const uint64_t tokens[] = {50, 30, 20};
    const float *half[2] = {one, other};
    exf_stability s = exf_stability_of(whole, half, tokens, E);
    ck_assert_uint_eq(s.tokens, 100);
    ck_assert_uint_eq(s.stable, 50);
    const float unseen[] = {NO, NO, NO, .1f, NO, NO, NO, NO, NO}; /* a half that saw no target of a source agrees with none */
    half[0] = half[1] = unseen;
    s = exf_stability_of(whole, half, tokens, E);
    ck_assert_uint_eq(s.stable, 30);
    s = exf_stability_of(unseen, half, tokens, E); /* of a source without a target there is nothing to say */
    ck_assert_uint_eq(s.tokens, 30);
}
END_TEST

/* What tables say of themselves. */
START_TEST(small_calibrations_say_so)
{
    exf_tables t = tables_of((uint64_t[]){0, 60, 30, 60, 0, 10, 30, 10, 0}, 100);
    ck_ok(exf_coverage_facts(&t, 0, &e), e); /* statistics that know no halves */
    ck_assert_uint_eq(t.provenance.n, 0);
    ck_ok(exf_coverage_facts(&t, 1, &e), e);
    ck_assert_ptr_nonnull(strstr(exf_provenance_get(&t.provenance, EXF_SMALL_FACT), "one of the two halves"));
    ck_assert_ptr_null(exf_provenance_get(&t.provenance, EXF_STABLE_FACT));
    ck_assert_str_eq(exf_provenance_get(&t.provenance, EXF_HALVES_FACT), "1");
    exf_tables_free(&t);
    t = tables_of((uint64_t[]){0, 20, 0, 20, 0, 4, 0, 4, 0}, 24);
    ck_ok(exf_tables_add_halves(&t, &e), e);
    for (int i = 0; i < E * E; i++) t.half_loss[0][i] = t.half_loss[1][i] = t.loss[i];
    ck_ok(exf_coverage_facts(&t, 1, &e), e);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, EXF_STABLE_FACT), "1.0000");
    ck_assert_ptr_null(exf_provenance_get(&t.provenance, EXF_HALVES_FACT));
    ck_assert_str_eq(exf_provenance_get(&t.provenance, EXF_SMALL_FACT),
                     "0 % of layer 7's pair traffic is in pairs of 32 tokens or more, expected 50 %: the text has 24 tokens, "
                     "about 39 would do");
    exf_tables_free(&t);
}
END_TEST

/* Adds halves with these scalars and losses. */
static exf_tables halved(const float *scalar, const float *one, const float *other)
{
    exf_tables t = tables_of((uint64_t[]){0, 60, 60, 60, 0, 60, 60, 60, 0}, 1000);
    ck_ok(exf_tables_add_halves(&t, &e), e);
    for (int half = 0; half < 2; half++) memcpy(t.half_scalar[half], scalar, E * E * sizeof *scalar);
    memcpy(t.half_loss[0], one, E * E * sizeof *one);
    memcpy(t.half_loss[1], other, E * E * sizeof *other);
    memcpy(t.expert_count, (const uint64_t[]){400, 300, 300}, E * sizeof *t.expert_count);
    return t;
}

static const float ones[E * E] = {1, 1, 1, 1, 1, 1, 1, 1, 1};

/* The loss of the other half's choice is that of sums: of outputs u into v, |u - s v|^2 / |u|^2. */
START_TEST(a_choice_costs_what_its_sums_lose)
{
    const double uu[2] = {2, 3}, vv[2] = {1.5, 2.5}, uv[2] = {1.2, 1.1};
    float scalar[2][4], loss[2][4];
    double own = 0, choice = 0, s[2];
    for (int h = 0; h < 2; h++) {
        s[h] = uv[h] / vv[h];
        for (int i = 0; i < 4; i++) scalar[h][i] = 0, loss[h][i] = NO;
        scalar[h][1] = (float)s[h];
        loss[h][1] = (float)(1 - uv[h] * uv[h] / vv[h] / uu[h]);
    }
    for (int h = 0; h < 2; h++) {
        own += 7 * (1 - uv[h] * uv[h] / vv[h] / uu[h]);
        choice += 7 * (1 - 2 * s[!h] * uv[h] / uu[h] + s[!h] * s[!h] * vv[h] / uu[h]);
    }
    exf_choice_sums sums = {.own = 0};
    const float *const scalars[2] = {scalar[0], scalar[1]}, *const losses[2] = {loss[0], loss[1]};
    ck_assert(isnan(exf_choice_cost(&sums)));
    exf_choice_add(&sums, scalars, losses, (const uint64_t[]){7, 5}, 2);
    ck_assert_double_eq_tol(sums.own, own, 1e-5);
    ck_assert_double_eq_tol(sums.choice, choice, 1e-5);
    ck_assert_double_eq_tol(exf_choice_cost(&sums), (choice - own) / 14, 1e-5);
}
END_TEST

/* What one half never saw a target of, the other loses whole; a pair that only the chooser saw too. */
START_TEST(a_choice_without_evidence_loses_all)
{
    static const float one[] = {NO, .2f, NO, NO}, none[] = {NO, NO, NO, NO}, all[] = {1, 1, 1, 1};
    const float *const scalars[2] = {all, all}, *const losses[2] = {one, none};
    exf_choice_sums sums = {.own = 0};
    exf_choice_add(&sums, scalars, losses, (const uint64_t[]){10, 10}, 2);
    ck_assert_double_eq_tol(sums.own, 2, 1e-6);
    ck_assert_double_eq_tol(sums.choice, 10, 1e-6);
    ck_assert_double_eq_tol(exf_choice_cost(&sums), 0.8, 1e-6);
}
END_TEST

/* Where experts are almost copies, the best target loses next to nothing, and any other not much more. */
START_TEST(copies_are_enough_whatever_is_chosen)
{
    static const float one[] = {NO, .001f, .02f, .001f, NO, .02f, .001f, .02f, NO};
    static const float other[] = {NO, .02f, .001f, .02f, NO, .001f, .02f, .001f, NO};
    exf_text why = {0};
    exf_tables t = halved(ones, one, other);
    ck_ok(exf_coverage_lacks(&why, &t, 0, 32, 0.5, &e), e);
    ck_assert_uint_eq(why.len, 0);
    ck_ok(exf_coverage_facts(&t, 1, &e), e);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, EXF_COST_FACT), "0.0190");
    exf_tables_free(&t);
}
END_TEST

/* Halves that choose other targets for all of the traffic are enough where these are as good, and not where they are not. */
START_TEST(other_targets_that_are_as_good_are_enough)
{
    static const float one[] = {NO, .50f, .51f, .50f, NO, .51f, .50f, .51f, NO};
    static const float other[] = {NO, .51f, .50f, .51f, NO, .50f, .51f, .50f, NO};
    static const float worse[] = {NO, .93f, .30f, .93f, NO, .30f, .93f, .30f, NO};
    exf_text why = {0};
    exf_tables t = halved(ones, one, other);
    ck_ok(exf_coverage_lacks(&why, &t, 0, 32, 0.5, &e), e);
    ck_assert_uint_eq(why.len, 0);
    ck_ok(exf_coverage_facts(&t, 1, &e), e);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, EXF_STABLE_FACT), "0.0000");
    ck_assert_str_eq(exf_provenance_get(&t.provenance, EXF_COST_FACT), "0.0100");
    ck_assert_ptr_null(exf_provenance_get(&t.provenance, EXF_SMALL_FACT));
    exf_tables_free(&t);
    t = halved(ones, one, worse); /* (0.63 + 0.01) / 2, about */
    ck_ok(exf_coverage_lacks(&why, &t, 0, 32, 0.5, &e), e);
    ck_assert_ptr_nonnull(strstr(why.s, "lose 32 % of the experts' output more on the other half than its own, expected at most "
                                        "25 %: the text has 1000 tokens, about "));
    exf_text_free(&why);
    why = (exf_text){0};
    ck_ok(exf_coverage_lacks(&why, &t, 1, 32, 0, &e), e); /* 0: any text is enough */
    ck_assert_uint_eq(why.len, 0);
    exf_text_free(&why);
    exf_tables_free(&t);
}
END_TEST

/* A text whose sequences are of one document says so. */
START_TEST(one_document_cannot_be_judged)
{
    exf_tables t = tables_of((uint64_t[]){0, 60, 60, 60, 0, 60, 60, 60, 0}, 1000);
    ck_ok(exf_provenance_add(&t.provenance, &e, EXF_DOCUMENTS_FACT, "1"), e);
    ck_ok(exf_coverage_facts(&t, 1, &e), e);
    ck_assert_ptr_nonnull(strstr(exf_provenance_get(&t.provenance, EXF_SMALL_FACT), "of 1 document"));
    exf_tables_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, the_share_is_of_the_tokens_of_pairs);
    tcase_add_test(t, without_pairs_there_is_no_share);
    tcase_add_test(t, how_much_text_would_do);
    tcase_add_test(t, stable_targets_are_those_of_both_halves);
    tcase_add_test(t, small_calibrations_say_so);
    tcase_add_test(t, a_choice_costs_what_its_sums_lose);
    tcase_add_test(t, a_choice_without_evidence_loses_all);
    tcase_add_test(t, other_targets_that_are_as_good_are_enough);
    tcase_add_test(t, copies_are_enough_whatever_is_chosen);
    tcase_add_test(t, one_document_cannot_be_judged);
}

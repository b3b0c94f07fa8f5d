/* check_uncertainty.c - standard errors by clusters against a bootstrap, paired differences, and Student's quantiles. */
#include "tests/support/naive.h"
#include "tests/support/validation_fixtures.h"

#include "base/mem.h"
#include "validate/validate.h"

#include <stdlib.h>

/* ---- Student's distribution ----------------------------------------------------------------- */

START_TEST(quantiles_are_students)
{
    static const struct {
        uint64_t df;
        double want;
    } known[] = {{1, 12.7062047361747},   {2, 4.30265272974946},   {3, 3.18244630528371},       {4, 2.77644510519779},
                 {5, 2.57058183563632},   {9, 2.26215716279820},   {10, 2.22813885198627},      {30, 2.04227245630124},
                 {39, 2.02269092003676},  {99, 1.98421695158642},  {100, 1.98397151852355},     {120, 1.97993040508242},
                 {1000, 1.96233908082641}, {1000000, 1.95996635681}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double got = exf_student_quantile(known[i].df);
        ck_assert_msg(fabs(got - known[i].want) <= 1e-9 * known[i].want, "%llu degrees of freedom: %.12f, expected %.12f",
                      (unsigned long long)known[i].df, got, known[i].want);
    }
    for (uint64_t df = 1; df < 300; df++) ck_assert(exf_student_quantile(df) > exf_student_quantile(df + 1));
}
END_TEST

/* ---- by hand --------------------------------------------------------------------------------- */

/* Three clusters of 25, 25 and 50 tokens, the last of another domain, and one without tokens. */
static uint64_t tokens[] = {25, 25, 50, 0};
static int32_t domains[] = {0, 0, 1, 1};

static results *three_clusters(double (*kl)[4], double (*nll)[4])
{
    results *r = results_begin();
    results_add(r, "P3", 0.125, 3, 16);
    results_add(r, "random3", 0.1, 3, 16);
    r->v.n_clusters = 4;
    r->v.cluster_tokens = tokens;
    for (int i = 0; i < 3; i++) {
        r->variant[i].kl = kl[i];
        r->variant[i].nll = nll[i];
    }
    return r;
}

static void near(double got, double want)
{
    ck_assert_msg(fabs(got - want) <= 1e-12 * fabs(want), "%.17g, expected %.17g", got, want);
}

START_TEST(means_and_differences_by_hand)
{
    double kl[3][4] = {{0}, {2.5, 5, 5, 0}, {2, 4, 4, 0}}, nll[3][4] = {{50, 50, 100, 0}, {51, 52, 102, 0}, {51, 52, 102, 0}};
    results *r = three_clusters(kl, nll);
    /* residuals -0.625, 1.875, -1.25; of the difference -0.125, 0.375, -0.25 */
    exf_difference d = exf_kl_difference(&r->v, 1, 0);
    near(d.mean, 0.125);
    near(d.se, sqrt(1.5 * (0.390625 + 3.515625 + 1.5625)) / 100);
    near(d.half_width, exf_student_quantile(2) * d.se);
    ck_assert(exf_beyond_noise(&d));
    d = exf_kl_difference(&r->v, 1, 2);
    near(d.mean, 0.025);
    near(d.se, sqrt(1.5 * (0.015625 + 0.140625 + 0.0625)) / 100);
    exf_difference back = exf_kl_difference(&r->v, 2, 1);
    ck_assert(back.mean == -d.mean && back.half_width == d.half_width);
    d = exf_log_ppl_difference(&r->v, 1, 0);
    near(d.mean, 0.05);
    near(d.se, sqrt(1.5 * (0.0625 + 0.5625 + 0.25)) / 100);
    d = exf_log_ppl_difference(&r->v, 1, 2);
    ck_assert(d.mean == 0 && d.half_width == 0 && !exf_beyond_noise(&d));
}
END_TEST

START_TEST(groups_count_their_own_clusters)
{
    double kl[4] = {2.5, 5, 5, 0};
    exf_cluster_sums s = {.sum = kl, .tokens = tokens, .group = domains, .n = 4};
    exf_difference d = exf_cluster_mean(&s);
    near(d.mean, 0.15);
    near(d.se, sqrt(2 * 2 * 1.25 * 1.25) / 50); /* two clusters of 25 tokens with 2.5 and 5 */
    s.which = 1; /* two clusters, of which one has tokens */
    d = exf_cluster_mean(&s);
    ck_assert(d.mean == 0.1 && isnan(d.se) && isnan(d.half_width));
    s.which = 2;
    d = exf_cluster_mean(&s);
    ck_assert(isnan(d.mean) && isnan(d.se) && isnan(d.half_width));
}
END_TEST

START_TEST(one_cluster_tells_nothing)
{
    double kl[3][4] = {{0}, {2.5, 0, 0, 0}, {0}}, nll[3][4] = {{50, 0, 0, 0}, {51, 0, 0, 0}, {0}};
    results *r = three_clusters(kl, nll);
    r->v.n_clusters = 1;
    exf_difference d = exf_kl_difference(&r->v, 1, 0);
    ck_assert(d.mean == 0.1 && isnan(d.se) && isnan(d.half_width) && !exf_beyond_noise(&d));
    r->v.n_clusters = 0;
    d = exf_kl_difference(&r->v, 1, 0);
    ck_assert(isnan(d.mean) && isnan(d.se) && !exf_beyond_noise(&d));
}
END_TEST

/* ---- against a bootstrap ------------------------------------------------------------------------ */

/* Returns the standard deviation of the mean by token over draws of as many clusters, with replacement. */
static double bootstrap(const double *sum, const uint64_t *n_tokens, size_t n)
{
    enum { DRAWS = 2000 };
    double total = 0, squares = 0;
    uint64_t state = 12345;
    for (int k = 0; k < DRAWS; k++) {
        double s = 0, t = 0;
        for (size_t i = 0; i < n; i++) {
            size_t c = (size_t)((naive_number(77, state++) + 1) / 2 * (double)n) % n;
            s += sum[c];
            t += (double)n_tokens[c];
        }
        total += s / t;
        squares += s / t * (s / t);
    }
    return sqrt((squares - total / DRAWS * total) / (DRAWS - 1));
}

/* A corpus of 40 documents of 50 to `longest` tokens: a token's score is its document's, times one of its own.  Returns in
 * *independent what tokens taken as independent would give. */
static void make_corpus(uint64_t seed, int longest, double power, double *sum, uint64_t *n_tokens, double *independent)
{
    double all = 0, squares = 0, n = 0;
    uint64_t at = 0;
    for (size_t d = 0; d < 40; d++) {
        double own = pow(1 + naive_number(seed, d), power); /* from 0 to 2^power */
        n_tokens[d] = 50 + (uint64_t)((naive_number(seed + 1, d) + 1) / 2 * (longest - 50));
        sum[d] = 0;
        for (uint64_t i = 0; i < n_tokens[d]; i++) {
            double x = own * (1 + naive_number(seed + 2, at++));
            sum[d] += x;
            squares += x * x;
        }
        all += sum[d];
        n += (double)n_tokens[d];
    }
    *independent = sqrt((squares - all / n * all) / (n - 1) / n);
}

START_TEST(errors_are_those_of_a_bootstrap)
{
    static const struct {
        uint64_t seed;
        int longest;
        double power;
    } corpora[] = {{100, 51, 1}, {200, 2000, 1}, {300, 4000, 3}}; /* even, uneven, uneven with few that are hard */
    for (size_t i = 0; i < 3; i++) {
        double sum[40], independent;
        uint64_t n_tokens[40];
        make_corpus(corpora[i].seed, corpora[i].longest, corpora[i].power, sum, n_tokens, &independent);
        exf_cluster_sums s = {.sum = sum, .tokens = n_tokens, .n = 40};
        double got = exf_cluster_mean(&s).se, want = bootstrap(sum, n_tokens, 40);
        ck_assert_msg(fabs(got - want) <= 0.15 * want, "corpus %zu: %g, the bootstrap %g", i, got, want);
        ck_assert_msg(3 * independent < want, "corpus %zu: as independent tokens %g, the bootstrap %g", i, independent, want);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, quantiles_are_students);
    tcase_add_test(t, means_and_differences_by_hand);
    tcase_add_test(t, groups_count_their_own_clusters);
    tcase_add_test(t, one_cluster_tells_nothing);
    tcase_add_test(t, errors_are_those_of_a_bootstrap);
}

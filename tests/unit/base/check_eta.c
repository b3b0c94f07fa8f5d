/* check_eta.c - the seconds left of work with parts of different costs, by a clock that the test makes up. */
#include "tests/support/fixtures.h"

#include "base/progress.h"

#include <math.h>

enum { READ, ATTENTION, LINEAR, DENSE, EXPERTS, HEAD };

/* True seconds per unit of each kind, and what is believed of them before they are measured: up to twice or half,
 * but of the head, which comes last and at once, a fifth more or less in relation to the experts. */
static const double takes[] = {[READ] = 0.5, [ATTENTION] = 3, [LINEAR] = 1, [DENSE] = 0.7, [EXPERTS] = 11, [HEAD] = 90};
static const double believed[] = {[READ] = 0.3, [ATTENTION] = 2, [LINEAR] = 2, [DENSE] = 1, [EXPERTS] = 8, [HEAD] = 80};

enum { N_LAYERS = 40, N_PARTS = 8 }; /* a part of a kind is told at a time, as sequences are */

/* Layer l: the first three are dense, every fourth mixes with attention. */
static int mixer_of(int l) { return l % 4 == 3 ? ATTENTION : LINEAR; }
static int second_half_of(int l) { return l < 3 ? DENSE : EXPERTS; }

static exf_eta plan(void)
{
    exf_eta e = {.now = READ};
    for (int k = READ; k <= HEAD; k++) e.kind[k].prior = believed[k];
    for (int l = 0; l < N_LAYERS; l++) {
        e.kind[READ].planned++;
        e.kind[mixer_of(l)].planned++;
        e.kind[second_half_of(l)].planned++;
    }
    e.kind[HEAD].planned = 1;
    return e;
}

static double all_seconds(void)
{
    double all = takes[HEAD];
    for (int l = 0; l < N_LAYERS; l++) all += takes[READ] + takes[mixer_of(l)] + takes[second_half_of(l)];
    return all;
}

typedef struct {
    exf_eta eta;
    double clock, slowness, all; /* slowness: of this machine */
    double worst;                /* the largest error after the first fifth, relative to the seconds left */
} run;

/* Compares the estimate with the truth; of the last hundredth of the work nothing is asked. */
static void compare(run *r)
{
    double left = r->all - r->clock, error = fabs(exf_eta_left(&r->eta, r->clock) - left) / left;
    if (r->clock < 0.2 * r->all || left < 0.01 * r->all) return;
    if (error > r->worst) r->worst = error;
}

static void work_on(run *r, int kind)
{
    exf_eta_turn(&r->eta, kind, r->clock);
    for (int i = 0; i < N_PARTS; i++) {
        double seconds = takes[kind] * r->slowness / N_PARTS;
        r->clock += seconds / 2;
        compare(r); /* in the middle of a part too */
        r->clock += seconds / 2;
        exf_eta_add(&r->eta, 1.0 / N_PARTS, r->clock);
        compare(r);
    }
}

static run whole_run(double slowness)
{
    run r = {.eta = plan(), .slowness = slowness, .all = all_seconds() * slowness};
    exf_eta_start(&r.eta, READ, 0);
    for (int l = 0; l < N_LAYERS; l++) {
        work_on(&r, READ);
        work_on(&r, mixer_of(l));
        work_on(&r, second_half_of(l));
    }
    work_on(&r, HEAD);
    return r;
}

/* The promise of the documentation, on machines a thousand times slower and faster than believed. */
START_TEST(is_right_within_30_percent_after_the_first_fifth)
{
    static const double slowness[] = {1e-3, 0.1, 1, 7, 1e3};
    for (size_t i = 0; i < sizeof slowness / sizeof *slowness; i++) {
        run r = whole_run(slowness[i]);
        ck_assert_double_lt(r.worst, 0.30);
        ck_assert_double_eq_tol(exf_eta_share(&r.eta, r.clock), 1, 1e-9);
        ck_assert_double_eq_tol(exf_eta_whole(&r.eta), r.all, 1e-6 * r.all);
    }
}
END_TEST

/* Layers counted, as a bar does that knows no costs, are wrong by more than the work model is. */
START_TEST(layers_counted_would_be_wrong)
{
    double dense = 3 * (takes[READ] + takes[LINEAR] + takes[DENSE]), by_layers = dense / 3 * (N_LAYERS - 3);
    ck_assert_double_gt(fabs(by_layers - (all_seconds() - dense)), 0.5 * (all_seconds() - dense));
}
END_TEST

START_TEST(knows_nothing_before_it_has_measured)
{
    exf_eta e = plan();
    exf_eta_start(&e, READ, 5);
    ck_assert_double_eq(exf_eta_left(&e, 6), -1);
    ck_assert_double_eq(exf_eta_whole(&e), -1);
    ck_assert_double_eq(exf_eta_share(&e, 6), 0);
    exf_eta_add(&e, 1, 7);
    ck_assert_double_gt(exf_eta_left(&e, 7), 0);
}
END_TEST

/* Units in work for a while are taken off, but the estimate never falls below 0. */
START_TEST(falls_while_a_part_is_in_work)
{
    exf_eta e = {.kind = {{.planned = 4, .prior = 1}}};
    exf_eta_start(&e, 0, 0);
    exf_eta_add(&e, 1, 10);
    ck_assert_double_eq_tol(exf_eta_left(&e, 10), 30, 1e-9);
    ck_assert_double_eq_tol(exf_eta_left(&e, 14), 26, 1e-9);
    ck_assert_double_eq(exf_eta_left(&e, 100), 0);
    ck_assert_double_eq_tol(exf_eta_share(&e, 14), 14.0 / 40, 1e-9);
}
END_TEST

/* A device's seconds are none of the host's kind beside which they pass. */
START_TEST(credits_a_device_by_its_own_clock)
{
    exf_eta e = {.kind = {[READ] = {.planned = 2, .prior = 1}, [EXPERTS] = {.planned = 10, .prior = 1}}};
    exf_eta_start(&e, READ, 0);
    exf_eta_credit(&e, EXPERTS, 5, 8, 9);
    exf_eta_add(&e, 1, 9);
    ck_assert_double_eq_tol(e.kind[EXPERTS].spent, 8, 1e-12);
    ck_assert_double_eq_tol(e.kind[READ].spent, 1, 1e-12);
    ck_assert_double_eq_tol(exf_eta_left(&e, 9), 9, 0.1);
}
END_TEST

/* Of work of which a half was done before, reading it back tells nothing, and the share is of the whole. */
START_TEST(work_that_was_begun_before)
{
    exf_eta e = {.kind = {[READ] = {.planned = 2, .prior = 1}, [EXPERTS] = {.planned = 10, .prior = 1}}};
    ck_assert_double_eq(exf_eta_expected(&e), 12);
    exf_eta_start(&e, READ, 0);
    exf_eta_add(&e, 1e-9, 30); /* a state is read back: few of the units, and many seconds */
    ck_assert_double_gt(exf_eta_left(&e, 30), 1e4);
    exf_eta_resume(&e, 0.5, 30);
    ck_assert_double_eq(exf_eta_left(&e, 31), -1);
    ck_assert_double_eq(exf_eta_share(&e, 31), 0.5);
    exf_eta_turn(&e, EXPERTS, 30);
    exf_eta_add(&e, 5, 40);
    ck_assert_double_eq_tol(exf_eta_left(&e, 40), 14, 0.5);
    ck_assert_double_eq_tol(exf_eta_share(&e, 40), 0.5 + 0.5 * 10 / 24, 0.01);
    /* 240 tokens of which a half was done before, in the 24 seconds of the rest */
    ck_assert_double_eq_tol(exf_eta_rate(&e, 240, 40), 120.0 / 24, 0.2);
}
END_TEST

/* What is left after a pilot is its run, not nothing; the rate is of the pilot's own units. */
START_TEST(work_that_follows_is_counted)
{
    exf_eta e = {.kind = {[READ] = {.planned = 2, .after = 2, .prior = 1}, [EXPERTS] = {.planned = 10, .after = 70, .prior = 1}}};
    exf_eta_start(&e, READ, 0);
    exf_eta_add(&e, 2, 4);
    exf_eta_turn(&e, EXPERTS, 4);
    exf_eta_add(&e, 10, 14);
    ck_assert_double_eq_tol(exf_eta_left(&e, 14), 4 + 70, 0.5);
    ck_assert_double_eq_tol(exf_eta_share(&e, 14), 14.0 / (14 + 74), 0.01);
    ck_assert_double_eq_tol(exf_eta_rate(&e, 28, 14), 2, 0.01);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "eta");
    tcase_add_test(t, is_right_within_30_percent_after_the_first_fifth);
    tcase_add_test(t, layers_counted_would_be_wrong);
    tcase_add_test(t, knows_nothing_before_it_has_measured);
    tcase_add_test(t, falls_while_a_part_is_in_work);
    tcase_add_test(t, credits_a_device_by_its_own_clock);
    tcase_add_test(t, work_that_was_begun_before);
    tcase_add_test(t, work_that_follows_is_counted);
}

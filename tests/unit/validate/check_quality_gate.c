/* check_quality_gate.c - validate/gates: what a limit says, whom it is for, who is above. */
#include "tests/support/validation_fixtures.h"

#include "validate/gates.h"

static const char *const names[] = {"P4", "P2:projector=joint,ridge=0.1", "P2:max_loss=0.99,rescale=sum+D8:rank=energy",
                                    "top2:drop", "D8:rank=energy,batch=1", "D8:rank=energy,batch=16"};
enum { NAMES = sizeof names / sizeof *names };

static exf_code parse(exf_quality_gate *g, const char *text, exf_err *e)
{
    exf_validate_lane lane[NAMES + 1];
    for (int i = 0; i <= NAMES; i++) {
        lane[i].role = i < NAMES ? EXF_LANE_ASKED : EXF_LANE_BASELINE;
        ck_ok(exf_variant_parse(&lane[i].variant, i < NAMES ? names[i] : "random2", e), *e);
    }
    return exf_quality_gate_parse(g, text, lane, NAMES + 1, e);
}

static void means(const char *text, const char *variant, const char *metric, double limit)
{
    exf_err e;
    exf_quality_gate g;
    memset(&g, 0x5a, sizeof g);
    ck_ok(parse(&g, text, &e), e);
    ck_assert_str_eq(g.variant, variant);
    ck_assert_str_eq(g.metric, metric);
    ck_assert(g.limit == limit);
}

START_TEST(texts)
{
    means("kl=0.2", "", "kl", 0.2);
    means("ppl=7", "", "ppl", 7);
    means("kl_median=0", "", "kl_median", 0);
    means("kl_p90=1e-3", "", "kl_p90", 1e-3);
    means("kl_p99=1.5", "", "kl_p99", 1.5);
    means("kl_p999=2", "", "kl_p999", 2);
    means("kl_max=30", "", "kl_max", 30);
    means("flips=0.1", "", "flips", 0.1);
    means("output_error=0.5", "", "output_error", 0.5);
    means("kl=-1", "", "kl", -1);
    means("P4:kl=0.2", "P4", "kl", 0.2);
    means("D8:rank=energy:kl=0.2", "D8:rank=energy", "kl", 0.2); /* at each batch */
    means("D8:rank=energy,batch=16:kl=0.2", "D8:rank=energy,batch=16", "kl", 0.2);
    means("top2:drop:flips=0.25", "top2:drop", "flips", 0.25);
    means("P2:projector=joint,ridge=0.1:kl_p99=1.5", "P2:projector=joint,ridge=0.1", "kl_p99", 1.5);
    means("P2:max_loss=0.99,rescale=sum+D8:rank=energy:ppl=6", "P2:max_loss=0.99,rescale=sum+D8:rank=energy", "ppl", 6);
}
END_TEST

static void refused(const char *text, const char *message)
{
    exf_err e;
    exf_quality_gate g;
    ck_assert_msg(parse(&g, text, &e) == EXF_USAGE, "\"%s\" is taken", text);
    ck_assert_str_eq(e.msg, message);
}

#define SHAPE(text) refused(text, "validate.fail_above: \"" text "\", expected METRIC=LIMIT or VARIANT:METRIC=LIMIT")
#define METRIC(text, word)                                                                                                    \
    refused(text, "validate.fail_above: \"" text "\": \"" word "\" is no metric (known: ppl, kl, kl_median, kl_p90, kl_p99, " \
                  "kl_p999, kl_max, flips, output_error)")

START_TEST(texts_that_are_none)
{
    SHAPE("");
    SHAPE("kl");
    SHAPE("kl=");
    SHAPE("kl=x");
    SHAPE("kl=nan");
    SHAPE("kl=inf");
    SHAPE("kl= 1");
    SHAPE("P4:kl");
    METRIC("=1", "");
    METRIC("P4:=1", "");
    METRIC("mean=1", "mean");
    METRIC("KL=1", "KL");
    METRIC("kl_p95=1", "kl_p95");
    METRIC("P4:top1=1", "top1");
    METRIC("P2:projector=joint,ridge=0.1", "projector=joint,ridge"); /* the variant alone */
    refused("P5:kl=1", "validate.fail_above: \"P5:kl=1\": \"P5\" is none of validate.variants");
    refused(":kl=1", "validate.fail_above: \":kl=1\": \"\" is none of validate.variants");
    refused("original:kl=1", "validate.fail_above: \"original:kl=1\": \"original\" is none of validate.variants");
    refused("random2:kl=1", "validate.fail_above: \"random2:kl=1\": \"random2\" is none of validate.variants"); /* a baseline */
    refused("D8:kl=1", "validate.fail_above: \"D8:kl=1\": \"D8\" is none of validate.variants");
    refused("D8:rank=energy,batch=8:kl=1",
            "validate.fail_above: \"D8:rank=energy,batch=8:kl=1\": \"D8:rank=energy,batch=8\" is none of validate.variants");
    refused("top2:kl=1", "validate.fail_above: \"top2:kl=1\": \"top2\" is none of validate.variants");
    char longest[400];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    exf_err e;
    exf_quality_gate g;
    ck_fails(parse(&g, longest, &e), EXF_USAGE, e, "METRIC=LIMIT VARIANT:METRIC=LIMIT");
}
END_TEST

/* Value v of one metric, the others far above any limit. */
static results *with(const char *metric, double value)
{
    results *r = results_begin();
    exf_variant_result *a = results_add(r, "P4", 0, 1, 1);
    a->all = (exf_quality){.tokens = 1, .ppl = 1e9, .kl_mean = 1e9, .kl_median = 1e9, .kl_p90 = 1e9, .kl_p99 = 1e9, .kl_p999 = 1e9,
                           .kl_max = 1e9, .top1 = -1e9};
    a->output_error = 1e9;
    struct { const char *name; double *at; } where[] = {
        {"ppl", &a->all.ppl}, {"kl", &a->all.kl_mean}, {"kl_median", &a->all.kl_median}, {"kl_p90", &a->all.kl_p90},
        {"kl_p99", &a->all.kl_p99}, {"kl_p999", &a->all.kl_p999}, {"kl_max", &a->all.kl_max}, {"output_error", &a->output_error},
    };
    if (strcmp(metric, "flips") == 0) a->all.top1 = 1 - value;
    for (size_t i = 0; i < sizeof where / sizeof *where; i++)
        if (strcmp(where[i].name, metric) == 0) *where[i].at = value;
    return r;
}

START_TEST(each_metric_has_its_limit)
{
    static const char *const metrics[] = {"ppl",     "kl",     "kl_median", "kl_p90",      "kl_p99",
                                          "kl_p999", "kl_max", "flips",     "output_error"};
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++) {
        exf_err e;
        exf_quality_gate g = {.limit = 0.25};
        char says[80];
        snprintf(g.metric, sizeof g.metric, "%s", metrics[i]);
        ck_ok(exf_quality_gate_check(&g, &with(metrics[i], 0.125)->v, &e), e);
        ck_ok(exf_quality_gate_check(&g, &with(metrics[i], 0.25)->v, &e), e); /* at the limit is not above */
        snprintf(says, sizeof says, "P4: %s is 0.375, above the limit of 0.25", metrics[i]);
        ck_fails(exf_quality_gate_check(&g, &with(metrics[i], 0.375)->v, &e), EXF_THRESHOLD, e, says);
        snprintf(says, sizeof says, "P4: %s is ", metrics[i]);
        ck_fails(exf_quality_gate_check(&g, &with(metrics[i], NAN)->v, &e), EXF_THRESHOLD, e,
                 says); /* what is not known passes nothing */
    }
}
END_TEST

START_TEST(a_limit_for_all_and_a_limit_for_one)
{
    exf_err e;
    exf_quality_gate g = {.metric = "kl", .limit = 0.2};
    results *r = results_begin();
    ck_ok(exf_quality_gate_check(&g, &r->v, &e), e); /* nobody to exceed it */
    r->variant[0].all.kl_mean = 9;            /* the original is not on trial */
    results_add(r, "P4", 0.1, 1, 1);
    results_add(r, "P2", 0.3, 1, 1);
    results_add(r, "P1", 0.7, 1, 1);
    ck_fails(exf_quality_gate_check(&g, &r->v, &e), EXF_THRESHOLD, e, "P2 0.3 0.2");
    snprintf(g.variant, sizeof g.variant, "P4");
    ck_ok(exf_quality_gate_check(&g, &r->v, &e), e);
    snprintf(g.variant, sizeof g.variant, "P1");
    ck_fails(exf_quality_gate_check(&g, &r->v, &e), EXF_THRESHOLD, e, "P1 0.7 0.2");
}
END_TEST

START_TEST(what_was_not_asked_for_is_not_on_trial)
{
    exf_err e;
    exf_quality_gate g = {.metric = "kl", .limit = 0.2};
    results *r = results_begin();
    results_add(r, "random4", 0.7, 1, 1)->role = EXF_LANE_BASELINE;
    results_add(r, "P4 half 1", 0.7, 1, 1)->role = EXF_LANE_HALF;
    ck_ok(exf_quality_gate_check(&g, &r->v, &e), e);
}
END_TEST

START_TEST(a_limit_is_for_each_batch_unless_it_names_one)
{
    exf_err e;
    exf_quality_gate g = {.metric = "kl", .limit = 0.2, .variant = "D8"};
    results *r = results_begin();
    results_add(r, "D8:batch=1", 0.1, 1, 1);
    results_add(r, "D8:batch=16", 0.3, 1, 1);
    ck_fails(exf_quality_gate_check(&g, &r->v, &e), EXF_THRESHOLD, e, "D8:batch=16 0.3 0.2");
    snprintf(g.variant, sizeof g.variant, "D8:batch=1");
    ck_ok(exf_quality_gate_check(&g, &r->v, &e), e);
}
END_TEST

/* A KL of 0 passes nothing where the batches were too small to say anything. */
START_TEST(a_row_that_is_not_constrained_passes_no_gate)
{
    exf_err e;
    exf_quality_gate g = {.metric = "kl", .limit = 0.2};
    results *r = results_begin();
    exf_variant_result *d = results_add(r, "D16", 0, 4, 6.7);
    r->size[0] = (exf_batch_size){.size = 16, .width = 2.125, .experts = 6.7};
    ck_ok(exf_quality_gate_check(&g, &r->v, &e), e);
    d->constraint = EXF_FEW_EXPERTS;
    ck_fails(exf_quality_gate_check(&g, &r->v, &e), EXF_THRESHOLD, e, "D16 kl constrain 6.7 16 2.1 validate.decode_batch=2");
    r->size[0].width = 15;
    ck_fails(exf_quality_gate_check(&g, &r->v, &e), EXF_THRESHOLD, e, "D16 6.7 15.0 smaller");
    d->constraint = EXF_SHORT_BATCHES;
    r->size[0] = (exf_batch_size){.size = 16, .width = 1.5, .experts = 20};
    ck_fails(exf_quality_gate_check(&g, &r->v, &e), EXF_THRESHOLD, e, "D16 20.0 1.5 validate.decode_batch=1");
    snprintf(g.variant, sizeof g.variant, "P4");
    ck_ok(exf_quality_gate_check(&g, &r->v, &e), e); /* another's limit */
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, texts);
    tcase_add_test(t, texts_that_are_none);
    tcase_add_test(t, each_metric_has_its_limit);
    tcase_add_test(t, a_limit_for_all_and_a_limit_for_one);
    tcase_add_test(t, what_was_not_asked_for_is_not_on_trial);
    tcase_add_test(t, a_limit_is_for_each_batch_unless_it_names_one);
    tcase_add_test(t, a_row_that_is_not_constrained_passes_no_gate);
}

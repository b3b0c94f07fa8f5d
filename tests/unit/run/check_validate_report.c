/* check_validate_report.c - the results of a validation as JSON that reads back, and as tables. */
#include "tests/support/validation_fixtures.h"

#include "base/mem.h"
#include "format/json.h"
#include "run/validation.h"

typedef struct {
    results *r;
    exf_quality domain[2][2];
    exf_layer_result layer[2][2];
    exf_provenance facts;
    char *names[2];
    exf_validate_report report;
} sample;

static char awkward[] = "C \"quoted\" \\ and\ttab", plain[] = "caf\xc3\xa9";

/* Three clusters, of which the second has sums twice as large a token as the others. */
static uint64_t tokens[3] = {25, 25, 50};
static double nll[2][3] = {{50, 50, 100}, {51, 52, 102}}, kl[2][3] = {{0, 0, 0}, {2.5, 5, 5}};

static void open_sample(sample *s)
{
    exf_err e;
    memset(s, 0, sizeof *s);
    s->r = results_begin();
    results_add(s->r, "P2:projector=joint,ridge=0.1+D8", 0.125, 2, 8);
    for (int i = 0; i < 2; i++) {
        exf_variant_result *v = &s->r->variant[i];
        v->domain = s->domain[i];
        v->layer = s->layer[i];
        for (int d = 0; d < 2; d++)
            s->domain[i][d] = (exf_quality){.tokens = (uint64_t)(50 + d), .ppl = 4 + d + i, .kl_mean = i * (0.5 + d)};
        for (int l = 0; l < 2; l++) s->layer[i][l] = (exf_layer_result){3 + l, i * 0.25, 4 - i, 16 - 8 * i};
        v->output_error = i * 0.25;
    }
    s->r->v.n_domains = 2;
    s->r->v.n_clusters = 3;
    s->r->v.cluster_tokens = tokens;
    for (int i = 0; i < 2; i++) {
        s->r->variant[i].nll = nll[i];
        s->r->variant[i].kl = kl[i];
    }
    s->r->v.n_layers = 2;
    s->r->v.report.weight_bytes = 1000;
    s->r->v.report.flops = 1.75;
    s->names[0] = awkward;
    s->names[1] = plain;
    ck_ok(exf_provenance_add(&s->facts, &e, "model.path", "%s", "a \"b\""), e);
    s->report = (exf_validate_report){&s->r->v, s->names, &s->facts, 2000};
}

static double number(const exf_json *o, const char *key)
{
    ck_assert_msg(exf_json_get(o, key) != NULL, "no %s", key);
    return exf_json_real(exf_json_get(o, key));
}

START_TEST(json_reads_back)
{
    exf_err e;
    exf_text t = {0};
    exf_json *doc;
    sample s;
    open_sample(&s);
    ck_ok(exf_validate_json(&s.report, &t, &e), e);
    ck_ok(exf_json_parse(&doc, t.s, t.len, "report", &e), e);
    ck_assert_str_eq(exf_json_string(exf_json_get(doc, "schema"), NULL), "exfold-validation/1");
    const exf_json *list = exf_json_get(doc, "variants"), *v = exf_json_at(list, 1);
    ck_assert_uint_eq(exf_json_size(list), 2);
    ck_assert_str_eq(exf_json_string(exf_json_get(v, "name"), NULL), "P2:projector=joint,ridge=0.1+D8");
    ck_assert_str_eq(exf_json_string(exf_json_get(exf_json_at(list, 0), "words"), NULL), "the model as it is");
    ck_assert_str_eq(exf_json_string(exf_json_get(v, "words"), NULL),
                     "2 experts per token, joint weights, ridge 0.1; 8 experts per decode batch, one scalar per pair");
    ck_assert(number(v, "tokens") == 100 && number(v, "ppl") == 5.125 && number(v, "kl_mean") == 0.125 && number(v, "top1") == 0.9);
    ck_assert(number(v, "output_error") == 0.25 && number(v, "experts_per_token") == 2 && number(v, "experts_per_batch") == 8);
    /* residuals of log PPL -0.25, 0.75, -0.5 and of KL -0.625, 1.875, -1.25; times 4.3027, which is t of two degrees of freedom */
    ck_assert(number(v, "log_ppl_difference") == 0.05);
    ck_assert(fabs(number(v, "log_ppl_difference_half_width") - 0.049293079559817) <= 1e-8);
    ck_assert(fabs(number(v, "kl_half_width") - 0.1232326988995425) <= 1e-8);
    ck_assert_str_eq(exf_json_string(exf_json_get(exf_json_get(doc, "clusters"), "by"), NULL), "sequence");
    ck_assert(number(exf_json_get(doc, "clusters"), "n") == 3);
    const exf_json *domains = exf_json_get(v, "domains"), *layers = exf_json_get(v, "layers");
    ck_assert(number(exf_json_get(domains, awkward), "ppl") == 5 && number(exf_json_get(domains, plain), "kl_mean") == 1.5);
    ck_assert(exf_json_size(layers) == 2 && number(exf_json_at(layers, 1), "layer") == 4 &&
              number(exf_json_at(layers, 1), "experts_per_token") == 3);
    const exf_json *cost = exf_json_get(doc, "cost");
    ck_assert(number(cost, "forwards") == 1.75 && number(cost, "variants") == 1 && number(cost, "weight_bytes_read") == 1000 &&
              number(cost, "model_bytes") == 2000);
    ck_assert_str_eq(exf_json_string(exf_json_get(exf_json_get(doc, "provenance"), "model.path"), NULL), "a \"b\"");
    exf_json_free(doc);
    exf_text_free(&t);
    exf_provenance_free(&s.facts);
}
END_TEST

typedef exf_code (*printer)(const exf_validate_report *r, exf_text *out, exf_err *err);

static int lines_with(const char *s, const char *part)
{
    int n = 0;
    for (; (s = strstr(s, part)); s++) n++;
    return n;
}

START_TEST(tables_name_every_variant)
{
    exf_err e;
    exf_text t = {0};
    sample s;
    open_sample(&s);
    ck_ok(exf_validate_table(&s.report, &t, &e), e);
    ck_assert_msg(strstr(t.s, "\nP2:projector=joint,ridge=0.1+D8     5.1250 ") &&
                      strstr(t.s, "\noriginal                            5.0000 "),
                  "%s", t.s);
    ck_assert_msg(strstr(t.s, "100 tokens scored. Weights read: 1.0 kB (1000 bytes) of a model of 2.0 kB (2000 bytes).\n"
                              "Work: 1.75 forward passes for the original and 1 variants.\n") != NULL, "%s", t.s);
    exf_text_free(&t);
    ck_ok(exf_validate_markdown(&s.report, &t, &e), e);
    ck_assert_msg(lines_with(t.s, "\n| `P2:projector=joint,ridge=0.1+D8` |") == 2 && lines_with(t.s, "\n|---|") == 3, "%s", t.s);
    ck_assert_msg(strstr(t.s, "\n| 3 | 0.250 |\n| 4 | 0.250 |\n") != NULL, "%s", t.s);
    s.r->v.n_domains = 1; /* one domain is all of it; without variants there are no errors */
    s.r->v.n_variants = 1;
    t.len = 0;
    ck_ok(exf_validate_markdown(&s.report, &t, &e), e);
    ck_assert_msg(lines_with(t.s, "\n|---|") == 1, "%s", t.s);
    exf_text_free(&t);
    exf_provenance_free(&s.facts);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    static const printer printers[] = {exf_validate_table, exf_validate_json, exf_validate_markdown};
    sample s;
    open_sample(&s);
    for (int p = 0; p < 3; p++) {
        exf_err e;
        exf_code rc = EXF_NOSPACE;
        size_t n = 0;
        while (rc != EXF_OK) {
            exf_text t = {0};
            exf_mem_fail_at(++n);
            rc = printers[p](&s.report, &t, &e);
            exf_mem_fail_at(0);
            ck_assert_msg(rc == EXF_OK || rc == EXF_NOSPACE, "allocation %zu: %s", n, e.msg);
            exf_text_free(&t);
        }
        ck_assert_uint_gt(n, 2);
    }
    exf_provenance_free(&s.facts);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("validate_report");
    TCase *t = tcase_create("all");
    tcase_add_test(t, json_reads_back);
    tcase_add_test(t, tables_name_every_variant);
    tcase_add_test(t, every_allocation_may_fail);
    suite_add_tcase(s, t);
    return s;
}

/* check_document_errors.c - the noise of a real validation: the demo model on the documents of three texts, P3 beside random3. */
#include "tests/support/naive.h"
#include "tests/support/scratch_fixtures.h"

#include "base/log.h"
#include "base/mem.h"
#include "capture/capture.h"
#include "format/safetensors.h"
#include "validate/validation.h"

#include <math.h>
#include <string.h>

enum { L = 4, E = 16, DOMAINS = 3, PER_DOMAIN = 30, TOKENS = 32, VARIANTS = 2 };

static exf_err e;

typedef struct {
    exf_model *model;
    exf_corpus *corpus;
    exf_batch batch;
    exf_tables tables;
    exf_validate_lane lane[VARIANTS];
    exf_decode_schedule schedule;
    int32_t *domain_of;
    int64_t *document_of;
    exf_validate_job job;
} demo;

static void read_reference(const exf_st_file *f, const char *name, float *out, size_t n)
{
    const exf_st_tensor *t = exf_st_find(f, name);
    ck_assert(t && t->nbytes == n * sizeof *out);
    ck_ok(exf_st_read(f, t, 0, out, n * sizeof *out, &e), e);
}

/* Makes tables of the demo model's reference. */
static void open_tables(exf_tables *t)
{
    static const int32_t layers[L] = {0, 1, 2, 3};
    static float count[L * E * E];
    exf_run_shape shape = {E, 4, 128, 48, 48 * 512};
    exf_st_file *f;
    ck_ok(exf_tables_new(t, &shape, layers, L, NULL, 0, &e), e);
    ck_ok(exf_st_open(&f, "examples/demo-model/reference/reference_tables.safetensors", &e), e);
    read_reference(f, "coeff", t->coeff, L * E * E);
    read_reference(f, "loss", t->loss, L * E * E);
    read_reference(f, "expert_norms", t->expert_norms, (size_t)L * E);
    read_reference(f, "count", count, L * E * E);
    for (int i = 0; i < L * E * E; i++) t->count[i] = (uint64_t)count[i];
    exf_st_close(f);
}

/* Opens the demo corpus: of each domain's 8 or 9 documents, sequences chosen by chance, so that documents have a few or many. */
static void open_demo(demo *d)
{
    char manifest[600], *text = manifest;
    memset(d, 0, sizeof *d);
    exf_log_setup("check", EXF_LOG_QUIET, EXF_PROGRESS_NONE);
    ck_ok(exf_model_open(&d->model, "examples/demo-model", &e), e);
    open_tables(&d->tables);
    text += sprintf(text, "schema: exfold-manifest/1\nsources:\n");
    for (int i = 0; i < DOMAINS; i++) {
        const char *name = (const char *const[]){"c", "prose", "python"}[i];
        text += sprintf(text, "  - {path: examples/demo-corpus.jsonl, format: jsonl, where: {domain: %s}, domain: %s, "
                              "sequences: %d}\n", name, name, PER_DOMAIN);
    }
    exf_corpus_request q = {.manifest_text = manifest, .max_tokens = TOKENS,
                            .min_tokens = 2, .seed = 2, .vocab = d->model->arch.vocab,
                            .tokenizer = "examples/demo-model/tokenizer.json"};
    ck_ok(exf_corpus_load(&d->corpus, &q, &e), e);
    ck_ok(exf_batch_of_corpus(&d->batch, d->corpus, &e), e);
    size_t n = d->batch.n_sequences;
    ck_ok(exf_mem_new(&d->domain_of, n, sizeof *d->domain_of, "domains", &e), e);
    ck_ok(exf_mem_new(&d->document_of, n, sizeof *d->document_of, "documents", &e), e);
    for (size_t i = 0; i < n; i++) {
        d->domain_of[i] = d->corpus->sequence[i].domain;
        d->document_of[i] = d->corpus->sequence[i].document;
    }
    ck_ok(exf_decode_schedule_new(&d->schedule, &d->batch, 16, 0, 1, &e), e);
    for (int i = 0; i < VARIANTS; i++) {
        d->lane[i] = (exf_validate_lane){.role = EXF_LANE_ASKED, .tables = &d->tables};
        ck_ok(exf_variant_parse(&d->lane[i].variant, i ? "random3" : "P3", &e), e);
    }
    d->job = (exf_validate_job){.model = d->model, .batch = &d->batch, .domain_of = d->domain_of, .n_domains = DOMAINS,
                                .document_of = d->document_of, .schedule = &d->schedule, .n_schedules = 1, .lanes = d->lane,
                                .n_lanes = VARIANTS, .no_layer_errors = 1, .forward = {.threads = 1}};
}

static void close_demo(demo *d)
{
    exf_decode_schedule_free(&d->schedule);
    exf_mem_free(d->domain_of);
    exf_mem_free(d->document_of);
    exf_mem_free((void *)(uintptr_t)d->batch.span);
    exf_corpus_free(d->corpus);
    exf_tables_free(&d->tables);
    exf_model_close(d->model);
}

/* ---- the bootstrap --------------------------------------------------------------------------- */

/* Draws documents of a domain (-1: all) with replacement, and finds the standard deviation of the mean by token of kl, and of
 * the perplexity that nll gives. */
static void bootstrap(const exf_validation *v, const exf_variant_result *r, int domain, double *kl_se, double *ppl_se)
{
    enum { DRAWS = 2000 };
    size_t list[64], n = 0;
    uint64_t state = 1;
    double kl = 0, kl_sq = 0, ppl = 0, ppl_sq = 0;
    for (size_t c = 0; c < v->n_clusters; c++)
        if (domain < 0 || v->cluster_domain[c] == domain) list[n++] = c;
    ck_assert(n >= 8);
    for (int k = 0; k < DRAWS; k++) {
        double s = 0, m = 0, t = 0;
        for (size_t i = 0; i < n; i++) {
            size_t c = list[(size_t)((naive_number(5, state++) + 1) / 2 * (double)n) % n];
            s += r->kl[c];
            m += r->nll[c];
            t += (double)v->cluster_tokens[c];
        }
        kl += s / t;
        kl_sq += s / t * (s / t);
        ppl += exp(m / t);
        ppl_sq += exp(m / t) * exp(m / t);
    }
    *kl_se = sqrt((kl_sq - kl / DRAWS * kl) / (DRAWS - 1));
    *ppl_se = sqrt((ppl_sq - ppl / DRAWS * ppl) / (DRAWS - 1));
}

static void ck_error(const char *what, const exf_variant_result *r, int domain, double got, double want)
{
    ck_assert_msg(fabs(got - want) <= 0.15 * want, "%s, domain %d: the error of %s is %g, by bootstrap %g", r->name, domain, what,
                  got, want);
}

/* The sums over documents are all tokens' and give the errors that a bootstrap over documents has. */
static void check_errors(const exf_validation *v, const exf_variant_result *r, int domain, const exf_quality *q)
{
    double kl_se, ppl_se, kl = 0, nll = 0;
    uint64_t tokens = 0;
    for (size_t c = 0; c < v->n_clusters; c++) {
        if (domain >= 0 && v->cluster_domain[c] != domain) continue;
        kl += r->kl[c];
        nll += r->nll[c];
        tokens += v->cluster_tokens[c];
    }
    ck_assert_uint_eq(tokens, q->tokens);
    ck_assert(fabs(kl / (double)tokens - q->kl_mean) <= 1e-12 && fabs(exp(nll / (double)tokens) - q->ppl) <= 1e-10 * q->ppl);
    bootstrap(v, r, domain, &kl_se, &ppl_se);
    ck_error("KL", r, domain, q->kl_se, kl_se);
    ck_error("PPL", r, domain, q->ppl_se, ppl_se);
}

START_TEST(errors_of_three_texts_are_those_of_a_bootstrap)
{
    demo d;
    exf_validation v;
    open_demo(&d);
    ck_ok(exf_validate(&v, &d.job, &e), e);
    ck_assert(v.clusters_are_documents);
    ck_assert_uint_eq(v.n_clusters, 26);
    for (size_t i = 1; i < v.n_variants; i++) {
        check_errors(&v, &v.variant[i], -1, &v.variant[i].all);
        for (int k = 0; k < DOMAINS; k++) check_errors(&v, &v.variant[i], k, &v.variant[i].domain[k]);
    }
    /* P3 and random3 differ by less than the noise of their difference, which is much less than that of either. */
    exf_difference gain = exf_kl_difference(&v, 2, 1);
    ck_assert(fabs(gain.mean) < gain.half_width && !exf_beyond_noise(&gain) && gain.se < v.variant[1].all.kl_se);
    ck_assert(fabs(gain.mean - (v.variant[2].all.kl_mean - v.variant[1].all.kl_mean)) <= 1e-12);
    exf_difference lost = exf_kl_difference(&v, 1, 0), ppl = exf_log_ppl_difference(&v, 1, 0);
    ck_assert(exf_beyond_noise(&lost) && exf_beyond_noise(&ppl));
    ck_assert(ppl.se < 0.25 * v.variant[1].all.ppl_se / v.variant[1].all.ppl); /* paired: the text's own difficulty is gone */
    char domain[] = "text", *names[DOMAINS] = {domain, domain, domain};
    exf_provenance facts = {0};
    exf_cost_model cost = exf_cost_model_of(d.model, 0);
    exf_validate_report report = {.of = {.v = &v, .cost = &cost, .a = &d.model->arch, .family = d.model->family->name},
                                  .domain_names = names, .facts = &facts, .compares = 1};
    ck_ok(exf_validate_report_make(&report, &e), e);
    ck_assert(report.row[1].baseline == 2 && !report.row[2].baseline && !exf_beyond_noise(&report.row[1].gain));
    exf_validate_report_free(&report);
    exf_validation_free(&v);
    close_demo(&d);
}
END_TEST

/* Sequences are the clusters where documents are not known, and where there is but one. */
START_TEST(sequences_stand_in_for_documents)
{
    demo d;
    exf_validation v;
    open_demo(&d);
    d.batch.n_sequences = 4;
    d.batch.n_tokens = d.batch.span[4].offset;
    d.job.n_lanes = 0;
    exf_decode_schedule_free(&d.schedule);
    ck_ok(exf_decode_schedule_new(&d.schedule, &d.batch, 16, 0, 1, &e), e);
    for (int known = 0; known < 2; known++) {
        for (int i = 0; known && i < 4; i++) d.document_of[i] = 7;
        d.job.document_of = known ? d.document_of : NULL;
        ck_ok(exf_validate(&v, &d.job, &e), e);
        ck_assert(!v.clusters_are_documents && v.n_clusters == 4 && v.cluster_tokens[2] == TOKENS - 1);
        ck_assert(isfinite(v.variant[0].all.ppl_se) && v.variant[0].all.kl_se == 0);
        exf_validation_free(&v);
    }
    close_demo(&d);
}
END_TEST

/* Near copies are one cluster wherever they stand, but for domains, which have clusters of their own; a text of nothing else has
 * one cluster, of which nothing is beyond the noise. */
START_TEST(near_copies_are_one_cluster)
{
    exf_span span[5];
    for (size_t i = 0; i < 5; i++) span[i] = (exf_span){i * 10, 10};
    const exf_batch batch = {.span = span, .n_sequences = 5, .n_tokens = 50, .max_tokens = 10};
    const int64_t apart[] = {3, 8, 3, 9, 3}, alike[] = {3, 3, 3, 3, 3};
    const int32_t domain[] = {0, 0, 0, 1, 1}, one[5] = {0};
    exf_validate_job job = {.batch = &batch, .document_of = apart, .domain_of = domain, .n_domains = 2, .near_copies = 2};
    for (int all = 0; all < 2; all++) {
        static const size_t want[2][5] = {{0, 1, 0, 2, 3}, {0, 0, 0, 0, 0}};
        static const uint64_t tokens[2] = {18, 45};
        exf_validation v = {.n_clusters = 0};
        size_t cluster[5];
        job.document_of = all ? alike : apart;
        job.domain_of = all ? one : domain;
        ck_ok(exf_find_clusters(&v, &job, cluster, &e), e);
        ck_assert_mem_eq(cluster, want[all], sizeof cluster);
        ck_assert(v.clusters_are_documents);
        ck_assert_uint_eq(v.n_clusters, all ? 1 : 4);
        ck_assert_uint_eq(v.cluster_tokens[0], tokens[all]);
        exf_mem_free(v.cluster_tokens);
        exf_mem_free(v.cluster_domain);
    }
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "three texts"), *o = exf_case(s, "sequences");
    tcase_set_timeout(t, 600);
    tcase_set_tags(t, "slow"); /* under valgrind: CK_EXCLUDE_TAGS=slow */
    tcase_add_test(t, errors_of_three_texts_are_those_of_a_bootstrap);
    tcase_add_test(o, sequences_stand_in_for_documents);
    tcase_add_test(o, near_copies_are_one_cluster);
}

/* check_validate_report.c - the results of a validation as JSON that reads back, and as tables. */
#include "tests/support/validation_fixtures.h"

#include "base/mem.h"
#include "format/json.h"
#include "validate/validation.h"

typedef struct {
    results *r;
    exf_quality domain[2][2];
    exf_layer_result layer[2][2];
    exf_provenance facts, tables;
    char *names[2];
    exf_cost_model cost;
    exf_architecture arch;
    exf_limit limit;
    exf_validate_report report;
} sample;

static char awkward[] = "C \"quoted\" \\ and\ttab", plain[] = "caf\xc3\xa9";

/* Three clusters, of which the second has sums twice as large a token as the others. */
static uint64_t tokens[3] = {25, 25, 50};
static double nll[2][3] = {{50, 50, 100}, {51, 52, 102}}, kl[2][3] = {{0, 0, 0}, {2.5, 5, 5}};

/* Judges the rows that the sample has now. */
static void judge(sample *s)
{
    exf_err e;
    exf_validate_report_free(&s->report);
    ck_ok(exf_validate_report_make(&s->report, &e), e);
}

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
    s->cost = (exf_cost_model){.n_layers = 2, .expert_flops = 10, .expert_bytes = {100, 300}, .other_bytes = 1000,
                               .bandwidth = 1e6};
    s->arch = (exf_architecture){.n_layers = 2, .n_experts = 16, .top_k = 4};
    s->limit = (exf_limit){EXF_LIMIT_KL, 0.2};
    s->report = (exf_validate_report){
        .of = {.v = &s->r->v, .cost = &s->cost, .a = &s->arch, .family = "qwen3_moe",
               .flops_per_token = 200},
        .domain_names = s->names, .facts = &s->facts, .tables = &s->tables, .compares = 1, .limit = &s->limit,
        .model_bytes = 2000, .longest = 100};
    judge(s);
}

static void close_sample(sample *s)
{
    exf_validate_report_free(&s->report);
    exf_provenance_free(&s->facts);
    exf_provenance_free(&s->tables);
}

static double number(const exf_json *o, const char *key)
{
    ck_assert_msg(exf_json_get(o, key) != NULL, "no %s", key);
    return exf_json_real(exf_json_get(o, key));
}

static const char *string(const exf_json *o, const char *key)
{
    const char *s = exf_json_string(exf_json_get(o, key), NULL);
    ck_assert_msg(s != NULL, "%s is no string", key);
    return s;
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
    ck_assert_str_eq(string(v, "role"), "asked");
    ck_assert_str_eq(string(v, "folds"), "both");
    ck_assert_str_eq(string(v, "worst_domain"), plain);
    ck_assert(number(v, "decode_batch") == 16 && exf_json_type(exf_json_get(v, "constraint_words")) == EXF_JSON_NULL);
    cost = exf_json_get(v, "cost"); /* of the original 80 operations, 16 * 100 + 16 * 300 bytes */
    ck_assert(number(cost, "expert_flops_per_token") == 60 && number(cost, "expert_flops_share") == 0.75);
    ck_assert(number(cost, "expert_bytes_per_step") == 3200 && number(cost, "expert_bytes_share") == 0.5);
    ck_assert(number(cost, "weight_bytes_per_step") == 4200);
    ck_assert(fabs(number(cost, "tokens_per_second_bound") - 16 / 4.2e-3) <= 1e-9);
    exf_json_free(doc);
    exf_text_free(&t);
    close_sample(&s);
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
    ck_ok(exf_validate_markdown(&s.report, &t, &e), e);
    ck_assert_msg(lines_with(t.s, "\n| `P2:projector=joint,ridge=0.1+D8` |") == 2 && lines_with(t.s, "\n|---|") == 3, "%s", t.s);
    ck_assert_msg(strstr(t.s, "\n| 3 | 0.250 |\n| 4 | 0.250 |\n") != NULL, "%s", t.s);
    s.r->v.n_domains = 1; /* one domain is all of it; without variants there are no errors */
    s.r->v.n_variants = 1;
    judge(&s);
    t.len = 0;
    ck_ok(exf_validate_markdown(&s.report, &t, &e), e);
    ck_assert_msg(lines_with(t.s, "\n|---|") == 1, "%s", t.s);
    exf_text_free(&t);
    close_sample(&s);
}
END_TEST

/* ---- the summary ------------------------------------------------------------------------- */

/* Opens a sample whose clusters are the fixture's. */
static void open_screen(sample *s)
{
    open_sample(s);
    s->r->v.n_clusters = RESULTS_CLUSTERS;
    s->r->v.cluster_tokens = s->r->tokens;
    for (size_t i = 0; i < 2; i++) {
        exf_layer_result *layers = s->r->variant[i].layer;
        results_fill(s->r, i);
        s->r->variant[i].layer = layers;
    }
}

/* Adds a row with what the sample's rows have. */
static exf_variant_result *add_row(sample *s, const char *name, double mean, double per_token, double per_batch)
{
    static exf_quality domain[RESULTS_MOST][2];
    static exf_layer_result layer[RESULTS_MOST][2];
    size_t i = s->r->v.n_variants;
    exf_variant_result *v = results_add(s->r, name, mean, per_token, per_batch);
    v->domain = domain[i];
    v->layer = layer[i];
    for (int d = 0; d < 2; d++) domain[i][d] = (exf_quality){.ppl = 5, .kl_mean = mean * (1 + d)};
    for (int l = 0; l < 2; l++)
        layer[i][l] = (exf_layer_result){.layer = l, .experts_per_token = per_token, .experts_per_batch = per_batch};
    return v;
}

static char *summary_of(sample *s)
{
    static char kept[1 << 14];
    exf_err e;
    exf_text t = {0};
    judge(s);
    ck_ok(exf_validate_summary(&s->report, &t, &e), e);
    ck_assert_uint_lt(t.len, sizeof kept);
    memcpy(kept, t.s, t.len + 1);
    exf_text_free(&t);
    return kept;
}

/* Checks that a screen holds the summary. */
static void fits_a_screen(const char *s)
{
    int lines = 0, columns = 0;
    for (const char *c = s; *c; c++) {
        columns += ((unsigned char)*c & 0xc0) != 0x80;
        if (*c != '\n') continue;
        ck_assert_msg(columns - 1 <= EXF_SUMMARY_COLUMNS, "%d columns:\n%.3000s", columns - 1, s);
        columns = 0;
        lines++;
    }
    ck_assert_msg(lines <= EXF_SUMMARY_LINES, "%d lines:\n%.3000s", lines, s);
    ck_assert_ptr_null(strstr(s, "nan"));
    ck_assert_ptr_null(strstr(s, "inf"));
}

static void says(const char *s, const char *part)
{
    ck_assert_msg(strstr(s, part) != NULL, "no \"%s\" in\n%.3000s", part, s);
}

START_TEST(a_short_summary_shows_every_row)
{
    exf_err e;
    sample s;
    open_screen(&s);
    add_row(&s, "P2:rank=score", 0.125, 2, 16);
    results_noise(add_row(&s, "P2 half 1", 0.13, 2, 16), 0.001);
    s.r->variant[3].role = EXF_LANE_HALF;
    snprintf(s.r->variant[3].name, EXF_VARIANT_NAME_LEN, "P2:rank=score half 1");
    add_row(&s, "P2:rank=score half 2", 0.12, 2, 16)->role = EXF_LANE_HALF;
    add_row(&s, "D8", 0.25, 4, 8);
    add_row(&s, "D16", 0.001, 4, 16)->constraint = EXF_FEW_EXPERTS;
    s.r->size[0].experts = 14.25;
    ck_ok(exf_provenance_add(&s.tables, &e, "solve.stable_targets", "0.875"), e);
    ck_ok(exf_provenance_add(&s.tables, &e, "solve.small_calibration", "The calibration has few tokens."), e);
    char *seen = summary_of(&s);
    fits_a_screen(seen);
    says(seen, " 80 100.0 / 100 %");
    says(seen, "\n*  P2:rank=score  ");
    says(seen, " 40  50.0 / 80 % 0.12500 ± 0.00000 0.2500 caf\xc3\xa9       5.125\n");
    says(seen, "\n*  D8  ");
    says(seen, " 75.0 + 56.1 % ");
    says(seen, "same target for 87.5 % of the traffic");
    says(seen, "half of the calibration: P2:rank=score 0.13000");
    says(seen, "The calibration has few tokens.");
    says(seen, "Not constrained: D16: the original runs 14.2 experts in decode batches of 16");
    says(seen, "Recommended for kl=0.2");
    says(seen, "prefill P2:rank=score, 50.0 % of the experts' FLOP, 80.0 % of all, KL 0.12500");
    says(seen, "nothing holds; nearest D8");
    ck_assert_ptr_null(strstr(seen, "vllm serve")); /* without the names of files */
    ck_assert_ptr_null(strstr(seen, "\n   D16"));
    close_sample(&s);
}
END_TEST

/* Returns how many lines the closing words have. */
static int closing_lines(const char *seen)
{
    const char *s = strstr(seen, "Recommended for");
    ck_assert_ptr_nonnull(s);
    int n = 0;
    for (; *s; s++) n += *s == '\n';
    return n;
}

/* What is served is named with both commands, and its row is in the table though the table is cut. */
START_TEST(a_summary_closes_with_what_to_serve)
{
    static const exf_validate_files files = {.recipe = "my recipe.yaml", .model = "model",
                                             .settings = " --set validate.sequences=6", .tables = "out/tables.h5",
                                             .output = "out", .report = "out/frontier.md"};
    sample s;
    open_screen(&s);
    s.r->v.n_variants = 1;
    for (int i = 0; i < 40; i++) {
        char name[EXF_VARIANT_NAME_LEN];
        snprintf(name, sizeof name, "P1:max_loss=0.%02d", i + 10);
        add_row(&s, name, 0.3 + 0.001 * i, 1 + 0.02 * i, 16);
    }
    results_noise(add_row(&s, "P2:projector=joint", 0.1, 2, 16), 0.001);
    results_noise(add_row(&s, "D8:rank=energy", 0.1, 4, 8), 0.001);
    s.report.files = &files;
    char *seen = summary_of(&s);
    fits_a_screen(seen);
    ck_assert_int_le(closing_lines(seen), EXF_CLOSING_LINES);
    says(seen, "P2:projector=joint  ");
    says(seen, "  prefill P2:projector=joint, 50.0 % of the experts' FLOP, 80.0 % of all, KL 0.10000");
    says(seen, "  batches of 16: decode D8:rank=energy, ");
    says(seen, "  exfold-validate 'my recipe.yaml' --set validate.sequences=6 --tables out/tables.h5 --variants \\\n"
               "    P2:projector=joint+D8:rank=energy --set validate.prefill_tokens=50 --set \\\n"
               "    validate.decode_batch=16 --limit kl=0.2 -o out\n");
    says(seen, "  exfold-export out/tables.h5 --set output.targets=safetensors -o out\n");
    says(seen, "  EXFOLD_TABLES=out/tables.safetensors EXFOLD_PREFILL=P2:projector=joint \\\n"
               "    EXFOLD_DECODE=D8:rank=energy vllm serve model\n");
    says(seen, "public runtime runs: out/frontier.md\n");
    add_row(&s, "P2:projector=joint+D8:rank=energy", 0.15, 2, 8);
    seen = summary_of(&s);
    says(seen, "  together KL 0.15000 ");
    ck_assert_ptr_null(strstr(seen, "exfold-validate 'my"));
    close_sample(&s);
}
END_TEST

/* Of what does not hold the limit the nearest rows are named, without the head of what is recommended. */
START_TEST(what_does_not_hold_is_not_recommended)
{
    static const exf_limit limit = {EXF_LIMIT_KL, 1e-6};
    sample s;
    open_screen(&s);
    add_row(&s, "P2:rank=score", 0.125, 2, 16);
    add_row(&s, "D8:rank=energy", 0.1, 4, 8);
    s.report.limit = &limit;
    char *seen = summary_of(&s);
    says(seen, "  prefill: nothing holds; nearest P2:rank=score, ");
    says(seen, "  batches of 16: decode: nothing holds; nearest D8:rank=energy, ");
    ck_assert_ptr_null(strstr(seen, "Recommended"));
    close_sample(&s);
}
END_TEST

/* Long names, four sizes, more rows than lines, and every sentence there is. */
START_TEST(a_long_summary_fits_a_screen)
{
    exf_err e;
    sample s;
    open_screen(&s);
    static exf_batch_size sizes[6];
    for (int b = 0; b < 6; b++) sizes[b] = (exf_batch_size){.size = 1 << b, .width = 1 << b, .experts = 12};
    s.r->v.batch_size = sizes;
    s.r->v.n_batch_sizes = 6;
    s.r->v.n_variants = 1;
    for (int i = 0; i < 50; i++) {
        char name[EXF_VARIANT_NAME_LEN];
        if (i < 12) snprintf(name, sizeof name, "P%d:budget=token,sensitivity=measured,projector=joint", i + 1);
        else snprintf(name, sizeof name, "D%d:rank=energy,targets=router,weights=joint", i % 9 + 2);
        exf_variant_result *v = add_row(&s, name, 0.2 / (i + 1), i < 12 ? 0.3 * i : 4, 10 - 0.2 * i);
        v->batch = i < 12 ? 0 : i % 6;
        if (i > 44) v->constraint = EXF_SHORT_BATCHES;
    }
    ck_ok(exf_provenance_add(&s.tables, &e, "solve.stable_targets", "0.875"), e);
    ck_ok(exf_provenance_add(&s.tables, &e, "solve.small_calibration", "%0200d", 0), e); /* without a blank to break at */
    static const exf_validate_files files = {.model = "a/model", .settings = " --text one.txt", .tables = "out/tables.h5",
                                             .output = "out", .report = "out/frontier.md"};
    s.report.files = &files;
    ck_ok(exf_provenance_add(&s.facts, &e, "validate.text", "one.txt, two.txt, three.txt and 38 more files"), e);
    char *seen = summary_of(&s);
    fits_a_screen(seen);
    ck_assert_int_le(closing_lines(seen), EXF_CLOSING_LINES);
    says(seen, "\n*x P"); /* sentences leave room for the rows that are recommended */
    s.report.limit = NULL;
    s.report.of.runtime = NULL;
    s.r->v.n_clusters = 1;
    fits_a_screen(summary_of(&s));
    s.r->v.n_variants = 1;
    fits_a_screen(summary_of(&s));
    close_sample(&s);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, json_reads_back);
    tcase_add_test(t, tables_name_every_variant);
    tcase_add_test(t, a_short_summary_shows_every_row);
    tcase_add_test(t, a_summary_closes_with_what_to_serve);
    tcase_add_test(t, what_does_not_hold_is_not_recommended);
    tcase_add_test(t, a_long_summary_fits_a_screen);
}

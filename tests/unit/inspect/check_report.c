/* check_report.c - the report: escaped, self-contained, deterministic, small enough. */
#include "tests/support/inspection_fixtures.h"

#include "format/json.h"
#include "inspect/report.h"

#include <stdlib.h>

static const small_run run = {.l = 2, .e = 6, .k = 2, .n = 60};
static exf_err e; /* of the last call */

static exf_inspection study_of(const char *path, const char *beside)
{
    exf_inspection s;
    ck_ok(exf_inspection_read(&s, exf_scratch(path), beside ? exf_scratch(beside) : NULL, &e), e);
    return s;
}

static exf_code write_report(const exf_inspection *s, const char *title, const char *name, exf_err *err)
{
    char *dir = NULL, target[512];
    snprintf(target, sizeof target, "%s", exf_scratch(name));
    exf_code rc = exf_path_dir(&dir, target, err);
    if (rc == EXF_OK) rc = exf_report_write(s, title, dir, target, 1, err);
    exf_mem_free(dir);
    return rc;
}

/* The report of the small run, with its statistics.  Caller frees. */
static char *small_report(const char *title)
{
    char *text;
    size_t n;
    small_files(&run, "s.h5", "t.h5");
    exf_inspection s = study_of("t.h5", "s.h5");
    ck_ok(write_report(&s, title, "r.html", &e), e);
    ck_ok(exf_file_slurp(exf_scratch("r.html"), 1 << 24, &text, &n, &e), e);
    ck_assert_uint_eq(strlen(text), n);
    exf_inspection_free(&s);
    return text;
}

static int occurrences(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

/* The report of the small run, whose two layers have these budgets.  Caller frees. */
static char *report_with(exf_budget *budgets, int n)
{
    char *text;
    size_t length;
    small_files(&run, "s.h5", "t.h5");
    exf_inspection s = study_of("t.h5", "s.h5");
    exf_budget *own = s.budget;
    int n_own = s.n_budgets;
    s.budget = budgets;
    s.n_budgets = n;
    ck_ok(write_report(&s, "t", "r.html", &e), e);
    ck_ok(exf_file_slurp(exf_scratch("r.html"), 1 << 24, &text, &length, &e), e);
    s.budget = own;
    s.n_budgets = n_own;
    exf_inspection_free(&s);
    return text;
}

START_TEST(budgets_are_a_table)
{
    double scale[] = {1, 1};
    uint64_t stream[] = {30, 10, 0, 40}, top_p[] = {20, 20, 20, 20}; /* [2, K] */
    exf_budget budgets[] = {{.budget = 1.5, .rule = "stream", .lambda = 0.25, .mean = 1.625, .scale = scale, .kept = stream},
                            {.budget = 1.5, .rule = "top_p", .lambda = 0.875, .mean = 1.5, .scale = scale, .kept = top_p}};
    char *text = report_with(budgets, 2), *none = report_with(NULL, 0);
    ck_assert_ptr_nonnull(strstr(text, "<th colspan=\"2\" scope=\"colgroup\">P = 1.5</th></tr>\n<tr><th scope=\"col\">stream</th>"
                                       "<th scope=\"col\">top_p</th></tr>"));
    ck_assert_ptr_nonnull(strstr(text, "<td style=\"--share: 62.5%\">1.250</td><td style=\"--share: 75.0%\">1.500</td></tr>"));
    ck_assert_ptr_nonnull(strstr(text, "<td style=\"--share: 100.0%\">2.000</td><td style=\"--share: 75.0%\">1.500</td></tr>"));
    ck_assert_ptr_nonnull(strstr(text, "<th scope=\"row\">all</th><td style=\"--share: 81.2%\">1.625</td>"));
    ck_assert_ptr_nonnull(strstr(text, "<th scope=\"row\">&lambda;</th><td>0.25</td><td>0.875</td></tr>"));
    ck_assert_ptr_null(strstr(text, "no budgets per token"));
    ck_assert_ptr_nonnull(strstr(none, "These tables have no budgets per token"));
    exf_mem_free(text);
    exf_mem_free(none);
}
END_TEST

START_TEST(texts_of_files_are_escaped)
{
    char *text = small_report("a<b>&\"c'.h5");
    ck_assert_ptr_nonnull(strstr(text, "a&lt;b&gt;&amp;&quot;c&#39;.h5"));
    ck_assert_ptr_nonnull(strstr(text, "made &lt;up&gt; &amp; &quot;small&quot;"));
    ck_assert_ptr_null(strstr(text, "<b>"));
    ck_assert_ptr_null(strstr(text, "made <up>"));
    exf_mem_free(text);
}
END_TEST

/* Nothing is fetched, no place is left, what must be there is. */
START_TEST(a_report_needs_nothing_else)
{
    static const char *const never[] = {"http:", "https:", "src=",  "@import",   "url(", "fetch(",
                                        "{{",    "}}<",    "<link", "innerHTML", "eval("};
    static const char *const once[] = {"<!DOCTYPE html>", "@media (prefers-color-scheme: dark)",
                                       "class=\"skip\"",  "id=\"about\"",
                                       "id=\"scalar-1\"", "id=\"aligned-3\"",
                                       "id=\"tokens-3\"", "id=\"norms-1\"",
                                       "id=\"theme\"",    "@media print",
                                       "</html>"};
    char *text = small_report("t.h5");
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) ck_assert_msg(!strstr(text, never[i]), "has %s", never[i]);
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        ck_assert_msg(occurrences(text, once[i]) == 1, "%s: %d times", once[i], occurrences(text, once[i]));
    ck_assert_int_eq(occurrences(text, "data-layer=\""), run.l + 0);
    ck_assert_int_eq(occurrences(text, "<script"), occurrences(text, "</script>"));
    ck_assert_ptr_nonnull(strstr(text, "No validation lies beside the tables"));
    exf_mem_free(text);
}
END_TEST

/* ---- numbers as bytes -------------------------------------------------------------------- */

/* The matrix `id` of layer 0 of a report of tables, as base64.  Caller frees all. */
static char *blob_of(exf_inspection *s, const char *id, char **all)
{
    size_t n;
    ck_ok(write_report(s, "t", "b.html", &e), e);
    ck_ok(exf_file_slurp(exf_scratch("b.html"), 1 << 24, all, &n, &e), e);
    char *at = strstr(*all, id);
    ck_assert_ptr_nonnull(at);
    at = strchr(at, '>') + 1;
    *strchr(at, '<') = 0;
    return at;
}

/* 0.5, 1 + 2^-11 (a tie: to even, 1), 1 + 3 2^-11 (to 1 + 2^-9), 2^-24, 2^-25 (a tie: 0),
 * 65504, 65520 (too large), NaN, -2 as half-precision numbers. */
START_TEST(halves_are_rounded_to_nearest)
{
    static const float value[9] = {0.5f, 1 + 0x1p-11f, 1 + 0x1.8p-10f, 0x1p-24f, 0x1p-25f, 65504, 65520, NAN, -2};
    static const uint16_t want[9] = {0x3800, 0x3c00, 0x3c02, 1, 0, 0x7bff, 0x7e00, 0x7e00, 0xc000};
    exf_tables t = wide_tables(1, 3, 100);
    exf_inspection s = {0};
    char *all, *blob;
    uint8_t bytes[20] = {0};
    ck_ok(exf_mem_new(&t.similarity, 9, sizeof(float), "x", &e), e);
    for (int i = 0; i < 9; i++) {
        t.count[i] = i % 4 ? 3 : 0;
        t.similarity[i] = value[i];
    }
    exf_inspection_take_tables(&s, &t);
    for (int i = 0; i < 9; i++) s.similarity[i] = value[i]; /* also on the diagonal */
    blob = blob_of(&s, "id=\"similarity-0\"", &all);
    ck_assert_uint_eq(strlen(blob), 24);
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < 18; i++) {
        uint32_t word = 0;
        for (int k = 0; k < 4; k++) word = word << 6 | (uint32_t)(strchr(digit, blob[i / 3 * 4 + (size_t)k]) - digit);
        bytes[i] = (uint8_t)(word >> (16 - 8 * (i % 3)));
    }
    for (int i = 0; i < 9; i++)
        ck_assert_msg(bytes[2 * i] + 256 * bytes[2 * i + 1] == want[i], "%g is %02x%02x", (double)value[i], bytes[2 * i + 1],
                      bytes[2 * i]);
    exf_mem_free(all);
    exf_inspection_free(&s);
}
END_TEST

START_TEST(tokens_take_the_room_they_need)
{
    exf_tables t = wide_tables(1, 2, 100);
    exf_inspection s = {0};
    char *all;
    exf_inspection_take_tables(&s, &t);
    s.count[1] = 65535;
    s.count[2] = 1;
    ck_assert_str_eq(blob_of(&s, "id=\"tokens-0\"", &all), "AAD//wEAAAA="); /* 0, ffff, 1, 0 */
    exf_mem_free(all);
    s.count[1] = 65536;
    ck_assert_str_eq(blob_of(&s, "id=\"tokens-0\"", &all), "AAAAAAAAAQABAAAAAAAAAA==");
    exf_mem_free(all);
    exf_inspection_free(&s);
}
END_TEST

/* ---- validation beside the tables ---------------------------------------------------------- */

static char *with_validation(const char *name, const char *text)
{
    exf_write_file(exf_scratch(name), text, strlen(text));
    return small_report("t.h5");
}

/* Heads are words; a number that is missing is a dash; files without words have the variant's text alone. */
START_TEST(validation_json_becomes_a_table_of_words)
{
    char *text = with_validation(
        "validation.json",
        "{\"schema\": \"exfold-validation/1\", \"variants\": [{\"name\": \"a<b\", \"words\": \"x & y\", \"ppl\": 4.5, "
        "\"ppl_se\": 0.25, \"kl_mean\": 0.125, \"kl_half_width\": 0.5, \"kl_max\": 2, \"top1\": 0.875, "
        "\"experts_per_token\": 2, \"layers\": [1], \"worst_domain\": \"c<\", \"domains\": {\"c<\": {\"kl_mean\": 0.25}}, "
        "\"cost\": {\"expert_flops_share\": 0.5}, \"role\": \"asked\", \"on_frontier\": true, \"served_by\": [\"one\"], "
        "\"served_otherwise_by\": [\"two\"], \"constraint\": \"none\"}, {\"name\": \"P2\", \"ppl\": null}]}");
    ck_assert_ptr_nonnull(strstr(text, "<th scope=\"col\">variant</th><th scope=\"col\">PPL \xc2\xb1 std. error</th>"
                                       "<th scope=\"col\">KL mean</th><th scope=\"col\">worst domain</th>"));
    ck_assert_ptr_nonnull(
        strstr(text, "<tr><th scope=\"row\">x &amp; y<code>a&lt;b</code></th><td>4.5000 <small>\xc2\xb1&nbsp;0.2500</small></td>"
                     "<td>0.12500 <small>\xc2\xb1&nbsp;0.50000</small></td><td>0.25000 <small>c&lt;</small></td>"
                     "<td>\xe2\x80\x93</td><td>2.000</td><td>87.50&nbsp;%</td><td>\xe2\x80\x93</td>"
                     "<td>50.0&nbsp;% <small>2.00 experts</small></td><td>\xe2\x80\x93</td>"
                     "<td class=\"text\">one ~two </td><td class=\"text\">frontier</td></tr>"));
    ck_assert_ptr_nonnull(strstr(text, "<tr><th scope=\"row\"><code>P2</code></th><td>\xe2\x80\x93</td>"));
    ck_assert_ptr_null(strstr(text, "No validation lies"));
    ck_assert_ptr_null(strstr(text, "<li>")); /* a file of earlier programs has no sentences */
    exf_mem_free(text);
}
END_TEST

/* The sentences of both files are shown, each before its table; nothing is computed. */
START_TEST(findings_are_those_of_the_files)
{
    static const char frontier[] =
        "{\"schema\": \"exfold-validation/1\", \"verdict\": [\"gains <nothing>\"], \"stability\": [\"stable\"], "
        "\"not_constrained\": [], \"recommendation\": {\"words\": [\"serve\", \"  P1\"]}, \"data\": [\"text\"], "
        "\"variants\": [{\"name\": \"D8\", \"role\": \"baseline\", \"constraint_words\": \"not constrained: few\"}]}";
    exf_write_file(exf_scratch("frontier.json"), frontier, strlen(frontier));
    char *text = with_validation("validation.json", "{\"schema\": \"exfold-validation/1\", \"variants\": []}");
    const char *first = strstr(text, "from validation.json beside"), *second = strstr(text, "from frontier.json beside");
    ck_assert(first && second && first < second);
    ck_assert_ptr_nonnull(strstr(first, "<ul>\n<li>gains &lt;nothing&gt;</li>\n<li>stable</li>\n<li>serve</li>\n<li>P1</li>\n"
                                        "<li>text</li>\n</ul>"));
    ck_assert_ptr_nonnull(strstr(second, "<td class=\"text\">baseline not constrained: few</td>"));
    exf_mem_free(text);
}
END_TEST

START_TEST(validation_md_becomes_a_table)
{
    char *text = with_validation("validation.md", "# Title\n\n| a | b |\n|---|---|\n| x & y | 2 |\n| z | 3 |");
    ck_assert_ptr_nonnull(strstr(text, "<thead><tr><th>a</th><th>b</th></tr>\n</thead><tbody>\n<tr><td>x &amp; "
                                       "y</td><td>2</td></tr>\n<tr><td>z</td><td>3</td></tr>\n</tbody>"));
    exf_mem_free(text);
}
END_TEST

static void refused(const char *validation, const char *message)
{
    exf_write_file(exf_scratch("validation.json"), validation, strlen(validation));
    exf_inspection s = study_of("t.h5", NULL);
    ck_fails(write_report(&s, "t", "r.html", &e), EXF_FORMAT, e, message);
    ck_assert(!exf_path_exists(exf_scratch("r.html")));
    exf_inspection_free(&s);
}

START_TEST(validation_json_that_is_none_is_an_error)
{
    small_files(&run, "s.h5", "t.h5");
    refused("{", "validation.json: line 1: not valid JSON");
    refused("{\"variants\": []}", "validation.json: \"schema\" is missing, expected exfold-validation/1");
    refused("{\"schema\": \"other\", \"variants\": []}", "validation.json: \"schema\" is other, expected exfold-validation/1");
    refused("{\"schema\": \"exfold-validation/1\", \"variants\": {}}", "\"variants\" is an object, expected an array");
}
END_TEST

/* ---- bytes -------------------------------------------------------------------------------------- */

START_TEST(equal_studies_give_equal_reports)
{
    small_files(&run, "s.h5", "t.h5");
    exf_inspection s = study_of("t.h5", "s.h5"), again = study_of("t.h5", "s.h5");
    ck_ok(write_report(&s, "t.h5", "a.html", &e), e);
    ck_ok(write_report(&again, "t.h5", "b.html", &e), e);
    ck_assert(same_files("a.html", "b.html"));
    exf_inspection_free(&s);
    exf_inspection_free(&again);
}
END_TEST

/* The report of tables of E experts and its object about all, which must name this type. */
static void check_type_of(int l, int n_experts, const char *type)
{
    exf_tables t = wide_tables(l, n_experts, 5);
    exf_inspection s = {0};
    char *text, want[64];
    size_t n;
    size_t cells = (size_t)l * (size_t)n_experts * (size_t)n_experts;
    ck_ok(exf_mem_new(&t.std_error, cells, sizeof(float), "x", &e), e);
    for (size_t i = 0; i < cells; i++) t.std_error[i] = EXF_ERROR_UNKNOWN;
    exf_inspection_take_tables(&s, &t);
    ck_ok(write_report(&s, "wide", "w.html", &e), e);
    exf_inspection_free(&s);
    ck_ok(exf_file_slurp(exf_scratch("w.html"), 100 << 20, &text, &n, &e), e);
    snprintf(want, sizeof want, "\"name\": \"relative loss\", \"type\": \"%s\"", type);
    ck_assert_uint_lt(n, 30000000);
    ck_assert_ptr_nonnull(strstr(text, want));
    /* what is not known is no number in any of them: 0x7e00 twice, or 255 */
    snprintf(want, sizeof want, "id=\"error-1\">%s", strcmp(type, "u8") == 0 ? "////" : "AH4A");
    ck_assert_ptr_nonnull(strstr(text, want));
    exf_mem_free(text);
}

START_TEST(numbers_get_coarser_before_the_page_gets_too_large)
{
    check_type_of(4, 128, "f32");
    check_type_of(30, 256, "f16"); /* the fewest layers that each type serves, about */
    check_type_of(44, 256, "u8");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "report");
    tcase_add_checked_fixture(c, start_empty, NULL);
    tcase_add_test(c, budgets_are_a_table);
    tcase_add_test(c, texts_of_files_are_escaped);
    tcase_add_test(c, a_report_needs_nothing_else);
    tcase_add_test(c, halves_are_rounded_to_nearest);
    tcase_add_test(c, tokens_take_the_room_they_need);
    tcase_add_test(c, validation_json_becomes_a_table_of_words);
    tcase_add_test(c, findings_are_those_of_the_files);
    tcase_add_test(c, validation_md_becomes_a_table);
    tcase_add_test(c, validation_json_that_is_none_is_an_error);
    tcase_add_test(c, equal_studies_give_equal_reports);
    tcase_add_test(c, numbers_get_coarser_before_the_page_gets_too_large);
}

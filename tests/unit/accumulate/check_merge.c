/* check_merge.c - exf_merge_statistics and the facts of parts. */
#include "tests/support/digest_fixtures.h"
#include "tests/support/artifact_fixtures.h"

#include "accumulate/accumulate.h"

enum { E = 3, H = 4 };

static const int32_t number = 2;
static exf_err e; /* of the last call */

/* ---- parts made by hand -------------------------------------------------------------- */

typedef struct {
    int id;          /* which sequences, and how large the sums */
    const char *seed, *domains;
    const char *commit, *numbers; /* of the program; NULL: it names none */
    const char *within_a_run;     /* fact of sums that add up within a run alone; NULL: there are none */
} part;

static const part one = {1, "42", "c: 1 sequences, 30 tokens; a: b: 1 sequences, 3 tokens", NULL, NULL, NULL};

static void fill(exf_layer_statistics *s, const part *p)
{
    for (int i = 0; i < E * E; i++) {
        if (i / E == i % E) continue;
        exf_exact_add(&s->source_sq[i], 90 * p->id);
        exf_exact_add(&s->target_sq[i], 70 * p->id);
        exf_exact_add(&s->dot[i], 11 * p->id);
        s->count[i] = 11;
        s->sequences[i] = 2;
    }
    for (int i = 0; i < E; i++) s->norm_count[i] = 22;
}

static exf_code write_part(const char *name, const part *p, exf_err *err)
{
    exf_run_shape shape = {E, 2, H, 2, 33};
    exf_statistics_writer w = {.h = NULL};
    exf_layer_statistics s = {.dot = NULL};
    exf_sequence_list list = {.n = 0}, sorted = {.n = 0};
    exf_provenance capture = {0}, facts = {0}, origin = {0};
    exf_facts_part from = {.path = name, .provenance = &capture, .sequences = &list};
    exf_statistics_header head = {
        .shape = shape, .layer_number = &number, .n_layers = 1, .sequences = &sorted, .provenance = &facts, .origin = &origin};
    exf_code rc;
    EXF_TRY(exf_sequence_list_new(&list, 2, err));
    list.length[0] = 30, list.length[1] = 3;
    list.sha256[0][0] = (unsigned char)(200 - p->id), list.sha256[1][0] = (unsigned char)p->id;
    EXF_TRY(exf_sequence_list_sorted(&sorted, &list, err));
    EXF_TRY(exf_provenance_add(&capture, err, "data.tokens_digest", "tokens %d", p->id));
    EXF_TRY(exf_provenance_add(&capture, err, "data.manifest_sha256", "manifest %d", p->id));
    EXF_TRY(exf_provenance_add(&capture, err, "data.seed", "%s", p->seed));
    EXF_TRY(exf_provenance_add(&capture, err, "data.domains", "%s", p->domains));
    EXF_TRY(exf_provenance_add(&capture, err, "model.family", "qwen3_moe"));
    if (p->commit) EXF_TRY(exf_provenance_add(&capture, err, "capture.commit", "%s", p->commit));
    if (p->numbers) EXF_TRY(exf_provenance_add(&capture, err, "capture.numbers", "%s", p->numbers));
    EXF_TRY(exf_facts_join(&facts, &origin, &from, 1, &sorted, 0, err));
    if (p->commit) EXF_TRY(exf_provenance_add(&facts, err, "accumulate.commit", "%s", p->commit));
    if (p->numbers) EXF_TRY(exf_provenance_add(&facts, err, "accumulate.numbers", "%s", p->numbers));
    if (p->within_a_run) EXF_TRY(exf_provenance_add(&facts, err, p->within_a_run, "diagonal,lowrank"));
    EXF_TRY(exf_layer_statistics_new(&s, E, err));
    fill(&s, p);
    EXF_TRY(exf_statistics_start(&w, exf_scratch(name), 1, &head, err));
    EXF_TRY(exf_statistics_put(&w, number, &s, err));
    rc = exf_statistics_commit(&w, NULL, err);
out:
    exf_statistics_abort(&w);
    exf_layer_statistics_free(&s);
    exf_sequence_list_free(&list);
    exf_sequence_list_free(&sorted);
    exf_provenance_free(&capture);
    exf_provenance_free(&facts);
    exf_provenance_free(&origin);
    return rc;
}

static char digest[EXF_SHA256_HEX]; /* that the last merge gave */

static exf_code merge(const char *target, exf_err *err, int n, ...)
{
    char path[4][600];
    const char *paths[4];
    va_list va;
    va_start(va, n);
    for (int i = 0; i < n; i++) {
        snprintf(path[i], sizeof path[i], "%s", exf_scratch(va_arg(va, const char *)));
        paths[i] = path[i];
    }
    va_end(va);
    return exf_merge_statistics(paths, (size_t)n, exf_scratch(target), 1, 0, 0, digest, err);
}

static void write_three(void)
{
    for (int i = 1; i <= 3; i++) {
        char name[8] = {(char)('0' + i), '.', 'h', '5', 0};
        part p = one;
        p.id = i;
        p.seed = i == 3 ? "7" : "42";
        p.domains = i == 2 ? "a: b: 2 sequences, 33 tokens" : one.domains;
        ck_ok(write_part(name, &p, &e), e);
    }
}

/* ---- facts ------------------------------------------------------------------------------ */

START_TEST(facts_add_up_or_agree)
{
    exf_statistics_reader r;
    write_three();
    ck_ok(merge("12.h5", &e, 2, "2.h5", "1.h5"), e);
    ck_ok(exf_statistics_open(&r, exf_scratch("12.h5"), &e), e);
    ck_assert_str_eq(exf_provenance_get(&r.provenance, "data.domains"), "a: b: 3 sequences, 36 tokens; c: 1 sequences, 30 tokens");
    ck_assert_str_eq(exf_provenance_get(&r.provenance, "data.sequences"), "4");
    ck_assert_str_eq(exf_provenance_get(&r.provenance, "data.tokens"), "66");
    ck_assert_str_eq(exf_provenance_get(&r.provenance, "data.seed"), "42");
    ck_assert_str_eq(exf_provenance_get(&r.provenance, "model.family"), "qwen3_moe");
    ck_assert_ptr_null(exf_provenance_get(&r.provenance, "data.manifest_sha256"));
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.0.tokens_digest"), "tokens 1");
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.1.manifest_sha256"), "manifest 2");
    ck_assert_uint_eq(strlen(exf_provenance_get(&r.origin, "part.1.statistics_digest")), 64);
    ck_assert_ptr_null(exf_provenance_get(&r.origin, "part.0.seed"));
    ck_assert_int_eq(r.shape.n_sequences, 4);
    ck_assert_int_eq(r.shape.n_tokens, 66);
    exf_statistics_close(&r);
    ck_ok(merge("123.h5", &e, 2, "3.h5", "12.h5"), e); /* seeds differ now */
    ck_ok(same_digest(exf_scratch("123.h5"), digest, &e), e);
    ck_ok(exf_statistics_open(&r, exf_scratch("123.h5"), &e), e);
    ck_assert_ptr_null(exf_provenance_get(&r.provenance, "data.seed"));
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.0.seed"), "42");
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.2.seed"), "7");
    exf_statistics_close(&r);
}
END_TEST

START_TEST(a_list_of_domains_is_read_or_refused)
{
    static const char *const bad[] = {"c", "c: 3 sequences", "c: 3 sequences, 4 tokens,", "c: 3 sequences, 4 tokens; d"};
    exf_sequence_list list = {.n = 0};
    ck_ok(exf_sequence_list_new(&list, 1, &e), e);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        exf_provenance p = {0}, out = {0}, origin = {0};
        exf_facts_part from = {.path = "x.h5", .provenance = &p, .sequences = &list};
        add_fact(&p, "data.domains", bad[i]);
        ck_fails(exf_facts_join(&out, &origin, &from, 1, &list, 0, &e), EXF_FORMAT, e, "x.h5 data.domains");
        exf_provenance_free(&p);
        exf_provenance_free(&out);
    }
    exf_sequence_list_free(&list);
}
END_TEST

/* The same documents are other sequences where they were cut at another length; a part may be a merge itself. */
START_TEST(documents_are_cut_at_one_length)
{
    for (int merged = 0; merged < 3; merged++) {
        exf_sequence_list a = {.n = 0}, b = {.n = 0}, all = {.n = 0};
        exf_provenance p = {0}, q = {0}, made = {0}, out = {0}, origin = {0};
        exf_facts_part from[2] = {{.path = "a.h5", .provenance = &p, .sequences = &a, .origin = merged ? &made : NULL},
                                  {.path = "b.h5", .provenance = &q, .sequences = &b}};
        ck_ok(exf_sequence_list_new(&a, 1, &e), e);
        ck_ok(exf_sequence_list_new(&b, 1, &e), e);
        ck_ok(exf_sequence_list_new(&all, 2, &e), e);
        b.sha256[0][0] = 1;
        if (!merged) add_fact(&p, "data.max_tokens", "128");
        add_fact(&q, "data.max_tokens", merged == 2 ? "128" : "64");
        add_fact(&made, "part.0.manifest_sha256", "00");
        add_fact(&made, "part.0.max_tokens", "128");
        add_fact(&made, "part.1.manifest_sha256", "01");
        add_fact(&made, "part.1.max_tokens", merged == 2 ? "64" : "128");
        ck_fails(exf_facts_join(&out, &origin, from, 2, &all, 0, &e), EXF_MODEL, e,
                 merged == 2 ? "a.h5: data.max_tokens is 64, in a.h5 it is 128" : "b.h5: data.max_tokens is 64, in a.h5 it is 128");
        exf_provenance_free(&p);
        exf_provenance_free(&q);
        exf_provenance_free(&made);
        exf_provenance_free(&out);
        exf_provenance_free(&origin);
        exf_sequence_list_free(&a);
        exf_sequence_list_free(&b);
        exf_sequence_list_free(&all);
    }
}
END_TEST

/* ---- sums ---------------------------------------------------------------------------------- */

START_TEST(order_does_not_matter)
{
    write_three();
    ck_ok(merge("a.h5", &e, 3, "1.h5", "2.h5", "3.h5"), e);
    ck_ok(merge("b.h5", &e, 3, "3.h5", "1.h5", "2.h5"), e);
    ck_assert(same_files("a.h5", "b.h5"));
    ck_ok(merge("same.h5", &e, 1, "a.h5"), e);
    ck_assert(same_files("a.h5", "same.h5"));
}
END_TEST

START_TEST(sums_are_the_sums_of_the_parts)
{
    exf_statistics_reader r;
    exf_layer_statistics s;
    write_three();
    ck_ok(merge("s.h5", &e, 3, "1.h5", "2.h5", "3.h5"), e);
    ck_ok(exf_statistics_open(&r, exf_scratch("s.h5"), &e), e);
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_ok(exf_statistics_get(&r, 0, &s, &e), e);
    ck_assert(exf_exact_value(&s.dot[1]) == 66 && s.count[1] == 33 && s.sequences[1] == 6 && s.norm_count[0] == 66);
    exf_layer_statistics_free(&s);
    exf_statistics_close(&r);
}
END_TEST

static void refused(const part *other, exf_code want, const char *text)
{
    ck_ok(write_part("1.h5", &one, &e), e);
    ck_ok(write_part("other.h5", other, &e), e);
    ck_fails(merge("s.h5", &e, 2, "1.h5", "other.h5"), want, e, text);
    ck_assert_msg(access(exf_scratch("s.h5"), F_OK) != 0, "a file is there after \"%s\"", e.msg);
}

/* A file of two experts that both have all tokens, which no sequences tell of; exponent: of its sum of norms. */
static void write_large(const char *name, int64_t n_tokens, int exponent, const char *tokens)
{
    exf_run_shape shape = {2, 2, H, 1, n_tokens};
    exf_statistics_writer w = {.h = NULL};
    exf_layer_statistics s;
    exf_provenance p = sample_facts(tokens);
    ck_ok(exf_layer_statistics_new(&s, 2, &e), e);
    for (int i = 0; i < 2; i++) s.norm_count[i] = s.count[1 + i] = (uint64_t)n_tokens;
    s.norm_sum[1].limb[(exponent + 96) / 64] = (uint64_t)1 << (exponent + 96) % 64;
    ck_ok(create_statistics(&w, exf_scratch(name), 1, &shape, &number, 1, &p, &e), e);
    ck_ok(exf_statistics_put(&w, number, &s, &e), e);
    ck_ok(exf_statistics_commit(&w, NULL, &e), e);
    exf_layer_statistics_free(&s);
    exf_provenance_free(&p);
}

START_TEST(what_would_wrap_is_refused)
{
    static const int64_t most = EXF_MOST_COUNTED / 2;
    write_large("1.h5", most - 8, 3, "t1");
    write_large("2.h5", 8, 3, "t2");
    ck_ok(merge("s.h5", &e, 2, "1.h5", "2.h5"), e);
    write_large("2.h5", 9, 3, "t2");
    ck_fails(merge("wraps.h5", &e, 2, "1.h5", "2.h5"), EXF_FORMAT, e,
             "2.h5 9 1 4503599627370488 1 450359962737049");
    write_large("1.h5", 8, 94, "t1"); /* twice 2^94 is 2^95, the sign */
    write_large("2.h5", 8, 94, "t2");
    ck_fails(merge("wraps.h5", &e, 2, "1.h5", "2.h5"), EXF_FORMAT, e,
             "2.h5 2 norm_sum[1] 1.9807040628566084e+28 1.9807040628566084e+28");
    ck_assert_int_ne(access(exf_scratch("wraps.h5"), F_OK), 0);
}
END_TEST

START_TEST(what_does_not_add_is_refused)
{
    part other = one;
    refused(&other, EXF_MODEL, "other.h5: holds the same sequence of");
    other.id = 2;
    other.within_a_run = "accumulate.vectors";
    refused(&other, EXF_MODEL, "other.h5 diagonal,lowrank mpirun exfold-accumulate");
    other.within_a_run = "accumulate.norm_head";
    refused(&other, EXF_MODEL, "other.h5: holds sums for a norm head");
}
END_TEST

/* Parts of two commits add up where both say that their numbers are of one version; each part's commit stands in the origin. */
START_TEST(commits_may_differ_where_their_numbers_do_not)
{
    exf_statistics_reader r;
    part a = one, b = one;
    a.commit = "aaaa", a.numbers = b.numbers = "1";
    b.id = 2, b.commit = "bbbb";
    ck_ok(write_part("a.h5", &a, &e), e);
    ck_ok(write_part("b.h5", &b, &e), e);
    ck_ok(merge("ab.h5", &e, 2, "a.h5", "b.h5"), e);
    ck_ok(exf_statistics_open(&r, exf_scratch("ab.h5"), &e), e);
    ck_assert_ptr_null(exf_provenance_get(&r.provenance, "accumulate.commit"));
    ck_assert_str_eq(exf_provenance_get(&r.provenance, "accumulate.numbers"), "1");
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.0.accumulate.commit"), "aaaa");
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.1.accumulate.commit"), "bbbb");
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.1.capture.commit"), "bbbb");
    exf_statistics_close(&r);
    a.id = 3, a.commit = "cccc";
    ck_ok(write_part("c.h5", &a, &e), e);
    ck_ok(merge("x.h5", &e, 2, "c.h5", "ab.h5"), e); /* a merge of two commits and a third */
    ck_ok(exf_statistics_open(&r, exf_scratch("x.h5"), &e), e);
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.0.accumulate.commit"), "aaaa");
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.1.capture.commit"), "bbbb");
    ck_assert_str_eq(exf_provenance_get(&r.origin, "part.2.capture.commit"), "cccc");
    exf_statistics_close(&r);
    a.numbers = "2";
    ck_ok(write_part("c.h5", &a, &e), e);
    ck_fails(merge("z.h5", &e, 2, "b.h5", "c.h5"), EXF_MODEL, e, "b.h5 accumulate.numbers 1 c.h5 2");
    b.numbers = NULL; /* a program that did not say it yet */
    ck_ok(write_part("b.h5", &b, &e), e);
    ck_fails(merge("z.h5", &e, 2, "b.h5", "c.h5"), EXF_MODEL, e, "b.h5 accumulate.commit bbbb c.h5 cccc");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, facts_add_up_or_agree);
    tcase_add_test(t, a_list_of_domains_is_read_or_refused);
    tcase_add_test(t, documents_are_cut_at_one_length);
    tcase_add_test(t, order_does_not_matter);
    tcase_add_test(t, sums_are_the_sums_of_the_parts);
    tcase_add_test(t, what_would_wrap_is_refused);
    tcase_add_test(t, what_does_not_add_is_refused);
    tcase_add_test(t, commits_may_differ_where_their_numbers_do_not);
}

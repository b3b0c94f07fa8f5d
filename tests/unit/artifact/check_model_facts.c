/* check_model_facts.c - src/artifact/provenance_model: whether two files were made with the same model. */
#include "tests/support/artifact_fixtures.h"

#include "artifact/provenance.h"

#define A64 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B64 "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static exf_err e;

static exf_provenance with_parts(const char *parts)
{
    exf_provenance p = {0};
    ck_ok(exf_weights_facts_add(&p, parts, NULL, &e), e);
    return p;
}

static exf_code same(const exf_provenance *a, const exf_provenance *b)
{
    return exf_model_facts_same(a, "a.h5", b, "b.h5", &e);
}

START_TEST(parts_that_both_read_are_compared)
{
    exf_provenance all = with_parts("embedding:" A64 " 0.experts:" A64 " 1.experts:" A64),
                   some = with_parts("0.experts:" A64 " head:" B64),
                   other = with_parts("embedding:" A64 " 1.experts:" B64);
    ck_ok(same(&all, &all), e);
    ck_ok(same(&all, &some), e);
    ck_ok(same(&some, &all), e);
    ck_fails(same(&all, &other), EXF_MODEL, e,
             "a.h5: was made with other weights than b.h5: the digest of part 1.experts is aaaaaaaaaaaa..., in b.h5 it is "
             "bbbbbbbbbbbb...");
    ck_fails(same(&other, &all), EXF_MODEL, e, "1.experts");
    exf_provenance_free(&all);
    exf_provenance_free(&some);
    exf_provenance_free(&other);
}
END_TEST

static exf_provenance with_places(const char *parts, const char *by_place)
{
    exf_provenance p = {0};
    ck_ok(exf_weights_facts_add(&p, parts, by_place, &e), e);
    return p;
}

/* A part that differs by the names of its tensors is the same where both files say that its bytes are at the same places. */
START_TEST(parts_are_compared_by_place_where_names_differ)
{
    exf_provenance a = with_places("0.experts:" A64 " 1.experts:" A64, "0.experts:" A64 " 1.experts:" A64),
                   fused = with_places("0.experts:" B64 " 1.experts:" A64, "0.experts:" A64 " 1.experts:" A64),
                   other = with_places("0.experts:" B64 " 1.experts:" A64, "0.experts:" B64 " 1.experts:" A64),
                   older = with_parts("0.experts:" B64 " 1.experts:" A64), joined = {0}, turned = {0};
    const exf_provenance *one[] = {&a, &fused, &older}, *two[] = {&older, &fused, &a};
    ck_ok(same(&a, &fused), e);
    ck_ok(same(&fused, &a), e);
    ck_assert(!exf_weights_facts_differ(&a, &fused));
    ck_fails(same(&a, &other), EXF_MODEL, e, "0.experts");
    ck_fails(same(&a, &older), EXF_MODEL, e, "0.experts");
    ck_ok(same(&fused, &older), e);
    ck_assert(exf_weights_facts_differ(&a, &other));
    ck_ok(exf_model_facts_join(&joined, one, 3, &e), e);
    ck_ok(exf_model_facts_join(&turned, two, 3, &e), e);
    ck_assert_str_eq(exf_provenance_get(&joined, "model.weights_xxh3"), "0.experts:" A64 " 1.experts:" A64);
    for (size_t i = 0; i < 2; i++)
        ck_assert_str_eq(exf_provenance_get(i ? &turned : &joined, "model.weights_by_place_xxh3"),
                         "0.experts:" A64 " 1.experts:" A64);
    ck_ok(exf_weights_facts_mixed(&turned, one, 2, &e), e);
    ck_assert_ptr_null(exf_provenance_get(&turned, EXF_MIXED_WEIGHTS_FACT));
    one[1] = &other;
    ck_ok(exf_weights_facts_mixed(&turned, one, 2, &e), e);
    ck_assert_str_eq(exf_provenance_get(&turned, EXF_MIXED_WEIGHTS_FACT), "1 of 2 parts: 0.experts");
    exf_provenance_free(&a);
    exf_provenance_free(&fused);
    exf_provenance_free(&other);
    exf_provenance_free(&older);
    exf_provenance_free(&joined);
    exf_provenance_free(&turned);
}
END_TEST

/* Files of earlier programs have a digest that was made in another way. */
START_TEST(samples_are_compared_with_samples_only)
{
    exf_provenance all = with_parts("0.experts:" A64), old = {0}, older = {0}, none = {0};
    add_fact(&old, "model.weights_digest", A64);
    add_fact(&older, "model.weights_digest", B64);
    ck_ok(same(&old, &old), e);
    ck_ok(same(&none, &none), e);
    ck_fails(same(&old, &older), EXF_MODEL, e, "a.h5: model.weights_digest is " A64 ", in b.h5 it is " B64);
    ck_fails(same(&old, &none), EXF_MODEL, e, "b.h5");
    ck_fails(same(&all, &old), EXF_MODEL, e,
             "b.h5 a.h5");
    ck_fails(same(&none, &all), EXF_MODEL, e, "a.h5 b.h5");
    exf_provenance_free(&all);
    exf_provenance_free(&old);
    exf_provenance_free(&older);
}
END_TEST

START_TEST(joined_facts_do_not_depend_on_the_order)
{
    exf_provenance part[3] = {with_parts("head:" A64 " 2.experts:" A64), with_parts("embedding:" A64 " 10.other:" A64),
                              with_parts("2.experts:" A64 " 10.experts:" A64)};
    const exf_provenance *one[] = {&part[0], &part[1], &part[2]}, *two[] = {&part[2], &part[0], &part[1]};
    exf_provenance a = {0}, b = {0};
    ck_ok(exf_model_facts_join(&a, one, 3, &e), e);
    ck_ok(exf_model_facts_join(&b, two, 3, &e), e);
    for (size_t i = 0; i < 2; i++) ck_assert_str_eq(a.value[i], b.value[i]);
    ck_assert_str_eq(exf_provenance_get(&a, "model.weights_xxh3"),
                     "embedding:" A64 " head:" A64 " 2.experts:" A64 " 10.experts:" A64 " 10.other:" A64);
    ck_assert_uint_eq(strlen(exf_provenance_get(&a, "model.weights_digest")), 64);
    for (int i = 0; i < 3; i++) exf_provenance_free(&part[i]);
    exf_provenance_free(&a);
    exf_provenance_free(&b);
}
END_TEST

START_TEST(malformed_lists_are_named)
{
    exf_provenance a = with_parts("0.experts"), b = with_parts("0.experts:" A64);
    ck_fails(same(&a, &b), EXF_FORMAT, e, "a.h5 model.weights_xxh3");
    exf_provenance_free(&a);
    exf_provenance_free(&b);
}
END_TEST

static exf_provenance with_architecture(const char *text, const char *config)
{
    exf_provenance p = {0};
    if (text) ck_ok(exf_architecture_facts_add(&p, text, &e), e);
    add_fact(&p, "model.config_sha256", config);
    return p;
}

static exf_code same_model(const exf_provenance *a, const exf_provenance *b)
{
    return exf_architecture_facts_same(a, "a.h5", b, "b.h5", "; make it again", &e);
}

/* config.json may say other things that no forward pass reads; a field without a word is 0. */
START_TEST(architectures_are_compared_not_configs)
{
    static const char *const text[] = {"n_layers=2 norm_eps=1e-06 top_k=4", "n_layers=2 norm_eps=1e-05 top_k=4",
                                       "n_layers=2 norm_eps=1e-06 top_k=4 d_shared=24", "n_layers=2 norm_eps=1e-06 top_k=44"};
    static const char *const differs[] = {NULL, "norm_eps is 1e-06, there it is 1e-05; make it again",
                                          "d_shared is 0, there it is 24", "top_k is 4, there it is 44"};
    exf_provenance a = with_architecture(text[0], A64);
    for (int i = 0; i < 4; i++) {
        exf_provenance b = with_architecture(text[i], B64);
        if (!i) ck_ok(same_model(&a, &b), e);
        else ck_fails(same_model(&a, &b), EXF_MODEL, e, differs[i]);
        if (i) ck_fails(same(&a, &b), EXF_MODEL, e, "a.h5: was made with another model than b.h5");
        ck_assert_int_eq(same_model(&b, &a), i ? EXF_MODEL : EXF_OK);
        exf_provenance_free(&b);
    }
    exf_provenance_free(&a);
}
END_TEST

/* Files of earlier programs name config.json alone. */
START_TEST(files_without_an_architecture_are_compared_by_config)
{
    exf_provenance of_now = with_architecture("n_layers=2", A64), old = with_architecture(NULL, A64),
                   other = with_architecture(NULL, B64), none = {0}, joined = {0};
    const exf_provenance *parts[] = {&old, &of_now};
    ck_ok(same_model(&of_now, &old), e);
    ck_ok(same_model(&old, &of_now), e);
    ck_ok(same_model(&none, &of_now), e);
    ck_fails(same_model(&other, &of_now), EXF_MODEL, e, "a.h5 config_sha256 " B64 " b.h5 " A64 " make it again");
    ck_ok(exf_model_facts_join(&joined, parts, 2, &e), e);
    ck_assert_str_eq(exf_provenance_get(&joined, "model.architecture"), "n_layers=2");
    ck_assert_uint_eq(strlen(exf_provenance_get(&joined, "model.architecture_digest")), 64);
    exf_provenance_free(&of_now);
    exf_provenance_free(&old);
    exf_provenance_free(&other);
    exf_provenance_free(&joined);
}
END_TEST

static void differ_by(const exf_provenance *a, const exf_provenance *b, const char *want)
{
    exf_text text = {0};
    ck_ok(exf_weights_facts_difference(&text, a, b, &e), e);
    ck_assert_str_eq(text.s, want);
    exf_text_free(&text);
}

START_TEST(accepted_weights_are_told_by_part)
{
    exf_provenance a = with_parts("embedding:" A64 " 0.experts:" A64 " 1.experts:" A64),
                   b = with_parts("embedding:" A64 " 0.experts:" B64 " 1.experts:" B64 " head:" A64), none = {0};
    differ_by(&a, &a, "none of 3 parts");
    differ_by(&a, &b, "2 of 3 parts: 0.experts, 1.experts");
    differ_by(&none, &b, "not known: the first file names no parts of its weights");
    exf_provenance_free(&a);
    exf_provenance_free(&b);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, parts_that_both_read_are_compared);
    tcase_add_test(t, parts_are_compared_by_place_where_names_differ);
    tcase_add_test(t, samples_are_compared_with_samples_only);
    tcase_add_test(t, joined_facts_do_not_depend_on_the_order);
    tcase_add_test(t, malformed_lists_are_named);
    tcase_add_test(t, architectures_are_compared_not_configs);
    tcase_add_test(t, files_without_an_architecture_are_compared_by_config);
    tcase_add_test(t, accepted_weights_are_told_by_part);
}

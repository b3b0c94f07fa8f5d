/* check_json.c - integers that do not fit 64 bits, as released tokenizer_config.json have them; documents in memory. */
#include "tests/support/fixtures.h"

#include "base/text.h"
#include "format/json.h"

#include <pthread.h>
#include <string.h>

START_TEST(integers_beyond_64_bits_are_real)
{
    static const char text[] = "{\"most\":9223372036854775807,\"least\":-9223372036854775808,\"above\":9223372036854775808,"
                               "\"below\":-9223372036854775809,\"long\":[1000000000000000019884624838656, 7],"
                               "\"1000000000000000019884624838656\":\"-1000000000000000019884624838656\\\"\",\"real\":1.5e3}";
    exf_err e;
    exf_json *j;
    ck_ok(exf_json_parse(&j, text, strlen(text), "test", &e), e);
    ck_assert(exf_json_int(exf_json_get(j, "most")) == INT64_MAX && exf_json_int(exf_json_get(j, "least")) == INT64_MIN);
    ck_assert_int_eq(exf_json_type(exf_json_get(j, "above")), EXF_JSON_REAL);
    ck_assert_int_eq(exf_json_type(exf_json_get(j, "below")), EXF_JSON_REAL);
    ck_assert(exf_json_real(exf_json_at(exf_json_get(j, "long"), 0)) == 1e30);
    ck_assert_int_eq(exf_json_type(exf_json_at(exf_json_get(j, "long"), 1)), EXF_JSON_INT);
    const char *text_of_digits = exf_json_string(exf_json_get(j, "1000000000000000019884624838656"), NULL);
    ck_assert_str_eq(text_of_digits, "-1000000000000000019884624838656\"");
    ck_assert(exf_json_real(exf_json_get(j, "real")) == 1500);
    exf_json_free(j);
    ck_fails(exf_json_parse(&j, "[1e999]", 7, "test", &e), EXF_FORMAT, e, "line 1 JSON");
    ck_fails(exf_json_parse(&j, "[18446744073709551616", 21, "test", &e), EXF_FORMAT, e, "line 1 JSON");
    ck_fails(exf_json_parse(&j, "[18446744073709551616-]", 23, "test", &e), EXF_FORMAT, e, "line 1 JSON");
}
END_TEST

/* Frees a document on a thread of its own. */
static void *free_elsewhere(void *j)
{
    exf_json_free(j);
    return NULL;
}

/* Documents that lie in memory at the same time are freed in any order, on any thread; one that fails to parse leaves nothing. */
START_TEST(documents_are_freed_in_any_order)
{
    enum { DOCUMENTS = 7, ENTRIES = 3000 };
    exf_json *j[DOCUMENTS];
    exf_err err;
    exf_text text = {0};
    pthread_t thread;
    for (int d = 0; d < DOCUMENTS; d++) {
        text.len = 0;
        exf_text_append(&text, "{", 1);
        for (int i = 0; i < (d % 2 ? ENTRIES : 2); i++)
            exf_text_appendf(&text, "%s\"key %d\": [%d, \"%d\", {}]", i ? "," : "", i, d, i);
        exf_text_append(&text, "}", 1);
        ck_ok(exf_text_end(&text, &err), err);
        ck_ok(exf_json_parse(&j[d], text.s, text.len, "document", &err), err);
        exf_json *none;
        ck_fails(exf_json_parse(&none, text.s, text.len - 1, "document", &err), EXF_FORMAT, err, "line 1 JSON");
        ck_assert(none == NULL);
    }
    exf_text_free(&text);
    for (int at = 0; at < DOCUMENTS; at++) {
        int d = at * 3 % DOCUMENTS;
        const exf_json *last = exf_json_get(j[d], d % 2 ? "key 2999" : "key 1");
        ck_assert_int_eq(exf_json_int(exf_json_at(last, 0)), d);
        ck_assert_str_eq(exf_json_string(exf_json_at(last, 1), NULL), d % 2 ? "2999" : "1");
        ck_assert_int_eq(pthread_create(&thread, NULL, free_elsewhere, j[d]), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
    }
    exf_json_free(NULL);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("json");
    TCase *t = tcase_create("all");
    tcase_add_test(t, integers_beyond_64_bits_are_real);
    tcase_add_test(t, documents_are_freed_in_any_order);
    suite_add_tcase(s, t);
    return s;
}

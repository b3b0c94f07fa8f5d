/* check_json.c - integers that do not fit 64 bits, as released tokenizer_config.json have them. */
#include "tests/support/fixtures.h"

#include "format/json.h"

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

/* As Python's json writes them; a number that is asked for is not there. */
START_TEST(numbers_that_are_not_finite_are_strings)
{
    static const char text[] = "{\"limit\": [0.0, Infinity], \"low\": -Infinity, \"none\": NaN, "
                               "\"Infinity\": \"NaN \\\"Infinity\", \"n\": 7}";
    exf_err e;
    exf_json *j;
    ck_ok(exf_json_parse(&j, text, strlen(text), "test", &e), e);
    ck_assert_str_eq(exf_json_string(exf_json_at(exf_json_get(j, "limit"), 1), NULL), "Infinity");
    ck_assert_str_eq(exf_json_string(exf_json_get(j, "low"), NULL), "-Infinity");
    ck_assert_str_eq(exf_json_string(exf_json_get(j, "none"), NULL), "NaN");
    ck_assert_str_eq(exf_json_string(exf_json_get(j, "Infinity"), NULL), "NaN \"Infinity");
    ck_assert_int_eq((int)exf_json_int(exf_json_get(j, "n")), 7);
    exf_json_free(j);
    ck_fails(exf_json_parse(&j, "[1Infinity]", 11, "test", &e), EXF_FORMAT, e, "line 1 JSON");
    ck_fails(exf_json_parse(&j, "[Infinit]", 9, "test", &e), EXF_FORMAT, e, "line 1 JSON");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, integers_beyond_64_bits_are_real);
    tcase_add_test(t, numbers_that_are_not_finite_are_strings);
}

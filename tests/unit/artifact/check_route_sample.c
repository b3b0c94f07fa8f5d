/* check_route_sample.c - route samples (src/accumulate/statistics.h), alone and in statistics files. */
#include "tests/support/artifact_fixtures.h"

#include <math.h>

enum { E = 5, K = 2, L = 1 };

static const exf_run_shape shape = {E, K, 8, 3, 60};
static const int32_t number = 3;
static exf_err e; /* of the last call */

/* Tokens [first, first + n) of a run, with keys as if drawn, sorted. */
static void sample_of(exf_route_sample *s, size_t cap, int first, int n)
{
    exf_route_sample one;
    ck_ok(exf_route_sample_new(s, cap, K, &e), e);
    ck_ok(exf_route_sample_new(&one, 1, K, &e), e);
    for (int t = first; t < first + n; t++) {
        one.n = 1;
        one.key[0] = (uint64_t)(t * 7919 % 101);
        for (int a = 0; a < K; a++) {
            one.ids[a] = (t + a) % E;
            one.weights[a] = (float)t;
        }
        exf_route_sample_merge(s, &one);
    }
    exf_route_sample_free(&one);
}

START_TEST(any_split_and_order_keeps_the_same_tokens)
{
    static const int cuts[][4] = {{0, 60, 60, 60}, {0, 1, 2, 60}, {0, 20, 50, 60}, {0, 59, 59, 60}};
    for (size_t cap = 1; cap < 70; cap += 7)
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
            for (int backward = 0; backward < 2; backward++) {
                exf_route_sample whole, merged;
                sample_of(&whole, cap, 0, 60);
                ck_ok(exf_route_sample_new(&merged, cap, K, &e), e);
                for (int i = 0; i < 3; i++) {
                    int k = backward ? 2 - i : i;
                    exf_route_sample part;
                    sample_of(&part, cap, cuts[c][k], cuts[c][k + 1] - cuts[c][k]);
                    exf_route_sample_merge(&merged, &part);
                    exf_route_sample_free(&part);
                }
                ck_assert_uint_eq(whole.n, cap < 60 ? cap : 60);
                ck_assert_msg(same_routes(&whole, &merged), "cap %zu, cut %zu", cap, c);
                for (size_t i = 1; i < whole.n; i++) ck_assert(whole.key[i - 1] < whole.key[i]);
                exf_route_sample_free(&whole);
                exf_route_sample_free(&merged);
            }
}
END_TEST

/* Damages a good sample in one place. */
static void damage_sample(exf_route_sample *s, int how)
{
    fill_routes(s, 6, 6, K, E, 1);
    if (how == 1) s->key[3] = 0;
    if (how == 2) s->ids[5] = E;
    if (how == 3) s->ids[5] = -2;
    if (how == 4) s->ids[5] = s->ids[4];
    if (how == 5) s->weights[7] = NAN;
    if (how == 6 || how == 8) s->ids[5] = -1; /* an empty slot has no weight */
    if (how >= 7) s->ids[4] = s->ids[5] = -1, s->weights[4] = s->weights[5] = 0;
    if (how == 8) s->ids[4] = 2, s->weights[4] = 0.5f; /* one of two slots empty */
}

START_TEST(a_damaged_sample_is_refused)
{
    static const char *const part[] = {"", "file: key 3 is below", "token 2 has expert 5, expected [0, 5)", "token 2 has expert -2",
                                       "token 2 has expert", "token 3: the weight of expert",
                                       "token 2: an empty slot has weight", "token 2 has no expert, expected 1 to 2", ""};
    for (int how = 0; how <= 8; how++) {
        exf_route_sample s;
        damage_sample(&s, how);
        if (*part[how])
            ck_fails(exf_route_sample_check(&s, E, "file", &e), EXF_FORMAT, e, part[how]);
        else
            ck_ok(exf_route_sample_check(&s, E, "file", &e), e);
        exf_route_sample_free(&s);
    }
}
END_TEST

static exf_code write_layer(const char *name, const exf_layer_statistics *s, exf_err *err)
{
    exf_code rc;
    exf_statistics_writer w = {0};
    exf_provenance p = {0};
    EXF_TRY(create_statistics(&w, exf_scratch(name), 1, &shape, &number, L, &p, err));
    EXF_TRY(exf_statistics_put(&w, number, s, err));
    EXF_TRY(exf_statistics_commit(&w, NULL, err));
out:
    exf_statistics_abort(&w);
    return rc;
}

static exf_code read_layer(const char *name, exf_layer_statistics *s, exf_err *err)
{
    exf_code rc;
    exf_statistics_reader r;
    EXF_TRY(exf_statistics_open(&r, exf_scratch(name), err));
    rc = exf_statistics_get(&r, 0, s, err);
    exf_statistics_close(&r);
out:
    return rc;
}

START_TEST(statistics_hold_the_sample_and_the_stream)
{
    exf_layer_statistics s, back;
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_ok(exf_layer_statistics_new(&back, E, &e), e);
    fill_statistics(&s, &shape, 2);
    fill_routes(&s.routes, 20, 7, K, E, 3);
    ck_ok(write_layer("s.h5", &s, &e), e);
    ck_ok(read_layer("s.h5", &back, &e), e);
    ck_assert(same_statistics(&s, &back));
    ck_assert_uint_eq(back.routes.n, 7);
    s.routes.n = 0;
    *s.stream_count = 0;
    *s.stream_sq = *s.stream_inverse_sq = *s.stream_first_sq = (exf_exact){{0, 0, 0}};
    *s.stream_inverse_count = *s.stream_first_count = 0;
    ck_ok(write_layer("s.h5", &s, &e), e); /* without either */
    ck_ok(read_layer("s.h5", &back, &e), e);
    ck_assert(same_statistics(&s, &back));
    exf_layer_statistics_free(&s);
    exf_layer_statistics_free(&back);
}
END_TEST

START_TEST(a_file_with_a_damaged_sample_is_refused)
{
    exf_layer_statistics s, back;
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_ok(exf_layer_statistics_new(&back, E, &e), e);
    fill_statistics(&s, &shape, 2);
    damage_sample(&s.routes, 2);
    ck_ok(write_layer("s.h5", &s, &e), e);
    ck_fails(read_layer("s.h5", &back, &e), EXF_FORMAT, e, "/layers/3/routes 2 5");
    s.routes.n = 0;
    *s.stream_count = 61; /* of 60 tokens */
    ck_ok(write_layer("s.h5", &s, &e), e);
    ck_fails(read_layer("s.h5", &back, &e), EXF_FORMAT, e, "61");
    exf_layer_statistics_free(&s);
    exf_layer_statistics_free(&back);
}
END_TEST

/* What a norm head of 2 directions reads of a token: 5 numbers. */
static void add_head(exf_route_sample *s, int q)
{
    ck_ok(exf_route_sample_add_head(s, q, &e), e);
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < exf_route_sample_head(s); k++)
            s->head[i * exf_route_sample_head(s) + k] = (float)(s->key[i] % 1000) + 0.125f * (float)k;
}

START_TEST(what_a_norm_head_reads_goes_with_its_token)
{
    exf_route_sample all, even, odd;
    exf_layer_statistics s, back;
    fill_routes(&all, 12, 12, K, E, 1);
    ck_ok(exf_route_sample_new(&even, 8, K, &e), e);
    ck_ok(exf_route_sample_new(&odd, 8, K, &e), e);
    for (size_t i = 0; i < 12; i++) {
        exf_route_sample *to = i % 2 ? &odd : &even;
        to->key[to->n] = all.key[i];
        memcpy(to->ids + to->n * K, all.ids + i * K, K * sizeof *all.ids);
        memcpy(to->weights + to->n++ * K, all.weights + i * K, K * sizeof *all.weights);
    }
    add_head(&even, 2);
    add_head(&odd, 2);
    exf_route_sample_merge(&even, &odd);
    ck_assert_uint_eq(even.n, 8);
    for (size_t i = 0; i < 8; i++)
        for (int k = 0; k < 5; k++) ck_assert(even.head[i * 5 + (size_t)k] == (float)(even.key[i] % 1000) + 0.125f * (float)k);
    /* and through a file */
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_ok(exf_layer_statistics_new(&back, E, &e), e);
    fill_statistics(&s, &shape, 2);
    s.routes = even;
    ck_ok(write_layer("s.h5", &s, &e), e);
    ck_ok(read_layer("s.h5", &back, &e), e);
    ck_assert_int_eq(back.routes.q, 2);
    ck_assert_mem_eq(back.routes.head, s.routes.head, 8 * 5 * sizeof(float));
    s.routes.head[7] = INFINITY;
    ck_ok(write_layer("s.h5", &s, &e), e);
    ck_fails(read_layer("s.h5", &back, &e), EXF_FORMAT, e, "token 1: number 2 of head is not finite");
    exf_layer_statistics_free(&s);
    exf_layer_statistics_free(&back);
    exf_route_sample_free(&all);
    exf_route_sample_free(&odd);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, any_split_and_order_keeps_the_same_tokens);
    tcase_add_test(t, a_damaged_sample_is_refused);
    tcase_add_test(t, statistics_hold_the_sample_and_the_stream);
    tcase_add_test(t, what_a_norm_head_reads_goes_with_its_token);
    tcase_add_test(t, a_file_with_a_damaged_sample_is_refused);
}

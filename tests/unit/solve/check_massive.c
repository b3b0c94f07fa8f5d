/* check_massive.c - layers in which a few tokens outweigh all others, and the experts that write their vectors. */
#include "tests/support/fixtures.h"

#include "artifact/provenance.h"
#include "solve/solve_internal.h"

enum { E = 4, L = 5, TOKENS = 1024 };

static exf_err e; /* of the last call */

/* Fills a layer whose tokens have streams and outputs of norm 1, but for the first: its stream has `stream`, its output by expert 2
 * `output`. */
static void fill(exf_layer_statistics *s, double stream, double output)
{
    exf_layer_statistics_zero(s);
    for (int t = 0; t < TOKENS; t++) {
        double x = t ? 1 : stream * stream;
        exf_exact_add(s->stream_sq, x);
        exf_exact_add(s->stream_inverse_sq, 1 / x);
        ++*s->stream_count, ++*s->stream_inverse_count;
        if (t % 512 == 0) {
            exf_exact_add(s->stream_first_sq, x);
            ++*s->stream_first_count;
        }
        for (int i = 0; i < E; i++) {
            double norm = i == 2 && t == 0 ? output : 1;
            exf_exact_add(&s->norm_sum[i], norm);
            exf_exact_add(&s->sq_sum[i], norm * norm);
            s->norm_count[i]++;
        }
    }
}

START_TEST(layers_and_experts_of_a_few_tokens_are_named)
{
    static const int32_t number[L] = {1, 2, 3, 5, 6};
    static const double stream[L] = {1, 1000, 900, 1, 100}, output[L] = {1, 1000, 1, 1, 1};
    exf_layer_statistics s;
    exf_massive layer[L];
    exf_tables t;
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_ok(exf_tables_new(&t, &(exf_run_shape){E, 2, 8, 4, TOKENS}, number, L, NULL, 0, &e), e);
    for (int l = 0; l < L; l++) {
        fill(&s, stream[l], output[l]);
        layer[l] = exf_massive_of(&s);
        ck_assert_int_eq(layer[l].expert, l == 1 ? 2 : -1);
    }
    ck_assert_double_eq_tol(layer[0].spread, 1, 1e-12);
    ck_assert_double_eq_tol(layer[1].spread, 1e6 / TOKENS, 2);
    ck_assert_double_eq_tol(layer[1].share, (1e6 + TOKENS - 1) / (1e6 + 4 * TOKENS - 1), 1e-9);
    ck_ok(exf_massive_facts(&t, layer, &e), e);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "solve.massive_layers"), "2-3,6");
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "solve.massive_experts"), "2 of layer 2 (100 %)");
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "solve.massive_first_tokens"), "90.7 to 99.9 %");
    exf_tables_free(&t);
    exf_layer_statistics_free(&s);
}
END_TEST

/* Tables of a model without such tokens say nothing, and statistics without streams do not tell. */
START_TEST(nothing_is_said_of_tokens_that_are_alike)
{
    static const int32_t number = 1;
    exf_layer_statistics s;
    exf_tables t;
    ck_ok(exf_layer_statistics_new(&s, E, &e), e);
    ck_ok(exf_tables_new(&t, &(exf_run_shape){E, 2, 8, 4, TOKENS}, &number, 1, NULL, 0, &e), e);
    exf_massive m = exf_massive_of(&s);
    ck_assert(m.expert == -1 && m.spread == 0);
    fill(&s, 2, 2);
    m = exf_massive_of(&s);
    ck_ok(exf_massive_facts(&t, &m, &e), e);
    ck_assert_ptr_null(exf_provenance_get(&t.provenance, "solve.massive_layers"));
    ck_assert_ptr_null(exf_provenance_get(&t.provenance, "solve.massive_experts"));
    exf_tables_free(&t);
    exf_layer_statistics_free(&s);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_test(t, layers_and_experts_of_a_few_tokens_are_named);
    tcase_add_test(t, nothing_is_said_of_tokens_that_are_alike);
}

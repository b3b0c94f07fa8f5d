/* check_verify.c - exf_verify: whole files pass, each fault is found and named. */
#include "tests/support/inspection_fixtures.h"

#include "accumulate/accumulate.h"
#include "inspect/verify.h"

static const small_run run = {.l = 2, .e = 6, .k = 2, .n = 60};
static exf_err e; /* of the last call */
static int n_held;
static char last_held[512];

static exf_code hear(void *self, const char *sentence, exf_err *err)
{
    (void)self;
    (void)err;
    n_held++;
    snprintf(last_held, sizeof last_held, "%s", sentence);
    return EXF_OK;
}

static exf_code verify(const char *a, const char *b, exf_err *err)
{
    char path[2][512];
    const char *const paths[] = {path[0], path[1]};
    snprintf(path[0], sizeof path[0], "%s", exf_scratch(a));
    if (b) snprintf(path[1], sizeof path[1], "%s", exf_scratch(b));
    n_held = 0;
    return exf_verify(paths, b ? 2 : 1, hear, NULL, err);
}

static void setup(void)
{
    start_empty();
    small_files(&run, "s.h5", "t.h5");
}

START_TEST(whole_files_pass)
{
    ck_ok(verify("t.h5", NULL, &e), e);
    ck_assert_int_eq(n_held, 8);
    ck_ok(verify("s.h5", NULL, &e), e);
    ck_assert_int_eq(n_held, 6);
    ck_ok(verify("t.h5", "s.h5", &e), e);
    ck_assert_int_eq(n_held, 16);
    ck_assert_ptr_nonnull(strstr(last_held, "gives the same bits, arrays: 17"));
    ck_ok(verify("s.h5", "t.h5", &e), e);
    ck_assert_int_eq(n_held, 16);
}
END_TEST

/* ---- faults that reading lets pass --------------------------------------------------------- */

/* One element of the tables, and what is said of it. Expert 5 is cold, 0 and 2 are no neighbours in the ring 0 .. 4. */
#define FLOAT(x) &(const float){x}
#define INT(x) &(const int32_t){x}
#define NUMBER(x) &(const uint64_t){x}
static const struct { const char *dataset; size_t at; const void *value; const char *said; } table_faults[] = {
    {"/coeff", 5, FLOAT(0.5f), "S[0, 5] is 0.5 without evidence"},
    {"/expert_norms", 5, FLOAT(7.5f), "cold expert 5 has norm 7.5, the median of the others is 2"},
    {"/pools/2/target_scale", 3, FLOAT(0.25f), "times 0.25, expected the member of least loss"},
    {"/pools/2/target_scale", 2, FLOAT(2.0f), "times 2, expected itself, scale 1"},
    {"/pools/2/target_ids", 3, INT(3), "3 3"}, /* outside the pool */
    {"/pools/2/members", 0, INT(3), "t.h5 2 1 1 2 3 1"}, /* norm 1 before a norm of 2 */
    {"/count", 1, NUMBER(3), "/count[0, 0, 1] is 3, its mirror /count[0, 1, 0] is "},
    {"/expert_count", 4, NUMBER(1000), "/expert_count[0 4] 1000 n_tokens 60"},
    {"/expert_count", 0, NUMBER(1), "/expert_count[0 ]"}, /* a pair more often than its expert */
};

START_TEST(faults_of_tables_are_named)
{
    damage("t.h5", table_faults[_i].dataset, table_faults[_i].at, table_faults[_i].value);
    ck_fails(verify("t.h5", NULL, &e), EXF_FORMAT, e, table_faults[_i].said);
}
END_TEST

START_TEST(a_loss_of_never_with_tokens)
{
    static const char *const measures[] = {"/cosine", "/similarity", "/coeff"};
    float never = EXF_LOSS_NEVER, none = 0;
    damage("t.h5", "/loss", 1, &never);
    damage("t.h5", "/frobenius", 1, &never);
    for (int i = 0; i < 2; i++) damage("t.h5", measures[i], 1, &none);
    ck_fails(verify("t.h5", NULL, &e), EXF_FORMAT, e, "0");
    damage("t.h5", measures[2], 1, &none);
    ck_fails(verify("t.h5", NULL, &e), EXF_FORMAT, e, "[0 1] 1e+30 28 1");
}
END_TEST

START_TEST(a_member_that_stands_twice)
{
    int32_t bad = 2;
    damage("t.h5", "/pools/2/members", 0, &bad);
    damage("t.h5", "/pools/2/members", 1, &bad);
    ck_fails(verify("t.h5", NULL, &e), EXF_FORMAT, e, "0 1 2");
}
END_TEST

/* A sum and its exact twin, so that only the mathematics is wrong. */
static void set_sum(const char *name, size_t at, double value)
{
    char path[64];
    exf_exact x = {0};
    exf_exact_add(&x, value);
    snprintf(path, sizeof path, "/layers/1/%s", name);
    damage("s.h5", path, at, &value);
    snprintf(path, sizeof path, "/layers/1/exact/%s", name);
    for (size_t word = 0; word < 3; word++) damage("s.h5", path, 3 * at + word, (const char *)&x + word * sizeof(uint64_t));
}

static const struct { const char *sum; size_t at; double value; const char *said; } sum_faults[] = {
    {"dot", 1, 1e6, "1 0 -> 1 1e+06"},  /* beyond its squares */
    {"sq0", 1, -1, "1 0 -> 1"},         /* a negative sum of squares */
    {"source_sq", 2, 0.5, "0 -> 2 0"},  /* a sum without a token */
    {"norm_sum", 0, 1e6, "0 1e+06"},    /* norms beyond their squares */
};

START_TEST(faults_of_sums_are_named)
{
    set_sum(sum_faults[_i].sum, sum_faults[_i].at, sum_faults[_i].value);
    ck_fails(verify("s.h5", NULL, &e), EXF_FORMAT, e, sum_faults[_i].said);
}
END_TEST

/* ---- provenance ------------------------------------------------------------------------------- */

/* The tables again, with one fact changed or added. */
static void with_fact(const char *from, const char *to, const char *key, const char *value)
{
    exf_tables t;
    exf_provenance changed = {0};
    ck_ok(exf_tables_read(&t, exf_scratch(from), &e), e);
    for (size_t i = 0; i < t.provenance.n; i++)
        if (strcmp(t.provenance.key[i], key) != 0) add_fact(&changed, t.provenance.key[i], t.provenance.value[i]);
    add_fact(&changed, key, value);
    exf_provenance_free(&t.provenance);
    t.provenance = changed;
    ck_ok(exf_tables_write(&t, exf_scratch(to), 1, NULL, &e), e);
    exf_tables_free(&t);
}

START_TEST(facts_fit_the_contents)
{
    with_fact("t.h5", "u.h5", "data.tokens", "61");
    ck_fails(verify("u.h5", NULL, &e), EXF_FORMAT, e, "data.tokens 61 60");
    with_fact("t.h5", "u.h5", "data.sequences", "many");
    ck_fails(verify("u.h5", NULL, &e), EXF_FORMAT, e, "data.sequences 3");
    with_fact("t.h5", "u.h5", "model.weights_digest", "abc");
    ck_fails(verify("u.h5", NULL, &e), EXF_FORMAT, e, "model.weights_digest 64");
}
END_TEST

START_TEST(tables_name_their_statistics)
{
    small_run other = run;
    other.n++;
    small_statistics(&other, "o.h5");
    ck_fails(verify("t.h5", "o.h5", &e), EXF_FORMAT, e, "solve.statistics_digest");
    with_fact("t.h5", "u.h5", "model.family", "another");
    ck_fails(verify("s.h5", "u.h5", &e), EXF_FORMAT, e, "model.family");
}
END_TEST

#define CORPUS "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

START_TEST(tables_say_of_which_part_they_are)
{
    static const char part[] = "shard 2 of 3 of corpus 0011223344556677";
    small_run shard = run;
    exf_solve_options o = {.rule = {.ridge = 1e-3}};
    exf_tables t;
    with_fact("t.h5", "u.h5", "data.part", part);
    ck_fails(verify("s.h5", "u.h5", &e), EXF_FORMAT, e, "u.h5 2 3 0011223344556677");
    shard.shard = "2/3 of " CORPUS;
    small_files(&shard, "s.h5", "u.h5");
    ck_ok(verify("s.h5", "u.h5", &e), e);
    ck_assert_int_eq(n_held, 18); /* two more: each file's part */
    ck_ok(exf_tables_read(&t, exf_scratch("u.h5"), &e), e);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "data.part"), part);
    exf_tables_free(&t);
    /* whose tables are those of a whole with the same numbers, but for that */
    ck_fails(verify("s.h5", "t.h5", &e), EXF_FORMAT, e, "t.h5");
    ck_fails(exf_solve(exf_scratch("s.h5"), &o, &t, &e), EXF_MODEL, e, "s.h5 2/3 2 corpus'");
    shard.shard = "1/1 of " CORPUS;
    small_files(&shard, "s.h5", "u.h5");
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    exf_tables_free(&t);
    ck_assert(same_files("t.h5", "u.h5"));
}
END_TEST

START_TEST(tables_hold_the_counts_and_norms_of_their_statistics)
{
    static const int moved[][2] = {{0, 1}, {2, 3}}; /* one token more with both, and one less */
    float norm = 1.25f;
    exf_tables t;
    ck_ok(exf_tables_read(&t, exf_scratch("t.h5"), &e), e);
    for (int i = 0; i < 2; i++) {
        int a = moved[i][0], b = moved[i][1];
        uint64_t count = t.count[a * run.e + b] + (i ? -(uint64_t)1 : 1);
        ck_assert_uint_ge(t.count[a * run.e + b], 2);
        damage("t.h5", "/count", (size_t)(a * run.e + b), &count);
        damage("t.h5", "/count", (size_t)(b * run.e + a), &count);
        for (int k = 0; k < 2; k++) {
            count = t.expert_count[moved[i][k]] + (i ? -(uint64_t)1 : 1);
            damage("t.h5", "/expert_count", (size_t)moved[i][k], &count);
        }
    }
    exf_tables_free(&t);
    ck_ok(verify("t.h5", NULL, &e), e);
    ck_fails(verify("t.h5", "s.h5", &e), EXF_FORMAT, e, "t.h5 s.h5");
    small_files(&run, "s.h5", "t.h5");
    damage("t.h5", "/expert_norms", 0, &norm);
    ck_ok(verify("t.h5", NULL, &e), e);
    ck_fails(verify("t.h5", "s.h5", &e), EXF_FORMAT, e, "0 1.25");
}
END_TEST

/* Numbers that fit all others are told from those that the statistics give. */
START_TEST(one_changed_scalar_is_found)
{
    float scalar, error = 0.125f, scale = 1.5f;
    exf_tables t;
    ck_ok(exf_tables_read(&t, exf_scratch("t.h5"), &e), e);
    scalar = nextafterf(t.coeff[4], 9);
    exf_tables_free(&t);
    damage("t.h5", "/coeff", 4, &scalar);
    ck_ok(verify("t.h5", NULL, &e), e);
    ck_fails(verify("t.h5", "s.h5", &e), EXF_FORMAT, e, "coeff[0 0 4]");
    ck_assert_ptr_nonnull(strstr(e.msg, "s.h5 solved again with the recorded settings gives"));
    small_files(&run, "s.h5", "t.h5");
    damage("t.h5", "/rms", 7, &error);
    ck_ok(verify("t.h5", NULL, &e), e);
    ck_fails(verify("s.h5", "t.h5", &e), EXF_FORMAT, e, "rms[1 1] 0.125");
    small_files(&run, "s.h5", "t.h5");
    with_fact("t.h5", "u.h5", "solve.ridge", "0.01");
    damage("u.h5", "/rms", 7, &scale);
    ck_fails(verify("u.h5", "s.h5", &e), EXF_FORMAT, e, "coeff[0 0 1]");
}
END_TEST

START_TEST(settings_that_cannot_be_read)
{
    static const struct { const char *key, *value, *said; } bad[] = {
        {"solve.ridge", "little", "solve.ridge is little, expected a number"},
        {"solve.clip", "-4;4", "solve.clip is -4;4, expected MIN,MAX or none"},
        {"solve.min_pair_tokens", "0", "solve.min_pair_tokens is 0, expected a number of tokens"},
        {"solve.ranks", "8,x", "solve.ranks is 8,x, expected ranks such as 8,16"},
        {"solve.projectors", "pair,magic", "magic"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        with_fact("t.h5", "u.h5", bad[i].key, bad[i].value);
        ck_fails(verify("u.h5", "s.h5", &e), EXF_FORMAT, e, bad[i].said);
    }
}
END_TEST

/* ---- sums that are known to be wrong ------------------------------------------------------------- */

#define ON_GPU "capture.backend", "cuda"

/* Version 1 of a GPU's sums, or of a program that names none, of more than 8 experts of more than 2048 elements. */
static const struct { int k, d_model, wrong; const char *facts[9]; } made[] = {
    {9, 2049, 1, {ON_GPU, "accumulate.numbers", "1", NULL}}, {10, 4096, 1, {ON_GPU, NULL}},
    {10, 4096, 0, {ON_GPU, "accumulate.numbers", "2", NULL}}, {10, 4096, 0, {"capture.backend", "cpu", NULL}},
    {8, 4096, 0, {ON_GPU, "accumulate.numbers", "1", NULL}}, {10, 2048, 0, {ON_GPU, "accumulate.numbers", "1", NULL}}};

START_TEST(wrong_sums_are_refused)
{
    const small_run wide = {.l = 1, .e = 12, .k = made[_i].k, .n = 60, .d_model = made[_i].d_model, .facts = made[_i].facts};
    exf_solve_options o = {.rule = {.ridge = 1e-3}};
    const char *const path[] = {exf_scratch("w.h5")};
    char said[64], merged[512];
    exf_tables t;
    snprintf(merged, sizeof merged, "%s", exf_scratch("m.h5"));
    snprintf(said, sizeof said, "w.h5 %d %d exfold-calibrate", made[_i].k, made[_i].d_model);
    small_statistics(&wide, "w.h5");
    if (!made[_i].wrong) {
        ck_ok(verify("w.h5", NULL, &e), e);
        ck_ok(exf_solve(path[0], &o, &t, &e), e);
        exf_tables_free(&t);
        ck_ok(exf_merge_statistics(path, 1, merged, 1, 0, 0, NULL, &e), e);
        return;
    }
    ck_fails(verify("w.h5", NULL, &e), EXF_FORMAT, e, said);
    ck_fails(exf_solve(path[0], &o, &t, &e), EXF_FORMAT, e, said);
    ck_fails(exf_merge_statistics(path, 1, merged, 1, 0, 0, NULL, &e), EXF_FORMAT, e, said);
}
END_TEST

START_TEST(verification_tells_of_the_cross_check)
{
    static const char *const facts[] = {ON_GPU, "accumulate.cross_check", "8", NULL};
    const small_run checked = {.l = 1, .e = 6, .k = 2, .n = 60, .facts = facts};
    const small_run not_checked = {.l = 1, .e = 6, .k = 2, .n = 60, .facts = facts + 4};
    small_statistics(&not_checked, "n.h5");
    ck_ok(verify("n.h5", NULL, &e), e);
    int without = n_held;
    small_statistics(&checked, "c.h5");
    ck_ok(verify("c.h5", NULL, &e), e);
    ck_assert_int_eq(n_held, without + 1);
}
END_TEST

START_TEST(a_file_that_is_none_is_refused)
{
    exf_write_file(exf_scratch("x.h5"), "no file of ours", 15);
    ck_fails(verify("x.h5", NULL, &e), EXF_FORMAT, e, "x.h5");
    ck_fails(verify("nowhere.h5", NULL, &e), EXF_IO, e, "nowhere.h5");
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *c = exf_case(s, "verify");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, whole_files_pass);
    tcase_add_loop_test(c, faults_of_tables_are_named, 0, COUNT(table_faults));
    tcase_add_test(c, a_loss_of_never_with_tokens);
    tcase_add_test(c, a_member_that_stands_twice);
    tcase_add_loop_test(c, faults_of_sums_are_named, 0, COUNT(sum_faults));
    tcase_add_test(c, facts_fit_the_contents);
    tcase_add_test(c, tables_name_their_statistics);
    tcase_add_test(c, tables_say_of_which_part_they_are);
    tcase_add_test(c, tables_hold_the_counts_and_norms_of_their_statistics);
    tcase_add_test(c, one_changed_scalar_is_found);
    tcase_add_test(c, settings_that_cannot_be_read);
    tcase_add_loop_test(c, wrong_sums_are_refused, 0, COUNT(made));
    tcase_add_test(c, verification_tells_of_the_cross_check);
    tcase_add_test(c, a_file_that_is_none_is_refused);
}

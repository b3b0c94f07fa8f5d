/* check_artifact_tables.c - files of kind `tables`. */
#include "tests/support/artifact_fixtures.h"

#include "artifact/data.h"
#include "base/text.h"

#include <math.h>

enum { E = 4, L = 2, N_POOLS = 2 };

static const exf_run_shape shape = {E, 2, 8, 3, 60};
static const int32_t numbers[L] = {1, 5};
static const int64_t pool_sizes[N_POOLS] = {3, 1};
static exf_err e; /* of the last call */

/* What version 2 added, but vectors: the same pair is unobserved. */
static exf_code sample_measures(exf_tables *t, exf_err *err)
{
    exf_code rc;
    exf_shared_scalar *s;
    EXF_TRY(exf_mem_new(&t->cosine, L * E * E, sizeof *t->cosine, "tables", err));
    EXF_TRY(exf_mem_new(&t->similarity, L * E * E, sizeof *t->similarity, "tables", err));
    EXF_TRY(exf_mem_new(&t->frobenius, L * E * E, sizeof *t->frobenius, "tables", err));
    EXF_TRY(exf_mem_new(&t->std_error, L * E * E, sizeof *t->std_error, "tables", err));
    EXF_TRY(exf_mem_new(&t->rms, L * E, sizeof *t->rms, "tables", err));
    EXF_TRY(exf_mem_new(&t->contribution, L * E, sizeof *t->contribution, "tables", err));
    for (int i = 0; i < L * E * E; i++) {
        int self = i / E % E == i % E, seen = t->loss[i] < EXF_LOSS_NEVER;
        t->cosine[i] = self ? 1 : seen ? (float)(i % 5 - 2) / 2 : 0;
        t->similarity[i] = self ? 1 : seen ? (float)(i % 3) / 2 : 0;
        t->frobenius[i] = seen ? (float)(i % 6) / 4 : EXF_LOSS_NEVER;
        t->std_error[i] = self ? 0 : seen ? (float)i / 64 : EXF_ERROR_UNKNOWN;
    }
    for (int i = 0; i < L * E; i++) {
        t->rms[i] = (float)(i + 2) / 2;
        t->contribution[i] = (float)i / 8;
    }
    EXF_TRY(exf_tables_add_halves(t, err));
    for (int i = 0; i < 2 * L * E * E; i++) { /* a half sees some pairs of the whole */
        int at = i % (L * E * E), self = at / E % E == at % E, seen = t->loss[at] < EXF_LOSS_NEVER && i % 11;
        t->half_scalar[0][i] = self ? 1 : seen ? (float)(i % 5) / 4 : 0;
        t->half_loss[0][i] = seen ? (float)(i % 7) / 8 : EXF_LOSS_NEVER;
    }
    for (int k = 0; k < 2; k++) { /* not in order of name */
        EXF_TRY(exf_tables_add_shared(t, k ? "global" : "layer", &s, err));
        for (int l = 0; l < L; l++) s->scalar[l] = (float)(l + k) / 4;
        for (int i = 0; i < L * E * E; i++) s->loss[i] = t->loss[i] < EXF_LOSS_NEVER ? (float)(i % 9 + k) / 8 : EXF_LOSS_NEVER;
    }
out:
    return rc;
}

/* Two layers; the pairs of 0 and 3 are unobserved, and 2 -> 0 has too few tokens; the pools hold experts 0, 1, ... */
static exf_code sample(exf_tables *t, exf_err *err)
{
    exf_code rc = exf_tables_new(t, &shape, numbers, L, pool_sizes, N_POOLS, err);
    if (rc != EXF_OK) return rc;
    for (int i = 0; i < L * E * E; i++) {
        int s = i / E % E, target = i % E, alone = s + target == E - 1 && s * target == 0,
            seen = s != target && !alone && !(s == 2 && target == 0);
        t->coeff[i] = s == target ? 1 : seen ? (float)(i % 7 - 3) / 8 : 0;
        t->loss[i] = seen ? (float)(i % 5) / 16 : EXF_LOSS_NEVER;
    }
    for (int l = 0; l < L; l++) fill_counts(t->count + l * E * E, t->expert_count + l * E, &shape, l);
    for (int i = 0; i < L * E; i++) t->expert_norms[i] = (float)(i + 1) / 2;
    for (int p = 0; p < N_POOLS; p++) {
        int d = t->pool[p].size;
        for (int i = 0; i < L * d; i++) t->pool[p].members[i] = i % d;
        for (int i = 0; i < L * E; i++) {
            t->pool[p].target_ids[i] = i % E < d ? i % E : 0;
            t->pool[p].target_scale[i] = i % E < d ? 1 : 0.25f;
        }
    }
    if ((rc = sample_measures(t, err)) != EXF_OK) return rc;
    return exf_provenance_add(&t->provenance, err, "solve.ridge", "0.001");
}

static void write_tables(const char *name, const exf_tables *t)
{
    ck_ok(exf_tables_write(t, exf_scratch(name), 1, NULL, &e), e);
}

static int same(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n) == 0;
}

START_TEST(tables_come_back_bit_for_bit)
{
    exf_tables t, back;
    ck_ok(sample(&t, &e), e);
    write_tables("t.h5", &t);
    write_tables("u.h5", &t);
    ck_assert(same_files("t.h5", "u.h5"));
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    ck_assert_mem_eq(&back.shape, &shape, sizeof shape);
    ck_assert_int_eq(back.n_layers, L);
    ck_assert_mem_eq(back.layer_number, numbers, sizeof numbers);
    ck_assert(same(back.coeff, t.coeff, L * E * E * sizeof *t.coeff));
    ck_assert(same(back.loss, t.loss, L * E * E * sizeof *t.loss));
    ck_assert(same(back.count, t.count, L * E * E * sizeof *t.count));
    ck_assert(same(back.expert_norms, t.expert_norms, L * E * sizeof *t.expert_norms));
    ck_assert(same(back.expert_count, t.expert_count, L * E * sizeof *t.expert_count));
    ck_assert(same(back.cosine, t.cosine, L * E * E * sizeof *t.cosine));
    ck_assert(same(back.similarity, t.similarity, L * E * E * sizeof *t.similarity));
    ck_assert(same(back.frobenius, t.frobenius, L * E * E * sizeof *t.frobenius));
    ck_assert(same(back.std_error, t.std_error, L * E * E * sizeof *t.std_error));
    ck_assert(same(back.rms, t.rms, L * E * sizeof *t.rms));
    ck_assert(same(back.contribution, t.contribution, L * E * sizeof *t.contribution));
    ck_assert(same(back.half_scalar[0], t.half_scalar[0], 2 * L * E * E * sizeof *t.coeff));
    ck_assert(same(back.half_loss[1], t.half_loss[1], L * E * E * sizeof *t.loss));
    ck_assert_int_eq(back.n_shared, 2);
    for (int k = 0; k < 2; k++) {
        ck_assert_str_eq(back.shared[k].name, k ? "layer" : "global");
        ck_assert(same(back.shared[k].scalar, t.shared[k].scalar, L * sizeof *t.shared[k].scalar));
        ck_assert(same(back.shared[k].loss, t.shared[k].loss, L * E * E * sizeof *t.shared[k].loss));
    }
    ck_assert_int_eq(back.vectors.n_pairs, 0);
    ck_assert_str_eq(exf_provenance_get(&back.provenance, "solve.ridge"), "0.001");
    ck_assert_int_eq(back.n_pools, N_POOLS);
    for (int p = 0; p < N_POOLS; p++) {
        ck_assert_int_eq(back.pool[p].size, t.pool[p].size);
        ck_assert(same(back.pool[p].members, t.pool[p].members, (size_t)(L * t.pool[p].size) * sizeof *t.pool[p].members));
        ck_assert(same(back.pool[p].target_ids, t.pool[p].target_ids, L * E * sizeof *t.pool[p].target_ids));
        ck_assert(same(back.pool[p].target_scale, t.pool[p].target_scale, L * E * sizeof *t.pool[p].target_scale));
    }
    write_tables("u.h5", &back);
    ck_assert(same_files("t.h5", "u.h5"));
    exf_tables_free(&back);
    exf_tables_free(&t);
    exf_tables_free(&t);
}
END_TEST

START_TEST(sequences_are_known_by_digest)
{
    static int32_t lengths[3] = {20, 20, 20};
    unsigned char sha256[4][32] = {{9, 1}, {2, 255, 7}, {9, 0}, {2, 255, 6}};
    unsigned char sketch[2][EXF_SKETCH_BYTES] = {{1, 2}, {1, 3}};
    const exf_sequence_list list = {.n = 3, .length = lengths, .sha256 = sha256, .sketches = {2, sketch}};
    exf_tables t, back;
    ck_ok(sample(&t, &e), e);
    ck_assert(!exf_tables_has_sequence(&t, sha256[0]));
    ck_ok(exf_tables_take_sequences(&t, &(exf_sequence_list){.n = 3}, &e), e); /* not known */
    ck_assert_ptr_null(t.sequence_digest);
    ck_ok(exf_tables_take_sequences(&t, &list, &e), e);
    write_tables("t.h5", &t);
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    for (int i = 0; i < 3; i++) ck_assert(exf_tables_has_sequence(&back, sha256[i]));
    ck_assert(!exf_tables_has_sequence(&back, sha256[3]));
    ck_assert(exf_sketch_set_same(&back.sketches, &list.sketches));
    exf_tables_free(&back);
    t.sequence_digest[0] = t.sequence_digest[1] + 1;
    write_tables("t.h5", &t);
    ck_fails(exf_tables_read(&back, exf_scratch("t.h5"), &e), EXF_FORMAT, e,
             "/sequence_digests[1] 0900000000000000 0900000000000001");
    exf_tables_free(&t);
}
END_TEST

/* A file of version 1 has none of what came later. */
START_TEST(what_is_absent_stays_absent)
{
    exf_tables t, back;
    ck_ok(sample(&t, &e), e);
    exf_mem_free(t.cosine);
    exf_mem_free(t.std_error);
    exf_mem_free(t.frobenius);
    exf_mem_free(t.half_scalar[0]);
    exf_mem_free(t.half_loss[0]);
    t.cosine = t.std_error = t.frobenius = t.half_scalar[0] = t.half_loss[0] = NULL;
    for (int k = 0; k < 2; k++) {
        exf_mem_free(t.shared[k].scalar);
        exf_mem_free(t.shared[k].loss);
    }
    t.n_shared = 0;
    write_tables("t.h5", &t);
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    ck_assert_ptr_null(back.cosine);
    ck_assert_ptr_null(back.std_error);
    ck_assert_ptr_null(back.frobenius);
    ck_assert_ptr_null(back.half_scalar[0]);
    ck_assert_ptr_null(back.half_loss[0]);
    ck_assert_ptr_nonnull(back.similarity);
    ck_assert_int_eq(back.n_shared, 0);
    ck_ok(exf_tables_read_vectors(&back, exf_scratch("t.h5"), &e), e);
    ck_assert_int_eq(back.vectors.n_pairs, 0);
    ck_assert_ptr_null(back.vectors.pair);
    exf_tables_free(&back);
    exf_tables_free(&t);
}
END_TEST

START_TEST(tables_need_no_pools)
{
    exf_run_shape no_tokens = shape;
    exf_tables t, back;
    no_tokens.n_tokens = 0;
    ck_ok(exf_tables_new(&t, &no_tokens, numbers, 1, NULL, 0, &e), e);
    for (int i = 0; i < E * E; i++) {
        t.coeff[i] = i % (E + 1) == 0 ? 1 : 0;
        t.loss[i] = EXF_LOSS_NEVER;
    }
    for (int i = 0; i < E; i++) t.expert_norms[i] = 1; /* nothing was ever routed */
    write_tables("t.h5", &t);
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    ck_assert_int_eq(back.n_pools, 0);
    ck_assert_int_eq(back.n_layers, 1);
    exf_tables_free(&back);
    exf_tables_free(&t);
}
END_TEST

START_TEST(pool_sizes_are_those_of_the_model)
{
    exf_tables t;
    static const int64_t all[] = {E}, none[] = {0}, more[] = {2, E + 1}, below[] = {-1};
    ck_ok(exf_tables_new(&t, &shape, numbers, L, all, 1, &e), e);
    exf_tables_free(&t);
    ck_fails(exf_tables_new(&t, &shape, numbers, L, none, 1, &e), EXF_USAGE, e, "0 4");
    ck_fails(exf_tables_new(&t, &shape, numbers, L, more, 2, &e), EXF_USAGE, e, "5");
    ck_fails(exf_tables_new(&t, &shape, numbers, L, below, 1, &e), EXF_USAGE, e, "-1");
    ck_assert_ptr_null(t.coeff);
}
END_TEST

/* ---- what breaks the rules ---------------------------------------------------------- */

static void file_refused(const char *part)
{
    exf_tables back;
    ck_fails(exf_tables_read(&back, exf_scratch("t.h5"), &e), EXF_FORMAT, e, part);
    ck_assert_msg(strstr(e.msg, "t.h5") != NULL, "no file in \"%s\"", e.msg);
    ck_assert_ptr_null(back.coeff);
}

/* One element of one dataset is another. */
static void refused(const char *dataset, size_t at, const void *value, const char *part)
{
    exf_tables t;
    ck_ok(sample(&t, &e), e);
    write_tables("t.h5", &t);
    damage("t.h5", dataset, at, value);
    file_refused(part);
    exf_tables_free(&t);
}

START_TEST(numbers_must_be_finite)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        refused("/coeff", 1 * E * E + 2 * E + 3, &bad[i], "/coeff[1, 2, 3] is");
        refused("/loss", 0 * E * E + 1 * E + 0, &bad[i], "/loss[0, 1, 0] is");
        refused("/expert_norms", 1 * E + 3, &bad[i], "/expert_norms[1, 3] is");
        refused("/pools/3/target_scale", 3, &bad[i], "/pools/3");
    }
}
END_TEST

START_TEST(losses_and_norms_have_their_sign)
{
    float below = -1e-30f;
    refused("/loss", 1, &below, "/loss[0, 0, 1] is -1e-30");
    refused("/expert_norms", 2, &below, "/expert_norms[0, 2] is -1e-30, expected a finite number from 0");
    refused("/rms", E + 1, &below, "/rms[1, 1] is -1e-30, expected a finite number from 0");
}
END_TEST

/* An output of 0 on every token is evidence; without a token it is none. */
START_TEST(a_norm_of_0_needs_tokens)
{
    exf_tables t;
    ck_ok(sample(&t, &e), e);
    t.shape.top_k = 0; /* as a public plugin's tables, whose counts only say what has evidence */
    for (int k = 0; k < 2; k++) {
        float *x = k ? &t.rms[E + 2] : &t.expert_norms[E + 2], was = *x;
        uint64_t tokens = t.expert_count[E + 2];
        *x = 0;
        ck_ok(exf_tables_check(&t, "t", &e), e);
        t.expert_count[E + 2] = 0;
        ck_fails(exf_tables_check(&t, "t", &e), EXF_FORMAT, e, k ? "t: /rms[1, 2] is 0, expected a number above 0"
                                                                 : "t: /expert_norms[1, 2] is 0, expected a number above 0");
        *x = was;
        ck_ok(exf_tables_check(&t, "t", &e), e);
        t.expert_count[E + 2] = tokens;
    }
    exf_tables_free(&t);
}
END_TEST

START_TEST(the_diagonal_is_fixed)
{
    float near_one = nextafterf(1, 2), loss = 0, near_never = nextafterf(EXF_LOSS_NEVER, 0);
    refused("/coeff", E + 1, &near_one, "/coeff[0, 1, 1] is 1");
    refused("/loss", E * E + 3 * E + 3, &loss, "/loss[1, 3, 3] is 0");
    refused("/loss", E * E + 3 * E + 3, &near_never, "/loss[1, 3, 3] is 1e+30");
}
END_TEST

START_TEST(measures_stay_in_their_range)
{
    float above = nextafterf(1, 2), below = -1e-30f, some = 0.25f, nan = NAN;
    refused("/cosine", 1, &above, "/cosine[0, 0, 1] is 1");
    refused("/cosine", 1, &nan, "/cosine[0, 0, 1] is nan");
    refused("/cosine", E + 1, &some, "/cosine[0, 1, 1] is 0.25, expected 1 on the diagonal");
    refused("/cosine", 2 * E, &some, "/cosine[0, 2, 0] is 0.25, expected 0 without evidence");
    refused("/similarity", E * E + 1, &below, "/similarity[1, 0, 1] is -1e-30, expected [0, 1]");
    refused("/similarity", 2 * E, &some, "/similarity[0, 2, 0] is 0.25");
    refused("/frobenius", 1, &below, "/frobenius[0, 0, 1] is -1e-30");
    refused("/frobenius", 2 * E, &some, "/frobenius[0, 2, 0] is 0.25, expected 1e30 on the diagonal and without evidence");
    refused("/std_error", 1, &below, "/std_error[0, 0, 1]");
    refused("/std_error", 0, &some, "/std_error[0, 0, 0] is 0.25, expected 0 on the diagonal");
    refused("/std_error", 2 * E, &some, "/std_error[0, 2, 0] is 0.25, expected 1e30 without evidence");
    refused("/half_scalar", L * E * E + 1, &nan, "/half_scalar[1][0, 0, 1] is nan");
    refused("/half_scalar", 0, &some, "/half_scalar[0][0, 0, 0] is 0.25, expected 1 on the diagonal");
    refused("/half_scalar", 2 * E, &some, "/half_scalar[0][0, 2, 0] is 0.25, expected 0 without evidence");
    refused("/half_loss", 2 * E, &some, "/half_loss[0][0, 2, 0] is 0.25, expected 1e30");
    refused("/contribution", 2, &nan, "/contribution[0, 2] is nan");
    refused("/shared/layer/scalar", 1, &nan, "/shared/layer/scalar[1] is nan");
    refused("/shared/global/loss", 1, &below, "/shared/global/loss[0, 0, 1] is -1e-30");
    refused("/shared/global/loss", 2 * E, &some, "/shared/global/loss[0, 2, 0] is 0.25, expected 1e30");
}
END_TEST

START_TEST(pool_ids_are_experts)
{
    int32_t below = -1, above = E;
    refused("/pools/3/target_ids", E + 2, &below, "/pools/3: expert 2 goes to -1");
    refused("/pools/1/target_ids", 1, &above, "/pools/1: expert 1 goes to 4");
    refused("/pools/3/members", 1, &above, "/pools/3");
    refused("/pools/3/members", 5, &below, "/pools/3");
}
END_TEST

START_TEST(a_pool_has_an_expert_once)
{
    int32_t again = 1;
    refused("/pools/3/members", 5, &again, "/pools/3, layer 5: members 1 and 2 are expert 1 twice");
}
END_TEST

START_TEST(counts_are_those_of_a_run)
{
    uint64_t huge = UINT64_MAX, many = 61, few = 1, one = 1;
    refused("/expert_count", E + 2, &huge, "layer 5: /expert_count[1, 2] is 18446744073709551615, n_tokens is 60");
    refused("/expert_count", E + 2, &many, "layer 5: /expert_count[1, 2] is 61, n_tokens is 60");
    refused("/expert_count", E + 2, &few, "layer 5: /expert_count[1, ...] add up to ");
    refused("/count", E * E + 1 * E + 2, &one, "layer 5: /count[1, 1, 2] is 1, its mirror /count[1, 2, 1] is ");
    refused("/count", E * E + 2 * E + 2, &one, "layer 5: /count[1, 2, 2] is 1, expected 0");
}
END_TEST

/* Of a layer alone; what that one lacks others do not. */
START_TEST(empty_slots_are_told_of)
{
    exf_tables t, back;
    ck_ok(sample(&t, &e), e);
    ck_ok(exf_mem_new(&t.empty_slots, L, sizeof *t.empty_slots, "test", &e), e);
    for (int i = 0; i < E * E; i++) t.count[E * E + i] = i == 1 || i == E ? 40 : 0;
    for (int i = 0; i < E * E; i++)
        if (!t.count[E * E + i]) {
            t.loss[E * E + i] = t.frobenius[E * E + i] = t.shared[0].loss[E * E + i] = t.shared[1].loss[E * E + i] = EXF_LOSS_NEVER;
            t.cosine[E * E + i] = t.similarity[E * E + i] = i % (E + 1) == 0;
            t.std_error[E * E + i] = i % (E + 1) == 0 ? 0 : EXF_ERROR_UNKNOWN;
            for (int k = 0; k < 2; k++) {
                t.half_loss[k][E * E + i] = EXF_LOSS_NEVER;
                t.half_scalar[k][E * E + i] = i % (E + 1) == 0;
            }
        }
    for (int i = 0; i < E; i++) t.expert_count[E + i] = i < 2 ? 50 : 0;
    t.empty_slots[1] = 20;
    write_tables("t.h5", &t);
    ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
    ck_assert(back.empty_slots && back.empty_slots[0] == 0 && back.empty_slots[1] == 20);
    exf_tables_free(&back);
    uint64_t none = 0;
    damage("t.h5", "/empty_slots", 1, &none);
    file_refused("layer 5: /expert_count[1, ...] add up to 100 routes, expected n_tokens x top_k = 60 x 2 = 120 less 0");
    exf_tables_free(&t);
}
END_TEST

/* Of common input pairs have other tokens than experts; but all the same ones. */
START_TEST(pairs_of_common_input_have_the_same_tokens)
{
    for (uint64_t tokens = 23; tokens <= 25; tokens++) { /* of 3 sequences 8 each at most */
        exf_tables t, back;
        ck_ok(sample(&t, &e), e);
        add_fact(&t.provenance, "accumulate.pairs", "common_input");
        add_fact(&t.provenance, "accumulate.observer_tokens", "8");
        for (int i = 0; i < L * E * E; i++) t.count[i] = i % E == i / E % E ? 0 : tokens;
        write_tables("t.h5", &t);
        if (tokens <= 24) {
            ck_ok(exf_tables_read(&back, exf_scratch("t.h5"), &e), e);
            exf_tables_free(&back);
        } else {
            file_refused("layer 1: /count[0, 0, 1] is 25, the run's common input has 3 to 24 tokens");
        }
        t.count[E * E + 2 * E + 3] = t.count[E * E + 3 * E + 2] = 22;
        write_tables("t.h5", &t);
        if (tokens <= 24) file_refused("layer 5: /count[1, 2, 3] is 22, with common input every pair has ");
        exf_tables_free(&t);
    }
}
END_TEST

/* A tables file whose /pools holds a group of this name and nothing else. */
static void pool_group_refused(const char *group, const char *part)
{
    exf_tables t;
    exf_h5 *h = NULL;
    ck_ok(sample(&t, &e), e);
    ck_ok(exf_artifact_create(&h, exf_scratch("t.h5"), 1, NULL, &exf_artifact_tables, &t.provenance, &e), e);
    ck_ok(exf_run_shape_write(&shape, h, &e), e);
    ck_ok(exf_layer_numbers_write(numbers, L, h, &e), e);
    ck_ok(exf_h5_group(h, group, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    file_refused(part);
    exf_tables_free(&t);
}

/* What a file says is the file's fault, not the command line's. */
START_TEST(pools_of_a_file_are_possible_ones)
{
    pool_group_refused("/pools/x", "/pools/x is no pool size");
    pool_group_refused("/pools/5", "pool of 5 experts");
    pool_group_refused("/pools/0", "pool of 0 experts");
    pool_group_refused("/pools/-3", "pool of -3 experts");
}
END_TEST

START_TEST(more_pools_than_fit_are_refused)
{
    exf_h5 *h = NULL;
    exf_provenance p = {0};
    exf_run_shape many = {400, 2, 8, 3, 60};
    ck_ok(exf_artifact_create(&h, exf_scratch("t.h5"), 1, NULL, &exf_artifact_tables, &p, &e), e);
    ck_ok(exf_run_shape_write(&many, h, &e), e);
    ck_ok(exf_layer_numbers_write(numbers, L, h, &e), e);
    for (int d = 1; d <= 385; d++) {
        exf_text group = {0};
        exf_text_appendf(&group, "/pools/%d", d);
        ck_ok(exf_h5_group(h, group.s, &e), e);
        exf_text_free(&group);
    }
    ck_ok(exf_h5_commit(h, &e), e);
    file_refused("more than 384 pools");
}
END_TEST

START_TEST(missing_and_misshapen_datasets_are_named)
{
    exf_tables t;
    exf_h5 *h = NULL;
    exf_tensor coeff = {.name = "/coeff", .dtype = EXF_DT_F32, .rank = 3, .shape = {L, E, E + 1}};
    ck_ok(sample(&t, &e), e);
    for (int with = 0; with < 2; with++) {
        ck_ok(exf_artifact_create(&h, exf_scratch("t.h5"), 1, NULL, &exf_artifact_tables, &t.provenance, &e), e);
        ck_ok(exf_run_shape_write(&shape, h, &e), e);
        ck_ok(exf_layer_numbers_write(numbers, L, h, &e), e);
        if (with) ck_ok(exf_h5_define(h, &coeff, &e), e);
        ck_ok(exf_h5_commit(h, &e), e);
        file_refused(with ? "/coeff is F32 [2, 4, 5], expected F32 [2, 4, 4]" : "/coeff is missing");
    }
    exf_tables_free(&t);
}
END_TEST

/* ---- a link where the pools should be -------------------------------------------------- */

/* Links are refused wherever they stand: pools must not vanish without a word. */
START_TEST(pools_behind_a_link_are_refused)
{
    exf_tables t;
    ck_ok(sample(&t, &e), e);
    write_tables("t.h5", &t);
    hid_t f = H5Fopen(exf_scratch("t.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    ck_assert_int_ge(H5Lmove(f, "/pools", f, "/elsewhere", H5P_DEFAULT, H5P_DEFAULT), 0);
    ck_assert_int_ge(H5Lcreate_soft("/elsewhere", f, "/pools", H5P_DEFAULT, H5P_DEFAULT), 0);
    ck_assert_int_ge(H5Fclose(f), 0);
    file_refused("/pools is a soft or external link");
    exf_tables_free(&t);
}
END_TEST

/* A file of a few kilobytes that states 4096 experts is refused before memory is taken for them. */
START_TEST(a_small_file_states_no_large_tables)
{
    const exf_run_shape large = {4096, 2, 8, 3, 60};
    static const struct { const char *name; exf_dtype dtype; int rank; } parts[] = {
        {"/coeff", EXF_DT_F32, 3}, {"/loss", EXF_DT_F32, 3}, {"/expert_norms", EXF_DT_F32, 2}, {"/count", EXF_DT_U64, 3},
        {"/expert_count", EXF_DT_U64, 2}};
    exf_provenance p = sample_facts("t1");
    exf_tables t;
    exf_h5 *h = NULL;
    ck_ok(exf_artifact_create(&h, exf_scratch("t.h5"), 1, NULL, &exf_artifact_tables, &p, &e), e);
    ck_ok(exf_run_shape_write(&large, h, &e), e);
    ck_ok(exf_layer_numbers_write(numbers, L, h, &e), e);
    ck_ok(exf_h5_commit(h, &e), e);
    hid_t f = H5Fopen(exf_scratch("t.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    for (int i = 0; i < COUNT(parts); i++) { /* without a byte of elements */
        hid_t type = parts[i].dtype == EXF_DT_F32 ? H5T_IEEE_F32LE : H5T_STD_U64LE;
        hid_t space = H5Screate_simple(parts[i].rank, (const hsize_t[]){L, 4096, 4096}, NULL);
        H5Dclose(H5Dcreate2(f, parts[i].name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        H5Sclose(space);
    }
    H5Fclose(f);
    ck_fails(exf_tables_read(&t, exf_scratch("t.h5"), &e), EXF_FORMAT, e,
             "/coeff 134217728");
    ck_assert_ptr_null(t.coeff);
    exf_provenance_free(&p);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, tables_come_back_bit_for_bit);
    tcase_add_test(t, sequences_are_known_by_digest);
    tcase_add_test(t, what_is_absent_stays_absent);
    tcase_add_test(t, tables_need_no_pools);
    tcase_add_test(t, pool_sizes_are_those_of_the_model);
    tcase_add_test(t, numbers_must_be_finite);
    tcase_add_test(t, losses_and_norms_have_their_sign);
    tcase_add_test(t, a_norm_of_0_needs_tokens);
    tcase_add_test(t, the_diagonal_is_fixed);
    tcase_add_test(t, measures_stay_in_their_range);
    tcase_add_test(t, pool_ids_are_experts);
    tcase_add_test(t, a_pool_has_an_expert_once);
    tcase_add_test(t, counts_are_those_of_a_run);
    tcase_add_test(t, empty_slots_are_told_of);
    tcase_add_test(t, pairs_of_common_input_have_the_same_tokens);
    tcase_add_test(t, pools_of_a_file_are_possible_ones);
    tcase_add_test(t, more_pools_than_fit_are_refused);
    tcase_add_test(t, missing_and_misshapen_datasets_are_named);
    tcase_add_test(t, pools_behind_a_link_are_refused);
    tcase_add_test(t, a_small_file_states_no_large_tables);
}

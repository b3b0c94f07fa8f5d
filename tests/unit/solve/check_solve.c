/* check_solve.c - src/solve: closed forms by hand, norms, pools, and the demo
 * model's tables against those of a double-precision reference. */
#include "tests/support/artifact_fixtures.h"

#include "accumulate/accumulate.h"
#include "capture/capture.h"
#include "format/safetensors.h"
#include "solve/solve_internal.h"

#include <math.h>

static const char *const pair[] = {"pair"};
static const exf_solve_options plain = {.rule = {.ridge = 0}, .projectors = pair, .n_projectors = 1};
static const exf_solve_options usual = {.rule = {1e-3, 1, -4, 4}, .projectors = pair, .n_projectors = 1};
static exf_err e; /* of the last call */

/* ---- one layer by hand ---------------------------------------------------------------- */

static exf_layer_statistics layer_of(int n_experts)
{
    exf_layer_statistics s;
    ck_ok(exf_layer_statistics_new(&s, n_experts, &e), e);
    return s;
}

static exf_tables tables_of(int n_experts, const int64_t *pools, size_t n_pools)
{
    static const int32_t number = 7;
    exf_run_shape shape = {n_experts, 1, 8, 1, 1};
    exf_tables t;
    ck_ok(exf_tables_new(&t, &shape, &number, 1, pools, n_pools, &e), e);
    return t;
}

static void set_pair(exf_layer_statistics *s, int source, int target, double dot, double target_sq, double source_sq)
{
    int at = source * s->n_experts + target;
    exf_exact_add(&s->dot[at], dot);
    exf_exact_add(&s->target_sq[at], target_sq);
    exf_exact_add(&s->source_sq[at], source_sq);
    s->count[at] = 3;
}

/* The one pair 0 -> 1 of a layer of two experts. */
static exf_code solve_pair(const exf_solve_options *o, double dot, double target_sq, double source_sq, float *coeff, float *loss)
{
    exf_layer_statistics s = layer_of(2);
    exf_tables t = tables_of(2, NULL, 0);
    set_pair(&s, 0, 1, dot, target_sq, source_sq);
    exf_code rc = exf_projector_find("pair")->layer(&s, o, 0, &t, &e);
    *coeff = t.coeff[1];
    *loss = t.loss[1];
    exf_tables_free(&t);
    exf_layer_statistics_free(&s);
    return rc;
}

static void ck_pair(const exf_solve_options *o, double dot, double target_sq, double source_sq, double coeff, double loss)
{
    float c, l;
    ck_ok(solve_pair(o, dot, target_sq, source_sq, &c, &l), e);
    ck_assert_msg(c == (float)coeff, "scalar %.9g, expected %.9g", (double)c, coeff);
    ck_assert_msg(fabs((double)l - loss) <= 1e-7 * loss, "loss %.9g, expected %.9g", (double)l, loss);
}

START_TEST(scalars_and_losses_by_hand)
{
    exf_solve_options ridge = plain;
    ck_pair(&plain, 6, 8, 10, 0.75, 0.55);
    ck_pair(&plain, -6, 8, 10, -0.75, 0.55);
    ck_pair(&plain, 0, 8, 10, 0, 1);
    ck_pair(&plain, 4, 4, 4, 1, 0);
    ck_pair(&plain, 4, 4, 3.9, 1, 0); /* rounding below nothing is nothing */
    ridge.rule.ridge = 4;
    ck_pair(&ridge, 6, 8, 10, 0.5, 0.6);
    ridge.rule.ridge = 1e-3;
    ck_pair(&ridge, 6, 8, 10, 6 / 8.001, (10 - 2 * (6 / 8.001) * 6 + (6 / 8.001) * (6 / 8.001) * 8) / 10);
}
END_TEST

START_TEST(the_loss_is_that_of_the_clipped_scalar)
{
    exf_solve_options clip = plain;
    ck_pair(&plain, 80, 8, 1000, 10, 0.2);
    clip.rule.clip = 1;
    clip.rule.clip_min = -4;
    clip.rule.clip_max = 4;
    ck_pair(&clip, 80, 8, 1000, 4, 0.488);
    ck_pair(&clip, -80, 8, 1000, -4, 0.488);
    ck_pair(&clip, 32, 8, 1000, 4, 0.872); /* just at the limit */
    ck_pair(&clip, 6, 8, 10, 0.75, 0.55);
    clip.rule.clip_min = 0;
    ck_pair(&clip, -80, 8, 1000, 0, 1);
    clip.rule.clip = 0; /* the limits then mean nothing */
    ck_pair(&clip, -80, 8, 1000, -10, 0.2);
    clip = plain;
    clip.rule.clip = 1;
    clip.rule.clip_min = 3; /* a loss may be above 1 when the clip is to blame */
    clip.rule.clip_max = 4;
    ck_pair(&clip, 6, 8, 10, 3, 4.6);
}
END_TEST

START_TEST(nothing_to_divide_by)
{
    ck_pair(&plain, 0, 0, 10, 0, 1); /* a target that is always 0 gives nothing back */
    ck_pair(&usual, 0, 0, 10, 0, 1);
    ck_pair(&plain, 0, 8, 0, 0, 0);  /* a source that is always 0 loses nothing */
    ck_pair(&plain, 0, 0, 0, 0, 0);
}
END_TEST

START_TEST(scalars_are_finite_floats)
{
    float c, l;
    ck_fails(solve_pair(&plain, 1e18, 1e-25, 1e18, &c, &l), EXF_NUMERIC, e, "7 0 -> 1");
    exf_solve_options clip = plain;
    clip.rule.clip = 1;
    clip.rule.clip_max = 4;
    ck_ok(solve_pair(&clip, 1e18, 1e-25, 1e18, &c, &l), e);
    ck_assert_float_eq(c, 4);
}
END_TEST

START_TEST(the_diagonal_and_unobserved_pairs)
{
    enum { E = 4 };
    exf_layer_statistics s = layer_of(E);
    exf_tables t = tables_of(E, NULL, 0);
    set_pair(&s, 0, 1, 6, 8, 10);
    set_pair(&s, 1, 0, 6, 10, 8);
    set_pair(&s, 3, 2, -1, 2, 4);
    ck_ok(exf_projector_find("pair")->layer(&s, &plain, 0, &t, &e), e);
    for (int i = 0; i < E * E; i++) {
        int seen = i == 1 || i == 4 || i == 14;
        ck_assert_uint_eq(t.count[i], seen ? 3 : 0);
        if (seen) continue;
        ck_assert_float_eq(t.coeff[i], i / E == i % E ? 1.0f : 0.0f);
        ck_assert_float_eq(t.loss[i], EXF_LOSS_NEVER);
    }
    ck_assert_float_eq(t.coeff[1], 0.75f); /* rows are sources */
    ck_assert_float_eq(t.coeff[4], 0.6f);
    ck_assert_float_eq(t.coeff[14], -0.5f);
    ck_assert_float_eq(t.loss[14], 0.875f);
    exf_tables_free(&t);
    exf_layer_statistics_free(&s);
}
END_TEST

/* ---- expert norms ------------------------------------------------------------------------ */

static void ck_norms(int n, const double *sum, const uint64_t *count, const float *want)
{
    exf_layer_statistics s = layer_of(n);
    exf_tables t = tables_of(n, NULL, 0);
    for (int i = 0; i < n; i++) {
        exf_exact_add(&s.norm_sum[i], sum[i]);
        s.norm_count[i] = count[i];
    }
    ck_ok(exf_solve_norms(&s, 0, &t, &e), e);
    for (int i = 0; i < n; i++) {
        ck_assert_float_eq(t.expert_norms[i], want[i]);
        ck_assert_uint_eq(t.expert_count[i], count[i]);
    }
    exf_tables_free(&t);
    exf_layer_statistics_free(&s);
}

START_TEST(cold_experts_have_the_lower_median)
{
    ck_norms(5, (double[]){6, 0, 4, 0, 10}, (uint64_t[]){2, 0, 4, 0, 1}, (float[]){3, 3, 1, 3, 10});
    ck_norms(5, (double[]){4, 3, 2, 1, 0}, (uint64_t[]){1, 1, 1, 1, 0}, (float[]){4, 3, 2, 1, 2});
    ck_norms(3, (double[]){0, 5, 0}, (uint64_t[]){0, 2, 0}, (float[]){2.5f, 2.5f, 2.5f});
    ck_norms(2, (double[]){1, 1}, (uint64_t[]){3, 7}, (float[]){(float)(1. / 3), (float)(1. / 7)});
}
END_TEST

START_TEST(a_layer_without_a_token_has_norms)
{
    ck_norms(3, (double[]){0, 0, 0}, (uint64_t[]){0, 0, 0}, (float[]){1, 1, 1});
}
END_TEST

/* Outputs of 0 are evidence, which no cold expert is thought to have. */
START_TEST(a_norm_may_be_0)
{
    ck_norms(2, (double[]){2, 0}, (uint64_t[]){1, 4}, (float[]){2, 0});
    ck_norms(5, (double[]){0, 0, 0, 8, 6}, (uint64_t[]){4, 0, 3, 2, 1}, (float[]){0, 4, 0, 4, 6});
    ck_norms(3, (double[]){0, 0, 0}, (uint64_t[]){9, 0, 9}, (float[]){0, 1, 0});
}
END_TEST

START_TEST(a_norm_below_0_is_refused)
{
    exf_layer_statistics s = layer_of(2);
    exf_tables t = tables_of(2, NULL, 0);
    exf_exact_add(&s.norm_sum[1], -2);
    s.norm_count[1] = 1;
    ck_fails(exf_solve_norms(&s, 0, &t, &e), EXF_NUMERIC, e, "7 1 -2 1");
    exf_tables_free(&t);
    exf_layer_statistics_free(&s);
}
END_TEST

/* ---- pools --------------------------------------------------------------------------------- */

static void ck_pool(const exf_static_pool *p, int n_experts, const int32_t *members, const int32_t *target, const float *scale)
{
    ck_assert_mem_eq(p->members, members, (size_t)p->size * sizeof *members);
    for (int i = 0; i < n_experts; i++) {
        ck_assert_msg(p->target_ids[i] == target[i], "expert %d goes to %d, expected %d", i, (int)p->target_ids[i], (int)target[i]);
        ck_assert_float_eq(p->target_scale[i], scale[i]);
    }
}

/* Scalars say where they stand: S[s,t] = s + t / 10; losses as given. */
static exf_tables pool_tables(int n, const float *norms, const float *loss, const int64_t *pools, size_t n_pools)
{
    exf_tables t = tables_of(n, pools, n_pools);
    for (int i = 0; i < n * n; i++) {
        t.coeff[i] = i / n == i % n ? 1 : (float)(i / n) + (float)(i % n) / 10;
        t.loss[i] = i / n == i % n ? EXF_LOSS_NEVER : loss[i];
    }
    memcpy(t.expert_norms, norms, (size_t)n * sizeof *norms);
    exf_solve_pools(0, NULL, &t);
    return t;
}

#define NO EXF_LOSS_NEVER

START_TEST(pools_take_the_largest_and_the_nearest)
{
    static const float norms[] = {2, 3, 3, 1, 3};
    static const float loss[] = {NO, .5f, .5f, 0, .1f, 0, NO, 0, 0, 0, 0, 0, NO, 0, 0, 0, .7f, .2f, NO, 0, .1f, NO, NO, .1f, NO};
    static const int64_t sizes[] = {2, 1, 5, 4};
    exf_tables t = pool_tables(5, norms, loss, sizes, 4);
    /* of the three of norm 3 the lower numbers; 0 is as near to 1 as to 2, 3 to 4 as to 0; 4 never met 1 or 2 */
    ck_pool(&t.pool[0], 5, (int32_t[]){1, 2}, (int32_t[]){1, 1, 2, 2, 1}, (float[]){.1f, 1, 1, 3 + 2 / 10.0f, 0});
    ck_pool(&t.pool[1], 5, (int32_t[]){1}, (int32_t[]){1, 1, 1, 1, 1}, (float[]){.1f, 1, 2 + 1 / 10.0f, 3 + 1 / 10.0f, 0});
    ck_pool(&t.pool[2], 5, (int32_t[]){1, 2, 4, 0, 3}, (int32_t[]){0, 1, 2, 3, 4}, (float[]){1, 1, 1, 1, 1});
    ck_pool(&t.pool[3], 5, (int32_t[]){1, 2, 4, 0}, (int32_t[]){0, 1, 2, 4, 4}, (float[]){1, 1, 1, 3 + 4 / 10.0f, 1});
    exf_tables_free(&t);
}
END_TEST

START_TEST(ties_go_to_the_earlier_member)
{
    static const float norms[] = {1, 2, 5}, loss[] = {NO, .5f, .5f, 0, NO, 0, 0, 0, NO};
    static const int64_t sizes[] = {2};
    exf_tables t = pool_tables(3, norms, loss, sizes, 1); /* 2 is the earlier member, not the lower number */
    ck_pool(&t.pool[0], 3, (int32_t[]){2, 1}, (int32_t[]){2, 1, 2}, (float[]){.2f, 1, 1});
    exf_tables_free(&t);
}
END_TEST

START_TEST(a_pool_of_one_in_two_experts)
{
    static const float norms[] = {4, 4}, loss[] = {NO, .5f, NO, NO};
    static const int64_t sizes[] = {1, 2};
    exf_tables t = pool_tables(2, norms, loss, sizes, 2);
    ck_pool(&t.pool[0], 2, (int32_t[]){0}, (int32_t[]){0, 0}, (float[]){1, 0});
    ck_pool(&t.pool[1], 2, (int32_t[]){0, 1}, (int32_t[]){0, 1}, (float[]){1, 1});
    exf_tables_free(&t);
}
END_TEST

/* ---- from a file ---------------------------------------------------------------------------- */

/* Two layers of four experts: sampled sums, or no token at all. */
static void write_statistics(const char *name, int64_t n_tokens)
{
    const exf_run_shape shape = {4, 2, 8, 3, n_tokens};
    static const int32_t numbers[] = {1, 5};
    exf_layer_statistics s = layer_of(4);
    exf_statistics_writer w;
    exf_provenance p = sample_facts("t");
    ck_ok(create_statistics(&w, exf_scratch(name), 1, &shape, numbers, 2, &p, &e), e);
    for (int l = 0; l < 2; l++) {
        exf_layer_statistics_zero(&s);
        if (n_tokens) fill_statistics(&s, &shape, 3 + l);
        for (int i = 0; i < 16; i++) /* squares are not negative */
            for (int k = 0; s.count[i] && k < 2; k++) exf_exact_add(k ? &s.target_sq[i] : &s.source_sq[i], 1000);
        for (int i = 0; n_tokens && i < 4; i++) exf_exact_add(&s.norm_sum[i], 1000 + i);
        if (!n_tokens) *s.stream_count = 0;
        ck_ok(exf_statistics_put(&w, numbers[l], &s, &e), e);
    }
    ck_ok(exf_statistics_commit(&w, NULL, &e), e);
    exf_provenance_free(&p);
    exf_layer_statistics_free(&s);
}

static exf_code solve_and_write(exf_err *err)
{
    static const int64_t pools[] = {2};
    exf_solve_options o = usual;
    exf_tables t;
    o.pools = pools;
    o.n_pools = 1;
    exf_code rc = exf_solve(exf_scratch("s.h5"), &o, &t, err);
    if (rc == EXF_OK) rc = exf_tables_write(&t, exf_scratch("t.h5"), 1, NULL, err);
    exf_tables_free(&t);
    return rc;
}

/* Solves the layers of a file from memory, the last first. */
static exf_code solve_from_memory(const char *target, const exf_solve_options *o)
{
    exf_statistics_reader r = {0};
    exf_layer_statistics s = layer_of(4);
    exf_solve_options with = *o;
    exf_solver *solver = NULL;
    exf_tables t = {.n_layers = 0};
    char digest[EXF_SHA256_HEX];
    exf_code rc;
    EXF_TRY(exf_statistics_open(&r, exf_scratch("s.h5"), &e));
    exf_solver_head head = {.path = "s.h5", .shape = r.shape, .layer_number = r.layer_number, .n_layers = r.n_layers,
                            .has = {[EXF_PART_SEQUENCES] = r.sequences.length != NULL,
                                    [EXF_PART_ENERGIES] = r.has[EXF_PART_ENERGIES],
                                    [EXF_PART_COSINES] = r.has[EXF_PART_COSINES]}};
    EXF_TRY(exf_solver_new(&solver, &head, o, NULL, &e));
    for (int l = r.n_layers - 1; l >= 0; l--) {
        EXF_TRY(exf_statistics_get(&r, l, &s, &e));
        EXF_TRY(exf_solver_layer(solver, l, &s, &e));
    }
    EXF_TRY(exf_solver_read_file(solver, &r, &e));
    EXF_TRY(exf_h5_digest(r.h, digest, &e));
    with.statistics_digest = digest;
    EXF_TRY(exf_solver_end(solver, &with, &r.provenance, &t, &e));
    rc = exf_tables_write(&t, exf_scratch(target), 1, NULL, &e);
out:
    exf_solver_free(solver);
    exf_tables_free(&t);
    exf_layer_statistics_free(&s);
    exf_statistics_close(&r);
    return rc;
}

START_TEST(layers_in_memory_give_the_tables_of_the_file)
{
    static const char *const layer[] = {"pair", "layer"}, *const global[] = {"global"};
    exf_solve_options o = usual;
    exf_tables t;
    write_statistics("s.h5", 60);
    o.projectors = layer;
    o.n_projectors = 2;
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    ck_ok(exf_tables_write(&t, exf_scratch("file.h5"), 1, NULL, &e), e);
    exf_tables_free(&t);
    ck_ok(solve_from_memory("memory.h5", &o), e);
    ck_assert(same_files("file.h5", "memory.h5"));
    o.projectors = global;
    o.n_projectors = 1;
    ck_ok(exf_solve(exf_scratch("s.h5"), &o, &t, &e), e);
    ck_ok(exf_tables_write(&t, exf_scratch("file.h5"), 1, NULL, &e), e);
    exf_tables_free(&t);
    ck_ok(solve_from_memory("memory.h5", &o), e);
    ck_assert(same_files("file.h5", "memory.h5"));
}
END_TEST

START_TEST(a_file_is_solved_and_can_be_read)
{
    exf_tables t;
    write_statistics("s.h5", 60);
    ck_ok(solve_and_write(&e), e);
    ck_assert_int_eq(rename(exf_scratch("t.h5"), exf_scratch("before.h5")), 0);
    ck_ok(solve_and_write(&e), e);
    ck_assert(same_files("t.h5", "before.h5"));
    ck_ok(exf_tables_read(&t, exf_scratch("t.h5"), &e), e);
    ck_assert_int_eq(t.n_layers, 2);
    ck_assert_int_eq(t.layer_number[1], 5);
    ck_assert_int_eq(t.shape.n_tokens, 60);
    ck_assert_int_eq(t.pool[0].size, 2);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "solve.ridge"), "0.001");
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "solve.clip"), "-4,4");
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "solve.projectors"), "pair");
    ck_assert_uint_eq(strlen(exf_provenance_get(&t.provenance, "solve.statistics_digest")), 64);
    ck_assert_str_eq(exf_provenance_get(&t.provenance, "data.tokens_digest"), "t");
    exf_tables_free(&t);
}
END_TEST

START_TEST(layers_that_nothing_was_routed_to_are_cold)
{
    exf_tables t;
    write_statistics("s.h5", 0);
    ck_ok(solve_and_write(&e), e);
    ck_ok(exf_tables_read(&t, exf_scratch("t.h5"), &e), e);
    for (int i = 16; i < 32; i++) {
        ck_assert_float_eq(t.coeff[i], i % 5 == 1 ? 1.0f : 0.0f);
        ck_assert_float_eq(t.loss[i], EXF_LOSS_NEVER);
    }
    for (int i = 4; i < 8; i++) ck_assert_float_eq(t.expert_norms[i], 1);
    ck_pool(&(exf_static_pool){.size = 2, .members = t.pool[0].members + 2, .target_ids = t.pool[0].target_ids + 4,
                               .target_scale = t.pool[0].target_scale + 4},
            4, (int32_t[]){0, 1}, (int32_t[]){0, 1, 0, 0}, (float[]){1, 1, 0, 0});
    exf_tables_free(&t);
}
END_TEST

START_TEST(unknown_projectors_are_refused_before_work)
{
    static const char *const names[] = {"pair", "pear"};
    exf_solve_options o = usual;
    exf_tables t;
    o.projectors = names;
    o.n_projectors = 2;
    ck_fails(exf_solve("/nowhere", &o, &t, &e), EXF_USAGE, e, "\"pear\"");
    ck_assert_msg(strstr(e.msg, "pair") != NULL, "%s", e.msg);
    ck_assert_ptr_null(exf_projector_find("pear"));
    for (size_t i = 0; exf_projector_at(i); i++) {
        ck_assert_ptr_eq(exf_projector_find(exf_projector_at(i)->name), exf_projector_at(i));
        ck_assert(i == 0 || strcmp(exf_projector_at(i - 1)->name, exf_projector_at(i)->name) < 0);
    }
    ck_fails(exf_solve("/nowhere", &usual, &t, &e), EXF_IO, e, "/nowhere");
    ck_assert_ptr_null(t.coeff);
}
END_TEST

/* A rank may have as many columns as a basis is made of (accumulate/vector_sums.h), and no more. */
START_TEST(ranks_end_where_the_basis_does)
{
    int64_t rank = EXF_BASIS_RANK;
    char says[80];
    exf_solve_options o = usual;
    o.ranks = &rank;
    o.n_ranks = 1;
    ck_ok(exf_solve_check(&o, &e), e);
    snprintf(says, sizeof says, "calibrate.ranks: %d, expected 1 to %d, the columns of a basis", EXF_BASIS_RANK + 1,
             EXF_BASIS_RANK);
    rank++;
    ck_fails(exf_solve_check(&o, &e), EXF_USAGE, e, says);
    rank = 0;
    ck_fails(exf_solve_check(&o, &e), EXF_USAGE, e, "calibrate.ranks 0 1");
    ck_assert_int_eq(exf_basis_rank(EXF_BASIS_RANK + 1), EXF_BASIS_RANK);
    ck_assert_int_eq(exf_basis_rank(EXF_BASIS_RANK - 1), EXF_BASIS_RANK - 1);
}
END_TEST

START_TEST(damaged_statistics_are_not_solved)
{
    exf_tables t;
    double other = 1;
    write_statistics("s.h5", 60);
    damage("s.h5", "/layers/1/target_sq", 1, &other);
    ck_fails(exf_solve(exf_scratch("s.h5"), &usual, &t, &e), EXF_FORMAT, e, "/layers/1/target_sq[1] 1");
    ck_assert_ptr_null(t.coeff);
}
END_TEST

/* ---- the demo model against its reference ------------------------------------------------------ */

enum { DEMO_L = 4, DEMO_E = 16 };

static void demo_statistics(const char *name)
{
    exf_model *m = NULL;
    exf_corpus *c = NULL;
    exf_accumulator *a = NULL;
    exf_batch batch;
    exf_run_shape shape;
    exf_layer_choice layers;
    exf_provenance p = {0};
    exf_sequence_list sequences;
    exf_forward_report report;
    exf_forward_options options = {.threads = 0};
    ck_ok(exf_model_open(&m, "examples/demo-model", &e), e);
    exf_corpus_request q = {
        .manifest = "data-manifests/demo-tokens.yaml", .max_tokens = 512, .min_tokens = 1, .seed = 42, .vocab = m->arch.vocab};
    ck_ok(exf_corpus_load(&c, &q, &e), e);
    ck_ok(exf_batch_of_corpus(&batch, c, &e), e);
    ck_assert_uint_eq(batch.n_tokens, 48 * 512);
    exf_run_shape_of(&shape, m, c);
    ck_ok(exf_layer_choice_parse(&layers, "all", &m->arch, &e), e);
    ck_ok(exf_capture_provenance(&p, m, c, &q, &exf_backend_cpu, EXF_COMPUTE_F32, "all", &e), e);
    ck_ok(exf_sequences_of_batch(&sequences, &batch, NULL, &e), e);
    exf_accumulate_options o = {.weighting = EXF_WEIGHT_SOURCE_NORM};
    exf_facts_part part = {.path = "demo", .provenance = &p, .sequences = &sequences};
    exf_accumulator_plan plan = {.target = exf_scratch(name), .force = 1, .shape = &shape, .layer_number = layers.number,
                                 .n_layers = layers.n, .parts = &part, .n_parts = 1, .options = &o};
    ck_ok(exf_accumulator_new(&a, &plan, &e), e);
    exf_lane lane = {.observer = exf_accumulator_observer(a)};
    ck_ok(exf_forward(m, &batch, &lane, 1, &options, &report, &e), e);
    ck_ok(exf_accumulator_commit(a, NULL, &e), e);
    exf_accumulator_free(a);
    exf_provenance_free(&p);
    exf_sequence_list_free(&sequences);
    exf_mem_free((void *)(uintptr_t)batch.span);
    exf_corpus_free(c);
    exf_model_close(m);
}

static float *reference(const exf_st_file *f, const char *name, size_t n)
{
    float *v = NULL;
    const exf_st_tensor *t = exf_st_find(f, name);
    ck_assert_msg(t && t->view.dtype == EXF_DT_F32 && t->nbytes == n * sizeof *v, "no %s of %zu floats", name, n);
    ck_ok(exf_mem_new(&v, n, sizeof *v, "reference", &e), e);
    ck_ok(exf_st_read(f, t, 0, v, n * sizeof *v, &e), e);
    return v;
}

/* Over observed pairs: at most 1e-3 everywhere, at most 1e-5 for half of them. */
static void ck_near(const char *name, const float *ours, const float *theirs, const uint64_t *count)
{
    double worst = 0;
    int seen = 0, close = 0;
    for (int i = 0; i < DEMO_L * DEMO_E * DEMO_E; i++) {
        double d = fabs((double)ours[i] - (double)theirs[i]);
        if (!count[i]) continue;
        seen++;
        close += d <= 1e-5;
        worst = d > worst ? d : worst;
    }
    ck_assert_int_gt(seen, 0);
    ck_assert_msg(worst <= 1e-3, "%s: the worst pair is %g off", name, worst);
    ck_assert_msg(2 * close >= seen, "%s: only %d of %d pairs are within 1e-5", name, close, seen);
}

START_TEST(the_demo_model_has_its_reference_tables)
{
    enum { N = DEMO_L * DEMO_E * DEMO_E };
    exf_st_file *f = NULL;
    exf_tables t;
    int equal = 0;
    demo_statistics("demo.h5");
    ck_ok(exf_solve(exf_scratch("demo.h5"), &usual, &t, &e), e);
    ck_assert_int_eq(t.n_layers, DEMO_L);
    ck_assert_int_eq(t.shape.n_experts, DEMO_E);
    ck_ok(exf_st_open(&f, "examples/demo-model/reference/reference_tables.safetensors", &e), e);
    float *coeff = reference(f, "coeff", N), *loss = reference(f, "loss", N), *count = reference(f, "count", N);
    float *norms = reference(f, "expert_norms", DEMO_L * DEMO_E);
    ck_near("coeff", t.coeff, coeff, t.count);
    ck_near("loss", t.loss, loss, t.count);
    for (int i = 0; i < N; i++) equal += (double)t.count[i] == (double)count[i];
    ck_assert_msg(equal >= 0.999 * N, "only %d of %d counts are equal", equal, N);
    for (int i = 0; i < DEMO_L * DEMO_E; i++)
        ck_assert_msg(fabs((double)t.expert_norms[i] / (double)norms[i] - 1) <= 1e-4, "norm %d is %g, expected %g", i,
                      (double)t.expert_norms[i], (double)norms[i]);
    exf_mem_free(coeff);
    exf_mem_free(loss);
    exf_mem_free(count);
    exf_mem_free(norms);
    exf_st_close(f);
    exf_tables_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "by hand"), *f = exf_case(s, "files"), *r = exf_case(s, "reference");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, scalars_and_losses_by_hand);
    tcase_add_test(t, the_loss_is_that_of_the_clipped_scalar);
    tcase_add_test(t, nothing_to_divide_by);
    tcase_add_test(t, scalars_are_finite_floats);
    tcase_add_test(t, the_diagonal_and_unobserved_pairs);
    tcase_add_test(t, cold_experts_have_the_lower_median);
    tcase_add_test(t, a_layer_without_a_token_has_norms);
    tcase_add_test(t, a_norm_may_be_0);
    tcase_add_test(t, a_norm_below_0_is_refused);
    tcase_add_test(t, pools_take_the_largest_and_the_nearest);
    tcase_add_test(t, ties_go_to_the_earlier_member);
    tcase_add_test(t, a_pool_of_one_in_two_experts);
    tcase_add_checked_fixture(f, start_empty, NULL);
    tcase_add_test(f, layers_in_memory_give_the_tables_of_the_file);
    tcase_add_test(f, a_file_is_solved_and_can_be_read);
    tcase_add_test(f, layers_that_nothing_was_routed_to_are_cold);
    tcase_add_test(f, unknown_projectors_are_refused_before_work);
    tcase_add_test(f, ranks_end_where_the_basis_does);
    tcase_add_test(f, damaged_statistics_are_not_solved);
    tcase_add_checked_fixture(r, start_empty, NULL);
    tcase_set_timeout(r, 600);
    tcase_set_tags(r, "slow"); /* under valgrind: CK_EXCLUDE_TAGS=slow */
    tcase_add_test(r, the_demo_model_has_its_reference_tables);
}

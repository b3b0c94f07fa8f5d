/* check_cuda_vectors.c - what vectors are solved from, on the GPU: sums of the same bits wherever calls are cut; samples against
 * the host, and the basis of their residuals.  Plain sums of every shape: check_cuda_vectors_shapes.c; of whole passes:
 * check_cuda_forward.c. */
#include "accumulate/accumulate_internal.h"
#include "accumulate/vectors.h"
#include "kernels/linear/linear.h"
#include "tests/support/sequence_fixtures.h"
#include "tests/support/basis_fixtures.h"
#include "tests/support/one_device_fixtures.h" /* after it: its device is called d */

static exf_err e;

static uint16_t *halves_of(const float *x, size_t n)
{
    uint16_t *half = test_memory(n, 2);
    for (size_t i = 0; i < n; i++) half[i] = to_bf16(x[i]);
    return half;
}

/* Outputs, ids and weights of r on the device. */
typedef struct {
    void *outputs;
    int32_t *ids;
    float *weights;
    int rounded;
} tokens_device;

static tokens_device send(const routed *r, int rounded)
{
    size_t slots = (size_t)(r->n * r->top_k), n = slots * (size_t)r->d_model;
    uint16_t *half = halves_of(r->outputs, n);
    tokens_device t = {rounded ? device_put(&d, half, n * 2) : device_put(&d, r->outputs, n * 4), device_put(&d, r->ids, slots * 4),
                      device_put(&d, r->weights, slots * 4), rounded};
    exf_mem_free(half);
    return t;
}

static void tokens_free(const tokens_device *t)
{
    d.b->free(t->outputs);
    d.b->free(t->ids);
    d.b->free(t->weights);
}

/* Every step-th pair of e experts, about 60; a basis of `rank` orthonormal columns; grids of 0. */
static exf_vector_sums some_pairs(int n_experts, int d_model, int rank)
{
    exf_vector_sums v;
    int64_t all = (int64_t)n_experts * (n_experts - 1), step = 1 + all / 60, n = (all + step - 1) / step;
    ck_ok(exf_vector_sums_new_choice(&v, n, d_model, rank, &e), e);
    for (int64_t i = 0; i < n; i++) {
        int s = (int)(i * step / (n_experts - 1)), t = (int)(i * step % (n_experts - 1));
        v.pair[2 * i] = s;
        v.pair[2 * i + 1] = t + (t >= s);
    }
    for (int i = 0; i < d_model * rank; i++) v.basis[i] = (double)real_at(52, (size_t)i, 1);
    if (rank) ck_ok(exf_linalg_orthonormalize(v.basis, d_model, rank, &e), e);
    return v;
}

/* ---- sums ----------------------------------------------------------------------------- */

/* A batch of sequences of these lengths, which add up to the tokens. */
static exf_batch batch_of(exf_span *span, const int32_t *length, size_t n)
{
    exf_batch b = {.span = span, .n_sequences = n};
    for (size_t i = 0; i < n; i++) {
        span[i] = (exf_span){b.n_tokens, length[i]};
        b.n_tokens += (size_t)length[i];
    }
    return b;
}

static void *copy_of(const void *from, size_t n, size_t size)
{
    void *to = test_memory(n, size);
    memcpy(to, from, n * size);
    return to;
}

/* Copies sums out of the device's staging memory. */
static void keep_sums(exf_vector_sums *v)
{
    size_t p = (size_t)v->n_pairs, h = (size_t)v->d_model, r = (size_t)v->rank;
    v->borrowed = 0;
    v->vu = copy_of(v->vu, p * h, sizeof *v->vu);
    v->vv = copy_of(v->vv, p * h, sizeof *v->vv);
    if (!r) return;
    v->zz = copy_of(v->zz, p * r * r, sizeof *v->zz);
    v->zu = copy_of(v->zu, p * r * h, sizeof *v->zu);
    v->zv = copy_of(v->zv, p * r * h, sizeof *v->zv);
}

/* Adds up v's pairs, in blocks of `piece` tokens. */
static exf_code add_up(exf_vector_sums *v, const routed *r, const exf_batch *batch, exf_weighting w, int rounded, int piece,
                       exf_err *err)
{
    exf_device_vectors s = {.b = NULL};
    tokens_device t = send(r, rounded);
    exf_code rc;
    EXF_TRY(exf_device_vectors_open(&s, d.b, (size_t)v->n_pairs + 3, r->top_k, r->d_model, 1, v->rank, w, NULL, err));
    for (int twice = 0; twice < 2; twice++) { /* a layer leaves nothing to the next */
        exf_device_vectors_begin(&s, v, 0);
        for (int at = 0; at < r->n; at += piece) {
            size_t slot = (size_t)(at * r->top_k);
            exf_moe_block b = {.batch = batch, .row = (size_t)at, .n_tokens = r->n - at < piece ? r->n - at : piece,
                                  .n_experts = r->n_experts, .top_k = r->top_k, .d_model = r->d_model, .q = d.q,
                                  .rounded = rounded, .topk_ids = t.ids + slot, .topk_weights = t.weights + slot,
                                  .expert_outputs = (char *)t.outputs + slot * (size_t)r->d_model * (rounded ? 2 : 4)};
            exf_device_vectors_add(&s, &b);
        }
        EXF_TRY(exf_device_vectors_take(&s, v, err));
    }
    keep_sums(v);
out:
    exf_device_vectors_free(&s);
    tokens_free(&t);
    return rc;
}

/* Diagonal sums of some pairs. */
static exf_code on_gpu(exf_vector_sums *v, const routed *r, const exf_batch *batch, exf_weighting w, int rounded, int piece,
                       exf_err *err)
{
    *v = some_pairs(r->n_experts, r->d_model, 0);
    return add_up(v, r, batch, w, rounded, piece, err);
}

/* Sequences of 30, 7, 1241 and 22 tokens: units begin and end inside of blocks, and blocks inside of units. */
START_TEST(cuts_change_no_bit)
{
    static const int pieces[] = {1, 97, 333, 1024};
    routed r = seq_tokens();
    exf_span span[SEQ_N];
    exf_batch batch = batch_of(span, seq_length, SEQ_N);
    exf_vector_sums whole, cut;
    ck_ok(on_gpu(&whole, &r, &batch, EXF_WEIGHT_SOURCE_NORM, _i % 2, r.n, &e), e);
    ck_ok(on_gpu(&cut, &r, &batch, EXF_WEIGHT_SOURCE_NORM, _i % 2, pieces[_i / 2], &e), e);
    size_t bytes = (size_t)whole.n_pairs * SEQ_H * sizeof *whole.vu;
    ck_assert_mem_eq(whole.vu, cut.vu, bytes);
    ck_assert_mem_eq(whole.vv, cut.vv, bytes);
    exf_vector_sums_free(&whole);
    exf_vector_sums_free(&cut);
}
END_TEST

/* ---- low-rank sums --------------------------------------------------------------------- */

/* Chooses each pair's grids as if all tokens had it, with the largest outputs. */
static void choose_grids(const exf_vector_sums *s, const routed *r)
{
    double most = 0;
    for (int i = 0; i < r->n * r->top_k; i++) {
        double sq = 0;
        for (int k = 0; k < r->d_model; k++) sq += pow((double)r->outputs[i * r->d_model + k], 2);
        most = fmax(most, sq);
    }
    double energy = r->n * pow(most, 1.5);
    for (int64_t p = 0; p < s->n_pairs; p++) exf_grid_for_pair(s->grid + EXF_N_GRIDS * p, energy, energy);
}

START_TEST(cuts_change_no_bit_of_lowrank_sums)
{
    static const int pieces[] = {1, 97, 333, 1024};
    routed r = seq_tokens();
    exf_span span[SEQ_N];
    exf_batch batch = batch_of(span, seq_length, SEQ_N);
    exf_vector_sums whole = some_pairs(SEQ_E, SEQ_H, SEQ_H), cut = some_pairs(SEQ_E, SEQ_H, SEQ_H);
    size_t rows = (size_t)whole.n_pairs * SEQ_H;
    choose_grids(&whole, &r);
    choose_grids(&cut, &r);
    ck_ok(add_up(&whole, &r, &batch, EXF_WEIGHT_SOURCE_NORM, _i % 2, r.n, &e), e);
    ck_ok(add_up(&cut, &r, &batch, EXF_WEIGHT_SOURCE_NORM, _i % 2, pieces[_i / 2], &e), e);
    ck_assert_mem_eq(whole.zz, cut.zz, rows * SEQ_H * sizeof *whole.zz);
    ck_assert_mem_eq(whole.zu, cut.zu, rows * SEQ_H * sizeof *whole.zu);
    ck_assert_mem_eq(whole.zv, cut.zv, rows * SEQ_H * sizeof *whole.zv);
    exf_vector_sums_free(&whole);
    exf_vector_sums_free(&cut);
}
END_TEST

/* A slot without an expert counts for nothing, whatever lies in its outputs. */
START_TEST(empty_slots_add_nothing)
{
    routed r = routed_integers(200, 16, 4, 40, 36);
    exf_span span;
    exf_batch batch = batch_of(&span, (int32_t[]){r.n}, 1);
    exf_vector_sums v[2] = {some_pairs(r.n_experts, r.d_model, 16), some_pairs(r.n_experts, r.d_model, 16)};
    size_t rows = (size_t)v[0].n_pairs * 16;
    routed_with_empty_slots(&r);
    for (int zeros = 0; zeros < 2; zeros++) {
        for (int i = 0; zeros && i < r.n * r.top_k * r.d_model; i++)
            if (r.ids[i / r.d_model] < 0) r.outputs[i] = 0;
        ck_ok(add_up(&v[zeros], &r, &batch, EXF_WEIGHT_NONE, _i, r.n, &e), e);
    }
    ck_assert_mem_eq(v[0].zz, v[1].zz, rows * 16 * sizeof *v[0].zz);
    ck_assert_mem_eq(v[0].zu, v[1].zu, rows * (size_t)r.d_model * sizeof *v[0].zu);
    ck_assert_mem_eq(v[0].zv, v[1].zv, rows * (size_t)r.d_model * sizeof *v[0].zv);
    for (int i = 0; i < 2; i++) exf_vector_sums_free(&v[i]);
    routed_free(&r);
}
END_TEST

START_TEST(a_weight_without_a_root_is_refused)
{
    routed r = routed_reals(40, 6, 3, 10, 37);
    exf_span span[2];
    exf_batch batch = batch_of(span, (int32_t[]){25, 15}, 2);
    exf_vector_sums v = some_pairs(6, 10, 3);
    choose_grids(&v, &r);
    r.weights[38 * 3] = -0.75f;
    r.weights[27 * 3 + 1] = -0.25f;
    exf_device_vectors s = {.b = NULL};
    tokens_device t = send(&r, 0);
    ck_ok(exf_device_vectors_open(&s, d.b, (size_t)v.n_pairs, 3, 10, 0, 3, EXF_WEIGHT_ROUTER, NULL, &e), e);
    exf_device_vectors_begin(&s, &v, 0);
    exf_moe_block b = {.batch = &batch, .n_tokens = 40, .n_experts = 6, .top_k = 3, .d_model = 10, .q = d.q, .topk_ids = t.ids,
                          .topk_weights = t.weights, .expert_outputs = t.outputs};
    exf_device_vectors_add(&s, &b);
    ck_fails(exf_device_vectors_take(&s, &v, &e), EXF_NUMERIC, e, "1 0 2 -0.25");
    exf_device_vectors_free(&s);
    tokens_free(&t);
    exf_vector_sums_free(&v);
    routed_free(&r);
}
END_TEST

START_TEST(a_sum_out_of_range_is_refused)
{
    routed r = routed_reals(40, 6, 3, 10, 33);
    exf_span span[2];
    exf_batch batch = batch_of(span, (int32_t[]){25, 15}, 2);
    exf_vector_sums v;
    r.outputs[(27 * 3 + 1) * 10 + 3] = _i ? 1e30f : NAN;
    ck_fails(on_gpu(&v, &r, &batch, EXF_WEIGHT_SOURCE_NORM, 0, 40, &e), EXF_NUMERIC, e, "1 0");
    int source = -1, target = -1;
    ck_assert_int_eq(sscanf(strstr(e.msg, "pair "), "pair %d -> %d: a vector sum of ", &source, &target), 2);
    ck_assert(source == r.ids[27 * 3 + 1] || target == r.ids[27 * 3 + 1]);
    exf_vector_sums_free(&v);
    routed_free(&r);
}
END_TEST

/* ---- samples ---------------------------------------------------------------------------- */

/* The basis of residuals, against the host's of the same rows; scalar NaN: the sample is left out. */
static void check_basis(exf_device_samples *s, const exf_sampler *host)
{
    enum { R = 3 };
    double *scalar = test_memory(host->n, sizeof *scalar), *again = test_memory(host->n, sizeof *again);
    double found[SEQ_H * R], again_found[SEQ_H * R], expected[SEQ_H * R];
    float *x = test_memory(host->n * SEQ_H, sizeof *x);
    size_t n = 0;
    for (size_t i = 0; i < host->n; i++) {
        scalar[i] = again[i] = i % 7 == 3 ? NAN : (double)real_at(61, i, 1);
        if (isnan(scalar[i])) continue;
        for (size_t k = 0; k < SEQ_H; k++)
            x[n * SEQ_H + k] = (float)((double)host->source[i * SEQ_H + k] - scalar[i] * (double)host->target[i * SEQ_H + k]);
        n++;
    }
    ck_ok(exf_basis_find(expected, R, x, n, SEQ_H, 1, 1, 2, 1, &e), e);
    ck_ok(exf_device_samples_basis(s, found, host, scalar, &e), e);
    ck_assert_msg(fabs(energy_in(found, x, n, SEQ_H, R) / energy_in(expected, x, n, SEQ_H, R) - 1) < 1e-4, "energy %g, expected %g",
                  energy_in(found, x, n, SEQ_H, R), energy_in(expected, x, n, SEQ_H, R));
    ck_ok(exf_device_samples_basis(s, again_found, host, again, &e), e);
    ck_assert_mem_eq(found, again_found, sizeof found);
    exf_mem_free(scalar);
    exf_mem_free(again);
    exf_mem_free(x);
}

/* Compares rows in device memory, by rising row, with the host's by rising key. */
static void check_rows(const void *rows, int rounded, const float *expected, const exf_sampler *host)
{
    size_t n = host->n * SEQ_H, bytes = n * (rounded ? 2 : 4);
    char *got = test_memory(bytes, 1);
    ck_ok(d.b->download(d.q, got, rows, bytes, &e), e);
    for (size_t at = 0; at < n; at++) {
        float x = rounded ? of_bf16(((const uint16_t *)(const void *)got)[at]) : ((const float *)(const void *)got)[at];
        ck_assert_float_eq(x, expected[host->keys.by_row[at / SEQ_H] * SEQ_H + at % SEQ_H]);
    }
    exf_mem_free(got);
}

/* More of them than one product adds up, blocks that have none. */
START_TEST(samples_are_the_hosts)
{
    routed r = seq_tokens();
    int rounded = _i % 2, piece = _i < 2 ? 1300 : 17, wanted = _i < 4 ? 3900 : 40;
    exf_sequence_list list = seq_list(0, SEQ_N);
    exf_sampler on_host, on_device;
    exf_device_samples s;
    size_t n = (size_t)(r.n * r.top_k * r.d_model);
    tokens_device t = send(&r, rounded);
    float *seen = test_memory(n, sizeof *seen);
    for (size_t i = 0; i < n; i++) seen[i] = rounded ? of_bf16(to_bf16(r.outputs[i])) : r.outputs[i];
    ck_ok(exf_sampler_new(&on_host, (size_t)wanted, SEQ_H, &e), e);
    ck_ok(exf_sampler_new(&on_device, (size_t)wanted, SEQ_H, &e), e);
    ck_ok(exf_sampler_choose(&on_host, &list, SEQ_K, 2, -1, 9, &e), e);
    ck_ok(exf_sampler_choose(&on_device, &list, SEQ_K, 2, -1, 9, &e), e);
    ck_ok(exf_device_samples_open(&s, NULL, d.b, (size_t)wanted, SEQ_H, 3, 9, &e), e);
    exf_device_samples_begin(&s);
    for (int at = 0; at < r.n; at += piece) {
        size_t slot = (size_t)(at * r.top_k);
        int count = r.n - at < piece ? r.n - at : piece;
        exf_moe_block b = {.row = (size_t)at, .n_tokens = count, .top_k = r.top_k, .d_model = r.d_model, .topk_ids = r.ids + slot,
                           .expert_outputs = seen + slot * SEQ_H};
        exf_moe_block c = {.row = (size_t)at, .n_tokens = count, .top_k = r.top_k, .d_model = r.d_model, .q = d.q,
                              .rounded = rounded,
                              .topk_ids = t.ids + slot, .expert_outputs = (char *)t.outputs + slot * SEQ_H * (rounded ? 2 : 4)};
        exf_sampler_keep(&on_host, &b);
        exf_device_samples_keep(&s, &on_device, &c);
    }
    ck_ok(exf_device_samples_gather(&s, &on_device, &e), e);
    ck_assert_uint_eq(on_host.n, (size_t)wanted);
    check_rows(s.source, rounded, on_host.source, &on_host);
    check_rows(s.target, rounded, on_host.target, &on_host);
    ck_assert_mem_eq(on_host.pair, on_device.pair, on_host.n * 2 * sizeof *on_host.pair);
    check_basis(&s, &on_host);
    exf_device_samples_free(&s);
    exf_sampler_free(&on_host);
    exf_sampler_free(&on_device);
    exf_mem_free(seen);
    tokens_free(&t);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_device_f32, close_device);
    tcase_add_loop_test(t, cuts_change_no_bit, 0, 8);
    tcase_add_loop_test(t, cuts_change_no_bit_of_lowrank_sums, 0, 8);
    tcase_add_loop_test(t, empty_slots_add_nothing, 0, 2);
    tcase_add_test(t, a_weight_without_a_root_is_refused);
    tcase_add_loop_test(t, a_sum_out_of_range_is_refused, 0, 2);
    tcase_add_loop_test(t, samples_are_the_hosts, 0, 6);
}

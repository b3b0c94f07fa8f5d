/* check_cuda_route_fold.c - variants folded in GPU memory (kernels/fold/route_fold.h): the host's routes and counts, bit for bit,
 * for each form that is folded there; more steps than a launch takes, and small copies. */
#include "tests/support/device_fixtures.h"
#include "tests/support/norm_head_fixtures.h"

static device d;
static exf_err e;

START_TEST(a_device_folds_as_the_host)
{
    d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    device_folds_as_the_host(d.b, d.q, device_fold_texts[_i]);
    device_close(&d);
}
END_TEST

START_TEST(a_device_folds_by_predicted_norms)
{
    d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    device_folds_by_predicted_norms(d.b, d.q, texts[_i]);
    if (_i == 0) device_refuses_what_is_no_norm(d.b, d.q);
    device_close(&d);
}
END_TEST

/* Steps of one row each, more than fit in a launch, and rows than in a tile: every one is folded on its own, by mean norms and by
 * norms of each route. */
START_TEST(many_steps_are_those_of_the_host)
{
    enum { ROWS = 70001 };
    exf_fold_tables t = {.n_experts = E};
    float *matrix = test_memory(E * E, 4), *norms = test_memory(E, 4), *weights = test_memory(ROWS * K, 4);
    float *own = test_memory(ROWS * K, 4);
    int32_t *ids = test_memory(ROWS * K, 4);
    size_t *first = test_memory(ROWS + 1, sizeof *first), *row = test_memory(ROWS, sizeof *row);
    d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    for (int i = 0; i < E * E; i++) matrix[i] = i / E == i % E ? 1e30f : 0.5f + real_at(1, (size_t)i, 0.4f);
    for (int i = 0; i < E; i++) norms[i] = 1 + real_at(2, (size_t)i, 0.5f);
    for (size_t i = 0; i < ROWS; i++) {
        first[i + 1] = i + 1;
        row[i] = ROWS - 1 - i;
        for (size_t k = 0; k < K; k++) {
            ids[i * K + k] = (int32_t)((i * 3 + k) % E);
            weights[i * K + k] = 0.6f + real_at(3, i * K + k, 0.5f);
            own[i * K + k] = 1 + real_at(4, i * K + k, 0.8f);
        }
    }
    float *matrix_there = device_put(&d, matrix, E * E * 4), *norms_there = device_put(&d, norms, E * 4);
    exf_run_routes r = {.ids = device_put(&d, ids, ROWS * K * 4), .weights = device_put(&d, weights, ROWS * K * 4),
                        .n_tokens = ROWS, .top_k = K, .norms = _i ? device_put(&d, own, ROWS * K * 4) : NULL};
    exf_steps_call c = {.form = EXF_STEPS_BY_PAIR, .options = {.pool = 2}};
    c.steps = (exf_route_steps){ROWS, ROWS, device_put(&d, first, (ROWS + 1) * sizeof *first),
                                device_put(&d, row, ROWS * sizeof *row), first, 1};
    c.workspace = device_put(&d, NULL, exf_route_fold_workspace(ROWS, 1, K, 0));
    c.tables = (exf_fold_tables){.coeff = matrix_there, .loss = matrix_there, .norms = norms_there, .n_experts = E};
    t.coeff = t.loss = matrix;
    t.norms = norms;
    ck_assert_int_eq(d.b->gpu->step_routes(d.q, &r, &c), EXF_FOLD_OK);
    ck_ok(d.b->finish(d.q, &e), e);
    int32_t *is = device_get(&d, r.ids, ROWS * K * 4);
    float *w = device_get(&d, r.weights, ROWS * K * 4);
    for (size_t i = 0; i < ROWS; i++) {
        exf_fold_routes one = {.ids = ids + i * K, .weights = weights + i * K, .rows = 1, .width = K,
                               .norms = _i ? own + i * K : NULL};
        ck_assert_int_eq(exf_fold_decode_cpu(&one, &t, &c.options), EXF_FOLD_OK);
    }
    ck_assert_mem_eq(is, ids, ROWS * K * 4);
    ck_assert_mem_eq(w, weights, ROWS * K * 4);
    void *there[] = {matrix_there, norms_there, r.ids, r.weights, (void *)(uintptr_t)c.steps.first, (void *)(uintptr_t)c.steps.row,
                     c.workspace, (void *)(uintptr_t)r.norms};
    void *here[] = {matrix, norms, weights, own, ids, first, row, is, w};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) d.b->free(there[i]);
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) exf_mem_free(here[i]);
    device_close(&d);
}
END_TEST

/* Between staging and GPU memory, of every length and alignment. */
START_TEST(small_copies_arrive)
{
    enum { N = 5000 };
    static const size_t bytes[] = {0, 1, 3, 4, 16, 17, 100, 1024, 4096, N - 8};
    unsigned char *from, *to;
    d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    ck_ok(d.b->gpu->alloc_staging((void *)&from, N, "test", &e), e);
    ck_ok(d.b->gpu->alloc_staging((void *)&to, N, "test", &e), e);
    unsigned char *there = device_put(&d, NULL, N);
    for (size_t i = 0; i < N; i++) from[i] = (unsigned char)(i * 7 + 1);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        for (size_t at = 0; at < 8; at += at ? at : 1) {
            memset(to, 0, N);
            d.b->gpu->carry(d.q, there + at, from + at, bytes[i]);
            d.b->gpu->carry(d.q, to + at, there + at, bytes[i]);
            ck_ok(d.b->finish(d.q, &e), e);
            ck_assert(memcmp(to + at, from + at, bytes[i]) == 0);
            ck_assert(to[at + bytes[i]] == 0);
        }
    d.b->free(there);
    d.b->gpu->free_staging(from);
    d.b->gpu->free_staging(to);
    device_close(&d);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, a_device_folds_as_the_host, 0, DEVICE_FOLD_TEXTS);
    tcase_add_loop_test(t, a_device_folds_by_predicted_norms, 0, TEXTS);
    tcase_add_loop_test(t, many_steps_are_those_of_the_host, 0, 2);
    tcase_add_test(t, small_copies_arrive);
}

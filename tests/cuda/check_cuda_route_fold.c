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

static double sum_of_squares(const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Norms of many tokens and directions, from inputs of either form, by the formula in double. */
START_TEST(norms_are_those_of_the_head)
{
    static const struct { int tokens, experts, top_k, width, directions; } shapes[] = {
        {1, 4, 2, 8, 1}, {17, 8, 3, 33, 5}, {200, 16, 4, 96, 64}, {100, 128, 8, 256, 100}, {40, 64, 6, 130, 256},
        {70, 32, 8, 1544, 72}};
    int n = shapes[_i].tokens, n_experts = shapes[_i].experts, k = shapes[_i].top_k;
    int width = shapes[_i].width, q = shapes[_i].directions;
    size_t slots = (size_t)(n * k), inputs = (size_t)(n * width), features = (size_t)q + 4;
    float *x = test_memory(inputs, 4), *basis = test_memory((size_t)(width * q), 4), *weights = test_memory(slots, 4);
    float *theta = test_memory((size_t)n_experts * features, 4), *logits = test_memory((size_t)(n * n_experts), 4);
    float *squares = test_memory((size_t)n, 4);
    uint16_t *parts = test_memory(2 * inputs, 2);
    int32_t *ids = test_memory(slots, 4);
    d = device_open(EXF_COMPUTE_F32, EXF_TENSOR_CORES_AUTO);
    for (size_t i = 0; i < inputs; i++) {
        x[i] = real_at(21, i, 1);
        parts[i / (size_t)width * 2 * (size_t)width + i % (size_t)width] = to_bf16(x[i]);
        parts[(i / (size_t)width * 2 + 1) * (size_t)width + i % (size_t)width] = to_bf16(x[i] - of_bf16(to_bf16(x[i])));
    }
    for (int t = 0; t < n; t++) squares[t] = (float)sum_of_squares(x + (size_t)t * (size_t)width, width);
    for (size_t i = 0; i < (size_t)(width * q); i++) basis[i] = real_at(22, i, 0.1f);
    for (size_t i = 0; i < (size_t)n_experts * features; i++) theta[i] = real_at(23, i, 0.3f);
    for (size_t i = 0; i < (size_t)(n * n_experts); i++) logits[i] = real_at(24, i, 2);
    for (size_t i = 0; i < slots; i++) {
        ids[i] = i % 7 == 3 ? -1 : (int32_t)((i * 5 + i / (size_t)k) % (size_t)n_experts);
        weights[i] = 0.5f + real_at(25, i, 0.45f);
    }
    uint64_t none = UINT64_MAX;
    void *there[] = {device_put(&d, x, inputs * 4), device_put(&d, parts, inputs * 4),
                     device_put(&d, basis, (size_t)(width * q) * 4),
                     device_put(&d, theta, (size_t)n_experts * features * 4), device_put(&d, logits, (size_t)(n * n_experts) * 4),
                     device_put(&d, ids, slots * 4), device_put(&d, weights, slots * 4), device_put(&d, NULL, slots * 4),
                     device_put(&d, NULL, slots * 4), device_put(&d, &none, sizeof none)};
    uint16_t *rows = device_put(&d, NULL, (size_t)(width * q) * EXF_NORM_HEAD_ROWS * 2);
    float *squares_there = device_put(&d, squares, (size_t)n * 4);
    d.b->gpu->norm_head_rows(d.q, rows, there[2], 1, width, q);
    for (int split = 0; split < 2; split++) {
        exf_norm_head_call c = {.n_tokens = n, .n_experts = n_experts, .top_k = k, .d_model = width, .directions = q,
                                .x = there[split], .split = split, .squares = squares_there, .basis = there[2], .rows = rows,
                                .theta = there[3], .logits = there[4], .ids = there[5], .weights = there[6], .norms = there[7],
                                .routed = there[8], .bad = there[9]};
        d.b->gpu->predict_norms(d.q, &c);
        ck_ok(d.b->finish(d.q, &e), e);
        float *is = device_get(&d, there[7], slots * 4);
        int32_t *routed = device_get(&d, there[8], slots * 4);
        for (size_t i = 0; i < slots; i++) {
            size_t t = i / (size_t)k, first = t * (size_t)k;
            double mean = 0, sum;
            ck_assert_int_eq(routed[i], ids[i]);
            if (ids[i] < 0) continue;
            while (ids[first] != ids[i]) first++;
            const float *th = theta + (size_t)ids[i] * features;
            const float *own = x + t * (size_t)width;
            for (int j = 0; j < n_experts; j++) mean += (double)logits[t * (size_t)n_experts + (size_t)j] / n_experts;
            sum = (double)th[0] + (double)th[q + 1] * ((double)logits[t * (size_t)n_experts + (size_t)ids[i]] - mean) +
                  (double)th[q + 2] * log((double)weights[first]) + (double)th[q + 3] * log(sum_of_squares(own, width)) / 2;
            for (int r = 0; r < q; r++) {
                double p = 0;
                for (int j = 0; j < width; j++) p += (double)own[j] * (double)basis[j * q + r];
                sum += (double)th[1 + r] * p;
            }
            ck_assert_msg(fabs((double)is[i] / exp(sum) - 1) <= (split ? 1e-3 : 1e-5), "split %d, slot %zu: %.9g, expected %.9g",
                          split, i, (double)is[i], exp(sum));
        }
        exf_mem_free(is);
        exf_mem_free(routed);
    }
    d.b->free(rows);
    d.b->free(squares_there);
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) d.b->free(there[i]);
    void *here[] = {x, squares, basis, weights, theta, logits, parts, ids};
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) exf_mem_free(here[i]);
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
    c.workspace = device_put(&d, NULL, exf_route_fold_workspace(ROWS, 1, K));
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

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_route_fold");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, a_device_folds_as_the_host, 0, DEVICE_FOLD_TEXTS);
    tcase_add_loop_test(t, a_device_folds_by_predicted_norms, 0, TEXTS);
    tcase_add_loop_test(t, norms_are_those_of_the_head, 0, 6);
    tcase_add_loop_test(t, many_steps_are_those_of_the_host, 0, 2);
    tcase_add_test(t, small_copies_arrive);
    suite_add_tcase(s, t);
    return s;
}

/* check_capture_write_behind.c - blocks written by a thread of their own: all arrive whatever
 * their order and callers, a failure reaches the callers, and nothing is left behind. */
#include "capture/capture.h"
#include "tests/support/scratch_fixtures.h"

#include <pthread.h>

enum { E = 5, K = 2, H = 3, T = 41, ROWS = 4, CALLERS = 4, LAYERS = 2 };

static exf_err e;
static int32_t layers[LAYERS] = {1, 3};

static exf_code create(exf_capture_file *f, exf_err *err)
{
    exf_provenance none = {0};
    exf_run_shape shape = {E, K, H, 1, T};
    return exf_capture_create(f,
            &(exf_capture_plan){.target = exf_scratch("c.h5"), .force = 1, .has_stream = 1, .shape = shape,
                                .layer_number = layers, .n_layers = LAYERS, .provenance = &none}, err);
}

static exf_code put(exf_capture_write_behind *w, int layer, int64_t row, int64_t n, exf_err *err)
{
    int32_t ids[(ROWS + 1) * K];
    float weights[(ROWS + 1) * K], outputs[(ROWS + 1) * K * H];
    double stream_sq[ROWS + 1];
    for (int64_t i = 0; i < n; i++) stream_sq[i] = (double)(layer + row + i);
    for (int64_t i = 0; i < n * K; i++) {
        ids[i] = (int32_t)((row * K + i) % E);
        weights[i] = (float)(layer * 1000 + row * K + i);
        for (int64_t h = 0; h < H; h++) outputs[i * H + h] = weights[i] + (float)h / 8;
    }
    return exf_capture_write_behind_put(w, layer, row, n, ids, weights, outputs, stream_sq, err);
}

typedef struct {
    exf_capture_write_behind *w;
    int first;
    exf_code rc;
    exf_err err;
} caller;

/* Every CALLERS-th block of both layers. */
static void *put_some(void *self)
{
    caller *c = self;
    for (int l = 0; c->rc == EXF_OK && l < LAYERS; l++)
        for (int64_t row = (int64_t)c->first * ROWS; c->rc == EXF_OK && row < T; row += CALLERS * ROWS)
            c->rc = put(c->w, layers[l], row, T - row < ROWS ? T - row : ROWS, &c->err);
    return NULL;
}

static void check_file(void)
{
    exf_capture_file f;
    ck_ok(exf_capture_open(&f, exf_scratch("c.h5"), &e), e);
    for (int l = 0; l < LAYERS; l++) {
        int32_t ids[T * K];
        float weights[T * K], outputs[T * K * H];
        double stream_sq[T];
        ck_ok(exf_capture_get(&f, layers[l], 0, T, ids, weights, outputs, &e), e);
        ck_ok(exf_capture_get_stream(&f, layers[l], 0, T, stream_sq, &e), e);
        for (int i = 0; i < T; i++) ck_assert(stream_sq[i] == (double)(layers[l] + i));
        for (int i = 0; i < T * K; i++) {
            ck_assert_int_eq(ids[i], i % E);
            ck_assert(weights[i] == (float)(layers[l] * 1000 + i));
            for (int h = 0; h < H; h++) ck_assert(outputs[i * H + h] == weights[i] + (float)h / 8);
        }
    }
    exf_capture_close(&f);
}

START_TEST(blocks_of_all_callers_arrive)
{
    exf_capture_file f;
    exf_capture_write_behind *w;
    pthread_t thread[CALLERS];
    caller c[CALLERS];
    ck_ok(create(&f, &e), e);
    ck_ok(exf_capture_write_behind_new(&w, &f, ROWS, &e), e);
    for (int i = 0; i < CALLERS; i++) {
        c[i] = (caller){.w = w, .first = i};
        ck_assert_int_eq(pthread_create(&thread[i], NULL, put_some, &c[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(thread[i], NULL);
        ck_ok(c[i].rc, c[i].err);
    }
    ck_ok(exf_capture_write_behind_finish(w, &e), e);
    exf_capture_write_behind_free(w);
    ck_ok(exf_capture_commit(&f, &e), e);
    check_file();
}
END_TEST

/* The file has no layer 2: whoever comes after the block that failed is told, and so is
 * finish, however often it is asked. */
START_TEST(a_failed_block_is_told)
{
    exf_capture_file f;
    exf_capture_write_behind *w;
    ck_ok(create(&f, &e), e);
    ck_ok(exf_capture_write_behind_new(&w, &f, ROWS, &e), e);
    ck_ok(put(w, 2, 0, ROWS, &e), e);
    for (int i = 0; i < 2; i++) {
        exf_code rc = exf_capture_write_behind_finish(w, &e);
        ck_assert_int_ne(rc, EXF_OK);
        ck_assert_ptr_nonnull(strstr(e.msg, "/layers/2/topk_ids"));
    }
    ck_assert_int_ne(put(w, 1, 0, ROWS, &e), EXF_OK);
    exf_capture_write_behind_free(w);
    exf_capture_abort(&f);
    ck_assert_int_eq(files_left(), 0);
}
END_TEST

START_TEST(a_block_that_is_too_large_is_refused)
{
    exf_capture_file f;
    exf_capture_write_behind *w;
    ck_ok(create(&f, &e), e);
    ck_ok(exf_capture_write_behind_new(&w, &f, ROWS, &e), e);
    ck_fails(put(w, 1, 0, ROWS + 1, &e), EXF_INTERNAL, e, "5 4");
    exf_capture_write_behind_free(w);
    exf_capture_abort(&f);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, start_empty, NULL);
    tcase_add_test(t, blocks_of_all_callers_arrive);
    tcase_add_test(t, a_failed_block_is_told);
    tcase_add_test(t, a_block_that_is_too_large_is_refused);
}

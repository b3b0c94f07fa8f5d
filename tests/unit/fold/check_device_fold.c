/* check_device_fold.c - routes that a rewriter folds and counts on a device (fake_device.h) are the host's bit for bit, whatever
 * layer comes next; what is held is what the variant says. */
#include "tests/support/device_fold_fixtures.h"
#include "tests/support/fake_device.h"

static const uint64_t plenty = (uint64_t)1 << 40;

START_TEST(a_device_folds_as_the_host)
{
    exf_err err;
    const exf_backend *b = fake_device(plenty);
    exf_queue *q;
    ck_ok(b->open(&q, EXF_COMPUTE_F32, &err), err);
    device_folds_as_the_host(b, q, device_fold_texts[_i]);
    b->close(q);
}
END_TEST

START_TEST(what_is_held_is_told)
{
    exf_err err;
    const exf_backend *b = fake_device(plenty);
    fold_case c;
    fold_open(&c, 8, 4, 3, 1);
    for (int i = 0; i < DEVICE_FOLD_TEXTS; i++) {
        exf_variant v;
        uint64_t before, now, peak;
        exf_fold_rewriter *f = f_folder(&c, &v, device_fold_texts[i]);
        const exf_rewriter *w = exf_fold_rewriter_callbacks(f);
        b->gpu->memory(&before, &peak);
        ck_ok(w->device_open(w->self, b, &err), err);
        b->gpu->memory(&now, &peak);
        ck_assert_uint_eq(now - before, w->device_bytes);
        exf_fold_rewriter_free(f);
        b->gpu->memory(&now, &peak);
        ck_assert_uint_eq(now, before);
    }
    fold_close(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, a_device_folds_as_the_host, 0, DEVICE_FOLD_TEXTS);
    tcase_add_test(t, what_is_held_is_told);
}

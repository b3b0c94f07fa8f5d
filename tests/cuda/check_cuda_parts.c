/* check_cuda_parts.c - what stands around compressed attention in the CUDA backend:
 * indexer, compressor, residual streams, rotations and norms of whole quads, against
 * the CPU's. */
#include "base/mem.h"
#include "tests/support/pair_fixtures.h"

#include <math.h>
#include <string.h>

/* ---- indexer ------------------------------------------------------------------------ */

static const exf_indexer_shape indexers[] = {
    {.first = 0, .n_rows = 9, .n_heads = 1, .d = 16, .ratio = 4, .top_k = 1, .n_entries = 2},
    {.first = 0, .n_rows = 57, .n_heads = 3, .d = 6, .ratio = 4, .top_k = 6, .n_entries = 14},
    {.first = 100, .n_rows = 40, .n_heads = 2, .d = 64, .ratio = 1, .top_k = 30, .n_entries = 300},
    {.first = 255, .n_rows = 33, .n_heads = 64, .d = 128, .ratio = 4, .top_k = 64, .n_entries = 72},
    {.first = 300, .n_rows = 5, .n_heads = 70, .d = 130, .ratio = 2, .top_k = 8, .n_entries = 152},
    {.first = 500, .n_rows = 12, .n_heads = 65, .d = 100, .ratio = 2, .top_k = 20, .n_entries = 256},
    {.first = 20000, .n_rows = 3, .n_heads = 4, .d = 32, .ratio = 1, .top_k = 512, .n_entries = 20010},
};

/* kind 0: reals; 1: integers, whose scores are equal in many places; 2: all scores 0; 3: with NaN. */
static void choose(int i, int kind, exf_compute compute)
{
    const exf_indexer_shape *shape = &indexers[i];
    size_t n = (size_t)((shape->first + shape->n_rows) / shape->ratio), rows = (size_t)shape->n_rows,
           wide = rows * (size_t)(shape->n_heads * shape->d);
    size_t room = larger(p.b[0]->indexer_workspace(shape->n_rows, shape->n_entries),
                         p.b[1]->indexer_workspace(shape->n_rows, shape->n_entries));
    pair_array q = kind == 1 ? pair_integers(&p, wide, 1) : pair_reals(&p, wide, 1, kind == 2 ? 0 : 1);
    pair_array keys = kind ? pair_integers(&p, n * (size_t)shape->d, 2) : pair_reals(&p, n * (size_t)shape->d, 2, 1);
    pair_array weights =
        kind ? pair_integers(&p, rows * (size_t)shape->n_heads, 3) : pair_reals(&p, rows * (size_t)shape->n_heads, 3, 1);
    pair_array space = pair_reals(&p, room, 4, 1e30f), chosen = pair_integers(&p, (rows * n + 3) / 4, 5);
    if (kind == 3) {
        float nan = NAN;
        exf_err err;
        memcpy(&weights.f[0][0], &nan, sizeof nan);
        p.b[1]->upload(p.q[1], weights.f[1], &nan, sizeof nan);
        ck_ok(p.b[1]->finish(p.q[1], &err), err);
    }
    pair_compute(&p, compute);
    ON_BOTH(p, B->indexer(Q, (unsigned char *)chosen.f[s], q.f[s], weights.f[s], keys.f[s], shape, space.f[s]));
    if (rows * n % 4) chosen.n--; /* what is after the last byte is nobody's */
    pair_equal(&chosen, "indexer");
    chosen.n = (rows * n + 3) / 4;
    pair_free(&q);
    pair_free(&keys);
    pair_free(&weights);
    pair_free(&space);
    pair_free(&chosen);
}

START_TEST(choices_are_the_same)
{
    choose(_i, 0, EXF_COMPUTE_F32);
    choose(_i, 3, EXF_COMPUTE_F32);
    for (int compute = 0; compute < 2; compute++) {
        choose(_i, 1, (exf_compute)compute);
        choose(_i, 2, (exf_compute)compute);
    }
}
END_TEST

/* ---- compressor ------------------------------------------------------------------------ */

static const exf_compressor_shape pools[] = {
    {.n_entries = 1, .ratio = 4, .d = 3, .overlap = 1},   {.n_entries = 5, .ratio = 4, .d = 70, .overlap = 1},
    {.n_entries = 2, .ratio = 1, .d = 64, .overlap = 1},  {.n_entries = 1, .ratio = 128, .d = 65, .overlap = 0},
    {.n_entries = 3, .ratio = 7, .d = 5, .overlap = 0},   {.n_entries = 0, .ratio = 4, .d = 8, .overlap = 1},
    {.n_entries = 9, .ratio = 4, .d = 512, .overlap = 1}, {.n_entries = 3, .ratio = 128, .d = 512, .overlap = 0},
    {.n_entries = 2, .ratio = 33, .d = 36, .overlap = 1}, {.n_entries = 17, .ratio = 4, .d = 132, .overlap = 0},
};

START_TEST(pools_are_near)
{
    const exf_compressor_shape *shape = &pools[_i];
    size_t width = (size_t)(shape->overlap ? 2 * shape->d : shape->d), n = (size_t)(shape->n_entries * shape->ratio) * width;
    pair_array kv = pair_reals(&p, n, 1, 2), gate = pair_reals(&p, n, 2, 5),
               ape = pair_reals(&p, (size_t)shape->ratio * width, 3, 3);
    pair_array flat = pair_integers(&p, n, 4), out = pair_reals(&p, (size_t)(shape->n_entries * shape->d), 5, 1);
    ON_BOTH(p, B->compressor(Q, out.f[s], kv.f[s], gate.f[s], ape.f[s], shape));
    pair_near(&out, 1e-6, "compressor");
    ON_BOTH(p, B->zero(Q, gate.f[s], n * 4));
    ON_BOTH(p, B->zero(Q, ape.f[s], ape.n * 4));
    ON_BOTH(p, B->compressor(Q, out.f[s], flat.f[s], gate.f[s], ape.f[s], shape));
    pair_equal(&out, "means of integers");
    pair_free(&kv);
    pair_free(&gate);
    pair_free(&ape);
    pair_free(&flat);
    pair_free(&out);
}
END_TEST

/* ---- streams ------------------------------------------------------------------------------ */

static const struct {
    int t, streams, width;
} stream_cases[] = {
    {0, 4, 16},  {1, 4, 16},   {5, 4, 64}, {16, 4, 1024}, {17, 4, 320}, {40, 2, 63},
    {33, 3, 16}, {18, 16, 32}, {7, 1, 64}, {19, 4, 33},   {3, 4, 4096},
};

/* From the coefficients alone the input has the bits that it had. */
static void check_input_again(int s, const exf_hyper_shape *shape, const pair_array *u, const pair_array *mixing,
                              const pair_array *x)
{
    exf_err err;
    size_t bytes = u->n * sizeof(float);
    float *first, *again;
    ck_ok(exf_mem_new(&first, u->n, sizeof *first, "test", &err), err);
    ck_ok(exf_mem_new(&again, u->n, sizeof *again, "test", &err), err);
    ck_ok(p.b[s]->download(p.q[s], first, u->f[s], bytes, &err), err);
    p.b[s]->zero(p.q[s], u->f[s], bytes);
    p.b[s]->hyper_input(p.q[s], u->f[s], mixing->f[s], x->f[s], shape);
    ck_ok(p.b[s]->download(p.q[s], again, u->f[s], bytes, &err), err);
    ck_assert(memcmp(first, again, bytes) == 0);
    exf_mem_free(first);
    exf_mem_free(again);
}

START_TEST(streams_are_near)
{
    int t = stream_cases[_i].t, streams = stream_cases[_i].streams, width = stream_cases[_i].width, mix = (2 + streams) * streams;
    size_t n = (size_t)(t * streams * width);
    pair_array x = pair_reals(&p, n, 1, 2), v = pair_reals(&p, (size_t)(t * width), 2, 2),
               u = pair_reals(&p, (size_t)(t * width), 3, 1);
    pair_array fn = pair_reals(&p, (size_t)(mix * streams * width), 4, 0.2f), base = pair_reals(&p, (size_t)mix, 5, 1),
               scale = pair_reals(&p, 3, 6, 1);
    pair_array mixing = pair_reals(&p, (size_t)(t * mix), 7, 1);
    for (int s = 0; s < 2; s++) {
        exf_hyper_shape shape = {t, streams, width, 20, 1e-6, 1e-6, fn.f[s], base.f[s], scale.f[s]};
        p.b[s]->hyper_pre(p.q[s], u.f[s], mixing.f[s], x.f[s], &shape);
    }
    pair_near(&u, 1e-5, "hyper_pre");
    pair_near(&mixing, 1e-5, "coefficients");
    for (int s = 0; s < 2; s++) {
        exf_hyper_shape shape = {t, streams, width, 20, 1e-6, 1e-6, fn.f[s], base.f[s], scale.f[s]};
        check_input_again(s, &shape, &u, &mixing, &x);
    }
    for (int s = 0; s < 2; s++) {
        exf_hyper_shape shape = {t, streams, width, 20, 1e-6, 1e-6, fn.f[s], base.f[s], scale.f[s]};
        p.b[s]->hyper_post(p.q[s], x.f[s], v.f[s], mixing.f[s], &shape);
        p.b[s]->hyper_head(p.q[s], u.f[s], x.f[s], &shape);
    }
    pair_near(&x, 1e-5, "hyper_post");
    pair_near(&u, 1e-5, "hyper_head");
    pair_free(&x);
    pair_free(&v);
    pair_free(&u);
    pair_free(&fn);
    pair_free(&base);
    pair_free(&scale);
    pair_free(&mixing);
}
END_TEST

/* ---- rows of whole quads, and not ------------------------------------------------------------ */

static const struct {
    int rows, n, gap;
} row_cases[] = {
    {1, 4, 0}, {7, 128, 0}, {65, 512, 4}, {3, 516, 0}, {5, 4096, 0}, {2, 4100, 0}, {9, 127, 1}, {4, 256, 2}, {70000, 8, 0},
};

START_TEST(norms_and_gates_are_near)
{
    int rows = row_cases[_i].rows, n = row_cases[_i].n, ld = n + row_cases[_i].gap;
    pair_array x = pair_reals(&p, (size_t)(rows * ld), 1, 3), y = pair_reals(&p, (size_t)(rows * ld), 2, 3),
               w = pair_reals(&p, (size_t)n, 3, 1);
    pair_array dense = pair_reals(&p, (size_t)(rows * n), 4, 3);
    ON_BOTH(p, B->rmsnorm(Q, y.f[s], ld, x.f[s], ld, w.f[s], rows, n, 1e-6));
    pair_near(&y, 4e-7, "rmsnorm");
    ON_BOTH(p, B->rmsnorm(Q, x.f[s], ld, x.f[s], ld, NULL, rows, n, 1e-6));
    pair_near(&x, 4e-7, "rmsnorm in place");
    ON_BOTH(p, B->sigmoid_gate(Q, dense.f[s], x.f[s], rows, n, ld));
    pair_near(&dense, 1e-6, "sigmoid_gate");
    ON_BOTH(p, B->copy_columns(Q, y.f[s], ld, dense.f[s], n, rows, n));
    ON_BOTH(p, B->add_bias(Q, dense.f[s], w.f[s], rows, n));
    pair_near(&y, 1e-6, "copy_columns");
    pair_near(&dense, 4e-6, "add_bias");
    ON_BOTH(p, B->switch_weights(Q, y.f[s], dense.f[s], w.f[s], rows, n));
    pair_near(&y, 4e-6, "switch_weights");
    pair_free(&x);
    pair_free(&y);
    pair_free(&w);
    pair_free(&dense);
}
END_TEST

Suite *exf_suite(void)
{
    Suite *s = suite_create("cuda_parts");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, choices_are_the_same, 0, COUNT(indexers));
    tcase_add_loop_test(t, pools_are_near, 0, COUNT(pools));
    tcase_add_loop_test(t, streams_are_near, 0, COUNT(stream_cases));
    tcase_add_loop_test(t, norms_and_gates_are_near, 0, COUNT(row_cases));
    suite_add_tcase(s, t);
    return s;
}

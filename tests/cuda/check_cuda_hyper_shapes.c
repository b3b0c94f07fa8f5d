/* check_cuda_hyper_shapes.c - hyper-connections on the GPU against the CPU's, at every shape and alignment that their kernels
 * choose by.  Numbers are integers, and fn 512ths, so that dot products are exact: coefficients differ by their last bit. */
#include "tests/support/pairwise.h"

#include "base/mem.h"
#include "tests/support/pair_fixtures.h" /* after pairwise.h: its pair is called p */

#include <math.h>
#include <pthread.h>

enum { TOKENS, STREAMS, WIDTH, ITERATIONS, X_AT, V_AT, FN_AT, DIMENSIONS };
static const dimension dimensions[] = {{"tokens", 1, 70}, {"streams", 1, 16}, {"width", 1, 4200}, {"iterations", 1, 20},
                                       {"x at", 0, 4},    {"v at", 0, 4},     {"fn at", 0, 4}};

static const boundary boundaries[] = {
    {"residual/hyper_connections_cuda.cu", "STRIPS", TOKENS, 16},
    {"residual/hyper_connections_cuda.cu", "TOKENS", TOKENS, 32},
    {"residual/hyper_connections_cuda.cu", "TOKENS", TOKENS, 64},
    {"residual/hyper_connections_cuda.cu", "OUTPUTS", STREAMS, 4}, /* 24 outputs */
    {"residual/hyper_connections_cuda.cu", "OUTPUTS", STREAMS, 6}, /* 48 */
    {"residual/hyper_connections_cuda.cu", "s->streams == 4", STREAMS, 4},
    {"residual/hyper_connections.h", "EXF_HYPER_STREAMS_MAX", STREAMS, 16},
    {"residual/hyper_connections_cuda.cu", "exf_aligned16(u, s->width)", WIDTH, 4},
    {"residual/hyper_connections_cuda.cu", "width % 16", WIDTH, 16},
    {"residual/hyper_connections_cuda.cu", "RUN", WIDTH, 20}, /* of four streams, five steps */
    {"residual/hyper_connections_cuda.cu", "THREADS", WIDTH, 256},
    {"residual/hyper_connections_cuda.cu", "WARPS", WIDTH, 260}, /* of four streams, a step more than every warp's four */
    {"residual/hyper_connections_cuda.cu", "FLUSH", WIDTH, 1024},
    {"residual/hyper_connections_cuda.cu", "FLUSH", WIDTH, 1028},
    {"residual/hyper_connections_cuda.cu", "FLUSH", WIDTH, 4096}, /* of one stream */
    {"residual/hyper_connections_cuda.cu", "s.iterations", ITERATIONS, 2},
    {"device/cuda_queue.cuh", "% 16", X_AT, 4},
    {"device/cuda_queue.cuh", "% 16", V_AT, 4},
    {"device/cuda_queue.cuh", "% 16", FN_AT, 4},
};

/* The CPU takes some milliseconds at most. */
static int is_valid(const shape *s)
{
    int streams = s->at[STREAMS];
    return s->at[TOKENS] * (2 + streams) * streams * streams / 16 * s->at[WIDTH] < 1 << 19;
}

static pairwise cases;
static const char *at_shape(const char *what, const shape *s)
{
    return pairwise_label(what, dimensions, DIMENSIONS, s);
}

enum { TAIL = 8 }; /* floats after an array, which must stay */

/* x [T, S, H] from `x_at` floats on, and so on; u and v [T, H]. */
typedef struct {
    exf_hyper_shape shape; /* without weights */
    size_t n_mix, n_x, n_u;
    int x_at, v_at, fn_at;
    pair_array x, v, u, mixing, fn, base, scale;
} streams;

static pair_array parts_of_512(size_t n, uint64_t seed)
{
    float *x;
    exf_err err;
    ck_ok(exf_mem_new(&x, n, sizeof *x, "test", &err), err);
    for (size_t i = 0; i < n; i++) x[i] = ((float)exf_rng_below(17, seed, 3, i) - 8) / 512;
    pair_array a = pair_of(&p, x, n);
    exf_mem_free(x);
    return a;
}

static streams streams_of(const shape *s)
{
    size_t t = (size_t)s->at[TOKENS], n = (size_t)s->at[STREAMS], h = (size_t)s->at[WIDTH];
    streams c = {.shape = {s->at[TOKENS], s->at[STREAMS], s->at[WIDTH], s->at[ITERATIONS], 1e-6, 1e-6, NULL, NULL, NULL},
                 .n_mix = (2 + n) * n, .n_x = t * n * h, .n_u = t * h, .x_at = s->at[X_AT], .v_at = s->at[V_AT],
                 .fn_at = s->at[FN_AT]};
    c.x = pair_integers(&p, c.n_x + (size_t)c.x_at + TAIL, 1);
    c.v = pair_integers(&p, c.n_u + (size_t)c.v_at, 2);
    c.u = pair_integers(&p, c.n_u + TAIL, 3);
    c.mixing = pair_integers(&p, t * c.n_mix + TAIL, 4);
    c.fn = parts_of_512(c.n_mix * n * h + (size_t)c.fn_at, 5);
    c.base = pair_reals(&p, c.n_mix, 6, 1);
    c.scale = pair_reals(&p, 3, 7, 1);
    return c;
}

static void free_streams(streams *c)
{
    pair_array *all[] = {&c->x, &c->v, &c->u, &c->mixing, &c->fn, &c->base, &c->scale};
    for (int i = 0; i < COUNT(all); i++) pair_free(all[i]);
}

static exf_hyper_shape shape_on(const streams *c, int s)
{
    exf_hyper_shape h = c->shape;
    h.fn = c->fn.f[s] + c->fn_at;
    h.base = c->base.f[s];
    h.scale = c->scale.f[s];
    return h;
}

static void same_bits(const pair_array *a, const float *before, const char *what)
{
    float *now = fetched(a->f[1], a->n);
    ck_assert_msg(memcmp(now, before, a->n * 4) == 0, "%s", what);
    exf_mem_free(now);
}

/* The inputs again from the coefficients, then all again in two blocks of tokens: the same bits. */
static void do_again(streams *c, const shape *s0)
{
    exf_hyper_shape first = shape_on(c, 1), rest = first;
    float *u = fetched(c->u.f[1], c->u.n), *mixing = fetched(c->mixing.f[1], c->mixing.n);
    int n = first.n_tokens / 3;
    size_t at = (size_t)n;
    p.b[1]->zero(p.q[1], c->u.f[1], c->n_u * 4);
    p.b[1]->hyper_input(p.q[1], c->u.f[1], c->mixing.f[1], c->x.f[1] + c->x_at, &first);
    same_bits(&c->u, u, at_shape("hyper_input", s0));
    first.n_tokens = n;
    rest.n_tokens -= n;
    p.b[1]->zero(p.q[1], c->u.f[1], c->n_u * 4);
    p.b[1]->zero(p.q[1], c->mixing.f[1], (size_t)c->shape.n_tokens * c->n_mix * 4);
    p.b[1]->hyper_pre(p.q[1], c->u.f[1], c->mixing.f[1], c->x.f[1] + c->x_at, &first);
    p.b[1]->hyper_pre(p.q[1], c->u.f[1] + at * (size_t)rest.width, c->mixing.f[1] + at * c->n_mix,
                      c->x.f[1] + c->x_at + at * (size_t)(rest.streams * rest.width), &rest);
    same_bits(&c->u, u, at_shape("hyper_pre in two blocks", s0));
    same_bits(&c->mixing, mixing, at_shape("coefficients in two blocks", s0));
    exf_mem_free(u);
    exf_mem_free(mixing);
}

/* What S terms of 8 may lose in a float32 sum. */
static double bound_of(const streams *c)
{
    return c->shape.streams * c->shape.streams * 0x1p-18;
}

START_TEST(opening_is_near)
{
    const shape *s0 = &cases.shapes[_i];
    streams c = streams_of(s0);
    for (int s = 0; s < 2; s++) {
        exf_hyper_shape h = shape_on(&c, s);
        p.b[s]->hyper_pre(p.q[s], c.u.f[s], c.mixing.f[s], c.x.f[s] + c.x_at, &h);
    }
    pair_near(&c.mixing, 3e-7, at_shape("coefficients", s0));
    pair_near(&c.u, bound_of(&c), at_shape("hyper_pre", s0));
    do_again(&c, s0);
    for (int s = 0; s < 2; s++) {
        exf_hyper_shape h = shape_on(&c, s);
        p.b[s]->hyper_head(p.q[s], c.u.f[s], c.x.f[s] + c.x_at, &h);
    }
    pair_near(&c.u, bound_of(&c), at_shape("hyper_head", s0));
    free_streams(&c);
}
END_TEST

/* Coefficients are integers, too. */
START_TEST(closing_is_exact)
{
    const shape *s0 = &cases.shapes[_i];
    streams c = streams_of(s0);
    ON_BOTH(p, B->hyper_post(Q, c.x.f[s] + c.x_at, c.v.f[s] + c.v_at, c.mixing.f[s], &c.shape));
    pair_equal(&c.x, at_shape("hyper_post", s0));
    free_streams(&c);
}
END_TEST

/* ---- two queues at a time ------------------------------------------------------------------------- */

/* A thread opens sites or heads on a queue of its own: what a launch is allowed must not depend on the other's. */
typedef struct {
    const streams *c;
    int head, failed;
    exf_err err;
} opener;

static void *open_often(void *arg)
{
    enum { TIMES = 3000 };
    opener *o = arg;
    const exf_backend *b = p.b[1];
    exf_queue *q;
    float *u = NULL, *mixing = NULL;
    exf_hyper_shape h = shape_on(o->c, 1);
    if (b->open(&q, EXF_COMPUTE_F32, &o->err) != EXF_OK) {
        o->failed = 1;
        return NULL;
    }
    o->failed = b->alloc(&u, o->c->n_u, 4, "test", &o->err) != EXF_OK ||
                b->alloc(&mixing, o->c->n_mix * (size_t)h.n_tokens, 4, "test", &o->err) != EXF_OK;
    for (int i = 0; i < TIMES && !o->failed; i++) {
        if (o->head)
            b->hyper_head(q, u, o->c->x.f[1], &h);
        else
            b->hyper_pre(q, u, mixing, o->c->x.f[1], &h);
        if (i % 100 == 99) o->failed = b->finish(q, &o->err) != EXF_OK;
    }
    b->free(u);
    b->free(mixing);
    b->close(q);
    return NULL;
}

START_TEST(queues_of_two_threads_do_not_disturb_each_other)
{
    shape s0 = {{3, 16, 16, 1, 0, 0, 0}};
    streams c = streams_of(&s0);
    opener o[2] = {{.c = &c}, {.c = &c, .head = 1}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_create(&thread[i], NULL, open_often, &o[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++) ck_assert_msg(!o[i].failed, "%s: %s", o[i].head ? "head" : "site", o[i].err.msg);
    free_streams(&c);
}
END_TEST

/* The last of all: a store off its boundary would end the device's context. */
START_TEST(inputs_off_a_boundary_are_the_same)
{
    shape s0 = {{33, 4, 64, 2, 0, 0, 0}};
    streams c = streams_of(&s0);
    exf_hyper_shape h = shape_on(&c, 1);
    float *want, *got;
    for (int kind = 0; kind < 3; kind++) {
        for (int at = 0; at < 2; at++) {
            float *u = c.u.f[1] + at;
            if (kind == 0) p.b[1]->hyper_pre(p.q[1], u, c.mixing.f[1], c.x.f[1], &h);
            if (kind == 1) p.b[1]->hyper_input(p.q[1], u, c.mixing.f[1], c.x.f[1], &h);
            if (kind == 2) p.b[1]->hyper_head(p.q[1], u, c.x.f[1], &h);
            if (at == 0) want = fetched(c.u.f[1], c.u.n);
        }
        got = fetched(c.u.f[1], c.u.n);
        for (size_t i = 0; i < c.n_u; i++)
            ck_assert_msg(fabsf(got[i + 1] - want[i]) <= 1e-4f * (1 + fabsf(want[i])), "kind %d: element %zu: %g, not %g", kind, i,
                          (double)got[i + 1], (double)want[i]);
        exf_mem_free(want);
        exf_mem_free(got);
    }
    free_streams(&c);
}
END_TEST

void exf_suite(Suite *s)
{
    pairwise_shapes(&cases, "hyper-connections", boundaries, COUNT(boundaries), dimensions, DIMENSIONS, is_valid);
    TCase *t = exf_case(s, "all");
    tcase_add_checked_fixture(t, open_pair, close_pair);
    tcase_add_loop_test(t, opening_is_near, 0, cases.n_shapes);
    tcase_add_loop_test(t, closing_is_exact, 0, cases.n_shapes);
    tcase_add_test(t, queues_of_two_threads_do_not_disturb_each_other);
    tcase_add_test(t, inputs_off_a_boundary_are_the_same);
}

/* peer_sums_fixtures.h - the vector sums of another rank added to a device's, of which some are more together than a sum holds. */
#ifndef EXF_TESTS_PEER_SUMS_FIXTURES_H
#define EXF_TESTS_PEER_SUMS_FIXTURES_H
#include "accumulate/vectors.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"

#include <string.h>

enum { PEER_PAIRS = 3, PEER_H = 70, PEER_RANK = 4 };

/* Two ranks' arrays, all 0, in one device's memory. */
typedef struct {
    exf_device_vectors own, other;
    void *to[EXF_VECTOR_ARRAYS], *from[EXF_VECTOR_ARRAYS];
    size_t n[EXF_VECTOR_ARRAYS];
} peer_case;

static inline void peer_arrays(void *out[EXF_VECTOR_ARRAYS], const exf_device_vectors *s)
{
    void *all[EXF_VECTOR_ARRAYS] = {s->diagonal.vu, s->diagonal.vv, s->lowrank.zz, s->lowrank.zu, s->lowrank.zv};
    memcpy(out, all, sizeof all);
}

static inline size_t peer_element(int array)
{
    return array < 2 ? sizeof(exf_exact) : sizeof(int64_t);
}

static inline peer_case peer_open(const exf_backend *b, exf_queue *q)
{
    exf_err e;
    peer_case c = {.n = {PEER_PAIRS * PEER_H, PEER_PAIRS * PEER_H, PEER_PAIRS * PEER_RANK * PEER_RANK,
                         PEER_PAIRS * PEER_RANK * PEER_H, PEER_PAIRS * PEER_RANK * PEER_H}};
    exf_device_vectors *both[] = {&c.own, &c.other};
    for (int i = 0; i < 2; i++) {
        ck_ok(exf_device_vectors_open(both[i], b, PEER_PAIRS, 2, PEER_H, 1, PEER_RANK, EXF_WEIGHT_NONE, NULL, &e), e);
        both[i]->q = q;
        peer_arrays(i ? c.from : c.to, both[i]);
        for (int k = 0; k < EXF_VECTOR_ARRAYS; k++) b->zero(q, (i ? c.from : c.to)[k], c.n[k] * peer_element(k));
    }
    ck_ok(b->finish(q, &e), e);
    return c;
}

static inline void peer_close(peer_case *c)
{
    exf_device_vectors_free(&c->own);
    exf_device_vectors_free(&c->other);
}

/* Makes element `at` of an array the largest number of its type less `less`, or, with sign -1, the one that is as far from the
 * smallest; the other rank's the sign. */
static inline void peer_set(const peer_case *c, int array, size_t at, int sign, uint64_t less)
{
    exf_exact sum = {{UINT64_MAX - less, UINT64_MAX, INT64_MAX}}, term = {{1, 0, 0}};
    int64_t whole = INT64_MAX - (int64_t)less, one = sign;
    size_t size = peer_element(array);
    exf_err e;
    if (sign < 0) { /* -x - 1 */
        for (int i = 0; i < 3; i++) sum.limb[i] = ~sum.limb[i];
        exf_exact_negate(&term);
        whole = -whole - 1;
    }
    const exf_backend *b = c->own.b;
    b->upload(c->own.q, (char *)c->to[array] + at * size, array < 2 ? (void *)&sum : (void *)&whole, size);
    b->upload(c->own.q, (char *)c->from[array] + at * size, array < 2 ? (void *)&term : (void *)&one, size);
    ck_ok(b->finish(c->own.q, &e), e);
}

/* Of an array whose elements `at` and after it are at an end of their range: within it, then beyond it. */
static inline void ck_peers_add(const exf_backend *b, exf_queue *q, int array, int sign)
{
    exf_err e;
    peer_case c = peer_open(b, q);
    size_t last = c.n[array] - 1, size = peer_element(array);
    unsigned char got[sizeof(exf_exact)], want[sizeof(exf_exact)];
    peer_set(&c, array, last, sign, 1);
    ck_ok(exf_device_vectors_add_peer(&c.own, PEER_PAIRS, 3, c.from, &e), e);
    ck_ok(b->download(q, got, (char *)c.to[array] + last * size, size, &e), e);
    peer_set(&c, array, last, sign, 0);
    ck_ok(b->download(q, want, (char *)c.to[array] + last * size, size, &e), e);
    ck_assert_mem_eq(got, want, size);
    ck_fails(exf_device_vectors_add_peer(&c.own, PEER_PAIRS, 3, c.from, &e), EXF_NUMERIC, e,
             array < 2 ? sign > 0 ? "3: 1.2621774483536189e-29 3.9614081257132169e+28"
                                  : "3: -1.2621774483536189e-29 -3.9614081257132169e+28"
             : sign > 0 ? "3: 1 9.2233720368547758e+18"
                        : "3: -1 -9.2233720368547758e+18");
    peer_close(&c);
}

/* The first of several in an array, and the first array of several, is the one that is named. */
static inline void ck_the_first_is_named(const exf_backend *b, exf_queue *q)
{
    exf_err e;
    peer_case c = peer_open(b, q);
    for (size_t i = 5; i < c.n[3]; i++) peer_set(&c, 3, i, i == 5 ? -1 : 1, 0);
    peer_set(&c, 4, 0, 1, 0);
    ck_fails(exf_device_vectors_add_peer(&c.own, PEER_PAIRS, 1, c.from, &e), EXF_NUMERIC, e, "1: -1 -9.2233720368547758e+18");
    peer_close(&c);
}
#endif

/* device_fixtures.h - arrays on the GPU for tests of what only a device has. */
#ifndef EXF_TESTS_DEVICE_FIXTURES_H
#define EXF_TESTS_DEVICE_FIXTURES_H
#include "base/hash.h"
#include "base/mem.h"
#include "kernels/backend.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <string.h>

typedef struct {
    const exf_backend *b;
    exf_queue *q;
} device;

static inline device device_open(exf_compute compute, exf_tensor_cores by)
{
    exf_err err;
    device d = {.b = exf_backend_cuda(&err)};
    ck_ok(d.b->gpu->choose_tensor_cores(by, &err), err);
    ck_ok(d.b->open(&d.q, compute, &err), err);
    return d;
}

static inline void device_close(device *d)
{
    d->b->close(d->q);
}

/* bytes of host memory there; host NULL: filled with 0xff, NaN in every type. */
static inline void *device_put(const device *d, const void *host, size_t bytes)
{
    void *p, *poison = NULL;
    exf_err err;
    ck_ok(d->b->alloc(&p, bytes, 1, "test", &err), err);
    if (!host) {
        ck_ok(exf_mem_new(&poison, bytes, 1, "test", &err), err);
        memset(poison, 0xff, bytes);
    }
    d->b->upload(d->q, p, host ? host : poison, bytes);
    ck_ok(d->b->finish(d->q, &err), err);
    exf_mem_free(poison);
    return p;
}

/* A fresh host copy; the caller frees. */
static inline void *device_get(const device *d, const void *p, size_t bytes)
{
    exf_err err;
    void *host = test_memory(bytes, 1);
    ck_ok(d->b->download(d->q, host, p, bytes, &err), err);
    return host;
}

static inline uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static inline float of_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* In (-scale, scale), a pure function of (seed, i). */
static inline float real_at(uint64_t seed, size_t i, float scale)
{
    return scale * (float)((double)(int64_t)exf_rng_u64(seed, 7, i) * 0x1p-63);
}

static inline uint16_t *bf16_reals(size_t n, uint64_t seed, float scale)
{
    uint16_t *p = test_memory(n, sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = to_bf16(real_at(seed, i, scale));
    return p;
}
#endif

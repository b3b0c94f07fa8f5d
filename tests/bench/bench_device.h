/* bench_device.h - a benchmark's arrays on a device, and how it ends where something fails. */
#ifndef EXF_TESTS_BENCH_DEVICE_H
#define EXF_TESTS_BENCH_DEVICE_H
#include "base/hash.h"
#include "base/log.h"
#include "kernels/backend.h"

#include <stdio.h>
#include <stdlib.h>

static exf_err err;

static inline void must(exf_code rc)
{
    if (rc == EXF_OK) return;
    fprintf(stderr, "%s\n", err.msg);
    exit((int)rc);
}

static inline void *device_room(const exf_backend *b, size_t bytes)
{
    void *p;
    must(b->alloc(&p, bytes, 1, "bench", &err));
    return p;
}

/* Random bfloat16, made on the host once and repeated, not by whole rows. */
static inline void *random_bf16(const exf_backend *b, exf_queue *q, size_t n, float scale)
{
    enum { PIECE = (1 << 20) - 64 };
    static uint16_t host[PIECE];
    uint16_t *p = device_room(b, n * sizeof *p);
    for (size_t i = 0; i < PIECE; i++) {
        union { float f; uint32_t u; } v = {scale * (float)((double)(int64_t)exf_rng_u64(1, 2, i) * 0x1p-63)};
        host[i] = (uint16_t)(v.u >> 16);
    }
    for (size_t at = 0; at < n; at += PIECE) b->upload(q, p + at, host, 2 * (n - at < PIECE ? n - at : PIECE));
    must(b->finish(q, &err));
    return p;
}
#endif

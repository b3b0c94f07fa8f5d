/* backend_pair.c - see backend_pair.h. */
#include "tests/support/backend_pair.h"

#include "base/hash.h"
#include "base/mem.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <string.h>

void pair_open(backend_pair *p, exf_tensor_cores by)
{
    exf_err err;
    p->b[0] = &exf_backend_cpu;
    p->b[1] = exf_backend_cuda(&err);
    ck_ok(p->b[1]->gpu->choose_tensor_cores(by, &err), err);
    for (int s = 0; s < 2; s++) ck_ok(p->b[s]->open(&p->q[s], EXF_COMPUTE_F32, &err), err);
}

void pair_close(backend_pair *p)
{
    for (int s = 0; s < 2; s++) p->b[s]->close(p->q[s]);
}

pair_array pair_of(const backend_pair *p, const void *host, size_t n)
{
    exf_err err;
    pair_array a = {.pair = p, .n = n};
    for (int s = 0; s < 2; s++) {
        ck_ok(p->b[s]->alloc(&a.f[s], n, 4, "test", &err), err);
        p->b[s]->upload(p->q[s], a.f[s], host, n * 4);
        ck_ok(p->b[s]->finish(p->q[s], &err), err);
        a.i[s] = (int32_t *)a.f[s];
    }
    return a;
}

static pair_array made(const backend_pair *p, size_t n, uint64_t seed, int integers, float scale)
{
    float *host;
    exf_err err;
    ck_ok(exf_mem_new(&host, n, sizeof *host, "test", &err), err);
    for (size_t i = 0; i < n; i++) {
        uint64_t u = exf_rng_u64(seed, 7, i);
        host[i] = integers ? (float)((int)(u % 17) - 8) : scale * (float)((double)(int64_t)u * 0x1p-63);
    }
    pair_array a = pair_of(p, host, n);
    exf_mem_free(host);
    return a;
}

pair_array pair_integers(const backend_pair *p, size_t n, uint64_t seed)
{
    return made(p, n, seed, 1, 0);
}

pair_array pair_reals(const backend_pair *p, size_t n, uint64_t seed, float scale)
{
    return made(p, n, seed, 0, scale);
}

void pair_free(pair_array *a)
{
    for (int s = 0; s < 2; s++) a->pair->b[s]->free(a->f[s]);
}

/* The GPU's side as host memory; the caller frees. */
static float *fetched(const pair_array *a)
{
    float *host;
    exf_err err;
    ck_ok(exf_mem_new(&host, a->n, sizeof *host, "test", &err), err);
    ck_ok(a->pair->b[1]->download(a->pair->q[1], host, a->f[1], a->n * 4, &err), err);
    return host;
}

void pair_equal(const pair_array *a, const char *what)
{
    float *on_device = fetched(a);
    for (size_t i = 0; i < a->n; i++)
        ck_assert_msg(memcmp(&a->f[0][i], &on_device[i], 4) == 0, "%s: element %zu: cpu %.9g, cuda %.9g", what, i,
                      (double)a->f[0][i], (double)on_device[i]);
    exf_mem_free(on_device);
}

void pair_near(const pair_array *a, double bound, const char *what)
{
    float *on_device = fetched(a);
    for (size_t i = 0; i < a->n; i++) {
        double d = fabs((double)a->f[0][i] - (double)on_device[i]), allowed = bound * (1 + fabs((double)a->f[0][i]));
        ck_assert_msg(d <= allowed, "%s: element %zu: cpu %.9g, cuda %.9g, %.0f %% of the allowed difference", what, i,
                      (double)a->f[0][i], (double)on_device[i], 100 * d / allowed);
    }
    exf_mem_free(on_device);
}

double pair_distance(const pair_array *a)
{
    float *on_device = fetched(a);
    double apart = 0, size = 0;
    for (size_t i = 0; i < a->n; i++) {
        double on_host = (double)a->f[0][i], d = on_host - (double)on_device[i];
        apart += d * d;
        size += on_host * on_host;
    }
    exf_mem_free(on_device);
    return sqrt(apart / size);
}

void pair_compute(backend_pair *p, exf_compute compute)
{
    exf_err err;
    p->b[1]->close(p->q[1]);
    ck_ok(p->b[1]->open(&p->q[1], compute, &err), err);
}

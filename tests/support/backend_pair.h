/* backend_pair.h - the same arrays on the CPU and on the GPU, to run an operation on
 * both and compare: bit for bit where inputs are small integers, within a bound else. */
#ifndef EXF_TESTS_BACKEND_PAIR_H
#define EXF_TESTS_BACKEND_PAIR_H
#include "kernels/backend.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const exf_backend *b[2]; /* cpu, cuda */
    exf_queue *q[2];
} backend_pair;

/* n elements of 4 bytes on both sides. */
typedef struct {
    const backend_pair *pair;
    size_t n;
    float *f[2]; /* as float */
    int32_t *i[2]; /* the same memory as int32 */
} pair_array;

void pair_open(backend_pair *p, exf_tensor_cores by);
void pair_close(backend_pair *p);

/* Values are a pure function of (seed, index): integers in [-8, 8], or reals in
 * (-1, 1) times scale. */
pair_array pair_integers(const backend_pair *p, size_t n, uint64_t seed);
pair_array pair_reals(const backend_pair *p, size_t n, uint64_t seed, float scale);
pair_array pair_of(const backend_pair *p, const void *host, size_t n);
void pair_free(pair_array *a);

/* Both sides equal bit for bit / within bound * (1 + |cpu|); names `what`. */
void pair_equal(const pair_array *a, const char *what);
void pair_near(const pair_array *a, double bound, const char *what);

/* Over both sides, ||cuda - cpu|| / ||cpu||. */
double pair_distance(const pair_array *a);
/* The CUDA side computes in `compute` from here on. */
void pair_compute(backend_pair *p, exf_compute compute);

/* Runs statement for side 0 and 1 with B, Q and s as backend, queue and side. */
#define ON_BOTH(p, statement)                  \
    do {                                       \
        for (int s = 0; s < 2; s++) {          \
            const exf_backend *B = (p).b[s];   \
            exf_queue *Q = (p).q[s];           \
            statement;                         \
        }                                      \
    } while (0)
#endif

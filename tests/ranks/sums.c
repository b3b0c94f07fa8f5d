/* sums.c - ranks add up and gather arrays of several pieces, of elements that do not divide by the ranks, and of none.
 * usage: mpirun -n RANKS sums */
#include "base/mem.h"
#include "ranks/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 3000001, EXACT = 700001, BYTES = 9000005 };

static exf_err e; /* of the last call */
static exf_ranks *ranks;
static int rank, size;

static void ck(int ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "sums: rank %d of %d: %s: %s\n", rank, size, what, e.msg);
    _Exit(98);
}

static void *memory(size_t n, size_t each)
{
    void *p = NULL;
    ck(exf_mem_new(&p, n, each, "test", &e) == EXF_OK, "memory");
    return p;
}

static uint64_t number_of(int of, size_t i)
{
    return (i + 1) * 0x9e3779b97f4a7c15ull * (uint64_t)(of + 1);
}

/* Carries run through all limbs; signs differ. */
static exf_exact exact_of(int of, size_t i)
{
    exf_exact x = {{number_of(of, i) | 1, UINT64_MAX - (uint64_t)of, i % 3}};
    if (i % 2) exf_exact_negate(&x);
    return x;
}

static char byte_of(int of, size_t i)
{
    return (int)(i / 1000 % (size_t)size) == of ? (char)(i * 7 + 1) : 0;
}

/* Adds up the first of the elements; rank 0 has the sums, the others what they had. */
static void check_sums(int beside, size_t numbers, size_t exact, size_t bytes)
{
    uint64_t *x = memory(numbers, sizeof *x);
    exf_exact *y = memory(exact, sizeof *y);
    char *z = memory(bytes, 1);
    for (size_t i = 0; i < numbers; i++) x[i] = number_of(rank, i);
    for (size_t i = 0; i < exact; i++) y[i] = exact_of(rank, i);
    for (size_t i = 0; i < bytes; i++) z[i] = byte_of(rank, i);
    const exf_ranks_array list[] = {{x, numbers, EXF_RANKS_U64}, {y, exact, EXF_RANKS_EXACT}, {z, bytes, EXF_RANKS_BITS}};
    ck((beside ? exf_ranks_sum_beside(ranks, list, 3, &e) : exf_ranks_sum(ranks, list, 3, &e)) == EXF_OK, "sum");
    int from = rank, to = rank ? rank + 1 : size;
    for (size_t i = 0; i < numbers; i++) {
        uint64_t sum = 0;
        for (int r = from; r < to; r++) sum += number_of(r, i);
        ck(x[i] == sum, "a sum of numbers");
    }
    for (size_t i = 0; i < exact; i++) {
        exf_exact sum = exact_of(from, i);
        for (int r = from + 1; r < to; r++) {
            exf_exact term = exact_of(r, i);
            exf_exact_merge(&sum, &term);
        }
        ck(memcmp(&y[i], &sum, sizeof sum) == 0, "an exact sum");
    }
    for (size_t i = 0; i < bytes; i++) {
        char sum = 0;
        for (int r = from; r < to; r++) sum = (char)(sum | byte_of(r, i));
        ck(z[i] == sum, "bits");
    }
    exf_mem_free(x);
    exf_mem_free(y);
    exf_mem_free(z);
}

/* Rank r has r shares of the bytes, so rank 0 none. */
static void check_parts(size_t share)
{
    size_t all = share * (size_t)(size * (size - 1) / 2), first = share * (size_t)(rank * (rank - 1) / 2), n = share * (size_t)rank;
    char *bytes = memory(all, 1), *own = memory(n, 1);
    for (size_t i = 0; i < n; i++) own[i] = (char)number_of(1, first + i);
    ck(exf_ranks_gather_parts(ranks, own, n, first, bytes, &e) == EXF_OK, "gathering");
    for (size_t i = 0; i < all; i++) ck(bytes[i] == (rank ? 0 : (char)number_of(1, i)), "a gathered part");
    exf_mem_free(bytes);
    exf_mem_free(own);
}

int main(void)
{
    int speaks;
    ck(exf_ranks_open(&ranks, &e) == EXF_OK, "opening");
    rank = exf_ranks_place(ranks).rank;
    size = exf_ranks_place(ranks).size;
    for (int beside = 0; beside < 2; beside++) {
        check_sums(beside, NUMBERS, EXACT, BYTES);
        check_sums(beside, 1, 2, 1);
        check_sums(beside, 0, 0, 0);
    }
    check_parts(1000003);
    check_parts(0);
    ck(exf_ranks_close(ranks, EXF_OK, &speaks, &e) == EXF_OK, "closing");
    if (speaks) printf("sums: %d ranks, ok\n", size);
    return 0;
}

/* allocation_fixtures.h - lets each allocation of some work fail in turn, where no files are involved
 * (scratch_fixtures.h has the same for work that leaves files). */
#ifndef EXF_TESTS_ALLOCATION_FIXTURES_H
#define EXF_TESTS_ALLOCATION_FIXTURES_H
#include "tests/support/fixtures.h"

#include "base/mem.h"

#include <string.h>

/* Runs work with its first, second, ... allocation failing until it succeeds, and returns the number of runs.
 * Every refusal is EXF_NOSPACE and says that memory is out. */
static inline size_t allocations_that_fail(exf_code (*work)(exf_err *err))
{
    exf_err e;
    exf_code rc = EXF_NOSPACE;
    size_t n = 0;
    while (rc != EXF_OK) {
        exf_mem_fail_at(++n);
        rc = work(&e);
        exf_mem_fail_at(0);
        ck_assert_msg(rc == EXF_OK || (rc == EXF_NOSPACE && strstr(e.msg, "out of memory")), "allocation %zu: %s", n, e.msg);
    }
    return n;
}
#endif

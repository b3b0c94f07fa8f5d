/* many_fixtures.h - a golden checkpoint with a batch of many sequences: more tokens than
 * two of the smallest windows of hidden states (footprint.c), in sequences of several
 * lengths. */
#ifndef EXF_TESTS_MANY_FIXTURES_H
#define EXF_TESTS_MANY_FIXTURES_H
#include "base/mem.h"
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include <stdlib.h>
#include <string.h>

enum { MANY_TOKENS = 1200, MOST_SEQUENCES = 256 };

typedef struct {
    golden_case c; /* its batch is the large one */
    exf_span span[MOST_SEQUENCES];
    int32_t ids[MANY_TOKENS];
} many;

static inline void many_open(many *m, const char *family)
{
    golden_open(&m->c, family);
    const exf_batch *from = &m->c.batch;
    size_t n = 0, i = 0;
    for (;; i++) {
        const exf_span *s = &from->span[i % from->n_sequences];
        int length = s->n_tokens - (int)(i % 5);
        if (n + (size_t)length > MANY_TOKENS) break;
        ck_assert_uint_lt(i, MOST_SEQUENCES);
        memcpy(m->ids + n, from->ids + s->offset, (size_t)length * sizeof *m->ids);
        m->span[i] = (exf_span){n, length};
        n += (size_t)length;
    }
    m->c.batch = (exf_batch){m->ids, m->span, i, n, from->max_tokens};
}

static inline void many_close(many *m)
{
    golden_close(&m->c);
}

/* What a plan says within a limit; EXF_NOSPACE leaves the least in *least. */
static inline exf_code many_footprint(exf_forward_footprint *f, const many *m, const exf_backend *b, exf_compute compute,
                                      const exf_demand *d, uint64_t limit, uint64_t *least)
{
    exf_forward_options o = {.backend = b, .compute = compute, .max_device_memory = limit};
    exf_err err;
    exf_code rc = exf_forward_memory(f, &o, m->c.model, &m->c.batch, d, &err);
    if (rc == EXF_OK) return rc;
    const char *at = strstr(err.msg, "smallest that works is ");
    ck_assert_msg(rc == EXF_NOSPACE && at, "%s", err.msg);
    *least = strtoull(at + strlen("smallest that works is "), NULL, 10);
    return rc;
}

static inline uint64_t many_least(const many *m, const exf_backend *b, exf_compute compute, const exf_demand *d)
{
    exf_forward_footprint f;
    uint64_t least = 0;
    ck_assert_int_eq(many_footprint(&f, m, b, compute, d, 1, &least), EXF_NOSPACE);
    return least;
}
#endif

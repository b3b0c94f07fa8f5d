/* check_hidden.c - hidden states that come and go: on a device whose queues run in any
 * order that they allow, every group is what was last made of it. */
#include "base/hash.h"
#include "base/mem.h"
#include "pass/hidden.h"
#include "tests/support/fixtures.h"

#include <string.h>

/* ---- a device that does everything as late, and as early, as it may ------------------ */

typedef enum { COPY, WAIT, FILL, WORK, LOOK } kind;

typedef struct {
    kind kind;
    void *to;
    const void *from;
    size_t bytes;  /* of a copy */
    size_t row, n; /* of work: rows of the run */
    struct exf_queue *queue;
    size_t until; /* of a wait: operations that queue must have done */
} op;

enum { MOST_OPS = 1 << 13, MOST_QUEUES = 8, WIDTH = 3, MOST_ROWS = 4096 };

struct exf_queue {
    op ops[MOST_OPS];
    size_t n, done;
};

static struct exf_queue *queues[MOST_QUEUES];
static int n_queues;
static uint64_t draws, seed;
static double seen[MOST_ROWS]; /* what LOOK added up */
static exf_err e;

static void work(const op *o)
{
    float *rows = o->to;
    for (size_t i = 0; i < o->n; i++)
        for (size_t j = 0; j < WIDTH; j++) {
            float *x = &rows[i * WIDTH + j];
            if (o->kind == FILL) *x = (float)(o->row + i);
            if (o->kind == WORK) *x = *x * 0.5f + (float)((o->row + i) % 7) + (float)j;
            if (o->kind == LOOK) seen[o->row + i] += (double)*x;
        }
}

/* Does the queue's next operation, if it may. */
static int step(struct exf_queue *q)
{
    if (q->done == q->n) return 0;
    const op *o = &q->ops[q->done];
    if (o->kind == WAIT && o->queue->done < o->until) return 0;
    if (o->kind == COPY) memcpy(o->to, o->from, o->bytes);
    if (o->kind >= FILL) work(o);
    q->done++;
    return 1;
}

/* Queues at random, in runs of some length, until q has nothing to do. */
static exf_code finish(exf_queue *q, exf_err *err)
{
    (void)err;
    while (q->done < q->n) {
        struct exf_queue *any = queues[exf_rng_below((uint64_t)n_queues, seed, 1, draws++)];
        for (uint64_t k = exf_rng_below(6, seed, 2, draws++); k > 0 && step(any); k--) continue;
    }
    return EXF_OK;
}

static void put(exf_queue *q, op o)
{
    ck_assert_uint_lt(q->n, MOST_OPS);
    q->ops[q->n++] = o;
}

static exf_code open_queue(exf_queue **q, exf_compute compute, exf_err *err)
{
    (void)compute;
    ck_assert_int_lt(n_queues, MOST_QUEUES);
    exf_code rc = exf_mem_new(q, 1, sizeof **q, "test queue", err);
    if (rc == EXF_OK) queues[n_queues++] = *q;
    return rc;
}

static void close_queue(exf_queue *q)
{
    if (!q) return;
    exf_code rc = finish(q, &e);
    ck_assert_int_eq(rc, EXF_OK);
}

static void copy(exf_queue *q, void *to, const void *from, size_t bytes)
{
    put(q, (op){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}

static void follow(exf_queue *q, exf_queue *before)
{
    put(q, (op){.kind = WAIT, .queue = before, .until = before->n});
}

static exf_code alloc_staging(void *out, size_t bytes, const char *what, exf_err *err)
{
    return exf_mem_new(out, bytes, 1, what, err);
}

static const exf_gpu_operations lazy_gpu = {.wait_for = follow, .alloc_staging = alloc_staging, .free_staging = exf_mem_free};
static const exf_backend lazy = {.name = "lazy", .gpu = &lazy_gpu, .open = open_queue, .close = close_queue, .finish = finish,
                                 .alloc = exf_mem_new, .free = exf_mem_free, .copy = copy};

static void free_queues(void)
{
    for (int i = 0; i < n_queues; i++) exf_mem_free(queues[i]);
    n_queues = 0;
}

/* ---- runs --------------------------------------------------------------------------------- */

static exf_span spans[64];

static exf_batch batch_of(size_t n, int longest)
{
    exf_batch b = {.span = spans, .n_sequences = n};
    for (size_t i = 0; i < n; i++) {
        spans[i] = (exf_span){b.n_tokens, 1 + (int)exf_rng_below((uint64_t)longest, seed, 3, i)};
        b.n_tokens += (size_t)spans[i].n_tokens;
        if (spans[i].n_tokens > b.max_tokens) b.max_tokens = spans[i].n_tokens;
    }
    return b;
}

/* One sweep over a lane. */
static void sweep(exf_hidden *h, size_t lane, exf_hidden_use use, exf_queue *q)
{
    static const kind of[] = {[EXF_HIDDEN_READ] = LOOK, [EXF_HIDDEN_CHANGE] = WORK, [EXF_HIDDEN_FILL] = FILL};
    for (size_t g = 0; g < h->n_groups; g++) {
        float *rows = exf_hidden_take(h, lane, g, use, q);
        put(q, (op){.kind = of[use], .to = rows, .row = h->group[g].row, .n = h->group[g].n_rows});
        exf_hidden_give(h, lane, g, use, q);
        if (exf_rng_below(5, seed, 4, draws++) == 0) ck_ok(finish(q, &e), e);
    }
}

/* A run of a few layers over some lanes; every lane's rows at the end, as they are at home. */
static void run(const exf_batch *batch, size_t n_lanes, size_t window, float *out)
{
    exf_hidden h;
    exf_queue *q;
    memset(seen, 0, sizeof seen);
    ck_ok(open_queue(&q, EXF_COMPUTE_F32, &e), e);
    ck_ok(exf_hidden_open(&h, &lazy, EXF_COMPUTE_F32, batch, WIDTH, n_lanes, window, &e), e);
    sweep(&h, 0, EXF_HIDDEN_FILL, q);
    sweep(&h, 0, EXF_HIDDEN_CHANGE, q);
    for (size_t i = 1; i < n_lanes; i++) ck_ok(exf_hidden_copy(&h, i, 0, q, &e), e);
    for (int layer = 0; layer < 3; layer++)
        for (size_t i = 0; i < n_lanes; i++) {
            sweep(&h, i, EXF_HIDDEN_CHANGE, q);
            if (layer == 1) sweep(&h, i, EXF_HIDDEN_READ, q);
            if (layer < 2 || i != 1) sweep(&h, i, EXF_HIDDEN_CHANGE, q);
        }
    if (n_lanes == 1 && batch->n_sequences % 2) { /* made anew while something is coming */
        sweep(&h, 0, EXF_HIDDEN_READ, q);
        sweep(&h, 0, EXF_HIDDEN_FILL, q);
    }
    ck_ok(exf_hidden_settle(&h, &e), e);
    for (size_t s = 0; s < batch->n_sequences; s++) /* the head: some rows of every lane in turn */
        for (size_t i = 0; i < n_lanes; i++) {
            const float *rows = exf_hidden_rows(&h, i, batch->span[s].offset, (size_t)batch->span[s].n_tokens, q);
            copy(q, out + (i * batch->n_tokens + batch->span[s].offset) * WIDTH, rows,
                 (size_t)batch->span[s].n_tokens * WIDTH * sizeof *out);
        }
    ck_ok(finish(q, &e), e);
    exf_hidden_close(&h);
    free_queues();
}

START_TEST(any_order_of_the_queues_gives_the_same)
{
    static float want[3 * MOST_ROWS * WIDTH], got[3 * MOST_ROWS * WIDTH];
    static double looked[MOST_ROWS];
    seed = (uint64_t)_i;
    draws = 0;
    exf_batch batch = batch_of(1 + (size_t)_i % 40, 1 + _i % 60);
    size_t n_lanes = 1 + (size_t)_i % 3, longest = (size_t)batch.max_tokens,
           bytes = n_lanes * batch.n_tokens * WIDTH * sizeof *want;
    run(&batch, n_lanes, 0, want);
    memcpy(looked, seen, sizeof seen);
    for (size_t window = longest; window < 4 * longest; window += longest / 2 + 1) {
        memset(got, 0xff, bytes);
        run(&batch, n_lanes, window, got);
        ck_assert_msg(memcmp(want, got, bytes) == 0, "window %zu: other hidden states", window);
        ck_assert_msg(memcmp(looked, seen, sizeof seen) == 0, "window %zu: other states were looked at", window);
    }
}
END_TEST

START_TEST(groups_are_whole_sequences)
{
    exf_hidden h;
    seed = 5;
    exf_batch batch = batch_of(30, 40);
    size_t window = (size_t)batch.max_tokens + 9, sequences = 0, rows = 0;
    ck_ok(exf_hidden_open(&h, &lazy, EXF_COMPUTE_F32, &batch, WIDTH, 2, window, &e), e);
    ck_assert_uint_gt(h.n_groups, 2);
    for (size_t g = 0; g < h.n_groups; g++) {
        ck_assert(h.group[g].first == sequences && h.group[g].row == rows && h.group[g].row == batch.span[sequences].offset);
        ck_assert(h.group[g].n > 0 && h.group[g].n_rows <= window);
        sequences += h.group[g].n;
        rows += h.group[g].n_rows;
    }
    ck_assert(sequences == batch.n_sequences && rows == batch.n_tokens);
    ck_assert_uint_eq(exf_hidden_token_blocks(&batch, window, window), h.n_groups);
    ck_assert_uint_eq(exf_hidden_token_blocks(&batch, window, 1), batch.n_tokens);
    ck_assert_uint_eq(exf_hidden_token_blocks(&batch, 0, batch.n_tokens), 1);
    ck_assert_uint_eq(exf_hidden_token_blocks(&batch, 0, batch.n_tokens - 1), 2);
    exf_hidden_close(&h);
    free_queues();
    ck_ok(exf_hidden_open(&h, &lazy, EXF_COMPUTE_F32, &batch, WIDTH, 2, 0, &e), e);
    ck_assert(h.n_groups == 1 && h.group[0].n == 30 && h.group[0].n_rows == batch.n_tokens);
    exf_hidden_close(&h);
    uint64_t host;
    ck_assert_uint_eq(exf_hidden_bytes(&batch, WIDTH, 2, 0, &host), 2 * batch.n_tokens * WIDTH * 4);
    ck_assert_uint_eq(host, 0);
    ck_assert_uint_eq(exf_hidden_bytes(&batch, WIDTH, 2, 50, &host), 2 * 50 * WIDTH * 4);
    ck_assert_uint_eq(host, 2 * batch.n_tokens * WIDTH * 4);
}
END_TEST

void exf_suite(Suite *s)
{
    TCase *t = exf_case(s, "all");
    tcase_add_loop_test(t, any_order_of_the_queues_gives_the_same, 0, 48);
    tcase_add_test(t, groups_are_whole_sequences);
}

/* lanes_fixtures.h - what the tests of the pass's doors share: rewriters that do
 * something to every row, and passes of several lanes over a golden checkpoint. */
#ifndef EXF_TESTS_LANES_FIXTURES_H
#define EXF_TESTS_LANES_FIXTURES_H
#include "tests/support/fixtures.h"
#include "tests/support/golden_run.h"

#include "base/mem.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- rewriters ------------------------------------------------------------------- */

static inline exf_code rewrite_nothing(void *self, exf_routes *r, exf_err *err)
{
    (void)self;
    (void)r;
    (void)err;
    return EXF_OK;
}

/* Rows in turn: an empty slot, an expert twice, the next expert's neighbour, all empty but
 * one, as they were.  Stateless, as the door asks. */
static inline exf_code rewrite_oddly(void *self, exf_routes *r, exf_err *err)
{
    size_t k = (size_t)r->top_k;
    (void)self;
    (void)err;
    for (size_t row = 0; row < r->batch->n_tokens; row++) {
        int32_t *ids = r->ids + row * k;
        float *w = r->weights + row * k;
        switch (row % 5) {
        case 0: ids[0] = -1; break;
        case 1: ids[k - 1] = ids[0]; break;
        case 2: ids[1] = (ids[1] + 1 + r->layer) % r->n_experts; break;
        case 3:
            for (size_t i = 1; i < k; i++) ids[i] = -1;
            w[0] *= -1.5f;
            break;
        default: break;
        }
    }
    return EXF_OK;
}

/* self: the number of experts.  Pruned are those of number 2, 5, 8, ... and, in layers of odd
 * number, the first half of the first four. */
static inline const unsigned char *prune(void *self, int moe_index)
{
    static _Thread_local unsigned char retained[EXF_MAX_EXPERTS];
    int n = *(const int *)self;
    for (int e = 0; e < n; e++) retained[e] = e % 3 != 2 && !(moe_index % 2 && e < 2);
    return retained;
}

/* Few enough that groups of experts have but one left: the last of every four, and two more. */
static inline const unsigned char *prune_most(void *self, int moe_index)
{
    static _Thread_local unsigned char retained[EXF_MAX_EXPERTS];
    int n = *(const int *)self;
    (void)moe_index;
    for (int e = 0; e < n; e++) retained[e] = e % 4 == 3 || e >= n - 3;
    return retained;
}

/* Adds to every element the number of the token's first expert, as the router chose it, and
 * the output of the first slot; of the fake device, too, whose memory is the host's. */
static inline exf_code correct_by_first(void *self, const exf_moe_block *b, float *routed, exf_err *err)
{
    size_t k = (size_t)b->top_k, h = (size_t)b->d_model;
    const float *outputs = b->expert_outputs;
    (void)self;
    (void)err;
    ck_assert_int_eq(b->rounded, 0);
    for (size_t t = 0; t < (size_t)b->n_tokens; t++)
        for (size_t j = 0; j < h; j++)
            routed[t * h + j] += 0.01f * (float)b->router_ids[t * k] + b->router_weights[t * k] * outputs[t * k * h + j];
    return EXF_OK;
}

/* ---- probes ------------------------------------------------------------------------ */

/* What a lane's probes showed, by layer number, rows in batch order. */
typedef struct {
    size_t n_rows;
    int top_k, d_model;
    float *original[GOLDEN_LAYERS], *rewritten[GOLDEN_LAYERS];
    int32_t *ids[GOLDEN_LAYERS];
    atomic_size_t seen[GOLDEN_LAYERS]; /* rows */
} probe_seen;

static inline exf_code keep_probe(void *self, const exf_probe_block *b, exf_err *err)
{
    probe_seen *s = self;
    size_t h = (size_t)b->d_model, k = (size_t)b->top_k, n = (size_t)b->n_tokens;
    (void)err;
    memcpy(s->original[b->layer] + b->row * h, b->original, n * h * sizeof(float));
    memcpy(s->rewritten[b->layer] + b->row * h, b->rewritten, n * h * sizeof(float));
    memcpy(s->ids[b->layer] + b->row * k, b->topk_ids, n * k * sizeof(int32_t));
    atomic_fetch_add(&s->seen[b->layer], n);
    return EXF_OK;
}

static inline void probe_open(probe_seen *s, const exf_model *m, size_t n_rows)
{
    memset(s, 0, sizeof *s);
    s->n_rows = n_rows;
    s->top_k = m->arch.top_k;
    s->d_model = m->arch.d_model;
    for (int l = 0; l < m->arch.n_layers; l++) {
        s->original[l] = test_memory(n_rows * (size_t)s->d_model, 4);
        s->rewritten[l] = test_memory(n_rows * (size_t)s->d_model, 4);
        s->ids[l] = test_memory(n_rows * (size_t)s->top_k, 4);
    }
}

static inline void probe_free(probe_seen *s)
{
    for (int l = 0; l < GOLDEN_LAYERS; l++) {
        exf_mem_free(s->original[l]);
        exf_mem_free(s->rewritten[l]);
        exf_mem_free(s->ids[l]);
    }
}

/* ---- lanes ---------------------------------------------------------------------------- */

enum { MOST_LANES = 6 };

/* Lanes that all record what they show; a probe where `probes` is set. */
typedef struct {
    int n;
    exf_rewriter rewriter[MOST_LANES]; /* zero: none */
    int probes[MOST_LANES];
    golden_seen seen[MOST_LANES];
    probe_seen probe[MOST_LANES];
    const exf_backend *backend; /* NULL: the CPU */
    uint64_t limit;             /* of its memory */
    exf_forward_report report;
} lanes_run;

/* One observer's self serves two recorders. */
typedef struct {
    golden_seen *seen;
    probe_seen *probe;
    exf_observer inner;
} watcher;

static inline exf_code watch_layer(void *self, const exf_moment *m, exf_err *err)
{
    watcher *w = self;
    return w->inner.at(w->seen, m, err);
}

static inline exf_code watch_block(void *self, const exf_moe_block *b, exf_err *err)
{
    watcher *w = self;
    return w->inner.block(w->seen, b, err);
}

static inline exf_code watch_logits(void *self, const exf_logits_block *b, exf_err *err)
{
    watcher *w = self;
    return w->inner.logits(w->seen, b, err);
}

static inline exf_code watch_probe(void *self, const exf_probe_block *b, exf_err *err)
{
    return keep_probe(((watcher *)self)->probe, b, err);
}

static inline void lanes_forward(lanes_run *r, const golden_case *c, int threads)
{
    exf_err err = {.code = EXF_OK};
    exf_observer observer[MOST_LANES];
    exf_lane lanes[MOST_LANES];
    watcher w[MOST_LANES];
    exf_forward_options options = {.backend = r->backend, .threads = threads, .max_device_memory = r->limit};
    for (int i = 0; i < r->n; i++) {
        const exf_rewriter *t = &r->rewriter[i];
        w[i] = (watcher){&r->seen[i], &r->probe[i], golden_observer(&r->seen[i], c->model, c->batch.n_tokens)};
        r->seen[i].logits = test_memory(c->batch.n_tokens * (size_t)c->model->arch.vocab, 4);
        if (r->probes[i]) probe_open(&r->probe[i], c->model, c->batch.n_tokens);
        observer[i] = (exf_observer){.self = &w[i], .at = watch_layer, .block = watch_block, .logits = watch_logits,
                                     .probe = r->probes[i] ? watch_probe : NULL};
        lanes[i] = (exf_lane){t->rewrite || t->retained_experts || t->correct ? t : NULL, &observer[i]};
    }
    ck_ok(exf_forward(c->model, &c->batch, lanes, (size_t)r->n, &options, &r->report, &err), err);
}

static inline void lanes_free(lanes_run *r)
{
    for (int i = 0; i < r->n; i++) {
        golden_free(&r->seen[i]);
        if (r->probes[i]) probe_free(&r->probe[i]);
    }
}

/* ---- comparing ---------------------------------------------------------------------------- */

static inline void assert_same_bits(const void *a, const void *b, size_t n, const char *family, const char *what, int layer)
{
    ck_assert_msg(memcmp(a, b, n * 4) == 0, "%s: layer %d: %s differ", family, layer, what);
}

static inline void assert_same_lane(const golden_case *c, const golden_seen *a, const golden_seen *b)
{
    size_t n = a->n_rows, h = (size_t)a->d_model, k = (size_t)a->top_k;
    for (int l = 0; l < c->model->arch.n_layers; l++) {
        if (!c->model->arch.is_moe[l]) continue;
        assert_same_bits(a->moe_input[l], b->moe_input[l], n * h, c->family, "inputs", l);
        assert_same_bits(a->ids[l], b->ids[l], n * k, c->family, "ids", l);
        assert_same_bits(a->weights[l], b->weights[l], n * k, c->family, "weights", l);
        assert_same_bits(a->expert_outputs[l], b->expert_outputs[l], n * k * h, c->family, "expert outputs", l);
        assert_same_bits(a->routed[l], b->routed[l], n * h, c->family, "routed outputs", l);
        assert_same_bits(a->block[l], b->block[l], n * h, c->family, "block outputs", l);
    }
    assert_same_bits(a->logits, b->logits, n * (size_t)a->vocab, c->family, "logits", -1);
}

static inline int first_moe_layer(const exf_architecture *a)
{
    int l = 0;
    while (!a->is_moe[l]) l++;
    return l;
}

static inline int is_hashed(const golden_case *c, int layer)
{
    return (c->model->arch.traits[layer] & EXF_T_HASHED) != 0;
}
#endif

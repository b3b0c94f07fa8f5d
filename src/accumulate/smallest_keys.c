/* smallest_keys.c - chooses the tokens, or pairs of slots, of a layer's samples; see smallest_keys.h. */
#include "accumulate/smallest_keys.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char what[] = "samples";

exf_code exf_smallest_keys_new(exf_smallest_keys *s, size_t cap, exf_err *err)
{
    exf_code rc;
    *s = (exf_smallest_keys){.cap = cap};
    EXF_TRY(exf_mem_new(&s->chosen, cap, sizeof *s->chosen, what, err));
    EXF_TRY(exf_mem_new(&s->by_row, cap, sizeof *s->by_row, what, err));
out:
    if (rc != EXF_OK) exf_smallest_keys_free(s);
    return rc;
}

/* The keys of a layer that has not begun. */
struct exf_keys_ahead {
    exf_smallest_keys keys;
    exf_key_rule rule;
    exf_background work;
    int begun; /* 1: keys are, or soon will be, the rule's */
};

void exf_smallest_keys_free(exf_smallest_keys *s)
{
    if (s->ahead) {
        exf_background_end(&s->ahead->work);
        exf_smallest_keys_free(&s->ahead->keys);
    }
    exf_mem_free(s->ahead);
    exf_mem_free(s->chosen);
    exf_mem_free(s->by_row);
    memset(s, 0, sizeof *s);
}

typedef struct {
    exf_keyed_candidate *all;
    size_t n, cap;
} candidates;

enum { PARTS = 64 }; /* of the sequences, listed in parallel */

typedef struct {
    const exf_key_rule *rule;
    int helpers;             /* threads */
    uint64_t limit;          /* the largest key that is listed */
    size_t first[PARTS + 1]; /* sequences [first[i], first[i + 1]) are part i */
    size_t row[PARTS];       /* row of a part's first token */
    candidates part[PARTS];
} listing;

/* Lists the candidates of sequence i; its first token has that row. */
static exf_code list_sequence(candidates *c, const listing *l, size_t i, size_t row, exf_err *err)
{
    const exf_key_rule *r = l->rule;
    uint64_t own, each = (uint64_t)r->each, end = (uint64_t)r->sequences->length[i] * each;
    exf_code rc = EXF_OK;
    memcpy(&own, r->sequences->sha256[i], sizeof own);
    own = exf_rng_u64(own, r->seed, (uint64_t)r->layer);
    for (uint64_t place = 0; place < end; place++) {
        uint64_t key = exf_rng_u64(own, r->stream, place);
        if (key > l->limit) continue;
        if (c->n == c->cap) EXF_TRY(exf_mem_grow(&c->all, &c->cap, c->n + 1, sizeof *c->all, what, err));
        c->all[c->n++] = (exf_keyed_candidate){key, own, place, row + (size_t)(place / each)};
    }
out:
    return rc;
}

/* Lists the candidates with a key of at most the limit. */
static exf_code list_all(candidates *c, listing *l, exf_err *err)
{
    exf_loop loop = EXF_LOOP;
    exf_code rc;
    c->n = 0;
#pragma omp parallel for schedule(dynamic) num_threads(exf_team(PARTS, l->helpers))
    for (size_t i = 0; i < PARTS; i++) {
        size_t row = l->row[i];
        exf_code listed = EXF_OK;
        exf_err e;
        if (!exf_loop_takes(&loop, i)) continue;
        l->part[i].n = 0;
        for (size_t q = l->first[i]; listed == EXF_OK && q < l->first[i + 1]; q++) {
            listed = list_sequence(&l->part[i], l, q, row, &e);
            row += (size_t)l->rule->sequences->length[q];
        }
        if (listed != EXF_OK) exf_loop_fail(&loop, i, &e);
    }
    EXF_TRY(exf_loop_end(&loop, err));
    for (size_t p = 0; p < PARTS; p++) {
        size_t n = l->part[p].n;
        if (n == 0) continue;
        if (c->n + n > c->cap) EXF_TRY(exf_mem_grow(&c->all, &c->cap, c->n + n, sizeof *c->all, what, err));
        memcpy(c->all + c->n, l->part[p].all, n * sizeof *c->all);
        c->n += n;
    }
out:
    return rc;
}

/* Lists the candidates below a limit under which about the wanted number lies, and doubles the limit while they are too few. */
static exf_code list_enough(candidates *c, const exf_key_rule *rule, double total, size_t wanted, int helpers, exf_err *err)
{
    const exf_sequence_list *q = rule->sequences;
    double share;
    size_t row = 0;
    listing *l = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&l, 1, sizeof *l, what, err));
    l->rule = rule;
    l->helpers = helpers;
    for (size_t p = 0; p < PARTS; p++) { /* parts of about the same number of sequences */
        l->first[p] = q->n * p / PARTS;
        l->first[p + 1] = q->n * (p + 1) / PARTS;
        l->row[p] = row;
        for (size_t i = l->first[p]; i < l->first[p + 1]; i++) row += (size_t)q->length[i];
    }
    for (share = ((double)wanted + 4 * sqrt((double)wanted) + 16) / total;; share *= 2) {
        l->limit = share >= 1 ? UINT64_MAX : (uint64_t)(share * 0x1p63) * 2;
        EXF_TRY(list_all(c, l, err));
        if (c->n >= wanted || l->limit == UINT64_MAX) break;
    }
out:
    for (size_t p = 0; l && p < PARTS; p++) exf_mem_free(l->part[p].all);
    exf_mem_free(l);
    return rc;
}

static int compare(uint64_t x, uint64_t y)
{
    return (x > y) - (x < y);
}

static int by_key(const void *a, const void *b)
{
    const exf_keyed_candidate *x = a, *y = b;
    if (x->key != y->key) return compare(x->key, y->key);
    return x->row != y->row ? compare(x->row, y->row) : compare(x->place, y->place);
}

typedef struct {
    uint64_t place;
    size_t row, index;
} indexed;

static int by_row(const void *a, const void *b)
{
    const indexed *x = a, *y = b;
    return x->row != y->row ? compare(x->row, y->row) : compare(x->place, y->place);
}

static exf_code choose(exf_smallest_keys *s, const exf_key_rule *rule, int helpers, exf_err *err)
{
    candidates c = {NULL, 0, 0};
    indexed *all = NULL;
    double total = 0;
    exf_code rc;
    s->n = 0;
    for (size_t i = 0; i < rule->sequences->n; i++) total += (double)rule->sequences->length[i] * rule->each;
    if (s->cap == 0 || total == 0) return EXF_OK;
    EXF_TRY(list_enough(&c, rule, total, s->cap, helpers, err));
    qsort(c.all, c.n, sizeof *c.all, by_key);
    s->n = c.n < s->cap ? c.n : s->cap;
    memcpy(s->chosen, c.all, s->n * sizeof *s->chosen);
    EXF_TRY(exf_mem_new(&all, s->n, sizeof *all, what, err));
    for (size_t i = 0; i < s->n; i++) all[i] = (indexed){s->chosen[i].place, s->chosen[i].row, i};
    qsort(all, s->n, sizeof *all, by_row);
    for (size_t i = 0; i < s->n; i++) s->by_row[i] = all[i].index;
out:
    exf_mem_free(all);
    exf_mem_free(c.all);
    return rc;
}

static exf_code choose_ahead(void *self, exf_err *err)
{
    struct exf_keys_ahead *a = self;
    return choose(&a->keys, &a->rule, 1, err);
}

/* Begins to choose the keys of layer `next`. */
static exf_code begin_ahead(exf_smallest_keys *s, const exf_key_rule *rule, int next, exf_err *err)
{
    exf_code rc = EXF_OK;
    if (next < 0 || s->cap == 0) return EXF_OK;
    if (!s->ahead) {
        EXF_TRY(exf_mem_new(&s->ahead, 1, sizeof *s->ahead, what, err));
        EXF_TRY(exf_smallest_keys_new(&s->ahead->keys, s->cap, err));
    }
    s->ahead->rule = *rule;
    s->ahead->rule.layer = next;
    s->ahead->begun = 1;
    rc = exf_background_start(&s->ahead->work, choose_ahead, s->ahead, err);
out:
    return rc;
}

exf_code exf_smallest_keys_choose(exf_smallest_keys *s, const exf_key_rule *rule, int next, exf_err *err)
{
    struct exf_keys_ahead *a = s->ahead;
    exf_code rc;
    if (a && a->begun) {
        const exf_key_rule *ahead = &a->rule;
        a->begun = 0;
        EXF_TRY(exf_background_wait(&a->work, err));
        if (rule->sequences == ahead->sequences && rule->each == ahead->each && rule->layer == ahead->layer &&
            rule->seed == ahead->seed && rule->stream == ahead->stream) {
            exf_smallest_keys old = *s, chosen = a->keys;
            *s = chosen;
            s->ahead = a;
            a->keys = (exf_smallest_keys){.cap = old.cap, .chosen = old.chosen, .by_row = old.by_row};
            return begin_ahead(s, rule, next, err);
        }
    }
    EXF_TRY(choose(s, rule, exf_background_threads(), err));
    rc = begin_ahead(s, rule, next, err);
out:
    return rc;
}

size_t exf_smallest_keys_first(const exf_smallest_keys *s, size_t row)
{
    size_t low = 0, high = s->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->chosen[s->by_row[middle]].row < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- samples of several ranks ----------------------------------------------------------------------- */

/* By rising row each rank's are one piece. */
exf_code exf_gather_samples(exf_ranks *r, const exf_smallest_keys *keys, exf_run_rows own, void *values, size_t bytes, exf_err *err)
{
    size_t first = exf_smallest_keys_first(keys, own.first), end = exf_smallest_keys_first(keys, own.first + own.n);
    size_t from = exf_ranks_first(r) ? 0 : first, n = exf_ranks_first(r) ? keys->n : end - first;
    char *by_row = NULL, *value = values;
    exf_code rc;
    if (!r) return EXF_OK;
    EXF_TRY(exf_mem_raw(&by_row, n, bytes, "samples", err));
    for (size_t at = first; at < end; at++) memcpy(by_row + (at - from) * bytes, value + keys->by_row[at] * bytes, bytes);
    EXF_TRY(exf_ranks_gather_parts(r, by_row + (first - from) * bytes, (end - first) * bytes, first * bytes, by_row, err));
    for (size_t at = 0; exf_ranks_first(r) && at < n; at++) memcpy(value + keys->by_row[at] * bytes, by_row + at * bytes, bytes);
    exf_mem_free(by_row);
out:
    return rc; /* after a failure by_row stays (ranks.h) */
}

enum { STAGING = 1 << 25 };

exf_code exf_device_gatherer_open(exf_device_gatherer *g, exf_ranks *ranks, const exf_backend *b, exf_err *err)
{
    *g = (exf_device_gatherer){.ranks = ranks, .b = b};
    return ranks ? b->gpu->alloc_staging((void *)&g->staging, STAGING, "samples of ranks", err) : EXF_OK;
}

void exf_device_gatherer_free(exf_device_gatherer *g)
{
    if (g->staging) g->b->gpu->free_staging(g->staging);
    *g = (exf_device_gatherer){.ranks = NULL};
}

/* By way of staging memory, a piece at a time. */
exf_code exf_device_gather(exf_device_gatherer *g, exf_queue *q, size_t first, size_t end, size_t n, void *values,
                           size_t bytes, exf_err *err)
{
    size_t most = STAGING / bytes;
    exf_code rc = EXF_OK;
    for (size_t at = 0; g->ranks && at < n; at += most) {
        size_t stop = n - at < most ? n : at + most, from = first < at ? at : first, to = end < stop ? end : stop;
        size_t own = from < to ? (to - from) * bytes : 0, offset = own ? (from - at) * bytes : 0;
        char *there = g->staging + offset, *piece = (char *)values + at * bytes;
        if (own) EXF_TRY(g->b->download(q, there, piece + offset, own, err));
        rc = exf_ranks_gather_parts(g->ranks, there, own, offset, g->staging, err);
        if (rc != EXF_OK) g->staging = NULL; /* stays (ranks.h) */
        if (rc != EXF_OK) goto out;
        if (!exf_ranks_first(g->ranks)) continue;
        g->b->copy(q, piece, g->staging, (stop - at) * bytes);
        EXF_TRY(g->b->finish(q, err));
    }
out:
    return rc;
}

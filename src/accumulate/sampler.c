/* sampler.c - choosing and keeping tokens of a layer; see sampler.h. */
#include "accumulate/accumulate_internal.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the smallest keys --------------------------------------------------------------------------- */

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

/* Cuts the sequences into parts of about the same number. */
static void cut_into_parts(listing *l)
{
    const exf_sequence_list *q = l->rule->sequences;
    size_t row = 0;
    for (size_t p = 0; p < PARTS; p++) {
        l->first[p] = q->n * p / PARTS;
        l->first[p + 1] = q->n * (p + 1) / PARTS;
        l->row[p] = row;
        for (size_t i = l->first[p]; i < l->first[p + 1]; i++) row += (size_t)q->length[i];
    }
}

/* Lists the candidates of sequence i, whose first token has that row. */
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

static exf_code list_part(listing *l, size_t p, exf_err *err)
{
    size_t row = l->row[p];
    exf_code rc = EXF_OK;
    l->part[p].n = 0;
    for (size_t i = l->first[p]; rc == EXF_OK && i < l->first[p + 1]; i++) {
        rc = list_sequence(&l->part[p], l, i, row, err);
        row += (size_t)l->rule->sequences->length[i];
    }
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
        exf_err e;
        if (exf_loop_takes(&loop, i) && list_part(l, i, &e) != EXF_OK) exf_loop_fail(&loop, i, &e);
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
    double share;
    listing *l = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&l, 1, sizeof *l, what, err));
    l->rule = rule;
    l->helpers = helpers;
    cut_into_parts(l);
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

static exf_code index_rows(exf_smallest_keys *s, exf_err *err)
{
    indexed *all = NULL;
    exf_code rc = exf_mem_new(&all, s->n, sizeof *all, what, err);
    if (rc != EXF_OK) return rc;
    for (size_t i = 0; i < s->n; i++) all[i] = (indexed){s->chosen[i].place, s->chosen[i].row, i};
    qsort(all, s->n, sizeof *all, by_row);
    for (size_t i = 0; i < s->n; i++) s->by_row[i] = all[i].index;
    exf_mem_free(all);
    return EXF_OK;
}

static exf_code choose(exf_smallest_keys *s, const exf_key_rule *rule, int helpers, exf_err *err)
{
    candidates c = {NULL, 0, 0};
    double total = 0;
    exf_code rc;
    s->n = 0;
    for (size_t i = 0; i < rule->sequences->n; i++) total += (double)rule->sequences->length[i] * rule->each;
    if (s->cap == 0 || total == 0) return EXF_OK;
    EXF_TRY(list_enough(&c, rule, total, s->cap, helpers, err));
    qsort(c.all, c.n, sizeof *c.all, by_key);
    s->n = c.n < s->cap ? c.n : s->cap;
    memcpy(s->chosen, c.all, s->n * sizeof *s->chosen);
    rc = index_rows(s, err);
out:
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

static int same_rule(const exf_key_rule *a, const exf_key_rule *b)
{
    return a->sequences == b->sequences && a->each == b->each && a->layer == b->layer && a->seed == b->seed &&
           a->stream == b->stream;
}

exf_code exf_smallest_keys_choose(exf_smallest_keys *s, const exf_key_rule *rule, int next, exf_err *err)
{
    struct exf_keys_ahead *a = s->ahead;
    exf_code rc;
    if (a && a->begun) {
        a->begun = 0;
        EXF_TRY(exf_background_wait(&a->work, err));
        if (same_rule(rule, &a->rule)) {
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

/* ---- samples of the low-rank basis ------------------------------------------------------------------- */

exf_code exf_sampler_make_room(exf_sampler *s, int d_model, exf_err *err)
{
    size_t floats;
    exf_code rc;
    EXF_TRY(exf_mem_mul(&floats, s->keys.cap, (size_t)d_model, "samples", err));
    EXF_TRY(exf_mem_new(&s->source, floats, sizeof *s->source, "samples", err));
    EXF_TRY(exf_mem_new(&s->target, floats, sizeof *s->target, "samples", err));
out:
    return rc;
}

exf_code exf_sampler_new(exf_sampler *s, size_t samples, int d_model, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_smallest_keys_new(&s->keys, samples, err));
    EXF_TRY(exf_mem_new(&s->slot, samples, 2 * sizeof *s->slot, "samples", err));
    EXF_TRY(exf_mem_new(&s->pair, samples, 2 * sizeof *s->pair, "samples", err));
    if (d_model) EXF_TRY(exf_sampler_make_room(s, d_model, err));
out:
    if (rc != EXF_OK) exf_sampler_free(s);
    return rc;
}

void exf_sampler_free(exf_sampler *s)
{
    exf_smallest_keys_free(&s->keys);
    exf_mem_free(s->slot);
    exf_mem_free(s->pair);
    exf_mem_free(s->source);
    exf_mem_free(s->target);
    memset(s, 0, sizeof *s);
}

exf_code exf_sampler_choose(exf_sampler *s, const exf_sequence_list *sequences, int top_k, int layer, int next, uint64_t seed,
                            exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = top_k, .layer = layer, .seed = seed, .stream = 0};
    exf_code rc;
    s->keys.n = s->n = 0;
    if (top_k < 2) return EXF_OK;
    EXF_TRY(exf_smallest_keys_choose(&s->keys, &rule, next, err));
    s->n = s->keys.n;
    for (size_t i = 0; i < s->n; i++) {
        const exf_keyed_candidate *c = &s->keys.chosen[i];
        int32_t source = (int32_t)(c->place % (uint64_t)top_k);
        s->slot[2 * i] = source;
        s->slot[2 * i + 1] = (source + 1 + (int32_t)exf_rng_below((uint64_t)(top_k - 1), c->own, 1, c->place)) % top_k;
    }
out:
    return rc;
}

void exf_sampler_clear(const exf_sampler *s, int d_model)
{
    size_t floats = s->keys.cap * (size_t)d_model;
    memset(s->source, 0, floats * sizeof *s->source);
    memset(s->target, 0, floats * sizeof *s->target);
    memset(s->pair, 0, s->keys.cap * 2 * sizeof *s->pair);
}

void exf_sampler_keep(const exf_sampler *s, const exf_moe_block *b)
{
    size_t h = (size_t)b->d_model, k = (size_t)b->top_k, first = s->first_row + b->row;
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        size_t source = (row - first) * k + (size_t)s->slot[2 * i], target = (row - first) * k + (size_t)s->slot[2 * i + 1];
        memcpy(s->source + i * h, b->expert_outputs + source * h, h * sizeof *s->source);
        memcpy(s->target + i * h, b->expert_outputs + target * h, h * sizeof *s->target);
        s->pair[2 * i] = b->topk_ids[source];
        s->pair[2 * i + 1] = b->topk_ids[target];
    }
}

/* ---- routes -------------------------------------------------------------------------------------- */

enum { STREAM = 2 }; /* of random numbers: the sampler of residuals uses 0 and 1 */

size_t exf_route_sampler_tokens(int64_t wanted, int64_t n_tokens)
{
    return (size_t)(wanted < n_tokens ? wanted : n_tokens);
}

exf_code exf_route_sampler_new(exf_route_sampler *s, size_t tokens, int top_k, int q, exf_err *err)
{
    exf_code rc;
    memset(s, 0, sizeof *s);
    EXF_TRY(exf_route_sample_new(&s->sample, tokens, top_k, err));
    EXF_TRY(exf_route_sample_add_head(&s->sample, q, err));
    EXF_TRY(exf_smallest_keys_new(&s->keys, tokens, err));
out:
    if (rc != EXF_OK) exf_route_sampler_free(s);
    return rc;
}

void exf_route_sampler_free(exf_route_sampler *s)
{
    void *device_arrays[] = {s->slot, s->ids, s->weights, s->projected, s->norm, s->logits},
         *host_arrays[] = {s->slot_host, s->ids_host, s->weights_host, s->projected_host, s->norm_host, s->logits_host};
    for (size_t i = 0; s->b && i < sizeof device_arrays / sizeof *device_arrays; i++) s->b->free(device_arrays[i]);
    for (size_t i = 0; i < sizeof host_arrays / sizeof *host_arrays; i++) exf_mem_free(host_arrays[i]);
    exf_smallest_keys_free(&s->keys);
    exf_route_sample_free(&s->sample);
    memset(s, 0, sizeof *s);
}

void exf_route_sampler_share(exf_route_sampler *s, size_t first_row)
{
    s->shared = 1;
    s->first_row = first_row;
}

exf_code exf_route_sampler_choose(exf_route_sampler *s, const exf_sequence_list *sequences, int layer, int next, exf_err *err)
{
    exf_key_rule rule = {.sequences = sequences, .each = 1, .layer = layer, .seed = STREAM, .stream = STREAM};
    size_t slots = s->sample.cap * (size_t)s->sample.top_k;
    exf_code rc;
    if (s->shared) {
        memset(s->sample.ids, 0, slots * sizeof *s->sample.ids);
        memset(s->sample.weights, 0, slots * sizeof *s->sample.weights);
        if (s->sample.q) memset(s->sample.head, 0, s->sample.cap * exf_route_sample_head(&s->sample) * sizeof *s->sample.head);
    }
    s->sample.n = 0;
    EXF_TRY(exf_smallest_keys_choose(&s->keys, &rule, next, err));
    s->sample.n = s->keys.n;
    for (size_t i = 0; i < s->keys.n; i++) s->sample.key[i] = s->keys.chosen[i].key;
out:
    return rc;
}

static void keep_routes(exf_route_sampler *s, size_t i, const int32_t *ids, const float *weights)
{
    size_t k = (size_t)s->sample.top_k;
    memcpy(s->sample.ids + i * k, ids, k * sizeof *ids);
    memcpy(s->sample.weights + i * k, weights, k * sizeof *weights);
}

void exf_route_sampler_keep(exf_route_sampler *s, const exf_moe_block *b, const double *basis)
{
    size_t first = s->first_row + b->row, width = exf_route_sample_head(&s->sample);
    for (size_t at = exf_smallest_keys_first(&s->keys, first); at < s->sample.n; at++) {
        size_t i = s->keys.by_row[at], row = s->keys.chosen[i].row;
        if (row >= first + (size_t)b->n_tokens) break;
        size_t slot = (row - first) * (size_t)b->top_k;
        keep_routes(s, i, b->router_ids + slot, b->router_weights + slot);
        if (width) exf_norm_head_of_token(s->sample.head + i * width, basis, s->sample.q, b, row - first);
    }
}

uint64_t exf_route_sampler_device_bytes(size_t tokens, int top_k, int q)
{
    uint64_t k = (uint64_t)top_k, head = q ? (uint64_t)(q + 1) * sizeof(double) + k * sizeof(float) : 0;
    return (uint64_t)tokens * (sizeof(int32_t) + k * (sizeof(int32_t) + sizeof(float)) + head);
}

/* Allocates what the norm head's features need. */
static exf_code open_head(exf_route_sampler *s, exf_err *err)
{
    size_t n = s->sample.cap, k = (size_t)s->sample.top_k, q = (size_t)s->sample.q;
    exf_code rc = EXF_OK;
    if (!q) return EXF_OK;
    EXF_TRY(s->b->alloc(&s->projected, n * q, sizeof *s->projected, "route sample", err));
    EXF_TRY(s->b->alloc(&s->norm, n, sizeof *s->norm, "route sample", err));
    EXF_TRY(s->b->alloc(&s->logits, n * k, sizeof *s->logits, "route sample", err));
    EXF_TRY(exf_mem_new(&s->projected_host, n * q, sizeof *s->projected_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->norm_host, n, sizeof *s->norm_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->logits_host, n * k, sizeof *s->logits_host, "route sample", err));
out:
    return rc;
}

exf_code exf_route_sampler_open_device(exf_route_sampler *s, const exf_backend *b, exf_err *err)
{
    size_t n = s->sample.cap, slots = n * (size_t)s->sample.top_k;
    exf_code rc;
    s->b = b;
    EXF_TRY(b->alloc(&s->slot, n, sizeof *s->slot, "route sample", err));
    EXF_TRY(b->alloc(&s->ids, slots, sizeof *s->ids, "route sample", err));
    EXF_TRY(b->alloc(&s->weights, slots, sizeof *s->weights, "route sample", err));
    EXF_TRY(exf_mem_new(&s->slot_host, n, sizeof *s->slot_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->ids_host, slots, sizeof *s->ids_host, "route sample", err));
    EXF_TRY(exf_mem_new(&s->weights_host, slots, sizeof *s->weights_host, "route sample", err));
    EXF_TRY(open_head(s, err));
out:
    return rc;
}

static void gather_head(const exf_route_sampler *s, const exf_device_block *b, const double *projected, const double *norm,
                        size_t first, int n)
{
    int q = s->sample.q, k = b->top_k;
    const int32_t *slot = s->slot + first;
    float *to = (float *)(void *)(s->projected + first * (size_t)q), *to_norm = (float *)(void *)(s->norm + first);
    s->b->gather_rows(b->q, to, (const float *)(const void *)projected, slot, n, 2 * q);
    s->b->gather_rows(b->q, to_norm, (const float *)(const void *)norm, slot, n, 2);
    s->b->gather_rows(b->q, s->logits + first * (size_t)k, b->slot_logits, slot, n, k);
}

/* gather_rows() copies bits, so ids pass as floats, and a double as two of them.  Each token has a place of its own in slot_host,
 * which copies still read when this returns. */
void exf_route_sampler_keep_device(exf_route_sampler *s, const exf_device_block *b, const double *projected, const double *norm)
{
    size_t row = s->first_row + b->row, k = (size_t)b->top_k;
    size_t first = exf_smallest_keys_first(&s->keys, row);
    size_t end = exf_smallest_keys_first(&s->keys, row + (size_t)b->n_tokens), n = end - first;
    if (n == 0) return;
    for (size_t at = first; at < end; at++) s->slot_host[at] = (int32_t)(s->keys.chosen[s->keys.by_row[at]].row - row);
    s->b->upload(b->q, s->slot + first, s->slot_host + first, n * sizeof *s->slot);
    s->b->gather_rows(b->q, (float *)(void *)(s->ids + first * k), (const float *)(const void *)b->router_ids, s->slot + first,
                      (int)n, b->top_k);
    s->b->gather_rows(b->q, s->weights + first * k, b->router_weights, s->slot + first, (int)n, b->top_k);
    if (s->sample.q) gather_head(s, b, projected, norm, first, (int)n);
    if (!s->q || first < s->first) s->first = first;
    if (!s->q || end > s->end) s->end = end;
    s->q = b->q;
}

/* Fetches the norm head's features of the gathered tokens. */
static exf_code take_head(exf_route_sampler *s, exf_err *err)
{
    size_t k = (size_t)s->sample.top_k, q = (size_t)s->sample.q, first = s->first, n = s->end - first;
    exf_code rc = EXF_OK;
    if (!q) return EXF_OK;
    EXF_TRY(s->b->download(s->q, s->projected_host + first * q, s->projected + first * q, n * q * sizeof *s->projected, err));
    EXF_TRY(s->b->download(s->q, s->norm_host + first, s->norm + first, n * sizeof *s->norm, err));
    EXF_TRY(s->b->download(s->q, s->logits_host + first * k, s->logits + first * k, n * k * sizeof *s->logits, err));
    for (size_t at = first; at < s->end; at++) {
        float *to = s->sample.head + s->keys.by_row[at] * exf_route_sample_head(&s->sample);
        for (size_t i = 0; i < q; i++) to[i] = (float)s->projected_host[at * q + i];
        to[q] = (float)s->norm_host[at];
        memcpy(to + q + 1, s->logits_host + at * k, k * sizeof *to);
    }
out:
    return rc;
}

exf_code exf_route_sampler_take_device(exf_route_sampler *s, exf_err *err)
{
    size_t k = (size_t)s->sample.top_k, from = s->first * k, slots = (s->end - s->first) * k;
    exf_code rc = EXF_OK;
    if (!s->q) return EXF_OK;
    EXF_TRY(s->b->download(s->q, s->ids_host + from, s->ids + from, slots * sizeof *s->ids, err));
    EXF_TRY(s->b->download(s->q, s->weights_host + from, s->weights + from, slots * sizeof *s->weights, err));
    EXF_TRY(take_head(s, err));
    for (size_t at = s->first; at < s->end; at++)
        keep_routes(s, s->keys.by_row[at], s->ids_host + at * k, s->weights_host + at * k);
out:
    s->q = NULL;
    return rc;
}

/* smallest_keys.c - see smallest_keys.h. */
#include "accumulate/smallest_keys.h"

#include "base/mem.h"
#include "base/rng.h"
#include "base/thread_pool.h"

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

void exf_smallest_keys_free(exf_smallest_keys *s)
{
    exf_mem_free(s->chosen);
    exf_mem_free(s->by_row);
    memset(s, 0, sizeof *s);
}

/* ---- listing ------------------------------------------------------------------------ */

typedef struct {
    exf_keyed_candidate *all;
    size_t n, cap;
} candidates;

enum { PARTS = 64 }; /* of the sequences, listed side by side */

typedef struct {
    const exf_key_rule *rule;
    uint64_t limit;          /* keys of at most that are listed */
    size_t first[PARTS + 1]; /* sequences [first[i], first[i + 1]) are part i */
    size_t row[PARTS];       /* row of a part's first token */
    candidates part[PARTS];
} listing;

/* Cuts the sequences into parts of about equally many. */
static void cut(listing *l)
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

static exf_code list_part(void *self, size_t p, int worker, exf_err *err)
{
    listing *l = self;
    size_t row = l->row[p];
    exf_code rc = EXF_OK;
    (void)worker;
    l->part[p].n = 0;
    for (size_t i = l->first[p]; rc == EXF_OK && i < l->first[p + 1]; i++) {
        rc = list_sequence(&l->part[p], l, i, row, err);
        row += (size_t)l->rule->sequences->length[i];
    }
    return rc;
}

/* Lists the candidates with a key of at most the limit. */
static exf_code list(candidates *c, listing *l, exf_err *err)
{
    exf_code rc;
    c->n = 0;
    EXF_TRY(exf_parallel_for(PARTS, exf_background_threads(), list_part, l, err));
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

static double count_all(const exf_key_rule *r)
{
    double total = 0;
    for (size_t i = 0; i < r->sequences->n; i++) total += (double)r->sequences->length[i] * r->each;
    return total;
}

/* Lists candidates below a limit that about as many meet as are wanted, with a larger limit if they are too few. */
static exf_code list_enough(candidates *c, const exf_key_rule *rule, size_t wanted, exf_err *err)
{
    double total = count_all(rule), share;
    listing *l = NULL;
    exf_code rc;
    EXF_TRY(exf_mem_new(&l, 1, sizeof *l, what, err));
    l->rule = rule;
    cut(l);
    for (share = ((double)wanted + 4 * sqrt((double)wanted) + 16) / total;; share *= 2) {
        l->limit = share >= 1 ? UINT64_MAX : (uint64_t)(share * 0x1p63) * 2;
        EXF_TRY(list(c, l, err));
        if (c->n >= wanted || l->limit == UINT64_MAX) break;
    }
out:
    for (size_t p = 0; l && p < PARTS; p++) exf_mem_free(l->part[p].all);
    exf_mem_free(l);
    return rc;
}

/* ---- choosing ----------------------------------------------------------------------- */

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

exf_code exf_smallest_keys_choose(exf_smallest_keys *s, const exf_key_rule *rule, exf_err *err)
{
    candidates c = {NULL, 0, 0};
    exf_code rc;
    s->n = 0;
    if (s->cap == 0 || count_all(rule) == 0) return EXF_OK;
    EXF_TRY(list_enough(&c, rule, s->cap, err));
    qsort(c.all, c.n, sizeof *c.all, by_key);
    s->n = c.n < s->cap ? c.n : s->cap;
    memcpy(s->chosen, c.all, s->n * sizeof *s->chosen);
    rc = index_rows(s, err);
out:
    exf_mem_free(c.all);
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

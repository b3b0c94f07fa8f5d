/* smallest_keys.h - chooses a layer's samples: candidates get keys, and those of the smallest keys are chosen.
 *
 * A key is a pure function of the digest of the token's own sequence, the layer, and the candidate's place in the sequence: the
 * choice and its order depend on no thread, and not on how the data is cut into files or ordered.  Equal keys belong to equal
 * sequences; the lower row comes first. */
#ifndef EXF_ACCUMULATE_SMALLEST_KEYS_H
#define EXF_ACCUMULATE_SMALLEST_KEYS_H
#include "artifact/data.h"
#include "kernels/backend.h"
#include "ranks/ranks.h"

/* The rule by which a layer's candidates get their keys. */
typedef struct {
    const exf_sequence_list *sequences;
    int each;              /* candidates of a token */
    int layer;
    uint64_t seed, stream; /* of random numbers (base/hash.h) */
} exf_key_rule;

typedef struct {
    uint64_t key;
    uint64_t own;   /* the sequence's number in this layer, from which further random numbers can be drawn */
    uint64_t place; /* of the candidate in its sequence: position * each + slot */
    size_t row;     /* of the token in the whole run */
} exf_keyed_candidate;

/* The rows of the whole run that are one rank's; zeroed: all. */
typedef struct {
    size_t first, n;
} exf_run_rows;

typedef struct {
    size_t n, cap;               /* chosen in this layer; that fit */
    exf_keyed_candidate *chosen; /* [n] by rising key */
    size_t *by_row;              /* [n] their indices by rising row and place */
    struct exf_keys_ahead *ahead; /* those of the next layer, which a thread of its own chooses; NULL: none were asked for */
} exf_smallest_keys;

exf_code exf_smallest_keys_new(exf_smallest_keys *s, size_t cap, exf_err *err) EXF_CHECKED;
void exf_smallest_keys_free(exf_smallest_keys *s); /* accepts zeroed memory */
/* Chooses cap candidates, or all where there are fewer, and begins to choose those of layer `next` by the same rule, -1: none,
 * since a GPU has nothing to do meanwhile.  The rule's sequences are borrowed until the next call or free. */
exf_code exf_smallest_keys_choose(exf_smallest_keys *s, const exf_key_rule *rule, int next, exf_err *err) EXF_CHECKED;
/* Returns the index in by_row of the first chosen candidate at or after `row` of the whole run. */
size_t exf_smallest_keys_first(const exf_smallest_keys *s, size_t row);

/* ---- samples of several ranks ------------------------------------------------------------------------- */

/* Gathers on rank 0 what each rank has kept of its rows: values [n, bytes] of the chosen candidates, by rising key.  Collective. */
exf_code exf_gather_samples(exf_ranks *r, const exf_smallest_keys *keys, exf_run_rows own, void *values, size_t bytes,
                            exf_err *err) EXF_CHECKED;
/* Gathers values that lie in device memory, by way of pinned memory. */
typedef struct {
    exf_ranks *ranks; /* NULL: one process, for which nothing is gathered */
    const exf_backend *b;
    char *staging;
} exf_device_gatherer;

exf_code exf_device_gatherer_open(exf_device_gatherer *g, exf_ranks *ranks, const exf_backend *b, exf_err *err) EXF_CHECKED;
void exf_device_gatherer_free(exf_device_gatherer *g); /* accepts zeroed memory */
/* Gathers values [n, bytes] by rising row on rank 0; this rank has [first, end) of them.  Collective; waits for the queue. */
exf_code exf_device_gather(exf_device_gatherer *g, exf_queue *q, size_t first, size_t end, size_t n, void *values,
                           size_t bytes, exf_err *err) EXF_CHECKED;
#endif

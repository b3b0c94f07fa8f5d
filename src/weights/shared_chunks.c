/* shared_chunks.c - the stored bytes of weight chunks, read by this process or once for the ranks of a node; see
 * shared_chunks.h. */
#include "weights/shared_chunks.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum {
    PAGE = 4096,
    SLOT_BYTES = EXF_WEIGHT_CHUNK_BYTES + EXF_WEIGHT_CHUNK_BYTES / 4 + 3 * EXF_STORED_KINDS * PAGE, /* codes; scales and the rest;
                                                     * what unbuffered reads take beside each */
    POLL_NS = 20000
};

/* A slot of the ring, in shared memory.  Numbers of chunks are stored plus 1, so that 0 is none. */
typedef struct {
    _Atomic uint64_t claimed; /* by the rank that reads it */
    _Atomic uint64_t filled;
    _Atomic uint32_t done;    /* how many have copied the chunk that is in the slot */
    uint32_t shared;          /* 0: the chunk is read by each rank */
    uint64_t at[EXF_STORED_KINDS]; /* 1 + offset of the bytes in the slot; 0: none */
    char digest[EXF_STORED_KINDS][EXF_XXH3_HEX];
} ring_slot;

typedef struct {
    _Atomic uint64_t arrived; /* calls of exf_shared_chunks_begin(), of all ranks */
    char plan[2][EXF_SHARED_MEMBERS][EXF_SHA256_HEX]; /* of this and the next schedule, in turn */
    char files[EXF_SHARED_MEMBERS][EXF_SHA256_HEX];
    ring_slot slot[EXF_SHARED_SLOTS]; /* the first m.slots are used */
} ring;

enum { RING_BYTES = (sizeof(ring) + PAGE - 1) / PAGE * PAGE };

struct exf_shared_chunks {
    exf_shared_memory m;
    const exf_backend *b;
    ring *ring;
    char *bytes;    /* of slot 0 */
    uint64_t begun; /* calls of begin */
    uint64_t next;  /* number of the first chunk that was not begun */
    int pinned;
};

size_t exf_shared_chunks_bytes(int slots)
{
    return RING_BYTES + (size_t)slots * SLOT_BYTES;
}

exf_code exf_shared_chunks_open(exf_shared_chunks **out, const exf_shared_memory *m, const exf_backend *b, exf_err *err)
{
    exf_shared_chunks *s = NULL;
    exf_code rc;
    *out = NULL;
    if (m->members > EXF_SHARED_MEMBERS)
        return exf_fail(err, EXF_USAGE, "weights: %d ranks on this node, at most %d can share them", m->members,
                        EXF_SHARED_MEMBERS);
    EXF_TRY(exf_mem_new(&s, 1, sizeof *s, "shared weights", err));
    s->m = *m;
    s->b = b;
    s->ring = m->memory;
    s->bytes = (char *)m->memory + RING_BYTES;
    if (b->gpu) EXF_TRY(b->gpu->pin(m->memory, exf_shared_chunks_bytes(m->slots), "shared weights", err));
    s->pinned = b->gpu != NULL;
out:
    if (rc == EXF_OK)
        *out = s;
    else
        exf_shared_chunks_close(s);
    return rc;
}

void exf_shared_chunks_close(exf_shared_chunks *s)
{
    if (!s) return;
    if (s->pinned) s->b->gpu->unpin(s->m.memory);
    exf_mem_free(s);
}

/* ---- waiting ------------------------------------------------------------------------------- */

/* Sleeps a moment; returns a stop that was requested, or another rank's failure. */
static exf_code wait_a_moment(const exf_shared_chunks *s, exf_err *err)
{
    const struct timespec moment = {.tv_nsec = POLL_NS};
    exf_code rc = exf_stop_check(err);
    if (rc == EXF_OK && s->m.check) rc = s->m.check(s->m.self, err);
    if (rc == EXF_OK) nanosleep(&moment, NULL);
    return rc;
}

exf_code exf_shared_chunks_begin(exf_shared_chunks *s, const exf_weight_schedule *schedule, uint64_t *first, int *same,
                                 exf_err *err)
{
    char plan[EXF_SHA256_HEX];
    size_t n, turn = s->begun % 2, members = (size_t)s->m.members;
    exf_code rc;
    EXF_TRY(exf_weight_schedule_digest(schedule, plan, &n, err));
    memcpy(s->ring->plan[turn][s->m.member], plan, EXF_SHA256_HEX);
    memcpy(s->ring->files[s->m.member], s->m.files, EXF_SHA256_HEX);
    atomic_fetch_add(&s->ring->arrived, 1);
    s->begun++;
    while (atomic_load(&s->ring->arrived) < s->begun * members) EXF_TRY(wait_a_moment(s, err));
    *same = 1;
    for (size_t i = 0; i < members; i++)
        *same = *same && memcmp(s->ring->plan[turn][i], plan, EXF_SHA256_HEX) == 0 &&
                strcmp(s->ring->files[i], s->m.files) == 0;
    *first = s->next;
    if (*same) s->next += n;
out:
    return rc;
}

/* ---- slots --------------------------------------------------------------------------------- */

static ring_slot *slot_of(const exf_shared_chunks *s, uint64_t number)
{
    return &s->ring->slot[number % (uint64_t)s->m.slots];
}

/* Waits until the chunk is in its slot, and shows it; or until its slot is free if this rank is the first to ask: *reads is
 * then 1.  A chunk that is too large for a slot is shown without bytes. */
static exf_code take_slot(const exf_shared_chunks *s, exf_fetched_chunk *c, int *reads, exf_err *err)
{
    ring_slot *at = slot_of(s, c->number);
    uint64_t slots = (uint64_t)s->m.slots, before = c->number >= slots ? c->number + 1 - slots : 0; /* 0: none was in it */
    exf_code rc = EXF_OK;
    for (;;) { /* tries to become the one that fills the slot */
        uint64_t claimed = before;
        *reads = atomic_compare_exchange_strong(&at->claimed, &claimed, c->number + 1);
        if (*reads || atomic_load(&at->filled) == c->number + 1) break;
        EXF_TRY(wait_a_moment(s, err));
    }
    if (*reads) {
        while (before && (atomic_load(&at->filled) != before || atomic_load(&at->done) < (uint32_t)s->m.members))
            EXF_TRY(wait_a_moment(s, err));
        atomic_store(&at->done, 0);
    } else if (at->shared) {
        for (int kind = 0; kind < EXF_STORED_KINDS; kind++) c->rows.of[kind] = at->at[kind] ? c->slot + at->at[kind] - 1 : NULL;
        memcpy(c->rows.digest, at->digest, sizeof at->digest);
    }
out:
    return rc;
}

static exf_code read_chunk(const exf_weight_chunk *p, char *buffer, exf_fetched_chunk *c, exf_err *err)
{
    for (int kind = 0; kind < EXF_STORED_KINDS; kind++) c->bytes += exf_chunk_stored_bytes(p, (exf_stored_kind)kind);
    return exf_weight_source_raw(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols, buffer, &c->rows, err);
}

/* Reads a chunk into its slot unless it is too large, and shows it to the other ranks. */
static exf_code fill_slot(const exf_shared_chunks *s, const exf_weight_chunk *p, exf_fetched_chunk *c, exf_err *err)
{
    ring_slot *at = slot_of(s, c->number);
    exf_code rc = EXF_OK;
    at->shared = exf_chunk_room(p) <= SLOT_BYTES;
    if (at->shared) {
        EXF_TRY(read_chunk(p, c->slot, c, err));
        for (int kind = 0; kind < EXF_STORED_KINDS; kind++)
            at->at[kind] = c->rows.of[kind] ? 1 + (uint64_t)((const char *)c->rows.of[kind] - c->slot) : 0;
        memcpy(at->digest, c->rows.digest, sizeof at->digest);
    }
    atomic_store(&at->filled, c->number + 1);
out:
    return rc;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

exf_code exf_chunk_fetch(exf_shared_chunks *s, const exf_weight_chunk *p, uint64_t number, char **buffer, size_t buffer_bytes,
                         exf_fetched_chunk *c, exf_err *err)
{
    exf_code rc = EXF_OK;
    *c = (exf_fetched_chunk){.number = number};
    if (s) {
        double start = exf_clock();
        int reads = 0;
        c->slot = s->bytes + number % (uint64_t)s->m.slots * SLOT_BYTES;
        rc = take_slot(s, c, &reads, err);
        c->waited = exf_clock() - start;
        if (rc == EXF_OK && reads)
            rc = fill_slot(s, p, c, err);
        else if (rc == EXF_OK && c->rows.of[EXF_STORED_CODES]) /* the identity of the weights has what another rank read, too */
            rc = exf_weight_source_took(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols, &c->rows, err);
        if (rc != EXF_OK || c->rows.of[EXF_STORED_CODES]) goto out;
    }
    if (!*buffer) EXF_TRY(exf_mem_raw(buffer, buffer_bytes, 1, "weight staging", err));
    rc = read_chunk(p, *buffer, c, err);
out:
    return rc;
}

void exf_chunk_done(exf_shared_chunks *s, const exf_fetched_chunk *c)
{
    if (s) atomic_fetch_add(&slot_of(s, c->number)->done, 1);
}

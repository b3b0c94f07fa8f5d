/* shared_chunks.c - see shared_chunks.h. */
#include "weights/shared_chunks.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/stop.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum {
    PAGE = 4096,
    CODE_BYTES = EXF_WEIGHT_CHUNK_BYTES + 2 * PAGE, /* with what unbuffered reads take beside them */
    SCALE_BYTES = EXF_WEIGHT_CHUNK_BYTES / 8 + 2 * PAGE,
    POLL_NS = 20000
};

/* In shared memory.  Numbers of chunks are stored plus 1, so that 0 is none. */
typedef struct {
    _Atomic uint64_t claimed; /* by the rank that reads it */
    _Atomic uint64_t filled;
    _Atomic uint32_t done;    /* how many have copied the chunk that is in the slot */
    uint32_t shared;          /* 0: the chunk is read by each rank */
    uint64_t codes, scales;   /* offsets of the bytes in the slot; scales 0: none */
    char code_digest[EXF_SHA256_HEX], scale_digest[EXF_SHA256_HEX];
} ring_slot;

typedef struct {
    _Atomic uint64_t arrived; /* calls of exf_shared_chunks_begin(), of all ranks */
    char plan[2][EXF_SHARED_MEMBERS][EXF_SHA256_HEX]; /* of this and the next loading, by turns */
    char files[EXF_SHARED_MEMBERS][EXF_SHA256_HEX];
    ring_slot slot[EXF_SHARED_SLOTS]; /* the first m.slots are used */
} ring;

struct exf_shared_chunks {
    exf_shared_memory m;
    const exf_backend *b;
    ring *ring;
    char *bytes;    /* of slot 0 */
    uint64_t begun; /* calls of begin */
    uint64_t next;  /* number of the first chunk that was not begun */
    int pinned;
};

static size_t ring_bytes(void)
{
    return (sizeof(ring) + PAGE - 1) / PAGE * PAGE;
}

static char *slot_bytes(const exf_shared_chunks *s, uint64_t number)
{
    return s->bytes + number % (uint64_t)s->m.slots * (CODE_BYTES + SCALE_BYTES);
}

size_t exf_shared_chunks_bytes(int slots)
{
    return ring_bytes() + (size_t)slots * (CODE_BYTES + SCALE_BYTES);
}

int exf_shared_chunk_fits(size_t code_bytes, size_t scale_bytes)
{
    return exf_file_aligned_size(code_bytes) <= CODE_BYTES && exf_file_aligned_size(scale_bytes) <= SCALE_BYTES;
}

char *exf_shared_chunk_scales(const exf_shared_chunk *c)
{
    return c->at + CODE_BYTES;
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
    s->bytes = (char *)m->memory + ring_bytes();
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

exf_code exf_shared_chunks_begin(exf_shared_chunks *s, const char plan[EXF_SHA256_HEX], size_t n, uint64_t *first, int *same,
                                 exf_err *err)
{
    size_t turn = s->begun % 2, members = (size_t)s->m.members;
    exf_code rc = EXF_OK;
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

/* ---- chunks -------------------------------------------------------------------------------- */

static ring_slot *slot_of(const exf_shared_chunks *s, uint64_t number)
{
    return &s->ring->slot[number % (uint64_t)s->m.slots];
}

/* Returns what a slot's counters have for the chunk that is in it before chunk `number`; 0: none was. */
static uint64_t before_it(const exf_shared_chunks *s, uint64_t number)
{
    uint64_t slots = (uint64_t)s->m.slots;
    return number >= slots ? number + 1 - slots : 0;
}

/* Tries to become the one that fills the chunk's slot. */
static int claim_slot(const exf_shared_chunks *s, uint64_t number)
{
    uint64_t before = before_it(s, number);
    return atomic_compare_exchange_strong(&slot_of(s, number)->claimed, &before, number + 1);
}

/* Waits until all have copied the chunk that was in the slot. */
static exf_code wait_until_free(const exf_shared_chunks *s, uint64_t number, exf_err *err)
{
    ring_slot *at = slot_of(s, number);
    exf_code rc = EXF_OK;
    uint64_t before = before_it(s, number);
    while (before && (atomic_load(&at->filled) != before || atomic_load(&at->done) < (uint32_t)s->m.members))
        EXF_TRY(wait_a_moment(s, err));
    atomic_store(&at->done, 0);
out:
    return rc;
}

static void show(const ring_slot *at, exf_shared_chunk *c)
{
    c->rows = (exf_raw_rows){.codes = NULL};
    if (!at->shared) return;
    c->rows.codes = c->at + at->codes;
    c->rows.scales = at->scales ? c->at + at->scales : NULL;
    memcpy(c->rows.code_digest, at->code_digest, EXF_SHA256_HEX);
    memcpy(c->rows.scale_digest, at->scale_digest, EXF_SHA256_HEX);
}

exf_code exf_shared_chunk_take(exf_shared_chunks *s, uint64_t number, exf_shared_chunk *c, exf_err *err)
{
    ring_slot *at = slot_of(s, number);
    exf_code rc = EXF_OK;
    *c = (exf_shared_chunk){.number = number, .at = slot_bytes(s, number)};
    while (!(c->reads = claim_slot(s, number)) && atomic_load(&at->filled) != number + 1) EXF_TRY(wait_a_moment(s, err));
    if (c->reads)
        rc = wait_until_free(s, number, err);
    else
        show(at, c);
out:
    return rc;
}

void exf_shared_chunk_filled(exf_shared_chunks *s, const exf_shared_chunk *c)
{
    ring_slot *at = slot_of(s, c->number);
    at->shared = c->rows.codes != NULL;
    if (at->shared) {
        at->codes = (uint64_t)((const char *)c->rows.codes - c->at);
        at->scales = c->rows.scales ? (uint64_t)((const char *)c->rows.scales - c->at) : 0;
        memcpy(at->code_digest, c->rows.code_digest, EXF_SHA256_HEX);
        memcpy(at->scale_digest, c->rows.scale_digest, EXF_SHA256_HEX);
    }
    atomic_store(&at->filled, c->number + 1);
}

void exf_shared_chunk_done(exf_shared_chunks *s, const exf_shared_chunk *c)
{
    atomic_fetch_add(&slot_of(s, c->number)->done, 1);
}

/* ---- chunk bytes ------------------------------------------------------------------------------- */

size_t exf_chunk_code_bytes(const exf_weight_chunk *p)
{
    return exf_weight_source_code_bytes(&p->at.w, p->n_rows, p->at.cols);
}

size_t exf_chunk_scale_bytes(const exf_weight_chunk *p)
{
    return exf_weight_source_scale_bytes(&p->at.w, p->n_rows, p->at.cols);
}

static exf_code read_to(const exf_weight_chunk *p, char *codes, char *scales, exf_raw_rows *rows, uint64_t *read, exf_err *err)
{
    *read += exf_chunk_code_bytes(p) + exf_chunk_scale_bytes(p);
    return exf_weight_source_raw(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols, codes, scales, rows, err);
}

exf_code exf_chunk_read(const exf_weight_chunk *p, char *room, exf_raw_rows *rows, uint64_t *read, exf_err *err)
{
    return read_to(p, room, room + exf_scales_offset(exf_chunk_code_bytes(p)), rows, read, err);
}

/* Reads a chunk into its slot for all ranks of the node, unless it is too large. */
static exf_code read_for_all(exf_shared_chunks *s, const exf_weight_chunk *p, exf_shared_chunk *c, uint64_t *read, exf_err *err)
{
    exf_code rc = EXF_OK;
    c->rows = (exf_raw_rows){.codes = NULL};
    if (exf_shared_chunk_fits(exf_chunk_code_bytes(p), exf_chunk_scale_bytes(p)))
        EXF_TRY(read_to(p, c->at, exf_shared_chunk_scales(c), &c->rows, read, err));
    exf_shared_chunk_filled(s, c);
out:
    return rc;
}

exf_code exf_chunk_share(exf_shared_chunks *s, const exf_weight_chunk *p, exf_shared_chunk *c, uint64_t *read, exf_err *err)
{
    if (c->reads) return read_for_all(s, p, c, read, err);
    return c->rows.codes ? exf_weight_source_took(&p->at.w, p->at.row + p->row, p->n_rows, p->at.cols, &c->rows, err) : EXF_OK;
}

exf_code exf_chunk_decode(const exf_weight_chunk *p, const exf_raw_rows *rows, float *dst, exf_err *err)
{
    return exf_weight_source_decode(&p->at.w, rows, p->at.row + p->row, p->n_rows, p->at.cols, dst, err);
}

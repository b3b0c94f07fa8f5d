/* shared_chunks.c - see shared_chunks.h. */
#include "weights/shared_chunks_internal.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/stop.h"

#include <string.h>
#include <time.h>

enum {
    CODE_BYTES = EXF_WEIGHT_CHUNK_BYTES + 2 * EXF_RING_PAGE, /* with what unbuffered reads take beside them */
    SCALE_BYTES = EXF_WEIGHT_CHUNK_BYTES / 8 + 2 * EXF_RING_PAGE,
    POLL_NS = 20000
};

static size_t ring_bytes(void)
{
    return (sizeof(exf_ring) + EXF_RING_PAGE - 1) / EXF_RING_PAGE * EXF_RING_PAGE;
}

char *exf_ring_bytes(const exf_shared_chunks *s, uint64_t number)
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
    exf_err ignored;
    if (!s) return;
    if (exf_relay_end(s, 1, &ignored) != EXF_OK) exf_log_debug("weights: %s", ignored.msg);
    if (s->pinned) s->b->gpu->unpin(s->m.memory);
    exf_mem_free(s);
}

/* ---- waiting ------------------------------------------------------------------------------- */

exf_code exf_ring_wait(const exf_shared_chunks *s, exf_err *err)
{
    const struct timespec moment = {.tv_nsec = POLL_NS};
    exf_code rc = exf_stop_check(err);
    if (rc == EXF_OK && s->m.check) rc = s->m.check(s->m.self, err);
    if (rc == EXF_OK && atomic_load(&s->relay.quit))
        rc = exf_fail(err, EXF_STOPPED, "weights: loading was given up");
    if (rc == EXF_OK && atomic_load(&s->relay.failed)) {
        *err = s->relay.err;
        rc = err->code;
    }
    if (rc == EXF_OK) nanosleep(&moment, NULL);
    return rc;
}

exf_code exf_shared_chunks_begin(exf_shared_chunks *s, const char plan[EXF_SHA256_HEX], size_t n, uint64_t *first, int *same,
                                 exf_err *err)
{
    exf_code rc = exf_relay_end(s, 0, err); /* of the loading before */
    size_t turn = s->begun % 2, members = (size_t)s->m.members;
    if (rc != EXF_OK) return rc;
    memcpy(s->ring->plan[turn][s->m.member], plan, EXF_SHA256_HEX);
    memcpy(s->ring->files[s->m.member], s->m.files, EXF_SHA256_HEX);
    atomic_fetch_add(&s->ring->arrived, 1);
    s->begun++;
    while (atomic_load(&s->ring->arrived) < s->begun * members) EXF_TRY(exf_ring_wait(s, err));
    *same = 1;
    for (size_t i = 0; i < members; i++)
        *same = *same && memcmp(s->ring->plan[turn][i], plan, EXF_SHA256_HEX) == 0 &&
                strcmp(s->ring->files[i], s->m.files) == 0;
    *first = s->next;
    if (*same) s->next += n;
    if (s->m.broadcast && !*same)
        rc = exf_fail(err, EXF_USAGE, "weights: the ranks of this node load in different parts, or from different files, so that "
                                      "no rank can read for all; give runtime.max_gpu_memory, or runtime.weights: node");
    else if (s->m.broadcast && s->m.member == 0)
        rc = exf_relay_start(s, plan, *first, n, err);
out:
    return rc;
}

/* ---- chunks -------------------------------------------------------------------------------- */

exf_ring_slot *exf_ring_at(const exf_shared_chunks *s, uint64_t number)
{
    return &s->ring->slot[number % (uint64_t)s->m.slots];
}

/* Returns what a slot's counters have for the chunk that is in it before chunk `number`; 0: none was. */
static uint64_t before_it(const exf_shared_chunks *s, uint64_t number)
{
    uint64_t slots = (uint64_t)s->m.slots;
    return number >= slots ? number + 1 - slots : 0;
}

int exf_ring_claim(const exf_shared_chunks *s, uint64_t number)
{
    uint64_t before = before_it(s, number);
    return atomic_compare_exchange_strong(&exf_ring_at(s, number)->claimed, &before, number + 1);
}

exf_code exf_ring_wait_free(const exf_shared_chunks *s, uint64_t number, exf_err *err)
{
    exf_ring_slot *at = exf_ring_at(s, number);
    exf_code rc = EXF_OK;
    uint64_t before = before_it(s, number);
    while (before && (atomic_load(&at->filled) != before || atomic_load(&at->done) < exf_ring_copies(s)))
        EXF_TRY(exf_ring_wait(s, err));
    atomic_store(&at->done, 0);
out:
    return rc;
}

static void show(const exf_ring_slot *at, exf_shared_chunk *c)
{
    c->rows = (exf_raw_rows){.codes = NULL};
    if (!at->shared) return;
    c->rows.codes = c->at + at->codes;
    c->rows.scales = at->scales ? c->at + at->scales : NULL;
    memcpy(c->rows.code_digest, at->code_digest, EXF_SHA256_HEX);
    memcpy(c->rows.scale_digest, at->scale_digest, EXF_SHA256_HEX);
}

/* Returns 1 if this rank is to read the chunk. */
static int is_to_read(const exf_shared_chunks *s, uint64_t number)
{
    return (!s->m.broadcast || s->m.reads) && exf_ring_claim(s, number);
}

exf_code exf_shared_chunk_take(exf_shared_chunks *s, uint64_t number, exf_shared_chunk *c, exf_err *err)
{
    exf_ring_slot *at = exf_ring_at(s, number);
    exf_code rc = EXF_OK;
    *c = (exf_shared_chunk){.number = number, .at = exf_ring_bytes(s, number)};
    while (!(c->reads = is_to_read(s, number)) && atomic_load(&at->filled) != number + 1) EXF_TRY(exf_ring_wait(s, err));
    if (c->reads)
        rc = exf_ring_wait_free(s, number, err);
    else
        show(at, c);
out:
    return rc;
}

void exf_shared_chunk_filled(exf_shared_chunks *s, const exf_shared_chunk *c)
{
    exf_ring_slot *at = exf_ring_at(s, c->number);
    at->shared = c->rows.codes != NULL;
    if (at->shared) {
        at->codes = (uint64_t)((const char *)c->rows.codes - c->at);
        at->scales = c->rows.scales ? (uint64_t)((const char *)c->rows.scales - c->at) : 0;
        at->code_bytes = c->code_bytes;
        at->scale_bytes = c->scale_bytes;
        memcpy(at->code_digest, c->rows.code_digest, EXF_SHA256_HEX);
        memcpy(at->scale_digest, c->rows.scale_digest, EXF_SHA256_HEX);
    }
    atomic_store(&at->filled, c->number + 1);
}

void exf_shared_chunk_done(exf_shared_chunks *s, const exf_shared_chunk *c)
{
    atomic_fetch_add(&exf_ring_at(s, c->number)->done, 1);
}

/* shared_relay.c - passes chunks from the node that reads the weights to the rings of the other nodes.
 *
 * A thread of each node's member 0 goes through all chunks in order.  On the node that reads it waits until a chunk is
 * filled and broadcasts it; on the others it waits until the slot is free, receives the chunk and shows it. */
#include "weights/shared_chunks_internal.h"

#include <string.h>

/* The header of a chunk, which is broadcast before its bytes. */
typedef struct {
    uint32_t shared;
    uint64_t codes, scales, code_bytes, scale_bytes;
    char code_digest[EXF_SHA256_HEX], scale_digest[EXF_SHA256_HEX];
} header;

static header header_of(const exf_ring_slot *at)
{
    header h = {at->shared, at->codes, at->scales, at->code_bytes, at->scale_bytes, "", ""};
    memcpy(h.code_digest, at->code_digest, sizeof h.code_digest);
    memcpy(h.scale_digest, at->scale_digest, sizeof h.scale_digest);
    return h;
}

static void take_header(exf_ring_slot *at, const header *h)
{
    at->shared = h->shared;
    at->codes = h->codes;
    at->scales = h->scales;
    at->code_bytes = h->code_bytes;
    at->scale_bytes = h->scale_bytes;
    memcpy(at->code_digest, h->code_digest, sizeof h->code_digest);
    memcpy(at->scale_digest, h->scale_digest, sizeof h->scale_digest);
}

/* Waits until the chunk can be passed on: it is filled, or its slot is free. */
static exf_code wait_for_turn(exf_shared_chunks *s, exf_ring_slot *at, uint64_t number, exf_err *err)
{
    exf_code rc = EXF_OK;
    while (s->m.reads && atomic_load(&at->filled) != number + 1) EXF_TRY(exf_ring_wait(s, err));
    if (s->m.reads) goto out;
    if (!exf_ring_claim(s, number))
        return exf_fail(err, EXF_INTERNAL, "weights: chunk %llu has no slot", (unsigned long long)number);
    rc = exf_ring_wait_free(s, number, err);
out:
    return rc;
}

static exf_code pass(exf_shared_chunks *s, uint64_t number, exf_err *err)
{
    exf_ring_slot *at = exf_ring_at(s, number);
    char *bytes = exf_ring_bytes(s, number);
    exf_code rc;
    EXF_TRY(wait_for_turn(s, at, number, err));
    header h = header_of(at);
    EXF_TRY(s->m.broadcast(s->m.self, &h, sizeof h, err));
    if (!s->m.reads) take_header(at, &h);
    if (h.shared) EXF_TRY(s->m.broadcast(s->m.self, bytes + h.codes, h.code_bytes, err));
    if (h.shared && h.scales) EXF_TRY(s->m.broadcast(s->m.self, bytes + h.scales, h.scale_bytes, err));
    if (s->m.reads)
        atomic_fetch_add(&at->done, 1);
    else
        atomic_store(&at->filled, number + 1);
out:
    return rc;
}

static void *pass_all(void *self)
{
    exf_shared_chunks *s = self;
    exf_relay *r = &s->relay;
    exf_code rc = EXF_OK;
    for (uint64_t i = r->first; rc == EXF_OK && i < r->end; i++) rc = pass(s, i, &r->err);
    if (rc != EXF_OK) atomic_store(&r->failed, 1);
    return NULL;
}

exf_code exf_relay_start(exf_shared_chunks *s, const char plan[EXF_SHA256_HEX], uint64_t first, size_t n, exf_err *err)
{
    exf_relay *r = &s->relay;
    char theirs[EXF_SHA256_HEX];
    exf_code rc;
    memcpy(theirs, plan, sizeof theirs);
    EXF_TRY(s->m.broadcast(s->m.self, theirs, sizeof theirs, err));
    if (memcmp(theirs, plan, sizeof theirs) != 0)
        return exf_fail(err, EXF_USAGE, "weights: this node loads them in other parts than the node that reads, so that it cannot "
                                        "read for all; give runtime.max_gpu_memory, or runtime.weights: node");
    r->first = first;
    r->end = first + n;
    if (pthread_create(&r->thread, NULL, pass_all, s) != 0)
        return exf_fail(err, EXF_NOSPACE, "weights: the thread that passes them to other nodes could not be started");
    r->started = 1;
out:
    return rc;
}

exf_code exf_relay_end(exf_shared_chunks *s, int quit, exf_err *err)
{
    exf_relay *r = &s->relay;
    if (!r->started) return EXF_OK;
    atomic_store(&r->quit, quit);
    pthread_join(r->thread, NULL);
    r->started = 0;
    if (!atomic_load(&r->failed)) return EXF_OK;
    *err = r->err;
    return err->code;
}

/* shared_chunks_internal.h - the ring in shared memory, for shared_chunks.c and shared_relay.c. */
#ifndef EXF_WEIGHTS_SHARED_CHUNKS_INTERNAL_H
#define EXF_WEIGHTS_SHARED_CHUNKS_INTERNAL_H
#include "weights/shared_chunks.h"

#include <pthread.h>
#include <stdatomic.h>

enum { EXF_RING_PAGE = 4096 };

/* In shared memory.  Numbers of chunks are stored plus 1, so that 0 is none. */
typedef struct {
    _Atomic uint64_t claimed; /* by a rank that reads it, or by the relay */
    _Atomic uint64_t filled;
    _Atomic uint32_t done;    /* how many have copied the chunk that is in the slot */
    uint32_t shared;          /* 0: the chunk is read by each rank */
    uint64_t codes, scales;   /* offsets of the bytes in the slot; scales 0: none */
    uint64_t code_bytes, scale_bytes;
    char code_digest[EXF_SHA256_HEX], scale_digest[EXF_SHA256_HEX];
} exf_ring_slot;

typedef struct {
    _Atomic uint64_t arrived; /* calls of exf_shared_chunks_begin(), of all ranks */
    char plan[2][EXF_SHARED_MEMBERS][EXF_SHA256_HEX]; /* of this and the next loading, by turns */
    char files[EXF_SHARED_MEMBERS][EXF_SHA256_HEX];
    exf_ring_slot slot[EXF_SHARED_SLOTS]; /* the first m.slots are used */
} exf_ring;

/* The thread of member 0 that passes chunks from the node that reads to the others. */
typedef struct {
    pthread_t thread;
    int started;
    uint64_t first, end; /* chunks [first, end) */
    _Atomic int quit;
    exf_err err;
    _Atomic int failed;  /* err says why */
} exf_relay;

struct exf_shared_chunks {
    exf_shared_memory m;
    const exf_backend *b;
    exf_ring *ring;
    char *bytes;    /* of slot 0 */
    uint64_t begun; /* calls of begin */
    uint64_t next;  /* number of the first chunk that was not begun */
    int pinned;
    exf_relay relay;
};

/* Returns how many must copy a chunk before its slot is free: the members, and the relay of a node that reads for others. */
static inline uint32_t exf_ring_copies(const exf_shared_chunks *s)
{
    return (uint32_t)s->m.members + (s->m.broadcast && s->m.reads);
}
/* Returns the first byte of a chunk's slot. */
char *exf_ring_bytes(const exf_shared_chunks *s, uint64_t number);
/* Sleeps a moment; returns a stop that was requested, another rank's failure, or the relay's. */
exf_code exf_ring_wait(const exf_shared_chunks *s, exf_err *err) EXF_CHECKED;
/* Returns the chunk's slot. */
exf_ring_slot *exf_ring_at(const exf_shared_chunks *s, uint64_t number);
/* Tries to become the one that fills the chunk's slot. */
int exf_ring_claim(const exf_shared_chunks *s, uint64_t number);
/* Waits until all have copied the chunk that was in the slot. */
exf_code exf_ring_wait_free(const exf_shared_chunks *s, uint64_t number, exf_err *err) EXF_CHECKED;

/* Compares the nodes' plans: EXF_USAGE if they differ; then starts passing chunks [first, first + n).  Member 0 only. */
exf_code exf_relay_start(exf_shared_chunks *s, const char plan[EXF_SHA256_HEX], uint64_t first, size_t n, exf_err *err) EXF_CHECKED;
/* Waits until all chunks are passed; `quit`: gives up those that are not filled. */
exf_code exf_relay_end(exf_shared_chunks *s, int quit, exf_err *err) EXF_CHECKED;
#endif

/* shared_chunks.h - fetches the stored bytes of a weight chunk: this process reads them, or the ranks of a node read each
 * chunk once, and all take it from there.
 *
 * A ring of slots lies in memory that the ranks share and that each has pinned for its GPU, if it has one.  All ranks
 * load the same chunks in the same order.  The rank that comes to a chunk first reads it into the chunk's slot; every
 * rank copies it to its GPU from there, or makes float32 of it; when all have, the slot is free for the chunk one ring
 * further on.  So a rank runs at most `slots` chunks ahead of the slowest of its node.  Nodes read for themselves.
 *
 * Waiting is polling, so that a rank that dies holds no lock. */
#ifndef EXF_WEIGHTS_SHARED_CHUNKS_H
#define EXF_WEIGHTS_SHARED_CHUNKS_H
#include "kernels/backend.h"
#include "model/weight_source.h"
#include "weights/weight_plan.h"

typedef struct exf_shared_chunks exf_shared_chunks;

/* Memory that the ranks of a node share. */
typedef struct {
    void *memory;        /* exf_shared_chunks_bytes() zeroed bytes, page-aligned */
    int slots;           /* in it: at most EXF_SHARED_SLOTS, the same on all ranks of a node */
    int member, members; /* this rank's number on the node, from 0, and how many there are: at most EXF_SHARED_MEMBERS */
    exf_code (*check)(void *self, exf_err *err); /* returns another rank's failure, for a rank that waits */
    char files[EXF_SHA256_HEX]; /* a text that is equal on ranks that read the same files */
    void *self;
} exf_shared_memory;

enum { EXF_SHARED_MEMBERS = 64, EXF_SHARED_SLOTS = 64 };

/* Returns the bytes of memory that a ring of so many slots takes. */
size_t exf_shared_chunks_bytes(int slots);
/* Pins the memory for this rank's GPU, if b is one. */
exf_code exf_shared_chunks_open(exf_shared_chunks **out, const exf_shared_memory *m, const exf_backend *b,
                                exf_err *err) EXF_CHECKED;
void exf_shared_chunks_close(exf_shared_chunks *s); /* NULL is allowed */

/* Starts loading the chunks of a schedule, which all ranks do together.  *first becomes the number of its first chunk;
 * *same is 0 if the ranks' schedules or files differ: then no chunk is shared. */
exf_code exf_shared_chunks_begin(exf_shared_chunks *s, const exf_weight_schedule *schedule, uint64_t *first, int *same,
                                 exf_err *err) EXF_CHECKED;

/* The stored bytes of a chunk. */
typedef struct {
    exf_raw_rows rows; /* the tensors, with their digests */
    uint64_t bytes;    /* that this process read for it */
    double waited;     /* seconds that it waited for other ranks */
    uint64_t number;   /* private: of the chunk, and its place in the ring */
    char *slot;
} exf_fetched_chunk;

/* Fetches a chunk.  s NULL: this process reads it, to *buffer of buffer_bytes, at least exf_chunk_room(); *buffer
 * NULL is allocated.  With s, chunks are asked for in order of their numbers, by several threads of a rank too, and one
 * that is too large for a slot is read by each rank.  c->bytes and c->waited count after a failure, too. */
exf_code exf_chunk_fetch(exf_shared_chunks *s, const exf_weight_chunk *p, uint64_t number, char **buffer, size_t buffer_bytes,
                         exf_fetched_chunk *c, exf_err *err) EXF_CHECKED;
/* Says that this rank needs the fetched bytes no more. */
void exf_chunk_done(exf_shared_chunks *s, const exf_fetched_chunk *c);
#endif

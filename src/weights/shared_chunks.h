/* shared_chunks.h - the ranks of a node read each chunk of the weights once, and all take it from there.
 *
 * A ring of slots lies in memory that the ranks share and that each has pinned for its GPU, if it has one.  All ranks
 * load the same chunks in the same order.  The rank that comes to a chunk first reads it into the chunk's slot; every
 * rank copies it to its GPU from there, or makes float32 of it; when all have, the slot is free for the chunk one ring
 * further on.  So a rank runs at most `slots` chunks ahead of the slowest of its node.  Nodes read for themselves.
 *
 * Waiting is polling, so that the death of a rank leaves no lock behind. */
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

/* Starts loading n chunks, which all ranks do together.  plan: a text of 64 characters that is equal where the chunks
 * are.  *first becomes the number of the first chunk; *same is 0 if the ranks' plans or files differ: then none is shared. */
exf_code exf_shared_chunks_begin(exf_shared_chunks *s, const char plan[EXF_SHA256_HEX], size_t n, uint64_t *first, int *same,
                                 exf_err *err) EXF_CHECKED;

/* A chunk in its slot. */
typedef struct {
    uint64_t number;
    int reads;      /* 1: this rank must read it, and then call exf_shared_chunk_filled() */
    char *at;       /* page-aligned; EXF_SHARED_CODES bytes for codes, then those for scales */
    exf_raw_rows rows; /* where it is filled: the bytes and their digests; codes NULL: it is not shared, each rank reads it */
} exf_shared_chunk;

/* Waits until the chunk is filled, or for its slot if this rank is the first to ask.  Chunks are asked for in order, by
 * several threads of a rank too. */
exf_code exf_shared_chunk_take(exf_shared_chunks *s, uint64_t number, exf_shared_chunk *c, exf_err *err) EXF_CHECKED;
/* Shows the chunk to the other ranks; c->rows points into its slot, or is zero for a chunk that does not fit. */
void exf_shared_chunk_filled(exf_shared_chunks *s, const exf_shared_chunk *c);
/* This rank needs the slot no more. */
void exf_shared_chunk_done(exf_shared_chunks *s, const exf_shared_chunk *c);
/* Returns 1 if a slot can hold so many bytes of codes and scales. */
int exf_shared_chunk_fits(size_t code_bytes, size_t scale_bytes);
/* Returns the place of the scales in a slot. */
char *exf_shared_chunk_scales(const exf_shared_chunk *c);

/* Reads the stored bytes of a weight chunk: for this rank alone, or once for all ranks of its node. */

/* Return the bytes of a chunk's codes and scales. */
size_t exf_chunk_code_bytes(const exf_weight_chunk *p);
size_t exf_chunk_scale_bytes(const exf_weight_chunk *p);

/* Reads a chunk to `room`, of exf_floats_offset() bytes: codes, then scales.  *read grows by the bytes. */
exf_code exf_chunk_read(const exf_weight_chunk *p, char *room, exf_raw_rows *rows, uint64_t *read, exf_err *err) EXF_CHECKED;
/* Called after exf_shared_chunk_take(): reads the chunk into its slot for all ranks if this one is to, else records what
 * another read.  c->rows.codes is NULL where a chunk is too large for a slot: each rank then reads its own. */
exf_code exf_chunk_share(exf_shared_chunks *s, const exf_weight_chunk *p, exf_shared_chunk *c, uint64_t *read,
                         exf_err *err) EXF_CHECKED;
/* Converts a chunk's bytes to float32 [n_rows, cols]. */
exf_code exf_chunk_decode(const exf_weight_chunk *p, const exf_raw_rows *rows, float *dst, exf_err *err) EXF_CHECKED;
#endif

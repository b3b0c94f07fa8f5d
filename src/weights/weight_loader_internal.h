/* weight_loader_internal.h - the loader of a device, which weight_loader.c (readers, loads) and weight_loader_send.c (the sender)
 * share. */
#ifndef EXF_WEIGHTS_WEIGHT_LOADER_INTERNAL_H
#define EXF_WEIGHTS_WEIGHT_LOADER_INTERNAL_H
#include "weights/weight_loader.h"

#include <pthread.h>

enum { MOST_READERS = 16, READER_BUFFERS = 2, SENDER_COPIES = 4 };

/* Pinned memory of a reader, and the chunk that is in it: its tensors, then float32 that the host made of them; or a slice of
 * the bytes of a chunk that is copied as stored. */
typedef struct {
    struct exf_weight_reader *owner;
    char *memory;
    int full;            /* 1: it is read to, or waits for its copy */
    size_t load, number;
    exf_fetched_chunk bytes;
    size_t slice, n;     /* copied as stored: the first byte in the chunk, and how many */
    int last;            /* 1: with this copy the chunk is loaded */
} exf_chunk_buffer;

typedef struct exf_weight_reader {
    struct exf_weight_loader *s;
    pthread_t thread;
    int started;
    pthread_cond_t work; /* a buffer is free, or there are chunks to read */
    exf_chunk_buffer buffers[READER_BUFFERS];
    exf_weight_loader_times times;
} exf_weight_reader;

/* One of the sender's copies. */
typedef struct {
    exf_queue *q;
    exf_chunk_buffer *from; /* NULL: nothing is being copied */
    char *device; /* device memory for chunks that are dequantized there */
    int *bad;     /* in device memory: a value is not finite, or beyond bfloat16 */
} exf_chunk_copy;

/* A first-in, first-out list of buffers. */
typedef struct {
    exf_chunk_buffer *list[MOST_READERS * READER_BUFFERS];
    size_t first, n;
} buffer_queue;

struct exf_weight_loader {
    const exf_model *model;
    const exf_backend *b;
    exf_compute compute;
    exf_weight_loader_options o;
    void *area[EXF_WEIGHT_AREAS];
    exf_weight_schedule schedule; /* made when the loader opens: looking up names takes milliseconds */
    size_t load;            /* the load that the next call of next() returns */
    size_t most_host, most_device; /* bytes of a buffer, and of the largest chunk dequantized on the device */
    exf_weight_reader readers[MOST_READERS];
    int n_readers;
    pthread_t sender;
    int sender_started;
    exf_chunk_copy copies[SENDER_COPIES];
    double sending;            /* seconds for which the sender has waited for copies */
    pthread_mutex_t lock;
    pthread_cond_t filled, done; /* waited for by the sender, exf_weight_loader_next() */
    buffer_queue read;         /* chunks that were read and are not being copied yet */
    size_t taking;             /* load whose chunks are being taken */
    size_t open_loads;         /* loads below this number may be filled */
    size_t taken;              /* chunks of `taking` */
    size_t *left;              /* [loads.n] chunks that are not loaded yet */
    unsigned char *ready;      /* [loads.n] */
    uint64_t *number;          /* [loads.n] of each load's first chunk, where chunks are shared */
    exf_shared_chunks *shared; /* NULL: they are not */
    int quit, lost;            /* lost: a reader failed to open, err says why */
    exf_err err;               /* error of the first load's lowest chunk that failed */
    size_t err_load, err_chunk;
};

/* Looks up the plan of a load, and the device memory that it goes to. */
static inline const exf_weight_plan *exf_plan_of(const exf_weight_loader *s, size_t load)
{
    return &s->schedule.plan[s->schedule.load[load].plan];
}

static inline char *exf_area_of(const exf_weight_loader *s, size_t load)
{
    return s->area[s->schedule.load[load].area];
}

/* Returns where in a buffer the float32 are that the host made of a chunk. */
static inline float *exf_values_of(const exf_chunk_buffer *from, const exf_weight_chunk *p)
{
    return (float *)(void *)(from->memory + exf_chunk_room(p));
}

/* Returns 1 if a chunk before this one has failed.  Called with the lock held. */
int exf_weight_loader_failed_before(const exf_weight_loader *s, size_t load, size_t chunk);
/* Keeps the error of the lowest chunk, so that the message does not depend on which thread was faster.  The lock is held. */
void exf_weight_loader_note_failure(exf_weight_loader *s, size_t load, size_t chunk, const exf_err *err);
/* The sender's thread; self: the loader. */
void *exf_weight_loader_send(void *self);
#endif

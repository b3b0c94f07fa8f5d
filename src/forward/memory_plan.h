/* memory_plan.h - what a pass holds in GPU memory, and how it makes do with less: fewer
 * CUDA streams for the mixers, fewer tokens through the experts at a time, hidden states
 * kept in pinned host memory, one slot of weights instead of two (reading then waits for
 * computing), and where one layer alone is too large its experts in parts, which every
 * block of tokens then reads anew. */
#ifndef EXF_FORWARD_MEMORY_PLAN_H
#define EXF_FORWARD_MEMORY_PLAN_H
#include "forward/demand.h"
#include "forward/forward_options.h"
#include "kernels/backend.h"
#include "weights/weight_loader.h"

typedef struct {
    exf_weight_loader_options loader;
    int n_queues;        /* CUDA streams on which sequences run through the mixers side by side */
    int block_tokens;    /* tokens through the experts at a time */
    int reads;           /* how often routed experts are read: more than 1 only in parts */
    size_t window;       /* tokens whose hidden states are in GPU memory at a time; 0: all (hidden.h) */
    uint64_t bytes;      /* of GPU memory, observers' memory for the statistics of one layer included */
    uint64_t host_bytes; /* pinned memory and routes */
} exf_memory_plan;

/* The fastest plan of a pass over n_layers layers within the options' max_device_memory, or
 * within what the GPU has free less a reserve.  EXF_NOSPACE naming the least that works
 * where none fits. */
exf_code exf_memory_plan_make(exf_memory_plan *plan, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                              const exf_demand *d, int n_layers, exf_err *err) EXF_CHECKED;

/* Bytes that a pass may use: the options' limit, or what the GPU has free less a reserve. */
exf_code exf_memory_limit(uint64_t *bytes, const exf_forward_options *o, exf_err *err) EXF_CHECKED;
/* EXF_NOSPACE that names the least that works. */
exf_code exf_memory_too_little(const exf_forward_options *o, uint64_t least, exf_err *err);
/* Bytes of GPU memory that a CUDA stream and its cuBLAS handle take for themselves. */
uint64_t exf_memory_queue_bytes(void);
#endif

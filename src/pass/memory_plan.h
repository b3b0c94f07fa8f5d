/* memory_plan.h - plans what a pass keeps in GPU memory.
 *
 * A plan for little memory has fewer CUDA streams for the mixers, fewer tokens through the
 * experts at a time, hidden states in pinned host memory, or one weight slot instead of two
 * (reading then waits for computing).  If a single layer is too large, its experts are
 * loaded in parts, which every block of tokens reads anew. */
#ifndef EXF_PASS_MEMORY_PLAN_H
#define EXF_PASS_MEMORY_PLAN_H
#include "pass/demand.h"
#include "pass/forward_options.h"
#include "kernels/backend.h"
#include "weights/weight_loader.h"

typedef struct {
    exf_weight_loader_options loader;
    int n_queues;        /* CUDA streams on which sequences run through the mixers side by side */
    int block_tokens;    /* tokens through the experts at a time */
    int reads;           /* times that routed experts are read: more than 1 only if they are loaded in parts */
    size_t window;       /* tokens whose hidden states are in GPU memory at a time; 0: all (hidden.h) */
    uint64_t bytes;      /* GPU memory, including observers' memory for the statistics of one layer */
    uint64_t host_bytes; /* pinned memory and routes */
} exf_memory_plan;

/* Makes the fastest plan of a pass over n_layers layers within the options' max_device_memory, or
 * within the GPU's free memory less a reserve.  EXF_NOSPACE names the least memory that suffices if
 * no plan fits. */
exf_code exf_memory_plan_make(exf_memory_plan *plan, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                              const exf_demand *d, int n_layers, exf_err *err) EXF_CHECKED;

/* Computes the bytes that a pass may use: the options' limit, or the GPU's free memory less a reserve. */
exf_code exf_memory_limit(uint64_t *bytes, const exf_forward_options *o, exf_err *err) EXF_CHECKED;
/* Returns EXF_NOSPACE with a message that names the least memory that suffices. */
exf_code exf_memory_too_little(const exf_forward_options *o, uint64_t least, exf_err *err);
/* Returns the bytes of GPU memory that a CUDA stream and its cuBLAS handle allocate for themselves. */
uint64_t exf_memory_queue_bytes(void);
#endif

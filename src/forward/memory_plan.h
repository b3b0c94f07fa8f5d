/* memory_plan.h - what a pass holds in a device's memory, and how it makes do with
 * less: sequences mixed one at a time, smaller pieces of tokens through the experts, hidden
 * states that live in pinned host memory, one slot of weights instead of two (reading then
 * waits for computing), and where a layer alone is too large its experts in parts, which
 * every piece of tokens then reads anew. */
#ifndef EXF_FORWARD_MEMORY_PLAN_H
#define EXF_FORWARD_MEMORY_PLAN_H
#include "forward/layer_step.h"

typedef struct {
    exf_weight_loader_options loader;
    int n_queues;        /* on which sequences are mixed side by side */
    int expert_tokens;   /* tokens through the experts at a time; 0: no grouped experts */
    int reads;           /* how often routed experts are read: more than 1 only in parts */
    size_t window;       /* tokens whose hidden states are there at a time; 0: all are (hidden.h) */
    uint64_t bytes;      /* of all that is held, observers' memory for the statistics of one layer included */
    uint64_t host_bytes; /* pinned memory and routes */
} exf_memory_plan;

/* The fastest plan of a pass over n_layers layers within the options' max_device_memory, or
 * within what the device has free, but for a reserve.  EXF_NOSPACE naming the smallest that
 * works where none fits. */
exf_code exf_memory_plan_make(exf_memory_plan *plan, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                              const exf_demand *d, int n_layers, exf_err *err) EXF_CHECKED;

/* Gives back the weights' stream and the grouped experts, and reports what they came to. */
void exf_close_device(exf_pass *p);
#endif

/* memory_plan.h - what a pass holds in a device's memory, and how it makes do with
 * less: sequences mixed one at a time, smaller pieces of tokens through the experts,
 * one slot of weights instead of two (reading then waits for computing). */
#ifndef EXF_FORWARD_MEMORY_PLAN_H
#define EXF_FORWARD_MEMORY_PLAN_H
#include "forward/layer_step.h"

typedef struct {
    exf_stream_options stream;
    int n_queues;      /* on which sequences are mixed side by side */
    int expert_tokens; /* tokens through the experts at a time; 0: no grouped experts */
    uint64_t bytes;    /* of all that is held, observers' memory for the statistics of one layer included */
} exf_memory_plan;

/* The fastest plan of a pass over n_layers layers within the options' max_device_memory;
 * EXF_NOSPACE naming the smallest that works where none fits. */
exf_code exf_memory_plan_make(exf_memory_plan *plan, const exf_forward_options *o, const exf_model *m, const exf_batch *batch,
                              const exf_demand *d, int n_layers, exf_err *err) EXF_CHECKED;

/* Gives back the weights' stream and the grouped experts, and reports what they came to. */
void exf_close_device(exf_pass *p);
#endif

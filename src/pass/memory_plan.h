/* memory_plan.h - plans what a pass keeps in GPU memory.
 *
 * A plan for little memory has fewer CUDA streams for the mixers, fewer tokens through the
 * experts at a time, hidden states in pinned host memory, or one weight slot instead of two
 * (reading then waits for computing).  If a single layer is too large, its experts are
 * loaded in parts, which every block of tokens reads anew. */
#ifndef EXF_PASS_MEMORY_PLAN_H
#define EXF_PASS_MEMORY_PLAN_H
#include "kernels/backend.h"
#include "pass/demand.h"
#include "pass/moe_arrays.h"
#include "weights/weight_loader.h"

/* Sizes of a worker's workspace, from the functions that carve it. */

/* Arrays of the first half of a layer, T tokens.  The mixer's own arrays follow them in the arena. */
typedef struct {
    float *u, *mixing; /* [T, H] and [T, exf_residual_mixing()]; used with several residual streams */
    float *normed;     /* [T, H] */
    float *mixed;      /* [T, H] the mixer's output */
    float *logits;     /* [T, E] the router's logits */
} exf_mixer_arrays;
void exf_mixer_carve(exf_mixer_arrays *s, exf_arena *arena, const exf_architecture *a, int n_tokens);

/* Arrays of the head for exf_head_rows() rows at a time.  A GPU takes more rows, so that the head's
 * matrix is read less often. */
typedef struct {
    float *u, *normed, *logits;
} exf_head_arrays;
int exf_head_rows(const exf_backend *b);
void exf_head_carve(exf_head_arrays *s, exf_arena *arena, const exf_backend *b, const exf_architecture *a);

/* Returns which arrays a MoE block needs for lanes of this demand. */
exf_moe_needs exf_moe_needs_of(const exf_backend *b, const exf_architecture *a, const exf_demand *d);

/* Floats of an arena for mixers alone, and for the whole pass: mixers on the longest sequence, MoE
 * blocks of block_tokens tokens, common input, the head. */
size_t exf_mixing_floats(const exf_backend *b, const exf_architecture *a, int max_tokens);
size_t exf_workspace_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens, int block_tokens,
                            const exf_demand *d);
/* Returns the floats of the host copy that observers read at a time; 0 if nothing is copied. */
size_t exf_mirror_floats(const exf_backend *b, const exf_architecture *a, int block_tokens, const exf_demand *d);
/* Returns the tokens of a MoE block on the CPU. */
int exf_host_block(int max_tokens);

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

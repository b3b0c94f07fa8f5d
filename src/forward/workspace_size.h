/* workspace_size.h - sizes of a worker's workspace, from the functions that carve it. */
#ifndef EXF_FORWARD_WORKSPACE_SIZE_H
#define EXF_FORWARD_WORKSPACE_SIZE_H
#include "forward/demand.h"
#include "moe/moe_arrays.h"

/* Arrays of the first half of a layer, T tokens; the mixer takes its own behind these. */
typedef struct {
    float *u, *mixing; /* [T, H] and [T, exf_residual_mixing()]; with several residual streams */
    float *normed;     /* [T, H] */
    float *mixed;      /* [T, H] the mixer's output */
    float *logits;     /* [T, E] of the router */
} exf_mixer_arrays;
void exf_mixer_carve(exf_mixer_arrays *s, exf_arena *arena, const exf_architecture *a, int n_tokens);

/* Arrays of the head, exf_head_rows() rows at a time: on a GPU more, so that its matrix is read seldom. */
typedef struct {
    float *u, *normed, *logits;
} exf_head_arrays;
int exf_head_rows(const exf_backend *b);
void exf_head_carve(exf_head_arrays *s, exf_arena *arena, const exf_backend *b, const exf_architecture *a);

/* The arrays that a MoE block needs for such lanes. */
exf_moe_needs exf_moe_needs_of(const exf_backend *b, const exf_architecture *a, const exf_demand *d);

/* Floats of an arena for mixers alone, and for everything: mixers on the longest sequence, MoE
 * blocks of block_tokens, common input, the head. */
size_t exf_mixing_floats(const exf_backend *b, const exf_architecture *a, int max_tokens);
size_t exf_workspace_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a, int max_tokens, int block_tokens,
                            const exf_demand *d);
/* Floats of the host copy of what observers read at a time; 0 where nothing is copied. */
size_t exf_mirror_floats(const exf_backend *b, const exf_architecture *a, int block_tokens, const exf_demand *d);
/* Tokens of a MoE block on the CPU. */
int exf_host_block(int max_tokens);
#endif

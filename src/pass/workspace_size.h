/* workspace_size.h - sizes of a worker's workspace, from the functions that carve it. */
#ifndef EXF_PASS_WORKSPACE_SIZE_H
#define EXF_PASS_WORKSPACE_SIZE_H
#include "pass/demand.h"
#include "pass/moe_arrays.h"

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
#endif

/* common_input.h - all experts on the same tokens: the tokens of each sequence that the
 * lane's observer asks for.
 *
 * Of a sequence of T tokens the n at positions (2 i + 1) T / (2 n) are taken, all of
 * them where T <= n.  Layers that route by token id are left out. */
#ifndef EXF_MOE_COMMON_INPUT_H
#define EXF_MOE_COMMON_INPUT_H
#include "moe/moe_layer.h"

/* Arrays of N tokens in the backend's memory; number type of x and outputs as in moe_arrays.h. */
typedef struct {
    exf_matrix outputs; /* [N, E, H] */
    void *experts;      /* workspace of the experts operation */
    float *hidden;      /* [N, streams, H] */
    float *u, *mixing;  /* with several residual streams: [N, H], [N, mixing] */
    float *input;       /* [N, H] normed, float32 */
    exf_matrix x;       /* [N, H] what the products read */
    int32_t *row;       /* [N] each token's row in the group */
    int32_t *ids;       /* [N, E] every expert, in order */
} exf_common_arrays;

/* Tokens of a sequence that are taken, and the position of the i-th. */
int exf_common_input_tokens(const exf_moe_layer *l, size_t sequence);
int exf_common_input_position(const exf_moe_layer *l, size_t sequence, int i);

/* Takes the arrays of n_tokens from the arena (counts with arena->base NULL). */
void exf_common_carve(exf_common_arrays *c, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                      int n_tokens);
/* c->outputs of the first n tokens, whose rows of the group are in c->row; c->ids is filled. */
void exf_common_compute(const exf_moe_layer *l, exf_workspace *w, const exf_common_arrays *c, int n);

/* The two engines' ways (moe_engine.h). */
exf_code exf_common_input_host(exf_moe_layer *l, exf_err *err) EXF_CHECKED;
exf_code exf_common_input_gpu(exf_moe_layer *l, exf_err *err) EXF_CHECKED;
/* Floats of a worker's arena that they need at least. */
size_t exf_common_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a);
#endif

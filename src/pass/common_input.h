/* common_input.h - runs all experts on the same tokens of each sequence, as many as the lane's
 * observer asks for.
 *
 * Of a sequence of T tokens the n at positions (2 i + 1) T / (2 n) are taken, or all of
 * them if T <= n.  How a layer routes does not matter: hash layers are no exception. */
#ifndef EXF_PASS_COMMON_INPUT_H
#define EXF_PASS_COMMON_INPUT_H
#include "pass/moe_layer.h"

/* Arrays of N tokens in the backend's memory; x and outputs have the number type of moe_arrays.h. */
typedef struct {
    exf_matrix outputs; /* [N, E, H] */
    void *experts;      /* workspace of the experts operation */
    float *hidden;      /* [N, streams, H] */
    float *u, *mixing;  /* [N, H] and [N, mixing]; used with several residual streams */
    float *input;       /* [N, H] normed, float32 */
    exf_matrix x;       /* [N, H] operand of the products */
    int32_t *row;       /* [N] row in the group of each token */
    int32_t *ids;       /* [N, E] every expert, in order */
} exf_common_arrays;

/* Return how many tokens of a sequence are taken, and the position of the i-th. */
int exf_common_input_tokens(const exf_moe_layer *l, size_t sequence);
int exf_common_input_position(const exf_moe_layer *l, size_t sequence, int i);

/* Takes the arrays of n_tokens from the arena (counts with arena->base NULL). */
void exf_common_carve(exf_common_arrays *c, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                      int n_tokens);
/* Computes c->outputs of the first n tokens, whose rows in the group are in c->row; c->ids is filled already. */
void exf_common_compute(const exf_moe_layer *l, exf_workspace *w, const exf_common_arrays *c, int n);

/* Run common input for a layer's group on either engine (moe_engine.h). */
exf_code exf_common_input_host(exf_moe_layer *l, exf_err *err) EXF_CHECKED;
exf_code exf_common_input_gpu(exf_moe_layer *l, exf_err *err) EXF_CHECKED;
/* Returns the floats that common input needs at least in a worker's arena. */
size_t exf_common_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a);
#endif

/* experts.h - the feed-forward half of one decoder layer for one lane: the MoE block,
 * or the dense feed-forward network of a layer without experts.
 *
 *   x      = norm(hidden)
 *   routed = sum of weight * expert(x)           by the lane's routes
 *   routed += correction                         of the lane's rewriter
 *   block  = routed + shared experts(x)
 *   hidden = hidden + block                      (several residual streams: hyper-connections)
 *
 * With residual.normed (all layers have experts beside shared ones):
 *   block  = norm(norm(routed) + norm(shared(norm(hidden))))
 *   hidden = (hidden + block) * the layer's scale
 * each norm with weights of its own; x and routed, which hooks see and tables are made of, are as above.
 *
 * One implementation serves every caller: calibration, all lanes of a validation with their probes, common input;
 * float32 and bfloat16.  The backends differ only in how the tokens of a run are cut into calls of the block:
 *
 *   CPU    workers run in parallel; a worker takes a sequence and runs it in blocks of EXF_MOE_BLOCK tokens
 *   GPU    one worker takes many tokens at a time, whichever sequences they belong to, and the host does not wait
 *
 * The cut changes no result: on a GPU a row's bits depend on that row alone, and on the CPU, where OpenBLAS chooses a kernel
 * by the rows of a call, the blocks are always the same. */
#ifndef EXF_PASS_EXPERTS_H
#define EXF_PASS_EXPERTS_H
#include "pass/experts_layer.h"

/* ---- what the hooks see of a block (experts_observe.c) ------------------------------------------- */

/* Returns 1 if the lane's observer reads routes in host memory. */
int exf_moe_wants_host_routes(const exf_moe_layer *l);
/* Shows the block to the lane's observer; stream: its updated hidden states, NULL if it has none or before the last sweep. */
exf_code exf_moe_show(const exf_moe_layer *l, const exf_moe_view *v, const exf_moe_arrays *m, const float *stream,
                      exf_err *err) EXF_CHECKED;
/* Adds the rewriter's correction, if it has one, to routed. */
exf_code exf_moe_correct(const exf_moe_layer *l, const exf_rewriter *r, const exf_moe_view *v, exf_matrix outputs, float *routed,
                         exf_err *err) EXF_CHECKED;
/* Runs a probing lane's routes on the block, whose experts' outputs are in m, and shows the result. */
exf_code exf_moe_probe_run(const exf_moe_layer *l, const exf_moe_probe *p, const exf_moe_view *v, const exf_moe_arrays *m,
                           exf_err *err) EXF_CHECKED;

/* ---- common input (experts_common_input.c) --------------------------------------------------------- */

/* Arrays of N tokens in the backend's memory; x and outputs have the number type of exf_moe_number(). */
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

/* Runs all experts on the same tokens of each sequence of the group, as many as the lane's observer asks for, and shows it
 * their outputs. */
exf_code exf_common_input(exf_moe_layer *l, exf_err *err) EXF_CHECKED;
/* Return how many tokens of a sequence are taken, and the position of the i-th. */
int exf_common_input_tokens(const exf_moe_layer *l, size_t sequence);
int exf_common_input_position(const exf_moe_layer *l, size_t sequence, int i);
/* Takes the arrays of n_tokens from the arena (counts with arena->base NULL). */
void exf_common_carve(exf_common_arrays *c, exf_arena *arena, const exf_backend *b, exf_compute compute, const exf_architecture *a,
                      int n_tokens);
/* Returns the floats that common input needs at least in a worker's arena. */
size_t exf_common_floats(const exf_backend *b, exf_compute compute, const exf_architecture *a);

/* ---- the block (experts.c) ------------------------------------------------------------------------- */

/* Runs one sweep over the layer's group. */
exf_code exf_moe_run(exf_moe_layer *l, exf_err *err) EXF_CHECKED;
#endif

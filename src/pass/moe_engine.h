/* moe_engine.h - an engine cuts the tokens of a run into calls of the MoE block.
 *
 *   host   workers run in parallel; a worker takes a sequence and runs it in blocks of
 *          EXF_MOE_BLOCK tokens (recorded hidden states: blocks are dealt to workers)
 *   gpu    one worker takes many tokens at a time, whichever sequences they belong to, and
 *          the host does not wait
 *
 * How tokens are cut into calls changes no result: on a GPU a row's bits depend on that row
 * alone, and on the CPU, where OpenBLAS chooses a kernel by the rows of a call, the blocks
 * are always the same. */
#ifndef EXF_PASS_MOE_ENGINE_H
#define EXF_PASS_MOE_ENGINE_H
#include "pass/moe_layer.h"

extern const exf_moe_engine exf_moe_host, exf_moe_gpu;
/* Returns the engine for a backend's memory. */
const exf_moe_engine *exf_moe_engine_of(const exf_backend *b);
/* Allocates exf_moe_layer.not_finite in GPU memory, all ones: every hidden state is finite so far. */
exf_code exf_moe_not_finite_new(uint64_t **not_finite, const exf_backend *b, exf_queue *q, exf_err *err) EXF_CHECKED;
#endif

/* moe_engine.h - an engine cuts the tokens of a run into calls of the MoE block.
 *
 *   host   workers run in parallel; a worker takes a sequence and runs it in blocks of
 *          EXF_MOE_BLOCK tokens (recorded hidden states: blocks are dealt to workers)
 *   gpu    one worker takes many tokens at a time, whichever sequences they belong to, and
 *          the host does not wait
 *
 * Every operation of a block works on single rows, and a row's bits depend on that row
 * only, so the cutting changes no result. */
#ifndef EXF_MOE_MOE_ENGINE_H
#define EXF_MOE_MOE_ENGINE_H
#include "moe/moe_layer.h"

extern const exf_moe_engine exf_moe_host, exf_moe_gpu;
/* Returns the engine for a backend's memory. */
const exf_moe_engine *exf_moe_engine_of(const exf_backend *b);
#endif

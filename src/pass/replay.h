/* replay.h - runs routers and experts alone, on hidden states that another program recorded:
 * a serving engine, or a model whose attention this program lacks.
 *
 *   recorded input -> router (unless routes are recorded too) -> experts -> observer
 *
 * The MoE block and the observers are those of exf_forward().  No layer reads another
 * layer's result, so any layers can be replayed.  Only routers and experts of the checkpoint
 * are needed (EXF_MODEL_EXPERTS).
 *
 * Reproducible: the unit of work on the CPU is a block of EXF_MOE_BLOCK tokens of one
 * sequence on one thread, so any thread count gives the same bits. */
#ifndef EXF_PASS_REPLAY_H
#define EXF_PASS_REPLAY_H
#include "pass/forward.h"
#include "pass/recorded.h"

/* Replays the recorded layers. batch->ids may be NULL unless a hash layer has no recorded routes
 * (EXF_MODEL names it).  Logits are never observed.  Ignored are the options
 * n_layers, mixer_queues and common_input_tokens, and observer.sweeps: every layer's experts are read once. */
exf_code exf_replay(const exf_model *m, const exf_batch *batch, const exf_recorded *recorded, const exf_observer *observer,
                    const exf_forward_options *options, exf_forward_report *report, exf_err *err) EXF_CHECKED;

/* Returns the threads that a replay uses: one on a GPU, else at most one per block. */
int exf_replay_workers(const struct exf_backend *b, const exf_batch *batch, int threads);
/* Returns the floating-point operations of n_layers layers. */
double exf_replay_flops(const exf_architecture *a, const exf_batch *batch, int n_layers);
/* Computes the most memory that a replay holds; see exf_forward_memory(). */
exf_code exf_replay_memory(exf_forward_footprint *f, const exf_forward_options *options, const exf_model *m, const exf_batch *batch,
                           const exf_recorded *recorded, const exf_observer *observer, exf_err *err) EXF_CHECKED;
#endif

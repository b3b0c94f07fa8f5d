/* replay.h - routers and experts alone, on hidden states that something else
 * recorded: a serving engine, or a model whose attention this program lacks.
 *
 *   recorded input -> router (unless routes are recorded too) -> experts -> observe
 *
 * The parts and the observers are those of exf_forward(); nothing flows from layer
 * to layer, so any layers can be replayed.  Of the checkpoint only routers and
 * experts are needed (EXF_MODEL_EXPERTS).
 *
 * Reproducible: the unit of work is a block of EXF_MOE_BLOCK tokens of one
 * sequence on one thread, so any thread count gives the same bits. */
#ifndef EXF_FORWARD_REPLAY_H
#define EXF_FORWARD_REPLAY_H
#include "forward/forward.h"

/* Where recorded rows come from.  Rows are numbered over the whole batch; the
 * functions are called from several threads. */
typedef struct {
    unsigned char has_input[EXF_MAX_LAYERS];  /* by the model's layer number: replayed */
    unsigned char has_routes[EXF_MAX_LAYERS]; /* else the router runs */
    void *self;
    /* Rows [row, row + n) of what router and experts of a layer saw, dst [n, H], finite. */
    exf_code (*input)(void *self, int layer, size_t row, size_t n, float *dst, exf_err *err);
    /* ids [n, K], each in [0, E), and weights [n, K]. */
    exf_code (*routes)(void *self, int layer, size_t row, size_t n, int32_t *ids, float *weights, exf_err *err);
} exf_recorded;

/* batch->ids may be NULL unless a layer that routes by token has no routes
 * (EXF_MODEL naming it).  threads 0: all that the system gives.  logits are never
 * observed. */
exf_code exf_replay(const exf_model *m, const exf_batch *batch, const exf_recorded *recorded, const exf_observer *observer, int threads,
                    exf_forward_report *report, exf_err *err) EXF_CHECKED;

/* Threads it will use: never more than there are blocks. */
int exf_replay_workers(const exf_batch *batch, int threads);
/* Floating-point operations, and bytes held at the peak, for n_layers layers. */
double exf_replay_flops(const exf_architecture *a, const exf_batch *batch, int n_layers);
uint64_t exf_replay_memory(const exf_model *m, const exf_batch *batch, int threads);
#endif
